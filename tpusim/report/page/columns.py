"""How the page writes a figure: its name, its unit, and what it means."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Style = Literal["text", "count", "percent", "three"]
Bar = Literal["", "widest", "whole"]
"""What a bar in a cell is a share of."""


@dataclass(frozen=True)
class Column:
    """A column of a table and a figure of a chart.

    A value is shown as `value / divide` in `unit`: whole with thousands apart, in percent, or in three digits.
    `better` tells which end of the scale is wanted: -1 the lower, 1 the higher, 0 neither.
    """

    key: str
    label: str
    style: Style = "count"
    unit: str = ""
    divide: float = 1.0
    title: str = ""
    better: int = 0
    bar: Bar = ""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)
