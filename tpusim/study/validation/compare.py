"""Simulate the cases of a set and hold the results against its figures, and a plain roofline beside them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from os import cpu_count
from statistics import fmean, median

from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering import channel_first
from tpusim.network.ops import Op
from tpusim.study.processes import Processes
from tpusim.study.validation.cases import Case, NumberSet

Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class Compared:
    """One case: what tpusim, the reference and the roofline say; `fitted` as in Case."""

    name: str
    ours: float
    theirs: float
    roofline: float
    fitted: bool

    @property
    def error(self) -> float:
        """Of tpusim, relative to the reference."""
        return self.ours / self.theirs - 1

    @property
    def roofline_error(self) -> float:
        """Of the roofline, relative to the reference."""
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
        """From (error, name) pairs; the worst keeps its sign."""
        sizes = sorted(abs(error) for error, _ in errors)
        worst, where = max(errors, key=lambda pair: abs(pair[0]))
        return cls(fmean(sizes), median(sizes), sizes[ceil(0.9 * len(sizes)) - 1], worst, where)


@dataclass(frozen=True)
class Comparison:
    """A set of numbers and how close tpusim comes."""

    numbers: NumberSet
    rows: tuple[Compared, ...]

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
        """Of the sum over all rows."""
        return sum(row.ours for row in self.rows) / sum(row.theirs for row in self.rows) - 1

    def half(self, fitted: bool) -> float | None:
        """Mean absolute error over the half used for fitting, or over the other; None where nothing was fitted."""
        errors = [abs(row.error) for row in self.rows if row.fitted is fitted and self.numbers.fitted]
        return fmean(errors) if errors else None


def compare(sets: Iterable[NumberSet], changes: Sequence[str], progress: Progress) -> list[Comparison]:
    """Run all cases, on all processors; `changes` are further overrides of every machine."""
    sets = list(sets)
    jobs = [
        (case, load_hardware(each.hardware, [*each.changes, *changes]), each.unit)
        for each in sets
        for case in each.cases
    ]
    rows: dict[int, Compared] = {}
    with Processes(_compared, cpu_count() or 1) as processes:
        for place, row in processes.results(jobs):
            rows[place] = row
            progress(len(rows), row.name)
    found = (rows[place] for place in range(len(jobs)))
    return [Comparison(each, tuple(next(found) for _ in each.cases)) for each in sets]


def _compared(job: tuple[Case, Hardware, str]) -> Compared:
    case, hardware, unit = job
    cycles = float(sum(_cycles(layer, case.batch, hardware) for layer in case.layers))
    bound = sum(_roofline(layer, case.batch, hardware) for layer in case.layers)
    if unit != "cycles":
        ideal = sum(layer.macs(case.batch) for layer in case.layers) / hardware.pes
        cycles, bound = 100 * ideal / cycles, 100 * ideal / bound
    return Compared(case.name, cycles, case.theirs, bound, case.fitted)


_CYCLES: dict[tuple[Hashable, int, Hardware], int] = {}
"""Cycles by shape, batch and machine; the shapes of a set come again and again."""


def _cycles(layer: Op, batch: int, hardware: Hardware) -> int:
    key = layer.shape_key, batch, hardware
    if key not in _CYCLES:
        _CYCLES[key] = event.run(channel_first.lower(layer, batch, hardware)[0], hardware).cycles
    return _CYCLES[key]


def _roofline(layer: Op, batch: int, hardware: Hardware) -> float:
    """The longer of all multiplications on all PEs and every tensor once through HBM."""
    elements = layer.operands(batch) + layer.outputs(batch)
    moved = elements * hardware.vector_memory.element_bytes / float(hardware.hbm_bytes_per_cycle)
    return max(layer.macs(batch) / hardware.pes, moved)
