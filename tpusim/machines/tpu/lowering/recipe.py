"""One-dimensional linear transforms, line by line: what a step of the vector unit makes of what there is by then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

from tpusim.machines.tpu.program.operations import OPERATIONS, Arity

Factors: TypeAlias = Mapping[str, float]


class Line(NamedTuple):
    """A linear combination of what there is by then: inputs x0, x1, ..., outputs y0, y1, ..., and z0, z1, ... between.

    What has been worked out may be worked out anew under the same name.
    """

    made: str
    factors: Factors


class Recipe(tuple[Line, ...]):
    """A one-dimensional transform, line by line."""

    @cached_property
    def kinds(self) -> Mapping[tuple[int, int], int]:
        """How many lines there are of so many operands and ALU operations."""
        return Counter((len(line.factors), operations(line.factors.values())) for line in self)

    @cached_property
    def temporaries(self) -> int:
        """What is kept beside inputs and outputs, at most."""
        return len({line.made for line in self if line.made.startswith("z")})


def operations(factors: Iterable[float]) -> int:
    """Those of the vector unit for an element of a linear combination."""
    each = tuple(factors)
    return OPERATIONS["combine"].alu(Arity(len(each), 0, len(each)), each)


def row_by_row(matrix: Sequence[Sequence[float]]) -> Recipe:
    """Every output for itself."""
    return Recipe(
        Line(f"y{at}", {f"x{number}": factor for number, factor in enumerate(row) if factor})
        for at, row in enumerate(matrix)
    )
