"""Choose the tiling: the cheapest that fits, by its estimate; or the few that a simulation should choose from."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.candidates import Candidates
from tpusim.machines.tpu.lowering.geometry import ConvShape
from tpusim.machines.tpu.lowering.given import said
from tpusim.machines.tpu.lowering.ranking import Ranked, ranked
from tpusim.machines.tpu.lowering.reduction import Cut
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling

TOLERANCE = 0.01
"""Among blocks whose estimates lie this close to the best, the largest is taken: fewer passes to run."""


def tilings_of(
    shape: ConvShape, hardware: Hardware, cut: Cut, among: type[Candidates] = Candidates
) -> tuple[Ranked, ...]:
    """What a simulation should choose from, in the order in which to try it; or the choice of the estimate alone.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    candidates, chosen = _chosen(among(shape, hardware, cut, None))
    return (Ranked(chosen),) if hardware.mapping.search == "estimate" else ranked(candidates, chosen)


def choose(shape: ConvShape, hardware: Hardware, cut: Cut, among: type[Candidates] = Candidates) -> Tiling[int]:
    """The tiling with the lowest estimated cycles for a reduction that is cut in this way, among such candidates.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    _, tiling = _chosen(among(shape, hardware, cut, None))
    return tiling


class _Choice(NamedTuple):
    """One of several tilings, and its estimated cycles."""

    cost: float
    tilings: Tiling[Counts]
    at: int

    @property
    def tiling(self) -> Tiling[int]:
        return self.tilings.at(self.at)


def best(candidates: Candidates) -> Tiling[int] | None:
    """The cheapest; but deeper buffers, and the reduction in chunks, only where they beat what is simpler."""
    best = _better(
        candidates, _first_close(candidates, candidates.whole()), _first_close(candidates, candidates.deep())
    )
    if best is None or candidates.hardware.mapping.chunks == "auto":
        best = _better(candidates, best, _first_close(candidates, candidates.chunked()))
    return best and best.tiling


def _better(candidates: Candidates, simple: _Choice | None, other: _Choice | None) -> _Choice | None:
    return other if simple is None or (other is not None and _beats(candidates, other, simple)) else simple


def _beats(candidates: Candidates, one: _Choice, other: _Choice) -> bool:
    """Whether its estimate is clearly lower, or as low with fewer blocks to run and every tap of them at once."""
    fewer = one.tiling.blocks < other.tiling.blocks and one.tiling.chunk_taps == other.tiling.chunk_taps
    mine, others = (each.cost + float(candidates.estimate.late(each.tilings)[each.at]) for each in (one, other))
    return mine * (1 / (1 + TOLERANCE) if fewer else 1 + TOLERANCE) < others


def _first_close(candidates: Candidates, ways: Iterable[Tiling[Counts]]) -> _Choice | None:
    """The first of the ways whose estimate lies close to the best: it moves data in the fewest pieces."""
    found = [each for tilings in ways if (each := _cheapest(candidates, tilings)) is not None]
    close = min((each.cost for each in found), default=0) * (1 + TOLERANCE)
    return next((each for each in found if each.cost <= close), None)


def _cheapest(candidates: Candidates, tilings: Tiling[Counts]) -> _Choice | None:
    """The cheapest that fits; of those close to it, the one with the largest block."""
    fits = candidates.fits(tilings)
    if not fits.any():
        return None
    cost = np.where(fits, candidates.estimate.cycles(tilings), np.inf)
    close = cost <= cost.min() * (1 + TOLERANCE)
    at = int(np.where(close, tilings.psum_words, 0).argmax())
    return _Choice(float(cost[at]), tilings, at)


def _chosen(candidates: Candidates) -> tuple[Candidates, Tiling[int]]:
    """The cheapest, and those that it is one of.

    With a forced multi-tile, they have the block that the paper's rule would get, if it fits: only one thing changes at
    a time.
    """
    for each in (_ruled(candidates), candidates):
        if each is not None and (tiling := best(each)):
            return each, tiling
    shape, hardware, cut = candidates.shape, candidates.hardware, candidates.cut
    raise too_small(least_words(shape, hardware, cut, type(candidates)), hardware)


def _ruled(candidates: Candidates) -> Candidates | None:
    """Only the block that the rule would get, by its estimate, where another multi-tile is forced."""
    shape, hardware, cut, among = candidates.shape, candidates.hardware, candidates.cut, type(candidates)
    ruled = best(among(shape, hardware, cut.ruled, None)) if cut.ruled else None
    return among(shape, hardware, cut, (ruled.rows, ruled.cols, ruled.groups)) if ruled else None


def least_words(shape: ConvShape, hardware: Hardware, cut: Cut, among: type[Candidates] = Candidates) -> int:
    """Words a lane needs for the smallest tiling, in a memory of so many."""
    candidates, words = among(shape, hardware, cut, None), 0
    # What is needed beside the buffers may itself grow with the memory.
    while (least := _least(candidates)) > words:
        words = least
        memory = hardware.vector_memory.model_copy(update={"capacity_bytes": words * hardware.word_bytes})
        candidates = among(shape, hardware.model_copy(update={"vector_memory": memory}), cut, None)
    return words


def _least(candidates: Candidates) -> int:
    tilings = chain(candidates.whole(), candidates.chunked())
    return min(int(candidates.lane_words(each).min()) for each in tilings)


def too_small(words: int, hardware: Hardware) -> CapacityError:
    """That the vector memories have less than `words` a lane, and what to do."""
    what, instead = wanted_by(hardware)
    return CapacityError(
        f"{what} needs {words} words of {hardware.word_bytes} B a lane, and the vector memory has "
        f"{hardware.capacity_words}; set vector_memory.capacity to at least {words * hardware.word_bytes} B "
        f"(it is {hardware.vector_memory.capacity_bytes} B), or {instead}"
    )


def wanted_by(hardware: Hardware) -> tuple[str, str]:
    """What needs too much, in words, and what might be less: the smallest tiling, or that of a given block."""
    if given := said(hardware):
        return f"the smallest tiling of the block that mapping.block gives ({given})", "give a smaller block"
    return "the smallest tiling", "choose smaller words or a larger array"
