"""Time of a step cycle by cycle: nothing is known ahead, and everything is counted down."""

from __future__ import annotations

from tpusim.flow.steps.schedule import CYCLE, StepLog, StepPlan, log_of


def run(plan: StepPlan) -> StepLog:
    """Return when everything begins and is done, as the event engine does."""
    layers, collectives = [[0, 0] for _ in plan.layers], [[0, 0] for _ in plan.collectives]
    done = [False] * len(collectives)
    left = [each.cycles for each in plan.collectives]
    came: dict[int, int] = {}
    under_way: list[int] = []
    layer, runs, rest, slack, debt, cycle = 0, False, 0, 0, 0, 0
    while layer < len(layers) or not all(done):
        # Who is ready joins those who wait.
        for number, each in enumerate(plan.collectives):
            if number not in came and each.behind <= layer and all(done[before] for before in each.after):
                came[number] = cycle
        # Links serve them in order.
        taken = {link for number in under_way for link in plan.collectives[number].holds}
        for number in sorted(came, key=lambda each: (came[each], each)):
            own = plan.collectives[number]
            if done[number] or number in under_way or (not plan.beside and (runs or under_way)):
                continue
            alike = sum(plan.collectives[other].kind == own.kind for other in under_way)
            taken_core = runs or any(plan.collectives[other].alone for other in under_way)
            free = not taken & {*own.holds} and not (own.alone and taken_core)
            if free and not (own.kind in plan.most and alike >= plan.most[own.kind]):
                under_way.append(number)
                collectives[number][0] = cycle
                taken |= {*own.holds}
            elif not free:
                taken |= {*own.holds}
        # The next layer begins where nothing is missing.
        may = layer < len(layers) and all(done[number] for number in plan.layers[layer].after)
        alone = any(plan.collectives[number].alone for number in under_way)
        if may and not runs and not alone and (plan.beside or not under_way):
            runs, rest = True, plan.layers[layer].cycles
            slack = rest - plan.layers[layer].hbm
            layers[layer][0] = cycle
        # A cycle passes: what is under way asks for its part of HBM, whether or not a layer runs.
        debt += sum(plan.collectives[number].rate for number in under_way)
        # The slack of a layer is counted down with each cycle that it can do without HBM.
        goes_on = True
        if debt >= CYCLE:
            debt -= CYCLE
            goes_on, slack = slack > 0, slack - 1
        rest -= runs and goes_on
        cycle += 1
        for number in [*under_way]:
            left[number] -= 1
            if not left[number]:
                under_way.remove(number)
                done[number] = True
                collectives[number][1] = cycle
        if runs and not rest:
            runs = False
            layers[layer][1] = cycle
            layer += 1
    return log_of(layers, collectives)
