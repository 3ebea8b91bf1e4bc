"""The one-pass model of what reaches the channels: which request is accepted in which cycle.

`state` has a row for each channel; the rest is as in `events`.
"""

from __future__ import annotations

from tpusim.memory.dram.events import step
from tpusim.memory.dram.kernel import kernel, part
from tpusim.memory.dram.rules import FAR, OUTSTANDING, PER_CYCLE, WAITING, Numbers
from tpusim.memory.dram.state import (
    ACCEPTED,
    CHANNEL_,
    CLOCK,
    COMPLETE,
    DONE,
    NEXT,
    QUEUED,
    READS,
    TIME,
    WRITE,
    WRITES,
)
from tpusim.memory.dram.transactions import take_in


@kernel
def serve(
    rules: Numbers, state: Numbers, requests: Numbers, first: int, size: int, begin: int, already: int,
    window: Numbers, flight: Numbers, wanted: Numbers,
) -> tuple[int, int]:  # fmt: skip
    """Accept all requests, from cycle `begin` on, in which `already` have been, and serve them to the last.

    Returns the cycle of the last acceptance, and how many there were in it. The last three are room to work in: for
    `lookahead` requests, for those under way, and for two marks a channel.
    """
    state[:, COMPLETE] = 0
    flying = left = upcoming = 0
    cycle, taken = begin, already
    while True:
        flying = _arrived(rules, state, requests, first, size, cycle, flight, flying)
        upcoming, left, taken, flying = _accept(
            rules, state, requests, first, size, cycle, window, left, upcoming, taken, flight, flying
        )
        if left == 0 and upcoming == len(requests):
            break
        if taken == rules[PER_CYCLE]:
            cycle += 1
        else:
            cycle = _possible(rules, state, requests, first, size, cycle, window[:left], flight[:flying], wanted)
        taken = 0
    for c in range(len(state)):
        while state[c, READS] + state[c, WRITES] + state[c, QUEUED]:
            step(rules, state[c], requests, first, size)
    return cycle, taken


@kernel
def settle(rules: Numbers, state: Numbers, requests: Numbers, first: int, size: int, before: int) -> None:
    """Let channels that have nothing to serve refresh themselves up to a cycle."""
    for c in range(len(state)):
        while state[c, NEXT] < before:
            step(rules, state[c], requests, first, size)


@kernel
def _accept(
    rules: Numbers, state: Numbers, requests: Numbers, first: int, size: int, cycle: int,
    window: Numbers, held: int, upcoming: int, taken: int, flight: Numbers, flying: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Accept in one cycle what can be of the oldest requests: those of the window, and those that move up."""
    left = place = 0
    while taken < rules[PER_CYCLE] and (place < held or (upcoming < len(requests) and left < len(window))):
        request = window[place] if place < held else upcoming
        upcoming += place >= held
        place += 1
        c, read = requests[request, CHANNEL_], requests[request, WRITE] == 0
        coming = requests[request, TIME] <= cycle and not (read and 0 < rules[OUTSTANDING] <= flying)
        if coming:
            while state[c, NEXT] < cycle:
                step(rules, state[c], requests, first, size)
        if coming and state[c, READS if read else WRITES] < rules[WAITING]:
            requests[request, ACCEPTED] = cycle
            take_in(state[c], requests, request, cycle, first, size)
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


@part
def _arrived(
    rules: Numbers, state: Numbers, requests: Numbers, first: int, size: int, cycle: int, flight: Numbers, flying: int
) -> int:
    """Forget reads that were done before this cycle; how many are still under way."""
    if rules[OUTSTANDING] == 0:
        return 0
    for c in range(len(state)):
        while state[c, NEXT] < cycle:
            step(rules, state[c], requests, first, size)
    left = 0
    for place in range(flying):
        done = requests[flight[place], DONE]
        if done < 0 or done >= cycle:
            flight[left] = flight[place]
            left += 1
    return left


@kernel
def _possible(
    rules: Numbers, state: Numbers, requests: Numbers, first: int, size: int, cycle: int, window: Numbers,
    flight: Numbers, wanted: Numbers,
) -> int:  # fmt: skip
    """The first cycle after this one in which one of the window's requests may be accepted.

    Of the channels that one of them waits for, the one that is behind goes on, until it cannot come any sooner.
    """
    wanted[:] = 0
    best, limited = FAR, 0 < rules[OUTSTANDING] <= len(flight)
    for request in window:
        write = requests[request, WRITE]
        if requests[request, TIME] > cycle:
            best = min(best, requests[request, TIME])
        elif write or not limited:
            wanted[requests[request, CHANNEL_], write] = 1
    while True:
        for request in flight if limited else flight[:0]:
            if requests[request, DONE] >= 0:
                best = min(best, requests[request, DONE] + 1)
        c, soonest = -1, best - 1
        for other in range(len(state)):
            if state[other, NEXT] < soonest and (limited or wanted[other, 0] or wanted[other, 1]):
                c, soonest = other, state[other, NEXT]
        if c < 0:
            return best
        step(rules, state[c], requests, first, size)
        m = state[c]
        if (wanted[c, 0] and m[READS] < rules[WAITING]) or (wanted[c, 1] and m[WRITES] < rules[WAITING]):
            best = min(best, m[CLOCK])
