"""How long a collective takes on a slice: all of its passes, or those that settle what a pass takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tpusim.machines.tpu.slices import event
from tpusim.machines.tpu.slices.algorithms.registry import exchange_of
from tpusim.machines.tpu.slices.collective import Collective
from tpusim.machines.tpu.slices.exchange import Exchange, ExchangeLog, Messages, Rates, messages_of

_SETTLING = 3
"""Passes at the start that may differ from others."""


@dataclass(frozen=True, eq=False)
class TimedExchange:
    """An exchange with its messages and what happened to them; of `left_out` passes, each as long as the last.

    Attributes:
        exchange: the steps.
        messages: the messages of a chip of each kind.
        log: when they were where.
        left_out: passes that are not among them.
        period: cycles from a pass to the next.
    """

    exchange: Exchange
    messages: Messages
    log: ExchangeLog
    left_out: int = 0
    period: int = 0

    @property
    def cycles(self) -> int:
        """Cycles of the whole collective."""
        return self.log.cycles + self.left_out * self.period

    @cached_property
    def held(self) -> list[int]:
        """Cycles for which each server is held."""
        found = [0] * len(self.messages.servers)
        many = self.messages.steps // self.exchange.written
        for message, visits in enumerate(self.messages.visits):
            # The last pass stands for those that are left out.
            is_last = message % self.messages.steps >= self.messages.steps - many
            times = 1 + self.left_out * is_last
            for server, holds, _ in visits:
                found[server] += holds * times
        return found


def timed(collective: Collective, algorithm: str, rates: Rates, whole: bool = False) -> TimedExchange:
    """Return the time of a collective by an algorithm; the `whole`, or with the passes left out that repeat others."""
    under_way = collective.emitters.passes
    written = _SETTLING + 1 + 2 * under_way
    few = replace(collective, written=written)
    # What does not repeat is simulated twice, so that a try has to save a good part.
    if not whole and exchange_of(few, algorithm).passes > 2 * written:
        tried = _run(few, algorithm, rates)
        if (period := _period(tried, under_way)) is not None:
            return replace(tried, left_out=tried.exchange.passes - tried.exchange.written, period=period)
    return _run(collective, algorithm, rates)


def _run(collective: Collective, algorithm: str, rates: Rates) -> TimedExchange:
    exchange = exchange_of(collective, algorithm)
    messages = messages_of(exchange, rates, collective.element_bytes)
    return TimedExchange(exchange, messages, event.run(messages))


def _period(few: TimedExchange, under_way: int) -> int | None:
    """Return how much later each message of a pass is than that of the pass before, if all agree for one pass more than
    are under way at once: then nothing is left that could tell the next pass from them.

    The last passes do not count, as nothing comes behind them.
    """
    steps, many = few.messages.steps, few.messages.steps // few.exchange.written
    starts, ends = few.log.starts, few.log.ends
    found = set()
    for first in range(0, len(ends), steps):
        for message in range(first + _SETTLING * many, first + steps - under_way * many):
            found |= {now - then for now, then in zip(starts[message], starts[message - many], strict=True)}
            found.add(ends[message] - ends[message - many])
            if len(found) > 1:
                return None
    return found.pop()
