"""Simulate the cases of a set and hold the results against its figures, and a plain roofline beside them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from os import cpu_count
from statistics import fmean, median

from tpusim.flow.choice import prepared
from tpusim.flow.lowerings import check_known
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.network.ops import Op
from tpusim.study.processes import Processes
from tpusim.study.validation.cases import Case, NumberSet

Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class ComparedCase:
    """One case: what tpusim, the reference and the roofline say; `fitted` as in Case."""

    name: str
    ours: float
    theirs: float
    roofline: float
    fitted: bool

    @property
    def error(self) -> float:
        """The error of tpusim, relative to the reference."""
        return self.ours / self.theirs - 1

    @property
    def roofline_error(self) -> float:
        """The error of the roofline, relative to the reference."""
        return self.roofline / self.theirs - 1


@dataclass(frozen=True)
class Spread:
    """Absolute errors of several cases: mean, median, 90th percentile, the worst and where it is."""

    mean: float
    median: float
    p90: float
    worst: float
    where: str

    @classmethod
    def of(cls, errors: Sequence[tuple[float, str]]) -> Spread:
        """Return the spread of (error, name) pairs; the worst keeps its sign."""
        sizes = sorted(abs(error) for error, _ in errors)
        worst, where = max(errors, key=lambda pair: abs(pair[0]))
        return cls(fmean(sizes), median(sizes), sizes[ceil(0.9 * len(sizes)) - 1], worst, where)


@dataclass(frozen=True)
class Comparison:
    """A set of numbers and how close tpusim comes."""

    numbers: NumberSet
    rows: tuple[ComparedCase, ...]

    @property
    def ours(self) -> Spread:
        """Errors of tpusim."""
        return Spread.of([(row.error, row.name) for row in self.rows])

    @property
    def roofline(self) -> Spread:
        """Errors of the roofline."""
        return Spread.of([(row.roofline_error, row.name) for row in self.rows])

    @property
    def total_error(self) -> float:
        """The error of the sum over all rows."""
        return sum(row.ours for row in self.rows) / sum(row.theirs for row in self.rows) - 1

    def half(self, fitted: bool) -> float | None:
        """Return the mean absolute error over the half used for fitting or the other; None where nothing was fitted."""
        errors = [abs(row.error) for row in self.rows if row.fitted is fitted and self.numbers.fitted]
        return fmean(errors) if errors else None


def compare(
    sets: Iterable[NumberSet], changes: Sequence[str], progress: Progress, lowering: str = "channel_first"
) -> list[Comparison]:
    """Run all cases, on all processors; `changes` are further overrides of every machine.

    Raises:
        InputError: an unknown lowering, a change that makes no machine, or a case that cannot fit it.
    """
    check_known(lowering)
    sets = list(sets)
    jobs = [
        _Job(case, each.unit, load_hardware(each.hardware, [*each.changes, *changes]), lowering)
        for each in sets
        for case in each.cases
    ]
    rows: dict[_Job, ComparedCase] = {}
    with Processes(_compare_case, cpu_count() or 1) as processes:
        for done, (job, row) in enumerate(processes.outcomes(jobs), 1):
            rows[job] = row
            progress(done, row.name)
    found = (rows[job] for job in jobs)
    return [Comparison(each, tuple(next(found) for _ in each.cases)) for each in sets]


@dataclass(frozen=True)
class _Job:
    """A case, and what to run it on; complete in itself, so that any process can do it."""

    case: Case
    unit: str
    hardware: Hardware
    lowering: str


def _compare_case(job: _Job) -> ComparedCase:
    case, hardware = job.case, job.hardware
    cycles = float(sum(_cycles(layer, case.batch, hardware, job.lowering) for layer in case.layers))
    bound = sum(_roofline(layer, case.batch, hardware) for layer in case.layers)
    if job.unit != "cycles":
        ideal = sum(layer.macs(case.batch) for layer in case.layers) / hardware.pes
        cycles, bound = 100 * ideal / cycles, 100 * ideal / bound
    return ComparedCase(case.name, cycles, case.theirs, bound, case.fitted)


_CYCLES: dict[tuple[Hashable, int, Hardware, str], int] = {}
"""Cycles by shape, batch, machine and lowering; the shapes of a set come again and again."""


def _cycles(layer: Op, batch: int, hardware: Hardware, lowering: str) -> int:
    key = layer.shape_key, batch, hardware, lowering
    if key not in _CYCLES:
        _CYCLES[key] = prepared(layer, batch, hardware, lowering).timing.cycles
    return _CYCLES[key]


def _roofline(layer: Op, batch: int, hardware: Hardware) -> float:
    """Return the longer of all multiplications on all PEs and every tensor once through HBM."""
    elements = layer.operands(batch) + layer.outputs(batch)
    moved = elements * hardware.vector_memory.element_bytes / float(hardware.hbm_bytes_per_cycle)
    return max(layer.macs(batch) / hardware.pes, moved)
