"""Quantities with their unit in the text: from "700 MHz" to exact integers, and back.

Everything is a whole number of its base unit (Hz, bytes, bytes/s, picoseconds), so no rounding can make
two engines disagree about a cycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

from tpusim.base.errors import InputError, did_you_mean

_NUMBER = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?(?P<exponent>[0-9]+))?")
_MOST_CHARACTERS = 40
_MOST_EXPONENT_DIGITS = 2
_NOT_FINITE = re.compile(r"[-+]?\.?(nan|inf|infinity)\b", re.IGNORECASE)


@dataclass(frozen=True)
class QuantityKind:
    """A kind of quantity, such as a frequency, and the units in which it is written.

    `scales` maps the spelling of each unit to its size in `base` units, in the order in which `format` tries them.
    """

    kind: str
    base: str
    example: str
    scales: Mapping[str, int]

    def parse(self, text: object) -> int:
        """Whole number of base units in a text such as "700 MHz".

        Raises InputError when the unit is missing or unknown, or the number is zero, negative, not finite,
        or not a whole number of base units.
        """
        if isinstance(text, bool) or not isinstance(text, int | float | str):
            raise InputError(f"a {self.kind} is text with a unit; write e.g. {self.example}")
        number, suffix = self._split(str(text).strip())
        if number <= 0:
            raise InputError(f"{text!r} is not positive; write a {self.kind} above zero, e.g. {self.example}")
        amount = number * self.scales[suffix]
        if amount.denominator != 1:
            raise InputError(f"{text!r} is not a whole number of {self.base}; write e.g. {self.example}")
        return amount.numerator

    def format(self, amount: int) -> str:
        """Text in the first spelling that holds `amount` in three decimals; `parse` gives `amount` back."""
        held = (each for each in self.scales.items() if amount >= each[1] and amount * 1000 % each[1] == 0)
        suffix, scale = next(held)
        whole, part = divmod(amount * 1000 // scale, 1000)
        return f"{whole}.{part:03d}".rstrip("0").rstrip(".") + f" {suffix}"

    def _split(self, text: str) -> tuple[Fraction, str]:
        match = _NUMBER.match(text)
        if match is None:
            wrong = "finite" if _NOT_FINITE.match(text) else f"a {self.kind}"
            raise InputError(f"{text[:40]!r} is not {wrong}; write a number and a unit, e.g. {self.example}")
        # Without this limit "1e999999999 Hz" would be an hour of arithmetic in place of an error.
        if match.end() > _MOST_CHARACTERS or len(match["exponent"] or "") > _MOST_EXPONENT_DIGITS:
            raise InputError(f"{text[:40]!r} is out of range; write e.g. {self.example}")
        suffix = text[match.end() :].strip()
        if not suffix:
            raise InputError(f"{text} has no unit; write e.g. {self.example}")
        if suffix not in self.scales:
            hint = did_you_mean(suffix, self.scales) or ";"
            raise InputError(f"unknown unit {suffix[:40]!r} for a {self.kind}{hint} units: {', '.join(self.scales)}")
        return Fraction(match.group().replace("_", "")), suffix


_BINARY = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_DECIMAL = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "KB": 10**3}
_RATES = {f"{name}/s": scale for name, scale in {**_DECIMAL, **_BINARY, "B": 1}.items()}

FREQUENCY = QuantityKind(
    "frequency", "Hz", "700 MHz", {"GHz": 10**9, "MHz": 10**6, "kHz": 10**3, "KHz": 10**3, "Hz": 1}
)
SIZE = QuantityKind("size", "bytes", "256 KiB", {**_BINARY, **_DECIMAL, "B": 1})
BANDWIDTH = QuantityKind("bandwidth", "bytes/s", "700 GB/s", _RATES)
TIME = QuantityKind("time", "picoseconds", "100 ns", {"s": 10**12, "ms": 10**9, "us": 10**6, "ns": 10**3, "ps": 1})
UNITS = (BANDWIDTH, FREQUENCY, SIZE, TIME)
"""The kinds of quantities of a machine; the others are of a technology."""

LENGTH = QuantityKind("length", "nanometres", "45 nm", {"m": 10**9, "mm": 10**6, "um": 10**3, "nm": 1})
AREA = QuantityKind("area", "square nanometres", "6.6 mm2", {"m2": 10**18, "mm2": 10**12, "um2": 10**6, "nm2": 1})
ENERGY = QuantityKind(
    "energy",
    "attojoules",
    "0.9 pJ",
    {"J": 10**18, "mJ": 10**15, "uJ": 10**12, "nJ": 10**9, "pJ": 10**6, "fJ": 10**3, "aJ": 1},
)
POWER = QuantityKind(
    "power", "picowatts", "124 mW", {"kW": 10**15, "W": 10**12, "mW": 10**9, "uW": 10**6, "nW": 10**3, "pW": 1}
)


def number(text: str) -> float | None:
    """A finite number, an int where it is whole; None for anything else."""
    try:
        found = float(text)
    except ValueError:
        return None
    return None if not isfinite(found) else int(found) if found.is_integer() else found


def magnitude(text: str) -> float | None:
    """Size of a number or a quantity, such as "100 GB/s" in bytes a second; None for a word."""
    found = number(text)
    for unit in UNITS if found is None else ():
        with suppress(InputError):
            return float(unit.parse(text))
    return found
