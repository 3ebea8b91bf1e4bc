"""The channel-first cut (paper sections III-IV, VII): a pass has a few taps over one portion of the channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape
from tpusim.machines.tpu.lowering.reduction import (
    Chunk,
    Place,
    ReductionPass,
    Run,
    Tap,
    most_together,
    numbered,
    portions_within,
)
from tpusim.machines.tpu.lowering.tiles import taps_on_chip


@dataclass(frozen=True)
class TapGroups:
    """Taps stacked in groups (multi-tile), times row folds; a fold is a place, in a copy for each tap stacked."""

    shape: ConvShape
    hardware: Hardware
    copies = False
    transposed = False

    @cached_property
    def multi_tile(self) -> int:
        """Taps stacked in a pass: min(R // C_I, W_F) (paper section VII), or the forced number where it fits.

        Under `rows`, whole filter rows where several fit.
        """
        shape = self.shape
        room = max(1, self.hardware.array.rows // shape.channels)
        wanted = self.hardware.mapping.multi_tile
        if isinstance(wanted, int):
            return min(room, wanted, shape.row.kernel * shape.col.kernel)
        if wanted == "rows" and room >= shape.col.kernel:
            return shape.col.kernel * min(shape.row.kernel, room // shape.col.kernel)
        return min(room, shape.col.kernel)

    @property
    def ruled(self) -> TapGroups | None:
        """What the paper's rule would stack, where another number is forced."""
        if not isinstance(self.hardware.mapping.multi_tile, int):
            return None
        mapping = self.hardware.mapping.model_copy(update={"multi_tile": "auto"})
        return replace(self, hardware=self.hardware.model_copy(update={"mapping": mapping}))

    @property
    def folds(self) -> int:
        """Row folds."""
        return len(self._portions)

    row_folds = folds

    @property
    def groups(self) -> int:
        """Groups of taps."""
        return len(self._stacks)

    @property
    def together(self) -> int:
        """All, or one where each tap is fetched for itself."""
        return 1 if self._by_tap else self.groups

    @property
    def per_fold(self) -> float:
        """The channels, or what a group has of them for each of its taps."""
        return self.shape.channels * (self.multi_tile if self._by_tap else 1)

    @property
    def stacked(self) -> str:
        """What is told of the taps of a pass."""
        return f"{self.multi_tile} stacked in a pass (multi-tile)" if self.multi_tile > 1 else ""

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """`groups` tap groups and `folds` row folds at a time: row folds outside, tap groups inside."""
        return numbered([
            self._chunk(self._stacks[first : first + groups], range(at, min(at + folds, self.folds)))
            for at in range(0, self.folds, folds)
            for first in range(0, self.groups, groups)
        ])  # fmt: skip

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """As many groups as have so many taps, and the folds of the first so many channels."""
        folds = channels and sum(fold.start < channels for fold in self._portions)
        return taps and most_together(self._chunk(self._stacks, range(1))[0], taps, None), folds

    def folded(self, into: str) -> str:
        """Row folds, in words."""
        return f"{counted(self.folds, 'row fold')} for {into}"

    def size_of(self, groups: int) -> str:
        """So many groups, in words."""
        return f"{counted(groups, 'group')} of taps"

    def _chunk(self, stacks: tuple[tuple[Tap, ...], ...], folds: range) -> tuple[list[ReductionPass], list[Place]]:
        passes = [self._pass(stacked, fold, fold - folds.start) for stacked in stacks for fold in folds]
        return passes, [self._place(stacks[0], fold) for fold in folds]

    def _pass(self, stacked: tuple[Tap, ...], fold: int, place: int) -> ReductionPass:
        channels = self._portions[fold]
        lanes = len(channels)
        runs = tuple([Run(number * lanes, tap, channels, place) for number, tap in enumerate(stacked)])
        return ReductionPass(runs, lanes * len(stacked))

    def _place(self, stacked: tuple[Tap, ...], fold: int) -> Place:
        channels = self._portions[fold]
        if not self._by_tap:
            return Place(self._first_lanes(channels), channels)
        lanes = channels if len(stacked) == 1 else (*channels,) * len(stacked)
        return Place((0,), lanes, tuple(tap for tap in stacked for _ in channels))

    @property
    def _by_tap(self) -> bool:
        return self.hardware.mapping.fetch == "per_tap" and self.shape.taps > 1

    def _first_lanes(self, channels: range) -> tuple[int, ...]:
        """Where each copy of the ifmap begins: one for every tap stacked."""
        return tuple(copy * len(channels) for copy in range(self.multi_tile))

    @cached_property
    def _stacks(self) -> tuple[tuple[Tap, ...], ...]:
        """Taps in row-major order, so many at a time; groups stay within a filter row unless wider than one, and within
        those that a block is to hold.
        """
        tile, height, width = self.multi_tile, self.shape.row.kernel, self.shape.col.kernel
        rows = [[(i, j) for j in range(width)] for i in range(height)]
        if tile > width:
            rows = [[tap for row in rows for tap in row]]
        held = taps_on_chip(self.shape, self.hardware)
        return tuple(tuple(row[at.start : at.stop]) for row in rows for at in portions_within(len(row), held, tile))

    @cached_property
    def _portions(self) -> tuple[range, ...]:
        """The channels of a group in portions of at most R, and of those that a block is to hold."""
        held = self.hardware.mapping.block.given.get("in_channels")
        return portions_within(self.shape.channels, held, self.hardware.array.rows)
