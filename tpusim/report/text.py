"""Numbers, names and sentences as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import fill

from rich.cells import cell_len

from tpusim.result.vocabulary.figures import Figure, Scales

FREQUENCIES: Scales = (("MHz", 1e6), ("kHz", 1e3), ("Hz", 1.0))


def percent(ratio: float) -> str:
    """Write a ratio in percent, in at most four characters up to 100; "0" is exactly nothing."""
    if ratio == 0 or ratio >= 0.9995:
        return f"{100 * ratio:.0f}"
    return f"{100 * ratio:.1f}"


def three_digits(value: float) -> str:
    """Write three significant digits, and of a longer number all before the point; never an exponent."""
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return "0" if value == 0 else f"{value:,.{decimals}f}"


def quantity(value: float, units: Scales) -> str:
    """Write `value` in the largest unit that it has at least one of: "17.64 ms"."""
    unit, size = scale([value], units)
    return f"{value:,.0f} {unit}" if size == 1 and value == int(value) else f"{value / size:,.2f} {unit}"


def frequency(hertz: float) -> str:
    """Write a clock in MHz, a slower one in kHz or Hz: "700 MHz"."""
    unit, size = next((each for each in FREQUENCIES if hertz >= each[1]), FREQUENCIES[-1])
    return f"{hertz / size:g} {unit}"


def scale(values: Iterable[float | None], units: Scales) -> tuple[str, float]:
    """Return the largest unit that the greatest of `values` has at least one of."""
    greatest = max((value for value in values if value is not None), default=0.0)
    return next(((unit, size) for unit, size in units if greatest >= size), units[-1])


def column_scale(values: Iterable[float | None], units: Scales) -> tuple[str, float]:
    """Return the unit of a column of values: that of the greatest, or the next smaller one where most values would
    hardly show any digit in it, and the greatest is not long in the smaller one.
    """
    known = sorted(value for value in values if value)
    unit = scale(known, units)
    smaller = next((each for each in units if each[1] < unit[1]), None)
    if smaller and known[len(known) // 2] < _SHOWS * unit[1] and known[-1] < _LONGEST * smaller[1]:
        return smaller
    return unit


_SHOWS, _LONGEST = 0.1, 100_000


def written(figure: Figure, value: float | None, size: float) -> str:
    """Write a value of a figure in a unit of `size`, without the unit; a dash for none."""
    if value is None:
        return "-"
    if figure.style == "percent":
        return percent(value)
    return f"{value / size:,.0f}" if figure.style == "count" else three_digits(value / size)


def shortened(name: str, width: int | None) -> str:
    """Cut `name` at the left, as the end of a layer's name is what tells it from its neighbours."""
    if width is None or cell_len(name) <= width:
        return name
    while cell_len(name) >= width:
        name = name[1:]
    return f"…{name}"


_BEFORE_UNIT = re.compile(r"(?<=\d) (?=[a-zA-Zµ%])")
_NO_BREAK = "\N{NO-BREAK SPACE}"


WIDEST = 79
"""Most characters in a line of sentences: longer lines are hard to follow."""


def folded(lines: Iterable[str], width: int = WIDEST, indent: str = "") -> str:
    """Fold each of `lines` where it is too long, and indent what follows its first line.

    Names and options stay whole, and a number stays with its unit.
    """
    kept = (_BEFORE_UNIT.sub(_NO_BREAK, line) for line in lines)
    return "\n".join(
        fill(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False) for line in kept
    ).replace(_NO_BREAK, " ")


_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet take a cell for a formula."""
_GUARD = "'"


def to_cell(value: object) -> object:
    """Return a value for a CSV file, which `from_cell` reads back.

    Text that a spreadsheet would compute gets an apostrophe in front, and so does text that begins with one.
    """
    return f"{_GUARD}{value}" if isinstance(value, str) and value.startswith((*_FORMULAS, _GUARD)) else value


def from_cell(text: str) -> str:
    """Return the text that `to_cell` was given."""
    return text.removeprefix(_GUARD)
