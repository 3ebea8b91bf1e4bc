"""What `--engine` chooses between: how a layer gets its time and the verdict on its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from tpusim.base.errors import CheckFailed, InputError, Named, Problem, failures_named
from tpusim.base.imports import need
from tpusim.flow.dram_account import wanted_bytes
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.program import Explanation, Program
from tpusim.network.ops.op import OFMAP, Op
from tpusim.numerics.equality import Verdict
from tpusim.result.records import LayerResult

if TYPE_CHECKING:
    from tpusim.flow.values import Journey
    from tpusim.reference import Operands

Outcome = tuple[Timing, Callable[[], Verdict]]
"""The time of a layer, and what holds its values against the reference: at any time, on any thread."""
Watch = Callable[[str, str], None]
"""Told now and then which layer is under way, and what is done to it: "timing", "1,024 cycles"."""

Of = TypeVar("Of")
"""What a family makes ready of a layer: a TPU's is `Prepared`."""

UNCHECKED = Verdict(0, 0, None)


def unwatched(layer: str, doing: str) -> None:
    """Nobody looks."""


@dataclass(frozen=True)
class Prepared:
    """A Program for a machine, which all layers of a shape share, and its time from the event engine.

    `lowering` is the one that made it, of a `draft`; a Program that was written by hand has none.
    """

    program: Program
    explanation: Explanation
    hardware: Hardware
    lowering: str
    draft: Draft | None = None

    def with_told(self, told: Mapping[str, str], choices: Mapping[str, int | str]) -> Prepared:
        """The same, with more to tell of how it was lowered."""
        old = self.explanation
        explanation = replace(old, aspects={**old.aspects, **told}, choices={**old.choices, **choices})
        more = replace(self, explanation=explanation)
        # Timed already: a copy would be timed again.
        vars(more)["timing"] = self.timing
        return more

    @cached_property
    def timing(self) -> Timing:
        """Computed when it is first asked for."""
        return event.run(self.program, self.hardware)

    @cached_property
    def wanted_bytes(self) -> int:
        """The same."""
        return wanted_bytes(self.program, self.hardware)


class Begun(NamedTuple):
    """A layer that is timed, and what is left to do for its result, on any thread."""

    layer: Op
    rest: Callable[[], LayerResult]


@dataclass(frozen=True)
class Task(Generic[Of]):
    """What an engine is asked: one layer, made ready."""

    layer: Op
    batch: int
    prepared: Of
    check: bool
    seed: int
    watch: Watch
    asked_numbers: Numbers = SMALL
    journey: Journey | None = None

    @property
    def numbers(self) -> Numbers:
        """What the layer is computed with; those of a network may differ from layer to layer."""
        return self.journey.numbers_of(self.layer) if self.journey else self.asked_numbers

    def operands(self) -> Operands:
        """Random ones, or what comes before the layer in its network."""
        if self.journey is not None:
            return self.journey.operands(self.layer)
        return self.numbers.operands(self.layer, self.batch, self.seed)

    def doing(self, what: str) -> None:
        """Tell who watches."""
        self.watch(self.layer.name, what)


def program_of(task: Task[Prepared]) -> Program:
    """The Program, for the numbers that it is computed with."""
    return task.numbers.program(task.layer, task.batch, task.prepared.program)


def _event(task: Task[Prepared]) -> Outcome:
    """Time from the event engine, values from the data path."""
    task.doing("timing")
    with failures_named(task.layer):
        timing = task.prepared.timing
    return timing, values_of(task)


def values_of(task: Task[Prepared]) -> Callable[[], Verdict]:
    """What holds the data path's values of a layer against the reference, if it is to be checked."""
    return lambda: _checked(task) if task.check else UNCHECKED


def _checked(task: Task[Prepared]) -> Verdict:
    # Here, because a run without a check needs neither the reference nor the data path.
    from tpusim.flow.verify import check_values

    outputs = task.layer.outputs(task.batch)

    def told(written: int) -> None:
        task.doing(f"{written / outputs:.0%} of its outputs checked")

    task.doing("checking")
    take = task.journey.take if task.journey else None
    hardware, numbers = task.prepared.hardware, task.numbers
    return check_values(task.layer, program_of(task), hardware, task.operands(), told, numbers, take)


def _register(task: Task[Prepared]) -> Outcome:
    """Time and values both from the register engine."""
    need_numba()
    from tpusim.flow.verify import as_floats, verdict_of
    from tpusim.machines.tpu import register

    def told(cycles: int) -> None:
        task.doing(f"{cycles:,} cycles")

    layer, numbers, operands = task.layer, task.numbers, task.operands()
    with failures_named(layer), memory_needed(layer):
        timing, written = register.run(program_of(task), task.prepared.hardware, as_floats(operands), told)
    if task.journey is not None:
        task.journey.take(written[OFMAP])
    return timing, lambda: verdict_of(layer, operands, written, numbers) if task.check else UNCHECKED


def _both(task: Task[Prepared]) -> Outcome:
    """The register engine, and the event engine must agree with it on every figure."""
    timing, verdict = _register(task)
    with failures_named(task.layer):
        told = task.prepared.timing
    if timing != told:
        raise CheckFailed(f"layer {task.layer.name}: the engines disagree: {difference(told, timing)}")
    return timing, verdict


def difference(told: Timing, timing: Timing) -> str:
    """The first figure that differs, of the whole or of a layer's share."""
    figures, others = _figures(told), _figures(timing)
    name = next(name for name in figures if figures[name] != others[name])
    return f"{name} is {figures[name]:,} in the event engine, {others[name]:,} in the register engine"


def _figures(timing: Timing) -> dict[str, int]:
    units = {f"{unit} {cause}": n for unit, split in timing.units.items() for cause, n in split.items()}
    held = {f"bus for {label}": cycles for label, cycles in timing.bus.items()}
    dram = timing.hbm.figures if timing.hbm else {}
    shares = {
        f"{name} of layer {number}": figure
        for number, share in enumerate(timing.layers)
        for name, figure in _figures(share).items()
    }
    return {"cycles": timing.cycles, **units, **held, "reads": timing.reads, "writes": timing.writes, **dram, **shares}


def need_numba() -> None:
    """The register engine is an extra, and imported only when somebody asks for it.

    Raises:
        InputError: when Numba, or what it needs, cannot be imported; says how to install it for this Python.
    """
    need("the register engine", "Numba", "numba")


@contextmanager
def memory_needed(layer: Named) -> Iterator[None]:
    """The register engine holds every word that a layer moves."""
    try:
        yield
    except MemoryError:
        problem = "too little memory for the register engine; take a smaller --batch, or --engine event"
        raise InputError(Problem(problem, f"layer {layer.name}")) from None


ENGINES: dict[str, Callable[[Task[Prepared]], Outcome]] = {"event": _event, "register": _register, "both": _both}
