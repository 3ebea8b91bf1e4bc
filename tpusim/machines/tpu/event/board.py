"""The board, on which steps are told to be done, and the log of all that units write down.

For every step the log tells the cycles in which it went on to its next state, all of them lane 0's. Steps that repeat
after `every` cycles, with nothing else changed, share a record.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import simpy

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu.definition import Frame
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.calendar import Conflicts, Cycles
from tpusim.machines.tpu.observation.timeline import STARVED, HbmUse, Held, who_waits
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Keep

Process = Generator[simpy.Event, object, None]


class Board:
    """When each step of a Program is done, as far as known; `end` is the latest cycle of all."""

    def __init__(self, program: Program, env: simpy.Environment) -> None:
        self.env = env
        self.end = 0
        self.done: list[int | None] = [None] * len(program.steps)
        self._program = program
        self._waiting: dict[int, simpy.Event] = {}
        self._starves = [step.cause == STARVED for step in program.steps]
        # Transfers by when they are done, which is another cycle for each.
        self.moved: dict[int, DmaTransfer] = {}

    def finish(self, step: int, time: int) -> None:
        """`step` is done from cycle `time` on, which may lie ahead."""
        self.done[step] = time
        self.end = max(self.end, time)
        if step in self._waiting:
            self._waiting.pop(step).succeed()

    def wait(self, steps: Iterable[int]) -> Process:
        """Until the completion times of `steps` are known."""
        for step in steps:
            if self.done[step] is None:
                yield self._waiting.setdefault(step, self.env.event())

    def time(self, step: int) -> int:
        """When a step is done whose time is known."""
        return self.done[step] or 0

    def known(self, steps: Iterable[int]) -> tuple[int, int]:
        """When the last of `steps` that brings data, and when the last of the others is done."""
        data = others = 0
        for step in steps:
            time = self.done[step] or 0
            if self._starves[step]:
                data = max(data, time)
            else:
                others = max(others, time)
        return data, others

    def held_last(self, done: int) -> str:
        """What has held the transfer that is `done` in a cycle until then."""
        return self.moved[done].held.by(done - 1)

    def all_done_by(self, steps: Iterable[int], time: int) -> bool:
        """Whether `steps` are known to be done at `time`."""
        for step in steps:
            done = self.done[step]
            if done is None or done > time:
                return False
        return True

    def check_finished(self) -> None:
        """Raises DeadlockError when a step never finishes."""
        stuck = [step for step, time in enumerate(self.done) if time is None]
        if stuck:
            raise DeadlockError(who_waits(self._program, stuck))


def keeps(program: Program, board: Board) -> Process:
    """Keeps in their order, each done with the last that it waits for, and not before the one ahead of it."""
    done = 0
    for index, step in enumerate(program.steps):
        if isinstance(step, Keep):
            yield from board.wait(step.after)
            done = max(done, *board.known(step.after))
            board.finish(index, done)


class Loads(NamedTuple):
    """Preloads `every` cycles apart. The weight path, `free` since the one before, may take on the first when it is
    `ready`, its weights are in the vector memory when it is `filled`; the port is asked from `start` on, and the
    last weight is in the array at `last`.
    """

    steps: Sequence[int]
    every: int
    free: int
    ready: int
    filled: int
    start: int
    last: int


class Passes(NamedTuple):
    """Streams `every` cycles apart. The array, with nothing to do since it `ended` the one before, is starved until
    `filled`, waits for weights until `loaded`, is blocked until `cleared`, and for the last of these causes, `cause`,
    until the cycle before `start`, that of the first ifmap slot. From there on `conflicts` of banks cost frames.
    """

    steps: Sequence[int]
    every: int
    ended: int
    filled: int
    loaded: int
    cleared: int
    start: int
    cause: str
    conflicts: Conflicts | None = None

    @property
    def lost(self) -> int:
        """Frames that each of them loses to conflicts."""
        return self.conflicts.frames if self.conflicts else 0


class VectorWork(NamedTuple):
    """What the vector unit does by itself. An `array`, with nothing to do since it `ended` the step before, is starved
    until `filled`, waits for weights until `loaded`, is blocked until `issued`, and stands by until `done`. From cycle
    `start` on, the words of operands are read.
    """

    step: int
    ended: int
    filled: int
    loaded: int
    issued: int
    start: int
    done: int
    array: int = 0


class DmaTransfer(NamedTuple):
    """A transfer. The bus, `free` since the one before, is blocked until it is `ready`, and held up by the port until
    `start`; it moves for `busy` cycles, held up by the port for the others, from `stalled` on, and is free again at
    `ended`. The last word is in place at `done`; what it waits for is done at `freed`, its last word has `come`, or is
    wanted, and is `converted`, as soon as it may cross the port then.
    """

    step: int
    free: int
    ready: int
    start: int
    busy: int
    stalled: int
    ended: int
    freed: int
    come: int
    converted: int
    done: int

    @property
    def held(self) -> Held:
        """What keeps it from being done."""
        return Held(self.freed, self.come, self.converted)


class ChannelSpan(NamedTuple):
    """A transfer in the channels that it uses: from the first burst accepted to the last one done, in cycles."""

    channels: Cycles
    first: Cycles
    last: Cycles


@dataclass(frozen=True)
class Log:
    """A whole run: the layer's `cycles`, the port's `frame`, and what each unit did, in order, the bus of HBM (`moves`)
    and that of the scratch memory among them, and the `queue` of the transfers of both that go to lanes or banks; what
    the DRAM did, and perhaps of each transfer in which channels.
    """

    cycles: int
    frame: Frame
    loads: tuple[Loads, ...]
    passes: tuple[Passes, ...]
    works: tuple[VectorWork, ...]
    moves: tuple[DmaTransfer, ...]
    scratch: tuple[DmaTransfer, ...] = ()
    queue: tuple[DmaTransfer, ...] = ()
    hbm: HbmUse | None = None
    spans: tuple[ChannelSpan, ...] = ()

    def of_arrays(self, program: Program, hardware: Hardware) -> Iterator[tuple[int, Log]]:
        """Each array that has weights of its own, or the first of all that share theirs, and what is told of it."""
        if hardware.array.queues == 1:
            yield 0, self
            return
        for array in range(hardware.array.queues):
            loads = tuple(each for each in self.loads if program.array_of(program.steps[each.steps[0]]) == array)
            passes = tuple(each for each in self.passes if program.array_of(program.steps[each.steps[0]]) == array)
            works = tuple(each for each in self.works if each.array == array)
            yield array, replace(self, loads=loads, passes=passes, works=works)
