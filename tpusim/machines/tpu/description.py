"""What the machine is: one frozen description, read from YAML with its units in the values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, ValidationInfo, field_validator, model_validator

from tpusim.base.errors import InputError, Problem
from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE, TIME
from tpusim.input.document import Document
from tpusim.input.fields import FROM_YAML, Choice, Name, Quantity, Rational, whole, written
from tpusim.input.form import FileSection, Form
from tpusim.input.overrides import Overrides, Settings, read_overrides
from tpusim.input.scalars import show
from tpusim.input.source import open_document
from tpusim.machines.tpu.policy import MappingPolicy
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.given import device_of, with_mapping
from tpusim.memory.orders import Layouts, read_layouts
from tpusim.technology.constants import Technology, as_written, load_technology, technology_of

_MOST_PES_A_SIDE = 65536
_PS_PER_S = 10**12


class Array(FileSection):
    """The systolic array: `rows` x `cols` PEs, each with `weight_buffers` weight registers (1 or 2).

    Of `count` arrays, each holds the same weights and takes every `count`-th word of a stream, a cycle behind
    the one before; they share lanes and ports. `weights_per_cycle` enter each column while weights are loaded, at
    most a word. A word streams the elements that are `used`, or `all` it has room for (`streamed`).
    """

    rows: Annotated[int, whole(_MOST_PES_A_SIDE), written(128)]
    cols: Annotated[int, whole(_MOST_PES_A_SIDE), written(128)]
    weight_buffers: Annotated[int, whole(2)] = 2
    weights_per_cycle: Annotated[int, whole(4096)] = 1
    count: Annotated[int, whole(16)] = 1
    streamed: Annotated[Literal["used", "all"], Choice()] = "used"


class VectorMemory(FileSection):
    """One SRAM a lane: words of `word_elements` elements of `element_bytes` bytes each.

    Its one port is `shared` by all clients; `separate` asks what a port for each of them would gain. Under `banked` the
    ifmap has SRAMs of its own, `banks` of them, which array rows reach through a crossbar: each has `bank_ports` ports
    to read and one to write. `bank_map` is how lowerings lay the ifmap out in them.
    """

    word_elements: Annotated[int, whole(4096), written(8)]
    element_bytes: Annotated[int, whole(64), written(4)]
    capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("256 KiB", "capacity")]
    ports: Annotated[Literal["shared", "separate"], Choice()] = "shared"
    organization: Annotated[Literal["lanes", "banked"], Choice()] = "lanes"
    banks: Annotated[int | Literal["lanes"], Choice(_MOST_PES_A_SIDE)] = "lanes"
    bank_ports: Annotated[int, whole(64)] = 1
    # The default is the value of configs/tpu_v2_banked.yaml.
    bank_capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("128 KiB", "bank_capacity")] = 131_072
    bank_map: Annotated[Literal["window", "chw", "hwc"], Choice()] = "window"

    @field_validator("capacity_bytes", "bank_capacity_bytes")
    @classmethod
    def _holds_a_word(cls, capacity: int, info: ValidationInfo) -> int:
        # A word size that is itself wrong is missing from info.data, and reported on its own.
        word = info.data.get("word_elements", 1) * info.data.get("element_bytes", 1)
        if capacity < word:
            needed = f"one word of {word} B (word_elements x element_bytes); write at least {SIZE.format(word)}"
            raise InputError(f"{SIZE.format(capacity)} cannot hold {needed}, or make the word smaller")
        return capacity


class VectorUnit(FileSection):
    """`alus` vector ALUs over all lanes together; they add partial sums.

    Where numbers are wider on chip than in HBM, they also take `unpack_cycles` for each ifmap word that comes
    in, and `pack_cycles` for each result word that goes out; 0 for a machine that converts nothing. Where taps are
    stacked, rotating a word into another lane group takes `stack_cycles`, for each copy beyond the second. Where a
    lowering has the ifmap transposed, that takes `transpose_cycles` for at most `transpose_words` words of a pixel.
    Where the ifmap arrives in another layout (`mapping.entry: relaid`), a word takes `relayout_cycles` of loads, most
    of which passes hide.

    In steps of its own it keeps `scalar_words` of scalars a lane, and takes at least `operand_cycles` for each word
    that it reads, `result_cycles` for each that it writes. What it works on by itself it first makes ready, in
    `ready_cycles` a word.
    """

    alus: Annotated[int, whole(2**24), written(256)]
    unpack_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    pack_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    stack_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    transpose_cycles: Annotated[int, whole(65536, least=0)] = 0
    transpose_words: Annotated[int, whole(65536)] = 8
    relayout_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    # The default is the value of configs/tpu_v2.yaml.
    scalar_words: Annotated[int, whole(65536)] = 2
    operand_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    result_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    ready_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)


def _written(layouts: Layouts) -> str | dict[str, str]:
    return layouts.written


def _device_written(device: Device | None) -> dict[str, Any] | None:
    return device.to_dict() if device else None


class Hbm(FileSection):
    """Off-chip memory: bytes a second, picoseconds to the first byte, bytes of the smallest access.

    The channels of a feature map are stored in multiples of `channel_multiple`; the rest is moved as padding. Tensors
    lie one after another, each at a multiple of `alignment`, with their axes in the order of `layout`.

    Under `model: banks` transfers take what the DRAM `device` takes for their addresses; lowerings still estimate
    blocks by `bandwidth` and `latency`. `mapping` stands for the device's own.
    """

    model: Annotated[Literal["pipe", "banks"], Choice()] = "pipe"
    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "1000 TB/s"), written("700 GB/s", "bandwidth")]
    # The defaults are the values of configs/tpu_v2.yaml, which gives their sources.
    latency_ps: Annotated[int, Quantity(TIME, "1 ms"), written("100 ns", "latency")] = 46_200
    burst_bytes: Annotated[int, Quantity(SIZE, "64 KiB"), written("64 B", "burst")] = 64
    channel_multiple: Annotated[int, whole(65536)] = 1
    layout: Annotated[Layouts, PlainValidator(read_layouts), PlainSerializer(_written)] = Layouts()
    # A tile of Google's compiler: 8 x 128 elements of 4 bytes.
    alignment_bytes: Annotated[int, Quantity(SIZE, "16 MiB"), written("4 KiB", "alignment")] = 4096
    device: Annotated[Device | None, PlainValidator(device_of), PlainSerializer(_device_written)] = None
    mapping: str | None = None

    @model_validator(mode="after")
    def _has_banks(self) -> Hbm:
        if self.model == "banks":
            _check_device(self)
        elif "model" not in self.model_fields_set and (self.device or self.mapping):
            message = "changes nothing where HBM is a pipe, as it is unless told otherwise; set hbm.model to banks"
            raise InputError([Problem(message, "device" if self.device else "mapping")])
        return self

    @property
    def dram(self) -> Device | None:
        """The DRAM whose banks are modelled, `mapping` applied; None under a pipe."""
        if self.model == "pipe" or self.device is None or self.mapping is None:
            return self.device if self.model == "banks" else None
        return with_mapping(self.device, self.mapping)


def _check_device(hbm: Hbm) -> None:
    """Raises InputError."""
    if hbm.device is None:
        message = "model: banks needs a device; write the name of a shipped one, e.g. hbm2_16ch_700, or a path"
        raise InputError([Problem(message, "device")])
    if hbm.device.organisation.burst_bytes != hbm.burst_bytes:
        given, own = SIZE.format(hbm.burst_bytes), SIZE.format(hbm.device.organisation.burst_bytes)
        raise InputError([Problem(f"is {given}, and a burst of {hbm.device.name} is {own}; write {own}", "burst")])
    try:
        with_mapping(hbm.device, hbm.mapping or hbm.device.mapping)
    except InputError as error:
        raise InputError([Problem(each.message, "mapping") for each in error.problems]) from None


class Sequencer(FileSection):
    """What issues the steps of a layer: the cycles to launch one, and whether blocks overlap.

    Under `drain`, the weights of a block, or of a chunk of one, are not loaded before the results of the one ahead have
    been written: a loop whose body, with all column folds that a block keeps, is scheduled by itself. `block_cycles` is
    what a body takes beyond its steps, before the first of its weights; where blocks overlap, passes ahead hide it.
    """

    launch_cycles: Annotated[int, whole(2**24, least=0)] = 0
    between_blocks: Annotated[Literal["overlap", "drain"], Choice()] = "overlap"
    block_cycles: Annotated[int, whole(2**24, least=0)] = 0


class Hardware(FileSection):
    """The whole machine, complete and immutable.

    `technology` is what areas and energies are told in; no cycle depends on it.

    Built in Python, it takes attribute names and base units (`clock_hz=700_000_000`) and raises pydantic's
    ValidationError; `load_hardware` reads files and raises InputError.
    """

    name: Annotated[str, Name(), written("my_machine")]
    clock_hz: Annotated[int, Quantity(FREQUENCY, "100 GHz"), written("700 MHz", "clock")]
    array: Array
    vector_memory: VectorMemory
    vector_unit: VectorUnit
    hbm: Hbm
    sequencer: Sequencer = Sequencer()
    mapping: MappingPolicy = MappingPolicy()
    technology: Annotated[Technology | None, PlainValidator(technology_of), PlainSerializer(as_written)] = None

    @field_validator("vector_memory")
    @classmethod
    def _feeds_the_array(cls, memory: VectorMemory, info: ValidationInfo) -> VectorMemory:
        # An array that is itself wrong is missing from info.data, and reported on its own.
        arrays = info.data["array"].count if "array" in info.data else 1
        if memory.organization == "banked" and arrays > 1:
            message = f"banks feed one array, and array.count is {arrays}; set array.count to 1, or write lanes"
            raise InputError([Problem(message, "organization")])
        return memory

    @property
    def silicon(self) -> Technology:
        """Its technology, or the usual one where it names none."""
        return self.technology or load_technology()

    @property
    def pes(self) -> int:
        """Processing elements: rows x cols of every array."""
        return self.array.rows * self.array.cols * self.array.count

    @property
    def lanes(self) -> int:
        """Vector memories: lane i feeds row i and collects column i, so the longer side of the array."""
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
    def preload_cycles(self) -> int:
        """Cycles to load the weights of one pass, if the port is free: all rows, the last word perhaps short."""
        words, rest = divmod(self.array.rows, self.vector_memory.word_elements)
        return words * self.weight_word_cycles - (-rest // self.array.weights_per_cycle)

    @property
    def latency_cycles(self) -> int:
        """Cycles until the first byte of an HBM access, rounded up."""
        return -(-self.hbm.latency_ps * self.clock_hz // _PS_PER_S)

    @property
    def hbm_bytes_per_cycle(self) -> Fraction:
        """HBM bytes per clock cycle, exactly."""
        return Fraction(self.hbm.bandwidth_bytes_per_s, self.clock_hz)

    @property
    def hbm_peak_bytes_per_cycle(self) -> Fraction:
        """HBM bytes per clock cycle that nothing exceeds: those of a DRAM whose data buses are all busy."""
        if device := self.hbm.dram:
            return device.peak_bytes_per_cycle * device.clock_hz / self.clock_hz
        return self.hbm_bytes_per_cycle

    def to_dict(self) -> dict[str, Any]:
        """The YAML form, units in the values; `Hardware.model_validate` gives an equal Hardware back."""
        return self.model_dump(by_alias=True)

    def with_entry(self, entry: Literal["ready", "relaid"]) -> Hardware:
        """This machine with another `mapping.entry`."""
        if entry == self.mapping.entry:
            return self
        return self.model_copy(update={"mapping": self.mapping.model_copy(update={"entry": entry})})

    def with_overrides(self, overrides: Overrides) -> Hardware:
        """This machine with `PATH=VALUE` changes, as `load_hardware` takes them. Raises InputError."""
        return _build(Document(self.name, self.to_dict()), overrides)


def load_hardware(name_or_path: str | Path, overrides: Overrides = ()) -> Hardware:
    """The machine of a shipped name, a YAML path, or "-" (standard input).

    `overrides` are "array.rows=64" texts, or one, or a mapping of path to value; `array.size` sets rows and cols.
    Raises InputError with every problem of the file and the overrides.
    """
    return _build(open_document(name_or_path, "configs"), overrides)


def hardware_paths() -> tuple[str, ...]:
    """Every path an override may set: "clock", "array.rows", ..., and the shorthand "array.size"."""
    return _FORM.paths


def optional_fields() -> dict[str, dict[str, Any]]:
    """What a file may leave out: the defaults, in the YAML form, by section and key."""
    sections = {key: info.annotation for key, info in Hardware.model_fields.items()}
    return {
        key: section.model_construct().model_dump(by_alias=True)
        for key, section in sections.items()
        if isinstance(section, type) and issubclass(section, FileSection)
    }


_SIZE = "array.size"
_FORM = Form(Hardware, more=[_SIZE])


def _build(document: Document, overrides: Overrides) -> Hardware:
    data = {"name": Path(document.label.strip("<>")).stem, **document.data}
    written_out: Settings = {}
    if isinstance(array := data.get("array"), Mapping) and "size" in array:
        # So that an override of one side finds the other.
        paths = {f"array.{key}": array[key] for key in ("size", "rows", "cols") if key in array}
        written_out = {path: (value, document.place(path)) for path, value in paths.items()}
        data["array"] = {key: value for key, value in array.items() if key != "size"}
    sized, clashes = _set(replace(document, data=data), written_out)
    given, refused = read_overrides(overrides, _FORM)
    if _SIZE in given and (alus := _scaled_alus(sized.data, given[_SIZE][0])):
        given.setdefault("vector_unit.alus", (alus, given[_SIZE][1]))
    final, disagreeing = _set(sized, given)
    return _FORM.read(final, FROM_YAML, [*clashes, *refused, *disagreeing])


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
    """The vector ALUs for `size` lanes: a lane comes with its own, so their number per lane stays; None without any."""
    try:
        alus, *sides = data["vector_unit"]["alus"], data["array"]["rows"], data["array"]["cols"]
    except (KeyError, TypeError):
        return None
    sound = all(isinstance(number, int) and number > 0 for number in (alus, *sides, size))
    return max(1, alus * size // max(sides)) if sound else None
