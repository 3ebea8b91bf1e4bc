"""What the one-pass model remembers of channels, banks and the requests that it is serving."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.memory.dram.rules import FAR, NO_REFRESH, Numbers, Rules

(CLOCK, NEXT, WAKE, TURN, REFRESH_AT, REFRESHES, REFRESH_BANK, DRAIN, READS, WRITES, QUEUED, LAST, COMPLETE, FIRST_ACT,
 READY, WAITING_READS, WAITING_WRITES) = range(17)  # fmt: skip
"""Of a channel: the cycles before CLOCK are done, and before NEXT nothing happens unless a request comes; before WAKE
no command; the bank at which the last search ended; when a refresh is due, how many are waiting, which bank is next;
writes still to drain; reads and writes that wait, commands queued at banks; the last column command; whether all
requests of the transfer are there; the oldest of the last four activates; then sets of banks: with room in their
queue, with reads waiting, with writes waiting."""

ROW, USED, LENGTH, READ_HIT, WRITE_HIT, MAY_CLOSE, FIRST_READ, LAST_READ, FIRST_WRITE, LAST_WRITE = range(10)
"""Of a bank: the open row or -1, accesses to it; commands in its queue, and in it the first read and the first write of
the open row, or -1; whether the head of the queue may close the row; requests that wait for the queue, linked."""

BEHIND, MERGED = range(2)
"""Of a request: the one that waits behind it; the next one that its column command serves too. -1 for none."""

HITS, ACTIVATES, READ_BURSTS, WRITE_BURSTS, REFRESHED, PRECHARGES = range(6)
COUNTS = 6
"""Of a channel, since the beginning: column commands that were not the first of their row; commands."""

SEEN = 256
"""Pending bursts are counted by the lowest bits of their address, so that most requests need not look for their own."""


class Channels(NamedTuple):
    """int64 arrays; a first axis is the channel, then the bank, the group, or what the names above say.

    `near`, `group_near` and `bank_near` are the earliest cycles of commands by what came before in the channel, the
    bank group, the bank; `queue` holds requests; `acts` the last four activates; `seen`: pending bursts, reads and writes.
    """

    rules: Rules
    channel: Numbers
    near: Numbers
    group_near: Numbers
    bank_near: Numbers
    bank: Numbers
    queue: Numbers
    acts: Numbers
    seen: Numbers
    counts: Numbers


class Transfer(NamedTuple):
    """The requests being served: int64[n] each, but `write`, bool[n], and `links`, int64[n, 2]; `last` of their channel."""

    channel: Numbers
    bank: Numbers
    row: Numbers
    burst: Numbers
    write: NDArray[np.bool_]
    last: NDArray[np.bool_]
    times: Numbers
    links: Numbers
    accepted: Numbers
    done: Numbers


def fresh(rules: Rules, first_refresh: int) -> Channels:
    """Channels in which nothing has happened yet."""
    count, banks = rules.channels, rules.banks
    channel = np.zeros((count, 17), np.int64)
    channel[:, REFRESH_AT] = FAR if rules.refresh == NO_REFRESH else first_refresh
    channel[:, NEXT] = channel[:, REFRESH_AT]
    channel[:, WAKE] = FAR
    channel[:, LAST] = -1
    channel[:, READY] = (1 << banks) - 1
    bank = np.full((count, banks, 10), -1, np.int64)
    bank[:, :, [USED, LENGTH, MAY_CLOSE]] = 0
    return Channels(
        rules, channel, np.zeros((count, 5), np.int64), np.zeros((count, banks // rules.group, 5), np.int64),
        np.zeros((count, banks, 5), np.int64), bank, np.full((count, banks, rules.depth), -1, np.int64),
        np.full((count, 4), -FAR, np.int64), np.zeros((count, 2, SEEN), np.int64), np.zeros((count, COUNTS), np.int64),
    )  # fmt: skip
