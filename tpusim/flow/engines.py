"""What `--engine` chooses between: how a layer gets its time and the verdict on its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tpusim.base.errors import CheckFailed, InputError, Named, Problem, failures_named
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.machines.lowered import Lowered, Timed
from tpusim.network.ops.op import OFMAP, Op
from tpusim.numerics.equality import Verdict
from tpusim.result.records import LayerResult

if TYPE_CHECKING:
    from tpusim.flow.values import Journey
    from tpusim.reference import Operands, Tensor

Outcome = tuple[Timed, Callable[[], Verdict]]
"""The time of a layer, and what holds its values against the reference: at any time, on any thread."""
Watch = Callable[[str, str], None]
"""Told now and then which layer is under way, and what is done to it: "timing", "1,024 cycles"."""

UNCHECKED = Verdict(0, 0, None)


def unwatched(layer: str, doing: str) -> None:
    """Nobody looks."""


class Begun(NamedTuple):
    """A layer that is timed, and what is left to do for its result, on any thread."""

    layer: Op
    rest: Callable[[], LayerResult]


@dataclass(frozen=True)
class Task:
    """What an engine is asked: one layer, made ready."""

    layer: Op
    batch: int
    prepared: Lowered
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


def _event(task: Task) -> Outcome:
    """Time from the event engine, values from the data path."""
    task.doing("timing")
    with failures_named(task.layer):
        timing = task.prepared.timing
    return timing, values_of(task)


def values_of(task: Task) -> Callable[[], Verdict]:
    """What holds the data path's values of a layer against the reference, if it is to be checked."""
    return lambda: _checked(task) if task.check else UNCHECKED


def _checked(task: Task) -> Verdict:
    # Here, because a run without a check needs neither the reference nor the data path.
    from tpusim.flow.verify import check_values

    outputs = task.layer.outputs(task.batch)

    def told(written: int, what: str) -> None:
        task.doing(f"{written / outputs:.0%} of its outputs {what}")

    task.doing("checking")
    take = task.journey.take if task.journey else None
    return check_values(task.layer, task.prepared, task.operands(), task.numbers, told, take)


def _register(task: Task) -> Outcome:
    """Time from the second interpreter, and values too where it computes any."""
    layer, numbers, operands = task.layer, task.numbers, cache(task.operands)
    # What the event engine tells ahead may be hours.
    if (to_step := task.prepared.to_step) is not None:
        task.doing(f"0 of {to_step:,} cycles")

    def told(cycles: int) -> None:
        task.doing(f"{cycles:,} cycles" if to_step is None else f"{cycles:,} of {to_step:,} cycles")

    with failures_named(layer), memory_needed(layer):
        timing, written = task.prepared.stepped(operands, numbers.number(layer, task.batch), told)
    if written is None:
        return timing, values_of(task)
    if task.journey is not None:
        task.journey.take(written[OFMAP])
    return timing, verdict_on(task, operands, written)


def verdict_on(task: Task, operands: Callable[[], Operands], written: Mapping[str, Tensor]) -> Callable[[], Verdict]:
    """What holds values against the reference that are there, if the layer is to be checked."""

    def verdict() -> Verdict:
        if not task.check:
            return UNCHECKED
        from tpusim.flow.verify import verdict_of

        return verdict_of(task.layer, operands(), written, task.numbers)

    return verdict


def _both(task: Task) -> Outcome:
    """The second interpreter, and the event engine must agree with it on every figure."""
    timing, verdict = _register(task)
    with failures_named(task.layer):
        told = task.prepared.timing
    check_agreement(f"layer {task.layer.name}", told, timing)
    return timing, verdict


def check_agreement(name: str, told: Timed, timing: Timed) -> None:
    """Raise CheckFailed unless what both engines tell of what is called so is equal: with the first that differs."""
    if timing == told:
        return
    figures, others = told.compared, timing.compared
    name_of = next(figure for figure in figures if figures[figure] != others.get(figure))
    differs = (
        f"{name_of} is {figures[name_of]:,} in the event engine, {others.get(name_of, 0):,} in the register engine"
    )
    raise CheckFailed(f"{name}: the engines disagree: {differs}")


@contextmanager
def memory_needed(layer: Named) -> Iterator[None]:
    """The register engine holds every word that a layer moves."""
    try:
        yield
    except MemoryError:
        problem = "too little memory for the register engine; take a smaller --batch, or --engine event"
        raise InputError(Problem(problem, f"layer {layer.name}")) from None


ENGINES: dict[str, Callable[[Task], Outcome]] = {"event": _event, "register": _register, "both": _both}
