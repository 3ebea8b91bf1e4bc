"""What `tpusim trace` does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError
from tpusim.base.extras import need
from tpusim.base.files import probe, write
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.tracing import Stretch, recordings
from tpusim.flow.tracing import trace as simulated_trace
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import Cycle
from tpusim.network.workload import Workload
from tpusim.report.plots.formats import KNOWN
from tpusim.report.trace import text as trace_text
from tpusim.report.trace.size import MOST_CYCLES, MOST_LANE_CYCLES, MOST_SLICES, MOST_TIMELINE_CYCLES

if TYPE_CHECKING:
    from tpusim.report.trace.perfetto import Placed, Span

TIMELINE_FORMATS = (".perfetto-trace", ".pftrace")
FORMATS = (".txt", *(f".{kind}" for kind in KNOWN), ".vcd", *TIMELINE_FORMATS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be traced: cycles [first, last], to the end where `last` is None."""

    work: Workload
    hardware: Hardware
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
    for line in trace_text.lines(chain([head], shown)):
        if not say(sys.stdout, line):
            break


def _registers(wanted: Wanted, out: Path) -> bytes:
    """Return what the file holds, from the register engine."""
    total, cycles = simulated_trace(wanted.work, wanted.hardware, lowering=wanted.lowering, seed=wanted.seed)
    end = wanted.end(total)
    _small_enough(end - wanted.first, wanted.hardware.lanes, out)
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
        return "".join(f"{line}\n" for line in trace_text.lines(cycles)).encode()
    if suffix == ".vcd":
        from tpusim.report.trace.vcd import vcd

        return vcd(cycles, title)
    # Here, because matplotlib takes longer to import than a run does.
    from tpusim.report.plots.trace_picture import picture

    return picture(cycles, title, suffix[1:])


# ---- every unit, layer after layer


def _timeline(wanted: Wanted, out: Path) -> bytes:
    """Return what the file holds, from the event engine."""
    from tpusim.report.trace.perfetto import perfetto

    placed, total = _placed(wanted, out)
    end = wanted.end(total)
    title = f"{wanted.work.name}, batch {wanted.work.batch}, on {wanted.hardware.name}"
    with Meter(sum(len(each.layers) for each in placed)) as meter:
        return perfetto(title, placed, wanted.hardware, wanted.first, end, lambda done: meter.show(done, "written"))


def _placed(wanted: Wanted, out: Path) -> tuple[list[Placed], int]:
    """Return what is shown, on one axis of time, and how many cycles there are up to the last of it."""
    from tpusim.report.trace.perfetto import Placed

    placed: list[Placed] = []
    inputs = wanted.work.inputs()
    at = cycles = slices = done = 0
    with Meter(len(wanted.work.layers)) as meter:
        for stretch in recordings(wanted.work, wanted.hardware, lowering=wanted.lowering):
            run, last = stretch.recording, stretch.layers[-1].name
            first = max(wanted.first - at, 0)
            stop = run.cycles if wanted.last is None else min(run.cycles, wanted.last + 1 - at)
            if first < stop:
                cycles += stop - first
                not_beyond(cycles, MOST_TIMELINE_CYCLES, "cycles", last, out)
                placed.append(Placed(at, run.program, run.timeline(first, stop), tuple(_spans(stretch, inputs))))
                slices += placed[-1].timeline.clipped(first, stop).slices
                not_beyond(slices, MOST_SLICES, "slices", last, out)
            at += run.cycles
            done += len(stretch.layers)
            meter.show(done, last)
            if wanted.last is not None and at > wanted.last:
                break
    return placed, at


def _spans(stretch: Stretch, inputs: Mapping[str, tuple[str, ...]]) -> Iterator[Span]:
    from tpusim.report.trace.perfetto import Span

    for layer, (first, stop) in zip(stretch.layers, pairwise(stretch.cuts), strict=True):
        yield Span(layer.name, first, stop, inputs.get(layer.name, ()))


def not_beyond(count: int, most: int, what: str, layer: str, out: Path) -> None:
    """Raise InputError when a trace up to a layer has too much of something."""
    if count > most:
        raise InputError(
            f"{out}: a trace holds {most:,} {what}, and up to layer {layer} there are {count:,}; "
            "use --layers, or --from and --to"
        )
