"""Pointwise ops of a training step that have fields of their own: updates of weights, and what batch normalization
makes of its statistics. Gradients of activations are rows of `elementwise.ROWS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeAlias

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Real, Truth, validated, whole, written
from tpusim.network.ops.elementwise import Other, PairOp, Pointwise, above_zero

# ---- updates


@validated
class WeightedSum(PairOp):
    """The ifmap and the other operand, each times a factor, added: a velocity, a mean that fades, a step of weights.

    Attributes:
        factor: factor of the ifmap.
        other_factor: factor of the other operand.
    """

    op: ClassVar[str] = "weighted_sum"

    factor: Annotated[float, Real()] = 1.0
    other_factor: Annotated[float, Real()] = 1.0

    @property
    def text(self) -> str:
        """The shape in short: "1x1x64 1 -0.1" with both factors."""
        return f"{self.map_text} {self.factor:g} {self.other_factor:g}"

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return self.factor, self.other_factor


@validated
class AdamSecond(PairOp):
    """`decay` times the ifmap, plus the rest of one times the other operand's square: Adam's mean of squares.

    Attributes:
        decay: share of the ifmap, from 0 to 1.
    """

    op: ClassVar[str] = "adam_second"

    decay: Annotated[float, Real()] = 0.999

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise InputError(Problem(f"{self.decay} is no share from 0 to 1; write one such as 0.999", "decay"))

    def coefficients(self, counted: int) -> tuple[float, ...]:
        # Both factors are worked out here, so that the machine subtracts nothing.
        return self.decay, 1 - self.decay


@validated
class AdamStep(Pointwise):
    """The ifmap less `rate` times `first` over the root of `second` plus `epsilon`: weights after a step of Adam.

    What corrects the two means for their beginning at zero is a factor of the rate, and of epsilon.

    Attributes:
        rate: learning rate.
        epsilon: number above zero that is added to the root.
    """

    op: ClassVar[str] = "adam_step"
    exact: ClassVar[bool] = False
    positive: ClassVar[bool] = True
    beside: ClassVar[Mapping[str, Other]] = {"first": "each", "second": "each"}

    rate: Annotated[float, Real()] = 1e-3
    epsilon: Annotated[float, above_zero(1e-5)] = 1e-8

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return self.rate, self.epsilon


# ---- batch normalization: x * scale + shift of each channel, and back


ElementCount: TypeAlias = Annotated[int, whole(2**40)]
"""A number of elements."""


@validated
class OverDeviation(PairOp):
    """The other operand over the root of the ifmap plus `epsilon`: numbers over the deviations that variances tell.

    So a batch normalization's weight becomes its scale, and the sum of centred products the weight's gradient.

    Attributes:
        epsilon: number above zero that is added to the variance.
    """

    op: ClassVar[str] = "over_deviation"
    exact: ClassVar[bool] = False
    positive: ClassVar[bool] = True

    epsilon: Annotated[float, above_zero(1e-5)] = 1e-5

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return (self.epsilon,)


@validated
class BatchNormSlope(Pointwise):
    """Minus `scale` times the weight's gradient, over `elements` and the root of the ifmap, a variance, plus `epsilon`.

    Attributes:
        elements: elements of a channel, over which the variance was taken.
        epsilon: number above zero that is added to the variance.
    """

    op: ClassVar[str] = "batch_norm_slope"
    exact: ClassVar[bool] = False
    positive: ClassVar[bool] = True
    beside: ClassVar[Mapping[str, Other]] = {"scale": "each", "gradient": "each"}

    elements: Annotated[ElementCount, written("batch*56*56")] = 1
    epsilon: Annotated[float, above_zero(1e-5)] = 1e-5

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return -1 / self.elements, self.epsilon


@validated
class BatchNormOffset(Pointwise):
    """Minus `scale` times the `total` of the result's gradient over `elements`, less the ifmap, a mean, times `slope`.

    Attributes:
        elements: elements of a channel, over which the mean was taken.
    """

    op: ClassVar[str] = "batch_norm_offset"
    beside: ClassVar[Mapping[str, Other]] = {"scale": "each", "slope": "each", "total": "each"}

    elements: Annotated[ElementCount, written("batch*56*56")] = 1

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return (-1 / self.elements,)


@validated
class Shortcut(Pointwise):
    """What is above zero of the ifmap times `scale`, plus `shift`, plus the other map; zero for the rest: the end of a
    residual block.

    Attributes:
        both: whether the other map is scaled and shifted, too, by numbers of its own.
    """

    op: ClassVar[str] = "shortcut"

    both: Annotated[bool, Truth()] = False

    @property
    def operation(self) -> str:
        """The machine's operation: that of two scaled maps has its own."""
        return "shortcut_of_both" if self.both else self.op

    @property
    def text(self) -> str:
        """The shape in short: "56x56x256 both" where both maps are scaled."""
        return self.map_text + " both" * self.both

    @property
    def beside(self) -> Mapping[str, Other]:  # type: ignore[override]
        numbers = "scale", "shift", *(("other_scale", "other_shift") if self.both else ())
        return {"other": "each", **dict.fromkeys(numbers, "channel")}


@validated
class MeanOfTotal(Pointwise):
    """The ifmap, a sum, over its elements.

    Attributes:
        elements: elements that were summed up.
    """

    op: ClassVar[str] = "mean_of_total"

    elements: Annotated[ElementCount, written("batch*56*56")] = 1

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return (1 / self.elements,)


@validated
class VarianceOfSquares(PairOp, MeanOfTotal):
    """The other operand, a sum of squares, over its elements, less the square of the ifmap, their mean."""

    op: ClassVar[str] = "variance_of_squares"
