"""Operations of the vector unit on words, and functions that no short row of sums and products gives.

A new operation is a function and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import erf, erfc, pi, sqrt
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError, Problem
from tpusim.machines.tpu.sections import VectorUnit

Values: TypeAlias = NDArray[np.floating[Any]]
Doubles: TypeAlias = NDArray[np.float64]
Operands: TypeAlias = Iterable[Values]
"""The words of each operand, [lane, word, element], in the order in which they are read."""
Coefficients: TypeAlias = tuple[float, ...]

_ERF = np.frompyfunc(erf, 1, 1)
_ERFC = np.frompyfunc(erfc, 1, 1)

BEND = 0.044715
"""Of the cubic term of GELU by tanh: Hendrycks and Gimpel, 2016 (arXiv:1606.08415), section 2."""


def rounded_once(
    function: Callable[..., Doubles],
) -> Callable[[Iterable[Values], Values, tuple[float, ...]], Values]:
    """As an operation on the words of operands; scalars of a lane are operands for all of its elements."""

    def values(operands: Iterable[Values], scalars: Values, coefficients: tuple[float, ...]) -> Values:
        terms = [*operands, *(scalars[-1:, :, None, None] if len(scalars) else ())]
        number = terms[0].dtype
        # Infinities and what is not a number agree with nothing that is expected.
        with np.errstate(all="ignore"):
            doubles = [np.array(each, np.float64, order="C") for each in terms]
            return function(*doubles, *coefficients).astype(number)

    return values


def sigmoid(x: Doubles) -> Doubles:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Doubles) -> Doubles:
    """The element times its sigmoid."""
    return np.asarray(x / (1 + np.exp(-x)))


def error_function(x: Doubles) -> Doubles:
    """erf."""
    return np.asarray(_ERF(x), np.float64)


def gelu(x: Doubles) -> Doubles:
    """x times the share of the normal distribution below it."""
    return np.asarray(x / 2 * _ERFC(x / -sqrt(2)), np.float64)


def gelu_tanh(x: Doubles) -> Doubles:
    """The same, its share approximated by a tanh: x times the sigmoid of twice the tanh's argument."""
    return np.asarray(x / (1 + np.exp(-2 * sqrt(2 / pi) * x * (1 + BEND * x * x))))


# ---- of the elements of rows


def exp_sum(*terms: Doubles) -> Doubles:
    """The sum of the powers of e, of all operands less the last."""
    *elements, most = terms
    return np.asarray(sum(np.exp(each - most) for each in elements))


def exp_scaled(x: Doubles, most: Doubles, factor: Doubles) -> Doubles:
    """e to the power of what x is more than the largest, times a factor."""
    return np.asarray(np.exp(x - most) * factor)


def squares_sum(*terms: Doubles) -> Doubles:
    """The sum of the squares of what all operands are more than the last."""
    *elements, mean = terms
    return np.asarray(sum((each - mean) ** 2 for each in elements))


def reciprocal_sum(*terms: Doubles) -> Doubles:
    """One over the sum."""
    return np.asarray(1 / sum(terms))


def reciprocal_root(*terms: Any) -> Doubles:
    """One over the root of the sum times the first coefficient, and the second added."""
    *sums, part, more = terms
    return np.asarray(1 / np.sqrt(sum(sums) * part + more))


def normalize(x: Doubles, mean: Doubles, factor: Doubles, scale: Doubles, shift: Doubles) -> Doubles:
    """What x is more than the mean, times a factor and a scale, and a shift added."""
    return np.asarray((x - mean) * factor * scale + shift)


def sum_of_squares(operands: Iterable[Values], first: bool) -> Values:
    """Squares of the words of operands, added one after another; the `first` as it is, if so."""
    total: Values | None = None
    for each in operands:
        term = each if first and total is None else each * each
        total = term if total is None else total + term
    assert total is not None
    return total


def over_power(squares: Doubles, x: Doubles, slope: float, shift: float, beta: float) -> Doubles:
    """x / (slope squares + shift)^beta."""
    return np.asarray(x * np.exp(-beta * np.log(slope * squares + shift)))


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
        alu: ALU operations an element takes, functions apart.
        products: how many of them are multiplications.
        fits: whether it can be done with so many of each.
        functions: how often an element takes each function, by their names in `vector_unit.functions`.
    """

    values: Callable[[Operands, Values, Coefficients], Values]
    alu: Callable[[Arity, Coefficients], int]
    products: Callable[[Arity, Coefficients], int]
    fits: Callable[[Arity], bool]
    functions: Callable[[Arity], Mapping[str, int]] = lambda _: {}


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


def _reversed_difference(terms: list[Values]) -> Values:
    """The last less the others."""
    return _difference(terms[::-1])


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


def finished(values: Values, operations: Iterable[tuple[str, Coefficients]]) -> Values:
    """Results after each of these operations on one operand, given with their coefficients."""
    for name, coefficients in operations:
        values = OPERATIONS[name].values([values], np.empty((0, len(values)), values.dtype), coefficients)
    return values


def _of_functions(
    function: Callable[..., Any], products: int, others: int, of: str, operands: int = 1, coefficients: int = 0
) -> Operation:
    """A function of elements, which takes so many operations and one of the machine's functions."""
    return Operation(
        rounded_once(function),
        lambda *_: products + others,
        lambda *_: products,
        lambda counts: counts.operands + (counts.scalars > 0) == operands and counts.coefficients == coefficients,
        lambda _: {of: 1},
    )


def _of_elements(
    function: Callable[..., Any], others: int, products: int, of: Callable[[int], Mapping[str, int]]
) -> Operation:
    """A sum over all operands but the last, of each of which `others` and `products` operations are made."""
    return Operation(
        rounded_once(function),
        lambda counts, _: (counts.operands - 1) * (others + products + 1) - 1,
        lambda counts, _: (counts.operands - 1) * products,
        lambda counts: counts.operands > 1 and not counts.scalars + counts.coefficients,
        lambda counts: of(counts.operands - 1),
    )


def _of_sum(function: Callable[..., Any], coefficients: int, products: int, of: str) -> Operation:
    """A function of a sum, which is first multiplied by so many coefficients, or gets them added."""
    return Operation(
        rounded_once(function),
        lambda counts, _: counts.operands - 1 + coefficients,
        lambda *_: products,
        lambda counts: counts.operands > 0 and counts.coefficients == coefficients and not counts.scalars,
        lambda _: {of: 1},
    )


def _of_squares(first: bool) -> Operation:
    """The sum of the squares of all operands, or of the `first` as it is and the squares of the others."""
    return Operation(
        lambda operands, *_: sum_of_squares(operands, first),
        lambda counts, _: 2 * (counts.operands - first) - 1 + first,
        lambda counts, _: counts.operands - first,
        lambda counts: counts.operands > first and not counts.scalars + counts.coefficients,
    )


def _of_power(beta: float, products: int, takes: Mapping[str, int]) -> Operation:
    """An element, the last operand, over a power of a line of the first: that of two coefficients."""
    return Operation(
        rounded_once(lambda squares, x, slope, shift: over_power(squares, x, slope, shift, beta)),
        lambda *_: products + 1,
        lambda *_: products,
        lambda counts: counts == Arity(2, 0, 2),
        lambda _: takes,
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
    "rsub": _of_terms(_reversed_difference),
    "mul": _of_terms(_product, multiplies=True),
    "copy": _of_one(lambda operands, *_: next(iter(operands)), 0, 0, 0),
    "scale_shift": _of_one(_scale_shift, 1, 1, 0, scalars=1),
    "relu": _of_one(_relu, 0, 1, 0),
    "leaky_relu": _of_one(_leaky_relu, 1, 1, 1),
    "clip": _of_one(_clipped, 0, 2, 2),
    "power_2": _of_one(lambda operands, *_: _product([*operands] * 2), 1, 0, 0),
    "power_3": _of_one(lambda operands, *_: _product([*operands] * 3), 2, 0, 0),
    "hard_sigmoid": _of_one(lambda operands, _, line: _clip(_line(operands, *line), 0, 1), 1, 3, 2),
    "hard_swish": _of_one(_hard_swish, 2, 3, 2),
    "exp": _of_functions(np.exp, 0, 0, "exp"),
    # As x r, of r = 1 / root(x), and zero where a comparison says that x is.
    "sqrt": _of_functions(np.sqrt, 1, 2, "reciprocal_root"),
    "tanh": _of_functions(np.tanh, 0, 0, "tanh"),
    "erf": _of_functions(error_function, 0, 0, "erf"),
    "div": _of_functions(np.divide, 0, 0, "divide", operands=2),
    "rdiv": _of_functions(lambda x, y: np.divide(y, x), 0, 0, "divide", operands=2),
    # As 0.5 + 0.5 tanh(0.5 x).
    "sigmoid": _of_functions(sigmoid, 2, 1, "tanh"),
    "silu": _of_functions(silu, 3, 1, "tanh"),
    # As 0.5 x (1 + erf(x / sqrt(2))), and as 0.5 x (1 + tanh(x (a + b x^2))).
    "gelu": _of_functions(gelu, 3, 1, "erf"),
    "gelu_tanh": _of_functions(gelu_tanh, 5, 2, "tanh"),
    # Of rows: a difference and a power each, and the sum; the same with squares.
    "exp_sum": _of_elements(exp_sum, 1, 0, lambda elements: {"exp": elements}),
    "squares_sum": _of_elements(squares_sum, 1, 1, lambda _: {}),
    "reciprocal_sum": _of_sum(reciprocal_sum, 0, 0, "divide"),
    "reciprocal_root": _of_sum(reciprocal_root, 2, 1, "reciprocal_root"),
    "exp_scaled": _of_functions(exp_scaled, 1, 1, "exp", operands=3),
    # As x r, x r r / root(r) and x / s, of r = 1 / root(s); s is a line of the sum of squares.
    "squares": _of_squares(first=False),
    "squares_more": _of_squares(first=True),
    "normalize_by_50": _of_power(0.5, 2, {"reciprocal_root": 1}),
    "normalize_by_75": _of_power(0.75, 4, {"reciprocal_root": 2}),
    "normalize_by_100": _of_power(1.0, 1, {"divide": 1}),
    "normalize": Operation(
        rounded_once(normalize),
        lambda *_: 4,
        lambda *_: 2,
        lambda counts: counts == Arity(5, 0, 0),
    ),
}
"""Every operation by the name that a step gives it."""


class Work(NamedTuple):
    """ALU operations that an element takes."""

    products: int
    others: int


def work_of(operation: str, counts: Arity, coefficients: Coefficients, unit: VectorUnit) -> Work:
    """What an element of a step takes of a machine.

    Raises:
        CapacityError: when the machine does not say what a function takes.
    """
    does = OPERATIONS[operation]
    products = does.products(counts, coefficients)
    others = does.alu(counts, coefficients) - products
    for name, often in does.functions(counts).items():
        work = getattr(unit.functions, name)
        if work is None:
            says = f"the machine does not say how many ALU operations {name} takes"
            raise CapacityError(Problem(f"{says}; write multiplications + others", f"vector_unit.functions.{name}"))
        products, others = products + often * work.multiplications, others + often * work.others
    return Work(products, others)
