"""What a machine takes of a chip, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tpusim.machines.tpu.cost.widths import (
    NARROW_BITS,
    WIDE_BITS,
    pe_register_bits,
    scalar_words,
    serializer_words,
    word_bits,
)
from tpusim.machines.tpu.description import Hardware
from tpusim.technology import area

Basis = Literal["model", "published"]
"""Where an area is from: a model of ours or of a tool, or what somebody published of a circuit. None was measured."""


@dataclass(frozen=True)
class AreaPart:
    """`mm2` in the machine's technology; `what` says in words of what it is made, `basis` how it is known."""

    key: str
    name: str
    mm2: float
    basis: Basis
    what: str


@dataclass(frozen=True)
class Sram:
    """One vector memory with words of so many `elements`: by the pitch of its cells, and by compiled macros."""

    elements: int
    bits: int
    pitch_mm2: float
    macro_mm2: float


def parts_of(hardware: Hardware) -> tuple[AreaPart, ...]:
    """Every part that is modelled, the vector memories by the pitch of their cells."""
    return (*_memories(hardware), *_array(hardware), *_lanes(hardware))


def total_mm2(hardware: Hardware) -> float:
    """All of them together."""
    return sum(part.mm2 for part in parts_of(hardware))


def memories_by_macro(hardware: Hardware) -> float:
    """Vector memories and banks by compiled macros instead, in square millimetres."""
    bits = word_bits(hardware)
    return sum(count * area.sram_by_macro(hardware.silicon, words, bits) for _, _, count, words in _srams(hardware))


_WORDS = (1, 2, 4, 8, 16, 32)
"""Those of the paper's Fig. 16b."""


def srams_by_word(hardware: Hardware) -> tuple[Sram, ...]:
    """The vector memory of a lane with words of other widths, its capacity as it is."""
    memory, silicon = hardware.vector_memory, hardware.silicon
    sizes = [(elements, memory.capacity_bytes // (elements * memory.element_bytes)) for elements in _WORDS]
    widths = [(elements, 8 * elements * memory.element_bytes, words) for elements, words in sizes if words]
    return tuple(
        Sram(elements, bits, area.sram_by_pitch(silicon, words, bits), area.sram_by_macro(silicon, words, bits))
        for elements, bits, words in widths
    )


def _srams(hardware: Hardware) -> Iterator[tuple[str, str, int, int]]:
    """Key, name, how many, and words of each."""
    yield "vector_memories", "vector memories", hardware.lanes, hardware.capacity_words
    if hardware.banks:
        yield "banks", "banks of the ifmap", hardware.banks, hardware.bank_words // hardware.banks


def _memories(hardware: Hardware) -> Iterator[AreaPart]:
    bits = word_bits(hardware)
    for key, name, count, words in _srams(hardware):
        each = area.sram_by_pitch(hardware.silicon, words, bits)
        yield AreaPart(
            key, name, count * each, "model", f"{count:,} x {words:,} words of {bits} bits, by the pitch of cells"
        )
    if hardware.banks:
        ports = hardware.banks * hardware.vector_memory.bank_ports
        mm2 = area.crossbar(hardware.silicon, ports, hardware.array.rows, bits)
        what = f"{ports:,} x {hardware.array.rows:,} ports of {bits} bits, scaled from one that was laid out"
        yield AreaPart("crossbar", "crossbar", mm2, "published", what)


def _array(hardware: Hardware) -> Iterator[AreaPart]:
    pes, bits = hardware.pes, pe_register_bits(hardware)
    adders = area.multiply_adders(hardware.silicon, pes, narrow=True)
    yield AreaPart(
        "array", "array", adders, "published", f"{pes:,} multipliers of {NARROW_BITS} bits, adders of {WIDE_BITS}"
    )
    registers = area.registers(hardware.silicon, pes * bits)
    yield AreaPart("pe_registers", "registers of the PEs", registers, "model", f"{pes:,} x {bits} bits of flip-flops")


def _lanes(hardware: Hardware) -> Iterator[AreaPart]:
    bits, alus = word_bits(hardware), hardware.vector_unit.alus
    words, scalars = serializer_words(hardware), scalar_words(hardware)
    both = area.registers(hardware.silicon, words * bits)
    yield AreaPart(
        "serializers", "serializers, de-serializers", both, "model", f"{words:,} words of {bits} bits of flip-flops"
    )
    units = area.multiply_adders(hardware.silicon, alus, narrow=False)
    yield AreaPart(
        "vector_unit", "vector unit", units, "published", f"{alus:,} multipliers and adders of {WIDE_BITS} bits"
    )
    held = area.registers(hardware.silicon, scalars * bits)
    yield AreaPart(
        "vector_registers", "its registers", held, "model", f"{scalars:,} words of {bits} bits of flip-flops"
    )
