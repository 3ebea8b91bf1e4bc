"""Small layers of every kind that read a map of a given shape, for the tests, which join them to others."""

from __future__ import annotations

from math import prod
from typing import Any

from hypothesis import strategies as st

from tests.agreement.test_fused import FINISHES
from tests.strategies import among
from tpusim.network.ops import OPS, elementwise
from tpusim.network.ops.array_op import Conv1d, Conv2d, ConvTranspose2d, Gemm
from tpusim.network.ops.elementwise import (
    Add,
    Arithmetic,
    Clip,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Power,
    Rotary,
    ScaleShift,
    SoftCap,
)
from tpusim.network.ops.fused import Fused
from tpusim.network.ops.op import Op, Shape
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.ops.rows import LayerNorm, ReduceMean, RmsNorm, Softmax, TopK

CHANNELS = st.integers(1, 5)
SIDE = among(1, 2, 3, 3, 4)
KERNEL = st.integers(1, 3)
STEP = among(1, 1, 2)
TRUTH = among(True, False)
OTHERS = tuple(OPS[op] for op, row in elementwise.ROWS.items() if row.kind is Arithmetic)
POINTWISE = (
    *OTHERS, ScaleShift, LeakyRelu, Clip, HardSigmoid, HardSwish, Gelu, Power, SoftCap,
    *(OPS[op] for op, row in elementwise.ROWS.items() if row.kind is not Arithmetic and not row.positive),
)  # fmt: skip
ROWS = (Softmax, LayerNorm, RmsNorm, TopK, ReduceMean)
MORE: dict[type[Op], dict[str, st.SearchStrategy[Any]]] = {
    **{kind: {"other": among("each", "each", "each", "map", "channel", "image", "pixel", "number")} for kind in OTHERS},
    LeakyRelu: {"slope": among(0.0, 0.125, 0.1, 0.01)},
    Clip: {"min": among(-2.0, -0.25, 0.0), "max": among(0.0, 1.5, 6.0)},
    HardSigmoid: {"alpha": among(-0.5, 0.25, 1.75), "beta": among(-2.0, 0.0, 0.5)},
    SoftCap: {"cap": among(0.3, 2.0)},
    Power: {"exponent": among(2, 3)},
    Gelu: {"approximate": among("none", "tanh")},
}
"""Of pointwise ops, what is drawn besides their sizes."""


@st.composite
def maps(draw: st.DrawFn, images: int) -> Shape:
    """The shape of a map that nobody has made."""
    return draw(CHANNELS), draw(SIDE), draw(SIDE), images


@st.composite
def layers_on(draw: st.DrawFn, shape: Shape) -> Op:
    """A layer that reads a map of this shape, or the same elements as rows."""
    layer = draw(draw(KINDS)(shape))
    if not isinstance(layer, Conv2d | Gemm) or draw(TRUTH):
        return layer
    adds, finish, bias = draw(TRUTH), draw(FINISHES), draw(TRUTH)
    return Fused(layer.name, layer, adds, finish, bias) if adds or finish or bias else layer


@st.composite
def convolved(draw: st.DrawFn, shape: Shape) -> Op:
    """Kernels 1..3, strides and dilations 1 and 2, rectangular throughout, sometimes grouped or depthwise."""
    channels, *sides, _ = shape
    kernel, stride, dilation = ((draw(each), draw(each)) for each in (KERNEL, STEP, STEP))
    lacking = (d * (k - 1) + 1 - side for k, d, side in zip(kernel, dilation, sides, strict=True))
    padding = tuple(max(0, -(-each // 2)) + draw(among(0, 0, 1)) for each in lacking)
    groups = draw(among(*(each for each in (1, 1, 1, 2, 3, channels) if channels % each == 0)))
    out = groups * draw(st.integers(1, max(1, 6 // groups)))
    return Conv2d("conv", channels, sides[0], sides[1], out, kernel, stride, padding, dilation, groups)


@st.composite
def convolved_as_rows(draw: st.DrawFn, shape: Shape) -> Op:
    """Along the pixels, one row after another."""
    channels, height, width, _ = shape
    kernel, length = draw(KERNEL), height * width
    least = -(-max(0, kernel - length) // 2)
    return Conv1d("sequence", channels, length, draw(CHANNELS), kernel, draw(STEP), (least, least), 1, 1)


@st.composite
def multiplied(draw: st.DrawFn, shape: Shape) -> Op:
    """What a map has of each image is a row."""
    return Gemm("gemm", shape[3], draw(st.integers(1, 9)), prod(shape[:3]))


@st.composite
def transposed(draw: st.DrawFn, shape: Shape) -> Op:
    """Kernels and strides 1..3."""
    kernel, stride = ((draw(KERNEL), draw(KERNEL)) for _ in range(2))
    added = draw(st.integers(0, stride[0] - 1)), draw(st.integers(0, stride[1] - 1))
    return ConvTranspose2d("up", *shape[:3], draw(CHANNELS), kernel, stride, (0, 0), added, (1, 1), 1)


@st.composite
def pooled(draw: st.DrawFn, shape: Shape) -> Op:
    """Of both kinds, in windows of at most half padding."""
    kernel = min(shape[1], draw(KERNEL)), min(shape[2], draw(KERNEL))
    pads = tuple(draw(st.integers(0, kernel[axis] // 2)) for axis in (0, 1, 0, 1))
    stride = draw(STEP), draw(STEP)
    return Pool2d("pool", draw(among("max", "average", "min")), *shape[:3], kernel, stride, pads, (1, 1), *draw(ENDS))


ENDS = st.tuples(TRUTH, TRUTH)
"""Of pools: whether windows may reach beyond the map, and whether an average counts padding."""


@st.composite
def pointwise(draw: st.DrawFn, shape: Shape) -> Op:
    """Of every kind, with every operand; sums of two maps more often."""
    halves = () if shape[0] % 2 else (Rotary, Rotary)
    kind = draw(among(*POINTWISE, Add, Add, Add, *halves))
    more = {name: draw(each) for name, each in MORE.get(kind, {}).items()}
    return kind("op", *shape[:3], **more)  # type: ignore[call-arg]


@st.composite
def by_rows(draw: st.DrawFn, shape: Shape) -> Op:
    """What a map has of each image is a row."""
    kind: type[Any] = draw(among(*ROWS))
    channels = prod(shape[:3])
    mask = {"queries": draw(st.integers(1, channels))} if kind is Softmax and draw(TRUTH) else {}
    most = {"k": draw(st.integers(1, min(channels, 3)))} if kind is TopK else {}
    return kind("rows", channels, **mask, **most)


KINDS = among(convolved, convolved, convolved_as_rows, multiplied, transposed, pooled, pointwise, pointwise, by_rows)
