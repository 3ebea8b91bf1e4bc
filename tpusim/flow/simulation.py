"""The whole flow on one screen: lower each layer, time it, compute it through the machine, verify it, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.version import __version__
from tpusim.flow.account import layer_result
from tpusim.flow.engines import ENGINES, Run, Watch, unwatched
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.machines.tpu.program.explanation import Lowered
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult, Result, total_of

Progress = Callable[[LayerResult], None]


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
    progress: Progress = unseen,
    watch: Watch = unwatched,
) -> Result:
    """Run every layer of `workload` on `hardware`, one after another.

    Args:
        lowering: a name in machines/tpu/lowering/registry.py.
        engine: event, register or both.
        check: compute every output through the Program and compare it with the reference.
        seed: of the random integer operands.
        progress: called after each layer, in network order.
        watch: called now and then with the layer's name and its cycles until now; by the register engine only.

    Raises:
        InputError: unknown lowering or engine, a layer that cannot fit (CapacityError, names the layer), or, with the
            register engine, Numba is not installed or this computer has too little memory.
        CheckFailed: a Program addressed words that do not exist, or, with engine "both", the two disagree.
            Wrong values do not raise: see `Result.correct`.
        DeadlockError, PortConflict: the machine stopped, or was asked for two things at once; names the layer.
    """
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}{did_you_mean(engine, ENGINES)}; there is {', '.join(ENGINES)}")
    began = time.perf_counter()
    prepared = [each for _, each in lower_all(workload, hardware, lowering)]
    run = Run(workload, hardware, tuple(program for program, _ in prepared), check, seed, watch)
    layers = []
    for layer in _results(run, prepared, engine):
        layers.append(layer)
        progress(layer)
    total = total_of(tuple(layers), time.perf_counter() - began)
    asked = workload.name, workload.batch, lowering, engine, seed
    return Result(__version__, hardware.to_dict(), *asked, total, tuple(layers))


def _results(run: Run, prepared: Iterable[Lowered], engine: str) -> Iterator[LayerResult]:
    """The result of each layer, in network order."""
    for layer, lowered_, (timing, verdict) in zip(run.workload.layers, prepared, ENGINES[engine](run), strict=True):
        yield layer_result(layer, run.workload.batch, run.hardware, lowered_, timing, verdict)


def lower_all(workload: Workload, hardware: Hardware, lowering: str) -> Iterator[tuple[Hashable, Lowered]]:
    """The shape and the lowering of each layer; layers of one shape share theirs.

    Raises:
        InputError: an unknown lowering, or a layer that cannot fit (CapacityError, names the layer).
    """
    known: dict[Hashable, Lowered] = {}
    for layer in workload.layers:
        shape = layer.shape_key
        if shape not in known:
            known[shape] = lowered(layer, workload.batch, hardware, lowering)
        yield shape, known[shape]


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
