"""What the one-pass model remembers: int64 for each channel, group, bank, request; and what stands where in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpusim.memory.dram.rules import BANKS, DEPTH, FAR, GROUP_BANKS, NO_REFRESH, REFRESH, Numbers

# A channel, row `m`. The cycles before CLOCK are done; before NEXT nothing happens unless a request comes, before WAKE
# no command.
CLOCK, NEXT, WAKE = range(3)
# The bank at which the last search ended; when a refresh is due, how many are waiting, which bank is next.
TURN, REFRESH_AT, REFRESHES, REFRESH_BANK = range(3, 7)
# Writes still to drain; reads and writes that wait, commands in the queues of banks; the last column command's cycle;
# whether all requests of the transfer are there, whether each is for a burst of its own.
DRAIN, READS, WRITES, QUEUED, LAST, COMPLETE, DISTINCT = range(7, 14)
# Whether row hits are likely, and then, if it is known, how many of the banks that are active have them, 0 if not;
# whether these are writes; the first cycle in which another bank may have something to do; which of these banks comes
# next, and when.
HITTING, HIT_BANKS, HIT_WRITES, OTHERS_DUE, NEXT_HIT, HIT_AT = range(14, 20)
# Whether a request may have room to move on to the queue of its bank.
MAY_MOVE = 20
# Up to which cycle it is to go on; at most until fewer reads wait, fewer writes, or fewer requests are left at all.
UNTIL, READS_BELOW, WRITES_BELOW, LEFT_BELOW = range(21, 25)
# The oldest of the last four activates, and the four.
FIRST_ACT, ACTS = 25, 26
# Since the beginning: column commands that were not the first of their row; commands.
COUNTED = 30
HITS, ACTIVATES, READ_BURSTS, WRITE_BURSTS, REFRESHED, CONFLICTS = range(COUNTED, COUNTED + 6)
# The earliest cycle of each of the five commands, by what came before in the channel.
NEAR = 36
# How many banks have requests, queued or waiting for their queue; and which: first those of HIT_BANKS.
ACTIVE, BANKS_ACTIVE = 41, 42

# A bank: the open row or -1, accesses to it; commands in its queue, and there the first read and the first write of the
# open row, or -1; whether the head of the queue may close the row.
ROW, USED, LENGTH, READ_HIT, WRITE_HIT, MAY_CLOSE = range(6)
# Requests that wait for the queue, linked; the bank's group; the earliest cycles of commands; a cycle before which none
# is due, unless what it may do next changes; where in twice the room that it needs the queue begins, and that room.
FIRST_READ, LAST_READ, FIRST_WRITE, LAST_WRITE, IN_GROUP, BANK_NEAR, NOT_BEFORE, HEAD, QUEUE = *range(6, 12), 16, 17, 18

# A request, a column of the transfer: where it falls, and its own address in bursts. Which one waits behind it, and
# which one its column command serves too (-1: none); when it was accepted, and done (-1: not yet).
CHANNEL_, BANK_, ROW_, BURST, WRITE, FINAL, TIME, BEHIND, MERGED, ACCEPTED, DONE, KIND = range(12)
REQUEST_SIZE = 12

KINDS_OF_BURST = 1024
"""Pending reads, then writes, are counted by the KIND of their burst: most requests need not look for their own."""


class State(NamedTuple):
    """int64[channels, ...]: the channels; of each its groups, with the earliest cycles of commands; banks; `seen`."""

    channels: Numbers
    groups: Numbers
    banks: Numbers
    seen: Numbers


def fresh(rules: Numbers, channels: int, first_refresh: int) -> State:
    """Channels in which nothing has happened yet."""
    banks, groups = int(rules[BANKS]), int(rules[BANKS] // rules[GROUP_BANKS])
    m = np.zeros((channels, BANKS_ACTIVE + banks), np.int64)
    m[:, REFRESH_AT] = FAR if rules[REFRESH] == NO_REFRESH else first_refresh
    m[:, NEXT] = m[:, REFRESH_AT]
    m[:, WAKE] = FAR
    m[:, LAST] = -1
    m[:, ACTS : ACTS + 4] = -FAR
    of_banks = np.zeros((channels, banks, QUEUE + 2 * int(rules[DEPTH])), np.int64)
    of_banks[..., [ROW, READ_HIT, WRITE_HIT, FIRST_READ, LAST_READ, FIRST_WRITE, LAST_WRITE]] = -1
    of_banks[..., IN_GROUP] = np.arange(banks) // rules[GROUP_BANKS]
    shape = channels, groups, 5
    return State(m, np.zeros(shape, np.int64), of_banks, np.zeros((channels, 2 * KINDS_OF_BURST), np.int64))
