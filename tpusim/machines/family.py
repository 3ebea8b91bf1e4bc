"""What a machine family must offer, and which there are: all that flow, command line, studies and reports ask of one.

A family is a package beside `machines/tpu`. Its hardware files say `family: NAME`; without, they are TPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from tpusim.base.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from tpusim.input.document import Document
    from tpusim.input.form import Overrides
    from tpusim.network.ops.op import Op
    from tpusim.reference import Operands, Tensor

KEY = "family"
"""Of a hardware file."""
USUAL = "tpu"
"""The family of machines that name none."""
Slot = tuple[int, int, str]
"""From a cycle to before another, and what is done in these."""
Told = Callable[[int], None]
"""Told now and then how far it is: cycles, or elements written."""


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


class Family(Protocol):
    """A kind of machine: how it is described, and the names that it gives to what it does.

    Attributes:
        name: its key in FAMILIES and in files.
        title: what one of its machines is, in a sentence: "a TPU".
        engines: which of event, register and both keep its time; register is the family's second interpreter.
        lowerings: every one by its name, and what it is in a line; the first is what a run takes unasked.
        partial: those of some layers alone.
    """

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def engines(self) -> tuple[str, ...]: ...

    @property
    def lowerings(self) -> Mapping[str, str]: ...

    @property
    def partial(self) -> frozenset[str]: ...

    def paths(self) -> tuple[str, ...]:
        """Every field that `--set` and sweeps may change: "clock", "array.rows"."""

    def model(self) -> type[Any]:
        """The pydantic model of its description."""

    def read(self, document: Document, overrides: Overrides) -> Machine:
        """The machine that a file describes. Raises InputError."""

    def meant(self, layer: Op, lowering: str) -> str:
        """The lowering that a name means for an op."""

    def unasked(self, layer: Op, batch: int, machine: Any) -> str:
        """The lowering of a layer for which nobody names one: the first, or what suits it better."""


class Modelled(Family, Protocol):
    """A family whose layers flow runs through this alone. That of the TPU, which is older, flow knows step by step."""

    def facts(self, machine: Machine) -> Mapping[str, str]:
        """What people are told of a machine: values with their units, by what they are."""

    def easier(self, machine: Machine) -> Mapping[str, Mapping[str, object]]:
        """What `explain` makes easier, one thing at a time: changes of fields, by what they are in words."""

    def planned(self, layer: Op, batch: int, machine: Machine, lowering: str) -> int:
        """Bytes of this computer's memory that lowering and timing a layer take, about."""

    def lowered(self, layer: Op, batch: int, machine: Machine, lowering: str) -> Lowered:
        """A layer made ready.

        Raises:
            CapacityError: when it does not fit the machine.
            UnsuitableError: when the lowering is not made for such an op.
        """


class Lowered(Protocol):
    """A layer made ready to run, for all layers of its shape.

    Attributes:
        choices: how it was lowered, by name; figures beside those of `Timing` in the result.
    """

    @property
    def choices(self) -> Mapping[str, int | str]: ...

    def timed(self) -> Timing:
        """Its time from the event engine."""

    @property
    def to_step(self) -> int:
        """Cycles that `stepped` is to do, by the event engine."""

    def stepped(self, told: Told) -> Timing:
        """Its time from the family's second interpreter; `told` how many cycles it has done."""

    def slots(self) -> Mapping[str, Sequence[Slot]]:
        """What happens when, for traces: by track, in order of time, none over another of its track."""

    def values(self, operands: Operands, number: np.dtype[Any], told: Told) -> Mapping[str, Tensor]:
        """Every tensor that it writes, whole, as `reference.TENSORS` has them by name; NaN where it writes nothing.

        Args:
            operands: by name, as the reference takes them.
            number: what to add in: float32, or float64 where only that is exact.
            told: how many outputs are done.
        """


@dataclass(frozen=True)
class Timing:
    """What an interpreter that keeps time reports of one layer.

    Attributes:
        cycles: of the machine's clock.
        units: the cycles of each unit by what it does, "busy" first and "idle" last, each adding up to `cycles`. The
            first unit is the main one, whose states are the stalls of the result.
        hbm_read_bytes, hbm_write_bytes: that the DRAM moves.
        lowered_bytes: of tensors written to DRAM and read again.
        transformation_cycles: that go to writing them.
        figures: the family's own, by name.
    """

    cycles: int
    units: Mapping[str, Mapping[str, int]]
    hbm_read_bytes: int
    hbm_write_bytes: int
    lowered_bytes: int = 0
    transformation_cycles: int = 0
    figures: Mapping[str, int | float] = field(default_factory=dict)


FAMILIES: dict[str, str] = {"tpu": "tpusim.machines.tpu.family", "gpu": "tpusim.machines.gpu.family"}
"""The module of each, which holds its FAMILY; imported when a machine of it is asked for."""


def family_named(name: object) -> Family:
    """Raises InputError when there is none of that name."""
    if not isinstance(name, str) or name not in FAMILIES:
        hint = did_you_mean(str(name), FAMILIES) or ";"
        raise InputError(f"no machine family {name!r}{hint} there is {', '.join(FAMILIES)}")
    found: Family = import_module(FAMILIES[name]).FAMILY
    return found


def family_of(machine: Machine) -> Family:
    """The family of a machine."""
    return family_named(machine.family)


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

    `overrides` are "array.rows=64" texts, or one, or a mapping of path to value.
    Raises InputError with every problem of the file and the overrides.
    """
    from tpusim.input.source import open_document

    return machine_of(open_document(name_or_path, "configs"), overrides)


def machine_of(document: Document, overrides: Overrides = ()) -> Machine:
    """The machine that a file describes. Raises InputError with every problem."""
    family = family_in(document)
    if family.name == USUAL:
        document = replace(document, data={key: value for key, value in document.data.items() if key != KEY})
    return family.read(document, overrides)
