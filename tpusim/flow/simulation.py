"""The whole flow on one screen: lower each layer, time it, compute it through the machine, check it, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from tpusim.base.errors import CapacityError, CheckFailed, InputError, Problem, did_you_mean
from tpusim.base.version import __version__
from tpusim.flow.account import layer_result
from tpusim.flow.engines import ENGINES, Engine, Watch, memory_needed, need_numba, unwatched
from tpusim.flow.verify import failures_named
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.tracks import Recording
from tpusim.machines.tpu.lowering import channel_first
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.observation.lane_trace import Cycle
from tpusim.machines.tpu.observation.lane_trace import Watch as CycleWatch
from tpusim.machines.tpu.program.steps import Program
from tpusim.network.workload import Conv2d, Gemm, Workload
from tpusim.reference import oracle as reference
from tpusim.result.records import LayerResult, Result, total_of

Layer = Conv2d | Gemm
Lower = Callable[[Layer, int, Hardware], tuple[Plan, Program]]
Progress = Callable[[LayerResult], None]


def simulate(
    workload: Workload,
    hardware: Hardware,
    *,
    lowering: str = "channel_first",
    engine: str = "event",
    check: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    watch: Watch = unwatched,
) -> Result:
    """Run every layer of `workload` on `hardware`, one after another.

    Args:
        check: compute every output through the Program and compare it with the reference.
        seed: of the random integer operands.
        progress: called after each layer, in network order.
        watch: called now and then with the layer's name and its cycles until now; by the register engine only.

    Raises:
        InputError: unknown lowering or engine, a layer that cannot fit (CapacityError, names the layer), or, with the
            register engine, Numba is not installed or this computer has too little memory.
        CheckFailed: a Program addressed words that do not exist, or, with engine "both", the two disagree.
            Wrong values do not raise: see `Result.correct`.
        DeadlockError: the steps of a Program wait for one another for ever; names the layer.
        PortConflict: a port or a register of the register engine was asked for two things at once.
    """
    _known("lowering", lowering, LOWERINGS)
    _known("engine", engine, ENGINES)
    began = time.perf_counter()
    layers = []
    for result in _layers(workload, hardware, LOWERINGS[lowering], ENGINES[engine], check, seed, watch):
        layers.append(result)
        if progress is not None:
            progress(result)
    return Result(
        tpusim=__version__,
        hardware=hardware.to_dict(),
        workload=workload.name,
        batch=workload.batch,
        lowering=lowering,
        engine=engine,
        seed=seed,
        total=total_of(tuple(layers), time.perf_counter() - began),
        layers=tuple(layers),
    )


def trace(
    workload: Workload, hardware: Hardware, *, lowering: str = "channel_first", seed: int = 0
) -> tuple[int, Callable[[int, CycleWatch], Iterator[Cycle]]]:
    """How many cycles a workload of one layer takes, from the event engine, and a run of the register engine.

    The run is called once, with the first cycle to show and what is told how many have passed. While it lasts it
    raises CheckFailed when it does not take as many cycles as the event engine says, and what Machine.clock raises.

    Raises:
        InputError: several layers, an unknown lowering, a layer that cannot fit, Numba is not installed, or this
            computer has too little memory.
        CheckFailed: the Program names lanes that do not exist.
        DeadlockError: the Program's steps wait for one another for ever.
    """
    _known("lowering", lowering, LOWERINGS)
    if len(workload.layers) != 1:
        names = ", ".join(layer.name for layer in workload.layers[:8])
        raise InputError(
            f"a trace of lanes shows one layer; --layers leaves {len(workload.layers)} of {workload.name}: {names}; "
            "a .perfetto-trace shows any number"
        )
    layer = workload.layers[0]
    need_numba()
    from tpusim.machines.tpu import register

    program = _lower(layer, workload.batch, hardware, LOWERINGS[lowering])[1]
    with failures_named(layer), memory_needed(layer):
        total = event.run(program, hardware).cycles
        running = register.Machine(program, hardware, *reference.operands(layer, workload.batch, seed))

    def cycles(first: int, watch: CycleWatch) -> Iterator[Cycle]:
        with failures_named(layer):
            yield from _agreeing(register.trace(running, first, watch), total)

    return total, cycles


def recordings(
    workload: Workload, hardware: Hardware, *, lowering: str = "channel_first"
) -> Iterator[tuple[Layer, Recording]]:
    """Runs of the event engine, layer by layer, that tell what every unit does when. Layers of one shape share theirs.

    Raises:
        InputError: an unknown lowering, or a layer that cannot fit (CapacityError, names the layer).
        DeadlockError: the steps of a Program wait for one another for ever; names the layer.
    """
    _known("lowering", lowering, LOWERINGS)
    known: dict[Layer, Recording] = {}
    for layer in workload.layers:
        shape = replace(layer, name="any")
        if shape not in known:
            program = _lower(layer, workload.batch, hardware, LOWERINGS[lowering])[1]
            with failures_named(layer):
                known[shape] = event.record(program, hardware)
        yield layer, known[shape]


def _agreeing(cycles: Iterator[Cycle], total: int) -> Iterator[Cycle]:
    """The event engine says how long a trace is; the register engine must end there."""
    last = -1
    for cycle in cycles:
        last = cycle.number
        if last >= total:
            break
        yield cycle
    if last != total - 1:
        raise CheckFailed(
            f"the engines disagree: {total:,} cycles in the event engine, "
            f"{'more' if last >= total else f'{last + 1:,}'} in the register engine"
        )


def select_layers(workload: Workload, glob: str) -> Workload:
    """The workload with only the layers whose name matches `glob`.

    Raises:
        InputError: when none does.
    """
    layers = tuple(layer for layer in workload.layers if fnmatchcase(layer.name, glob))
    if not layers:
        names = [layer.name for layer in workload.layers]
        raise InputError(
            f"no layer of {workload.name} matches {glob!r}{did_you_mean(glob, names)}; it has "
            f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        )
    return replace(workload, layers=layers)


def _layers(
    workload: Workload, hardware: Hardware, lower: Lower, engine: Engine, check: bool, seed: int, watch: Watch
) -> Iterator[LayerResult]:
    """Layers of one shape share their Program."""
    lowered: dict[Layer, tuple[Plan, Program]] = {}

    def prepare(layer: Layer) -> tuple[Plan, Program]:
        shape = replace(layer, name="any")
        if shape not in lowered:
            lowered[shape] = _lower(layer, workload.batch, hardware, lower)
        return lowered[shape]

    prepared = [prepare(layer) for layer in workload.layers]
    outcomes = engine(workload, hardware, [program for _, program in prepared], check, seed, watch)
    for layer, (plan, program), (timing, verdict) in zip(workload.layers, prepared, outcomes, strict=True):
        yield layer_result(layer, workload.batch, plan, program, timing, verdict)


def _lower(layer: Layer, batch: int, hardware: Hardware, lower: Lower) -> tuple[Plan, Program]:
    try:
        return lower(layer, batch, hardware)
    except CapacityError as error:
        problems = (Problem(each.message, f"layer {layer.name}") for each in error.problems)
        raise CapacityError(problems) from None


def _known(what: str, given: str, known: Iterable[str]) -> None:
    if given not in known:
        raise InputError(f"unknown {what} {given!r}{did_you_mean(given, known)}; there is {', '.join(known)}")


LOWERINGS: dict[str, Lower] = {"channel_first": channel_first.lower}
