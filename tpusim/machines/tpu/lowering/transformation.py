"""The transformation of explicit im2col as units: rows roll through a window, and leave lowered rows in HBM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from tpusim.machines.tpu.lowering.block import Patch
from tpusim.machines.tpu.lowering.reduction import neighbours
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.lowering.unfolding import Unfolding
from tpusim.machines.tpu.lowering.window import units
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.machines.tpu.schedule.units import Act, Area, Moves, Need, Piece, Policy, Unit, Units, one_ahead_if_free
from tpusim.memory.layout import Box


class Transformation(Units):
    """Units without acts: the rows that are new to each come, and the lowered rows of its outputs go."""

    def __init__(self, work: Unfolding) -> None:
        self.work, self.traffic = work, Traffic(work.plan.shape, work.plan.hardware)
        self.word_fill = work.plan.word_fill
        self.windows = [*units(work.shape, work.plan.hardware, work.window)]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those of the product know them."""
        return ()

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """The window."""
        work, window = self.work, self.work.window

        def live(place: int) -> range:
            return self.windows[place].live

        return (
            Area(
                "window", work.ifmap.name, window.words, 1, work.lanes, self._rows,
                gaps=one_ahead_if_free, live=live, depth=window.depth,
            ),
        )  # fmt: skip

    @property
    def policy(self) -> Policy:
        """The rows of a unit come before those of the unit ahead go, where the window has room for both."""
        return Policy(("window",), one_ahead_if_free)

    def units(self) -> Iterator[Unit]:
        for place in range(len(self.windows)):
            yield Unit((Need("window", place),), None, place, leaves=0, makes=place)

    def _rows(self, place: int, gaps: int, grows: bool) -> list[Piece]:
        unit, work = self.windows[place], self.work

        def moves(base: int) -> Iterator[Moves]:
            moved = self.traffic.of([work.source(unit)], work.ifmap, work.apart)
            yield Moves(work.ifmap, tuple(work.filled(unit, base)), *moved)

        return [Piece(0, (0,), moves)] if unit.new else []

    def acts(self, unit: Unit, bases: Sequence[int]) -> tuple[Act, ...]:
        return ()

    def spill(self, unit: Unit, base: int) -> Moves:
        """Rows of the lowered matrix that follow one another are written together."""
        work, window = self.work, self.windows[unit.about]
        parts = tuple(work.spilled(window, base))
        images, apart = work.plan.images(window.groups), (work.shape.row.extent, work.shape.col.extent)
        lowered = neighbours(sorted({row for part in parts for row in part.lane[0].coordinates}))
        boxes = (Box(rows, window.rows, window.cols, images) for rows in lowered)
        return Moves(work.lowered, parts, *self.traffic.of(boxes, work.lowered, apart))

    def last_of(self, filled: Patch) -> int:
        """The place of the last unit that writes any of these outputs."""
        window, shape = self.work.window, self.work.shape
        down, across = -(-shape.row.extent // window.rows), -(-shape.col.extent // window.cols)
        of_images = len(self.windows) // down // across // -(-self.work.word_groups // window.groups)
        images, col, row = (
            (part.stop - 1) // size
            for part, size in ((filled.groups, window.groups), (filled.cols, window.cols), (filled.rows, window.rows))
        )
        return (((images + 1) * of_images - 1) * across + col) * down + row
