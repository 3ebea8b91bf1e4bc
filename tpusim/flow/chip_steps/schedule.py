"""The waist of this folder: what a chip does in a step, and when. Engines share these records, and no rule.

All chips of a mesh do the same, so that a step is that of one chip: its layers, and the collectives that it takes part
in, each with the cycles that it takes by itself. These are the rules:

1. Layers run in order, one at a time. A layer begins when the one ahead of it is done, and all collectives that it
   waits for.
2. A collective is ready when the layers and collectives that it waits for are done. It begins when all links that it
   holds are free, and fewer of its kind are under way than there may be. Links serve who was ready first, of several
   at once the first in order: who has to wait for a link keeps later ones from all that it is to hold itself. Who
   waits for its kind alone keeps nothing.
3. A collective takes its cycles, whatever else goes on.
4. HBM is shared. A collective that uses it for H of its D cycles adds H / D of a cycle to the chip's debt in each of
   its cycles, in 2^-32ths, rounded down. In each cycle in which the debt is a cycle or more, HBM belongs to
   collectives, and the debt gets a cycle less. A layer of T cycles that uses HBM for B of them goes on in the first
   T - B of such cycles, and stands still in the others.
5. A collective that stands alone is code of the core, as a layer is: it begins only while no layer runs and no other
   such is under way, and no layer begins until it is done. Meanwhile it keeps its links from who comes later.
6. Where nothing runs beside one another, a collective begins only while no layer runs and no other is under way, and a
   layer only when no collective is under way or could begin.

Whatever ends, ends ahead of all that begins in the same cycle; collectives begin ahead of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tpusim.base.errors import InputError, Problem

CYCLE = 2**32
"""The debt of one cycle of HBM."""


class StepLayer(NamedTuple):
    """A layer of a step: the cycles that it takes by itself, those in which it uses HBM, and the collectives that it
    waits for, by number.
    """

    name: str
    cycles: int
    hbm: int = 0
    after: tuple[int, ...] = ()


class StepCollective(NamedTuple):
    """A collective of a step.

    Attributes:
        name: for people.
        cycles: cycles that it takes.
        hbm: those of them in which it uses HBM.
        holds: links that it holds while it is under way, by name.
        kind: kind, of which only some may be under way at once.
        behind: layers that have to be done before, from the first on.
        after: collectives that have to be, by number; all come earlier.
        alone: whether no layer runs beside it.
    """

    name: str
    cycles: int
    hbm: int = 0
    holds: tuple[str, ...] = ()
    kind: str = ""
    behind: int = 0
    after: tuple[int, ...] = ()
    alone: bool = False

    @property
    def rate(self) -> int:
        """What a cycle of it adds to the debt of HBM."""
        return CYCLE * self.hbm // self.cycles


@dataclass(frozen=True)
class StepPlan:
    """What a chip does in a step.

    Attributes:
        layers: its layers, in order.
        collectives: its collectives, in order.
        most: by kind how many of it may be under way at once; of other kinds as many as links allow.
        beside: whether collectives run beside layers, and beside one another.
    """

    layers: tuple[StepLayer, ...]
    collectives: tuple[StepCollective, ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    beside: bool = True

    def __post_init__(self) -> None:
        if problems := [*self._problems()]:
            raise InputError(problems)

    def _problems(self) -> Iterator[Problem]:
        timed = [*(each[:3] for each in self.layers), *(each[:3] for each in self.collectives)]
        for name, cycles, hbm in timed:
            if cycles < 1 or not 0 <= hbm <= cycles:
                yield Problem(f"{cycles} cycles, {hbm} of them of HBM; write 1 or more, and no more of HBM", name)
        last: list[int] = []
        for number, each in enumerate(self.collectives):
            if any(not 0 <= before < number for before in each.after) or not 0 <= each.behind <= len(self.layers):
                yield Problem("it waits for a collective that comes later, or a layer that there is not", each.name)
                return
            last.append(max((each.behind, *(last[before] for before in each.after))))
        for at, layer in enumerate(self.layers):
            for number in layer.after:
                if not 0 <= number < len(last) or last[number] > at:
                    yield Problem("it waits for a collective that waits for it, or that there is not", layer.name)

    @cached_property
    def needs(self) -> tuple[frozenset[int], ...]:
        """By collective itself and all that it waits for."""
        found: list[frozenset[int]] = []
        for number, each in enumerate(self.collectives):
            found.append(frozenset({number}).union(*(found[before] for before in each.after)))
        return tuple(found)


class CycleSpan(NamedTuple):
    """Cycles from the first on to the one behind the last."""

    start: int
    end: int

    @property
    def cycles(self) -> int:
        """How many these are."""
        return self.end - self.start

    def covers(self, cycle: int) -> bool:
        """Whether a cycle is one of them."""
        return self.start <= cycle < self.end


@dataclass(frozen=True)
class StepLog:
    """When each layer and each collective began and was done."""

    layers: tuple[CycleSpan, ...]
    collectives: tuple[CycleSpan, ...]

    @property
    def cycles(self) -> int:
        """Cycles until all are done."""
        return max((each.end for each in (*self.layers, *self.collectives)), default=0)


def log_of(layers: Sequence[Sequence[int]], collectives: Sequence[Sequence[int]]) -> StepLog:
    """Return a log of pairs of cycles."""
    return StepLog(tuple(CycleSpan(*each) for each in layers), tuple(CycleSpan(*each) for each in collectives))
