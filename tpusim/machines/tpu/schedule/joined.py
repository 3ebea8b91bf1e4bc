"""Several layers as one Program, so that a layer begins while the layer ahead ends.

Steps keep the order of their layers, and each unit takes its steps in that order. Waits for earlier layers are written
down like any wait: for words of the vector memories that are still in use, and for spills of operands. So interpreters
run the result like any other Program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil
from typing import NamedTuple, TypeAlias

import numpy as np

from tpusim.machines.tpu.definition import frame_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.check import meet
from tpusim.machines.tpu.program.moves import box_of
from tpusim.machines.tpu.program.program import HandedTensor, Pace, Program
from tpusim.machines.tpu.program.rows import Numbers, Rows, WordRanges
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import KINDS, Fill, Keep, Spill
from tpusim.machines.tpu.schedule.in_time import in_time
from tpusim.machines.tpu.schedule.scheduler import program_of
from tpusim.machines.tpu.schedule.units import Units
from tpusim.network.ops.op import OFMAP


class FullError(Exception):
    """Raised when there is no room while a layer runs."""

    def __init__(self, layer: int) -> None:
        super().__init__(layer)
        self.layer = layer


class WordRoom:
    """Room in a memory: ranges that are taken while certain layers run."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._taken: list[tuple[range, range]] = []
        self._own = range(0)

    def taken(self, layers: range) -> list[range]:
        """Ranges that are taken while any of `layers` runs."""
        return [place for span, place in self._taken if meet(span, layers)]

    def from_the_end(self, size: int, layers: range) -> list[int]:
        """Starts to try for `size` words, from the last: at the end of the memory, or right ahead of a taken range."""
        ends = self.capacity, *(place.start for place in self.taken(layers))
        return sorted((end - size for end in ends), reverse=True)

    def place(self, starts: Iterable[int], size: int, layers: range) -> int:
        """Take `size` words from the first of `starts` where they are free, and return the start. Raises FullError."""
        taken, most = self.taken(layers), self.capacity - size
        for start in starts:
            found = range(start, start + size)
            if 0 <= start <= most and not any(meet(found, place) for place in taken):
                self._taken.append((layers, found))
                return start
        raise FullError(layers.start)

    def own(self, layer: int, words: int) -> int:
        """Take a layer's own words and return the first of them. Raises FullError.

        They come behind the own words of the layer ahead, so that it may begin before that has ended; else at the
        beginning, or as far away as possible.
        """
        layers, other = range(layer, layer + 1), 0 if self._own.start else self.capacity - words
        starts = self._own.stop, other, 0, *sorted(place.stop for place in self.taken(layers))
        first = self.place(starts, words, layers)
        self._own = range(first, first + words)
        return first


_NONE = -1
_Pairs: TypeAlias = tuple[Numbers, Numbers]
"""Numbers of steps, and beside each the number of a step that it waits for."""


class Waits:
    """Layers joined one by one, with the waits between them; steps have the numbers that they have in this order.

    Steps end in order that are of one *kind*: of one class and, where arrays have weights of their own, of one array.
    A step that has waited for one of a kind has waited for all ahead of it.
    """

    def __init__(self, hardware: Hardware, handed: Mapping[str, HandedTensor]) -> None:
        self._hardware, self._handed = hardware, handed
        self._together = change_together(hardware)
        self._parts: list[Rows] = []
        self._pairs: list[_Pairs] = []
        self._paces: list[Pace] = []
        self._places: list[Numbers] = []
        """By layer, the number of each step's pace."""
        self._free: set[int] = set()
        """Fills that may go ahead of all layers ahead of theirs, where arrays change layers together."""
        self._order: list[int] = []
        self._before: JoinedLayer | None = None
        self._fill = self._steps = 0
        self._users: dict[int, Numbers] = {}
        """By kind, the last step that used each word."""
        self._waited: dict[tuple[int, int], int] = {}
        self._spills: defaultdict[str, list[tuple[Numbers, _Boxes]]] = defaultdict(list)

    def join(self, program: Program) -> None:
        """Add the steps of the next layer."""
        rows, first = program.rows, self._steps
        fills = rows.are(Fill)
        kinds: Numbers = rows.kinds + len(KINDS) * (1 + rows.table["array"].astype(np.int64))
        written, read = rows.words(lambda each: each.words_written), rows.words(lambda each: each.words_read)
        begins = int(np.argmin(fills))
        waits = [*self._makers(rows), *self._users_of(kinds, begins, written, read)]
        waiting: defaultdict[int, set[int]] = defaultdict(set)
        for mine, others in waits:
            for at, number in zip(*(each[mine < begins].tolist() for each in (mine, others)), strict=True):
                waiting[at].add(number)
        passes = rows.told(lambda each: each.fill if isinstance(each, Stream) else 0)[rows.are(Stream)]
        own = passes.tolist() or [self._fill]
        changes, self._fill = own[0] != self._fill, own[-1]
        if self._before and (self._together or changes or self._hardware.sequencer.between_blocks == "drain"):
            loads = rows.are(Preload)
            _, firsts = np.unique(kinds[loads], return_index=True)
            ends = np.array(self._before.ends, np.int64)
            waits.append((np.flatnonzero(loads)[firsts].repeat(len(ends)), np.tile(ends, len(firsts))))
        # Only fills that wait for no step of their own layer may go ahead of it.
        free: dict[int, tuple[Fill, set[int]]] = {}
        for at in np.flatnonzero(rows.ends[:begins] == rows.table["waits"][:begins]).tolist():
            step = rows.recipe(at)
            assert isinstance(step, Fill)
            free[first + at] = step, waiting[at]
        early: set[int] = set()
        if self._together:
            self._free |= {at for at, (step, _) in free.items() if step.tensor.name not in self._handed}
        elif self._before:
            order, early = self._before.with_ahead(free)
            self._order += order
        # Note the users of words, for later layers.
        for ranges in (written, read):
            self._use(kinds[ranges.rows], first + ranges.rows, ranges)
        for name, (numbers, boxes) in _boxes(rows, Spill).items():
            self._spills[name].append((first + numbers, boxes))
        self._places.append(len(self._paces) + program.numbers_of_paces.astype(np.int64))
        self._paces += program.all_paces
        pairs = np.unique(np.concatenate([np.zeros(0, np.int64), *(mine << 32 | others for mine, others in waits)]))
        self._pairs.append((first + (pairs >> 32), pairs & 0xFFFFFFFF))
        self._parts.append(rows)
        self._steps += len(rows)
        left = [number for number in range(first, self._steps) if number not in early]
        self._before = JoinedLayer(left, first, program, self._hardware)

    def in_order(self) -> tuple[Rows, tuple[int, ...]]:
        """All steps with their final numbers, and the layer of each."""
        pairs = tuple(np.concatenate([each[side] for each in self._pairs]) for side in (0, 1))
        whole = Rows.together(self._parts).arranged(range(self._steps), (pairs[0], pairs[1]))
        layers = np.repeat(np.arange(len(self._parts)), [*map(len, self._parts)])
        if self._together:
            paces = np.concatenate(self._places).tolist()
            order = in_time(whole, [self._paces[each] for each in paces], self._free, self._hardware)
        else:
            # Steps of the last layer are still held back, as a next layer might have moved among them.
            order = [*self._order, *(self._before.with_ahead({})[0] if self._before else [])]
        return whole.arranged(order), tuple(layers[order].tolist())

    # ---- what a step waits for

    def _users_of(self, kinds: Numbers, begins: int, written: WordRanges, read: WordRanges) -> Iterator[_Pairs]:
        """Steps that used the words of a layer's steps last, as pairs.

        The first steps, up to the one with which the layer `begins`, may go ahead of others of their layer, so they
        cannot count on the waits of those.
        """
        last = [self._last(len(kinds), ranges) for ranges in (written, read)]
        none = np.full(len(kinds), _NONE)
        keeps = kinds % len(KINDS) == _KEEP
        of_kinds = [(mine, np.flatnonzero(kinds == mine)) for mine in np.unique(kinds).tolist()]
        for kind, users in self._users.items():
            # Nobody waits for a reader in order to read; but a Keep says that the words are now there.
            also = np.where(keeps, _NONE, last[1](users)) if kind % len(KINDS) == _KEEP else none
            found = np.stack([last[0](users), also], 1)
            for mine, rows in of_kinds:
                numbers, whose = found[rows].ravel(), rows.repeat(2)
                known = self._waited.get((mine, kind), _NONE)
                waited = np.maximum.accumulate(np.append(known, numbers))
                self._waited[mine, kind] = int(waited[-1])
                new = (numbers > waited[:-1]) | ((whose < begins) & (numbers > _NONE))
                if new.any():
                    yield whose[new], numbers[new]

    def _last(self, count: int, ranges: WordRanges) -> Callable[[Numbers], Numbers]:
        """A function that finds, given the last user of every word, the last user of each row's words."""
        starts, stops, which = ranges.once(self._hardware.capacity_words)
        every = [*zip(starts.tolist(), stops.tolist(), strict=True)]

        def last(users: Numbers) -> Numbers:
            found = np.full(count, _NONE)
            of_words = np.array([users[start:stop].max(initial=_NONE) for start, stop in every], np.int64)
            np.maximum.at(found, ranges.rows, of_words[which])
            return found

        return last

    def _use(self, kinds: Numbers, numbers: Numbers, ranges: WordRanges) -> None:
        """Note that steps of these kinds use these words."""
        starts, stops, which = ranges.once(self._hardware.capacity_words)
        # Of the steps of a kind that use the same words the last one counts.
        _, last = np.unique((kinds << 32 | which)[::-1], return_index=True)
        for at in np.sort(len(kinds) - 1 - last).tolist():
            users = self._users.get(kind := int(kinds[at]))
            if users is None:
                users = self._users[kind] = np.full(self._hardware.capacity_words, _NONE)
            words = users[starts[which[at]] : stops[which[at]]]
            np.maximum(words, numbers[at], out=words)

    def _makers(self, rows: Rows) -> Iterator[_Pairs]:
        """Spills of earlier layers that made the data of fills, as pairs."""
        for name, (numbers, mine) in _boxes(rows, Fill).items():
            if not (handed := self._handed.get(name)):
                continue
            spills = [each for source in handed.sources for each in self._spills[source]]
            if not spills:
                continue
            every, made = (np.concatenate([each[side] for each in spills]) for side in (0, 1))
            meets = np.ones((len(numbers), len(every)), np.bool_)
            if handed.placed:
                low, high = (np.minimum, np.maximum)
                meets = (high(mine[:, None, 0], made[None, :, 0]) < low(mine[:, None, 1], made[None, :, 1])).all(axis=2)
                # A fill of padding alone waits for all spills, as every reader of a written tensor must wait for its
                # spills.
                meets[~meets.any(axis=1)] = True
            fills, others = np.nonzero(meets)
            yield numbers[fills], every[others]


_KEEP = KINDS.index(Keep)
_Boxes: TypeAlias = Numbers
"""Rectangles of tensors, [transfer, first or stop, axis]."""


def _boxes(rows: Rows, kind: type[Fill] | type[Spill]) -> dict[str, tuple[Numbers, _Boxes]]:
    """By tensor, the transfers of a kind, and the smallest rectangle of each that holds all its elements."""
    found: defaultdict[str, tuple[list[int], list[_Boxes]]] = defaultdict(lambda: ([], []))
    for number, recipe in enumerate(rows.recipes):
        if isinstance(recipe, kind):
            at = np.flatnonzero(rows.table["recipe"] == number)
            numbers, boxes = found[recipe.tensor.name]
            numbers += at.tolist()
            box = np.array([(each.start, each.stop) for each in box_of(recipe)], np.int64).T
            boxes.append(box + rows.origins_of(at, box.shape[1])[:, None])
    return {name: (np.array(numbers), np.concatenate(boxes)) for name, (numbers, boxes) in found.items()}


class JoinedLayer:
    """A layer in order, with fills of the next layer among its steps; `numbers` are the numbers of its steps."""

    def __init__(self, numbers: Sequence[int], first: int, program: Program, hardware: Hardware) -> None:
        """`first` is the number that the first step of the Program has."""
        rows = program.rows
        own = np.array(numbers, np.int64) - first
        arrays = rows.table["array"][own].tolist()
        self._numbers, self._hardware = numbers, hardware
        self._place = {number: at for at, number in enumerate(numbers)}
        pace = program.frame(hardware).period / hardware.array.together if program.passes else 0.0
        taken = rows.told(
            lambda each: each.words * pace if isinstance(each, Stream)
            else each.words * each.beat(program.word_fill, hardware).a_word if isinstance(each, Vector)
            else 0.0
        )[own]  # fmt: skip
        # Cycles of passes and vector steps behind each place, the first one ahead of all steps.
        self._behind = [*accumulate(taken[::-1].tolist(), initial=0.0)][::-1]
        self._spills = rows.are(Spill)[own]
        self._last_fill = int(np.flatnonzero(rows.are(Fill)[own])[-1:].max(initial=-1))
        last: dict[int, int] = {}
        vectors = rows.are(Vector)[own].tolist()
        for at in np.flatnonzero(rows.are(Stream | Vector)[own]).tolist():
            # A vector step ends behind all passes ahead of it.
            last = {} if vectors[at] else last
            last[arrays[at]] = numbers[at]
        self.ends = sorted(last.values())
        self.last_pass = max(self.ends, default=-1)

    def with_ahead(self, early: Mapping[int, tuple[Fill, set[int]]]) -> tuple[list[int], set[int]]:
        """Numbers of the layer's steps with `early` fills of the next layer among them, and the fills that found a
        place.

        As many fills go in as the last passes leave time for. A fill goes behind the layer's last fill and behind the
        steps that it waits for; a fill of spilled data goes behind the last pass, if the data is in HBM by then.
        """
        behind: defaultdict[int, list[int]] = defaultdict(list)
        hardware, spent = self._hardware, 0.0
        for number, (step, waits) in early.items():
            moved = max(ceil(step.hbm_bytes / hardware.hbm_bytes_per_cycle), step.conversion_cycles(hardware))
            # Two transfers are under way at once, so half of each latency is hidden.
            at, taken = self._place_for(waits), spent + max(moved, (moved + hardware.latency_cycles) / 2)
            if at is not None and taken <= self._behind[self._last_fill + 1]:
                behind[at].append(number)
                spent = taken
        order = [*behind[-1]]
        for at, number in enumerate(self._numbers):
            order += [number, *behind[at]]
        return order, {number for each in behind.values() for number in each}

    def _place_for(self, waits: Collection[int]) -> int | None:
        """The place behind which a fill goes; None where it is better left in its own layer."""
        places = [self._place[each] for each in waits if each in self._place]
        last = self._place[self.last_pass]
        spills = [at for at in places if self._spills[at]]
        # A fill that waits for a step behind the last pass cannot come ahead of it.
        if max(places, default=-1) >= last:
            return None
        if not spills:
            return max([self._last_fill, *places])
        stored = self._hardware.latency_cycles + self._hardware.lanes
        return max(last, self._last_fill) if self._behind[max(spills) + 1] >= stored else None


class ReadOutcomes(NamedTuple):
    """Outcomes that a layer reads, by the names of the layers that made them.

    `direct`: one outcome, as it was made. `placed`: each element is made of the elements at the same place in all of
    them.
    """

    names: tuple[str, ...]
    direct: bool = True
    placed: bool = False


class Joint(NamedTuple):
    """A layer of a chain: a unique name, its Program, and the outcomes of others that it reads, by its own tensors.

    Attributes:
        leaves: whether a reader outside the chain needs the outcome.
        units: units from which the Program was scheduled; without them its addresses are fixed, and nothing stays for
        it.
        finish: function from the scheduled Program to the Program to be run.
    """

    name: str
    program: Program
    reads: Mapping[str, ReadOutcomes]
    leaves: bool = True
    units: Units | None = None
    finish: Callable[[Program], Program] = lambda program: program

    def at(self, first: int) -> Program:
        """The Program with its words from `first` on."""
        if not first:
            return self.program
        if self.program.rows.movable:
            return self.program.moved(first)
        assert self.units is not None
        return self.finish(program_of(self.units, first))


def unfit(layer: Joint, before: Sequence[Joint], hardware: Hardware) -> str:
    """The reason why a layer cannot join the layers ahead of it; empty if it can."""
    program, ahead = layer.program, [each.program for each in before]
    made_before = {each.operand for each in program.derived}
    if any(name in made_before or name not in {each.name for each in program.tensors} for name in layer.reads):
        return "what it reads is transformed before it begins"
    if program.banked or any(each.banked for each in ahead):
        return "the ifmap lies in banks"
    if program.tables or any(each.tables for each in ahead):
        return "passes read through pointers"
    return "" if change_together(hardware) else _misfit(program, ahead, hardware)


def _misfit(program: Program, ahead: Sequence[Program], hardware: Hardware) -> str:
    """The reason why a layer cannot have one frame with the layers ahead of it; empty if it can."""
    if any(each.word_fill != program.word_fill for each in ahead):
        return "words hold another number of elements"
    streaming = [each for each in (program, *ahead) if each.passes]
    if len({each.word_cycles for each in streaming}) > 1:
        return "words take another time to be made ready"
    if streaming:
        # The frame of all clients together must be no longer than each layer's own, or joining would slow a layer down.
        clients = max((each.clients for each in streaming), key=len)
        finishing = max(each.finishing for each in streaming)
        common = frame_of(hardware, program.word_fill, clients, 1, streaming[0].word_cycles, finishing)
        if any(each.frame(hardware).period != common.period for each in streaming):
            return "the frame of the port is of another length"
    return ""


def change_together(hardware: Hardware) -> bool:
    """Whether all arrays are through with a layer before any of them begins with the next.

    Each layer then has a frame of its own, and fills go as far ahead as there is room.
    """
    return hardware.array.count > 1


def placed(layers: Sequence[Joint], hardware: Hardware) -> list[Joint]:
    """The layers, each with words of its own."""
    room = WordRoom(hardware.capacity_words)
    return [each._replace(program=each.at(room.own(at, each.program.words))) for at, each in enumerate(layers)]


def linked(layers: Sequence[Joint], hardware: Hardware) -> Program:
    """Consecutive layers, with their places, as one Program; a single layer is returned as it is.

    No layer may be `unfit` for those ahead of it.
    """
    if len(layers) == 1:
        return layers[0].program
    handed = [*_handed(layers)]
    waits = Waits(hardware, {each.tensor: each for each in handed})
    programs: list[Program] = []
    for layer, program, *_ in layers:
        # Names get their layer in front, since tensors of different layers may be called alike.
        named = replace(
            program,
            tensors=tuple(each.of_layer(layer) for each in program.tensors),
            buffers=tuple(replace(each, tensor=f"{layer}.{each.tensor}") for each in program.buffers),
            rows=program.rows.having([each.of_layer(layer) for each in program.rows.recipes]),
            constants=tuple(replace(each, tensor=f"{layer}.{each.tensor}") for each in program.constants),
            derived=tuple(
                replace(each, tensor=f"{layer}.{each.tensor}", operand=f"{layer}.{each.operand}")
                for each in program.derived
            ),
        )
        waits.join(named)
        programs.append(named)
    rows, numbers = waits.in_order()
    return Program(
        tensors=tuple(each for program in programs for each in program.tensors),
        buffers=tuple(each for program in programs for each in program.buffers),
        rows=rows,
        word_fill=max(each.word_fill for each in programs),
        constants=tuple(each for program in programs for each in program.constants),
        word_cycles=max((each.word_cycles for each in programs if each.passes), default=0),
        derived=tuple(each for program in programs for each in program.derived),
        doubles=any(each.doubles for each in programs),
        layers=numbers,
        handed=tuple(handed),
        paces=tuple(each.pace for each in programs) if change_together(hardware) else (),
    )


def _handed(layers: Sequence[Joint]) -> Iterator[HandedTensor]:
    """Tensors that layers read of earlier layers."""
    before: dict[str, Tensor] = {}
    for name, program, reads, *_ in layers:
        for tensor, (names, direct, placed) in reads.items():
            made, mine = [before[each] for each in names if each in before], program.tensor(tensor)
            same = direct and len(names) == len(made) == 1 and alike(mine, made[0])
            placed = (placed or same) and all(each.shape == mine.shape for each in made)
            if made:
                yield HandedTensor(f"{name}.{tensor}", tuple(each.name for each in made), same, placed)
        before[name] = program.tensor(OFMAP).of_layer(name)


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether both tensors have the same elements in the same words."""
    sizes, others = ((each.shape, each.number_bytes, each.hbm_bytes, each.packed) for each in (one, other))
    return sizes == others and one.scale == 1
