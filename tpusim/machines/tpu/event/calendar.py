"""Ports that do not forget."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition.frame import CLIENTS, DMA, IFMAP, Cycles, Port, SeparatePorts

Owners = NDArray[np.uint8]
"""Who owns each cycle of a port; after the last that is owned there may be none."""


class Calendar(Port):
    """A port's calendar, kept from its first cycle to its last."""

    def __init__(self) -> None:
        super().__init__()
        self._past = bytearray()

    def take(self, client: int, cycles: Cycles) -> None:
        """As of Port, and written down."""
        self._reach(int(cycles[-1]) + 1)
        for at in (cycles - self.settled).tolist():
            self._cells[at] = client
        super().take(client, cycles)

    def settle(self, until: int) -> None:
        """Keep the cycles before `until`."""
        self._reach(until)
        self._past += self._cells[: until - self.settled]
        super().settle(until)

    def owners(self) -> Owners:
        """From the first cycle on."""
        return np.append(np.frombuffer(self._past, np.uint8), np.frombuffer(self._cells, np.uint8))

    def accounts(self) -> dict[str, Owners]:
        """By the name of the port's account."""
        return {"port": self.owners()}


class SeparateCalendars(SeparatePorts):
    """The calendars of a lane in which each client has a port of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._calendars = {client: Calendar() for client in range(IFMAP, DMA + 1)}
        self._ports = {**self._calendars}

    def accounts(self) -> dict[str, Owners]:
        """By the name of each port's account."""
        return {f"port_{CLIENTS[client]}": calendar.owners() for client, calendar in self._calendars.items()}


def calendars(separate: bool) -> Calendar | SeparateCalendars:
    """Of a lane's ports, all free."""
    return SeparateCalendars() if separate else Calendar()
