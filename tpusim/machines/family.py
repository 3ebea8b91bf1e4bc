"""What a machine family must offer, and which there are: all that flow, command line, studies and reports ask of one.

A family is a package beside `machines/tpu`. Its hardware files say `family: NAME`; without, they are TPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.imports import Registry
from tpusim.machines.lowered import Chain, ReadyLayer, lacking

if TYPE_CHECKING:
    from tpusim.input.document import Document
    from tpusim.input.form import Overrides
    from tpusim.network.ops.op import Op
    from tpusim.network.workload import Workload
    from tpusim.technology.constants import Technology

KEY = "family"
"""The key of a hardware file that names its family."""
USUAL = "tpu"
"""The family of machines that name none."""


@runtime_checkable
class Machine(Protocol):
    """The description of a machine: frozen, hashable, complete; read from YAML, and written as YAML by `to_dict`."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> str:
        """The key of its family in FAMILIES."""

    @property
    def clock_hz(self) -> int:
        """The frequency of the clock that cycles are counted in."""

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
        """The YAML form, units in the values, its family among them unless that is USUAL."""

    def with_overrides(self, overrides: Overrides) -> Self:
        """The machine with `PATH=VALUE` changes. Raises InputError."""


class Need(NamedTuple):
    """What lowering, timing and checking a layer takes at most, about, before it is done.

    Attributes:
        program: bytes of this computer's memory that go to its Program and its time.
        values: those that go to values while they are computed and checked.
        passes: of its Program, where a family has such.
        at_once: Programs of the layer that are held beside one another while the fastest is looked for.
    """

    program: int
    values: int
    passes: int | None = None
    at_once: int = 1

    @property
    def total(self) -> int:
        """All bytes."""
        return self.program + self.values


class Checking(NamedTuple):
    """How values are computed and checked: by which engine, whether at all, with operands of how many bytes."""

    engine: str = "event"
    check: bool = False
    operand_bytes: int = 1

    def whole(self, layer: Op, batch: int) -> int:
        """Bytes that the values of a layer take where all of them are held at once."""
        if not self.check:
            return 0
        return layer.operands(batch) * (self.operand_bytes + 8) + layer.outputs(batch) * _COMPARED_BYTES


_COMPARED_BYTES = 4 + 8 + 8
"""An output takes what the machine has written, what is expected of it, and what comparing them takes."""


class Fusing(NamedTuple):
    """What may ride on the results of a layer, on a machine that fuses.

    Attributes:
        most: operations that are done with an element at most.
        carries: by a lowering, what may: "bias", "add", "finish".
        operations: of an activation and its coefficients, those with an element.
    """

    most: int
    carries: Callable[[str], Collection[str]]
    operations: Callable[[str, tuple[float, ...]], int]


@dataclass(frozen=True)
class LaneMemories:
    """The lanes of a machine: how many, the words of the memory that each has, and the bytes of a word."""

    count: int
    words: int
    word_bytes: int


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
    """A vector memory with words of `elements` elements: by the pitch of its cells, and by compiled macros."""

    elements: int
    bits: int
    pitch_mm2: float
    macro_mm2: float


@dataclass(frozen=True)
class ChipArea:
    """What a machine takes of a chip.

    Attributes:
        silicon: the technology.
        parts: each, in order; the memories by the pitch of their cells.
        macros_mm2: the memories by compiled macros instead.
        memory_bytes: of the memory of a lane.
        words: that memory with words of other widths.
    """

    silicon: Technology
    parts: tuple[AreaPart, ...]
    macros_mm2: float
    memory_bytes: int
    words: tuple[Sram, ...]

    @property
    def total_mm2(self) -> float:
        """All parts together."""
        return sum(part.mm2 for part in self.parts)


class Family(Protocol):
    """A kind of machine: how it is described, the names that it gives to what it does, and layers made ready.

    Whoever implements it inherits from it. What has a body here need not be offered: few families have it.

    Attributes:
        name: its key in FAMILIES and in files.
        title: what one of its machines is, in a sentence: "a TPU".
        engines: which of event, register and both keep its time; register is the family's second interpreter.
        lowerings: the names of all; the first is what a run takes unasked.
        partial: those of some layers alone.
        unbounded: lowerings that round more than sums of products: what they transform grows before it cancels.
        array_order: whether its data path adds in the order of the machine, if it is asked to.
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
        """None."""
        return frozenset()

    def glosses(self) -> Mapping[str, str]:
        """What each lowering is, in a line."""

    def paths(self) -> tuple[str, ...]:
        """Every field that `--set` and sweeps may change: "clock", "array.rows"."""

    def model(self) -> type[Any]:
        """The pydantic model of its description."""

    def read(self, document: Document, overrides: Overrides) -> Machine:
        """The machine that a file describes. Raises InputError."""

    def meant(self, layer: Op, lowering: str) -> str:
        """The lowering that a name means for an op: that of the name, where all are for the same ops."""
        return lowering

    def unasked(self, layer: Op, batch: int, machine: Any) -> str:
        """The lowering of a layer for which nobody names one: the first, or what suits it better."""
        return next(iter(self.lowerings))

    def tried(self, layer: Op, batch: int) -> tuple[str, ...]:
        """The lowerings that `auto` tries: all, without those that would leave the layer to another."""
        return tuple(self.lowerings)

    def least(self, layer: Op, batch: int, machine: Any, lowering: str) -> float:
        """Cycles that no run by a lowering can do without; 0 where nobody can tell. Raises CapacityError."""
        return 0.0

    def facts(self, machine: Any) -> Mapping[str, str]:
        """What people are told of a machine: values with their units, by what they are."""
        return {}

    def lanes(self, machine: Any) -> LaneMemories | None:
        """The lanes of a machine; None where it has none. Such have layers that run `lane_by_lane`."""
        return None

    def area(self, machine: Any) -> ChipArea | None:
        """What a machine takes of a chip; None where nobody knows."""
        return None

    def blocks(self, machine: Any) -> Mapping[str, Sequence[str]]:
        """What each unit is, in short lines, for a diagram; nothing where there is none."""
        return {}

    def constants(self, machine: Any) -> Mapping[str, Any]:
        """What a description goes by the name of, in full: results depend on it."""
        return {}

    def left_out(self) -> Mapping[str, Any]:
        """What a file may leave out: the defaults, in the YAML form."""
        return {}

    def planned(self, layer: Op, batch: int, machine: Any, lowering: str, how: Checking, most: int) -> Need:
        """What a layer takes. A Program of more than `most` bytes for certain is not counted any further.

        Raises:
            CapacityError: when it does not fit the machine.
            UnsuitableError: when the lowering is not made for such an op.
        """

    def larger(self, machine: Any) -> Iterator[tuple[str, Any]]:
        """Machines on which a layer needs less of this computer's memory, by the option that asks for them."""
        return iter(())

    def easier(self, machine: Any) -> Mapping[str, Mapping[str, object]]:
        """What `explain` makes easier, one thing at a time: changes of fields, by what they are in words."""
        return {}

    def fusing(self, machine: Any) -> Fusing | None:
        """What may ride on results; None where the machine fuses nothing."""
        return None

    def lowered(self, layer: Op, batch: int, machine: Any, lowering: str) -> ReadyLayer:
        """A layer made ready.

        Raises:
            CapacityError: when it does not fit the machine.
            UnsuitableError: when the lowering is not made for such an op.
        """

    def overlaps(self, machine: Any) -> bool:
        """Whether layers overlap on a machine: such are run by `chains`."""
        return False

    def chains(self, members: Iterable[tuple[Op, Any]], workload: Workload, machine: Any, kept: int) -> Iterator[Chain]:
        """Layers of a workload, in order, each with the same made ready, in chains as long as can be; for each chain
        there are `kept` bytes of this computer's memory.
        """
        raise lacking(self)


FAMILIES: Registry[Family] = Registry("tpusim.machines", {"tpu": "tpu.family.FAMILY", "gpu": "gpu.family.FAMILY"})
"""Every family by its name; imported when a machine of it is asked for."""


def family_named(name: object) -> Family:
    """The family of that name. Raises InputError when there is none."""
    if not isinstance(name, str) or name not in FAMILIES:
        hint = did_you_mean(str(name), FAMILIES) or ";"
        raise InputError(f"no machine family {name!r}{hint} there is {', '.join(FAMILIES)}")
    return FAMILIES[name]


def family_of(machine: Machine) -> Family:
    """The family of a machine."""
    return family_named(machine.family)


def of_tpus_alone(machine: Machine, what: str) -> InputError:
    """What is told of something that no other family than the TPU's offers, `what` in words."""
    says = f"{machine.name} is {family_of(machine).title}, and {what} is of TPUs alone"
    return InputError(f"{says}; give a TPU with --hardware, such as tpu_v2")


def family_in(document: Document) -> Family:
    """The family that a file names. Raises InputError at its line when there is none of that name."""
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

    document = open_document(name_or_path, "configs")
    family = family_in(document)
    if family.name == USUAL:
        document = replace(document, data={key: value for key, value in document.data.items() if key != KEY})
    return family.read(document, overrides)
