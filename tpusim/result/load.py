"""Read a result back from its JSON."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from tpusim.base.errors import InputError
from tpusim.result.records import STALL_CAUSES, LayerResult, Result, Total

RESULT_FILE = "run.json"
"""The name of the result in an output directory."""

MAX_BYTES = 256 * 2**20

MOST = 1e30
"""No figure of a result comes near it."""


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
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a tpusim result: not JSON ({error})") from None
    if "\\ud" in text.lower() and not _encodes(data):
        raise InputError("not a tpusim result: a name holds half of a character (\\ud800 to \\udfff)")
    if not isinstance(data, dict) or "tpusim" not in data:
        raise InputError('not a tpusim result: no "tpusim" key; give a file written by `tpusim run --json` or --out')
    result: Result = _value(Result, data, "")
    if not result.layers:
        raise InputError("not a tpusim result: it has no layers")
    for layer in result.layers:
        _check(layer, f"layer {layer.name}")
    _check(result.total, "total")
    return result


def _encodes(data: Any) -> bool:
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputError(f"larger than {MAX_BYTES // 2**20} MiB; this is not a tpusim result")
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("no such file; write one with `tpusim run WORKLOAD --out DIR`") from None
    except UnicodeDecodeError:
        raise InputError("not a tpusim result: not UTF-8 text") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot be read ({getattr(error, 'strerror', error)})") from None


def _check(record: LayerResult | Total, name: str) -> None:
    """What plots divide by and look up."""
    if record.cycles <= 0 or record.time_us <= 0:
        raise InputError(f"{name}: cycles and time_us must be above zero")
    negative = [key for key, value in vars(record).items() if isinstance(value, int | float) and value < 0]
    if negative:
        raise InputError(f"{name}: {', '.join(negative)} must not be below zero")
    if sum(record.units.get("systolic_array", {}).values()) != record.cycles:
        raise InputError(f"{name}: the cycles of units.systolic_array do not add up to `cycles`")
    for unit, split in record.units.items():
        if min(split.values(), default=-1) < 0 or not any(split.values()):
            raise InputError(f"{name}: units.{unit} must hold cycles, none of them below zero")
    if set(STALL_CAUSES) - set(record.stall_cycles):
        raise InputError(f"{name}: stall_cycles must hold {', '.join(STALL_CAUSES)}")


def _value(kind: Any, data: Any, where: str) -> Any:
    """`data` as the type `kind`, which is any used by a field of Result."""
    if is_dataclass(kind):
        return _record(kind, data, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Mapping:
        return {key: _value(arguments[1], value, f"{where}.{key}") for key, value in _mapping(data, where).items()}
    if origin is tuple:
        return tuple(_value(arguments[0], value, f"{where}[{i}]") for i, value in enumerate(_list(data, where)))
    if origin in (Union, types.UnionType):
        return None if data is None else _value(arguments[0], data, where)
    return data if kind is Any else _scalar(kind, data, where)


def _record(kind: Any, data: Any, where: str) -> Any:
    given, hints = _mapping(data, where), _hints(kind)
    missing = [field.name for field in fields(kind) if field.name not in given]
    if missing:
        raise InputError(f"not a tpusim result: {where or 'the file'} has no {', '.join(missing)}".replace(" .", " "))
    return kind(**{name: _value(hint, given[name], f"{where}.{name}") for name, hint in hints.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _scalar(kind: type, data: Any, where: str) -> Any:
    allowed: tuple[type, ...] = (int, float) if kind is float else (kind,)
    if not isinstance(data, allowed) or isinstance(data, bool):
        _wrong(f"a {kind.__name__}", where)
    if kind is not str and not -MOST < data < MOST:
        _wrong(f"a finite number below {MOST:g}", where)
    return data


def _mapping(data: Any, where: str) -> dict[str, Any]:
    return data if isinstance(data, dict) else _wrong("a mapping", where)


def _list(data: Any, where: str) -> list[Any]:
    return data if isinstance(data, list) else _wrong("a list", where)


def _wrong(expected: str, where: str) -> Any:
    raise InputError(f"not a tpusim result: {where.lstrip('.') or 'the file'} is not {expected}")
