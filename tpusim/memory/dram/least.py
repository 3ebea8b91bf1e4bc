"""The least time that transfers take in a DRAM, whatever its banks do: a bound on the one-pass and the clocked model.

It knows three of their rules. A channel issues one column command after another, some cycles apart, and more where
reads follow writes, or writes reads; it accepts a request only where its queues have room for it, which a transfer has
for itself; and while all its banks are refreshed, it issues none. Where one burst is asked for twice, one command may
serve both, so such transfers take no time here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from tpusim.memory.dram.device import FIELDS, Device
from tpusim.memory.dram.rules import ACT, ALL_BANKS, OF_BANK, OF_CHANNEL, RD, REF, WR, Numbers, Rules, cut, kernel

_NEVER = -(1 << 60)

_MOST_RUNS, _MOST_BURSTS = 1 << 8, 1 << 13
"""Most runs, and most bursts of them all, that tell how runs crowd: where they lie repeats soon."""


def least_left(device: Device, transfers: Iterable[tuple[Numbers, bool]]) -> Numbers:
    """Memory cycles that transfers take at least which follow one another, each with the byte addresses of its bursts,
    int64[bursts], and whether all are written, or all read: int64[transfers].

    Number `n` gives the least from any cycle in which transfer `n` is accepted, as long as the next begins no sooner,
    to the end of the last transfer's data.
    """
    rules, mapping = Rules.of(device), device.addresses()
    # Cycles from a column command to the next in its channel: from reads and writes, to reads and writes.
    gaps = np.ascontiguousarray(rules.same_channel[np.ix_((RD, WR), (RD, WR))])
    # What of one transfer may wait in a channel, and in the queues of its banks.
    most = rules.waiting + rules.banks * rules.depth
    issued, of_channels = np.zeros((device.channels, most), np.int64), np.zeros((5, device.channels), np.int64)
    of_channels[0], found = _NEVER, np.zeros(len(FIELDS), np.int64)
    rates = gaps, rules.waiting, rules.depth, rules.lookahead == 1
    accepted, ended, data, behind, kinds = 0, 0, 0, list[tuple[int, int]](), set[int]()
    for addresses, write in transfers:
        kinds.add(int(write))
        accepted, ended = _least(addresses, int(write), mapping.cuts, found, of_channels, issued, accepted, *rates)
        data = int(min(rules.read_cycles, rules.write_cycles)) if ended >= 0 else 0
        ended = max(accepted, ended)
        behind.append((accepted, int(of_channels[0].max())))
    turn = gaps[np.ix_([*kinds], [*kinds])].max(initial=0)
    # If the next transfer began only when all this is over, nothing would be left of those before it.
    drained = np.add(np.array(behind, np.int64).reshape(-1, 2), (0, turn)).max(axis=1)
    left = np.maximum(ended - drained, 0)
    if rules.refresh == ALL_BANKS:
        opened = min(rules.same_bank[ACT, RD], rules.same_bank[ACT, WR])
        # A refresh may fall between two commands, or into a turn of the bus, whose cycles have been counted.
        held = max(0, int(rules.same_channel[REF, ACT] + opened - turn))
        # Between two refreshes there is so much time for commands; the first may come just behind one.
        left += held * (np.maximum(left - 1, 0) // max(1, rules.interval - held))
    return np.where(left > 0, left + data, 0)


@lru_cache(maxsize=1 << 12)
def crowding(device: Device, run: int, apart: int, count: int) -> float:
    """The time of reads of runs by that of the same number of bursts side by side, each as long as it takes at least.
    Runs that lie in a few of the channels leave the others idle.

    There are `count` runs of `run` bytes, each `apart` bytes from the one before.
    """
    burst = device.organisation.burst_bytes
    of_run = np.arange(0, run, burst, dtype=np.int64)
    count = min(count, _MOST_RUNS, max(1, _MOST_BURSTS // len(of_run)))
    firsts = np.arange(count, dtype=np.int64) * apart // burst * burst
    addresses = np.unique(firsts[:, None] + of_run)
    beside = np.arange(len(addresses), dtype=np.int64) * burst
    # Time counts from a transfer ahead, of one burst.
    crowded, even = (int(least_left(device, [(beside[:1], False), (each, False)])[0]) for each in (addresses, beside))
    return crowded / even if even else 1.0


@kernel
def _least(
    addresses: Numbers, write: int, cuts: Numbers, found: Numbers, of_channels: Numbers, issued: Numbers, begin: int,
    gaps: Numbers, waiting: int, depth: int, ordered: bool,
) -> tuple[int, int]:  # fmt: skip
    """One more transfer from cycle `begin` on. Returns the least cycle of its last acceptance, and that of its last
    column command, -1 if a burst may come twice: then nothing is known of it.

    Each row of `of_channels` has a number for each channel: the cycle of its last column command, and whether that
    command wrote; of this transfer, the requests so far, their banks, bit by bit, and the number of these banks.
    `issued` has the cycles of the last commands, as in a ring. Requests that are not `ordered` are accepted in any
    order, and may be in any bank. `found` is working space.
    """
    last, wrote, count, banks, number = of_channels[0], of_channels[1], of_channels[2], of_channels[3], of_channels[4]
    count[:], banks[:], number[:] = 0, 0, 0
    before = -1
    for at in range(len(addresses)):
        burst = (addresses[at] >> cuts[0, 0]) & cuts[0, 1]
        if burst <= before:
            return begin, -1
        before = burst
    cycle = accepted = ended = begin
    room, before, at = issued.shape[1], -1, 0
    while at < len(addresses):
        before = cut(cuts, addresses[at], before, found)
        # Bursts of one row follow one another at a fixed distance, so only the first and the last are looked at.
        size = 1
        while at + size < len(addresses) and ((addresses[at + size] >> cuts[0, 0]) & cuts[0, 1]) ^ before < cuts[0, 2]:
            size += 1
        at += size
        c, bit = found[OF_CHANNEL], 1 << found[OF_BANK]
        if not banks[c] & bit:
            banks[c] |= bit
            number[c] += 1
        # So many may be accepted and not issued, this one among them.
        most = waiting + depth * number[c] if ordered else room
        mine, place = count[c], count[c] % room
        soonest = issued[c, (mine - most) % room] if mine >= most else begin
        first = max(cycle if ordered else begin, soonest)
        last[c] = max(first, last[c] + gaps[wrote[c], write])
        wrote[c] = write
        for _ in range(size - 1):
            issued[c, place] = last[c]
            last[c] += gaps[write, write]
            place = place + 1 if place + 1 < room else 0
        count[c] = mine + size
        if size > 1 and mine + size > most:
            first = max(first, issued[c, (mine + size - 1 - most) % room])
        issued[c, place] = last[c]
        cycle = max(cycle, first) if ordered else first
        accepted, ended = max(accepted, first), max(ended, last[c])
    return accepted, ended
