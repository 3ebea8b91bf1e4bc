"""What bits, operations and ports take in a process: areas and energies, read from YAML with units in the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import model_validator

from tpusim.base.errors import InputError, Problem
from tpusim.base.units import AREA, ENERGY, LENGTH, POWER, SIZE
from tpusim.input.form import FROM_YAML, FileSection, Form, Name, Quantities, Quantity, whole, written
from tpusim.input.scalars import show
from tpusim.input.source import open_document, shipped

FOLDER = "configs/technology"
"""Where the shipped technologies lie."""

USUAL = "45nm"
"""The one of machines that name none."""

_Length = Quantity(LENGTH, "1 m")
_Area = Quantity(AREA, "1 m2")
_Energy = Quantity(ENERGY, "1 J")
_Power = Quantity(POWER, "1 kW")


class Pitch(FileSection):
    """A bank of SRAM by the pitch of its cells, and what each of its rows takes beside them."""

    row_nm: Annotated[int, _Length, written("1.365 um", "row")]
    column_nm: Annotated[int, _Length, written("0.705 um", "column")]
    periphery_nm: Annotated[int, _Length, written("96 um", "periphery")]


class Macro(FileSection):
    """SRAMs of one capacity, one for each width of a word: areas, energies of an access, leakage."""

    capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("256 KiB", "capacity")]
    word_bytes: Annotated[tuple[int, ...], Quantities(SIZE, "64 KiB"), written("[4 B, 32 B]", "words")]
    area_nm2: Annotated[tuple[int, ...], Quantities(AREA, "1 m2"), written("[0.8 mm2, 0.9 mm2]", "area")]
    read_aj: Annotated[tuple[int, ...], Quantities(ENERGY, "1 J"), written("[26 pJ, 87 pJ]", "read")]
    write_aj: Annotated[tuple[int, ...], Quantities(ENERGY, "1 J"), written("[18 pJ, 108 pJ]", "write")]
    leakage_pw: Annotated[tuple[int, ...], Quantities(POWER, "1 kW"), written("[125 mW, 124 mW]", "leakage")]


class Crossbar(FileSection):
    """One that was laid out: `ports` times `ports`, each `width` bits wide, in a process of its own."""

    ports: Annotated[int, whole(65536), written(128)]
    width: Annotated[int, whole(65536), written(32)]
    area_nm2: Annotated[int, _Area, written("6.6 mm2", "area")]
    feature_nm: Annotated[int, _Length, written("90 nm", "feature")]


class Arithmetic(FileSection):
    """Energies of an operation, and areas of what does it once a cycle."""

    bf16_multiply_aj: Annotated[int, _Energy, written("1.1 pJ", "bf16_multiply")]
    fp32_multiply_aj: Annotated[int, _Energy, written("3.7 pJ", "fp32_multiply")]
    fp32_add_aj: Annotated[int, _Energy, written("0.9 pJ", "fp32_add")]
    bf16_multiplier_nm2: Annotated[int, _Area, written("1640 um2", "bf16_multiplier")]
    fp32_multiplier_nm2: Annotated[int, _Area, written("7700 um2", "fp32_multiplier")]
    fp32_adder_nm2: Annotated[int, _Area, written("4184 um2", "fp32_adder")]


class FlipFlop(FileSection):
    """A bit of a register: its area, the energy of a clock that writes it, its leakage."""

    area_nm2: Annotated[int, _Area, written("6 um2", "area")]
    write_aj: Annotated[int, _Energy, written("9 fJ", "write")]
    leakage_pw: Annotated[int, _Power, written("74 nW", "leakage")]


class HbmEnergy(FileSection):
    """HBM: a bit with its share of activates; or a bit without, and the activate of a row of so many bytes."""

    bit_aj: Annotated[int, _Energy, written("3.92 pJ", "bit")]
    column_bit_aj: Annotated[int, _Energy, written("3.48 pJ", "column_bit")]
    activate_aj: Annotated[int, _Energy, written("909 pJ", "activate")]
    row_bytes: Annotated[int, Quantity(SIZE, "1 MiB"), written("1 KiB", "row")]


class Technology(FileSection):
    """A whole technology, complete and immutable."""

    name: Annotated[str, Name(), written("my_process")]
    feature_nm: Annotated[int, _Length, written("45 nm", "feature")]
    pitch: Pitch
    macro: Macro
    crossbar: Crossbar
    arithmetic: Arithmetic
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
    """Lists of another length than that of the words, and words that do not grow."""
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
    """What a machine's file names, or writes out; None for none. Raises InputError with every problem."""
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
        # Of another file: its place belongs to the message.
        raise InputError([Problem(str(each)) for each in error.problems]) from None


def as_written(technology: Technology | None) -> str | dict[str, Any] | None:
    """A shipped one by its name, any other whole."""
    if technology is None:
        return None
    known = technology.name in shipped(FOLDER) and load_technology(technology.name) == technology
    return technology.name if known else technology.to_dict()


_FORM = Form(Technology)
