"""The one-pass model of a channel: from event to event, each at the cycle in which the clocked controller has it.

Every function takes a channel `c`; `now` is the cycle of the event. What is said here and there is said once, with
reasons, in docs/memory.md.
"""

from __future__ import annotations

from tpusim.memory.dram.constraints import ACT, BANK, CHANNEL, GROUP, PRE, RD, REF, WR
from tpusim.memory.dram.kernel import kernel
from tpusim.memory.dram.rules import ALL_BANKS, FAR, PER_BANK
from tpusim.memory.dram.state import (
    ACTIVATES,
    BEHIND,
    CLOCK,
    COMPLETE,
    DRAIN,
    FIRST_ACT,
    FIRST_READ,
    FIRST_WRITE,
    HITS,
    LAST,
    LENGTH,
    MAY_CLOSE,
    MERGED,
    NEXT,
    PRECHARGES,
    QUEUED,
    READ_BURSTS,
    READ_HIT,
    READS,
    READY,
    REFRESH_AT,
    REFRESH_BANK,
    REFRESHED,
    REFRESHES,
    ROW,
    SEEN,
    TURN,
    USED,
    WAITING_READS,
    WAITING_WRITES,
    WAKE,
    WRITE_BURSTS,
    WRITE_HIT,
    WRITES,
    Channels,
    Transfer,
)


@kernel
def step(state: Channels, transfer: Transfer, c: int) -> None:
    """Do all that the channel does in the cycle of its next event, and find out when the one after that is."""
    channel = state.channel
    now = channel[c, NEXT]
    if channel[c, REFRESH_AT] <= now:
        channel[c, REFRESH_AT] += state.rules.interval
        channel[c, REFRESHES] += 1
        channel[c, WAKE] = now
    if channel[c, WAKE] <= now:
        channel[c, WAKE] = _commands(state, transfer, c, now)
    _take_one(state, transfer, c, now)
    channel[c, CLOCK] = now + 1
    channel[c, NEXT] = max(now + 1, min(channel[c, WAKE], channel[c, REFRESH_AT]))


@kernel
def _commands(state: Channels, transfer: Transfer, c: int, now: int) -> int:
    """Issue a command, and one for the other bus; when the next one may be issued."""
    refresh_wake = FAR
    if state.channel[c, REFRESHES]:
        refresh_wake = _refresh(state, c, now)
        if refresh_wake <= now:
            # A row command: the other bus may have a column command of a bank that is not refreshed.
            found = _search(state, c, now)
            if found >= 0 and _column(state, c, found, now):
                _issue(state, transfer, c, found, now)
            return now + 1
    found = _search(state, c, now)
    if found < 0:
        return min(refresh_wake, state.channel[c, WAKE])
    column = _column(state, c, found, now)
    _issue(state, transfer, c, found, now)
    found = _search(state, c, now)
    if found < 0:
        return min(refresh_wake, state.channel[c, WAKE])
    if _column(state, c, found, now) != column:
        _issue(state, transfer, c, found, now)
    return now + 1


@kernel
def _search(state: Channels, c: int, now: int) -> int:
    """The first bank, from the one after the last that was found, that has a command to issue; WAKE where none has."""
    banks, channel = state.rules.banks, state.channel
    held = _held(state, c)
    wake, b = FAR, channel[c, TURN]
    for _ in range(banks):
        b += 1
        if b >= banks:
            b = 0
        if state.bank[c, b, LENGTH] == 0 or held == ALL_OF_THEM or b == held:
            continue
        when = _due(state, c, b)
        if when <= now:
            channel[c, TURN] = b
            return b
        wake = min(wake, when)
    channel[c, WAKE] = wake
    return -1


ALL_OF_THEM = -2


@kernel
def _held(state: Channels, c: int) -> int:
    """The bank that waits for a refresh, ALL_OF_THEM, or -1 for none."""
    if state.channel[c, REFRESHES] == 0:
        return -1
    return ALL_OF_THEM if state.rules.refresh == ALL_BANKS else state.channel[c, REFRESH_BANK]


@kernel
def _soonest(state: Channels, c: int, b: int, command: int) -> int:
    """The first cycle in which a command obeys all that came before it."""
    g = b // state.rules.group
    return max(state.bank_near[c, b, command], state.group_near[c, g, command], state.near[c, command])


@kernel
def _due(state: Channels, c: int, b: int) -> int:
    """The first cycle in which the bank, whose queue is not empty, has a command to issue."""
    bank = state.bank
    if bank[c, b, ROW] < 0:
        window = state.acts[c, state.channel[c, FIRST_ACT]] + state.rules.activates
        return max(_soonest(state, c, b, ACT), window)
    when = FAR
    if bank[c, b, MAY_CLOSE]:
        when = _soonest(state, c, b, PRE)
    if bank[c, b, READ_HIT] >= 0:
        when = min(when, _soonest(state, c, b, RD))
    if bank[c, b, WRITE_HIT] >= 0:
        when = min(when, _soonest(state, c, b, WR))
    return when


@kernel
def _column(state: Channels, c: int, b: int, now: int) -> bool:
    """Whether what a bank is due to issue is a column command."""
    if state.bank[c, b, ROW] < 0:
        return False
    return not (state.bank[c, b, MAY_CLOSE] and _soonest(state, c, b, PRE) <= now)


@kernel
def _issue(state: Channels, transfer: Transfer, c: int, b: int, now: int) -> None:
    """Issue what a bank is due to issue."""
    bank = state.bank
    if bank[c, b, ROW] < 0:
        _activate(state, c, b, transfer.row[state.queue[c, b, 0]], now)
    elif not _column(state, c, b, now):
        _precharge(state, c, b, now)
    else:
        read, write = bank[c, b, READ_HIT], bank[c, b, WRITE_HIT]
        late = read >= 0 and _soonest(state, c, b, RD) > now
        early = write >= 0 and _soonest(state, c, b, WR) <= now
        if read < 0 or late or (early and write < read):
            _access(state, transfer, c, b, write, now)
        else:
            _access(state, transfer, c, b, read, now)
    look(state, transfer, c, b)


@kernel
def _follow(state: Channels, c: int, b: int, command: int, now: int) -> None:
    """Hold back what must not come too soon after a command."""
    gaps, g = state.rules.gaps, b // state.rules.group
    for later in range(5):
        for_bank, for_group, for_all = (gaps[BANK, command, later], gaps[GROUP, command, later],
                                        gaps[CHANNEL, command, later])  # fmt: skip
        if for_bank:
            state.bank_near[c, b, later] = max(state.bank_near[c, b, later], now + for_bank)
        if for_group:
            state.group_near[c, g, later] = max(state.group_near[c, g, later], now + for_group)
        if for_all:
            state.near[c, later] = max(state.near[c, later], now + for_all)


@kernel
def _activate(state: Channels, c: int, b: int, row: int, now: int) -> None:
    state.bank[c, b, ROW], state.bank[c, b, USED] = row, 0
    state.acts[c, state.channel[c, FIRST_ACT]] = now
    state.channel[c, FIRST_ACT] = (state.channel[c, FIRST_ACT] + 1) & 3
    state.counts[c, ACTIVATES] += 1
    _follow(state, c, b, ACT, now)


@kernel
def _precharge(state: Channels, c: int, b: int, now: int) -> None:
    state.bank[c, b, ROW] = -1
    state.counts[c, PRECHARGES] += 1
    _follow(state, c, b, PRE, now)


@kernel
def _access(state: Channels, transfer: Transfer, c: int, b: int, position: int, now: int) -> None:
    """Issue the column command of a queue's entry, and take it from the queue."""
    bank, channel = state.bank, state.channel
    request = state.queue[c, b, position]
    for place in range(position, bank[c, b, LENGTH] - 1):
        state.queue[c, b, place] = state.queue[c, b, place + 1]
    bank[c, b, LENGTH] -= 1
    channel[c, QUEUED] -= 1
    channel[c, READY] |= 1 << b
    channel[c, LAST] = now
    state.counts[c, HITS] += bank[c, b, USED] > 0
    bank[c, b, USED] += 1
    if state.rules.closed:
        bank[c, b, ROW] = -1
    write = transfer.write[request]
    state.counts[c, WRITE_BURSTS if write else READ_BURSTS] += 1
    state.seen[c, int(write), transfer.burst[request] % SEEN] -= 1
    done = now + (state.rules.writes if write else state.rules.reads)
    while request >= 0:
        transfer.done[request] = done
        request = transfer.links[request, MERGED]
    _follow(state, c, b, WR if write else RD, now)


@kernel
def look(state: Channels, transfer: Transfer, c: int, b: int) -> None:
    """Find out what a bank may do next; after every change of its row or its queue."""
    bank, row = state.bank, state.bank[c, b, ROW]
    read = write = -1
    length = bank[c, b, LENGTH]
    for position in range(length if row >= 0 else 0):
        request = state.queue[c, b, position]
        if transfer.row[request] == row:
            if transfer.write[request]:
                write = position if write < 0 else write
            else:
                read = position if read < 0 else read
            if read >= 0 and write >= 0:
                break
    bank[c, b, READ_HIT], bank[c, b, WRITE_HIT] = read, write
    none = read < 0 and write < 0
    may_close = length > 0 and (none or bank[c, b, USED] >= state.rules.row_hits) and read != 0 and write != 0
    bank[c, b, MAY_CLOSE] = may_close


@kernel
def _refresh(state: Channels, c: int, now: int) -> int:
    """Work at the refresh that is waiting; the cycle of its next command, `now` if it has just been issued."""
    one = state.rules.refresh == PER_BANK
    first = state.channel[c, REFRESH_BANK] if one else 0
    past = first + 1 if one else state.rules.banks
    closing, ready = FAR, 0
    for b in range(first, past):
        if state.bank[c, b, ROW] >= 0:
            when = _soonest(state, c, b, PRE)
            if when <= now:
                _precharge(state, c, b, now)
                return now
            closing = min(closing, when)
        ready = max(ready, _soonest(state, c, b, REF))
    if closing < FAR or ready > now:
        return closing if closing < FAR else ready
    _follow(state, c, first, REF, now)
    state.counts[c, REFRESHED] += 1
    state.channel[c, REFRESHES] -= 1
    state.channel[c, REFRESH_BANK] = (first + 1) % state.rules.banks
    return now


@kernel
def _take_one(state: Channels, transfer: Transfer, c: int, now: int) -> None:
    """Move the oldest waiting request whose bank has room into the queue of its bank."""
    channel = state.channel
    writes = channel[c, WRITES]
    idle = channel[c, QUEUED] == 0 and (writes > state.rules.idle_writes or channel[c, COMPLETE] > 0)
    if channel[c, DRAIN] == 0 and writes > 0 and (writes >= state.rules.waiting or idle):
        channel[c, DRAIN] = writes
    request, write = -1, channel[c, DRAIN] > 0
    if write:
        request = _oldest(state, c, channel[c, WAITING_WRITES] & channel[c, READY], FIRST_WRITE)
        if request >= 0 and _read_pending(state, transfer, c, request):
            channel[c, DRAIN] = 0
            write, request = False, -1
    if not write:
        request = _oldest(state, c, channel[c, WAITING_READS] & channel[c, READY], FIRST_READ)
    if request >= 0:
        _queue(state, transfer, c, request, write, now)


@kernel
def _oldest(state: Channels, c: int, banks: int, first: int) -> int:
    """The oldest request that waits for one of a set of banks; -1 for none."""
    oldest = -1
    b = 0
    while banks:
        if banks & 1:
            request = state.bank[c, b, first]
            if oldest < 0 or request < oldest:
                oldest = request
        banks >>= 1
        b += 1
    return oldest


@kernel
def _queue(state: Channels, transfer: Transfer, c: int, request: int, write: bool, now: int) -> None:
    bank, channel, b = state.bank, state.channel, transfer.bank[request]
    first, waiting = (FIRST_WRITE, WAITING_WRITES) if write else (FIRST_READ, WAITING_READS)
    channel[c, WRITES if write else READS] -= 1
    channel[c, DRAIN] -= write
    bank[c, b, first] = transfer.links[request, BEHIND]
    if bank[c, b, first] < 0:
        channel[c, waiting] &= ~(1 << b)
    length = bank[c, b, LENGTH]
    state.queue[c, b, length] = request
    bank[c, b, LENGTH] = length + 1
    channel[c, QUEUED] += 1
    if length + 1 == state.rules.depth:
        channel[c, READY] &= ~(1 << b)
    look(state, transfer, c, b)
    held = _held(state, c)
    if held != ALL_OF_THEM and held != b:
        channel[c, WAKE] = min(channel[c, WAKE], _due(state, c, b))
    if (channel[c, WAITING_READS] | channel[c, WAITING_WRITES]) & channel[c, READY]:
        channel[c, WAKE] = min(channel[c, WAKE], now + 1)


@kernel
def pending(state: Channels, transfer: Transfer, c: int, request: int, write: bool) -> int:
    """The request with a column command of its own to come that reads, or writes, the same burst; -1 for none."""
    burst, b = transfer.burst[request], transfer.bank[request]
    if state.seen[c, int(write), burst % SEEN] == 0:
        return -1
    for position in range(state.bank[c, b, LENGTH]):
        other = state.queue[c, b, position]
        if transfer.burst[other] == burst and transfer.write[other] == write:
            return other
    other = state.bank[c, b, FIRST_WRITE if write else FIRST_READ]
    while other >= 0 and transfer.burst[other] != burst:
        other = transfer.links[other, BEHIND]
    return other


@kernel
def _read_pending(state: Channels, transfer: Transfer, c: int, request: int) -> bool:
    return pending(state, transfer, c, request, False) >= 0
