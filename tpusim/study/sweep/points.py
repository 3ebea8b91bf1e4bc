"""A sweep and its points, built quickly from the axes' values, because equal parts are built once."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice, product
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import with_settings
from tpusim.flow.jobs import Jobs, resolve
from tpusim.flow.numbers import INTEGERS
from tpusim.input.document import Document
from tpusim.input.scalars import show, whole_number
from tpusim.input.source import open_document
from tpusim.machines.family import Machine, family_of
from tpusim.network.blocks import EntryReader, wiring_of
from tpusim.network.entries import LOWERING, Read, Wiring, read_layers
from tpusim.network.workload import MOST_IMAGES, MOST_SIZE, Workload, names_in
from tpusim.network.workload_file import DECODE, PREFILL, batch_for, in_phase, narrowed, run_batch, workload_of
from tpusim.result.chips import share_notice
from tpusim.result.vocabulary.figures import FIRST_TOKEN_US, TOKENS_PER_S
from tpusim.result.vocabulary.runs import left_out
from tpusim.study.sweep.axes import (
    BATCH,
    CACHES,
    DTYPE,
    HARDWARE,
    LAYERS,
    PHASE,
    PROMPT,
    SIZES,
    WEIGHTS,
    Axis,
    CommandAnswer,
    Value,
    check_prompt,
    layers_of,
    of_machine,
    shown,
)
from tpusim.study.sweep.reader import MOST_POINTS, Goal, Search, Spec, read
from tpusim.study.sweep.store import key_of

Values = tuple[Value, ...]
PointSettings = tuple[tuple[str, CommandAnswer], ...]
TOGETHER = " (at "
"""Beginning of the end of a message about settings that were made together."""

AxisField = tuple[str, int]
"""A path, or the key of a layer, and the axis that sets it."""


@dataclass(frozen=True)
class Point:
    """Jobs on a machine; `settings` are (axis, value) in the order of the axes. `prompt` is what reads the prompt ahead
    of its tokens, where its time is asked for.
    """

    jobs: Jobs
    settings: PointSettings = ()
    prompt: Point | None = None

    @cached_property
    def key(self) -> str:
        """Return the key in a store: equal for points with equal results."""
        return key_of(self.jobs)

    @property
    def tokens(self) -> int | None:
        """Tokens that the workload makes, one of each sequence; None where it makes none, as when it reads a prompt."""
        work = self.jobs.work
        # A workload that grows is one of a generation; of several tokens at once all but the last are given.
        return work.batch if work.grows and dict(work.sizes).get("tokens", 1) == 1 else None

    @property
    def reads(self) -> bool:
        """Whether its time is that until a first token: it reads the prompt that makes it."""
        return bool(self.jobs.work.grows) and self.tokens is None

    @property
    def parts(self) -> tuple[Point, ...]:
        """What is simulated for it: itself, and what reads its prompt."""
        return (self, self.prompt) if self.prompt else (self,)


class Space:
    """All combinations of the axes' values, over the machine and the workloads of a sweep.

    Raises:
        InputError: an axis names a layer that a workload does not have.
    """

    def __init__(self, spec: Spec) -> None:
        self.axes = spec.axes
        self._spec = spec
        self._machines = _Machines(spec.hardware, self.axes)
        self._networks = [_Network(document, self.axes, spec) for document in spec.workloads]
        self._known: dict[Hashable, Jobs] = {}
        fields = [(path, index) for index, axis in enumerate(self.axes) for path in axis.paths]
        self._batch_axis, self._lowering_axis, self._dtype_axis = (
            next((index for path, index in fields if path == sought), None) for sought in (BATCH, LOWERING, DTYPE)
        )

    @property
    def size(self) -> int:
        """Number of combinations, before constraints, without the workloads."""
        return prod(len(axis.values) for axis in self.axes)

    @property
    def conditions(self) -> str:
        """Conditions on a combination, in words; empty if there are none."""
        return " and ".join(each.text for each in self._spec.where)

    def drawn(self, seed: int) -> Iterator[Values]:
        """Yield random combinations; half of them take the axes' values in turn, so that no value is missed
        for long.
        """
        random = Random(seed)
        for index in count():
            yield tuple(axis.values[index % len(axis.values)] for axis in self.axes)
            yield tuple(random.choice(axis.values) for axis in self.axes)

    def points(self, values: Values) -> tuple[Point, ...]:
        """Return a point for each workload, in order; none if a constraint rules the combination out.

        Raises:
            InputError: there is no such machine or layer; `where` of its problems is the name of an axis, or None.
        """
        batch = self._spec.batch
        if self._batch_axis is not None:
            try:
                batch = whole_number(values[self._batch_axis], 1, MOST_IMAGES)
            except InputError as error:
                raise InputError(Problem(str(error), self.axes[self._batch_axis].name)) from None
        hardware = self._machines.with_values(values)
        # Conditions come before the workloads, whose layers take longer to make.
        images = [network.batch_for(batch) for network in self._networks]
        if not all(each.holds(hardware, max(images)) for each in self._spec.where):
            return ()
        settings = tuple((axis.name, shown(value)) for axis, value in zip(self.axes, values, strict=True))
        lowering = self._spec.lowering if self._lowering_axis is None else str(values[self._lowering_axis])
        dtype = self._spec.dtype or INTEGERS if self._dtype_axis is None else str(values[self._dtype_axis])

        def point(network: Workload, prompt: Point | None = None) -> Point:
            return Point(self._resolved(network, hardware, lowering, dtype), settings, prompt)

        found = []
        for network, many in zip(self._networks, images, strict=True):
            ahead = network.prompt(values, many)
            found.append(point(network.with_values(values, many), point(ahead) if ahead else None))
        return tuple(found)

    def _resolved(self, network: Workload, hardware: Machine, lowering: str | None, dtype: str) -> Jobs:
        family = family_of(hardware)
        if lowering is None or family.fusing(hardware) is not None:
            return resolve(network, hardware, lowering, dtype=dtype)
        # Neither fused nor chosen for the machine, jobs are the same on thousands of machines, and kept once.
        key = id(network), family.name, lowering, dtype
        if key not in self._known:
            self._known[key] = resolve(network, hardware, lowering, dtype=dtype)
        return self._known[key].on(hardware)


class _Machines:
    """Machines of the combinations: the sweep's, or those of the axis `hardware`, with the values of other axes.

    Sections that no axis couples are built apart, and each of their settings once.
    """

    def __init__(self, given: Machine | None, axes: Sequence[Axis]) -> None:
        self._axes = axes
        self._chosen = tuple((HARDWARE, index) for index, axis in enumerate(axes) if axis.machines)
        bases: dict[Value | None, Machine] = {None: given} if given else {}
        bases.update(item for axis in axes for item in axis.machines.items())
        self._bases = {name: (base, _attributes(base)) for name, base in bases.items()}
        self._changes: dict[tuple[object, ...], Mapping[str, Any]] = {}
        sections: dict[str, list[AxisField]] = defaultdict(list)
        for index, axis in enumerate(axes):
            for path in axis.paths:
                if of_machine(path):
                    section = path.partition(".")[0]
                    # `array.size` also sets the ALUs of the vector unit, so both are built together.
                    sections["array" if section == "vector_unit" else section].append((path, index))
        self._sections = [tuple(fields) for fields in sections.values()]

    def with_values(self, values: Values) -> Machine:
        base, plain = self._bases[next((values[index] for _, index in self._chosen), None)]
        changes: dict[str, Any] = {}
        for fields in self._sections:
            involved = (*self._chosen, *fields)
            key = (involved, *((type(values[index]), values[index]) for _, index in involved))
            if key not in self._changes:
                try:
                    hardware = base.with_overrides({path: values[index] for path, index in fields})
                except InputError as error:
                    places = {f"--set {path}={values[index]}": index for path, index in fields}
                    raise _impossible(error, places, involved, self._axes, values) from None
                attributes = _attributes(hardware).items()
                self._changes[key] = {name: value for name, value in attributes if value != plain[name]}
            changes |= self._changes[key]
        # The whole machine is validated once more, so that rules across sections also hold for points.
        set_here = {path: str(shown(values[index])) for fields in self._sections for path, index in fields}
        machine: Machine = family_of(base).model().model_validate({**plain, **changes}) if changes else base
        return machine.telling(set_here) if set_here else machine


class _Network:
    """A workload of which axes change layers, sizes, the phase, or how HBM has weights and caches."""

    def __init__(self, document: Document, axes: Sequence[Axis], spec: Spec) -> None:
        self._document, self._axes, self._prompt = document, axes, spec.prompt
        self._ops, self._ops_of_file = spec.ops, document.data.get("ops", "all")
        self._known: dict[tuple[object, ...], Workload] = {}
        paths = [(path, number) for number, axis in enumerate(axes) for path in axis.paths]
        self._sizes = tuple(each for each in paths if each[0].startswith(SIZES))
        self._asked = {path: number for path, number in paths if path in (PHASE, WEIGHTS, CACHES, PROMPT)}
        layers: dict[int, list[AxisField]] = defaultdict(list)
        for path, number in paths:
            if path.startswith(LAYERS):
                for index in layers_of(document, path):
                    layers[index].append((path.rpartition(".")[2], number))
        self._layers = {index: tuple(fields) for index, fields in sorted(layers.items())}

    def batch_for(self, asked: int | None) -> int:
        """The batch of a point; unless one is asked for, the usual one, or what the file is for."""
        return batch_for(self._document, run_batch(asked))

    def with_values(self, values: Values, batch: int) -> Workload:
        """The workload of a point; behind a prompt its first token."""
        return self._kept(values, batch, False)

    def prompt(self, values: Values, batch: int) -> Workload | None:
        """What reads the prompt of a point; None where its time is not asked for."""
        return None if self._prompt_of(values) is None else self._kept(values, batch, True)

    def _kept(self, values: Values, batch: int, reading: bool) -> Workload:
        fields = (self._sizes, tuple(self._asked.items()), *self._layers.values())
        used = (values[axis] for each in fields for _, axis in each)
        key = (batch, reading, *((type(value), value) for value in used))
        if key not in self._known:
            self._known[key] = self._build(values, batch, reading)
        return self._known[key]

    def _prompt_of(self, values: Values) -> int | None:
        at = self._asked.get(PROMPT)
        if at is None:
            return self._prompt
        try:
            return whole_number(values[at], 1, MOST_SIZE)
        except InputError as error:
            raise InputError(Problem(str(error), self._axes[at].name)) from None

    def _described(self, values: Values, reading: bool) -> Document:
        """The file as axes change it, but for its layers."""
        document, end = self._document, sys.maxsize
        if PHASE in self._asked:
            document = in_phase(document, str(values[self._asked[PHASE]]))
        if (prompt := self._prompt_of(values)) is not None:
            grows = f"sizes.{check_prompt(document)}"
            document = in_phase(document, PREFILL if reading else DECODE)
            document = document.override(grows, prompt if reading else prompt + 1, (PROMPT, end))
        for path, axis in self._sizes:
            document = document.override(path, values[axis], (self._axes[axis].name, end))
        for key in (WEIGHTS, CACHES):
            if key in self._asked:
                at = self._asked[key]
                document = document.override(key, values[at], (self._axes[at].name, end))
        return document

    def _build(self, values: Values, batch: int, reading: bool) -> Workload:
        document, fields = self._described(values, reading), (*self._sizes, *self._asked.items())
        sized = (batch, reading, *((type(values[axis]), values[axis]) for _, axis in fields))
        if sized not in self._known:
            try:
                self._known[sized] = workload_of(document, batch, "all")
            except InputError as error:
                places = {self._axes[axis].name: axis for _, axis in fields}
                raise _impossible(error, places, fields, self._axes, values) from None
        if not self._layers:
            return self._known[sized].with_asked(self._ops, self._ops_of_file)
        # Sizes of layers may follow from those of the layers before them.
        names, wiring = names_in(document, batch), wiring_of(document, batch)
        read = [self._changed(index, values, names, wiring) for index in range(len(document.data["layers"]))]
        parts = EntryReader(document).parts(read)
        # A value of an axis has no place in the file.
        own = tuple(replace(each, where=None) for each in parts.lowerings)
        found = replace(self._known[sized], **parts._replace(lowerings=own)._asdict())
        return narrowed(found, document).with_asked(self._ops, self._ops_of_file)

    def _changed(self, index: int, values: Values, names: Mapping[str, int], wiring: Wiring) -> Read:
        entry, fields = self._document.data["layers"][index], self._layers.get(index, ())
        given = {field: values[axis] for field, axis in fields}
        changes = {field: list(value) if isinstance(value, tuple) else value for field, value in given.items()}
        try:
            return read_layers({**entry, **changes}, names, wiring)
        except InputError as error:
            whose = f"layer {show(entry['name'])} of {self._document.data['name']}: "
            raise _impossible(error, dict(fields), fields, self._axes, values, whose) from None


def _attributes(hardware: Machine) -> dict[str, Any]:
    return {name: getattr(hardware, name) for name in family_of(hardware).model().model_fields}


def _impossible(
    error: InputError, places: Mapping[str, int], fields: Sequence[AxisField], axes: Sequence[Axis], values: Values,
    whose: str = "",
) -> InputError:  # fmt: skip
    """Return the error with its problems placed at the axes at fault; if several axes meet, with their settings."""
    involved = dict.fromkeys(index for _, index in fields)
    together = ", ".join(f"{axes[index].name}={shown(values[index])}" for index in involved)
    end = f"{TOGETHER}{together})" if len(involved) > 1 else ""
    problems = []
    for each in error.problems:
        index = places.get(str(each.where))
        where = f"{each.where.rpartition(' ')[2]}: " if each.where and index is None and not whose else ""
        problems.append(Problem(f"{where}{whose}{each.message}{end}", None if index is None else axes[index].name))
    return InputError(problems)


# ---- the sweep: axes over fields of the machine, the batch and the layers, for one or more workloads

FOLDER = "configs/sweeps"
_MAPPING = "<sweep>"
"""The label of a sweep that no file holds, which is also its name unless it has one."""

_MOST_TOLD = 10
_MOST_FAILED = 1000
_DRAWN = 20_000


@dataclass(frozen=True)
class Sweep:
    """A sweep, read and checked. A grid or zip has all its `points`; a search has none, but a `space` that they come
    from.
    """

    name: str
    axes: Mapping[str, Sequence[CommandAnswer]]
    combine: str
    size: int
    """Number of points before constraints, over all workloads."""
    points: tuple[Point, ...] = field(repr=False)
    space: Space = field(repr=False)
    search: Search | None
    goals: tuple[Goal, ...]
    """The goals of the Pareto front; empty without one."""
    setup: str = ""
    """What all points have in common: the machine, with what axes of a single value set of it, and the phase."""
    notes: tuple[str, ...] = ()
    """Notes on networks of other tools: how they were read, and which of their ops take no time."""

    @property
    def summary(self) -> str:
        """Summary in a line, such as "array_size: 5 points"."""
        if self.search:
            aim = " and ".join(map(str, self.search.objectives))
            return f"{self.name}: a search for {aim}, {self.search.budget:,} of {self.size:,} combinations"
        left_out = f", of {self.size:,} before where" if len(self.points) < self.size else ""
        return f"{self.name}: {len(self.points):,} point{'s' * (len(self.points) != 1)}{left_out}"


def load_sweep(spec: str | Path | Mapping[str, Any]) -> Sweep:
    """Read a shipped name, a path, "-" for standard input, or what such a file holds.

    Raises:
        InputError: with every problem of the file, before anything runs.
    """
    document = Document(_MAPPING, _as_read(spec)) if isinstance(spec, Mapping) else open_document(spec, FOLDER)
    return _checked(document, read(document))


def _as_read(given: Any) -> Any:
    """Return what Python has as a file has it: lists for tuples, ranges and arrays, and plain numbers for NumPy's.

    Raises InputError for a key that is no text.
    """
    if isinstance(given, np.ndarray | np.generic):
        return _as_read(given.tolist())
    if isinstance(given, list | tuple | range):
        return [_as_read(each) for each in given]
    if not isinstance(given, Mapping):
        return given
    if (wrong := next((key for key in given if not isinstance(key, str)), "")) != "":
        raise InputError(Problem(f"the key {wrong!r:.80} is no text; write the name of a key or an axis", _MAPPING))
    return {key: _as_read(value) for key, value in given.items()}


def _checked(document: Document, spec: Spec) -> Sweep:
    space = Space(spec)
    # Axes that move together have equally many values.
    combinations = space.size if spec.combine == "grid" else len(spec.axes[0].values)
    size = combinations * len(spec.workloads)
    # A search does not need all points, so that its space may be larger.
    if spec.search is None and size > MOST_POINTS:
        message = f"{size:,} points; a sweep has at most {MOST_POINTS:,}: give fewer values, or write mode: search"
        raise InputError(document.problem("axes", message))
    points = _sound_points(document, spec, space, combinations)
    wanted = {goal.column for goal in (*spec.pareto, *(spec.search.objectives if spec.search else ()))}
    for column, makes, advice in (
        (TOKENS_PER_S, lambda point: point.tokens is not None, "makes no token of each sequence; take phase: decode"),
        (
            FIRST_TOKEN_US,
            lambda point: point.prompt is not None or point.reads,
            "reads no prompt; say how long it is, as in prompt: 512, or take phase: prefill",
        ),
    ):
        lacking = next((point.jobs.work.name for point in points if not makes(point)), None)
        if lacking and column in wanted:
            key = "search.objectives" if spec.search else "pareto"
            raise InputError(document.problem(key, f"{column}: {lacking} {advice}, or another column"))
    notes: list[str] = []
    for each in spec.workloads:
        work = workload_of(each, each.least_batch)
        said = (*each.notes, left_out(work.never_timed, work.not_known), share_notice(work.chips))
        notes += (f"{work.name}: {note}" for note in said if note)
    fixed = {
        path: str(axis.shown[0])
        for axis in spec.axes
        if len(axis.values) == 1
        for path in axis.paths
        if of_machine(path)
    }
    # Machines that differ are an axis, of which only what is set of all is told.
    machine = [spec.hardware.name] if spec.hardware else ["machines"] if fixed else []
    asked: dict[str, object] = {PHASE: spec.phase, WEIGHTS: spec.weights, CACHES: spec.caches, PROMPT: spec.prompt}
    asked[DTYPE] = spec.dtype if spec.dtype != INTEGERS else None
    told = [f"{key} {value}" for key, value in asked.items() if value]
    return Sweep(
        name=spec.name,
        axes={axis.name: axis.shown for axis in spec.axes},
        combine=spec.combine,
        size=size,
        points=() if spec.search else points,
        space=space,
        search=spec.search,
        goals=spec.goals,
        setup=", ".join([with_settings(each, fixed) for each in machine] + told),
        notes=tuple(notes),
    )


def _sound_points(document: Document, spec: Spec, space: Space, combinations: int) -> tuple[Point, ...]:
    """Return every point, or a large sample if there are too many."""
    whole = combinations <= MOST_POINTS
    values = [axis.values for axis in spec.axes]
    # Combinations are made one by one: a search may have more than memory holds.
    every = product(*values) if spec.combine == "grid" else zip(*values, strict=True)
    built = _build(space, every if whole else islice(space.drawn(0), _DRAWN))
    problems = built.hopeless(space.axes) if spec.search and built.points else [*built.problems.values()]
    if problems:
        places = ((f"axes.{each.where}" if each.where else "axes", each.message) for _, each in problems)
        found = [document.problem(*place) for place in places]
        more = [Problem(f"{document.label}: and more like these")] if len(found) > _MOST_TOLD else []
        raise InputError([*document.in_order(found[:_MOST_TOLD]), *more])
    if not built.points:
        of = f"{combinations:,}" if whole else f"{_DRAWN:,} drawn of {combinations:,}"
        left_out = (
            f"none of the {of} combinations of the axes' values satisfies {space.conditions}; widen one or the other"
        )
        raise InputError(document.problem("where", left_out))
    if spec.search and whole and spec.search.budget >= len(built.points):
        enough = f"{spec.search.budget:,} is enough for all {len(built.points):,} points; leave mode and search out"
        raise InputError(document.problem("search.budget", enough))
    return tuple(built.points)


@dataclass
class _Combinations:
    """Results of building combinations: points, and each problem once, with the first values that had it."""

    points: list[Point] = field(default_factory=list)
    sound: set[tuple[int, Value]] = field(default_factory=set)
    problems: dict[tuple[str | None, str], tuple[Values, Problem]] = field(default_factory=dict)

    def hopeless(self, axes: Sequence[Axis]) -> list[tuple[Values, Problem]]:
        """Return the problems of values that were sound in no combination."""
        places = {axis.name: index for index, axis in enumerate(axes)}
        found = ((values, problem, places.get(str(problem.where))) for values, problem in self.problems.values())
        return [(v, problem) for v, problem, i in found if i is not None and (i, v[i]) not in self.sound]


def _build(space: Space, combinations: Iterator[Values]) -> _Combinations:
    built, failed = _Combinations(), 0
    for values in combinations:
        try:
            built.points += space.points(values)
            built.sound.update(enumerate(values))
        except InputError as error:
            failed += 1
            for problem in error.problems:
                said = problem.message.partition(TOGETHER)[0]
                built.problems.setdefault((problem.where, said), (values, problem))
        if failed > _MOST_FAILED:
            break
    return built
