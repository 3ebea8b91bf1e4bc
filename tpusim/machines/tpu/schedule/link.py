"""Where areas stand, before any step is written: one behind the other, each memory by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from tpusim.machines.tpu.program.program import Buffer
from tpusim.machines.tpu.schedule.units import Area, Units

Bases: TypeAlias = Mapping[str, int]
"""By area, the first word of its first slot."""
APART = 1 << 40
"""Words between what has no place yet: more than any memory has."""


def link(units: Units, first: int = 0, empty: Collection[str] = ()) -> Bases:
    """The areas of each memory in their order, from word `first` on, behind them those of strands; strands that end
    before the units begin share their words. Areas that are `empty` get none: they stand far from all others.
    """
    bases, ends = {name: (at + 1) * APART for at, name in enumerate(sorted(empty))}, _ends(first)
    _place(units.areas, bases, ends)
    for strand in units.strands.values():
        _place(strand.areas, bases, _ends(first) if units.before else ends)
    return bases


def _ends(first: int) -> defaultdict[str, int]:
    return defaultdict(lambda: first)


def _place(areas: Iterable[Area], bases: dict[str, int], ends: defaultdict[str, int]) -> None:
    for area in areas:
        if area.name not in bases:
            bases[area.name] = ends[area.memory]
            ends[area.memory] += area.count * area.words


def buffers(units: Units, bases: Bases, memory: str = "lanes") -> tuple[Buffer, ...]:
    """The areas of a memory as a Program tells of them: neighbours that hold parts of one tensor are one."""
    found: list[Buffer] = []
    strands = (area for strand in units.strands.values() for area in strand.areas)
    for area in (*strands, *units.areas):
        if area.memory != memory or not area.count * area.words or bases[area.name] >= APART:
            continue
        own = Buffer(area.tensor, bases[area.name], area.count * area.words, area.lanes)
        if found and found[-1].tensor == own.tensor:
            ahead = found.pop()
            own = Buffer(own.tensor, ahead.base, ahead.words + own.words, max(ahead.lanes, own.lanes))
        found.append(own)
    return tuple(found)
