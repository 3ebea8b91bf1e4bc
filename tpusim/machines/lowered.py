"""A layer made ready for a machine of any family: its time, its values, and what is told and drawn of a run."""

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
"""From a cycle to before another, and what is done in these."""
AxisCounter = tuple[int, Sequence[int]]
"""An axis of a tensor, and coordinates along it."""
Told = Callable[[int], None]
"""Told now and then how far it is: cycles, or elements written."""


def unheard(*_: object) -> None:
    """Take what is told where nobody listens."""


def lacking(of: object) -> NotImplementedError:
    """What is raised where somebody asks without need for what a family does not have."""
    return NotImplementedError(f"{type(of).__name__} has no such thing")


# ---- time, and what is counted


class Timed(Protocol):
    """What an interpreter that keeps time reports of one layer."""

    @property
    def cycles(self) -> int:
        """Cycles of the machine's clock."""

    @property
    def units(self) -> Mapping[str, Mapping[str, int]]:
        """The cycles of each unit by what it does, "busy" first and "idle" last, each adding up to `cycles`."""

    @property
    def compared(self) -> Mapping[str, int | float]:
        """Every figure by its name: two interpreters must agree on them all."""


@dataclass(frozen=True)
class Account:
    """What a family tells of a layer, beside its time: fields of `LayerResult`, by the same names; `own` are the
    family's own. None, and nothing, for what it does not have.
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
    hidden_cycles: int = 0
    hbm_saved_bytes: int = 0
    residency: Residency | None = None
    apart: str = ""


class WrittenPart(Protocol):
    """Elements of a tensor that are written together, as counters: pairs of an axis and coordinates along it.

    An element's coordinate along an axis is the sum over the counters of that axis; where it lies outside the tensor,
    there is none.

    Attributes:
        lane: counters that move together, as many coordinates of each.
        items: counters of which the last moves fastest, for each coordinate of `lane`.
    """

    @property
    def lane(self) -> Sequence[AxisCounter]: ...

    @property
    def items(self) -> Sequence[AxisCounter]: ...


class Taker(Protocol):
    """What takes the values of a tensor as they are written, for those who need not hold all of it."""

    def write(self, part: Any, values: Any) -> None:
        """`values` [lane, *items] of a WrittenPart, a view that is good for this call."""


class InMemory(Taker, Protocol):
    """A tensor in memory, to which parts are written."""

    @property
    def values(self) -> Any:
        """All of it."""


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor that is written part by part.

    Attributes:
        shape: elements along each axis.
        parts: what is written, in this order.
        filled: puts all of it into memory, each element of a given value until a part is written.
    """

    shape: tuple[int, ...]
    parts: Sequence[WrittenPart]
    filled: Callable[[Any], InMemory]


@dataclass(frozen=True)
class InParts:
    """A layer whose values are taken as they are written.

    Attributes:
        number: what values are computed in.
        written: the ofmap, and what else the layer writes of which somebody knows what it should be, by name.
        run: computes the layer from operands, for takers by tensor; whether it adds in the machine's order. Raises
            CheckFailed.
    """

    number: type[Any]
    written: Mapping[str, WrittenTensor]
    run: Callable[[Operands, Mapping[str, Taker], bool], object]


LayerTensor = tuple[int, str]
"""The place of a layer in its chain, and a tensor that it reads."""


class Chain(Protocol):
    """Layers that overlap, at least one: run as one."""

    @property
    def members(self) -> Sequence[tuple[Op, Any]]:
        """Each, and the same made ready: `ReadyLayer`."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def timing(self) -> Any:
        """Time by the event engine, `layers` the share of each. Raises DeadlockError, which names the layers."""

    def alone(self, at: int) -> ReadyLayer:
        """A layer by itself, with the addresses that it has among the others."""

    def account(self, at: int, batch: int, timing: Any) -> Account:
        """What is told of a layer whose share of the time this is, and what the others save it."""

    def recorded(self) -> tuple[Any, tuple[int, ...]]:
        """What every unit does when; the first cycle of each layer, and the one after the last."""

    @property
    def given(self) -> Mapping[LayerTensor, LayerTensor]:
        """By each that reads what another layer leaves on chip, the reader whose operands all find there."""

    def stepped(
        self, operands: Sequence[Operands], number: np.dtype[Any], told: Told
    ) -> tuple[Any, Sequence[Mapping[str, Tensor]]]:
        """Time and what each layer writes, from the second interpreter; each has operands of its own."""


@dataclass(frozen=True)
class Phases:
    """Cycles of the array; all of them together are those of the layer.

    `first_fill` is how long it waits for fills before its first pass or vector step; the causes are those of all other
    cycles. What it is idle after its last: `drain` until the last results can be spilled, `spill` until they are in
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


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """Cycles [start, end) in which a unit does one thing; `step` of the Program, or -1 for none in particular."""

    start: int
    end: int
    name: str
    step: int


class Drawing(Protocol):
    """What units did in some cycles of a run, as a trace shows it. Whoever implements it inherits from it.

    Attributes:
        cycles: of the run.
        seen: from where units are seen, behind a comma; empty where that goes without saying.
        about_layers: what the track of layers shows.
        about: what each track shows that there may be, in the order shown.
        counted: unit of each counter, and what it is; `{window}` stands for the cycles of a window.
    """

    cycles: int
    seen: ClassVar[str] = ""
    about_layers: ClassVar[str] = "Layers, one after another."
    counted: ClassVar[Mapping[str, tuple[str, str]]] = {}

    @property
    def about(self) -> Mapping[str, str]:
        """Tracks say themselves what they show."""
        return dict.fromkeys(self.names, "")

    @property
    def names(self) -> Collection[str]:
        """The tracks that there are."""

    def tracks(self, first: int, stop: int) -> Mapping[str, Iterable[TimeSlice]]:
        """What lies in cycles [first, stop), by track; slices across the edges are cut."""

    def slices(self, first: int, stop: int) -> int:
        """How many there are."""
        return sum(1 for track in self.tracks(first, stop).values() for _ in track)

    def arguments(self, layers: Sequence[str]) -> Sequence[Mapping[str, int | str]]:
        """What is told of each step, of layers of these names."""
        return ()

    def counters(self, edges: Any) -> Mapping[str, tuple[Any, Any]]:
        """(cycles, values) of each counter: a value holds from its cycle until the next, the last until edges[-1]."""
        return {}


@dataclass(frozen=True)
class SlotDrawing(Drawing):
    """What happens when, by track: slots in order of time, none over another of its track."""

    cycles: int
    slots: Mapping[str, Sequence[Slot]]

    @property
    def names(self) -> Collection[str]:
        """All of these."""
        return self.slots.keys()

    def drawn(self, first: int, stop: int) -> SlotDrawing:
        """All of it, whatever is shown."""
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


@dataclass(frozen=True, slots=True)
class LaneCycle:
    """A letter for what each lane's port does in a cycle; how many PEs are working, how many weights moving."""

    number: int
    ports: str
    working: int
    moving: int


class WordPasses(NamedTuple):
    """Passes of the array for a word of outputs: as many rows as a word has elements, and the columns of one array.

    `least`: the passes if every one of them used all PEs.
    """

    taken: float
    least: float


class ReadyLayer(Protocol):
    """A layer made ready to run, for all layers of its shape. Whoever implements it inherits from it."""

    @cached_property
    def timing(self) -> Any:
        """The time from the event engine: `Timed`. Raises DeadlockError."""

    @property
    def to_step(self) -> int | None:
        """Cycles that `stepped` is to do, by the event engine; None where nobody tells ahead."""
        return None

    def stepped(
        self, operands: Callable[[], Operands], number: np.dtype[Any], told: Told
    ) -> tuple[Timed, Mapping[str, Tensor] | None]:
        """The time from the family's second interpreter, and every tensor that it writes if that computes values.

        Args:
            operands: gives them by name, as the reference takes them.
            number: what to add in: float32, or float64 where only that is exact.
            told: how many cycles are done.

        Raises:
            InputError: when what the interpreter needs is not installed.
            CheckFailed, DeadlockError, PortConflict: when the machine fails.
        """

    def account(self, layer: Op, batch: int, timing: Any) -> Account:
        """What is told of a layer that took this time."""

    def passes_of_a_word(self, layer: Op, batch: int) -> WordPasses | None:
        """How often the array passes for a word of outputs; None where a family has no array that passes."""
        return None

    def lane_contents(self, tensor: str, operands: Operands, empty: float) -> Any:
        """What fills of a tensor leave in the memories of lanes [lane, word, element]; `empty` where nothing is."""
        raise lacking(self)

    def workspace_bytes(self, own: Collection[str]) -> int:
        """Bytes in DRAM of tensors that are none of a layer's `own`: neither operand nor result."""
        return 0

    def phases(self, array: Mapping[str, int]) -> Phases:
        """The cycles of an `array`, by state, with the beginning and the end of the layer told apart."""
        raise lacking(self)

    def recorded(self) -> Any:
        """What every unit does when, in one run of the event engine, and its `cycles`: a `SlotDrawing`, or what
        makes a `Drawing` of some of them by `drawn`. Raises DeadlockError.
        """

    def lane_by_lane(self, operands: Operands) -> Callable[[int, Told], Iterator[LaneCycle]]:
        """Every lane in every cycle from one on, where a family has lanes; told how many cycles have passed.

        Raises:
            InputError: when what the interpreter needs is not installed.
        """
        raise lacking(self)

    def in_parts(self, number: np.dtype[Any]) -> InParts | None:
        """What takes values as they are written; None where `values` gives them all at once. Raises CheckFailed."""
        return None

    def values(self, operands: Operands, number: np.dtype[Any], told: Told) -> Mapping[str, Tensor]:
        """Every tensor that it writes, whole, as `reference.TENSORS` has them by name; NaN where it writes nothing.

        Args:
            operands: by name, as the reference takes them.
            number: as `stepped` takes it.
            told: how many outputs are done.
        """
        raise lacking(self)


@dataclass(frozen=True)
class PlainTiming:
    """What an interpreter that keeps time reports of one layer: `Timed`, for families that have no more to report.

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

    @property
    def compared(self) -> dict[str, int | float]:
        """See Timed."""
        whole = {name: of for name, of in vars(self).items() if name not in ("units", "figures")}
        return {**whole, **by_unit(self.units), **self.figures}

    def account(self, lowering: str, choices: Mapping[str, int | str]) -> Account:
        """What is told of it; `choices` are what that lowering chose, by name."""
        main = next(iter(self.units.values()))
        return Account(
            lowering,
            stall_cycles={state: cycles for state, cycles in main.items() if state not in ("busy", "idle")},
            hbm_read_bytes=self.hbm_read_bytes,
            hbm_write_bytes=self.hbm_write_bytes,
            lowered_bytes=self.lowered_bytes,
            transformation_cycles=self.transformation_cycles,
            own={**choices, **self.figures},
        )


def by_unit(units: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """The cycles of all units, by unit and state: "hbm busy"."""
    return {f"{unit} {state}": cycles for unit, split in units.items() for state, cycles in split.items()}
