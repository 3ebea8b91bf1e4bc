"""What `tpusim list` does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import cast

from rich.table import Table

from tpusim.cli.terminal import show, terminal_width
from tpusim.flow.lowerings import glosses
from tpusim.input.source import open_document, shipped
from tpusim.machines.family import FAMILIES, USUAL, Machine, Modelled, family_named, load_hardware
from tpusim.machines.tpu.description import Hardware
from tpusim.memory.dram.device import FOLDER, load_device
from tpusim.network.workload_file import load_workload
from tpusim.report.tables import dram
from tpusim.report.tables import shipped as tables


def show_shipped() -> None:
    """Print the workloads, the machines, the DRAMs, the lowerings and the sweeps that come with tpusim."""
    works = [(name, load_workload(name, batch=1), _source(name)) for name in shipped("workloads")]
    machines = [load_hardware(name) for name in shipped("configs")]
    devices = [load_device(name) for name in shipped(FOLDER)]
    sweeps = [(name, open_document(name, "configs/sweeps").data) for name in shipped("configs/sweeps")]
    width = terminal_width(sys.stdout)
    show(
        sys.stdout,
        tables.workload_table(works),
        "",
        tables.hardware_table([each for each in machines if isinstance(each, Hardware)], width),
        "",
        *_other_machines(machines, width),
        dram.device_table(devices),
        "",
        tables.lowering_table(glosses()),
        "",
        *_other_lowerings(machines),
        tables.sweep_table(sweeps),
        "",
        "Run one:      tpusim run resnet50 --batch 8 --out results/resnet50",
        "Plot it:      tpusim plot results/resnet50",
        "Sweep:        tpusim sweep array_size",
        "Change it:    tpusim run resnet50 --set array.size=256 --layers 'layer1.*'",
        "More:         tpusim run --help",
    )


def _other_machines(machines: Sequence[Machine], width: int | None) -> Iterator[Table | str]:
    """Those of each family but the TPU's, as far as any comes with tpusim."""
    for family in _others(machines):
        mine = [each for each in machines if each.family == family.name]
        yield tables.facts_table([{family.name: each.name, **family.facts(each)} for each in mine], width)
        yield ""


def _other_lowerings(machines: Sequence[Machine]) -> Iterator[Table | str]:
    """Those of each family but the TPU's."""
    for family in _others(machines):
        yield tables.lowering_table(glosses(family), f"lowering on {family.title}")
        yield ""


def _others(machines: Sequence[Machine]) -> Iterator[Modelled]:
    held = {each.family for each in machines} - {USUAL}
    return (cast(Modelled, family_named(name)) for name in FAMILIES if name in held)


def _source(workload: str) -> str:
    """Where its sizes come from, without the paper: that stands in its file."""
    return " ".join(str(open_document(workload, "workloads").data.get("source", "")).partition(";")[0].split())
