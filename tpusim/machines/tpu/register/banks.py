"""The banks of the ifmap, the crossbar behind them, and what skews the words that come through it.

In lane 0's time all array rows present their addresses at once. Every bank serves as many of them as it has ports, and
a word that several rows ask for goes to them all. A word that has been read waits in its row's capture register until
every row has its own; then all are handed on, row r's through r registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed
from tpusim.machines.tpu.definition import IFMAP
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import BankFill
from tpusim.machines.tpu.register.contents import HbmWords
from tpusim.machines.tpu.register.generators import UNFED, Settings, address_of
from tpusim.machines.tpu.register.kernel import kernel
from tpusim.machines.tpu.register.order import NOWHERE
from tpusim.machines.tpu.register.window import Window

Floats = NDArray[np.floating[Any]]
Counts = NDArray[np.int64]
Records = NDArray[Any]


class Banks:
    """Registers of the banks' side; `read` and `written` count accesses, `cycles` those in which they are read."""

    def __init__(
        self, program: Program, settings: Settings, hbm: HbmWords, rows: int, banks: int, ports: int, word: int
    ) -> None:
        self.program, self.settings, self.hbm = program, settings, hbm
        self.memory = np.zeros((program.bank_words, word), program.number)
        # What each port of each bank reads in this cycle.
        self.ports = np.zeros((banks, ports), np.int64)
        # The address that each row still waits for, or NOWHERE; and the capture registers.
        self.wanted, self.captured = np.full(rows, NOWHERE), np.zeros((rows, word), program.number)
        self.asking = False
        # [register, row]: after r registers row r has its word; what nothing has been handed on to is no number.
        self.skew = Window(np.full((rows, rows, word), np.nan, program.number), axis=0)
        self.handed_on = False
        self.arriving: dict[int, tuple[Counts, Counts, Floats]] = {}
        self.entering: tuple[Counts, Floats] | None = None
        self.read = self.written = self.cycles = 0

    # ---- reads, decided in lane 0's time

    def ready(self, setting: int, word: int) -> bool:
        """Read for the word of a pass for a cycle, unless all of it is there; whether it can be handed on now.

        Raises:
            CheckFailed: when a row asks for a word that the banks do not have.
        """
        if not self.asking:
            self._ask(setting, word)
        elif not (self.wanted != NOWHERE).any():
            return True
        self.cycles += 1
        self.read += _serve(self.wanted, self.captured, self.memory, self.ports)
        return not (self.wanted != NOWHERE).any()

    def hand_on(self) -> None:
        """Every row's word leaves its capture register."""
        self.asking, self.handed_on = False, True

    def _ask(self, setting: int, word: int) -> None:
        """Every row presents the address of its next word; one that padding or nobody feeds gets zeros."""
        settings, self.asking = self.settings, True
        self.captured[:] = 0
        _present(
            self.wanted, settings.patterns[setting], settings.bases, settings.counters, settings.tables, word
        )  # fmt: skip
        outside = (self.wanted != NOWHERE) & ((self.wanted < 0) | (self.wanted >= len(self.memory)))
        if outside.any():
            row = int(outside.argmax())
            raise CheckFailed(f"row {row}: {outside_of(self.memory, int(self.wanted[row]))}")

    # ---- fills

    def fetch(self, index: int, step: BankFill) -> None:
        """Bring the words of a fill that begins, in the order in which each bank takes its own.

        Raises:
            CheckFailed: when it names a word that the banks do not have.
        """
        addresses, words = self.hbm.fetch_for_banks(step)
        for address in (addresses.min(initial=0), addresses.max(initial=0)):
            if not 0 <= address < max(1, len(self.memory)):
                raise CheckFailed(f"step {index}: {outside_of(self.memory, int(address))}")
        bank = addresses % len(self.ports)
        in_banks = bank.argsort(kind="stable")
        turn = np.empty_like(bank)
        turn[in_banks] = np.arange(len(bank)) - bank[in_banks].searchsorted(bank[in_banks])
        order = turn.argsort(kind="stable")
        self.arriving[index] = turn[order], addresses[order], words[order]

    def store(self, index: int, turn: int) -> None:
        """Each bank that has so many words writes the one whose turn it is."""
        turns, addresses, words = self.arriving[index]
        now = slice(*turns.searchsorted([turn, turn + 1]))
        self.entering = addresses[now], words[now]

    # ---- every cycle, beside the lanes

    def shift(self) -> None:
        """What is handed on enters the registers that skew it, and all of these move on."""
        self.skew.cells[self.skew.head - 1] = self.captured if self.handed_on else np.nan
        self.skew.shift()
        self.handed_on = False

    def take(self, orders: Records, words: Floats) -> None:
        """Put into the port registers [port, lane] what comes out of the skew for the rows that are told to take it."""
        rows = np.arange(self.skew.length)
        taken = (orders["client"][:, : len(rows)] == IFMAP) & (orders["lanes"][:, : len(rows)] > rows)
        port, row = taken.nonzero()
        words[port, row] = self.skew.registers[row, row]

    def commit(self) -> None:
        """Words that arrive are written."""
        if self.entering is not None:
            addresses, words = self.entering
            self.memory[addresses] = words
            self.written += len(addresses)
            self.entering = None


def outside_of(memory: Floats, address: int) -> str:
    """That a word is not there."""
    return f"word {address} is outside the banks' words 0..{len(memory) - 1}"


@kernel
def _present(wanted: Counts, patterns: Counts, bases: Counts, counters: Counts, tables: Counts, word: int) -> None:
    for row in range(len(wanted)):
        wanted[row] = NOWHERE
        if patterns[row] != UNFED:
            wanted[row] = address_of(patterns[row], bases, counters, tables, word)


@kernel
def _serve(wanted: Counts, captured: Floats, memory: Floats, ports: Counts) -> int:
    """One cycle of every bank; the words read."""
    banks, reads = len(ports), 0
    busy = np.zeros(banks, np.int64)
    for row in range(len(wanted)):
        address = wanted[row]
        if address == NOWHERE:
            continue
        bank, served = address % banks, False
        for port in range(busy[bank]):
            served = served or ports[bank, port] == address
        if not served and busy[bank] < ports.shape[1]:
            ports[bank, busy[bank]] = address
            busy[bank] += 1
            reads += 1
            served = True
        if served:
            captured[row] = memory[address]
            wanted[row] = NOWHERE
    return reads
