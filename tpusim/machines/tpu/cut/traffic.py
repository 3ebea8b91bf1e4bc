"""Traffic on the HBM bus: boxes of maps as lowerings stream them, and Programs under another `hbm.layout`.

If the axes of a map are turned, any axis of the tensor may go along lanes, rows, columns or words of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from math import ceil, prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.cut.blocks import CHANNEL, COL, IMAGE, ROW, Patch
from tpusim.machines.tpu.cut.geometry import StripMaps
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.moves import TransferRuns, regions_of_part
from tpusim.machines.tpu.program.program import ExplainedProgram, Program
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Coordinates, Elements, Part, Transfer
from tpusim.machines.tpu.schedule import units
from tpusim.memory.hbm_layout import AS_READ, HWCN, Box, Layouts, Region, StoredTensor, axes_of, shifted, whole_bursts

if TYPE_CHECKING:
    from tpusim.network.ops.moves import AxisSource

T = TypeVar("T")


MovedBoxes: TypeAlias = tuple[int, tuple[Region, ...]]
"""Bytes moved, and the rectangles of the tensor that they hold."""


class Traffic:
    """Bytes moved for boxes of maps stored as HWCN, over all strips of a shape, in whole bursts and with padding.

    Strips are `along` two axes of a map: those that go along rows and columns.
    """

    def __init__(self, hardware: Hardware, shape: StripMaps | None = None, along: tuple[int, int] = (ROW, COL)) -> None:
        self.hardware, self.strips = hardware, (shape.row.strips, shape.col.strips) if shape else (1, 1)
        self._down, self._across = (Box._fields[axis] for axis in along)
        self._known: dict[tuple[str, Box], MovedBoxes] = {}
        self._stored: dict[str, StoredTensor] = {}

    def moves(
        self, tensor: Tensor, parts: tuple[Elements, ...], boxes: Iterable[Box], apart: tuple[int, int] = (0, 0)
    ) -> units.Moves:
        """A transfer of parts that are boxes in every strip; strips lie `apart` (rows, columns) from one another."""
        each = [self._in_strips(box, tensor, apart) for box in boxes]
        if len(each) == 1:
            return units.Moves(tensor, parts, *each[0])
        regions = tuple([region for _, regions in each for region in regions])
        return units.Moves(tensor, parts, sum([moved for moved, _ in each]), regions)

    def numbers(self, tensor: Tensor, parts: tuple[Part, ...], count: int) -> units.Moves:
        """A transfer of `count` consecutive numbers."""
        size = count * tensor.stored_bytes(self.hardware.element_bytes)
        return units.Moves(tensor, parts, whole_bursts(size, self.hardware.hbm.burst_bytes))

    def _in_strips(self, box: Box, tensor: Tensor, apart: tuple[int, int]) -> MovedBoxes:
        """Bytes and rectangles of one box in all strips; cached, because a chunk comes many times."""
        key = tensor.name, box
        found = self._known.get(key)
        if found is None:
            strips: tuple[Box, ...] = (box,)
            if self.strips != (1, 1):
                high, wide = getattr(box, self._down), getattr(box, self._across)
                strips = tuple([
                    box._replace(**{
                        self._down: shifted(high, down * apart[0]), self._across: shifted(wide, across * apart[1]),
                    })
                    for down, across in product(*map(range, self.strips))
                ])  # fmt: skip
            found = self._known[key] = self.moved(tensor, strips)
        return found

    def moved(self, tensor: Tensor, regions: tuple[Region, ...]) -> MovedBoxes:
        """Bytes moved for rectangles of a tensor; a tensor that is no map is stored in the order of its axes."""
        burst = self.hardware.hbm.burst_bytes
        if tensor.name not in self._stored:
            axes, sizes = tuple(range(len(tensor.shape))), (tensor.stored_bytes(self.hardware.element_bytes), burst)
            order = axes_of(HWCN) if len(axes) == len(HWCN) else axes
            self._stored[tensor.name] = StoredTensor(
                0, tensor.shape, tensor.padded or tensor.shape, order, order, *sizes
            )
        runs = map(self._stored[tensor.name].runs, regions)
        return sum([each.moved(burst) for each in runs if each]), regions


# ---- Programs whose tensors are stored as `hbm.layout` says, whichever lowering wrote them


def laid_out(lowered: ExplainedProgram, hardware: Hardware) -> ExplainedProgram:
    """The Program `in_layout`, with an explanation that says so. Raises CapacityError if it does not fit the DRAM."""
    program, told = in_layout(lowered[0], hardware), lowered[1]
    if device := hardware.hbm.dram:
        # A quick upper limit of the size: elements of all tensors, and bytes moved for tensors that are stored as read.
        elements = sum(prod(each.padded or each.shape) for each in program.tensors)
        moved = lowered[0].bytes_moved()
        wide = max(each.stored_bytes(hardware.element_bytes) for each in program.tensors)
        most = ceil(elements * wide) + moved + len(program.tensors) * hardware.hbm.alignment_bytes
        # Addresses beyond the DRAM would wrap around to 0, and the simulated banks would be the wrong ones.
        if most > device.capacity_bytes < (size := TransferRuns(program, hardware).size):
            raise CapacityError(
                f"its tensors take {size:,} B in HBM, and {device.name} has {device.capacity_bytes:,} B; "
                "give hbm.device more rows or channels, or choose a smaller batch"
            )
    if hardware.hbm.layout == Layouts():
        others = ", the filter as it is read" if any(each.name == "filter" for each in program.tensors) else ""
        words = f"feature maps lie {HWCN} in HBM{others}"
    else:
        words = f"in HBM {'; '.join(_words(program, TransferRuns(program, hardware)))}"
    return program, replace(told, aspects={**told.aspects, "layout": words})


def in_layout(program: Program, hardware: Hardware) -> Program:
    """The Program with the bytes of each transfer's runs in the layout.

    Lowerings count bytes for the default layout, so under that the Program is returned as it is.
    """
    if hardware.hbm.layout == Layouts():
        return program
    rows, moves = program.rows, TransferRuns(program, hardware)
    known: dict[tuple[int, int], Transfer] = {}
    others: dict[int, Transfer] = {}
    for at, step in rows.steps(Transfer):
        recipe, moved = rows.recipe(at), moves.bytes(step)
        if isinstance(recipe, Transfer):
            others[at] = known.setdefault((int(rows.table["recipe"][at]), moved), replace(recipe, hbm_bytes=moved))
    return replace(program, rows=rows.exchanged(others))


def _words(program: Program, moves: TransferRuns) -> Iterator[str]:
    """Words for the layout of each feature map and of the filter, with the bytes moved for each byte wanted."""
    for tensor in (each for each in program.tensors if each.number_bytes is None):
        steps = (step for _, step in program.rows.steps(Transfer) if step.tensor.name == tensor.name)
        moved, wanted = program.bytes_moved(tensor.name), sum(map(moves.wanted, steps))
        order = "as it is read" if moves.order(tensor.name) == AS_READ else moves.order(tensor.name)
        yield f"{tensor.name} lies {order}, {moved / max(wanted, 1):.3g} bytes moved for each that is wanted"


# ---- maps whose axes are turned


class Turn(NamedTuple):
    """Axes of a tensor, [channel, row, col, image], that go along lanes, rows, columns and words."""

    lanes: int = 0
    rows: int = 1
    cols: int = 2
    words: int = 3

    def of(self, each: tuple[T, T, T, T]) -> tuple[T, T, T, T]:
        """Values of the tensor's axes in the order lanes, rows, columns, words."""
        return each[self.lanes], each[self.rows], each[self.cols], each[self.words]

    def placed(self, part: Part) -> Part:
        """A part given in lanes, rows, columns and words, along the axes of the tensor."""
        return _along(part, lambda each: each._replace(axis=self[each.axis]))

    def boxes(self, part: Part, box: Box) -> tuple[Box, ...]:
        """Boxes of the tensor for a part that is a box of lanes, rows, columns and words."""
        return (Box(*(box[self.index(axis)] for axis in range(4))),)

    @property
    def in_lanes(self) -> str:
        """Word for the axis in lanes."""
        return ("channels", "rows", "columns", "images")[self.lanes]


class PixelsInLanes(NamedTuple):
    """Maps of a `width` whose channels go along rows, and whose pixels go along lanes, row after row."""

    width: int

    def of(self, shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """A shape in the order lanes, rows, columns, words."""
        channels, rows, cols, images = shape
        return rows * cols, channels, 1, images

    def placed(self, part: Part) -> Part:
        """A part given in lanes, rows, columns and words, along the axes of the tensor."""
        ((_, pixels),) = part.lane
        # Columns come first, because neighbours along the first axis are moved together.
        lane = Along(COL, tuple(at % self.width for at in pixels)), Along(ROW, tuple(at // self.width for at in pixels))
        axes = {ROW: CHANNEL, IMAGE: IMAGE}
        items = tuple(each._replace(axis=axes[each.axis]) for each in part.items if each.axis in axes)
        return part._replace(lane=lane, items=items)

    def boxes(self, part: Part, box: Box) -> tuple[Box, ...]:
        """Boxes of the tensor for a part."""
        return boxes_of(part)

    @property
    def in_lanes(self) -> str:
        """Word for the axis in lanes."""
        return "pixels"


def turn_of(taken: Sequence[AxisSource], hardware: Hardware) -> Turn:
    """The order of axes that leaves the fewest words of lanes empty; the original one if none is better.

    Elements of a word must be evenly spaced in the tensor that is read.
    """
    sizes = [len(each.coordinates) for each in taken]
    lanes, word = hardware.lanes, hardware.vector_memory.word_elements
    turns = (Turn(*each) for each in permutations(range(4)) if isinstance(taken[each[IMAGE]].coordinates, range))
    return min(turns, key=lambda turn: ceil(sizes[turn.lanes] / lanes) * ceil(sizes[turn.words] / word)
               * sizes[turn.rows] * sizes[turn.cols])  # fmt: skip


class TurnedMap(NamedTuple):
    """A moved map: the elements taken of another map, and the turn of its axes."""

    taken: Sequence[AxisSource]
    turn: Turn

    def made(self, shape: StripMaps, portion: range, patch: Patch, base: int, fill: int) -> Part:
        """A patch of the new map, a lane for each of `portion`, with `fill` elements in a word."""
        items = shape.items(fill, patch.rows, patch.cols, patch.groups, (0, 0))
        return self.turn.placed(Part(base, (0,), (Along(CHANNEL, portion),), items, fill))

    def read(self, made: Part) -> Part:
        """The part of the old map that is read for a part of the new one."""
        met: set[int] = set()

        def taken(each: Along) -> Along:
            (axis, coordinates), first = self.taken[each.axis], each.axis not in met
            met.add(each.axis)
            return Along(axis, _at(coordinates, each.coordinates, first))

        return _along(made, taken)


def boxes_of(part: Part) -> tuple[Box, ...]:
    """Boxes of a map that make up a part."""
    return tuple(Box(*region) for region in regions_of_part(part.lane, part.items, 4))


def _at(coordinates: Sequence[int], places: Coordinates, first: bool) -> Coordinates:
    """Coordinates at `places` of an axis; of several counters of one axis, only the first adds its start."""
    if isinstance(coordinates, range):
        start, step = coordinates.start * first, coordinates.step
        if isinstance(places, range):
            return range(start + step * places.start, start + step * places.stop, step * places.step)
        return tuple(start + step * place for place in places)
    return tuple(coordinates[place] for place in places)


def _along(part: Part, change: Callable[[Along], Along]) -> Part:
    lane, items = (tuple(map(change, counters)) for counters in (part.lane, part.items))
    return part._replace(lane=lane, items=items)
