"""The tilings of a layer that the search may choose from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.cut.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.cut.pace import LayerWork, summed
from tpusim.machines.tpu.cut.plan import even_extents, halves, portions, spanning
from tpusim.machines.tpu.cut.reduction import Chunk, Cut
from tpusim.machines.tpu.cut.stored import taps_on_chip
from tpusim.machines.tpu.cut.tiling import Counts, Tiling, given_outputs, too_small, weight_words
from tpusim.machines.tpu.description import Hardware

Way: TypeAlias = tuple[Tiling[Counts], NDArray[np.bool_]]
"""A way to hold blocks, of every size, and which of these find room."""


class Extents(NamedTuple):
    """Blocks, one an entry: their extents, their words, how many there are, and the words that disregard rows."""

    rows: Counts
    cols: Counts
    groups: Counts
    psum_words: Counts
    blocks: Counts
    span: Counts


class Candidates(LayerWork):
    """The tilings of one layer that are tried, a `Tiling` of arrays for each way.

    What the machine's policy gives of a block is the same in all of them; `block`, its extents, may be given besides.
    """

    def __init__(self, shape: ConvShape, hardware: Hardware, cut: Cut, block: tuple[int, int, int] | None) -> None:
        super().__init__(shape, hardware, cut)
        self.block = block
        given = hardware.mapping.block.given
        # Of the first output channels: no fold reaches over their end.
        channels = given.get("out_channels")
        self._given_kept = channels and sum(fold.start < channels for fold in self.col_folds)
        self._given_taps, self._given_folds = cut.held(taps_on_chip(shape, hardware), given.get("in_channels"))
        wanted = hardware.mapping.loop_order
        self._orders = ("block_major", "filter_major") if wanted == "auto" else (wanted,)
        # Whether the ifmap of a whole reduction may be on chip; and whether a given block holds no less.
        self._at_once = cut.together >= self.taps
        all_taps, all_folds = self._given_taps in (None, self.taps), self._given_folds in (None, self.folds)
        self._uncut = self._at_once and all_taps and all_folds
        # Filter buffers for the column folds of a block, and one to be filled meanwhile.
        self._few_buffers = min((self._given_kept or 1) + 1, shape.groups * self.columns)

    def whole(self) -> Iterator[Tiling[Counts]]:
        """Whole filter resident; a column fold at a time in either order; ever smaller sections of a fold."""
        folds = self.shape.groups * self.columns
        passes, orders = self.passes, self._orders if self._uncut else ()
        whole = self._section_words([self.chunk], passes)
        for order in orders:
            yield self._whole(order, passes, whole, folds)
            yield self._whole(order, passes, whole, self._few_buffers)
        section = passes // 2
        while section and "block_major" in orders:
            yield self._whole("block_major", section, self._section_words([self.chunk], section), 2)
            section //= 2

    def deep(self) -> Iterator[Tiling[Counts]]:
        """What hides more of HBM: where blocks drain, results that go out beside the next block.

        Else a column fold at a time, with buffers for several blocks: where HBM sets the pace, it should not wait until
        the array has drained. A block that is given keeps the buffers it would have.
        """
        passes, order = self.passes, self._orders[0]
        whole = self._section_words([self.chunk], passes)
        if self.drains:
            kept = self._kept(order)
            for buffers in (self.shape.groups * self.columns, self._few_buffers) if self._uncut and kept > 1 else ():
                yield self._whole(order, passes, whole, buffers, lag=kept, psums=2 * kept)
            return
        worth = passes == 1 and self.bound_by_hbm and self.block is None and self._uncut
        for depth in (2, 4) if worth else ():
            yield self._whole(order, passes, whole, self._few_buffers, depth, depth + 1, depth + 1)

    def chunked(self) -> Iterator[Tiling[Counts]]:
        """Every block and number of folds kept, with chunks of row folds, then of ever fewer tap groups of one fold.

        Where each tap comes by itself, every number of row folds of it; the filter comes again for each block or stays.
        """
        order, wanted = self._orders[0], self._given_folds
        if not self._at_once:
            yield self._chunks(order, self.cut.together, [wanted] if wanted else halves(self.folds))
            if wanted in (None, self.folds):
                yield self._chunks(order, self.cut.together, [self.folds], resident=True)
            return
        for taps in [self._given_taps] if self._given_taps else halves(self.taps):
            folds = halves(self.folds) if taps == self.taps or self._given_taps else [1]
            folds = [each for each in ([wanted] if wanted else folds) if (taps, each) != (self.taps, self.folds)]
            if folds:
                yield self._chunks(order, taps, folds)

    def _section_words(self, chunks: Sequence[Chunk], size: int) -> int:
        """Words of weights of `size` passes of a chunk that add up, the most."""
        every = [weight_words(some, self.hardware) for chunk in chunks for some in summed(chunk)]
        return max(sum(words[at : at + size]) for words in every for at in range(0, len(words), size))

    def fits(self, tilings: Tiling[Counts]) -> NDArray[np.bool_]:
        """Which of them find room."""
        return np.asarray(self.lane_words(tilings) <= self.hardware.capacity_words)

    def lane_words(self, tilings: Tiling[Counts]) -> Counts:
        """Words that they need of a lane."""
        return tilings.words

    @cached_property
    def fitting(self) -> list[list[Way]]:
        """Ways of which some find room, and which do, kind by kind; in chunks if nothing else does, or they may."""
        found = [self._fitting(self.whole()), self._fitting(self.deep())]
        if not any(found) or self.hardware.mapping.chunks == "auto":
            found.append(self._fitting(self.chunked()))
        return found

    def _fitting(self, ways: Iterable[Tiling[Counts]]) -> list[Way]:
        return [(tilings, fits) for tilings in ways if (fits := self.fits(tilings)).any()]

    def too_small(self) -> CapacityError:
        """An error: not even the smallest tiling finds room; and what to do."""
        return too_small(least_words(self.shape, self.hardware, self.cut, type(self)), self.hardware)

    @cached_property
    def _blocks(self) -> Extents:
        """Block extents (rows, cols, word groups) to try, whole rows or parts of one, of a wide map whole columns too;
        their words, and how many blocks each makes.
        """
        row, col, every = self.extents
        if isinstance(words := self.hardware.mapping.block_m, int):
            return self._spans(min(max(1, words // self.shape.cell), row * col * every))
        rows, cols, groups = np.array([self.block] if self.block else self._rectangles, dtype=np.int64).T
        blocks = -(-row // rows) * -(-col // cols) * -(-every // groups)
        return Extents(rows, cols, groups, rows * cols * groups * self.shape.cell, blocks, np.zeros_like(blocks))

    @property
    def _rectangles(self) -> list[tuple[int, int, int]]:
        (rows, cols, groups), row, col = given_outputs(self.shape, self.hardware), *self.extents[:2]
        each, parts = [groups] if groups else even_extents(self.groups), even_extents(col)
        if rows or cols:
            return [*product([rows] if rows else even_extents(row), [cols] if cols else parts, each)]
        whole = [(r, parts[-1], g) for r in even_extents(row) for g in each]
        split = [(1, c, g) for c in parts[:-1] for g in each]
        if self.shape.col.outputs > self.shape.row.outputs:
            split += [(row, c, g) for c in parts[:-1] for g in each]
        return whole + split

    def _spans(self, words: int) -> Extents:
        """Blocks of `words`, wherever a row ends: the largest rectangle that holds such a block."""
        blocks = [spanning(self.extents, part).sizes for part in portions(prod(self.extents), words)]
        extents = *map(max, zip(*blocks, strict=True)), words * self.shape.cell, len(blocks), words
        return Extents(*(np.array([each], dtype=np.int64) for each in extents))

    def _whole(
        self, order: str, section: int, section_words: int, buffers: int, lag: int = 1, psums: int = 2, ifmaps: int = 2
    ) -> Tiling[Counts]:
        """Every block, with the ifmap of its whole reduction; the filter in sections of passes."""
        parts, queues = self.shape.groups * self._blocks.blocks, self.hardware.array.queues
        sections = self.shape.groups * self.columns * -(-self.passes // section)
        return _tilings(
            self._blocks, loop_order=order, kept_folds=self._kept(order), chunk_taps=self.taps, chunk_folds=self.folds,
            section_passes=section, ifmap_buffers=np.minimum(ifmaps, parts),
            filter_buffers=max(buffers, min(buffers * queues, sections)),
            psum_buffers=np.minimum(psums * queues, parts * self.columns),
            ifmap_words=self._held(self.chunk, self._blocks), section_words=section_words, lag=lag * queues,
        )  # fmt: skip

    def _kept(self, order: str) -> int:
        """Column folds of a block with its whole reduction: those given, or what the policy says of a block's own."""
        together = self.hardware.mapping.column_folds == "all" and order == "block_major"
        return self._given_kept or (self.columns if together else 1)

    def _chunks(self, order: str, taps: int, chunk_folds: list[int], resident: bool = False) -> Tiling[Counts]:
        """Chunks of tap groups and row folds; the filter comes for each block, or stays for all."""
        columns = [self._given_kept] if self._given_kept else halves(self.columns)
        # Every combination, the last moving fastest.
        choices = range(len(self._blocks.rows)), columns, chunk_folds, (2, 3)
        crossed = np.meshgrid(*(np.array(each, dtype=np.int64) for each in choices), indexing="ij")
        at, kept, folds, buffers = (each.reshape(-1) for each in crossed)
        extents = Extents(*(each[at] for each in self._blocks))
        whole, *_ = each = self.cut.chunks(taps, 1)
        # Of chunks that are alike, and of row folds, the first is the largest.
        kinds = {(chunk.tap_rows, chunk.tap_cols, len(chunk.places)): chunk for chunk in reversed(each)}
        stored = [self._held(chunk, extents) for chunk in kinds.values()]
        return _tilings(
            extents, loop_order=order, kept_folds=kept, chunk_taps=taps, chunk_folds=folds,
            section_passes=folds * max(map(len, whole.sums)), ifmap_buffers=buffers,
            filter_buffers=self.shape.groups * self.columns * len(each) // self.folds if resident else 2,
            psum_buffers=np.maximum(kept, np.minimum(2, self.shape.groups * extents.blocks * self.columns)),
            ifmap_words=folds * np.max(stored, axis=0), section_words=folds * self._section_words(each, self.passes),
            lag=1,
        )  # fmt: skip

    def _held(self, chunk: Chunk, blocks: Extents) -> Counts:
        """Words of the places of a chunk, for the largest patch of each block."""
        return len(chunk.places) * prod(self.patches(chunk, blocks)) * blocks.groups

    def patches(self, chunk: Chunk, blocks: Extents) -> tuple[Counts, Counts]:
        """Most grid points, by rows and by columns, that the taps of a chunk touch of each block."""
        down = _points(self.shape.row, blocks.rows, chunk.tap_rows, chunk.by_tap)
        return down, _points(self.shape.col, blocks.cols, chunk.tap_cols, chunk.by_tap)


def least_words(shape: ConvShape, hardware: Hardware, cut: Cut, among: type[Candidates] = Candidates) -> int:
    """Words a lane needs for the smallest tiling, in a memory that has no more of them."""
    known = 0
    while True:
        candidates = among(shape, hardware, cut, None)
        tilings = chain(candidates.whole(), candidates.chunked())
        words = min(int(candidates.lane_words(each).min()) for each in tilings)
        if words <= known:
            return known
        # What is needed beside the buffers may itself grow with the memory.
        known, hardware = words, hardware.with_capacity(words * hardware.word_bytes)


def _tilings(extents: Extents, **held: Counts | int | str) -> Tiling[Counts]:
    """Blocks of these extents, each held like that."""
    arrays: dict[str, Any] = {
        name: value if isinstance(value, np.ndarray) else np.full(len(extents.rows), value)
        for name, value in held.items()
    }
    return Tiling(**extents._asdict(), **arrays)


def _points(axis: MapAxis, outputs: Any, taps: range, by_tap: bool) -> Any:
    """Most grid points that `taps` of any `outputs` neighbouring outputs touch; those of each tap for itself, under
    which one of them is not on padding: a point each.
    """
    if by_tap:
        return np.minimum(outputs, len(axis.under(range(axis.extent), taps)))
    return np.minimum(axis.reach(outputs, taps), len(axis.stored(range(axis.extent), taps)))
