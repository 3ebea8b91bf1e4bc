"""What the vector unit can do with the words of a step of its own. A new operation is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.floating[Any]]
Operands: TypeAlias = Iterable[Values]
"""The words of each operand, [lane, word, element], in the order in which they are read."""
Coefficients: TypeAlias = tuple[float, ...]


class Arity(NamedTuple):
    """How many operands, scalars of a lane and coefficients a step has."""

    operands: int
    scalars: int
    coefficients: int


class Operation(NamedTuple):
    """One operation.

    Attributes:
        values: the results [lane, word, element] from operands, the scalars [scalar, lane] and coefficients, worked out
            in the order of the operands.
        alu: ALU operations an element takes.
        products: how many of them are multiplications.
        fits: whether it can be done with so many of each.
    """

    values: Callable[[Operands, Values, Coefficients], Values]
    alu: Callable[[Arity, Coefficients], int]
    products: Callable[[Arity, Coefficients], int]
    fits: Callable[[Arity], bool]


def _sum(terms: Iterable[Values]) -> Values:
    total: Values | None = None
    for each in terms:
        total = each if total is None else total + each
    assert total is not None
    return total


def _multiply_add(operands: Operands, scalars: Values, _: Coefficients) -> Values:
    """Each operand times its scalar; those for which there is none are added as they are."""
    return _sum(each * scalars[at][:, None, None] if at < len(scalars) else each for at, each in enumerate(operands))


def _combine(operands: Operands, _: Values, coefficients: Coefficients) -> Values:
    """Each operand times its coefficient."""
    return _sum(each * np.float32(factor) for each, factor in zip(operands, coefficients, strict=True))


def _sum_of_products(operands: Operands, _: Values, __: Coefficients) -> Values:
    """The first operand times the second, and so on, two by two."""
    terms = iter(operands)
    return _sum(each * next(terms) for each in terms)


def _maximum(operands: Operands, _: Values, __: Coefficients) -> Values:
    """The largest; padding counts as zero."""
    first, *others = operands
    for each in others:
        first = np.maximum(first, each)
    return first


def _factors(factors: Coefficients) -> int:
    """Those to multiply by: what is only added or subtracted is not multiplied."""
    return sum(abs(each) != 1 for each in factors)


OPERATIONS: dict[str, Operation] = {
    "multiply_add": Operation(
        _multiply_add,
        lambda counts, _: counts.scalars + counts.operands - 1,
        lambda counts, _: counts.scalars,
        lambda counts: 0 < counts.scalars <= counts.operands and not counts.coefficients,
    ),
    "combine": Operation(
        _combine,
        lambda counts, factors: _factors(factors) + counts.operands - 1,
        lambda _, factors: _factors(factors),
        lambda counts: 0 < counts.coefficients == counts.operands and not counts.scalars,
    ),
    "sum_of_products": Operation(
        _sum_of_products,
        lambda counts, _: counts.operands - 1,
        lambda counts, _: counts.operands // 2,
        lambda counts: counts.operands > 0 and counts.operands % 2 == 0 and not counts.scalars + counts.coefficients,
    ),
    "maximum": Operation(
        _maximum,
        lambda counts, _: counts.operands - 1,
        lambda _, __: 0,
        lambda counts: counts.operands > 0 and not counts.scalars + counts.coefficients,
    ),
}
"""Every operation by the name that a step gives it."""
