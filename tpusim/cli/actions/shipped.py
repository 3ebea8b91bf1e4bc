"""What `tpusim list` does."""

from __future__ import annotations

import sys

from tpusim.cli.terminal import show
from tpusim.input.source import open_document, shipped
from tpusim.machines.tpu.description import load_hardware
from tpusim.network.workload import load_workload
from tpusim.report.tables import run as tables


def show_shipped() -> None:
    """Print the workloads and the hardware that come with tpusim."""
    works = [(name, load_workload(name, batch=1), _source(name)) for name in shipped("workloads")]
    machines = [load_hardware(name) for name in shipped("configs")]
    show(
        sys.stdout,
        tables.workload_table(works),
        "",
        tables.hardware_table(machines),
        "",
        "Run one:      tpusim run resnet50 --batch 8 --out results/resnet50",
        "Plot it:      tpusim plot results/resnet50",
        "Change it:    tpusim run resnet50 --set array.size=256 --layers 'layer1.*'",
        "More:         tpusim run --help",
    )


def _source(workload: str) -> str:
    return " ".join(str(open_document(workload, "workloads").data.get("source", "")).split())
