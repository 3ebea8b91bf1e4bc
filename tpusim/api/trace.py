"""`tpusim trace`: what a machine does, cycle by cycle, as text, or as a file of some form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tpusim.api.asked import (
    MachineName,
    Note,
    Progress,
    SliceName,
    WorkloadName,
    WorkloadOptions,
    asked_for,
    model_options,
    notes_of,
    resolved,
)
from tpusim.base.errors import InputError, Problem
from tpusim.base.files import named, probe, write
from tpusim.base.imports import need
from tpusim.flow.chip_steps.network import exchanges_of, plan_of
from tpusim.flow.jobs import Jobs
from tpusim.flow.recordings import recordings
from tpusim.flow.recordings import trace as simulated_trace
from tpusim.flow.simulation import layers_of
from tpusim.input.scalars import whole_number
from tpusim.machines.family import Machine
from tpusim.machines.lowered import LaneCycle, unheard
from tpusim.network.workload import Workload
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
from tpusim.report.trace.steps import step_timeline
from tpusim.report.trace.timeline import LayerSpan, TimelineForm, TracedWork, timeline
from tpusim.result.chips import shared_by

if TYPE_CHECKING:
    from tpusim.input.form import Overrides
    from tpusim.machines.tpu.slices.slice import ChipSlice

_MOST_CYCLE = 2**63 - 1
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


def trace(
    workload: WorkloadName | Workload,
    hardware: MachineName | Machine | None = None,
    out: str | Path | None = None,
    *,
    batch: int | None = None,
    lowering: str | None = None,
    layers: str = "*",
    set: Overrides | None = None,
    slice: SliceName | None = None,
    seed: int = 0,
    first: int = 0,
    last: int | None = None,
    progress: Progress = unheard,
    note: Note = unheard,
    **options: Unpack[WorkloadOptions],
) -> TraceLines:
    """Show what a machine does cycle by cycle, as `tpusim trace` does.

    As text: what every lane does in every cycle of one layer, which comes line by line, as long as it is read. With
    `out` a file is written, in the form of its suffix.

    Args:
        workload: a name that `tpusim list` shows, a path, FILE.py:FUNCTION of JAX, or what `load_workload` returns.
        hardware: a name, a path, or what `load_hardware` returns; None: tpu_v2.
        out: a file that ends with .txt, .png, .svg, .pdf, .vcd, .perfetto-trace, .pftrace or .json.
        batch: images at a time.
        lowering: how layers become passes, as for `simulate`.
        layers: names of the layers, as a pattern, or the first and the last: conv1..maxpool.
        set: fields of the machine to change, as for `load_hardware`; and those of the slice, as slice.FIELD.
        slice: the chips that share the network; then `out` is a timeline of a step, its layers and collectives.
        seed: of the random operands.
        first: first cycle shown.
        last: last cycle shown; None: to the end.
        progress: called before each step with steps done, all steps, and what is next.
        note: called with what there is to know of the workload and the machine.
        options: those of the workload, where it is given by name: dims, phase, weights, caches, skip_unknown, ops,
            shapes, training, keep, offload, optimizer.

    Raises:
        InputError: with every problem of what is given, more cycles or layers than the form holds, or the file cannot
            be written.

    Examples:
        >>> import tpusim
        >>> for line in tpusim.trace("tiny", "tiny_4x4", batch=2, layers="fig10", first=27, last=28):
        ...     print(line)  # doctest: +NORMALIZE_WHITESPACE
        lanes: R reads ifmap, p reads pointers, P reads a partial sum, W writes a
               result, v works for the vector unit, k reads weights, f is filled, s is
               spilled, - leaves its slot unused (padding, or no part in the step).
        PEs: PEs that hold an activation (zeros of unused rows and columns included).
        weights: weights on their way.
          cycle  lanes    PEs  weights
             27  WRfR      16        6
             28  RWRf      16        3
    """
    asked = asked_for(workload, hardware, batch, set, model_options(**options), note, slice)
    jobs = resolved(asked.work, asked.machine, lowering, layers, progress=progress).picked(layers)
    for each in notes_of(jobs.work, asked.unnamed):
        note(each)
    for name, cycle in {"--from": first, "--to": 0 if last is None else last}.items():
        try:
            whole_number(cycle, 0, _MOST_CYCLE)
        except InputError as error:
            raise InputError(Problem(str(error), name)) from None
    wanted = CycleWindow(jobs, seed, first, last)
    file = None if out is None else named(out)
    if asked.place and (file is None or file.suffix not in TIMELINE_FORMATS):
        says = f"the trace of a step is a timeline; write it with --out FILE{PERFETTO_FORMATS[0]} or --out FILE.json"
        raise InputError(Problem(f"{says}, or leave the slice out for the cycles of layers", "--slice"))
    wanted.check(file)
    if asked.place and file:
        write(file, _step(wanted, asked.place, file))
        return TraceLines((), file)
    if file is None:
        return TraceLines(_text(wanted, progress))
    write(file, (_timeline if file.suffix in TIMELINE_FORMATS else _registers)(wanted, file, progress))
    return TraceLines((), file)


@dataclass(frozen=True, repr=False)
class TraceLines:
    """The lines of a trace, to be read once; or the `file` that it was written to."""

    text: Iterable[str]
    file: Path | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self.text)

    def __repr__(self) -> str:
        return (
            f"<TraceLines in {self.file}>"
            if self.file
            else "<TraceLines: go through its lines, or write it with out=FILE>"
        )


def _text(wanted: CycleWindow, progress: Progress) -> Iterator[str]:
    """Return the lines, after the first cycle is reached; progress is told only before it."""
    total, cycles = simulated_trace(wanted.jobs, wanted.seed)
    first, end = wanted.first, wanted.end(total)

    def watch(done: int) -> None:
        if done < first:
            progress(done, first, "cycles")

    shown = _until(end, cycles(first, watch))
    return lines(chain([next(shown)], shown))


def _until(end: int, cycles: Iterator[LaneCycle]) -> Iterator[LaneCycle]:
    # One cycle more is asked for, so that a run to the end checks that it is the end.
    return takewhile(lambda cycle: cycle.number < end, cycles)


def _registers(wanted: CycleWindow, out: Path, progress: Progress) -> bytes:
    """Return the content of the file, every lane in every cycle, from the register engine."""
    total, cycles = simulated_trace(wanted.jobs, wanted.seed)
    end = wanted.end(total)
    count, title = end - wanted.first, f"{wanted.jobs.work.name} {wanted.jobs.work.layers[0].name}"
    most = {".txt": count, ".vcd": MOST_LANE_CYCLES // wanted.lanes}.get(out.suffix, MOST_CYCLES)
    if count > most:
        what = f"of {wanted.lanes:,} lanes a VCD" if out.suffix == ".vcd" else "a picture"
        raise InputError(f"{out}: {what} holds {most:,} cycles, not {count:,}; use --from and --to")
    shown = list(_until(end, cycles(wanted.first, lambda done: progress(done, end, "cycles"))))
    if out.suffix == ".txt":
        return "".join(f"{line}\n" for line in lines(shown)).encode()
    if out.suffix == ".vcd":
        return vcd(shown, title)
    # Imported here, because matplotlib takes longer to import than a run takes.
    from tpusim.report.plots.layer import traced

    return traced(shown, title, out.suffix[1:])


def _step(wanted: CycleWindow, place: ChipSlice, out: Path) -> bytes:
    """Return the content of the file: the layers of a chip in a step, and collectives on the links that they hold."""
    jobs = wanted.jobs
    made = exchanges_of(jobs, place)
    if made is None:
        raise InputError(Problem("a chip alone exchanges nothing; leave it out", "--slice"))
    found = plan_of(jobs, layers_of(jobs), made)
    title = f"{jobs.work.name}, {shared_by(made.chips)}, on {place.label}"
    end = wanted.end(found.log.cycles)
    return step_timeline(_form(out), title, jobs.machine.clock_hz, found, wanted.first, end)


def _form(out: Path) -> TimelineForm:
    if out.suffix not in PERFETTO_FORMATS:
        return ChromeTrace()
    # Imported here, because it is an extra.
    from tpusim.report.trace.perfetto import PerfettoTrace

    return PerfettoTrace()


def _timeline(wanted: CycleWindow, out: Path, progress: Progress) -> bytes:
    """Return the content of the file, every unit, layer after layer, from the event engine."""
    form = _form(out)
    placed, total = _placed(wanted, out, progress)
    end = wanted.end(total)
    work, machine = wanted.jobs.work, wanted.jobs.machine
    size = ", ".join(filter(None, [f"batch {work.batch}", shared_by(work.chips)]))
    title = f"{work.name}, {size}, on {machine.label}"
    written = sum(len(each.layers) for each in placed)

    def told(done: int) -> None:
        progress(done, written, "written")

    return timeline(form, title, placed, machine.clock_hz, wanted.first, end, told)


def _placed(wanted: CycleWindow, out: Path, progress: Progress) -> tuple[list[TracedWork], int]:
    """Return the shown parts on one axis of time, and the number of cycles up to the end of the last."""
    most = MOST_SLICES if out.suffix in PERFETTO_FORMATS else MOST_JSON_SLICES
    placed: list[TracedWork] = []
    inputs = wanted.jobs.work.inputs() if wanted.lanes else {}
    at = cycles = slices = done = 0
    for layers, run, cuts in recordings(wanted.jobs):
        last = layers[-1].name
        first = max(wanted.first - at, 0)
        stop = run.cycles if wanted.last is None else min(run.cycles, wanted.last + 1 - at)
        if first < stop:
            cycles += stop - first
            if wanted.lanes:
                _not_beyond(cycles, MOST_TIMELINE_CYCLES, "cycles", last, out)
            spans = tuple(
                LayerSpan(layer.name, *span, inputs.get(layer.name, ()))
                for layer, span in zip(layers, pairwise(cuts), strict=True)
            )
            placed.append(TracedWork(at, run.drawn(first, stop), spans))
            slices += placed[-1].drawing.slices(first, stop)
            _not_beyond(slices, most, "slices", last, out)
        at += run.cycles
        done += len(layers)
        progress(done, len(wanted.jobs.each), last)
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
