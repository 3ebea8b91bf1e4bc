"""Residence of tensors until they are read: outcomes that stay on chip, and tensors in the scratch memory.

An outcome stays if a later layer reads it word for word as it was made, and if there is room from the layer that makes
it to the last layer that reads it there. Other readers read it from HBM, so it is then spilled as well. Intermediates
of one or several layers lie in the scratch memory in place of HBM, as far as there is room. The rest of that room holds
operands that are filled several times: prefetches bring them from HBM once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from tpusim.machines.lowered import LayerTensor
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.rows import Rows
from tpusim.machines.tpu.program.tensors import HBM, SCRATCH, Tensor
from tpusim.machines.tpu.program.transfers import Fill, InboundTransfer, Keep, Prefetch, Spill, Transfer
from tpusim.machines.tpu.schedule.home import Home, HomedLayer, ResidentTensors, ScatteredError, home_of, settled
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
    readers: tuple[LayerTensor, ...]
    spilled: bool


@dataclass(frozen=True)
class Residence:
    """Layers of a chain at their places, and the outcomes that stay between them.

    `own` has the first own word and the number of own words of each layer.
    """

    layers: tuple[Joint, ...]
    allocations: tuple[Allocation, ...]
    own: tuple[tuple[int, int], ...]

    def outcome(self, layer: int) -> Allocation | None:
        """The allocation of a layer's outcome, if it stays."""
        return next((each for each in self.allocations if each.maker == layer), None)

    def alone(self, layer: int) -> Program:
        """The Program of a layer by itself, with the same addresses: operands on chip are filled first, and an outcome
        that stays is spilled.
        """
        read = {name for each in self.allocations for at, name in each.readers if at == layer}
        program, fills = self.layers[layer].program.lying(read, HBM), list[Fill]()
        for each in self.allocations:
            # The fills stand for the keeps of the layer that made the words, which is not run here.
            kept = (step.parts for _, step in self.layers[each.maker].program.rows.steps(Keep))
            parts = tuple(part for some in kept for part in some)
            fills += [Fill((), program.tensor(name), parts, 0) for at, name in each.readers if at == layer]
        rows = program.rows
        left = [Spill((), each.tensor, each.parts, 0) if isinstance(each, Keep) else each for each in rows.recipes]
        return replace(program, rows=Rows.together([Rows.of(fills), rows.having(left)]))


def immovable(program: Program) -> str:
    """The reason why nothing can stay for a layer, whose words must then stand side by side; empty if something can."""
    if program.banked:
        return "the ifmap lies in banks"
    if program.tables:
        return "passes read through pointers"
    picks = any(feed.picks for step in program.vectors for feed in step.operands)
    return "elements are picked through pointers" if picks else ""


def residence(layers: Sequence[Joint], hardware: Hardware) -> Residence:
    """The outcomes that can stay on chip, for layers that are to be joined.

    Where there is too little room, outcomes that save the fewest trips through HBM for the time they stay are given up
    first.
    """
    search = _Search(layers, hardware.capacity_words)
    staying = search.reached(search.wanted)
    while True:
        try:
            return search.placed(staying)
        except FullError as full:
            staying = search.reached(search.without(staying, full.layer))


_Plan = frozenset[LayerTensor]
"""The tensors that are to be read on chip, each with its reader."""


class _Search:
    def __init__(self, layers: Sequence[Joint], capacity: int) -> None:
        self.layers, self.capacity = layers, capacity
        # Layers of one shape share their units, so results are cached for all of them.
        self._home_of = cache(home_of)
        self._known: dict[object, HomedLayer | None] = {}

    # ---- what could stay

    @property
    def wanted(self) -> _Plan:
        """All reads of outcomes between layers."""
        return frozenset((layer, name) for layer, sources in enumerate(self._sources) for name in sources)

    def reached(self, wanted: _Plan) -> _Plan:
        """The part of a plan that layers can reach.

        If a layer cannot run as planned, its outcome is given up first, then its operands. Giving up one may spare
        others, so the answer is repeated until it holds.
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
        """By layer, its tensors that equal another layer's outcome, element for element and word for word, and that
        layer.

        An outcome that a layer reads twice is listed once.
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

    def _settled(self, layer: int, read: Mapping[str, int], makes: bool, over: str = "") -> HomedLayer | None:
        """A layer with these tensors at home; None where they cannot be."""
        units = self.layers[layer].units
        homes = tuple((name, home) for name, maker in read.items() if (home := self._home(maker)))
        key = units, homes, self._home(layer) if makes else None, over
        if units and key not in self._known:
            with suppress(ScatteredError):
                self._known[key] = settled(units, ResidentTensors(dict(homes), *key[2:]))
        return self._known.setdefault(key, None)

    # ---- what has room

    def without(self, staying: _Plan, layer: int) -> _Plan:
        """A plan without the outcome that is on chip while `layer` runs and saves the least for its time there."""
        readers = {maker: self._readers(maker, staying) for maker in sorted({*map(self._maker, staying)})}
        there = [maker for maker, each in readers.items() if maker <= layer <= each[-1][0]]
        worth: dict[int, tuple[float, int]] = {}
        for maker in there:
            # Worth: trips through HBM that are saved, per layer for which the room must be kept.
            trips = len(readers[maker]) + (not self._leaves(maker, readers[maker]))
            home = self._home(maker)
            worth[maker] = trips / (readers[maker][-1][0] - maker + 1), -(home.words if home else 0)
        return staying.difference(readers[min(there, key=worth.__getitem__)])

    def _leaves(self, maker: int, readers: Sequence[LayerTensor]) -> bool:
        """Whether an outcome goes to HBM although some layers read it on chip."""
        name = self.layers[maker].name
        asked = sum(name in read.names for joint in self.layers for read in joint.reads.values())
        return self.layers[maker].leaves or asked > len(readers)

    def placed(self, staying: _Plan) -> Residence:
        """The residence of a plan, everything at its place. Raises FullError."""
        room = WordRoom(self.capacity)
        there: dict[int, Allocation] = {}
        found: list[tuple[HomedLayer | None, Mapping[str, int], bool]] = []
        own: list[tuple[int, int]] = []
        for layer in range(len(self.layers)):
            readers, read = self._readers(layer, staying), self._read_by(layer, staying)
            leaves, over = self._leaves(layer, readers), self._over(layer, staying) or ""
            home, mine = self._home(layer), self._settled(layer, read, bool(readers), over) if read or readers else None
            if readers and home:
                # The last reader may reuse the room of its operand, so the room of the outcome is needed only behind
                # it.
                span = range(layer + bool(over), readers[-1][0] + 1)
                starts = [there[read[over]].base] if over else room.from_the_end(home.words, span)
                base = room.place(starts, home.words, span)
                there[layer] = Allocation(layer, base, home.words, home.widest, readers, leaves)
            size = mine.words if mine else self.layers[layer].program.words
            own.append((room.own(layer, size), size))
            homes = {name: there[maker].base for name, maker in read.items()}
            homes |= {OFMAP: there[layer].base} if layer in there else {}
            found.append((mine, homes, leaves))
        # Scheduling is expensive, so it comes only once every layer has its place.
        layers = (
            joint._replace(program=joint.finish(mine.at(first, homes, leaves)) if mine else joint.at(first))
            for joint, (first, _), (mine, homes, leaves) in zip(self.layers, own, found, strict=True)
        )
        return Residence(tuple(layers), tuple(there.values()), tuple(own))

    def _over(self, layer: int, staying: _Plan) -> str | None:
        """The operand, read for the last time, whose words a layer's outcome can take.

        Returns "" if there is none, and None if the layer cannot run as planned.
        """
        read, makes = self._read_by(layer, staying), bool(self._readers(layer, staying))
        if not (read or makes):
            return ""
        ends = [name for name in read if makes and self._ends(layer, name, staying)]
        return next((name for name in (*ends, "") if self._settled(layer, read, makes, name) is not None), None)

    def _ends(self, layer: int, name: str, staying: _Plan) -> bool:
        """Whether a layer is the last reader of an operand, and makes an outcome of the same form."""
        maker = self._sources[layer][name]
        return self._readers(maker, staying)[-1][0] == layer and self._home(layer) == self._home(maker)

    def _maker(self, reader: LayerTensor) -> int:
        layer, name = reader
        return self._sources[layer][name]

    def _readers(self, maker: int, staying: _Plan) -> tuple[LayerTensor, ...]:
        """Readers of an outcome, in order."""
        return tuple(sorted(each for each in staying if self._maker(each) == maker))

    def _read_by(self, layer: int, staying: _Plan) -> dict[str, int]:
        return {name: maker for name, maker in self._sources[layer].items() if (layer, name) in staying}


# ---- the scratch memory


AHEAD = 2
"""Transfers between a prefetch and the fill that reads its data: with one, the data would still be on its way."""


def in_scratch(layers: Sequence[Joint], hardware: Hardware) -> tuple[Joint, ...]:
    """Consecutive layers with their intermediates in the scratch memory; those that save the most for their room go
    first.
    """
    if hardware.scratch_memory is None:
        return tuple(layers)
    room, found = WordRoom(hardware.scratch_memory.capacity_bytes), [*layers]
    # Of each tensor: bytes kept off the bus of HBM, for its room and time; its users; its bytes; the layers of its
    # life.
    lives: list[tuple[float, list[tuple[int, str]], int, range]] = []
    for users in _users(layers):
        (first, tensor), (last, _) = users[0], users[-1]
        size = len(layers[first].program.tensor(tensor).extent(hardware.element_bytes))
        span = range(first, last + 1)
        moved = sum(layers[at].program.bytes_moved(name) for at, name in users)
        lives.append((moved / (size * len(span)), users, size, span))
    for _, users, size, span in sorted(lives, key=lambda each: -each[0]):
        starts = 0, *sorted(place.stop for place in room.taken(span))
        with suppress(FullError):
            there = SCRATCH.at(room.place(starts, size, span))
            for at, name in users:
                found[at] = found[at]._replace(program=found[at].program.lying({name}, there))
    return tuple(found)


def _users(layers: Sequence[Joint]) -> Iterator[list[tuple[int, str]]]:
    """Layers that use a tensor, each with its name for it: the maker, and its readers, if all of them read it element
    for element, over a bus, and are layers here.
    """
    for maker, (name, program, _, leaves, *_) in enumerate(layers):
        yield from ([(maker, own)] for own in sorted(program.intermediates - {OFMAP}))
        made = program.tensor(OFMAP)
        wanted = [(at, tensor, read) for at, joint in enumerate(layers) for tensor, read in joint.reads.items()
                  if name in read.names]  # fmt: skip
        same = all(
            read.direct and len(read.names) == 1 and alike(layers[at].program.tensor(tensor), made)
            and layers[at].program.tensor(tensor).place.bus
            for at, tensor, read in wanted
        )  # fmt: skip
        if wanted and same and not leaves:
            yield [(maker, OFMAP), *((at, tensor) for at, tensor, _ in wanted)]


# ---- operands


def prefetched(program: Program, hardware: Hardware, ahead: int = AHEAD) -> Program:
    """The Program with operands that it fills several times in the scratch memory, as far as there is room.

    An operand that is filled once still comes from HBM directly.
    """
    if hardware.scratch_memory is None:
        return program
    taken = (each.extent(hardware.element_bytes).stop for each in program.tensors if each.place.base is not None)
    rows, first, copies = program.rows, max(taken, default=0), list[Tensor]()
    again = _fills_again(program)
    due: defaultdict[int, list[tuple[Tensor, list[int]]]] = defaultdict(list)
    transfers = np.flatnonzero(rows.are(Transfer)).tolist()
    # Bytes of repeated fills, which no longer come from HBM.
    spared = {name: sum(fill.hbm_bytes * (len(fills) - 1) for fill, fills in each) for name, each in again.items()}
    for name in sorted(again, key=lambda name: -spared[name] / program.tensor(name).size):
        copy = replace(program.tensor(name), name=f"{name} in scratch memory", place=SCRATCH.at(first))
        stop = copy.extent(hardware.element_bytes).stop
        if stop <= hardware.scratch_memory.capacity_bytes:
            copies.append(copy)
            first = stop
            for _, fills in again[name]:
                due[transfers[max(0, bisect_left(transfers, fills[0]) - ahead)]].append((copy, fills))
    return replace(program, tensors=(*program.tensors, *copies), rows=_bringing(rows, due)) if copies else program


def _fills_again(program: Program) -> dict[str, list[tuple[InboundTransfer, list[int]]]]:
    """By operand, the fills that bring the same data several times: the first, and the numbers of all."""
    rows, same = program.rows, defaultdict[object, list[int]](list)
    for at, step in rows.steps(InboundTransfer):
        if step.hbm_bytes and step.tensor.name not in program.makers:
            held = step.tensor.name, step.regions, tuple((part.lane, part.items) for part in step.parts)
            same[held].append(at)
    again = defaultdict[str, list[tuple[InboundTransfer, list[int]]]](list)
    for fills in same.values():
        if len(fills) > 1 and isinstance(first := rows[fills[0]], InboundTransfer):
            again[first.tensor.name].append((first, fills))
    return again


def _bringing(rows: Rows, due: Mapping[int, Sequence[tuple[Tensor, Sequence[int]]]]) -> Rows:
    """The rows with prefetches where they are `due`, and with the fills that read the copies."""
    prefetches, order, waits = list[Prefetch](), list[int](), list[tuple[int, int]]()
    reading: dict[tuple[int, str], InboundTransfer] = {}
    readers: dict[int, InboundTransfer] = {}
    for at in range(len(rows)):
        for copy, fills in due.get(at, ()):
            if not isinstance(fill := rows[fills[0]], InboundTransfer):
                continue
            number = len(rows) + len(prefetches)
            prefetches.append(Prefetch((), fill.tensor, fill.parts, fill.hbm_bytes, copy, regions=fill.regions))
            order.append(number)
            waits += ((each, number) for each in fills)
            for each in fills:
                recipe = rows.recipes[key := int(rows.table["recipe"][each])]
                if isinstance(recipe, InboundTransfer):
                    readers[each] = reading.setdefault((key, copy.name), replace(recipe, tensor=copy))
        order.append(at)
    more = np.array(waits, np.int64).T
    return Rows.together([rows.exchanged(readers), Rows.of(prefetches)]).arranged(order, (more[0], more[1]))
