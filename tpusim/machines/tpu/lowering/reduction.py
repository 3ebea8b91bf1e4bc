"""How the sum over taps and channels is cut into passes: tap groups (multi-tile) times row folds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape

Tap = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReductionPass:
    """One pass of the reduction: the taps stacked on the array, and one row fold of channels."""

    taps: tuple[Tap, ...]
    fold: int
    channels: range

    @property
    def rows(self) -> int:
        """Array rows occupied."""
        return len(self.taps) * len(self.channels)


@dataclass(frozen=True)
class Chunk:
    """Passes whose part of the ifmap is filled, used and replaced together; their `numbers` in the reduction."""

    passes: tuple[ReductionPass, ...]
    numbers: range

    @cached_property
    def folds(self) -> range:
        """Its row folds."""
        return range(self.passes[0].fold, self.passes[-1].fold + 1)

    @cached_property
    def taps(self) -> frozenset[Tap]:
        """Every tap in it."""
        return frozenset(tap for each in self.passes for tap in each.taps)

    @cached_property
    def tap_rows(self) -> range:
        """The filter rows from the first to the last of its taps."""
        rows, _ = zip(*self.taps, strict=True)
        return range(min(rows), max(rows) + 1)

    @cached_property
    def tap_cols(self) -> range:
        """The filter columns from the first to the last of its taps."""
        _, cols = zip(*self.taps, strict=True)
        return range(min(cols), max(cols) + 1)


def multi_tile(shape: ConvShape, hardware: Hardware) -> int:
    """Taps stacked in a pass: min(R // C_I, W_F) (paper section VII), or the forced number where it fits.

    Under `rows`, whole filter rows where several fit.
    """
    room = max(1, hardware.array.rows // shape.channels)
    wanted = hardware.mapping.multi_tile
    if isinstance(wanted, int):
        return min(room, wanted, shape.row.kernel * shape.col.kernel)
    if wanted == "rows" and room >= shape.col.kernel:
        return shape.col.kernel * min(shape.row.kernel, room // shape.col.kernel)
    return min(room, shape.col.kernel)


def tap_groups(shape: ConvShape, tile: int) -> tuple[tuple[Tap, ...], ...]:
    """Taps in row-major order, `tile` at a time; groups stay within a filter row unless wider than one."""
    rows = [[(i, j) for j in range(shape.col.kernel)] for i in range(shape.row.kernel)]
    if tile > shape.col.kernel:
        rows = [[tap for row in rows for tap in row]]
    return tuple(tuple(row[at : at + tile]) for row in rows for at in range(0, len(row), tile))


def row_folds(shape: ConvShape, hardware: Hardware) -> tuple[range, ...]:
    """The channels of a group in portions of at most R."""
    rows, channels = hardware.array.rows, shape.channels
    return tuple(range(at, min(at + rows, channels)) for at in range(0, channels, rows))


def col_folds(shape: ConvShape, hardware: Hardware) -> tuple[range, ...]:
    """The output channels of a group in portions of at most C."""
    cols, channels = hardware.array.cols, shape.out_channels
    return tuple(range(at, min(at + cols, channels)) for at in range(0, channels, cols))


def chunks(shape: ConvShape, hardware: Hardware, taps: int, folds: int) -> tuple[Chunk, ...]:
    """The reduction, `taps` tap groups and `folds` row folds at a time: row folds outside, tap groups inside."""
    groups, channels = tap_groups(shape, multi_tile(shape, hardware)), row_folds(shape, hardware)
    parts = [
        tuple(
            ReductionPass(stacked, fold, channels[fold])
            for stacked in groups[first_taps : first_taps + taps]
            for fold in range(first_fold, min(first_fold + folds, len(channels)))
        )
        for first_fold in range(0, len(channels), folds)
        for first_taps in range(0, len(groups), taps)
    ]
    ends = [0, *accumulate(map(len, parts))]
    return tuple(Chunk(part, range(first, end)) for part, (first, end) in zip(parts, pairwise(ends), strict=True))


def reduction(shape: ConvShape, hardware: Hardware) -> tuple[ReductionPass, ...]:
    """All passes that add up to one output block, where they are one chunk."""
    groups = tap_groups(shape, multi_tile(shape, hardware))
    return chunks(shape, hardware, len(groups), len(row_folds(shape, hardware)))[0].passes
