"""A trace as text: a line for every cycle, a letter for every lane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from tpusim.machines.tpu.observation.timeline import ACCESSES, MOVING, WORKING, Cycle
from tpusim.report.text import folded

_WORDS = [f"{letter} {access.meaning}" for letter, access in ACCESSES.items() if access.meaning]
_WIDTH = 79
LEGEND = tuple(
    line
    for words in (f"lanes: {', '.join(_WORDS)}.", f"PEs: {WORKING}.", f"weights: {MOVING}.")
    for line in folded([words], _WIDTH, "       ").splitlines()
)


def lines(cycles: Iterable[Cycle]) -> Iterator[str]:
    """The legend, the heading, and a line for every cycle."""
    cycles = iter(cycles)
    first = next(cycles)
    width = max(len("lanes"), len(first.ports))
    yield from LEGEND
    yield f"{'cycle':>7}  {'lanes':{width}}  {'PEs':>5}  {'weights':>7}"
    for cycle in chain([first], cycles):
        yield f"{cycle.number:7}  {cycle.ports:{width}}  {cycle.working or '.':>5}  {cycle.moving or '.':>7}"
