"""What a function of a node is given: its operands, and the attributes that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias

import numpy as np

from tpusim.numerics.element_types import Values


@dataclass(frozen=True)
class Call:
    """The attributes of a node, how many results are asked of it, and the opset that its operator is of."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: int = 1
    opset: int = 99

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or what it is when the node has none."""
        return self.attributes.get(name, default)


Function: TypeAlias = Callable[..., Values | Sequence[Values]]
"""From the operands, None where one is left out, to the result, or to several.

A parameter of an attribute's name is given that: what is an operand in new opsets may be an attribute in old ones.
`call` is given all that is asked of the node.
"""


def ints(given: Any) -> list[int] | None:
    """Whole numbers, of an attribute or an operand; None where there are none."""
    return None if given is None else [int(each) for each in np.ravel(given)]


def as_real(values: Values, like: Values) -> Values:
    """`values` in the numbers that `like` has."""
    return np.asarray(values).astype(like.dtype, copy=False)


def like_first(function: Function) -> Function:
    """The function, its result in the numbers that its first operand has."""

    @wraps(function)
    def made(first: Values, *others: Values | None, **asked: Any) -> Values:
        return as_real(function(first, *others, **asked), first)  # type: ignore[arg-type]

    return made
