"""The clocked controller of a channel: what it does in one cycle, every cycle. The witness of the one-pass model.

It shares with `events` what a device is and how it is numbered (`rules`), nothing else. Arrays are by channel `c`,
then by bank `b`: `earliest` for each command, what came before being taken into account as it happens; `queues` and
`waiting` (reads, then writes) hold requests, oldest first; `cells` and `banks` what is named below.
"""

from __future__ import annotations

from tpusim.memory.dram.cells import (
    ACCEPTING,
    ACTIVATES,
    ACTS,
    ALSO,
    COUNTS,
    DONE,
    FIRST_REFRESH,
    IS_WRITE,
    LAST,
    LENGTH,
    NOW,
    OPEN,
    REFRESH_BANK,
    REFRESHES,
    ROW,
    TURN,
    USED,
)
from tpusim.memory.dram.constraints import ACT, PRE, RD, REF, WR
from tpusim.memory.dram.kernel import kernel, part
from tpusim.memory.dram.queueing import accept_all, take_one
from tpusim.memory.dram.rules import (
    ALL_BANKS,
    BANKS,
    CLOSED,
    GAPS,
    GROUP_BANKS,
    INTERVAL,
    NO_REFRESH,
    PER_BANK,
    READ_CYCLES,
    REFRESH,
    ROW_HITS,
    WINDOW,
    WRITE_CYCLES,
    Numbers,
)


@kernel
def clock_cycles(
    rules: Numbers, whole: Numbers, transfers: Numbers, window: Numbers, cells: Numbers, banks: Numbers,
    earliest: Numbers, queues: Numbers, waiting: Numbers, requests: Numbers, cycles: int,
) -> None:  # fmt: skip
    """So many cycles. In each, requests of the `transfers` on their way are accepted, then every channel has its cycle.

    `whole` is of the whole DRAM; `window` is room to work in.
    """
    for _ in range(cycles):
        accept_all(rules, whole, transfers, window, cells, banks, queues, waiting, requests)
        now, first = whole[NOW], whole[FIRST_REFRESH]
        due = rules[REFRESH] != NO_REFRESH and now >= first and (now - first) % rules[INTERVAL] == 0
        for c in range(len(cells)):
            cells[c, REFRESHES] += due
            _issue_two(rules, c, cells, banks, earliest, queues, requests, now)
            take_one(rules, c, cells, banks, queues, waiting, requests, now, whole[ACCEPTING])
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
    """The first bank after the one found last that has a command ready: bank, entry of its queue, command; or -1."""
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
        return WR if requests[queues[c, b, position], IS_WRITE] else RD
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
