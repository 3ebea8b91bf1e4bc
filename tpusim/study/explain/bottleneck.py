"""What bounds a layer: simulate it again and again, each time with one thing relaxed, and see what gains the most.

And where its cycles go, the beginning and the end of the layer told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tpusim.base.errors import InputError, UnsuitableError
from tpusim.flow.choice import prepared
from tpusim.machines.lowered import Phases
from tpusim.result.records import LayerResult
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
    "port_stall": ("ports",),
    "bank_conflict": ("banks",),
    "vector_work": ("vector_unit", "ports"),
    "idle": ("hbm", "rows", "latency", "vector_unit", "sequencer", "input"),
}
"""What the main state of the array lets one suspect; weights may wait for HBM themselves."""


Watch = Callable[[int, str], None]
"""Told how much has been tried, and what comes next."""


@dataclass(frozen=True)
class Gain:
    """A thing relaxed: the cycles and MACs of the layer then; `gain` is cycles a MAC before over after.

    Layers without MACs count outputs instead.
    """

    relaxation: Relaxation
    how: str
    cycles: int
    macs: int
    gain: float

    @property
    def name(self) -> str:
        """What was relaxed."""
        return self.relaxation.name

    @property
    def helps_as_it_is(self) -> bool:
        """Whether it gains without more input to share the costs."""
        return self.gain >= LEAST_GAIN and self.relaxation.limit != "input"


@dataclass(frozen=True)
class Left:
    """What could not be tried, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Explained:
    """A layer of any machine as it is; and what every relaxation gains, the largest gain first."""

    setup: Setup
    layer: LayerResult
    gains: tuple[Gain, ...]
    untried: tuple[Left, ...]


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


def explain(setup: Setup, watch: Watch) -> Explained:
    """Time the layer as it is, and relaxed in every way that applies.

    Raises:
        InputError: unknown lowering, or the layer as it is cannot be simulated. That a relaxed one cannot is recorded.
    """
    before = setup.timed()
    outcomes: list[Gain | Left | None] = []
    for number, relaxation in enumerate(relaxations(setup)):
        watch(number, relaxation.name)
        outcomes.append(_tried(relaxation, setup, before))
    if setup.is_of_lanes and not any(isinstance(each, Gain) and each.helps_as_it_is for each in outcomes):
        outcomes.append(_tried(LARGER, setup, before))
    gains = sorted((each for each in outcomes if isinstance(each, Gain)), key=lambda gain: -gain.gain)
    return Explained(setup, before, tuple(gains), tuple(each for each in outcomes if isinstance(each, Left)))


def find_bottleneck(setup: Setup, watch: Watch) -> Bottleneck:
    """`explain` a layer of a machine with lanes, of which also is known where its cycles go.

    Where more input gains the most, the limit is whatever it relieves: it shares loads, traffic and the layer's ends
    alike.
    """
    found = explain(setup, watch)
    gains = found.gains
    if gains and gains[0].relaxation.limit == "input":
        most, *others = gains
        resource = next(gain for gain in others if gain.relaxation.per == "layer")
        if resource.helps_as_it_is and 1 - 1 / resource.gain >= SHARED * (1 - 1 / most.gain):
            most = replace(most, relaxation=replace(most.relaxation, limit=resource.relaxation.limit))
        gains = (most, *others)
    ready: Any = prepared(setup.layer, setup.batch, setup.hardware, setup.lowering)
    phases = ready.phases(found.layer.units["systolic_array"])
    return Bottleneck(setup, found.layer, gains, found.untried, ready.program, ready.explanation, phases)


def _tried(relaxation: Relaxation, setup: Setup, before: LayerResult) -> Gain | Left | None:
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
        return Left(relaxation.name, error.problems[0].message)
    # Where there are no MACs, cycles are counted by outputs.
    work_before, work_after = before.macs or before.outputs, after.macs or after.outputs
    return Gain(relaxation, how, after.cycles, after.macs, (before.cycles * work_after) / (after.cycles * work_before))
