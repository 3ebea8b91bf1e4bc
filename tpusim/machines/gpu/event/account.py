"""How long an SM does what."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import numpy as np

from tpusim.machines.gpu.state import State

Interval: TypeAlias = tuple[int, int, State]
"""From a cycle to before another."""


def account(intervals: list[Interval], begin: int, end: int) -> Counter[State]:
    """Cycles from `begin` to before `end` by what is done; where no interval is, operands are on their way."""
    clipped = [(max(first, begin), min(stop, end), state) for first, stop, state in intervals]
    left = end - begin
    found: Counter[State] = Counter()
    done = 0
    for state in (State.BUSY, State.STAGE, State.EPILOGUE):
        covered = _covered([(first, stop) for first, stop, kind in clipped if kind <= state and first < stop])
        found[state], done = covered - done, covered
    found[State.LOAD_WAIT] = left - done
    return found


def _covered(spans: list[tuple[int, int]]) -> int:
    """Cycles in which at least one of them is."""
    if not spans:
        return 0
    ordered = np.array(sorted(spans), np.int64)
    reach = np.maximum.accumulate(ordered[:, 1])
    starts = np.maximum(ordered[1:, 0], reach[:-1])
    return int(ordered[0, 1] - ordered[0, 0] + np.maximum(0, ordered[1:, 1] - starts).sum())
