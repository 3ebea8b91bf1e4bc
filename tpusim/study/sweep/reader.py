"""A sweep's file, taken apart: each part sound by itself, and everything that is wrong with it told at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.scalars import name_text, show, unknown_key, whole_number
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.network.workload import MOST_IMAGES, open_workload, workload_of
from tpusim.study.sweep.axis import LAYERS, Axis
from tpusim.study.sweep.column import Goal, goals_of
from tpusim.study.sweep.constraint import Constraint
from tpusim.study.sweep.space import layers_of

MOST_POINTS = 100_000
"""More would take days and cannot be looked at; a sweep of that size is a search."""

_KEYS = ("name", "workloads", "hardware", "batch", "lowering", "axes", "combine", "where", "mode", "search", "pareto")
_COMBINE = ("grid", "zip")
_MODES = ("grid", "search")
_SEARCH = ("objectives", "budget", "seed", "at_once")
_MOST_AT_ONCE = 1000
_LONGEST_NAME = 80
_NAME = f"at most {_LONGEST_NAME} characters, no slash, no dot at the start"

_Place = tuple[str, ...]
"""What an axis sets: a path of the machine, or a field, its layer and its workload."""


@dataclass(frozen=True)
class Search:
    """What a search looks for: `budget` different points, `at_once` asked for together, from `seed`."""

    objectives: tuple[Goal, ...]
    budget: int
    seed: int
    at_once: int


@dataclass(frozen=True)
class Spec:
    """A file as it was read, each part sound by itself."""

    name: str
    workloads: tuple[Document, ...]
    hardware: Hardware
    batch: int
    lowering: str
    axes: tuple[Axis, ...]
    combine: str
    where: tuple[Constraint, ...]
    search: Search | None
    goals: tuple[Goal, ...]


def read(document: Document) -> Spec:
    """Return the parts of a file.

    Raises:
        InputError: with all that is wrong.
    """
    return _Reader(document).spec()


class _Reader:
    """Takes a document apart and gathers what is wrong with it."""

    def __init__(self, document: Document) -> None:
        self.document, self.data = document, document.data
        self.problems: list[Problem] = []

    def spec(self) -> Spec:
        self._unknown_keys("", self.data, _KEYS)
        hardware, workloads = self._hardware(), self._workloads()
        axes = self._axes(workloads)
        search, goals = self._search(axes), self._goals(axes)
        spec = Spec(
            name=self._name(),
            workloads=workloads,
            hardware=hardware,
            batch=self._number("batch", self.data.get("batch", 8), 1, MOST_IMAGES),
            lowering=self._lowering(),
            axes=axes,
            combine=self._combine(axes),
            where=self._where(),
            search=search,
            goals=goals or _objectives_as_goals(search),
        )
        if found := self.document.in_order(self.problems):
            raise InputError(found)
        return spec

    def _fail(self, path: str, message: str) -> None:
        self.problems.append(self.document.problem(path, message))

    def _unknown_keys(self, path: str, data: Mapping[str, object], known: Sequence[str]) -> None:
        for key in data:
            if key not in known:
                self._fail(f"{path}{key}", unknown_key(key, known, did_you_mean(key, known)))

    def _number(self, path: str, value: object, least: int, most: int) -> int:
        try:
            return whole_number(value, least, most)
        except InputError as error:
            self._fail(path, str(error))
            return least

    def _name(self) -> str:
        name = self.data.get("name", Path(self.document.label.strip("<>")).stem)
        try:
            if _unfit_for_a_folder(name_text(name)):
                raise InputError(f"{show(name)} also names the results' directory; write {_NAME}")
        except InputError as error:
            self._fail("name", str(error))
        return str(name)

    def _hardware(self) -> Hardware:
        given = self.data.get("hardware", "tpu_v2")
        try:
            if not isinstance(given, str):
                raise InputError(f"{show(given)} is no machine; write a shipped name or a path")
            return load_hardware(given)
        except InputError as error:
            self._fail("hardware", str(error))
            return load_hardware("tpu_v2")

    def _lowering(self) -> str:
        given = self.data.get("lowering", "channel_first")
        if str(given) not in LOWERINGS:
            hint = did_you_mean(str(given), LOWERINGS) or ";"
            self._fail("lowering", f"no lowering {show(given)}{hint} there is {', '.join(LOWERINGS)}")
        return str(given)

    def _workloads(self) -> tuple[Document, ...]:
        given = self.data.get("workloads")
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            self._fail("workloads", "write one workload or a list of them, e.g. [vgg16, resnet50]")
            return ()
        documents: dict[str, Document] = {}
        for index, name in enumerate(names):
            try:
                document = open_workload(name)
                called = workload_of(document, 1).name
                if called in documents and name not in names[:index]:
                    raise InputError(
                        f"another workload is called {show(called)}, too; give each file a name of its own"
                    )
                documents[called] = document
            except InputError as error:
                self._fail(f"workloads[{index}]", str(error))
        return tuple(documents.values())

    def _axes(self, workloads: Sequence[Document]) -> tuple[Axis, ...]:
        given = self.data.get("axes")
        if not isinstance(given, Mapping) or not given:
            self._fail("axes", "write at least one axis, e.g. array.size: [64, 128, 256]")
            return ()
        axes: list[Axis] = []
        owners: dict[_Place, str] = {}
        for name, values in given.items():
            try:
                axes.append(Axis.parse(name, values))
                # Only where all workloads are sound can their layers be looked for.
                _check_owners(axes[-1], () if self.problems else workloads, owners)
            except InputError as error:
                self._fail(f"axes.{name}", str(error))
        return tuple(axes)

    def _combine(self, axes: Sequence[Axis]) -> str:
        combine = self.data.get("combine", "grid")
        if combine not in _COMBINE:
            self._fail("combine", f"{show(combine)} is not allowed; write grid or zip")
        elif combine == "zip":
            lengths = {axis.name: len(axis.values) for axis in axes}
            if len(set(lengths.values())) > 1:
                counts = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
                self._fail("combine", f"zip needs as many different values on each axis; these have {counts}")
            if self.data.get("mode") == "search":
                self._fail("combine", "a search chooses the value of each axis by itself; leave combine out")
        return str(combine)

    def _where(self) -> tuple[Constraint, ...]:
        given = self.data.get("where", [])
        constraints = []
        for index, text in enumerate(given if isinstance(given, list) else [given]):
            try:
                constraints.append(Constraint.parse(text))
            except InputError as error:
                self._fail(f"where[{index}]" if isinstance(given, list) else "where", str(error))
        return tuple(constraints)

    def _search(self, axes: Sequence[Axis]) -> Search | None:
        mode, given = self.data.get("mode", "grid"), self.data.get("search")
        if mode not in _MODES:
            self._fail("mode", f"{show(mode)} is not allowed; write {' or '.join(_MODES)}")
        elif (mode == "search") != (given is not None):
            missing = "mode: search" if mode != "search" else "search: {objectives: [time_us, pes], budget: 60}"
            self._fail("search" if given is not None else "mode", f"a search needs both parts; add {missing}")
        elif mode == "search":
            return self._read_search(given, axes)
        return None

    def _read_search(self, given: object, axes: Sequence[Axis]) -> Search | None:
        if not isinstance(given, Mapping):
            self._fail("search", f"{show(given)} is no search; write {{objectives: [time_us, pes], budget: 60}}")
            return None
        self._unknown_keys("search.", given, _SEARCH)
        if isinstance(self.data.get("workloads"), list) and len(self.data["workloads"]) > 1:
            self._fail("workloads", "a search has one workload; put the layers of several into one file")
        if "budget" not in given:
            self._fail("search.budget", "required key is missing; add budget: 60, the points to simulate at most")
        return Search(
            objectives=self._columns("search.objectives", given.get("objectives"), axes, 1),
            budget=self._number("search.budget", given.get("budget", 1), 1, MOST_POINTS),
            seed=self._number("search.seed", given.get("seed", 0), 0, 2**32 - 1),
            at_once=self._number("search.at_once", given.get("at_once", 8), 1, _MOST_AT_ONCE),
        )

    def _goals(self, axes: Sequence[Axis]) -> tuple[Goal, ...]:
        return self._columns("pareto", self.data["pareto"], axes, 2) if "pareto" in self.data else ()

    def _columns(self, path: str, given: object, axes: Sequence[Axis], least: int) -> tuple[Goal, ...]:
        try:
            return goals_of(given, [axis.name for axis in axes if _is_numeric(axis)], least, 3)
        except InputError as error:
            self._fail(path, str(error))
            return ()


def _unfit_for_a_folder(name: str) -> bool:
    return len(name) > _LONGEST_NAME or name.startswith(".") or any(sign in name for sign in "/\\")


def _check_owners(axis: Axis, workloads: Sequence[Document], owners: dict[_Place, str]) -> None:
    """Raise InputError when another axis sets one of its fields, or a workload does not have its layers."""
    for path in axis.paths:
        for place in _fields_set(path, workloads):
            if (other := owners.setdefault(place, axis.name)) != axis.name:
                what = " of ".join(map(str, place))
                raise InputError(f"the axis {show(other)} sets {what} already; name it in one of the two")


def _fields_set(path: str, workloads: Sequence[Document]) -> Iterator[_Place]:
    if not path.startswith(LAYERS):
        yield (path,)
        return
    for document in workloads:
        layers = document.data["layers"]
        for index in layers_of(document, path):
            yield path.rpartition(".")[2], layers[index]["name"], document.data["name"]


def _is_numeric(axis: Axis) -> bool:
    return isinstance(axis.values, range) or all(isinstance(value, int | float) for value in axis.values)


def _objectives_as_goals(search: Search | None) -> tuple[Goal, ...]:
    return search.objectives if search and len(search.objectives) > 1 else ()
