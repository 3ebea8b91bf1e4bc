"""The cut by stride phases: the outputs of a cell are added up apart, each from the taps that reach it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import portions
from tpusim.machines.tpu.lowering.cells import CellAxis, cell_axes
from tpusim.machines.tpu.lowering.geometry import ConvShape
from tpusim.machines.tpu.lowering.reduction import Chunk, Place, ReductionPass, Run, Tap, numbered, portions_within
from tpusim.machines.tpu.lowering.tiling import col_folds

Phase = tuple[int, int]
"""Row and column of an output in its cell."""


class PhaseOutcome(NamedTuple):
    """Phases whose sums stand side by side in the columns of the array, and a tap for each grid point they need."""

    phases: tuple[Phase, ...]
    taps: tuple[Tap, ...]


@dataclass(frozen=True)
class PhaseTaps:
    """Taps of an outcome stacked while the rows of the array hold them, times row folds; a fold is a place."""

    shape: ConvShape
    hardware: Hardware
    groups = 1
    together = 1
    copies = False
    transposed = False
    ruled = None

    @cached_property
    def axes(self) -> tuple[CellAxis, CellAxis]:
        """Rows and columns of cells."""
        return cell_axes(self.shape)

    @cached_property
    def outcomes(self) -> tuple[PhaseOutcome, ...]:
        """The phases that have outputs, as many side by side as take the fewest passes."""
        row, col = self.axes
        widest = len(col_folds(self.shape.out_channels, self.hardware)[0])
        room = self.hardware.array.cols // widest if widest == self.shape.out_channels else 1
        sizes = [
            (high, wide)
            for high, wide in product(range(1, len(row.phases) + 1), range(1, len(col.phases) + 1))
            if high * wide <= room
        ]
        return tuple(self._side_by_side(min(sizes, key=self._stacks)))

    def tap_of(self, tap: Tap, phase: Phase) -> Tap | None:
        """The tap of a phase that stands where another does; None where none of its taps stands there."""
        found = [self._known[at].get((axis.place(tap[at]), phase[at])) for at, axis in enumerate(self.axes)]
        return None if found[0] is None or found[1] is None else (found[0], found[1])

    @cached_property
    def multi_tile(self) -> int:
        """Taps stacked in a pass, at most."""
        return min(self._room, max(len(each.taps) for each in self.outcomes))

    @property
    def folds(self) -> int:
        """Row folds."""
        return len(self._portions)

    row_folds = folds

    @property
    def per_fold(self) -> float:
        """The channels."""
        return self.shape.channels

    @property
    def stacked(self) -> str:
        """What is told of the taps of a pass."""
        return f"up to {self.multi_tile} stacked in a pass" if self.multi_tile > 1 else ""

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """All taps of so many row folds at a time: outcome by outcome, in each the folds inside."""
        return numbered([self._chunk(portion) for portion in portions(self.folds, folds)])

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """All taps, and the folds of the first so many channels."""
        return taps and self.groups, channels and sum(fold.start < channels for fold in self._portions)

    def folded(self, into: str) -> str:
        """Row folds, in words."""
        return f"{counted(self.folds, 'row fold')} for {into}"

    def size_of(self, groups: int) -> str:
        """All of them."""
        return "all taps"

    def _chunk(self, folds: range) -> tuple[list[ReductionPass], list[Place]]:
        stacks = (
            (number, outcome.taps[at.start : at.stop], fold)
            for number, outcome in enumerate(self.outcomes)
            for at in portions(len(outcome.taps), self._room)
            for fold in folds
        )
        passes = [self._pass(number, taps, fold, fold - folds.start) for number, taps, fold in stacks]
        return passes, [self._place(self._portions[fold]) for fold in folds]

    def _pass(self, outcome: int, taps: tuple[Tap, ...], fold: int, place: int) -> ReductionPass:
        channels = self._portions[fold]
        runs = [Run(number * len(channels), tap, channels, place) for number, tap in enumerate(taps)]
        return ReductionPass.of(runs, outcome)

    def _place(self, channels: range) -> Place:
        return Place(tuple(copy * len(channels) for copy in range(self.multi_tile)), channels)

    def _stacks(self, size: tuple[int, int]) -> int:
        """The passes of a row fold with rectangles of so many rows and columns."""
        down, across = ([len(taps) for _, taps in along] for along in self._portioned(size))
        return sum(-(-max(1, rows * cols) // self._room) for rows, cols in product(down, across))

    def _side_by_side(self, size: tuple[int, int]) -> Iterator[PhaseOutcome]:
        """All phases, in rectangles of so many rows and columns."""
        for (rows, downwards), (cols, across) in product(*self._portioned(size)):
            # What no tap reaches is zero: a pass of weights that are.
            yield PhaseOutcome(tuple(product(rows, cols)), tuple(product(downwards, across)) or ((0, 0),))

    def _portioned(self, size: tuple[int, int]) -> list[list[tuple[range, list[int]]]]:
        """The phases along each axis in portions of so many, each with a tap for every grid point that it needs."""
        return [
            [(phases, _one_a_place(axis, phases)) for phases in portions(len(axis.phases), most)]
            for axis, most in zip(self.axes, size, strict=True)
        ]

    @cached_property
    def _known(self) -> list[dict[tuple[int, int], int]]:
        """Along each axis the tap at a grid point that belongs to a phase."""
        return [{stand: tap for tap, stand in enumerate(axis.stands)} for axis in self.axes]

    @cached_property
    def _room(self) -> int:
        """Taps that the rows of the array hold, or the forced number where it fits."""
        room, wanted = max(1, self.hardware.array.rows // self.shape.channels), self.hardware.mapping.multi_tile
        return min(room, wanted) if isinstance(wanted, int) else room

    @cached_property
    def _portions(self) -> tuple[range, ...]:
        """The channels of a group in portions of at most R, and of those that a block is to hold."""
        held = self.hardware.mapping.block.given.get("in_channels")
        return portions_within(self.shape.channels, held, self.hardware.array.rows)


def _one_a_place(axis: CellAxis, phases: range) -> list[int]:
    """A tap for each grid point on which one of some phases stands."""
    places = {axis.place(tap): tap for phase in phases for tap in axis.taps_of(phase)}
    return sorted(places.values())
