"""Tables of text in the house style, as wide as there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.box import Box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from tpusim.base.words import visible
from tpusim.report.text import folded, shown
from tpusim.result.vocabulary.figures import Figure

# One rule below the heading and single spaces between columns: 16 columns must fit a terminal of 120.
_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)

Row = TypeVar("Row")

_NARROW = 9
WIDEST = 79
"""Characters a line of sentences has at most: longer ones are hard to follow."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column; where there is no room, those of the highest `rank` go first, and 0 stays.

    `justify` is "left", "right", or "fold": left, and on several lines where it is long. `legend` says what it holds.
    """

    header: str
    cell: Callable[[Row], str]
    rank: int = 0
    justify: str = "right"
    legend: str = ""


def path_head(path: str) -> str:
    """A path on several lines where it is long, so that a column is as wide as its values."""
    parts = path.replace(", ", ",\n").replace(".", ".\n").split("\n")
    return "\n".join(part if len(part) <= _NARROW else part.replace("_", "_\n") for part in parts)


def figure_column(
    figure: Figure, value: Callable[[Row], float | None], unit: tuple[str, float], rank: int = 0
) -> Column[Row]:
    """A figure's column, in a unit and its size."""
    name, size = unit
    head = f"{figure.head}\n{name}" if name else figure.head
    return Column(head, lambda row: shown(figure, value(row), size), rank, legend=figure.legend)


def table(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None = None, styles: Iterable[str] | None = None
) -> Table:
    """A line a row, in as many columns as `width` characters hold (None: all of them)."""
    made = Table(box=_RULE, padding=0, show_edge=False, header_style="bold")
    kept = fitting(columns, rows, width)
    for column in kept:
        made.add_column(
            Text(column.header),
            justify="right" if column.justify == "right" else "left",
            no_wrap=column.justify != "fold",
            overflow="fold" if column.justify == "fold" else "ellipsis",
        )
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        # Text, not str: a layer may be called "[red]".
        made.add_row(*(Text(visible(column.cell(row))) for column in kept), style=style)
    return made


def fitting(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None) -> list[Column[Row]]:
    """Those that `width` characters hold; columns of one rank go together, as they may add up."""
    kept = list(columns)
    while width and _width(kept, rows) > width and (highest := max(column.rank for column in kept)):
        kept = [column for column in kept if column.rank < highest]
    return kept


def legend(columns: Sequence[Column[Row]], width: int | None = None) -> str:
    """What each of the columns shown holds, in sentences."""
    return folded([" ".join(f"{column.legend}." for column in columns if column.legend)], min(width or WIDEST, WIDEST))


def _width(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> int:
    texts = ([*column.header.split("\n"), *map(column.cell, rows)] for column in columns)
    return sum(max(map(cell_len, text)) for text in texts) + len(columns) - 1
