"""The whole flow on one screen: lower each layer, time it, compute it through the machine, verify it, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeVar

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.version import __version__
from tpusim.flow.account import layer_result
from tpusim.flow.ahead import MOST_THREADS, ROOM_BYTES, ahead
from tpusim.flow.choice import prepared
from tpusim.flow.engines import ENGINES, Prepared, Task, Watch, unwatched
from tpusim.flow.lowerings import asked_of
from tpusim.flow.need import Room, room_for
from tpusim.flow.numbers import ANY_ORDER, INTEGERS, Numbers, check_numbers, numbers_of
from tpusim.flow.values import Journey
from tpusim.machines.tpu.description import Hardware
from tpusim.network.ops import Op
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult, Result, total_of

Progress = Callable[[LayerResult], None]
Made = TypeVar("Made")


def unseen(layer: LayerResult) -> None:
    """Nobody waits for a layer's result."""


def simulate(
    workload: Workload,
    hardware: Hardware,
    *,
    lowering: str = "channel_first",
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
        lowering: a name in machines/tpu/lowering/registry.py, or "auto": layer by layer the one of the fewest cycles.
            A layer of `workload` that has one of its own is lowered by that.
        engine: event, register or both.
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
    for given, kind, load in ((workload, Workload, "load_workload"), (hardware, Hardware, "load_hardware")):
        if not isinstance(given, kind):
            raise InputError(f"{given!r} is no {kind.__name__}; give what tpusim.{load}(...) returns")
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}{did_you_mean(engine, ENGINES)}; there is {', '.join(ENGINES)}")
    numbers = numbers_of(dtype, sums)
    began = time.perf_counter()
    if check:
        check_numbers(workload, hardware, lowering, numbers)
    room = room_for(workload, hardware, lowering, engine, check, numbers)
    layers = []
    for layer in _Run(workload, hardware, lowering, engine, check, seed, watch, room, numbers, journey).results():
        layers.append(layer)
        progress(layer)
    seconds = time.perf_counter() - began
    found = result_of(
        workload, hardware, layers, seconds, lowering=lowering, engine=engine, seed=seed, dtype=dtype, sums=sums
    )
    return replace(found, reference_only=journey.reference_only) if journey else found


def result_of(
    workload: Workload,
    hardware: Hardware,
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
    hardware: Hardware
    lowering: str
    engine: str
    check: bool
    seed: int
    watch: Watch
    room: Room
    numbers: Numbers
    journey: Journey | None

    def results(self) -> Iterator[LayerResult]:
        """Each layer lowered, timed and checked, in network order; while values are checked, the next is lowered.

        Nothing in here holds a Program once its last layer is done: so these are maps, not loops with variables.
        """
        tasks = map(self._task, shared(self.workload, self.lowering, self._prepared, self.room))
        together = min(ROOM_BYTES, self.room.ahead)
        # Where layers read what others have made, they come one after another.
        threads = 1 if self.journey else MOST_THREADS
        return ahead(tasks, together, threads) if self.check and together else map(_done, tasks)

    def _prepared(self, layer: Op, lowering: str) -> Prepared:
        return prepared(layer, self.workload.batch, self.hardware, lowering, partial(self.watch, layer.name))

    def _task(self, each: tuple[Op, str, Prepared]) -> tuple[int, Callable[[], LayerResult]]:
        """Time a layer; what is left to do for its result, and the bytes it takes."""
        layer, lowering, ready = each
        batch = self.workload.batch
        asked = self.check, self.seed, self.watch, self.numbers, self.journey
        timing, verdict = ENGINES[self.engine](Task(layer, batch, ready, *asked))
        inputs = self.journey.producers[layer.name] if self.journey else ()

        def rest() -> LayerResult:
            return replace(layer_result(layer, batch, ready, timing, verdict()), inputs=inputs)

        return self.room.needs[layer.shape_key, lowering].total, rest


def _done(task: tuple[int, Callable[[], LayerResult]]) -> LayerResult:
    return task[1]()


def shared(
    workload: Workload, lowering: str, make: Callable[[Op, str], Made], room: Room
) -> Iterator[tuple[Op, str, Made]]:
    """Each layer, the lowering it is asked for, and what is made of the first that is like it in shape and lowering.

    It is let go after the last of them. What there is no room to keep is made again.
    """
    asked = asked_of(workload, lowering)
    left = Counter((layer.shape_key, name) for layer, name in asked)
    known: dict[Hashable, Made] = {}
    for layer, name in asked:
        kind = layer.shape_key, name
        left[kind] -= 1
        if kind in known:
            yield layer, name, known[kind] if left[kind] else known.pop(kind)
        elif left[kind] and sum(room.needs[each].program for each in (kind, *known)) <= room.kept:
            known[kind] = make(layer, name)
            yield layer, name, known[kind]
        else:
            yield layer, name, make(layer, name)


def select_layers(workload: Workload, glob: str) -> Workload:
    """The workload with only the layers whose name matches `glob`.

    Raises:
        InputError: when none does.
    """
    if not any(fnmatchcase(layer.name, glob) for layer in workload.layers):
        names = [layer.name for layer in workload.layers]
        raise InputError(
            f"no layer of {workload.name} matches {glob!r}{did_you_mean(glob, names)}; it has "
            f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        )
    return workload.with_layers(lambda layer: fnmatchcase(layer.name, glob))
