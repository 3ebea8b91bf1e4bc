"""How the page writes a figure: its name, its unit, and what it means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from tpusim.report.text import scale
from tpusim.result.vocabulary.figures import Figure

Column = dict[str, Any]
"""A column of a table and a figure of a chart, ready for JSON."""


def column(figure: Figure, values: Iterable[float | None] = (), bar: Literal["", "widest", "whole"] = "") -> Column:
    """A figure in one unit for all `values`, so that the eye can compare; a `bar` in a cell shows its share."""
    unit, divide = scale(values, figure.units)
    return {
        "key": figure.key, "label": figure.label, "style": figure.style, "unit": unit, "divide": divide,
        "title": figure.meaning, "better": figure.better, "bar": bar,
    }  # fmt: skip


def text_column(key: str, label: str, title: str = "") -> Column:
    """Words, as they are."""
    return {"key": key, "label": label, "style": "text", "title": title}
