"""The event engine: how long a Program takes, in SimPy, one event a transfer instead of one a cycle.

Two processes run: the *sequencer* issues preloads and streams in order, the *DMA* carries transfers in order;
they meet in `after`. All times are lane 0's; the lanes' skew is added once, at the end. Rules and a
hand-worked pass: docs/timing.md.

The sequencer may look ahead: once everything a stream waits for has a known time, so has the stream, and
its port slots are reserved in the future. The DMA has the lowest priority and is settled only in the past,
so what it takes is what nobody else wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable

import simpy

from tpusim.engine.deadlock import who_waits
from tpusim.engine.timing import PORT_CLIENTS, Timing, split
from tpusim.errors import DeadlockError
from tpusim.hardware import Hardware
from tpusim.machine.address_generator import accesses
from tpusim.machine.hbm import Hbm
from tpusim.machine.serializer import last_weight, preload_words
from tpusim.machine.systolic_array import SystolicArray
from tpusim.machine.vector_memory import DMA, IFMAP, PSUM, RESULT, WEIGHT, Frame, Port
from tpusim.machine.vector_unit import add_cycles, conversion_cycles
from tpusim.program import FilterFill, IfmapFill, Preload, Program, Spill, Stream, Transfer

Process = Generator[simpy.Event, object, None]


def run(program: Program, hardware: Hardware) -> Timing:
    """Time one Program.

    Raises:
        DeadlockError: when steps wait for one another for ever; names who waits for whom.
    """
    return _Run(program, hardware).timing()


class _Run:
    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.program, self.hardware = program, hardware
        self.array = SystolicArray(hardware.array.rows, hardware.array.cols, hardware.array.weight_buffers)
        adds = add_cycles(program.word_fill * hardware.array.count, hardware.lanes, hardware.vector_unit.alus)
        self.frame = Frame.of(program.word_fill, adds, program.accumulates, hardware.array.count)
        latency = self.array.word_latency(program.word_fill)
        self.psum_delay = self.frame.psum_delay(latency)
        self.result_delay = self.frame.result_delay(latency)
        self.hbm = Hbm(hardware.latency_cycles, hardware.hbm_bytes_per_cycle)
        self.port = Port()
        self.env = simpy.Environment()
        self.done: list[int | None] = [None] * len(program.steps)
        self.waiting: dict[int, simpy.Event] = {}
        self.is_fill = [isinstance(step, IfmapFill | FilterFill) for step in program.steps]
        self.filled: dict[int, int] = {}
        self.frames = 0
        self.array_use: Counter[str] = Counter()
        self.preload_use: Counter[str] = Counter()
        self.hbm_use: Counter[str] = Counter()
        self.end = 0

    def timing(self) -> Timing:
        """Run both processes to the end and close the accounts."""
        self.env.process(self._sequencer())
        self.env.process(self._dma())
        self.env.run()
        self._check_finished()
        cycles = self.end + self.hardware.lanes - 1
        self._book_frames()
        adding = sum(self.frame.frames(step.words) for step in self.program.streams if step.accumulate)
        units = {
            "systolic_array": self.array_use,
            "preload": self.preload_use,
            "vector_unit": Counter(busy=adding * self.frame.add_cycles),
            "hbm": self.hbm_use,
        }
        accounts = {name: split(use, cycles) for name, use in units.items()}
        accounts["port"] = split(self.port.owned, cycles, PORT_CLIENTS)
        reads, writes = accesses(self.program, self.hardware.vector_memory.word_elements)
        return Timing(cycles, accounts, reads, writes)

    def _book_frames(self) -> None:
        """What every pass takes of the array, and every preload of the weight path."""
        frame, preloads = self.frame, sum(isinstance(step, Preload) for step in self.program.steps)
        self.preload_use["busy"] += preloads * self.array.rows
        for name, cycles in (("busy", frame.elements), ("port_stall", frame.port_stall), ("blocked", frame.blocked)):
            self.array_use[name] += self.frames * cycles

    # ---- waiting and finishing

    def _finish(self, step: int, time: int) -> None:
        """`step` is done from cycle `time` on, which may lie ahead."""
        self.done[step] = time
        self.end = max(self.end, time)
        if step in self.waiting:
            self.waiting.pop(step).succeed()

    def _wait(self, steps: Iterable[int]) -> Process:
        """Until the completion times of `steps` are known."""
        for step in steps:
            if self.done[step] is None:
                yield self.waiting.setdefault(step, self.env.event())

    def _latest(self, steps: Iterable[int]) -> int:
        return max((self.done[step] or 0 for step in steps), default=0)

    def _known(self, steps: Iterable[int]) -> tuple[int, int]:
        """When the last fill among `steps`, and when the last of the others is done."""
        fills = others = 0
        for step in steps:
            time = self.done[step] or 0
            if self.is_fill[step]:
                fills = max(fills, time)
            else:
                others = max(others, time)
        return fills, others

    def _check_finished(self) -> None:
        stuck = [step for step, time in enumerate(self.done) if time is None]
        if stuck:
            raise DeadlockError(who_waits(self.program, stuck))

    # ---- the sequencer: preloads and streams

    def _sequencer(self) -> Process:
        issued = ended = free = 0
        written = -1
        cause = "starved"
        for index, step in enumerate(self.program.steps):
            if isinstance(step, Preload):
                yield from self._wait(step.after)
                ready = issued if self.array.weight_buffers > 1 else ended
                free = self._preload(index, step, max(ready, free), free)
            elif isinstance(step, Stream):
                yield from self._wait(step.after)
                start, cause = self._issue(step, ended, written, cause)
                self._stream(index, step, start)
                issued = start - 1
                ended = issued + self.frame.frames(step.words) * self.frame.period
                written = start + self.result_delay
        # With many arrays, the last frame may outlast what its few words cause.
        self.end = max(self.end, ended)

    def _preload(self, index: int, step: Preload, ready: int, free: int) -> int:
        """Read the weight words in whatever slots are free, at most one every W cycles."""
        rows, word = self.array.rows, self.hardware.vector_memory.word_elements
        filled, drained = self._known(step.after)
        self.filled[index] = filled
        start = max(ready, filled, drained)
        last = last_weight(self.port.claim(WEIGHT, start, preload_words(rows, word), word), rows, word)
        self._finish(index, last)
        self.preload_use["starved"] += max(filled - ready, 0)
        self.preload_use["blocked"] += ready - free + start - max(ready, filled)
        self.preload_use["port_stall"] += last - start - rows
        return last

    def _issue(self, step: Stream, ended: int, written: int, cause: str) -> tuple[int, str]:
        """The cycle of the first ifmap read, on the frame grid; the wait is booked to its causes in turn."""
        filled, spilled = self._known(step.after)
        summed = written - self.psum_delay if step.accumulate else 0
        bounds = (
            ("starved", max(filled, self.filled[step.preload])),
            ("waiting_weights", self.done[step.preload] or 0),
            ("blocked", max(spilled, summed)),
        )
        at = ended
        for name, bound in bounds:
            if bound > at:
                self.array_use[name] += bound - at
                at, cause = bound, name
        start = -(-(at + 1) // self.frame.period) * self.frame.period
        self.array_use[cause] += start - 1 - at
        return start, cause

    def _stream(self, index: int, step: Stream, start: int) -> None:
        """Own the port slots of a pass: ifmap reads, then, a fixed delay later, partial sums and results."""
        frame, frames = self.frame, self.frame.frames(step.words)
        for array in range(min(frame.arrays, step.words)):
            first, words = start + array, frame.frames(step.words - array)
            self.port.reserve(IFMAP, first, words, frame.period)
            if step.accumulate:
                self.port.reserve(PSUM, first + self.psum_delay, words, frame.period)
            self.port.reserve(RESULT, first + self.result_delay, words, frame.period)
        last_array = (step.words - 1) % frame.arrays
        self._finish(index, start + self.result_delay + (frames - 1) * frame.period + last_array + 1)
        self.frames += frames

    # ---- the DMA: transfers in order, each in the slots nobody else owns

    def _dma(self) -> Process:
        bus_free = self.hardware.sequencer.launch_cycles
        last = staged = 0
        for index, step in enumerate(self.program.steps):
            if not isinstance(step, IfmapFill | FilterFill | Spill):
                continue
            yield from self._wait(step.after)
            ready = max(bus_free, self._latest(step.after))
            start = max(ready, staged)
            self.hbm_use["blocked"] += ready - bus_free
            self.hbm_use["port_stall"] += start - ready
            staged = last
            busy = max(self.hbm.cycles(step.hbm_bytes), conversion_cycles(step, self.hardware.vector_unit))
            taken = yield from self._words(step, start, busy, last)
            last = taken + 1
            bus_free = self._book_bus(index, step, start, busy, last)

    def _words(self, step: Transfer, start: int, busy: int, earliest: int) -> Generator[simpy.Event, object, int]:
        """Take a slot for every word; predictions hold unless somebody reserves before they come true."""
        times = self.hbm.demands if isinstance(step, Spill) else self.hbm.arrivals
        wanted = times(start, busy, step.words)
        while True:
            slots = self.port.slots_for(wanted, earliest)
            final = int(slots[-1])
            if final >= self.env.now:
                yield self.env.timeout(final + 1 - self.env.now)
            if self.port.changed_from > final:
                break
        self.port.take(DMA, slots)
        return final

    def _book_bus(self, index: int, step: Transfer, start: int, busy: int, last: int) -> int:
        """When the HBM bus is free again; a spill's last word still has to cross it and be stored."""
        self.hbm_use["busy"] += busy
        if not isinstance(step, Spill):
            self._finish(index, last)
            return start + busy
        bus_free = max(start + busy, last - (-busy // step.words))
        self.hbm_use["port_stall"] += bus_free - start - busy
        self._finish(index, last)
        self.end = max(self.end, bus_free + self.hbm.latency)
        return bus_free
