"""Address generators of all lanes, and the banks of the ifmap behind a crossbar.

In lane 0's time all array rows present their addresses at once. Every bank serves one address a port in a cycle, and a
word that several rows ask for goes to all of them. A word that has been read waits in the capture register of its row
until every row has its word. Then all rows hand on their words; row r's word goes through a register for each cycle
that row r is behind row 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tpusim.base.errors import CheckFailed
from tpusim.machines.tpu.definition import IFMAP
from tpusim.machines.tpu.program.addresses import PADDING, BankFeed, Counters, Feed, Picked, Pointers
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import BankFill, Spill
from tpusim.machines.tpu.register.hbm import HbmWords
from tpusim.machines.tpu.register.wires import NOWHERE, Counts, Floats, Records, SlidingWindow, kernel

UNFED = -1
"""Pattern of a lane that does not take part."""

TABLE, POINTED = 0, -1
"""Length of a first counter that stands for something else: a table of addresses, or pointers."""

_STILL = (1, 0, 0, 1, 0, 1, 0)
"""A counter with one position, the first."""


@dataclass(frozen=True)
class Settings:
    """The pattern that each lane walks, and all patterns.

    Attributes:
        patterns: [setting, lane] -> pattern, or UNFED.
        own: `patterns` with UNFED for words that array rows read from banks, not from the memories of lanes.
        bases: [pattern, 2]: the base of counters and pointers, or where the pattern's table begins in `tables`;
            and the position of the counters at which the pattern begins.
        counters: [pattern, counter, (length, start, step, extent, stride, wrap, jump)], the fastest first. In place of
            the first counter, (TABLE, ...), or (POINTED, which pointer, words that share it, ...).
        tables: the addresses of all tables, one after another.
        number: the setting of each feed.
    """

    patterns: Counts
    own: Counts
    bases: Counts
    counters: Counts
    tables: Counts
    number: dict[Feed, int]

    @classmethod
    def of(cls, program: Program, lanes: int) -> Settings:
        """All settings of a Program."""
        # Feeds of passes, of the operands and results of vector steps, and of the parts of spills that have one.
        passes = [stream.reads for stream in program.streams]
        vectors = [feed for step in program.vectors for feed in (*step.operands, step.writes)]
        spills = (part for step in program.steps if isinstance(step, Spill) for part in step.parts)
        feeds = dict.fromkeys([*passes, *vectors, *(part.feed for part in spills if part.feed is not None)])
        number = {feed: at for at, feed in enumerate(feeds)}
        groups = (group for reads in number for group in reads.groups)
        known = {pattern: at for at, pattern in enumerate(dict.fromkeys(group.pattern for group in groups))}
        patterns = np.full((len(number), lanes), UNFED)
        for reads, at in number.items():
            for group in reads.groups:
                patterns[at, group.first_lane : group.first_lane + group.lanes] = known[group.pattern]
        in_banks = np.array([isinstance(reads, BankFeed) for reads in number], np.bool_)
        own = np.where(in_banks[:, None], UNFED, patterns)
        most = max((len(each.counters) for each in known if isinstance(each, Counters)), default=1)
        bases, counters = np.zeros((len(known), 2), np.int64), np.zeros((len(known), most, len(_STILL)), np.int64)
        tables: list[int] = []
        for each, at in known.items():
            if isinstance(each, Counters):
                bases[at] = each.base, each.window.start if each.window else 0
                counters[at] = [*reversed(each.counters), *[_STILL] * (most - len(each.counters))]
            elif isinstance(each, Pointers | Picked):
                bases[at] = each.base
                counters[at, 0, :3] = POINTED, each.which, each.table.repeat if isinstance(each, Pointers) else 1
            else:
                bases[at] = len(tables), 0
                tables += each.addresses
        return cls(patterns, own, bases, counters, np.array(tables, np.int64), number)


@kernel
def address_of(pattern: int, bases: Counts, counters: Counts, tables: Counts, word: int) -> int:
    """Address of word number `word` of a pass, by nested counters or by a table; NOWHERE for padding."""
    address, slowest = bases[pattern, 0], counters.shape[1] - 1
    word += bases[pattern, 1]
    if counters[pattern, 0, 0] == 0:
        address = tables[address + word]
        return NOWHERE if address == PADDING else int(address)
    for each in range(slowest + 1):
        # A division costs as much as all the rest, so it is skipped where one count is left.
        count, length = word, counters[pattern, each, 0]
        if each < slowest:
            word = word // length if length > 1 else word
            count = count - word * length if length > 1 else 0
        position = counters[pattern, each, 1] + count * counters[pattern, each, 2]
        if position < 0 or position >= counters[pattern, each, 3]:
            return NOWHERE
        address += position * counters[pattern, each, 4]
        if counters[pattern, each, 6]:
            address += position // counters[pattern, each, 5] * counters[pattern, each, 6]
    return int(address)


class Banks:
    """Registers of the banks. `read` and `written` count accesses, `cycles` counts cycles with a read."""

    def __init__(
        self, program: Program, settings: Settings, hbm: HbmWords, rows: int, together: int, banks: int, ports: int
    ) -> None:
        """`together` rows take their words in a cycle."""
        self.settings, self.hbm, word = settings, hbm, hbm.values.shape[1]
        self.memory = np.zeros((program.bank_words, word), program.number)
        # Address that each port of each bank reads in this cycle.
        self.ports = np.zeros((banks, ports), np.int64)
        # The address that each row still waits for, or NOWHERE; and the capture registers.
        self.wanted, self.captured = np.full(rows, NOWHERE), np.zeros((rows, word), program.number)
        self.asking = False
        # The register behind which each row has its word.
        self.behind = np.arange(rows) // together
        # [register, row]; what nothing has been handed on to is no number.
        self.skew = SlidingWindow(np.full((int(self.behind[-1]) + 1, rows, word), np.nan, program.number), axis=0)
        self.handed_on = False
        self.arriving: dict[int, tuple[Counts, Counts, Floats]] = {}
        self.entering: tuple[Counts, Floats] | None = None
        self.read = self.written = self.cycles = 0

    # ---- reads, decided in lane 0's time

    def ready(self, setting: int, word: int) -> bool:
        """Read banks for one cycle, unless all rows have word number `word`; return whether it can be handed on now.

        Raises:
            CheckFailed: when a row asks for a word that the banks do not have.
        """
        if not self.asking:
            # Every row presents the address of its next word; a row on padding, or without a feed, gets zeros.
            settings, self.asking = self.settings, True
            self.captured[:] = 0
            _present(self.wanted, settings.patterns[setting], settings.bases, settings.counters, settings.tables, word)
            outside = (self.wanted != NOWHERE) & ((self.wanted < 0) | (self.wanted >= len(self.memory)))
            if outside.any():
                row = int(outside.argmax())
                raise CheckFailed(f"row {row}: {outside_of(self.memory, int(self.wanted[row]))}")
        elif not (self.wanted != NOWHERE).any():
            return True
        self.cycles += 1
        self.read += _serve(self.wanted, self.captured, self.memory, self.ports)
        return not (self.wanted != NOWHERE).any()

    def hand_on(self) -> None:
        """Let every row's word leave its capture register."""
        self.asking, self.handed_on = False, True

    # ---- fills

    def fetch(self, index: int, step: BankFill) -> None:
        """Queue the words of a fill that begins, in the order in which each bank takes its own.

        Raises:
            CheckFailed: when the fill names a word that the banks do not have.
        """
        addresses, words = self.hbm.fetch_for_banks(step)
        for address in (addresses.min(initial=0), addresses.max(initial=0)):
            if not 0 <= address < max(1, len(self.memory)):
                raise CheckFailed(f"step {index}: {outside_of(self.memory, int(address))}")
        # A bank takes one word a cycle, so word n of each bank is written in turn n.
        bank = addresses % len(self.ports)
        in_banks = bank.argsort(kind="stable")
        turn = np.empty_like(bank)
        turn[in_banks] = np.arange(len(bank)) - bank[in_banks].searchsorted(bank[in_banks])
        order = turn.argsort(kind="stable")
        self.arriving[index] = turn[order], addresses[order], words[order]

    def store(self, index: int, turn: int) -> None:
        """Write the words of one turn, at most one in each bank."""
        turns, addresses, words = self.arriving[index]
        now = slice(*turns.searchsorted([turn, turn + 1]))
        self.entering = addresses[now], words[now]

    # ---- every cycle, beside the lanes

    def shift(self) -> None:
        """What is handed on enters the registers that skew it, and all of these move on."""
        self.skew.cells[self.skew.entry] = self.captured if self.handed_on else np.nan
        self.skew.shift()
        self.handed_on = False

    def take(self, orders: Records, words: Floats) -> None:
        """Put into the port registers [port, lane] what comes out of the skew for the rows that are told to take it."""
        rows = np.arange(len(self.behind))
        taken = (orders["client"][:, : len(rows)] == IFMAP) & (orders["lanes"][:, : len(rows)] > rows)
        port, row = taken.nonzero()
        words[port, row] = self.skew.registers[self.behind[row], row]

    def commit(self) -> None:
        """Write the words that arrive in this cycle."""
        if self.entering is not None:
            addresses, words = self.entering
            self.memory[addresses] = words
            self.written += len(addresses)
            self.entering = None


def outside_of(memory: Floats, address: int) -> str:
    """Message about a word that the banks do not have."""
    return f"word {address} is outside the banks' words 0..{len(memory) - 1}"


@kernel
def _present(wanted: Counts, patterns: Counts, bases: Counts, counters: Counts, tables: Counts, word: int) -> None:
    for row in range(len(wanted)):
        wanted[row] = NOWHERE
        if patterns[row] != UNFED:
            wanted[row] = address_of(patterns[row], bases, counters, tables, word)


@kernel
def _serve(wanted: Counts, captured: Floats, memory: Floats, ports: Counts) -> int:
    """Serve one cycle in every bank; return the number of words read."""
    banks, reads = len(ports), 0
    busy = np.zeros(banks, np.int64)
    for row in range(len(wanted)):
        address = wanted[row]
        if address == NOWHERE:
            # A word that several rows ask for is read once and goes to all of them.
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
