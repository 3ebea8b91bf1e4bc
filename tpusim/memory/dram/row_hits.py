"""The one-pass model of a channel while all that happens are row hits: the same as `events`, with less to look at."""

from __future__ import annotations

from tpusim.memory.dram.constraints import PRE, RD, WR
from tpusim.memory.dram.events import column, due, soonest
from tpusim.memory.dram.kernel import part
from tpusim.memory.dram.rules import BANKS, CLOSED, FAR, GAPS, WAITING, Numbers
from tpusim.memory.dram.state import (
    ACTIVE,
    BANKS_ACTIVE,
    CLOCK,
    DISTINCT,
    HIT_BANKS,
    HIT_WRITES,
    HITTING,
    IN_GROUP,
    LENGTH,
    NEXT,
    OTHERS_DUE,
    READ_HIT,
    READS,
    REFRESH_AT,
    REFRESHES,
    ROW,
    TURN,
    WAKE,
    WRITE_HIT,
    WRITES,
)
from tpusim.memory.dram.transactions import more, take_one


@part
def row_hits(
    rules: Numbers, m: Numbers, groups: Numbers, banks: Numbers, seen: Numbers, requests: Numbers,
    until: int, reads: bool, writes: bool,
) -> bool:  # fmt: skip
    """Do what happens before cycle `until`, as long as it is reads, or writes, of open rows by the heads of queues.

    It ends where there is room for `reads` or `writes`. Returns whether anything was done.
    """
    if not m[HITTING] or m[REFRESHES] or not m[DISTINCT] or rules[CLOSED]:
        return False
    if m[HIT_BANKS] == 0:
        _find(rules, m, groups, banks)
    count, write, others = m[HIT_BANKS], m[HIT_WRITES] > 0, m[OTHERS_DUE]
    command, limit = WR if write else RD, min(until, others, m[REFRESH_AT])
    # Where another command may follow in the same cycle, one search is not enough.
    alone = rules[GAPS + 50 + 6 * command] > 0 and rules[GAPS + 5 * command + PRE] > 0
    if count == 0 or m[NEXT] >= limit or not alone:
        m[HITTING] = 0
        return False
    same, (b, when) = True, _next(rules, m, groups, banks, count, command, m[NEXT])
    while same and m[NEXT] < limit and not room(rules, m, reads, writes):
        now = m[NEXT]
        if when <= now:
            m[TURN] = b
            same = column(rules, m, groups, banks[b], seen, requests, b, 0, now)
            b, when = _next(rules, m, groups, banks, count, command, now + 1)
        moved, coming = take_one(rules, m, banks, seen, requests), m[REFRESH_AT]
        if moved >= 0:
            same = same and _as_before(banks[moved], write)
            coming = now + 1 if more(rules, m, banks) else coming
        m[CLOCK] = now + 1
        m[WAKE] = min(when, others) if same else now + 1
        m[NEXT] = max(now + 1, min(m[WAKE], coming))
    if not same:
        m[HIT_BANKS] = 0
    return True


@part
def room(rules: Numbers, m: Numbers, reads: bool, writes: bool) -> bool:
    """Whether there is room for `reads`, or for `writes`."""
    return bool((reads and m[READS] < rules[WAITING]) or (writes and m[WRITES] < rules[WAITING]))


@part
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


@part
def _heads(bank: Numbers, write: bool) -> bool:
    """Whether the head of a bank's queue is for its open row, and none of the other kind is."""
    return bool(
        (bank[WRITE_HIT] == 0 and bank[READ_HIT] < 0) if write else (bank[READ_HIT] == 0 and bank[WRITE_HIT] < 0)
    )


@part
def _as_before(bank: Numbers, write: bool) -> bool:
    """Whether a bank has nothing else to do next than before a request came to its queue."""
    return bool(bank[LENGTH] > 1 and (bank[ROW] < 0 or _heads(bank, write)))


@part
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
