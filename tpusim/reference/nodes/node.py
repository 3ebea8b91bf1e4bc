"""The arguments of a node's function: its operands, and the attributes that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Call:
    """The attributes of a node, how many of its results are wanted, and the opset of its operator."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: int = 1
    opset: int = 99

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default when the node has none."""
        return self.attributes.get(name, default)


Function: TypeAlias = Callable[..., Values | Sequence[Values]]
"""A function from the operands, None where one is left out, to the result, or to several.

A parameter with an attribute's name receives the attribute, or the operand that replaced it in new opsets. `call`
receives the whole Call.
"""


def ints(given: Any) -> list[int] | None:
    """Return whole numbers, of an attribute or an operand; None where there are none."""
    return None if given is None else [int(each) for each in np.ravel(given)]


def as_real(values: Values, like: Values) -> Values:
    """Return `values` in the type of `like`."""
    return np.asarray(values).astype(like.dtype, copy=False)


def in_doubles(function: Callable[[Values], Values]) -> Function:
    """Make a function in float64 whose results are of the operand's type."""
    return like_first(lambda x: function(x.astype(np.float64)))


def div(one: Values, other: Values) -> Values:
    """Divide; whole numbers are rounded towards zero."""
    if np.issubdtype(one.dtype, np.floating):
        return np.divide(one, other)
    # Less what is left over, a number is a multiple of the other; the least of a type has no `abs`.
    return as_real(np.floor_divide(one - np.fmod(one, other), other), one)


def like_first(function: Function) -> Function:
    """Make the function's result have the type of its first operand."""

    @wraps(function)
    def made(first: Values, *others: Values | None, **asked: Any) -> Values:
        return as_real(function(first, *others, **asked), first)  # type: ignore[arg-type]

    return made
