"""The board, on which units post when steps are done, and the records of the log.

The log has, for each step, the cycles in which it changed its state, in lane 0's time. Steps that repeat
after `every` cycles, with nothing else changed, share a record.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import simpy

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu.definition import NEVER, Frame
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.conflicts import Conflicts
from tpusim.machines.tpu.event.memories import ChannelSpan
from tpusim.machines.tpu.observation.timeline import STARVED, HbmUse, Held, who_waits
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import HBM, Keep

Process = Generator[simpy.Event, object, None]


class Overdue(Exception):
    """A run can no longer end before the limit that it was given."""


class Board:
    """Completion times of a Program's steps, as far as known; `end` is the latest of them.

    A run that cannot end before cycle `limit` of lane 0 is of no interest.
    """

    def __init__(self, program: Program, env: simpy.Environment, limit: int = NEVER) -> None:
        self.env, self._limit = env, limit
        self.end = 0
        self.done: list[int | None] = [None] * len(program.steps)
        self._program = program
        self._waiting: dict[int, simpy.Event] = {}
        self._starves = [step.cause == STARVED for step in program.steps]
        # By completion time, which no two transfers of the queue share.
        self.moved: dict[int, DmaTransfer] = {}

    def finish(self, step: int, time: int) -> None:
        """`step` is done from cycle `time` on, which may lie ahead."""
        self.done[step] = time
        self.end = max(self.end, time)
        if step in self._waiting:
            self._waiting.pop(step).succeed()

    def finish_each(self, steps: Sequence[int], first: int, every: int) -> None:
        """The first of `steps` is done from cycle `first` on, each other one `every` cycles after the one before."""
        last = first + (len(steps) - 1) * every
        for step, time in zip(steps, range(first, last + 1, every), strict=True):
            self.done[step] = time
        self.end = max(self.end, last)
        for step in {*self._waiting}.intersection(steps) if self._waiting else ():
            self._waiting.pop(step).succeed()

    @property
    def limited(self) -> bool:
        """Whether the run has a limit, so that units are to tell when it ends at the earliest."""
        return self._limit < NEVER

    def expect(self, end: int) -> None:
        """The run ends in cycle `end` at the earliest. Raises Overdue where that is the limit or later."""
        # Whoever compares several Programs need not learn by how much one is slower.
        if end >= self._limit:
            raise Overdue

    def wait(self, steps: Iterable[int]) -> Process:
        """Until the completion times of `steps` are known."""
        for step in steps:
            if self.done[step] is None:
                yield self._waiting.setdefault(step, self.env.event())

    def time(self, step: int) -> int:
        """Completion time of a step whose time is known."""
        return self.done[step] or 0

    def known(self, steps: Iterable[int]) -> tuple[int, int]:
        """Completion time of the last of `steps` that bring data, and of the last of the others."""
        data = others = 0
        for step in steps:
            time = self.done[step] or 0
            if self._starves[step]:
                data = max(data, time)
            else:
                others = max(others, time)
        return data, others

    def held_last(self, done: int) -> str:
        """The cause that held the transfer completed at cycle `done`, just before that cycle."""
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
    """Finish Keeps in their order: each with the last step that it waits for, and not before the Keep ahead of it."""
    done = 0
    for index, step in enumerate(program.steps):
        if isinstance(step, Keep):
            yield from board.wait(step.after)
            done = max(done, *board.known(step.after))
            board.finish(index, done)


class Loads(NamedTuple):
    """Preloads `every` cycles apart.

    The weight path is `free` since the preload before. It may take on the first of these when `ready`; the weights are
    in the vector memory when `filled`; the port is asked from `start` on; the last weight is in the array at `last`.
    """

    steps: Sequence[int]
    every: int
    free: int
    ready: int
    filled: int
    start: int
    last: int


class Passes(NamedTuple):
    """Streams `every` cycles apart.

    The array `ended` its step before, is starved until `filled`, waits for weights until `loaded`, and is blocked until
    `cleared`. Until the cycle before `start`, the first ifmap slot, it waits for the frame, which is booked to the last
    of these causes, `cause`. From there on `conflicts` of banks cost frames.
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
        """Frames that each of these passes loses to conflicts."""
        return self.conflicts.frames if self.conflicts else 0


class StandBy(NamedTuple):
    """A step of the vector unit, as an `array` sees it.

    The array `ended` its step before, is starved until `filled`, waits for weights until `loaded`, is blocked until
    `issued`, and stands by until `done`. Words of operands are read from cycle `start` on.
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
    """A transfer, in cycles of lane 0.

    The bus is `free` since the transfer before, blocked until `ready`, and held up by the port until `start`. It moves
    data for `busy` cycles; the port holds it up for the rest, from `stalled` on; it is free again at `ended`. The last
    word is in place at `done`. Before that, the steps it waits for are done at `freed`, its last word has `come` (a
    fill) or is wanted (a spill), and is `converted`.
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
        """Times at which the causes that hold this transfer end."""
        return Held(self.freed, self.come, self.converted)


@dataclass(frozen=True)
class Log:
    """The log of a run.

    It has the layer's `cycles`, the port's frame at each of several paces (`frames`), and the records of each unit in
    order: `buses` has the transfers of each bus, `queue` those of all buses that go to lanes or banks. `hbm` tells what
    the DRAM did, and `spans` which channels each transfer used, if that was kept.
    """

    cycles: int
    frames: tuple[Frame, ...]
    loads: tuple[Loads, ...]
    passes: tuple[Passes, ...]
    works: tuple[StandBy, ...]
    buses: Mapping[str, tuple[DmaTransfer, ...]]
    queue: tuple[DmaTransfer, ...] = ()
    hbm: HbmUse | None = None
    spans: tuple[ChannelSpan, ...] = ()

    @property
    def moves(self) -> tuple[DmaTransfer, ...]:
        """Transfers on the bus of HBM."""
        return self.buses[HBM.bus]

    def by_frame(self, program: Program) -> Iterator[tuple[Frame, Log]]:
        """Each frame with the loads and passes that have it."""
        if len(self.frames) == 1:
            yield self.frames[0], self
            return
        groups: list[tuple[Frame, list[Loads], list[Passes]]] = [(frame, [], []) for frame in self.frames]
        for load in self.loads:
            groups[program.number_of_pace(load.steps[0])][1].append(load)
        for each in self.passes:
            groups[program.number_of_pace(each.steps[0])][2].append(each)
        for frame, loads, passes in groups:
            yield frame, replace(self, loads=tuple(loads), passes=tuple(passes))

    def of_arrays(self, program: Program, hardware: Hardware) -> Iterator[tuple[int, Log]]:
        """(array, its part of the log) for each array with weights of its own; for arrays that share weights, the whole
        log."""
        if hardware.array.queues == 1:
            yield 0, self
            return
        groups: list[tuple[list[Loads], list[Passes], list[StandBy]]]
        groups = [([], [], []) for _ in range(hardware.array.queues)]
        for load in self.loads:
            groups[program.arrays[load.steps[0]]][0].append(load)
        for each in self.passes:
            groups[program.arrays[each.steps[0]]][1].append(each)
        for work in self.works:
            groups[work.array][2].append(work)
        for array, (loads, passes, works) in enumerate(groups):
            yield array, replace(self, loads=tuple(loads), passes=tuple(passes), works=tuple(works))
