"""The engines of `--engine`: they give the time of a layer, or of several that overlap, and the verdict on its
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from itertools import starmap
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import CheckFailed, InputError, NamedLayers, Problem, failures_named
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.machines.family import Machine
from tpusim.machines.lowered import Account, Chain, LayerWatch, ReadyLayer, TimeReport
from tpusim.network.ops.op import OFMAP, Op
from tpusim.numerics.equality import Verdict
from tpusim.result.records import LayerResult

if TYPE_CHECKING:
    from tpusim.flow.values import Journey
    from tpusim.reference import Operand, Operands, Tensor

ENGINES = ("event", "simpy", "register", "both")
"""Engines that keep time; `both` stands for all that a machine's family has."""
TimedLayer = tuple[TimeReport, Callable[[], Verdict]]
"""Time of a layer, and a function that checks its values, at any time and on any thread."""

UNCHECKED = Verdict(0, 0, None)


PendingResult = tuple[str, Callable[[], LayerResult]]
"""The name of a timed layer, and a function for the rest of its result, on any thread; layers of a kind share one,
whoever of them it names.
"""


@dataclass(frozen=True)
class Task:
    """A task for an engine: one layer, made ready."""

    layer: Op
    batch: int
    prepared: ReadyLayer
    check: bool
    seed: int
    watch: LayerWatch
    asked_numbers: Numbers = SMALL
    journey: Journey | None = None

    @property
    def numbers(self) -> Numbers:
        """Numbers of the layer; within a network they may differ from layer to layer."""
        return self.journey.numbers_of(self.layer) if self.journey else self.asked_numbers

    def operands(self) -> Operands:
        """Random operands, or, in a network, the values ahead of the layer."""
        if self.journey is not None:
            return self.journey.operands(self.layer)
        return self.numbers.operands(self.layer, self.batch, self.seed)

    @property
    def chips(self) -> int:
        """How often values are computed: once, or on each chip that has a share of the network."""
        return self.journey.chips if self.journey else 1

    def doing(self, what: str) -> None:
        """Report what is done to the layer."""
        self.watch(self.layer.name, what)


@dataclass(frozen=True)
class Execution:
    """What all layers of a run share as engines run them; fields are those of Task, and the engine."""

    machine: Machine
    batch: int
    engine: str
    check: bool
    seed: int
    watch: LayerWatch
    numbers: Numbers
    journey: Journey | None
    _known: dict[int, tuple[TimeReport, Account, Verdict, LayerResult]] = field(default_factory=dict, init=False)
    """Results by the time that layers of a kind share."""

    def begun(self, layer: Op, ready: ReadyLayer) -> PendingResult:
        """Time a layer by itself. Raises as `timed`."""
        timing, verdict = timed(self._task(layer, ready), self.engine)
        account = partial(ready.account, layer, self.batch, timing)
        return layer.name, partial(self._result, layer, account, timing, verdict)

    def together(self, chain: Chain) -> Iterator[PendingResult]:
        """Time the layers of a chain together.

        Raises:
            InputError: the register engine is asked for the values of a network, or there is too little memory for it.
            CheckFailed: with engine "both", two engines disagree.
            DeadlockError: steps wait for one another for ever; all of them name the layers.
        """
        tasks = [*starmap(self._task, chain.members)]
        found: Iterable[TimedLayer]
        if len(tasks) == 1:
            found = [timed(tasks[0], self.engine)]
        elif self.engine in _WITHOUT_VALUES:
            # Such an engine times all layers at once; values come from each layer by itself.
            shares = enumerate(zip(tasks, _WITHOUT_VALUES[self.engine](chain).layers, strict=True))
            found = ((share, partial(_checked_alone, chain, at, task)) for at, (task, share) in shares)
        else:
            name = f"layers {chain.name}"
            if self.engine == "both":
                _check_agreement(name, chain, "simpy", chain.by_simpy)
            timing, found = _stepped_together(chain, tasks)
            if self.engine == "both":
                _check_agreement(name, chain, "register", timing)
        for at, (task, (timing, verdict)) in enumerate(zip(tasks, found, strict=True)):
            account = partial(chain.account, at, self.batch, timing)
            yield task.layer.name, partial(self._result, task.layer, account, timing, verdict)

    def _task(self, layer: Op, ready: ReadyLayer) -> Task:
        return Task(layer, self.batch, ready, self.check, self.seed, self.watch, self.numbers, self.journey)

    def _result(
        self, layer: Op, account: Callable[[], Account], timing: TimeReport, verdict: Callable[[], Verdict]
    ) -> LayerResult:
        told, values, known = account(), verdict(), self._known.get(id(timing))
        if known is None or known[1:3] != (told, values):
            known = timing, told, values, layer_result(layer, self.batch, self.machine, told, timing, values)
            self._known[id(timing)] = known
        return known[3]


def timed(task: Task, engine: str) -> TimedLayer:
    """Time and values of a layer by an engine.

    The event engine and SimPy's keep time, and the data path computes values. The register engine may do both; with
    engine "both" every engine must agree with the event engine on every figure.

    Raises:
        InputError: there is too little memory for the register engine, or its packages are not installed.
        CheckFailed: with engine "both", two engines disagree.
        DeadlockError, PortConflict: the machine stopped, or was asked for two things at once; names the layer.
    """
    if engine in _WITHOUT_VALUES:
        task.doing("timing")
        with failures_named(task.layer):
            return _WITHOUT_VALUES[engine](task.prepared), partial(_checked, task)
    name, ready = f"layer {task.layer.name}", task.prepared
    if engine == "both":
        # Ahead of the register engine, which may take hours.
        with failures_named(task.layer):
            _check_agreement(name, ready, "simpy", ready.by_simpy)
    timing, verdict = _stepped(task)
    if engine == "both":
        with failures_named(task.layer):
            _check_agreement(name, ready, "register", timing)
    return timing, verdict


_WITHOUT_VALUES: dict[str, Callable[[ReadyLayer | Chain], Any]] = {
    "event": lambda ready: ready.timing,
    "simpy": lambda ready: ready.by_simpy,
}
"""Engines that keep time and compute no values: how each times a layer, or a chain."""


def _checked_alone(chain: Chain, at: int, task: Task) -> Verdict:
    """The verdict on a layer of a chain by itself, with its addresses in the chain, which only a check asks for."""
    return _checked(replace(task, prepared=chain.alone(at)) if task.check else task)


def layer_result(
    layer: Op, batch: int, machine: Machine, account: Account, timing: TimeReport, verdict: Verdict
) -> LayerResult:
    """A row of the report: a layer's time, what its family tells of it, and the verdict on its values."""
    cycles, macs, peak = timing.cycles, layer.macs(batch), machine.macs_per_cycle
    seconds = cycles / machine.clock_hz
    return LayerResult(
        name=layer.name,
        op=layer.core.op,
        macs=macs,
        cycles=cycles,
        time_us=seconds * 1e6,
        ideal_cycles=-(-macs // peak),
        pe_utilization=macs / (peak * cycles),
        tflops=2 * macs / seconds / 1e12,
        outputs=layer.outputs(batch),
        outputs_checked=verdict.checked,
        outputs_mismatched=verdict.mismatched,
        units=timing.units,
        first_mismatch=verdict.first,
        intermediates_checked=verdict.intermediates_checked,
        intermediates_mismatched=verdict.intermediates_mismatched,
        transformation_share=account.transformation_cycles / cycles,
        error_share=verdict.error_share,
        **vars(account),
    )


# ---- the event engine, and values from the data path


def _checked(task: Task) -> Verdict:
    """The verdict on the data path's values of a layer, if it is to be checked."""
    if not task.check:
        return UNCHECKED
    # Imported here, because a run without a check needs neither the reference nor the data path.
    from tpusim.flow.verify import check_values

    outputs = task.layer.outputs(task.batch)

    def told(written: int, what: str) -> None:
        task.doing(f"{written / outputs:.0%} of its outputs {what}")

    task.doing("checking")
    take = task.journey.take if task.journey else None
    found = (
        check_values(task.layer, task.prepared, task.operands(), task.numbers, told, take) for _ in range(task.chips)
    )
    return reduce(Verdict.beside, found)


# ---- the second interpreter, which may compute values too


def _stepped(task: Task) -> TimedLayer:
    timing, verdict = _stepped_once(task)
    if verdict is None:
        return timing, partial(_checked, task)
    every = [verdict]
    for _ in range(task.chips - 1):
        again, verdict = _stepped_once(task)
        if again != timing or verdict is None:
            raise CheckFailed(f"layer {task.layer.name}: it takes another time on another chip, for other values")
        every.append(verdict)
    return timing, lambda: reduce(Verdict.beside, (each() for each in every))


def _stepped_once(task: Task) -> tuple[TimeReport, Callable[[], Verdict] | None]:
    """The time, and the verdict on the values of the next chip; None where the engine computes none."""
    layer, numbers, operands = task.layer, task.numbers, cache(task.operands)
    # The event engine's estimate of the length is shown: stepping may take hours.
    to_step = task.prepared.to_step
    task.doing("stepping" if to_step is None else f"0 of {to_step:,} cycles")

    def told(cycles: int) -> None:
        task.doing(f"{cycles:,} cycles" if to_step is None else f"{cycles:,} of {to_step:,} cycles")

    with failures_named(layer), memory_needed(layer):
        timing, written = task.prepared.stepped(operands, numbers.number(layer, task.batch), told)
    if written is not None and task.journey is not None:
        task.journey.take(written[OFMAP])
    return timing, None if written is None else partial(_compared, task, operands, written)


def _stepped_together(chain: Chain, tasks: Sequence[Task]) -> tuple[TimeReport, list[TimedLayer]]:
    """Time of all layers from one run; for each layer its share, and the verdict on its values with operands of its
    own.
    """
    if any(task.journey for task in tasks):
        problem = "the register engine runs layers that overlap on random operands"
        raise InputError(Problem(f"{problem}; take engine event for values of the network", chain.name))
    drawn = [task.operands() for task in tasks]
    operands: list[dict[str, Operand]] = [{**each} for each in drawn]
    # All readers of an outcome on chip must be given the same operand, as they find the same words there.
    for (at, name), (giver, tensor) in chain.given.items():
        operands[at][name] = drawn[giver][tensor]
    number = max((task.numbers.number(task.layer, task.batch) for task in tasks), key=lambda each: each.itemsize)

    def told(cycles: int) -> None:
        tasks[0].doing(f"{cycles:,} cycles of {chain.name}")

    with failures_named(chain), memory_needed(chain):
        timing, written = chain.stepped(operands, number, told)
    shares = enumerate(zip(tasks, written, timing.layers, strict=True))
    return timing, [
        (share, partial(_compared, task, partial(operands.__getitem__, at), made)) for at, (task, made, share) in shares
    ]


def _compared(task: Task, operands: Callable[[], Operands], written: Mapping[str, Tensor]) -> Verdict:
    """The verdict on values that an engine has computed, if the layer is to be checked."""
    if not task.check:
        return UNCHECKED
    from tpusim.flow.verify import verdict_of

    return verdict_of(task.layer, operands(), written, task.numbers)


def _check_agreement(name: str, ready: ReadyLayer | Chain, engine: str, timing: TimeReport | None) -> None:
    """Raise CheckFailed with the first difference, unless an engine reports the figures of the event engine.

    `timing` is None where the family has no such engine.
    """
    told = ready.timing
    if timing is None or timing == told:
        return
    figures, others = told.compared, timing.compared
    first = next((figure for figure in figures if figures[figure] != others.get(figure)), "")
    if not first:
        raise CheckFailed(f"{name}: the engines disagree on what no figure tells: event and {engine}")
    differs = f"{figures[first]:,} in the event engine, {others.get(first, 0):,} in the {engine} engine"
    raise CheckFailed(f"{name}: the engines disagree: {first} is {differs}")


@contextmanager
def memory_needed(layer: NamedLayers) -> Iterator[None]:
    """Turn a MemoryError into advice: the register engine holds every word that a layer moves."""
    try:
        yield
    except MemoryError:
        problem = "too little memory for the register engine; take a smaller batch, or engine event"
        raise InputError(Problem(problem, f"layer {layer.name}")) from None
