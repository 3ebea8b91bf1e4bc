"""The clocked controller's queues: what is accepted in a cycle, and what moves on to the queue of its bank.

The arrays are those of `controller`.
"""

from __future__ import annotations

from tpusim.memory.dram.cells import (
    ACCEPTED,
    ACCEPTING,
    ALSO,
    AT,
    BANK,
    BEGIN,
    BURST,
    CHANNEL,
    COMPLETE,
    DONE,
    DRAIN,
    FINAL,
    HELD,
    IS_WRITE,
    LAST,
    LENGTH,
    LENGTHS,
    NOW,
    OFFERED,
    OWN,
    PAST,
    SERVED,
    START,
    TIME,
    TRANSFER,
    UPCOMING,
)
from tpusim.memory.dram.kernel import part
from tpusim.memory.dram.rules import BANKS, DEPTH, IDLE_WRITES, OUTSTANDING, PER_CYCLE, WAITING, Numbers


@part
def accept_all(
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
    """Accept what can be of a transfer's requests in this cycle; how many have then been in the cycle.

    The oldest are the first ones of `window`, as many as are held, then the upcoming ones.
    """
    flying, held, upcoming, begin, past = 0, coming[HELD], coming[UPCOMING], coming[BEGIN], coming[PAST]
    for request in range(begin, upcoming if rules[OUTSTANDING] else begin):
        read = requests[request, ACCEPTED] >= 0 and not requests[request, IS_WRITE]
        flying += read and (requests[request, DONE] < 0 or requests[request, DONE] >= now)
    while held < len(window) and upcoming < past:
        window[held] = upcoming
        held, upcoming = held + 1, upcoming + 1
    place = 0
    while place < held and taken < rules[PER_CYCLE]:
        request = window[place]
        c, kind = requests[request, CHANNEL], requests[request, IS_WRITE]
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
    """What becomes of a request that is accepted: it waits, or one that is pending serves it too."""
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
    """The request of the same transfer that will read, or write, the same burst by a command of its own; or -1."""
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
    return bool(same and requests[one, IS_WRITE] == kind)


@part
def take_one(
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
