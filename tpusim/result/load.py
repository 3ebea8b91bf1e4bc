"""Read a result back from its JSON."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError
from tpusim.input.scalars import path_of
from tpusim.result.records import STALL_CAUSES, LayerResult, Result, Total

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

RESULT_FILE = "run.json"
"""The name of the result in an output directory."""

MAX_BYTES = 256 * 2**20

_WRONG = {
    "greater_than_equal": "must not be below zero",
    **dict.fromkeys(("less_than", "finite_number"), "is not a finite number below 1e+30"),
}
"""What is wrong with a value, by pydantic's name for it; else it is of another type than expected."""

_EXPECTED = {"int": "a whole number", "float": "a number", "string": "text", "tuple": "a list"}
"""By what pydantic calls a type; the rest are mappings."""


def read_result(path: Path) -> Result:
    """The result in `path`, a result JSON or a directory that holds run.json.

    Raises:
        InputError: when there is none; says what is missing.
    """
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        return parse_result(_text(file))
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def parse_result(text: str) -> Result:
    """The result in a JSON text. Keys that this version does not know are ignored. Raises InputError."""
    # Here, because it takes longer to import than a small result to write.
    from pydantic import ValidationError

    try:
        result = _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"not a tpusim result: {_first_problem(error)}") from None
    if not result.layers:
        raise InputError("not a tpusim result: it has no layers")
    for layer in result.layers:
        _validate(layer, f"layer {layer.name}")
    _validate(result.total, "total")
    return result


@cache
def _adapter() -> TypeAdapter[Result]:
    from pydantic import TypeAdapter

    return TypeAdapter(Result)


def _text(file: Path) -> str:
    try:
        if file.stat().st_size <= MAX_BYTES:
            return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("no such file; write one with `tpusim run WORKLOAD --out DIR`") from None
    except UnicodeDecodeError:
        raise InputError("not a tpusim result: not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({getattr(error, 'strerror', error)})") from None
    raise InputError(f"larger than {MAX_BYTES // 2**20} MiB; this is not a tpusim result")


def _first_problem(error: ValidationError) -> str:
    first, *others = error.errors(include_url=False)
    kind, where, above = first["type"], path_of(first["loc"]), first["loc"][:-1]
    if kind == "json_invalid":
        return f"not JSON ({first['ctx']['error']})"
    if where in ("", "tpusim"):
        return 'no "tpusim" key; give a file written by `tpusim run --json` or --out'
    if kind == "missing":
        keys = [str(each["loc"][-1]) for each in (first, *others) if each["type"] == kind and each["loc"][:-1] == above]
        return f"{path_of(above) or 'the file'} has no {', '.join(keys)}"
    return f"{where} {_WRONG.get(kind) or 'is not ' + _EXPECTED.get(kind.partition('_')[0], 'a mapping')}"


def _validate(record: LayerResult | Total, name: str) -> None:
    """What plots divide by and look up."""
    if record.cycles <= 0 or record.time_us <= 0:
        raise InputError(f"{name}: cycles and time_us must be above zero")
    if sum(record.units.get("systolic_array", {}).values()) != record.cycles:
        raise InputError(f"{name}: the cycles of units.systolic_array do not add up to `cycles`")
    for unit, split in record.units.items():
        if not any(split.values()):
            raise InputError(f"{name}: units.{unit} must hold cycles")
    if set(STALL_CAUSES) - set(record.stall_cycles):
        raise InputError(f"{name}: stall_cycles must hold {', '.join(STALL_CAUSES)}")
