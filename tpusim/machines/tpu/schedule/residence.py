"""Outcomes of layers that stay on chip until they are read: which, and where.

An outcome stays where a layer behind reads it word for word as it is made, and where there is room from the layer that
makes it to the last that reads it there. Whoever cannot read it there reads it from HBM, to which it then goes as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensor import Part
from tpusim.machines.tpu.program.transfers import Fill, Keep, Spill
from tpusim.machines.tpu.schedule.at_home import Settled, Stays, settled
from tpusim.machines.tpu.schedule.home import Home, ScatteredError, home_of
from tpusim.machines.tpu.schedule.joined import Joint, alike
from tpusim.network.ops.op import OFMAP

Reader = tuple[int, str]
"""A layer, by its number, and which of its tensors."""


class FullError(Exception):
    """There is no room while a layer runs."""

    def __init__(self, layer: int) -> None:
        super().__init__(layer)
        self.layer = layer


class Allocator:
    """Gives out words of the vector memories, layer by layer: homes from the end down, layers' own behind those of the
    layer ahead, so that it may begin before that has ended.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._homes: list[tuple[int, int, int]] = []
        self._first = self._stop = 0

    def home(self, layer: int, last: int, words: int, over: int | None = None) -> int:
        """The first of `words` that are free from a layer on until the `last`; `over`: of what ends there."""
        taken = self._taken(layer)
        starts = [self._capacity - words, *sorted((first - words for first, _ in taken), reverse=True)]
        first = self._fitting(layer, starts, words) if over is None else over
        self._homes.append((last, first, first + words))
        return first

    def own(self, layer: int, words: int) -> int:
        """The first of `words` that are free while a layer runs."""
        other = 0 if self._first else self._capacity - words
        ends = sorted(stop for _, stop in self._taken(layer))
        self._first = self._fitting(layer, [self._stop, other, 0, *ends], words)
        self._stop = self._first + words
        return self._first

    def _taken(self, layer: int) -> list[tuple[int, int]]:
        return [(first, stop) for last, first, stop in self._homes if last >= layer]

    def _fitting(self, layer: int, starts: Sequence[int], words: int) -> int:
        """The first of `starts` from which on `words` are free."""
        for start in starts:
            stop = start + words
            if start >= 0 and stop <= self._capacity and not any(
                start < other and one < stop for one, other in self._taken(layer)
            ):  # fmt: skip
                return start
        raise FullError(layer)


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

    @property
    def last(self) -> int:
        """The last layer that reads it there."""
        return max(layer for layer, _ in self.readers)


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
        program = self.layers[layer].program
        fills = [
            Fill((), program.tensor(name), self._parts(each.maker), 0)
            for each in self.allocations
            for at, name in each.readers
            if at == layer
        ]
        places = {at: at + len(fills) for at in range(len(program.steps))}
        steps = (
            (Spill(step.after, step.tensor, step.parts, 0) if isinstance(step, Keep) else step).renumbered(places)
            for step in program.steps
        )
        return replace(program, steps=(*fills, *steps))

    def _parts(self, maker: int) -> tuple[Part, ...]:
        """Where the outcome of a layer stays."""
        steps = self.layers[maker].program.steps
        return tuple(part for step in steps if isinstance(step, Keep) for part in step.parts)


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


_Plan = Mapping[int, tuple[Reader, ...]]
"""By the layer that makes it, who reads it on chip."""


def _with(staying: _Plan, maker: int, readers: Sequence[Reader]) -> _Plan:
    """More readers of an outcome; layers come in their order."""
    more = tuple(sorted({*staying.get(maker, ()), *readers}))
    return {**staying, maker: more} if more else staying


def _without(staying: _Plan, maker: int, readers: Sequence[Reader]) -> _Plan:
    """All but an outcome, and but these readers; nothing stays that nobody reads."""
    left = {at: tuple(each for each in some if each not in readers) for at, some in staying.items() if at != maker}
    return {at: some for at, some in left.items() if some}


class _Search:
    def __init__(self, layers: Sequence[Joint], capacity: int) -> None:
        self.layers, self.capacity = layers, capacity
        first: dict[int, int] = {}
        self._like = [first.setdefault(id(joint.units or joint), at) for at, joint in enumerate(layers)]
        """By layer, the first that has the very units: what is known of one is known of all of them."""
        self._homes = cache(lambda maker: home_of(units) if (units := layers[maker].units) else None)
        self._known = cache(self._settle)

    # ---- what could stay

    @property
    def wanted(self) -> _Plan:
        """All that layers read of one another."""
        found: defaultdict[int, list[Reader]] = defaultdict(list)
        for layer, sources in enumerate(self._sources):
            for name, maker in sources.items():
                found[maker].append((layer, name))
        return {maker: tuple(readers) for maker, readers in found.items()}

    def reached(self, wanted: _Plan) -> _Plan:
        """As much of it as layers can reach; what one cannot, others may no longer need."""
        staying = wanted
        for layer in range(len(self.layers)):
            staying = self._reached_by(layer, staying)
        return staying if staying == wanted else self.reached(staying)

    def _reached_by(self, layer: int, wanted: _Plan) -> _Plan:
        """Less of it, as far as a layer cannot be as it is to: what it makes goes first, then what it reads."""
        if self._over(layer, wanted) is not None:
            return wanted
        staying = _without(wanted, layer, [(layer, name) for name in self._sources[layer]])
        read = ((maker, (layer, name)) for name, maker in self._read_by(layer, wanted).items())
        for maker, readers in [(layer, wanted.get(layer, ())), *((maker, (reader,)) for maker, reader in read)]:
            more = _with(staying, maker, readers)
            staying = more if self._over(layer, more) is not None else staying
        return staying

    @cached_property
    def _sources(self) -> list[dict[str, int]]:
        """By layer and by its tensors, which layer's outcome they are, element for element and word for word; what a
        layer reads twice, it reads once there.
        """
        number = {joint.name: at for at, joint in enumerate(self.layers)}
        found: list[dict[str, int]] = []
        for joint in self.layers:
            mine = {
                name: number[read.names[0]]
                for name, read in joint.reads.items()
                if read.direct and len(read.names) == 1 and read.names[0] in number
            }
            there = {name: maker for name, maker in mine.items() if self._same(joint.program, name, maker)}
            first = {maker: name for name, maker in reversed(there.items())}
            found.append({name: maker for name, maker in there.items() if name == first[maker]})
        return found

    def _same(self, program: Program, name: str, maker: int) -> bool:
        made = self.layers[maker].program.tensor(OFMAP)
        return alike(program.tensor(name), made) and self._home(maker) is not None

    def _home(self, maker: int) -> Home | None:
        return self._homes(self._like[maker])

    def _settled(self, layer: int, read: Mapping[str, int], makes: bool, over: str = "") -> Settled | None:
        """A layer where that stays; None where it cannot."""
        makers = sorted((name, self._like[maker]) for name, maker in read.items())
        return self._known(self._like[layer], tuple(makers), makes, over)

    def _settle(self, layer: int, read: tuple[tuple[str, int], ...], makes: bool, over: str) -> Settled | None:
        homes = {name: home for name, maker in read if (home := self._home(maker))}
        units, home = self.layers[layer].units, self._home(layer) if makes else None
        try:
            return settled(units, Stays(homes, home, over)) if units else None
        except ScatteredError:
            return None

    # ---- what has room

    def without(self, staying: _Plan, layer: int) -> _Plan:
        """All but the one that is there while a layer runs and saves the least for the time that it takes."""
        there = [maker for maker, readers in staying.items() if maker <= layer <= readers[-1][0]]
        least = min(there, key=lambda maker: (self._worth(maker, staying[maker]), -self._words(maker)))
        return {maker: readers for maker, readers in staying.items() if maker != least}

    def _worth(self, maker: int, readers: Sequence[Reader]) -> float:
        """Trips through HBM that are saved, by the layers for which there must be room."""
        return (len(readers) + (not self._leaves(maker, readers))) / (readers[-1][0] - maker + 1)

    def _leaves(self, maker: int, readers: Sequence[Reader]) -> bool:
        """Whether an outcome goes to HBM although some read it on chip."""
        name = self.layers[maker].name
        asked = sum(name in read.names for joint in self.layers for read in joint.reads.values())
        return self.layers[maker].leaves or asked > len(readers)

    def _words(self, maker: int) -> int:
        home = self._home(maker)
        return home.words if home else 0

    def placed(self, staying: _Plan) -> Residence:
        """Everything at its place. Raises FullError."""
        words = Allocator(self.capacity)
        there: dict[int, Allocation] = {}
        found: list[tuple[Settled | None, Mapping[str, int], bool]] = []
        own: list[tuple[int, int]] = []
        for layer in range(len(self.layers)):
            readers, read = staying.get(layer, ()), self._read_by(layer, staying)
            leaves, over = self._leaves(layer, readers), self._over(layer, staying) or ""
            home, mine = self._home(layer), self._settled(layer, read, bool(readers), over) if read or readers else None
            if readers and home:
                place = there[read[over]].base if over else None
                base = words.home(layer, readers[-1][0], home.words, place)
                there[layer] = Allocation(layer, base, home.words, home.widest, readers, leaves)
            size = mine.words if mine else self.layers[layer].program.words
            own.append((words.own(layer, size), size))
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
        read, makes = self._read_by(layer, staying), layer in staying
        if not (read or makes):
            return ""
        ends = [name for name in read if makes and self._ends(layer, name, staying)]
        return next((name for name in (*ends, "") if self._settled(layer, read, makes, name) is not None), None)

    def _ends(self, layer: int, name: str, staying: _Plan) -> bool:
        """Whether a layer is the last to read something, and makes the like of it."""
        maker = self._sources[layer][name]
        return staying[maker][-1][0] == layer and self._home(layer) == self._home(maker)

    def _read_by(self, layer: int, staying: _Plan) -> dict[str, int]:
        return {name: maker for maker, readers in staying.items() for at, name in readers if at == layer}
