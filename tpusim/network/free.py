"""Entries of a network's graph that take no time: they say how what layers make is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, NamedTuple

from tpusim.base.errors import InputError
from tpusim.input.form import Name, validated, whole
from tpusim.network.edges import Source, side_by_side
from tpusim.network.ops.op import MOST_CHANNELS, Channels, Shape, Size


class Made(NamedTuple):
    """What an entry hands on.

    Attributes:
        source: of whose outputs it is.
        shape: [channel, row, col, image]; None where that is not known.
        elements: how many those are; None, too.
        lost: whether something is wrong with it or with what it is of, so that its shape is not known.
    """

    source: Source
    shape: Shape | None = None
    elements: int | None = None
    lost: bool = False


class Free(ABC):
    """Such an entry."""

    __slots__ = ()

    op: ClassVar[str]
    """Its name in files."""
    name: str

    @abstractmethod
    def made(self, read: Sequence[Made], batch: int) -> Made:
        """What it hands on of what it reads. Raises InputError where there is no such thing."""


@validated
class Concat(Free):
    """Maps of one size, side by side along the channels: who reads them reads them where they lie."""

    op: ClassVar[str] = "concat"

    name: Annotated[str, Name()]

    def made(self, read: Sequence[Made], batch: int) -> Made:
        source = side_by_side(each.source for each in read)
        shapes = [each.shape for each in read if each.shape is not None]
        if {shape[1:] for shape in shapes} - {shapes[0][1:] if shapes else None}:
            sizes = ", ".join(size_of(shape, batch) for shape in shapes)
            raise InputError(f"joins maps of {sizes} (channels x rows x columns), which differ in more than channels")
        if len(shapes) < len(read):
            return Made(source, lost=any(each.lost for each in read))
        return Made(source, (sum(shape[0] for shape in shapes), *shapes[0][1:]))


@validated
class Flatten(Free):
    """A map as one row of channels, as a product reads it: for each channel its rows, for each of them its columns."""

    op: ClassVar[str] = "flatten"

    name: Annotated[str, Name()]

    def made(self, read: Sequence[Made], batch: int) -> Made:
        (one,) = _alone(read)
        if one.shape is None:
            return one._replace(source=one.source._replace(direct=False))
        channels, rows, cols, images = one.shape
        direct = one.source.direct and rows * cols == 1
        return Made(one.source._replace(direct=direct), (channels * rows * cols, 1, 1, images))


@validated
class View(Free):
    """A map of a size that it says, of what it reads by ways that take no time here: turned, cut, or not simulated."""

    op: ClassVar[str] = "view"

    name: Annotated[str, Name()]
    channels: Channels
    height: Size = 1
    width: Size = 1
    images: Annotated[int, whole(MOST_CHANNELS, 0)] = 0

    def made(self, read: Sequence[Made], batch: int) -> Made:
        shape = self.channels, self.height, self.width, self.images or batch
        return Made(side_by_side((each.source for each in read), direct=False), shape)


FREE: dict[str, type[Free]] = {kind.op: kind for kind in (Concat, Flatten, View)}
"""By their names in files."""


def size_of(shape: Shape, batch: int) -> str:
    """ "64x56x56": channels x rows x columns, and n images where these are not the batch."""
    channels, rows, cols, images = shape
    return f"{channels}x{rows}x{cols}" + (f" n{images}" if images != batch else "")


def _alone(read: Sequence[Made]) -> Sequence[Made]:
    if len(read) != 1:
        raise InputError(f"reads {len(read)} maps; name one, or join them by a concat before")
    return read
