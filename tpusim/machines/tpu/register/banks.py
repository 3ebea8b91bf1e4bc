"""Address generators of all lanes, and the banks of the ifmap behind a crossbar.

In lane 0's time all array rows present their addresses at once. Every bank serves one address a port in a cycle, and a
word that several rows ask for goes to all of them. A word that has been read waits in the capture register of its row
until every row has its word. Then all rows hand on their words; row r's word goes through a register for each cycle
that row r is behind row 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tpusim.machines.tpu.program.addresses import PADDING, BankFeed, Counters, Feed, PickedWords, Pointers
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Spill
from tpusim.machines.tpu.register.wires import NOWHERE, Counts, Floats, copy, part, spare_of

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
        spills = (part for _, step in program.rows.steps(Spill) for part in step.parts)
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
            elif isinstance(each, Pointers | PickedWords):
                bases[at] = each.base
                counters[at, 0, :3] = POINTED, each.which, each.table.repeat if isinstance(each, Pointers) else 1
            else:
                bases[at] = len(tables), 0
                tables += each.addresses
        return cls(patterns, own, bases, counters, np.array(tables, np.int64), number)


@part
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


SKEW, ASKING, HANDED_ON, READ, WRITTEN, CYCLES, ARRIVES, LEAVES = range(8)
"""Registers of all banks together: the head of the skew's window; whether rows ask for a word, and whether theirs is
handed on; accesses, and cycles with a read; and which words of fills arrive in this cycle, from the first to past the
last.
"""


class Banks(NamedTuple):
    """Registers of the banks.

    Attributes:
        banked: whether the machine has banks.
        at: registers of all banks together, from SKEW on.
        patterns, bases, counters, tables: what the address generators walk (`Settings`).
        memory: [word, W].
        ports: the address that each port of each bank reads in this cycle.
        busy: ports of each bank that read in this cycle.
        wanted, captured: the address that each row still waits for, or NOWHERE; and the capture registers.
        behind: the register behind which each row has its word.
        skew: [register, row], seen through a window; what nothing has been handed on to is no number.
        turns, addresses, words: words of all fills: the turn of each in its fill, its address, and its contents once
            the fill has begun.
    """

    banked: bool
    at: Counts
    patterns: Counts
    bases: Counts
    counters: Counts
    tables: Counts
    memory: Floats
    ports: Counts
    busy: Counts
    wanted: Counts
    captured: Floats
    behind: Counts
    skew: Floats
    turns: Counts
    addresses: Counts
    words: Floats

    @classmethod
    def of(
        cls, program: Program, settings: Settings, fills: tuple[Counts, Counts, Floats], rows: int, together: int,
        banks: int, ports: int,
    ) -> Banks:  # fmt: skip
        """The banks of a machine, of whose rows `together` take their words in a cycle; or none, for no rows.

        `fills` are turns, addresses and contents of the words of fills.
        """
        behind, number, word = np.arange(rows) // together, program.number, fills[2].shape[1]
        registers = 1 + int(behind.max(initial=0))
        skew = np.full((spare_of() + registers, rows, word), np.nan, number)
        return cls(
            rows > 0, np.array([spare_of(), *[0] * 7]), settings.patterns, settings.bases, settings.counters,
            settings.tables, np.full((program.bank_words, word), np.nan, number), np.zeros((banks, ports), np.int64),
            np.zeros(banks, np.int64), np.full(rows, NOWHERE),
            np.zeros((rows, word), number), behind, skew, *fills,
        )  # fmt: skip


# ---- reads, decided in lane 0's time


@part
def ask_banks(own: Banks, setting: int, word: int) -> int:
    """Read banks for one cycle, unless all rows have word number `word`.

    Return 1 if it can be handed on now, 0 if not yet, and -1 - row when a row asks for a word that the banks do not
    have.
    """
    at, waiting = own.at, False
    if not at[ASKING]:
        # Every row presents the address of its next word; a row on padding, or without a feed, gets zeros.
        at[ASKING] = 1
        for row in range(len(own.wanted)):
            own.captured[row] = 0
            pattern = own.patterns[setting, row]
            address = NOWHERE
            if pattern != UNFED:
                address = address_of(pattern, own.bases, own.counters, own.tables, word)
            own.wanted[row] = address
            if address != NOWHERE and not 0 <= address < len(own.memory):
                return -1 - row
    else:
        for row in range(len(own.wanted)):
            waiting |= own.wanted[row] != NOWHERE
        if not waiting:
            return 1
    at[CYCLES] += 1
    _serve(own)
    waiting = False
    for row in range(len(own.wanted)):
        waiting |= own.wanted[row] != NOWHERE
    return 0 if waiting else 1


@part
def _serve(own: Banks) -> None:
    """Serve one cycle in every bank."""
    banks = len(own.ports)
    own.busy[:] = 0
    for row in range(len(own.wanted)):
        address = own.wanted[row]
        if address == NOWHERE:
            # A word that several rows ask for is read once and goes to all of them.
            continue
        bank, served = address % banks, False
        for port in range(own.busy[bank]):
            served = served or own.ports[bank, port] == address
        if not served and own.busy[bank] < own.ports.shape[1]:
            own.ports[bank, own.busy[bank]] = address
            own.busy[bank] += 1
            own.at[READ] += 1
            served = True
        if served:
            copy(own.captured[row], own.memory[address])
            own.wanted[row] = NOWHERE


# ---- every cycle, beside the lanes


@part
def shift_banks(own: Banks) -> None:
    """What is handed on enters the registers that skew it, and all of these move on."""
    at = own.at
    at[SKEW] -= 1
    if at[HANDED_ON]:
        _copy_rows(own.skew[at[SKEW]], own.captured)
    else:
        own.skew[at[SKEW]] = np.nan
    at[HANDED_ON] = 0
    if at[SKEW] == 0:
        last = own.behind[-1] + 1
        at[SKEW] = len(own.skew) - last
        for register in range(last - 1, -1, -1):
            _copy_rows(own.skew[at[SKEW] + register], own.skew[register])


@part
def commit_banks(own: Banks) -> None:
    """Write the words that arrive in this cycle."""
    at = own.at
    for word in range(at[ARRIVES], at[LEAVES]):
        copy(own.memory[own.addresses[word]], own.words[word])
    at[WRITTEN] += at[LEAVES] - at[ARRIVES]
    at[ARRIVES] = at[LEAVES] = 0


@part
def _copy_rows(to: Floats, of: Floats) -> None:
    for row in range(len(to)):
        copy(to[row], of[row])
