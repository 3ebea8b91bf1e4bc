"""The whole flow on one screen: lower each layer, time it, compute it through the machine, verify it, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.version import __version__
from tpusim.flow.account import layer_result
from tpusim.flow.ahead import ROOM_BYTES, ahead
from tpusim.flow.choice import prepared
from tpusim.flow.engines import ENGINES, Begun, Task, Watch, unwatched
from tpusim.flow.fusion import fused
from tpusim.flow.lowerings import USUAL_FAMILY, asked_of, at_its_place, usual
from tpusim.flow.need import Room, room_for
from tpusim.flow.numbers import ANY_ORDER, INTEGERS, Numbers, check_numbers, numbers_of
from tpusim.machines.family import Family, Machine, family_of
from tpusim.machines.lowered import Lowered
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult, Result, total_of

if TYPE_CHECKING:
    from tpusim.flow.values import Journey

Progress = Callable[[LayerResult], None]
Left = tuple[int, Callable[[], LayerResult]]
"""The bytes that a layer takes, and what is left to do for its result."""
Made = TypeVar("Made")


def unseen(layer: LayerResult) -> None:
    """Nobody waits for a layer's result."""


def simulate(
    workload: Workload,
    hardware: Machine,
    *,
    lowering: str | None = None,
    engine: str = "event",
    check: bool = True,
    seed: int = 0,
    dtype: str = INTEGERS,
    sums: str = ANY_ORDER,
    journey: Journey | None = None,
    progress: Progress = unseen,
    watch: Watch = unwatched,
) -> Result:
    """Run every layer of `workload` on `hardware`, one after another.

    Args:
        lowering: one that the machine's family has, such as those in machines/tpu/lowering/registry.py, or "auto":
            layer by layer the one of the fewest cycles. None: the family's first, of a TPU channel_first, and of
            layers of several groups what their estimate prefers. A layer of `workload` that has one of its own is
            lowered by that.
        engine: event, register or both, where the machine's family has them.
        check: compute every output through the Program and compare it with the reference.
        seed: of the random operands.
        dtype: what operands are: integers (small ones, so that outputs must be equal), f32, bf16 (random reals; outputs
            must be within a proven bound of sums in float64) or int8 (full range, equal). It changes values, not time.
        sums: the order in which the data path adds: any, or array, that of the machine, which takes much longer.
        journey: the values of the network that the layers are of: each then reads what comes before it, instead of
            random operands, and hands on its outputs. It needs `check`.
        progress: called after each layer, in network order.
        watch: called now and then, on any thread, with a layer's name and what is done to it.

    Raises:
        InputError: a name where a workload or a machine is asked for, unknown lowering, engine, dtype or sums, a layer
            that cannot fit (CapacityError, names the layer), a layer for which this computer has too little memory, a
            lowering for which no bound is proven, or, with the register engine, Numba is not installed.
        CheckFailed: a Program addressed words that do not exist, or, with engine "both", the two disagree.
            Wrong values do not raise: see `Result.correct`.
        DeadlockError, PortConflict: the machine stopped, or was asked for two things at once; names the layer.
    """
    _check_asked(workload, hardware, engine)
    numbers, family = numbers_of(dtype, sums), family_of(hardware)
    _check_engine(hardware, engine)
    began = time.perf_counter()
    workload = workload if journey else fused(workload, hardware, lowering, watch=watch)
    lowering = lowering or usual(family)
    if check:
        check_numbers(workload, hardware, lowering, numbers)
    room = room_for(workload, hardware, lowering, engine, check, numbers)
    layers = []
    asked = check, seed, watch, room, numbers, journey, workload.inputs(), dict(workload.riders)
    run = _Run(workload, family, hardware, lowering, engine, *asked)
    for layer in run.results():
        layers.append(layer)
        progress(layer)
    seconds = time.perf_counter() - began
    found = result_of(
        workload, hardware, layers, seconds, lowering=lowering, engine=engine, seed=seed, dtype=dtype, sums=sums
    )
    return replace(found, reference_only=journey.reference_only) if journey else found


def _check_asked(workload: object, hardware: object, engine: str) -> None:
    """That they are of the kinds that `simulate` takes; what is typed in Python is checked by nobody else."""
    for given, kind, name in ((workload, Workload, "Workload"), (hardware, Machine, "Hardware")):
        if not isinstance(given, kind):
            raise InputError(f"{given!r} is no {name}; give what tpusim.load_{name.lower()}(...) returns")
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}{did_you_mean(engine, ENGINES)}; there is {', '.join(ENGINES)}")


def _check_engine(machine: Machine, engine: str) -> None:
    """Raise InputError for an engine that the machine's family does not have."""
    family = family_of(machine)
    if engine not in family.engines:
        keeps = f"{machine.name} is {family.title}, whose time is kept by {', '.join(family.engines)}"
        raise InputError(f"--engine {engine}: {keeps}")


def result_of(
    workload: Workload,
    hardware: Machine,
    layers: Sequence[LayerResult],
    seconds: float,
    *,
    lowering: str,
    engine: str,
    seed: int,
    dtype: str = INTEGERS,
    sums: str = ANY_ORDER,
) -> Result:
    """The result of `layers`, the first of `workload`; at least one."""
    done, left = tuple(layers), len(workload.layers) - len(layers)
    asked = workload.name, workload.batch, lowering, engine, seed
    more = dict(workload.not_timed), dict(workload.not_known), dict(workload.sizes), dtype, sums
    return Result(__version__, hardware.to_dict(), *asked, total_of(done, seconds), done, left, *more)


@dataclass(frozen=True)
class _Run:
    """What one layer after another is asked with."""

    workload: Workload
    family: Family
    machine: Machine
    lowering: str
    engine: str
    check: bool
    seed: int
    watch: Watch
    room: Room
    numbers: Numbers
    journey: Journey | None
    inputs: Mapping[str, tuple[str, ...]]
    riders: Mapping[str, tuple[str, ...]]

    def results(self) -> Iterator[LayerResult]:
        """Each layer lowered, timed and checked, in network order; while values are checked, the next is lowered.

        Nothing in here holds a Program once its last layer is done: so these are maps, not loops with variables.
        """
        tasks = map(self._asked, shared(self.workload, self.lowering, self._prepared, self.room, self.family))
        left = map(self._left, self._begun(tasks))
        together = min(ROOM_BYTES, self.room.ahead)
        return ahead(left, together) if self.check and together else map(_done, left)

    def _begun(self, tasks: Iterator[Task]) -> Iterator[Begun]:
        """Time the layers; those that overlap together."""
        if not self.family.overlaps(self.machine):
            return map(self._timed, tasks)
        from tpusim.flow.chains import overlapping

        chains = self.family.chains(tasks, self.workload, self.machine, self.room.kept)
        return chain.from_iterable(overlapping(each, self.machine, self.engine) for each in chains)

    def _timed(self, task: Task) -> Begun:
        timing, verdict = ENGINES[self.engine](task)
        machine = self.machine
        return Begun(
            task.layer, lambda: layer_result(task.layer, task.batch, machine, task.prepared, timing, verdict())
        )

    def _prepared(self, layer: Op, lowering: str) -> Lowered:
        watch = partial(self.watch, layer.name)
        return prepared(layer, self.workload.batch, self.machine, lowering, watch)

    def _asked(self, each: tuple[Op, str, Lowered]) -> Task:
        layer, _, ready = each
        asked = self.check, self.seed, self.watch, self.numbers, self.journey
        return Task(layer, self.workload.batch, ready, *asked)

    @cached_property
    def _lowerings(self) -> dict[str, str]:
        return {layer.name: name for layer, name in asked_of(self.workload, self.lowering, self.family)}

    def _left(self, begun: Begun) -> Left:
        """What is left to do for a layer that is timed, and the bytes it takes."""
        layer = begun.layer
        inputs, riders = self.inputs.get(layer.name, ()), self.riders.get(layer.name, ())
        needs = self.room.needs[layer.shape_key, self._lowerings[layer.name]]
        failure = self.journey.ended_by_failure if self.journey else nullcontext

        def rest() -> LayerResult:
            with failure():
                return replace(begun.rest(), inputs=inputs, riders=riders)

        return needs.total, rest


def _done(task: Left) -> LayerResult:
    return task[1]()


def shared(
    workload: Workload, lowering: str, make: Callable[[Op, str], Made], room: Room, family: Family = USUAL_FAMILY
) -> Iterator[tuple[Op, str, Made]]:
    """Each layer, the lowering it is asked for, and what is made of the first that is like it in shape and lowering.

    It is let go after the last of them. What there is no room to keep is made again.
    """
    asked = asked_of(workload, lowering, family)
    left = Counter((layer.shape_key, name) for layer, name in asked)
    known: dict[Hashable, Made] = {}

    def made(layer: Op, name: str) -> Made:
        with at_its_place(workload, layer):
            return make(layer, name)

    for layer, name in asked:
        kind = layer.shape_key, name
        left[kind] -= 1
        if kind in known:
            yield layer, name, known[kind] if left[kind] else known.pop(kind)
        elif left[kind] and sum(room.needs[each].program for each in (kind, *known)) <= room.kept:
            known[kind] = made(layer, name)
            yield layer, name, known[kind]
        else:
            yield layer, name, made(layer, name)
