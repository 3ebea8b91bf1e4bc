"""Time of an exchange, from event to event: a queue of visits in the order of their times."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from tpusim.machines.tpu.slices.exchange import ExchangeLog, Messages


def run(messages: Messages) -> ExchangeLog:
    """Return when every message visits what: each server takes them in the order in which they come, those that come in
    one cycle by the number of their step.
    """
    visits, steps, waiters = messages.visits, messages.steps, messages.waiters
    free = [0] * len(messages.servers)
    missing = [len(each) for each in messages.after]
    starts: list[list[int]] = [[] for _ in visits]
    ends = [0] * len(visits)
    # Times, then what decides among those that come at once: step, visit, chip.
    queue = [(messages.launch, m % steps, 0, m) for m, many in enumerate(missing) if not many]
    heapify(queue)
    while queue:
        time, step, at, message = heappop(queue)
        server, holds, passes = visits[message][at]
        start = max(time, free[server])
        free[server] = start + holds
        starts[message].append(start)
        at += 1
        if at < len(visits[message]):
            heappush(queue, (start + passes, step, at, message))
            continue
        ends[message] = start + passes
        for waiter in waiters[message]:
            missing[waiter] -= 1
            if not missing[waiter]:
                # The last to arrive need not be the last that is looked at.
                ready = max(ends[each] for each in messages.after[waiter])
                heappush(queue, (ready, waiter % steps, 0, waiter))
    return ExchangeLog(starts, ends)
