"""What the one-pass model remembers: a row of int64 for a channel, one for a request; and what stands where in them."""

from __future__ import annotations

import numpy as np

from tpusim.memory.dram.rules import BANKS, DEPTH, FAR, GROUP_BANKS, NO_REFRESH, REFRESH, Numbers

# A channel, row `m` of the state. The cycles before CLOCK are done; before NEXT nothing happens unless a request comes,
# before WAKE no command.
CLOCK, NEXT, WAKE = range(3)
# The bank at which the last search ended; when a refresh is due, how many are waiting, which bank is next.
TURN, REFRESH_AT, REFRESHES, REFRESH_BANK = range(3, 7)
# Writes still to drain; reads and writes that wait, commands in the queues of banks; the last column command's cycle;
# whether all requests of the transfer are there.
DRAIN, READS, WRITES, QUEUED, LAST, COMPLETE = range(7, 13)
# Sets of banks, a bit each: with room in their queue, with commands in it, with reads or writes waiting for it.
READY, BUSY, WAITING_READS, WAITING_WRITES = range(13, 17)
# The oldest of the last four activates, and the four.
FIRST_ACT, ACTS = 17, 18
# Since the beginning: column commands that were not the first of their row; commands.
COUNTED = 22
HITS, ACTIVATES, READ_BURSTS, WRITE_BURSTS, REFRESHED, CONFLICTS = range(COUNTED, COUNTED + 6)
# The earliest cycle of each of the five commands, by what came before in the channel.
NEAR = 28
# Pending reads, then writes, by the KIND of their burst: most requests need not look for their own.
SEEN, KINDS_OF_BURST = 33, 1024
# Records of the groups: the earliest cycles of commands. Then of the banks.
GROUPS, GROUP_SIZE = SEEN + 2 * KINDS_OF_BURST, 5

# A bank, counted from its record: the open row or -1, accesses to it; commands in its queue, and there the first read
# and the first write of the open row, or -1; whether the head of the queue may close the row.
ROW, USED, LENGTH, READ_HIT, WRITE_HIT, MAY_CLOSE = range(6)
# Requests that wait for the queue, linked; the bank's group record; the earliest cycles of commands; the queue.
FIRST_READ, LAST_READ, FIRST_WRITE, LAST_WRITE, IN_GROUP, BANK_NEAR, QUEUE = 6, 7, 8, 9, 10, 11, 16

# A request, a row of the transfer; ROW_ and what follows by its address. Which one waits behind it, and which one its
# column command serves too (-1: none); when it was accepted, and done (-1: not yet).
CHANNEL_, BANK_, ROW_, BURST, WRITE, FINAL, TIME, BEHIND, MERGED, ACCEPTED, DONE, KIND = range(12)
REQUEST_SIZE = 12


def bank_size(rules: Numbers) -> int:
    """Numbers in the record of a bank."""
    return QUEUE + int(rules[DEPTH])


def banks_at(rules: Numbers) -> int:
    """Where the records of banks begin."""
    return GROUPS + GROUP_SIZE * int(rules[BANKS] // rules[GROUP_BANKS])


def fresh(rules: Numbers, channels: int, first_refresh: int) -> Numbers:
    """Channels in which nothing has happened yet, int64[channels, numbers]."""
    banks, size, begin = int(rules[BANKS]), bank_size(rules), banks_at(rules)
    m = np.zeros((channels, begin + banks * size), np.int64)
    m[:, REFRESH_AT] = FAR if rules[REFRESH] == NO_REFRESH else first_refresh
    m[:, NEXT] = m[:, REFRESH_AT]
    m[:, WAKE] = FAR
    m[:, LAST] = -1
    m[:, READY] = (1 << banks) - 1
    m[:, ACTS : ACTS + 4] = -FAR
    for b in range(banks):
        at = begin + b * size
        m[:, [at + each for each in (ROW, READ_HIT, WRITE_HIT, FIRST_READ, LAST_READ, FIRST_WRITE, LAST_WRITE)]] = -1
        m[:, at + IN_GROUP] = GROUPS + GROUP_SIZE * (b // int(rules[GROUP_BANKS]))
    return m
