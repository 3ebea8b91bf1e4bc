"""Reading results back from their JSON."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError
from tpusim.input.scalars import path_of
from tpusim.input.source import read_text
from tpusim.result.records import STALL_CAUSES, LayerResult, Result
from tpusim.result.vocabulary.states import ARRAY_UNIT, main_unit

if TYPE_CHECKING:
    from pydantic import ValidationError

RESULT_FILE = "run.json"
"""The name of the result in an output directory."""

MAX_BYTES = 256 * 2**20

_WRONG = {
    "greater": "must not be below zero", "less": "is not a finite number below 1e+30", "int": "is not a whole number",
    "float": "is not a number", "finite": "is not a finite number below 1e+30", "string": "is not text",
    "tuple": "is not a list",
}  # fmt: skip
"""Messages on a wrong value, by the first word of pydantic's error type; all other values are mappings."""


_LATER = {"bank_conflict", "vector_work", "conversion"}
"""Stall causes that older results do not have; no cycle of theirs goes to them."""


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
    """Read the result in a JSON text; unknown keys are ignored. Raises InputError."""
    # Imported here, as the import takes longer than writing a small result.
    from pydantic import TypeAdapter, ValidationError

    try:
        result = TypeAdapter(Result).validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"not a tpusim result: {_first_problem(error)}") from None
    if not result.layers:
        raise InputError("not a tpusim result: it has no layers")
    # An older version lowered all layers alike, and stored the lowering once, in the result.
    named = (each if each.lowering else replace(each, lowering=result.lowering) for each in result.layers)
    result = replace(result, layers=tuple(named))
    for layer in result.layers:
        _validate(layer, f"layer {layer.name}")
    _validate(result.total, "total")
    return result


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


def _validate(record: LayerResult, name: str) -> None:
    """Check the values that plots divide by and look up."""
    if record.cycles <= 0 or record.time_us <= 0:
        raise InputError(f"{name}: cycles and time_us must be above zero")
    main = main_unit(record) if record.units else ARRAY_UNIT
    if sum(record.units.get(main, {}).values()) != record.cycles:
        raise InputError(f"{name}: the cycles of units.{main} do not add up to `cycles`")
    for unit, split in record.units.items():
        if not any(split.values()) or "idle" not in split:
            raise InputError(f"{name}: units.{unit} must hold cycles, idle ones among them")
    if main == ARRAY_UNIT and set(STALL_CAUSES) - set(record.stall_cycles) - _LATER:
        raise InputError(f"{name}: stall_cycles must hold {', '.join(STALL_CAUSES)}")
