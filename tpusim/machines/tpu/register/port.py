"""Ports of lane 0: who is granted a cycle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpusim.base.errors import PortConflict
from tpusim.machines.tpu.register.order import IDLE, Order

Client = Callable[[int], Order | None]
"""What a client wants in a cycle; a client that is asked takes what it names."""


@dataclass(frozen=True, slots=True)
class Port:
    """One access a cycle: the stream's `owners` have cycles of their own, the `others` take what is left, in turn."""

    owners: tuple[Client, ...]
    others: tuple[Client, ...]

    def grant(self, now: int) -> Order:
        """Whose turn it is.

        Raises:
            PortConflict: when two owners ask at once.
        """
        due: Order | None = None
        for client in self.owners:
            if order := client(now):
                if due:
                    raise PortConflict(f"cycle {now}: two clients of the stream ask for lane 0's port at once")
                due = order
        return due or self._left(now)

    def _left(self, now: int) -> Order:
        for client in self.others:
            if order := client(now):
                return order
        return IDLE
