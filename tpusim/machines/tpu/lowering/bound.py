"""What no run of a tiling can beat: cycles that every engine takes at least, whatever waits for what.

A search that tries tilings in this order may stop as soon as the best so far is close to what is left. `estimate` says
about what a tiling would cost, this what it must cost. What is hard to tell is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition.frame import IFMAP, PSUM, RESULT, frame_of
from tpusim.machines.tpu.definition.latencies import add_cycles, word_cycles, word_latency
from tpusim.machines.tpu.lowering.geometry import MapAxis, padded
from tpusim.machines.tpu.lowering.preparation import patch
from tpusim.machines.tpu.lowering.tiles import stored_ifmap
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling
from tpusim.memory.layout import inside
from tpusim.memory.orders import Layouts

if TYPE_CHECKING:
    from tpusim.machines.tpu.lowering.candidates import Candidates

Cycles: TypeAlias = Any  # a float, or an array of them: one a candidate
Points: TypeAlias = Callable[[MapAxis, int, range], int]
"""Grid points of an axis, from the size of its blocks and the taps."""


class _Array(NamedTuple):
    """Cycles of the array.

    `all`: from its first pass to the end of the last. `issued`: from pass to pass, without what comes before a body;
    the last of several has its stream only, at most `short` fewer. `smallest`: the stream of the fewest `words` that a
    block has. `results`: one a block and column fold.
    """

    all: Cycles
    issued: Counts
    short: Counts
    smallest: Counts
    words: Counts
    results: Counts


class _Moved(NamedTuple):
    """Cycles that transfers take of the bus by their bytes, and by their conversion."""

    bus: Cycles
    converted: Cycles = 0


class Bound:
    """The least cycles of candidate tilings of one layer."""

    def __init__(self, candidates: Candidates) -> None:
        self.of, self.shape, self.hardware = candidates, candidates.shape, candidates.hardware
        self.chunk, self.passes = candidates.chunk, len(candidates.passes)
        self.delay = self.hardware.sequencer.block_cycles
        self._known: dict[tuple[Points, bool, bytes], Counts] = {}

    def cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """The least cycles of every candidate: no run takes fewer."""
        chunks = np.asarray(-(-self.of.folds // tilings.chunk_folds) * -(-self.of.taps // tilings.chunk_taps))
        array, again = self._array(tilings, chunks), self._again(tilings, chunks)
        ifmap, ofmap, last = self._loads(tilings, again), self._spills(tilings), self._last_spill(array)
        filters, first = _Moved(self._filters(tilings, chunks)), self._first_pass(tilings, chunks)
        loads, spills = self._in_turn(ifmap), self._in_turn(ofmap)
        paths = [
            first + array.all + self._after + last,
            self._in_turn(ifmap, filters, ofmap),
            self._in_turn(ifmap, filters) + self._latency + array.smallest + self._after + last,
        ]
        if (simple := (chunks == 1) & (tilings.span == 0)).any():
            turns = [
                first + self._by_results(tilings, array, spills),
                *(self._by_loads(tilings, array, loads, again, spills, last) if not self.chunk.by_tap else ()),
            ]
            paths += [np.where(simple, each, 0) for each in turns]
        ends = self.hardware.sequencer.launch_cycles + self._latency + self.hardware.lanes - 1
        # Cycles are whole; a little less, as these are not exact.
        return np.asarray(np.ceil(ends + np.max(np.broadcast_arrays(*paths), axis=0) - 1e-6), dtype=np.float64)

    # ---- the array

    @cached_property
    def _period(self) -> int:
        clients = (IFMAP, PSUM, RESULT) if self.passes > 1 else (IFMAP, RESULT)
        ready = word_cycles(self.of.groups, self.of.cut.transposed, self.hardware)
        return frame_of(self.hardware, self.of.word_fill, clients, word_cycles=ready).period

    @cached_property
    def _after(self) -> int:
        """From the last frame of a pass to the cycle in which its results are written, if their slot is the next."""
        latency = word_latency(self.of.word_fill, self.hardware)
        written = latency - 1 + add_cycles(self.of.word_fill, self.hardware) if self.passes > 1 else latency
        return written + 2 - self._period

    def _turn(self, stream: Counts, delay: int = 0) -> Counts:
        """From pass to pass: the stream of one, or what comes before the next where that takes longer."""
        weights = self.hardware.preload_cycles + delay
        return stream + weights if self.hardware.array.weight_buffers == 1 else np.maximum(stream, weights)

    def _array(self, tilings: Tiling[Counts], chunks: Counts) -> _Array:
        drains, columns, groups = self.of.estimate.drains, self.of.columns, self.shape.groups
        bodies, weights = -(-columns // tilings.kept_folds) * chunks, self.hardware.preload_cycles + self.delay
        issued, waited = np.zeros_like(tilings.blocks), np.zeros(tilings.blocks.shape)
        smallest = words = np.full_like(tilings.blocks, np.iinfo(np.int64).max)
        for count, size, prepared in self._sizes(tilings):
            stream = -(-size // self.hardware.array.count) * self._period
            turn, late = self._turn(stream), np.where(chunks == 1, prepared, 0)
            issued = issued + count * columns * self.passes * turn
            extra = self._after + weights + stream - turn if drains else self._turn(stream, self.delay) - turn
            waited = waited + count * (bodies * extra + (late if drains else 0))
            smallest, words = (
                np.where(count > 0, np.minimum(had, new), had) for had, new in ((smallest, stream), (words, size))
            )
        first, *_ = self._sizes(tilings)
        prepared = np.where(chunks == 1, first[2], 0)
        beyond = self._after + weights + prepared if drains else self._turn(smallest, self.delay) - smallest
        every = groups * (issued + waited) - beyond
        short = self._turn(smallest) - smallest
        return _Array(every, groups * issued, short, smallest, words, tilings.blocks * columns * groups)

    def _sizes(self, tilings: Tiling[Counts]) -> list[tuple[Counts, Counts, Cycles]]:
        """How many blocks there are of how many words, full ones first; what the vector unit takes for each patch."""
        extents = self.shape.row.extent, self.shape.col.extent, self.of.groups
        if tilings.span.any():
            return [(count, size, 0) for count, size in _portions(prod(extents), tilings.span)]
        rows, cols, groups = (
            _portions(extent, size)
            for extent, size in zip(extents, (tilings.rows, tilings.cols, tilings.groups), strict=True)
        )
        return [(a * b * c, x * y * z, self._rotated(x, y, z)) for a, x in rows for b, y in cols for c, z in groups]

    def _rotated(self, rows: Cycles, cols: Cycles, groups: Cycles) -> Cycles:
        """Cycles to rotate what blocks of such extents need into the lane groups of further copies."""
        cycles = 0 if self.of.cut.transposed else self.chunk.rotations * float(self.hardware.vector_unit.stack_cycles)
        return cycles and prod(patch(self.shape, self.chunk, (rows, cols, groups))) * groups * cycles

    # ---- the bus

    @cached_property
    def _latency(self) -> int:
        """That of a DRAM is its own."""
        return 0 if self.hardware.hbm.dram else self.hardware.latency_cycles

    @cached_property
    def _element_cycles(self) -> float:
        return self.hardware.vector_memory.element_bytes / float(self.hardware.hbm_peak_bytes_per_cycle)

    def _in_turn(self, *moved: _Moved) -> Cycles:
        """One after another. A DRAM may still have bursts to move while those after them are converted."""
        if self.hardware.hbm.dram:
            return np.maximum(sum(each.bus for each in moved), sum(each.converted for each in moved))
        return sum(np.maximum(*each) for each in moved)

    @cached_property
    def _unpacking(self) -> float:
        """Cycles an element: of a fill, no more stand in a word of all lanes."""
        words = self.hardware.lanes * self.hardware.vector_memory.word_elements
        return float(self.hardware.vector_unit.unpack_cycles) / words

    def _images(self, tilings: Tiling[Counts]) -> Cycles:
        """As many as take the bus as long as all do, where each run of a word group's is moved in whole bursts: only
        where images are neighbours in HBM.
        """
        if self.hardware.hbm.layout != Layouts() or self.hardware.hbm.dram:
            return self.shape.images
        images, run, size = self.shape.images, tilings.groups * self.of.word_fill, self.hardware.vector_memory
        burst = self.hardware.hbm.burst_bytes
        full, left = (-(-each * size.element_bytes // burst) * burst for each in (run, images % run))
        apart = (images // run * full + left) / size.element_bytes
        return np.where((tilings.groups < self.of.groups) & (self.shape.strips == 1), apart, images)

    def _spills(self, tilings: Tiling[Counts]) -> _Moved:
        """All results, once."""
        shape, (channels, rows, cols, _) = self.shape, self.shape.tensors.ofmap
        stored = padded(channels, self.hardware.hbm.channel_multiple)
        words = shape.row.extent * shape.col.extent * self.of.groups * shape.groups * self.of.columns
        moved = stored * rows * cols * self._images(tilings) * self._element_cycles
        return _Moved(moved, words * float(self.hardware.vector_unit.pack_cycles))

    def _last_spill(self, array: _Array) -> Cycles:
        """The fewest cycles of one spill."""
        # A word of the last group may be the emptiest; where strips share words, one may be all padding.
        images = self.shape.images - (self.of.groups - 1) * self.of.word_fill if self.shape.strips == 1 else 0
        moved = images * min(map(len, self.of.col_folds)) * self._element_cycles
        return array.words * max(moved, float(self.hardware.vector_unit.pack_cycles))

    def _filters(self, tilings: Tiling[Counts], chunks: Counts) -> Cycles:
        """Once, or for every block where the sections of all folds that come by turns do not find buffers."""
        sections = np.maximum(chunks, -(-self.passes // tilings.section_passes))
        kept = self.of.columns if tilings.loop_order == "block_major" else tilings.kept_folds
        left = self.of.columns % kept
        fewest = np.where(left, left, kept)
        times = np.where(fewest * sections > tilings.filter_buffers, tilings.blocks, 1)
        return prod(self.shape.tensors.filter) * self._element_cycles * times

    def _again(self, tilings: Tiling[Counts], chunks: Counts) -> Counts:
        """How often the ifmap comes, for all column folds."""
        held = chunks if tilings.loop_order == "block_major" else chunks * tilings.blocks
        return np.where(held > tilings.ifmap_buffers, -(-self.of.columns // tilings.kept_folds), 1)

    def _loads(self, tilings: Tiling[Counts], again: Counts) -> _Moved:
        """The ifmap for all blocks, so often: what lies between taps too, where all of them are on chip together."""
        shape, (channels, images) = self.shape, stored_ifmap(self.shape, self.hardware)
        points = np.full_like(tilings.blocks, self._count(_touched, shape.row) * self._count(_touched, shape.col))
        if not self.chunk.by_tap and not tilings.span.any():
            together = self._looked_up(_brought, tilings.rows, tilings.cols)
            points = np.where(tilings.chunk_taps < self.of.taps, points, together)
        moved = points * channels * np.maximum(self._images(tilings), images) * self._element_cycles
        return _Moved(moved * again, points * self._unpacked_channels * shape.images * self._unpacking * again)

    @cached_property
    def _unpacked_channels(self) -> int:
        """Channels of all groups; the padding after the last, too, if the place that has them leaves lanes for it."""
        shape, (stored, _) = self.shape, stored_ifmap(self.shape, self.hardware)
        own = min(shape.channels * shape.groups, shape.tensors.ifmap[0])
        most = max(len({*place.channels}) for place in self.chunk.places)
        free = not self.hardware.banked and not self.chunk.by_tap and most + stored - own <= self.hardware.lanes
        return stored if free else own

    def _first_pass(self, tilings: Tiling[Counts], chunks: Counts) -> Cycles:
        """Until it is issued: its weights come, then, beside the preload, the first places of the first block."""
        rotated = self._rotated(tilings.rows, tilings.cols, tilings.groups)
        drains = self.of.estimate.drains & (chunks == 1) & (tilings.span == 0)
        preload = self.delay + self.hardware.preload_cycles + np.where(drains, rotated, 0)
        weights = self._first_weights(tilings) * len(self.of.col_folds[0]) * self._element_cycles
        if self.chunk.by_tap or tilings.span.any() or self.shape.strips > 1:
            return self._latency + preload + np.where(chunks == 1, weights, 0)
        points = self._looked_up(_first, tilings.rows, tilings.cols)
        elements = points * np.minimum(tilings.groups * self.of.word_fill, self.shape.images)
        brought = elements * self._begun_with
        filled = self._in_turn(_Moved(weights), _Moved(brought * self._element_cycles, brought * self._unpacking))
        return self._latency + np.where(chunks == 1, np.maximum(filled, weights + preload), preload)

    def _first_weights(self, tilings: Tiling[Counts]) -> Cycles:
        """Weights of a column that the first pass waits for: its own, or, where loads are whole, those of its section.

        Of a bundle's, those of other groups are zeros that come from nowhere.
        """
        rows = np.cumsum([each.rows for each in self.of.passes])
        together = 1 if self.hardware.mapping.loads == "pieces" else tilings.section_passes
        return np.asarray(rows[np.minimum(together, len(rows)) - 1]) / self.shape.bundle

    @cached_property
    def _begun_with(self) -> int:
        """Channels of the ifmap that the first pass waits for."""
        if self.hardware.mapping.loads == "pieces":
            return self.chunk.places[0].brought
        return sum(len(channels) for _, channels in self.chunk.brought(range(len(self.chunk.places))))

    def _looked_up(self, points: Points, rows: Counts, cols: Counts) -> Counts:
        """Points by rows times points by columns, each worked out once; the same blocks come in many ways."""
        of_rows, of_cols = (
            self._by_size(points, axis, sizes) for axis, sizes in ((self.shape.row, rows), (self.shape.col, cols))
        )
        return of_rows * of_cols

    def _by_size(self, points: Points, axis: MapAxis, sizes: Counts) -> Counts:
        key = points, axis is self.shape.row, sizes.tobytes()
        if key not in self._known:
            different, where = np.unique(sizes, return_inverse=True)
            counts = [self._count(points, axis, size) for size in different.tolist()]
            self._known[key] = np.array(counts, dtype=np.int64)[where]
        return self._known[key]

    def _count(self, points: Points, axis: MapAxis, size: int = 1) -> int:
        return points(axis, size, self.chunk.tap_rows if axis is self.shape.row else self.chunk.tap_cols)

    # ---- what takes turns in buffers

    def _by_results(self, tilings: Tiling[Counts], array: _Array, spills: Cycles) -> Cycles:
        """Partial sums in so many buffers: passes, then their results, then the spill up to its last word."""
        read = np.maximum(spills * (1 - 1 / array.words) - array.results, 0)
        return (array.issued + array.results * (self._after - array.short) + read) / tilings.psum_buffers

    def _by_loads(
        self, tilings: Tiling[Counts], array: _Array, loads: Cycles, again: Counts, spills: Cycles, last: Cycles
    ) -> list[Cycles]:
        """Patches in so many buffers: a fill, then all passes over it. Places are filled beside passes over others.

        Where each patch is for one result, the one queue takes its fill after the spill of the last but one.
        """
        of_groups = -(-self.of.groups // tilings.groups) * self.shape.groups
        filled = self._looked_up(_needed, tilings.rows, tilings.cols) * of_groups
        count = tilings.blocks * self.shape.groups * again
        each = self._after - array.short + self._latency
        turns = array.issued + count * each + (0 if self.chunk.one_by_one else loads)
        # A block of padding alone waits for nothing.
        turns = np.where(filled * again == count, turns, 0)
        both = np.where(count == array.results, (turns + spills) / (2 * tilings.lag), 0)
        return [turns / tilings.ifmap_buffers + last, np.where(turns > 0, both, 0)]


def _portions(extent: int, sizes: Counts) -> list[tuple[Counts, Counts]]:
    left = extent % sizes
    return [(extent // sizes, sizes), (np.minimum(left, 1), left)]


def _in_blocks(axis: MapAxis, size: int, taps: range) -> list[range]:
    """Grid points that blocks of so many outputs need, block by block."""
    starts = range(0, axis.extent, size)
    return [axis.stored(range(at, min(at + size, axis.extent)), taps) for at in starts]


def _brought(axis: MapAxis, size: int, taps: range) -> int:
    """Those that come from HBM for all blocks, in every strip."""
    apart, blocks = axis.extent * axis.stride, [axis.coordinates(each) for each in _in_blocks(axis, size, taps)]
    return sum(len(inside(each, strip * apart, axis.size)) for each in blocks for strip in range(axis.strips))


def _needed(axis: MapAxis, size: int, taps: range) -> int:
    """Blocks of so many outputs that need any."""
    return sum(len(each) > 0 for each in _in_blocks(axis, size, taps))


def _first(axis: MapAxis, size: int, taps: range) -> int:
    """Those of the first block."""
    return len(axis.stored(range(size), taps))


def _touched(axis: MapAxis, _: int, taps: range) -> int:
    """Coordinates of the ifmap on which some tap stands, whatever the blocks."""
    stands = {out * axis.stride + tap * axis.dilation - axis.padding[0] for out in range(axis.outputs) for tap in taps}
    return len(stands & {*range(axis.size)})
