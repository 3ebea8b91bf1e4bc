"""A memory behind the lanes, as the register engine's DMA sees it: in each cycle, whether a word may cross the port."""

from __future__ import annotations

from typing import Protocol

from tpusim.machines.tpu.observation.timing import HbmUse
from tpusim.machines.tpu.program.transfers import Transfer


class Passage(Protocol):
    """One transfer, from the cycle in which it gets the bus."""

    @property
    def stored(self) -> int:
        """When all of a spill is in the memory; NEVER while that is not known."""

    def ready(self, word: int, now: int) -> bool:
        """Whether a word may cross the port in this cycle; all before it have."""

    def took(self, now: int) -> None:
        """The next word crosses the port."""

    def moves(self, now: int) -> bool:
        """Whether it keeps the bus busy; else it waits for the port."""

    def over(self, now: int) -> bool:
        """Whether the bus is free for the next one."""


class Memory(Protocol):
    """Where transfers go to; `use` is what has happened in the DRAM, None where none is modelled."""

    def clock(self, now: int) -> None:
        """Do what comes before a cycle."""

    def begin(self, step: Transfer, now: int) -> Passage:
        """Give the bus to a transfer."""

    @property
    def use(self) -> HbmUse | None: ...
