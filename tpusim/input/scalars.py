"""Validation of single values as YAML gave them, with messages that say how to write a good one."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tpusim.base.errors import InputError

INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]{0,39})")
RATIONAL = re.compile(
    r"[-+]?([0-9]{1,20}/[1-9][0-9]{0,19}|([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][-+]?[0-9]{1,2})?)"
)
FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]{1,2})?")


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
    number = _fraction(value)
    if number is None:
        raise InputError(f"{show(value)} is not a number; write {allowed}")
    if not least <= number <= most:
        raise InputError(f"{show(value)} is out of range; write {allowed}")
    return number


def _fraction(value: object) -> Fraction | None:
    """A number or its text, exactly; None for all else."""
    if isinstance(value, Fraction):
        return value
    if (whole := integer(value)) is not None:
        return Fraction(whole)
    text = str(value) if isinstance(value, float) else value
    return Fraction(text) if isinstance(text, str) and RATIONAL.fullmatch(text) else None


def plain_number(number: Fraction) -> int | float | str:
    """The plainest that `rational_number` reads as `number`: 6, 13.4 or "1/3"."""
    if number.denominator == 1:
        return number.numerator
    return float(number) if Fraction(str(float(number))) == number else str(number)


def integer(value: Any) -> int | None:
    """`value` as a plain int if it is an integer of any type, NumPy's too; None for all else, truth values included."""
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
    """The message for a key that is none of `allowed`; `inside` (" in array") says of what."""
    return f"unknown key {show(key)}{hint or ';'} allowed{inside}: {', '.join(allowed)}"


def path_of(places: Iterable[str | int]) -> str:
    """The path to a value by the indexes, keys and paths that lead there, "" being none: "layers[0].kernel"."""
    parts = (f"[{place}]" if isinstance(place, int) else f".{place}" if place else "" for place in places)
    return "".join(parts).replace(".[", "[").removeprefix(".")


def _why_not_whole(value: object) -> tuple[str, str]:
    """Why `value` is no whole number, and what its writer probably meant ("" if unclear)."""
    if isinstance(value, bool):
        return "is a truth value (YAML reads yes, no, on and off so)", ""
    if isinstance(value, str) and INTEGER.fullmatch(value):
        return "is text because it is in quotes", f"{value} without them"
    number = float(value.replace("_", "")) if isinstance(value, str) and FLOAT.fullmatch(value) else value
    if not isinstance(number, float):
        return "is not a number", ""
    meant = str(int(number)) if abs(number) < 1e15 and number.is_integer() else ""
    return "is not a whole number" if number is value else "is not a plain number to YAML", meant
