"""Choose the tiling: the cheapest that fits, by its estimate; or the few that a simulation should choose from.

A simulation tries the tiling first that is expected to be fastest, and skips those that cannot be. `Bound` gives cycles
that every engine takes at least, whatever waits for what; `Candidates.estimate` gives roughly what a tiling would cost.
A bound leaves out whatever is hard to tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, lru_cache, partial, reduce
from itertools import islice, pairwise, starmap
from math import prod
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.cut.blocks import padded
from tpusim.machines.tpu.cut.geometry import MapAxis, stored_ifmap
from tpusim.machines.tpu.cut.reduction import Cut
from tpusim.machines.tpu.cut.tiling import MOST_PIECES, Counts, Cycles, Demand, Tiling, parted, summed, together
from tpusim.machines.tpu.definition import Frame, finish_cycles, word_latency
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.search.estimates import Candidates
from tpusim.machines.tpu.search.windows import Windows
from tpusim.memory.hbm_layout import Layouts

TOLERANCE = 0.01
"""Relative distance of estimates within which the block with the most words is taken: it has fewer passes to run."""

CLOSE = 2 * TOLERANCE
"""Relative distance within which two choices count as equal: each may be `TOLERANCE` above the best."""

TRUSTED = 0.01
"""Share by which a run may exceed its estimate before the estimate counts as misleading."""

NEAR = 0.15
"""Relative distance of two estimates within which simulation chooses between them."""

MOST_RANKED, MOST_TIMED = 48, 16
"""Most tilings of a layer that are put in order, and most that a simulation chooses from beside the estimate's choice.
"""

MOST_BLOCKS, FEW_PASSES = 4, 512
"""Tilings with more than MOST_BLOCKS times the blocks of the estimate's choice are tried only for layers of few passes.
"""

BELIEVED, AGAIN = 0.1, 0.02
"""Weights of a guess. A tiling is expected to take its bound and the share `BELIEVED` of what its estimate has beyond
the bound: bounds tie, and estimates are now and then too high by half.

Two ways to hold one block seldom differ in time, so each further way is expected to take the share `AGAIN` more.
"""

ALIKE = 0.005
"""Relative distance of expectations within which the larger block comes first: it has fewer passes to run."""

_SECTION = "section_passes", "section_words"


class RankedTiling(NamedTuple):
    """A tiling with the `least` cycles that it can take and its `estimate`.

    `floor` gives the least cycles of every tiling whose array takes some share of this one's cycles; `of_any` gives
    cycles that no tiling of the layer can beat, 0 where nobody knows. Among several, the tiling that is `expected` to
    take the fewest cycles comes first.
    """

    tiling: Tiling[int]
    least: float = 0.0
    estimate: Callable[[], float] = float
    floor: Callable[[float], float] = float
    expected: float = 0.0
    of_any: Callable[[], float] = float


def candidates_of(hardware: Hardware) -> type[Candidates]:
    """What a machine's layers may choose from."""
    return Windows if hardware.mapping.loads == "windows" else Candidates


@lru_cache(maxsize=1 << 14)
def tilings_of(cut: Cut, hardware: Hardware, among: type[Candidates] | None = None) -> tuple[RankedTiling, ...]:
    """Tilings that a simulation should choose from, in the order in which to try them; or only the estimate's
    choice.

    The result is cached: a layer is asked for its number of steps before it is lowered.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    # A layer is mostly searched twice: all layers by the estimate first, then each for what to simulate.
    of: Callable[[Cut, Hardware], Candidates] = among or candidates_of(hardware)
    found = _searched(cut, hardware.having("mapping", search="estimate"), of)
    return ranked(found) if hardware.mapping.search == "simulate" else (found.first._replace(least=0.0),)


class SearchOutcome(NamedTuple):
    """The estimate's choice, the candidates that it is among, and their bound."""

    first: RankedTiling
    candidates: Candidates
    bound: Bound


@lru_cache(maxsize=1 << 10)
def _searched(cut: Cut, hardware: Hardware, of: Callable[[Cut, Hardware], Candidates]) -> SearchOutcome:
    candidates, tiling, estimate = _chosen(of(cut, hardware))
    bound = Bound(candidates)
    least = bound.alone(tiling)
    # An estimate is no lower than the bound.
    estimate = max(estimate, least if bound.piped is bound else bound.piped.alone(tiling))
    first = RankedTiling(tiling, least, partial(float, estimate), candidates.floor, of_any=bound.of_any)
    return SearchOutcome(first, candidates, bound)


def choose(cut: Cut, hardware: Hardware, among: type[Candidates] | None = None) -> Tiling[int]:
    """The tiling with the lowest estimated cycles among the candidates for a reduction that is cut by `cut`.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    return _chosen((among or candidates_of(hardware))(cut, hardware))[1]


def best(candidates: Candidates) -> tuple[Tiling[int], float] | None:
    """The cheapest tiling by its estimate, and that; None if none fits.

    Deeper buffers, and reductions in chunks, are taken only where their estimate is clearly lower, or as low with fewer
    blocks and every tap of them on chip. Each way is represented by its cheapest tiling, or by the one with the largest
    block among those that are close to it. Of the ways of a kind the first one close to the best is taken: it moves
    data in the fewest pieces.
    """
    found: tuple[float, Tiling[int], float] | None = None
    for tilings, fits, ends, estimates in candidates.fitting:
        costs, of_ways = np.where(fits, estimates, np.inf), list[int]()
        for mine in starmap(slice, pairwise(ends)):
            close = costs[mine] <= costs[mine].min() * (1 + TOLERANCE)
            of_ways.append(mine.start + int(np.where(close, tilings.psum_words[mine], 0).argmax()))
        least = costs[of_ways].min() * (1 + TOLERANCE)
        at = next(at for at in of_ways if costs[at] <= least)
        estimate, tiling = float(costs[at]), tilings.at(at)
        cost = estimate + float(candidates.late(tiling))
        if found:
            before, simple, _ = found
            fewer = tiling.blocks < simple.blocks and tiling.chunk_taps == simple.chunk_taps
            if cost * (1 / (1 + TOLERANCE) if fewer else 1 + TOLERANCE) >= before:
                continue
        found = cost, tiling, estimate
    return found and found[1:]


def _chosen(candidates: Candidates) -> tuple[Candidates, Tiling[int], float]:
    """The candidates, the cheapest tiling among them, and its estimate.

    With a forced multi-tile, these have the block that the paper's rule would get, if it fits, so that only one thing
    changes at a time.
    """
    cut, hardware, among = candidates.cut, candidates.hardware, type(candidates)
    if cut.ruled and (ruled := best(among(cut.ruled, hardware))):
        block, _ = ruled
        alike = among(cut, hardware, (block.rows, block.cols, block.groups))
        if found := best(alike):
            return alike, *found
    if found := best(candidates):
        return candidates, *found
    raise candidates.too_small()


# ---- what a simulation should try


def ranked(searched: SearchOutcome) -> tuple[RankedTiling, ...]:
    """The estimate's choice, then the tilings that are expected to be fastest.

    A block that is ranked already goes behind other blocks. Tilings that differ only in how they cut the filter count
    once, unless a body waits for a whole section of the filter.
    """
    first, candidates, bound = searched
    chosen, a_block = first.tiling, candidates.shape.groups * candidates.columns * candidates.passes
    most = max(MOST_BLOCKS * chosen.blocks, FEW_PASSES // a_block)
    alike = _SECTION if candidates.hardware.mapping.loads == "pieces" else ()
    held, found = Counter([chosen.outputs]), list[RankedTiling]()
    for each in islice(_distinct(candidates, bound, alike, most), MOST_RANKED):
        if each.tiling != chosen:
            found.append(each._replace(expected=each.expected * (1 + AGAIN * held[each.tiling.outputs])))
            held[each.tiling.outputs] += 1
    found.sort(key=attrgetter("expected"))
    beyond = max(first.estimate() - first.least, 0)
    return (first._replace(expected=first.least + BELIEVED * beyond), *found[:MOST_TIMED])


def every(candidates: Candidates) -> tuple[RankedTiling, ...]:
    """All tilings that fit, each once."""
    return tuple(_distinct(candidates, Bound(candidates), (), None))


class Standing(NamedTuple):
    """The standing of a tiling among all that fit the machine, by their estimates.

    Attributes:
        estimate: cycles that are expected of it.
        faster: number of tilings that are expected to take fewer.
        tilings: number of all that fit.
        first: the tiling that is expected to be fastest.
        least: cycles that are expected of that one.
    """

    estimate: float
    faster: int
    tilings: int
    first: Tiling[int]
    least: float


def standing(candidates: Candidates, estimate: float) -> Standing:
    """The standing of a tiling with some `estimate` among the candidates, of which there is at least one."""
    all_that_fit = every(candidates)
    costs = np.array([each.estimate() for each in all_that_fit])
    first = int(costs.argmin())
    # What is not less by half a cycle is the same, worked out in another order.
    faster = int((costs < estimate - 0.5).sum())
    return Standing(estimate, faster, len(costs), all_that_fit[first].tiling, float(costs[first]))


def _distinct(candidates: Candidates, bound: Bound, but: Iterable[str], most: int | None) -> Iterator[RankedTiling]:
    """Tilings of at most `most` blocks, one for each set of equal ones; fields in `but` do not count as a
    difference.
    """
    known = set[tuple[object, ...]]()
    for tiling, *costs in _in_order(candidates, bound):
        if most is not None and tiling.blocks > most:
            continue
        # The loop order makes no difference with one block, or with all folds kept, so such tilings count as equal.
        order = "" if tiling.blocks == 1 or candidates.columns <= tiling.kept_folds else tiling.loop_order
        key = tuple({**vars(tiling), "loop_order": order, **dict.fromkeys(but, 0)}.values())
        if key not in known:
            known.add(key)
            least, estimated, expected = costs
            yield RankedTiling(tiling, least, partial(float, estimated), candidates.floor, expected)


def _in_order(candidates: Candidates, bound: Bound) -> Iterator[tuple[Tiling[int], float, float, float]]:
    """Tilings that fit, with their least, estimated and expected cycles, by the last; among equal ones by the largest
    block, then by the fewest filter buffers.

    Fewer buffers are better where the bound is equal: operands that come later are not fetched early.
    """
    kinds = candidates.fitting
    if not kinds:
        return
    tilings = together([each.tilings.each(itemgetter(each.fits)) for each in kinds])
    estimated = np.concatenate([each.estimates[each.fits] for each in kinds])
    whole = (tilings.chunk_taps == candidates.taps) & (tilings.chunk_folds == candidates.folds)
    # Beside chunks, all are compared as chunks are, which hide nothing behind the next block.
    least, guessed = bound.cycles(tilings), estimated if whole.all() else candidates.estimate(tilings)
    estimated = np.maximum(estimated, least if bound.piped is bound else bound.piped.cycles(tilings))
    expected = least + BELIEVED * np.maximum(guessed - least, 0)
    # Among equal ones, whole reductions come first, by their loop order, then those in chunks.
    turned = tilings.loop_order != tilings.loop_order[0]
    alike = expected // (least.min() * ALIKE)
    order = np.lexsort((turned, ~whole, tilings.filter_buffers, least, -tilings.psum_words, alike))
    costs = (each[order].tolist() for each in (least, estimated, expected))
    yield from zip(tilings.each(itemgetter(order)).one_by_one(), *costs, strict=True)


# ---- what no run of a tiling can beat


class _Array(NamedTuple):
    """Cycles of the array, for every candidate.

    `all` runs from its first pass to the end of the last. `issued` runs from pass to pass, without what comes before a
    body; the last of several passes counts with its stream only, which is at most `short` fewer. `smallest` is the
    stream of the fewest `words` that a block has. `results` counts one for each block and column fold. Of arrays with
    weights of their own, each counts with an equal share of all streams, since the busiest array has at least that; and
    while one of them waits, others may work.
    """

    all: Cycles
    issued: Cycles
    short: Cycles
    smallest: Cycles
    words: Counts
    results: Counts


class Bound:
    """Least cycles of candidate tilings of one layer, whatever the engine."""

    def __init__(self, candidates: Candidates) -> None:
        self.of, self.shape, self.hardware = candidates, candidates.shape, candidates.hardware
        self.chunk, self.passes, hardware = candidates.chunk, candidates.passes, candidates.hardware
        self._whole, self._apart = hardware.mapping.loads == "whole", hardware.array.queues > 1
        # Pieces that every load of the ifmap has, at least.
        self._pieces = min(MOST_PIECES, len(self.chunk.places)) if self.chunk.one_by_one else 1
        # A DRAM adds its own latency, which the bound leaves out.
        self._latency = 0 if hardware.hbm.dram else hardware.latency_cycles
        self._element_cycles = hardware.element_bytes / float(hardware.hbm_peak_bytes_per_cycle)
        self._weight_cycles, self._weight_unpacking = self.shape.weight_cycles(
            hardware.hbm_peak_bytes_per_cycle, hardware
        )
        self._result_cycles = hardware.result_bytes / float(hardware.hbm_peak_bytes_per_cycle)
        # A word of all lanes holds at most this many elements, so unpacking an element takes at least this long.
        in_a_word = hardware.lanes * hardware.vector_memory.word_elements
        self._unpacking = float(hardware.vector_unit.unpack_cycles) / in_a_word
        self._axes = (self.shape.row, self.chunk.tap_rows), (self.shape.col, self.chunk.tap_cols)
        self._count = cache(lambda counting, at, size: counting(self._axes[at][0], size, self._axes[at][1]))

    @cached_property
    def piped(self) -> Bound:
        """The bound where HBM is a pipe: a DRAM must not change which tilings are expected to be fast."""
        return Bound(self.of.piped) if self.hardware.hbm.dram else self

    def cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Least cycles of every candidate: no run takes fewer."""
        if isinstance(self.of, Windows):
            return np.full(tilings.blocks.shape, self.of_any())
        chunks = np.asarray(-(-self.of.folds // tilings.chunk_folds) * -(-self.of.taps // tilings.chunk_taps))
        # An ifmap that its buffers cannot hold comes again for other column folds.
        held = np.where(tilings.loop_order == "block_major", chunks, chunks * tilings.blocks)
        again = np.where(held > tilings.ifmap_buffers, -(-self.of.columns // tilings.kept_folds), 1)
        array, (times, sections, pieces) = self._array(tilings, chunks), self._filters(tilings, chunks)
        images = self._images(tilings)
        ifmap, ofmap = self._loads(tilings, again, images), self._spills(images)
        # A burst that is pending in a DRAM is fetched once for all who ask for it.
        repeated = 1 if self.hardware.hbm.dram else times
        weights = prod(self.shape.tensors.filter)
        filters = Demand(
            bus=weights * self._weight_cycles * repeated, converted=weights * self._weight_unpacking * times
        )
        first, loads, spills = self._first_pass(tilings, chunks), self._in_turn(ifmap), self._in_turn(ofmap)
        filled, last = self._in_turn(ifmap, filters), self._last_spill(tilings, array.words)
        # A buffer of weights is free again once the last of them is preloaded.
        by_sections = filters.bus + sections * (self._latency + self.hardware.preload_cycles)
        # Only loads of blocks that are known to need one are counted: a block on padding loads nothing.
        simple = (chunks == 1) & (tilings.span == 0)
        patches, every = tilings.blocks * self.shape.groups * again, self._every_filled(tilings)
        fills = pieces + np.where(every & simple, patches * self._pieces, 0)
        read = spills * (1 - 1 / array.words)
        paths = [
            first + array.all + self._after + last,
            self._in_turn(ifmap, filters, ofmap),
            filled + self._latency + array.smallest + self._after + last,
            by_sections / tilings.filter_buffers + array.smallest + self._after + last,
            self._two_at_once(filled + read, fills),
        ]
        if simple.any():
            # A buffer of partial sums is free again after its passes, their results, and the spill up to its last word.
            results = array.issued + array.results * (self._after - array.short) + np.maximum(read - array.results, 0)
            turns = [first + results / tilings.psum_buffers]
            if not self.chunk.by_tap:
                # A buffer of the ifmap is free again after all passes over it; its places are filled beside passes over
                # others. Where each patch serves one result, the one queue takes its fill behind the spill of the
                # result two before it.
                turn = array.issued + patches * (self._after - array.short + self._latency)
                turn = np.where(every, turn + (0 if self.chunk.one_by_one else loads), 0)
                both = np.where((patches == array.results) & (turn > 0), (turn + spills) / (2 * tilings.lag), 0)
                turns += [turn / tilings.ifmap_buffers + last, both]
            paths += [np.where(simple, each, 0) for each in turns]
        ends = self.hardware.sequencer.launch_cycles + self._latency + self.hardware.skew
        # Cycles are whole; a little less, as these are not exact.
        return np.asarray(np.ceil(ends + reduce(np.maximum, paths) - 1e-6), dtype=np.float64)

    def of_any(self) -> float:
        """Cycles that no candidate can beat, without a look at any: all streams behind the first weights, or every
        tensor on the bus once.

        Of steps of a pipeline less is known: the ifmap may stay on chip.
        """
        of, hardware = self.of, self.hardware
        weights, a_word = hardware.sequencer.block_cycles + hardware.preload_cycles, min(of.least_of_a_word)
        # A body of a single word that drains may be followed before the last frame of its pass is over.
        a_word += min(0, self._after + weights) if of.drains else 0
        streams = prod(of.extents) * self.shape.groups * of.columns * self.passes * a_word
        filters, results = (prod(each) for each in (self.shape.tensors.filter, self.shape.tensors.ofmap))
        moved, ends = filters * self._weight_cycles + results * self._result_cycles, hardware.sequencer.launch_cycles
        if not isinstance(of, Windows):
            channels, images = stored_ifmap(self.shape, hardware)
            moved += self._touched * channels * max(self.shape.images, images) * self._element_cycles
            streams += self._latency + weights + self._after
            ends += self._latency + hardware.skew
        return float(np.ceil(ends + max(streams, moved) - 1e-6))

    def alone(self, tiling: Tiling[int]) -> float:
        """The least cycles of one candidate."""
        (cycles,) = self.cycles(Tiling(**{name: np.array([value]) for name, value in vars(tiling).items()}))
        return float(cycles)

    def _first_pass(self, tilings: Tiling[Counts], chunks: Counts) -> Cycles:
        """Cycles until the first pass is issued: its weights come, and beside their preload the first places of the
        first block.

        Where loads are `whole`, all of both loads must be there.
        """
        rotated = self.of.rotated(tilings.rows, tilings.cols, tilings.groups)
        drains = self.of.drains & (chunks == 1) & (tilings.span == 0)
        # A bundle's weights for other groups are zeros that are never fetched.
        rows = np.cumsum([each.rows for each in max(summed(self.chunk), key=len)])
        waited = rows[np.minimum(tilings.section_passes, len(rows)) - 1] if self._whole else rows[0]
        own, waited = (
            each / self.shape.bundle * len(self.of.col_folds[0]) * self._weight_cycles for each in (rows[0], waited)
        )
        preload = self.hardware.sequencer.block_cycles + self.hardware.preload_cycles + np.where(drains, rotated, 0)
        # A chunk of only some taps may begin with a smaller pass, so its own weights are not counted.
        loaded = preload + np.where(tilings.chunk_taps == self.of.taps, own, 0)
        if self.chunk.by_tap or tilings.span.any() or self.shape.strips > 1:
            return self._latency + np.maximum(loaded, np.where(chunks == 1, waited, 0))
        points = self._points(_of_first, tilings)
        elements = points * np.minimum(tilings.groups * self.of.word_fill, self.shape.images) * self._begun_with
        ifmap = Demand(bus=elements * self._element_cycles, converted=elements * self._unpacking)
        filled = self._in_turn(Demand(bus=waited), ifmap) + self._latency
        if self._whole:
            fills = np.minimum(MOST_PIECES, tilings.section_passes) + np.where(points > 0, self._pieces, 0)
            filled = np.maximum(filled, self._two_at_once(filled - self._latency, fills))
        return np.maximum(self._latency + loaded, np.where(chunks == 1, filled, 0))

    @cached_property
    def _begun_with(self) -> int:
        """Channels of the ifmap that the first pass waits for; with padding, if it waits for all of them."""
        if not self._whole:
            return self.chunk.places[0].brought
        brought = sum(len(channels) for _, channels in self.chunk.brought(range(len(self.chunk.places))))
        stored, _ = stored_ifmap(self.shape, self.hardware)
        return brought + (stored - self.shape.channels if self.shape.groups == 1 else 0)

    # ---- the array: streams of passes, what comes before and behind them

    def _array(self, tilings: Tiling[Counts], chunks: Counts) -> _Array:
        """Cycles of the array for every candidate; sums come in `chunks`."""
        drains, columns, groups = self.of.drains, self.of.columns, self.shape.groups
        delay = self.hardware.sequencer.block_cycles
        bodies, weights = -(-columns // tilings.kept_folds) * chunks, self.hardware.preload_cycles + delay
        count, size, prepared, last = self._sizes(tilings)
        if self._apart:
            stream = size * np.where(last, *reversed(self.of.least_of_a_word))
        else:
            stream = np.where(last, self.of.stream(size, True), self.of.stream(size))
        turn, prepared = self._turn(stream), np.where(chunks == 1, prepared, 0)
        issued = (count * turn).sum(axis=0) * columns * self.passes
        extra = self._after + weights + stream - turn if drains else self._turn(stream, delay) - turn
        waited = (count * (bodies * extra + (prepared if drains else 0))).sum(axis=0)
        smallest, words = (np.where(count > 0, each, np.iinfo(np.int64).max).min(axis=0) for each in (stream, size))
        if self._apart:
            return _Array(groups * issued, groups * issued, 0, smallest, words, tilings.blocks * columns * groups)
        beyond = self._after + weights + prepared[0] if drains else self._turn(smallest, delay) - smallest
        every = groups * (issued + waited) - beyond
        short = self._turn(smallest) - smallest
        return _Array(every, groups * issued, short, smallest, words, tilings.blocks * columns * groups)

    @cached_property
    def _after(self) -> int:
        """Cycles from the last frame of a pass until its results are written, if their slot is the next."""
        hardware, shape = self.hardware.having("array", count=1) if self._apart else self.hardware, self.shape
        fills = self.of.word_fill, shape.last_word(hardware.vector_memory.word_elements)

        def after(fill: int, frame: Frame) -> int:
            latency = word_latency(fill, hardware)
            return (latency - 1 + finish_cycles(fill, 1, hardware) if self.passes > 1 else latency) + 2 - frame.period

        return min(map(after, fills, self.of.frames))

    def _turn(self, stream: Cycles, delay: int = 0) -> Cycles:
        """Cycles from pass to pass: the stream, or the preload ahead of the next pass, whichever takes longer."""
        if self._apart:
            return stream
        weights = self.hardware.preload_cycles + delay
        return stream + weights if self.hardware.array.weight_buffers == 1 else np.maximum(stream, weights)

    def _sizes(self, tilings: Tiling[Counts]) -> tuple[Counts, Counts, Cycles, NDArray[np.bool_]]:
        """(number of blocks, words of each, rotation cycles of each, whether only the last word of each pixel), each
        with a row for each size of block, full ones first.
        """
        if tilings.span.any():
            count, size = _portions(prod(self.of.extents), tilings.span)
            return count, size, np.zeros((1, 1)), np.zeros((1, 1), dtype=bool)
        (down, rows), (across, cols), (deep, groups) = map(_portions, self.of.extents, tilings.outputs)
        last = np.zeros((2, 1), dtype=bool)
        if (own := parted(tilings, self.of.cut, self.hardware)).any():
            # Where the last words of pixels are blocks of their own, they are those that are left, or of the full ones.
            deep = np.stack([deep[0] - own * (1 - deep[1]), deep[1] * ~own, own])
            groups, last = np.stack([*groups, np.ones_like(groups[0])]), np.array([[False], [False], [True]])
        # Every size of rows beside every one of columns and of word groups.
        down, rows, across, cols = down[:, None, None], rows[:, None, None], across[:, None], cols[:, None]
        every = down * across * deep, rows * cols * groups, self.of.rotated(rows, cols, groups)
        shape = 2, 2, *deep.shape
        count, size, rotated = (np.broadcast_to(each, shape).reshape(-1, shape[-1]) for each in every)
        return count, size, rotated, np.tile(last, (4, 1))

    # ---- the bus: transfers by their bytes and by their conversion

    def _in_turn(self, *moved: Demand) -> Cycles:
        """Cycles of transfers one after another; a DRAM may move bursts while the ones before them are converted."""
        return sum(moved, Demand()).busiest if self.hardware.hbm.dram else sum(each.busiest for each in moved)

    def _images(self, tilings: Tiling[Counts]) -> Cycles:
        """Number of images that would take the bus as long as all images do in whole bursts.

        It differs from the true number only where images are neighbours in HBM and each run of a word group is moved by
        itself.
        """
        if self.hardware.hbm.layout != Layouts() or self.hardware.hbm.dram:
            return self.shape.images
        images, run, size = self.shape.images, tilings.groups * self.of.word_fill, self.hardware.vector_memory
        burst, most = self.hardware.hbm.burst_bytes, images * size.element_bytes
        full, left = (np.minimum(-(-each * size.element_bytes // burst) * burst, most) for each in (run, images % run))
        apart = (images // run * full + left) / size.element_bytes
        return np.where((tilings.groups < self.of.groups) & (self.shape.strips == 1), apart, images)

    def _spills(self, images: Cycles) -> Demand:
        """The demand of spilling all results once, `images` of them over the bus."""
        shape, (channels, rows, cols, _) = self.shape, self.shape.tensors.ofmap
        stored = padded(channels, self.hardware.hbm.channel_multiple)
        words = prod(self.of.extents) * shape.groups * self.of.columns
        # Runs of results that are wider than operands fill other bursts.
        same = self.hardware.result_bytes == self.hardware.element_bytes
        moved = stored * rows * cols * (images if same else shape.images) * self._result_cycles
        return Demand(bus=moved, converted=words * float(self.hardware.vector_unit.pack_cycles))

    def _last_spill(self, tilings: Tiling[Counts], words: Counts) -> Cycles:
        """The fewest cycles of one spill, of at least `words`; of all results of some channels, where one block is
        all.
        """
        # The last group may have the emptiest word, and so may the end of the strips, so these are left out.
        shape, width = self.shape, min(map(len, self.of.col_folds))
        images = shape.images - (self.of.groups - 1) * (self.of.word_fill // shape.strips)
        images *= prod(axis.outputs // axis.extent for axis in (shape.row, shape.col))
        _, rows, cols, every = shape.tensors.ofmap
        moved = np.where(tilings.blocks == 1, rows * cols * every, words * images) * width * self._result_cycles
        return np.maximum(moved, words * float(self.hardware.vector_unit.pack_cycles))

    def _filters(self, tilings: Tiling[Counts], chunks: Counts) -> tuple[Counts, Counts, Counts]:
        """Return how often the filter is loaded, its sections in all, and their pieces.

        It is loaded once, or for every block where the sections of all folds do not fit the buffers in turn. Chunks
        count a section as one piece.
        """
        sections = np.maximum(chunks, -(-self.passes // tilings.section_passes))
        kept = np.where(tilings.loop_order == "block_major", self.of.columns, tilings.kept_folds)
        left = self.of.columns % kept
        fewest = np.where(left, left, kept)
        times = np.where(fewest * sections > tilings.filter_buffers, tilings.blocks, 1)
        folds = times * self.of.columns * self.shape.groups
        full, last = self.passes // tilings.section_passes, self.passes % tilings.section_passes
        pieces = full * np.minimum(MOST_PIECES, tilings.section_passes) + np.minimum(MOST_PIECES, last)
        return times, sections * folds, folds * np.where(chunks == 1, pieces, sections)

    def _loads(self, tilings: Tiling[Counts], again: Counts, moving: Cycles) -> Demand:
        """The demand of all fills of the ifmap, `moving` images of it over the bus; where all taps are on chip
        together, points between taps are fetched, too.
        """
        shape, (channels, images) = self.shape, stored_ifmap(self.shape, self.hardware)
        points = np.full_like(tilings.blocks, self._touched)
        if not self.chunk.by_tap and not tilings.span.any():
            points = np.where(tilings.chunk_taps < self.of.taps, points, self._points(_brought, tilings))
        # Strips share points, and a DRAM serves loads from pending bursts, so each point may count only once.
        brought = self._touched if self.hardware.hbm.dram else points * again
        moved = brought * channels * np.maximum(moving, images) * self._element_cycles
        # Padding behind the last channel is unpacked, too, if the place that has it leaves lanes free.
        own = min(shape.channels * shape.groups, shape.tensors.ifmap[0])
        most = max(len({*place.channels}) for place in self.chunk.places)
        free = not self.hardware.banked and not self.chunk.by_tap and most + channels - own <= self.hardware.lanes
        unpacked = points * (channels if free else own) * shape.images * self._unpacking
        return Demand(bus=moved, converted=unpacked * again)

    # ---- two transfers under way at once

    def _two_at_once(self, moved: Cycles, fills: Counts) -> Cycles:
        """Cycles of fills, each under way from its latency to the cycle after its last word, with one other transfer
        beside it.
        """
        return (moved + fills * (self._latency + 1)) / 2

    def _every_filled(self, tilings: Tiling[Counts]) -> NDArray[np.bool_]:
        """Whether every block needs a fill: a block on padding alone waits for none."""
        if self.chunk.by_tap:
            return np.zeros(tilings.blocks.shape, dtype=bool)
        of_groups = -(-self.of.groups // tilings.groups)
        needing = self._points(_needing, tilings)
        return np.asarray(needing * of_groups == tilings.blocks)

    # ---- grid points of the ifmap that blocks of the outputs need for the taps of a chunk

    @cached_property
    def _touched(self) -> int:
        """Coordinates of the ifmap on which some tap stands, for any block."""
        return prod(axis.read(taps) for axis, taps in self._axes)

    def _points(self, counting: _Counting, tilings: Tiling[Counts]) -> Counts:
        """A count along rows times the count along columns, each worked out once for each size."""
        found = np.ones_like(tilings.blocks)
        for at, sizes in enumerate((tilings.rows, tilings.cols)):
            different, where = np.unique(sizes, return_inverse=True)
            counts = [self._count(counting, at, size) for size in different.tolist()]
            found = found * np.array(counts, dtype=np.int64)[where]
        return found


def _portions(extent: int, sizes: Counts) -> tuple[Counts, Counts]:
    """The numbers of portions of an extent, and their sizes: full ones, then the one that is left."""
    left = extent % sizes
    return np.stack([extent // sizes, np.minimum(left, 1)]), np.stack([sizes, left])


_Counting: TypeAlias = Callable[[MapAxis, int, range], int]
"""A count along an axis, from the size of its blocks and the taps."""


def _of_first(axis: MapAxis, size: int, taps: range) -> int:
    """Points that the first block needs."""
    return len(axis.stored(range(size), taps))


def _needing(axis: MapAxis, size: int, taps: range) -> int:
    """Blocks that need a point."""
    firsts, ends = axis.stored_in_blocks(size, taps)
    return int(np.count_nonzero(ends > firsts))


def _brought(axis: MapAxis, size: int, taps: range) -> int:
    """Points that come from HBM for all blocks, over all strips."""
    firsts, ends = axis.stored_in_blocks(size, taps)
    pitch, total = axis.pitch, 0
    for strip in range(axis.strips):
        # Of the points of a block those count that are elements of the map in this strip.
        stands = firsts * pitch - axis.padding[0] + strip * axis.extent * axis.stride
        ahead = np.maximum(0, -(stands // pitch))
        total += int(np.maximum(0, np.minimum(ends - firsts, (axis.size - 1 - stands) // pitch + 1) - ahead).sum())
    return total
