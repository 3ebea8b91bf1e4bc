"""The order in which a simulation should try tilings: by what no run of them can beat, so that it may stop early."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from tpusim.machines.tpu.lowering.bound import Bound
from tpusim.machines.tpu.lowering.candidates import Candidates
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling

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


def ranked(candidates: Candidates, chosen: Tiling[int]) -> tuple[Ranked, ...]:
    """The estimate's choice, then the first few that fit: of each way to hold a block the first to cut the filter,
    unless the filter's cut decides, too, what a body waits for.
    """
    a_block = candidates.shape.groups * candidates.columns * len(candidates.passes)
    most = max(MOST_BLOCKS * chosen.blocks, FEW_PASSES // a_block)
    alike = _SECTION if candidates.hardware.mapping.loads == "pieces" else ()
    found = [*islice(_distinct(candidates, alike, most), MOST_TIMED)]
    least = min((each.least for each in found), default=0.0)
    alone: dict[str, Any] = {
        name: value if isinstance(value, str) else np.array([value]) for name, value in vars(chosen).items()
    }
    first = Ranked(chosen, least, _Estimate(candidates, Tiling(**alone), 0))
    return (first, *(each for each in found if each.tiling != chosen))


def every(candidates: Candidates) -> tuple[Ranked, ...]:
    """All that fit, each once."""
    return tuple(_distinct(candidates, (), None))


def _distinct(candidates: Candidates, but: Iterable[str], most: int | None) -> Iterator[Ranked]:
    """Those of at most so many blocks that differ in something `but` these."""
    known = set[Hashable]()
    for tilings, at, least in _in_order(candidates):
        if most is not None and tilings.blocks[at] > most:
            continue
        key = _key(tilings, at, candidates.columns, but)
        if key not in known:
            known.add(key)
            yield Ranked(tilings.at(at), least, _Estimate(candidates, tilings, at))


@dataclass(frozen=True)
class _Estimate:
    """Worked out when it is asked for."""

    of: Candidates
    tilings: Tiling[Counts]
    at: int

    def __call__(self) -> float:
        return float(self.of.estimate.cycles(self.tilings)[self.at])


def _key(tilings: Tiling[Counts], at: int, columns: int, but: Iterable[str]) -> Hashable:
    """Equal for tilings of the same stages: an order of one block, or of folds that are all kept, is none."""
    alone = tilings.blocks[at] == 1 or columns <= tilings.kept_folds[at]
    values = (each[at] for name, each in vars(tilings).items() if name not in but and name != "loop_order")
    return (*values, "" if alone else tilings.loop_order)


def _in_order(candidates: Candidates) -> Iterator[tuple[Tiling[Counts], int, float]]:
    """The tilings that fit, that with the lowest bound first; of those alike, the largest block.

    Where its bound tells no difference, that with fewer filter buffers: what comes later is not fetched early.
    """
    found = _fitting(candidates, chain(candidates.whole(), candidates.deep()))
    if not found or candidates.hardware.mapping.chunks == "auto":
        found += _fitting(candidates, candidates.chunked())
    if not found:
        return
    bound = Bound(candidates)
    least = np.concatenate([bound.cycles(tilings) for tilings in found])
    block, filters = (
        np.concatenate([getattr(tilings, name) for tilings in found]) for name in ("psum_words", "filter_buffers")
    )
    order = np.lexsort((filters, least, -block, least // (least.min() * ALIKE)))
    left = np.minimum.accumulate(least[order][::-1])[::-1]
    places = [(tilings, at) for tilings in found for at in range(len(tilings.blocks))]
    for number, cycles in zip(order.tolist(), left.tolist(), strict=True):
        yield *places[number], cycles


def _fitting(candidates: Candidates, ways: Iterable[Tiling[Counts]]) -> list[Tiling[Counts]]:
    """Those that fit; ways of the same loop order in one, as a bound takes as long for one as for a thousand."""
    by_order: dict[str, list[dict[str, Counts]]] = {}
    for tilings in ways:
        fit = candidates.fits(tilings)
        if fit.any():
            columns = {name: each[fit] for name, each in vars(tilings).items() if name != "loop_order"}
            by_order.setdefault(tilings.loop_order, []).append(columns)
    return [
        Tiling(loop_order=order, **{name: np.concatenate([each[name] for each in parts]) for name in parts[0]})
        for order, parts in by_order.items()
    ]
