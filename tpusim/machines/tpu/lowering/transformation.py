"""The transformation of explicit im2col as steps, in an order that may be interleaved with those of the product."""

from __future__ import annotations

from tpusim.machines.tpu.lowering.block import Patch
from tpusim.machines.tpu.lowering.emitter import Emitter
from tpusim.machines.tpu.lowering.reduction import neighbours
from tpusim.machines.tpu.lowering.traffic import Moved
from tpusim.machines.tpu.lowering.unfolding import Unfolding
from tpusim.machines.tpu.lowering.window import WindowUnit, units
from tpusim.machines.tpu.program.tensor import Part
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.memory.layout import Box


class Transformation:
    """Writes the steps of unit after unit down with the `emitter` of the product."""

    def __init__(self, unfolding: Unfolding, emitter: Emitter) -> None:
        self.unfolding, self.emitter = unfolding, emitter
        self.units: list[WindowUnit] = [*units(unfolding.shape, unfolding.plan.hardware, unfolding.window)]
        self.fills: list[int] = []
        self.spills: list[int] = []
        self._read = 0

    def until(self, place: int) -> int:
        """Write down all units up to that at `place`; the spill of that one.

        The rows of a unit are filled before those of the unit ahead are spilled, where the window has room for both.
        """
        while len(self.spills) <= place:
            here = len(self.spills)
            self._fill_until(here)
            if here + 1 < len(self.units) and self._frees(here + 1) < here:
                self._fill_until(here + 1)
            self.spills.append(self._spill(here))
        return self.spills[place]

    def last_of(self, filled: Patch) -> int:
        """The place of the last unit that writes any of these outputs."""
        window, shape = self.unfolding.window, self.unfolding.shape
        down, across = -(-shape.row.extent // window.rows), -(-shape.col.extent // window.cols)
        of_images = len(self.units) // down // across // -(-self.unfolding.word_groups // window.groups)
        images, col, row = (
            (part.stop - 1) // size
            for part, size in ((filled.groups, window.groups), (filled.cols, window.cols), (filled.rows, window.rows))
        )
        return (((images + 1) * of_images - 1) * across + col) * down + row

    def _frees(self, place: int) -> int:
        """The place of the last unit that reads rows which the new ones of a unit replace; -1 for none."""
        kept = self.units[place].new.stop - self.unfolding.window.depth
        while self._read < place and self.units[self._read].live.start < kept:
            self._read += 1
        return self._read - 1

    def _fill_until(self, place: int) -> None:
        while len(self.fills) <= place:
            here = len(self.fills)
            if self.units[here].new:
                self.fills.append(self._fill(here))
            else:
                self.fills.append(self.fills[-1] if self.fills else -1)

    def _fill(self, place: int) -> int:
        unit, work, freed = self.units[place], self.unfolding, self._frees(place)
        moved = self.emitter.traffic.of([work.source(unit)], work.ifmap, work.apart)
        after = (self.spills[freed],) if freed >= 0 else ()
        return self.emitter.add(Fill(after, work.ifmap, tuple(work.filled(unit)), moved.bytes, regions=moved.regions))

    def _spill(self, place: int) -> int:
        unit, work = self.units[place], self.unfolding
        parts, filled = tuple(work.spilled(unit)), self.fills[place]
        after = (filled,) if filled >= 0 else ()
        moved = self._written(unit, parts)
        return self.emitter.add(Spill(after, work.lowered, parts, moved.bytes, regions=moved.regions))

    def _written(self, unit: WindowUnit, parts: tuple[Part, ...]) -> Moved:
        """Rows of the lowered matrix that follow one another are written together."""
        work = self.unfolding
        images, apart = work.plan.images(unit.groups), (work.shape.row.extent, work.shape.col.extent)
        lowered = neighbours(sorted({row for part in parts for row in part.lane[0].coordinates}))
        boxes = (Box(rows, unit.rows, unit.cols, images) for rows in lowered)
        return self.emitter.traffic.of(boxes, work.lowered, apart)
