"""The one-pass model of the requests that wait in a channel: which of them goes to the queue of its bank, and when.

`m`, `banks`, `bank` and `requests` are what they are in `events`.
"""

from __future__ import annotations

from tpusim.memory.dram.kernel import inlined, part
from tpusim.memory.dram.rules import DEPTH, FAR, IDLE_WRITES, ROW_HITS, WAITING, Numbers
from tpusim.memory.dram.state import (
    ACTIVE,
    BANK_,
    BANKS_ACTIVE,
    BEHIND,
    BURST,
    CLOCK,
    COMPLETE,
    DISTINCT,
    DONE,
    DRAIN,
    FINAL,
    FIRST_READ,
    FIRST_WRITE,
    HEAD,
    KIND,
    KINDS_OF_BURST,
    LAST_READ,
    LAST_WRITE,
    LENGTH,
    MAY_CLOSE,
    MAY_MOVE,
    MERGED,
    NEXT,
    NOT_BEFORE,
    QUEUE,
    QUEUED,
    READ_HIT,
    READS,
    ROW,
    ROW_,
    USED,
    WRITE,
    WRITE_HIT,
    WRITES,
)


@part
def look(rules: Numbers, bank: Numbers, requests: Numbers) -> None:
    """Find out what a bank may do next; after its row has changed."""
    row, head = bank[ROW], QUEUE + bank[HEAD]
    read = write = -1
    for position in range(bank[LENGTH] if row >= 0 else 0):
        request = bank[head + position]
        if requests[ROW_, request] == row:
            if requests[WRITE, request]:
                write = position if write < 0 else write
            else:
                read = position if read < 0 else read
            if read >= 0 and write >= 0:
                break
    bank[READ_HIT], bank[WRITE_HIT] = read, write
    _may_close(rules, bank)


@inlined
def _may_close(rules: Numbers, bank: Numbers) -> None:
    """See whether the head of a bank's queue may close its row; a command may then be due sooner than before."""
    read, write = bank[READ_HIT], bank[WRITE_HIT]
    enough = (read < 0 and write < 0) or bank[USED] >= rules[ROW_HITS]
    bank[MAY_CLOSE] = bank[LENGTH] > 0 and enough and read != 0 and write != 0
    bank[NOT_BEFORE] = 0


@inlined
def _append(rules: Numbers, bank: Numbers, requests: Numbers, request: int) -> None:
    """Put a request at the end of a bank's queue, and find out what the bank may do next."""
    length = bank[LENGTH]
    if bank[HEAD] + length == 2 * rules[DEPTH]:
        for place in range(QUEUE, QUEUE + length):
            bank[place] = bank[place + bank[HEAD]]
        bank[HEAD] = 0
    bank[QUEUE + bank[HEAD] + length] = request
    bank[LENGTH] = length + 1
    hit = WRITE_HIT if requests[WRITE, request] else READ_HIT
    if bank[ROW] >= 0 and requests[ROW_, request] == bank[ROW] and bank[hit] < 0:
        bank[hit] = length
    _may_close(rules, bank)


@part
def remove(rules: Numbers, bank: Numbers, requests: Numbers, position: int, write: int) -> bool:
    """Take the first read or write of the open row out of a bank's queue, and find out what the bank may do next.

    Returns whether its new head is of the open row, too, and of the same kind.
    """
    bank[LENGTH] -= 1
    if position == 0:
        bank[HEAD] += 1
    head = QUEUE + bank[HEAD]
    for place in range(head + position, head + bank[LENGTH] if position else 0):
        bank[place] = bank[place + 1]
    hit, other = (WRITE_HIT, READ_HIT) if write else (READ_HIT, WRITE_HIT)
    bank[other] -= bank[other] > position
    bank[hit] = -1
    for place in range(position, bank[LENGTH] if bank[ROW] >= 0 else 0):
        request = bank[head + place]
        if requests[ROW_, request] == bank[ROW] and requests[WRITE, request] == write:
            bank[hit] = place
            break
    _may_close(rules, bank)
    return bool(bank[hit] == 0)


@inlined
def idle(m: Numbers, bank: Numbers, b: int) -> None:
    """Forget a bank that has nothing more to do."""
    if bank[LENGTH] == 0 and bank[FIRST_READ] < 0 and bank[FIRST_WRITE] < 0:
        m[ACTIVE] -= 1
        place = BANKS_ACTIVE
        while m[place] != b:
            place += 1
        m[place] = m[BANKS_ACTIVE + m[ACTIVE]]


@part
def take_one(rules: Numbers, m: Numbers, banks: Numbers, seen: Numbers, requests: Numbers) -> tuple[int, bool]:
    """Move the oldest waiting request whose bank has room into the queue of its bank.

    Returns which bank, or -1; and whether another request then waits for a bank that has room.
    """
    if not m[MAY_MOVE]:
        return -1, False
    writes = m[WRITES]
    nothing = m[QUEUED] == 0 and (writes > rules[IDLE_WRITES] or m[COMPLETE] > 0)
    if m[DRAIN] == 0 and writes > 0 and (writes >= rules[WAITING] or nothing):
        m[DRAIN] = writes
    request, waiting = FAR, 0
    if m[DRAIN] > 0:
        request, waiting = _oldest(rules, m, banks, FIRST_WRITE)
        if request < FAR and pending(m, banks, seen, requests, request, 0) >= 0:
            m[DRAIN], request = 0, FAR
    if m[DRAIN] == 0 and m[READS] > 0:
        request, waiting = _oldest(rules, m, banks, FIRST_READ)
    if request == FAR:
        m[MAY_MOVE] = 0
        return -1, False
    b = requests[BANK_, request]
    bank = banks[b]
    _take(rules, m, bank, requests, request)
    return int(b), waiting > 1 or (_waits(bank) and bank[LENGTH] < rules[DEPTH])


@inlined
def _oldest(rules: Numbers, m: Numbers, banks: Numbers, first: int) -> tuple[int, int]:
    """The oldest of the requests, by bank the `first`, whose bank has room, FAR for none; how many banks with room have
    requests of either kind that wait.
    """
    oldest, waiting = FAR, 0
    for place in range(m[ACTIVE]):
        bank = banks[m[BANKS_ACTIVE + place]]
        request, has_room = bank[first], bank[LENGTH] < rules[DEPTH]
        waiting += has_room & _waits(bank)
        # No `and`: which banks wait cannot be foretold.
        if has_room & (request >= 0) & (request < oldest):
            oldest = request
    return oldest, waiting


@inlined
def _waits(bank: Numbers) -> bool:
    """Whether a request waits for a bank: the first read, or write, is not -1."""
    return bool((bank[FIRST_READ] & bank[FIRST_WRITE]) >= 0)


@inlined
def _take(rules: Numbers, m: Numbers, bank: Numbers, requests: Numbers, request: int) -> None:
    if requests[WRITE, request]:
        m[WRITES] -= 1
        m[DRAIN] -= 1
        bank[FIRST_WRITE] = requests[BEHIND, request]
    else:
        m[READS] -= 1
        bank[FIRST_READ] = requests[BEHIND, request]
    m[QUEUED] += 1
    _append(rules, bank, requests, request)


@inlined
def pending(m: Numbers, banks: Numbers, seen: Numbers, requests: Numbers, request: int, write: int) -> int:
    """The request with a column command of its own to come that reads, or writes, the same burst; -1 for none."""
    if m[DISTINCT] or seen[write * KINDS_OF_BURST + requests[KIND, request]] == 0:
        return -1
    burst, bank = requests[BURST, request], banks[requests[BANK_, request]]
    head = QUEUE + bank[HEAD]
    for place in range(head, head + bank[LENGTH]):
        if requests[BURST, bank[place]] == burst and requests[WRITE, bank[place]] == write:
            return int(bank[place])
    other = bank[FIRST_WRITE if write else FIRST_READ]
    while other >= 0 and requests[BURST, other] != burst:
        other = requests[BEHIND, other]
    return int(other)


@inlined
def take_in(
    rules: Numbers, m: Numbers, banks: Numbers, seen: Numbers, requests: Numbers, request: int, cycle: int
) -> None:
    """What becomes of a request that is accepted: it waits, or one that is pending serves it too."""
    write, now = requests[WRITE, request], max(cycle, m[CLOCK])
    m[MAY_MOVE] = 1
    if requests[FINAL, request]:
        m[COMPLETE] = 1
        m[NEXT] = min(m[NEXT], now)
    if not write and pending(m, banks, seen, requests, request, 1) >= 0:
        requests[DONE, request] = cycle + 1
        return
    other = pending(m, banks, seen, requests, request, write)
    if other >= 0:
        requests[MERGED, request] = requests[MERGED, other]
        requests[MERGED, other] = request
        return
    _wait(m, banks[requests[BANK_, request]], requests, request)
    m[WRITES if write else READS] += 1
    if not m[DISTINCT]:
        seen[write * KINDS_OF_BURST + requests[KIND, request]] += 1
    if write or banks[requests[BANK_, request], LENGTH] < rules[DEPTH]:
        m[NEXT] = min(m[NEXT], now)


@inlined
def _wait(m: Numbers, bank: Numbers, requests: Numbers, request: int) -> None:
    """Put a request behind those that wait for its bank."""
    if bank[LENGTH] == 0 and bank[FIRST_READ] < 0 and bank[FIRST_WRITE] < 0:
        m[BANKS_ACTIVE + m[ACTIVE]] = requests[BANK_, request]
        m[ACTIVE] += 1
    first, last = (FIRST_WRITE, LAST_WRITE) if requests[WRITE, request] else (FIRST_READ, LAST_READ)
    if bank[first] < 0:
        bank[first] = request
    else:
        requests[BEHIND, bank[last]] = request
    bank[last] = request
