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
    return _sum(each * each.dtype.type(factor) for each, factor in zip(operands, coefficients, strict=True))


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


def _terms(operands: Operands, scalars: Values) -> list[Values]:
    """The operands, then the scalar of each lane for all of its elements; of more than one, the last."""
    return [*operands, *(scalars[-1:, :, None, None] if len(scalars) else ())]


def _difference(terms: list[Values]) -> Values:
    """The first less the others."""
    first, *others = terms
    return first - _sum(others) if others else first


def _product(terms: list[Values]) -> Values:
    first, *others = terms
    for each in others:
        first = first * each
    return first


def _scale_shift(operands: Operands, scalars: Values, _: Coefficients) -> Values:
    """Times the first scalar of the lane, and the last added."""
    (x,) = operands
    moved: Values = x * scalars[0][:, None, None] + scalars[-1][:, None, None]
    return moved


def _line(operands: Operands, slope: float, shift: float) -> Values:
    """A multiplication, and an addition."""
    (x,) = operands
    return x * x.dtype.type(np.float32(slope)) + x.dtype.type(np.float32(shift))


def _clip(x: Values, low: float, high: float) -> Values:
    clipped: Values = np.minimum(np.maximum(x, x.dtype.type(np.float32(low))), x.dtype.type(np.float32(high)))
    return clipped


def _clipped(operands: Operands, _: Values, ends: Coefficients) -> Values:
    (x,) = operands
    return _clip(x, *ends)


def _relu(operands: Operands, _: Values, __: Coefficients) -> Values:
    """The larger of the operand and zero."""
    (x,) = operands
    larger: Values = np.maximum(x, x.dtype.type(0))
    return larger


def _leaky_relu(operands: Operands, _: Values, slope: Coefficients) -> Values:
    """The larger of the operand and a part of it."""
    (x,) = operands
    larger: Values = np.maximum(x, x * np.float32(slope[0]))
    return larger


def _hard_swish(operands: Operands, _: Values, line: Coefficients) -> Values:
    (x,) = operands
    clipped: Values = x * _clip(_line([x], *line), 0, 1)
    return clipped


def _of_one(values: Callable[[Operands, Values, Coefficients], Values], products: int, others: int, coefficients: int,
            scalars: int = 0) -> Operation:  # fmt: skip
    """An operation on one operand that takes always as many ALU operations; lanes have scalars where it needs some."""
    return Operation(
        values,
        lambda *_: products + others,
        lambda *_: products,
        lambda counts: counts.operands == 1 and counts.coefficients == coefficients and counts.scalars >= scalars,
    )


def _of_terms(together: Callable[[list[Values]], Values], multiplies: bool = False) -> Operation:
    """An operation that joins operands, and the scalar of a lane if there is one, two by two."""

    def steps(counts: Arity, _: Coefficients) -> int:
        return counts.operands + (counts.scalars > 0) - 1

    return Operation(
        lambda operands, scalars, _: together(_terms(operands, scalars)),
        steps,
        lambda counts, _: steps(counts, _) * multiplies,
        lambda counts: counts.operands > 0 and not counts.coefficients,
    )


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
        lambda counts, factors: _factors(factors) + counts.operands - 1 + all(each == -1 for each in factors),
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
    "mean": Operation(
        lambda operands, _, part: _sum(operands) * np.float32(part[0]),
        lambda counts, _: counts.operands,
        lambda *_: 1,
        lambda counts: counts.operands > 0 and counts.coefficients == 1 and not counts.scalars,
    ),
    "add": _of_terms(_sum),
    "sub": _of_terms(_difference),
    "mul": _of_terms(_product, multiplies=True),
    "scale_shift": _of_one(_scale_shift, 1, 1, 0, scalars=1),
    "relu": _of_one(_relu, 0, 1, 0),
    "leaky_relu": _of_one(_leaky_relu, 1, 1, 1),
    "clip": _of_one(_clipped, 0, 2, 2),
    "hard_sigmoid": _of_one(lambda operands, _, line: _clip(_line(operands, *line), 0, 1), 1, 3, 2),
    "hard_swish": _of_one(_hard_swish, 2, 3, 2),
}
"""Every operation by the name that a step gives it."""
