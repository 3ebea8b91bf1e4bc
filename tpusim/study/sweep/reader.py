"""A sweep's file, part by part: each part is checked by itself, and all problems are reported at once.

A goal is a column of points, with the direction that is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.flow.lowerings import USUAL_FAMILY, check_known, check_own
from tpusim.flow.numbers import DTYPES
from tpusim.input.document import Document
from tpusim.input.form import Choice, Form, Reader, validated, whole, written
from tpusim.input.scalars import name_text, show, whole_number
from tpusim.input.source import open_document
from tpusim.machines.family import PAPER_MACHINE, USUAL, Family, Machine, family_in, family_of, load_hardware
from tpusim.network.formats import OPS, ModelOptions, check_ops, is_function
from tpusim.network.mesh import mesh_in
from tpusim.network.ops.array_op import StoredTensor
from tpusim.network.workload import MOST_IMAGES, MOST_SIZE, Workload
from tpusim.network.workload_file import DECODE, PREFILL, SHARE_OF, open_workload, workload_of
from tpusim.result.vocabulary.figures import COLUMNS, COSTS, LESS, MORE, OF_ANY_MACHINE
from tpusim.study.sweep.axes import (
    CACHES,
    DTYPE,
    HARDWARE,
    LAYERS,
    PHASE,
    PROMPT,
    SIZES,
    WEIGHTS,
    Axis,
    Constraint,
    check_phase,
    check_prompt,
    check_size,
    layers_of,
)

MINIMIZE, MAXIMIZE = "minimize", "maximize"
_WORDS = {LESS: MINIMIZE, MORE: MAXIMIZE}


@dataclass(frozen=True)
class Goal:
    """A column and the direction that is better."""

    column: str
    minimize: bool

    def cost(self, value: float) -> float:
        """Return `value` turned so that less is better."""
        return value if self.minimize else -value

    def __str__(self) -> str:
        return f"{'least' if self.minimize else 'most'} {self.column}"


def goal_named(text: str) -> Goal | None:
    """Return the goal that is written as this text; None if it is none."""
    direction, _, column = text.partition(" ")
    found = Goal(column, direction == "least")
    return found if column and str(found) == text else None


def costs(hardware: Machine) -> dict[str, float | None]:
    """Return COSTS of a machine: PEs, lanes, bytes of all vector memories, bytes a second of HBM, mm2.

    None for lanes and areas of machines without them.
    """
    family = family_of(hardware)
    lanes, area = family.lanes(hardware), family.area(hardware)
    count, mm2 = lanes.count if lanes else None, area.total_mm2 if area else None
    known = hardware.pes, count, hardware.sram_bytes, hardware.hbm_bytes_per_s, mm2
    return dict(zip(COSTS, known, strict=True))


def columns_of(family: str) -> list[str]:
    """Return the columns of figures of a family's machines, by which points may be judged."""
    return [each for each in COLUMNS if family == USUAL or each in OF_ANY_MACHINE]


def goals_of(given: object, columns: Sequence[str], least: int, most: int) -> tuple[Goal, ...]:
    """Return the goals in `[time_us, pes]`, or in a mapping of columns to minimize or maximize; `columns` may be named.

    Raises:
        InputError: too few or too many, an unknown column, or one without a direction of its own.
    """
    example = "write e.g. [time_us, pes], or {time_us: minimize, tflops: maximize}"
    pairs = dict.fromkeys(given) if isinstance(given, list) and all(isinstance(c, str) for c in given) else given
    if not isinstance(pairs, Mapping):
        raise InputError(f"{show(given)} is no list of columns; {example}")
    if not least <= len(pairs) <= most:
        raise InputError(f"{len(pairs)} different columns; give {least} to {most}, {example}")
    goals: list[Goal] = []
    for column, direction in pairs.items():
        if column not in columns:
            hint = did_you_mean(column, columns) or ";"
            raise InputError(f"no column {show(column)}{hint} columns: {', '.join(columns)}")
        wanted = direction
        if wanted is None:
            # Most columns have a better direction of their own.
            wanted = _WORDS.get(COLUMNS[column].better) if column in COLUMNS else None
        if wanted is None:
            raise InputError(f"{column} is not better one way for everybody; write {{{column}: minimize}} or maximize")
        if wanted not in (MINIMIZE, MAXIMIZE):
            raise InputError(f"{column}: {show(wanted)} is not allowed; write {MINIMIZE} or {MAXIMIZE}")
        goals.append(Goal(column, wanted == MINIMIZE))
    return tuple(goals)


# ---- the file

MOST_POINTS = 100_000
"""Most points of a grid: more would take days and could not be looked at; such a sweep is a search."""

_MOST_AT_ONCE = 1000
_LONGEST_NAME = 80
_NAME = f"at most {_LONGEST_NAME} characters, no slash, no dot at the start"
_GOALS = "a list of columns, or a mapping of columns to minimize or maximize"
_SEARCH = "{objectives: [time_us, pes], budget: 60}"

UNLESS_GIVEN: Mapping[str, Any] = {
    "workloads": None, "hardware": PAPER_MACHINE, "lowering": None, "axes": None,
}  # fmt: skip
"""Defaults of the parts that a file leaves out; None is reported as missing if a sweep needs the part."""

_Place = tuple[str, ...]
"""The target of an axis: a path of the machine, or a field, its layer and its workload."""
_Part = TypeVar("_Part")


def read(document: Document) -> Spec:
    """Return the parts of a file.

    Raises:
        InputError: with all that is wrong.
    """
    stem = Path(document.label.strip("<>")).stem
    unless_given = {**UNLESS_GIVEN, HARDWARE: None} if _compares_machines(document.data) else UNLESS_GIVEN
    data = {"name": stem, **unless_given, **document.data}
    return _FORM.read(replace(document, data=data), data)


def _each(read: Callable[[Any], _Part], given: Iterable[tuple[str | None, object]]) -> tuple[_Part, ...]:
    """Read every (place, value); raise InputError with the problems of all."""
    found: list[_Part] = []
    problems: list[Problem] = []
    for place, value in given:
        try:
            found.append(read(value))
        except InputError as error:
            problems.append(Problem(str(error), place))
    if problems:
        raise InputError(problems)
    return tuple(found)


def _raw(info: ValidationInfo, key: str) -> Any:
    """Return the file's value of another key, sound or not."""
    return (info.context or {}).get(key)


def _folder_name(given: object) -> str:
    name = name_text(given)
    if len(name) > _LONGEST_NAME or name.startswith(".") or any(sign in name for sign in "/\\"):
        raise InputError(f"{show(name)} also names the results' directory; write {_NAME}")
    return name


def _mode(mode: str, info: ValidationInfo) -> str:
    if mode == "search" and _raw(info, "search") is None:
        raise InputError(f"a search needs both parts; add search: {_SEARCH}")
    return mode


def _workloads(given: object, info: ValidationInfo) -> tuple[Document, ...]:
    names = [given] if isinstance(given, str | Workload) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str | Workload) for name in names):
        raise InputError("write one workload or a list of them, e.g. [vgg16, resnet50]")
    if len(names) > 1 and _raw(info, "mode") == "search":
        raise InputError("a search has one workload; put the layers of several into one file")
    taken: set[str] = set()
    ops: str | None = _raw(info, "ops")
    phase, shapes = _raw(info, PHASE), _raw(info, "shapes")
    stored = {key: _raw(info, key) for key in (WEIGHTS, CACHES)}
    asked = ModelOptions(
        ops=ops if ops in OPS else None,
        phase=phase if isinstance(phase, str) else None,
        **{key: value for key, value in stored.items() if value in get_args(StoredTensor)},
    )
    if isinstance(shapes, str) and not any(map(is_function, names)):
        raise InputError("shapes are of the arguments of a function of JAX, FILE.py:FUNCTION; leave them out")

    def opened(name: str | Workload) -> Document:
        if isinstance(name, Workload):
            document = _described(name)
        else:
            given = replace(asked, shapes=shapes) if isinstance(shapes, str) and is_function(name) else asked
            document = open_workload(name, given)
        if asked.ops:
            document = replace(document, data={**document.data, "ops": asked.ops})
        if mesh_in(document) or SHARE_OF in document.data or (isinstance(name, Workload) and name.mesh):
            says = f"chips of a mesh share {document.label}, and a point of a sweep is one chip"
            raise InputError(f"{says}; leave its mesh out, or take tpusim scale")
        work = workload_of(document, document.least_batch)
        check_own(work, _family(info))
        # The name in the file counts, as rows and pictures go by it, not by the path.
        called = work.name
        if called in taken:
            raise InputError(f"another workload is called {show(called)}, too; give each file a name of its own")
        taken.add(called)
        return document

    return _each(opened, ((f"[{i}]", name) for i, name in enumerate(names) if name not in names[:i]))


def _described(work: Workload) -> Document:
    """Return the file that a workload would be written as, which a function of JAX has. Raises InputError."""
    document = getattr(work, "document", None)
    if not isinstance(document, Document):
        raise InputError(f"{work.name} is loaded already; name its file, as a sweep changes what the file says")
    return document


def _compares_machines(data: Mapping[str, Any]) -> bool:
    axes = data.get("axes")
    return isinstance(axes, Mapping) and HARDWARE in axes


def _machine(given: object, info: ValidationInfo) -> Machine | None:
    if _compares_machines(info.context or {}):
        if given is not None:
            raise InputError("the axis hardware names the machine of each point; leave this line or that axis out")
        return None
    if isinstance(given, Machine):
        return given
    if not isinstance(given, str):
        raise InputError(f"{show(given)} is no machine; write a shipped name or a path")
    (hardware,) = _each(load_hardware, [(None, given)])
    return hardware


def _ops(given: object) -> str:
    check_ops(given)
    return str(given)


def _phase(given: object) -> str | None:
    return None if given is None else name_text(given)


def _dtype(given: object) -> str | None:
    if given is not None and given not in DTYPES:
        hint = did_you_mean(str(given), DTYPES) or ";"
        raise InputError(f"unknown type {show(given)}{hint} there is {', '.join(DTYPES)}")
    return None if given is None else str(given)


def _prompt(given: object, info: ValidationInfo) -> int | None:
    if given is None:
        return None
    tokens = whole_number(given, 1, MOST_SIZE)
    if _raw(info, PHASE) not in (None, DECODE):
        raise InputError(f"a prompt is read in {PREFILL}, and tokens are made in {DECODE}; leave phase out")
    for document in info.data.get("workloads", ()):
        check_prompt(document)
    return tokens


def _family(info: ValidationInfo) -> Family:
    """Return the family of the machine, or of the first of the axis, even if it is unsound; TPU if it is unknown."""
    if info.data.get(HARDWARE):
        return family_of(info.data[HARDWARE])
    listed = _raw(info, "axes")[HARDWARE] if _compares_machines(info.context or {}) else [_raw(info, HARDWARE)]
    for name in listed if isinstance(listed, list) else []:
        with suppress(InputError):
            return family_in(open_document(str(name), "configs"))
    return USUAL_FAMILY


def _lowering(given: object, info: ValidationInfo) -> str | None:
    if given is not None:
        check_known(given, _family(info))
    return None if given is None else str(given)


def _axes(given: object, info: ValidationInfo) -> tuple[Axis, ...]:
    if not isinstance(given, Mapping) or not given:
        raise InputError("write at least one axis, e.g. array.size: [64, 128, 256]")
    owners: dict[_Place, str] = {}

    def parsed(item: tuple[str, object]) -> Axis:
        axis = Axis.parse(*item, _family(info))
        # Layers and sizes can be looked up only if all workloads are sound.
        for path in axis.paths:
            places: list[_Place] = [] if path.startswith(LAYERS) else [(path,)]
            if path in (PHASE, WEIGHTS, CACHES, PROMPT, DTYPE) and _raw(info, path) is not None:
                raise InputError(f"{path}: says it for all points; leave that line or this axis out")
            for document in info.data.get("workloads", ()):
                if path == PHASE:
                    for value in axis.values:
                        check_phase(document, value)
                if path == PROMPT:
                    check_prompt(document)
                grown = path in (PHASE, f"{SIZES}{document.data.get('grows')}")
                if grown and (_raw(info, PROMPT) is not None or PROMPT in given):
                    raise InputError(f"prompt says it, as tokens are made behind the prompt; leave {path} out")
                if path.startswith(SIZES):
                    check_size(document, path)
                for index in layers_of(document, path) if path.startswith(LAYERS) else ():
                    entry, field = document.data["layers"][index], path.rpartition(".")[2]
                    places.append((field, entry["name"], document.data["name"]))
            for place in places:
                if (other := owners.setdefault(place, axis.name)) != axis.name:
                    what = " of ".join(map(str, place))
                    raise InputError(f"the axis {show(other)} sets {what} already; name it in one of the two")
        return axis

    return _each(parsed, ((item[0], item) for item in given.items()))


def _combine(combine: str, info: ValidationInfo) -> str:
    lengths = {axis.name: len(axis.values) for axis in info.data.get("axes", ())}
    problems = []
    if combine == "zip" and len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        problems.append(Problem(f"zip needs as many different values on each axis; these have {counts}"))
    if combine == "zip" and _raw(info, "mode") == "search":
        problems.append(Problem("a search chooses the value of each axis by itself; leave combine out"))
    if problems:
        raise InputError(problems)
    return combine


def _where(given: object, info: ValidationInfo) -> tuple[Constraint, ...]:
    texts = [(f"[{i}]", text) for i, text in enumerate(given)] if isinstance(given, list) else [(None, given)]
    return _each(partial(Constraint.parse, family=_family(info).name), texts)


def _search(given: object, info: ValidationInfo) -> Search | None:
    if given is None:
        return None
    if info.data.get("mode") == "grid":
        raise InputError("a search needs both parts; add mode: search")
    if not isinstance(given, Mapping):
        raise InputError(f"{show(given)} is no search; write {_SEARCH}")
    return _SEARCH_FORM.build({"objectives": None, **given}, {"columns": _columns(info)})


def _columns(info: ValidationInfo) -> Sequence[str]:
    """Return the columns that a goal may name: the machine's, and axes of numbers."""
    # If some axes are unsound, all their names are allowed, so that only the first mistake is reported.
    axes = [each.name for each in info.data["axes"] if each.numeric] if "axes" in info.data else _raw(info, "axes")
    return [*columns_of(_family(info).name), *map(str, axes or ())]


@validated
class Search:
    """The goals of a search.

    Attributes:
        objectives: columns of points.csv, one to three, and which way each is better.
        budget: points to simulate at most.
        seed: seed of the search; with the same seed it tries the same points.
        at_once: points that are asked for together, and may be simulated side by side.
    """

    objectives: Annotated[
        tuple[Goal, ...], Reader(lambda given, info: goals_of(given, _raw(info, "columns"), 1, 3), _GOALS)
    ]
    budget: Annotated[int, whole(MOST_POINTS), written(60)]
    seed: Annotated[int, whole(2**32 - 1, least=0)] = 0
    at_once: Annotated[int, whole(_MOST_AT_ONCE)] = 8


@validated
class Spec:
    """A sweep's file as it was read, each part sound by itself.

    Attributes:
        name: name of the sweep, and of the folder of its results; that of its file unless given.
        hardware: machine that the axes change; none where the axis `hardware` names machines.
        workloads: workload, or list of them; each is simulated at every combination of the axes' values.
        lowering: lowering of all points, unless an axis says so; unless given, as `tpusim run` has it.
        axes: fields and the values that each takes: a list, {range: [first, last, step]}, or {powers_of_two: [first,
            last]}. A field is one of the machine, batch, lowering, phase, weights, caches, dtype, prompt,
            layers.NAME.FIELD of a workload, or sizes.NAME; several that take the same value stand with commas between
            them. The axis hardware lists machines, names or paths.
        batch: images at a time, unless an axis says so; unless given 8, or as many as a workload is for.
        combine: how values of several axes meet: every one with every other (`grid`), or the first with the first and
            so on (`zip`).
        where: conditions that a machine must satisfy, in numbers and quantities of its fields.
        mode: whether every combination is simulated (`grid`), or Optuna chooses which (`search`).
        search: what a search looks for; a section.
        pareto: columns of points.csv, two or three, of which the Pareto front is marked, and which way each is better.
        ops: whether `all` ops are timed, or those of the `array` alone, instead of what each workload says.
        phase: phase of the workloads, such as decode, whose sizes they have unless an axis says otherwise.
        weights: how HBM has weights of products, instead of what each workload says, as for `--weights`.
        caches: how HBM has caches, likewise.
        dtype: what values are, as for `--dtype`: times follow it where a machine's file tells of the type.
        prompt: tokens of each sequence that are read ahead of its tokens, whose time is `first_token_us`; as for
            `--prompt`.
        shapes: shapes of the arguments of a function of JAX among the workloads, as for `--shapes`.
    """

    name: Annotated[str, Reader(_folder_name, f"text of {_NAME}"), written("my_sweep")]
    hardware: Annotated[Machine | None, Reader(_machine, "a shipped name, or a path")]
    workloads: Annotated[tuple[Document, ...], Reader(_workloads, "a shipped name or a path, or a list of them")]
    lowering: Annotated[str | None, Reader(_lowering, "a lowering of the machine, or auto"), written("auto")]
    axes: Annotated[tuple[Axis, ...], Reader(_axes, "a mapping of fields to values")]
    batch: Annotated[int | None, whole(MOST_IMAGES), written(8)] = None
    combine: Annotated[Literal["grid", "zip"], Choice(), AfterValidator(_combine)] = "grid"
    where: Annotated[tuple[Constraint, ...], Reader(_where, "a condition, or a list of them")] = ()
    mode: Annotated[Literal["grid", "search"], Choice(), AfterValidator(_mode)] = "grid"
    search: Annotated[Search | None, Reader(_search, "a section")] = None
    pareto: Annotated[tuple[Goal, ...], Reader(lambda given, info: goals_of(given, _columns(info), 2, 3), _GOALS)] = ()
    ops: Annotated[str | None, Reader(_ops, " or ".join(OPS)), written("array")] = None
    phase: Annotated[str | None, Reader(_phase, "a phase that the workloads name"), written("decode")] = None
    weights: Annotated[StoredTensor | None, Choice()] = None
    caches: Annotated[StoredTensor | None, Choice()] = None
    dtype: Annotated[str | None, Reader(_dtype, f"one of {', '.join(DTYPES)}"), written("bf16")] = None
    prompt: Annotated[int | None, Reader(_prompt, "a whole number of tokens"), written(512)] = None
    shapes: Annotated[str | None, Reader(_phase, "shapes as text"), written("8x224x224x3")] = None

    @property
    def goals(self) -> tuple[Goal, ...]:
        """Goals of the Pareto front: the given ones, or the objectives of a search with several."""
        return self.pareto or (self.search.objectives if self.search and len(self.search.objectives) > 1 else ())


_SEARCH_FORM = Form(Search)
_FORM = Form(Spec)
