"""What ops answer whose outputs depend on a whole row: all channels of an image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from tpusim.input.form import Name, validated, whole
from tpusim.network.ops.grouped import Channels
from tpusim.network.ops.op import MOST_CHANNELS, OFMAP, Index, Op, Shape


class Stage(NamedTuple):
    """What a vector unit does with the elements of a row, one stage after another.

    Attributes:
        operation: what makes a number of some elements, and of one number a row of each stage that is `known`, then one
            a channel of each source that is `shared` by all rows: a name that machines know.
        joins: what makes one of two such numbers; empty: each is an output, of one element.
        ends: what makes the stage's one number a row of those that are left.
        coefficients: of what ends it.
        given: a source of one number a row, which is the stage's; nothing is done then. Such stages come first.
    """

    operation: str
    known: tuple[int, ...] = ()
    shared: tuple[str, ...] = ()
    joins: str = ""
    ends: str = ""
    coefficients: tuple[float, ...] = ()
    given: str = ""


@validated
class RowOp(Op):
    """Such an op on rows of so many `channels`, of which there are `images`; 0: as many as the batch."""

    unit: ClassVar[Literal["array", "vector"]] = "vector"
    spatial: ClassVar[bool] = False
    whole_rows: ClassVar[bool] = True
    counted_by: ClassVar[Literal["image", "row"]] = "row"
    grammar: ClassVar[str] = "rows x elements of each"
    sized_by: ClassVar[Mapping[str, int]] = {"channels": 0, "images": 3}

    name: Annotated[str, Name()]
    channels: Channels
    images: Annotated[int, whole(MOST_CHANNELS, 0)] = 0

    @property
    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """What is done with a row."""

    @property
    def text(self) -> str:
        """ "1024x768", or "batch x 1000" where there are as many rows as images in a batch."""
        return f"{self.images}x{self.channels}" if self.images else f"batch x {self.channels}"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """What comes out is as large as what comes in."""
        return {"ifmap": self.rows(batch), OFMAP: self.rows(batch)}

    def rows(self, batch: int) -> Shape:
        """The shape of what comes in."""
        return self.channels, 1, 1, self.images or batch

    def terms(self, batch: int) -> int:
        """A row is summed up."""
        return self.channels

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        return ("row", "element"), (index[3], index[0])

    def with_more_input(self, batch: int) -> tuple[Self, int, str]:
        """Twice the rows."""
        if not self.images:
            return Op.with_more_input(self, batch)
        return replace(self, images=2 * self.images), batch, f"images={2 * self.images}"

    def with_less_input(self, batch: int) -> tuple[Self, int, str] | None:
        """Half the rows."""
        if not self.images:
            return Op.with_less_input(self, batch)
        half = self.images // 2
        return (replace(self, images=half), batch, f"images={half}") if half else None
