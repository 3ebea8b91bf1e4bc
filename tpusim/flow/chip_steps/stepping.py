"""Time of a step cycle by cycle: nothing is known ahead, and everything is counted down."""

from __future__ import annotations

from tpusim.flow.chip_steps.schedule import CYCLE, StepCollective, StepLog, StepPlan, log_of


def run(plan: StepPlan) -> StepLog:
    """Return when everything begins and is done, as the event engine does."""
    step = _ClockedStep(plan)
    while step.layer < len(plan.layers) or len(step.done) < len(plan.collectives):
        step.begin_collectives()
        step.begin_layer()
        step.tick()
    return log_of(step.of_layers, step.of_collectives)


class _ClockedStep:
    """A step under way: what waits, what runs, and how many cycles each has left."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan, self.cycle = plan, 0
        self.of_layers = [[0, 0] for _ in plan.layers]
        self.of_collectives = [[0, 0] for _ in plan.collectives]
        self.left = [each.cycles for each in plan.collectives]
        self.waiting: list[int] = []
        self.under_way: list[int] = []
        self.done: set[int] = set()
        self.layer, self.runs = 0, False
        self.rest = self.slack = self.debt = 0

    def begin_collectives(self) -> None:
        """Let those that are ready wait in order, and begin those whose links are free."""
        came = self.done.union(self.waiting, self.under_way)
        for number, each in enumerate(self.plan.collectives):
            if number not in came and each.behind <= self.layer and self.done.issuperset(each.after):
                self.waiting.append(number)
        taken = {link for each in self._running() for link in each.holds}
        for number in [*self.waiting]:
            own = self.plan.collectives[number]
            if not self.plan.beside and (self.runs or self.under_way):
                return
            free = taken.isdisjoint(own.holds) and not (own.alone and (self.runs or self._core_taken()))
            alike = sum(each.kind == own.kind for each in self._running())
            if free and alike >= self.plan.most.get(own.kind, alike + 1):
                continue
            # What begins holds its links, and what waits for one keeps those behind it from all that it will hold.
            taken.update(own.holds)
            if free:
                self.waiting.remove(number)
                self.under_way.append(number)
                self.of_collectives[number][0] = self.cycle

    def begin_layer(self) -> None:
        """Begin the next layer where nothing is missing."""
        if self.runs or self.layer == len(self.plan.layers) or self._core_taken():
            return
        layer = self.plan.layers[self.layer]
        if self.done.issuperset(layer.after) and (self.plan.beside or not self.under_way):
            self.runs, self.rest, self.slack = True, layer.cycles, layer.cycles - layer.hbm
            self.of_layers[self.layer][0] = self.cycle

    def tick(self) -> None:
        """Let a cycle pass: what is under way asks for its part of HBM, whether or not a layer runs."""
        self.debt += sum(each.rate for each in self._running())
        # The slack of a layer is counted down with each cycle that it can do without HBM.
        goes_on = True
        if self.debt >= CYCLE:
            self.debt -= CYCLE
            goes_on, self.slack = self.slack > 0, self.slack - 1
        self.rest -= self.runs and goes_on
        self.cycle += 1
        for number in [*self.under_way]:
            self.left[number] -= 1
            if not self.left[number]:
                self.under_way.remove(number)
                self.done.add(number)
                self.of_collectives[number][1] = self.cycle
        if self.runs and not self.rest:
            self.runs = False
            self.of_layers[self.layer][1] = self.cycle
            self.layer += 1

    def _running(self) -> list[StepCollective]:
        return [self.plan.collectives[number] for number in self.under_way]

    def _core_taken(self) -> bool:
        return any(each.alone for each in self._running())
