"""An exchange register by register: every chip of the group, its links, memory and adder, in every cycle; and values.

A server is a counter of the cycles that it is still held, and a queue. A message on its way is a counter of the cycles
until it asks the next server, and a register with what was read. Nothing is known ahead of its cycle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.slices.exchange import Exchange, ExchangeLog, Messages
from tpusim.machines.tpu.slices.values import Memories


def run(exchange: Exchange, messages: Messages, memories: Memories | None = None) -> ExchangeLog:
    """Return when every message visits what; `memories` of every chip take what arrives in the cycle it does.

    `messages` are those of every chip.
    """
    steps, many = messages.steps, len(messages.visits)
    held = np.zeros(len(messages.servers), dtype=np.int64)
    queues: list[list[tuple[int, int, int, int]]] = [[] for _ in messages.servers]
    coming = np.full(many, -1, dtype=np.int64)
    at = [0] * many
    missing = [len(each) for each in messages.after]
    carried: dict[int, NDArray[np.float64]] = {}
    log = ExchangeLog([[] for _ in messages.visits], [0] * many)
    for message, before in enumerate(messages.after):
        if not before:
            coming[message] = messages.launch
    left, cycle = many, 0
    while left:
        # Messages whose counter has run out ask their next server, or have arrived.
        for message in np.flatnonzero(coming == 0).tolist():
            coming[message] = -1
            if at[message] < len(messages.visits[message]):
                asked = messages.visits[message][at[message]].server
                queues[asked].append((cycle, message % steps, at[message], message))
                continue
            log.ends[message] = cycle
            left -= 1
            if memories is not None:
                place, step = messages.places[message // steps], exchange.steps[message % steps]
                memories.put(step.way.to(place), step.piece(place), carried.pop(message))
            for waiter in messages.waiters[message]:
                missing[waiter] -= 1
                if not missing[waiter]:
                    asked = messages.visits[waiter][0].server
                    queues[asked].append((cycle, waiter % steps, 0, waiter))
        # Every server that nobody holds lets in who came first.
        for server, queue in enumerate(queues):
            if queue and held[server] == 0:
                first = min(queue)
                queue.remove(first)
                message = first[-1]
                _, holds, passes = messages.visits[message][at[message]]
                held[server], coming[message] = holds, passes
                log.starts[message].append(cycle)
                if at[message] == 0 and memories is not None:
                    place = messages.places[message // steps]
                    carried[message] = memories.read(place, exchange.steps[message % steps].piece(place))
                at[message] += 1
        held[held > 0] -= 1
        coming[coming > 0] -= 1
        cycle += 1
    return log
