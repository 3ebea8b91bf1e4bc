"""What the machine is: one frozen description, read from YAML with its units in the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE, TIME
from tpusim.input.document import Document, parse_scalar
from tpusim.input.fields import FROM_YAML, Choice, Count, Name, Quantity, written
from tpusim.input.form import Form
from tpusim.input.scalars import show, whole_number
from tpusim.input.source import open_document, shipped

Overrides = Mapping[str, object] | Sequence[str]

_FOLDER = "configs"
_MOST_PES_A_SIDE = 65536
_PS_PER_S = 10**12


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Array(_Section):
    """The systolic array: `rows` x `cols` PEs, each with `weight_buffers` weight registers (1 or 2).

    Of `count` arrays, each holds the same weights and takes every `count`-th word of a stream, a cycle behind
    the one before; they share lanes and ports. `weights_per_cycle` enter each column while weights are loaded, at
    most a word.
    """

    rows: Annotated[int, Count(_MOST_PES_A_SIDE), written(128)]
    cols: Annotated[int, Count(_MOST_PES_A_SIDE), written(128)]
    weight_buffers: Annotated[int, Count(2), written(2)] = 2
    weights_per_cycle: Annotated[int, Count(4096), written(1)] = 1
    count: Annotated[int, Count(16), written(1)] = 1


class VectorMemory(_Section):
    """One SRAM a lane: words of `word_elements` elements of `element_bytes` bytes each.

    Its one port is `shared` by all clients; `separate` asks what a port for each of them would gain.
    """

    word_elements: Annotated[int, Count(4096), written(8)]
    element_bytes: Annotated[int, Count(64), written(4)]
    capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("256 KiB", "capacity")]
    ports: Annotated[Literal["shared", "separate"], Choice(("shared", "separate")), written("shared")] = "shared"

    @field_validator("capacity_bytes")
    @classmethod
    def _holds_a_word(cls, capacity: int, info: ValidationInfo) -> int:
        # A word size that is itself wrong is missing from info.data, and reported on its own.
        word = info.data.get("word_elements", 1) * info.data.get("element_bytes", 1)
        if capacity < word:
            raise InputError(
                f"{SIZE.format(capacity)} cannot hold one word of {word} B (word_elements x element_bytes);"
                f" write at least {SIZE.format(word)}, or make the word smaller"
            )
        return capacity


class VectorUnit(_Section):
    """`alus` vector ALUs over all lanes together; they add partial sums.

    Where numbers are wider on chip than in HBM, they also take `unpack_cycles` for each ifmap word that comes
    in, and `pack_cycles` for each result word that goes out; 0 for a machine that converts nothing.
    """

    alus: Annotated[int, Count(2**24), written(256)]
    unpack_cycles: Annotated[int, Count(65536, least=0), written(0)] = 0
    pack_cycles: Annotated[int, Count(65536, least=0), written(0)] = 0


class Hbm(_Section):
    """Off-chip memory: bytes a second, picoseconds to the first byte, bytes of the smallest access.

    The channels of a feature map are stored in multiples of `channel_multiple`; the rest is moved as padding.
    """

    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "1000 TB/s"), written("700 GB/s", "bandwidth")]
    # The defaults are the values of configs/tpu_v2.yaml, which gives their sources.
    latency_ps: Annotated[int, Quantity(TIME, "1 ms"), written("100 ns", "latency")] = 46_200
    burst_bytes: Annotated[int, Quantity(SIZE, "64 KiB"), written("64 B", "burst")] = 64
    channel_multiple: Annotated[int, Count(65536), written(1)] = 1


class Sequencer(_Section):
    """What issues the steps of a layer: the cycles to launch one, and whether blocks overlap.

    Under `drain`, the weights of a block and column fold are not loaded before the results of the one ahead have
    been written: a loop over blocks whose body is scheduled by itself.
    """

    launch_cycles: Annotated[int, Count(2**24, least=0), written(0)] = 0
    between_blocks: Annotated[Literal["overlap", "drain"], Choice(("overlap", "drain")), written("overlap")] = "overlap"


class MappingPolicy(_Section):
    """Choices of the lowering: how many taps one pass stacks, and which loop goes outside.

    Multi-tile `auto` is the paper's rule, min(R / C_I, W_F); `rows` also stacks whole filter rows where several fit.
    """

    multi_tile: Annotated[int | Literal["auto", "rows"], Choice(("auto", "rows"), 65536), written("auto")] = "auto"
    loop_order: Annotated[
        Literal["auto", "block_major", "filter_major"],
        Choice(("auto", "block_major", "filter_major")),
        written("auto"),
    ] = "auto"


class Hardware(_Section):
    """The whole machine, complete and immutable.

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

    def to_dict(self) -> dict[str, Any]:
        """The YAML form, units in the values; `Hardware.model_validate` gives an equal Hardware back."""
        return self.model_dump(by_alias=True)

    def with_overrides(self, overrides: Overrides) -> Hardware:
        """This machine with `PATH=VALUE` changes, as `load_hardware` takes them. Raises InputError."""
        return _build(Document(self.name, self.to_dict(), {}), overrides)


def load_hardware(name_or_path: str | Path, overrides: Overrides = ()) -> Hardware:
    """The machine of a shipped name, a YAML path, or "-" (standard input).

    `overrides` are "array.rows=64" texts, or a mapping of path to value; `array.size` sets rows and cols.
    Raises InputError with every problem of the file and the overrides.
    """
    return _build(open_document(name_or_path, _FOLDER), overrides)


def shipped_hardware() -> tuple[str, ...]:
    """Names that `load_hardware` knows without a path, sorted."""
    return tuple(shipped(_FOLDER))


def hardware_paths() -> tuple[str, ...]:
    """Every path an override may set: "clock", "array.rows", ..., and the shorthand "array.size"."""
    return _FORM.paths


_SIZE = "array.size"
_SIDES = ("array.rows", "array.cols")
_ALUS = "vector_unit.alus"
_FORM = Form(Hardware, more={"array": ["size"]})


def _build(document: Document, overrides: Overrides) -> Hardware:
    sized, wrong_size = _expand_size(_with_name(document))
    final, refused = _override(sized, overrides)
    return _FORM.read(final, FROM_YAML, [*wrong_size, *refused])


def _with_name(document: Document) -> Document:
    stem = Path(document.label.strip("<>")).stem
    return document.with_data({"name": stem, **document.data})


def _expand_size(document: Document) -> tuple[Document, list[Problem]]:
    """Write the file's `array.size` out as rows and cols, so that an override of one side finds the other."""
    array = document.data.get("array")
    if not isinstance(array, Mapping) or "size" not in array:
        return document, []
    problems = [document.problem(_SIZE, message) for message in _size_problems(array)]
    # They are reported where size stands; stand-ins keep rows and cols from being reported as well.
    sides = dict.fromkeys(("rows", "cols"), 1 if problems else array["size"])
    rest = {key: value for key, value in array.items() if key != "size"}
    return document.with_data({**document.data, "array": {**rest, **sides}}), problems


def _size_problems(array: Mapping[str, object]) -> Iterator[str]:
    size = array["size"]
    try:
        whole_number(size, 1, _MOST_PES_A_SIDE)
    except InputError as error:
        yield str(error)
        return
    for side in ("rows", "cols"):
        if side in array and array[side] != size:
            yield f"size {size} sets rows and cols, but {side} is {show(array[side])}; remove one of them"


def _override(document: Document, overrides: Overrides) -> tuple[Document, list[Problem]]:
    given, problems = _read_overrides(overrides)
    before = document.data
    if _SIZE in given:
        size, where = given[_SIZE]
        for side in _SIDES:
            if side in given and given[side][0] != size:
                message = f"sets rows and cols, but {given[side][1]} disagrees; drop one of the two"
                problems.append(Problem(message, where))
            document = document.override(side, size, where)
        if _ALUS not in given:
            document = document.override(_ALUS, _scaled_alus(before, size), where)
    for path, (value, where) in given.items():
        document = document if path == _SIZE else document.override(path, value, where)
    return document, problems


def _scaled_alus(data: Mapping[str, Any], size: object) -> object:
    """The vector ALUs for `size` lanes: a lane comes with its own, so their number per lane stays."""
    array, alus = data.get("array", {}), data.get("vector_unit", {}).get("alus")
    sides = [array.get("rows"), array.get("cols")]
    if not all(isinstance(number, int) and number > 0 for number in (*sides, alus, size)):
        return alus
    return max(1, alus * size // max(sides))


def _read_overrides(overrides: Overrides) -> tuple[dict[str, tuple[object, str]], list[Problem]]:
    """Path to (value, how it was given); of one path given twice the last counts."""
    given: dict[str, tuple[object, str]] = {}
    problems: list[Problem] = []
    texts = overrides if not isinstance(overrides, Mapping) else [f"{k}={v}" for k, v in overrides.items()]
    for text in texts:
        where = f"--set {text}"
        try:
            path, value = _read_override(text)
        except InputError as error:
            problems.append(Problem(str(error), where))
        else:
            given[path] = value, where
    return given, problems


def _read_override(text: str) -> tuple[str, object]:
    path, equals, value = map(str.strip, text.partition("="))
    if not equals:
        raise InputError("no value; write PATH=VALUE, e.g. --set array.rows=64")
    if path in _FORM.sections:
        fields = ", ".join(f"{path}.{key}" for key in _FORM.sections[path])
        raise InputError(f"{path} is a section; set one of its fields: {fields}")
    paths = hardware_paths()
    if path not in paths:
        hint = did_you_mean(path, paths) or ";"
        raise InputError(f"no field {show(path)}{hint} fields: {', '.join(paths)}")
    return path, parse_scalar(value)
