"""What a sweep is: axes over fields of the machine and the batch, combined, for one or more workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from pathlib import Path

from tpusim.checks import show, unknown_key, whole_number
from tpusim.errors import InputError, Problem, did_you_mean
from tpusim.hardware import Hardware, hardware_paths, load_hardware
from tpusim.sweep.constraint import Constraint
from tpusim.workload import Workload, load_workload
from tpusim.yaml_document import Document
from tpusim.yaml_source import open_document

FOLDER = "configs/sweeps"
MOST_POINTS = 100_000
"""More would take days and cannot be looked at; a sweep of that size is a search."""

_KEYS = ("name", "workloads", "hardware", "batch", "axes", "combine", "where")
_COMBINE = ("grid", "zip")
_MOST_BATCH = 2**20
Value = int | float | str
Settings = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Point:
    """One machine and one workload; `settings` are (axis, value) in the order of the axes."""

    workload: Workload
    settings: Settings
    hardware: Hardware


@dataclass(frozen=True)
class Sweep:
    """A sweep, read and checked."""

    name: str
    workloads: tuple[str, ...]
    hardware: str
    batch: int
    axes: Mapping[str, tuple[Value, ...]]
    combine: str
    where: tuple[Constraint, ...]

    @property
    def size(self) -> int:
        """Points before constraints."""
        lengths = [len(values) for values in self.axes.values()]
        return len(self.workloads) * (prod(lengths) if self.combine == "grid" else max(lengths, default=1))

    def points(self) -> Iterator[Point]:
        """Every point that satisfies the constraints, workloads innermost.

        Raises:
            InputError: when values that are sound one by one make no machine together.
        """
        combined = product(*self.axes.values()) if self.combine == "grid" else zip(*self.axes.values(), strict=True)
        for values in combined:
            settings = tuple(zip(self.axes, values, strict=True))
            batch = int(dict(settings).get("batch", self.batch))
            hardware = load_hardware(self.hardware, {path: value for path, value in settings if path != "batch"})
            if all(each.holds(hardware, batch) for each in self.where):
                for name in self.workloads:
                    yield Point(_loaded(name, batch), settings, hardware)


@lru_cache(maxsize=256)
def _loaded(name: str, batch: int) -> Workload:
    return load_workload(name, batch=batch)


def load_sweep(name_or_path: str | Path) -> Sweep:
    """Read a shipped name, a path, or "-" for standard input.

    Raises:
        InputError: with every problem of the file, before anything runs.
    """
    document = open_document(name_or_path, FOLDER)
    reader = _Reader(document)
    sweep = reader.sweep()
    if found := document.in_order(reader.problems):
        raise InputError(found)
    if sweep.size > MOST_POINTS:
        raise InputError(
            document.problem("axes", f"{sweep.size:,} points; a sweep has at most {MOST_POINTS:,}, give fewer values")
        )
    return sweep


class _Reader:
    """Takes a document apart and gathers what is wrong with it."""

    def __init__(self, document: Document) -> None:
        self.document, self.data = document, document.data
        self.problems: list[Problem] = [
            document.problem(key, unknown_key(key, _KEYS, did_you_mean(key, _KEYS)))
            for key in self.data
            if key not in _KEYS
        ]

    def sweep(self) -> Sweep:
        """All that could be read; `problems` says what could not."""
        hardware = self._hardware()
        return Sweep(
            name=str(self.data.get("name", Path(self.document.label.strip("<>")).stem)),
            workloads=self._workloads(),
            hardware=hardware,
            batch=self._batch(),
            axes=self._axes(hardware),
            combine=self._combine(),
            where=self._where(),
        )

    def _fail(self, path: str, message: str) -> None:
        self.problems.append(self.document.problem(path, message))

    def _hardware(self) -> str:
        name = str(self.data.get("hardware", "tpu_v2"))
        try:
            load_hardware(name)
        except InputError as error:
            self._fail("hardware", str(error))
            return "tpu_v2"
        return name

    def _workloads(self) -> tuple[str, ...]:
        given = self.data.get("workloads")
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            self._fail("workloads", "write one workload or a list of them, e.g. [vgg16, resnet50]")
            return ()
        for index, name in enumerate(names):
            try:
                load_workload(name, batch=1)
            except InputError as error:
                self._fail(f"workloads[{index}]", str(error))
        return tuple(dict.fromkeys(names))

    def _batch(self) -> int:
        try:
            return whole_number(self.data.get("batch", 8), 1, _MOST_BATCH)
        except InputError as error:
            self._fail("batch", str(error))
            return 1

    def _combine(self) -> str:
        combine = self.data.get("combine", "grid")
        axes = self.data.get("axes")
        if combine not in _COMBINE:
            self._fail("combine", f"{show(combine)} is not allowed; write grid or zip")
        elif combine == "zip" and isinstance(axes, Mapping):
            lengths = {path: len(values) for path, values in self._values.items()}
            if len(set(lengths.values())) > 1:
                self._fail("combine", f"zip needs axes of one length; these have {lengths}")
        return str(combine)

    def _axes(self, hardware: str) -> dict[str, tuple[Value, ...]]:
        axes = self.data.get("axes")
        self._values: dict[str, tuple[Value, ...]] = {}
        if not isinstance(axes, Mapping) or not axes:
            self._fail("axes", "write at least one axis, e.g. array.size: [64, 128, 256]")
            return {}
        known = (*hardware_paths(), "batch")
        for path, values in axes.items():
            if path not in known:
                hint = did_you_mean(path, known) or ";"
                self._fail(f"axes.{path}", f"no field {path!r}{hint} fields: {', '.join(known)}")
                continue
            try:
                self._values[path] = _expanded(values)
                self._check(hardware, path)
            except InputError as error:
                self._fail(f"axes.{path}", str(error))
        return self._values

    def _check(self, hardware: str, path: str) -> None:
        """Every value by itself; what goes together only shows in the points."""
        for value in self._values[path]:
            if path == "batch":
                whole_number(value, 1, _MOST_BATCH)
            else:
                try:
                    load_hardware(hardware, {path: value})
                except InputError as error:
                    raise InputError(error.problems[0].message) from None

    def _where(self) -> tuple[Constraint, ...]:
        given = self.data.get("where", [])
        texts = given if isinstance(given, list) else [given]
        constraints = []
        for index, text in enumerate(texts):
            try:
                constraints.append(Constraint.parse(text))
            except InputError as error:
                self._fail(f"where[{index}]" if isinstance(given, list) else "where", str(error))
        return tuple(constraints)


def _expanded(values: object) -> tuple[Value, ...]:
    """[a, b, ...], {range: [first, last, step]} or {powers_of_two: [first, last]}."""
    if isinstance(values, list) and values:
        if not all(isinstance(value, int | float | str) and not isinstance(value, bool) for value in values):
            raise InputError(f"{show(values)} is not a list of numbers and quantities")
        return tuple(dict.fromkeys(values))
    if isinstance(values, Mapping) and len(values) == 1:
        ((kind, limits),) = values.items()
        if kind in ("range", "powers_of_two") and isinstance(limits, list):
            return _range(limits) if kind == "range" else _powers(limits)
    raise InputError(
        f"{show(values)} is no axis; write a list, {{range: [first, last, step]}} or {{powers_of_two: [first, last]}}"
    )


def _range(limits: list[object]) -> tuple[Value, ...]:
    numbers = [whole_number(limit, 1, 2**40) for limit in limits]
    if len(numbers) not in (2, 3) or numbers[1] < numbers[0]:
        raise InputError(f"range: {show(limits)}; write [first, last] or [first, last, step], the last included")
    first, last, step = (*numbers, 1)[:3]
    if (last - first) // step >= MOST_POINTS:
        raise InputError(f"range: {show(limits)} has more than {MOST_POINTS:,} values")
    return tuple(range(first, last + 1, step))


def _powers(limits: list[object]) -> tuple[Value, ...]:
    numbers = [whole_number(limit, 1, 2**40) for limit in limits]
    if len(numbers) != 2 or numbers[1] < numbers[0] or any(number & (number - 1) for number in numbers):
        raise InputError(f"powers_of_two: {show(limits)}; write [first, last], both powers of two")
    first, last = numbers
    return tuple(first << shift for shift in range((last // first).bit_length()))
