"""Tables of text in the house style, as wide as there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.box import Box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from tpusim.report.text import shown
from tpusim.result.vocabulary.figures import Figure

# One rule below the heading and single spaces between columns: 16 columns must fit a terminal of 120.
_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column; where there is no room, that of the highest `rank` goes first, and 0 stays.

    `justify` is "left", "right", or "fold": left, and on several lines where it is long.
    """

    header: str
    cell: Callable[[Row], str]
    rank: int = 0
    justify: str = "right"


def figure_column(figure: Figure, value: Callable[[Row], float], unit: tuple[str, float], rank: int = 0) -> Column[Row]:
    """A figure's column, in a unit and its size."""
    name, size = unit
    head = f"{figure.head}\n{name}" if name else figure.head
    return Column(head, lambda row: shown(figure, value(row), size), rank)


def table(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None = None, styles: Iterable[str] | None = None
) -> Table:
    """A line a row, in as many columns as `width` characters hold (None: all of them)."""
    kept = list(columns)
    while width and _width(kept, rows) > width and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    made = Table(box=_RULE, padding=0, show_edge=False, header_style="bold")
    for column in kept:
        made.add_column(
            Text(column.header),
            justify="right" if column.justify == "right" else "left",
            vertical="bottom",
            no_wrap=column.justify != "fold",
            overflow="fold" if column.justify == "fold" else "ellipsis",
        )
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        # Text, not str: a layer may be called "[red]".
        made.add_row(*(Text(column.cell(row)) for column in kept), style=style)
    return made


def _width(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> int:
    texts = ([*column.header.split("\n"), *map(column.cell, rows)] for column in columns)
    return sum(max(map(cell_len, text)) for text in texts) + len(columns) - 1
