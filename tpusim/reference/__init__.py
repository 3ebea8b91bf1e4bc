"""The oracle: each op straight from its definition, in vectorised NumPy.

Shares no code with the lowering, the data path or the engines. Random operands are small integers, a byte each: every
partial sum is an exact integer below 2**24, or one of equal parts of it where a layer interpolates, so that results are
equal whatever the order of summation.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError
from tpusim.base.imports import Registry
from tpusim.network.ops import MODULES
from tpusim.network.ops.op import OFMAP, Index, Op

Box: TypeAlias = tuple[range, range, range, range]
"""Neighbouring channels, rows, columns and images of an ofmap; with a step by rows and columns for ops of STRIDED."""
Operand: TypeAlias = NDArray[Any]
Operands: TypeAlias = Mapping[str, Operand]
"""The inputs of a layer, by the names of its tensors."""
Tensor: TypeAlias = NDArray[np.floating[Any]]

EXACT = 1 << 24
"""The largest integer up to which float32 holds every integer exactly."""
OPERAND_BITS = 4
"""Bits of an operand, a signed integer; fewer where a long sum would not be exact."""
FACTOR_BITS = 2
"""Most bits of an operand that is a third factor of a product."""

_MOST_NUMBERED = 1 << 15
"""Most numbers that sources of numbers are drawn from."""

_OF_MODULES = {
    **dict.fromkeys(("array_op", "deform_conv2d", "gradients"), "products.{}"), "pool2d": "maps.{}",
    "flash_attention": "attention.{}", "rows": "rows.{}", "channels": "channels.{}", "moves": "maps.move",
    **dict.fromkeys(("elementwise", "training"), "pointwise.pointwise"),
}  # fmt: skip
"""By the module of ops where their oracles are."""
_PLACES = {op: _OF_MODULES[module].format(op) for op, module in MODULES.items()}
_PLACES |= {**dict.fromkeys(("conv_transpose2d", "conv2d_input_gradient"), "products.scattered"),
            "rotary": "maps.rotary", "fused": "pointwise.fused"}  # fmt: skip
ORACLES: Registry[Callable[[Any, Operands, Box], Tensor]] = Registry(__name__, _PLACES)
"""By the name of the op in files: the function from a layer, its inputs and a box to the elements of the ofmap in the
box.
"""
STRIDED = frozenset({"conv_transpose2d", "conv2d_input_gradient"})
"""The ops whose boxes may be strided by rows and columns."""


def compute(layer: Op, operands: Operands, box: Box | None = None) -> Tensor:
    """Return the ofmap of a layer, [out_channel, row, col, image]; with `box`, only the elements in it."""
    channels, rows, cols, images = map(range, layer.shapes(batch_of(layer, operands))[OFMAP])
    return ORACLES[layer.op](layer, operands, box or (channels, rows, cols, images))


def batch_of(layer: Op, operands: Operands) -> int:
    """Return the number of images that the operands of a layer are for."""
    return layer.batch_of({name: each.shape for name, each in operands.items()})


class Oracle(NamedTuple):
    """The expected content of a tensor that a Program writes.

    Attributes:
        compute: function of a layer, its inputs by name, and a box of the tensor.
        element_name: function from a layer and the index of an element to the axes and the index by which people know
        it.
        roundings: function from a layer and a batch to the number of times that an element is rounded at most.
        magnitudes: function of a layer, the magnitudes of its inputs, a box and the true elements to the size of the
            elements if nothing cancelled.
    """

    compute: Callable[[Any, Operands, Box], Tensor]
    element_name: Callable[[Any, Index], tuple[tuple[str, ...], Index]]
    roundings: Callable[[Any, int], int] = lambda *_: 0
    magnitudes: Callable[[Any, Operands, Box, Tensor], Tensor] | None = None


RESULTS = Oracle(lambda *asked: compute(*asked), lambda layer, index: layer.element_name(index))
TENSORS: Registry[Oracle] = Registry(
    "tpusim",
    {
        OFMAP: "reference.RESULTS",
        "lowered": "reference.products.LOWERED_MATRIX",
        "tallies": "reference.rounding.TALLIES",
    },
)
"""The oracles by the name of the tensor in a Program."""


def number_of(*operands: Operand) -> np.dtype[Any]:
    """Return the type for sums of such operands: float32, or float64 where one of them has it."""
    return np.result_type(np.float32, *(each.dtype for each in operands))


def operands(layer: Op, batch: int, seed: int) -> dict[str, Operand]:
    """Draw the inputs of a layer, by name; the same seed and layer give the same, whatever other layers run.

    Raises:
        InputError: when the sum is so long that float32 cannot hold it exactly.
    """
    products = layer.terms(batch) * layer.sample_parts
    bits = next((b for b in range(OPERAND_BITS, 0, -1) if products * 4 ** (b - 1) <= EXACT), 0)
    if not bits:
        raise InputError(
            f"layer {layer.name}: a sum of {layer.terms(batch)} products is not exact in float32; check nothing"
        )
    random = np.random.default_rng([seed, zlib.crc32(repr(layer).encode())])
    drawn, factors = dict[str, Operand](), layer.factors(batch)
    for name, shape in layer.sources(batch).items():
        if name in layer.fixed:
            drawn[name] = layer.fixed[name](batch)
            continue
        if below := layer.numbered.get(name):
            drawn[name] = random.integers(min(below, _MOST_NUMBERED), size=shape, dtype=np.int16)
            continue
        # Each random 64-bit word is eight operands of a byte, of which `bits` are kept.
        words = random.integers(1 << 64, size=-(-prod(shape) // 8), dtype=np.uint64)
        numbers = words.view(np.int8)[: prod(shape)]
        own = min(bits, FACTOR_BITS) if name in factors else bits
        drawn[name] = np.right_shift(numbers, 8 - own, out=numbers).reshape(shape)
    return drawn
