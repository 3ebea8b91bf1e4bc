"""Operations that Google's compiler priced: those of whole networks, and those of the vector unit one by one.

The layers of an operation are worked out from the shapes of its operands and results. An operation of
a network may hold two convolutions or products, one after the other; additions and activations ride along, nearly free.
A copy moves words from one layout into another. An operation that needs an op that tpusim lacks has no layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from math import ceil, gcd, lcm, prod
from typing import Any, Literal

from tpusim.flow.jobs import resolve
from tpusim.machines.family import load_hardware
from tpusim.network.ops import OPS
from tpusim.network.ops.array_op import ArrayOp, Conv2d, Gemm
from tpusim.network.ops.elementwise import Add, Copy, LeakyRelu, Relu, ScaleShift
from tpusim.network.ops.op import Op, VectorOp
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.ops.rows import SumExp, SumSquares
from tpusim.network.training import training_step as training_step_of
from tpusim.network.workload import BACKWARD, FORWARD, UPDATE, Workload
from tpusim.network.workload_file import load_workload
from tpusim.study.validation.cases import Case, Omission, Row, cached, rows, sizes
from tpusim.study.validation.convolutions import LANES, SUBLANES, USUAL_BATCH, with_hbm

Dims = tuple[int, ...]

# ---- networks

ESTIMATED = {
    "network_resnet18": "ResNet-18",
    "network_resnet50": "ResNet-50",
    "network_vgg16": "VGG16",
    "network_yolov2": "YOLOv2",
    "network_bert_layer": "a layer of BERT, 128 and 512 words",
}
SCHEDULED = {"scheduled_resnet50": "ResNet-50", "scheduled_vgg16": "VGG16"}
"""Networks by the sets of estimates, and of code: convolutions and products."""
POOLING = "scheduled_pooling"


@dataclass(frozen=True)
class RowOperation:
    """A row of the table, its operation, and its layers, each for `batch` images."""

    row: Row
    what: str
    layers: tuple[Op, ...]
    batch: int

    @property
    def name(self) -> str:
        """Place of the operation in the network, and its kind."""
        return f"{self.row['index']} {self.what}"

    @property
    def estimate(self) -> float | None:
        """The compiler's estimate; None if it has no price."""
        return float(self.row["estimated_cycles"]) if self.row["estimated_cycles"] else None

    @property
    def code(self) -> float | None:
        """Cycles of its code with HBM; None if there is no code."""
        code = _code().get((self.row["network"], self.row["name"]))
        return None if code is None else with_hbm(code)


SplitCases = tuple[tuple[Case, ...], tuple[Omission, ...]]
"""Cases of a network, and operations that are left out."""


def estimated(name: str) -> SplitCases:
    """Estimates of the operations of one of the networks `ESTIMATED`.

    Priced operations that need an op that tpusim lacks are left out.
    """
    priced = ((each, each.estimate) for each in _operations(name.removeprefix("network_")))
    return _compared(priced, lambda each: bool(each.layers))


def scheduled(name: str) -> SplitCases:
    """Cycles of code of the convolutions and products of one of the networks `SCHEDULED`.

    Left out are its other operations: copies, and pooling, which is a set of its own.
    """
    return _compared(_coded(name), lambda each: any(isinstance(layer, ArrayOp) for layer in each.layers))


def scheduled_pooling() -> tuple[Case, ...]:
    """Cycles of code of the poolings of all of these networks."""
    coded = (pair for name in SCHEDULED for pair in _coded(name))
    return _compared(coded, lambda each: "reduce-window" in each.row["fused"])[0]


# ---- a training step


STEP = "training_step"
STEP_CHANGES = ("sequencer.fusion=results",)
"""The compiler makes maps on the way, and so does the machine that its code is compared with."""
MEASURED_STEP_MS = 229.0
"""A step of ResNet-50 at batch 128 a core, measured on a TPU v2: 4,471 images a second on eight cores, from the logs of
MLPerf Training v0.5 (truth/README.md).
"""


def training_step(machine: str) -> tuple[Case, ...]:
    """Cycles of code of the operations of a training step of ResNet-50 at batch 128, those of its phases together.

    An operation counts with what it moves, where that takes longer. The code updates most weights within the operation
    that makes their gradient, so that these two phases are compared together.
    """
    step = _step(machine)
    phases, coded = dict(step.phases), [*rows("xla_tpu_v2_training_step_scheduled")]

    def case(name: str, *parts: str) -> Case:
        theirs = (
            max(float(row[key] or 0) for key in ("scheduled_cycles", "hbm_cycles"))
            for row in coded
            if row["phase"] in parts
        )
        layers = tuple(layer for layer in step.layers if phases[layer.name] in parts)
        return Case(name, layers, step.batch, sum(theirs))

    every = FORWARD, BACKWARD, UPDATE
    return case("forward", FORWARD), case("backward and update", BACKWARD, UPDATE), case("whole step", *every)


def measured_step(machine: str) -> tuple[Case, ...]:
    """The time of the same step on a chip, in microseconds."""
    step = _step(machine)
    return (Case("whole step", step.layers, step.batch, 1000 * MEASURED_STEP_MS),)


@cached
def _step(machine: str) -> Workload:
    network = load_workload("resnet50", batch=128, ops="all")
    assert network.training is not None
    # The code updates weights without momentum.
    step = training_step_of(network, replace(network.training, momentum=0.0))
    return resolve(step, load_hardware(machine, STEP_CHANGES)).work


def _coded(name: str) -> Iterator[tuple[RowOperation, float | None]]:
    return ((each, each.code) for each in _operations(name.removeprefix("scheduled_")))


def _compared(
    figures: Iterator[tuple[RowOperation, float | None]], holds: Callable[[RowOperation], bool]
) -> SplitCases:
    """Operations with a figure: cases if `holds`, otherwise left out."""
    known = [(each, theirs) for each, theirs in figures if theirs is not None]
    compared = ((each, theirs) for each, theirs in known if holds(each))
    cases = (Case(each.name, each.layers, each.batch, theirs, each.estimate, each.code) for each, theirs in compared)
    return tuple(cases), tuple(Omission(each.name, theirs) for each, theirs in known if not holds(each))


@cached
def _code() -> dict[tuple[str, str], Row]:
    """Emitted code by network and operation."""
    return {(row["case"].split("_")[0], row["name"]): row for row in rows("xla_tpu_v2_networks_scheduled")}


@cached
def _operations(network: str) -> list[RowOperation]:
    """Every operation of a network, in order."""
    return [operation(row) for row in rows("xla_tpu_v2_networks") if row["network"] == network]


# ---- the layers of an operation

_SIDE = 256
"""Side of a map with as many words as are copied; the form of the map hardly matters."""
_POOLS = {"resnet18": (3, 3), "resnet50": (3, 3), "vgg16": (2, 2), "yolov2": (2, 2)}
"""Kernels of the networks' poolings, which the table does not give."""


MadeOperation = tuple[str, tuple[Op, ...], int]
"""Kind of an operation, its layers, and the number of images of these layers."""


def operation(row: Row) -> RowOperation:
    """The operation of a row."""
    said = f"{row['op']} {row['fused']} {row['conv_window']}"
    made: MadeOperation | None = None
    if row["estimated_cycles"]:
        multiplies = "lhs_dilate" in said or "convolution" in said
        made = _multiplied(row, said) if multiplies else _on_the_vector_unit(row, said)
    return RowOperation(row, *(made or (row["fused"] or row["op"], (), 1)))


def layers_of(row: Row) -> tuple[Op, ...]:
    """The convolutions or products of an operation, worked out from the shapes of its operands and results."""
    tensors, (*_, out) = _shapes(row["operands"]), _shapes(row["output_shape"])
    batch = int(row["batch"])
    maps, weights = ([each for each in tensors if (each[0] == batch) is is_map] for is_map in (True, False))
    # Weights are ordered so that their channels meet; the last one has the result's channels.
    chain = next(
        order
        for order in permutations(weights)
        if order[-1][-1] == out[-1] and all(one[-1] == other[-2] for one, other in pairwise(order))
    )
    inputs = [each for each in maps if each[-1] == chain[0][-2]]
    if len(chain[0]) == 2:
        rows_ = prod(inputs[0][:-1])
        return tuple(Gemm(f"{rows_}x{k}>{n}", rows_, n, k) for k, n in chain)
    # If no input has enough channels, several are concatenated.
    _, height, width, _ = max(each for each in inputs or maps if len(each) == 4)
    return _convolutions(chain, (height, width), out, row["conv_window"])


def _multiplied(row: Row, said: str) -> MadeOperation:
    """Convolutions and products; the rows of products hold the images already.

    Of attention a product for each image and head, as groups of a convolution. Scores: words of one operand's rows, the
    other's are columns. Sums over words: those of the heads' values are the rows, as the layout of the result says.
    """
    if "lhs_dilate" not in said:
        head, *rest = layers_of(row)
        what = " ".join([head.text, *(f">{layer.text.split('>')[1]}" for layer in rest)])
        return what, (head, *rest), int(row["batch"]) if head.spatial else 1
    (_, words, heads, width), *_ = _shapes(row["operands"])
    products, scores = int(row["batch"]) * heads, "reduce" in row["fused"]
    rows_, depth = (words, width) if scores else (width, words)
    layer = Conv2d("attention", products * depth, 1, rows_ // SUBLANES, products * words, (1, 1), groups=products)
    return f"{products} of {rows_}x{depth}>{words}", (layer,), SUBLANES


def _on_the_vector_unit(row: Row, said: str) -> MadeOperation | None:
    """Poolings, copies, sums of rows, and elementwise ops; None for operations without a layer here."""
    if "reduce-window" in said:
        # A maximum over 3 x 3 elements of a padded map, or over 2 x 2: the one that halves its sides.
        batch, height, width, channels = _shapes(row["operands"])[0]
        kernel = _POOLS[row["network"]]
        pool = Pool2d("pooling", "max", channels, height, width, kernel, (2, 2), "same" if kernel[0] > 2 else (0, 0))
        return pool.text, (pool,), batch
    if "copy" in (row["op"], row["fused"]):
        return _copy(row)
    if "subtract exponential reduce" in said or "subtract multiply reduce" in said:
        # Rows are summed, less a number of their own: powers over the last axis, or squares.
        (*outer, words), *_ = _shapes(row["operands"])
        kind = SumExp if "exponential" in row["fused"] else SumSquares
        layer = kind("sum", words, prod(outer))
        return f"{kind.op} {layer.text}", (layer,), 1
    # Results in bfloat16 for all words and channels, each from one number: normalized by a known mean and variance.
    made = _shapes(row["output_shape"])
    reduced = "reduce" in {word.split("*")[0] for word in row["fused"].split()}
    if row["output_shape"].startswith("bf16") and [len(dims) for dims in made] == [3] and not reduced:
        ((batch, words, channels),) = made
        return f"normalize {batch}x{words}x{channels}", (ScaleShift("normalization", channels, 1, words),), batch
    return None


def _copy(row: Row) -> MadeOperation:
    """An op with one operand on as many words as the result has, in whole tiles of both layouts.

    Axes that lie in another order in the other tensor, as where blocks become channels, are padded to the result's.
    """
    one, other = _tensor(row["operands"]), _tensor(row["output_shape"])
    (dims, _), layouts = other, (one, other) if one[0] == other[0] else (other,)
    tiles = (lcm(*(lengths.get(axis, 1) for _, lengths in layouts)) for axis in range(len(dims)))
    padded = [ceil(size / tile) * tile for size, tile in zip(dims, tiles, strict=True)]
    words = prod(padded) // (LANES * SUBLANES)
    rows_ = gcd(words, _SIDE)
    layer = Relu("copy", LANES, rows_, words // rows_)
    return f"copy {'x'.join(map(str, dims))}", (layer,), SUBLANES


def _tensor(text: str) -> tuple[Dims, Mapping[int, int]]:
    """Return the sizes of the axes of "bf16[8,224,224,3]{0,3,2,1:T(4,128)(2,1)}", which has them from the minor one on,
    and the length of a tile along the two that have one.
    """
    found = re.search(r"\[([\d,]+)\]\{([\d,]+):T\((\d+),(\d+)\)", text)
    assert found is not None, text
    dims, axes = (tuple(map(int, found[group].split(","))) for group in (1, 2))
    return dims, {axes[0]: int(found[4]), axes[1]: int(found[3])}


def _shapes(text: str) -> list[Dims]:
    """Shapes with at least two axes in a text such as "bf16[8,56,56,64]{3,0,2,1:T(8,128)(2,1)} bf16[64]{0}"."""
    found = (tuple(map(int, dims.split(","))) for dims in re.findall(r"\w\[([\d,]+)\]", text))
    return [dims for dims in found if len(dims) > 1]


def _convolutions(chain: Sequence[Dims], side: tuple[int, int], out: Dims, window: str) -> tuple[Op, ...]:
    """Convolutions of an operation. The window belongs to one of them; the rest of the stride to the other, which keeps
    the size.

    It stands in `window`: "convolution{size=3x3 stride=2x2 pad=1_1x1_1}".
    """
    said = dict(re.findall(r"(\w+)=([\dx_]+)", window))
    kernel, (stride, *_) = sizes(said["size"]), sizes(said.get("stride", "1x1"))
    down, across = (int(each.split("_")[0]) for each in said.get("pad", "0_0x0_0").split("x"))
    all_strides = side[0] // out[1] if len(out) == 4 else stride
    layers: list[Conv2d] = []
    for high, wide, channels, channels_out in chain:
        own = (stride, (down, across)) if (high, wide) == kernel else (all_strides // stride, (high // 2, wide // 2))
        layer = Conv2d("conv", channels, *side, channels_out, (high, wide), (own[0], own[0]), own[1])
        side = layer.out_height, layer.out_width
        layers.append(layer)
    return tuple(layers)


# ---- the vector unit

_BFLOAT16 = 2
_FLOAT32 = ("vector_memory.element_bytes=4",)
_ELEMENTS: dict[str, Callable[..., VectorOp]] = {
    "add": Add,
    "add_f32": Add,
    "batchnorm": ScaleShift,
    "relu": Relu,
    "leaky_relu": LeakyRelu,
    "nhwc_to_nchw": Copy,
}
"""Elementwise operations by the names of the table; two that the compiler fuses into one are no layer here. Turning a
map round is a copy, too.
"""
ROW_OPS: Mapping[str, str] = {
    **{op: op for op in ("relu", "add", "mul", "copy", "exp", "tanh", "sigmoid", "silu", "gelu", "scale_shift",
                         "softmax", "transpose")},
    "divide": "div", "silu_mul": "swiglu", "gelu_tanh": "gelu", "gelu_erf": "gelu", "batchnorm": "scale_shift",
    "sum": "reduce_mean", "sum_rows": "channel_sum", "layernorm": "layer_norm", "rmsnorm": "rms_norm",
}  # fmt: skip
"""Ops on rows by what tables call them. A sum is that of a row, made as a mean, or, as the bytes of results say of
`sum_rows`, of a column.
"""
_MORE: Mapping[str, Mapping[str, Any]] = {
    "gelu": {"approximate": "tanh"},
    "gelu_tanh": {"approximate": "tanh"},
    "transpose": {"order": ("images", "height", "width", "channels")},
}
"""What else is said of some; JAX has GELU by tanh unless told otherwise."""
_ON_ROWS = "softmax", "layernorm", "gelu_tanh"
"""Operations of the table on rows, which it has along the last axis."""


def row_op(called: str, name: str, row: int, rows: int) -> Op:
    """Make the op that a table calls `called`, on `rows` rows of `row` elements."""
    made: Callable[..., Op] = OPS[ROW_OPS[called]]
    return made(name, row, images=rows, **_MORE.get(called, {}))


def vector_ops() -> tuple[Case, ...]:
    """Estimates of ops of the vector unit that are fully priced, and that are layers here."""
    priced = (row for row in rows("xla_tpu_v2_vector_ops") if row["ops_without_estimate"] == "0")
    found = ((row, float(row["estimated_cycles_total"]), _vector_op(row)) for row in priced)
    return tuple(
        Case(layer.name, (layer,), int(row["batch"]), cycles, cycles, changes=_FLOAT32 * row["op"].endswith("f32"))
        for row, cycles, layer in found
        if layer is not None
    )


def _vector_op(row: Row) -> Op | None:
    op, shapes = row["op"], [sizes(each.split(":")[0]) for each in row["shapes"].split("|")]
    *outer, channels = shapes[0]
    if op in _ON_ROWS:
        return row_op(op, f"{op} {'x'.join(map(str, shapes[0]))}", channels, prod(outer))
    if len(shapes[0]) != 4:
        return None
    _, height, width = outer
    batch = f" batch {row['batch']}" if int(row["batch"]) != USUAL_BATCH else ""
    name, ifmap = f"{op} {height}x{width}x{channels}{batch}", (channels, height, width)
    if op in _ELEMENTS:
        return _ELEMENTS[op](name, *ifmap)
    if op.startswith("concat"):
        # A concatenation of maps is a copy of what it makes.
        made = sum(each[-1] for each in shapes)
        copied: Op = Copy(f"{op} {height}x{width}x{made}", made, height, width)
        return copied
    if op == "global_avgpool":
        return Pool2d(name, "average", *ifmap, (height, width))
    found = re.fullmatch(r"(max|avg)pool(\d)x\ds(\d)", op)
    if found is None:
        return None
    kind: Literal["max", "average"] = "max" if found[1] == "max" else "average"
    # Padded where an output came out for each step of the stride, as the table's bytes show.
    same = Pool2d(name, kind, *ifmap, (int(found[2]),) * 2, (int(found[3]),) * 2, "same")
    bytes_out = same.outputs(int(row["batch"])) * _BFLOAT16
    return same if bytes_out == int(row["out_bytes"]) else replace(same, padding=(0, 0))
