"""The content of a report, as data: sentences and tables in paragraphs. A terminal, a file and JSON are readers of
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import fill
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rich.box import Box
from rich.cells import cell_len
from rich.table import Table as Drawn
from rich.text import Text

from tpusim.base.version import __version__
from tpusim.base.words import visible
from tpusim.report.text import WIDEST, folded, percent, shortened, written
from tpusim.result.vocabulary.figures import Figure

if TYPE_CHECKING:
    from rich.console import RenderableType

# One rule below the heading and single spaces between columns: 16 columns must fit a terminal of 120.
_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)

Row = TypeVar("Row")

_UNBOUNDED = 100_000
_NARROW = 9
_LEAST_NAME = 12
NONE = "-"
"""The text of a cell that has nothing to say."""


class Sentences(NamedTuple):
    """Sentences, each folded where a line ends; its further lines begin with `indent`.

    A line has WIDEST characters at most; where it is `wide`, as many as the terminal, and in a file all there are.
    """

    lines: Sequence[str]
    indent: str = ""
    wide: bool = False


class Bars(NamedTuple):
    """Amounts by their names, each with a bar as long as its share of the `whole`."""

    amounts: Sequence[tuple[str, float]]
    whole: float

    def lines(self, width: int) -> list[str]:
        """Write a line an amount."""
        wide, digits = max(len(name) for name, _ in self.amounts), len(f"{self.whole:,}")
        # Two spaces, one after the name, and " 99.9 % " before the number.
        longest = max(5, width - wide - digits - 12)
        bars = [(name, "#" * max(1, round(longest * count / self.whole)), count) for name, count in self.amounts]
        return [
            f"  {name:<{wide}} {bar:<{longest}} {percent(count / self.whole):>4} % {count:>{digits},.0f}"
            for name, bar, count in bars
        ]


class Listing(NamedTuple):
    """Texts by their names, in columns beside them."""

    texts: Mapping[str, str]

    def lines(self, width: int) -> list[str]:
        """Write each text beside its name, on as many lines as it needs."""
        texts = self.texts.items()
        return [fill(text, width, initial_indent=f"  {name:<8}", subsequent_indent=" " * 10) for name, text in texts]


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column; where there is no room, columns of the highest `rank` go first, and rank 0 stays.

    `justify` is "left", "right", or "fold": left, and on several lines where it is long. `legend` says what it holds.
    Names that take more than a `part` of the terminal, a fifth for instance, are cut at the left. A terminal narrower
    than `least` does without the column. In a file it folds where it is wider than its `widest`, if it has one.
    """

    header: str
    cell: Callable[[Row], str]
    rank: int = 0
    justify: str = "right"
    legend: str = ""
    part: int = 0
    least: int = 0
    widest: int | None = None

    def text(self, row: Row, room: int | None) -> str:
        """Return the cell of a row in a terminal of `room` characters; None: in a file."""
        return shortened(self.cell(row), max(_LEAST_NAME, room // self.part) if room and self.part else None)


@dataclass(frozen=True)
class Table(Generic[Row]):
    """A line a row; `styles` are Rich's, one a row."""

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    styles: Sequence[str] = ()

    def fitting(self, room: int | None) -> list[Column[Row]]:
        """Return the columns that `room` characters hold (None: all); columns of one rank go together, as they may add
        up.
        """
        if not room:
            return [*self.columns]
        kept = []
        for column in (each for each in self.columns if room >= each.least):
            texts = [*column.header.split("\n"), *(column.text(row, room) for row in self.rows)]
            kept.append((column, max(map(cell_len, texts))))
        while sum(wide + 1 for _, wide in kept) - 1 > room and (highest := max(column.rank for column, _ in kept)):
            kept = [(column, wide) for column, wide in kept if column.rank < highest]
        return [column for column, _ in kept]

    def legend(self, *more: str) -> Legend:
        """Return the legend of the columns that there is room for, and `more` sentences."""
        return Legend(self.columns, [self], more)

    def drawn(self, room: int | None = None) -> Drawn:
        """Draw the table in as many columns as `room` characters hold (None: all of them)."""
        made = Drawn(box=_RULE, padding=0, show_edge=False, header_style="bold")
        kept = self.fitting(room)
        for column in kept:
            made.add_column(
                Text(column.header),
                justify="right" if column.justify == "right" else "left",
                no_wrap=column.justify != "fold",
                overflow="fold" if column.justify == "fold" else "ellipsis",
                max_width=None if room else column.widest,
            )
        for row, style in zip(self.rows, self.styles or [""] * len(self.rows), strict=True):
            # Text, not str: a layer may be called "[red]".
            made.add_row(*(Text(visible(column.text(row, room))) for column in kept), style=style)
        return made


class Legend(NamedTuple):
    """The meaning of `columns`: of all, or of those that any of `tables` shows; and `more` sentences."""

    columns: Sequence[Column[Any]]
    tables: Sequence[Table[Any]] = ()
    more: Sequence[str] = ()

    def sentences(self, room: int | None) -> Sentences:
        """Return the sentences on the columns that `room` characters hold."""
        drawn = {id(column) for table in self.tables for column in table.fitting(room)}
        kept = (each for each in self.columns if each.legend and (not self.tables or id(each) in drawn))
        return Sentences([" ".join([*(f"{each.legend}." for each in kept), *self.more])])


Content = str | Sentences | Bars | Listing | Table[Any] | Legend
"""Text as it stands, sentences, bars, a table or its legend; an empty block is left out."""
Paragraphs = Sequence[Sequence[Content]]


class CommandAnswer(NamedTuple):
    """The answer of a command: in paragraphs for people, and as data for other tools."""

    paragraphs: Paragraphs
    data: Mapping[str, Any]

    def to_json(self) -> str:
        """Write the data as a document, which says who wrote it."""
        return document(**self.data)


def document(**data: Any) -> str:
    """Write a document for other tools, which says who wrote it."""
    return json.dumps({"tpusim": __version__, **data}, indent=2)


def laid_out(paragraphs: Paragraphs, room: int | None = None) -> list[Drawn | str]:
    """Return what a terminal of `room` characters shows, or a file (None); an empty line parts the paragraphs."""
    made: list[Drawn | str] = []
    for paragraph in paragraphs:
        laid = (block.drawn(room) if isinstance(block, Table) else text_of(block, room) for block in paragraph)
        blocks = [each for each in laid if each != ""]
        made += ["", *blocks] if made and blocks else blocks
    return made


def lines_of(items: Iterable[RenderableType], width: int | None = None) -> list[str]:
    """Return the lines of tables and sentences on a terminal of that width; None: in full, in a file."""
    from rich.console import Console

    text = StringIO()
    console = Console(file=text, force_terminal=width is not None, width=width or _UNBOUNDED)
    for item in items:
        shown = visible(item) if isinstance(item, str) else item
        console.print(shown, markup=False, highlight=False, emoji=False)
    return [line.rstrip(" ") for line in text.getvalue().splitlines()]


def plain_text(paragraphs: Paragraphs) -> str:
    """Write a report as a file has it."""
    return "\n".join(lines_of(laid_out(paragraphs)))


def text_of(block: Content, room: int | None = None) -> str:
    """Write sentences as a terminal of `room` characters shows them, or a file (None)."""
    if isinstance(block, Legend):
        block = block.sentences(room)
    width = min(WIDEST, room or WIDEST)
    match block:
        case Sentences(lines, indent, wide=True):
            return folded(lines, room, indent) if room else "\n".join(lines)
        case Sentences(lines, indent):
            return folded(lines, width, indent)
        case Bars() | Listing():
            return "\n".join(block.lines(width))
    return str(block)


def path_head(path: str) -> str:
    """Break a long path into several lines, so that a column is as wide as its values."""
    parts = path.replace(", ", ",\n").replace(".", ".\n").split("\n")
    return "\n".join(part if len(part) <= _NARROW else part.replace("_", "_\n") for part in parts)


def figure_column(
    figure: Figure, value: Callable[[Row], float | None], unit: tuple[str, float], rank: int = 0
) -> Column[Row]:
    """Make the column of a figure, in a unit and its size."""
    name, size = unit
    head = "\n".join(filter(None, (figure.head or figure.label, name)))
    return Column(head, lambda row: written(figure, value(row), size), rank, legend=figure.legend)


def telling(columns: Iterable[Column[Row]], rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns that say something about any row."""
    return [column for column in columns if any(column.cell(row) != NONE for row in rows)]
