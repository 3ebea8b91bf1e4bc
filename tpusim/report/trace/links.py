"""A timeline of a collective: what the chip does that is done last, its links, its memory, and what adds there."""

from __future__ import annotations

from collections import defaultdict

from tpusim.machines.lowered import TimeSlice
from tpusim.machines.tpu.slices.summary import CollectiveTime, segments, timed_collective
from tpusim.report.tables.collective import WAYS, asked
from tpusim.report.trace.timeline import Arguments, TimelineForm, root_of
from tpusim.result.vocabulary.states import CHIP_STATES

_ABOUT = {
    "link": "Bytes that this chip sends over the link, its own and those that pass through.",
    "memory": "Bytes that DMA reads from HBM and writes to it.",
    "adder": "Sums of what has come and what stands there.",
}


def link_timeline(form: TimelineForm, made: CollectiveTime) -> bytes:
    """Return a file of this form: every pass of the collective."""
    whole = timed_collective(made.question, whole=True)
    timing = whole.timing
    own = timing.messages.places[whole.last_chip]
    root = root_of(form, asked(made), made.question.place.chip.clock_hz)
    chip = form.track("chip", "What the chip does; the first that holds of: carries, adds, moves, waits.", root)
    doing = [TimeSlice(begin, end, CHIP_STATES[state].label, -1)
             for begin, end, state in segments(timing, whole.last_chip, 0, whole.cycles)]  # fmt: skip
    form.slices(chip, doing, [], 0)
    axes = timing.exchange.group.torus.axes
    held: dict[str, list[TimeSlice]] = defaultdict(list)
    told: list[Arguments] = [
        {"step": step.label, "elements": step.elements, "bytes": step.elements * made.question.element_bytes}
        for step in timing.exchange.steps
    ]
    units: dict[str, str] = {}
    for message, visits in enumerate(timing.messages.visits):
        step = message % timing.messages.steps
        for visit, start in zip(visits, timing.log.starts[message], strict=True):
            name = timing.messages.servers[visit.server]
            if name.place != own:
                continue
            port = name.port
            lane = name.unit if port is None else f"link {axes[port.axis].name}{WAYS[port.way]}"
            units[lane] = name.unit
            held[lane].append(TimeSlice(start, start + visit.holds, timing.exchange.steps[step].label, step))
    for lane in sorted(held):
        track = form.track(lane, _ABOUT[units[lane]], root)
        form.slices(track, sorted(held[lane], key=lambda each: each.start), told, 0)
    return form.to_bytes()
