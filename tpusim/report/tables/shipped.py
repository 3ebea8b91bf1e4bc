"""What comes with tpusim, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table

from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE
from tpusim.machines.tpu.description import Hardware
from tpusim.network.workload import Workload
from tpusim.report.tables.layout import Column, table
from tpusim.report.text import quantity
from tpusim.result.vocabulary.figures import COUNTS


def workload_table(workloads: Sequence[tuple[str, Workload, str]]) -> Table:
    """The shipped workloads, as (name, workload at batch 1, source)."""
    columns: list[Column[tuple[str, Workload, str]]] = [
        Column("workload", lambda row: row[0], justify="left"),
        Column("layers", lambda row: f"{len(row[1].layers)}"),
        Column("MACs/image", lambda row: quantity(sum(layer.macs(1) for layer in row[1].layers), COUNTS)),
        Column("source", lambda row: row[2], justify="fold"),
    ]
    return table(columns, workloads)


def hardware_table(machines: Sequence[Hardware], width: int | None = None) -> Table:
    """The shipped hardware, in as many columns as `width` characters hold (None: all)."""
    columns: list[Column[Hardware]] = [
        Column("hardware", lambda each: each.name, justify="left"),
        Column("array", lambda each: f"{each.array.rows} x {each.array.cols}"),
        Column("clock", lambda each: FREQUENCY.format(each.clock_hz)),
        Column("vector memory", lambda each: f"{each.lanes} x {SIZE.format(each.vector_memory.capacity_bytes)}", 1),
        Column("banks", _banks, 1),
        Column("word", lambda each: f"{each.vector_memory.word_elements} x {each.vector_memory.element_bytes} B", 2),
        Column("HBM", lambda each: BANDWIDTH.format(each.hbm.bandwidth_bytes_per_s)),
    ]
    return table(columns, machines, width)


def facts_table(machines: Sequence[Mapping[str, str]], width: int | None = None) -> Table:
    """Machines of another family, each as its facts by name; the first is what it is called."""
    names = dict.fromkeys(name for machine in machines for name in machine)
    columns = [
        Column[Mapping[str, str]](name, partial(_fact, name), rank, "right" if rank else "left")
        for rank, name in enumerate(names)
    ]
    return table(columns, machines, width)


def _fact(name: str, machine: Mapping[str, str]) -> str:
    return machine.get(name, "-")


def _banks(machine: Hardware) -> str:
    """Those of the ifmap beside the vector memory."""
    return f"{machine.banks} x {SIZE.format(machine.vector_memory.bank_capacity_bytes)}" if machine.banked else "-"


def lowering_table(lowerings: Sequence[tuple[str, str]], title: str = "lowering") -> Table:
    """Every lowering of a family, as (name, what it is)."""
    columns: list[Column[tuple[str, str]]] = [
        Column(title, lambda row: row[0], justify="left"),
        Column("how convolutions become passes", lambda row: row[1], justify="fold"),
    ]
    return table(columns, lowerings)


def sweep_table(sweeps: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """The shipped sweeps, as (name, what its file says)."""
    columns: list[Column[tuple[str, Mapping[str, Any]]]] = [
        Column("sweep", lambda row: row[0], justify="left"),
        Column("of", lambda row: ", ".join(row[1]["workloads"]), justify="fold"),
        Column("over", lambda row: ", ".join(row[1]["axes"]), justify="fold"),
    ]
    return table(columns, sweeps)
