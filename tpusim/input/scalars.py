"""Validation of single YAML values, with messages that say how to write a good one.

Whole numbers may be sums and products of numbers and names, such as batch*197: the text is parsed, and the tree is
evaluated with the few operations below. Nothing in it is ever executed.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from tpusim.base.errors import InputError, did_you_mean

INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]{0,39})")
RATIONAL = re.compile(
    r"[-+]?([0-9]{1,20}/[1-9][0-9]{0,19}|([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][-+]?[0-9]{1,2})?)"
)
FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]{1,2})?")

_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_SUM = re.compile(r"[\w.]*[-+*/()\s][-+*/()\s\w.]*")
"""Text that is meant as an expression; "3x3" and "0x10" match, too, so that the message fits."""
_ODD_NUMBER = re.compile(r"\b\d\w*[^\W\d_]")
"""Numbers of Python that YAML does not know: 0x10, 1e3."""
_NO_SUM = "it is no sum of whole numbers"
_LONGEST = 200
"""Most characters of an expression, which also limits the depth of its tree and the digits of a number."""


def whole_number(value: object, least: int, most: int) -> int:
    """`value` if it is an integer in [least, most]. Raises InputError that says how to write one."""
    allowed = f"a whole number, {least} to {most}"
    number = integer(value)
    if number is None:
        why, meant = _why_not_whole(value)
        raise InputError(f"{show(value)} {why}; write {f'{meant} ({allowed})' if meant else allowed}")
    if not least <= number <= most:
        raise InputError(f"{show(number)} is out of range; write {allowed}")
    return number


def rational_number(value: object, most: int, least: Fraction | int = 0) -> Fraction:
    """`value` if it is a number in [least, most]; a float is what its digits say. Raises InputError."""
    such_as = "13.4" if most > 13 else "0.75"
    allowed = f"a number, {plain_number(Fraction(least))} to {most}, such as {such_as} or 3/4"
    whole, text = integer(value), str(value) if isinstance(value, float) else value
    number = value if isinstance(value, Fraction) else None if whole is None else Fraction(whole)
    if number is None and isinstance(text, str) and RATIONAL.fullmatch(text):
        number = Fraction(text)
    if number is None:
        raise InputError(f"{show(value)} is not a number; write {allowed}")
    if not least <= number <= most:
        raise InputError(f"{show(value)} is out of range; write {allowed}")
    return number


def plain_number(number: Fraction) -> int | float | str:
    """The plainest form that `rational_number` reads as `number`: 6, 13.4 or "1/3"."""
    if number.denominator == 1:
        return number.numerator
    return float(number) if Fraction(str(float(number))) == number else str(number)


def integer(value: Any) -> int | None:
    """`value` as a plain int if it is an integer of any type, NumPy's too; None for everything else, truth values
    included.
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def name_text(value: object) -> str:
    """`value` if it is one line of text of 1 to 200 characters. Raises InputError."""
    if isinstance(value, bool | int | float):
        raise InputError(f'{show(value)} is not text; put it in quotes: "{show(value)}"')
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{show(value)} is not a name; write some text")
    if not value.isprintable() or len(value) > 200:
        raise InputError(f"{show(value)} is not a name; write one line of at most 200 printable characters")
    return value


def dated_name(value: object) -> str | None:
    """`value` if it is a name and a year, "TPU v5e, 2023", or None. Raises InputError."""
    if value is not None and not re.fullmatch(r".*\S, (19|20)\d\d", name_text(value)):
        raise InputError(f"{show(value)} has no year; write a name and a year, such as TPU v5e, 2023")
    return None if value is None else str(value)


def show(value: object) -> str:
    """`value` as the user may have written it, cut to a length fit for a message."""
    if isinstance(value, dict):
        return "a mapping"
    if value is None:
        return "an empty value"
    number = integer(value)
    if number is not None and abs(number) >= 10**40:
        return "a number of over 40 digits"
    text = json.dumps(value if number is None else number, default=repr, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unknown_key(key: str, allowed: Iterable[str], hint: str = "", inside: str = "") -> str:
    """Message about a key that is none of `allowed`; `inside` (" in array") names the section."""
    return f"unknown key {show(key)}{hint or ';'} allowed{inside}: {', '.join(allowed)}"


def path_of(places: Iterable[str | int]) -> str:
    """The path to a value from indexes, keys and paths; "" is skipped: "layers[0].kernel"."""
    parts = (f"[{place}]" if isinstance(place, int) else f".{place}" if place else "" for place in places)
    return "".join(parts).replace(".[", "[").removeprefix(".")


def _why_not_whole(value: object) -> tuple[str, str]:
    """Why `value` is no whole number, and what was probably meant ("" if unclear)."""
    if isinstance(value, bool):
        return "is a truth value (YAML reads yes, no, on and off so)", ""
    if isinstance(value, str) and INTEGER.fullmatch(value):
        return "is text because it is in quotes", f"{value} without them"
    number = float(value.replace("_", "")) if isinstance(value, str) and FLOAT.fullmatch(value) else value
    if not isinstance(number, float):
        return "is not a number", ""
    meant = str(int(number)) if abs(number) < 1e15 and number.is_integer() else ""
    return "is not a whole number" if number is value else "is not a plain number to YAML", meant


def worked_out(value: object, names: Mapping[str, int]) -> object:
    """The whole number that the text `value` works out to; any other value, and text that is no expression, unchanged.

    Raises:
        InputError: a name that is none of `names`, another operation, a division by zero, or a text too long.
    """
    if not isinstance(value, str) or value.isidentifier():
        return names.get(value, value) if isinstance(value, str) else value
    if len(value) > _LONGEST:
        raise InputError(f"a size is worked out from at most {_LONGEST} characters; this has {len(value)}")
    # Such text is left to the field's own reader, whose message fits the field.
    if FLOAT.fullmatch(value.strip()) or not _SUM.fullmatch(value):
        return value
    try:
        # Python would read 0x10 or 1e3, which are no whole numbers in YAML.
        if _ODD_NUMBER.search(value):
            raise InputError(_NO_SUM)
        try:
            tree = ast.parse(value.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InputError(_NO_SUM) from None
        return _number(tree, names)
    except ZeroDivisionError:
        raise InputError(f"{show(value)} divides by zero") from None
    except InputError as error:
        allowed = f"whole numbers, {', '.join(names)}, + - * // and parentheses"
        raise InputError(f"{show(value)}: {error}; write {allowed}, e.g. {next(iter(names))}*197") from None


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
