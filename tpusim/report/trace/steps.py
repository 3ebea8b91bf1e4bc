"""A timeline of a step of several chips: the layers of a chip, and what links carry beside them."""

from __future__ import annotations

from tpusim.flow.chip_steps.network import TimedPlan
from tpusim.machines.lowered import TimeSlice
from tpusim.report.trace.timeline import Arguments, TimelineForm, root_of

_NAMES = {"dcn": "network", "host_out": "to the host", "host_back": "from the host"}
_LAYERS = "Layers, one after another; gaps are cycles in which the chip waits for collectives."


def step_timeline(form: TimelineForm, title: str, clock_hz: int, made: TimedPlan, first: int, stop: int) -> bytes:
    """Return a file of this form: layers, and the collectives on each link that they hold, of cycles [first, stop)."""
    plan, log = made.plan, made.log
    root = root_of(form, title, clock_hz)

    def shown(name: str, span: tuple[int, int], number: int) -> TimeSlice | None:
        begin, end = max(first, span[0]), min(stop, span[1])
        return TimeSlice(begin, end, name, number) if begin < end else None

    track = form.track("layer", _LAYERS, root)
    told: list[Arguments] = [{"cycles": each.cycles, "cycles_of_hbm": each.hbm} for each in plan.layers]
    layers = (shown(each.name, span, at) for at, (each, span) in enumerate(zip(plan.layers, log.layers, strict=True)))
    form.slices(track, [each for each in layers if each], told, 0)
    about: list[Arguments] = [
        {"cycles": each.cycles, "cycles_of_hbm": each.hbm, "cycles_waited_for": waited, "holds": ", ".join(each.holds)}
        for each, waited in zip(plan.collectives, made.exposed, strict=True)
    ]
    for link in dict.fromkeys(link for each in plan.collectives for link in each.holds):
        name = _NAMES.get(link, f"links of {link}")
        track = form.track(name, "Collectives that hold it, one at a time.", root)
        every = sorted((span, at) for at, span in enumerate(log.collectives) if link in plan.collectives[at].holds)
        held = (shown(plan.collectives[at].name, span, at) for span, at in every)
        form.slices(track, [each for each in held if each], about, 0)
    return form.to_bytes()
