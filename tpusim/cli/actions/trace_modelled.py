"""What `tpusim trace` does for machines of other families than the TPU's: a timeline."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError
from tpusim.base.extras import need
from tpusim.base.files import probe, write
from tpusim.cli.actions.trace import TIMELINE_FORMATS, not_beyond
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.tracing import slots
from tpusim.machines.family import Machine, family_of
from tpusim.network.workload import Workload
from tpusim.report.trace.size import MOST_SLICES

if TYPE_CHECKING:
    from tpusim.report.trace.perfetto_modelled import Placed


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
    need(f"a {out.suffix} file", "perfetto", "perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    probe(out)
    # Here, because it is an extra.
    from tpusim.report.trace.perfetto_modelled import perfetto

    placed = [*_placed(work, machine, lowering, last, out)]
    total = placed[-1].at + placed[-1].cycles
    end = min(total, total if last is None else last + 1)
    if first >= end:
        says = f"--to {last} comes before it" if last is not None and last < first else f"there are {total:,} cycles"
        raise InputError(f"--from {first}: {says}")
    shown = [each for each in placed if each.at < end and each.at + each.cycles > first]
    title = f"{work.name}, batch {work.batch}, on {machine.name}"
    write(out, perfetto(title, shown, machine.clock_hz, first, end))
    say(sys.stdout, str(out))


def _placed(work: Workload, machine: Machine, lowering: str | None, last: int | None, out: Path) -> Iterator[Placed]:
    """Yield the layers on one axis of time, up to the last that is shown."""
    from tpusim.report.trace.perfetto_modelled import Placed

    at = count = 0
    with Meter(len(work.layers)) as meter:
        for done, (layer, cycles, found) in enumerate(slots(work, machine, lowering=lowering), 1):
            count += sum(map(len, found.values()))
            not_beyond(count, MOST_SLICES, "slices", layer.name, out)
            yield Placed(layer.name, at, cycles, found)
            at += cycles
            meter.show(done, layer.name)
            if last is not None and at > last:
                break
