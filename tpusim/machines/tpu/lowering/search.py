"""Choose the tiling: the cheapest that fits, by its estimate."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.estimate import Estimate
from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.reduction import col_folds, reduction
from tpusim.machines.tpu.lowering.tiling import Counts, FilterPlan, Tiling, weight_words, word_groups

TOLERANCE = 0.01
"""Among blocks whose estimates lie this close to the best, the largest is taken: fewer passes to run."""


def choose(shape: ConvShape, hardware: Hardware) -> Tiling[int]:
    """The tiling with the lowest estimated cycles.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    tiling = _same_block(shape, hardware) or _best(_Space(shape, hardware, None))
    if tiling is None:
        raise _too_small(_Space(shape, hardware, None))
    return tiling


def _best(space: _Space) -> Tiling[int] | None:
    """The first of the filter plans whose estimates lie close to the best: it moves the filter in the fewest pieces."""
    found = [each for plan in space.filter_plans() if (each := space.best_block(plan)) is not None]
    close = min((cost for cost, _ in found), default=0) * (1 + TOLERANCE)
    return next((tiling for cost, tiling in found if cost <= close), None)


def _same_block(shape: ConvShape, hardware: Hardware) -> Tiling[int] | None:
    """With a forced multi-tile, the block that the paper's rule would get: only one thing changes at a time.

    None where the number is not forced, or that block does not fit with it.
    """
    if not isinstance(hardware.mapping.multi_tile, int):
        return None
    mapping = hardware.mapping.model_copy(update={"multi_tile": "auto"})
    ruled = _best(_Space(shape, hardware.model_copy(update={"mapping": mapping}), None))
    return ruled and _best(_Space(shape, hardware, (ruled.rows, ruled.cols, ruled.groups)))


class _Space:
    def __init__(self, shape: ConvShape, hardware: Hardware, block: tuple[int, int, int] | None) -> None:
        self.shape, self.hardware = shape, hardware
        self.passes = reduction(shape, hardware)
        self.pass_words = weight_words(self.passes, hardware)
        self.block = block
        self.folds = self.passes[-1].fold + 1
        self.columns = len(col_folds(shape, hardware))
        self.groups, self.word_fill = word_groups(shape.word_images, hardware.vector_memory.word_elements)

    def filter_plans(self) -> Iterator[FilterPlan]:
        """Whole filter resident; a column fold at a time in either order; ever smaller chunks of a fold."""
        folds = self.shape.groups * self.columns
        whole, orders = sum(self.pass_words), self._orders()
        for order in orders:
            yield FilterPlan(order, len(self.passes), whole, folds, resident=True)
            yield FilterPlan(order, len(self.passes), whole, min(2, folds), resident=folds <= 2)
        chunk = len(self.passes) // 2
        while chunk and "block_major" in orders:
            words = max(sum(self.pass_words[at : at + chunk]) for at in range(0, len(self.passes), chunk))
            yield FilterPlan("block_major", chunk, words, 2, resident=False)
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

    @cached_property
    def _estimate(self) -> Estimate:
        _, _, block_groups = self._candidates
        return Estimate(
            self.shape, self.hardware, len(self.passes), self.folds, self.columns, self.groups, self.word_fill,
            block_groups, self._blocks,
        )  # fmt: skip

    def best_block(self, plan: FilterPlan) -> tuple[float, Tiling[int]] | None:
        """The cheapest block under this filter plan, or None when nothing fits."""
        tilings = self._tilings(plan)
        fits = tilings.words <= self.hardware.capacity_words
        if not fits.any():
            return None
        cost = np.where(fits, self._estimate.cycles(plan, tilings), np.inf)
        close = cost <= cost.min() * (1 + TOLERANCE)
        at = int(np.where(close, tilings.psum_words, 0).argmax())
        return float(cost[at]), tilings.at(at)

    def least_words(self, plan: FilterPlan) -> int:
        """Words of the smallest tiling under this filter plan."""
        return int(self._tilings(plan).words.min())

    def _tilings(self, plan: FilterPlan) -> Tiling[Counts]:
        rows, cols, groups = self._candidates
        parts = self.shape.groups * self._blocks
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

    @cached_property
    def _blocks(self) -> Counts:
        """How many blocks each candidate makes."""
        rows, cols, groups = self._candidates
        return _ceil(self.shape.row.extent, rows) * _ceil(self.shape.col.extent, cols) * _ceil(self.groups, groups)


def _parts(extent: int) -> list[int]:
    """All distinct ceil(extent / n), ascending: block extents that cut an axis into nearly equal parts."""
    parts, n = [extent], 1
    while parts[-1] > 1:
        n = -(-extent // (parts[-1] - 1))
        parts.append(-(-extent // n))
    return parts[::-1]


def _ceil(extent: int, part: Counts) -> Counts:
    return -(-extent // part)


def _stored(axis: MapAxis, outputs: Counts) -> Counts:
    """Most grid points that any `outputs` neighbouring outputs touch."""
    span = (outputs - 1) * axis.step + (axis.kernel - 1) * axis.tap_step + 1
    real = len(axis.stored(range(axis.extent)))
    return np.minimum(span, real)


def _too_small(space: _Space) -> CapacityError:
    hardware = space.hardware
    words = min(space.least_words(plan) for plan in space.filter_plans())
    return CapacityError(
        f"the smallest tiling needs {words} words of {hardware.word_bytes} B a lane, and the vector memory has "
        f"{hardware.capacity_words}; set vector_memory.capacity to at least {words * hardware.word_bytes} B "
        f"(it is {hardware.vector_memory.capacity_bytes} B), or choose smaller words or a larger array"
    )
