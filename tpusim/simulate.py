"""The whole flow on one screen: lower each layer, time it, compute it through the machine, check it, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import repeat
from os import cpu_count

from threadpoolctl import threadpool_limits

from tpusim import reference
from tpusim.check import Verdict, check_layer, compare
from tpusim.engine import event
from tpusim.engine.timing import Timing
from tpusim.errors import CapacityError, InputError, Problem, did_you_mean
from tpusim.hardware import Hardware
from tpusim.layer_result import layer_result
from tpusim.lowering import channel_first
from tpusim.lowering.plan import Plan
from tpusim.program import Program
from tpusim.result import LayerResult, Result, total_of
from tpusim.version import __version__
from tpusim.workload import Conv2d, Gemm, Workload

Layer = Conv2d | Gemm
Outcome = tuple[Timing, Verdict]
Lower = Callable[[Layer, int, Hardware], tuple[Plan, Program]]
Engine = Callable[[Workload, Hardware, list[Program], bool, int], Iterator[Outcome]]
Progress = Callable[[LayerResult], None]

UNCHECKED = Verdict(0, 0, None)
MOST_THREADS = 4
"""Layers whose values are computed at once; each holds its tensors, so more would cost memory."""


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


def _event(
    workload: Workload, hardware: Hardware, programs: list[Program], check: bool, seed: int
) -> Iterator[Outcome]:
    """Time from the event engine, once a Program; values from the data path, for every layer."""
    timings: dict[int, Timing] = {}
    for program in programs:
        if id(program) not in timings:
            timings[id(program)] = event.run(program, hardware)
    verdicts = _verdicts(workload, hardware, programs, seed) if check else repeat(UNCHECKED)
    for program, verdict in zip(programs, verdicts, strict=False):
        yield timings[id(program)], verdict


def _register(
    workload: Workload, hardware: Hardware, programs: list[Program], check: bool, seed: int
) -> Iterator[Outcome]:
    """Time and values both from the register engine."""
    with _numba_needed():
        from tpusim.engine import register
    for layer, program in zip(workload.layers, programs, strict=True):
        ifmap, filter_ = reference.operands(layer, workload.batch, seed)
        timing, ofmap = register.run(program, hardware, ifmap, filter_)
        yield timing, compare(layer, ofmap, reference.compute(layer, ifmap, filter_)) if check else UNCHECKED


@contextmanager
def _numba_needed() -> Iterator[None]:
    """The register engine is an extra, and imported only when somebody asks for it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise InputError(
            "the register engine needs Numba, which is not installed: python -m pip install numba"
        ) from None


def _verdicts(workload: Workload, hardware: Hardware, programs: list[Program], seed: int) -> Iterator[Verdict]:
    """The check of each layer, in order. NumPy releases the interpreter lock, BLAS stays on one thread."""
    threads = min(MOST_THREADS, cpu_count() or 1)
    pool = ThreadPoolExecutor(threads)
    with threadpool_limits(1, user_api="blas"):
        futures = [
            pool.submit(check_layer, layer, workload.batch, program, hardware, seed)
            for layer, program in zip(workload.layers, programs, strict=True)
        ]
        try:
            for future in futures:
                yield future.result()
        finally:
            # An interrupted run does not wait for the layers that are under way.
            pool.shutdown(wait=False, cancel_futures=True)


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
ENGINES: dict[str, Engine] = {"event": _event, "register": _register}
