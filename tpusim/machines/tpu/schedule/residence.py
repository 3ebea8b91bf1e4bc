"""Outcomes of layers that stay on chip until they are read: which, and where.

An outcome stays where a layer behind reads it word for word as it is made, and where there is room from the layer that
makes it to the last that reads it there. Whoever cannot read it there reads it from HBM, to which it then goes as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

from tpusim.machines.lowered import Reader
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Fill, Keep, Spill
from tpusim.machines.tpu.schedule.home import Home, ScatteredError, Settled, Stays, home_of, settled
from tpusim.machines.tpu.schedule.joined import FullError, Joint, WordRoom, alike
from tpusim.network.ops.op import OFMAP


class Allocation(NamedTuple):
    """The outcome of layer `maker`, in `words` words of `lanes` lanes from `base` on, until the last of `readers` is
    done; `spilled`: it goes to HBM as well.
    """

    maker: int
    base: int
    words: int
    lanes: int
    readers: tuple[Reader, ...]
    spilled: bool


@dataclass(frozen=True)
class Residence:
    """Layers of a chain, each in its place, and what stays between them; `own` are the first word and the words of each
    that are its own.
    """

    layers: tuple[Joint, ...]
    allocations: tuple[Allocation, ...]
    own: tuple[tuple[int, int], ...]

    @property
    def stay(self) -> frozenset[str]:
        """By their full names, the tensors that are read where they stay."""
        return frozenset(f"{self.layers[at].name}.{name}" for each in self.allocations for at, name in each.readers)

    def outcome(self, layer: int) -> Allocation | None:
        """The outcome of a layer, if it stays."""
        return next((each for each in self.allocations if each.maker == layer), None)

    def alone(self, layer: int) -> Program:
        """The Program of a layer by itself, with the same addresses: what it reads on chip it fills there first, and
        what stays it spills.
        """
        program, fills = self.layers[layer].program, list[Fill]()
        for each in self.allocations:
            kept = (step.parts for step in self.layers[each.maker].program.steps if isinstance(step, Keep))
            parts = tuple(part for some in kept for part in some)
            fills += [Fill((), program.tensor(name), parts, 0) for at, name in each.readers if at == layer]
        places = range(len(fills), len(fills) + len(program.steps))
        steps = (
            (Spill(step.after, step.tensor, step.parts, 0) if isinstance(step, Keep) else step).renumbered(places)
            for step in program.steps
        )
        return replace(program, steps=(*fills, *steps))


def immovable(program: Program) -> str:
    """Why a layer's words must stand where they do beside one another, so that none can stay for it; nothing where they
    need not.
    """
    if program.banked:
        return "the ifmap lies in banks"
    if program.tables:
        return "passes read through pointers"
    picks = any(feed.picks for step in program.vectors for feed in step.operands)
    return "elements are picked through pointers" if picks else ""


def residence(layers: Sequence[Joint], hardware: Hardware) -> Residence:
    """What can stay, for layers that are to be joined: those that save the least for their room go first where there is
    too little.
    """
    search = _Search(layers, hardware.capacity_words)
    staying = search.reached(search.wanted)
    while True:
        try:
            return search.placed(staying)
        except FullError as full:
            staying = search.reached(search.without(staying, full.layer))


_Plan = frozenset[Reader]
"""Who is to read on chip."""


class _Search:
    def __init__(self, layers: Sequence[Joint], capacity: int) -> None:
        self.layers, self.capacity = layers, capacity
        # Layers of one shape have the very same units: what is known of one is known of all of them.
        self._home_of = cache(home_of)
        self._known: dict[object, Settled | None] = {}

    # ---- what could stay

    @property
    def wanted(self) -> _Plan:
        """All that layers read of one another."""
        return frozenset((layer, name) for layer, sources in enumerate(self._sources) for name in sources)

    def reached(self, wanted: _Plan) -> _Plan:
        """As much of it as layers can reach; what one cannot, others may no longer need.

        Of a layer that cannot be as it is to, what it makes goes first, then what it reads.
        """
        staying = wanted
        for layer in range(len(self.layers)):
            if self._over(layer, staying) is None:
                made, read = self._readers(layer, staying), [(layer, name) for name in self._read_by(layer, staying)]
                staying = staying.difference(made, read)
                for readers in (made, *((each,) for each in read)):
                    more = staying.union(readers)
                    staying = more if self._over(layer, more) is not None else staying
        return staying if staying == wanted else self.reached(staying)

    @cached_property
    def _sources(self) -> list[dict[str, int]]:
        """By layer and by its tensors, which layer's outcome they are, element for element and word for word; what a
        layer reads twice, it reads once there.
        """
        number = {joint.name: at for at, joint in enumerate(self.layers)}
        found: list[dict[str, int]] = []
        for joint in self.layers:
            first: dict[int, str] = {}
            for name, read in joint.reads.items():
                maker = number.get(read.names[0]) if read.direct and len(read.names) == 1 else None
                if (
                    maker is not None
                    and alike(joint.program.tensor(name), self.layers[maker].program.tensor(OFMAP))
                    and self._home(maker) is not None
                ):
                    first.setdefault(maker, name)
            found.append({name: maker for maker, name in sorted(first.items())})
        return found

    def _home(self, maker: int) -> Home | None:
        units = self.layers[maker].units
        return self._home_of(units) if units else None

    def _settled(self, layer: int, read: Mapping[str, int], makes: bool, over: str = "") -> Settled | None:
        """A layer where that stays; None where it cannot."""
        units = self.layers[layer].units
        homes = tuple((name, home) for name, maker in read.items() if (home := self._home(maker)))
        key = units, homes, self._home(layer) if makes else None, over
        if units and key not in self._known:
            with suppress(ScatteredError):
                self._known[key] = settled(units, Stays(dict(homes), *key[2:]))
        return self._known.setdefault(key, None)

    # ---- what has room

    def without(self, staying: _Plan, layer: int) -> _Plan:
        """All but the one that is there while a layer runs and saves the least for the time that it takes."""
        readers = {maker: self._readers(maker, staying) for maker in sorted({*map(self._maker, staying)})}
        there = [maker for maker, each in readers.items() if maker <= layer <= each[-1][0]]
        worth: dict[int, tuple[float, int]] = {}
        for maker in there:
            # Trips through HBM that are saved, by the layers for which there must be room.
            trips = len(readers[maker]) + (not self._leaves(maker, readers[maker]))
            home = self._home(maker)
            worth[maker] = trips / (readers[maker][-1][0] - maker + 1), -(home.words if home else 0)
        return staying.difference(readers[min(there, key=worth.__getitem__)])

    def _leaves(self, maker: int, readers: Sequence[Reader]) -> bool:
        """Whether an outcome goes to HBM although some read it on chip."""
        name = self.layers[maker].name
        asked = sum(name in read.names for joint in self.layers for read in joint.reads.values())
        return self.layers[maker].leaves or asked > len(readers)

    def placed(self, staying: _Plan) -> Residence:
        """Everything at its place. Raises FullError."""
        room = WordRoom(self.capacity)
        there: dict[int, Allocation] = {}
        found: list[tuple[Settled | None, Mapping[str, int], bool]] = []
        own: list[tuple[int, int]] = []
        for layer in range(len(self.layers)):
            readers, read = self._readers(layer, staying), self._read_by(layer, staying)
            leaves, over = self._leaves(layer, readers), self._over(layer, staying) or ""
            home, mine = self._home(layer), self._settled(layer, read, bool(readers), over) if read or readers else None
            if readers and home:
                # What is read for the last time makes room behind this layer.
                span = range(layer + bool(over), readers[-1][0] + 1)
                starts = [there[read[over]].base] if over else room.from_the_end(home.words, span)
                base = room.place(starts, home.words, span)
                there[layer] = Allocation(layer, base, home.words, home.widest, readers, leaves)
            size = mine.words if mine else self.layers[layer].program.words
            own.append((room.own(layer, size), size))
            homes = {name: there[maker].base for name, maker in read.items()}
            homes |= {OFMAP: there[layer].base} if layer in there else {}
            found.append((mine, homes, leaves))
        # Nothing is scheduled before all have their places.
        layers = (
            joint._replace(program=joint.finish(mine.at(first, homes, leaves)) if mine else joint.at(first))
            for joint, (first, _), (mine, homes, leaves) in zip(self.layers, own, found, strict=True)
        )
        return Residence(tuple(layers), tuple(there.values()), tuple(own))

    def _over(self, layer: int, staying: _Plan) -> str | None:
        """What a layer reads for the last time, whose words its outcome can take; "" if nothing, None if it cannot be
        as it is to.
        """
        read, makes = self._read_by(layer, staying), bool(self._readers(layer, staying))
        if not (read or makes):
            return ""
        ends = [name for name in read if makes and self._ends(layer, name, staying)]
        return next((name for name in (*ends, "") if self._settled(layer, read, makes, name) is not None), None)

    def _ends(self, layer: int, name: str, staying: _Plan) -> bool:
        """Whether a layer is the last to read something, and makes the like of it."""
        maker = self._sources[layer][name]
        return self._readers(maker, staying)[-1][0] == layer and self._home(layer) == self._home(maker)

    def _maker(self, reader: Reader) -> int:
        layer, name = reader
        return self._sources[layer][name]

    def _readers(self, maker: int, staying: _Plan) -> tuple[Reader, ...]:
        """Readers of an outcome, in their order."""
        return tuple(sorted(each for each in staying if self._maker(each) == maker))

    def _read_by(self, layer: int, staying: _Plan) -> dict[str, int]:
        return {name: maker for name, maker in self._sources[layer].items() if (layer, name) in staying}
