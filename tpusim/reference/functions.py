"""Functions of elements, straight from their definitions, in float64."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, erfc, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ERF, _ERFC = np.vectorize(erf, otypes=[float]), np.vectorize(erfc, otypes=[float])
Doubles = NDArray[np.float64]

ROUNDINGS = 2
"""One to float32; what is lost before, in float64, is far less than another."""


def in_doubles(function: Callable[..., Doubles]) -> Callable[..., Doubles]:
    """The function, of a layer and its operands as they come."""

    def made(layer: object, *operands: NDArray[Any]) -> Doubles:
        with np.errstate(over="ignore"):
            return function(layer, *(each.astype(np.float64) for each in operands))

    return made


def tanh(x: Doubles) -> Doubles:
    """The hyperbolic tangent, worked out of the exponential, less one, of what is below zero."""
    raised = np.expm1(-2 * abs(x))
    return np.asarray(np.sign(x) * -raised / (raised + 2))


def sigmoid(x: Doubles) -> Doubles:
    """1 / (1 + exp(-x)), of which no exponential overflows."""
    raised = np.exp(-abs(x))
    return np.asarray(np.where(x < 0, raised, 1) / (1 + raised))


def _below(x: Doubles) -> Doubles:
    """The share of the normal distribution below x."""
    beyond = _ERFC(abs(x) / sqrt(2)) / 2 if x.size else x
    return np.where(x < 0, beyond, 1 - beyond)


def erf_of(x: Doubles) -> Doubles:
    """The error function."""
    return np.asarray(_ERF(x) if x.size else x)


def softplus(x: Doubles) -> Doubles:
    """log(1 + exp(x))."""
    return np.logaddexp(x, 0)


def gelu(x: Doubles, approximate: str) -> Doubles:
    """The element times the share of the normal distribution below it, or what is near that, by tanh."""
    if approximate == "none":
        return np.asarray(x * _below(x))
    return x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3))


FUNCTIONS: dict[str, Callable[..., Doubles]] = {
    "exp": lambda _, x: np.exp(x),
    "tanh": lambda _, x: tanh(x),
    "erf": lambda _, x: erf_of(x),
    "div": lambda _, x, y: x / y,
    "rdiv": lambda _, x, y: y / x,
    "sqrt": lambda _, x: np.sqrt(x),
    "sigmoid": lambda _, x: sigmoid(x),
    "softplus": lambda _, x: softplus(x),
    "silu": lambda _, x: x * sigmoid(x),
    "gelu": lambda op, x: gelu(x, op.approximate),
}
"""By the name of the op: an element of the ofmap from the layer and an element of each operand."""
