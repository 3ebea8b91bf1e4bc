"""The whole flow on one screen: lower each layer, time it, compute it through the machine, check it, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from tpusim import reference
from tpusim.engine import event
from tpusim.engine.trace import Cycle
from tpusim.errors import CapacityError, InputError, Problem, did_you_mean
from tpusim.hardware import Hardware
from tpusim.layer_result import layer_result
from tpusim.lowering import channel_first
from tpusim.lowering.plan import Plan
from tpusim.outcome import ENGINES, Engine, numba_needed
from tpusim.program import Program
from tpusim.result import LayerResult, Result, total_of
from tpusim.version import __version__
from tpusim.workload import Conv2d, Gemm, Workload

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
) -> Result:
    """Run every layer of `workload` on `hardware`, one after another.

    Args:
        check: compute every output through the Program and compare it with the reference.
        seed: of the random integer operands.
        progress: called after each layer, in network order.

    Raises:
        InputError: unknown lowering or engine, or a layer that cannot fit (CapacityError, names the layer).
        CheckFailed: a Program addressed words that do not exist. Wrong values do not raise: see
            `Result.correct`.
    """
    _known("lowering", lowering, LOWERINGS)
    _known("engine", engine, ENGINES)
    began = time.perf_counter()
    layers = []
    for result in _layers(workload, hardware, LOWERINGS[lowering], ENGINES[engine], check, seed):
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
) -> tuple[int, Iterator[Cycle]]:
    """How many cycles a workload of one layer takes, and every one of them, from the register engine.

    Raises:
        InputError: several layers, an unknown lowering, a layer that cannot fit, or Numba is not installed.
        DeadlockError: the Program's steps wait for one another for ever.
    """
    _known("lowering", lowering, LOWERINGS)
    if len(workload.layers) != 1:
        names = ", ".join(layer.name for layer in workload.layers[:8])
        raise InputError(f"a trace shows one layer; --layers leaves {len(workload.layers)} of {workload.name}: {names}")
    layer = workload.layers[0]
    with numba_needed():
        from tpusim.engine import register
    program = _lower(layer, workload.batch, hardware, LOWERINGS[lowering])[1]
    running = register.Machine(program, hardware, *reference.operands(layer, workload.batch, seed))
    return event.run(program, hardware).cycles, register.trace(running)


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
    workload: Workload, hardware: Hardware, lower: Lower, engine: Engine, check: bool, seed: int
) -> Iterator[LayerResult]:
    """Layers of one shape share their Program."""
    lowered: dict[Layer, tuple[Plan, Program]] = {}

    def prepare(layer: Layer) -> tuple[Plan, Program]:
        shape = replace(layer, name="any")
        if shape not in lowered:
            lowered[shape] = _lower(layer, workload.batch, hardware, lower)
        return lowered[shape]

    prepared = [prepare(layer) for layer in workload.layers]
    outcomes = engine(workload, hardware, [program for _, program in prepared], check, seed)
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
