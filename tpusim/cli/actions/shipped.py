"""What `tpusim list` does."""

from __future__ import annotations

import sys

from tpusim.cli.terminal import show, terminal_width
from tpusim.flow.lowerings import glosses
from tpusim.input.source import open_document, shipped
from tpusim.machines.tpu.description import load_hardware
from tpusim.memory.dram.device import FOLDER, load_device
from tpusim.network.workload import load_workload
from tpusim.report.tables import dram
from tpusim.report.tables import run as tables


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
        tables.hardware_table(machines, width),
        "",
        dram.device_table(devices),
        "",
        tables.lowering_table(glosses()),
        "",
        tables.sweep_table(sweeps),
        "",
        "Run one:      tpusim run resnet50 --batch 8 --out results/resnet50",
        "Plot it:      tpusim plot results/resnet50",
        "Sweep:        tpusim sweep array_size",
        "Change it:    tpusim run resnet50 --set array.size=256 --layers 'layer1.*'",
        "More:         tpusim run --help",
    )


def _source(workload: str) -> str:
    """Where its sizes come from, without the paper: that stands in its file."""
    return " ".join(str(open_document(workload, "workloads").data.get("source", "")).partition(";")[0].split())
