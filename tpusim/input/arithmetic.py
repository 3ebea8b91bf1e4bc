"""Whole numbers as files may write them: sums and products of numbers and names, such as batch*197.

The text is parsed, and the tree worked out by the few operations below: nothing of it is ever run.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

from tpusim.base.errors import InputError, did_you_mean
from tpusim.input.scalars import FLOAT, show

_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_SUM = re.compile(r"[\w.]*[-+*/()\s][-+*/()\s\w.]*")
"""What somebody means to be worked out; anything else is told as what it is, "3x3" and "0x10" too."""
_ODD_NUMBER = re.compile(r"\b\d\w*[^\W\d_]")
"""Numbers that Python knows and YAML does not: 0x10, 1e3."""
_NO_SUM = "it is no sum of whole numbers"
_LONGEST = 200
"""Characters; the tree is never deeper, and no number has more digits."""


def worked_out(value: object, names: Mapping[str, int]) -> object:
    """The whole number that the text `value` works out to; any other value, and text that is no sum, as it is.

    Raises:
        InputError: a name that is none of `names`, another operation, a division by zero, or a text too long.
    """
    if not isinstance(value, str) or value.isidentifier():
        return names.get(value, value) if isinstance(value, str) else value
    if len(value) > _LONGEST:
        raise InputError(f"a size is worked out from at most {_LONGEST} characters; this has {len(value)}")
    if FLOAT.fullmatch(value.strip()) or not _SUM.fullmatch(value):
        return value
    try:
        return _number(_parsed(value), names)
    except ZeroDivisionError:
        raise InputError(f"{show(value)} divides by zero") from None
    except InputError as error:
        allowed = f"whole numbers, {', '.join(names)}, + - * // and parentheses"
        raise InputError(f"{show(value)}: {error}; write {allowed}, e.g. {next(iter(names))}*197") from None


def _parsed(text: str) -> ast.expr:
    if _ODD_NUMBER.search(text):
        raise InputError(_NO_SUM)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(_NO_SUM) from None


def _number(node: ast.expr, names: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:
            return number
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name):
            raise InputError(f"no size is called {name!r}{did_you_mean(name, names)}")
        case ast.BinOp(op=operation) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_number(node.left, names), _number(node.right, names))
        case ast.UnaryOp(op=ast.USub()):
            return -_number(node.operand, names)
        case ast.BinOp(op=ast.Div()):
            raise InputError("/ is not allowed, // divides whole numbers")
        case _:
            raise InputError(_NO_SUM)
