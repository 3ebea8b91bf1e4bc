"""The one-pass model of a channel: from event to event, each at the cycle in which the clocked controller has it.

`m` is the row of a channel, `groups` and `banks` are those of its groups and banks, `group` and `bank` one of them,
`requests` the rows of the transfer (see `state`); `now` is the cycle of the event. Why a controller does what it does
stands in docs/memory.md.
"""

from __future__ import annotations

from tpusim.memory.dram.constraints import ACT, PRE, RD, REF, WR
from tpusim.memory.dram.kernel import inlined, kernel, part
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
    ACTIVE,
    ACTS,
    BANK_NEAR,
    BANKS_ACTIVE,
    CLOCK,
    CONFLICTS,
    DISTINCT,
    DONE,
    FIRST_ACT,
    HEAD,
    HIT_BANKS,
    HITS,
    HITTING,
    IN_GROUP,
    KIND,
    KINDS_OF_BURST,
    LAST,
    LENGTH,
    MAY_CLOSE,
    MAY_MOVE,
    MERGED,
    NEAR,
    NEXT,
    NOT_BEFORE,
    QUEUE,
    QUEUED,
    READ_BURSTS,
    READ_HIT,
    REFRESH_AT,
    REFRESH_BANK,
    REFRESHED,
    REFRESHES,
    ROW,
    ROW_,
    TURN,
    USED,
    WAKE,
    WRITE_BURSTS,
    WRITE_HIT,
)
from tpusim.memory.dram.transactions import idle, look, remove, take_one

_EVERY = -2
"""In place of a bank: all of them."""


@kernel
def step(rules: Numbers, m: Numbers, groups: Numbers, banks: Numbers, seen: Numbers, requests: Numbers) -> None:
    """Do all that the channel does in the cycle of its next event, and find out when the one after that is."""
    now = m[NEXT]
    m[HIT_BANKS] = 0
    if m[REFRESH_AT] <= now:
        m[REFRESH_AT] += rules[INTERVAL]
        m[REFRESHES] += 1
        m[WAKE] = now
    if m[WAKE] <= now:
        m[WAKE] = _commands(rules, m, groups, banks, seen, requests, now)
    coming, (b, more) = m[REFRESH_AT], take_one(rules, m, banks, seen, requests)
    if b >= 0:
        held = _held(rules, m)
        if held != _EVERY and held != b:
            m[WAKE] = min(m[WAKE], due(rules, m, groups[banks[b, IN_GROUP]], banks[b]))
        if more:
            coming = now + 1
    m[CLOCK] = now + 1
    m[NEXT] = max(now + 1, min(m[WAKE], coming))


@inlined
def _commands(
    rules: Numbers, m: Numbers, groups: Numbers, banks: Numbers, seen: Numbers, requests: Numbers, now: int
) -> int:
    """Issue a command, and one for the other bus; when the next one may be issued."""
    wake, column, done = FAR, False, False
    if m[REFRESHES]:
        wake = _refresh(rules, m, groups, banks, now)
        done = wake <= now
    for _ in range(1 if done else 2):
        b = _search(rules, m, groups, banks, now)
        if b < 0:
            return now + 1 if wake <= now else int(min(wake, m[WAKE]))
        bank = banks[b]
        group = groups[bank[IN_GROUP]]
        is_column = bank[ROW] >= 0 and not (bank[MAY_CLOSE] and soonest(m, group, bank, PRE) <= now)
        if done and is_column == column:
            break
        if is_column:
            _access(rules, m, groups, bank, seen, requests, b, now)
        else:
            _other_row(rules, m, group, bank, requests, now)
        done, column = True, is_column
    return now + 1


@inlined
def _held(rules: Numbers, m: Numbers) -> int:
    """The bank that waits for a refresh, _EVERY, or -1 for none."""
    if m[REFRESHES] == 0:
        return -1
    return _EVERY if rules[REFRESH] == ALL_BANKS else int(m[REFRESH_BANK])


@inlined
def _search(rules: Numbers, m: Numbers, groups: Numbers, banks: Numbers, now: int) -> int:
    """The first bank, from the one after the last that was found, that has a command to issue; WAKE where none has."""
    held = _held(rules, m)
    found, first, nearest = -1, FAR, 0
    for place in range(m[ACTIVE] if held != _EVERY else 0):
        b = m[BANKS_ACTIVE + place]
        bank = banks[b]
        if bank[LENGTH] == 0 or b == held or bank[NOT_BEFORE] > first:
            continue
        bank[NOT_BEFORE] = due(rules, m, groups[bank[IN_GROUP]], bank)
        when, turns = max(now, bank[NOT_BEFORE]), (b - m[TURN] - 1) & (rules[BANKS] - 1)
        if when < first or (when == first and turns < nearest):
            found, first, nearest = b, when, turns
    if first <= now:
        m[TURN] = found
        return int(found)
    m[WAKE] = first
    return -1


@inlined
def soonest(m: Numbers, group: Numbers, bank: Numbers, command: int) -> int:
    """The first cycle in which a command of a bank obeys all that came before it."""
    return int(max(bank[BANK_NEAR + command], group[command], m[NEAR + command]))


@part
def due(rules: Numbers, m: Numbers, group: Numbers, bank: Numbers) -> int:
    """The first cycle in which a bank, whose queue is not empty, has a command to issue."""
    if bank[ROW] < 0:
        return max(soonest(m, group, bank, ACT), int(m[ACTS + m[FIRST_ACT]] + rules[WINDOW]))
    when = FAR
    if bank[MAY_CLOSE]:
        when = soonest(m, group, bank, PRE)
    if bank[READ_HIT] >= 0:
        when = min(when, soonest(m, group, bank, RD))
    if bank[WRITE_HIT] >= 0:
        when = min(when, soonest(m, group, bank, WR))
    return when


@inlined
def _other_row(rules: Numbers, m: Numbers, group: Numbers, bank: Numbers, requests: Numbers, now: int) -> None:
    """Open the row that the head of a bank's queue needs, or close the one that it does not."""
    if bank[ROW] < 0:
        bank[ROW], bank[USED] = requests[ROW_, bank[QUEUE + bank[HEAD]]], 0
        m[ACTS + m[FIRST_ACT]] = now
        m[FIRST_ACT] = (m[FIRST_ACT] + 1) & 3
        m[ACTIVATES] += 1
        _follow(rules, m, group, bank, ACT, now)
    else:
        _precharge(rules, m, group, bank, now)
        m[CONFLICTS] += 1
    look(rules, bank, requests)


@inlined
def _precharge(rules: Numbers, m: Numbers, group: Numbers, bank: Numbers, now: int) -> None:
    bank[ROW], bank[NOT_BEFORE] = -1, 0
    _follow(rules, m, group, bank, PRE, now)


@inlined
def _follow(rules: Numbers, m: Numbers, group: Numbers, bank: Numbers, command: int, now: int) -> None:
    """Hold back what must not come too soon after a command."""
    gap = GAPS + 5 * command
    for later in range(5):
        _hold(bank, BANK_NEAR + later, now + rules[gap + later])
        _hold(group, later, now + rules[gap + 25 + later])
        _hold(m, NEAR + later, now + rules[gap + 50 + later])


@inlined
def _follow_column(rules: Numbers, m: Numbers, group: Numbers, bank: Numbers, command: int, now: int) -> None:
    """The same after a read or write, which holds back nothing but its row's end, and reads and writes near to it."""
    gap = GAPS + 5 * command
    if rules[CLOSED]:
        _hold(bank, BANK_NEAR + ACT, now + rules[gap + ACT])
        _hold(bank, BANK_NEAR + REF, now + rules[gap + REF])
    else:
        _hold(bank, BANK_NEAR + PRE, now + rules[gap + PRE])
    _hold(group, RD, now + rules[gap + 25 + RD])
    _hold(group, WR, now + rules[gap + 25 + WR])
    _hold(m, NEAR + RD, now + rules[gap + 50 + RD])
    _hold(m, NEAR + WR, now + rules[gap + 50 + WR])


@inlined
def _hold(earliest: Numbers, command: int, until: int) -> None:
    earliest[command] = max(earliest[command], until)


@inlined
def _access(
    rules: Numbers, m: Numbers, groups: Numbers, bank: Numbers, seen: Numbers, requests: Numbers, b: int, now: int
) -> None:
    """Issue the column command of the first read or write of the open row that may come now."""
    read, write, group = bank[READ_HIT], bank[WRITE_HIT], groups[bank[IN_GROUP]]
    reads = read >= 0 and soonest(m, group, bank, RD) <= now
    writes = write >= 0 and soonest(m, group, bank, WR) <= now
    first = WRITE_HIT if writes and not (reads and read < write) else READ_HIT
    m[HITTING] = column(rules, m, groups, bank, seen, requests, b, first, now)


@part
def column(
    rules: Numbers, m: Numbers, groups: Numbers, bank: Numbers, seen: Numbers, requests: Numbers,
    b: int, first: int, now: int,
) -> bool:  # fmt: skip
    """Issue the column command of the first read, or write, of a bank's open row; whether the head is then one, too."""
    position, write = bank[first], int(first == WRITE_HIT)
    request = bank[QUEUE + bank[HEAD] + position]
    m[QUEUED] -= 1
    m[LAST], m[MAY_MOVE] = now, 1
    m[HITS] += bank[USED] > 0
    bank[USED] += 1
    if rules[CLOSED]:
        bank[ROW] = -1
    m[WRITE_BURSTS if write else READ_BURSTS] += 1
    if not m[DISTINCT]:
        seen[write * KINDS_OF_BURST + requests[KIND, request]] -= 1
    done = now + rules[WRITE_CYCLES if write else READ_CYCLES]
    while request >= 0:
        requests[DONE, request] = done
        request = requests[MERGED, request]
    again = remove(rules, bank, requests, position, write)
    idle(m, bank, b)
    _follow_column(rules, m, groups[bank[IN_GROUP]], bank, WR if write else RD, now)
    return again


@inlined
def _refresh(rules: Numbers, m: Numbers, groups: Numbers, banks: Numbers, now: int) -> int:
    """Work at the refresh that is waiting; the cycle of its next command, `now` if it has just been issued."""
    begin, count = (m[REFRESH_BANK], 1) if rules[REFRESH] == PER_BANK else (0, rules[BANKS])
    closing, ready = FAR, 0
    for b in range(begin, begin + count):
        bank = banks[b]
        group = groups[bank[IN_GROUP]]
        if bank[ROW] >= 0:
            when = soonest(m, group, bank, PRE)
            if when <= now:
                _precharge(rules, m, group, bank, now)
                return now
            closing = min(closing, when)
        ready = max(ready, soonest(m, group, bank, REF))
    if closing < FAR or ready > now:
        return closing if closing < FAR else ready
    _follow(rules, m, groups[banks[begin, IN_GROUP]], banks[begin], REF, now)
    m[REFRESHED] += 1
    m[REFRESHES] -= 1
    m[REFRESH_BANK] = (m[REFRESH_BANK] + 1) % rules[BANKS]
    return now
