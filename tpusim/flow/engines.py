"""What `--engine` chooses between: how a layer gets its time and the verdict on its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from os import cpu_count

from threadpoolctl import threadpool_limits

from tpusim.base.errors import CheckFailed, InputError, Problem
from tpusim.base.extras import need
from tpusim.flow.verify import as_floats, check_layer, failures_named, operands_of, verdict_of
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops import Op
from tpusim.network.workload import Workload
from tpusim.numerics.equality import Verdict

Outcome = tuple[Timing, Verdict]
Watch = Callable[[str, int], None]
"""Told now and then which layer is under way, and how many of its cycles have passed."""

UNCHECKED = Verdict(0, 0, None)
MOST_THREADS = 4
"""Layers whose values are computed at once; each holds its tensors, so more would cost memory."""


def unwatched(layer: str, cycles: int) -> None:
    """Nobody looks."""


@dataclass(frozen=True)
class Run:
    """What an engine is asked: the layers of a workload with their Programs; `watch` is told how far a layer is."""

    workload: Workload
    hardware: Hardware
    programs: tuple[Program, ...]
    check: bool
    seed: int
    watch: Watch

    @property
    def pairs(self) -> Iterable[tuple[Op, Program]]:
        """Each layer with its Program."""
        return zip(self.workload.layers, self.programs, strict=True)


def _event(run: Run) -> Iterator[Outcome]:
    """Time from the event engine, once a Program; values from the data path, for every layer."""
    timings: dict[int, Timing] = {}
    for layer, program in run.pairs:
        if id(program) not in timings:
            with failures_named(layer):
                timings[id(program)] = event.run(program, run.hardware)
    verdicts = _verdicts(run) if run.check else repeat(UNCHECKED)
    for program, verdict in zip(run.programs, verdicts, strict=False):
        yield timings[id(program)], verdict


def _register(run: Run) -> Iterator[Outcome]:
    """Time and values both from the register engine."""
    need_numba()
    from tpusim.machines.tpu import register

    for layer, program in run.pairs:
        operands = operands_of(layer, run.workload.batch, run.seed)
        with failures_named(layer), memory_needed(layer):
            timing, written = register.run(program, run.hardware, as_floats(operands), partial(run.watch, layer.name))
        yield timing, verdict_of(layer, operands, written) if run.check else UNCHECKED


def _both(run: Run) -> Iterator[Outcome]:
    """The register engine, and the event engine must agree with it on every figure."""
    for (layer, program), (timing, verdict) in zip(run.pairs, _register(run), strict=True):
        with failures_named(layer):
            told = event.run(program, run.hardware)
        if timing != told:
            raise CheckFailed(f"layer {layer.name}: the engines disagree: {_difference(told, timing)}")
        yield timing, verdict


def _difference(told: Timing, timing: Timing) -> str:
    """The first figure that differs."""
    figures, others = _figures(told), _figures(timing)
    name = next(name for name in figures if figures[name] != others[name])
    return f"{name} is {figures[name]:,} in the event engine, {others[name]:,} in the register engine"


def _figures(timing: Timing) -> dict[str, int]:
    units = {f"{unit} {cause}": n for unit, split in timing.units.items() for cause, n in split.items()}
    return {"cycles": timing.cycles, **units, "reads": timing.reads, "writes": timing.writes}


def need_numba() -> None:
    """The register engine is an extra, and imported only when somebody asks for it.

    Raises:
        InputError: when Numba, or what it needs, cannot be imported; says how to install it for this Python.
    """
    need("the register engine", "Numba", "numba")


@contextmanager
def memory_needed(layer: Op) -> Iterator[None]:
    """The register engine holds every word that a layer moves."""
    try:
        yield
    except MemoryError:
        problem = "too little memory for the register engine; take a smaller --batch, or --engine event"
        raise InputError(Problem(problem, f"layer {layer.name}")) from None


def _verdicts(run: Run) -> Iterator[Verdict]:
    """The check of each layer, in order. NumPy releases the interpreter lock, BLAS stays on one thread."""
    threads = min(MOST_THREADS, cpu_count() or 1)
    pool = ThreadPoolExecutor(threads)
    with threadpool_limits(1, user_api="blas"):
        futures = [
            pool.submit(check_layer, layer, run.workload.batch, program, run.hardware, run.seed)
            for layer, program in run.pairs
        ]
        try:
            for future in futures:
                yield future.result()
        finally:
            # An interrupted run does not wait for the layers that are under way.
            pool.shutdown(wait=False, cancel_futures=True)


ENGINES: dict[str, Callable[[Run], Iterator[Outcome]]] = {"event": _event, "register": _register, "both": _both}
