"""One-dimensional linear transforms, line by line: what a step of the vector unit makes of what there is by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

Factors: TypeAlias = Mapping[str, float]


class Line(NamedTuple):
    """A linear combination of what there is by then: inputs x0, x1, ..., outputs y0, y1, ..., and z0, z1, ... between.

    What has been worked out may be worked out anew under the same name.
    """

    made: str
    factors: Factors


Recipe: TypeAlias = tuple[Line, ...]
"""A one-dimensional transform, line by line."""


def row_by_row(matrix: Sequence[Sequence[float]]) -> Recipe:
    """Every output for itself."""
    return tuple(
        Line(f"y{at}", {f"x{number}": factor for number, factor in enumerate(row) if factor})
        for at, row in enumerate(matrix)
    )


def temporaries(recipe: Recipe) -> int:
    """What is kept beside inputs and outputs, at most."""
    return len({line.made for line in recipe if line.made.startswith("z")})
