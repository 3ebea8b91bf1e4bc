"""The one-pass model: a DRAM that serves transfers from event to event, not cycle by cycle.

    memory = OnePass(device)
    accepted, done = memory.serve(addresses, write=False, start=100)

Cycles are those of the memory's own clock, `device.clock_hz`. `memory.counts()` has the events since the
beginning. `clocked.ClockedDram` takes the same transfers and gives the same answers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tpusim.memory.dram.channel import COUNTED, ControllerState, advance, fresh
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.queues import CLOCK, COMPLETE, DISTINCT, NEXT, READS, WRITES, take_in
from tpusim.memory.dram.rules import (
    ACCEPTED,
    CHANNEL,
    DONE,
    FAR,
    REQUEST_SIZE,
    TIME,
    WRITE,
    Counts,
    Numbers,
    RequestedBursts,
    Rules,
    ServedRequests,
    inlined,
    kernel,
    transfer,
)


class OnePassDram:
    """A DRAM with its state: open rows, constraints of commands, the refresh clock, and its progress.

    The DRAM is fresh at cycle 0; its first refresh is due in cycle `first_refresh`, or tREFI.
    `requested` has the number of bursts that transfers have asked for, `last_accepted` the cycle in which the last of
    them was accepted.
    """

    def __init__(self, device: Device, first_refresh: int | None = None) -> None:
        self.device = device
        self._rules = Rules.of(device)
        self._mapping = device.addresses()
        due = self._rules.interval if first_refresh is None else first_refresh
        self._state = fresh(self._rules, device.channels, due)
        sizes = self._rules.lookahead, self._rules.outstanding + 1, (device.channels, 2)
        self._room = tuple(np.zeros(size, np.int64) for size in sizes)
        self.requested = RequestedBursts()
        # The number of acceptances in the cycle of the last.
        self.last_accepted, self._taken = 0, 0

    def serve(
        self, addresses: ArrayLike, write: ArrayLike = False, start: int = 0, times: ArrayLike | None = None
    ) -> ServedRequests:
        """Serve one transfer to the end: requests of a burst each, at byte `addresses`, int64[n], in order.

        `write` is one value for all, or bool[n]. No request is accepted before cycle `start`, before its own of
        `times`, int64[n] in cycles, or before the last one of the transfer before. In each channel its commands begin
        when the transfer before has issued its column commands there; nothing of this transfer depends on the next.
        Raises InputError, see `rules.transfer`.
        """
        requests, distinct, writes, busiest = transfer(self._mapping, addresses, write, times)
        self.requested = self.requested.and_also(len(requests), writes, busiest)
        if requests.size:
            begin = max(self.last_accepted, start)
            already = self._taken if begin == self.last_accepted else 0
            cycle, count = _serve(self._rules, self._state, requests, distinct, begin, already, *self._room)
            self.last_accepted, self._taken = int(cycle), int(count)
        return ServedRequests(requests[:, ACCEPTED], requests[:, DONE])

    def counts(self, before: int = 0) -> Counts:
        """Counts of the events in each channel up to its last column command, and refreshes up to cycle `before`.

        The state is copied: the next transfer may still begin earlier.
        """
        state = ControllerState(*(each.copy() for each in self._state))
        _settle(self._rules, state, np.empty((0, REQUEST_SIZE), np.int64), before)
        return Counts(*state.channels[:, COUNTED : COUNTED + len(Counts._fields)].T)


@kernel
def _serve(
    rules: Rules, state: ControllerState, requests: Numbers, distinct: bool, begin: int, already: int,
    window: Numbers, flight: Numbers, wanted: Numbers,
) -> tuple[int, int]:  # fmt: skip
    """Accept all requests from cycle `begin` on, in which `already` were accepted, and serve them to the end.

    `distinct` tells whether each is for a burst of its own. Returns the cycle of the last acceptance, and the number of
    them in it. `window`, `flight` and `wanted` are working space: for `lookahead` requests, for reads under way, and
    for two marks a channel.
    """
    state.channels[:, COMPLETE] = 0
    state.channels[:, DISTINCT] = distinct
    flying = left = upcoming = 0
    cycle, taken = begin, already
    while True:
        for c in range(len(state.channels) if rules.outstanding else 0):
            advance(rules, state, requests, c, cycle, 0, 0, 0)
        # Reads that were done before this cycle no longer count against the limit.
        reads, flying = flying, 0
        for place in range(reads):
            done = requests[flight[place], DONE]
            if done < 0 or done >= cycle:
                flight[flying] = flight[place]
                flying += 1
        upcoming, left, taken, flying = _accept(
            rules, state, requests, cycle, window, left, upcoming, taken, flight, flying
        )
        if left == 0 and upcoming == len(requests):
            break
        if taken == rules.per_cycle:
            cycle += 1
        else:
            cycle = _possible(rules, state, requests, cycle, window[:left], flight[:flying], wanted)
        taken = 0
    for c in range(len(state.channels)):
        advance(rules, state, requests, c, FAR, 0, 0, left=1)
    return cycle, taken


@kernel
def _settle(rules: Rules, state: ControllerState, requests: Numbers, before: int) -> None:
    """Let idle channels refresh themselves up to a cycle."""
    for c in range(len(state.channels)):
        advance(rules, state, requests, c, before, 0, 0, 0)


@inlined
def _accept(
    rules: Rules, state: ControllerState, requests: Numbers, cycle: int,
    window: Numbers, held: int, upcoming: int, taken: int, flight: Numbers, flying: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Accept as many of the oldest requests as possible in one cycle: those of the window, and those that move up."""
    left = place = 0
    while taken < rules.per_cycle and (place < held or (upcoming < len(requests) and left < len(window))):
        request = window[place] if place < held else upcoming
        upcoming += place >= held
        place += 1
        c, read = requests[request, CHANNEL], requests[request, WRITE] == 0
        m = state.channels[c]
        coming = requests[request, TIME] <= cycle and not (read and 0 < rules.outstanding <= flying)
        # A channel advances lazily, when the room in its queues is asked for.
        if coming and m[NEXT] < cycle:
            advance(rules, state, requests, c, cycle, 0, 0, 0)
        if coming and m[READS if read else WRITES] < rules.waiting:
            requests[request, ACCEPTED] = cycle
            take_in(rules, m, state.banks[c], requests, request, cycle)
            taken += 1
            if read and rules.outstanding:
                flight[flying] = request
                flying += 1
        else:
            window[left] = request
            left += 1
    while place < held:
        window[left] = window[place]
        left, place = left + 1, place + 1
    return upcoming, left, taken, flying


@inlined
def _possible(
    rules: Rules,
    state: ControllerState,
    requests: Numbers,
    cycle: int,
    window: Numbers,
    flight: Numbers,
    wanted: Numbers,
) -> int:
    """The first cycle after this one in which a request of the window may be accepted.

    The channel that is furthest behind advances first, until no acceptance can come any sooner.
    """
    best, limited = FAR, 0 < rules.outstanding <= len(flight)
    # One waiting request, the common case of a long transfer, needs no search over channels.
    if len(window) == 1 and not limited:
        request = window[0]
        if requests[request, TIME] > cycle:
            return int(requests[request, TIME])
        c, write, room = requests[request, CHANNEL], requests[request, WRITE], rules.waiting
        advance(rules, state, requests, c, FAR, room * (1 - write), room * write, 0)
        return int(state.channels[c, CLOCK])
    wanted[:] = 0
    for request in window:
        write = requests[request, WRITE]
        if requests[request, TIME] > cycle:
            best = min(best, requests[request, TIME])
        elif write or not limited:
            wanted[requests[request, CHANNEL], write] = 1
    while True:
        for request in flight if limited else flight[:0]:
            if requests[request, DONE] >= 0:
                best = min(best, requests[request, DONE] + 1)
        none = len(state.channels)
        c, soonest, until = none, best - 1, best - 1
        for other in range(len(state.channels)):
            if limited or wanted[other, 0] or wanted[other, 1]:
                coming = state.channels[other, NEXT]
                if coming < soonest:
                    c, soonest, until = other, coming, soonest
                else:
                    until = min(until, coming)
        if c == none:
            return best
        # With a limit on reads in flight, any completion may free a place, so channels advance cycle by cycle.
        until = soonest + 1 if limited else max(until, soonest + 1)
        room = rules.waiting
        if advance(rules, state, requests, c, until, room * wanted[c, 0], room * wanted[c, 1], 0):
            best = min(best, state.channels[c, CLOCK])
