"""What is set beside a file: `--set PATH=VALUE`, or the same from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Place, parse_scalar
from tpusim.input.form import Form
from tpusim.input.scalars import show

Overrides = Mapping[str, object] | Sequence[str]

Settings = dict[str, tuple[object, Place]]
"""Values by the paths they are given for, and where."""


def read_overrides(overrides: Overrides, form: Form[Any]) -> tuple[Settings, list[Problem]]:
    """What of a form is to be set, of one path given twice the last; and what cannot be."""
    given: Settings = {}
    problems: list[Problem] = []
    if isinstance(overrides, Mapping):
        overrides = [f"{path}={value}" for path, value in overrides.items()]
    for text in [overrides] if isinstance(overrides, str) else overrides:
        try:
            path, value = _read_override(text, form)
            given[path] = value, (f"--set {text}", 0)
        except InputError as error:
            problems.append(Problem(str(error), f"--set {text}"))
    return given, problems


def _read_override(text: str, form: Form[Any]) -> tuple[str, object]:
    path, equals, value = map(str.strip, text.partition("="))
    if not equals:
        raise InputError("no value; write PATH=VALUE, e.g. --set array.rows=64")
    if path in form.sections:
        fields = ", ".join(each for each in form.paths if each.startswith(f"{path}."))
        raise InputError(f"{path} is a section; set one of its fields: {fields}")
    if part := next((each for each in form.files if path.startswith(f"{each}.")), ""):
        field = path.removeprefix(f"{part}.")
        raise InputError(f"{part} is a file of its own; copy it, change {field} there, and write --set {part}=PATH")
    if (listed := path.partition("[")[0]) != path and listed in form.paths:
        raise InputError(
            f"{listed} is a list, and --set changes single values; copy the machine's file, and change {path} there"
        )
    if path not in form.paths:
        hint = did_you_mean(path, form.paths) or ";"
        raise InputError(f"no field {show(path)}{hint} fields: {', '.join(form.paths)}")
    return path, parse_scalar(value)
