"""Run the missing points of a sweep or a search, and return all points as rows, with their Pareto front."""

from __future__ import annotations

import logging
import math
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError
from tpusim.base.imports import need
from tpusim.result.vocabulary.figures import FIRST_TOKEN_US, TOKENS_PER_S
from tpusim.study.sweep.axes import PROMPT
from tpusim.study.sweep.parcels import Assembly, Executor, weight
from tpusim.study.sweep.points import Point, Space, Sweep, Values
from tpusim.study.sweep.reader import MAXIMIZE, MINIMIZE, Goal, Search, costs
from tpusim.study.sweep.store import Store

Progress = Callable[[int, str, float], None]
"""Called before the first parcel and after every one with the points that are stored, the workload of the last one, and
the share of the work that is done, 0 to 1.
"""


@dataclass(frozen=True)
class SweepOutcome:
    """A sweep's points in order, and the numbers that were stored already, were computed, or failed.

    `short` says why a search has fewer points than it asked for.
    """

    points: tuple[Point, ...]
    reused: int
    computed: int
    failed: int
    short: str = ""


def run_sweep(
    points: Sequence[Point], store: Store, executor: Executor, fresh: bool, progress: Progress
) -> SweepOutcome:
    """Simulate timing alone. A point that fails is stored with its error, and the others go on.

    Raises:
        InputError: the store cannot be written.
        TpusimError: the executor can do no more. In both cases the points finished until then are in the store.
    """
    wanted = missing(points, store, fresh)
    assembly = Assembly(wanted)
    parcels = assembly.parcels(executor.workers)
    everything, behind = sum(map(weight, parcels)), 0.0
    open_points, failed = _OpenPoints(points, wanted), {point.key for point, _ in assembly.refused}
    name = next((point.jobs.work.name for point in wanted.values()), "")
    for point, why in assembly.refused:
        store.save(point.key, point.jobs, why)
        open_points.add(point.key)
    progress(open_points.done, name, 0.0)
    with closing(executor.outcomes(parcels)) as outcomes:
        for parcel, findings in outcomes:
            for point, finding in assembly.add(parcel, findings):
                name = point.jobs.work.name
                open_points.add(point.key)
                if isinstance(finding, str):
                    failed.add(point.key)
                store.save(point.key, point.jobs, finding)
            behind += weight(parcel)
            progress(open_points.done, name, behind / everything)
    every, new = {point.key: point for point in points}, open_points.total
    lacked = sum(any(part.key in failed for part in point.parts) for point in every.values())
    return SweepOutcome(tuple(points), len(every) - new, new - lacked, lacked)


class _OpenPoints:
    """The points that wait for something to be simulated; with a prompt that is two things, of which points share some.

    Attributes:
        total: points that waited when it began.
        done: those of them that wait for nothing more.
    """

    def __init__(self, points: Iterable[Point], wanted: Container[str]) -> None:
        waits = {point.key: {each.key for each in point.parts if each.key in wanted} for point in points}
        self._left = {key: len(parts) for key, parts in waits.items() if parts}
        self._of = defaultdict[str, list[str]](list)
        for key, parts in waits.items():
            for part in parts:
                self._of[part].append(key)
        self.total, self.done = len(self._left), 0

    def add(self, part: str) -> None:
        """Count what was simulated; it comes once."""
        for key in self._of[part]:
            self._left[key] -= 1
            self.done += not self._left[key]


def points_open(points: Sequence[Point], store: Store, fresh: bool) -> int:
    """Return how many points a run would compute, or finish."""
    return _OpenPoints(points, missing(points, store, fresh)).total


def missing(points: Sequence[Point], store: Store, fresh: bool) -> dict[str, Point]:
    """Return the points that a run would compute, by key, each once; and what reads their prompts."""
    wanted = {part.key: part for point in points for part in point.parts}
    there = set() if fresh else store.done(wanted)
    return {key: point for key, point in wanted.items() if key not in there}


def rows_of(sweep: Sweep, store: Store, points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return a row for each point, in order: all stored columns, its speeds, properties of its machine, and its axes.

    If the sweep has goals, `pareto` marks the points on their front. A point whose prompt failed has failed.
    """
    found = [*store.points([point.key for point in points])]
    prompts = [point.prompt.key for point in points if point.prompt]
    ahead = iter([*store.points(prompts)] if prompts else [])
    rows = []
    for point, own in zip(points, found, strict=True):
        row = {**own, **_speeds(point, own, next(ahead) if point.prompt else None)}
        rows.append({**row, **costs(point.jobs.hardware), **dict(point.settings)})
    if sweep.goals:
        rows = [{**row, "pareto": on} for row, on in zip(rows, front_of(rows, sweep.goals), strict=True)]
    return rows


def _speeds(point: Point, row: Mapping[str, Any], prompt: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return SPEEDS of a point, None where it failed, or where its network does no such thing; and its error, if what
    reads its prompt has failed.
    """
    error = row["error"]
    if prompt is not None and prompt["error"] and not error:
        error = f"{PROMPT}: {prompt['error']}"
    made = None if error or point.tokens is None else 1e6 * point.tokens / row["time_us"]
    read = prompt["time_us"] if prompt else row["time_us"] if point.reads else None
    return {"error": error, TOKENS_PER_S: made, FIRST_TOKEN_US: None if error else read}


# ---- the Pareto front: points that no other point beats in every goal

Row = Mapping[str, Any]
Costs = NDArray[np.float64]
_MOST_GOALS = 3


def on_front(costs: Costs) -> NDArray[np.bool_]:
    """Return which of `costs` (points x 1 to 3 goals, less is better) are on the front.

    A point is beaten by another that is nowhere worse and somewhere better; so equal points are on the front
    together. Points with a nan or an infinity never are, and beat none.
    """
    found = np.zeros(len(costs), dtype=bool)
    usable = np.isfinite(costs).all(axis=1)
    if usable.any():
        distinct, back = np.unique(costs[usable], axis=0, return_inverse=True)
        found[usable] = np.array(_unbeaten(distinct))[back.reshape(-1)]
    return found


def _unbeaten(costs: Costs) -> list[bool]:
    """Return which of distinct points, in lexicographic order, are beaten by no other.

    Earlier points are no worse in the first goal, so a point is beaten if an earlier one is no worse in the other two.
    Only the front of the earlier points in these two goals is kept: `y` ascending, `z` descending.
    """
    padded = np.zeros((len(costs), _MOST_GOALS))
    padded[:, : costs.shape[1]] = costs
    ys: list[float] = []
    zs: list[float] = []
    found = []
    for _, y, z in padded.tolist():
        after = bisect_right(ys, y)
        found.append(after == 0 or zs[after - 1] > z)
        if found[-1]:
            first = bisect_left(ys, y)
            last = first
            while last < len(zs) and zs[last] >= z:
                last += 1
            ys[first:last], zs[first:last] = [y], [z]
    return found


def front_of(rows: Sequence[Row], goals: Sequence[Goal]) -> list[bool]:
    """Return which rows are on the front of their workload; failed points are not."""

    def cost(row: Row, goal: Goal) -> float:
        value = row[goal.column]
        return math.nan if row["error"] or value is None else goal.cost(float(value))

    together: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        together[row["workload"]].append(index)
    found = np.zeros(len(rows), dtype=bool)
    for indices in together.values():
        costs = [[cost(rows[index], goal) for goal in goals] for index in indices]
        found[indices] = on_front(np.array(costs, dtype=np.float64))
    return [bool(each) for each in found]


# ---- a space too large for a grid: Optuna proposes points, and the executor and store of every sweep handle them

_MOST_PROPOSED = 20
"""Proposals in a row without a new point, after which a random point is taken."""
_MOST_DRAWN = 20_000

Trial = Any
"""Optuna's type, which is imported only for a search."""


def need_optuna() -> None:
    """Raise InputError if Optuna, an extra, cannot be imported; it says how to install it."""
    need("mode: search", "Optuna", "optuna")


def run_search(sweep: Sweep, store: Store, executor: Executor, fresh: bool, progress: Progress) -> SweepOutcome:
    """Simulate `budget` different points, or as many as are found, in the order in which they were proposed.

    If there are fewer, `SweepOutcome.short` says why.

    The points depend on the sweep and its seed only, not on the executor: `at_once` points are proposed at a time, and
    reported in that order. Points in the store are not simulated again.

    Raises:
        InputError: Optuna cannot be imported, or the sweep is no search.
    """
    if sweep.search is None:
        raise InputError(f"{sweep.name} is no search; add mode: search and search: to the file")
    need_optuna()
    walk, before, reused, computed, failed = _Walk(sweep.search, sweep.space), 0, 0, 0, 0
    budget, goals = sweep.search.budget, sweep.search.objectives

    def told(done: int, name: str, share: float) -> None:
        progress(before + done, name, (before + done) / budget)

    while batch := walk.ask():
        points = [point for _, point in batch]
        part = run_sweep(points, store, executor, fresh, told)
        reused, computed, failed = reused + part.reused, computed + part.computed, failed + part.failed
        # Results are told in the order of proposals, so that the walk does not depend on who is done first.
        for (trial, point), row in zip(batch, rows_of(sweep, store, points), strict=True):
            walk.tell(trial, point.key, None if row["error"] else [float(row[goal.column]) for goal in goals])
        before = len(walk.tried)
    return SweepOutcome(tuple(walk.tried.values()), reused, computed, failed, walk.short)


class _Walk:
    """An Optuna study over the indices of the axes' values."""

    def __init__(self, search: Search, space: Space) -> None:
        import optuna

        # Optuna logs every trial, and warns that constant_liar, which spreads points proposed together, may change.
        logging.getLogger("optuna").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=search.seed, constant_liar=True)
        directions: list[Any] = [MINIMIZE if goal.minimize else MAXIMIZE for goal in search.objectives]
        ordered, unordered = optuna.distributions.IntDistribution, optuna.distributions.CategoricalDistribution
        self.tried: dict[str, Point] = {}
        self.short = ""
        self._search, self._space = search, space
        self._drawn = space.drawn(search.seed)
        self._values: dict[str, list[float] | None] = {}
        self._failed = optuna.trial.TrialState.FAIL
        self._study = optuna.create_study(sampler=sampler, directions=directions)
        # Indices have an order only if neighbouring values are alike, as numbers are.
        self._distributions: dict[str, Any] = {
            axis.name: ordered(0, len(axis.values) - 1) if axis.ordered else unordered(range(len(axis.values)))
            for axis in space.axes
        }

    def ask(self) -> list[tuple[Trial, Point]]:
        """Return the next points, all new; none if the budget is spent or no new point was found."""
        wanted = min(self._search.at_once, self._search.budget - len(self.tried))
        found: list[tuple[Trial, Point]] = []
        while len(found) < wanted:
            proposals = (self._next_proposal() for _ in range(_MOST_PROPOSED))
            new = next(filter(None, proposals), None) or (self._next_proposal() if self._enqueue_random() else None)
            if new is None:
                break
            found.append(new)
            self.tried[new[1].key] = new[1]
        return found

    def tell(self, trial: Trial, key: str, values: list[float] | None) -> None:
        """Tell the sampler the `values` of the objectives, or None for a point that failed."""
        self._values[key] = values
        self._tell(trial, values)

    def _next_proposal(self) -> tuple[Trial, Point] | None:
        """A proposal that is a new point; any other proposal is answered at once, so that the sampler goes on."""
        trial = self._study.ask(self._distributions)
        point = self._point(tuple(axis.values[trial.params[axis.name]] for axis in self._space.axes))
        if isinstance(point, str) or point.key in self.tried:
            self._tell(trial, None if isinstance(point, str) else self._values.get(point.key))
            return None
        return trial, point

    def _enqueue_random(self) -> bool:
        """Let a random new point be proposed next; if there is none, `short` says why."""
        useless: Counter[str] = Counter()
        for values in islice(self._drawn, _MOST_DRAWN):
            point = self._point(values)
            if isinstance(point, str):
                # A text says why the combination is no point.
                useless[point] += 1
            elif point.key in self.tried:
                useless["were tried before"] += 1
            else:
                indices = {
                    axis.name: axis.values.index(value) for axis, value in zip(self._space.axes, values, strict=True)
                }
                self._study.enqueue_trial(indices)
                return True
        why = ", ".join(f"{count:,} {what}" for what, count in useless.most_common())
        found = f"the search found {len(self.tried):,} of {self._search.budget:,} points"
        none = f"{found} and no other among {_MOST_DRAWN:,} random combinations"
        self.short = f"{none}: {why}; widen the axes or the conditions, or ask for less"
        return False

    def _point(self, values: Values) -> Point | str:
        """Return the point of these values, or in words why there is none."""
        try:
            points = self._space.points(values)
        except InputError:
            return "make no machine or layer"
        return points[0] if points else f"do not satisfy {self._space.conditions}"

    def _tell(self, trial: Trial, values: list[float] | None) -> None:
        self._study.tell(trial, values, self._failed if values is None else None)
