"""The clocked model: a DRAM whose controllers are simulated cycle by cycle.

    memory = Clocked(device)
    transfer = memory.offer(addresses, write=False)
    while not transfer.finished:
        memory.clock()          # one cycle of the memory's own clock
    transfer.accepted, transfer.done

Transfers are accepted in the order in which they are offered, each once the one before is accepted completely;
the same transfers with the same starts have the same cycles in `OnePassDram`. This model is the witness of the one-pass
model, and shares with it only the device and the requests (`rules`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tpusim.base.errors import InputError
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.rules import (
    ACCEPTED,
    ACT,
    ALL_BANKS,
    BANK,
    BURST,
    CHANNEL,
    DONE,
    FINAL,
    MODELS_OWN,
    NO_REFRESH,
    PER_BANK,
    PRE,
    RD,
    REF,
    REQUEST_SIZE,
    ROW,
    TIME,
    WR,
    WRITE,
    Counts,
    Numbers,
    RequestedBursts,
    Rules,
    ServedRequests,
    inlined,
    kernel,
    part,
    transfer,
)

# Fields of a request, here a row: its transfer; and another request that its column command also serves, or -1.
TRANSFER, ALSO = MODELS_OWN, MODELS_OWN + 1
# Registers of a bank: its open row or -1, accesses to that row, commands in its queue.
OPEN, USED, LENGTH = range(3)
# Registers of a channel: the bank found last; refreshes that wait, and the next bank to refresh; writes still to drain;
# the transfer being served; the cycle of the last column command; the last transfer whose requests are all here;
# activates.
TURN, REFRESHES, REFRESH_BANK, DRAIN, SERVED, LAST, COMPLETE, ACTIVATES = range(8)
# Waiting requests, reads then writes; and those of them that belong to the transfer being accepted.
LENGTHS, OWN = 8, 10
# Counts of commands: row hits, activates, reads, writes, refreshes, conflicts. Then the last four activates (tFAW).
COUNTS, ACTS, CELLS = 12, 18, 22
# A transfer on its way: its earliest cycle; its requests, from the first to past the last; the next of them, and the
# number of earlier ones that are held back.
START, BEGIN, PAST, UPCOMING, HELD = range(5)
# Registers of the whole DRAM: the next cycle; the cycle of the first refresh; transfers offered so far; the number of
# the transfer being accepted, and its index among those on their way.
NOW, FIRST_REFRESH, OFFERED, ACCEPTING, AT = range(5)


class ControllerArrays(NamedTuple):
    """Registers of the controllers, int64. All arrays but `requests` are by channel; `m` holds those of one channel.

    `banks` and `earliest` are by bank; `earliest` has the cycle from which each command is allowed; `queues` by
    bank and `waiting` (reads, then writes) hold requests, the oldest first.
    """

    cells: Numbers
    banks: Numbers
    earliest: Numbers
    queues: Numbers
    waiting: Numbers
    requests: Numbers


class Registers(NamedTuple):
    """All registers of a DRAM, for compiled loops: the rules as a plain tuple, which is much faster to pass; registers
    of the whole DRAM; the transfers on their way; working space; and the `ControllerArrays`.
    """

    rules: tuple[Any, ...]
    whole: Numbers
    transfers: Numbers
    window: Numbers
    cells: Numbers
    banks: Numbers
    earliest: Numbers
    queues: Numbers
    waiting: Numbers
    requests: Numbers

    @classmethod
    def none(cls) -> Registers:
        """Registers of no DRAM, of the same types."""
        rules = (*[0] * 6, False, *[0] * 8, *np.zeros((3, 5, 5), np.int64))
        line, table, block = (np.zeros((1,) * dimensions, np.int64) for dimensions in (1, 2, 3))
        return cls(rules, line, table, line, table, block, block, block, block, table)


class OfferedTransfer:
    """A transfer on its way: `accepted` and `done` are memory cycles, int64[n], -1 while they are unknown.

    The cycle in which data is done is known once its column command is issued.
    """

    def __init__(self, rows: Numbers, begin: int) -> None:
        """`rows` are its requests; the first of them is number `begin` among all requests on their way."""
        self.begin, self.past = begin, begin + len(rows)
        self.rows, self._finished = rows, False

    @property
    def accepted(self) -> Numbers:
        """Cycle in which each request was accepted."""
        return self.rows[:, ACCEPTED]

    @property
    def done(self) -> Numbers:
        """Cycle in which the data of each request has arrived, or is in the DRAM."""
        return self.rows[:, DONE]

    @property
    def times(self) -> Numbers:
        """Earliest cycle of each request; it may be changed, in order, until that cycle has come."""
        return self.rows[:, TIME]

    @property
    def finished(self) -> bool:
        """Whether every cycle is known."""
        if not self._finished:
            done = self.done
            # The last request is seldom known before the others, so it is looked at first.
            self._finished = not len(done) or bool(done[-1] >= 0 and (done >= 0).all())
        return self._finished


class ClockedDram:
    """A DRAM, fresh at cycle 0 and clocked from there; `now` is the next cycle.

    The first refresh is due in cycle `first_refresh`, or tREFI. `requested` has the number of bursts that
    transfers have asked for.
    """

    def __init__(self, device: Device, first_refresh: int | None = None) -> None:
        self.requested = RequestedBursts()
        self._rules = r = Rules.of(device)
        self._mapping = device.addresses()
        due = r.interval if first_refresh is None else first_refresh
        self._whole = np.array([0, due, 0, -1, 0])
        channels, banks = device.channels, r.banks
        by_bank = channels, banks
        sizes = (channels, CELLS), (*by_bank, 3), (*by_bank, 5), (*by_bank, r.depth), (channels, 2, 0)
        self._every = ControllerArrays(*(np.zeros(size, np.int64) for size in (*sizes, (0, REQUEST_SIZE))))
        self._every.cells[:, [LAST, COMPLETE]] = -1
        self._every.banks[:, :, OPEN] = -1
        self._window = np.zeros(r.lookahead, np.int64)
        # The transfers on their way.
        self._live: list[OfferedTransfer] = []
        self._transfers = np.zeros((0, HELD + 1), np.int64)

    def offer(
        self, addresses: ArrayLike, write: ArrayLike = False, start: int = 0, times: ArrayLike | None = None
    ) -> OfferedTransfer:
        """Hand over one transfer, in the form of `OnePassDram.serve`; its requests are accepted from the next cycle on.

        Raises InputError, see `rules.transfer`.
        """
        rows, _, writes, busiest = transfer(self._mapping, addresses, write, times)
        self.requested = self.requested.and_also(len(rows), writes, busiest)
        waiting, requests = self._every.waiting, self._every.requests
        if all(each.finished for each in self._live):
            for each in self._live:
                # The rows are copied, because requests of other transfers will take their place.
                each.rows = each.rows.copy()
            self._live, requests, self._transfers = [], requests[:0], self._transfers[:0]
            self._whole[AT] = 0
        rows[:, TRANSFER], rows[:, ALSO] = self._whole[OFFERED], -1
        offered = OfferedTransfer(rows, len(requests))
        self._live.append(offered)
        self._whole[OFFERED] += 1
        requests = np.concatenate([requests, rows])
        begins = (start, offered.begin, offered.past, offered.begin, 0)
        self._transfers = np.concatenate([self._transfers, [begins]])
        for each in self._live:
            each.rows = requests[each.begin : each.past]
        room = max(0, len(self._live) * self._rules.waiting - waiting.shape[2])
        waiting = np.pad(waiting, [(0, 0), (0, 0), (0, room)])
        self._every = self._every._replace(waiting=waiting, requests=requests)
        return offered

    @property
    def now(self) -> int:
        """The next cycle."""
        return int(self._whole[NOW])

    @property
    def registers(self) -> Registers:
        """All registers, for loops that call `clock_cycles` by themselves; an offer replaces some of them."""
        return Registers(tuple(self._rules), self._whole, self._transfers, self._window, *self._every)

    def clock(self, cycles: int = 1) -> None:
        """Advance by some cycles: in each, requests are accepted, then every channel issues its commands."""
        clock_cycles(self.registers, cycles)

    def serve(
        self, addresses: ArrayLike, write: ArrayLike = False, start: int = 0, times: ArrayLike | None = None
    ) -> ServedRequests:
        """Serve one transfer, cycle by cycle, to its last column command. Raises InputError for a past start."""
        if start < self.now and self.now:
            raise InputError(f"cycle {start} is over, the next one is {self.now}; offer transfers before they overlap")
        offered = self.offer(addresses, write, start, times)
        while not offered.finished:
            self.clock()
        return ServedRequests(offered.accepted.copy(), offered.done.copy())

    def counts(self) -> Counts:
        """Counts of the events in each channel."""
        return Counts(*self._every.cells[:, COUNTS : COUNTS + len(Counts._fields)].T.copy())


@kernel
def clock_cycles(registers: Registers, cycles: int) -> None:
    """Advance by `cycles`: in each, requests of the `transfers` are accepted, then every channel has its cycle."""
    rules, whole, transfers, window = Rules(*registers.rules), registers.whole, registers.transfers, registers.window
    every = ControllerArrays(
        registers.cells, registers.banks, registers.earliest, registers.queues, registers.waiting, registers.requests
    )
    for _ in range(cycles):
        _accept_all(rules, whole, transfers, window, every)
        now, first = whole[NOW], whole[FIRST_REFRESH]
        due = rules.refresh != NO_REFRESH and now >= first and (now - first) % rules.interval == 0
        for c in range(len(every.cells)):
            m = _channel(every, c)
            m.cells[REFRESHES] += due
            # A channel has a row bus and a column bus: after the first ready command, the next one may go out if it
            # uses the other.
            issued, column = int(m.cells[REFRESHES] > 0 and _refresh(rules, m, now)), False
            while issued < 2:
                b, position, command = _search(rules, m, now)
                if b < 0 or (issued == 1 and (command >= RD) == column):
                    break
                _issue(rules, m, b, position, command, now)
                issued, column = issued + 1, command >= RD
            _take_one(rules, m, now, whole[ACCEPTING])
        whole[NOW] += 1


@inlined
def _channel(every: ControllerArrays, c: int) -> ControllerArrays:
    """The arrays of a channel, without their first axis."""
    return ControllerArrays(
        every.cells[c], every.banks[c], every.earliest[c], every.queues[c], every.waiting[c], every.requests
    )


@part
def _search(rules: Rules, m: ControllerArrays, now: int) -> tuple[int, int, int]:
    """Find the first bank, after the one found last, with a ready command: (bank, entry of its queue, command), or
    -1s.
    """
    # The search begins behind the bank served last, so that no bank starves.
    b = m.cells[TURN]
    for _ in range(rules.banks):
        b = b + 1 if b + 1 < rules.banks else 0
        if m.banks[b, LENGTH] == 0:
            continue
        refreshed = m.cells[REFRESHES] > 0 and (rules.refresh == ALL_BANKS or m.cells[REFRESH_BANK] == b)
        for position in range(0 if refreshed else m.banks[b, LENGTH]):
            command = _needed(rules, m, b, position)
            if command < 0 or now < m.earliest[b, command]:
                continue
            # tFAW: no more than four activates in any such window, which ACTS keeps.
            if command == ACT and m.cells[ACTIVATES] >= 4 and now < m.cells[ACTS] + rules.window:
                continue
            m.cells[TURN] = b
            return b, position, command
    return -1, -1, -1


@part
def _needed(rules: Rules, m: ControllerArrays, b: int, position: int) -> int:
    """The command that an entry of a queue needs next; -1 if it must wait."""
    row, is_open = m.requests[m.queues[b, position], ROW], m.banks[b, OPEN]
    if is_open == row:
        return WR if m.requests[m.queues[b, position], WRITE] else RD
    if is_open < 0:
        return ACT
    # Only the oldest entry may close a row, so that younger ones cannot starve it.
    if position > 0:
        return -1
    hits = False
    for other in range(m.banks[b, LENGTH]):
        hits = hits or m.requests[m.queues[b, other], ROW] == is_open
    return -1 if hits and m.banks[b, USED] < rules.row_hits else PRE


@part
def _issue(rules: Rules, m: ControllerArrays, b: int, position: int, command: int, now: int) -> None:
    """Issue the command that an entry of a bank's queue needs."""
    request = m.queues[b, position]
    _constrain(rules, m, b, command, now)
    if command == ACT:
        m.banks[b, OPEN], m.banks[b, USED] = m.requests[request, ROW], 0
        for place in range(ACTS, ACTS + 3):
            m.cells[place] = m.cells[place + 1]
        m.cells[ACTS + 3] = now
        m.cells[ACTIVATES] += 1
        m.cells[COUNTS + 1] += 1
    elif command == PRE:
        m.banks[b, OPEN] = -1
        m.cells[COUNTS + 5] += 1
    else:
        # A row hit is any access but the first since the row was opened.
        m.cells[COUNTS] += m.banks[b, USED] > 0
        m.cells[COUNTS + (3 if command == WR else 2)] += 1
        m.banks[b, USED] += 1
        if rules.closed:
            m.banks[b, OPEN] = -1
        for place in range(position, m.banks[b, LENGTH] - 1):
            m.queues[b, place] = m.queues[b, place + 1]
        m.banks[b, LENGTH] -= 1
        m.cells[LAST] = now
        # Requests that came for a pending burst are served with it.
        while request >= 0:
            m.requests[request, DONE] = now + (rules.write_cycles if command == WR else rules.read_cycles)
            request = m.requests[request, ALSO]


@part
def _constrain(rules: Rules, m: ControllerArrays, b: int, command: int, now: int) -> None:
    """Delay every command of every bank that must not follow this one too soon."""
    group = b // rules.group_banks
    for other in range(rules.banks):
        same_group = other // rules.group_banks == group
        for later in range(5):
            # The same bank lies in the same group, and that in the same channel: the longest gap holds.
            gap = rules.same_channel[command, later]
            if same_group:
                gap = max(gap, rules.same_group[command, later])
            if other == b:
                gap = max(gap, rules.same_bank[command, later])
            if gap:
                m.earliest[other, later] = max(m.earliest[other, later], now + gap)


@part
def _refresh(rules: Rules, m: ControllerArrays, now: int) -> bool:
    """Close an open bank among those to be refreshed, or refresh them; return whether a command was issued."""
    ready = True
    for b in range(rules.banks):
        if rules.refresh == PER_BANK and b != m.cells[REFRESH_BANK]:
            continue
        if m.banks[b, OPEN] < 0:
            ready = ready and now >= m.earliest[b, REF]
        elif now >= m.earliest[b, PRE]:
            _constrain(rules, m, b, PRE, now)
            m.banks[b, OPEN] = -1
            return True
        else:
            ready = False
    if ready:
        _constrain(rules, m, m.cells[REFRESH_BANK] if rules.refresh == PER_BANK else 0, REF, now)
        m.cells[COUNTS + 4] += 1
        m.cells[REFRESHES] -= 1
        m.cells[REFRESH_BANK] = (m.cells[REFRESH_BANK] + 1) % rules.banks
    return ready


@part
def _accept_all(rules: Rules, whole: Numbers, transfers: Numbers, window: Numbers, every: ControllerArrays) -> None:
    """Accept requests in this cycle: the rest of a transfer, then the beginning of the next ones."""
    taken, now = 0, whole[NOW]
    while whole[AT] < len(transfers) and taken < rules.per_cycle:
        coming = transfers[whole[AT]]
        if coming[START] > now:
            return
        # The channels count the requests of one transfer: a new one begins with zeros.
        number = whole[OFFERED] - len(transfers) + whole[AT]
        if number != whole[ACCEPTING]:
            whole[ACCEPTING] = number
            every.cells[:, OWN : OWN + 2] = 0
        taken = _accept(rules, coming, window, every, taken, now)
        if coming[HELD] or coming[UPCOMING] < coming[PAST]:
            return
        whole[AT] += 1


@part
def _accept(rules: Rules, coming: Numbers, window: Numbers, every: ControllerArrays, taken: int, now: int) -> int:
    """Accept requests of a transfer in this cycle; return the number accepted in the cycle so far.

    The oldest requests are those held in `window`, then the upcoming ones.
    """
    flying, held, upcoming, begin, past = 0, coming[HELD], coming[UPCOMING], coming[BEGIN], coming[PAST]
    for request in range(begin, upcoming if rules.outstanding else begin):
        read = every.requests[request, ACCEPTED] >= 0 and not every.requests[request, WRITE]
        flying += read and (every.requests[request, DONE] < 0 or every.requests[request, DONE] >= now)
    while held < len(window) and upcoming < past:
        window[held] = upcoming
        held, upcoming = held + 1, upcoming + 1
    place = 0
    while place < held and taken < rules.per_cycle:
        request = window[place]
        c, kind = every.requests[request, CHANNEL], every.requests[request, WRITE]
        limited = kind == 0 and 0 < rules.outstanding <= flying
        if limited or every.requests[request, TIME] > now or every.cells[c, OWN + kind] >= rules.waiting:
            place += 1
            continue
        every.requests[request, ACCEPTED] = now
        m = _channel(every, c)
        if m.requests[request, FINAL]:
            m.cells[COMPLETE] = m.requests[request, TRANSFER]
        other = _pending(m, request, kind)
        # A read of data that is still to be written is served from the write queue.
        if kind == 0 and _pending(m, request, 1) >= 0:
            m.requests[request, DONE] = now + 1
        elif other >= 0:
            m.requests[request, ALSO] = m.requests[other, ALSO]
            m.requests[other, ALSO] = request
        else:
            m.waiting[kind, m.cells[LENGTHS + kind]] = request
            m.cells[LENGTHS + kind] += 1
            m.cells[OWN + kind] += 1
        taken, flying = taken + 1, flying + (kind == 0)
        for behind in range(place, held - 1):
            window[behind] = window[behind + 1]
        held -= 1
        if upcoming < past:
            window[held] = upcoming
            held, upcoming = held + 1, upcoming + 1
    coming[HELD], coming[UPCOMING] = held, upcoming
    return taken


@part
def _pending(m: ControllerArrays, request: int, kind: int) -> int:
    """A request of the same transfer that will read or write the same burst by a command of its own; -1 for none."""
    b = m.requests[request, BANK]
    queued = m.banks[b, LENGTH]
    for place in range(queued + m.cells[LENGTHS + kind]):
        one = m.queues[b, place] if place < queued else m.waiting[kind, place - queued]
        same = m.requests[one, BURST] == m.requests[request, BURST] and m.requests[one, WRITE] == kind
        if same and m.requests[one, TRANSFER] == m.requests[request, TRANSFER]:
            return int(one)
    return -1


@part
def _take_one(rules: Rules, m: ControllerArrays, now: int, accepting: int) -> None:
    """Move the oldest waiting request whose bank has room into the queue of its bank."""
    queued = 0
    for b in range(rules.banks):
        queued += m.banks[b, LENGTH]
    # A transfer is served once all commands of the one before are issued: queues empty, and a cycle after the last one.
    if queued == 0 and now > m.cells[LAST]:
        oldest = accepting
        for kind in range(2):
            if m.cells[LENGTHS + kind]:
                oldest = min(oldest, m.requests[m.waiting[kind, 0], TRANSFER])
        m.cells[SERVED] = oldest
    writes = 0
    for place in range(m.cells[LENGTHS + 1]):
        writes += m.requests[m.waiting[1, place], TRANSFER] == m.cells[SERVED]
    idle = queued == 0 and (writes > rules.idle_writes or m.cells[COMPLETE] >= m.cells[SERVED])
    if m.cells[DRAIN] == 0 and writes > 0 and (writes >= rules.waiting or idle):
        m.cells[DRAIN] = writes
    kind = 1 if m.cells[DRAIN] > 0 else 0
    place = _eligible(rules, m, kind)
    if kind == 1 and place >= 0:
        if _pending(m, m.waiting[1, place], 0) >= 0:
            m.cells[DRAIN], kind = 0, 0
            place = _eligible(rules, m, 0)
        else:
            m.cells[DRAIN] -= 1
    if place < 0:
        return
    request = m.waiting[kind, place]
    for behind in range(place, m.cells[LENGTHS + kind] - 1):
        m.waiting[kind, behind] = m.waiting[kind, behind + 1]
    m.cells[LENGTHS + kind] -= 1
    m.cells[OWN + kind] -= m.requests[request, TRANSFER] == accepting
    b = m.requests[request, BANK]
    m.queues[b, m.banks[b, LENGTH]] = request
    m.banks[b, LENGTH] += 1


@part
def _eligible(rules: Rules, m: ControllerArrays, kind: int) -> int:
    """Place of the oldest waiting request of the served transfer whose bank has room; -1 for none."""
    for place in range(m.cells[LENGTHS + kind]):
        request = m.waiting[kind, place]
        room = m.banks[m.requests[request, BANK], LENGTH] < rules.depth
        if room and m.requests[request, TRANSFER] == m.cells[SERVED]:
            return place
    return -1
