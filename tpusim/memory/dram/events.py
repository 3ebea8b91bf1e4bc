"""The one-pass model of a channel: from event to event, each at the cycle in which the clocked controller has it.

`m` is the row of a channel, `requests` the rows of the transfer, `at` the record of bank `b` in `m` (see `state`);
`now` is the cycle of the event. Why a controller does what it does stands in docs/memory.md.
"""

from __future__ import annotations

from tpusim.memory.dram.constraints import ACT, PRE, RD, REF, WR
from tpusim.memory.dram.kernel import kernel, part
from tpusim.memory.dram.rules import (
    ALL_BANKS,
    BANKS,
    CLOSED,
    FAR,
    GAPS,
    INTERVAL,
    PER_BANK,
    READ_CYCLES,
    REFRESH,
    WINDOW,
    WRITE_CYCLES,
    Numbers,
)
from tpusim.memory.dram.state import (
    ACTIVATES,
    ACTS,
    BANK_NEAR,
    BUSY,
    CLOCK,
    CONFLICTS,
    DONE,
    FIRST_ACT,
    HITS,
    IN_GROUP,
    KIND,
    KINDS_OF_BURST,
    LAST,
    LENGTH,
    MAY_CLOSE,
    MERGED,
    NEAR,
    NEXT,
    QUEUE,
    QUEUED,
    READ_BURSTS,
    READ_HIT,
    READY,
    REFRESH_AT,
    REFRESH_BANK,
    REFRESHED,
    REFRESHES,
    ROW,
    ROW_,
    SEEN,
    TURN,
    USED,
    WAKE,
    WRITE,
    WRITE_BURSTS,
    WRITE_HIT,
)
from tpusim.memory.dram.transactions import left, look, take_one

_EVERY = -2
"""In place of a bank: all of them."""


@kernel
def step(rules: Numbers, m: Numbers, requests: Numbers, first: int, size: int) -> None:
    """Do all that the channel does in the cycle of its next event, and find out when the one after that is.

    The record of the first bank is at `first`, each has `size` numbers.
    """
    now = m[NEXT]
    if m[REFRESH_AT] <= now:
        m[REFRESH_AT] += rules[INTERVAL]
        m[REFRESHES] += 1
        m[WAKE] = now
    if m[WAKE] <= now:
        m[WAKE] = _commands(rules, m, requests, first, size, now)
    b = take_one(rules, m, requests, first, size, now)
    held = _held(rules, m)
    if b >= 0 and held != _EVERY and held != b:
        m[WAKE] = min(m[WAKE], _due(rules, m, first + b * size))
    m[CLOCK] = now + 1
    m[NEXT] = max(now + 1, min(m[WAKE], m[REFRESH_AT]))


@kernel
def _commands(rules: Numbers, m: Numbers, requests: Numbers, first: int, size: int, now: int) -> int:
    """Issue a command, and one for the other bus; when the next one may be issued."""
    wake, column, done = FAR, False, False
    if m[REFRESHES]:
        wake = _refresh(rules, m, first, size, now)
        done = wake <= now
    for _ in range(1 if done else 2):
        b = _search(rules, m, first, size, now)
        if b < 0:
            return now + 1 if wake <= now else int(min(wake, m[WAKE]))
        at = first + b * size
        is_column = m[at + ROW] >= 0 and not (m[at + MAY_CLOSE] and _soonest(m, at, PRE) <= now)
        if not done or is_column != column:
            _issue(rules, m, requests, b, at, is_column, now)
        done, column = True, is_column
    return now + 1


@part
def _held(rules: Numbers, m: Numbers) -> int:
    """The bank that waits for a refresh, _EVERY, or -1 for none."""
    if m[REFRESHES] == 0:
        return -1
    return _EVERY if rules[REFRESH] == ALL_BANKS else int(m[REFRESH_BANK])


@part
def _search(rules: Numbers, m: Numbers, first: int, size: int, now: int) -> int:
    """The first bank, from the one after the last that was found, that has a command to issue; WAKE where none has."""
    held = _held(rules, m)
    wake, b, banks, others = FAR, m[TURN], rules[BANKS], m[BUSY] if held != _EVERY else 0
    if held >= 0:
        others &= ~(1 << held)
    if others == 1 << b:
        b -= 1
    while others:
        b = b + 1 if b + 1 < banks else 0
        if (others >> b) & 1 == 0:
            continue
        others ^= 1 << b
        when = _due(rules, m, first + b * size)
        if when <= now:
            m[TURN] = b
            return int(b)
        wake = min(wake, when)
    m[WAKE] = wake
    return -1


@part
def _soonest(m: Numbers, at: int, command: int) -> int:
    """The first cycle in which a command of a bank obeys all that came before it."""
    return int(max(m[at + BANK_NEAR + command], m[m[at + IN_GROUP] + command], m[NEAR + command]))


@part
def _due(rules: Numbers, m: Numbers, at: int) -> int:
    """The first cycle in which a bank, whose queue is not empty, has a command to issue."""
    if m[at + ROW] < 0:
        return max(_soonest(m, at, ACT), int(m[ACTS + m[FIRST_ACT]] + rules[WINDOW]))
    when = FAR
    if m[at + MAY_CLOSE]:
        when = _soonest(m, at, PRE)
    if m[at + READ_HIT] >= 0:
        when = min(when, _soonest(m, at, RD))
    if m[at + WRITE_HIT] >= 0:
        when = min(when, _soonest(m, at, WR))
    return when


@part
def _issue(rules: Numbers, m: Numbers, requests: Numbers, b: int, at: int, column: bool, now: int) -> None:
    """Issue what a bank is due to issue."""
    if column:
        read, write = m[at + READ_HIT], m[at + WRITE_HIT]
        reads = read >= 0 and _soonest(m, at, RD) <= now
        writes = write >= 0 and _soonest(m, at, WR) <= now
        _access(rules, m, requests, b, at, read if reads and not (writes and write < read) else write, now)
        return
    if m[at + ROW] < 0:
        m[at + ROW], m[at + USED] = requests[m[at + QUEUE], ROW_], 0
        m[ACTS + m[FIRST_ACT]] = now
        m[FIRST_ACT] = (m[FIRST_ACT] + 1) & 3
        m[ACTIVATES] += 1
        _follow(rules, m, at, ACT, now)
    else:
        _precharge(rules, m, at, now)
        m[CONFLICTS] += 1
    look(rules, m, requests, at)


@part
def _precharge(rules: Numbers, m: Numbers, at: int, now: int) -> None:
    m[at + ROW] = -1
    _follow(rules, m, at, PRE, now)


@kernel
def _follow(rules: Numbers, m: Numbers, at: int, command: int, now: int) -> None:
    """Hold back what must not come too soon after a command."""
    gap, group = GAPS + 5 * command, m[at + IN_GROUP]
    for later in range(5):
        m[at + BANK_NEAR + later] = max(m[at + BANK_NEAR + later], now + rules[gap + later])
        m[group + later] = max(m[group + later], now + rules[gap + 25 + later])
        m[NEAR + later] = max(m[NEAR + later], now + rules[gap + 50 + later])


@part
def _access(rules: Numbers, m: Numbers, requests: Numbers, b: int, at: int, position: int, now: int) -> None:
    """Issue the column command of a queue's entry, and take it from the queue."""
    request, write = m[at + QUEUE + position], requests[m[at + QUEUE + position], WRITE]
    m[at + LENGTH] -= 1
    for place in range(at + QUEUE + position, at + QUEUE + m[at + LENGTH]):
        m[place] = m[place + 1]
    if m[at + LENGTH] == 0:
        m[BUSY] &= ~(1 << b)
    m[READY] |= 1 << b
    m[QUEUED] -= 1
    m[LAST] = now
    m[HITS] += m[at + USED] > 0
    m[at + USED] += 1
    if rules[CLOSED]:
        m[at + ROW] = -1
    m[WRITE_BURSTS if write else READ_BURSTS] += 1
    m[SEEN + write * KINDS_OF_BURST + requests[request, KIND]] -= 1
    done = now + rules[WRITE_CYCLES if write else READ_CYCLES]
    while request >= 0:
        requests[request, DONE] = done
        request = requests[request, MERGED]
    left(rules, m, requests, at, position, write)
    _follow(rules, m, at, WR if write else RD, now)


@part
def _refresh(rules: Numbers, m: Numbers, first: int, size: int, now: int) -> int:
    """Work at the refresh that is waiting; the cycle of its next command, `now` if it has just been issued."""
    begin, count = (m[REFRESH_BANK], 1) if rules[REFRESH] == PER_BANK else (0, rules[BANKS])
    closing, ready = FAR, 0
    for b in range(begin, begin + count):
        at = first + b * size
        if m[at + ROW] >= 0:
            when = _soonest(m, at, PRE)
            if when <= now:
                _precharge(rules, m, at, now)
                return now
            closing = min(closing, when)
        ready = max(ready, _soonest(m, at, REF))
    if closing < FAR or ready > now:
        return closing if closing < FAR else ready
    _follow(rules, m, first + begin * size, REF, now)
    m[REFRESHED] += 1
    m[REFRESHES] -= 1
    m[REFRESH_BANK] = (m[REFRESH_BANK] + 1) % rules[BANKS]
    return now
