"""The action of `tpusim trace`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from pathlib import Path

from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.base.imports import need
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.jobs import Jobs
from tpusim.flow.recordings import recordings
from tpusim.flow.recordings import trace as simulated_trace
from tpusim.machines.lowered import LaneCycle
from tpusim.report.plots import KNOWN
from tpusim.report.trace.chrome import ChromeTrace
from tpusim.report.trace.lanes import (
    MOST_CYCLES,
    MOST_JSON_SLICES,
    MOST_LANE_CYCLES,
    MOST_SLICES,
    MOST_TIMELINE_CYCLES,
    lines,
    vcd,
)
from tpusim.report.trace.timeline import LayerSpan, TimelineForm, TracedWork, timeline
from tpusim.result.chips import shared_by

PERFETTO_FORMATS = (".perfetto-trace", ".pftrace")
TIMELINE_FORMATS = (*PERFETTO_FORMATS, ".json")
FORMATS = (".txt", *(f".{kind}" for kind in KNOWN), ".vcd", *TIMELINE_FORMATS)


@dataclass(frozen=True, slots=True)
class CycleWindow:
    """Cycles [first, last] to be traced; to the end if `last` is None."""

    jobs: Jobs
    seed: int
    first: int
    last: int | None

    @property
    def lanes(self) -> int:
        """Number of lanes of the machine; 0 if its trace can only be a timeline."""
        lanes = self.jobs.family.lanes(self.jobs.machine)
        return lanes.count if lanes else 0

    def end(self, total: int) -> int:
        """Return the cycle after the last one shown, of `total`.

        Raises:
            InputError: when none is left.
        """
        end = min(total, total if self.last is None else self.last + 1)
        if self.first < end:
            return end
        count = len(self.jobs.each)
        what = "the layer has" if count == 1 else f"the {count} layers have"
        says = f"{what if self.lanes else 'there are'} {total:,} cycles"
        raise InputError(f"--from {self.first}: {f'--to {self.last} comes before it' if self._backward else says}")

    def check(self, out: Path | None) -> None:
        """Raise InputError for a file of an unknown form, or of a form that the machine or this computer lacks."""
        if self.lanes and self._backward:
            raise InputError(f"--to {self.last} comes before --from {self.first}")
        if not self.lanes and (out is None or out.suffix not in TIMELINE_FORMATS):
            says = f"{self.jobs.hardware.label} is {self.jobs.family.title}, and a trace of it is a timeline"
            raise InputError(f"{says}; write it with --out FILE{PERFETTO_FORMATS[0]} or --out FILE.json")
        if out is None:
            return
        if out.suffix not in FORMATS:
            raise InputError(f"{out}: a trace is written as {', '.join(FORMATS)}, not as {out.suffix or 'no suffix'}")
        if out.suffix == ".vcd":
            need("a .vcd file", "pyvcd", "vcd")
        if out.suffix in PERFETTO_FORMATS:
            need(f"a {out.suffix} file", "perfetto", "perfetto.protos.perfetto.trace.perfetto_trace_pb2")
        probe(out)

    @property
    def _backward(self) -> bool:
        return self.last is not None and self.last < self.first


def print_or_write(wanted: CycleWindow, out: Path | None) -> None:
    """Print the trace as text, or write it in the form that the suffix of `out` names."""
    wanted.check(out)
    if out is not None:
        write(out, (_timeline if out.suffix in TIMELINE_FORMATS else _registers)(wanted, out))
        say(sys.stdout, str(out))
        return
    # Lines are printed as long as somebody reads them; progress is shown only before the first line.
    total, cycles = simulated_trace(wanted.jobs, wanted.seed)
    first, end = wanted.first, wanted.end(total)
    with Meter(first) as meter:

        def watch(done: int) -> None:
            if done < first:
                meter.show(done, "cycles")

        shown = _until(end, cycles(first, watch))
        head = next(shown)
    for line in lines(chain([head], shown)):
        if not say(sys.stdout, line):
            break


def _until(end: int, cycles: Iterator[LaneCycle]) -> Iterator[LaneCycle]:
    # One cycle more is asked for, so that a run to the end checks that it is the end.
    return takewhile(lambda cycle: cycle.number < end, cycles)


def _registers(wanted: CycleWindow, out: Path) -> bytes:
    """Return the content of the file, every lane in every cycle, from the register engine."""
    total, cycles = simulated_trace(wanted.jobs, wanted.seed)
    end = wanted.end(total)
    count, title = end - wanted.first, f"{wanted.jobs.work.name} {wanted.jobs.work.layers[0].name}"
    most = {".txt": count, ".vcd": MOST_LANE_CYCLES // wanted.lanes}.get(out.suffix, MOST_CYCLES)
    if count > most:
        what = f"of {wanted.lanes:,} lanes a VCD" if out.suffix == ".vcd" else "a picture"
        raise InputError(f"{out}: {what} holds {most:,} cycles, not {count:,}; use --from and --to")
    with Meter(end) as meter:
        shown = list(_until(end, cycles(wanted.first, lambda done: meter.show(done, "cycles"))))
        if out.suffix == ".txt":
            return "".join(f"{line}\n" for line in lines(shown)).encode()
        if out.suffix == ".vcd":
            return vcd(shown, title)
        # Imported here, because matplotlib takes longer to import than a run takes.
        from tpusim.report.plots.layer import traced

        return traced(shown, title, out.suffix[1:])


def _timeline(wanted: CycleWindow, out: Path) -> bytes:
    """Return the content of the file, every unit, layer after layer, from the event engine."""
    if out.suffix in PERFETTO_FORMATS:
        # Imported here, because it is an extra.
        from tpusim.report.trace.perfetto import PerfettoTrace

        form: TimelineForm = PerfettoTrace()
    else:
        form = ChromeTrace()
    placed, total = _placed(wanted, out)
    end = wanted.end(total)
    work, machine = wanted.jobs.work, wanted.jobs.machine
    size = ", ".join(filter(None, [f"batch {work.batch}", shared_by(work.chips)]))
    title = f"{work.name}, {size}, on {machine.label}"
    with Meter(sum(len(each.layers) for each in placed)) as meter:
        return timeline(
            form, title, placed, machine.clock_hz, wanted.first, end, lambda done: meter.show(done, "written")
        )


def _placed(wanted: CycleWindow, out: Path) -> tuple[list[TracedWork], int]:
    """Return the shown parts on one axis of time, and the number of cycles up to the end of the last."""
    most = MOST_SLICES if out.suffix in PERFETTO_FORMATS else MOST_JSON_SLICES
    placed: list[TracedWork] = []
    inputs = wanted.jobs.work.inputs() if wanted.lanes else {}
    at = cycles = slices = done = 0
    with Meter(len(wanted.jobs.each)) as meter:
        for stretch in recordings(wanted.jobs):
            run, last = stretch.recording, stretch.layers[-1].name
            first = max(wanted.first - at, 0)
            stop = run.cycles if wanted.last is None else min(run.cycles, wanted.last + 1 - at)
            if first < stop:
                cycles += stop - first
                if wanted.lanes:
                    _not_beyond(cycles, MOST_TIMELINE_CYCLES, "cycles", last, out)
                spans = tuple(
                    LayerSpan(layer.name, *span, inputs.get(layer.name, ()))
                    for layer, span in zip(stretch.layers, pairwise(stretch.cuts), strict=True)
                )
                placed.append(TracedWork(at, run.drawn(first, stop), spans))
                slices += placed[-1].drawing.slices(first, stop)
                _not_beyond(slices, most, "slices", last, out)
            at += run.cycles
            done += len(stretch.layers)
            meter.show(done, last)
            if wanted.last is not None and at > wanted.last:
                break
    return placed, at


def _not_beyond(count: int, most: int, what: str, layer: str, out: Path) -> None:
    """Raise InputError if a trace up to a layer has too much of something."""
    if count > most:
        larger = ", or write a .perfetto-trace, which holds more" if out.suffix == ".json" else ""
        raise InputError(
            f"{out}: a trace holds {most:,} {what}, and up to layer {layer} there are {count:,}; "
            f"use --layers, or --from and --to{larger}"
        )
