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
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import frame_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.check import meet
from tpusim.machines.tpu.program.moves import box_of
from tpusim.machines.tpu.program.program import Handed, Pace, Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import Fill, Keep, Spill, Tensor
from tpusim.machines.tpu.schedule.in_time import Known, in_time
from tpusim.machines.tpu.schedule.scheduler import program_of
from tpusim.machines.tpu.schedule.units import Units
from tpusim.memory.layout import Region
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


Kind: TypeAlias = tuple[type[Step], int]
"""Steps that end in order, of one class and, where arrays have weights of their own, of one array: a step that has
waited for one has waited for all ahead of it.
"""
_NONE = -1


class Waits:
    """Steps of layers, joined layer by layer, with the waits between layers; numbers are final once all layers are
    there.
    """

    def __init__(self, hardware: Hardware, handed: Mapping[str, Handed]) -> None:
        self._hardware, self._handed = hardware, handed
        self._together = change_together(hardware)
        self._steps: list[Step] = []
        self._paces: list[Pace] = []
        self._arrays: list[int] = []
        self._free: set[int] = set()
        """Fills that may go ahead of all layers ahead of theirs, where arrays change layers together."""
        self._waits: dict[int, set[int]] = {}
        """By step, the steps of earlier layers that it waits for; waits within a layer keep that layer's numbers."""
        self._layers: list[int] = []
        self._order: list[int] = []
        self._before: JoinedLayer | None = None
        self._fill = 0
        self._users: defaultdict[Kind, NDArray[np.int64]]
        self._users = defaultdict(lambda: np.full(hardware.capacity_words, _NONE))
        self._waited: defaultdict[tuple[Kind, Kind], int] = defaultdict(lambda: _NONE)
        self._spills: defaultdict[str, list[tuple[int, Region]]] = defaultdict(list)

    def join(self, program: Program) -> None:
        """Add the steps of the next layer."""
        steps, first = program.steps, len(self._steps)
        begins = next(at for at, step in enumerate(steps) if not isinstance(step, Fill))
        kinds = [*zip(map(type, steps), program.arrays, strict=True)]
        waiting = [
            self._waiting(step, kind, anew=at < begins)
            for at, (step, kind) in enumerate(zip(steps, kinds, strict=True))
        ]
        changes = bool(program.streams) and program.streams[0].fill != self._fill
        self._fill = program.streams[-1].fill if program.streams else self._fill
        if self._before and (self._together or changes or self._hardware.sequencer.between_blocks == "drain"):
            loads = {kind: at for at, kind in reversed([*enumerate(kinds)]) if kind[0] is Preload}
            for at in loads.values():
                waiting[at] |= self._before.ends
        # Only fills that wait for no step of their own layer may go ahead of it.
        free = {first + at: (step, waiting[at]) for at, step in enumerate(steps[:begins])
                if isinstance(step, Fill) and not step.after}  # fmt: skip
        early: set[int] = set()
        if self._together:
            self._free |= {number for number, (step, _) in free.items() if step.tensor.name not in self._handed}
        elif self._before:
            order, early = self._before.with_ahead(free)
            self._order += order
        self._paces += map(program.pace_of, range(len(steps)))
        self._arrays += [array for _, array in kinds]
        self._waits |= dict(enumerate(waiting, first))
        self._steps += steps
        # Note the users of words, for later layers.
        for number, step in enumerate(steps, first):
            for words in step.words_used:
                self._users[kinds[number - first]][words.start : words.stop] = number
            if isinstance(step, Spill):
                self._spills[step.tensor.name].append((number, box_of(step)))
        self._layers += [max(self._layers, default=-1) + 1] * len(steps)
        numbers = [number for number in range(first, len(self._steps)) if number not in early]
        own, arrays = [self._steps[each] for each in numbers], [self._arrays[each] for each in numbers]
        self._before = JoinedLayer(numbers, own, arrays, program, self._hardware)

    def in_order(self) -> tuple[tuple[Step, ...], tuple[int, ...]]:
        """All steps with their final numbers, and the layer of each."""
        firsts = [self._layers.index(layer) for layer in range(max(self._layers) + 1)]
        if self._together:
            order = in_time(self._known(firsts), self._free, self._hardware)
        else:
            # Steps of the last layer are still held back, as a next layer might have moved among them.
            order = [*self._order, *(self._before.with_ahead({})[0] if self._before else [])]
        place = np.argsort(order).tolist()
        own = [place[first:] for first in firsts]
        steps: list[Step] = []
        for number in order:
            step, waits = self._steps[number].renumbered(own[self._layers[number]]), self._waits[number]
            after = sorted((*step.after, *(place[each] for each in waits)))
            steps.append(replace(step, after=tuple(after)) if waits else step)
        return tuple(steps), tuple(self._layers[number] for number in order)

    def _known(self, firsts: Sequence[int]) -> list[Known]:
        """All steps, whose waits have the numbers that the first steps of their layers give them."""
        found = []
        for number, step in enumerate(self._steps):
            first = firsts[self._layers[number]]
            waits = (*(first + each for each in step.after), *self._waits[number])
            found.append(Known(step, first, self._paces[number], self._arrays[number], waits))
        return found

    # ---- what a step waits for

    def _waiting(self, step: Step, mine: Kind, anew: bool) -> set[int]:
        """Steps of earlier layers that a step waits for.

        A step that may go ahead of others of its layer cannot count on their waits, so with `anew` all users are looked
        at.
        """
        found, used = {*self._makers(step)}, [*self._last_users(step.words_written, self._users)]
        # Nobody waits for a reader in order to read; but a Keep says that the words are now there.
        keeps = [kind for kind in self._users if kind[0] is Keep]
        used += [] if isinstance(step, Keep) else self._last_users(step.words_read, keeps)
        for kind, number in used:
            if anew or number > self._waited[mine, kind]:
                found.add(number)
            self._waited[mine, kind] = max(number, self._waited[mine, kind])
        return found

    def _last_users(self, words: Iterable[range], kinds: Iterable[Kind]) -> Iterator[tuple[Kind, int]]:
        """The last step of each kind that used any of these words."""
        where = [slice(each.start, each.stop) for each in words if each]
        for kind in kinds:
            number = max((int(self._users[kind][each].max(initial=_NONE)) for each in where), default=_NONE)
            if number != _NONE:
                yield kind, number

    def _makers(self, step: Step) -> Iterator[int]:
        """Spills of earlier layers that made the data of a fill."""
        if not isinstance(step, Fill) or not (handed := self._handed.get(step.tensor.name)):
            return
        spills, mine = [each for name in handed.sources for each in self._spills[name]], box_of(step)
        apart = [handed.placed and not all(map(meet, mine, made)) for _, made in spills]
        # A fill of padding alone waits for all spills, as every reader of a written tensor must wait for its spills.
        yield from (number for (number, _), other in zip(spills, apart, strict=True) if not other or all(apart))


class JoinedLayer:
    """A layer in order, with fills of the next layer among its steps; `numbers` are the numbers of its steps."""

    def __init__(
        self, numbers: Sequence[int], steps: Sequence[Step], arrays: Sequence[int], program: Program, hardware: Hardware
    ) -> None:
        """`arrays` are those of the steps."""
        self._numbers, self._steps, self._hardware = numbers, steps, hardware
        self._place = {number: at for at, number in enumerate(numbers)}
        pace = program.frame(hardware).period / hardware.array.together if program.streams else 0.0
        taken = (
            each.words * pace if isinstance(each, Stream)
            else each.words * each.beat(program.word_fill, hardware).a_word if isinstance(each, Vector)
            else 0.0
            for each in reversed(steps)
        )  # fmt: skip
        # Cycles of passes and vector steps behind each place, the first one ahead of all steps.
        self._behind = [*accumulate(taken, initial=0.0)][::-1]
        self._last_fill = max((at for at, each in enumerate(steps) if isinstance(each, Fill)), default=-1)
        last: dict[int, int] = {}
        for number, each, array in zip(numbers, steps, arrays, strict=True):
            # A vector step ends behind all passes ahead of it.
            last = {} if isinstance(each, Vector) else last
            if isinstance(each, Stream | Vector):
                last[array] = number
        self.ends = {*last.values()}
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
        spills = [at for at in places if isinstance(self._steps[at], Spill)]
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
    streaming = [each for each in (program, *ahead) if each.streams]
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
            steps=tuple(each.of_layer(layer) for each in program.steps),
            constants=tuple(replace(each, tensor=f"{layer}.{each.tensor}") for each in program.constants),
            derived=tuple(
                replace(each, tensor=f"{layer}.{each.tensor}", operand=f"{layer}.{each.operand}")
                for each in program.derived
            ),
        )
        waits.join(named)
        programs.append(named)
    steps, numbers = waits.in_order()
    return Program(
        tensors=tuple(each for program in programs for each in program.tensors),
        buffers=tuple(each for program in programs for each in program.buffers),
        steps=steps,
        word_fill=max(each.word_fill for each in programs),
        constants=tuple(each for program in programs for each in program.constants),
        word_cycles=max((each.word_cycles for each in programs if each.streams), default=0),
        derived=tuple(each for program in programs for each in program.derived),
        doubles=any(each.doubles for each in programs),
        layers=numbers,
        handed=tuple(handed),
        paces=tuple(each.pace for each in programs) if change_together(hardware) else (),
    )


def _handed(layers: Sequence[Joint]) -> Iterator[Handed]:
    """Tensors that layers read of earlier layers."""
    before: dict[str, Tensor] = {}
    for name, program, reads, *_ in layers:
        for tensor, (names, direct, placed) in reads.items():
            made, mine = [before[each] for each in names if each in before], program.tensor(tensor)
            same = direct and len(names) == len(made) == 1 and alike(mine, made[0])
            placed = (placed or same) and all(each.shape == mine.shape for each in made)
            if made:
                yield Handed(f"{name}.{tensor}", tuple(each.name for each in made), same, placed)
        before[name] = program.tensor(OFMAP).of_layer(name)


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether both tensors have the same elements in the same words."""
    sizes, others = ((each.shape, each.number_bytes, each.hbm_bytes, each.packed) for each in (one, other))
    return sizes == others and one.scale == 1
