"""The tilings of a layer that the search may choose from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.estimate import Estimate
from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.reduction import chunks, col_folds, reduction
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling, weight_words, word_groups


class Candidates:
    """The tilings of one layer that are tried, a `Tiling` of arrays for each way; the block may be given."""

    def __init__(self, shape: ConvShape, hardware: Hardware, block: tuple[int, int, int] | None) -> None:
        self.shape, self.hardware = shape, hardware
        self.passes = reduction(shape, hardware)
        self.pass_words = weight_words(self.passes, hardware)
        self.block = block
        self.folds = self.passes[-1].fold + 1
        self.taps = len(self.passes) // self.folds
        self.columns = len(col_folds(shape, hardware))
        self.groups, self.word_fill = word_groups(shape.word_images, hardware.vector_memory.word_elements)

    def whole(self) -> Iterator[Tiling[Counts]]:
        """Whole filter resident; a column fold at a time in either order; ever smaller sections of a fold."""
        folds = self.shape.groups * self.columns
        passes, whole, orders = len(self.passes), sum(self.pass_words), self._orders()
        for order in orders:
            yield self._whole(order, passes, whole, folds)
            yield self._whole(order, passes, whole, min(2, folds))
        section = passes // 2
        while section and "block_major" in orders:
            words = max(sum(self.pass_words[at : at + section]) for at in range(0, passes, section))
            yield self._whole("block_major", section, words, 2)
            section //= 2

    def deep(self) -> Iterator[Tiling[Counts]]:
        """A column fold at a time, with buffers for several blocks: where HBM sets the pace, it should not wait until
        the array has drained, unless blocks are meant to. A block that is given keeps the buffers it would have.
        """
        fast = self.estimate.bound_by_hbm and not self.estimate.drains
        worth = len(self.passes) == 1 and fast and self.block is None
        for depth in (2, 4) if worth else ():
            buffers = min(2, self.shape.groups * self.columns)
            yield self._whole(self._orders()[0], len(self.passes), sum(self.pass_words), buffers, depth)

    def chunked(self) -> Iterator[Tiling[Counts]]:
        """Every block and number of folds kept, with chunks of row folds, then of ever fewer tap groups of one fold."""
        order = self._orders()[0]
        if self.folds > 1:
            yield self._chunks(order, self.taps, _halves(self.folds)[1:])
        for taps in _halves(self.taps)[1:]:
            yield self._chunks(order, taps, [1])

    def _orders(self) -> tuple[str, ...]:
        wanted = self.hardware.mapping.loop_order
        return ("block_major", "filter_major") if wanted == "auto" else (wanted,)

    @cached_property
    def _blocks(self) -> tuple[Counts, Counts, Counts, Counts]:
        """Block extents (rows, cols, word groups) to try, whole rows or parts of one, of a wide map whole columns too;
        how many blocks each makes.
        """
        row, col = self.shape.row.extent, self.shape.col.extent
        if self.block is not None:
            rows, cols, groups = np.array([self.block], dtype=np.int64).T
        else:
            each, parts = _parts(self.groups), _parts(col)
            whole = [(r, parts[-1], g) for r in _parts(row) for g in each]
            split = [(1, c, g) for c in parts[:-1] for g in each]
            if self.shape.col.outputs > self.shape.row.outputs:
                split += [(row, c, g) for c in parts[:-1] for g in each]
            rows, cols, groups = np.array(whole + split, dtype=np.int64).T
        return rows, cols, groups, -(-row // rows) * -(-col // cols) * -(-self.groups // groups)

    @cached_property
    def estimate(self) -> Estimate:
        """What each tiling would cost."""
        return Estimate(
            self.shape, self.hardware, len(self.passes), self.folds, self.columns, self.groups, self.word_fill
        )

    def _whole(self, order: str, section: int, section_words: int, buffers: int, lag: int = 1) -> Tiling[Counts]:
        """Every block, with the ifmap of its whole reduction; the filter in sections of so many passes."""
        rows, cols, groups, blocks = self._blocks
        parts = self.shape.groups * blocks
        every = range(self.shape.row.kernel), range(self.shape.col.kernel)
        return _tilings(
            self._blocks,
            loop_order=order,
            kept_folds=1,
            chunk_taps=self.taps,
            chunk_folds=self.folds,
            section_passes=section,
            ifmap_buffers=np.minimum(lag + 1, parts),
            filter_buffers=buffers,
            psum_buffers=np.minimum(lag + 1, parts * self.columns),
            ifmap_words=self.folds * self._stored(rows, cols, groups, *every),
            section_words=section_words,
            lag=lag,
        )

    def _chunks(self, order: str, taps: int, chunk_folds: list[int]) -> Tiling[Counts]:
        """Chunks of so many tap groups and row folds."""
        at, kept, folds, buffers = _crossed(range(len(self._blocks[0])), _halves(self.columns), chunk_folds, [2, 3])
        rows, cols, groups, blocks = extents = tuple(each[at] for each in self._blocks)
        parts = self.shape.groups * blocks
        whole, *_ = each = chunks(self.shape, self.hardware, taps, 1)
        stored = [
            self._stored(rows, cols, groups, chunk.tap_rows, chunk.tap_cols) for chunk in each if not chunk.folds.start
        ]
        weights = max(sum(weight_words(chunk.passes, self.hardware)) for chunk in each)
        return _tilings(
            extents,
            loop_order=order,
            kept_folds=kept,
            chunk_taps=taps,
            chunk_folds=folds,
            section_passes=folds * len(whole.passes),
            ifmap_buffers=buffers,
            filter_buffers=2,
            psum_buffers=np.maximum(kept, np.minimum(2, parts * self.columns)),
            ifmap_words=folds * np.max(stored, axis=0),
            section_words=folds * weights,
            lag=1,
        )

    def _stored(self, rows: Counts, cols: Counts, groups: Counts, tap_rows: range, tap_cols: range) -> Counts:
        """Words of one fold in the largest patch of each block for these taps."""
        return _points(self.shape.row, rows, tap_rows) * _points(self.shape.col, cols, tap_cols) * groups


def _tilings(extents: tuple[Counts, ...], loop_order: str, **held: Counts | int) -> Tiling[Counts]:
    """Blocks of these extents (rows, cols, word groups, blocks), each held like that."""
    rows, cols, groups, blocks = extents
    arrays: dict[str, Any] = {name: np.broadcast_to(value, rows.shape) for name, value in held.items()}
    return Tiling(
        rows=rows,
        cols=cols,
        groups=groups,
        blocks=blocks,
        loop_order=loop_order,
        psum_words=rows * cols * groups,
        **arrays,
    )


def _halves(count: int) -> list[int]:
    """`count`, and ever smaller numbers that cut it into even parts, down to 1."""
    return sorted({-(-count // (1 << n)) for n in range(count.bit_length() + 1)}, reverse=True)


def _crossed(*choices: Sequence[int]) -> list[Counts]:
    """Every combination: a column for each of the choices, the last moving fastest."""
    each = np.meshgrid(*(np.array(every, dtype=np.int64) for every in choices), indexing="ij")
    return [values.reshape(-1) for values in each]


def _parts(extent: int) -> list[int]:
    """All distinct ceil(extent / n), ascending: block extents that cut an axis into nearly equal parts."""
    parts, n = [extent], 1
    while parts[-1] > 1:
        n = -(-extent // (parts[-1] - 1))
        parts.append(-(-extent // n))
    return parts[::-1]


def _points(axis: MapAxis, outputs: Counts, taps: range) -> Counts:
    """Most grid points that `taps` of any `outputs` neighbouring outputs touch."""
    span = (outputs - 1) * axis.step + (len(taps) - 1) * axis.tap_step + 1
    real = len(axis.stored(range(axis.extent), taps))
    return np.minimum(span, real)
