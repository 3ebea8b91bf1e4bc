"""The one-pass model of a channel. It goes from event to event, each in the cycle in which the clocked controller has
it.

Arrays are named as in `queues`; `now` is the cycle of the event. The reasons for a controller's choices are in
docs/memory.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpusim.memory.dram.queues import (
    ACTIVE,
    BANKS_ACTIVE,
    BANKS_OWN,
    CHANNELS_OWN,
    CLOCK,
    DISTINCT,
    FIRST_READ,
    FIRST_WRITE,
    HEAD,
    LAST_READ,
    LAST_WRITE,
    LENGTH,
    MAY_CLOSE,
    MAY_MOVE,
    MERGED,
    NEXT,
    NOT_BEFORE,
    OPEN,
    QUEUE,
    QUEUED,
    READ_HIT,
    READS,
    USED,
    WRITE_HIT,
    WRITES,
    look,
    remove,
    take_one,
)
from tpusim.memory.dram.rules import (
    ACT,
    ALL_BANKS,
    DONE,
    FAR,
    NO_REFRESH,
    PER_BANK,
    PRE,
    RD,
    REF,
    ROW,
    WR,
    Numbers,
    Rules,
    inlined,
    kernel,
    part,
)

# Registers of a channel besides its queues, in row `m`: the cycle before which no command is due; the bank at which the
# last search ended; the cycle of the next refresh, the number of refreshes waiting, the next bank to refresh; the last
# column command.
WAKE, TURN, REFRESH_AT, REFRESHES, REFRESH_BANK, LAST = range(CHANNELS_OWN, CHANNELS_OWN + 6)
# Whether row hits are likely; then the number of active banks that have them, 0 if unknown; whether these are writes;
# the first cycle in which another bank may have work; the next bank with a hit, and its cycle. Banks with row hits come
# first among the active ones.
HITTING, HIT_BANKS, HIT_WRITES, OTHERS_DUE, NEXT_HIT, HIT_AT = range(16, 22)
# Limits of `advance`: a cycle; and numbers of waiting reads, of waiting writes, and of requests left.
UNTIL, READS_BELOW, WRITES_BELOW, LEFT_BELOW = range(22, 26)
# Index of the oldest of the last four activates, and their cycles (tFAW).
FIRST_ACT, ACTS = 26, 27
# Counts since the beginning: column commands that were not the first of their row, then commands by kind.
COUNTED = 31
HITS, ACTIVATES, READ_BURSTS, WRITE_BURSTS, REFRESHED, CONFLICTS = range(COUNTED, COUNTED + 6)
# The earliest cycle of each of the five commands by constraints of the whole channel; ends at BANKS_ACTIVE.
NEAR = 37

# Registers of a bank besides its queue: its group, and the earliest cycle of each command.
IN_GROUP, BANK_NEAR = BANKS_OWN, BANKS_OWN + 1

_EVERY = -2
"""Stands for all banks, in place of one bank's number."""


class ControllerState(NamedTuple):
    """State of all channels, int64[channels, ...]: the channels, their groups with the earliest cycles of commands, and
    their banks.
    """

    channels: Numbers
    groups: Numbers
    banks: Numbers


def fresh(rules: Rules, channels: int, first_refresh: int) -> ControllerState:
    """The state of channels in which nothing has happened yet."""
    banks, groups = rules.banks, rules.banks // rules.group_banks
    m = np.zeros((channels, BANKS_ACTIVE + banks), np.int64)
    m[:, REFRESH_AT] = FAR if rules.refresh == NO_REFRESH else first_refresh
    m[:, NEXT] = m[:, REFRESH_AT]
    m[:, WAKE] = FAR
    m[:, LAST] = -1
    m[:, ACTS : ACTS + 4] = -FAR
    of_banks = np.zeros((channels, banks, QUEUE + 2 * rules.depth), np.int64)
    of_banks[..., [OPEN, READ_HIT, WRITE_HIT, FIRST_READ, LAST_READ, FIRST_WRITE, LAST_WRITE]] = -1
    of_banks[..., IN_GROUP] = np.arange(banks) // rules.group_banks
    return ControllerState(m, np.zeros((channels, groups, 5), np.int64), of_banks)


@inlined
def advance(
    rules: Rules, state: ControllerState, requests: Numbers, c: int, until: int, reads: int, writes: int, left: int
) -> bool:
    """Do all that a channel does before cycle `until`.

    It stops earlier as soon as fewer than `reads` reads wait, fewer than `writes` writes wait, or fewer than `left`
    requests are left. Returns whether it stopped earlier.
    """
    m = state.channels[c]
    m[UNTIL], m[READS_BELOW], m[WRITES_BELOW], m[LEFT_BELOW] = until, reads, writes, left
    return _go_on(rules, state, requests, c)


@part
def _go_on(rules: Rules, state: ControllerState, requests: Numbers, c: int) -> bool:
    """Go on to the limits stored in the channel; if they were arguments, each constant would be compiled separately."""
    m, groups, banks = state.channels[c], state.groups[c], state.banks[c]
    while not _enough(m):
        if m[NEXT] >= m[UNTIL]:
            return False
        if not _row_hits(rules, m, groups, banks, requests):
            _step(rules, m, groups, banks, requests)
    return True


@kernel
def _step(rules: Rules, m: Numbers, groups: Numbers, banks: Numbers, requests: Numbers) -> None:
    """Do all that the channel does in the cycle of its next event, and find the cycle of the event after that."""
    now = m[NEXT]
    m[HIT_BANKS] = 0
    if m[REFRESH_AT] <= now:
        m[REFRESH_AT] += rules.interval
        m[REFRESHES] += 1
        m[WAKE] = now
    if m[WAKE] <= now:
        m[WAKE] = _commands(rules, m, groups, banks, requests, now)
    coming, (b, more) = m[REFRESH_AT], take_one(rules, m, banks, requests)
    if b >= 0:
        held = _held(rules, m)
        if held != _EVERY and held != b:
            m[WAKE] = min(m[WAKE], _due(rules, m, groups[banks[b, IN_GROUP]], banks[b]))
        # The request that moves now may give its bank a command sooner than the search above knew.
        if more:
            coming = now + 1
    m[CLOCK] = now + 1
    m[NEXT] = max(now + 1, min(m[WAKE], coming))


@inlined
def _commands(rules: Rules, m: Numbers, groups: Numbers, banks: Numbers, requests: Numbers, now: int) -> int:
    """Issue a command, and another one for the other bus if possible; return the first cycle for the next one."""
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
        is_column = bank[OPEN] >= 0 and not (bank[MAY_CLOSE] and _soonest(m, group, bank, PRE) <= now)
        if done and is_column == column:
            break
        if is_column:
            # The first read or write of the open row that may be issued now; the older one, if both may.
            read, write = bank[READ_HIT], bank[WRITE_HIT]
            reads = read >= 0 and _soonest(m, group, bank, RD) <= now
            writes = write >= 0 and _soonest(m, group, bank, WR) <= now
            first = WRITE_HIT if writes and not (reads and read < write) else READ_HIT
            m[HITTING] = _column(rules, m, groups, bank, requests, b, first, now)
        else:
            if bank[OPEN] < 0:
                bank[OPEN], bank[USED] = requests[bank[QUEUE + bank[HEAD]], ROW], 0
                m[ACTS + m[FIRST_ACT]] = now
                m[FIRST_ACT] = (m[FIRST_ACT] + 1) & 3
                m[ACTIVATES] += 1
                _follow(rules, m, group, bank, ACT, now)
            else:
                _precharge(rules, m, group, bank, now)
                m[CONFLICTS] += 1
            look(rules, bank, requests)
        done, column = True, is_column
    return now + 1


@inlined
def _held(rules: Rules, m: Numbers) -> int:
    """The bank that waits for a refresh; _EVERY for all banks, -1 for none."""
    if m[REFRESHES] == 0:
        return -1
    return _EVERY if rules.refresh == ALL_BANKS else int(m[REFRESH_BANK])


@inlined
def _search(rules: Rules, m: Numbers, groups: Numbers, banks: Numbers, now: int) -> int:
    """The first bank, after the one found last, that has a command to issue; -1, with WAKE set, if none has."""
    held = _held(rules, m)
    found, first, nearest = -1, FAR, 0
    for place in range(m[ACTIVE] if held != _EVERY else 0):
        b = m[BANKS_ACTIVE + place]
        bank = banks[b]
        # NOT_BEFORE bounds a bank's next command from below, so that a bank beyond the best cannot win.
        if bank[LENGTH] == 0 or b == held or bank[NOT_BEFORE] > first:
            continue
        bank[NOT_BEFORE] = _due(rules, m, groups[bank[IN_GROUP]], bank)
        when, turns = max(now, bank[NOT_BEFORE]), (b - m[TURN] - 1) & (rules.banks - 1)
        if when < first or (when == first and turns < nearest):
            found, first, nearest = b, when, turns
    if first <= now:
        m[TURN] = found
        return int(found)
    m[WAKE] = first
    return -1


@inlined
def _soonest(m: Numbers, group: Numbers, bank: Numbers, command: int) -> int:
    """The first cycle in which a command of a bank satisfies all earlier commands."""
    return int(max(bank[BANK_NEAR + command], group[command], m[NEAR + command]))


@part
def _due(rules: Rules, m: Numbers, group: Numbers, bank: Numbers) -> int:
    """The first cycle in which a bank, whose queue is not empty, has a command to issue."""
    # tFAW: the oldest of the last four activates must be `window` cycles ago.
    if bank[OPEN] < 0:
        return max(_soonest(m, group, bank, ACT), int(m[ACTS + m[FIRST_ACT]] + rules.window))
    when = FAR
    if bank[MAY_CLOSE]:
        when = _soonest(m, group, bank, PRE)
    if bank[READ_HIT] >= 0:
        when = min(when, _soonest(m, group, bank, RD))
    if bank[WRITE_HIT] >= 0:
        when = min(when, _soonest(m, group, bank, WR))
    return when


@inlined
def _precharge(rules: Rules, m: Numbers, group: Numbers, bank: Numbers, now: int) -> None:
    bank[OPEN], bank[NOT_BEFORE] = -1, 0
    _follow(rules, m, group, bank, PRE, now)


@inlined
def _follow(rules: Rules, m: Numbers, group: Numbers, bank: Numbers, command: int, now: int) -> None:
    """Delay all commands that must not follow a command too soon."""
    for later in range(5):
        _hold(bank, BANK_NEAR + later, now + rules.same_bank[command, later])
        _hold(group, later, now + rules.same_group[command, later])
        _hold(m, NEAR + later, now + rules.same_channel[command, later])


@inlined
def _hold(earliest: Numbers, command: int, until: int) -> None:
    earliest[command] = max(earliest[command], until)


@part
def _column(
    rules: Rules, m: Numbers, groups: Numbers, bank: Numbers, requests: Numbers,
    b: int, first: int, now: int,
) -> bool:  # fmt: skip
    """Issue the column command of the first read, or write, of a bank's open row; whether the next head is one, too."""
    position, write = bank[first], int(first == WRITE_HIT)
    request = bank[QUEUE + bank[HEAD] + position]
    m[QUEUED] -= 1
    m[LAST], m[MAY_MOVE] = now, 1
    m[HITS] += bank[USED] > 0
    bank[USED] += 1
    if rules.closed:
        bank[OPEN] = -1
    m[WRITE_BURSTS if write else READ_BURSTS] += 1
    done = now + (rules.write_cycles if write else rules.read_cycles)
    while request >= 0:
        requests[request, DONE] = done
        request = requests[request, MERGED]
    again = remove(rules, bank, requests, position, write)
    if bank[LENGTH] == 0 and bank[FIRST_READ] < 0 and bank[FIRST_WRITE] < 0:
        # The bank has no more work: the last active bank takes its place in the list.
        m[ACTIVE] -= 1
        place = BANKS_ACTIVE
        while m[place] != b:
            place += 1
        m[place] = m[BANKS_ACTIVE + m[ACTIVE]]
    _follow(rules, m, groups[bank[IN_GROUP]], bank, WR if write else RD, now)
    return again


@inlined
def _refresh(rules: Rules, m: Numbers, groups: Numbers, banks: Numbers, now: int) -> int:
    """Work on the waiting refresh; return the cycle of its next command, or `now` if one was just issued."""
    begin, count = (m[REFRESH_BANK], 1) if rules.refresh == PER_BANK else (0, rules.banks)
    closing, ready = FAR, 0
    for b in range(begin, begin + count):
        bank = banks[b]
        group = groups[bank[IN_GROUP]]
        # All banks must be closed, and ready, before the refresh itself.
        if bank[OPEN] >= 0:
            when = _soonest(m, group, bank, PRE)
            if when <= now:
                _precharge(rules, m, group, bank, now)
                return now
            closing = min(closing, when)
        ready = max(ready, _soonest(m, group, bank, REF))
    if closing < FAR or ready > now:
        return closing if closing < FAR else ready
    _follow(rules, m, groups[banks[begin, IN_GROUP]], banks[begin], REF, now)
    m[REFRESHED] += 1
    m[REFRESHES] -= 1
    m[REFRESH_BANK] = (m[REFRESH_BANK] + 1) % rules.banks
    return now


@inlined
def _row_hits(rules: Rules, m: Numbers, groups: Numbers, banks: Numbers, requests: Numbers) -> bool:
    """Serve row hits while the heads of queues read, or write, open rows and it is not `_enough`.

    The cycles are those of `_step`, but there is less to look at. Returns whether anything was done.
    """
    if not m[HITTING] or m[REFRESHES] or not m[DISTINCT] or rules.closed:
        return False
    if m[HIT_BANKS] == 0:
        _find(rules, m, groups, banks)
    count, write, others = m[HIT_BANKS], m[HIT_WRITES] > 0, m[OTHERS_DUE]
    first = WRITE_HIT if write else READ_HIT
    command, limit = WR if write else RD, min(m[UNTIL], others, m[REFRESH_AT])
    # If another command could follow in the same cycle, one search would not be enough.
    alone = rules.same_channel[command, command] > 0 and rules.same_bank[command, PRE] > 0
    if count == 0 or m[NEXT] >= limit or not alone:
        m[HITTING] = 0
        return False
    same, b, when = True, m[NEXT_HIT], m[HIT_AT]
    while same and m[NEXT] < limit and not _enough(m):
        now = m[NEXT]
        if when <= now:
            m[TURN] = b
            same = _column(rules, m, groups, banks[b], requests, b, first, now)
            b, when = _next(rules, m, groups, banks, count, command, now + 1)
        coming, (moved, more) = m[REFRESH_AT], take_one(rules, m, banks, requests)
        if moved >= 0:
            # The fast path is valid only if the request changes nothing about the bank's next command.
            bank = banks[moved]
            same = same and bank[LENGTH] > 1 and (bank[OPEN] < 0 or _heads(bank, write))
            coming = now + 1 if more else coming
        m[CLOCK] = now + 1
        m[WAKE] = min(when, others) if same else now + 1
        m[NEXT] = max(now + 1, min(m[WAKE], coming))
    if not same:
        m[HIT_BANKS] = 0
    m[NEXT_HIT], m[HIT_AT] = b, when
    return True


@inlined
def _enough(m: Numbers) -> bool:
    """Whether a channel has as few requests left as it should stop at."""
    left = m[READS] + m[WRITES] + m[QUEUED]
    return bool((m[READS] < m[READS_BELOW]) | (m[WRITES] < m[WRITES_BELOW]) | (left < m[LEFT_BELOW]))


@inlined
def _find(rules: Rules, m: Numbers, groups: Numbers, banks: Numbers) -> None:
    """Find the banks whose heads are reads, or writes, of their open row, and the cycle in which others have work."""
    count, write, others = 0, False, FAR
    for place in range(m[ACTIVE]):
        b = m[BANKS_ACTIVE + place]
        bank = banks[b]
        if bank[LENGTH] == 0:
            continue
        if count == 0:
            write = bank[WRITE_HIT] == 0
        if bank[OPEN] >= 0 and _heads(bank, write):
            m[BANKS_ACTIVE + place] = m[BANKS_ACTIVE + count]
            m[BANKS_ACTIVE + count] = b
            count += 1
        else:
            others = min(others, _due(rules, m, groups[bank[IN_GROUP]], bank))
    m[HIT_BANKS], m[HIT_WRITES], m[OTHERS_DUE] = count, write, others
    m[NEXT_HIT], m[HIT_AT] = _next(rules, m, groups, banks, count, WR if write else RD, m[NEXT])


@inlined
def _heads(bank: Numbers, write: bool) -> bool:
    """Whether the head of a bank's queue hits its open row and is of the given kind, without a hit of the
    other kind.
    """
    return bool(
        (bank[WRITE_HIT] == 0 and bank[READ_HIT] < 0) if write else (bank[READ_HIT] == 0 and bank[WRITE_HIT] < 0)
    )


@inlined
def _next(
    rules: Rules, m: Numbers, groups: Numbers, banks: Numbers, count: int, command: int, now: int
) -> tuple[int, int]:
    """The next bank with a hit, from cycle `now` on, and its cycle; FAR if none has a command queued."""
    found, first, nearest = -1, FAR, 0
    for place in range(count):
        b = m[BANKS_ACTIVE + place]
        bank = banks[b]
        if bank[LENGTH] == 0:
            continue
        when = max(now, _soonest(m, groups[bank[IN_GROUP]], bank, command))
        turns = (b - m[TURN] - 1) & (rules.banks - 1)
        if when < first or (when == first and turns < nearest):
            found, first, nearest = b, when, turns
    return found, first
