"""The one-pass model of a channel while all that happens are row hits: the same as `events`, with less to look at."""

from __future__ import annotations

from tpusim.memory.dram.constraints import PRE, RD, WR
from tpusim.memory.dram.events import column, due, soonest
from tpusim.memory.dram.kernel import inlined
from tpusim.memory.dram.rules import BANKS, CLOSED, FAR, GAPS, Numbers
from tpusim.memory.dram.state import (
    ACTIVE,
    BANKS_ACTIVE,
    CLOCK,
    DISTINCT,
    HIT_AT,
    HIT_BANKS,
    HIT_WRITES,
    HITTING,
    IN_GROUP,
    LEFT_BELOW,
    LENGTH,
    NEXT,
    NEXT_HIT,
    OTHERS_DUE,
    QUEUED,
    READ_HIT,
    READS,
    READS_BELOW,
    REFRESH_AT,
    REFRESHES,
    ROW,
    TURN,
    UNTIL,
    WAKE,
    WRITE_HIT,
    WRITES,
    WRITES_BELOW,
)
from tpusim.memory.dram.transactions import take_one


@inlined
def row_hits(rules: Numbers, m: Numbers, groups: Numbers, banks: Numbers, seen: Numbers, requests: Numbers) -> bool:
    """Do what is to be done, as long as it is reads, or writes, of open rows by the heads of queues.

    It ends where it is `enough`. Returns whether anything was done.
    """
    if not m[HITTING] or m[REFRESHES] or not m[DISTINCT] or rules[CLOSED]:
        return False
    if m[HIT_BANKS] == 0:
        _find(rules, m, groups, banks)
    count, write, others = m[HIT_BANKS], m[HIT_WRITES] > 0, m[OTHERS_DUE]
    first = WRITE_HIT if write else READ_HIT
    command, limit = WR if write else RD, min(m[UNTIL], others, m[REFRESH_AT])
    # Where another command may follow in the same cycle, one search is not enough.
    alone = rules[GAPS + 50 + 6 * command] > 0 and rules[GAPS + 5 * command + PRE] > 0
    if count == 0 or m[NEXT] >= limit or not alone:
        m[HITTING] = 0
        return False
    same, b, when = True, m[NEXT_HIT], m[HIT_AT]
    while same and m[NEXT] < limit and not enough(m):
        now = m[NEXT]
        if when <= now:
            m[TURN] = b
            same = column(rules, m, groups, banks[b], seen, requests, b, first, now)
            b, when = _next(rules, m, groups, banks, count, command, now + 1)
        coming, (moved, more) = m[REFRESH_AT], take_one(rules, m, banks, seen, requests)
        if moved >= 0:
            same = same and _as_before(banks[moved], write)
            coming = now + 1 if more else coming
        m[CLOCK] = now + 1
        m[WAKE] = min(when, others) if same else now + 1
        m[NEXT] = max(now + 1, min(m[WAKE], coming))
    if not same:
        m[HIT_BANKS] = 0
    m[NEXT_HIT], m[HIT_AT] = b, when
    return True


@inlined
def enough(m: Numbers) -> bool:
    """Whether a channel has come to where it was to go."""
    left = m[READS] + m[WRITES] + m[QUEUED]
    return bool((m[READS] < m[READS_BELOW]) | (m[WRITES] < m[WRITES_BELOW]) | (left < m[LEFT_BELOW]))


@inlined
def _find(rules: Numbers, m: Numbers, groups: Numbers, banks: Numbers) -> None:
    """Find the banks whose heads are reads, or writes, of their open row, and see when the others have to do."""
    count, write, others = 0, False, FAR
    for place in range(m[ACTIVE]):
        b = m[BANKS_ACTIVE + place]
        bank = banks[b]
        if bank[LENGTH] == 0:
            continue
        if count == 0:
            write = bank[WRITE_HIT] == 0
        if bank[ROW] >= 0 and _heads(bank, write):
            m[BANKS_ACTIVE + place] = m[BANKS_ACTIVE + count]
            m[BANKS_ACTIVE + count] = b
            count += 1
        else:
            others = min(others, due(rules, m, groups[bank[IN_GROUP]], bank))
    m[HIT_BANKS], m[HIT_WRITES], m[OTHERS_DUE] = count, write, others
    m[NEXT_HIT], m[HIT_AT] = _next(rules, m, groups, banks, count, WR if write else RD, m[NEXT])


@inlined
def _heads(bank: Numbers, write: bool) -> bool:
    """Whether the head of a bank's queue is for its open row, and none of the other kind is."""
    return bool(
        (bank[WRITE_HIT] == 0 and bank[READ_HIT] < 0) if write else (bank[READ_HIT] == 0 and bank[WRITE_HIT] < 0)
    )


@inlined
def _as_before(bank: Numbers, write: bool) -> bool:
    """Whether a bank has nothing else to do next than before a request came to its queue."""
    return bool(bank[LENGTH] > 1 and (bank[ROW] < 0 or _heads(bank, write)))


@inlined
def _next(
    rules: Numbers, m: Numbers, groups: Numbers, banks: Numbers, count: int, command: int, now: int
) -> tuple[int, int]:
    """The bank that comes next, from cycle `now` on, and when; FAR where none has a command queued."""
    found, first, nearest = -1, FAR, 0
    for place in range(count):
        b = m[BANKS_ACTIVE + place]
        bank = banks[b]
        if bank[LENGTH] == 0:
            continue
        when, turns = (
            max(now, soonest(m, groups[bank[IN_GROUP]], bank, command)),
            (b - m[TURN] - 1) & (rules[BANKS] - 1),
        )
        if when < first or (when == first and turns < nearest):
            found, first, nearest = b, when, turns
    return found, first
