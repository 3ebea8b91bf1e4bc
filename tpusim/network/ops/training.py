"""Pointwise ops of a training step that have fields of their own: gradients of activations, and updates of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Real, validated
from tpusim.network.ops.elementwise import Clip, Gelu, LeakyRelu, Paired, Pointwise
from tpusim.network.ops.op import OFMAP, Shape


@validated
class LeakyReluGradient(Paired, LeakyRelu):
    """The ifmap where the other operand, what the leaky relu made or read, is above zero; elsewhere times `slope`."""

    op: ClassVar[str] = "leaky_relu_gradient"


@validated
class ClipGradient(Paired, Clip):
    """The ifmap where the other operand, what the clip made or read, lies between `min` and `max`; elsewhere zero."""

    op: ClassVar[str] = "clip_gradient"


@validated
class GeluGradient(Paired, Gelu):
    """The ifmap times the slope of gelu at the other operand."""

    op: ClassVar[str] = "gelu_gradient"

    @property
    def operation(self) -> str:
        """The machine's operation: the form by tanh has its own."""
        return "gelu_gradient" if self.approximate == "none" else "gelu_tanh_gradient"


# ---- updates


@validated
class WeightedSum(Paired):
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
class AdamSecond(Paired):
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
        if self.epsilon <= 0:
            raise InputError(Problem(f"{self.epsilon} is not above zero; write one such as 1e-8", "epsilon"))

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: all alike."""
        return dict.fromkeys(("ifmap", "first", "second", OFMAP), self.map(batch))

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return self.rate, self.epsilon
