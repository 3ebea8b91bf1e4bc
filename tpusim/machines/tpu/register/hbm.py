"""Memories behind the lanes: the contents of every word of a transfer, and when the word may cross the port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import HbmUse
from tpusim.machines.tpu.program.moves import TransferRuns, ends_of
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import (
    Along,
    BankFill,
    Elements,
    Keep,
    LaneTransfer,
    Part,
    Prefetch,
    Spill,
    Transfer,
)
from tpusim.machines.tpu.register.transfers import Transfers
from tpusim.machines.tpu.register.wires import NOWHERE, Counts, Floats, cells
from tpusim.memory.dram.clocked import ClockedDram, OfferedTransfer
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.rules import FAR
from tpusim.memory.timing import Clocks

NOTHING = -1
"""Place of an element outside its tensor: it is zero when filled, and lost when spilled."""


class HbmWords:
    """Tensors in HBM and the scratch memory, and the words of lanes' transfers, for the lanes that may take part.

    Word `k` of transfer `step` has its address for all lanes at `addresses[step][k]`, NOWHERE where each lane has its
    own. Lane `i` finds the word at place `first[step] + k * step.lanes + i` of `values` [place, W], for `i` below
    `step.lanes`, and `used[place]` tells whether the lane takes part.
    """

    def __init__(self, program: Program, operands: Mapping[str, Floats], word_elements: int) -> None:
        """Start with the given operands in HBM, and NaN in every other tensor."""
        self.program, self.tensors = program, dict[str, Floats]()
        # Behind the elements of each tensor, at NOTHING, stands a zero.
        self._read = dict[str, Floats]()
        for each in program.tensors:
            self._read[each.name] = np.full(each.size + 1, np.nan, program.number)
            self._read[each.name][NOTHING] = 0
            self.tensors[each.name] = self._read[each.name][:NOTHING].reshape(each.shape)
            if each.name in operands:
                self.tensors[each.name][...] = np.reshape(operands[each.name], each.shape)
        self.transfers = dict(program.rows.steps(LaneTransfer))
        sizes = [step.lanes * step.words for step in self.transfers.values()]
        self.first = dict(zip(self.transfers, accumulate(sizes, initial=0), strict=False))
        self.addresses: dict[int, Counts] = {}
        self.used = np.zeros(sum(sizes), np.bool_)
        self.values: Floats = cells((sum(sizes), word_elements), program.number)
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
                self.share(index, self.used)[at] = True
                if step.work:
                    inside = _elements(part, step.tensor.shape) != NOTHING
                    self.share(index, self.inside)[at[0], at[1], : part.per_word] = inside

    def fetch(self, index: int, sources: Sequence[int] = ()) -> None:
        """Bring the words of a fill that begins: its elements as they are now, after the spills up to the last of
        `sources`.
        """
        step, place = self.transfers[index], self.share(index, self.values)
        until = max((each for each in sources if isinstance(self.program.rows[each], Spill)), default=-1)
        # Spills are stored once, and in order.
        while self.spilled and self.spilled[0] <= until:
            self._store(self.spilled.pop(0))
        for part, at in _places(step):
            brought, width = self._brought(step, part), place.shape[2]
            if part.per_word == width:
                # Word by word, which takes a quarter of the time.
                word = np.dtype((np.void, width * place.itemsize))
                place[at].view(word)[...] = brought.view(word)
            else:
                place[at[0], at[1], : part.per_word] = brought

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

    def fetch_for_banks(self, step: BankFill) -> Floats:
        """Every word of a fill that begins, [word, W], as it is in HBM now."""
        words = np.zeros((step.lane_words, self.values.shape[1]), self.values.dtype)
        ends = [*accumulate((part.words * part.lanes for part in step.parts), initial=0)]
        for part, first, stop in zip(step.parts, ends, ends[1:], strict=False):
            words[first:stop, : part.per_word] = self._brought(step, part).reshape(stop - first, -1)
        return words

    def _brought(self, step: Transfer, part: Elements) -> Floats:
        """Elements [lane, word, element of the word] of a part; zero where the tensor has none."""
        self._store_made(step.tensor.name)
        first, elements = _from_first(part, step.tensor.shape)
        return self._read[step.tensor.name][first:][elements]

    def tensor(self, name: str) -> Floats:
        """A tensor as it is in HBM now."""
        self._store_made(name)
        return self.tensors[name]

    def _store_made(self, name: str) -> None:
        """Store the spills that have made a tensor so far."""
        made = self.program.makers.get(name, (name,))
        for index in self.spilled:
            if self.transfers[index].tensor.name in made:
                self._store(index)

    def _store(self, index: int) -> None:
        """Put the words of a spill into its tensor, unless readers are given other values in its place."""
        step, place = self.transfers[index], self.share(index, self.values)
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
        """Copy the words that lane `lane` keeps in `memory` [word, lane, W]; values given in their place overwrite them
        there.
        """
        for part in step.parts:
            if not 0 <= lane - part.first_lanes[0] < part.lanes:
                continue
            mine = part._replace(lane=tuple(each.of(lane - part.first_lanes[0]) for each in part.lane))
            elements = _elements(mine, step.tensor.shape)[0]
            words = memory[part.base : part.base + part.words, lane, : part.per_word]
            for name in (step.tensor.name, *self.program.copies(step.tensor.name)):
                self.tensors[name].reshape(-1)[elements] = words
            for name in self.program.instead(step.tensor.name):
                words[...] = self.tensors[name].reshape(-1)[elements]

    def share(self, index: int, cells: NDArray[Any]) -> NDArray[Any]:
        """A view [lane, word, ...] of a transfer's share of `cells`, which holds all words of all transfers."""
        step, first = self.transfers[index], self.first[index]
        mine = cells[first : first + step.lanes * step.words]
        return mine.reshape(step.words, step.lanes, *cells.shape[1:]).swapaxes(0, 1)


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
    first, found = _from_first(part, shape)
    return np.where(found == NOTHING, NOTHING, found + first) if first else found


def _from_first(part: Elements, shape: tuple[int, ...]) -> tuple[int, Counts]:
    """A place in a tensor, and how far behind it each element lies, as in `_elements`."""
    ends = ends_of(part.lane, part.items, len(shape))
    if any(low < 0 or high >= size for (low, high), size in zip(ends, shape, strict=True)):
        return 0, _found(part.lane, part.items, part.words, part.per_word, shape)
    first = 0
    for (low, _), size in zip(ends, shape, strict=True):
        first = first * size + low
    lane, items = ([each.moved(-_least(each)) for each in counters] for counters in (part.lane, part.items))
    return first, _found(tuple(lane), tuple(items), part.words, part.per_word, shape)


def _least(counter: Along) -> int:
    """The least coordinate of a counter."""
    coordinates = counter.coordinates
    return min(coordinates[0], coordinates[-1]) if isinstance(coordinates, range) else min(coordinates)


@lru_cache(maxsize=8)
def _found(
    lane: tuple[Along, ...], items: tuple[Along, ...], words: int, per_word: int, shape: tuple[int, ...]
) -> Counts:
    """What `_elements` finds by these counters, cached, as transfers of one recipe differ in where they begin."""
    counts = [len(lane[0].coordinates), *(len(each.coordinates) for each in items)]
    # Coordinates [lane, *items] along each axis, of length 1 where a counter is of another axis.
    at = [np.zeros([1] * len(counts), np.int64) for _ in shape]
    for place, each in [*((0, each) for each in lane), *enumerate(items, 1)]:
        along = [-1 if one == place else 1 for one in range(len(counts))]
        at[each.axis] = at[each.axis] + np.array(each.coordinates).reshape(along)
    index, inside = np.zeros([1] * len(counts), np.int64), np.ones([1] * len(counts), np.bool_)
    for coordinate, size in zip(at, shape, strict=True):
        index, beyond = index * size + coordinate, (coordinate < 0) | (coordinate >= size)
        inside = inside & ~beyond if beyond.any() else inside
    if not inside.all():
        index = np.where(inside, index, NOTHING)
    flat = np.broadcast_to(index, counts).reshape(counts[0], -1)
    if (left := words * per_word - flat.shape[1]) > 0:
        flat = np.pad(flat, ((0, 0), (0, left)), constant_values=NOTHING)
    return flat.reshape(counts[0], words, per_word)


class BankWords:
    """Words of all fills of banks: in which turn each is written, where, and, once its fill has begun, its contents."""

    def __init__(self, program: Program, hbm: HbmWords, banks: int) -> None:
        """A bank takes one word a cycle, so word n of each bank is written in turn n of the fill."""
        self.hbm, self.size, self.first = hbm, program.bank_words, dict[int, int]()
        self._order = dict[int, Counts]()
        turns, addresses = list[Counts](), list[Counts]()
        count = 0
        for index, step in program.rows.steps(BankFill):
            own = np.concatenate([part.addresses.ravel() for part in step.parts])
            bank = own % banks
            in_banks = bank.argsort(kind="stable")
            turn = np.empty_like(bank)
            turn[in_banks] = np.arange(len(bank)) - bank[in_banks].searchsorted(bank[in_banks])
            order = turn.argsort(kind="stable")
            self.first[index], self._order[index] = count, order
            turns.append(turn[order])
            addresses.append(own[order])
            count += len(own)
        nothing = [np.zeros(0, np.int64)]
        self.turns, self.addresses = (np.concatenate(each or nothing) for each in (turns, addresses))
        self.words: Floats = np.zeros((count, hbm.values.shape[1]), program.number)

    def fetch(self, index: int, step: BankFill) -> None:
        """Bring the words of a fill that begins.

        Raises:
            CheckFailed: when the fill names a word that the banks do not have.
        """
        first, order = self.first[index], self._order[index]
        mine = slice(first, first + len(order))
        for address in (self.addresses[mine].min(initial=0), self.addresses[mine].max(initial=0)):
            if not 0 <= address < max(1, self.size):
                raise CheckFailed(f"step {index}: {outside_of(self.size, int(address))}")
        self.words[mine] = self.hbm.fetch_for_banks(step)[order]


def outside_of(words: int, address: int) -> str:
    """Message about a word that the banks do not have."""
    return f"word {address} is outside the banks' words 0..{words - 1}"


class BankedMemory:
    """A DRAM clocked by a clock of its own while the machine's cycles pass, and the bursts of every transfer."""

    def __init__(self, program: Program, hardware: Hardware, device: Device) -> None:
        self.moves, self.dram = TransferRuns(program, hardware), ClockedDram(device)
        self.clocks = Clocks.of(hardware.clock_hz, device.clock_hz)
        self.offered, self._live = list[OfferedTransfer](), dict[int, OfferedTransfer]()

    @property
    def use(self) -> HbmUse:
        """Use of the DRAM, once all transfers are done."""
        busy = np.zeros(max((int(each.done.max()) for each in self.offered), default=0) + 1, np.int64)
        for each in self.offered:
            busy[each.accepted.min()] += 1
            busy[each.done.max()] -= 1
        return HbmUse.of(self.dram.counts(), self.dram.requested, int((busy.cumsum() > 0).sum()))

    def begin(self, number: int, step: Transfer, transfers: Transfers, known: Counts, now: int) -> None:
        """Offer the bursts of a transfer: a fill's from now on, a spill's when the words that they hold are there.

        Cycles of transfers that are served are copied to `known` first: their requests make room for others.
        """
        for other in [each for each, offered in self._live.items() if offered.finished]:
            offered, first = self._live.pop(other), transfers.burst[other]
            known[first : first + len(offered.done)] = np.stack([offered.accepted, offered.done], axis=1)
            transfers.each[other]["row"] = -1
        bursts, spills, transfer = self.moves.bursts(step), isinstance(step, Spill), transfers.each[number]
        # FAR: a burst of a spill is not due before the words are taken that it holds.
        times = np.full(len(bursts), FAR if spills else self.dram.now)
        if spills:
            due = int(transfer["taken"]) * len(bursts) // step.words
            times[:due] = self.clocks.to_memory(now + 1 + int(transfer["delay"]))
        offered = self.dram.offer(bursts, write=spills, start=self.dram.now, times=times)
        if len(bursts):
            transfer["row"] = offered.begin
            self._live[number] = offered
            self.offered.append(offered)
