"""The one-pass model of what reaches the channels: which request is accepted in which cycle.

`state` and `requests` are what `state` says.
"""

from __future__ import annotations

from tpusim.memory.dram.channel import advance
from tpusim.memory.dram.kernel import inlined, kernel
from tpusim.memory.dram.rules import FAR, OUTSTANDING, PER_CYCLE, WAITING, Numbers
from tpusim.memory.dram.state import (
    ACCEPTED,
    CHANNEL_,
    CLOCK,
    COMPLETE,
    DISTINCT,
    DONE,
    NEXT,
    READS,
    TIME,
    WRITE,
    WRITES,
    State,
)
from tpusim.memory.dram.transactions import take_in


@kernel
def serve(
    rules: Numbers, state: State, requests: Numbers, distinct: bool, begin: int, already: int,
    window: Numbers, flight: Numbers, wanted: Numbers,
) -> tuple[int, int]:  # fmt: skip
    """Accept all requests, from cycle `begin` on, in which `already` have been, and serve them to the last.

    `distinct` is whether each is for a burst of its own. Returns the cycle of the last acceptance, and how many there
    were in it. The last three are room to work in: for `lookahead` requests, for those under way, and for two marks a
    channel.
    """
    state.channels[:, COMPLETE] = 0
    state.channels[:, DISTINCT] = distinct
    flying = left = upcoming = 0
    cycle, taken = begin, already
    while True:
        flying = _arrived(rules, state, requests, cycle, flight, flying)
        upcoming, left, taken, flying = _accept(
            rules, state, requests, cycle, window, left, upcoming, taken, flight, flying
        )
        if left == 0 and upcoming == requests.shape[1]:
            break
        if taken == rules[PER_CYCLE]:
            cycle += 1
        else:
            cycle = _possible(rules, state, requests, cycle, window[:left], flight[:flying], wanted)
        taken = 0
    for c in range(len(state.channels)):
        advance(rules, state, requests, c, FAR, 0, 0, left=1)
    return cycle, taken


@kernel
def settle(rules: Numbers, state: State, requests: Numbers, before: int) -> None:
    """Let channels that have nothing to serve refresh themselves up to a cycle."""
    for c in range(len(state.channels)):
        advance(rules, state, requests, c, before, 0, 0, 0)


@inlined
def _accept(
    rules: Numbers, state: State, requests: Numbers, cycle: int,
    window: Numbers, held: int, upcoming: int, taken: int, flight: Numbers, flying: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Accept in one cycle what can be of the oldest requests: those of the window, and those that move up."""
    left = place = 0
    while taken < rules[PER_CYCLE] and (place < held or (upcoming < requests.shape[1] and left < len(window))):
        request = window[place] if place < held else upcoming
        upcoming += place >= held
        place += 1
        c, read = requests[CHANNEL_, request], requests[WRITE, request] == 0
        m = state.channels[c]
        coming = requests[TIME, request] <= cycle and not (read and 0 < rules[OUTSTANDING] <= flying)
        if coming and m[NEXT] < cycle:
            advance(rules, state, requests, c, cycle, 0, 0, 0)
        if coming and m[READS if read else WRITES] < rules[WAITING]:
            requests[ACCEPTED, request] = cycle
            take_in(rules, m, state.banks[c], state.seen[c], requests, request, cycle)
            taken += 1
            if read and rules[OUTSTANDING]:
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
def _arrived(rules: Numbers, state: State, requests: Numbers, cycle: int, flight: Numbers, flying: int) -> int:
    """Forget reads that were done before this cycle; how many are still under way."""
    if rules[OUTSTANDING] == 0:
        return 0
    for c in range(len(state.channels)):
        advance(rules, state, requests, c, cycle, 0, 0, 0)
    left = 0
    for place in range(flying):
        done = requests[DONE, flight[place]]
        if done < 0 or done >= cycle:
            flight[left] = flight[place]
            left += 1
    return left


@inlined
def _possible(
    rules: Numbers, state: State, requests: Numbers, cycle: int, window: Numbers, flight: Numbers, wanted: Numbers
) -> int:
    """The first cycle after this one in which one of the window's requests may be accepted.

    Of the channels that one of them waits for, the one that is behind goes on, until it cannot come any sooner.
    """
    best, limited = FAR, 0 < rules[OUTSTANDING] <= len(flight)
    if len(window) == 1 and not limited:
        return _possible_for(rules, state, requests, cycle, window[0])
    wanted[:] = 0
    for request in window:
        write = requests[WRITE, request]
        if requests[TIME, request] > cycle:
            best = min(best, requests[TIME, request])
        elif write or not limited:
            wanted[requests[CHANNEL_, request], write] = 1
    while True:
        for request in flight if limited else flight[:0]:
            if requests[DONE, request] >= 0:
                best = min(best, requests[DONE, request] + 1)
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
        until = soonest + 1 if limited else max(until, soonest + 1)
        room = rules[WAITING]
        if advance(rules, state, requests, c, until, room * wanted[c, 0], room * wanted[c, 1], 0):
            best = min(best, state.channels[c, CLOCK])


@inlined
def _possible_for(rules: Numbers, state: State, requests: Numbers, cycle: int, request: int) -> int:
    """The same for one request alone."""
    if requests[TIME, request] > cycle:
        return int(requests[TIME, request])
    c, write, room = requests[CHANNEL_, request], requests[WRITE, request], rules[WAITING]
    advance(rules, state, requests, c, FAR, room * (1 - write), room * write, 0)
    return int(state.channels[c, CLOCK])
