"""The offer of a machine family to flow, command line, studies and reports, and the list of families.

A family is a package beside `machines/tpu`. Its hardware files say `family: NAME`; files without it describe TPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.imports import Registry
from tpusim.machines.lowered import Chain, ReadyLayer, lacking
from tpusim.memory.tile import Tile

if TYPE_CHECKING:
    from tpusim.input.document import Document
    from tpusim.input.form import Overrides
    from tpusim.machines.exchanged import Exchanges
    from tpusim.network.ops.op import Op
    from tpusim.network.workload import Workload
    from tpusim.technology.constants import Technology

KEY = "family"
"""Key of a hardware file that names its family."""
USUAL = "tpu"
"""Family of machines whose files name none."""
PAPER_MACHINE = "tpu_v2"
"""The machine of those who name none: the paper's."""


@runtime_checkable
class Machine(Protocol):
    """The description of a machine: frozen, hashable, complete; read from YAML, and written as YAML by `to_dict`."""

    @property
    def name(self) -> str: ...

    @property
    def changes(self) -> Mapping[str, str]:
        """Fields that were set beside its file, by path, as they were written; no part of what it is."""

    @property
    def label(self) -> str:
        """The name for people, with what was set: "tpu_v2 with array.size=64"."""

    def telling(self, changes: Mapping[str, str]) -> Self:
        """Return a copy that tells of changes ahead of the machine's own."""

    @property
    def family(self) -> str:
        """Key of the machine's family in FAMILIES."""

    @property
    def clock_hz(self) -> int:
        """Frequency of the clock that cycles are counted in."""

    @property
    def pes(self) -> int:
        """Units that multiply and add, as its makers count them."""

    @property
    def macs_per_cycle(self) -> int:
        """Multiplications and additions (MACs) that it does in a cycle at most."""

    @property
    def sram_bytes(self) -> int:
        """Bytes of all memories on the chip."""

    @property
    def element_bytes(self) -> int:
        """Bytes of a number, as tensors hold them."""

    @property
    def hbm_bytes_per_s(self) -> int:
        """Bytes a second that its DRAM moves at most."""

    def to_dict(self) -> dict[str, Any]:
        """The YAML form, units in the values; it names the family unless that is USUAL."""

    def of_type(self, name: str) -> Self:
        """The machine as it runs numbers of a type (`--dtype`); as it is where its file does not tell their time."""

    def with_overrides(self, overrides: Overrides) -> Self:
        """The machine with `PATH=VALUE` changes. Raises InputError."""


def peak_tflops(machine: Machine) -> float:
    """TFLOPS of all MACs that a machine does at most: two operations each, with numbers of its usual type."""
    return 2 * machine.macs_per_cycle * machine.clock_hz / 1e12


PEAK = "peak\nTFLOP/s"
"""The name of the peak among the facts of a machine."""


def peak_fact(machine: Machine) -> str:
    """Write the peak of a machine, in three digits or whole."""
    # Digits behind the point would suggest more than makers publish of large chips.
    peak = peak_tflops(machine)
    return f"{peak:.3g}" if peak < 100 else f"{peak:,.0f}"


class Need(NamedTuple):
    """Memory of this computer that lowering, timing and checking a layer will take at most, roughly.

    Attributes:
        program: bytes for its Program and its timing.
        values: bytes for values while they are computed and checked.
        passes: passes of its Program, for families that have passes.
        at_once: Programs of the layer that are held at once during the search for the fastest.
    """

    program: int
    values: int
    passes: int | None = None
    at_once: int = 1

    @property
    def total(self) -> int:
        """All bytes."""
        return self.program + self.values


class CheckPlan(NamedTuple):
    """The way values are computed and checked: the engine, whether they are checked at all, and the bytes of an
    operand, and of an output that waits for its check.
    """

    engine: str = "event"
    check: bool = False
    operand_bytes: int = 1
    output_bytes: int = 1

    @property
    def steps(self) -> bool:
        """Whether an engine steps through every cycle, and computes values as it does."""
        return self.engine in ("register", "both")

    def whole(self, layer: Op, batch: int) -> int:
        """Bytes of the values of a layer if all of them are held at once."""
        if not self.check:
            return 0
        return layer.operands(batch) * (self.operand_bytes + 8) + layer.outputs(batch) * _COMPARED_BYTES


_COMPARED_BYTES = 4 + 8 + 8
"""Bytes for comparing an output: the machine's value, the expected one, and an intermediate."""


class FusionLimits(NamedTuple):
    """Limits of fusing ops to the results of a layer.

    Attributes:
        most: most operations on an element.
        carries: kinds of work that may be fused to a lowering's layers: "bias", "add", "finish", "way".
        operations: operations on an element, from an activation and its coefficients.
    """

    most: int
    carries: Callable[[str], Collection[str]]
    operations: Callable[[str, tuple[float, ...]], int]


@dataclass(frozen=True)
class LaneMemories:
    """Lanes of a machine: their number, the words of each lane's memory, and the bytes of a word."""

    count: int
    words: int
    word_bytes: int


Basis = Literal["model", "published"]
"""Origin of an area: a model, of ours or of a tool, or a published circuit. None was measured."""


class AreaShare(NamedTuple):
    """Area of a part in the machine's technology; `what` tells its composition, and `basis` the origin of the
    number.
    """

    key: str
    name: str
    mm2: float
    basis: Basis
    what: str


class Sram(NamedTuple):
    """Area of a vector memory with words of `elements` elements: by the pitch of its cells, and by compiled macros."""

    elements: int
    bits: int
    pitch_mm2: float
    macro_mm2: float


class ChipArea(NamedTuple):
    """Area of a machine on a chip.

    Attributes:
        silicon: technology of the machine.
        parts: areas of the parts, in order; memories by the pitch of their cells.
        macros_mm2: area of the memories by compiled macros.
        memory_bytes: bytes of the memory of a lane.
        words: areas of that memory with words of other widths.
    """

    silicon: Technology
    parts: tuple[AreaShare, ...]
    macros_mm2: float
    memory_bytes: int
    words: tuple[Sram, ...]

    @property
    def total_mm2(self) -> float:
        """Area of all parts together."""
        return sum(part.mm2 for part in self.parts)


class Family(Protocol):
    """A kind of machine: its description, its names, and layers made ready.

    An implementation inherits from it. A method with a body here is optional, as few families need it.

    Attributes:
        name: key of the family in FAMILIES and in files.
        title: name of one of its machines in a sentence, such as "a TPU".
        engines: engines that keep time, of event, simpy, register and both; register is the interpreter that steps from
            cycle to cycle, and `both` all that the family has.
        lowerings: names of its lowerings; a run that names none takes the first.
        partial: names of the lowerings that take only some layers.
        unbounded: lowerings that round more than sums of products do, because numbers grow before they cancel.
        array_order: whether its data path can add in the order of the machine.
    """

    unbounded: frozenset[str] = frozenset()
    array_order: bool = False

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def engines(self) -> tuple[str, ...]: ...

    @property
    def lowerings(self) -> Collection[str]: ...

    @property
    def partial(self) -> frozenset[str]:
        """No names: every lowering takes every layer."""
        return frozenset()

    def glosses(self) -> Mapping[str, str]:
        """Description of each lowering, in a line."""

    def paths(self) -> tuple[str, ...]:
        """Every field that `--set` and sweeps may change: "clock", "array.rows"."""

    def model(self) -> type[Any]:
        """The pydantic model of a machine file."""

    def read(self, document: Document, overrides: Overrides) -> Machine:
        """The machine that a file describes. Raises InputError."""

    def meant(self, layer: Op, lowering: str) -> str:
        """The lowering that a name means for an op; the one of that name, if all lowerings are for the same ops."""
        return lowering

    def usual_for(self, layer: Op, batch: int, machine: Any) -> str:
        """The lowering of a layer for which none is named: the first, or one that suits the layer better."""
        return next(iter(self.lowerings))

    def tried(self, layer: Op, batch: int) -> tuple[str, ...]:
        """The lowerings that `auto` tries: all that would not leave the layer to another."""
        return tuple(self.lowerings)

    def least(self, layer: Op, batch: int, machine: Any, lowering: str) -> float:
        """Cycles that every run by a lowering takes at least; 0 if unknown. Raises CapacityError."""
        return 0.0

    def facts(self, machine: Any) -> Mapping[str, str]:
        """Facts of a machine for people: values with units, by name."""
        return {}

    def generation(self, machine: Any) -> str | None:
        """Return the generation of chips that a machine stands for, with its year; None where it stands for no chip."""
        return None

    def chip_cores(self, machine: Any) -> int:
        """Return the cores of the chip of which a machine is one; 1 where it is the whole chip, or stands for none."""
        return 1

    def capacity(self, machine: Any) -> int | None:
        """Return the bytes that the DRAM of a machine holds; None where its file does not tell."""
        return None

    def tile(self, machine: Any) -> Tile:
        """Return the tile in which that DRAM has tensors; one element: nothing is padded."""
        return Tile()

    def lanes(self, machine: Any) -> LaneMemories | None:
        """The lanes of a machine; None if it has none. Layers of machines with lanes run `lane_by_lane`."""
        return None

    def area(self, machine: Any) -> ChipArea | None:
        """The area of a machine; None if unknown."""
        return None

    def blocks(self, machine: Any) -> Mapping[str, Sequence[str]]:
        """Short captions of each unit, for a diagram; empty if there is none."""
        return {}

    def constants(self, machine: Any) -> Mapping[str, Any]:
        """Content of files that a description only names; results depend on it."""
        return {}

    def left_out(self) -> Mapping[str, Any]:
        """Defaults of the fields that a file may leave out, in the YAML form."""
        return {}

    def planned(self, layer: Op, batch: int, machine: Any, lowering: str, how: CheckPlan, most: int) -> Need:
        """Memory needs of a layer. A Program that surely takes more than `most` bytes is not counted any further.

        Raises:
            CapacityError: when it does not fit the machine.
            UnsuitableError: when the lowering is not made for such an op.
        """

    def larger(self, machine: Any) -> Iterator[tuple[str, Any]]:
        """Machines on which a layer needs less of this computer's memory, by the option that asks for each."""
        return iter(())

    def easier(self, machine: Any) -> Mapping[str, Mapping[str, object]]:
        """Changes of fields that `explain` tries, one at a time, by a description of each."""
        return {}

    def fusing(self, machine: Any) -> FusionLimits | None:
        """Limits of fusing; None if the machine fuses nothing."""
        return None

    def lowered(self, layer: Op, batch: int, machine: Any, lowering: str) -> ReadyLayer:
        """A layer made ready.

        Raises:
            CapacityError: when it does not fit the machine.
            UnsuitableError: when the lowering is not made for such an op.
        """

    def exchanges(self, work: Workload, place: Any, machine: Any) -> Exchanges:
        """Time the collectives of a share of a network; `place` is the slice of its chips, its name, or None where
        nobody says.

        Raises:
            InputError: the chips of the mesh are not those of the slice, or the family has no links between chips.
        """
        raise of_tpus_alone(machine, "a network that several chips share")

    def overlaps(self, machine: Any) -> bool:
        """Whether layers overlap on a machine; if so, `chains` runs them."""
        return False

    def chains(self, members: Iterable[tuple[Op, Any]], workload: Workload, machine: Any, kept: int) -> Iterator[Chain]:
        """Chains, as long as possible, of a workload's layers in order, each given with its ready layer; a chain may
        take `kept` bytes of this computer's memory.
        """
        raise lacking(self)


FAMILIES: Registry[Family] = Registry("tpusim.machines", {"tpu": "tpu.family.FAMILY", "gpu": "gpu.family.FAMILY"})
"""Families by name; a family is imported when one of its machines is asked for."""


def family_named(name: object) -> Family:
    """The family of a name. Raises InputError if there is none."""
    if not isinstance(name, str) or name not in FAMILIES:
        hint = did_you_mean(str(name), FAMILIES) or ";"
        raise InputError(f"no machine family {name!r}{hint} there is {', '.join(FAMILIES)}")
    return FAMILIES[name]


def family_of(machine: Machine) -> Family:
    """The family of a machine."""
    return family_named(machine.family)


def of_tpus_alone(machine: Machine, what: str) -> InputError:
    """An error for a feature, named by `what`, that only TPUs have."""
    says = f"{machine.label} is {family_of(machine).title}, and {what} is of TPUs alone"
    return InputError(f"{says}; give a TPU with --hardware, such as tpu_v2")


def family_in(document: Document) -> Family:
    """The family that a file names. Raises InputError at its line if there is no such family."""
    # A key without a value is a mistake; only a file without the key means the usual family.
    if document.data.get(KEY, USUAL) is None:
        says = f"no value; write one of {', '.join(FAMILIES)}, or leave {KEY} out, for a TPU"
        raise InputError(document.problem(KEY, says))
    try:
        return family_named(document.data.get(KEY, USUAL))
    except InputError as error:
        raise InputError([document.problem(KEY, str(error))]) from None


def load_hardware(name_or_path: str | Path, overrides: Overrides = ()) -> Machine:
    """The machine of a shipped name, a YAML path, or "-" (standard input), of whatever family.

    Args:
        name_or_path: a name that `tpusim list` shows, a path, or "-".
        overrides: fields to change: "array.rows=64", or several such texts, or a mapping of paths to values.
            `array.size` sets rows and columns.

    Raises:
        InputError: with every problem of the file and the overrides.

    Examples:
        >>> import tpusim
        >>> tpusim.load_hardware("tpu_v2", "array.size=256").pes
        65536
        >>> tpusim.load_hardware("tpu_v2", {"array.rows": 64, "hbm.bandwidth": "350 GB/s"}).hbm_bytes_per_s
        350000000000
    """
    from tpusim.input.source import open_document

    return machine_of(open_document(name_or_path, "configs"), overrides)


def machine_of(document: Document, overrides: Overrides = ()) -> Machine:
    """The machine that an open file describes. Raises InputError with every problem of the file and the overrides."""
    family = family_in(document)
    if family.name == USUAL:
        # The description of a TPU has no such field, because most files leave it out.
        document = replace(document, data={key: value for key, value in document.data.items() if key != KEY})
    return family.read(document, overrides)
