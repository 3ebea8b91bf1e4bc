"""The limit of a layer: it is simulated again and again, each time with one thing made easier, and the largest gain
shows what limits it.

Then the cycles of the layer with its beginning and end apart, and its cost by other lowerings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tpusim.base.errors import InputError, UnsuitableError, failures_named
from tpusim.flow.engines import UNCHECKED, layer_result
from tpusim.flow.jobs import Jobs, alone
from tpusim.flow.lowerings import AUTO, candidates, prepared
from tpusim.flow.need import room_for
from tpusim.flow.simulation import layers_of
from tpusim.machines.family import family_of
from tpusim.machines.lowered import Phases
from tpusim.network.ops.op import Op
from tpusim.result.records import LayerResult, total_of
from tpusim.result.vocabulary.fields import by_path
from tpusim.study.explain.relaxation import LARGER, Relaxation, Setup, relaxations

LEAST_GAIN = 1.05
"""Least gain of a bottleneck."""

MOSTLY = 0.8
"""Share of busy cycles above which the array counts as busy; below it, the largest stall counts."""

SHARED = 0.5
"""Share of the savings of more input that a single relaxation must reach to count as what more input relieves."""

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
"""Limits that the main state of the array suggests; weights may themselves wait for HBM."""


ToldTried = Callable[[int, str], None]
"""Called with the number of relaxations tried, and the next one."""


@dataclass(frozen=True)
class Gain:
    """The result of a relaxation: the layer's cycles and MACs then, and the `gain`, cycles a MAC before over after.

    Layers without MACs count outputs. `alone` is the gain by the present plan; the rest of `gain` comes from another
    plan that suits the relaxation. It is None if the present plan cannot have those steps, or would gain too much.
    `cycles` are those of the faster plan; a run takes the plan that is chosen, with `run_cycles`. `easier` is what was
    timed.
    """

    relaxation: Relaxation
    how: str
    cycles: int
    macs: int
    gain: float
    run_cycles: int
    alone: float | None = None
    easier: Setup | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the relaxation."""
        return self.relaxation.name

    @property
    def helps_as_it_is(self) -> bool:
        """Whether it gains without more input to share the costs."""
        return self.gain >= LEAST_GAIN and self.relaxation.limit != "input"


@dataclass(frozen=True)
class UntriedChange:
    """A relaxation or lowering that could not be tried, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class ExplainedLayer:
    """A layer of any machine as it is, and the gains of all relaxations, the largest first."""

    setup: Setup
    layer: LayerResult
    gains: tuple[Gain, ...]
    untried: tuple[UntriedChange, ...]

    @property
    def most(self) -> Gain | None:
        """The relaxation with the largest gain; None if none reaches LEAST_GAIN."""
        return self.gains[0] if self.gains and self.gains[0].gain >= LEAST_GAIN else None

    @property
    def best_setting(self) -> Gain | None:
        """The largest gain of a change of the machine, the mapping or the batch, with the layer as it is."""
        return next((gain for gain in self.gains if not gain.relaxation.ideal and gain.gain >= LEAST_GAIN), None)

    @property
    def limit(self) -> str | None:
        """The limit of the layer: the thing that `most` relieves."""
        return self.most.relaxation.limit if self.most else None


@dataclass(frozen=True)
class Bottleneck(ExplainedLayer):
    """An explained layer of a machine with lanes, with its Program and explanation.

    `standing` is that of its tiling among all that fit, or None where its lowering does not tell.
    """

    program: Any
    explanation: Any
    phases: Phases
    standing: Any

    @property
    def main_state(self) -> str:
        """Main state of the array: busy, if it mostly is, or if busy is its most frequent state where that is asked;
        else the largest stall.
        """
        states = dict(self.layer.units["systolic_array"])
        busy = states.pop("busy")
        stall = max(states, key=lambda state: states[state])
        to_the_point = busy >= states[stall] and self.limit in POINTS_TO["busy"]
        return "busy" if to_the_point or busy >= MOSTLY * self.layer.cycles else stall

    @property
    def agrees(self) -> bool:
        """Whether the split of the array's cycles points to the same limit as the gains."""
        return self.limit is None or self.limit in POINTS_TO[self.main_state]


def explain_layer(setup: Setup, watch: ToldTried) -> ExplainedLayer:
    """Time the layer as it is, and relaxed in every way that applies; on a machine with lanes a `Bottleneck`.

    Raises:
        InputError: unknown lowering, or the layer as it is cannot be simulated. A relaxed layer that cannot be
        simulated is recorded.
    """
    before = setup.timed()
    outcomes: list[Gain | UntriedChange | None] = []
    for number, relaxation in enumerate(relaxations(setup)):
        watch(number, relaxation.name)
        outcomes.append(_tried(relaxation, setup, before))
    if setup.is_of_lanes and not any(isinstance(each, Gain) and each.helps_as_it_is for each in outcomes):
        outcomes.append(_tried(LARGER, setup, before))
    gains = sorted((each for each in outcomes if isinstance(each, Gain)), key=lambda gain: -gain.gain)
    found = ExplainedLayer(
        setup, before, tuple(gains), tuple(each for each in outcomes if isinstance(each, UntriedChange))
    )
    return _of_the_array(found) if setup.is_of_lanes else found


def _of_the_array(found: ExplainedLayer) -> Bottleneck:
    """A layer of a machine with lanes, with the split of its cycles.

    If more input gains the most, the limit is what it relieves: loads, traffic and the layer's ends are shared
    by more outputs.
    """
    setup, gains = found.setup, found.gains
    if gains and gains[0].relaxation.limit == "input":
        most, *others = gains
        resource = next((gain for gain in others if gain.relaxation.per == "layer"), None)
        if resource and resource.helps_as_it_is and 1 - 1 / resource.gain >= SHARED * (1 - 1 / most.gain):
            most = replace(most, relaxation=replace(most.relaxation, limit=resource.relaxation.limit))
        gains = (most, *others)
    ready, phases = setup.ready, setup.ready.phases(found.layer.units["systolic_array"])
    own = ready.program, ready.explanation, phases, ready.standing
    return Bottleneck(setup, found.layer, gains, found.untried, *own)


def _tried(relaxation: Relaxation, setup: Setup, before: LayerResult) -> Gain | UntriedChange | None:
    """The gain of a relaxation, or why it is unknown; None if there is nothing to relax."""
    try:
        relaxed = relaxation.change(setup)
        if relaxed is None:
            return None
        easier, how = relaxed
        after = easier.timed()
    except UnsuitableError:
        # A relaxed layer that the lowering is not made for is no variant of this one.
        return None
    except InputError as error:
        return UntriedChange(relaxation.name, error.problems[0].message)
    # Layers without MACs are compared by outputs.
    work_before, work_after = before.macs or before.outputs, after.macs or after.outputs
    gain = (before.cycles * work_after) / (after.cycles * work_before)
    alone, cycles = relaxation.alone(setup, easier) if relaxation.alone else None, after.cycles
    if alone is not None and alone > gain:
        # The plan chosen for the relaxed machine may be worse than the present plan, which would then be kept.
        gain, cycles, alone = (alone, round(before.cycles / alone), alone) if relaxation.keeps else (gain, cycles, None)
    return Gain(relaxation, how, cycles, after.macs, gain, after.cycles, alone, easier)


# ---- costs by each lowering, and savings beside neighbouring layers, both found by running them


@dataclass(frozen=True)
class Alternative:
    """A layer by one lowering; `workspace_bytes` counts its tensors in HBM other than operands and result."""

    layer: LayerResult
    workspace_bytes: int

    @property
    def lowering(self) -> str:
        """The name of the lowering."""
        return self.layer.lowering

    @property
    def hbm_bytes(self) -> int:
        """Bytes of HBM read and written."""
        return self.layer.hbm_read_bytes + self.layer.hbm_write_bytes

    @property
    def accesses(self) -> int | None:
        """Words through the ports of all lanes together; None of a machine without lanes."""
        memory = self.layer.vector_memory
        return memory.reads + memory.writes if memory else None


def alternatives(setup: Setup, watch: ToldTried) -> tuple[tuple[Alternative, ...], tuple[UntriedChange, ...]]:
    """The layer by every lowering for it, the fastest first; and the lowerings that do not fit."""
    fit: list[Alternative] = []
    unfit: list[UntriedChange] = []
    layer, batch, hardware = setup.layer, setup.batch, setup.hardware
    for number, name in enumerate(candidates(AUTO, family_of(hardware))):
        watch(number, f"by {name}")
        try:
            room_for(alone(layer, batch, hardware, name), "event", check=False)
            ready = prepared(layer, batch, hardware, name)
            with failures_named(layer):
                account = ready.account(layer, batch, ready.timing)
                result = layer_result(layer, batch, hardware, account, ready.timing, UNCHECKED)
            fit.append(Alternative(result, ready.workspace_bytes(layer.shapes(batch))))
        except UnsuitableError:
            continue
        except InputError as error:
            unfit.append(UntriedChange(name, error.problems[0].message))
    return tuple(sorted(fit, key=lambda each: each.layer.cycles)), tuple(unfit)


@dataclass(frozen=True)
class LayerInChain:
    """A layer between the layers ahead of it and behind it, which overlap as `how` says.

    Attributes:
        cycles, hidden_cycles: cycles of all of them together, and cycles saved compared with one by one.
        own_cycles: the layer's share of the cycles.
        hbm_saved_bytes: bytes that need not cross the bus, because tensors stay on chip.
        apart: reason why the layer does not overlap with the layer ahead, if it does not.
        asked: whether the machine overlaps layers by `how`, or only could.
    """

    layers: tuple[str, ...]
    cycles: int
    hidden_cycles: int
    apart: str
    how: str
    own_cycles: int
    hbm_saved_bytes: int
    asked: bool


def overlapping(jobs: Jobs, layer: Op) -> LayerInChain | None:
    """The layer and its neighbours, timing alone; None if it has no neighbours, or they cannot run on the machine."""
    names = [job.layer.name for job in jobs.each]
    at = names.index(layer.name)
    # Only direct neighbours overlap with a layer, so three layers are enough.
    around = tuple(names[max(0, at - 1) : at + 2])
    if len(around) == 1:
        return None
    # On a machine that does not overlap layers, the user still learns what it would save.
    asked = jobs.family.overlaps(jobs.machine)
    machine = jobs.machine if asked else jobs.machine.with_overrides(["sequencer.between_layers=overlap"])
    try:
        layers = layers_of(jobs.only(around).on(machine))
    except InputError:
        return None
    total, mine = total_of(layers, 0.0), next(each for each in layers if each.name == layer.name)
    how = dict(by_path(machine.to_dict()))["sequencer.between_layers"]
    saved = total.hbm_saved_bytes
    return LayerInChain(around, total.cycles, total.hidden_cycles, mine.apart, how, mine.cycles, saved, asked)
