"""Areas and energies of bits, operations and ports in a process, read from YAML with units; and published chips.

Areas are in square millimetres, energies in picojoules, powers in picojoules a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import model_validator

from tpusim.base.errors import InputError, Problem
from tpusim.base.units import AREA, ENERGY, LENGTH, POWER, SIZE
from tpusim.input.form import FROM_YAML, FileSection, Form, Name, Quantity, whole, written
from tpusim.input.scalars import show
from tpusim.input.source import open_document, shipped

FOLDER = "configs/technology"
"""Folder of the shipped technologies."""

USUAL = "45nm"
"""Technology of machines that name none."""

CHIPS = "configs/chips"
"""Folder of the shipped chips."""

_NM2 = 1e-12
"""A square nanometre in square millimetres."""
_AJ = 1e-6
"""An attojoule in picojoules."""
_BITS = 8

_Length = Quantity(LENGTH, "1 m")
_Area = Quantity(AREA, "1 m2")
_Energy = Quantity(ENERGY, "1 J")
_Power = Quantity(POWER, "1 kW")


class Pitch(FileSection):
    """A bank of SRAM by the pitch of its cells, and what each of its rows takes beside them.

    Attributes:
        row_nm: height of a row of cells.
        column_nm: width of a cell.
        periphery_nm: width of the periphery beside each row.
    """

    row_nm: Annotated[int, _Length, written("1.365 um", "row")]
    column_nm: Annotated[int, _Length, written("0.705 um", "column")]
    periphery_nm: Annotated[int, _Length, written("96 um", "periphery")]

    def area(self, words: int, bits: int) -> float:
        """Area of an SRAM of `words` words of `bits` bits: a row for each word, with periphery beside it."""
        return words * self.row_nm * (self.column_nm * bits + self.periphery_nm) * _NM2


class Macro(FileSection):
    """Compiled SRAMs of one capacity, one for each width of a word. All lists are as long as that of the words.

    Attributes:
        capacity_bytes: bytes of each of these SRAMs.
        word_bytes: bytes of a word, growing from one SRAM to the next.
        area_nm2: area of each SRAM.
        read_aj: energy of reading a word of each.
        write_aj: energy of writing a word of each.
        leakage_pw: leakage power of each SRAM.
    """

    capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("256 KiB", "capacity")]
    word_bytes: Annotated[tuple[int, ...], Quantity(SIZE, "64 KiB"), written("[4 B, 32 B]", "words")]
    area_nm2: Annotated[tuple[int, ...], Quantity(AREA, "1 m2"), written("[0.8 mm2, 0.9 mm2]", "area")]
    read_aj: Annotated[tuple[int, ...], Quantity(ENERGY, "1 J"), written("[26 pJ, 87 pJ]", "read")]
    write_aj: Annotated[tuple[int, ...], Quantity(ENERGY, "1 J"), written("[18 pJ, 108 pJ]", "write")]
    leakage_pw: Annotated[tuple[int, ...], Quantity(POWER, "1 kW"), written("[125 mW, 124 mW]", "leakage")]

    def area(self, words: int, bits: int) -> float:
        """Area of an SRAM of `words` words of `bits` bits, in proportion to the capacity.

        Between two widths of a word the area is interpolated in logarithms; beyond the last it is constant.
        """
        # Straight lines in logarithms are powers, which widths and areas of macros follow well between two of them.
        area = np.exp(np.interp(np.log(bits / _BITS), np.log(self.word_bytes), np.log(self.area_nm2)))
        return float(area) * words * bits / (_BITS * self.capacity_bytes) * _NM2

    def access(self, kind: Literal["read", "write"], capacity_bytes: int, bits: int) -> float:
        """Energy of reading or writing a word of `bits` bits in an SRAM of a capacity.

        Between macros energies are interpolated in logarithms; beyond them the energy of a bit is constant.
        Wires grow with the side of a macro: with the square root of its capacity.
        """
        words, energies = self.word_bytes, self.read_aj if kind == "read" else self.write_aj
        # No macro was compiled beyond the widths in the file, and a fit is not trusted there.
        inside = min(max(bits / _BITS, words[0]), words[-1])
        energy = float(np.exp(np.interp(np.log(inside), np.log(words), np.log(energies)))) * (bits / _BITS) / inside
        return energy * _AJ * math.sqrt(capacity_bytes / self.capacity_bytes)

    def leakage(self, capacity_bytes: int, bits: int) -> float:
        """Leakage power of an SRAM with words of `bits` bits, in proportion to its capacity."""
        leaks = float(np.interp(np.log(bits / _BITS), np.log(self.word_bytes), self.leakage_pw))
        return leaks * capacity_bytes / self.capacity_bytes


class Crossbar(FileSection):
    """A crossbar that was laid out, in a process of its own; others are scaled from it.

    Attributes:
        ports: inputs, and as many outputs.
        width: bits of an input.
        area_nm2: area of the crossbar.
        feature_nm: feature size of its process.
    """

    ports: Annotated[int, whole(65536), written(128)]
    width: Annotated[int, whole(65536), written(32)]
    area_nm2: Annotated[int, _Area, written("6.6 mm2", "area")]
    feature_nm: Annotated[int, _Length, written("90 nm", "feature")]

    def area(self, inputs: int, outputs: int, bits: int, feature_nm: int) -> float:
        """Area of a crossbar in a process of `feature_nm`: in proportion to inputs, outputs, bits, and the feature's
        square.
        """
        crossings = inputs * outputs * bits / (self.ports**2 * self.width)
        return crossings * self.area_nm2 * _NM2 * shrink(self.feature_nm, feature_nm)


class ArithmeticEnergies(FileSection):
    """Energies of an operation, and areas of what does it once a cycle.

    Attributes:
        bf16_multiply_aj: energy of a product of two bfloat16 numbers.
        fp32_multiply_aj: energy of a product of two FP32 numbers.
        fp32_add_aj: energy of a sum of two FP32 numbers.
        bf16_multiplier_nm2: area of a multiplier of bfloat16 numbers.
        fp32_multiplier_nm2: area of a multiplier of FP32 numbers.
        fp32_adder_nm2: area of an adder of FP32 numbers.
    """

    bf16_multiply_aj: Annotated[int, _Energy, written("1.1 pJ", "bf16_multiply")]
    fp32_multiply_aj: Annotated[int, _Energy, written("3.7 pJ", "fp32_multiply")]
    fp32_add_aj: Annotated[int, _Energy, written("0.9 pJ", "fp32_add")]
    bf16_multiplier_nm2: Annotated[int, _Area, written("1640 um2", "bf16_multiplier")]
    fp32_multiplier_nm2: Annotated[int, _Area, written("7700 um2", "fp32_multiplier")]
    fp32_adder_nm2: Annotated[int, _Area, written("4184 um2", "fp32_adder")]

    def area(self, count: int, narrow: bool) -> float:
        """Area of `count` multipliers, of bfloat16 if `narrow`, otherwise of FP32, each with an FP32 adder."""
        multiplier = self.bf16_multiplier_nm2 if narrow else self.fp32_multiplier_nm2
        return count * (multiplier + self.fp32_adder_nm2) * _NM2

    def multiply_adds(self, count: int) -> float:
        """Energy of `count` products of bfloat16, each added to an FP32 sum."""
        return count * (self.bf16_multiply_aj + self.fp32_add_aj) * _AJ

    def fp32(self, products: int, sums: int) -> float:
        """Energy of FP32 multiplications and additions."""
        return (products * self.fp32_multiply_aj + sums * self.fp32_add_aj) * _AJ


class FlipFlop(FileSection):
    """A bit of a register.

    Attributes:
        area_nm2: area of the bit.
        write_aj: energy of a clock that writes it.
        leakage_pw: power that it leaks.
    """

    area_nm2: Annotated[int, _Area, written("6 um2", "area")]
    write_aj: Annotated[int, _Energy, written("9 fJ", "write")]
    leakage_pw: Annotated[int, _Power, written("74 nW", "leakage")]

    def area(self, bits: int) -> float:
        """Area of `bits` flip-flops."""
        return bits * self.area_nm2 * _NM2

    def leakage(self, bits: int) -> float:
        """Leakage power of `bits` flip-flops."""
        return float(bits * self.leakage_pw)

    def writes(self, bits: int) -> float:
        """Energy of writing `bits` bits once."""
        return bits * self.write_aj * _AJ


class HbmEnergy(FileSection):
    """Energies of HBM.

    Attributes:
        bit_aj: energy of a bit with its share of activates, where HBM is a pipe.
        column_bit_aj: energy of a bit without activates, where HBM has banks.
        activate_aj: energy of opening a row of `row` bytes.
        row_bytes: bytes of the row that `activate` is of.
    """

    bit_aj: Annotated[int, _Energy, written("3.92 pJ", "bit")]
    column_bit_aj: Annotated[int, _Energy, written("3.48 pJ", "column_bit")]
    activate_aj: Annotated[int, _Energy, written("909 pJ", "activate")]
    row_bytes: Annotated[int, Quantity(SIZE, "1 MiB"), written("1 KiB", "row")]

    def bits(self, bits: int, activates_counted: bool) -> float:
        """Energy of moving `bits` bits, with their share of activates unless activates are counted."""
        return bits * (self.column_bit_aj if activates_counted else self.bit_aj) * _AJ

    def activates(self, count: int, row_bytes: int) -> float:
        """Energy of opening `count` rows, in proportion to the bytes of a row."""
        return count * self.activate_aj * _AJ * row_bytes / self.row_bytes


class Technology(FileSection):
    """A whole technology, complete and immutable.

    Attributes:
        name: name of the process.
        feature_nm: feature size of the process.
        pitch: SRAM by the pitch of its cells; a section.
        macro: compiled SRAMs; a section.
        crossbar: a crossbar; a section.
        arithmetic: multipliers and adders; a section.
        flip_flop: a bit of a register; a section.
        hbm: energies of HBM; a section.
    """

    name: Annotated[str, Name(), written("my_process")]
    feature_nm: Annotated[int, _Length, written("45 nm", "feature")]
    pitch: Pitch
    macro: Macro
    crossbar: Crossbar
    arithmetic: ArithmeticEnergies
    flip_flop: FlipFlop
    hbm: HbmEnergy

    @model_validator(mode="after")
    def _sound(self) -> Technology:
        if problems := [*_columns(self.macro)]:
            raise InputError(problems)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The YAML form, units in the values."""
        return self.model_dump(by_alias=True)


def _columns(macro: Macro) -> Iterator[Problem]:
    """Problems of macros: lists of another length than the words', and words that do not grow."""
    words = macro.word_bytes
    if any(wider <= word for word, wider in pairwise(words)):
        yield Problem("words must grow from one to the next; write them in order, each once", "macro.words")
    for key in ("area_nm2", "read_aj", "write_aj", "leakage_pw"):
        if len(getattr(macro, key)) != len(words):
            what = f"{len(getattr(macro, key))} values for {len(words)} words; write one for each of words"
            yield Problem(what, f"macro.{key.rpartition('_')[0]}")


@lru_cache(maxsize=64)
def load_technology(name_or_path: str | Path = USUAL) -> Technology:
    """The technology of a shipped name, or a YAML path. Raises InputError with every problem of the file."""
    return _FORM.read(open_document(name_or_path, FOLDER), FROM_YAML)


def technology_of(value: object) -> Technology | None:
    """The technology that a machine's file names or writes out; None for none. Raises InputError with every problem."""
    if value is None or isinstance(value, Technology):
        return value
    if isinstance(value, Mapping):
        return _FORM.build(value, FROM_YAML)
    if not isinstance(value, str):
        named = f"write the name of a shipped one, e.g. {USUAL}, or a path"
        raise InputError(f"{show(value)} is not a technology; {named}")
    try:
        return load_technology(value)
    except InputError as error:
        # The problem is in another file, so its place is told in the message.
        raise InputError([Problem(str(each)) for each in error.problems]) from None


def as_written(technology: Technology | None) -> str | dict[str, Any] | None:
    """A shipped technology by its name, any other one in full."""
    if technology is None:
        return None
    # A changed one may have kept its name.
    known = technology.name in shipped(FOLDER) and load_technology(technology.name) == technology
    return technology.name if known else technology.to_dict()


def shrink(before_nm: float, after_nm: float) -> float:
    """Factor of an area in another process: the square of the features' ratio (Dennard et al., JSSC 1974)."""
    return (after_nm / before_nm) ** 2


class Chip(FileSection):
    """A whole published chip; a machine models the matrix units and vector memories of each of its `cores`."""

    name: Annotated[str, Name(), written("my_chip")]
    cores: Annotated[int, whole(1024), written(2)]
    area_nm2: Annotated[int, Quantity(AREA, "1 m2"), written("611 mm2", "area")]
    power_pw: Annotated[int, Quantity(POWER, "1 kW"), written("280 W", "power")]
    feature_nm: Annotated[int, Quantity(LENGTH, "1 m"), written("16 nm", "feature")]


def chip_of(machine: str) -> Chip | None:
    """The chip that a machine of this name models, such as tpu_v2 for tpu_v2_core; None if none is known."""
    # A machine named after a chip models it, whatever follows: its core, or a set of fitted numbers.
    name = next((name for name in shipped(CHIPS) if machine == name or machine.startswith(f"{name}_")), None)
    return _CHIP.read(open_document(name, CHIPS), FROM_YAML) if name else None


_FORM = Form(Technology)
_CHIP = Form(Chip)
