"""Ops that only move elements: each element of the result is taken from a place of one map."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Choice, Reader, validated, whole, written
from tpusim.input.scalars import show
from tpusim.network.ops.elementwise import MapOp
from tpusim.network.ops.op import MOST_CHANNELS, OFMAP, PadSides, Shape, Size, Steps, ends_of, short

AXES = ("channels", "height", "width", "images")
"""The names of a map's axes in files, as [channel, row, col, image]."""


class Taken(NamedTuple):
    """The source of an axis of the result.

    Attributes:
        axis: axis of the map that is read.
        coordinates: its coordinate at each place of the result; a coordinate outside the map stands for zeros.
    """

    axis: int
    coordinates: Sequence[int]


@validated
class Move(MapOp):
    """An op that only moves elements: along each axis of the result, coordinates of one axis of the map."""

    @abstractmethod
    def taken(self, batch: int) -> tuple[Taken, ...]:
        """Return the sources of the channels, rows, columns and images of the ofmap."""

    @property
    @abstractmethod
    def how(self) -> str:
        """The change of the map, in short."""

    @property
    def operation(self) -> str:
        """The machine's operation: a copy, once elements lie where they are wanted."""
        return "copy"

    @property
    def text(self) -> str:
        """The shape in short: "56x56x64 > chwn": the map that is read, and the change of it."""
        return f"{self.map_text} > {self.how}"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        channels, rows, cols, images = (len(each.coordinates) for each in self.taken(batch))
        return {"ifmap": self.map(batch), OFMAP: (channels, rows, cols, images)}

    def _every(self, batch: int) -> list[Taken]:
        """Return all of the map unchanged."""
        return [Taken(axis, range(size)) for axis, size in enumerate(self.map(batch))]


def _order(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or sorted(map(str, given)) != sorted(AXES):
        raise InputError(f"{show(given)} is no order; write {', '.join(AXES)} in another one, as a list")
    return tuple(map(str, given))


@validated
class Transpose(Move):
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

    def taken(self, batch: int) -> tuple[Taken, ...]:
        every = self._every(batch)
        return tuple(every[AXES.index(axis)] for axis in self.order)


@validated
class ChannelShuffle(Move):
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

    def taken(self, batch: int) -> tuple[Taken, ...]:
        _, *others = self._every(batch)
        each = self.channels // self.groups
        channels = tuple(group * each + at for at in range(each) for group in range(self.groups))
        return Taken(0, channels), *others


@validated
class Slice(Move):
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
        size = getattr(self, self.axis)
        if self.start >= self.stop:
            raise InputError(Problem(f"nothing is from {self.start} to {self.stop}; write a larger one", "stop"))
        # Only the run knows how many images a batch has, so a slice of images is checked there.
        if size and self.stop > size:
            raise InputError(Problem(f"{self.stop} is behind the {size} that there are; write {size} at most", "stop"))

    @property
    def how(self) -> str:
        return f"{self.axis[0]} {self.start}:{self.stop}" + (f":{self.step}" if self.step > 1 else "")

    def taken(self, batch: int) -> tuple[Taken, ...]:
        every, at = self._every(batch), AXES.index(self.axis)
        every[at] = Taken(at, range(self.start, self.stop, self.step))
        return tuple(every)


@validated
class Pad(Move):
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

    def taken(self, batch: int) -> tuple[Taken, ...]:
        channels, *_, images = self._every(batch)
        top, left, bottom, right = self.sides
        rows, cols = range(-top, self.height + bottom), range(-left, self.width + right)
        return channels, Taken(1, rows), Taken(2, cols), images


@validated
class Upsample(Move):
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

    def taken(self, batch: int) -> tuple[Taken, ...]:
        channels, *_, images = self._every(batch)
        sides = (
            Taken(at + 1, tuple(place // self.scale[at] for place in range(side * self.scale[at])))
            for at, side in enumerate((self.height, self.width))
        )
        return channels, *sides, images


@validated
class Spread(Move):
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

    def taken(self, batch: int) -> tuple[Taken, ...]:
        channels, *_, images = self._every(batch)
        outs, sizes = (self.out_height, self.out_width), (self.height, self.width)
        sides = (
            Taken(axis, tuple(at // step if at % step == 0 and at // step < size else -1 for at in range(out)))
            for axis, (out, size, step) in enumerate(zip(outs, sizes, self.step, strict=True), 1)
        )
        return channels, *sides, images
