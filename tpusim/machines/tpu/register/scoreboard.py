"""Which steps are done: how one control unit learns of another's work.

Besides this, Control passes on which stream is issued and whether one runs, and who has the port.
"""

from __future__ import annotations

from collections.abc import Iterable

from tpusim.machines.tpu.definition import NEVER


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
