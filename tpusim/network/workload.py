"""What is asked of the machine: layers to run one after another, read from YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.fields import Count, Name
from tpusim.input.form import Form, validated
from tpusim.input.scalars import show, whole_number
from tpusim.input.source import open_document, shipped
from tpusim.network.ops import OPS, Op

MOST_IMAGES = 2**16

_FOLDER = "workloads"
_DEFAULT_BATCH = 8
_EXAMPLE = "{name: fc, op: gemm, m: batch, n: 1000, k: 512}"
_FORMS = {name: Form(kind, f" for {name}", {"": ("op",)}) for name, kind in OPS.items()}


def load_workload(name_or_path: str | Path, batch: int = _DEFAULT_BATCH) -> Workload:
    """The workload of a shipped name, a YAML path, or "-" (standard input), for `batch` images.

    Raises InputError with every problem of the file.
    """
    try:
        whole_number(batch, 1, MOST_IMAGES)
    except InputError as error:
        raise InputError(Problem(str(error), "batch")) from None
    return workload_of(open_workload(name_or_path), batch)


def open_workload(name_or_path: str | Path) -> Document:
    """The file behind a workload, as it stands there. Raises InputError when it is no YAML mapping."""
    return open_document(name_or_path, _FOLDER)


def shipped_workloads() -> tuple[str, ...]:
    """Names that `load_workload` knows without a path, sorted."""
    return tuple(shipped(_FOLDER))


def workload_of(document: Document, batch: int) -> Workload:
    """What `document` describes, for `batch` images. Raises InputError with every problem of it."""
    file = _FILE.read(document, {"batch": batch})
    return Workload(file.name, batch, file.layers, file.source)


def read_layer(entry: object, batch: int) -> Op:
    """One layer of a file.

    Raises InputError whose problems' `where` is the key inside the layer, or None for the layer itself.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"{show(entry)} is not a layer; write e.g. {_EXAMPLE}")
    op = entry.get("op")
    if not isinstance(op, str) or op not in OPS:
        raise InputError(Problem(_wrong_op(entry), "op"))
    return _FORMS[op].build({key: value for key, value in entry.items() if key != "op"}, {"batch": batch})


def _wrong_op(entry: Mapping[str, Any]) -> str:
    ops = ", ".join(OPS)
    if "op" not in entry:
        return f"required key is missing; add op: with one of {ops}"
    hint = did_you_mean(str(entry["op"]), OPS) or ";"
    return f"unknown op {show(entry['op'])}{hint} ops: {ops}"


def _read_layers(entries: object, info: ValidationInfo) -> tuple[Op, ...]:
    if not isinstance(entries, list) and entries is not None:
        raise InputError(f"{show(entries)} is not a list; start each layer with '- '")
    layers: list[Op] = []
    names: list[object] = []
    problems: list[Problem] = []
    for index, entry in enumerate(entries or ()):
        names.append(entry.get("name") if isinstance(entry, Mapping) else None)
        try:
            layers.append(read_layer(entry, (info.context or {})["batch"]))
        except InputError as error:
            problems += _problems_of_layer(index, names[-1], error)
    if problems := [*problems, *_problems_of_names(names)]:
        raise InputError(problems)
    return tuple(layers)


def _problems_of_layer(index: int, name: object, error: InputError) -> Iterator[Problem]:
    label = f"layer {show(name)}: " if isinstance(name, str) else ""
    for problem in error.problems:
        inside = f".{problem.where}" if problem.where else ""
        yield Problem(f"{label}{problem.message}", f"[{index}]{inside}")


def _problems_of_names(names: Sequence[object]) -> Iterator[Problem]:
    """No layers at all, and each name that an earlier layer has."""
    if not names:
        yield Problem(f"no layers; write at least one, e.g. - {_EXAMPLE}")
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if isinstance(name, str) and first.setdefault(name, index) != index:
            taken = f"the name {show(name)} is taken by layers[{first[name]}]; names must differ"
            yield Problem(taken, f"[{index}].name")


def _differently_named(layers: Sequence[Op]) -> tuple[Op, ...]:
    if problems := [*_problems_of_names([layer.name for layer in layers])]:
        raise InputError(problems)
    return tuple(layers)


def _source_text(value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"{show(value)} is not text; write where the sizes come from")
    return value


@validated
class Workload:
    """Layers to run one after another on `batch` images; `source` says where the sizes come from."""

    name: Annotated[str, Name()]
    batch: Annotated[int, Count(MOST_IMAGES)]
    layers: Annotated[tuple[Op, ...], PlainValidator(_differently_named)]
    source: Annotated[str, PlainValidator(_source_text)] = ""


@validated
class _File:
    """A workload as its file has it, which says nothing of the batch."""

    name: Annotated[str, Name()]
    layers: Annotated[tuple[Op, ...], PlainValidator(_read_layers)]
    source: Annotated[str, PlainValidator(_source_text)] = ""


_FILE = Form(_File)
