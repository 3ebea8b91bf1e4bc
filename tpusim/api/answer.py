"""The answer of a function that is also a command: words for people, plain data, rows for tables, and the study's own
record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpusim.base.imports import need
from tpusim.report.page.assemble import Tile, told_fragment, told_page
from tpusim.report.shown import CommandAnswer, plain_text

if TYPE_CHECKING:
    from pandas import DataFrame

    from tpusim.report.plots.figure import Picture

Row = Mapping[str, Any]
_OF_A_LINE = 100


@dataclass(frozen=True, repr=False)
class Answer:
    """The answer of `explain`, `sweep`, `generate` or `compare`. `print` shows what the command says, a notebook the
    same with tables.

    Attributes:
        shown: what it says, in paragraphs for people and as data for other tools.
        rows: rows of `to_frame()`: by column, whose name ends with the unit where there is one.
        found: the record behind it, with every figure as Python has it.
        notes: what there is to know of the workload and the machine, as the command says on stderr.
        heading: the title of its page, if it has one of its own.
        tiles: what stands on that page at a glance.
        draw: draws its picture, if it has one.

    Examples:
        >>> import tpusim
        >>> answer = tpusim.explain("tiny", "tiny_4x4", layer="fig10", batch=2)
        >>> sorted(answer.to_dict())[:4]
        ['agrees', 'batch', 'bound_by', 'changes']
        >>> [*answer.to_frame()]
        ['of', 'change', 'that_is', 'per', 'cycles', 'time_us', 'gain']
    """

    shown: CommandAnswer
    rows: Sequence[Row]
    found: Any
    notes: tuple[str, ...] = ()
    heading: str = field(default="", kw_only=True)
    tiles: Sequence[Tile] = field(default=(), kw_only=True)
    # A `Picture`; its module takes a while to import, and docs ask every field for its type.
    draw: Callable[[], Any] | None = field(default=None, kw_only=True)

    @property
    def title(self) -> str:
        """What it is of, in a line."""
        return self.heading or next(iter(str(self).splitlines()), "").rstrip(";")

    def to_dict(self) -> dict[str, Any]:
        """Return what the command's `--json` holds, as dictionaries and lists; of a sweep its points."""
        data: dict[str, Any] = json.loads(self.to_json())
        return data

    def to_json(self) -> str:
        """Return what the command's `--json` writes, or of a sweep its points, as text."""
        return self.shown.to_json()

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame of the rows; names of columns end with the unit where there is one.

        Raises:
            InputError: pandas is not installed; says how to install it.
        """
        need("to_frame()", "pandas", "pandas")
        from pandas import DataFrame

        return DataFrame([*self.rows])

    def to_page(self, *pictures: Picture) -> bytes:
        """Return its page, with pictures between what it says in short and its tables."""
        return told_page(self.title, self.shown, self.tiles, pictures)

    def __str__(self) -> str:
        return plain_text(self.shown.paragraphs)

    def __repr__(self) -> str:
        """Return a line, as a console shows it."""
        title = self.title
        short = title if len(title) <= _OF_A_LINE else f"{title[: _OF_A_LINE - 3]}..."
        return f"<{type(self).__name__}: {short}; print() shows it, to_frame(), to_dict() and found tell more>"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return told_fragment(self.shown)
