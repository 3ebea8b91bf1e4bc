"""The one-pass model of the requests that wait in a channel: which of them goes to the queue of its bank, and when.

`m`, `requests`, `at`, `first` and `size` are what they are in `events`.
"""

from __future__ import annotations

from tpusim.memory.dram.kernel import part
from tpusim.memory.dram.rules import DEPTH, IDLE_WRITES, ROW_HITS, WAITING, Numbers
from tpusim.memory.dram.state import (
    BANK_,
    BEHIND,
    BURST,
    BUSY,
    CLOCK,
    COMPLETE,
    DONE,
    DRAIN,
    FINAL,
    FIRST_READ,
    FIRST_WRITE,
    KIND,
    KINDS_OF_BURST,
    LAST_READ,
    LAST_WRITE,
    LENGTH,
    MAY_CLOSE,
    MERGED,
    NEXT,
    QUEUE,
    QUEUED,
    READ_HIT,
    READS,
    READY,
    ROW,
    ROW_,
    SEEN,
    USED,
    WAITING_READS,
    WAITING_WRITES,
    WAKE,
    WRITE,
    WRITE_HIT,
    WRITES,
)


@part
def look(rules: Numbers, m: Numbers, requests: Numbers, at: int) -> None:
    """Find out what a bank may do next; after its row has changed."""
    row, length = m[at + ROW], m[at + LENGTH]
    read = write = -1
    for position in range(length if row >= 0 else 0):
        request = m[at + QUEUE + position]
        if requests[request, ROW_] == row:
            if requests[request, WRITE]:
                write = position if write < 0 else write
            else:
                read = position if read < 0 else read
            if read >= 0 and write >= 0:
                break
    m[at + READ_HIT], m[at + WRITE_HIT] = read, write
    _may_close(rules, m, at)


@part
def _may_close(rules: Numbers, m: Numbers, at: int) -> None:
    """Whether the head of a bank's queue may close its row."""
    read, write, length = m[at + READ_HIT], m[at + WRITE_HIT], m[at + LENGTH]
    enough = (read < 0 and write < 0) or m[at + USED] >= rules[ROW_HITS]
    m[at + MAY_CLOSE] = length > 0 and enough and read != 0 and write != 0


@part
def _joined(rules: Numbers, m: Numbers, requests: Numbers, at: int, request: int) -> None:
    """The same as `look`, after a request has come to the end of a bank's queue."""
    hit = at + (WRITE_HIT if requests[request, WRITE] else READ_HIT)
    if m[at + ROW] >= 0 and requests[request, ROW_] == m[at + ROW] and m[hit] < 0:
        m[hit] = m[at + LENGTH] - 1
    _may_close(rules, m, at)


@part
def left(rules: Numbers, m: Numbers, requests: Numbers, at: int, position: int, write: int) -> None:
    """The same, after the first read or write of the open row has left its position in the queue."""
    hit, other = (at + WRITE_HIT, at + READ_HIT) if write else (at + READ_HIT, at + WRITE_HIT)
    m[other] -= m[other] > position
    m[hit] = -1
    for place in range(position, m[at + LENGTH] if m[at + ROW] >= 0 else 0):
        request = m[at + QUEUE + place]
        if requests[request, ROW_] == m[at + ROW] and requests[request, WRITE] == write:
            m[hit] = place
            break
    _may_close(rules, m, at)


@part
def take_one(rules: Numbers, m: Numbers, requests: Numbers, first: int, size: int, now: int) -> int:
    """Move the oldest waiting request whose bank has room into the queue of its bank; which bank, or -1."""
    writes = m[WRITES]
    idle = m[QUEUED] == 0 and (writes > rules[IDLE_WRITES] or m[COMPLETE] > 0)
    if m[DRAIN] == 0 and writes > 0 and (writes >= rules[WAITING] or idle):
        m[DRAIN] = writes
    request = -1
    if m[DRAIN] > 0:
        request = _oldest(m, m[WAITING_WRITES] & m[READY], first + FIRST_WRITE, size)
        if request >= 0 and pending(m, requests, request, 0, first, size) >= 0:
            m[DRAIN], request = 0, -1
    if m[DRAIN] == 0:
        request = _oldest(m, m[WAITING_READS] & m[READY], first + FIRST_READ, size)
    if request < 0:
        return -1
    b = requests[request, BANK_]
    _take(rules, m, requests, request, b, first + b * size)
    if (m[WAITING_READS] | m[WAITING_WRITES]) & m[READY]:
        m[WAKE] = min(m[WAKE], now + 1)
    return int(b)


@part
def _oldest(m: Numbers, banks: int, head: int, size: int) -> int:
    """The oldest request that waits for one of a set of banks, whose `head`s are `size` apart; -1 for none."""
    oldest, place = -1, head
    while banks:
        if banks & 1 and (oldest < 0 or m[place] < oldest):
            oldest = m[place]
        banks >>= 1
        place += size
    return oldest


@part
def _take(rules: Numbers, m: Numbers, requests: Numbers, request: int, b: int, at: int) -> None:
    behind = requests[request, BEHIND]
    if requests[request, WRITE]:
        m[WRITES] -= 1
        m[DRAIN] -= 1
        m[at + FIRST_WRITE] = behind
        if behind < 0:
            m[WAITING_WRITES] &= ~(1 << b)
    else:
        m[READS] -= 1
        m[at + FIRST_READ] = behind
        if behind < 0:
            m[WAITING_READS] &= ~(1 << b)
    m[at + QUEUE + m[at + LENGTH]] = request
    m[at + LENGTH] += 1
    m[BUSY] |= 1 << b
    m[QUEUED] += 1
    if m[at + LENGTH] == rules[DEPTH]:
        m[READY] &= ~(1 << b)
    _joined(rules, m, requests, at, request)


@part
def pending(m: Numbers, requests: Numbers, request: int, write: int, first: int, size: int) -> int:
    """The request with a column command of its own to come that reads, or writes, the same burst; -1 for none."""
    burst, at = requests[request, BURST], first + requests[request, BANK_] * size
    if m[SEEN + write * KINDS_OF_BURST + requests[request, KIND]] == 0:
        return -1
    for place in range(at + QUEUE, at + QUEUE + m[at + LENGTH]):
        if requests[m[place], BURST] == burst and requests[m[place], WRITE] == write:
            return int(m[place])
    other = m[at + (FIRST_WRITE if write else FIRST_READ)]
    while other >= 0 and requests[other, BURST] != burst:
        other = requests[other, BEHIND]
    return int(other)


@part
def take_in(m: Numbers, requests: Numbers, request: int, cycle: int, first: int, size: int) -> None:
    """What becomes of a request that is accepted: it waits, or one that is pending serves it too."""
    write, now = requests[request, WRITE], max(cycle, m[CLOCK])
    if requests[request, FINAL]:
        m[COMPLETE] = 1
        m[NEXT] = min(m[NEXT], now)
    if not write and pending(m, requests, request, 1, first, size) >= 0:
        requests[request, DONE] = cycle + 1
        return
    other = pending(m, requests, request, write, first, size)
    if other >= 0:
        requests[request, MERGED] = requests[other, MERGED]
        requests[other, MERGED] = request
    else:
        _wait(m, requests, request, now, first + requests[request, BANK_] * size)


@part
def _wait(m: Numbers, requests: Numbers, request: int, now: int, at: int) -> None:
    """Put a request behind those that wait for its bank."""
    write, b = requests[request, WRITE], requests[request, BANK_]
    first = at + (FIRST_WRITE if write else FIRST_READ)
    last = at + (LAST_WRITE if write else LAST_READ)
    if m[first] < 0:
        m[first] = request
        m[WAITING_WRITES if write else WAITING_READS] |= 1 << b
    else:
        requests[m[last], BEHIND] = request
    m[last] = request
    m[WRITES if write else READS] += 1
    m[SEEN + write * KINDS_OF_BURST + requests[request, KIND]] += 1
    if write or (m[READY] >> b) & 1:
        m[NEXT] = min(m[NEXT], now)
