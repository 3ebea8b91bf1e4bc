"""What `tpusim trace` does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.base.imports import need
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.tracing import Stretch, recordings, slots
from tpusim.flow.tracing import trace as simulated_trace
from tpusim.machines.family import Machine, family_of
from tpusim.machines.lowered import Cycle, SlotDrawing
from tpusim.network.workload import Workload
from tpusim.report.plots import KNOWN
from tpusim.report.trace.lanes import MOST_CYCLES, MOST_LANE_CYCLES, MOST_SLICES, MOST_TIMELINE_CYCLES, lines, vcd

if TYPE_CHECKING:
    from tpusim.report.trace.perfetto import LayerSpan, TracePart

TIMELINE_FORMATS = (".perfetto-trace", ".pftrace")
FORMATS = (".txt", *(f".{kind}" for kind in KNOWN), ".vcd", *TIMELINE_FORMATS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be traced: cycles [first, last], to the end where `last` is None."""

    work: Workload
    hardware: Machine
    lanes: int
    lowering: str
    seed: int
    first: int
    last: int | None

    def end(self, total: int) -> int:
        """Return the cycle after the last one shown, of `total`.

        Raises:
            InputError: when none is left.
        """
        end = min(total, total if self.last is None else self.last + 1)
        if self.first >= end:
            count = len(self.work.layers)
            what = "the layer has" if count == 1 else f"the {count} layers have"
            raise InputError(f"--from {self.first}: {what} {total:,} cycles")
        return end


def print_or_write(wanted: Wanted, out: Path | None) -> None:
    """Print the trace as text, or write it in the form that the suffix of `out` names."""
    if wanted.last is not None and wanted.last < wanted.first:
        raise InputError(f"--to {wanted.last} comes before --from {wanted.first}")
    if out is None:
        _print(wanted)
        return
    _check_format(out)
    probe(out)
    write(out, (_timeline if out.suffix in TIMELINE_FORMATS else _registers)(wanted, out))
    say(sys.stdout, str(out))


def _check_format(out: Path) -> None:
    """Raise InputError for an unknown suffix, or one whose library is not there."""
    if out.suffix not in FORMATS:
        raise InputError(f"{out}: a trace is written as {', '.join(FORMATS)}, not as {out.suffix or 'no suffix'}")
    if out.suffix == ".vcd":
        need("a .vcd file", "pyvcd", "vcd")
    if out.suffix in TIMELINE_FORMATS:
        need(f"a {out.suffix} file", "perfetto", "perfetto.protos.perfetto.trace.perfetto_trace_pb2")


# ---- every lane in every cycle


def _print(wanted: Wanted) -> None:
    """Print line by line, for as long as somebody reads them; how far it is, only before the first."""
    total, cycles = simulated_trace(wanted.work, wanted.hardware, lowering=wanted.lowering, seed=wanted.seed)
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


def _registers(wanted: Wanted, out: Path) -> bytes:
    """Return what the file holds, from the register engine."""
    total, cycles = simulated_trace(wanted.work, wanted.hardware, lowering=wanted.lowering, seed=wanted.seed)
    end = wanted.end(total)
    _small_enough(end - wanted.first, wanted.lanes, out)
    with Meter(end) as meter:
        shown = list(_until(end, cycles(wanted.first, lambda done: meter.show(done, "cycles"))))
        return _file_of(shown, f"{wanted.work.name} {wanted.work.layers[0].name}", out.suffix)


def _small_enough(cycles: int, lanes: int, out: Path) -> None:
    most = {".txt": cycles, ".vcd": MOST_LANE_CYCLES // lanes}.get(out.suffix, MOST_CYCLES)
    if cycles > most:
        what = f"of {lanes:,} lanes a VCD" if out.suffix == ".vcd" else "a picture"
        raise InputError(f"{out}: {what} holds {most:,} cycles, not {cycles:,}; use --from and --to")


def _until(end: int, cycles: Iterator[Cycle]) -> Iterator[Cycle]:
    # One cycle more is asked for, so that a run to the end finds out whether it is the end.
    return takewhile(lambda cycle: cycle.number < end, cycles)


def _file_of(cycles: list[Cycle], title: str, suffix: str) -> bytes:
    if suffix == ".txt":
        return "".join(f"{line}\n" for line in lines(cycles)).encode()
    if suffix == ".vcd":
        return vcd(cycles, title)
    # Here, because matplotlib takes longer to import than a run does.
    from tpusim.report.plots.layer import traced

    return traced(cycles, title, suffix[1:])


# ---- every unit, layer after layer


def _timeline(wanted: Wanted, out: Path) -> bytes:
    """Return what the file holds, from the event engine."""
    from tpusim.report.trace.perfetto import perfetto

    placed, total = _placed(wanted, out)
    end = wanted.end(total)
    title = f"{wanted.work.name}, batch {wanted.work.batch}, on {wanted.hardware.name}"
    with Meter(sum(len(each.layers) for each in placed)) as meter:
        return perfetto(
            title, placed, wanted.hardware.clock_hz, wanted.first, end, lambda done: meter.show(done, "written")
        )


def _placed(wanted: Wanted, out: Path) -> tuple[list[TracePart], int]:
    """Return what is shown, on one axis of time, and how many cycles there are up to the last of it."""
    from tpusim.report.trace.perfetto import TracePart

    placed: list[TracePart] = []
    inputs = wanted.work.inputs()
    at = cycles = slices = done = 0
    with Meter(len(wanted.work.layers)) as meter:
        for stretch in recordings(wanted.work, wanted.hardware, lowering=wanted.lowering):
            run, last = stretch.recording, stretch.layers[-1].name
            first = max(wanted.first - at, 0)
            stop = run.cycles if wanted.last is None else min(run.cycles, wanted.last + 1 - at)
            if first < stop:
                cycles += stop - first
                _not_beyond(cycles, MOST_TIMELINE_CYCLES, "cycles", last, out)
                placed.append(TracePart(at, run.drawn(first, stop), tuple(_spans(stretch, inputs))))
                slices += placed[-1].drawing.slices(first, stop)
                _not_beyond(slices, MOST_SLICES, "slices", last, out)
            at += run.cycles
            done += len(stretch.layers)
            meter.show(done, last)
            if wanted.last is not None and at > wanted.last:
                break
    return placed, at


def _spans(stretch: Stretch, inputs: Mapping[str, tuple[str, ...]]) -> Iterator[LayerSpan]:
    from tpusim.report.trace.perfetto import LayerSpan

    for layer, (first, stop) in zip(stretch.layers, pairwise(stretch.cuts), strict=True):
        yield LayerSpan(layer.name, first, stop, inputs.get(layer.name, ()))


def _not_beyond(count: int, most: int, what: str, layer: str, out: Path) -> None:
    """Raise InputError when a trace up to a layer has too much of something."""
    if count > most:
        raise InputError(
            f"{out}: a trace holds {most:,} {what}, and up to layer {layer} there are {count:,}; "
            "use --layers, or --from and --to"
        )


# ---- machines of other families than the TPU's: a timeline


def write_timeline(
    work: Workload, machine: Machine, lowering: str | None, first: int, last: int | None, out: Path | None
) -> None:
    """Write what happens in cycles [first, last], to the end where `last` is None.

    Raises:
        InputError: no file for a timeline is named, it cannot be written, or it would be too large.
    """
    if out is None or out.suffix not in TIMELINE_FORMATS:
        says = f"{machine.name} is {family_of(machine).title}, and a trace of it is a timeline"
        raise InputError(f"{says}; write it with --out FILE{TIMELINE_FORMATS[0]}")
    _check_format(out)
    probe(out)
    # Here, because it is an extra.
    from tpusim.report.trace.perfetto import perfetto

    placed = [*_placed_slots(work, machine, lowering, last, out)]
    total = placed[-1].stop
    end = min(total, total if last is None else last + 1)
    if first >= end:
        says = f"--to {last} comes before it" if last is not None and last < first else f"there are {total:,} cycles"
        raise InputError(f"--from {first}: {says}")
    shown = [each for each in placed if each.at < end and each.stop > first]
    title = f"{work.name}, batch {work.batch}, on {machine.name}"
    write(out, perfetto(title, shown, machine.clock_hz, first, end))
    say(sys.stdout, str(out))


def _placed_slots(
    work: Workload, machine: Machine, lowering: str | None, last: int | None, out: Path
) -> Iterator[TracePart]:
    """Yield the layers on one axis of time, up to the last that is shown."""
    from tpusim.report.trace.perfetto import LayerSpan, TracePart

    at = count = 0
    with Meter(len(work.layers)) as meter:
        for done, (layer, cycles, found) in enumerate(slots(work, machine, lowering=lowering), 1):
            count += sum(map(len, found.values()))
            _not_beyond(count, MOST_SLICES, "slices", layer.name, out)
            yield TracePart(at, SlotDrawing(cycles, found), (LayerSpan(layer.name, 0, cycles),))
            at += cycles
            meter.show(done, layer.name)
            if last is not None and at > last:
                break
