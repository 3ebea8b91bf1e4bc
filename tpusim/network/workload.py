"""What is asked of the machine: layers to run one after another, read from YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, InstanceOf, PlainValidator, ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.fields import Name, whole
from tpusim.input.form import Form, validated
from tpusim.input.scalars import path_of, show, whole_number
from tpusim.input.source import open_document
from tpusim.network.foreign import instead_of
from tpusim.network.ops import OPS, Op

MOST_IMAGES = 2**16

_EXAMPLE = "{name: fc, op: gemm, m: batch, n: 1000, k: 512}"
_FORMS = {name: Form(kind, f" for {name}", ["op"]) for name, kind in OPS.items()}


def load_workload(name_or_path: str | Path, batch: int = 8) -> Workload:
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
    return open_document(name_or_path, "workloads")


def workload_of(document: Document, batch: int) -> Workload:
    """What `document` describes, for `batch` images. Raises InputError with every problem of it."""
    entries = document.data.get("layers")
    names = [_name_of(entry) for entry in entries] if isinstance(entries, list) else []
    taken = [document.problem(str(each.where), each.message) for each in _taken_names(names)]
    file = _FILE.read(document, {"batch": batch}, taken)
    return Workload(file.name, batch, file.layers, file.source)


def read_layer(entry: object, batch: int) -> Op:
    """One layer of a file.

    Raises InputError whose problems' `where` is the key inside the layer, or None for the layer itself.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"{show(entry)} is not a layer; write e.g. {_EXAMPLE}")
    op, ops = entry.get("op"), ", ".join(OPS)
    if "op" not in entry:
        raise InputError(Problem(f"required key is missing; add op: with one of {ops}", "op"))
    if not isinstance(op, str) or op not in OPS:
        instead = "" if str(op).casefold() in OPS else instead_of(str(op))
        hint = f"{instead};" if instead else did_you_mean(str(op), OPS) or ";"
        raise InputError(Problem(f"unknown op {show(op)}{hint} ops: {ops}", "op"))
    return _FORMS[op].build({key: value for key, value in entry.items() if key != "op"}, {"batch": batch})


def _name_of(entry: object) -> object:
    return entry.get("name") if isinstance(entry, Mapping) else None


def _layer(entry: object, info: ValidationInfo) -> Op:
    """A layer of a file, whose problems name it."""
    try:
        return read_layer(entry, (info.context or {})["batch"])
    except InputError as error:
        name = _name_of(entry)
        label = f"layer {show(name)}: " if isinstance(name, str) else ""
        raise InputError([Problem(f"{label}{each.message}", each.where) for each in error.problems]) from None


def _entries(entries: object) -> object:
    if not isinstance(entries, list | tuple) and entries is not None:
        raise InputError(f"{show(entries)} is not a list; start each layer with '- '")
    if not entries:
        raise InputError(f"no layers; write at least one, e.g. - {_EXAMPLE}")
    return entries


def _taken_names(names: Sequence[object]) -> Iterator[Problem]:
    """Each name that an earlier layer has, with its path in the workload."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if isinstance(name, str) and first.setdefault(name, index) != index:
            taken = f"the name {show(name)} is taken by layers[{first[name]}]; names must differ"
            yield Problem(taken, path_of(("layers", index, "name")))


@validated
class Workload:
    """Layers to run one after another on `batch` images; `source` says where the sizes come from."""

    name: Annotated[str, Name()]
    batch: Annotated[int, whole(MOST_IMAGES)]
    layers: Annotated[tuple[InstanceOf[Op], ...], BeforeValidator(_entries)]
    source: str = ""

    def __post_init__(self) -> None:
        if problems := [*_taken_names([layer.name for layer in self.layers])]:
            raise InputError(problems)


@validated
class _File:
    """A workload as its file has it, which says nothing of the batch."""

    name: Annotated[str, Name()]
    layers: Annotated[tuple[Annotated[Op, PlainValidator(_layer)], ...], BeforeValidator(_entries)]
    source: str = ""


_FILE = Form(_File)
