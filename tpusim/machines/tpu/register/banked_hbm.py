"""HBM with banks, in the register engine: a clocked DRAM, and what of each transfer has come or is stored so far."""

from __future__ import annotations

from math import ceil

import numpy as np

from tpusim.machines.tpu.definition import NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import HbmUse
from tpusim.machines.tpu.program.moves import Moves
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Spill, Transfer
from tpusim.machines.tpu.register.hbm import Passage
from tpusim.memory.clocks import Clocks
from tpusim.memory.dram.clocked import Clocked, Offered
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.rules import FAR, Numbers


class BankedMemory:
    """The DRAM, clocked as the machine's cycles pass, by a clock of its own."""

    def __init__(self, program: Program, hardware: Hardware, device: Device) -> None:
        self.hardware, self.moves, self.dram = hardware, Moves(program, hardware), Clocked(device)
        self.offered: list[Offered] = []
        self.clocks = Clocks.of(hardware.clock_hz, device.clock_hz)
        self.peak = hardware.hbm_peak_bytes_per_cycle

    @property
    def use(self) -> HbmUse:
        """What has happened, all transfers being done."""
        busy = np.zeros(max((int(each.done.max()) for each in self.offered), default=0) + 1, np.int64)
        for each in self.offered:
            busy[each.accepted.min()] += 1
            busy[each.done.max()] -= 1
        return HbmUse.of(self.dram.counts(), self.dram.requested, int((busy.cumsum() > 0).sum()))

    def clock(self, now: int) -> None:
        """The DRAM's cycles that begin before this one."""
        self.dram.clock(self.clocks.to_memory(now) - self.dram.now)

    def begin(self, step: Transfer, now: int) -> Passage:
        """Its bursts are offered from now on; those of a spill when the words they hold are there."""
        bursts, conversion = self.moves.bursts(step), step.conversion_cycles(self.hardware)
        spills = isinstance(step, Spill)
        times = np.full(len(bursts), FAR if spills else self.dram.now)
        offered = self.dram.offer(bursts, write=spills, start=self.dram.now, times=times)
        if len(bursts):
            self.offered.append(offered)
        answers = Answers(offered, self.clocks)
        if not spills:
            return BankedFill(now, step.words, conversion, answers)
        total = max(1, ceil(step.hbm_bytes / self.peak), conversion)
        return BankedSpill(now, total, step.words, -(-conversion // step.words), answers)


class Answers:
    """What the DRAM has said so far of the bursts of a transfer, in cycles of the machine."""

    def __init__(self, offered: Offered, clocks: Clocks) -> None:
        self.offered, self.clocks = offered, clocks
        self.bursts = offered.past - offered.begin
        self._done, self._accepted = [0, -1], [0, -1]

    def first_done(self) -> int:
        """When the first burst is; it is known."""
        return self.clocks.to_machine(int(self.offered.done[0]))

    def done(self, count: int) -> int:
        """When the first `count` bursts are all done; NEVER while that is not known. Counts never go back."""
        latest = _latest(self.offered.done, count, self._done)
        return NEVER if latest is None else self.clocks.to_machine(max(0, latest))

    def accepted(self) -> int:
        """The first cycle after all have been accepted; NEVER while that is not known."""
        latest = _latest(self.offered.accepted, self.bursts, self._accepted)
        return NEVER if latest is None else self.clocks.to_machine(latest + 1)

    def due(self, burst: int, cycle: int) -> None:
        """A burst may be accepted from a cycle of the machine on."""
        self.offered.times[burst] = self.clocks.to_memory(cycle)


def _latest(cycles: Numbers, count: int, state: list[int]) -> int | None:
    """The latest of the first `count`, None while one is not known; `state` is how many were looked at, and theirs."""
    begin, latest = state
    if begin < count:
        # The last is seldom known before others.
        if cycles[count - 1] < 0 or (more := cycles[begin:count]).min() < 0:
            return None
        state[:] = count, max(latest, int(more.max()))
    return state[1]


class BankedFill:
    """A word has come with the last burst that it has a share in, converted one after another from the first on."""

    stored = NEVER

    def __init__(self, started: int, words: int, conversion: int, answers: Answers) -> None:
        self.started, self.words, self.conversion, self.answers = started, words, conversion, answers
        self.free_at, self.arrivals = NEVER, list[int]()

    def ready(self, word: int, now: int) -> bool:
        if word == len(self.arrivals):
            arrival = self._arrival(word)
            if arrival == NEVER:
                return False
            self.arrivals.append(arrival)
        return now >= self.arrivals[word]

    def _arrival(self, word: int) -> int:
        """When a word has come; NEVER while that is not known."""
        converted = -(-(word + 1) * self.conversion // self.words)
        if self.answers.bursts == 0:
            return self.started + converted
        come = self.answers.done(-(-(word + 1) * self.answers.bursts // self.words))
        return NEVER if come == NEVER else max(come, self.answers.first_done() + converted)

    def took(self, now: int) -> None:
        """It has come already."""

    def moves(self, now: int) -> bool:
        """It never waits for the port."""
        return True

    def over(self, now: int) -> bool:
        if self.free_at == NEVER and (accepted := self.answers.accepted()) != NEVER:
            self.free_at = max(self.started + max(1, self.conversion), accepted)
        return now >= self.free_at


class BankedSpill:
    """Words are wanted evenly; a burst is due when its last word has been taken, and converted."""

    def __init__(self, started: int, total: int, words: int, delay: int, answers: Answers) -> None:
        self.started, self.total, self.words, self.delay, self.answers = started, total, words, delay, answers
        self.taken, self.due, self.ready_at, self.free_at = 0, 0, NEVER, NEVER

    def ready(self, word: int, now: int) -> bool:
        return word < -(-min(now - self.started + 1, self.total) * self.words // self.total)

    def took(self, now: int) -> None:
        self.taken += 1
        whole = self.taken * self.answers.bursts // self.words
        for burst in range(self.due, whole):
            self.answers.due(burst, now + 1 + self.delay)
        self.due = whole
        if self.taken == self.words:
            self.ready_at = now + 1 + self.delay

    def moves(self, now: int) -> bool:
        return now < self.started + self.total or self.taken == self.words

    def over(self, now: int) -> bool:
        if self.free_at == NEVER and self.ready_at != NEVER and (accepted := self.answers.accepted()) != NEVER:
            self.free_at = max(self.started + self.total, self.ready_at, accepted)
        return now >= self.free_at

    @property
    def stored(self) -> int:
        """When all of it is in HBM; NEVER while that is not known."""
        done = NEVER if self.free_at == NEVER else self.answers.done(self.answers.bursts)
        return max(done, self.free_at)
