"""What a training step keeps for the way back in the memory of the host: what goes there, and what comes back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod

from tpusim.base.errors import InputError, Problem
from tpusim.network.mesh import HOST
from tpusim.network.ops.op import OFMAP
from tpusim.network.workload import ALL, FORWARD, NONE, OFFLOAD, RELOAD, CollectiveLayer, Workload, in_order, reads_of

_NORM = ".norm"
"""End of the name of a layer in those of its batch normalisation."""


def offloaded(step: Workload, wanted: str | tuple[str, ...]) -> Workload:
    """Return a training step, or a chip's share of one, in which some values go to the host's memory until the way
    back: as soon as they are made, and back ahead of the first layer that reads them there.

    Args:
        wanted: `all`, `none`, or names and patterns of layers that make these values, with batch normalisations and
            collectives behind them.

    Raises:
        InputError: nothing of it is kept for the way back.
    """
    return step if wanted == NONE else _Offload(step, wanted).workload()


class _Offload:
    """A step whose values are sent away: layers and collectives, by name, and who reads which on which way."""

    def __init__(self, step: Workload, wanted: str | tuple[str, ...]) -> None:
        self.step, self.mesh = step, dict(step.mesh)
        self.wanted = ("*",) if wanted == ALL else wanted
        self.layers = {layer.name: layer for layer in step.layers}
        self.place = {name: at for at, name in enumerate(self.layers)}
        self.forward = {name for name, phase in step.phases if phase == FORWARD}
        self.collectives = {each.name: each for each in step.collectives}
        there = self._read_by(self.forward, {})
        self.forward |= {name for name in there if name in self.collectives}
        # What the way back reads of the way there, each with the place of its first reader.
        self.back = self._read_by(self.place.keys() - self.forward, {*there, *self.layers})
        self.readers = self._readers_on_the_way_back()
        self.away = [name for name in self.back if self._is_wanted(name)]

    def _read_by(self, readers: Collection[str], known: Collection[str]) -> dict[str, int]:
        """Return the place of the first of some layers that read each value, by way of collectives that are not known,
        too.
        """
        found: dict[str, int] = {}
        due = [(one, self.place[name]) for name, one in reads_of(self.step.edges, ()) if name in readers]
        while due:
            # Whoever reads what a collective of the way back brings reads its operand, too.
            name, at = due.pop()
            if at < found.get(name, len(self.place)):
                found[name] = at
                if name in self.collectives and name not in known:
                    due += ((maker, at) for maker in self.collectives[name].reads)
        return found

    def _readers_on_the_way_back(self) -> dict[str, dict[str, None]]:
        """Return the layers and collectives of the way back that read each value, in order."""
        found = defaultdict[str, dict[str, None]](dict)
        for name, one in reads_of(self.step.edges, self.collectives.values()):
            if name not in self.forward:
                found[one][name] = None
        return found

    def _is_wanted(self, name: str) -> bool:
        """Whether a value is made on the way there by a layer that is wanted, or by collectives behind it."""
        if name not in self.forward:
            return False
        while name not in self.layers:
            if self.collectives[name].weights or len(self.collectives[name].reads) != 1:
                return False
            (name,) = self.collectives[name].reads
        called = name, name.partition(_NORM)[0]
        return any(fnmatchcase(one, pattern) for one in called for pattern in self.wanted)

    def workload(self) -> Workload:
        """The step, with what goes and comes back. Raises InputError where that is nothing."""
        if not self.away:
            says = "no output of these layers is kept for the way back"
            do = "name some whose outputs are read there, or leave offload out"
            raise InputError(Problem(f"{says}; {do}", "training.offload"))
        edges = tuple(
            (name, of if name in self.forward else tuple(each._replace(names=self._now(each.names)) for each in of))
            for name, of in self.step.edges
        )
        return replace(self.step, edges=edges, collectives=(*self._merged(),))

    def _now(self, names: Sequence[str]) -> tuple[str, ...]:
        """What is read on the way back in the place of some values."""
        return tuple(f"{name}.{RELOAD}" if name in self.away else name for name in names)

    def _merged(self) -> Iterator[CollectiveLayer]:
        """Return all collectives in the order in which they may begin."""
        begun = dict(self.place)
        for each in self.collectives.values():
            begun[each.name] = max((begun.get(name, -1) for name in each.reads), default=-1)
        ways = [*((begun[name], self._way(name, OFFLOAD)) for name in self.away),
                *((self.back[name], self._way(name, RELOAD)) for name in self.away)]  # fmt: skip
        there = (
            self._read_on_both_ways(each) if each.name in self.forward else each._replace(reads=self._now(each.reads))
            for each in self.collectives.values()
        )
        return in_order(((begun[each.name], each) for each in there), ways)

    def _read_on_both_ways(self, collective: CollectiveLayer) -> CollectiveLayer:
        """A collective of the way there, whose outcome is sent away for its readers on the way back."""
        if collective.name not in self.away:
            return collective
        kept = tuple(name for name in collective.read_by if name in self.forward)
        return collective._replace(read_by=(*kept, f"{collective.name}.{OFFLOAD}"))

    def _way(self, name: str, op: str) -> CollectiveLayer:
        """The way of a value to the host, or back."""
        layer = self.layers.get(name)
        elements = prod(layer.shapes(self.step.batch)[OFMAP]) if layer else self.collectives[name].outcome(self.mesh)
        out, back = f"{name}.{OFFLOAD}", f"{name}.{RELOAD}"
        if op == OFFLOAD:
            return CollectiveLayer(out, OFFLOAD, elements, (HOST,), (name,), (back,))
        return CollectiveLayer(back, RELOAD, elements, (HOST,), (out,), tuple(self.readers[name]))
