"""An op with what is done to its results: each straight from its own definition, one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tpusim.network.ops.fused import BIAS, OTHER, Fused
from tpusim.reference import pointwise
from tpusim.reference.operands import Operands, Tensor

_Box: TypeAlias = tuple[range, range, range, range]


def compute(made: Callable[..., Tensor], layer: Fused, operands: Operands, box: _Box) -> Tensor:
    """The outputs in `box`; `made` computes those of the core."""
    results = summed(made, layer, operands, box)
    whole = tuple(map(range, results.shape))
    for each in layer.finish:
        results = pointwise.compute(each, {"ifmap": results}, whole)  # type: ignore[arg-type]
    return results


def summed(made: Callable[..., Any], layer: Fused, operands: Operands, box: _Box) -> Tensor:
    """The same before anything but the sum."""
    own = {name: each for name, each in operands.items() if name not in (OTHER, BIAS)}
    results: Tensor = made(layer.core, own, box)
    if layer.bias:
        results = results + operands[BIAS][box[0].start : box[0].stop].astype(results.dtype, copy=False)
    if layer.adds:
        other = operands[OTHER][tuple(slice(each.start, each.stop) for each in box)]
        results = results + other.astype(results.dtype, copy=False)
    return results
