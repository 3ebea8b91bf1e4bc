"""What a function of a node is given: its attributes and the version of the operators, beside its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Call:
    """The attributes of a node, how many results are asked of it, and the opset that its operator is of."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: int = 1
    opset: int = 99

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or what it is when the node has none."""
        return self.attributes.get(name, default)

    def ints(self, name: str, given: Values | None = None) -> list[int] | None:
        """Whole numbers that are an attribute in old opsets and an operand in new ones; None where there are none."""
        numbers = self.get(name) if given is None else given.ravel().tolist()
        return None if numbers is None else [int(each) for each in numbers]


Function: TypeAlias = Callable[..., Values | Sequence[Values]]
"""From a Call and the operands, None where one is left out, to the result, or to several."""


def as_real(values: Values, like: Values) -> Values:
    """`values` in the numbers that `like` has."""
    return np.asarray(values).astype(like.dtype, copy=False)
