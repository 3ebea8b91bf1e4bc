"""Activations that a vector unit works out of comparisons, sums and products alone."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tpusim.base.errors import InputError, Problem
from tpusim.input.fields import Real, whole
from tpusim.input.form import validated
from tpusim.network.ops.pointwise import Pointwise

LARGEST = 3.4028234663852886e38
"""Of float32."""
MOST_POWER = 3
"""Networks raise to the square and to the cube; whole numbers of four bits, cubed, are exact."""


@validated
class Copy(Pointwise):
    """Each element as it is, from HBM and back: what laying a map out anew takes, or joining some to one."""

    op: ClassVar[str] = "copy"
    grammar: ClassVar[str] = "rows x columns x channels"


@validated
class Relu(Pointwise):
    """What is above zero; zero for the rest."""

    op: ClassVar[str] = "relu"
    grammar: ClassVar[str] = "rows x columns x channels"


@validated
class LeakyRelu(Pointwise):
    """What is above zero; the rest times `slope`, from 0 to 1."""

    op: ClassVar[str] = "leaky_relu"
    grammar: ClassVar[str] = "rows x columns x channels"

    slope: Annotated[float, Real()] = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.slope <= 1:
            raise InputError(Problem(f"{self.slope} is no slope from 0 to 1; write one such as 0.1", "slope"))

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return (self.slope,)


@validated
class Clip(Pointwise):
    """What lies between `min` and `max`, which stand for all below and above."""

    op: ClassVar[str] = "clip"
    grammar: ClassVar[str] = "rows x columns x channels"

    min: Annotated[float, Real()] = -LARGEST
    max: Annotated[float, Real()] = LARGEST

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise InputError(Problem(f"min {self.min:g} is above max {self.max:g}; exchange them", "min"))

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return self.min, self.max


@validated
class Power(Pointwise):
    """The element times itself: `exponent` 2 is its square, 3 its cube."""

    op: ClassVar[str] = "power"
    grammar: ClassVar[str] = "rows x columns x channels, exponent"

    exponent: Annotated[int, whole(MOST_POWER, 2)] = 2

    @property
    def text(self) -> str:
        """ "1x4x129 ^2" of a square."""
        return f"{self.map_text} ^{self.exponent}"

    @property
    def operation(self) -> str:
        """Either has one of its own."""
        return f"power_{self.exponent}"


@validated
class HardSigmoid(Pointwise):
    """`alpha` times the element, plus `beta`, clipped to what lies between 0 and 1."""

    op: ClassVar[str] = "hard_sigmoid"
    grammar: ClassVar[str] = "rows x columns x channels"

    alpha: Annotated[float, Real()] = 0.2
    beta: Annotated[float, Real()] = 0.5

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return self.alpha, self.beta


@validated
class HardSwish(Pointwise):
    """The element times its hard sigmoid of alpha 1/6 and beta 1/2."""

    op: ClassVar[str] = "hard_swish"
    grammar: ClassVar[str] = "rows x columns x channels"

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return 1 / 6, 0.5
