"""Maps whose axes are turned: which axis of a tensor is in lanes, which in rows, columns and words of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from math import ceil
from typing import NamedTuple, TypeVar

from tpusim.machines.tpu.cut.geometry import InStrips
from tpusim.machines.tpu.cut.plan import CHANNEL, COL, IMAGE, ROW, Patch, map_items
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.moves import regions_of_part
from tpusim.machines.tpu.program.transfers import Along, Coordinates, Part
from tpusim.memory.layout import Box
from tpusim.network.ops.moves import Taken

T = TypeVar("T")


class Turn(NamedTuple):
    """The axes of a tensor, [channel, row, col, image], that are lanes, rows, columns and words."""

    lanes: int = 0
    rows: int = 1
    cols: int = 2
    words: int = 3

    def of(self, each: tuple[T, T, T, T]) -> tuple[T, T, T, T]:
        """What belongs to axes of the tensor, as lanes, rows, columns and words."""
        return each[self.lanes], each[self.rows], each[self.cols], each[self.words]

    def placed(self, part: Part) -> Part:
        """A part of lanes, rows, columns and words along the axes of the tensor."""
        return _along(part, lambda each: each._replace(axis=self[each.axis]))

    def boxes(self, part: Part, box: Box) -> tuple[Box, ...]:
        """What of the tensor a part is, that is a box of lanes, rows, columns and words."""
        return (Box(*(box[self.index(axis)] for axis in range(4))),)

    @property
    def in_lanes(self) -> str:
        """What lanes have one of, in words."""
        return ("channels", "rows", "columns", "images")[self.lanes]


class PixelsInLanes(NamedTuple):
    """Maps `width` wide, whose channels are rows, and whose rows and columns are in lanes, one after another."""

    width: int

    def of(self, shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """A shape as lanes, rows, columns and words."""
        channels, rows, cols, images = shape
        return rows * cols, channels, 1, images

    def placed(self, part: Part) -> Part:
        """A part of lanes, rows, columns and words along the axes of the tensor."""
        ((_, pixels),) = part.lane
        # Columns first: neighbours among them are moved together.
        lane = Along(COL, tuple(at % self.width for at in pixels)), Along(ROW, tuple(at // self.width for at in pixels))
        axes = {ROW: CHANNEL, IMAGE: IMAGE}
        items = tuple(each._replace(axis=axes[each.axis]) for each in part.items if each.axis in axes)
        return part._replace(lane=lane, items=items)

    def boxes(self, part: Part, box: Box) -> tuple[Box, ...]:
        """What of the tensor a part is."""
        return boxes_of(part)

    @property
    def in_lanes(self) -> str:
        """What lanes have one of, in words."""
        return "pixels"


def turn_of(taken: Sequence[Taken], hardware: Hardware) -> Turn:
    """The axes of what is moved in which the fewest words of lanes are empty; as they are, if that makes none more.

    Elements of a word are evenly spaced in what is read.
    """
    sizes = [len(each.coordinates) for each in taken]
    lanes, word = hardware.lanes, hardware.vector_memory.word_elements
    turns = (Turn(*each) for each in permutations(range(4)) if isinstance(taken[each[IMAGE]].coordinates, range))
    return min(turns, key=lambda turn: ceil(sizes[turn.lanes] / lanes) * ceil(sizes[turn.words] / word)
               * sizes[turn.rows] * sizes[turn.cols])  # fmt: skip


class TurnedMap(NamedTuple):
    """How a map is moved: what of another is taken, and how its axes are turned."""

    taken: Sequence[Taken]
    turn: Turn

    def made(self, shape: InStrips, portion: range, patch: Patch, base: int, fill: int) -> Part:
        """A patch of what is made, a lane of `portion` each, with `fill` elements in a word."""
        items = map_items(shape, fill, patch.rows, patch.cols, patch.groups, (0, 0))
        return self.turn.placed(Part(base, (0,), (Along(CHANNEL, portion),), items, fill))

    def read(self, made: Part) -> Part:
        """What is read for a part of what is made."""
        met: set[int] = set()

        def taken(each: Along) -> Along:
            (axis, coordinates), first = self.taken[each.axis], each.axis not in met
            met.add(each.axis)
            return Along(axis, _at(coordinates, each.coordinates, first))

        return _along(made, taken)


def boxes_of(part: Part) -> tuple[Box, ...]:
    """The rectangles of a map that a part is."""
    return tuple(Box(*region) for region in regions_of_part(part.lane, part.items, 4))


def _at(coordinates: Sequence[int], places: Coordinates, first: bool) -> Coordinates:
    """What is at places of an axis; of several counters of it the first begins where the axis does."""
    if isinstance(coordinates, range):
        start, step = coordinates.start * first, coordinates.step
        if isinstance(places, range):
            return range(start + step * places.start, start + step * places.stop, step * places.step)
        return tuple(start + step * place for place in places)
    return tuple(coordinates[place] for place in places)


def _along(part: Part, change: Callable[[Along], Along]) -> Part:
    lane, items = (tuple(map(change, counters)) for counters in (part.lane, part.items))
    return part._replace(lane=lane, items=items)
