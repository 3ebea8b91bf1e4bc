"""A network on slices of more and more chips: what each takes for a step, beside what it would take ideally."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tpusim.flow.chip_steps.network import exchanges_of, step_of
from tpusim.flow.hbm_need import held_in_hbm
from tpusim.flow.jobs import Jobs
from tpusim.flow.simulation import result_of, run
from tpusim.machines.lowered import LayerWatch, unheard
from tpusim.result.records import Result, StepResult
from tpusim.study.kinds import KnownKinds, layers_of

ENGINE = "event"
"""The engine that times a step: the fast one."""


@dataclass(frozen=True)
class ScaledSlice:
    """A network on the chips of a slice.

    Attributes:
        slice: name of the slice.
        chips: its chips.
        batch: images or sequences of all of them together.
        result: the run of it; None where the slice cannot run the network so.
        refusal: why it cannot; empty where it can.
        too_large: whether that is because a chip's share does not fit its HBM.
    """

    slice: str
    chips: int
    batch: int
    result: Result | None = None
    refusal: str = ""
    too_large: bool = False

    @property
    def step(self) -> StepResult | None:
        """The step of the run."""
        return self.result.step if self.result else None


@dataclass(frozen=True)
class Scaling:
    """A network on several slices, those of fewest chips first.

    Attributes:
        workload: name of the network.
        machine: the chip.
        each: the network on each slice; on one of them at least there is a step.
        batch_a_chip: images or sequences a chip, where they are as many on every slice (weak scaling); None where all
            chips together have as many (strong scaling).
    """

    workload: str
    machine: str
    each: tuple[ScaledSlice, ...]
    batch_a_chip: int | None = None

    @cached_property
    def done(self) -> tuple[tuple[ScaledSlice, StepResult], ...]:
        """The slices that have a step, with it."""
        return tuple((each, step) for each in self.each if (step := each.step))

    @property
    def first(self) -> Result:
        """The run on the slice of fewest chips."""
        result = self.done[0][0].result
        assert result
        return result

    @property
    def ideal_rate(self) -> float:
        """What each chip makes in a second on the slice of fewest chips; ideally it does so on all."""
        return self.done[0][1].items_per_second_chip

    def of_ideal(self, step: StepResult) -> float:
        """Return what a chip makes in a second as a part of the ideal."""
        return step.items_per_second_chip / self.ideal_rate

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts of a step that take time on any of the slices."""
        steps = [step for _, step in self.done]
        return tuple(part for part in steps[0].parts if any(step.parts[part] for step in steps))


def run_shared(jobs: Jobs, place: object, known: KnownKinds, watch: LayerWatch = unheard) -> Result:
    """Run a chip's share of a network on a slice, timing alone, as `run` of the flow does but for layers that are
    known.

    Raises:
        InputError: the mesh has other chips than the slice, a chip's HBM does not hold its share (CapacityError), or
            what `run` raises.
    """
    # The time of a layer that overlaps depends on its neighbours, so none is known by its kind.
    if jobs.family.overlaps(jobs.machine):
        return run(jobs, check=False, slice=place, watch=watch)
    began = time.perf_counter()
    hbm = held_in_hbm(jobs.work, jobs.machine)
    watch("collectives", "timing")
    made = exchanges_of(jobs, place)
    inputs, riders, phases = jobs.work.inputs(), dict(jobs.work.riders), dict(jobs.work.phases)
    layers = [
        layer.called(name, inputs.get(name, ()), riders.get(name, ()), phases.get(name, ""))
        for name, layer in zip((job.layer.name for job in jobs.each), layers_of(jobs, known, watch), strict=True)
    ]
    step = step_of(jobs, layers, made, ENGINE) if made else None
    return replace(result_of(jobs, layers, time.perf_counter() - began, hbm, engine=ENGINE, seed=0), step=step)


def shares_of(step: StepResult) -> Mapping[str, float]:
    """Return the parts of a step as parts of its time."""
    return {part: cycles / step.cycles for part, cycles in step.parts.items()}
