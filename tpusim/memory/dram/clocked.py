"""The clocked model: a DRAM whose controllers do in every cycle what they do in that cycle.

    memory = Clocked(device)
    transfer = memory.offer(addresses, write=False)
    while not transfer.finished:
        memory.clock()          # one cycle of the memory's own clock
    transfer.accepted, transfer.done

Transfers are taken in the order in which they are offered, none before the one before has been accepted to the last;
the same transfers with the same starts give `OnePass` the same cycles. The model is the witness of the one-pass model,
with which it shares what a device is and what is asked of it (`rules`, `requests`), nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tpusim.base.errors import InputError
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.requests import (
    ACCEPTED,
    BANK,
    BURST,
    CHANNEL,
    DONE,
    FINAL,
    MODELS_OWN,
    REQUEST_SIZE,
    ROW,
    TIME,
    WRITE,
    Counts,
    Requested,
    Served,
    transfer,
)
from tpusim.memory.dram.rules import (
    ACT,
    ALL_BANKS,
    BANKS,
    CLOSED,
    DEPTH,
    GAPS,
    GROUP_BANKS,
    IDLE_WRITES,
    INTERVAL,
    LOOKAHEAD,
    NO_REFRESH,
    OUTSTANDING,
    PER_BANK,
    PER_CYCLE,
    PRE,
    RD,
    READ_CYCLES,
    REF,
    REFRESH,
    ROW_HITS,
    WAITING,
    WINDOW,
    WR,
    WRITE_CYCLES,
    Numbers,
    kernel,
    part,
    rules,
)

# A request, here a row: its transfer, and another request that its column command serves too, or -1.
TRANSFER, ALSO = MODELS_OWN, MODELS_OWN + 1
# Of a bank: its open row or -1, accesses to it, commands in its queue.
OPEN, USED, LENGTH = range(3)
# Of a channel: the bank found last; refreshes that wait, and the bank that is next; writes still to drain; the transfer
# being served; the cycle of the last column command; the last transfer all of whose requests are here; activates.
TURN, REFRESHES, REFRESH_BANK, DRAIN, SERVED, LAST, COMPLETE, ACTIVATES = range(8)
# How many requests wait, reads then writes; and how many of them are of the transfer that is being accepted.
LENGTHS, OWN = 8, 10
# What has been issued: row hits, activates, reads, writes, refreshes, conflicts. Then the last four activates.
COUNTS, ACTS, CELLS = 12, 18, 22
# A transfer on its way: the cycle before which it does not begin; its requests, from the first one to past the last;
# which of them comes next, and how many of those before it are held.
START, BEGIN, PAST, UPCOMING, HELD = range(5)
# The whole DRAM: the cycle that comes next; that of the first refresh; transfers offered so far; the number of the one
# that was last to be accepted from, and which of those on their way is.
NOW, FIRST_REFRESH, OFFERED, ACCEPTING, AT = range(5)


class Offered:
    """A transfer on its way: `accepted` and `done` are memory cycles, int64[n], -1 where they are not known yet.

    The cycle in which data is done is known as soon as its column command is issued.
    """

    def __init__(self, rows: Numbers, begin: int) -> None:
        """`rows` are its requests, the first of which is number `begin` of those on their way."""
        self.begin, self.past = begin, begin + len(rows)
        self._rows, self._finished = rows, False

    def stand_in(self, table: Numbers) -> None:
        """Read the answers from these requests of all transfers."""
        self._rows = table[self.begin : self.past]

    def leave(self) -> None:
        """Keep the answers: the requests of other transfers take the place of these."""
        self._rows = self._rows.copy()

    @property
    def accepted(self) -> Numbers:
        """When each request was accepted."""
        return self._rows[:, ACCEPTED]

    @property
    def done(self) -> Numbers:
        """When the data of each request is there, or in the DRAM."""
        return self._rows[:, DONE]

    @property
    def times(self) -> Numbers:
        """The cycle before which each is not accepted; may be set, in order, as long as that cycle has not come."""
        return self._rows[:, TIME]

    @property
    def finished(self) -> bool:
        """Whether every answer is known."""
        if not self._finished:
            done = self.done
            # The last is seldom known before others.
            self._finished = not len(done) or bool(done[-1] >= 0 and (done >= 0).all())
        return self._finished


class Clocked:
    """A DRAM, fresh at cycle 0 and clocked from there; `now` is the cycle that comes next.

    The first refresh is due in cycle `first_refresh`, tREFI where nothing is said. `requested` says how many bursts
    transfers have asked for.
    """

    def __init__(self, device: Device, first_refresh: int | None = None) -> None:
        self.now, self.requested = 0, Requested()
        self._rules = r = rules(device)
        self._mapping = device.addresses()
        due = int(r[INTERVAL]) if first_refresh is None else first_refresh
        self._whole = np.array([0, due, 0, -1, 0])
        channels, banks = device.channels, int(r[BANKS])
        self._cells = np.zeros((channels, CELLS), np.int64)
        self._cells[:, [LAST, COMPLETE]] = -1
        self._banks = np.zeros((channels, banks, 3), np.int64)
        self._banks[:, :, OPEN] = -1
        self._earliest = np.zeros((channels, banks, 5), np.int64)
        self._queues = np.zeros((channels, banks, int(r[DEPTH])), np.int64)
        self._waiting = np.zeros((channels, 2, 0), np.int64)
        self._requests = np.zeros((0, REQUEST_SIZE), np.int64)
        self._window = np.zeros(int(r[LOOKAHEAD]), np.int64)
        # The transfers on their way.
        self._live: list[Offered] = []
        self._transfers = np.zeros((0, HELD + 1), np.int64)

    def offer(
        self, addresses: ArrayLike, write: ArrayLike = False, start: int = 0, times: ArrayLike | None = None
    ) -> Offered:
        """Hand over one transfer, as `OnePass.serve` takes it; its requests are accepted from the next cycle on.

        Raises InputError, see `requests.transfer`.
        """
        rows = np.ascontiguousarray(transfer(self._mapping, addresses, write, times)[0].T)
        busiest = np.bincount(rows[:, CHANNEL]).max(initial=0)
        self.requested = self.requested.and_also(len(rows), int(busiest))
        if all(each.finished for each in self._live):
            for each in self._live:
                each.leave()
            self._live, self._requests, self._transfers = [], self._requests[:0], self._transfers[:0]
            self._whole[AT] = 0
        rows[:, TRANSFER], rows[:, ALSO] = self._whole[OFFERED], -1
        offered = Offered(rows, len(self._requests))
        self._live.append(offered)
        self._whole[OFFERED] += 1
        self._requests = np.concatenate([self._requests, rows])
        begins = (start, offered.begin, offered.past, offered.begin, 0)
        self._transfers = np.concatenate([self._transfers, [begins]])
        for each in self._live:
            each.stand_in(self._requests)
        room = len(self._live) * int(self._rules[WAITING]) - self._waiting.shape[2]
        self._waiting = np.pad(self._waiting, [(0, 0), (0, 0), (0, max(0, room))])
        return offered

    def clock(self, cycles: int = 1) -> None:
        """Go on by some cycles: in each, requests are accepted, then every channel issues its commands."""
        _clock_cycles(
            self._rules, self._whole, self._transfers, self._window, self._cells, self._banks, self._earliest,
            self._queues, self._waiting, self._requests, cycles,
        )  # fmt: skip
        self.now += cycles

    def serve(
        self, addresses: ArrayLike, write: ArrayLike = False, start: int = 0, times: ArrayLike | None = None
    ) -> Served:
        """Serve one transfer, cycle by cycle, to its last column command. Raises InputError for a past start."""
        if start < self.now and self.now:
            raise InputError(f"cycle {start} is over, the next one is {self.now}; offer transfers before they overlap")
        offered = self.offer(addresses, write, start, times)
        while not offered.finished:
            self.clock()
        return Served(offered.accepted.copy(), offered.done.copy())

    def counts(self) -> Counts:
        """What has happened in each channel."""
        return Counts(*self._cells[:, COUNTS : COUNTS + len(Counts._fields)].T.copy())


@kernel
def _clock_cycles(
    rules: Numbers, whole: Numbers, transfers: Numbers, window: Numbers, cells: Numbers, banks: Numbers,
    earliest: Numbers, queues: Numbers, waiting: Numbers, requests: Numbers, cycles: int,
) -> None:  # fmt: skip
    """Do what happens in `cycles`: in each, requests of the `transfers` on their way are accepted, then every channel
    has its cycle.

    `whole` is of the whole DRAM; `window` is room to work in. Other arrays are by channel `c`, then by bank `b`:
    `earliest` says for each command when what came before allows it; `queues` and `waiting` (reads, then writes) hold
    requests, the oldest first.
    """
    for _ in range(cycles):
        _accept_all(rules, whole, transfers, window, cells, banks, queues, waiting, requests)
        now, first = whole[NOW], whole[FIRST_REFRESH]
        due = rules[REFRESH] != NO_REFRESH and now >= first and (now - first) % rules[INTERVAL] == 0
        for c in range(len(cells)):
            cells[c, REFRESHES] += due
            _issue_two(rules, c, cells, banks, earliest, queues, requests, now)
            _take_one(rules, c, cells, banks, queues, waiting, requests, now, whole[ACCEPTING])
        whole[NOW] += 1


@part
def _issue_two(
    rules: Numbers, c: int, cells: Numbers, banks: Numbers, earliest: Numbers, queues: Numbers, requests: Numbers,
    now: int,
) -> None:  # fmt: skip
    """Issue the first command that is ready, and the next one that is if it is for the other bus."""
    issued, column = 0, False
    if cells[c, REFRESHES] > 0 and _refresh(rules, c, cells, banks, earliest, now):
        issued = 1
    while issued < 2:
        b, position, command = _search(rules, c, cells, banks, earliest, queues, requests, now)
        if b < 0 or (issued == 1 and (command >= RD) == column):
            break
        _issue(rules, c, b, position, command, cells, banks, earliest, queues, requests, now)
        issued, column = issued + 1, command >= RD


@part
def _search(
    rules: Numbers, c: int, cells: Numbers, banks: Numbers, earliest: Numbers, queues: Numbers, requests: Numbers,
    now: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Find the first bank, from the one found last, with a command ready: bank, entry of its queue, command; or -1."""
    b = cells[c, TURN]
    for _ in range(rules[BANKS]):
        b = b + 1 if b + 1 < rules[BANKS] else 0
        if banks[c, b, LENGTH] == 0:
            continue
        refreshed = cells[c, REFRESHES] > 0 and (rules[REFRESH] == ALL_BANKS or cells[c, REFRESH_BANK] == b)
        for position in range(0 if refreshed else banks[c, b, LENGTH]):
            command = _needed(rules, c, b, position, banks, queues, requests)
            if command < 0 or now < earliest[c, b, command]:
                continue
            if command == ACT and cells[c, ACTIVATES] >= 4 and now < cells[c, ACTS] + rules[WINDOW]:
                continue
            cells[c, TURN] = b
            return b, position, command
    return -1, -1, -1


@part
def _needed(rules: Numbers, c: int, b: int, position: int, banks: Numbers, queues: Numbers, requests: Numbers) -> int:
    """The command that an entry of a queue needs next; -1 where it must not have it yet."""
    row, is_open = requests[queues[c, b, position], ROW], banks[c, b, OPEN]
    if is_open == row:
        return WR if requests[queues[c, b, position], WRITE] else RD
    if is_open < 0:
        return ACT
    if position > 0:
        return -1
    hits = False
    for other in range(banks[c, b, LENGTH]):
        hits = hits or requests[queues[c, b, other], ROW] == is_open
    return -1 if hits and banks[c, b, USED] < rules[ROW_HITS] else PRE


@part
def _issue(
    rules: Numbers, c: int, b: int, position: int, command: int, cells: Numbers, banks: Numbers, earliest: Numbers,
    queues: Numbers, requests: Numbers, now: int,
) -> None:  # fmt: skip
    """Issue the command that an entry of a bank's queue needs."""
    request = queues[c, b, position]
    _constrain(rules, c, b, command, earliest, now)
    if command == ACT:
        banks[c, b, OPEN], banks[c, b, USED] = requests[request, ROW], 0
        for place in range(ACTS, ACTS + 3):
            cells[c, place] = cells[c, place + 1]
        cells[c, ACTS + 3] = now
        cells[c, ACTIVATES] += 1
        cells[c, COUNTS + 1] += 1
    elif command == PRE:
        banks[c, b, OPEN] = -1
        cells[c, COUNTS + 5] += 1
    else:
        cells[c, COUNTS] += banks[c, b, USED] > 0
        cells[c, COUNTS + (3 if command == WR else 2)] += 1
        banks[c, b, USED] += 1
        if rules[CLOSED]:
            banks[c, b, OPEN] = -1
        for place in range(position, banks[c, b, LENGTH] - 1):
            queues[c, b, place] = queues[c, b, place + 1]
        banks[c, b, LENGTH] -= 1
        cells[c, LAST] = now
        while request >= 0:
            requests[request, DONE] = now + rules[WRITE_CYCLES if command == WR else READ_CYCLES]
            request = requests[request, ALSO]


@part
def _constrain(rules: Numbers, c: int, b: int, command: int, earliest: Numbers, now: int) -> None:
    """Hold back every command of every bank that must not follow this one too soon."""
    group = b // rules[GROUP_BANKS]
    for other in range(rules[BANKS]):
        same_group = other // rules[GROUP_BANKS] == group
        for later in range(5):
            gap = rules[GAPS + 50 + 5 * command + later]
            if same_group:
                gap = max(gap, rules[GAPS + 25 + 5 * command + later])
            if other == b:
                gap = max(gap, rules[GAPS + 5 * command + later])
            if gap:
                earliest[c, other, later] = max(earliest[c, other, later], now + gap)


@part
def _refresh(rules: Numbers, c: int, cells: Numbers, banks: Numbers, earliest: Numbers, now: int) -> bool:
    """Close an open bank of those to be refreshed, or refresh them; whether a command was issued."""
    ready = True
    for b in range(rules[BANKS]):
        if rules[REFRESH] == PER_BANK and b != cells[c, REFRESH_BANK]:
            continue
        if banks[c, b, OPEN] < 0:
            ready = ready and now >= earliest[c, b, REF]
        elif now >= earliest[c, b, PRE]:
            _constrain(rules, c, b, PRE, earliest, now)
            banks[c, b, OPEN] = -1
            return True
        else:
            ready = False
    if ready:
        _constrain(rules, c, cells[c, REFRESH_BANK] if rules[REFRESH] == PER_BANK else 0, REF, earliest, now)
        cells[c, COUNTS + 4] += 1
        cells[c, REFRESHES] -= 1
        cells[c, REFRESH_BANK] = (cells[c, REFRESH_BANK] + 1) % rules[BANKS]
    return ready


@part
def _accept_all(
    rules: Numbers, whole: Numbers, transfers: Numbers, window: Numbers, cells: Numbers, banks: Numbers,
    queues: Numbers, waiting: Numbers, requests: Numbers,
) -> None:  # fmt: skip
    """Accept what can be in this cycle: the rest of a transfer, then the beginning of the next ones."""
    taken, now = 0, whole[NOW]
    while whole[AT] < len(transfers) and taken < rules[PER_CYCLE]:
        coming = transfers[whole[AT]]
        if coming[START] > now:
            return
        number = whole[OFFERED] - len(transfers) + whole[AT]
        if number != whole[ACCEPTING]:
            whole[ACCEPTING] = number
            cells[:, OWN : OWN + 2] = 0
        taken = _accept(rules, coming, window, cells, banks, queues, waiting, requests, taken, now)
        if coming[HELD] or coming[UPCOMING] < coming[PAST]:
            return
        whole[AT] += 1


@part
def _accept(
    rules: Numbers, coming: Numbers, window: Numbers, cells: Numbers, banks: Numbers, queues: Numbers, waiting: Numbers,
    requests: Numbers, taken: int, now: int,
) -> int:  # fmt: skip
    """Accept what can be of a transfer's requests in this cycle. Returns how many have then been accepted in it.

    The oldest requests are the first ones of `window`, as many as are held, then the upcoming ones.
    """
    flying, held, upcoming, begin, past = 0, coming[HELD], coming[UPCOMING], coming[BEGIN], coming[PAST]
    for request in range(begin, upcoming if rules[OUTSTANDING] else begin):
        read = requests[request, ACCEPTED] >= 0 and not requests[request, WRITE]
        flying += read and (requests[request, DONE] < 0 or requests[request, DONE] >= now)
    while held < len(window) and upcoming < past:
        window[held] = upcoming
        held, upcoming = held + 1, upcoming + 1
    place = 0
    while place < held and taken < rules[PER_CYCLE]:
        request = window[place]
        c, kind = requests[request, CHANNEL], requests[request, WRITE]
        limited = kind == 0 and 0 < rules[OUTSTANDING] <= flying
        if limited or requests[request, TIME] > now or cells[c, OWN + kind] >= rules[WAITING]:
            place += 1
            continue
        requests[request, ACCEPTED] = now
        _take_in(c, request, kind, cells, banks, queues, waiting, requests, now)
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
def _take_in(
    c: int, request: int, kind: int, cells: Numbers, banks: Numbers, queues: Numbers, waiting: Numbers,
    requests: Numbers, now: int,
) -> None:  # fmt: skip
    """Put a request that is accepted among those that wait, unless a pending request serves it too."""
    if requests[request, FINAL]:
        cells[c, COMPLETE] = requests[request, TRANSFER]
    if kind == 0 and _pending(c, request, 1, cells, banks, queues, waiting, requests) >= 0:
        requests[request, DONE] = now + 1
        return
    other = _pending(c, request, kind, cells, banks, queues, waiting, requests)
    if other >= 0:
        requests[request, ALSO] = requests[other, ALSO]
        requests[other, ALSO] = request
        return
    waiting[c, kind, cells[c, LENGTHS + kind]] = request
    cells[c, LENGTHS + kind] += 1
    cells[c, OWN + kind] += 1


@part
def _pending(
    c: int, request: int, kind: int, cells: Numbers, banks: Numbers, queues: Numbers, waiting: Numbers,
    requests: Numbers,
) -> int:  # fmt: skip
    """Find a request of the same transfer that will read or write the same burst by a command of its own; or -1."""
    b = requests[request, BANK]
    for place in range(banks[c, b, LENGTH]):
        if _same(requests, queues[c, b, place], request, kind):
            return int(queues[c, b, place])
    for place in range(cells[c, LENGTHS + kind]):
        if _same(requests, waiting[c, kind, place], request, kind):
            return int(waiting[c, kind, place])
    return -1


@part
def _same(requests: Numbers, one: int, other: int, kind: int) -> bool:
    same = requests[one, BURST] == requests[other, BURST] and requests[one, TRANSFER] == requests[other, TRANSFER]
    return bool(same and requests[one, WRITE] == kind)


@part
def _take_one(
    rules: Numbers, c: int, cells: Numbers, banks: Numbers, queues: Numbers, waiting: Numbers, requests: Numbers,
    now: int, accepting: int,
) -> None:  # fmt: skip
    """Move the oldest waiting request whose bank has room into the queue of its bank."""
    queued = 0
    for b in range(rules[BANKS]):
        queued += banks[c, b, LENGTH]
    if queued == 0 and now > cells[c, LAST]:
        cells[c, SERVED] = _oldest_transfer(c, cells, waiting, requests, accepting)
    writes = 0
    for place in range(cells[c, LENGTHS + 1]):
        writes += requests[waiting[c, 1, place], TRANSFER] == cells[c, SERVED]
    idle = queued == 0 and (writes > rules[IDLE_WRITES] or cells[c, COMPLETE] >= cells[c, SERVED])
    if cells[c, DRAIN] == 0 and writes > 0 and (writes >= rules[WAITING] or idle):
        cells[c, DRAIN] = writes
    kind = 1 if cells[c, DRAIN] > 0 else 0
    place = _eligible(rules, c, kind, cells, banks, waiting, requests)
    if kind == 1 and place >= 0:
        if _pending(c, waiting[c, 1, place], 0, cells, banks, queues, waiting, requests) >= 0:
            cells[c, DRAIN], kind = 0, 0
            place = _eligible(rules, c, 0, cells, banks, waiting, requests)
        else:
            cells[c, DRAIN] -= 1
    if place >= 0:
        _move(c, kind, place, cells, banks, queues, waiting, requests, accepting)


@part
def _oldest_transfer(c: int, cells: Numbers, waiting: Numbers, requests: Numbers, accepting: int) -> int:
    oldest = accepting
    for kind in range(2):
        if cells[c, LENGTHS + kind]:
            oldest = min(oldest, requests[waiting[c, kind, 0], TRANSFER])
    return oldest


@part
def _eligible(
    rules: Numbers, c: int, kind: int, cells: Numbers, banks: Numbers, waiting: Numbers, requests: Numbers
) -> int:
    """The place of the oldest waiting request of the transfer being served whose bank has room; or -1."""
    for place in range(cells[c, LENGTHS + kind]):
        request = waiting[c, kind, place]
        room = banks[c, requests[request, BANK], LENGTH] < rules[DEPTH]
        if room and requests[request, TRANSFER] == cells[c, SERVED]:
            return place
    return -1


@part
def _move(
    c: int, kind: int, place: int, cells: Numbers, banks: Numbers, queues: Numbers, waiting: Numbers,
    requests: Numbers, accepting: int,
) -> None:  # fmt: skip
    request = waiting[c, kind, place]
    for behind in range(place, cells[c, LENGTHS + kind] - 1):
        waiting[c, kind, behind] = waiting[c, kind, behind + 1]
    cells[c, LENGTHS + kind] -= 1
    cells[c, OWN + kind] -= requests[request, TRANSFER] == accepting
    b = requests[request, BANK]
    queues[c, b, banks[c, b, LENGTH]] = request
    banks[c, b, LENGTH] += 1
