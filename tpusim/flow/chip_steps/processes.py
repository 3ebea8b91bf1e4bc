"""Time of a step by SimPy, for people who want to read the rules: layers are a process, and so is each collective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import simpy

from tpusim.flow.chip_steps.schedule import CYCLE, StepCollective, StepLog, StepPlan, log_of

_COLLECTIVES, _LAYERS = 2, 3
"""Priorities of what begins, behind all that ends in the same cycle: collectives ahead of layers."""


class _Chip:
    """A chip: what is under way, who waits, and the debt of HBM."""

    def __init__(self, plan: StepPlan) -> None:
        self.env: Any = simpy.Environment()
        self.plan = plan
        self.layer_runs = False
        self.under_way: list[StepCollective] = []
        self.queue: list[tuple[int, int, simpy.Event]] = []
        self.debt, self.counted = 0, 0
        self.changed: simpy.Event = self.env.event()

    def behind_all(self, priority: int) -> simpy.Event:
        """Return an event of this cycle that comes behind all that ends in it."""
        late = simpy.Event(self.env)
        late._ok, late._value = True, None
        self.env.schedule(late, priority=priority)
        return late

    def ask(self, number: int) -> simpy.Event:
        """Return an event that comes when a collective may begin."""
        asked = simpy.Event(self.env)
        self.queue.append((int(self.env.now), number, asked))
        self.look()
        return asked

    def look(self) -> None:
        """Look, at the end of this cycle's events, whom links may serve."""
        late = self.behind_all(_COLLECTIVES)
        assert late.callbacks is not None
        late.callbacks.append(lambda _: self._serve())

    def _serve(self) -> None:
        taken = {link for each in self.under_way for link in each.holds}
        for entry in sorted(self.queue, key=lambda each: each[:2]):
            each = self.plan.collectives[entry[1]]
            if not self.plan.beside and (self.layer_runs or self.under_way):
                return
            busy = each.alone and (self.layer_runs or self.core_is_taken)
            if busy or taken & {*each.holds}:
                taken |= {*each.holds}
                continue
            alike = sum(other.kind == each.kind for other in self.under_way)
            if each.kind in self.plan.most and alike >= self.plan.most[each.kind]:
                continue
            taken |= {*each.holds}
            self.queue.remove(entry)
            self.count()
            self.under_way.append(each)
            self.tell()
            entry[2].succeed()

    @property
    def core_is_taken(self) -> bool:
        """Whether a collective is under way beside which no layer runs."""
        return any(each.alone for each in self.under_way)

    def end(self, each: StepCollective) -> None:
        """Note that a collective is done."""
        self.count()
        self.under_way.remove(each)
        self.tell()
        self.look()

    def tell(self) -> None:
        """Tell whoever counts on what is under way that it has changed."""
        changed, self.changed = self.changed, self.env.event()
        changed.succeed()

    @property
    def rate(self) -> int:
        """What a cycle adds to the debt."""
        return sum(each.rate for each in self.under_way)

    def belong(self, cycles: int) -> int:
        """Return how many of the cycles behind those that are counted belong to collectives."""
        return min(cycles, (self.debt + cycles * self.rate) // CYCLE)

    def count(self) -> int:
        """Count the cycles that have passed; return how many of them belonged to collectives."""
        passed = int(self.env.now) - self.counted
        found = self.belong(passed)
        self.debt += passed * self.rate - found * CYCLE
        self.counted += passed
        return found


def run(plan: StepPlan) -> StepLog:
    """Return when everything begins and is done, as the event engine does."""
    chip = _Chip(plan)
    env = chip.env
    collectives_done = [env.event() for _ in plan.collectives]
    layers_done = [env.event() for _ in plan.layers]
    layers, collectives = [[0, 0] for _ in plan.layers], [[0, 0] for _ in plan.collectives]

    def collective(number: int) -> Iterator[Any]:
        own = plan.collectives[number]
        yield env.all_of([*layers_done[: own.behind][-1:], *(collectives_done[before] for before in own.after)])
        yield chip.ask(number)
        collectives[number][0] = int(env.now)
        yield env.timeout(own.cycles)
        collectives[number][1] = int(env.now)
        chip.end(own)
        collectives_done[number].succeed()

    def every_layer() -> Iterator[Any]:
        for at, own in enumerate(plan.layers):
            yield env.all_of([collectives_done[number] for number in own.after])
            # Without overlap a collective that could begin goes first.
            yield chip.behind_all(_LAYERS)
            while chip.core_is_taken or (not plan.beside and chip.under_way):
                yield chip.changed
                yield chip.behind_all(_LAYERS)
            layers[at][0] = int(env.now)
            chip.layer_runs = True
            yield from one_layer(own.cycles, own.cycles - own.hbm)
            chip.layer_runs = False
            layers[at][1] = int(env.now)
            chip.look()
            layers_done[at].succeed()

    def one_layer(rest: int, slack: int) -> Iterator[Any]:
        chip.count()
        while rest:
            began, debt, rate = int(env.now), chip.debt, chip.rate
            # Where HBM always belongs to collectives, a layer without slack waits until that changes.
            waits = rate >= CYCLE and slack < rest
            ends = [] if waits else [env.timeout(_least(rest, slack, chip.belong))]
            yield env.any_of([chip.changed, *ends])
            passed = int(env.now) - began
            belonged = min(passed, (debt + passed * rate) // CYCLE)
            still = max(0, belonged - slack)
            slack -= belonged - still
            rest -= passed - still
            chip.count()

    for number in range(len(plan.collectives)):
        env.process(collective(number))
    env.process(every_layer())
    env.run()
    return log_of(layers, collectives)


def _least(wanted: int, slack: int, belong: Callable[[int], int]) -> int:
    """Return the least cycles in which a layer goes on by as many as are wanted."""

    def goes_on(cycles: int) -> int:
        return cycles - max(0, belong(cycles) - slack)

    least = most = wanted
    while goes_on(most) < wanted:
        most *= 2
    while least < most:
        half = (least + most) // 2
        least, most = (least, half) if goes_on(half) >= wanted else (half + 1, most)
    return least
