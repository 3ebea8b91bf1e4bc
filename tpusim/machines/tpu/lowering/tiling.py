"""Choose the block of outputs held on chip, the loop order and the buffers: the cheapest that fits.

The cost is an estimate in cycles (first fill + the longer of array and HBM + last spill); it steers the
choice only and is never reported: cycles come from the engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import Axis, ConvShape, padded
from tpusim.machines.tpu.lowering.reduction import ReductionPass, col_folds, reduction

Counts = NDArray[np.int64]
Cycles: TypeAlias = Any  # a float, or an array of them: one a candidate

MOST_PIECES = 4
"""Pieces that one load is cut into, so that the first passes need not wait for all of it."""

TOLERANCE = 0.01
"""Of blocks whose estimates lie this close to the best, the largest is taken: fewer passes to run."""


Extent = TypeVar("Extent", int, Counts)


@dataclass(frozen=True)
class Tiling(Generic[Extent]):
    """Block extent in outputs and word groups, loop order, passes per filter chunk, buffers per region.

    The search fills it with arrays, one entry a candidate block; the lowering gets one with plain integers.
    """

    rows: Extent
    cols: Extent
    groups: Extent
    loop_order: str
    chunk_passes: int
    ifmap_buffers: Extent
    filter_buffers: int
    psum_buffers: Extent
    ifmap_words: Extent
    chunk_words: int
    psum_words: Extent

    @property
    def words(self) -> Extent:
        """Words of vector memory a lane needs for all buffers together."""
        return (
            self.ifmap_buffers * self.ifmap_words
            + self.filter_buffers * self.chunk_words
            + self.psum_buffers * self.psum_words
        )

    def at(self: Tiling[Counts], index: int) -> Tiling[int]:
        """One candidate."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        plain: dict[str, Any] = {name: int(v[index]) if isinstance(v, np.ndarray) else v for name, v in values.items()}
        return Tiling(**plain)


@dataclass(frozen=True, slots=True)
class _FilterPlan:
    """One way to hold the filter on chip: chunks of some passes, in two or more buffers."""

    loop_order: str
    chunk_passes: int
    chunk_words: int
    buffers: int
    resident: bool

    @property
    def last_passes(self) -> int:
        """Passes whose weights come with the last piece of a chunk: what is left to do when it is there."""
        return -(-self.chunk_passes // MOST_PIECES)


def word_groups(images: int, word_elements: int) -> tuple[int, int]:
    """(words per pixel, elements used of a word): images spread evenly over as few words as hold them."""
    groups = -(-images // word_elements)
    return groups, -(-images // groups)


def weight_words(passes: tuple[ReductionPass, ...], hardware: Hardware) -> list[int]:
    """Words a lane needs for the weights of each pass: W weights of its column to a word."""
    return [-(-each.rows // hardware.vector_memory.word_elements) for each in passes]


def choose(shape: ConvShape, hardware: Hardware) -> Tiling[int]:
    """The tiling with the lowest estimated cycles.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    tiling = _same_block(shape, hardware) or _best(_Search(shape, hardware, None))
    if tiling is None:
        raise _too_small(_Search(shape, hardware, None))
    return tiling


def _best(search: _Search) -> Tiling[int] | None:
    """Of filter plans whose estimates lie close to the best, the first: it moves the filter in the fewest pieces."""
    found = [each for plan in search.filter_plans() if (each := search.best_block(plan)) is not None]
    close = min((cost for cost, _ in found), default=0) * (1 + TOLERANCE)
    return next((tiling for cost, tiling in found if cost <= close), None)


def _same_block(shape: ConvShape, hardware: Hardware) -> Tiling[int] | None:
    """With a forced multi-tile, the block that the paper's rule would get: only one thing changes at a time.

    None where the number is not forced, or that block does not fit with it.
    """
    if not isinstance(hardware.mapping.multi_tile, int):
        return None
    mapping = hardware.mapping.model_copy(update={"multi_tile": "auto"})
    ruled = _best(_Search(shape, hardware.model_copy(update={"mapping": mapping}), None))
    return ruled and _best(_Search(shape, hardware, (ruled.rows, ruled.cols, ruled.groups)))


class _Search:
    def __init__(self, shape: ConvShape, hardware: Hardware, block: tuple[int, int, int] | None) -> None:
        self.shape, self.hardware = shape, hardware
        self.passes = reduction(shape, hardware)
        self.pass_words = weight_words(self.passes, hardware)
        self.block = block
        self.folds = self.passes[-1].fold + 1
        self.columns = len(col_folds(shape, hardware))
        self.groups, self.word_fill = word_groups(shape.word_images, hardware.vector_memory.word_elements)

    def filter_plans(self) -> Iterator[_FilterPlan]:
        """Whole filter resident; a column fold at a time in either order; ever smaller chunks of a fold."""
        folds = self.shape.groups * self.columns
        whole, orders = sum(self.pass_words), self._orders()
        for order in orders:
            yield _FilterPlan(order, len(self.passes), whole, folds, resident=True)
            yield _FilterPlan(order, len(self.passes), whole, min(2, folds), resident=folds <= 2)
        chunk = len(self.passes) // 2
        while chunk and "block_major" in orders:
            words = max(sum(self.pass_words[at : at + chunk]) for at in range(0, len(self.passes), chunk))
            yield _FilterPlan("block_major", chunk, words, 2, resident=False)
            chunk //= 2

    def _orders(self) -> tuple[str, ...]:
        wanted = self.hardware.mapping.loop_order
        return ("block_major", "filter_major") if wanted == "auto" else (wanted,)

    @cached_property
    def _candidates(self) -> tuple[Counts, Counts, Counts]:
        """Block extents (rows, cols, word groups) to try: whole rows, or parts of one row."""
        if self.block is not None:
            given = np.array(self.block, dtype=np.int64)
            return given[:1], given[1:2], given[2:]
        rows, cols = _parts(self.shape.row.extent), _parts(self.shape.col.extent)
        groups = _parts(self.groups)
        whole = np.array([(r, cols[-1], g) for r in rows for g in groups], dtype=np.int64)
        split = np.array([(1, c, g) for c in cols[:-1] for g in groups], dtype=np.int64).reshape(-1, 3)
        r, c, g = np.concatenate([whole, split]).T
        return r, c, g

    def best_block(self, plan: _FilterPlan) -> tuple[float, Tiling[int]] | None:
        """The cheapest block under this filter plan, or None when nothing fits."""
        tilings = self._tilings(plan)
        fits = tilings.words <= self.hardware.capacity_words
        if not fits.any():
            return None
        cost = np.where(fits, self._cost(plan, tilings), np.inf)
        close = cost <= cost.min() * (1 + TOLERANCE)
        at = int(np.where(close, tilings.psum_words, 0).argmax())
        return float(cost[at]), tilings.at(at)

    def least_words(self, plan: _FilterPlan) -> int:
        """Words of the smallest tiling under this filter plan."""
        return int(self._tilings(plan).words.min())

    def _tilings(self, plan: _FilterPlan) -> Tiling[Counts]:
        rows, cols, groups = self._candidates
        parts = self.shape.groups * self._blocks()
        stored = _stored(self.shape.row, rows) * _stored(self.shape.col, cols) * groups
        return Tiling(
            rows=rows,
            cols=cols,
            groups=groups,
            loop_order=plan.loop_order,
            chunk_passes=plan.chunk_passes,
            ifmap_buffers=np.minimum(2, parts),
            filter_buffers=plan.buffers,
            psum_buffers=np.minimum(2, parts * self.columns),
            ifmap_words=self.folds * stored,
            chunk_words=plan.chunk_words,
            psum_words=rows * cols * groups,
        )

    def _blocks(self) -> Counts:
        rows, cols, groups = self._candidates
        return _ceil(self.shape.row.extent, rows) * _ceil(self.shape.col.extent, cols) * _ceil(self.groups, groups)

    def _cost(self, plan: _FilterPlan, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Estimated cycles of the layer for every candidate block."""
        blocks, folds = self._blocks(), self.shape.groups * self.columns
        per_pass = self._pass_cycles(tilings)
        array = blocks * folds * (len(self.passes) * per_pass + self._drain_cycles())
        load, spill = self._load_cycles(tilings), self._spill_cycles(tilings)
        again = 1 if plan.resident or plan.loop_order == "filter_major" else blocks
        reloads = np.where(blocks > 2, self.columns if plan.loop_order == "filter_major" else 1, 1)
        filters = folds * again * self._moving(self._filter_cycles() / self.columns, self._filter_pieces(plan))
        loads = self.shape.groups * blocks * reloads * self._moving(load, self._ifmap_pieces())
        bus = filters + loads + spill * blocks * folds
        first = self._first_cycles(plan, load)
        # Between the fill of one tile and the spill of another the bus waits for the last words and the drain.
        turnaround = self.hardware.latency_cycles + self.hardware.array.rows + self.word_fill
        waits = (folds * blocks - 1) * turnaround + per_pass * plan.last_passes
        return np.asarray(first + spill + np.maximum(array, bus - first - spill + waits), dtype=np.float64)

    def _pass_cycles(self, tilings: Tiling[Counts]) -> Counts:
        """One pass over a block: its stream or the next preload, whichever takes longer."""
        hardware, arrays = self.hardware, self.hardware.array.count
        shared = hardware.vector_memory.ports == "shared"
        slots = (1 if not shared else 3 if len(self.passes) > 1 else 2) * arrays
        adds = -(-self.word_fill * arrays * hardware.lanes // hardware.vector_unit.alus) if len(self.passes) > 1 else 0
        frame = max(self.word_fill, slots, adds)
        # A full frame leaves the preload no slot before the stream is over.
        serial = hardware.preload_cycles if frame == slots and shared else 0
        return np.asarray(np.maximum(-(-tilings.psum_words // arrays) * frame, hardware.preload_cycles) + serial)

    def _drain_cycles(self) -> int:
        """A block's first preload and last results, where they are not hidden behind other blocks."""
        return self.hardware.preload_cycles + self.hardware.array.rows + self.word_fill if self.drains else 0

    def _load_cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """The ifmap of one block, from HBM or through the unpacking."""
        elements = (
            tilings.ifmap_words
            / self.folds
            * self.word_fill
            * self._stored_channels(self.shape.channels, self.shape.channels)
        )
        moved = elements * self._element_cycles * self._waste("in")
        return np.maximum(moved, tilings.ifmap_words * self.hardware.vector_unit.unpack_cycles)

    def _spill_cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """The results of one block and column fold, to HBM or through the packing."""
        out = self.shape.out_channels
        channels = self._stored_channels(min(self.hardware.array.cols, out), out)
        moved = tilings.psum_words * self.word_fill * channels * self._element_cycles * self._waste("out")
        return np.maximum(moved, tilings.psum_words * self.hardware.vector_unit.pack_cycles)

    def _filter_cycles(self) -> float:
        """The filter of one channel group, once."""
        shape = self.shape
        return shape.channels * shape.row.kernel * shape.col.kernel * shape.out_channels * self._element_cycles

    def _first_cycles(self, plan: _FilterPlan, load: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the first pass waits for: one fold, or an even piece of the block and of the filter."""
        if not self.drains:
            return load / self.folds
        chunk = self._filter_cycles() / self.columns * plan.chunk_passes / len(self.passes)
        return load / min(MOST_PIECES, self.folds) + chunk / min(MOST_PIECES, plan.chunk_passes)

    def _moving(self, cycles: Cycles, pieces: int) -> Cycles:
        """Bus time of a load in pieces. Two are under way at once, each from its latency to its last word."""
        return np.maximum(cycles, (cycles + (pieces - 2) * self.hardware.latency_cycles) / 2)

    def _ifmap_pieces(self) -> int:
        return min(MOST_PIECES, self.folds if self.folds > 1 else self.shape.row.extent)

    def _filter_pieces(self, plan: _FilterPlan) -> int:
        """Pieces of one column fold's filter."""
        return -(-len(self.passes) // plan.chunk_passes) * min(MOST_PIECES, plan.chunk_passes)

    @property
    def drains(self) -> bool:
        return self.hardware.sequencer.between_blocks == "drain"

    def _stored_channels(self, channels: int, of_group: int) -> float:
        """Channels moved for `channels`, with their share of the padding after the last of all."""
        total = of_group * self.shape.groups
        return channels * padded(total, self.hardware.hbm.channel_multiple) / total

    @property
    def _element_cycles(self) -> float:
        return self.hardware.vector_memory.element_bytes / float(self.hardware.hbm_bytes_per_cycle)

    def _waste(self, direction: str) -> NDArray[np.float64]:
        """Bytes moved over bytes wanted: short runs of images are rounded up to whole bursts."""
        _, _, groups = self._candidates
        channels = self.shape.channels if direction == "in" else self.shape.out_channels
        stored = self._stored_channels(channels, channels)
        run = np.where(groups == self.groups, stored * self.shape.images, groups * self.word_fill)
        run_bytes = run * self.hardware.vector_memory.element_bytes
        burst = self.hardware.hbm.burst_bytes
        return np.asarray(-(-run_bytes // burst) * burst / run_bytes, dtype=np.float64)


def _parts(extent: int) -> list[int]:
    """All distinct ceil(extent / n), ascending: block extents that cut an axis into nearly equal parts."""
    parts, n = [extent], 1
    while parts[-1] > 1:
        n = -(-extent // (parts[-1] - 1))
        parts.append(-(-extent // n))
    return parts[::-1]


def _ceil(extent: int, part: Counts) -> Counts:
    return -(-extent // part)


def _stored(axis: Axis, outputs: Counts) -> Counts:
    """Most grid points that any `outputs` neighbouring outputs touch."""
    span = (outputs - 1) * axis.step + (axis.kernel - 1) * axis.tap_step + 1
    real = len(axis.stored(range(axis.extent)))
    return np.minimum(span, real)


def _too_small(search: _Search) -> CapacityError:
    hardware = search.hardware
    words = min(search.least_words(plan) for plan in search.filter_plans())
    return CapacityError(
        f"the smallest tiling needs {words} words of {hardware.word_bytes} B a lane, and the vector memory has "
        f"{hardware.capacity_words}; set vector_memory.capacity to at least {words * hardware.word_bytes} B "
        f"(it is {hardware.vector_memory.capacity_bytes} B), or choose smaller words or a larger array"
    )
