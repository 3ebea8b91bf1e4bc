"""The one-pass model's requests that wait in a channel: which of them goes to the queue of its bank, and when.

`m` is the row of a channel, `groups` and `banks` are those of its groups and banks, `group` and `bank` one of them,
`requests` the table of the transfer (see `rules`), `c` and `b` are numbers.
"""

from __future__ import annotations

from tpusim.memory.dram.rules import (
    BANK,
    BURST,
    DONE,
    FAR,
    FINAL,
    MODELS_OWN,
    ROW,
    WRITE,
    Numbers,
    Rules,
    inlined,
    part,
)

# A channel, row `m`. The cycles before CLOCK are done; before NEXT nothing happens unless a request comes.
CLOCK, NEXT = range(2)
# Writes still to drain; reads and writes that wait, commands in the queues of banks; whether all requests of the
# transfer are there, whether each is for a burst of its own; whether a request may have room to move on to the queue of
# its bank.
DRAIN, READS, WRITES, QUEUED, COMPLETE, DISTINCT, MAY_MOVE = range(2, 9)
# How many banks have requests, queued or waiting for their queue; and which, at the end of the row.
ACTIVE, CHANNELS_OWN, BANKS_ACTIVE = 9, 10, 42

# A bank: the open row or -1, accesses to it; commands in its queue, and there the first read and the first write of the
# open row, or -1; whether the head of the queue may close the row.
OPEN, USED, LENGTH, READ_HIT, WRITE_HIT, MAY_CLOSE = range(6)
# Requests that wait for the queue, linked; a cycle before which no command is due, unless what the bank may do next
# changes; where in twice the room that it needs the queue begins, and that room, at the end of the row.
FIRST_READ, LAST_READ, FIRST_WRITE, LAST_WRITE, NOT_BEFORE, HEAD, BANKS_OWN, QUEUE = *range(6, 13), 18

# A request: the one that waits behind it, and the one that its column command serves too; -1 for none.
BEHIND, MERGED = MODELS_OWN, MODELS_OWN + 1


@part
def look(rules: Rules, bank: Numbers, requests: Numbers) -> None:
    """Find out what a bank may do next, after its row has changed."""
    row, head = bank[OPEN], QUEUE + bank[HEAD]
    read = write = -1
    for position in range(bank[LENGTH] if row >= 0 else 0):
        request = bank[head + position]
        if requests[ROW, request] == row:
            if requests[WRITE, request]:
                write = position if write < 0 else write
            else:
                read = position if read < 0 else read
            if read >= 0 and write >= 0:
                break
    bank[READ_HIT], bank[WRITE_HIT] = read, write
    _may_close(rules, bank)


@inlined
def _may_close(rules: Rules, bank: Numbers) -> None:
    """See whether the head of a bank's queue may close its row; a command may then be due sooner than before."""
    read, write = bank[READ_HIT], bank[WRITE_HIT]
    enough = (read < 0 and write < 0) or bank[USED] >= rules.row_hits
    bank[MAY_CLOSE] = bank[LENGTH] > 0 and enough and read != 0 and write != 0
    bank[NOT_BEFORE] = 0


@inlined
def _append(rules: Rules, bank: Numbers, requests: Numbers, request: int) -> None:
    """Put a request at the end of a bank's queue, and find out what the bank may do next."""
    length = bank[LENGTH]
    if bank[HEAD] + length == 2 * rules.depth:
        for place in range(QUEUE, QUEUE + length):
            bank[place] = bank[place + bank[HEAD]]
        bank[HEAD] = 0
    bank[QUEUE + bank[HEAD] + length] = request
    bank[LENGTH] = length + 1
    hit = WRITE_HIT if requests[WRITE, request] else READ_HIT
    if bank[OPEN] >= 0 and requests[ROW, request] == bank[OPEN] and bank[hit] < 0:
        bank[hit] = length
    _may_close(rules, bank)


@part
def remove(rules: Rules, bank: Numbers, requests: Numbers, position: int, write: int) -> bool:
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
    for place in range(position, bank[LENGTH] if bank[OPEN] >= 0 else 0):
        request = bank[head + place]
        if requests[ROW, request] == bank[OPEN] and requests[WRITE, request] == write:
            bank[hit] = place
            break
    _may_close(rules, bank)
    return bool(bank[hit] == 0)


@part
def take_one(rules: Rules, m: Numbers, banks: Numbers, requests: Numbers) -> tuple[int, bool]:
    """Move the oldest waiting request whose bank has room into the queue of its bank.

    Returns which bank, or -1; and whether another request then waits for a bank that has room.
    """
    if not m[MAY_MOVE]:
        return -1, False
    writes = m[WRITES]
    nothing = m[QUEUED] == 0 and (writes > rules.idle_writes or m[COMPLETE] > 0)
    if m[DRAIN] == 0 and writes > 0 and (writes >= rules.waiting or nothing):
        m[DRAIN] = writes
    request, waiting = FAR, 0
    if m[DRAIN] > 0:
        request, waiting = _oldest(rules, m, banks, FIRST_WRITE)
        if request < FAR and _pending(m, banks, requests, request, 0) >= 0:
            m[DRAIN], request = 0, FAR
    if m[DRAIN] == 0 and m[READS] > 0:
        request, waiting = _oldest(rules, m, banks, FIRST_READ)
    if request == FAR:
        m[MAY_MOVE] = 0
        return -1, False
    b = requests[BANK, request]
    bank = banks[b]
    if requests[WRITE, request]:
        m[WRITES] -= 1
        m[DRAIN] -= 1
        bank[FIRST_WRITE] = requests[BEHIND, request]
    else:
        m[READS] -= 1
        bank[FIRST_READ] = requests[BEHIND, request]
    m[QUEUED] += 1
    _append(rules, bank, requests, request)
    return int(b), waiting > 1 or (_waits(bank) and bank[LENGTH] < rules.depth)


@inlined
def _oldest(rules: Rules, m: Numbers, banks: Numbers, first: int) -> tuple[int, int]:
    """Find the oldest of the requests whose bank has room; `first` is FIRST_READ or FIRST_WRITE.

    Returns the request, or FAR for none; and how many banks with room have requests of either kind that wait.
    """
    oldest, waiting = FAR, 0
    for place in range(m[ACTIVE]):
        bank = banks[m[BANKS_ACTIVE + place]]
        request, has_room = bank[first], bank[LENGTH] < rules.depth
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
def _pending(m: Numbers, banks: Numbers, requests: Numbers, request: int, write: int) -> int:
    """Find a pending request, with a column command of its own, that reads or writes the same burst; -1 for none."""
    if m[DISTINCT]:
        return -1
    burst, bank = requests[BURST, request], banks[requests[BANK, request]]
    head = QUEUE + bank[HEAD]
    for place in range(head, head + bank[LENGTH]):
        if requests[BURST, bank[place]] == burst and requests[WRITE, bank[place]] == write:
            return int(bank[place])
    other = bank[FIRST_WRITE if write else FIRST_READ]
    while other >= 0 and requests[BURST, other] != burst:
        other = requests[BEHIND, other]
    return int(other)


@inlined
def take_in(rules: Rules, m: Numbers, banks: Numbers, requests: Numbers, request: int, cycle: int) -> None:
    """Accept a request: it waits, or a pending request serves it too."""
    write, now = requests[WRITE, request], max(cycle, m[CLOCK])
    m[MAY_MOVE] = 1
    if requests[FINAL, request]:
        m[COMPLETE] = 1
        m[NEXT] = min(m[NEXT], now)
    if not write and _pending(m, banks, requests, request, 1) >= 0:
        requests[DONE, request] = cycle + 1
        return
    other = _pending(m, banks, requests, request, write)
    if other >= 0:
        requests[MERGED, request] = requests[MERGED, other]
        requests[MERGED, other] = request
        return
    bank = banks[requests[BANK, request]]
    if bank[LENGTH] == 0 and bank[FIRST_READ] < 0 and bank[FIRST_WRITE] < 0:
        m[BANKS_ACTIVE + m[ACTIVE]] = requests[BANK, request]
        m[ACTIVE] += 1
    # Behind those that wait for its bank.
    first, last = (FIRST_WRITE, LAST_WRITE) if write else (FIRST_READ, LAST_READ)
    if bank[first] < 0:
        bank[first] = request
    else:
        requests[BEHIND, bank[last]] = request
    bank[last] = request
    m[WRITES if write else READS] += 1
    if write or bank[LENGTH] < rules.depth:
        m[NEXT] = min(m[NEXT], now)
