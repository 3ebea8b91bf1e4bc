"""Which steps are done: the only thing the control units know of one another's work."""

from __future__ import annotations

from collections.abc import Iterable

from tpusim.machine.vector_memory import NEVER


class Scoreboard:
    """The cycle from which on each step counts as done; NEVER while nobody knows."""

    def __init__(self, steps: int) -> None:
        self.done = [NEVER] * steps
        self.open = steps

    def finish(self, step: int, cycle: int) -> None:
        """`step` is done from `cycle` on."""
        self.done[step] = cycle
        self.open -= 1

    def waiting(self, steps: Iterable[int], now: int) -> bool:
        """Whether any of `steps` is not done in cycle `now`."""
        done = self.done
        for step in steps:  # noqa: SIM110  a generator would take twice as long, and this is asked every cycle
            if done[step] > now:
                return True
        return False
