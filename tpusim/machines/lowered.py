"""A layer made ready for a machine of any family: its time, its values, and the account and drawing of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np

    from tpusim.network.ops.op import Op
    from tpusim.reference import Operands, Tensor
    from tpusim.result.records import Blocking, DramUse, EnergyUse, Residency, VectorMemoryUse

Slot = tuple[int, int, str]
"""Cycles [first, stop), and what is done in them."""
AxisCounter = tuple[int, Sequence[int]]
"""An axis of a tensor, and coordinates along it."""
Told = Callable[[int], None]
"""Called now and then with the progress so far: cycles, or elements written."""
LayerWatch = Callable[[str, str], None]
"""Called now and then with a layer's name and what is done to it: "timing", "1,024 cycles"."""


def unheard(*_: object) -> None:
    """Ignore progress."""


def lacking(of: object) -> NotImplementedError:
    """The error for a feature that a family lacks and that callers should not have asked for."""
    return NotImplementedError(f"{type(of).__name__} has no such thing")


# ---- time, and what is counted


class TimeReport(Protocol):
    """Report of one layer by an interpreter that keeps time."""

    @property
    def cycles(self) -> int:
        """Cycles of the machine's clock."""

    @property
    def units(self) -> Mapping[str, Mapping[str, int]]:
        """Cycles of each unit by state, "busy" first and "idle" last; each unit's add up to `cycles`."""

    @property
    def compared(self) -> Mapping[str, int | float]:
        """Every figure by name; two interpreters must agree on all of them."""


@dataclass(frozen=True)
class Account:
    """A family's account of a layer, apart from time: fields of `LayerResult` by the same names; `own` are the family's
    own.

    A field is None or empty if the family does not have it.
    """

    lowering: str
    stall_cycles: Mapping[str, int]
    hbm_read_bytes: int
    hbm_write_bytes: int
    lowered_bytes: int = 0
    transformation_cycles: int = 0
    own: Mapping[str, int | float | str] = field(default_factory=dict)
    passes: int | None = None
    multi_tile: int | None = None
    mapping_efficiency: float | None = None
    vector_memory: VectorMemoryUse | None = None
    blocking: Blocking | None = None
    dram: DramUse | None = None
    energy_use: EnergyUse | None = None
    launch_cycles: int = 0
    hidden_cycles: int = 0
    hbm_saved_bytes: int = 0
    residency: Residency | None = None
    apart: str = ""


class WrittenPart(Protocol):
    """Elements of a tensor that are written together, as counters: pairs of an axis and coordinates along it.

    The coordinate of an element along an axis is the sum over the counters of that axis. If it is outside the tensor,
    there is no such element.

    Attributes:
        lane: counters that move together; each has the same number of coordinates.
        items: counters, the last one moving fastest, for each coordinate of `lane`.
    """

    @property
    def lane(self) -> Sequence[AxisCounter]: ...

    @property
    def items(self) -> Sequence[AxisCounter]: ...


Taker = Callable[[Any, Any], None]
"""Takes values [lane, *items] of a WrittenPart as they are written, for callers that need not hold the whole tensor;
the view is valid during the call only.
"""


class TensorInMemory(Protocol):
    """A tensor in memory, to which parts are written."""

    def write(self, part: Any, values: Any) -> None:
        """Take the values of a part, as a Taker."""

    @property
    def values(self) -> Any:
        """The whole tensor."""


class WrittenTensor(NamedTuple):
    """A tensor that is written part by part.

    Attributes:
        shape: elements along each axis.
        parts: parts in the order in which they are written.
        filled: makes the tensor in memory, with a given value in every element until a part is written.
    """

    shape: tuple[int, ...]
    parts: Sequence[WrittenPart]
    filled: Callable[[Any], TensorInMemory]


class LayerInParts(NamedTuple):
    """A layer whose values are handed on as they are written.

    Attributes:
        number: type of the numbers that values are computed in.
        written: the ofmap, and other written tensors that an oracle knows, by name.
        run: computes the layer from operands, for takers by tensor, adding in the machine's order or not. Raises
            CheckFailed.
    """

    number: type[Any]
    written: Mapping[str, WrittenTensor]
    run: Callable[[Operands, Mapping[str, Taker], bool], object]


LayerTensor = tuple[int, str]
"""The place of a layer in its chain, and the name of a tensor that it reads."""


class Chain(Protocol):
    """Layers, at least one, that overlap and are run as one."""

    @property
    def members(self) -> Sequence[tuple[Op, Any]]:
        """Layers, each with its `ReadyLayer`."""

    @property
    def name(self) -> str:
        """Name of the chain in messages."""

    @property
    def timing(self) -> Any:
        """Time by the event engine, with the share of each layer in `layers`. Raises DeadlockError, which names the
        layers.
        """

    @property
    def by_simpy(self) -> Any:
        """Time by the family's rules as processes of SimPy, as `timing` has it; None where it has no such engine."""

    def alone(self, at: int) -> ReadyLayer:
        """A layer by itself, with its addresses in the chain."""

    def account(self, at: int, batch: int, timing: Any) -> Account:
        """The account of a layer with this share of the time, and savings due to the other layers."""

    def recorded(self) -> tuple[Any, tuple[int, ...]]:
        """A recording of all units; and the first cycle of each layer, with the cycle after the last."""

    @property
    def given(self) -> Mapping[LayerTensor, LayerTensor]:
        """By each reader of an outcome on chip, the reader whose random operands all of them find there."""

    def stepped(
        self, operands: Sequence[Operands], number: np.dtype[Any], told: Told
    ) -> tuple[Any, Sequence[Mapping[str, Tensor]]]:
        """Time and written tensors of each layer from the second interpreter; each layer has operands of its own."""


@dataclass(frozen=True)
class Phases:
    """Cycles of the array by phase; they add up to the cycles of the layer.

    `first_fill` is the wait for fills before the first pass or vector step; the causes cover all other
    cycles. Idle cycles after the last pass are `drain` until the last results can be spilled, `spill` until they are in
    HBM, `skew` for the last lane.
    """

    busy: int
    first_fill: int
    starved: int
    blocked: int
    waiting_weights: int
    port_stall: int
    bank_conflict: int
    vector_work: int
    conversion: int
    drain: int
    spill: int
    skew: int


class TimeSlice(NamedTuple):
    """Cycles [start, end) in which a unit does one thing, for `step` of the Program, or -1 for no single step."""

    start: int
    end: int
    name: str
    step: int


class Drawing(Protocol):
    """The activity of units in some cycles of a run, as a trace shows it. An implementation inherits from it.

    Attributes:
        cycles: cycles of the run.
        seen: point of view, such as ", seen from lane 0"; empty if none need be named.
        about_layers: meaning of the track of layers.
        about: meaning of every possible track, in the order shown.
        counted: unit and meaning of each counter; `{window}` stands for the cycles of a window.
    """

    cycles: int
    seen: ClassVar[str] = ""
    about_layers: ClassVar[str] = "Layers, one after another."
    counted: ClassVar[Mapping[str, tuple[str, str]]] = {}

    @property
    def about(self) -> Mapping[str, str]:
        """Meaning of each track; empty, if the name says it."""
        return dict.fromkeys(self.names, "")

    @property
    def names(self) -> Collection[str]:
        """Names of the tracks."""

    def tracks(self, first: int, stop: int) -> Mapping[str, Iterable[TimeSlice]]:
        """Slices in cycles [first, stop), by track; slices across the edges are cut."""

    def slices(self, first: int, stop: int) -> int:
        """Number of slices in cycles [first, stop)."""
        return sum(1 for track in self.tracks(first, stop).values() for _ in track)

    def arguments(self, layers: Sequence[str]) -> Sequence[Mapping[str, int | str]]:
        """Facts of each step, for layers of these names."""
        return ()

    def counters(self, edges: Any) -> Mapping[str, tuple[Any, Any]]:
        """(cycles, values) of each counter: a value holds from its cycle until the next, the last until edges[-1]."""
        return {}


@dataclass(frozen=True)
class SlotDrawing(Drawing):
    """A drawing of slots in order of time, by track; slots of a track never overlap."""

    cycles: int
    slots: Mapping[str, Sequence[Slot]]

    @property
    def names(self) -> Collection[str]:
        """Names of all tracks."""
        return self.slots.keys()

    def drawn(self, first: int, stop: int) -> SlotDrawing:
        """The whole drawing, whatever cycles are shown."""
        return self

    def tracks(self, first: int, stop: int) -> dict[str, list[TimeSlice]]:
        """See Drawing."""
        return {
            name: [
                TimeSlice(max(start, first), min(end, stop), state, -1)
                for start, end, state in slots
                if max(start, first) < min(end, stop)
            ]
            for name, slots in self.slots.items()
        }


class LaneCycle(NamedTuple):
    """A cycle of every lane: a letter for each lane's port, the number of working PEs, and the number of moving
    weights.
    """

    number: int
    ports: str
    working: int
    moving: int


class ReadyLayer(Protocol):
    """A layer made ready to run, shared by all layers of its shape. An implementation inherits from it."""

    @cached_property
    def timing(self) -> Any:
        """Time by the event engine: a `TimeReport`. Raises DeadlockError."""

    @property
    def by_simpy(self) -> TimeReport | None:
        """Time by the family's rules as processes of SimPy; None where it has no such engine. Raises DeadlockError."""
        return None

    @property
    def to_step(self) -> int | None:
        """Cycles that `stepped` will do, as the event engine knows them; None if unknown."""
        return None

    def stepped(
        self, operands: Callable[[], Operands], number: np.dtype[Any], told: Told
    ) -> tuple[TimeReport, Mapping[str, Tensor] | None]:
        """Time by the family's second interpreter, and, if that computes values, every tensor that it writes.

        Args:
            operands: gives the operands by name, as the reference takes them.
            number: type for sums: float32, or float64 if only that is exact.
            told: called with the number of cycles done.

        Raises:
            InputError: when a package that the interpreter needs is not installed.
            CheckFailed, DeadlockError, PortConflict: when the machine fails.
        """

    def account(self, layer: Op, batch: int, timing: Any) -> Account:
        """The account of a layer that took this time."""

    def passes_of_a_word(self, layer: Op, batch: int) -> tuple[float, float] | None:
        """How often the array passes for a word of outputs, and how often if all PEs were used; None where a family has
        no array that passes. A word has as many rows as elements, and the columns of one array.
        """
        return None

    def lane_contents(self, tensor: str, operands: Operands, empty: float) -> Any:
        """Contents of the lanes after all fills of a tensor, [lane, word, element]; `empty` where nothing was
        filled.
        """
        raise lacking(self)

    def workspace_bytes(self, own: Collection[str]) -> int:
        """Bytes in DRAM of tensors other than a layer's `own` operands and results."""
        return 0

    def phases(self, array: Mapping[str, int]) -> Phases:
        """Cycles of an `array`, by state, with the beginning and the end of the layer as phases of their own."""
        raise lacking(self)

    def recorded(self) -> Any:
        """A recording of all units from one run of the event engine: a `SlotDrawing`, or an object that makes a
        `Drawing` by `drawn`.

        Raises DeadlockError.
        """

    def lane_by_lane(self, operands: Operands) -> Callable[[int, Told], Iterator[LaneCycle]]:
        """Every lane in every cycle from a given one on, for families with lanes; the number of cycles passed is
        reported.

        Raises:
            InputError: when a package that the interpreter needs is not installed.
        """
        raise lacking(self)

    def in_parts(self, number: np.dtype[Any]) -> LayerInParts | None:
        """The layer with values handed on as they are written; None if `values` gives them all at once. Raises
        CheckFailed.
        """
        return None

    def values(self, operands: Operands, number: np.dtype[Any], told: Told) -> Mapping[str, Tensor]:
        """Every tensor that the layer writes, whole, by the names of `reference.TENSORS`; NaN where it writes nothing.

        Args:
            operands: operands by name, as the reference takes them.
            number: type for sums, as for `stepped`.
            told: called with the number of outputs done.
        """
        raise lacking(self)


@dataclass(frozen=True)
class PlainTiming:
    """Report of one layer by an interpreter that keeps time: a `TimeReport`, for families without further figures.

    Attributes:
        cycles: cycles of the machine's clock.
        units: cycles of each unit by state, "busy" first and "idle" last; each unit's add up to `cycles`. The
            first unit is the main one, whose states are the stalls of the result.
        hbm_read_bytes, hbm_write_bytes: bytes that the DRAM moves.
        lowered_bytes: bytes of tensors that are written to DRAM and read again.
        transformation_cycles: cycles for writing these tensors.
        figures: the family's own figures, by name.
    """

    cycles: int
    units: Mapping[str, Mapping[str, int]]
    hbm_read_bytes: int
    hbm_write_bytes: int
    lowered_bytes: int = 0
    transformation_cycles: int = 0
    figures: Mapping[str, int | float] = field(default_factory=dict)

    @property
    def compared(self) -> dict[str, int | float]:
        """Every figure by name; see Timed."""
        whole = {name: of for name, of in vars(self).items() if name not in ("units", "figures")}
        return {**whole, **by_unit(self.units), **self.figures}

    def account(self, lowering: str, choices: Mapping[str, int | str]) -> Account:
        """The account of a layer with this timing; `choices` are the lowering's choices, by name."""
        main = next(iter(self.units.values()))
        return Account(
            lowering,
            stall_cycles={state: cycles for state, cycles in main.items() if state not in ("busy", "idle")},
            hbm_read_bytes=self.hbm_read_bytes,
            hbm_write_bytes=self.hbm_write_bytes,
            lowered_bytes=self.lowered_bytes,
            transformation_cycles=self.transformation_cycles,
            launch_cycles=main.get("launch", 0),
            own={**choices, **self.figures},
        )


def by_unit(units: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Cycles of all units, by unit and state, such as "hbm busy"."""
    return {f"{unit} {state}": cycles for unit, split in units.items() for state, cycles in split.items()}
