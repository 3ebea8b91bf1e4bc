"""How the sum over taps and channels is cut into passes: tap groups (multi-tile) times row folds."""

from __future__ import annotations

from dataclasses import dataclass

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


def reduction(shape: ConvShape, hardware: Hardware) -> tuple[ReductionPass, ...]:
    """All passes that add up to one output block: tap groups outside, row folds inside."""
    groups = tap_groups(shape, multi_tile(shape, hardware))
    folds = row_folds(shape, hardware)
    return tuple(ReductionPass(taps, fold, folds[fold]) for taps in groups for fold in range(len(folds)))
