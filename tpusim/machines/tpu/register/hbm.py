"""Memories behind the lanes: the contents of every word of a transfer, and when the word may cross the port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import HbmUse, Held
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import (
    BankFill,
    Elements,
    Keep,
    LaneTransfer,
    Part,
    Prefetch,
    Spill,
    Transfer,
)
from tpusim.machines.tpu.register.wires import NOWHERE, Counts, Floats
from tpusim.memory.dram.clocked import Clocked, Offered
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.rules import FAR, Numbers
from tpusim.memory.timing import Clocks, Pipe

NOTHING = -1
"""Marks an element outside its tensor: it is zero when filled, and lost when spilled."""


class HbmWords:
    """Tensors in HBM and the scratch memory, and the words of lanes' transfers, for the lanes that may take part.

    Word `k` of transfer `step` has its address for all lanes at `addresses[step][k]`, NOWHERE where each lane has its
    own. Lane `i` finds the word at place `first[step] + i * step.words + k` of `values` [place, W], for `i` below
    `step.lanes`, and `used[place]` tells whether the lane takes part.
    """

    def __init__(self, program: Program, operands: Mapping[str, Floats], word_elements: int) -> None:
        """Start with the given operands in HBM, and NaN in every other tensor."""
        self.program, self.tensors = program, dict[str, Floats]()
        for each in program.tensors:
            content = operands.get(each.name, np.full(each.shape, np.nan))
            self.tensors[each.name] = np.array(content, program.number).reshape(each.shape)
        steps = enumerate(program.steps)
        self.transfers = {index: step for index, step in steps if isinstance(step, LaneTransfer)}
        sizes = [step.lanes * step.words for step in self.transfers.values()]
        self.first = dict(zip(self.transfers, accumulate(sizes, initial=0), strict=False))
        self.addresses: dict[int, Counts] = {}
        self.used = np.zeros(sum(sizes), np.bool_)
        self.values: Floats = np.zeros((sum(sizes), word_elements), program.number)
        # Whether an element lies in its tensor, for transfers with work.
        self.inside = np.zeros(self.values.shape, np.bool_)
        # Spills that are over in lane 0; the last words of other lanes may still be on their way, so they are stored
        # later.
        self.spilled: list[int] = []
        # For each prefetch under way: the tensor that it fills in the scratch memory, and its elements by their places.
        self.fetched: dict[int, list[tuple[Floats, Counts, Floats]]] = {}
        for index, step in self.transfers.items():
            addresses = [
                np.full(each.words, NOWHERE) if each.feed else each.base + np.arange(each.words) for each in step.parts
            ]
            self.addresses[index] = np.concatenate(addresses)
            for part, at in _places(step):
                self._of(index, self.used)[at] = True
                if step.work:
                    inside = _elements(part, step.tensor.shape) != NOTHING
                    self._of(index, self.inside)[at[0], at[1], : part.per_word] = inside

    def fetch(self, index: int, sources: Sequence[int] = ()) -> None:
        """Bring the words of a fill that begins: its elements as they are now, after the spills up to the last of
        `sources`.
        """
        step, place = self.transfers[index], self._of(index, self.values)
        until = max((each for each in sources if isinstance(self.program.steps[each], Spill)), default=-1)
        # Spills are stored once, and in order.
        while self.spilled and self.spilled[0] <= until:
            self._store(self.spilled.pop(0))
        for part, at in _places(step):
            place[at[0], at[1], : part.per_word] = self._brought(step, part)

    def prefetch(self, index: int, step: Prefetch) -> None:
        """Take the elements of a prefetch that begins, as they are in HBM now."""
        content = self.tensor(step.tensor.name).reshape(-1)
        places = (_elements(part, step.tensor.shape) for part in step.parts)
        to = self.tensors[step.to.name].reshape(-1)
        self.fetched[index] = [(to, inside, content[inside]) for at in places for inside in (at[at != NOTHING],)]

    def prefetched(self, index: int) -> None:
        """Put the elements of a prefetch into the scratch memory."""
        for to, places, values in self.fetched.pop(index):
            to[places] = values

    def fetch_for_banks(self, step: BankFill) -> tuple[Counts, Floats]:
        """(address, word [W]) of every word of a fill that begins, as it is in HBM now."""
        words = np.zeros((step.lane_words, self.values.shape[1]), self.values.dtype)
        ends = [*accumulate((part.words * part.lanes for part in step.parts), initial=0)]
        for part, first, stop in zip(step.parts, ends, ends[1:], strict=False):
            words[first:stop, : part.per_word] = self._brought(step, part).reshape(stop - first, -1)
        return np.concatenate([part.addresses.ravel() for part in step.parts]), words

    def _brought(self, step: Transfer, part: Elements) -> Floats:
        """Elements [lane, word, element of the word] of a part; zero where the tensor has none."""
        content: Floats = np.append(self.tensor(step.tensor.name), self.values.dtype.type(0))
        return content[_elements(part, step.tensor.shape)]

    def tensor(self, name: str) -> Floats:
        """A tensor as it is in HBM now."""
        made = self.program.makers.get(name, (name,))
        for index in self.spilled:
            if self.transfers[index].tensor.name in made:
                self._store(index)
        return self.tensors[name]

    def _store(self, index: int) -> None:
        """Put the words of a spill into its tensor, unless readers are given other values in its place."""
        step, place = self.transfers[index], self._of(index, self.values)
        if self.program.instead(step.tensor.name):
            return
        names = [step.tensor.name, *self.program.copies(step.tensor.name)]
        for part, at in _places(step):
            elements = _elements(part, step.tensor.shape)
            inside = elements != NOTHING
            values = step.tensor.in_hbm(place[at[0], at[1], : part.per_word][inside])
            for name in names:
                self.tensors[name].reshape(-1)[elements[inside]] = values

    def keep(self, step: Keep, lane: int, memory: Floats) -> None:
        """Copy the words that lane `lane` keeps in `memory` [lane, word, W]; values given in their place overwrite them
        there.
        """
        for part in step.parts:
            if not 0 <= lane - part.first_lanes[0] < part.lanes:
                continue
            mine = part._replace(lane=tuple(each.of(lane - part.first_lanes[0]) for each in part.lane))
            elements = _elements(mine, step.tensor.shape)[0]
            words = memory[lane, part.base : part.base + part.words, : part.per_word]
            for name in (step.tensor.name, *self.program.copies(step.tensor.name)):
                self.tensors[name].reshape(-1)[elements] = words
            for name in self.program.instead(step.tensor.name):
                words[...] = self.tensors[name].reshape(-1)[elements]

    def _of(self, index: int, cells: NDArray[Any]) -> NDArray[Any]:
        """A view [lane, word, ...] of a transfer's share of `cells`, which holds all words of all transfers."""
        step, first = self.transfers[index], self.first[index]
        return cells[first : first + step.lanes * step.words].reshape(step.lanes, step.words, *cells.shape[1:])


def _places(step: LaneTransfer) -> list[tuple[Part, tuple[slice, slice]]]:
    """Every part in each of its copies, with its lanes and its words of the transfer."""
    words = accumulate((part.words for part in step.parts), initial=0)
    return [
        (part, (slice(first, first + part.lanes), slice(at, at + part.words)))
        for part, at in zip(step.parts, words, strict=False)
        for first in part.first_lanes
    ]


def _elements(part: Elements, shape: tuple[int, ...]) -> Counts:
    """[lane, word, element of the word]: where each element lies in its tensor, or NOTHING outside it."""
    at = [np.zeros((1, 1), np.int64) for _ in shape]
    for axis, lanes in part.lane:
        at[axis] = at[axis] + np.array(lanes)[:, None]
    counts = np.indices([len(each.coordinates) for each in part.items]).reshape(len(part.items), -1)
    for (axis, coordinates), count in zip(part.items, counts, strict=True):
        at[axis] = at[axis] + np.array(coordinates)[count]
    index, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), np.bool_)
    for coordinate, size in zip(at, shape, strict=True):
        index, inside = index * size + coordinate, inside & (coordinate >= 0) & (coordinate < size)
    flat = np.full((part.lanes, part.words * part.per_word), NOTHING)
    flat[:, : counts.shape[1]] = np.where(inside, index, NOTHING)
    return flat.reshape(part.lanes, part.words, part.per_word)


class Passage:
    """A transfer from the cycle in which it gets the bus.

    Words of a spill are wanted evenly over `total` cycles, or over `moving` cycles without their conversion.
    """

    def __init__(self, started: int, total: int, words: int, latency: int = 0, moving: int = 0) -> None:
        self.started, self.total, self.words, self.latency, self.moving = started, total, words, latency, moving
        self.taken, self.free_at = 0, NEVER

    @property
    def held(self) -> Held:
        """Causes that hold the transfer, as far as known."""
        last = (self.started + (self.words - 1) * cycles // self.words for cycles in (self.moving, self.total))
        return Held(self.started, *(cycle + 1 for cycle in last))

    @property
    def stored(self) -> int:
        """The cycle in which all of a spill is in the memory; NEVER while it is unknown."""
        return NEVER if self.free_at == NEVER else self.free_at + self.latency

    def ready(self, now: int) -> bool:
        """Whether the next word may cross the port in cycle `now`."""
        return self.taken < -(-min(now - self.started + 1, self.total) * self.words // self.total)

    def took(self, now: int) -> None:
        """Note that the next word crosses the port in cycle `now`."""
        self.taken += 1

    def moves(self, now: int) -> bool:
        """Whether the transfer keeps the bus busy; otherwise it waits for the port."""
        return now < self.started + self.total

    def over(self, now: int) -> bool:
        """Whether the bus is free for the next transfer."""
        return now >= self.free_at


class PipedFill(Passage):
    """A fill through a pipe: words come evenly, after the latency."""

    @property
    def held(self) -> Held:
        come = self.started + self.latency + 1
        return Held(self.started, come + self.moving, come + self.total)

    def ready(self, now: int) -> bool:
        return self.taken < max(0, min(now - self.started - self.latency, self.total)) * self.words // self.total


class PipedSpill(Passage):
    """A spill through a pipe: after the last word the bus is kept for one more word's time."""

    def took(self, now: int) -> None:
        self.taken += 1
        if self.taken == self.words:
            self.free_at = max(self.started + self.total, now + 1 - (-self.total // self.words))


class PipedHbm:
    """A memory with a latency, and then the full bandwidth. `use`, the use of a DRAM, is None."""

    use = None

    def __init__(self, hardware: Hardware, pipe: Pipe) -> None:
        self.hardware, self.pipe = hardware, pipe

    def clock(self, now: int) -> None:
        """Nothing happens by itself before a cycle."""

    def begin(self, step: Transfer, now: int) -> Passage:
        """Give a transfer the bus for the time of its bytes, or of its conversion, whichever is longer."""
        moving = max(1, ceil(step.hbm_bytes / self.pipe.bytes_per_cycle))
        total = max(moving, step.conversion_cycles(self.hardware))
        if isinstance(step, Spill):
            return PipedSpill(now, total, step.words, self.pipe.latency, moving)
        fill = PipedFill(now, total, step.words, self.pipe.latency, moving)
        fill.free_at = now + total
        return fill


class BankedMemory:
    """A DRAM that is clocked by a clock of its own while the machine's cycles pass."""

    def __init__(self, program: Program, hardware: Hardware, device: Device) -> None:
        self.hardware, self.moves, self.dram = hardware, TransferRuns(program, hardware), Clocked(device)
        self.offered: list[Offered] = []
        self.clocks = Clocks.of(hardware.clock_hz, device.clock_hz)
        self.peak = hardware.hbm_peak_bytes_per_cycle

    @property
    def use(self) -> HbmUse:
        """Use of the DRAM, once all transfers are done."""
        busy = np.zeros(max((int(each.done.max()) for each in self.offered), default=0) + 1, np.int64)
        for each in self.offered:
            busy[each.accepted.min()] += 1
            busy[each.done.max()] -= 1
        return HbmUse.of(self.dram.counts(), self.dram.requested, int((busy.cumsum() > 0).sum()))

    def clock(self, now: int) -> None:
        """Let the DRAM's cycles pass that begin before cycle `now`."""
        self.dram.clock(self.clocks.to_memory(now) - self.dram.now)

    def begin(self, step: Transfer, now: int) -> Passage:
        """Offer the bursts of a transfer: a fill's from now on, a spill's when the words that they hold are there."""
        bursts, conversion = self.moves.bursts(step), step.conversion_cycles(self.hardware)
        spills = isinstance(step, Spill)
        # FAR: a burst of a spill is not due before `BankedSpill.took` says when.
        times = np.full(len(bursts), FAR if spills else self.dram.now)
        offered = self.dram.offer(bursts, write=spills, start=self.dram.now, times=times)
        if len(bursts):
            self.offered.append(offered)
        if not spills:
            return BankedFill(now, step.words, conversion, offered, self.clocks)
        moving = max(1, ceil(step.hbm_bytes / self.peak))
        return BankedSpill(now, step.words, moving, conversion, offered, self.clocks)


class BankedPassage(Passage):
    """A transfer whose bursts a DRAM serves, as far as the DRAM has told, in cycles of the machine.

    The bus is kept until all bursts have been accepted, and until `ready_at`, when the last word of a spill is there.
    """

    def __init__(
        self, started: int, total: int, words: int, offered: Offered, clocks: Clocks, ready_at: int = 0
    ) -> None:
        super().__init__(started, total, words)
        self.offered, self.clocks, self.ready_at = offered, clocks, ready_at
        self.bursts = offered.past - offered.begin

    def done(self, count: int) -> int:
        """The cycle in which the first `count` bursts are all done; NEVER while it is unknown."""
        latest = _latest(self.offered.done[:count])
        return NEVER if latest is None else self.clocks.to_machine(max(0, latest))

    def over(self, now: int) -> bool:
        if self.free_at == NEVER and self.ready_at != NEVER:
            latest = _latest(self.offered.accepted)
            if latest is not None:
                self.free_at = max(self.started + self.total, self.ready_at, self.clocks.to_machine(latest + 1))
        return now >= self.free_at


def _latest(cycles: Numbers) -> int | None:
    """The latest cycle; None while one of the cycles is unknown."""
    # The last burst is seldom known before the others, so it is looked at first.
    if len(cycles) and (cycles[-1] < 0 or cycles.min() < 0):
        return None
    return int(cycles.max(initial=-1))


class BankedFill(BankedPassage):
    """A fill from a DRAM: a word has come with the last burst that holds a part of it; words are converted in turn."""

    def __init__(self, started: int, words: int, conversion: int, offered: Offered, clocks: Clocks) -> None:
        super().__init__(started, max(1, conversion), words, offered, clocks)
        self.conversion, self.arrivals = conversion, list[int]()

    @property
    def held(self) -> Held:
        first = come = self.started
        if self.bursts:
            come = self.done(self.bursts)
            first = come if come == NEVER else self.clocks.to_machine(int(self.offered.done[0]))
        return Held(self.started, come + 1, max(come, first + self.conversion) + 1)

    def ready(self, now: int) -> bool:
        if (word := self.taken) == len(self.arrivals):
            converted = -(-(word + 1) * self.conversion // self.words)
            arrival = self.started + converted
            if self.bursts:
                come = self.done(-(-(word + 1) * self.bursts // self.words))
                if come == NEVER:
                    return False
                arrival = max(come, self.clocks.to_machine(int(self.offered.done[0])) + converted)
            self.arrivals.append(arrival)
        return now >= self.arrivals[self.taken]

    def moves(self, now: int) -> bool:
        """True: a fill never waits for the port."""
        return True


class BankedSpill(BankedPassage):
    """A spill to a DRAM: a burst is due once its last word has been taken and, after a delay, converted."""

    def __init__(
        self, started: int, words: int, moving: int, conversion: int, offered: Offered, clocks: Clocks
    ) -> None:
        super().__init__(started, max(moving, conversion), words, offered, clocks, NEVER)
        self.moving, self.delay = moving, -(-conversion // words)

    def took(self, now: int) -> None:
        due, self.taken = self.taken * self.bursts // self.words, self.taken + 1
        self.offered.times[due : self.taken * self.bursts // self.words] = self.clocks.to_memory(now + 1 + self.delay)
        if self.taken == self.words:
            self.ready_at = now + 1 + self.delay

    def moves(self, now: int) -> bool:
        return now < self.started + self.total or self.taken == self.words

    @property
    def stored(self) -> int:
        done = NEVER if self.free_at == NEVER else self.done(self.bursts)
        return max(done, self.free_at)
