"""Comparison of tpusim with a set of numbers: cycles of cases, a plain roofline beside them, and errors."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from statistics import correlation, fmean, median
from typing import NamedTuple

from tpusim.base.errors import CapacityError, InputError
from tpusim.flow.lowerings import check_known, prepared
from tpusim.machines.family import Machine, family_of, load_hardware
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.study.validation.cases import PASSES, WORDS, Case, NumberSet, Omission
from tpusim.study.worker_processes import InputProgress, on_all_processors

AGREEING = 0.05
"""Largest difference, as a share of the schedule, at which estimate and schedule agree."""


_LAST_DIGIT = 1e-3
"""Tables of passes have three digits behind the point."""


@dataclass(frozen=True)
class ComparedCase:
    """A case with the figures of tpusim, the reference and the roofline; the rest as in Case.

    `with_their_block` is tpusim's figure with the compiler's block; None if no block is known or it does not fit.
    """

    name: str
    ours: float
    theirs: float
    roofline: float
    fitted: bool
    with_their_block: float | None = None
    estimated: float | None = None
    scheduled: float | None = None
    quirk: bool = False

    @property
    def error(self) -> float:
        """The error of tpusim, relative to the reference."""
        return self.ours / self.theirs - 1

    @property
    def error_with_their_block(self) -> float | None:
        """Error with the compiler's block, if there is one."""
        return None if self.with_their_block is None else self.with_their_block / self.theirs - 1

    @property
    def roofline_error(self) -> float:
        """The error of the roofline, relative to the reference."""
        return self.roofline / self.theirs - 1

    @property
    def words_agree(self) -> bool | None:
        """Whether estimate and schedule agree; None unless both are known."""
        if self.estimated is None or self.scheduled is None:
            return None
        return abs(self.estimated - self.scheduled) <= AGREEING * self.scheduled


@dataclass(frozen=True)
class ErrorSpread:
    """Absolute errors of several cases: mean, median, 90th percentile, and the worst with its case."""

    mean: float
    median: float
    p90: float
    worst: float
    where: str

    @classmethod
    def of(cls, errors: Sequence[tuple[float, str]]) -> ErrorSpread:
        """Return the spread of (error, name) pairs; the worst keeps its sign."""
        sizes = sorted(abs(error) for error, _ in errors)
        worst, where = max(errors, key=lambda pair: abs(pair[0]))
        return cls(fmean(sizes), median(sizes), sizes[ceil(0.9 * len(sizes)) - 1], worst, where)


def _ranks(values: Sequence[float]) -> list[float]:
    """Place of each value in order; equal values share the middle place."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]


@dataclass(frozen=True)
class Comparison:
    """A set of numbers, with the errors of tpusim."""

    numbers: NumberSet
    rows: tuple[ComparedCase, ...]

    @property
    def ours(self) -> ErrorSpread:
        """Errors of tpusim."""
        return ErrorSpread.of([(row.error, row.name) for row in self.rows])

    @property
    def with_their_blocks(self) -> ErrorSpread | None:
        """Errors of tpusim with the compiler's blocks, over the cases that have one; None where there is none."""
        found = [(row.error_with_their_block, row.name) for row in self.rows]
        errors = [(error, name) for error, name in found if error is not None]
        return ErrorSpread.of(errors) if errors else None

    @property
    def roofline(self) -> ErrorSpread:
        """Errors of the roofline."""
        return ErrorSpread.of([(row.roofline_error, row.name) for row in self.rows])

    @property
    def bias(self) -> float:
        """Mean of the signed errors."""
        return fmean(row.error for row in self.rows)

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's correlation, 1 if both put all rows in the same order; None if all figures of either are equal."""
        ours, theirs = ([getattr(row, name) for row in self.rows] for name in ("ours", "theirs"))
        if min(len({*ours}), len({*theirs})) < 2:
            return None
        return correlation(_ranks(ours), _ranks(theirs))

    @property
    def first_choice(self) -> ComparedCase | None:
        """Tile that tpusim finds fastest; None unless the cases are tiles of one layer."""
        return min(self.rows, key=lambda row: row.ours) if self.numbers.tiles else None

    @property
    def equal(self) -> int | None:
        """Number of rows whose passes equal the reference to its last digit; None for other units."""
        return sum(abs(row.error) < _LAST_DIGIT for row in self.rows) if self.numbers.unit == PASSES else None

    @property
    def total_error(self) -> float:
        """The error of the sum over all rows."""
        ours, theirs = self.totals
        return ours / theirs - 1

    @property
    def totals(self) -> tuple[float, float]:
        """Sums over all rows, of tpusim and of the reference."""
        return sum(row.ours for row in self.rows), sum(row.theirs for row in self.rows)

    @property
    def quirks(self) -> int:
        """Number of rows for which the estimator does not charge all taps."""
        return sum(row.quirk for row in self.rows)

    @property
    def without_quirks(self) -> float | None:
        """Mean absolute error over the other rows; None if all rows are of one sort."""
        return self._mean(lambda row: not row.quirk) if self.quirks else None

    @property
    def agreement(self) -> tuple[int, int] | None:
        """Number of rows in which estimate and schedule agree, and of rows in which both are known; None if there are
        none.
        """
        known = [row.words_agree for row in self.rows if row.words_agree is not None]
        return (sum(known), len(known)) if known else None

    def half(self, fitted: bool) -> float | None:
        """Return the mean absolute error over the half used for fitting, or over the other half; None if nothing was
        fitted.
        """
        return self._mean(lambda row: row.fitted is fitted) if self.numbers.fitted else None

    def _mean(self, chosen: Callable[[ComparedCase], bool]) -> float | None:
        errors = [abs(row.error) for row in self.rows if chosen(row)]
        return fmean(errors) if errors else None


def by_word(comparisons: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    """Comparisons by word; several of one kind are followed by one of all their rows."""
    kinds: dict[tuple[str, str], list[Comparison]] = {}
    for each in comparisons:
        kinds.setdefault((each.numbers.status, each.numbers.kind), []).append(each)
    words: dict[str, list[Comparison]] = {word: [] for word in WORDS}
    for (word, _), parts in kinds.items():
        words[word] += [*parts, *([together(parts)] if len(parts) > 1 else [])]
    return {word: found for word, found in words.items() if found}


def together(parts: Sequence[Comparison]) -> Comparison:
    """Join sets of one word and one kind to a set with the rows of all of them."""
    first, fitted = parts[0].numbers, all(part.numbers.fitted for part in parts)
    machines = ", ".join(dict.fromkeys(part.numbers.hardware for part in parts))
    name, about = f"all {first.kind}", ", ".join(part.numbers.name for part in parts)
    numbers = replace(first, name=name, about=about, hardware=machines, fitted=fitted,
                      cases=tuple(case for part in parts for case in part.numbers.cases),
                      left_out=tuple(each for part in parts for each in part.numbers.left_out))  # fmt: skip
    return Comparison(numbers, tuple(row for part in parts for row in part.rows))


# ---- simulation


@dataclass(frozen=True)
class Simulation:
    """A layer, or a network whose layers may overlap, and its machine: complete in itself, so that any process can
    simulate it.

    Layers that differ only in their name are equal. `imposed`: with a given block, which may not fit.
    """

    what: Op | Workload = field(compare=False)
    batch: int
    hardware: Machine
    lowering: str
    imposed: bool
    shape: Hashable


class SimulatedRun(NamedTuple):
    """Result of a simulation: cycles, those of them in which the vector unit works by itself, and passes of the array
    for a word of outputs if the machine has an array; of a network the cycles of each layer.
    """

    cycles: int
    vector_work: int = 0
    passes: tuple[float, float] | None = None
    layers: tuple[tuple[str, int], ...] = ()


SimulatedCycles = Mapping[Simulation, SimulatedRun | None]
"""Results of simulations; None if the machine cannot take an imposed block."""


TYPES = {"f32": "f32", "bf16": "bf16", "f16": "f16", "s8": "int8", "f8": "f8"}
"""Types in tables of reference numbers, and the types of `--dtype` that stand for them."""


def of_type(machine: Machine, dtype: str | None) -> Machine:
    """The machine that runs a case in its type; as it is where the case leaves that to the machine.

    Raises:
        InputError: a type that no machine has.
    """
    if dtype is None:
        return machine
    if dtype not in TYPES:
        raise InputError(f"a table of reference numbers has type {dtype!r}; known are {', '.join(TYPES)}")
    return machine.of_type(TYPES[dtype])


class CaseWork(NamedTuple):
    """A case with its simulations: with our blocks, and with the compiler's if that is known; layers of a network have
    that of the network.
    """

    case: Case
    ours: tuple[Simulation, ...]
    theirs: tuple[Simulation, ...]


class Validation:
    """Simulations for some sets, each shape once.

    `changes` are further overrides of every machine; `lowering` replaces that of every set.

    Raises:
        InputError: an unknown lowering, or a change that makes no machine.
    """

    def __init__(self, sets: Iterable[NumberSet], changes: Sequence[str] = (), lowering: str | None = None) -> None:
        self.sets = tuple(replace(each, lowering=lowering or each.lowering, asked=tuple(changes)) for each in sets)
        machine = cache(lambda name, *changed: load_hardware(name, changed))
        for name in {each.hardware for each in self.sets} if lowering is not None else ():
            check_known(lowering, family_of(machine(name)))
        self._work = [[_work(case, each, changes, machine) for case in each.cases] for each in self.sets]
        # Sets share many shapes, and a simulation takes far longer than to find that it was asked for before.
        wanted = (work.ours + work.theirs for of_set in self._work for work in of_set)
        self.simulations = list(dict.fromkeys(simulation for some in wanted for simulation in some))

    def comparisons(self, taken: SimulatedCycles) -> list[Comparison]:
        """Compare each set with the results of its simulations; blocks that the machine cannot take are left out.

        Raises:
            CapacityError: the machine takes none of the blocks of a set.
        """
        return [_compared(each, of_set, taken) for each, of_set in zip(self.sets, self._work, strict=True)]


def _compared(numbers: NumberSet, work: Sequence[CaseWork], taken: SimulatedCycles) -> Comparison:
    rows = [_row(each, numbers, taken) for each in work]
    refused = tuple(
        Omission(each.case.name, each.case.theirs, "does not fit")
        for each, row in zip(work, rows, strict=True)
        if row is None
    )
    # A set of which nothing is left has no mean error, and would fail further on without a reason.
    if len(refused) == len(rows):
        raise CapacityError(f"{numbers.name}: {numbers.machine} takes none of the blocks of its cases")
    kept = replace(numbers, left_out=numbers.left_out + refused) if refused else numbers
    return Comparison(kept, tuple(row for row in rows if row is not None))


def _work(case: Case, numbers: NumberSet, changes: Sequence[str], machine: Callable[..., Machine]) -> CaseWork:
    def on(more: tuple[str, ...]) -> tuple[Simulation, ...]:
        overrides = (*numbers.changes, *case.changes, *changes, *more)
        hardware = of_type(machine(numbers.hardware, *overrides), case.dtype)
        if case.network is not None:
            return (Simulation(case.network, case.batch, hardware, numbers.lowering, False, case.network),)
        meant, imposed = family_of(hardware).meant, numbers.tiles or bool(more)
        return tuple(
            Simulation(layer, case.batch, hardware, meant(layer, numbers.lowering), imposed, layer.shape_key)
            for layer in case.layers
        )

    return CaseWork(case, on(()), on(case.their_block) if case.their_block else ())


def _row(work: CaseWork, numbers: NumberSet, taken: SimulatedCycles) -> ComparedCase | None:
    """A case with the results of its simulations, in the unit of its set; None if its own block does not fit."""
    case, machine, unit = work.case, work.ours[0].hardware, numbers.unit
    # In hundredths, as utilisation is told in percent of the peak.
    ideal = 100 * sum(layer.macs(case.batch) for layer in case.layers) / machine.macs_per_cycle

    def figure(clocks: float) -> float:
        if unit == "us":
            return clocks / machine.clock_hz * 1e6
        return clocks if unit == "cycles" else ideal / clocks

    def of(simulations: tuple[Simulation, ...]) -> float | None:
        found = [known for each in simulations if (known := taken[each]) is not None]
        if not simulations or len(found) < len(simulations):
            return None
        if case.network is not None:
            # A layer that rides on the results of another has no share of its own.
            mine = {layer.name for layer in case.layers}
            return figure(float(sum(cycles for name, cycles in found[0].layers if name in mine)))
        return figure(float(sum(each.vector_work if numbers.vector_work else each.cycles for each in found)))

    def row(ours: float, bound: float, blocks: float | None = None) -> ComparedCase:
        words = case.estimated, case.scheduled
        return ComparedCase(case.name, ours, case.theirs, bound, case.fitted, blocks, *words, case.quirk)

    if unit == PASSES:
        (only,) = work.ours
        passes = known.passes if (known := taken[only]) else None
        assert passes is not None, "passes are those of an array"
        return row(*passes)
    if (ours := of(work.ours)) is None:
        assert work.ours[0].imposed, "only a block that is imposed may not fit"
        return None
    # Without transfers, a roofline knows nothing of the vector unit.
    bound = 0.0 if numbers.vector_work else sum(_roofline(layer, case.batch, machine) for layer in case.layers)
    return row(ours, figure(bound), of(work.theirs))


def _roofline(layer: Op, batch: int, machine: Machine) -> float:
    """Cycles of all multiplications at the peak, or of every tensor once through HBM, whichever are more."""
    elements = layer.operands(batch) + layer.outputs(batch)
    moved = elements * machine.element_bytes * machine.clock_hz / machine.hbm_bytes_per_s
    return max(layer.macs(batch) / machine.macs_per_cycle, moved)


def compare(plan: Validation, progress: InputProgress) -> list[Comparison]:
    """Run the simulations on all processors; `progress` is called with the number done, and the last of them.

    Raises:
        CapacityError: a case cannot fit the machine.
    """
    return plan.comparisons(on_all_processors(taken, plan.simulations, _named, progress))


def _named(simulation: Simulation) -> str:
    return simulation.what.name if isinstance(simulation.what, Workload) else simulation.what.text


def taken(simulation: Simulation) -> SimulatedRun | None:
    """Result of a simulation; None if the machine cannot take an imposed block."""
    what, batch, hardware, lowering = simulation.what, simulation.batch, simulation.hardware, simulation.lowering
    if isinstance(what, Workload):
        # Imported here, because workers that time single layers start sooner without it.
        from tpusim.flow.simulation import simulate

        result = simulate(what, hardware, lowering=lowering, check=False)
        return SimulatedRun(result.total.cycles, layers=tuple((each.name, each.cycles) for each in result.layers))
    try:
        ready = prepared(what, batch, hardware, lowering)
        worked = ready.timing.units.get("systolic_array", {}).get("vector_work", 0)
        return SimulatedRun(ready.timing.cycles, worked, ready.passes_of_a_word(what, batch))
    except CapacityError:
        if not simulation.imposed:
            raise
        return None
