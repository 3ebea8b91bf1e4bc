"""The machine as one frozen description, read from YAML with its units in the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, ValidationInfo, field_validator

from tpusim.base.errors import InputError, Problem
from tpusim.base.units import FREQUENCY
from tpusim.input.document import Document
from tpusim.input.form import (
    FROM_YAML,
    FileModel,
    FileSection,
    Form,
    Name,
    Overrides,
    Quantity,
    Reader,
    Settings,
    read_overrides,
    texts_of,
    whole,
    written,
)
from tpusim.input.scalars import dated_name, show
from tpusim.input.source import open_document, with_neighbours
from tpusim.machines.tpu.sections import (
    Arrangement,
    Array,
    Hbm,
    MappingPolicy,
    NumberType,
    NumberTypes,
    ScratchMemory,
    Sequencer,
    VectorMemory,
    VectorUnit,
)
from tpusim.memory.dram.device import FOLDER as DEVICES
from tpusim.memory.timing import Pipe
from tpusim.technology.constants import FOLDER as TECHNOLOGIES
from tpusim.technology.constants import Technology, as_written, load_technology, technology_of

_PS_PER_S = 10**12
SUM_BYTES = 4
"""Bytes of a sum of the arrays, and of a number that ALUs work on: float32."""


class Hardware(FileModel):
    """A TPU: the whole machine, complete and immutable.

    Built in Python, it takes attribute names and base units (`clock_hz=700_000_000`) and raises pydantic's
    ValidationError; `load_hardware` reads files and raises InputError.

    Attributes:
        name: name of the machine in results; that of its file unless given.
        generation: generation of the chip that the machine stands for, and the year when it was announced, by which
            `tpusim list` sorts machines; none of a machine that stands for no chip.
        clock_hz: frequency of the clock that cycles are counted in.
        array: the systolic array; a section.
        vector_memory: the vector memories; a section.
        vector_unit: the vector unit; a section.
        hbm: off-chip memory; a section.
        scratch_memory: a memory between HBM and the lanes; a section, which most machines leave out.
        sequencer: what issues the steps of layers; a section.
        types: what numbers of a type take, where time follows `--dtype`; a section.
        mapping: choices that lowerings follow; a section.
        technology: constants in which areas and energies are told; no cycle depends on them. A file of its own
            describes them (see the technology files below); 45nm unless given.
        chip_cores: cores of the chip of which the machine is one; 1 of a whole one.

    Examples:
        >>> import tpusim
        >>> machine = tpusim.load_hardware("tiny_4x4")
        >>> machine.array.rows, machine.pes, machine.lanes
        (4, 16, 4)
        >>> machine.with_overrides({"array.size": 8}).pes
        64
    """

    name: Annotated[str, Name(), written("my_machine")]
    generation: Annotated[str | None, Reader(dated_name, "a name and a year"), written("TPU v5e, 2023")] = None
    clock_hz: Annotated[int, Quantity(FREQUENCY, "100 GHz"), written("700 MHz", "clock")]
    array: Array
    vector_memory: VectorMemory
    vector_unit: VectorUnit
    hbm: Hbm
    scratch_memory: ScratchMemory | None = None
    sequencer: Sequencer = Sequencer()
    types: NumberTypes = NumberTypes()
    mapping: MappingPolicy = MappingPolicy()
    technology: Annotated[
        Technology | None,
        Reader(technology_of, "a shipped name, or a path"),
        PlainSerializer(as_written),
        written("45nm"),
    ] = None
    chip_cores: Annotated[int, whole(64)] = 1

    @field_validator("vector_memory")
    @classmethod
    def _feeds_the_array(cls, memory: VectorMemory, info: ValidationInfo) -> VectorMemory:
        # An array that is itself wrong is missing from info.data, and reported on its own.
        array = info.data.get("array")
        many = {f"array.{key}": size for key in ("count", "split") if (size := getattr(array, key, 1)) > 1}
        if memory.organization == "banked" and many:
            told = " and ".join(f"{path} is {size}" for path, size in many.items())
            message = f"banks feed one array, and {told}; set {' and '.join(many)} to 1, or write lanes"
            raise InputError([Problem(message, "organization")])
        return memory

    @property
    def family(self) -> str:
        """The machine family, by its name in `machines.family`."""
        return "tpu"

    @property
    def silicon(self) -> Technology:
        """The machine's technology; the default one where its file names none."""
        return self.technology or load_technology()

    @property
    def pes(self) -> int:
        """Processing elements: rows x cols of every array."""
        return self.array.rows * self.array.cols * self.array.count

    @property
    def multipliers(self) -> int:
        """Multipliers of a PE: as many as elements reach it in a cycle, no more than a word has."""
        return min(self.array.elements_per_cycle, self.vector_memory.word_elements)

    @property
    def macs_per_cycle(self) -> int:
        """Multiplications and additions of all PEs in a cycle, at most."""
        return self.pes * self.multipliers

    @property
    def skew(self) -> int:
        """Cycles that the last lane is behind lane 0."""
        return (self.lanes - 1) // self.array.pes_per_cycle

    @property
    def lanes(self) -> int:
        """Vector memories: lane i feeds row i and collects column i, so the longer side of the array."""
        # Row i and column i share lane i, so a lane exists for every index of either.
        return max(self.array.rows, self.array.cols)

    @property
    def word_bytes(self) -> int:
        """Bytes of one vector-memory word."""
        return self.vector_memory.word_elements * self.vector_memory.element_bytes

    @property
    def capacity_words(self) -> int:
        """Whole words one lane's vector memory holds."""
        return self.vector_memory.capacity_bytes // self.word_bytes

    @property
    def banked(self) -> bool:
        """Whether the ifmap lies in banks behind a crossbar."""
        return self.vector_memory.organization == "banked"

    @property
    def banks(self) -> int:
        """SRAMs for the ifmap alone: none where it lies in the lanes' vector memories."""
        banks = self.vector_memory.banks if self.banked else 0
        return banks if isinstance(banks, int) else self.lanes

    @property
    def bank_words(self) -> int:
        """Whole words that all banks hold together."""
        return self.banks * (self.vector_memory.bank_capacity_bytes // self.word_bytes)

    @property
    def sram_bytes(self) -> int:
        """Bytes of all vector memories and banks."""
        memory = self.vector_memory
        return self.lanes * memory.capacity_bytes + self.banks * memory.bank_capacity_bytes

    @property
    def weight_word_cycles(self) -> int:
        """Cycles in which one word of weights enters a column of the array."""
        return -(-self.vector_memory.word_elements // self.array.weights_per_cycle)

    @property
    def preload_words(self) -> int:
        """The weight words that a lane reads for one column of weights, the last perhaps short."""
        return -(-self.array.rows // self.vector_memory.word_elements)

    @property
    def preload_cycles(self) -> int:
        """Cycles to load the weights of one pass, for all rows, if the port is free; the last word may be short."""
        words, rest = divmod(self.array.rows, self.vector_memory.word_elements)
        return words * self.weight_word_cycles - (-rest // self.array.weights_per_cycle)

    @property
    def latency_cycles(self) -> int:
        """Cycles until the first byte of an HBM access, rounded up."""
        return -(-self.hbm.latency_ps * self.clock_hz // _PS_PER_S)

    @property
    def pipes(self) -> dict[str, Pipe]:
        """Latency and bytes in cycles of each bus to a memory behind the lanes, by the section of that memory; HBM's
        first. A DRAM has its own latency; its pipe is all its data buses.
        """
        found = {"hbm": Pipe(0 if self.hbm.dram else self.latency_cycles, self.hbm_peak_bytes_per_cycle)}
        if memory := self.scratch_memory:
            latency = -(-memory.latency_ps * self.clock_hz // _PS_PER_S)
            found["scratch_memory"] = Pipe(latency, Fraction(memory.bandwidth_bytes_per_s, self.clock_hz))
        return found

    @property
    def element_bytes(self) -> int:
        """Bytes of a number."""
        return self.vector_memory.element_bytes

    @property
    def result_bytes(self) -> int:
        """Bytes of a result of the arrays in HBM."""
        return self.vector_memory.result_bytes or self.element_bytes

    @property
    def hbm_bytes_per_s(self) -> int:
        """The bandwidth of HBM."""
        return self.hbm.bandwidth_bytes_per_s

    @property
    def hbm_bytes_per_cycle(self) -> Fraction:
        """HBM bytes per clock cycle, exactly."""
        return Fraction(self.hbm.bandwidth_bytes_per_s, self.clock_hz)

    @property
    def hbm_peak_bytes_per_cycle(self) -> Fraction:
        """Most HBM bytes per clock cycle: the bandwidth of the pipe, or of a DRAM whose data buses are all busy."""
        if device := self.hbm.dram:
            return device.peak_bytes_per_cycle * device.clock_hz / self.clock_hz
        return self.hbm_bytes_per_cycle

    def to_dict(self) -> dict[str, Any]:
        """The YAML form, units in the values; `Hardware.model_validate` gives an equal Hardware back."""
        written = self.model_dump(by_alias=True)
        held = {key: value for key, value in written.items() if key not in ("generation", "scratch_memory") or value}
        return held if self.chip_cores > 1 else {key: value for key, value in held.items() if key != "chip_cores"}

    def having(self, section: str, **changes: Any) -> Hardware:
        """The machine with other fields of a section, by their attribute names; they are not validated."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=changes)})

    @property
    def untimed(self) -> Hardware:
        """The machine with no clock, latency or bandwidth of its own, and no way to choose tilings: what a Program of a
        given tiling follows from.
        """
        return _untimed(self)

    @property
    def wide(self) -> Hardware:
        """The machine as its vector unit works on words of sums, which are as wide as its ALUs: nothing is converted or
        rounded.
        """
        return _wide(self)

    def of_type(self, name: str) -> Hardware:
        """The machine as it runs numbers of a type; as it is, for a type whose time its file does not tell."""
        kind: NumberType | None = getattr(self.types, name, None)
        if kind is None:
            return self
        memory = self.vector_memory
        converting = [each for each in NumberType.model_fields if each.startswith("convert_")]
        conversions = {each: getattr(kind, each) for each in (*converting, "widen", "narrow", "rounding")}
        word = max(memory.word_elements, self.word_bytes // kind.bytes)
        weights = kind.weights_per_cycle or kind.rate * self.array.weights_per_cycle
        rate = {
            "elements_per_cycle": min(word, kind.rate * self.array.elements_per_cycle),
            "weights_per_cycle": min(word, weights),
            "weights_rate": "all" if kind.weights_per_cycle else self.array.weights_rate,
        }
        window = kind.window_bytes or self.mapping.window_bytes
        sizes = {"word_elements": word, "element_bytes": kind.bytes, "result_bytes": kind.result_bytes}
        unit, slots = self.vector_unit, self.vector_unit.slots
        if slots and slots.turn_cycles:
            turned = slots.turn_cycles * Fraction(kind.bytes, memory.element_bytes)
            slots = slots.model_copy(update={"turn_cycles": turned})
        return self.model_copy(
            update={
                "array": self.array.model_copy(update=rate),
                "vector_memory": memory.model_copy(update=sizes),
                "vector_unit": unit.model_copy(update={**conversions, "slots": slots}),
                "mapping": self.mapping.model_copy(update={"window_bytes": window}),
                "types": NumberTypes(),
            }
        )

    def arrangements(self, out_channels: int) -> tuple[Arrangement, ...]:
        """Ways in which a layer with this number of output channels may use the arrays.

        Where all share weights, words of several may fill the port's frames, so one alone may be faster; but layers
        that overlap use arrays alike.
        """
        array = self.array
        split = array.split if out_channels * array.split <= array.cols else 1
        weights: tuple[Literal["shared", "own"], ...]
        weights = ("shared", "own") if array.weights == "either" else (array.weights,)
        found = [Arrangement(each, split) for each in weights]
        if array.together > 1 and self.sequencer.between_layers == "drain":
            found.append(Arrangement("shared", 1, alone=True))
        return tuple(found)

    def arranged(self, arrangement: Arrangement) -> Hardware:
        """The machine as a layer uses it: its arrays, or small ones on their diagonals, with weights shared or not."""
        (weights, split, alone), array = arrangement, self.array
        if (weights, split, alone, 1, "each") == (array.weights, 1, False, array.split, array.weights_rate):
            return self
        rows, cols, count = array.rows // split, array.cols // split, 1 if alone else array.count * split
        # Weights that are one rate for all arrays come to each of several at its share.
        among = count if (weights, array.weights_rate) == ("own", "all") else 1
        rate = max(1, array.weights_per_cycle // among)
        if (weights, array.weights, array.weights_rate) == ("shared", "either", "each"):
            # Arrays that take words in turn stand for arrays that take passes of a sum in turn: tiles of as many passes
            # load side by side.
            rate = min(self.vector_memory.word_elements, rate * count)
        rates = {"weights_per_cycle": rate, "weights_rate": "each"}
        # What enters a small array crosses others on its way, so it takes nearly as long as through the large one.
        crossed = -(-array.pes_per_cycle // split)
        return self.having(
            "array", rows=rows, cols=cols, count=count, weights=weights, split=1, pes_per_cycle=crossed, **rates
        )

    def without_windows(self) -> Hardware:
        """The machine with bodies that wait for whole loads, for lowerings that make no pipeline of them."""
        if self.mapping.loads != "windows":
            return self
        return self.having("mapping", loads="whole")

    def poorer(self) -> Iterator[Hardware]:
        """Machines with less of one resource, on which only blocks fit that fit this one, too.

        They have one array in place of several that share weights, or one weight a cycle, or shared ports.
        """
        if self.array.count > 1 and self.array.weights == "shared":
            yield self.having("array", count=1)
        if self.array.weights_per_cycle > 1:
            yield self.having("array", weights_per_cycle=1)
        if self.vector_memory.ports != "shared":
            yield self.having("vector_memory", ports="shared")

    def with_overrides(self, overrides: Overrides) -> Hardware:
        """The machine with `PATH=VALUE` changes, as `load_hardware` takes them. Raises InputError."""
        return _build(Document(self.name, self.to_dict()), overrides).telling(self.changes)


@lru_cache(maxsize=64)
def _wide(machine: Hardware) -> Hardware:
    """See Hardware.wide; kept, because every step of the vector unit asks for it several times."""
    wide = machine.having("vector_unit", widen=Fraction(0), narrow=Fraction(0), rounding=0)
    return wide.having("vector_memory", element_bytes=max(machine.element_bytes, SUM_BYTES))


@lru_cache(maxsize=64)
def _untimed(machine: Hardware) -> Hardware:
    """See Hardware.untimed; kept, because every layer asks for it."""
    clocked = machine.model_copy(update={"clock_hz": 1})
    return clocked.having("hbm", bandwidth_bytes_per_s=1, latency_ps=0).having("mapping", search="estimate")


def load_hardware(name_or_path: str | Path, overrides: Overrides = ()) -> Hardware:
    """The machine of a shipped name, a YAML path, or "-" (standard input).

    `overrides` are texts such as "array.rows=64", one such text, or a mapping of path to value; `array.size` sets rows
    and cols. Raises InputError with every problem of the file and the overrides.
    """
    return read_hardware(open_document(name_or_path, "configs"), overrides)


def read_hardware(document: Document, overrides: Overrides = ()) -> Hardware:
    """The machine that a file describes. Raises InputError."""
    return _build(with_neighbours(document, FORM.files), overrides)


def optional_fields() -> dict[str, dict[str, Any]]:
    """Defaults of the fields that a file may leave out, in the YAML form, by section and key."""
    sections = {key: info.annotation for key, info in Hardware.model_fields.items()}
    return {
        key: section.model_construct().model_dump(by_alias=True)
        for key, section in sections.items()
        if isinstance(section, type) and issubclass(section, FileSection)
    }


_SIZE = "array.size"
FORM = Form(Hardware, more=[_SIZE], files={"hbm.device": DEVICES, "technology": TECHNOLOGIES})


def _build(document: Document, overrides: Overrides) -> Hardware:
    data = {"name": Path(document.label.strip("<>")).stem, **document.data}
    written_out: Settings = {}
    if isinstance(array := data.get("array"), Mapping) and "size" in array:
        # `size` becomes rows and cols first, so that an override of one side meets the other.
        paths = {f"array.{key}": array[key] for key in ("size", "rows", "cols") if key in array}
        written_out = {path: (value, document.place(path)) for path, value in paths.items()}
        data["array"] = {key: value for key, value in array.items() if key != "size"}
    # The file is settled before the overrides: a clash within the file is reported at its own line.
    sized, clashes = _set(replace(document, data=data), written_out)
    given, refused = read_overrides(overrides, FORM)
    changes = texts_of(given)
    if _SIZE in given and (alus := _scaled_alus(sized.data, given[_SIZE][0])):
        given.setdefault("vector_unit.alus", (alus, given[_SIZE][1]))
    final, disagreeing = _set(sized, given)
    return FORM.read(final, FROM_YAML, [*clashes, *refused, *disagreeing]).telling(changes)


def _set(document: Document, given: Settings) -> tuple[Document, list[Problem]]:
    """Set fields; `array.size` sets both sides, which may stand beside it only where they agree."""
    settings, problems = {**given}, []
    if _SIZE in given:
        size, place = settings.pop(_SIZE)
        for key in ("rows", "cols"):
            side, _ = settings.setdefault(f"array.{key}", (size, place))
            if side != size and isinstance(size, int):
                clash = f"size {size} sets rows and cols, but {key} is {show(side)}; remove one of them"
                problems.append(Problem(clash, *place))
    for path, (value, where) in settings.items():
        document = document.override(path, value, where)
    return document, problems


def _scaled_alus(data: Mapping[str, Any], size: Any) -> int | None:
    """ALUs of the vector unit for `size` lanes, at the same number a lane; None without sound numbers."""
    try:
        alus, *sides = data["vector_unit"]["alus"], data["array"]["rows"], data["array"]["cols"]
    except (KeyError, TypeError):
        return None
    sound = all(isinstance(number, int) and number > 0 for number in (alus, *sides, size))
    return max(1, alus * size // max(sides)) if sound else None
