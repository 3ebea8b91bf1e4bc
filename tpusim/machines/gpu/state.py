"""What an SM does in a cycle."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import NamedTuple


class State(IntEnum):
    """What counts of all that the blocks of an SM do in a cycle: the first that any does."""

    BUSY = 0
    STAGE = 1
    EPILOGUE = 2
    LOAD_WAIT = 3


class Resident(NamedTuple):
    """What a resident set takes: cycles, and how many of them the SM spends in each state."""

    cycles: int
    states: Counter[State]
