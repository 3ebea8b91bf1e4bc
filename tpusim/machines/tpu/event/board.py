"""Who has finished when, and who waits for whom."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import simpy

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu.observation.timing import STARVED, who_waits
from tpusim.machines.tpu.program.program import Program

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

    def latest(self, steps: Iterable[int]) -> int:
        """When the last of `steps` is done."""
        return max((self.done[step] or 0 for step in steps), default=0)

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
