"""Conditions on a machine, as a sweep's `where` states them: "vector_memory.capacity * lanes == 32 MiB"."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpusim.errors import InputError, did_you_mean
from tpusim.hardware import Hardware, hardware_paths
from tpusim.units import BANDWIDTH, FREQUENCY, SIZE, TIME

_UNITS = {suffix: unit for unit in (BANDWIDTH, FREQUENCY, SIZE, TIME) for suffix in unit.scales}
_QUANTITY = re.compile(rf"(?<![\w.])(\d+(?:\.\d+)?)\s*({'|'.join(sorted(_UNITS, key=len, reverse=True))})(?![\w/])")
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult,
    ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Name,
    ast.Load, ast.Constant,
)  # fmt: skip
_WORDS = ("and", "or", "not")
_EXTRA = ("lanes", "pes", "batch")


@dataclass(frozen=True)
class Constraint:
    """`text` as it was written; sizes, rates, frequencies and times count base units."""

    text: str

    def holds(self, hardware: Hardware, batch: int) -> bool:
        """Whether a machine and a batch satisfy it. Raises InputError for sums of texts, and division by zero."""
        try:
            return bool(eval(_compiled(self.text), {"__builtins__": {}}, _values(hardware, batch)))
        except (TypeError, ZeroDivisionError) as error:
            raise InputError(f"where: {self.text!r} cannot be worked out ({error})") from None

    @classmethod
    def parse(cls, text: object) -> Constraint:
        """Raises InputError that says which name or construct is wrong."""
        if not isinstance(text, str) or not text.strip():
            raise InputError("a condition is text such as vector_memory.capacity * lanes == 32 MiB")
        known = (*(path for path in hardware_paths() if path != "array.size"), *_EXTRA)
        for path in _PATH.findall(_QUANTITY.sub("0", text)):
            if path not in known and path not in _WORDS:
                raise InputError(f"no field {path!r}{did_you_mean(path, known) or ';'} fields: {', '.join(known)}")
        try:
            tree = ast.parse(_python(text), mode="eval")
        except SyntaxError:
            raise InputError(f"{text!r} is not a condition; write e.g. array.rows == array.cols") from None
        if not all(map(_is_allowed, ast.walk(tree))) or not _is_condition(tree.body):
            raise InputError(f"{text!r} is not a condition; write comparisons of sums and products, e.g. lanes <= 256")
        return cls(text)


def _is_condition(node: ast.AST) -> bool:
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, ast.Compare | ast.BoolOp)


def _is_allowed(node: ast.AST) -> bool:
    return isinstance(node, _ALLOWED) and (not isinstance(node, ast.Constant) or isinstance(node.value, int | float))


def _compiled(text: str) -> Any:
    return compile(_python(text), "where", "eval")


def _python(text: str) -> str:
    """Quantities as whole numbers, dots of paths as underscores."""
    plain = _QUANTITY.sub(lambda match: str(_UNITS[match[2]].parse(match[0])), text)
    return _PATH.sub(lambda match: match[0].replace(".", "__"), plain)


def _values(hardware: Hardware, batch: int) -> Mapping[str, object]:
    values: dict[str, object] = {"lanes": hardware.lanes, "pes": hardware.pes, "batch": batch}
    for name, info in type(hardware).model_fields.items():
        part = getattr(hardware, name)
        fields = getattr(type(part), "model_fields", None)
        if fields is None:
            values[info.serialization_alias or name] = part
            continue
        for key, inner in fields.items():
            values[f"{name}__{inner.serialization_alias or key}"] = getattr(part, key)
    return values
