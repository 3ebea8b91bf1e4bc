"""What a unit of the transformation moves: rows of the ifmap into its window, and from there a copy for each tap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.maps import CHANNEL
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import Tap
from tpusim.machines.tpu.lowering.tiles import padded_map
from tpusim.machines.tpu.lowering.tiling import word_groups
from tpusim.machines.tpu.lowering.window import RollingWindow, WindowUnit, channel_portions, span
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.tensor import Along, Coordinates, Part, Tensor
from tpusim.memory.layout import Box


@dataclass(frozen=True)
class Unfolding:
    """The ifmap of a layer of that `shape`, in a window that begins at a word `base`.

    `plan` is that of the product which reads the lowered matrix: its words hold the same strips and images.
    """

    shape: ConvShape
    plan: Plan
    window: RollingWindow

    @cached_property
    def ifmap(self) -> Tensor:
        """What is unfolded."""
        ifmap = self.shape.tensors.ifmap
        return Tensor("ifmap", ifmap, converted=True, padded=padded_map(ifmap, self.plan.hardware))

    @property
    def lowered(self) -> Tensor:
        """What becomes of it."""
        return self.plan.ifmap

    @cached_property
    def portions(self) -> list[range]:
        """The channels, as many at a time as there are lanes."""
        return channel_portions(self.shape, self.plan.hardware)

    @cached_property
    def word_groups(self) -> int:
        """Words of a pixel."""
        return word_groups(self.shape.word_images, self.plan.hardware.vector_memory.word_elements)[0]

    @cached_property
    def copies(self) -> int:
        """Lane groups that hold the same channels, to spill as many taps at once: as few as need no more turns."""
        room = max(1, self.plan.hardware.lanes // len(self.portions[0]))
        return -(-self.window.taps // -(-self.window.taps // room))

    @property
    def lanes(self) -> int:
        """Lanes that take part."""
        return self.copies * len(self.portions[0])

    @property
    def apart(self) -> tuple[int, int]:
        """Ifmap rows and columns from one strip to the next."""
        row, col = self.shape.row, self.shape.col
        return row.extent * row.stride, col.extent * col.stride

    # ---- into the window

    def source(self, unit: WindowUnit) -> Box:
        """What is new to a unit."""
        held = self.portions[unit.portions.start : unit.portions.stop]
        rows, cols = self._rows(unit, unit.new), self.shape.col.coordinates(self._cols(unit))
        return Box(range(held[0].start, held[-1].stop), rows, cols, self.plan.images(unit.groups))

    def filled(self, unit: WindowUnit, base: int) -> Iterator[Part]:
        """The same, in every copy."""
        first_lanes = tuple(copy * len(self.portions[0]) for copy in range(self.copies))
        cols, fill, pitch = self.shape.col.coordinates(self._cols(unit)), self.plan.word_fill, self.window.pitch
        for number in unit.portions:
            lane = (Along(CHANNEL, self.portions[number]),)
            for some in self._runs(unit):
                at = base + self._ring(unit, number) + some.start % self.window.depth * pitch
                items = self.plan.map_items(self._rows(unit, some), cols, unit.groups, self.apart)
                yield Part(at, first_lanes, lane, items, fill)

    def _runs(self, unit: WindowUnit) -> Iterator[range]:
        """The new rows, cut where the ring ends; one by one where they are shorter than its pitch."""
        depth, at = self.window.depth, unit.new.start
        alone = len(self._cols(unit)) * len(unit.groups) < self.window.pitch
        while at < unit.new.stop:
            stop = at + 1 if alone else min(unit.new.stop, (at // depth + 1) * depth)
            yield range(at, stop)
            at = stop

    def _rows(self, unit: WindowUnit, numbers: range) -> range:
        """The ifmap rows of some numbers."""
        return self.shape.row.coordinates(range(numbers.start - unit.origin, numbers.stop - unit.origin))

    def _cols(self, unit: WindowUnit) -> range:
        """The grid columns that are stored."""
        return self.shape.col.stored(unit.cols, span(unit.taps, 1))

    def _ring(self, unit: WindowUnit, portion: int) -> int:
        """The words of a window before the ring of a portion of the channels."""
        return (portion - unit.portions.start) * self.window.depth * self.window.pitch

    # ---- and out

    def spilled(self, unit: WindowUnit, base: int) -> Iterator[Part]:
        """The lowered rows of a unit's outputs: for each portion of the channels some taps at a time."""
        apart = self.shape.row.extent, self.shape.col.extent
        for number in unit.portions:
            channels = self.portions[number]
            for at in range(0, len(unit.taps), self.copies):
                taps = unit.taps[at : at + self.copies]
                lane = (Along(CHANNEL, self._lowered_rows(taps, channels)),)
                for rows in self._laps(unit, taps):
                    feed = self._feed(unit, taps, rows, number, base)
                    items = self.plan.map_items(rows, unit.cols, unit.groups, apart)
                    yield Part(0, (0,), lane, items, self.plan.word_fill, feed)

    def _lowered_rows(self, taps: tuple[Tap, ...], channels: range) -> Coordinates:
        """The row of the lowered matrix that each lane holds: those of a channel group stand together."""
        size, width = self.shape.channels, self.shape.col.kernel
        every = width * self.shape.row.kernel
        rows = [(c // size * every + i * width + j) * size + c % size for i, j in taps for c in channels]
        step = rows[1] - rows[0] if len(rows) > 1 else 1
        even = range(rows[0], rows[0] + step * len(rows), step)
        return even if rows == [*even] else tuple(rows)

    def _laps(self, unit: WindowUnit, taps: tuple[Tap, ...]) -> Iterator[range]:
        """A unit's rows of outputs, cut where one of the taps comes to the end of the ring."""
        first = unit.rows.start
        for row in unit.rows[1:]:
            if any(self._lap(unit, tap, row) != self._lap(unit, tap, row - 1) for tap in taps):
                yield range(first, row)
                first = row
        yield range(first, unit.rows.stop)

    def _lap(self, unit: WindowUnit, tap: Tap, row: int) -> int:
        """How often the ring was full before the row on which a tap stands for an output; padding goes with what is
        next to it.
        """
        at = self._number(unit, tap, row)
        return min(max(at, unit.live.start), max(unit.live.stop - 1, unit.live.start)) // self.window.depth

    def _number(self, unit: WindowUnit, tap: Tap, row: int) -> int:
        """The number of the row on which a tap stands for an output."""
        axis: MapAxis = self.shape.row
        return unit.origin + row * axis.step + tap[0] * axis.tap_step

    def _feed(self, unit: WindowUnit, taps: tuple[Tap, ...], rows: range, portion: int, base: int) -> Feed:
        """A lane group a tap; each walks the grid points on which its tap stands."""
        lanes = len(self.portions[portion])
        patterns = (self._pattern(unit, tap, rows, base + self._ring(unit, portion)) for tap in taps)
        return Feed(tuple(LaneGroup(n * lanes, lanes, pattern) for n, pattern in enumerate(patterns)))

    def _pattern(self, unit: WindowUnit, tap: Tap, rows: range, ring: int) -> Counters:
        """Rows, columns and word groups of outputs whose rows lie in one lap of the ring."""
        row, col, cols, groups = self.shape.row, self.shape.col, self._cols(unit), len(unit.groups)
        depth, pitch, lap = self.window.depth, self.window.pitch, self._lap(unit, tap, rows.start)
        first, stop = max(lap * depth, unit.live.start), min((lap + 1) * depth, unit.live.stop)
        start = unit.cols.start * col.step + tap[1] * col.tap_step - cols.start
        return Counters(
            ring + first % depth * pitch,
            (
                Counter(len(rows), self._number(unit, tap, rows.start) - first, row.step, stop - first, pitch),
                Counter(len(unit.cols), start, col.step, len(cols), groups),
                Counter(groups, 0, 1, groups, 1),
            ),
        )
