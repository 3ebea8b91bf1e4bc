"""What a machine takes of a chip, as tables, sentences and JSON."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from tpusim.base.units import LENGTH, POWER, SIZE
from tpusim.machines.tpu.cost import AreaPart, Sram, memories_by_macro, parts_of, srams_by_word, total_mm2
from tpusim.machines.tpu.description import Hardware
from tpusim.report.tables.layout import Column, table
from tpusim.report.text import document, folded, percent, three_digits
from tpusim.technology.area import shrink
from tpusim.technology.chips import Chip, chip_of

WIDTH = 79
_MM2_OF_NM2 = 1e-12

_BASES = (
    "model: of ours, from the pitch of cells and the area of a flip-flop. published: a circuit that somebody laid out "
    "or synthesised, counted or scaled. None is measured. Not modelled: control, clocks, wires between parts, scalar "
    "unit, DMA, HBM interface, links."
)
_WORDS = (
    "pitch: a row a word, and periphery beside each row, as in the OpenRAM macros of the paper's Fig. 16b. CACTI: a "
    "compiled macro that folds short words into columns, and so hardly minds. Each in times of the least of its own."
)


def heading(machine: Hardware, width: int = WIDTH) -> str:
    """Which machine, in which technology."""
    silicon = machine.silicon
    return folded([f"{machine.name} in {silicon.name}: {three_digits(total_mm2(machine))} mm2"], width)


def part_table(machine: Hardware, width: int | None = None) -> Table:
    """A row a part, and one of all together."""
    parts, total = parts_of(machine), total_mm2(machine)
    columns: list[Column[AreaPart]] = [
        Column("part", lambda part: part.name, justify="left"),
        Column("mm2", lambda part: three_digits(part.mm2)),
        Column("%", lambda part: percent(part.mm2 / total), 1),
        Column("known by", lambda part: part.basis if part.key != "total" else "", justify="left"),
        Column("of what", lambda part: part.what, 2, "fold"),
    ]
    return table(columns, [*parts, AreaPart("total", "all together", total, "model", "")], width)


def part_legend(width: int = WIDTH) -> str:
    """How areas are known, and what is left out."""
    return folded([_BASES], width)


def beside(machine: Hardware, width: int = WIDTH) -> str:
    """The same with other memories; and what is published of the chip, if any is."""
    own, other = _totals(machine)
    lines = [
        f"With vector memories by CACTI's macros (a model): {three_digits(other)} mm2 instead of {three_digits(own)}."
    ]
    if chip := chip_of(machine.name):
        lines.append(_chip(machine, chip))
    return folded(lines, width)


def _totals(machine: Hardware) -> tuple[float, float]:
    """All parts, with memories by pitch and by macros."""
    by_pitch = sum(part.mm2 for part in parts_of(machine) if part.key in ("vector_memories", "banks"))
    own = total_mm2(machine)
    return own, own - by_pitch + memories_by_macro(machine)


def _chip(machine: Hardware, chip: Chip) -> str:
    both = [chip.cores * mm2 * shrink(machine.silicon.feature_nm, chip.feature_nm) for mm2 in _totals(machine)]
    own, other = map(three_digits, both)
    return (
        f"{chip.name}, published: less than {chip.area_nm2 * _MM2_OF_NM2:,.0f} mm2 and {POWER.format(chip.power_pw)} "
        f"in {LENGTH.format(chip.feature_nm)}, for {chip.cores} cores and all that is not modelled. {chip.cores} of "
        f"this machine, shrunk with the square of the feature: {own} mm2, {other} with CACTI's macros."
    )


def word_heading(machine: Hardware, width: int = WIDTH) -> str:
    """What the second table is of."""
    size = SIZE.format(machine.vector_memory.capacity_bytes)
    return folded([f"One vector memory of {size} by the elements of its word"], width)


def word_table(machine: Hardware, width: int | None = None) -> Table:
    """A row for each width of a word."""
    srams = srams_by_word(machine)
    pitch, macro = (min(each) for each in zip(*((sram.pitch_mm2, sram.macro_mm2) for sram in srams), strict=True))
    columns: list[Column[Sram]] = [
        Column("word", lambda sram: f"{sram.elements}", justify="right"),
        Column("bits", lambda sram: f"{sram.bits:,}"),
        Column("pitch\nmm2", lambda sram: three_digits(sram.pitch_mm2)),
        Column("of the\nleast", lambda sram: three_digits(sram.pitch_mm2 / pitch)),
        Column("CACTI\nmm2", lambda sram: three_digits(sram.macro_mm2)),
        Column("of the\nleast", lambda sram: three_digits(sram.macro_mm2 / macro)),
    ]
    return table(columns, srams, width)


def word_legend(width: int = WIDTH) -> str:
    """What the two models are."""
    return folded([_WORDS], width)


def to_json(machine: Hardware) -> str:
    """All of it, and the technology whole."""
    own, other = _totals(machine)
    chip = chip_of(machine.name)
    return document(
        hardware=machine.to_dict(),
        technology=machine.silicon.to_dict(),
        parts=[asdict(part) for part in parts_of(machine)],
        total_mm2=own,
        total_with_macros_mm2=other,
        words=[asdict(sram) for sram in srams_by_word(machine)],
        chip=chip.model_dump(by_alias=True) if chip else None,
    )
