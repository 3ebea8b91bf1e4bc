"""The one-pass model of what reaches the channels: which request is accepted in which cycle."""

from __future__ import annotations

import numpy as np

from tpusim.memory.dram.events import pending, step
from tpusim.memory.dram.kernel import kernel
from tpusim.memory.dram.rules import FAR, Numbers
from tpusim.memory.dram.state import (
    BEHIND,
    CLOCK,
    COMPLETE,
    FIRST_READ,
    FIRST_WRITE,
    LAST_READ,
    LAST_WRITE,
    MERGED,
    NEXT,
    QUEUED,
    READS,
    READY,
    SEEN,
    WAITING_READS,
    WAITING_WRITES,
    WRITES,
    Channels,
    Transfer,
)


@kernel
def serve(state: Channels, transfer: Transfer, begin: int, already: int) -> tuple[int, int]:
    """Accept all requests, from cycle `begin` on, in which `already` have been, and serve them to the last.

    Returns the cycle of the last acceptance, and how many there were in it.
    """
    state.channel[:, COMPLETE] = 0
    count, most = transfer.channel.size, state.rules.per_cycle
    window, flight = np.empty(state.rules.lookahead, np.int64), np.empty(max(1, state.rules.outstanding), np.int64)
    flying = left = upcoming = 0
    cycle, taken = begin, already
    while True:
        flying = _arrived(state, transfer, flight, flying, cycle)
        held, left = left, 0
        for place in range(held):
            request = window[place]
            if taken < most and _may_come(state, transfer, request, cycle, flying):
                flying = _accept(state, transfer, request, cycle, flight, flying)
                taken += 1
            else:
                window[left] = request
                left += 1
        while upcoming < count and left < window.size and taken < most:
            if _may_come(state, transfer, upcoming, cycle, flying):
                flying = _accept(state, transfer, upcoming, cycle, flight, flying)
                taken += 1
            else:
                window[left] = upcoming
                left += 1
            upcoming += 1
        if left == 0 and upcoming == count:
            break
        cycle = cycle + 1 if taken == most else _possible(state, transfer, window[:left], cycle, flight[:flying])
        taken = 0
    for c in range(state.rules.channels):
        while state.channel[c, READS] + state.channel[c, WRITES] + state.channel[c, QUEUED]:
            step(state, transfer, c)
    return cycle, taken


@kernel
def _arrived(state: Channels, transfer: Transfer, flight: Numbers, flying: int, cycle: int) -> int:
    """Forget reads that were done before this cycle; how many are still under way."""
    if state.rules.outstanding == 0:
        return 0
    for c in range(state.rules.channels):
        _advance(state, transfer, c, cycle)
    left = 0
    for place in range(flying):
        request = flight[place]
        if transfer.done[request] < 0 or transfer.done[request] >= cycle:
            flight[left] = request
            left += 1
    return left


@kernel
def _advance(state: Channels, transfer: Transfer, c: int, cycle: int) -> None:
    """Do all that a channel does before a cycle."""
    while state.channel[c, NEXT] < cycle:
        step(state, transfer, c)


@kernel
def _may_come(state: Channels, transfer: Transfer, request: int, cycle: int, flying: int) -> bool:
    """Whether a request can be accepted in this cycle."""
    if transfer.times[request] > cycle:
        return False
    write = transfer.write[request]
    if not write and 0 < state.rules.outstanding <= flying:
        return False
    c = transfer.channel[request]
    _advance(state, transfer, c, cycle)
    return _room(state, c, write)


@kernel
def _room(state: Channels, c: int, write: bool) -> bool:
    return state.channel[c, WRITES if write else READS] < state.rules.waiting


@kernel
def _possible(state: Channels, transfer: Transfer, window: Numbers, cycle: int, flight: Numbers) -> int:
    """The first cycle after this one in which one of the window's requests may be accepted.

    Of the channels that one of them waits for, the one that is behind goes on, until it cannot come any sooner.
    """
    full = np.zeros((state.rules.channels, 2), np.bool_)
    best, limited = FAR, 0 < state.rules.outstanding <= flight.size
    for request in window:
        write = transfer.write[request]
        if transfer.times[request] > cycle:
            best = min(best, transfer.times[request])
        elif write or not limited:
            full[transfer.channel[request], int(write)] = True
    while True:
        if limited:
            best = min(best, _first_done(transfer, flight) + 1)
        c, soonest = -1, best - 1
        for other in range(state.rules.channels):
            wanted = limited or full[other, 0] or full[other, 1]
            if wanted and state.channel[other, NEXT] < soonest:
                c, soonest = other, state.channel[other, NEXT]
        if c < 0:
            return best
        step(state, transfer, c)
        for kind in range(2):
            if full[c, kind] and _room(state, c, kind == 1):
                best = min(best, state.channel[c, CLOCK])


@kernel
def _first_done(transfer: Transfer, flight: Numbers) -> int:
    """When the first of the reads under way is done, as far as is known."""
    first = FAR
    for request in flight:
        if transfer.done[request] >= 0:
            first = min(first, transfer.done[request])
    return first


@kernel
def _accept(state: Channels, transfer: Transfer, request: int, cycle: int, flight: Numbers, flying: int) -> int:
    """Take a request in; how many reads are then under way."""
    c, write, channel = transfer.channel[request], transfer.write[request], state.channel
    transfer.accepted[request] = cycle
    now = max(cycle, channel[c, CLOCK])
    if transfer.last[request]:
        channel[c, COMPLETE] = 1
        channel[c, NEXT] = min(channel[c, NEXT], now)
    if not write and state.rules.outstanding:
        flight[flying] = request
        flying += 1
    if not write and pending(state, transfer, c, request, True) >= 0:
        transfer.done[request] = cycle + 1
        return flying
    other = pending(state, transfer, c, request, write)
    if other >= 0:
        transfer.links[request, MERGED] = transfer.links[other, MERGED]
        transfer.links[other, MERGED] = request
        return flying
    _wait(state, transfer, request, write, now)
    return flying


@kernel
def _wait(state: Channels, transfer: Transfer, request: int, write: bool, now: int) -> None:
    """Put a request behind those that wait for its bank."""
    c, b, channel = transfer.channel[request], transfer.bank[request], state.channel
    first, last = (FIRST_WRITE, LAST_WRITE) if write else (FIRST_READ, LAST_READ)
    if state.bank[c, b, first] < 0:
        state.bank[c, b, first] = request
        channel[c, WAITING_WRITES if write else WAITING_READS] |= 1 << b
    else:
        transfer.links[state.bank[c, b, last], BEHIND] = request
    state.bank[c, b, last] = request
    channel[c, WRITES if write else READS] += 1
    state.seen[c, int(write), transfer.burst[request] % SEEN] += 1
    if write or channel[c, READY] >> b & 1:
        channel[c, NEXT] = min(channel[c, NEXT], now)
