"""Reading results back from their JSON."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError
from tpusim.input.scalars import path_of
from tpusim.input.source import read_text
from tpusim.result.records import Result
from tpusim.result.rules import broken

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

RESULT_FILE = "run.json"
"""The name of the result in an output directory."""

MAX_BYTES = 256 * 2**20

_WRONG = {
    "greater": "must not be below zero", "less": "is not a finite number below 1e+30", "int": "is not a whole number",
    "float": "is not a number", "finite": "is not a finite number below 1e+30", "string": "is not text",
    "tuple": "is not a list",
}  # fmt: skip
"""Messages on a wrong value, by the first word of pydantic's error type; all other values are mappings."""


def read_result(path: Path) -> Result:
    """Read the result in `path`, a result JSON or a directory that holds run.json.

    Raises:
        InputError: when there is none; says what is missing.
    """
    file = path / RESULT_FILE if os.path.isdir(path) else path
    if not os.path.exists(file):
        raise InputError(f"{file}: no such file; write one with `tpusim run WORKLOAD --out DIR`")
    text = read_text(file, MAX_BYTES)
    try:
        return parse_result(text)
    except InputError as error:
        raise InputError(f"{file}: {error}; `tpusim run` writes one with --out or --json") from None


def parse_result(text: str) -> Result:
    """Read the result in a JSON text; unknown keys are ignored. Raises InputError, also where figures do not fit."""
    # Imported here, as the import takes longer than writing a small result.
    from pydantic import ValidationError

    try:
        result = _form().validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"not a tpusim result: {_first_problem(error)}") from None
    if not result.layers:
        raise InputError("not a tpusim result: it has no layers")
    # An older version lowered all layers alike, and stored the lowering once, in the result.
    named = (each if each.lowering else replace(each, lowering=result.lowering) for each in result.layers)
    result = replace(result, layers=tuple(named))
    # Layers of a kind share what was read of the first, so that sums and rules take it once.
    shared = zip(result.layers, result.kinds, strict=True)
    layers = (first.called(each.name, each.inputs, each.riders, each.phase) for each, first in shared)
    result = replace(result, layers=tuple(layers))
    if said := next(broken(result), ""):
        raise InputError(f"not as a run wrote it: {said}")
    return result


@cache
def _form() -> TypeAdapter[Result]:
    from pydantic import TypeAdapter

    return TypeAdapter(Result)


def _first_problem(error: ValidationError) -> str:
    first, *others = error.errors(include_url=False)
    kind, where, above = first["type"], path_of(first["loc"]), first["loc"][:-1]
    if kind == "json_invalid":
        return f"not JSON ({first['ctx']['error']})"
    if where in ("", "tpusim"):
        return 'no "tpusim" key'
    if kind == "missing":
        keys = [str(each["loc"][-1]) for each in (first, *others) if each["type"] == kind and each["loc"][:-1] == above]
        return f"{path_of(above) or 'the file'} has no {', '.join(keys)}"
    return f"{where} {_WRONG.get(kind.partition('_')[0], 'is not a mapping')}"
