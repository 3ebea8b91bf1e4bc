"""Sums, differences, products and quotients of two maps, or of a map and what is the same in many of its places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

from tpusim.input.fields import Choice
from tpusim.input.form import validated
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.pointwise import Pointwise

Other: TypeAlias = Literal["each", "map", "channel", "image", "pixel", "number"]

_KEPT: Mapping[str, tuple[bool, bool, bool, bool]] = {
    "each": (True, True, True, True),
    "map": (True, True, True, False),
    "channel": (True, False, False, False),
    "image": (True, False, False, True),
    "pixel": (False, True, True, True),
    "number": (False, False, False, False),
}
"""Which axes of [channel, row, col, image] the other operand has; along the rest it has one element for all."""


@validated
class Arithmetic(Pointwise):
    """Such an op.

    The `other` operand has a number for `each` element, a `map` of them for all images, one for a `channel` (a bias), a
    channel of an `image` (a gate), a `pixel` of all channels, or one `number` in all.
    """

    grammar: ClassVar[str] = "rows x columns x channels, and what the other operand has a number for if not for each"

    other: Annotated[Other, Choice()] = "each"

    @property
    def text(self) -> str:
        """ "56x56x64 channel" where the other operand has a number a channel."""
        return self.map_text if self.other == "each" else f"{self.map_text} {self.other}"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        channels, rows, cols, images = (
            size if kept else 1 for size, kept in zip(self.map(batch), _KEPT[self.other], strict=True)
        )
        return {"ifmap": self.map(batch), "other": (channels, rows, cols, images), OFMAP: self.map(batch)}


@validated
class Add(Arithmetic):
    """The ifmap and the other operand, added."""

    op: ClassVar[str] = "add"


@validated
class Sub(Arithmetic):
    """The ifmap less the other operand."""

    op: ClassVar[str] = "sub"


@validated
class Rsub(Arithmetic):
    """The other operand less the ifmap."""

    op: ClassVar[str] = "rsub"


@validated
class Mul(Arithmetic):
    """The ifmap times the other operand."""

    op: ClassVar[str] = "mul"


@validated
class Div(Arithmetic):
    """The ifmap over the other operand."""

    op: ClassVar[str] = "div"
    exact: ClassVar[bool] = False


@validated
class Rdiv(Arithmetic):
    """The other operand over the ifmap."""

    op: ClassVar[str] = "rdiv"
    exact: ClassVar[bool] = False
