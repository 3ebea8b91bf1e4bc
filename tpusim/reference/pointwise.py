"""Ops that make each element of a map of one at the same place, straight from their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tpusim.network.ops.op import Op
from tpusim.reference import functions
from tpusim.reference.operands import Operands, Tensor, number_of

_Box: TypeAlias = tuple[range, range, range, range]


def compute(layer: Op, operands: Operands, box: _Box) -> Tensor:
    """The elements in `box`, each made of those at its place; what an operand has one of along an axis is for all."""
    return _made(FUNCTIONS[layer.op], layer, operands, box)


def magnitudes(layer: Op, operands: Operands, box: _Box) -> Tensor:
    """What the same would be if nothing cancelled, of operands that are magnitudes."""
    return _made(MAGNITUDES.get(layer.op, FUNCTIONS[layer.op]), layer, operands, box)


def _made(function: Callable[..., Any], layer: Op, operands: Operands, box: _Box) -> Tensor:
    parts = []
    for each in operands.values():
        places = (
            slice(0, 1) if size == 1 else slice(part.start, part.stop)
            for size, part in zip(each.shape, box, strict=True)
        )
        parts.append(each[tuple(places)].astype(number_of(each), copy=False))
    return np.broadcast_to(function(layer, *parts), [len(part) for part in box])


def _line(x: Tensor, slope: float, shift: float) -> Tensor:
    return x * np.float32(slope) + np.float32(shift)


def _within(x: Tensor, low: float, high: float) -> Tensor:
    return np.clip(x, np.float32(low), np.float32(high))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "rsub": lambda _, x, y: y - x,
    "mul": lambda _, x, y: x * y,
    "power": lambda op, x: x * x if op.exponent == 2 else x * x * x,
    "copy": lambda _, x: x,
    "scale_shift": lambda _, x, scale, shift: x * scale + shift,
    "relu": lambda _, x: np.maximum(x, np.float32(0)),
    "leaky_relu": lambda op, x: np.where(x > 0, x, x * np.float32(op.slope)),
    "clip": lambda op, x: _within(x, op.min, op.max),
    "hard_sigmoid": lambda op, x: _within(_line(x, op.alpha, op.beta), 0, 1),
    "hard_swish": lambda _, x: x * _within(_line(x, 1 / 6, 0.5), 0, 1),
    **{name: functions.in_doubles(each) for name, each in functions.FUNCTIONS.items()},
}
"""By the name of the op: an element of the ofmap from the layer and an element of each operand."""

MAGNITUDES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("sub", "rsub"), lambda _, x, y: x + y),
    "hard_sigmoid": lambda op, x: _line(x, abs(op.alpha), abs(op.beta)),
    "hard_swish": lambda _, x: x * _line(x, 1 / 6, 0.5),
}
"""Where they are not those of the magnitudes."""
ROUNDINGS = {
    "add": 1, "sub": 1, "rsub": 1, "mul": 1, "power": 2, "copy": 0, "scale_shift": 2, "relu": 0, "leaky_relu": 1,
    "clip": 0, "hard_sigmoid": 2, "hard_swish": 3, **dict.fromkeys(functions.FUNCTIONS, functions.ROUNDINGS),
}  # fmt: skip
"""How often an element is rounded, one after another."""
