"""What bounds a layer: simulate it again and again, each time with one thing relaxed, and see what gains the most.

And where its cycles go, the beginning and the end of the layer told apart; what it would take by other lowerings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tpusim.base.errors import InputError, UnsuitableError, failures_named
from tpusim.flow.engines import UNCHECKED, layer_result
from tpusim.flow.lowerings import AUTO, candidates, prepared
from tpusim.flow.need import room_for
from tpusim.flow.simulation import simulate
from tpusim.machines.family import Machine, family_of
from tpusim.machines.lowered import Phases
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult, told
from tpusim.result.vocabulary.fields import by_path
from tpusim.study.explain.relaxation import LARGER, Relaxation, Setup, relaxations

LEAST_GAIN = 1.05
"""What gains less than this is not called a bottleneck."""

MOSTLY = 0.8
"""The array is said to be busy when it is in this share of the cycles; else its most frequent stall counts."""

SHARED = 0.5
"""What alone saves this part of what more input saves is what more input relieves."""

POINTS_TO: dict[str, tuple[str, ...]] = {
    "busy": ("array", "mapping"),
    "starved": ("hbm", "rows", "latency", "memory", "block", "vector_unit", "weights", "sequencer", "input"),
    "blocked": ("hbm", "rows", "latency", "memory", "block", "vector_unit", "ports", "sequencer"),
    "waiting_weights": ("weights", "hbm", "rows", "latency", "ports", "mapping", "block", "sequencer", "input"),
    "port_stall": ("ports", "memory", "block", "input"),
    "bank_conflict": ("banks",),
    "vector_work": ("vector_unit", "ports"),
    "conversion": ("vector_unit", "memory", "block", "input"),
    "idle": ("hbm", "rows", "latency", "vector_unit", "sequencer", "input"),
}
"""What the main state of the array lets one suspect; weights may wait for HBM themselves."""


ToldTried = Callable[[int, str], None]
"""Told how much has been tried, and what comes next."""


@dataclass(frozen=True)
class Gain:
    """A thing relaxed: the cycles and MACs of the layer then; `gain` is cycles a MAC before over after.

    Layers without MACs count outputs instead. `alone` is what it gains by the plan of now; what `gain` is beyond that,
    another plan gives, chosen for what is relaxed. None where the plan of now has no such steps, or would be too good.
    `cycles` are those of the faster plan; a run, which takes the plan that is chosen, has `run_cycles`.
    """

    relaxation: Relaxation
    how: str
    cycles: int
    macs: int
    gain: float
    run_cycles: int
    alone: float | None = None

    @property
    def name(self) -> str:
        """What was relaxed."""
        return self.relaxation.name

    @property
    def helps_as_it_is(self) -> bool:
        """Whether it gains without more input to share the costs."""
        return self.gain >= LEAST_GAIN and self.relaxation.limit != "input"


@dataclass(frozen=True)
class Untried:
    """What could not be tried, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Explained:
    """A layer of any machine as it is; and what every relaxation gains, the largest gain first."""

    setup: Setup
    layer: LayerResult
    gains: tuple[Gain, ...]
    untried: tuple[Untried, ...]


@dataclass(frozen=True)
class Bottleneck(Explained):
    """A layer of a machine with lanes, its Program and what is told of it."""

    program: Any
    explanation: Any
    phases: Phases

    @property
    def most(self) -> Gain | None:
        """What gains the most; None when nothing gains LEAST_GAIN."""
        return self.gains[0] if self.gains and self.gains[0].gain >= LEAST_GAIN else None

    @property
    def best_setting(self) -> Gain | None:
        """The largest gain that a change of the machine, the mapping or the batch brings, the layer left as it is."""
        return next((gain for gain in self.gains if not gain.relaxation.ideal and gain.gain >= LEAST_GAIN), None)

    @property
    def limit(self) -> str | None:
        """What bounds the layer: what `most` relieves."""
        return self.most.relaxation.limit if self.most else None

    @property
    def main_state(self) -> str:
        """Busy, if the array mostly is, or more than anything else where that is the point; else its largest stall."""
        states = dict(self.layer.units["systolic_array"])
        busy = states.pop("busy")
        stall = max(states, key=lambda state: states[state])
        to_the_point = busy >= states[stall] and self.limit in POINTS_TO["busy"]
        return "busy" if to_the_point or busy >= MOSTLY * self.layer.cycles else stall

    @property
    def agrees(self) -> bool:
        """Whether the split of the array's cycles points to the same thing as the gains."""
        return self.limit is None or self.limit in POINTS_TO[self.main_state]


def explain(setup: Setup, watch: ToldTried) -> Explained:
    """Time the layer as it is, and relaxed in every way that applies.

    Raises:
        InputError: unknown lowering, or the layer as it is cannot be simulated. That a relaxed one cannot is recorded.
    """
    before = setup.timed()
    outcomes: list[Gain | Untried | None] = []
    for number, relaxation in enumerate(relaxations(setup)):
        watch(number, relaxation.name)
        outcomes.append(_tried(relaxation, setup, before))
    if setup.is_of_lanes and not any(isinstance(each, Gain) and each.helps_as_it_is for each in outcomes):
        outcomes.append(_tried(LARGER, setup, before))
    gains = sorted((each for each in outcomes if isinstance(each, Gain)), key=lambda gain: -gain.gain)
    return Explained(setup, before, tuple(gains), tuple(each for each in outcomes if isinstance(each, Untried)))


def find_bottleneck(setup: Setup, watch: ToldTried) -> Bottleneck:
    """`explain` a layer of a machine with lanes, of which also is known where its cycles go.

    Where more input gains the most, the limit is whatever it relieves: it shares loads, traffic and the layer's ends
    alike.

    Raises:
        InputError: an unknown lowering, or the layer as it is cannot be simulated.
    """
    found = explain(setup, watch)
    gains = found.gains
    if gains and gains[0].relaxation.limit == "input":
        most, *others = gains
        resource = next(gain for gain in others if gain.relaxation.per == "layer")
        if resource.helps_as_it_is and 1 - 1 / resource.gain >= SHARED * (1 - 1 / most.gain):
            most = replace(most, relaxation=replace(most.relaxation, limit=resource.relaxation.limit))
        gains = (most, *others)
    ready, phases = setup.ready, setup.ready.phases(found.layer.units["systolic_array"])
    return Bottleneck(setup, found.layer, gains, found.untried, ready.program, ready.explanation, phases)


def _tried(relaxation: Relaxation, setup: Setup, before: LayerResult) -> Gain | Untried | None:
    """What it gains, or why that cannot be found out; None where there is nothing to relax."""
    try:
        relaxed = relaxation.change(setup)
        if relaxed is None:
            return None
        easier, how = relaxed
        after = easier.timed()
    except UnsuitableError:
        # A layer that its lowering is not made for is no relaxed one.
        return None
    except InputError as error:
        return Untried(relaxation.name, error.problems[0].message)
    # Where there are no MACs, cycles are counted by outputs.
    work_before, work_after = before.macs or before.outputs, after.macs or after.outputs
    gain = (before.cycles * work_after) / (after.cycles * work_before)
    alone, cycles = relaxation.alone(setup, easier) if relaxation.alone else None, after.cycles
    if alone is not None and alone > gain:
        # A choice for what is relaxed may be worse than that of now, which nobody need give up.
        gain, cycles, alone = (alone, round(before.cycles / alone), alone) if relaxation.keeps else (gain, cycles, None)
    return Gain(relaxation, how, cycles, after.macs, gain, after.cycles, alone)


# ---- what it costs by each lowering, and what it saves between its neighbours: both found by running it


@dataclass(frozen=True)
class Alternative:
    """A layer by one lowering; `workspace_bytes`: of its tensors in HBM that are neither operand nor result."""

    layer: LayerResult
    workspace_bytes: int

    @property
    def lowering(self) -> str:
        """The name of the lowering."""
        return self.layer.lowering

    @property
    def hbm_bytes(self) -> int:
        """Read and written."""
        return self.layer.hbm_read_bytes + self.layer.hbm_write_bytes

    @property
    def accesses(self) -> int:
        """Words through the ports of all lanes together."""
        memory = told(self.layer.vector_memory)
        return memory.reads + memory.writes


def alternatives(setup: Setup, watch: ToldTried) -> tuple[tuple[Alternative, ...], tuple[Untried, ...]]:
    """The layer by every lowering there is for it, the fastest first; and those that do not fit."""
    fit: list[Alternative] = []
    unfit: list[Untried] = []
    layer, batch, hardware = setup.layer, setup.batch, setup.hardware
    for number, name in enumerate(candidates(AUTO, family_of(hardware))):
        watch(number, f"by {name}")
        try:
            room_for(Workload("explained", batch, (layer,)), hardware, name, "event", check=False)
            ready = prepared(layer, batch, hardware, name)
            with failures_named(layer):
                account = ready.account(layer, batch, ready.timing)
                result = layer_result(layer, batch, hardware, account, ready.timing, UNCHECKED)
            fit.append(Alternative(result, ready.workspace_bytes(layer.shapes(batch))))
        except UnsuitableError:
            continue
        except InputError as error:
            unfit.append(Untried(name, error.problems[0].message))
    return tuple(sorted(fit, key=lambda each: each.layer.cycles)), tuple(unfit)


@dataclass(frozen=True)
class Between:
    """A layer between the one ahead of it and the one behind, which overlap as `how` says.

    Attributes:
        cycles: those that all of them take, and `hidden_cycles` how many fewer these are than one by one.
        own_cycles: the layer's share of them.
        hbm_saved_bytes: those that need not cross the bus, as something stays on chip.
        apart: why the layer does not overlap with the one ahead, if so.
        asked: whether the machine says `how`; else it is what it might say.
    """

    layers: tuple[str, ...]
    cycles: int
    hidden_cycles: int
    apart: str
    how: str
    own_cycles: int
    hbm_saved_bytes: int
    asked: bool


def overlapping(work: Workload, layer: Op, hardware: Machine, lowering: str) -> Between | None:
    """The layer and its neighbours, timing alone, by the lowering that all are asked for; None where it has none, or
    these cannot run on the machine.
    """
    names = [each.name for each in work.layers]
    at = names.index(layer.name)
    around = tuple(names[max(0, at - 1) : at + 2])
    if len(around) == 1:
        return None
    asked = family_of(hardware).overlaps(hardware)
    machine = hardware if asked else hardware.with_overrides(["sequencer.between_layers=overlap"])
    try:
        few = work.with_layers(lambda each: each.name in around)
        result = simulate(few, machine, lowering=lowering, check=False)
    except InputError:
        return None
    total, mine = result.total, next(each for each in result.layers if each.name == layer.name)
    how = dict(by_path(machine.to_dict()))["sequencer.between_layers"]
    saved = total.hbm_saved_bytes
    return Between(around, total.cycles, total.hidden_cycles, mine.apart, how, mine.cycles, saved, asked)
