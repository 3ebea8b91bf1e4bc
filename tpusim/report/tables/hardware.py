"""Tables of machines and memories: what is shipped with tpusim, the chip area of a machine, a trace on a DRAM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tpusim.base.units import AREA, BANDWIDTH, LENGTH, POWER, SIZE
from tpusim.base.words import counted
from tpusim.machines.family import PEAK, AreaShare, ChipArea, Machine, Sram, family_of, peak_tflops
from tpusim.memory.dram.device import Device
from tpusim.network.workload import Workload
from tpusim.report.shown import NONE, Column, CommandAnswer, Sentences, Table
from tpusim.report.text import percent, quantity, three_digits
from tpusim.result.chips import shared_by
from tpusim.result.vocabulary.figures import COUNTS
from tpusim.technology.constants import chip_of, shrink

if TYPE_CHECKING:
    from tpusim.machines.tpu.slices.slice import ChipSlice
    from tpusim.memory.dram.replay import Figures, Replay, Trace

# ---- what comes with tpusim


def workload_table(workloads: Sequence[tuple[str, Workload, str]]) -> Table[tuple[str, Workload, str]]:
    """Return the shipped workloads, as (name, workload at batch 1, source)."""
    columns: list[Column[tuple[str, Workload, str]]] = [
        Column("workload", lambda row: row[0], justify="left"),
        Column("layers", lambda row: f"{len(row[1].layers)}"),
        Column("MACs/image", lambda row: quantity(sum(layer.macs(1) for layer in row[1].layers), COUNTS)),
        Column("source", _source_of, justify="fold", widest=86),
    ]
    return Table(columns, workloads)


def _source_of(row: tuple[str, Workload, str]) -> str:
    return ", ".join(filter(None, [row[2], shared_by(row[1].chips)]))


def workload_data(name: str, workload: Workload, source: str) -> dict[str, Any]:
    """Return what JSON tells of a shipped workload at batch 1."""
    macs = sum(layer.macs(1) for layer in workload.layers)
    told = {"name": name, "layers": len(workload.layers), "macs_per_image": macs, "source": source}
    return {**told, "chips": workload.chips}


_GENERATION = (
    "generation: of the chip that a machine stands for, and the year when it was announced; * of one core of the chip, "
    "not of a whole one; - of the paper's machine "
    "and of small ones to learn by"
)
_PEAK = "peak: of all multiplications and additions, of bf16 where the chip has several types"


def _chip(machine: Machine) -> str | None:
    return family_of(machine).generation(machine)


def _generation(machine: Machine) -> str:
    return f"{_chip(machine) or NONE}{'*' * (family_of(machine).chip_cores(machine) > 1)}"


def by_generation(machine: Machine) -> tuple[str, ...]:
    """Return what puts machines in order: those of no chip first, then by the year of their generation."""
    name, _, year = (_chip(machine) or "").rpartition(", ")
    return year, name, machine.name


def part_notice(machines: Iterable[Machine]) -> str:
    """Say which machines are one core of a chip; empty where none is, or where there is one machine."""
    cores = {each.name: family_of(each).chip_cores(each) for each in machines}
    parts = [name for name, count in cores.items() if count > 1]
    if not parts or len(cores) == 1:
        return ""
    return f"One core of a chip, and no whole one: {', '.join(f'{name} (of {cores[name]})' for name in parts)}."


def machine_table(heading: str, machines: Sequence[Machine], drop: Mapping[str, int] | None = None) -> Table[Machine]:
    """Return the table of some machines of a family, with their facts.

    `drop` says which columns a narrow terminal does without, the highest first; otherwise the last go first.
    """
    facts = {each.name: family_of(each).facts(each) for each in machines}

    def fact(name: str, machine: Machine) -> str:
        return facts[machine.name].get(name) or NONE

    names = dict.fromkeys(name for each in facts.values() for name in each)
    columns: list[Column[Machine]] = [
        Column(heading, lambda machine: machine.name, justify="left"),
        *([Column("generation", _generation, 0, "left", _GENERATION)] if any(map(_chip, machines)) else []),
        *(
            Column(name, partial(fact, name), rank if drop is None else drop.get(name, 0), "right",
                   _PEAK if name == PEAK else "")
            for rank, name in enumerate(names, 1)
        ),
    ]  # fmt: skip
    return Table(columns, machines)


def machine_data(machine: Machine) -> dict[str, Any]:
    """Return what JSON tells of a shipped machine."""
    family, (year, generation, name) = family_of(machine), by_generation(machine)
    return {
        "name": name,
        "family": family.name,
        "generation": generation or None,
        "year": int(year) if year else None,
        "chip_cores": family.chip_cores(machine),
        "peak_tflops": peak_tflops(machine),
        "pes": machine.pes,
        "sram_bytes": machine.sram_bytes,
        "hbm_bytes_per_s": machine.hbm_bytes_per_s,
        "hbm_capacity_bytes": family.capacity(machine),
        "hardware": machine.to_dict(),
    }


def device_table(devices: Sequence[Device]) -> Table[Device]:
    """Return the shipped DRAMs."""
    columns: list[Column[Device]] = [
        Column("DRAM", lambda each: each.name, justify="left"),
        Column("channels", lambda each: f"{each.channels}"),
        Column("banks", lambda each: f"{each.organisation.bank_groups} x {each.organisation.banks}"),
        Column("row", lambda each: SIZE.format(each.organisation.columns * each.organisation.burst_bytes)),
        Column("capacity", lambda each: SIZE.format(each.capacity_bytes)),
        Column("at most", lambda each: BANDWIDTH.format(round(each.peak_bytes_per_s))),
        Column("refresh", lambda each: each.refresh.replace("_", " "), justify="left"),
    ]
    return Table(columns, devices)


def slice_table(slices: Sequence[ChipSlice]) -> Table[ChipSlice]:
    """Return the shipped slices."""
    columns: list[Column[ChipSlice]] = [
        Column("slice", lambda each: each.name, justify="left"),
        Column("chips", lambda each: f"{each.chips:,}"),
        Column("torus", lambda each: " x ".join(map(str, each.torus)), justify="left"),
        Column("wraps", lambda each: ", ".join(each.rings) or NONE, justify="left"),
        Column("a link", lambda each: BANDWIDTH.format(each.interconnect.link.bandwidth_bytes_per_s)),
        Column("machine", lambda each: each.interconnect.machine, justify="left"),
    ]  # fmt: skip
    return Table(columns, slices)


def lowering_table(lowerings: Sequence[tuple[str, str]], title: str = "lowering") -> Table[tuple[str, str]]:
    """Return every lowering of a family, as (name, what it is)."""
    columns: list[Column[tuple[str, str]]] = [
        Column(title, lambda row: row[0], justify="left"),
        Column("how convolutions become passes", lambda row: row[1], justify="fold"),
    ]
    return Table(columns, lowerings)


def sweep_table(sweeps: Sequence[tuple[str, Mapping[str, Any]]]) -> Table[tuple[str, Mapping[str, Any]]]:
    """Return the shipped sweeps, as (name, content of the file)."""
    columns: list[Column[tuple[str, Mapping[str, Any]]]] = [
        Column("sweep", lambda row: row[0], justify="left"),
        Column("of", lambda row: ", ".join(row[1]["workloads"]), justify="fold", widest=52),
        Column("over", lambda row: ", ".join(row[1]["axes"]), justify="fold", widest=52),
    ]
    return Table(columns, sweeps)


# ---- what a machine takes of a chip

_BASES = (
    "model: of ours, from the pitch of cells and the area of a flip-flop. published: a circuit that somebody laid out "
    "or synthesised, counted or scaled. None is measured. Not modelled: control, clocks, wires between parts, scalar "
    "unit, DMA, HBM interface, links."
)
_WORDS = (
    "pitch: a row a word, and periphery beside each row, as in the OpenRAM macros of the paper's Fig. 16b. CACTI: a "
    "compiled macro that folds short words into columns, and so hardly minds. Each in times of the least of its own."
)


def area(machine: Machine, found: ChipArea) -> CommandAnswer:
    """Return the area of a machine part by part, with other memories, and beside published areas; in JSON all of it."""
    parts, total, chip, silicon = found.parts, found.total_mm2, chip_of(machine.name), found.silicon
    with_macros = total - sum(part.mm2 for part in parts if part.key in ("vector_memories", "banks"))
    with_macros += found.macros_mm2
    beside = [f"With vector memories by CACTI's macros (a model): {three_digits(with_macros)} mm2 instead of "
              f"{three_digits(total)}."]  # fmt: skip
    if chip:
        shrunk = chip.cores * shrink(silicon.feature_nm, chip.feature_nm)
        beside.append(
            f"{chip.name}, published: less than {AREA.format(chip.area_nm2)} and "
            f"{POWER.format(chip.power_pw)} in {LENGTH.format(chip.feature_nm)}, for {chip.cores} cores and all that "
            f"is not modelled. {chip.cores} of this machine, shrunk with the square of the feature: "
            f"{three_digits(shrunk * total)} mm2, {three_digits(shrunk * with_macros)} with CACTI's macros."
        )
    size = SIZE.format(found.memory_bytes)
    return CommandAnswer(
        (
            [Sentences([f"{machine.label} in {silicon.name}: {three_digits(total)} mm2"])],
            [_part_table([*parts, AreaShare("total", "all together", total, "model", "")], total)],
            [Sentences([_BASES])],
            [Sentences(beside)],
            [Sentences([f"One vector memory of {size} by the elements of its word"])],
            [_word_table(found.words)],
            [Sentences([_WORDS])],
        ),
        {
            "hardware": machine.to_dict(),
            "changes": dict(machine.changes),
            "technology": silicon.to_dict(),
            "parts": [part._asdict() for part in parts],
            "total_mm2": total,
            "total_with_macros_mm2": with_macros,
            "words": [sram._asdict() for sram in found.words],
            "chip": chip.model_dump(by_alias=True) if chip else None,
        },
    )


def _part_table(parts: Sequence[AreaShare], total: float) -> Table[AreaShare]:
    columns: list[Column[AreaShare]] = [
        Column("part", lambda part: part.name, justify="left"),
        Column("mm2", lambda part: three_digits(part.mm2)),
        Column("%", lambda part: percent(part.mm2 / total), 1),
        Column("known by", lambda part: part.basis if part.key != "total" else "", justify="left"),
        Column("of what", lambda part: part.what, 2, "fold"),
    ]
    return Table(columns, parts)


def _word_table(srams: Sequence[Sram]) -> Table[Sram]:
    """Return a row for each width of a word."""
    pitch, macro = min(sram.pitch_mm2 for sram in srams), min(sram.macro_mm2 for sram in srams)
    columns: list[Column[Sram]] = [
        Column("word", lambda sram: f"{sram.elements}"),
        Column("bits", lambda sram: f"{sram.bits:,}"),
        Column("pitch\nmm2", lambda sram: three_digits(sram.pitch_mm2)),
        Column("of the\nleast", lambda sram: three_digits(sram.pitch_mm2 / pitch)),
        Column("CACTI\nmm2", lambda sram: three_digits(sram.macro_mm2)),
        Column("of the\nleast", lambda sram: three_digits(sram.macro_mm2 / macro)),
    ]
    return Table(columns, srams)


# ---- what a DRAM makes of a trace


def replayed(result: Replay, trace: Trace) -> CommandAnswer:
    """Say what a device made of a trace: in a sentence, channel by channel, and in JSON."""
    device, total, peak = result.device, result.total, result.device.peak_bytes_per_s
    bursts = int((trace.addresses >= device.capacity_bytes).sum())
    has = f"lie beyond the {SIZE.format(device.capacity_bytes)} of {device.label}, where addresses begin again at 0"
    rows = [(f"{number}", each) for number, each in enumerate(result.channels)]
    table = Table(_CHANNEL, [*rows, ("all", total)] if len(rows) > 1 else rows)
    heading = [
        f"{device.label}: {device.channels} channels of {device.banks} banks, {peak / 1e9:.0f} GB/s at most; "
        f"mapping {device.mapping}.",
        f"{total.bytes_moved:,} bytes moved for {total.bytes_requested:,} asked for, in {total.last_ns or 0:,.1f} ns: "
        f"{total.bandwidth_bytes_per_s / 1e9:.2f} GB/s, {100 * total.bandwidth_bytes_per_s / peak:.1f} % of the peak.",
        f"{counted(bursts, 'burst')} of the trace {has}." if bursts else "",
    ]
    return CommandAnswer((heading, [table], [table.legend()]), result.to_dict())


def _ns(value: float | None) -> str:
    return NONE if value is None else f"{value:,.1f}"


_CHANNEL: tuple[Column[tuple[str, Figures]], ...] = (
    Column("channel", lambda row: row[0], justify="left"),
    Column(
        "first\nns", lambda row: _ns(row[1].first_ns), 3, legend="first, last: when the first and last data is there"
    ),
    Column("last\nns", lambda row: _ns(row[1].last_ns)),
    Column("asked\nbytes", lambda row: f"{row[1].bytes_requested:,}", 2, legend="asked: the bytes of the trace"),
    Column("moved\nbytes", lambda row: f"{row[1].bytes_moved:,}", legend="moved: bytes of all bursts read or written"),
    Column(
        "GB/s",
        lambda row: f"{row[1].bandwidth_bytes_per_s / 1e9:.2f}",
        legend="GB/s: bytes moved in a second, until the last is there",
    ),
    Column("row hits", lambda row: f"{row[1].row_hits:,}", legend="row hits: bursts that were not the first of a row"),
    Column("activates", lambda row: f"{row[1].activates:,}", 1, legend="activates: rows opened"),
    Column("refreshes", lambda row: f"{row[1].refreshes:,}", 1),
)
