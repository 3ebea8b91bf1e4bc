"""Choose the tiling: the cheapest that fits, by its estimate; or the few that a simulation should choose from.

A simulation tries them in the order of what no run of them can beat, so that it may stop early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from tpusim.machines.tpu.cut.geometry import ConvShape
from tpusim.machines.tpu.cut.reduction import Cut
from tpusim.machines.tpu.cut.tiling import Counts, Tiling, together
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.search.bound import Bound
from tpusim.machines.tpu.search.candidates import Candidates, Way

TOLERANCE = 0.01
"""Among blocks whose estimates lie this close to the best, the largest is taken: fewer passes to run."""

MOST_TIMED = 16
"""Tilings of a layer that a simulation chooses from, at most, beside the estimate's choice."""

MOST_BLOCKS, FEW_PASSES = 4, 512
"""None is tried with so many times the blocks of the estimate's choice, unless a layer has few passes even so."""

ALIKE = 0.005
"""Bounds as close as this are told apart by the size of the block: fewer passes to run."""

_SECTION = "section_passes", "section_words"


class Ranked(NamedTuple):
    """A tiling, what is estimated for it, and the `least` cycles that it, or any ranked after it, can take."""

    tiling: Tiling[int]
    least: float = 0.0
    estimate: Callable[[], float] = float


def tilings_of(
    shape: ConvShape, hardware: Hardware, cut: Cut, among: type[Candidates] = Candidates
) -> tuple[Ranked, ...]:
    """What a simulation should choose from, in the order in which to try it; or the choice of the estimate alone.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    candidates, chosen = _chosen(among(shape, hardware, cut, None))
    if hardware.mapping.search == "estimate":
        return (Ranked(chosen, estimate=partial(_estimated, candidates, chosen)),)
    return ranked(candidates, chosen)


def choose(shape: ConvShape, hardware: Hardware, cut: Cut, among: type[Candidates] = Candidates) -> Tiling[int]:
    """The tiling with the lowest estimated cycles for a reduction that is cut in this way, among such candidates.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    return _chosen(among(shape, hardware, cut, None))[1]


class _Choice(NamedTuple):
    """A tiling, and its estimated cycles."""

    cost: float
    tiling: Tiling[int]


def best(candidates: Candidates) -> Tiling[int] | None:
    """The cheapest; but deeper buffers, and the reduction in chunks, only where they beat what is simpler."""
    found = None
    for ways in candidates.fitting:
        found = _better(candidates, found, _first_close(candidates, ways))
    return found and found.tiling


def _better(candidates: Candidates, simple: _Choice | None, other: _Choice | None) -> _Choice | None:
    """The other one only if its estimate is clearly lower, or as low with fewer blocks to run and every tap of them at
    once.
    """
    if simple is None or other is None:
        return other or simple
    fewer = other.tiling.blocks < simple.tiling.blocks and other.tiling.chunk_taps == simple.tiling.chunk_taps
    others, mine = (each.cost + float(candidates.late(each.tiling)) for each in (other, simple))
    return other if others * (1 / (1 + TOLERANCE) if fewer else 1 + TOLERANCE) < mine else simple


def _first_close(candidates: Candidates, ways: Sequence[Way]) -> _Choice | None:
    """The first of the ways whose estimate lies close to the best: it moves data in the fewest pieces. Of each way the
    cheapest that fits; of those close to it, the one with the largest block.
    """
    if not ways:
        return None
    # Together, as an estimate takes as long for one as for a thousand.
    tilings, fits = together([tilings for tilings, _ in ways]), np.concatenate([fits for _, fits in ways])
    cost = np.where(fits, candidates.estimate(tilings), np.inf)
    found, begin = list[int](), 0
    for _, of_way in ways:
        mine = slice(begin, begin + len(of_way))
        close = cost[mine] <= cost[mine].min() * (1 + TOLERANCE)
        found.append(begin + int(np.where(close, tilings.psum_words[mine], 0).argmax()))
        begin = mine.stop
    least = cost[found].min() * (1 + TOLERANCE)
    at = next(at for at in found if cost[at] <= least)
    return _Choice(float(cost[at]), tilings.at(at))


def _chosen(candidates: Candidates) -> tuple[Candidates, Tiling[int]]:
    """The cheapest, and those that it is one of.

    With a forced multi-tile, they have the block that the paper's rule would get, if it fits: only one thing changes at
    a time.
    """
    shape, hardware, cut, among = candidates.shape, candidates.hardware, candidates.cut, type(candidates)
    if cut.ruled and (ruled := best(among(shape, hardware, cut.ruled, None))):
        alike = among(shape, hardware, cut, (ruled.rows, ruled.cols, ruled.groups))
        if tiling := best(alike):
            return alike, tiling
    if tiling := best(candidates):
        return candidates, tiling
    raise candidates.too_small()


# ---- what a simulation should try


def ranked(candidates: Candidates, chosen: Tiling[int]) -> tuple[Ranked, ...]:
    """The estimate's choice, then the first few that fit: of each way to hold a block the first to cut the filter,
    unless the filter's cut decides, too, what a body waits for.
    """
    a_block = candidates.shape.groups * candidates.columns * candidates.passes
    most = max(MOST_BLOCKS * chosen.blocks, FEW_PASSES // a_block)
    alike = _SECTION if candidates.hardware.mapping.loads == "pieces" else ()
    found = [*islice(_distinct(candidates, alike, most), MOST_TIMED)]
    least = min((each.least for each in found), default=0.0)
    first = Ranked(chosen, least, partial(_estimated, candidates, chosen))
    return (first, *(each for each in found if each.tiling != chosen))


def every(candidates: Candidates) -> tuple[Ranked, ...]:
    """All that fit, each once."""
    return tuple(_distinct(candidates, (), None))


def _distinct(candidates: Candidates, but: Iterable[str], most: int | None) -> Iterator[Ranked]:
    """Tilings of at most `most` blocks that differ in something `but` these fields."""
    known = set[Tiling[int]]()
    for tilings, at, least in _in_order(candidates):
        if most is not None and tilings.blocks[at] > most:
            continue
        tiling = tilings.at(at)
        # Equal for tilings of the same stages: an order of one block, or of folds that are all kept, is none.
        order = "" if tiling.blocks == 1 or candidates.columns <= tiling.kept_folds else tiling.loop_order
        key = replace(tiling, loop_order=order, **dict.fromkeys(but, 0))
        if key not in known:
            known.add(key)
            yield Ranked(tiling, least, partial(_estimated, candidates, tiling))


def _estimated(candidates: Candidates, tiling: Tiling[int]) -> float:
    return float(candidates.estimate(tiling))


def _in_order(candidates: Candidates) -> Iterator[tuple[Tiling[Counts], int, float]]:
    """The tilings that fit, that with the lowest bound first; of those alike, the largest block.

    Where its bound tells no difference, that with fewer filter buffers: what comes later is not fetched early.
    """
    whole, deep, *chunked = ([tilings.each(itemgetter(fits)) for tilings, fits in kind] for kind in candidates.fitting)
    # Of those that nothing else tells apart, the first: whole reductions by their loop order, then those in chunks.
    orders = [tilings.loop_order[0] for tilings in whole + deep]
    found = [*sorted(whole + deep, key=lambda tilings: orders.index(tilings.loop_order[0])), *chain(*chunked)]
    if not found:
        return
    # Together, as a bound takes as long for one as for a thousand.
    tilings = together(found)
    least = Bound(candidates).cycles(tilings)
    order = np.lexsort((tilings.filter_buffers, least, -tilings.psum_words, least // (least.min() * ALIKE)))
    left = np.minimum.accumulate(least[order][::-1])[::-1]
    for at, cycles in zip(order.tolist(), left.tolist(), strict=True):
        yield tilings, at, cycles
