"""Pointwise ops of a training step that have fields of their own: gradients of activations, updates of weights, and
what batch normalization makes of its statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeAlias

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Real, Truth, validated, whole, written
from tpusim.network.ops.elementwise import Clip, Gelu, LeakyRelu, PairOp, Pointwise, ScaleShift, check_above_zero
from tpusim.network.ops.op import OFMAP, Shape


@validated
class LeakyReluGradient(PairOp, LeakyRelu):
    """The ifmap where the other operand, what the leaky relu made or read, is above zero; elsewhere times `slope`."""

    op: ClassVar[str] = "leaky_relu_gradient"


@validated
class ClipGradient(PairOp, Clip):
    """The ifmap where the other operand, what the clip made or read, lies between `min` and `max`; elsewhere zero."""

    op: ClassVar[str] = "clip_gradient"


@validated
class GeluGradient(PairOp, Gelu):
    """The ifmap times the slope of gelu at the other operand."""

    op: ClassVar[str] = "gelu_gradient"

    @property
    def operation(self) -> str:
        """The machine's operation: the form by tanh has its own."""
        return "gelu_gradient" if self.approximate == "none" else "gelu_tanh_gradient"


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

    rate: Annotated[float, Real()] = 1e-3
    epsilon: Annotated[float, Real()] = 1e-8

    def __post_init__(self) -> None:
        check_above_zero(self.epsilon, "epsilon", 1e-5)

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: all alike."""
        return dict.fromkeys(("ifmap", "first", "second", OFMAP), self.map(batch))

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

    epsilon: Annotated[float, Real()] = 1e-5

    def __post_init__(self) -> None:
        check_above_zero(self.epsilon, "epsilon", 1e-5)

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return (self.epsilon,)


@validated
class BatchNormShift(Pointwise):
    """`shift` less the ifmap, a mean, times `scale`: what is added once a map has been multiplied by the scale."""

    op: ClassVar[str] = "batch_norm_shift"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: all alike."""
        return dict.fromkeys(("ifmap", "scale", "shift", OFMAP), self.map(batch))


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

    elements: Annotated[ElementCount, written("batch*56*56")] = 1
    epsilon: Annotated[float, Real()] = 1e-5

    def __post_init__(self) -> None:
        check_above_zero(self.epsilon, "epsilon", 1e-5)

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: all alike."""
        return dict.fromkeys(("ifmap", "scale", "gradient", OFMAP), self.map(batch))

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return -1 / self.elements, self.epsilon


@validated
class BatchNormOffset(Pointwise):
    """Minus `scale` times the `total` of the result's gradient over `elements`, less the ifmap, a mean, times `slope`.

    Attributes:
        elements: elements of a channel, over which the mean was taken.
    """

    op: ClassVar[str] = "batch_norm_offset"

    elements: Annotated[ElementCount, written("batch*56*56")] = 1

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: all alike."""
        return dict.fromkeys(("ifmap", "scale", "slope", "total", OFMAP), self.map(batch))

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return (-1 / self.elements,)


@validated
class BatchNormGradient(Pointwise):
    """The ifmap times `scale`, plus the other map times `slope`, plus `offset`, each a number for the channel.

    The ifmap is the gradient of the result of a batch normalization, the other map what that has read.
    """

    op: ClassVar[str] = "batch_norm_gradient"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes, with three numbers a channel."""
        maps, channel = self.map(batch), (self.channels, 1, 1, 1)
        return {"ifmap": maps, "other": maps, **dict.fromkeys(("scale", "slope", "offset"), channel), OFMAP: maps}


@validated
class ScaleShiftRelu(ScaleShift):
    """What is above zero of the ifmap times the channel's scale, plus the channel's shift; zero for the rest."""

    op: ClassVar[str] = "scale_shift_relu"

    @property
    def operation(self) -> str:
        return self.op


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

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes, with two numbers a channel, or four."""
        maps, channel = self.map(batch), (self.channels, 1, 1, 1)
        numbers = "scale", "shift", *(("other_scale", "other_shift") if self.both else ())
        return {"ifmap": maps, "other": maps, **dict.fromkeys(numbers, channel), OFMAP: maps}


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
class VarianceOfSquares(PairOp):
    """The other operand, a sum of squares, over its elements, less the square of the ifmap, their mean.

    Attributes:
        elements: elements that were summed up.
    """

    op: ClassVar[str] = "variance_of_squares"

    elements: Annotated[ElementCount, written("batch*56*56")] = 1

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return (1 / self.elements,)


@validated
class CentredTotal(Pointwise):
    """A total of products, less the ifmap, the mean of one factor, times the `total` of the other."""

    op: ClassVar[str] = "centred_total"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: all alike."""
        return dict.fromkeys(("ifmap", "total", "products", OFMAP), self.map(batch))
