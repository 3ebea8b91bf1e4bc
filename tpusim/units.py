"""Quantities with their unit in the text: "700 MHz" in, exact integers out, and back.

Everything is a whole number of its base unit (Hz, bytes, bytes/s, picoseconds), so no rounding can make
two engines disagree about a cycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from tpusim.errors import InputError, did_you_mean

# The lengths are bounded so that "1e999999999 Hz" is an error and not an hour of arithmetic.
_NUMBER = re.compile(r"[-+]?(\d[\d_]{0,29}(\.\d{0,30})?|\.\d{1,30})([eE][-+]?\d{1,2})?")
_NOT_FINITE = re.compile(r"[-+]?\.?(nan|inf|infinity)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """A kind of quantity.

    `scales` maps each spelling to how many `base` units it is, in the order `format` tries them.
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
        if not isinstance(text, str):
            raise InputError(self._no_unit(text))
        number, suffix = self._split(text.strip())
        if number <= 0:
            raise InputError(f"{text!r} is not positive; write a {self.kind} above zero, e.g. {self.example}")
        amount = number * self.scales[suffix]
        if amount.denominator != 1:
            raise InputError(f"{text!r} is not a whole number of {self.base}; write e.g. {self.example}")
        return amount.numerator

    def format(self, amount: int) -> str:
        """Text in the first spelling that holds `amount` base units exactly; `parse` gives `amount` back."""
        suffix = next(name for name, scale in self.scales.items() if amount % scale == 0)
        return f"{amount // self.scales[suffix]} {suffix}"

    def _split(self, text: str) -> tuple[Fraction, str]:
        match = _NUMBER.match(text)
        if match is None:
            raise InputError(self._not_a_number(text))
        suffix = text[match.end() :].strip()
        if not suffix:
            raise InputError(self._no_unit(text))
        if suffix not in self.scales:
            hint = did_you_mean(suffix, self.scales)
            raise InputError(
                f"unknown unit {suffix[:40]!r} for a {self.kind}{hint} Units: {', '.join(self.scales)}"
                if hint
                else f"unknown unit {suffix[:40]!r} for a {self.kind}; units: {', '.join(self.scales)}"
            )
        return Fraction(match.group().replace("_", "")), suffix

    def _no_unit(self, given: object) -> str:
        if isinstance(given, bool) or not isinstance(given, int | float | str):
            return f"a {self.kind} is text with a unit; write e.g. {self.example}"
        return f"{given} has no unit; write e.g. {self.example}"

    def _not_a_number(self, text: str) -> str:
        if _NOT_FINITE.match(text):
            return f"{text!r} is not finite; write e.g. {self.example}"
        return f"{text[:40]!r} is not a {self.kind}; write a number and a unit, e.g. {self.example}"


def _scales(**scales: int) -> Mapping[str, int]:
    return MappingProxyType(scales)


def _per_second(scales: Mapping[str, int]) -> Mapping[str, int]:
    return MappingProxyType({f"{name}/s": scale for name, scale in scales.items()})


_BINARY = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_DECIMAL = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "KB": 10**3}

FREQUENCY = Unit("frequency", "Hz", "700 MHz", _scales(GHz=10**9, MHz=10**6, kHz=10**3, KHz=10**3, Hz=1))
SIZE = Unit("size", "bytes", "256 KiB", _scales(**_BINARY, **_DECIMAL, B=1))
BANDWIDTH = Unit("bandwidth", "bytes/s", "700 GB/s", _per_second({**_DECIMAL, **_BINARY, "B": 1}))
TIME = Unit("time", "picoseconds", "100 ns", _scales(s=10**12, ms=10**9, us=10**6, ns=10**3, ps=1))
