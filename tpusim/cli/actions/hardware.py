"""Actions of `tpusim list`, `tpusim area` and `tpusim dram`, which tell of machines and memories."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tpusim.base.errors import InputError, did_you_mean
from tpusim.cli.actions.inputs import machine_told
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.flow.lowerings import USUAL_FAMILY, glosses
from tpusim.input.source import open_document, shipped
from tpusim.machines import family as families
from tpusim.machines.tpu.slices.slice import FOLDER as SLICES
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.memory.dram.device import FOLDER, load_device
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload
from tpusim.report.shown import CommandAnswer, Content
from tpusim.report.tables import hardware as tables

_TPU_RANKS = {"clock": 1, "vector memory": 2, "word": 3, "banks": 4}
"""Columns that a narrow terminal does without, the highest first."""
_HINTS = (
    "Run one:      tpusim run resnet50 --batch 8 --out results/resnet50",
    "Plot it:      tpusim plot results/resnet50",
    "Sweep:        tpusim sweep array_size",
    "Change it:    tpusim run resnet50 --set array.size=256 --layers 'layer1.*'",
    "More:         tpusim run --help",
)


def show_shipped(json: str | None) -> None:
    """Show the workloads, machines, DRAMs, slices, lowerings and sweeps that come with tpusim, as JSON and in tables.

    TPUs and their lowerings come first, then the machines and lowerings of each other family that ships any.
    """
    output, folder = JsonOutput(json), "configs/sweeps"
    machines = sorted(map(families.load_hardware, shipped("configs")), key=tables.by_generation)
    held = {each.family for each in machines} - {families.USUAL}
    others = [families.family_named(name) for name in families.FAMILIES if name in held]
    loaded = {name: load_workload(name, batch=1) for name in shipped("workloads")}
    workloads = [(name, each, _source(each)) for name, each in loaded.items()]
    devices = [load_device(name) for name in shipped(FOLDER)]
    slices = sorted((load_slice(name) for name in shipped(SLICES)), key=lambda each: each.name)
    sweeps = [(name, open_document(name, folder).data) for name in shipped(folder)]
    machine_tables = [
        tables.machine_table("hardware", [each for each in machines if each.family == families.USUAL], _TPU_RANKS),
        *(tables.machine_table(one.name, [each for each in machines if each.family == one.name]) for one in others),
    ]
    paragraphs: list[Sequence[Content]] = [
        [tables.workload_table(workloads)],
        *([table] for table in machine_tables),
        [machine_tables[0].legend()],
        [tables.device_table(devices)],
        [tables.slice_table(slices)],
        [tables.lowering_table(glosses())],
        *([tables.lowering_table(glosses(family), f"lowering on {family.title}")] for family in others),
        [tables.sweep_table(sweeps)],
        _HINTS,
    ]
    data = {
        "workloads": [tables.workload_data(*each) for each in workloads],
        "machines": [tables.machine_data(each) for each in machines],
        "drams": [each.to_dict() for each in devices],
        "slices": [each.to_dict() for each in slices],
        "lowerings": {family.name: dict(glosses(family)) for family in (USUAL_FAMILY, *others)},
        "sweeps": [{"name": name, "workloads": held["workloads"], "axes": held["axes"]} for name, held in sweeps],
    }
    output.deliver(CommandAnswer(paragraphs, data))


def _source(workload: Workload) -> str:
    """Origin of a workload's sizes, without the paper, which is named in its file."""
    return " ".join(workload.source.partition(";")[0].split())


def show_area(hardware: str, changes: Sequence[str], json: str | None) -> None:
    """Show the area of each part of a machine, as JSON and in tables. Raises InputError."""
    machine = machine_told(hardware, changes)
    area = families.family_of(machine).area(machine)
    if area is None:
        raise families.of_tpus_alone(machine, "tpusim area")
    JsonOutput(json).deliver(tables.area(machine, area))


def play_trace(path: Path, name: str, changes: Sequence[str], engine: str, json: str | None) -> None:
    """Play a trace on a DRAM, and report the results: as JSON, and in a table. Raises InputError."""
    # Imported here: its loops are compiled, and who lists what is shipped need not wait for the compiler.
    from tpusim.memory.dram.replay import ENGINES, read_trace, replay

    if engine not in ENGINES:
        raise InputError(f"--engine: no {engine!r}{did_you_mean(engine, ENGINES) or ';'} write {', '.join(ENGINES)}")
    device = load_device(name, changes)
    output = JsonOutput(json)
    with Meter(2) as meter:
        meter.show(0, f"reading {path.name}")
        trace = read_trace(path, device.organisation.burst_bytes)
        result = replay(trace, device, engine, partial(meter.show, 1))
    output.deliver(tables.replayed(result, trace))
