"""Ops that only move elements: each element of the result is taken from a place of one map."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Annotated, ClassVar, Literal, NamedTuple

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Choice, Name, Reader, validated, whole, written
from tpusim.input.scalars import show
from tpusim.network.ops.elementwise import MapOp
from tpusim.network.ops.op import (
    MOST_CHANNELS,
    OFMAP,
    Channels,
    Index,
    KernelAxis,
    PadSides,
    Shape,
    Size,
    Steps,
    TapWindow,
    VectorOp,
    ends_of,
    kernel_axes,
    short,
)

AXES = ("channels", "height", "width", "images")
"""The names of a map's axes in files, as [channel, row, col, image]."""


class AxisSource(NamedTuple):
    """The source of an axis of the result.

    Attributes:
        axis: axis of the map that is read.
        coordinates: its coordinate at each place of the result; a coordinate outside the map stands for zeros.
    """

    axis: int
    coordinates: Sequence[int]


class Move(VectorOp):
    """An op that only moves elements: along each axis of the result, coordinates of one axis of the map."""

    __slots__ = ()

    spatial: ClassVar[bool] = False
    operation: ClassVar[str] = "copy"
    """The machine's operation: a copy, once elements lie where they are wanted."""

    @property
    def turns(self) -> bool:
        """Whether elements that lie side by side come to lie apart, as in a transpose."""
        return False

    @abstractmethod
    def taken(self, batch: int) -> tuple[AxisSource, ...]:
        """Return the sources of the channels, rows, columns and images of the ofmap."""

    def terms(self, batch: int) -> int:
        """Return 1: an output is an element."""
        return 1


@validated
class MapMove(MapOp, Move):
    """A move of a map of channels x height x width elements, one for each image."""

    @property
    @abstractmethod
    def how(self) -> str:
        """The change of the map, in short."""

    @property
    def text(self) -> str:
        """The shape in short: "56x56x64 > chwn": the map that is read, and the change of it."""
        return f"{self.map_text} > {self.how}"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        channels, rows, cols, images = (len(each.coordinates) for each in self.taken(batch))
        return {"ifmap": self.map(batch), OFMAP: (channels, rows, cols, images)}

    def _every(self, batch: int) -> list[AxisSource]:
        """Return all of the map unchanged."""
        return [AxisSource(axis, range(size)) for axis, size in enumerate(self.map(batch))]


def _order(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or sorted(map(str, given)) != sorted(AXES):
        raise InputError(f"{show(given)} is no order; write {', '.join(AXES)} in another one, as a list")
    return tuple(map(str, given))


@validated
class Transpose(MapMove):
    """A map whose axes are those of another map in another order.

    Attributes:
        order: axes of the map that is read which become channels, height, width and images.
    """

    op: ClassVar[str] = "transpose"
    grammar: ClassVar[str] = "rows x columns x channels > its axes that become channels, rows, columns, images"

    order: Annotated[tuple[str, ...], Reader(_order, f"a list of {', '.join(AXES)} in any order")] = (
        "width",
        "height",
        "channels",
        "images",
    )

    @property
    def how(self) -> str:
        return "".join(axis[0] for axis in self.order)

    @property
    def turns(self) -> bool:
        """Whether another axis becomes the channels."""
        return self.order[0] != AXES[0]

    def taken(self, batch: int) -> tuple[AxisSource, ...]:
        every = self._every(batch)
        return tuple(every[AXES.index(axis)] for axis in self.order)


@validated
class ChannelShuffle(MapMove):
    """Channels of groups in turn: one of the first group, one of the second, ..., as in ShuffleNet.

    Attributes:
        groups: groups of channels.
    """

    op: ClassVar[str] = "channel_shuffle"
    grammar: ClassVar[str] = "rows x columns x channels > groups"

    groups: Annotated[int, whole(MOST_CHANNELS)] = 1

    def __post_init__(self) -> None:
        if self.channels % self.groups:
            says = f"groups {self.groups} does not divide channels {self.channels}"
            raise InputError(Problem(f"{says}; choose a divisor", "groups"))

    @property
    def how(self) -> str:
        return str(self.groups)

    def taken(self, batch: int) -> tuple[AxisSource, ...]:
        _, *others = self._every(batch)
        each = self.channels // self.groups
        # The shuffle is a transposition of [group, channel of the group].
        channels = tuple(group * each + at for at in range(each) for group in range(self.groups))
        return AxisSource(0, channels), *others


@validated
class Slice(MapMove):
    """A part of a map: along one `axis`, every `step`-th element from `start` on, up to and without `stop`.

    Attributes:
        axis: axis that is cut.
        start: first element that is taken.
        stop: element behind the last.
        step: elements from one that is taken to the next.
    """

    op: ClassVar[str] = "slice"
    grammar: ClassVar[str] = "rows x columns x channels > axis, start:stop:step"

    axis: Annotated[Literal["channels", "height", "width", "images"], Choice()] = "channels"
    start: Annotated[int, whole(MOST_CHANNELS, 0)] = 0
    stop: Annotated[int, whole(MOST_CHANNELS)] = 1
    step: Annotated[int, whole(MOST_CHANNELS)] = 1

    def __post_init__(self) -> None:
        # Zero images stand for those of the batch.
        size = getattr(self, self.axis)
        if self.start >= self.stop:
            raise InputError(Problem(f"nothing is from {self.start} to {self.stop}; write a larger one", "stop"))
        # Only the run knows how many images a batch has, so a slice of images is checked there.
        if size and self.stop > size:
            raise InputError(Problem(f"{self.stop} is behind the {size} that there are; write {size} at most", "stop"))

    @property
    def how(self) -> str:
        return f"{self.axis[0]} {self.start}:{self.stop}" + (f":{self.step}" if self.step > 1 else "")

    def taken(self, batch: int) -> tuple[AxisSource, ...]:
        every, at = self._every(batch), AXES.index(self.axis)
        every[at] = AxisSource(at, range(self.start, self.stop, self.step))
        return tuple(every)


@validated
class Pad(MapMove):
    """A map with zeros around it.

    Attributes:
        padding: rows and columns of zeros, as many on opposite sides; or [top, left, bottom, right].
    """

    op: ClassVar[str] = "pad"
    grammar: ClassVar[str] = "rows x columns x channels > rows and columns added"

    padding: PadSides = (0, 0)

    def __post_init__(self) -> None:
        if isinstance(self.padding, str):
            raise InputError(Problem(f"{self.padding} is for what a kernel moves over; write numbers", "padding"))

    @property
    def sides(self) -> tuple[int, int, int, int]:
        """Top, left, bottom, right."""
        (top, bottom), (left, right) = ends_of(self.padding)
        return top, left, bottom, right

    @property
    def how(self) -> str:
        return short(self.padding) if len(self.padding) == 2 else ",".join(map(str, self.padding))

    def taken(self, batch: int) -> tuple[AxisSource, ...]:
        channels, *_, images = self._every(batch)
        top, left, bottom, right = self.sides
        # Coordinates outside the map stand for zeros.
        rows, cols = range(-top, self.height + bottom), range(-left, self.width + right)
        return channels, AxisSource(1, rows), AxisSource(2, cols), images


@validated
class Upsample(MapMove):
    """A map in which every element stands in several neighbouring places: the nearest is taken.

    Attributes:
        scale: rows and columns that each element becomes.
    """

    op: ClassVar[str] = "upsample"
    grammar: ClassVar[str] = "rows x columns x channels > scale"

    scale: Steps = (2, 2)

    @property
    def how(self) -> str:
        return short(self.scale)

    def taken(self, batch: int) -> tuple[AxisSource, ...]:
        channels, *_, images = self._every(batch)
        sides = (
            AxisSource(at + 1, tuple(place // self.scale[at] for place in range(side * self.scale[at])))
            for at, side in enumerate((self.height, self.width))
        )
        return channels, *sides, images


@validated
class Spread(MapMove):
    """A map whose elements are `step` apart in a larger map, from its first row and column on, with zeros between.

    Attributes:
        step: rows and columns from one element to the next.
        out_height: rows of the larger map.
        out_width: columns of the larger map.
    """

    op: ClassVar[str] = "spread"
    grammar: ClassVar[str] = "rows x columns x channels > rows x columns, step"

    step: Steps = (2, 2)
    out_height: Annotated[Size, written(112)] = 111
    out_width: Annotated[Size, written(112)] = 111

    def __post_init__(self) -> None:
        sides = zip(("height", "width"), (self.out_height, self.out_width), (self.height, self.width), strict=True)
        problems = []
        for (side, out, size), step in zip(sides, self.step, strict=True):
            if out < (least := (size - 1) * step + 1):
                says = f"{size} elements {step} apart take {least}, more than {out}"
                problems.append(Problem(f"{says}; write {least} at least", f"out_{side}"))
        if problems:
            raise InputError(problems)

    @property
    def how(self) -> str:
        return f"{self.out_height}x{self.out_width} /{short(self.step)}"

    def taken(self, batch: int) -> tuple[AxisSource, ...]:
        channels, *_, images = self._every(batch)
        outs, sizes = (self.out_height, self.out_width), (self.height, self.width)
        sides = (
            # Places between two elements read outside the map, at -1, and so are zero.
            AxisSource(axis, tuple(at // step if at % step == 0 and at // step < size else -1 for at in range(out)))
            for axis, (out, size, step) in enumerate(zip(outs, sizes, self.step, strict=True), 1)
        )
        return channels, *sides, images


@validated
class Embedding(Move):
    """Rows of a table: what a model knows of each word that it reads. Which ones follows from `seed`, all as probable.

    The table, [channel, row, 1, 1], has its rows one behind another in HBM. Only the rows that are taken are read, and
    once for a block, however often they come in it.

    Attributes:
        name: name of the layer, which no other layer of the network has.
        channels: elements of a row.
        images: rows of the table: the vocabulary.
        rows: rows that are taken, such as all tokens of a batch.
        seed: seed by which they are drawn.
    """

    op: ClassVar[str] = "embedding"
    counted_by: ClassVar[Literal["image", "row"]] = "row"
    grammar: ClassVar[str] = "rows of the table x elements of each > rows that are taken"
    sized_by: ClassVar[Mapping[str, int]] = {"channels": 0, "images": 1}
    axes: ClassVar[tuple[KernelAxis, KernelAxis]] = kernel_axes((1, 1), (1, 1), (1, 1), (1, 1), (0, 0))
    """Windows of one element."""
    windows: ClassVar[tuple[tuple[TapWindow, ...], tuple[TapWindow, ...]]] = ((TapWindow(range(1), 1),),) * 2

    name: Annotated[str, Name(), written("embedding1")]
    channels: Annotated[Channels, written(768)]
    images: Annotated[Channels, written(50257)]
    rows: Annotated[Channels, written("batch*128")]
    seed: Annotated[int, whole(2**32, 0)] = 0

    @property
    def text(self) -> str:
        """The shape in short: "50257x768 > 1024"."""
        return f"{self.images}x{self.channels} > {self.rows}"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: the table, and a map of one element for each row."""
        return {"ifmap": (self.channels, self.images, 1, 1), OFMAP: (self.channels, 1, 1, self.rows)}

    def taken(self, batch: int) -> tuple[AxisSource, ...]:
        one = range(1)
        return AxisSource(0, range(self.channels)), AxisSource(3, one), AxisSource(2, one), AxisSource(1, self.words)

    @property
    def words(self) -> tuple[int, ...]:
        """The rows of the table that are taken, in order."""
        return _drawn(self.images, self.rows, self.seed)

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        return ("row", "element"), (index[3], index[0])

    @property
    def _own_count(self) -> tuple[str, int]:
        return "rows", self.rows


@lru_cache(maxsize=16)
def _drawn(below: int, count: int, seed: int) -> tuple[int, ...]:
    """Draw whole numbers; the same ones for a seed in every version of Python."""
    # Python promises the same numbers of `random` in every version, but not of `randrange`.
    part = Random(seed).random
    return tuple([int(below * part()) for _ in range(count)])
