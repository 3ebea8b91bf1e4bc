"""Waiting requests in a channel of the one-pass model, and their way into the queues of banks.

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

# Registers of a channel, row `m`. Cycles before CLOCK are done; before NEXT nothing happens unless a request comes.
CLOCK, NEXT = range(2)
# Writes still to drain; waiting reads and writes, commands in queues of banks; whether all requests of the transfer are
# there, whether each is for a burst of its own; whether some request may have room to move into its bank's queue.
DRAIN, READS, WRITES, QUEUED, COMPLETE, DISTINCT, MAY_MOVE = range(2, 9)
# Number of banks with requests, queued or waiting; their numbers are at the end of the row.
ACTIVE, CHANNELS_OWN, BANKS_ACTIVE = 9, 10, 42

# Registers of a bank: its open row or -1, accesses to it; commands in its queue, the first read and the first write of
# the open row among them, or -1; whether the head of the queue may close the row.
OPEN, USED, LENGTH, READ_HIT, WRITE_HIT, MAY_CLOSE = range(6)
# Linked lists of requests that wait for the queue; a cycle before which no command is due, unless the bank's next
# command changes; where the queue begins in twice the room that it needs, and that room, at the end of the row.
FIRST_READ, LAST_READ, FIRST_WRITE, LAST_WRITE, NOT_BEFORE, HEAD, BANKS_OWN, QUEUE = *range(6, 13), 18

# Fields of a request: the request that waits behind it, and the request that its column command also serves; -1 for
# none.
BEHIND, MERGED = MODELS_OWN, MODELS_OWN + 1


@part
def look(rules: Rules, bank: Numbers, requests: Numbers) -> None:
    """Find out what a bank may do next after its row has changed."""
    row, head = bank[OPEN], QUEUE + bank[HEAD]
    read = write = -1
    for position in range(bank[LENGTH] if row >= 0 else 0):
        request = bank[head + position]
        if requests[request, ROW] == row:
            if requests[request, WRITE]:
                write = position if write < 0 else write
            else:
                read = position if read < 0 else read
            # Only the oldest read and the oldest write of the row can be chosen.
            if read >= 0 and write >= 0:
                break
    bank[READ_HIT], bank[WRITE_HIT] = read, write
    _may_close(rules, bank)


@inlined
def _may_close(rules: Rules, bank: Numbers) -> None:
    """Check whether the head of a bank's queue may close its row; if so, a command may be due sooner."""
    read, write = bank[READ_HIT], bank[WRITE_HIT]
    # A row is closed for another only after `row_hits` accesses, or when nobody wants it any more.
    enough = (read < 0 and write < 0) or bank[USED] >= rules.row_hits
    bank[MAY_CLOSE] = bank[LENGTH] > 0 and enough and read != 0 and write != 0
    bank[NOT_BEFORE] = 0


@inlined
def _append(rules: Rules, bank: Numbers, requests: Numbers, request: int) -> None:
    """Put a request at the end of a bank's queue, and update what the bank may do next."""
    length = bank[LENGTH]
    # The queue has reached the end of its room, so it moves back to the beginning.
    if bank[HEAD] + length == 2 * rules.depth:
        for place in range(QUEUE, QUEUE + length):
            bank[place] = bank[place + bank[HEAD]]
        bank[HEAD] = 0
    bank[QUEUE + bank[HEAD] + length] = request
    bank[LENGTH] = length + 1
    hit = WRITE_HIT if requests[request, WRITE] else READ_HIT
    if bank[OPEN] >= 0 and requests[request, ROW] == bank[OPEN] and bank[hit] < 0:
        bank[hit] = length
    _may_close(rules, bank)


@part
def remove(rules: Rules, bank: Numbers, requests: Numbers, position: int, write: int) -> bool:
    """Take the first read or write of the open row out of a bank's queue, and update what the bank may do next.

    Returns whether the new head hits the open row and is of the same kind.
    """
    bank[LENGTH] -= 1
    if position == 0:
        bank[HEAD] += 1
    head = QUEUE + bank[HEAD]
    for place in range(head + position, head + bank[LENGTH] if position else 0):
        bank[place] = bank[place + 1]
    hit, other = (WRITE_HIT, READ_HIT) if write else (READ_HIT, WRITE_HIT)
    # Entries behind the one taken out move up by a place.
    bank[other] -= bank[other] > position
    bank[hit] = -1
    for place in range(position, bank[LENGTH] if bank[OPEN] >= 0 else 0):
        request = bank[head + place]
        if requests[request, ROW] == bank[OPEN] and requests[request, WRITE] == write:
            bank[hit] = place
            break
    _may_close(rules, bank)
    return bool(bank[hit] == 0)


@part
def take_one(rules: Rules, m: Numbers, banks: Numbers, requests: Numbers) -> tuple[int, bool]:
    """Move the oldest waiting request whose bank has room into the queue of its bank.

    Returns the bank, or -1; and whether another request still waits for a bank with room.
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
        # A pending read of the same burst comes first, or it would read the new data.
        if request < FAR and _pending(m, banks, requests, request, 0) >= 0:
            m[DRAIN], request = 0, FAR
    if m[DRAIN] == 0 and m[READS] > 0:
        request, waiting = _oldest(rules, m, banks, FIRST_READ)
    if request == FAR:
        m[MAY_MOVE] = 0
        return -1, False
    b = requests[request, BANK]
    bank = banks[b]
    if requests[request, WRITE]:
        m[WRITES] -= 1
        m[DRAIN] -= 1
        bank[FIRST_WRITE] = requests[request, BEHIND]
    else:
        m[READS] -= 1
        bank[FIRST_READ] = requests[request, BEHIND]
    m[QUEUED] += 1
    _append(rules, bank, requests, request)
    return int(b), waiting > 1 or (_waits(bank) and bank[LENGTH] < rules.depth)


@inlined
def _oldest(rules: Rules, m: Numbers, banks: Numbers, first: int) -> tuple[int, int]:
    """The oldest request whose bank has room; `first` is FIRST_READ or FIRST_WRITE.

    Returns the request, or FAR for none; and the number of banks with room for which requests of either kind wait.
    """
    oldest, waiting = FAR, 0
    for place in range(m[ACTIVE]):
        bank = banks[m[BANKS_ACTIVE + place]]
        request, has_room = bank[first], bank[LENGTH] < rules.depth
        waiting += has_room & _waits(bank)
        # Bitwise `&`: a branch would be slow, as the processor cannot predict which banks wait.
        if has_room & (request >= 0) & (request < oldest):
            oldest = request
    return oldest, waiting


@inlined
def _waits(bank: Numbers) -> bool:
    """Whether a request waits for a bank: the first read or the first write is not -1."""
    return bool((bank[FIRST_READ] & bank[FIRST_WRITE]) >= 0)


@inlined
def _pending(m: Numbers, banks: Numbers, requests: Numbers, request: int, write: int) -> int:
    """A pending request, with a column command of its own, that reads or writes the same burst; -1 for none."""
    # Bursts of a transfer that only ascends are all different: nothing can be shared.
    if m[DISTINCT]:
        return -1
    burst, bank = requests[request, BURST], banks[requests[request, BANK]]
    head = QUEUE + bank[HEAD]
    for place in range(head, head + bank[LENGTH]):
        if requests[bank[place], BURST] == burst and requests[bank[place], WRITE] == write:
            return int(bank[place])
    other = bank[FIRST_WRITE if write else FIRST_READ]
    while other >= 0 and requests[other, BURST] != burst:
        other = requests[other, BEHIND]
    return int(other)


@inlined
def take_in(rules: Rules, m: Numbers, banks: Numbers, requests: Numbers, request: int, cycle: int) -> None:
    """Accept a request: it waits, or a pending request serves it, too."""
    write, now = requests[request, WRITE], max(cycle, m[CLOCK])
    m[MAY_MOVE] = 1
    if requests[request, FINAL]:
        m[COMPLETE] = 1
        m[NEXT] = min(m[NEXT], now)
    if not write and _pending(m, banks, requests, request, 1) >= 0:
        requests[request, DONE] = cycle + 1
        return
    other = _pending(m, banks, requests, request, write)
    if other >= 0:
        requests[request, MERGED] = requests[other, MERGED]
        requests[other, MERGED] = request
        return
    bank = banks[requests[request, BANK]]
    if bank[LENGTH] == 0 and bank[FIRST_READ] < 0 and bank[FIRST_WRITE] < 0:
        m[BANKS_ACTIVE + m[ACTIVE]] = requests[request, BANK]
        m[ACTIVE] += 1
    # The request goes behind those that wait for its bank already.
    first, last = (FIRST_WRITE, LAST_WRITE) if write else (FIRST_READ, LAST_READ)
    if bank[first] < 0:
        bank[first] = request
    else:
        requests[bank[last], BEHIND] = request
    bank[last] = request
    m[WRITES if write else READS] += 1
    if write or bank[LENGTH] < rules.depth:
        m[NEXT] = min(m[NEXT], now)
