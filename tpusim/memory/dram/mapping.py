"""How the bits of an address name a channel, a bank group, a bank, a row and a column."""

from __future__ import annotations

import re
from collections.abc import Mapping as Table
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError, did_you_mean
from tpusim.input.scalars import show

Numbers = NDArray[np.int64]

LETTERS = {"ro": "row", "bg": "group", "ba": "bank", "ch": "channel", "co": "column", "ra": "rank"}
"""The pairs of letters in which DRAMsim3 writes a mapping, highest bits first."""

FIELDS = tuple(LETTERS.values())
"""Of a burst's number, by the place they have in `Mapping.cuts`."""

_WORD = re.compile(r"([a-z]+)([1-9][0-9]?)?")
_EXAMPLE = "row:group:bank:channel:column, or by letters rorabgbachco"


@dataclass(frozen=True)
class Mapping:
    """Runs of address bits by the field they belong to, lowest first: (field, bits); above the bits of a burst.

    Addresses beyond the capacity begin again at 0. With `hashed`, group and bank are XORed with the lowest bits
    of the row, so that rows one behind the other lie in different banks (permutation-based interleaving: Zhang, Zhu,
    Zhang, MICRO 2000).
    """

    runs: tuple[tuple[str, int], ...]
    burst_bytes: int
    banks: int
    groups: int
    hashed: bool = False

    @classmethod
    def read(cls, text: str, sizes: Table[str, int], burst_bytes: int, hashed: bool) -> Mapping:
        """The mapping of a text, "rorabgbachco" or "row:bank:column3:channel:column2" (a number: so many bits).

        `bank` without `group` stands for bank:group. `sizes` are powers of two. Raises InputError.
        """
        bits = {field: size.bit_length() - 1 for field, size in sizes.items()}
        runs = _shared_out(_fields(text), {**bits, "rank": 0}, text)
        return cls(tuple(reversed(runs)), burst_bytes, sizes["bank"], sizes["group"], hashed)

    @property
    def channels(self) -> int:
        """How many channels it tells apart."""
        return 1 << sum(width for field, width in self.runs if field == "channel")

    @cached_property
    def cuts(self) -> Numbers:
        """As numbers, int64[runs + 1, 5].

        Of each run: the place of its field in FIELDS, its lowest bit in the number of a burst, the mask of its bits
        shifted there, how many lower bits its field has elsewhere. The first row is of the whole: bits of a place in a
        burst, the mask of the number of a burst, the change of that number from which on the row may be another, bits
        of a bank in its group, the mask of the row's bits that the bank is hashed with.
        """
        runs = [(field, width) for field, width in self.runs if width]
        rows, at, taken = [[0] * 5], 0, dict.fromkeys(FIELDS, 0)
        for field, width in runs:
            rows.append([FIELDS.index(field), at, (1 << width) - 1, taken[field], 0])
            at, taken[field] = at + width, taken[field] + width
        same = 1 << runs[0][1] if runs and runs[0][0] == "column" else 1
        hashed = self.groups * self.banks - 1 if self.hashed else 0
        rows[0] = [self.burst_bytes.bit_length() - 1, (1 << at) - 1, same, self.banks.bit_length() - 1, hashed]
        return np.array(rows, np.int64)


def _fields(text: str) -> list[tuple[str, int | None]]:
    """The fields of a mapping, highest first, and how many bits each takes; None for those that are left."""
    if ":" not in text and len(text) % 2 == 0 and text[:2] in LETTERS:
        return [_letters(text[at : at + 2], text) for at in range(0, len(text), 2)]
    found = [field for word in text.split(":") for field in _word(word.strip(), text)]
    if not any(name == "group" for name, _ in found):
        at = [index for index, (name, _) in enumerate(found) if name == "bank"]
        found[at[-1] + 1 : at[-1] + 1] = [("group", None)] if at else []
    return found


def _letters(pair: str, text: str) -> tuple[str, None]:
    if pair not in LETTERS:
        known = ", ".join(f"{letters} ({name})" for letters, name in LETTERS.items())
        raise InputError(f"{show(text)}: no field {show(pair)}; the letters are {known}")
    return LETTERS[pair], None


def _word(word: str, text: str) -> list[tuple[str, int | None]]:
    match = _WORD.fullmatch(word)
    if match is None or match[1] not in LETTERS.values():
        hint = did_you_mean(word, LETTERS.values()) or ";"
        known = ", ".join(LETTERS.values())
        raise InputError(f"{show(text)}: no field {show(word)}{hint} fields are {known}; write {_EXAMPLE}")
    return [(match[1], int(match[2]) if match[2] else None)]


def _shared_out(fields: list[tuple[str, int | None]], bits: Table[str, int], text: str) -> list[tuple[str, int]]:
    """The bits that each run takes, highest first. Raises InputError where some are missing or too many."""
    left = {name: bits[name] - sum(width or 0 for each, width in fields if each == name) for name in bits}
    runs = []
    for name, width in fields:
        open_runs = sum(1 for each, other in fields if each == name and other is None)
        if open_runs > 1:
            raise InputError(f"{show(text)}: {name} stands there {open_runs} times; say how many bits, such as {name}2")
        runs.append((name, left[name] if width is None else width))
    given = {name: sum(width for each, width in runs if each == name) for name in bits}
    wrong = [f"{name} has {bits[name]} bits, given {given[name]}" for name in bits if given[name] != bits[name]]
    negative = any(width < 0 for _, width in runs)
    if wrong or negative:
        what = "; ".join(wrong) or "a field is given more bits than it has"
        raise InputError(f"{show(text)} does not name every bit once: {what}; write {_EXAMPLE}")
    return runs
