"""Operations of the vector unit on words, and functions that take more than a few sums and products.

A new operation is a function and a line here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import reduce
from itertools import chain
from math import erf, erfc, pi, prod, sqrt
from operator import add, mul
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError, Problem
from tpusim.machines.tpu.sections import AluWork, VectorUnit

_Values: TypeAlias = NDArray[np.floating[Any]]
_Operands: TypeAlias = Iterable[_Values]
"""Words of each operand, [lane, word, element], in the order in which they are read."""
Coefficients: TypeAlias = tuple[float, ...]

_ERF = np.frompyfunc(erf, 1, 1)
_ERFC = np.frompyfunc(erfc, 1, 1)

BEND = 0.044715
"""Coefficient of the cubic term of GELU by tanh: Hendrycks and Gimpel, 2016 (arXiv:1606.08415), section 2."""


class Arity(NamedTuple):
    """Numbers of operands, scalars of a lane and coefficients of a step."""

    operands: int
    scalars: int
    coefficients: int


class Operation(NamedTuple):
    """An operation of the vector unit on the words of a step.

    Attributes:
        values: results [lane, word, element] of operands, scalars [scalar, lane] and coefficients, computed
            in the order of the operands.
        work: ALU operations of an element, without functions.
        fits: whether the operation takes these numbers of operands, scalars and coefficients.
        functions: uses of each function for an element, by their names in `vector_unit.functions`.
        pointwise: whether it makes an element of each element, as a program that a compiler fuses does.
        bare: whether it is one instruction, which a compiler leaves alone where it stands alone.
        turns: words that transposing units turn for a result.
        selects: whether a result is an element of an operand or a bound, so that nothing is rounded.
        wide: whether operands and results are as wide as sums of the array, on `Hardware.wide`.
    """

    values: Callable[[_Operands, _Values, Coefficients], _Values]
    work: Callable[[Arity, Coefficients], AluWork]
    fits: Callable[[Arity], bool]
    functions: Callable[[Arity], Mapping[str, int]] = lambda _: {}
    selects: bool = False
    wide: bool = False
    pointwise: bool = False
    bare: bool = False
    turns: int = 0


def _terms(operands: _Operands, scalars: _Values) -> list[_Values]:
    """The operands, then the lane's last scalar for all elements, if there is any."""
    return [*operands, *(scalars[-1:, :, None, None] if len(scalars) else ())]


def _rounded_once(function: Callable[..., Any]) -> Callable[[_Operands, _Values, Coefficients], _Values]:
    """An operation on words from a function of numbers, computed in float64 and rounded once; scalars are operands,
    too.
    """

    def values(operands: _Operands, scalars: _Values, coefficients: Coefficients) -> _Values:
        terms = _terms(operands, scalars)
        # Infinities and NaN fail the check against expected values, so NumPy need not warn of them.
        with np.errstate(all="ignore"):
            doubles = [np.array(each, np.float64, order="C") for each in terms]
            return np.asarray(function(*doubles, *coefficients), np.float64).astype(terms[0].dtype)

    return values


def _sum(terms: Iterable[_Values]) -> _Values:
    return reduce(add, terms)


def _sum_of_products(operands: _Operands, _: _Values, __: Coefficients) -> _Values:
    """Products of operands two by two, summed."""
    terms = iter(operands)
    return _sum(each * next(terms) for each in terms)


def _first_largest(operands: _Operands, _: _Values, numbers: Coefficients) -> _Values:
    """The number of the first operand that is as large as any; of a number and an operand that come before them, the
    number, where none is larger than that operand.
    """
    words = [*operands]
    found, taps = np.asarray(numbers, words[0].dtype), np.stack(words[len(words) - len(numbers) :])
    first = found[taps.argmax(axis=0)]
    return first if len(words) == len(numbers) else np.where(taps.max(axis=0) > words[1], first, words[0])


def _chosen_sum(operands: _Operands, _: _Values, numbers: Coefficients) -> _Values:
    """Sum pairs of an operand and a choice: the operand counts where the choice is the pair's number. A single operand
    ahead of the pairs is added.
    """
    words = [*operands]
    before, pairs = words[: len(words) % 2], words[len(words) % 2 :]
    chosen = zip(pairs[::2], pairs[1::2], numbers, strict=True)
    return _sum([*before, *(_chosen(choice == number, x) for x, choice, number in chosen)])


def _difference(terms: list[_Values]) -> _Values:
    """The first term minus the others."""
    first, *others = terms
    return first - _sum(others) if others else first


def _line(x: _Values, slope: float, shift: float) -> _Values:
    """A multiplication and an addition, as the ALUs do them."""
    return x * x.dtype.type(np.float32(slope)) + x.dtype.type(np.float32(shift))


def _combined(counts: Arity, factors: Coefficients) -> AluWork:
    """ALU operations of operands times factors, summed. A factor of 1 or -1 adds or subtracts, and takes none."""
    return AluWork(sum(abs(each) != 1 for each in factors), counts.operands - 1 + all(each == -1 for each in factors))


def _masked(operands: _Operands, held: _Values, _: Coefficients) -> _Values:
    """The first words where a line of the others is above zero."""
    x, other = operands
    above = other * held[0][:, None, None] + held[-1][:, None, None] > 0
    return np.where(above, x, x.dtype.type(0))


def _of_masked(multiplies: bool) -> Operation:
    """A sum over pairs of operands: of the first, or of both multiplied, where a line of the second is above zero. The
    line's slope and shift are the last two operands.
    """

    def values(operands: _Operands, _: _Values, __: Coefficients) -> _Values:
        *words, slope, shift = operands
        pairs = [*zip(words[::2], words[1::2], strict=True)]
        return _sum(_chosen(y * slope + shift > 0, x * y if multiplies else x) for x, y in pairs)

    def work(counts: Arity, _: Coefficients) -> AluWork:
        pairs = counts.operands // 2 - 1
        # A line, a comparison, a choice, and the sum.
        return AluWork((1 + multiplies) * pairs, 4 * pairs - 1)

    return Operation(
        values,
        work,
        lambda counts: counts.operands > 2 and counts.operands % 2 == 0 and not counts.scalars + counts.coefficients,
    )


def _bent(x: _Values, slope: _Values) -> _Values:
    """Each element, or its product with a slope where it is below zero."""
    return np.where(x < 0, x * slope, x)


def _clip(x: _Values, low: float, high: float) -> _Values:
    return np.asarray(np.minimum(np.maximum(x, x.dtype.type(np.float32(low))), x.dtype.type(np.float32(high))))


# ---- kinds of operations


def _of_one(values: Callable[[_Values, _Values, Coefficients], _Values], products: int, others: int, coefficients: int,
            scalars: int = 0) -> Operation:  # fmt: skip
    """An operation on one operand with a fixed number of ALU operations; lanes have at least `scalars` scalars."""

    def of_all(operands: _Operands, held: _Values, given: Coefficients) -> _Values:
        (x,) = operands
        return values(x, held, given)

    return Operation(
        of_all,
        lambda *_: AluWork(products, others),
        lambda counts: counts.operands == 1 and counts.coefficients == coefficients and counts.scalars >= scalars,
        pointwise=True,
    )


def _of_terms(together: Callable[[list[_Values]], _Values], multiplies: bool = False) -> Operation:
    """An operation that joins operands, and the scalar of a lane if there is one, two by two."""

    def work(counts: Arity, _: Coefficients) -> AluWork:
        steps = counts.operands + (counts.scalars > 0) - 1
        return AluWork(steps, 0) if multiplies else AluWork(0, steps)

    return Operation(
        lambda operands, scalars, _: together(_terms(operands, scalars)),
        work,
        lambda counts: counts.operands > 0 and not counts.coefficients,
    )


def finished(values: _Values, operations: Iterable[tuple[str, Coefficients]]) -> _Values:
    """Results after these operations, each with its coefficients, one after another."""
    for name, coefficients in operations:
        values = OPERATIONS[name].values([values], np.empty((0, len(values)), values.dtype), coefficients)
    return values


def _of_functions(function: Callable[..., Any], products: int, others: int, *of: str, operands: int = 1) -> Operation:
    """A function of elements that takes ALU operations, and the machine's functions named by `of`."""
    return Operation(
        _rounded_once(function),
        lambda *_: AluWork(products, others),
        lambda counts: counts.operands + (counts.scalars > 0) == operands and not counts.coefficients,
        lambda _: Counter(of),
        pointwise=True,
    )


def _of_values(
    function: Callable[..., _Values], values: int, products: int, others: int, *of: str, coefficients: int = 0
) -> Operation:
    """A function of `values` numbers at a place, which may be operands or scalars of a lane, and of coefficients; its
    ALU operations are rounded one by one.
    """

    def of_all(operands: _Operands, scalars: _Values, given: Coefficients) -> _Values:
        terms = [*operands]
        # Numbers of a lane stand at the beginning of a word each.
        missing = values - len(terms)
        apart = max(1, (len(scalars) - 1) // max(1, missing - 1))
        terms += [scalars[at * apart, :, None, None] for at in range(missing)]
        return np.asarray(function(*terms, *(terms[0].dtype.type(np.float32(each)) for each in given)))

    return Operation(
        of_all,
        lambda *_: AluWork(products, others),
        lambda counts: (
            0 < counts.operands <= values
            and (counts.operands < values) == (counts.scalars > 0)
            and counts.coefficients == coefficients
        ),
        lambda _: Counter(of),
        pointwise=True,
    )


def _once(function: Callable[..., Any]) -> Callable[..., _Values]:
    """The function, computed in float64 and rounded once."""

    def rounded(*values: Any) -> _Values:
        # As in `_rounded_once`.
        with np.errstate(all="ignore"):
            return np.asarray(function(*(np.asarray(each, np.float64) for each in values))).astype(values[0].dtype)

    return rounded


def _chosen(where: NDArray[np.bool_], x: _Values, other: _Values | float = 0.0) -> _Values:
    return np.where(where, x, np.asarray(other, x.dtype))


def _gelu_tanh(x: _Values) -> Any:
    return x / (1 + np.exp(-2 * sqrt(2 / pi) * x * (1 + BEND * x * x)))


def _silu_slope(x: _Values) -> Any:
    share = 1 / (1 + np.exp(-x))
    return share * (1 + x * (1 - share))


def _gelu_slope(x: _Values) -> Any:
    return _ERFC(x / -sqrt(2)).astype(np.float64) / 2 + x * np.exp(x * x / -2) / sqrt(2 * pi)


def _gelu_tanh_slope(x: _Values) -> Any:
    inner = 2 * sqrt(2 / pi)
    share = 1 / (1 + np.exp(-inner * x * (1 + BEND * x * x)))
    return share * (1 + x * (1 - share) * inner * (1 + 3 * BEND * x * x))


def _of_elements(
    function: Callable[..., Any], others: int, products: int, of: Callable[[int], Mapping[str, int]]
) -> Operation:
    """A sum over all operands but the last, each with `others` and `products` operations."""
    return Operation(
        _rounded_once(function),
        lambda counts, _: AluWork((counts.operands - 1) * products, (counts.operands - 1) * (others + 1) - 1),
        lambda counts: counts.operands > 1 and not counts.scalars + counts.coefficients,
        lambda counts: of(counts.operands - 1),
    )


def _of_seen(
    function: Callable[..., Any], known: int, products: int, others: int, of: Callable[[int], Mapping[str, int]]
) -> Operation:
    """A function of the elements that a row sees, with `products` and `others` for each: of two operands each, the
    element and its number, then the last number that is seen, perhaps the first, and `known` numbers of the row.

    Elements that are not seen are less than anything.
    """

    def elements(counts: int) -> tuple[int, int]:
        bounds = 2 - (counts - known) % 2
        return (counts - known - bounds) // 2, bounds

    def of_seen(*terms: Any) -> Any:
        count, bounds = elements(len(terms))
        (last, *first), rest = terms[2 * count : 2 * count + bounds], terms[2 * count + bounds :]
        pairs = zip(terms[: 2 * count : 2], terms[1 : 2 * count : 2], strict=True)
        return function([_seen(x, number, last, *first) for x, number in pairs], *rest)

    def work(counts: Arity, _: Coefficients) -> AluWork:
        count, bounds = elements(counts.operands)
        # A comparison for each end, their conjunction, and a choice.
        return AluWork(count * products, count * (2 * bounds + others + 1) - 1)

    return Operation(
        _rounded_once(of_seen),
        work,
        lambda counts: counts.operands > known + 2 and not counts.scalars + counts.coefficients,
        lambda counts: of(elements(counts.operands)[0]),
    )


def _kept(x: Any, least: Any) -> Any:
    return _chosen(x >= least, x)


def _seen(x: Any, number: Any, last: Any, first: Any = -np.inf) -> Any:
    return np.where((first <= number) & (number <= last), x, -np.inf)


def _seen_share(x: Any, *others: Any) -> Any:
    *bounds, most, factor, number = others
    return np.exp(_seen(x, number, *bounds) - most) * factor


def _of_sum(function: Callable[..., Any], coefficients: int, products: int, of: str) -> Operation:
    """A function of a sum, which is first multiplied by coefficients or has them added."""
    return Operation(
        _rounded_once(function),
        lambda counts, _: AluWork(products, counts.operands - 1 + coefficients - products),
        lambda counts: counts.operands > 0 and counts.coefficients == coefficients and not counts.scalars,
        lambda _: {of: 1},
    )


def _of_squares(first: bool) -> Operation:
    """The sum of the squares of all operands; with `first`, the first operand is added as it is."""
    return Operation(
        lambda operands, *_: _sum(x if first and not at else x * x for at, x in enumerate(operands)),
        lambda counts, _: AluWork(counts.operands - first, counts.operands - 1),
        lambda counts: counts.operands > first and not counts.scalars + counts.coefficients,
    )


def _of_word(joined: Callable[..., Any]) -> Operation:
    """An operation that joins the first elements of a word, as many as its coefficient says, and writes the outcome to
    all elements: the word is turned, and joined with itself, each time that the number of elements is halved.
    """

    def values(operands: _Operands, _: _Values, counts: Coefficients) -> _Values:
        (x,) = operands
        made = joined(x[..., : int(counts[0])], axis=-1, keepdims=True)
        return np.broadcast_to(made, x.shape).astype(x.dtype)

    return Operation(
        values,
        lambda _, counts: AluWork(0, 2 * (int(sum(counts)) - 1).bit_length()),
        lambda counts: counts == Arity(1, 0, 1),
        wide=True,
    )


def _of_power(beta: float, products: int, *of: str) -> Operation:
    """The last operand, an element, over a power of a line of the first: x / (slope squares + shift)^beta."""

    def function(squares: Any, x: Any, slope: float, shift: float) -> Any:
        return x * np.exp(-beta * np.log(slope * squares + shift))

    made = _of_functions(function, products, 1, *of)
    return made._replace(fits=lambda counts: counts == Arity(2, 0, 2))


OPERATIONS: dict[str, Operation] = {
    "multiply_add": Operation(
        # Operands without a scalar are added as they are.
        lambda operands, scalars, _: _sum(
            x * scalars[at][:, None, None] if at < len(scalars) else x for at, x in enumerate(operands)
        ),
        lambda counts, _: AluWork(counts.scalars, counts.operands - 1),
        lambda counts: 0 < counts.scalars <= counts.operands and not counts.coefficients,
    ),
    "combine": Operation(
        lambda operands, _, factors: _sum(x * x.dtype.type(each) for x, each in zip(operands, factors, strict=True)),
        _combined,
        lambda counts: 0 < counts.coefficients == counts.operands and not counts.scalars,
    ),
    "sum_of_products": Operation(
        _sum_of_products,
        lambda counts, _: AluWork(counts.operands // 2, counts.operands // 2 - 1),
        lambda counts: counts.operands > 0 and counts.operands % 2 == 0 and not counts.scalars + counts.coefficients,
    ),
    "maximum": Operation(
        # One after another, as windows have many operands.
        lambda operands, scalars, _: reduce(np.maximum, chain(operands, _terms((), scalars))),
        lambda counts, _: AluWork(0, counts.operands + (counts.scalars > 0) - 1),
        lambda counts: counts.operands > 0 and not counts.coefficients,
        selects=True,
    ),
    # Two choices a tap, of the element and of its number, by one comparison.
    "first_largest": Operation(
        _first_largest,
        lambda counts, _: AluWork(0, 3 * (counts.operands - 1)),
        lambda counts: (
            counts.coefficients > 0 and counts.operands - counts.coefficients in (0, 2) and not counts.scalars
        ),
        selects=True,
    ),
    "chosen_sum": Operation(
        _chosen_sum,
        lambda counts, _: AluWork(0, 2 * (counts.operands // 2) + (counts.operands - 1) // 2),
        lambda counts: 0 < counts.coefficients == counts.operands // 2 and not counts.scalars,
    ),
    "mean": Operation(
        lambda operands, _, part: _sum(operands) * np.float32(part[0]),
        lambda counts, _: AluWork(1, counts.operands - 1),
        lambda counts: counts.operands > 0 and counts.coefficients == 1 and not counts.scalars,
    ),
    "add": _of_terms(_sum),
    "sub": _of_terms(_difference),
    "rsub": _of_terms(lambda terms: _difference(terms[::-1])),
    "mul": _of_terms(lambda terms: reduce(mul, terms), multiplies=True),
    "minimum": _of_terms(lambda terms: reduce(np.minimum, terms))._replace(selects=True),
    "prelu": Operation(
        lambda operands, scalars, _: _bent(*_terms(operands, scalars)),
        # A product, and a choice by the sign.
        lambda *_: AluWork(1, 1),
        lambda counts: counts.operands + (counts.scalars > 0) == 2 and not counts.coefficients,
    ),
    "where": _of_values(lambda x, y, by: _chosen(by != 0, x, y), 3, 0, 2)._replace(selects=True),
    "copy": _of_one(lambda x, *_: x, 0, 0, 0)._replace(selects=True),
    # Rows become lanes, which fills have done already; the time is that of a transposing unit.
    "turn": _of_one(lambda x, *_: x, 0, 0, 0)._replace(selects=True, turns=1),
    "scale_shift": _of_one(lambda x, held, _: x * held[0][:, None, None] + held[-1][:, None, None], 1, 1, 0, scalars=1),
    "masked": Operation(
        _masked,
        lambda *_: AluWork(1, 3),
        lambda counts: counts.operands == 2 and counts.scalars > 0 and not counts.coefficients,
        selects=True,
    ),
    "relu": _of_one(lambda x, *_: np.maximum(x, x.dtype.type(0)), 0, 1, 0)._replace(selects=True),
    "leaky_relu": _of_one(lambda x, _, slope: np.maximum(x, x * np.float32(slope[0])), 1, 1, 1),
    "clip": _of_one(lambda x, _, ends: _clip(x, *ends), 0, 2, 2)._replace(selects=True),
    "power_2": _of_one(lambda x, *_: x * x, 1, 0, 0),
    "power_3": _of_one(lambda x, *_: x * x * x, 2, 0, 0),
    "hard_sigmoid": _of_one(lambda x, _, line: _clip(_line(x, *line), 0, 1), 1, 3, 2),
    "hard_swish": _of_one(lambda x, _, line: x * _clip(_line(x, *line), 0, 1), 2, 3, 2),
    "exp": _of_functions(np.exp, 0, 0, "exp"),
    # Counted as x r, r = 1 / root(x), with a comparison for x = 0.
    "sqrt": _of_functions(np.sqrt, 1, 2, "reciprocal_root"),
    "tanh": _of_functions(np.tanh, 0, 0, "tanh"),
    "erf": _of_functions(_ERF, 0, 0, "erf"),
    "div": _of_functions(np.divide, 0, 0, "divide", operands=2),
    "rdiv": _of_functions(lambda x, y: np.divide(y, x), 0, 0, "divide", operands=2),
    # Counted as 0.5 + 0.5 tanh(0.5 x) unless the machine has it.
    "sigmoid": _of_functions(lambda x: 1 / (1 + np.exp(-x)), 0, 0, "sigmoid"),
    # Counted as max(x, 0) + log(1 + exp(-abs(x))).
    "softplus": _of_functions(lambda x: np.maximum(x, 0) + np.log1p(np.exp(-abs(x))), 0, 4, "exp", "log"),
    "silu": _of_functions(lambda x: x / (1 + np.exp(-x)), 1, 0, "sigmoid"),
    # Counted as 0.5 x (1 + erf(x / sqrt(2))), and as 0.5 x (1 + tanh(x (a + b x^2))), which equals x times a sigmoid.
    "gelu": _of_functions(lambda x: x / 2 * _ERFC(x / -sqrt(2)), 3, 1, "erf"),
    "gelu_tanh": _of_functions(_gelu_tanh, 0, 0, "gelu_tanh"),
    "swiglu": _of_functions(lambda gate, x: gate / (1 + np.exp(-gate)) * x, 2, 0, "sigmoid", operands=2),
    "geglu": _of_functions(lambda gate, x: _gelu_tanh(gate) * x, 1, 0, "gelu_tanh", operands=2),
    # Counted as c tanh(x (1 / c)).
    "soft_cap": _of_values(_once(lambda x, cap: cap * np.tanh(x / cap)), 1, 2, 0, "tanh", coefficients=1),
    "rotary": _of_values(lambda x, partner, cos, sin: x * cos + partner * sin, 4, 2, 1),
    # Gradients of activations: of a result's gradient, and of what the activation made or read.
    "relu_gradient": _of_values(lambda dy, y: _chosen(y > 0, dy), 2, 0, 2)._replace(selects=True),
    "leaky_relu_gradient": _of_values(lambda dy, y, slope: _chosen(y > 0, dy, dy * slope), 2, 1, 2, coefficients=1),
    "clip_gradient": _of_values(
        lambda dy, y, low, high: _chosen((low < y) & (y < high), dy), 2, 0, 4, coefficients=2
    )._replace(selects=True),
    "sigmoid_gradient": _of_values(lambda dy, y: dy * y * (y.dtype.type(1) - y), 2, 2, 1),
    "tanh_gradient": _of_values(lambda dy, y: dy * (y.dtype.type(1) - y * y), 2, 2, 1),
    # Counted with the sigmoid s of x as s (1 + x (1 - s)), and as (1 + erf(x / sqrt(2))) / 2 + x exp(-x^2 / 2) c; by
    # tanh, s is that of 2 x (a + b x^2), and x (1 - s) is multiplied by the slope of this.
    "silu_gradient": _of_values(_once(lambda dy, x: dy * _silu_slope(x)), 2, 3, 2, "sigmoid"),
    "gelu_gradient": _of_values(_once(lambda dy, x: dy * _gelu_slope(x)), 2, 7, 3, "erf", "exp"),
    "gelu_tanh_gradient": _of_values(_once(lambda dy, x: dy * _gelu_tanh_slope(x)), 2, 7, 4, "sigmoid"),
    # Updates of weights.
    "weighted_sum": _of_values(lambda x, y, of_x, of_y: x * of_x + y * of_y, 2, 2, 1, coefficients=2)._replace(
        work=lambda _, factors: _combined(Arity(2, 0, 2), factors)
    ),
    "adam_second": _of_values(lambda v, g, kept, new: v * kept + g * g * new, 2, 3, 1, coefficients=2),
    # The root is counted as `sqrt` is.
    "adam_step": _of_values(
        _once(lambda w, first, second, rate, epsilon: w - rate * first / (np.sqrt(second) + epsilon)),
        3,
        2,
        4,
        "reciprocal_root",
        "divide",
        coefficients=2,
    ),
    # Batch normalization: numbers of channels, and the gradient of a map.
    "over_deviation": _of_values(
        _once(lambda variance, x, epsilon: x / np.sqrt(variance + epsilon)), 2, 1, 1, "reciprocal_root", coefficients=1
    ),
    "batch_norm_shift": _of_values(lambda mean, scale, shift: shift - mean * scale, 3, 1, 1),
    "batch_norm_slope": _of_values(
        _once(lambda variance, scale, dw, part, epsilon: scale * dw * part / np.sqrt(variance + epsilon)),
        3,
        3,
        1,
        "reciprocal_root",
        coefficients=2,
    ),
    "batch_norm_offset": _of_values(
        lambda mean, scale, slope, total, part: scale * total * part - mean * slope, 4, 3, 1, coefficients=1
    ),
    "batch_norm_gradient": _of_values(lambda dy, x, scale, slope, offset: dy * scale + x * slope + offset, 5, 2, 2),
    "shortcut": _of_values(
        lambda x, other, scale, shift: np.maximum(x * scale + shift + other, x.dtype.type(0)), 4, 1, 3
    ),
    "shortcut_of_both": _of_values(
        lambda x, y, scale, shift, other_scale, other_shift: np.maximum(
            x * scale + shift + (y * other_scale + other_shift), x.dtype.type(0)
        ),
        6,
        2,
        4,
    ),
    "scale_shift_relu": _of_values(lambda x, scale, shift: np.maximum(x * scale + shift, x.dtype.type(0)), 3, 1, 2),
    "mean_of_total": _of_one(lambda x, _, part: x * np.float32(part[0]), 1, 0, 1),
    "variance_of_squares": _of_values(
        lambda mean, squares, part: squares * part - mean * mean, 2, 2, 1, coefficients=1
    ),
    "centred_total": _of_values(lambda mean, total, products: products - mean * total, 3, 1, 1),
    # For ops of rows: a difference and a power of each element, and their sum; then the same with squares.
    "exp_sum": _of_elements(
        lambda *terms: sum(np.exp(x - terms[-1]) for x in terms[:-1]), 1, 0, lambda elements: {"exp": elements}
    ),
    "squares_sum": _of_elements(lambda *terms: sum((x - terms[-1]) ** 2 for x in terms[:-1]), 1, 1, lambda _: {}),
    # For rows with a mask.
    "seen_maximum": _of_seen(lambda seen: reduce(np.maximum, seen), 0, 0, 0, lambda _: {})._replace(selects=True),
    "seen_exp_sum": _of_seen(
        lambda seen, most: sum(np.exp(x - most) for x in seen), 1, 0, 1, lambda elements: {"exp": elements}
    ),
    "seen_exp_scaled": Operation(
        _rounded_once(_seen_share),
        lambda counts, _: AluWork(1, 1 + 2 * (counts.operands - 4)),
        lambda counts: counts.operands in (5, 6) and not counts.scalars + counts.coefficients,
        lambda _: {"exp": 1},
    ),
    # For scores that stay on chip: of a row in a lane, by numbers of the lane.
    "wide_seen": _of_values(lambda x, number, last: _chosen(number <= last, x, -np.inf), 3, 0, 2)._replace(
        selects=True, wide=True
    ),
    "wide_exp": _of_functions(lambda x, most: np.exp(x - most), 0, 1, "exp", operands=2)._replace(wide=True),
    "wide_maximum_across": _of_word(np.max)._replace(selects=True),
    "wide_sum_across": _of_word(np.sum),
    # For rows of which the largest numbers are kept: of elements, and a number of the row.
    "next_largest": _of_elements(
        lambda *terms: reduce(np.maximum, [np.where(x < terms[-1], x, -np.inf) for x in terms[:-1]]), 2, 0, lambda _: {}
    )._replace(selects=True),
    "kept_sum": _of_elements(lambda *terms: sum(_kept(x, terms[-1]) for x in terms[:-1]), 2, 0, lambda _: {}),
    "kept": _of_values(lambda x, least: _kept(x, least), 2, 0, 2)._replace(selects=True),
    "kept_scaled": _of_values(_once(lambda x, least, factor: _kept(x, least) * factor), 3, 1, 2),
    # For ops of channels: products of operands two by two, the second of them less the last operand, and their sum.
    "centred_products": Operation(
        _rounded_once(lambda *terms: sum(x * (y - terms[-1]) for x, y in zip(terms[:-1:2], terms[1::2], strict=False))),
        lambda counts, _: AluWork(counts.operands // 2, counts.operands - 2),
        lambda counts: counts.operands > 2 and counts.operands % 2 == 1 and not counts.scalars + counts.coefficients,
    ),
    "masked_sum": _of_masked(multiplies=False),
    "masked_products": _of_masked(multiplies=True),
    # For rows on the way back: of three operands each, the second less the last of all, their products, and their sum.
    "centred_triples": Operation(
        _rounded_once(
            lambda *terms: sum(
                x * (y - terms[-1]) * z for x, y, z in zip(terms[:-1:3], terms[1:-1:3], terms[2:-1:3], strict=True)
            )
        ),
        lambda counts, _: AluWork(2 * (counts.operands // 3), 2 * (counts.operands // 3) - 1),
        lambda counts: counts.operands > 3 and counts.operands % 3 == 1 and not counts.scalars + counts.coefficients,
    ),
    "sum_of_triples": Operation(
        _rounded_once(lambda *terms: sum(map(prod, zip(terms[::3], terms[1::3], terms[2::3], strict=True)))),
        lambda counts, _: AluWork(2 * (counts.operands // 3), counts.operands // 3 - 1),
        lambda counts: counts.operands > 0 and counts.operands % 3 == 0 and not counts.scalars + counts.coefficients,
    ),
    "rms_gradient": _of_functions(
        lambda dy, x, root, gx, scale: root * (dy * scale - x * root * root * gx), 5, 1, operands=5
    ),
    "normalize_gradient": _of_functions(
        lambda dy, x, mean, root, g, gx, scale: root * (dy * scale - g - (x - mean) * root * root * gx),
        5,
        3,
        operands=7,
    ),
    # Of two operands each, an element and a label, and of the largest element and a logarithm.
    "surprise_sum": Operation(
        _rounded_once(
            lambda *terms: sum(
                label * (terms[-1] - (x - terms[-2])) for x, label in zip(terms[:-2:2], terms[1:-2:2], strict=True)
            )
        ),
        lambda counts, _: AluWork(counts.operands // 2 - 1, 3 * (counts.operands // 2 - 1) - 1),
        lambda counts: counts.operands > 3 and counts.operands % 2 == 0 and not counts.scalars + counts.coefficients,
    ),
    "log_sum": _of_sum(lambda *terms: np.log(sum(terms)), 0, 0, "log"),
    "softmax_gradient": _of_values(
        _once(lambda x, label, most, part, factor: (np.exp(x - most) * part - label) * factor),
        4,
        2,
        2,
        "exp",
        coefficients=1,
    ),
    "shares_less": _of_functions(lambda dy, part, total: part * (dy - total), 1, 1, operands=3),
    "reciprocal_sum": _of_sum(lambda *terms: 1 / sum(terms), 0, 0, "divide"),
    "reciprocal_root": _of_sum(
        lambda *terms: 1 / np.sqrt(sum(terms[:-2]) * terms[-2] + terms[-1]), 2, 1, "reciprocal_root"
    ),
    "exp_scaled": _of_functions(lambda x, most, factor: np.exp(x - most) * factor, 1, 1, "exp", operands=3),
    # Counted as x r, x r r / root(r) and x / s, with r = 1 / root(s) and s a line of the sum of squares.
    "squares": _of_squares(first=False),
    "squares_more": _of_squares(first=True),
    "products_more": Operation(
        lambda operands, *_: (lambda first, x, y: first + x * y)(*operands),
        lambda *_: AluWork(1, 1),
        lambda counts: counts == Arity(3, 0, 0),
    ),
    "normalize_by_50": _of_power(0.5, 2, "reciprocal_root"),
    "normalize_by_75": _of_power(0.75, 4, "reciprocal_root", "reciprocal_root"),
    "normalize_by_100": _of_power(1.0, 1, "divide"),
    "normalize": _of_functions(
        lambda x, mean, factor, scale, shift: (x - mean) * factor * scale + shift, 2, 2
    )._replace(fits=lambda counts: counts == Arity(5, 0, 0)),
}
"""Operations by the name that a step gives them."""
_BARE = "add", "sub", "rsub", "mul", "div", "rdiv", "maximum", "minimum", "exp", "tanh"
OPERATIONS |= {name: OPERATIONS[name]._replace(bare=True) for name in _BARE}
# The polynomial of the error function is worked out on widened numbers.
OPERATIONS |= {name: OPERATIONS[name]._replace(pointwise=False) for name in ("erf", "gelu", "gelu_gradient")}
_WIDE = "maximum", "mul", "add", "sum_of_products", "shares_less", "reciprocal_sum"
OPERATIONS |= {f"wide_{name}": OPERATIONS[name]._replace(wide=True) for name in _WIDE}


def work_of(operation: str, counts: Arity, coefficients: Coefficients, unit: VectorUnit) -> AluWork:
    """ALU operations that an element of a step takes on a machine, its rounding included.

    Raises:
        CapacityError: when the machine does not give the operations of a function.
    """
    does = OPERATIONS[operation]
    products, others, lookups = does.work(counts, coefficients)
    others += 0 if does.selects else unit.rounding
    for name, often in _parts(does.functions(counts), unit):
        work = name if isinstance(name, AluWork) else unit.functions.work_of(name)
        if work is None:
            says = f"the machine does not say how many ALU operations {name} takes"
            write = "write multiplications + other operations of an element, such as 7 + 7"
            raise CapacityError(Problem(f"{says}; {write}", f"vector_unit.functions.{name}"))
        products, others = products + often * work.products, others + often * work.others
        lookups += often * work.lookups
    return AluWork(products, others, lookups)


_OF_TAPS = "multiply_add", "combine"
"""Operations of convolutions without the array, whose operands are fetched into place."""
_COMPOSED = {"sigmoid": AluWork(2, 1), "gelu_tanh": AluWork(5, 2)}
"""Functions that a machine need not have, by the ALU operations that they take beside a tanh."""


def _parts(functions: Mapping[str, int], unit: VectorUnit) -> Iterator[tuple[str | AluWork, int]]:
    """Functions that the machine has, or the operations of which one is made, and how often each."""
    given = unit.functions
    for name, often in functions.items():
        if unit.widen == 0 and getattr(given, f"wide_{name}", None):
            yield f"wide_{name}", often
        elif name in _COMPOSED and getattr(given, name) is None:
            yield from ((_COMPOSED[name], often), ("tanh", often))
        else:
            yield name, often


def converting(
    operation: str, counts: Arity, unit: VectorUnit, widened: Fraction = Fraction(1), apart: int = 1
) -> Fraction:
    """ALU operations that convert narrow operands and the result of an element, on a machine with slots.

    A share of the operands is `widened`; the others were, for a result beside. Results whose words are `apart` take
    that many times the operations that make a register of several. What is only moved stays as it is, and what is
    worked on where ALUs work on narrow numbers.
    """
    does = OPERATIONS[operation]
    if unit.slots is None or _narrow(does, unit) or _moves(does, counts, unit):
        return Fraction(0)
    return counts.operands * widened * unit.widen + apart * unit.narrow


def _moves(does: Operation, counts: Arity, unit: VectorUnit) -> bool:
    """Whether words are moved as they are."""
    assert unit.slots
    return does.selects and not any(does.work(counts, ())) and (unit.slots.packed or does.turns > 0)


def _narrow(does: Operation, unit: VectorUnit) -> bool:
    """Whether ALUs work on narrow elements as they are."""
    return unit.arithmetic == "narrow" and unit.widen > 0 and does.pointwise and not does.bare


def pace_of(
    operation: str,
    counts: Arity,
    coefficients: Coefficients,
    unit: VectorUnit,
    widened: Fraction = Fraction(1),
    apart: int = 1,
) -> Fraction:
    """ALU operations that set the pace of a step: those of an element, with its conversions; or as many as the ALUs
    have time for while a unit beside them works, if that is more.
    """
    work, does = work_of(operation, counts, coefficients, unit), OPERATIONS[operation]
    slots, converted = unit.slots, converting(operation, counts, unit, widened, apart)
    if slots is None:
        return work.operations + converted
    # Two narrow elements side by side take an operation.
    operations = Fraction(work.operations, 2) if _narrow(does, unit) else work.operations + converted
    beside = max(work.lookups * slots.lookup_cycles, does.turns * slots.turn_cycles)
    if operation in _OF_TAPS:
        beside = max(beside, counts.operands * unit.operand_cycles + unit.result_cycles)
    return max(operations, beside * Fraction(unit.alus, slots.lanes * slots.rows))
