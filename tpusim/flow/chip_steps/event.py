"""Time of a step from event to event: what happens between two of them is said in closed form."""

from __future__ import annotations

from collections import Counter, defaultdict

from tpusim.flow.chip_steps.schedule import CYCLE, StepLog, StepPlan, log_of

_NEVER = 2**200


def run(plan: StepPlan) -> StepLog:
    """Return when everything begins and is done."""
    return _Run(plan).log()


class _Run:
    """A step under way.

    Between events the debt of HBM grows by the same amount each cycle. Then, of n cycles, HBM belongs to collectives in
    as many as the debt has whole cycles, and in n at most.
    """

    def __init__(self, plan: StepPlan) -> None:
        self.plan, self.now = plan, 0
        self.missing = [len(each.after) + 1 for each in plan.collectives]
        self.left = [len(each.after) for each in plan.layers]
        self.waiting: list[int] = []
        self.under_way: list[tuple[int, int]] = []
        self.held: set[str] = set()
        self.kinds: Counter[str] = Counter()
        # What waits for a collective, and for a number of layers; each is looked at when that is done, and not before.
        self.layers_of, self.collectives_of = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        self.behind: dict[int, list[int]] = defaultdict(list)
        for at, layer in enumerate(plan.layers):
            for number in layer.after:
                self.layers_of[number].append(at)
        for number, each in enumerate(plan.collectives):
            self.behind[each.behind].append(number)
            for before in each.after:
                self.collectives_of[before].append(number)
        self.layer, self.runs, self.alone = 0, False, 0
        self.rest = self.slack = self.debt = self.rate = 0
        self.of_layers = [[0, 0] for _ in plan.layers]
        self.of_collectives = [[0, 0] for _ in plan.collectives]

    def log(self) -> StepLog:
        self._ready(self.behind[0])
        while True:
            self._begin()
            if not self.runs and not self.under_way:
                assert self.layer == len(self.plan.layers), "a plan has no circle"
                return log_of(self.of_layers, self.of_collectives)
            self._pass(min(self._until_layer(), self._until_collective()))
            self._end()

    # ---- what begins

    def _begin(self) -> None:
        plan = self.plan
        if self.waiting:
            self._begin_collectives()
        if self.runs or self.layer == len(plan.layers) or self.left[self.layer]:
            return
        if not self.alone and (plan.beside or not self.under_way):
            layer = plan.layers[self.layer]
            self.runs, self.rest, self.slack = True, layer.cycles, layer.cycles - layer.hbm
            self.of_layers[self.layer][0] = self.now

    def _begin_collectives(self) -> None:
        plan, kept, claimed = self.plan, list[int](), set(self.held)
        for number in self.waiting:
            each = plan.collectives[number]
            if not plan.beside and (self.runs or self.under_way):
                kept.append(number)
            elif not claimed.isdisjoint(each.holds) or (each.alone and (self.runs or self.alone)):
                # Later ones leave these links to it, or it might wait for two of them for ever.
                claimed.update(each.holds)
                kept.append(number)
            elif self.kinds[each.kind] >= plan.most.get(each.kind, _NEVER):
                kept.append(number)
            else:
                claimed.update(each.holds)
                self.held.update(each.holds)
                self.kinds[each.kind] += 1
                self.rate += each.rate
                self.alone += each.alone
                self.under_way.append((self.now + each.cycles, number))
                self.of_collectives[number] = [self.now, self.now + each.cycles]
        self.waiting = kept

    # ---- time passes

    def _until_collective(self) -> int:
        return min(self.under_way)[0] - self.now if self.under_way else _NEVER

    def _until_layer(self) -> int:
        """The cycles in which the layer would be done if nothing else happened.

        Of n cycles it stands still in all of those that belong to collectives, but for its slack.
        """
        if not self.runs:
            return _NEVER
        # Without an end of slack it needs as many cycles as it has left, whoever has HBM meanwhile.
        least = self.rest
        if (wanted := self.rest - self.slack) > 0:
            if self.rate >= CYCLE:
                return _NEVER
            least = max(least, ((wanted - 1) * CYCLE + self.debt) // (CYCLE - self.rate) + 1)
        return least

    def _pass(self, cycles: int) -> None:
        self.now += cycles
        self.debt += cycles * self.rate
        of_collectives = min(cycles, self.debt // CYCLE)
        self.debt -= of_collectives * CYCLE
        if self.runs:
            still = max(0, of_collectives - self.slack)
            self.slack -= of_collectives - still
            self.rest -= cycles - still

    # ---- what ends

    def _end(self) -> None:
        # All that end come before whatever that makes ready, so that those wait in their order.
        done = sorted(number for end, number in self.under_way if end == self.now)
        self.under_way = [each for each in self.under_way if each[0] > self.now]
        ready: list[int] = []
        for number in done:
            each = self.plan.collectives[number]
            self.held.difference_update(each.holds)
            self.kinds[each.kind] -= 1
            self.alone -= each.alone
            self.rate -= each.rate
            ready += self.collectives_of[number]
            for at in self.layers_of[number]:
                self.left[at] -= 1
        if self.runs and not self.rest:
            self.of_layers[self.layer][1] = self.now
            self.runs, self.layer = False, self.layer + 1
            ready += self.behind[self.layer]
        self._ready(ready)

    def _ready(self, told: list[int]) -> None:
        found = []
        for number in told:
            self.missing[number] -= 1
            if not self.missing[number]:
                found.append(number)
        self.waiting += sorted(found)
