"""Time of an exchange by SimPy: every message is a process, and every server lets in one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import simpy

from tpusim.machines.tpu.slices.exchange import ExchangeLog, Messages

_LATE = 2
"""Priority of a look at a queue: behind all that happens in the same cycle, so that all who come are there."""


class _Server:
    """A server with a queue: at the end of a cycle it lets in who came first, of several at once the least step."""

    def __init__(self, env: Any) -> None:
        self._env, self._queue, self._free = env, list[tuple[int, int, int, int, simpy.Event]](), True

    def ask(self, step: int, at: int, message: int) -> simpy.Event:
        asked = simpy.Event(self._env)
        self._queue.append((int(self._env.now), step, at, message, asked))
        self._look()
        return asked

    def hold(self, cycles: int) -> Iterator[simpy.Event]:
        yield self._env.timeout(cycles)
        self._free = True
        self._look()

    def _look(self) -> None:
        late = simpy.Event(self._env)
        late._ok, late._value = True, None
        late.callbacks.append(lambda _: self._let_in())
        self._env.schedule(late, priority=_LATE)

    def _let_in(self) -> None:
        if self._free and self._queue:
            self._free = False
            first = min(self._queue, key=lambda each: each[:-1])
            self._queue.remove(first)
            first[-1].succeed()


def run(messages: Messages) -> ExchangeLog:
    """Return when every message visits what, as the event engine does."""
    env: Any = simpy.Environment()
    servers = [_Server(env) for _ in messages.servers]
    arrived = [env.event() for _ in messages.visits]
    log = ExchangeLog([[] for _ in messages.visits], [0] * len(messages.visits))

    def journey(message: int) -> Iterator[Any]:
        before = messages.after[message]
        if before:
            yield env.all_of([arrived[each] for each in before])
        else:
            yield env.timeout(messages.launch)
        for at, visit in enumerate(messages.visits[message]):
            server = servers[visit.server]
            yield server.ask(message % messages.steps, at, message)
            log.starts[message].append(int(env.now))
            env.process(server.hold(visit.holds))
            yield env.timeout(visit.passes)
        log.ends[message] = int(env.now)
        arrived[message].succeed()

    for message in range(len(messages.visits)):
        env.process(journey(message))
    env.run()
    return log
