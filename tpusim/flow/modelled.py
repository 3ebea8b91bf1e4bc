"""The flow for machines of a family that offers `machines.family.Modelled`: any but the TPU."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tpusim.base.errors import CheckFailed, InputError, Problem, failures_named
from tpusim.base.memory import free_bytes
from tpusim.flow.choice import Doing, fitting
from tpusim.flow.engines import UNCHECKED, Begun, Task
from tpusim.flow.lowerings import asked_of, candidates
from tpusim.flow.need import PROCESS_BYTES, Need, Room
from tpusim.flow.numbers import ANY_ORDER, Numbers
from tpusim.machines.family import Lowered, Machine, Modelled, Timing
from tpusim.network.ops.op import OFMAP, Op
from tpusim.network.workload import Workload
from tpusim.numerics.equality import Verdict
from tpusim.result.records import LayerResult

HELD_BYTES = 4 + 8 + 8
"""Of an output: what the machine has written, what is expected of it, and what comparing them takes."""


@dataclass(frozen=True)
class Ready:
    """A layer lowered, which all layers of its shape share, and its time from the event engine."""

    lowered: Lowered
    lowering: str

    @cached_property
    def timing(self) -> Timing:
        """Computed when it is first asked for."""
        return self.lowered.timed()


@dataclass(frozen=True)
class ModelledSteps:
    """How layers run on a machine of such a family: `flow.steps.Steps`."""

    family: Modelled
    machine: Machine

    def check_engine(self, engine: str) -> None:
        """Raise InputError for one that the family does not have."""
        if engine not in self.family.engines:
            keeps = (
                f"{self.machine.name} is {self.family.title}, whose time is kept by {', '.join(self.family.engines)}"
            )
            raise InputError(f"--engine {engine}: {keeps}")

    def check_numbers(self, workload: Workload, lowering: str, numbers: Numbers) -> None:
        """Raise InputError for layers whose values could not be checked."""
        if numbers.in_array_order:
            says = f"{self.machine.name} is {self.family.title}, and an array's order is a TPU's"
            raise InputError(f"--sums array: {says}; take --sums {ANY_ORDER}")
        problems: list[Problem] = []
        for layer in workload.layers:
            try:
                numbers.check(layer, workload.batch)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)

    def room(self, workload: Workload, lowering: str, engine: str, check: bool, numbers: Numbers) -> Room:
        """Look at every layer before the first is simulated. Raises InputError where this computer lacks memory."""
        free, batch = free_bytes() - PROCESS_BYTES, workload.batch
        needs: dict[Hashable, Need] = {}
        neediest = workload.layers[0]
        for layer, name in asked_of(workload, lowering, self.family):
            kind = layer.shape_key, name
            if kind not in needs:
                needs[kind] = Need(self._planned(layer, batch, name), _values(layer, batch, numbers) if check else 0)
                neediest = layer if needs[kind].total == max(each.total for each in needs.values()) else neediest
        most = max(each.total for each in needs.values())
        if most > free:
            says = f"needs about {most / 1e9:,.1f} GB of memory, and {max(0, free) / 1e9:,.1f} GB are free"
            advice = "take a smaller --batch, or --no-check" if check else "take a smaller --batch"
            raise InputError(Problem(f"{says}; {advice}", f"layer {neediest.name}"))
        return Room(needs, free - most)

    def prepared(self, layer: Op, batch: int, lowering: str, doing: Doing) -> Ready:
        """Lower a layer; of several candidates the one of the fewest cycles, of equals that which comes first.

        Raises:
            CapacityError: when no candidate fits the machine.
        """

        def by(name: str) -> Ready:
            doing("lowering" if name == lowering else f"trying {name}")
            return Ready(self.family.lowered(layer, batch, self.machine, name), name)

        names = candidates(lowering, self.family)
        if names == (lowering,):
            return by(lowering)
        with failures_named(layer):
            return min(fitting(names, by), key=lambda each: each.timing.cycles)

    def begun(self, engine: str, tasks: Iterable[Task[Ready]], workload: Workload, room: Room) -> Iterator[Begun]:
        """Time layers, one after another."""
        return (self._begun(engine, task) for task in tasks)

    def _begun(self, engine: str, task: Task[Ready]) -> Begun:
        with failures_named(task.layer):
            timing = _timing(engine, task)
        return Begun(task.layer, lambda: self._result(task, timing, _verdict(task) if task.check else UNCHECKED))

    def _planned(self, layer: Op, batch: int, lowering: str) -> int:
        """What the neediest of the lowerings takes that may be taken and fits."""
        plans = fitting(
            candidates(lowering, self.family),
            lambda name: self.family.planned(layer, batch, self.machine, name),
        )
        return max(plans)

    def _result(self, task: Task[Ready], timing: Timing, verdict: Verdict) -> LayerResult:
        """One row of the report."""
        layer, batch, cycles, pes = task.layer, task.batch, timing.cycles, self.machine.pes
        macs, seconds = layer.macs(batch), cycles / self.machine.clock_hz
        main = next(iter(timing.units.values()))
        return LayerResult(
            name=layer.name,
            op=layer.op,
            macs=macs,
            passes=None,
            multi_tile=None,
            cycles=cycles,
            time_us=seconds * 1e6,
            ideal_cycles=-(-macs // pes),
            pe_utilization=macs / (pes * cycles),
            mapping_efficiency=None,
            tflops=2 * macs / seconds / 1e12,
            stall_cycles={state: n for state, n in main.items() if state not in ("busy", "idle")},
            hbm_read_bytes=timing.hbm_read_bytes,
            hbm_write_bytes=timing.hbm_write_bytes,
            vector_memory=None,
            outputs=layer.outputs(batch),
            outputs_checked=verdict.checked,
            outputs_mismatched=verdict.mismatched,
            units=timing.units,
            blocking=None,
            lowering=task.prepared.lowering,
            first_mismatch=verdict.first,
            intermediates_checked=verdict.intermediates_checked,
            intermediates_mismatched=verdict.intermediates_mismatched,
            lowered_bytes=timing.lowered_bytes,
            transformation_cycles=timing.transformation_cycles,
            transformation_share=timing.transformation_cycles / cycles,
            error_share=verdict.error_share,
            own={**task.prepared.lowered.choices, **timing.figures},
        )


def _values(layer: Op, batch: int, numbers: Numbers) -> int:
    """Bytes that the values of a layer take while they are checked: operands as they are, and as numbers."""
    return layer.operands(batch) * (numbers.operand_bytes + 8) + layer.outputs(batch) * HELD_BYTES


def _timing(engine: str, task: Task[Ready]) -> Timing:
    """From the engine asked for. Raises CheckFailed where both are, and differ."""
    if engine == "event":
        task.doing("timing")
        return task.prepared.timing
    lowered = task.prepared.lowered
    # The event engine tells ahead how long it will be, which may be hours.
    to_step = lowered.to_step
    task.doing(f"0 of {to_step:,} cycles")
    stepped = lowered.stepped(lambda cycles: task.doing(f"{cycles:,} of {to_step:,} cycles"))
    if engine == "both" and (told := task.prepared.timing) != stepped:
        differing = (
            f"{name} is {of} in the event engine, {vars(stepped)[name]} in the register engine"
            for name, of in vars(told).items()
            if of != vars(stepped)[name]
        )
        raise CheckFailed(f"the engines disagree: {next(differing)}")
    return stepped


def _verdict(task: Task[Ready]) -> Verdict:
    """Compute a layer as its family does, and hold every element that is written against the reference."""
    from tpusim.flow.verify import verdict_of

    layer, outputs = task.layer, task.layer.outputs(task.batch)

    def told(written: int) -> None:
        task.doing(f"{written / outputs:.0%} of its outputs computed")

    task.doing("checking")
    operands, numbers = task.operands(), task.numbers
    number = np.dtype(np.float64 if numbers.needs_doubles(layer, task.batch) else np.float32)
    with failures_named(layer):
        written = task.prepared.lowered.values(operands, number, told)
    if task.journey is not None:
        task.journey.take(written[OFMAP])
    return verdict_of(layer, operands, written, numbers)
