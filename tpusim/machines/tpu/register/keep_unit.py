"""Notes what stays on chip: lane 0 when all that a Keep waits for is done, each other lane as much later as ever."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.keep import Keep
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.register.contents import HbmWords
from tpusim.machines.tpu.register.scoreboard import Scoreboard

Values = NDArray[np.floating[Any]]


class KeepUnit:
    """Moves nothing; the words of a Keep are told to HBM's contents, for those who compare."""

    def __init__(self, program: Program, scoreboard: Scoreboard, hbm: HbmWords) -> None:
        self.scoreboard, self.hbm = scoreboard, hbm
        self.todo = deque((index, step) for index, step in enumerate(program.steps) if isinstance(step, Keep))
        self.noting: deque[tuple[Keep, int]] = deque()

    def clock(self, now: int) -> None:
        """Those are done that wait for nothing any more."""
        while self.todo and not self.scoreboard.waiting(self.todo[0][1].after, now):
            index, step = self.todo.popleft()
            self.scoreboard.finish(index, now)
            self.noting.append((step, now))

    def note(self, now: int, memory: Values) -> None:
        """The lane of each Keep whose turn it is, in `memory` [lane, word, W] before this cycle's reads and writes."""
        for step, since in self.noting:
            self.hbm.keep(step, now - since, memory)
        while self.noting and now - self.noting[0][1] >= self.noting[0][0].lanes - 1:
            self.noting.popleft()
