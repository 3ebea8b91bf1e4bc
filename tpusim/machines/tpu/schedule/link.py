"""Where areas stand, before any step is written: one behind the other, each memory by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tpusim.machines.tpu.program.program import Buffer
from tpusim.machines.tpu.schedule.units import Area, Units

Bases: TypeAlias = Mapping[str, int]
"""By area, the first word of its first slot."""


def link(units: Units, first: int = 0) -> Bases:
    """The areas of each memory in their order, from word `first` on, behind them those of strands; strands that end
    before the units begin share their words.
    """
    bases, ends = dict[str, int](), defaultdict[str, int](lambda: first)
    _place(units.areas, bases, ends)
    for strand in units.strands.values():
        _place(strand.areas, bases, defaultdict[str, int](lambda: first) if units.before else ends)
    return bases


def _place(areas: Iterable[Area], bases: dict[str, int], ends: defaultdict[str, int]) -> None:
    for area in areas:
        bases[area.name] = ends[area.memory]
        ends[area.memory] += area.count * area.words


def buffers(units: Units, bases: Bases, memory: str = "lanes") -> tuple[Buffer, ...]:
    """The areas of a memory as a Program tells of them: neighbours that hold parts of one tensor are one."""
    found: list[Buffer] = []
    strands = (area for strand in units.strands.values() for area in strand.areas)
    for area in (*strands, *units.areas):
        if area.memory != memory or not area.count * area.words:
            continue
        own = Buffer(area.tensor, bases[area.name], area.count * area.words, area.lanes)
        if found and found[-1].tensor == own.tensor:
            ahead = found.pop()
            own = Buffer(own.tensor, ahead.base, ahead.words + own.words, max(ahead.lanes, own.lanes))
        found.append(own)
    return tuple(found)
