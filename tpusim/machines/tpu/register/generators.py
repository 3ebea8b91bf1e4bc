"""The address generators of all lanes: one setting for every way in which a pass, a vector step or a spill goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import PADDING, AddressPattern, Counters, Feed
from tpusim.machines.tpu.program.banks import BankFeed
from tpusim.machines.tpu.program.pointers import Picked, Pointers
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Spill
from tpusim.machines.tpu.register.kernel import kernel
from tpusim.machines.tpu.register.order import NOWHERE

Ints = NDArray[np.int64]

UNFED = -1
"""The pattern of a lane that has no part."""

TABLE, POINTED = 0, -1
"""Lengths of a first counter that is none: a table is walked, or pointers are."""

_STILL = (1, 0, 0, 1, 0, 1, 0)
"""A counter that has one position, the first."""


@dataclass(frozen=True)
class Settings:
    """Which pattern each lane walks, and the patterns.

    Attributes:
        patterns: [setting, lane] -> pattern, or UNFED.
        own: the same as far as lanes find words in their own memories: nothing of what array rows read from banks.
        bases: [pattern, 2]: the base of nested counters and pointers, or where the pattern's table begins in `tables`;
            and the position of the counters at which the pattern begins.
        counters: [pattern, counter, (length, start, step, extent, stride, wrap, jump)], the fastest first. Instead of
            the first, (TABLE, ...), or (POINTED, which of the pointers, words that share it, ...).
        tables: the addresses of all tables, one after another.
        number: the setting that each kind of read uses.
    """

    patterns: Ints
    own: Ints
    bases: Ints
    counters: Ints
    tables: Ints
    number: dict[Feed, int]

    @classmethod
    def of(cls, program: Program, lanes: int) -> Settings:
        """All settings that a Program needs."""
        number = {reads: at for at, reads in enumerate(dict.fromkeys(_reads(program)))}
        groups = (group for reads in number for group in reads.groups)
        known = {pattern: at for at, pattern in enumerate(dict.fromkeys(group.pattern for group in groups))}
        patterns = np.full((len(number), lanes), UNFED)
        for reads, at in number.items():
            for group in reads.groups:
                patterns[at, group.first_lane : group.first_lane + group.lanes] = known[group.pattern]
        in_banks = np.array([isinstance(reads, BankFeed) for reads in number], np.bool_)
        own = np.where(in_banks[:, None], UNFED, patterns)
        return cls(patterns, own, *_registers([*known]), number)


def _reads(program: Program) -> Iterator[Feed]:
    """How each pass reads, what each vector step reads and writes, then each part of a spill that says so."""
    yield from (stream.reads for stream in program.streams)
    yield from (feed for step in program.vectors for feed in (*step.operands, step.writes))
    for step in program.steps:
        if isinstance(step, Spill):
            yield from (part.feed for part in step.parts if part.feed is not None)


def _registers(patterns: list[AddressPattern]) -> tuple[Ints, Ints, Ints]:
    """(bases, counters, tables) of some patterns."""
    most = max((len(each.counters) for each in patterns if isinstance(each, Counters)), default=1)
    bases, counters = np.zeros((len(patterns), 2), np.int64), np.zeros((len(patterns), most, len(_STILL)), np.int64)
    tables: list[int] = []
    for at, each in enumerate(patterns):
        if isinstance(each, Counters):
            bases[at] = each.base, each.window.start if each.window else 0
            counters[at] = [*reversed(each.counters), *[_STILL] * (most - len(each.counters))]
        elif isinstance(each, Pointers):
            bases[at] = each.base
            counters[at, 0, :3] = POINTED, each.which, each.table.repeat
        elif isinstance(each, Picked):
            bases[at] = each.base
            counters[at, 0, :3] = POINTED, each.which, 1
        else:
            bases[at] = len(tables), 0
            tables += each.addresses
    return bases, counters, np.array(tables, np.int64)


@kernel
def address_of(pattern: int, bases: Ints, counters: Ints, tables: Ints, word: int) -> int:
    """The address at which nested counters, or a table, stand for word number `word` of a pass; NOWHERE: padding."""
    address, slowest = bases[pattern, 0], counters.shape[1] - 1
    word += bases[pattern, 1]
    if counters[pattern, 0, 0] == 0:
        address = tables[address + word]
        return NOWHERE if address == PADDING else int(address)
    for each in range(slowest + 1):
        # A division takes as long as all the rest: only where more than one count is left to tell apart.
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
