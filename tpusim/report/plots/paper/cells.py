"""Schedules and grids of cells of an exhibit, each into axes of its own."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from tpusim.report.plots.figure import plain
from tpusim.study.paper.views import Grid, Schedule

_TONES = ("#ffffff", "#86aed0", "#fae3c8", "#bfcfa8", "#8d8d8d", "#d9c7e8")
"""By number; the first is blank. Each holds black text, and neighbours differ in grey."""
_CELL_INCHES, _LETTER_INCHES = 0.3, 0.075
_ROW_INCHES = 0.42
_FONT = 7
_KINDS = {
    "fill": ("#f0c08a", "", "HBM fills the ifmap"),
    "other": ("#ffffff", "...", "other transfers"),
    "ports": ("#ffffff", "|||", "a transfer waits for ports of the lanes"),
    "busy": ("#0b3c5d", "", "the array works"),
    "starved": ("#ffffff", "///", "the array waits for data"),
    "waiting": ("#d5d5d5", "xxx", "the array waits for something else"),
}
"""Of spans in a schedule: tone, hatch, meaning."""


def schedule_size(view: Schedule) -> tuple[float, float]:
    """Wide, a line a row."""
    return 7.2, 0.95 + _ROW_INCHES * len(view.rows)


def schedule_view(axes: Axes, view: Schedule) -> None:
    """A bar for every span, rows from the top down."""
    for place, (_, spans) in enumerate(view.rows):
        for kind in dict.fromkeys(span.kind for span in spans):
            tone, hatch, meaning = _KINDS[kind]
            pieces = [(span.start, span.end - span.start) for span in spans if span.kind == kind]
            axes.broken_barh(
                pieces, (place - 0.36, 0.72), facecolor=tone, edgecolor="black", linewidth=0.3, hatch=hatch
            )
            axes.add_patch(_named(tone, meaning, hatch))
    axes.set_yticks(range(len(view.rows)), [plain(name) for name, _ in view.rows])
    axes.set(xlim=(0, view.end), ylim=(len(view.rows) - 0.5, -0.5), title=plain(view.title), xlabel=view.unit)


def grid_size(view: Grid) -> tuple[float, float]:
    """A cell as wide as the longest text in any."""
    names = max(map(len, view.rows), default=0) * _LETTER_INCHES
    width = max(map(len, view.cells)) * _cell_width(view) + names + 0.3
    return max(_LETTER_INCHES * len(view.title), width), len(view.cells) * _CELL_INCHES + 0.5


def _cell_width(view: Grid) -> float:
    """Inches: wide enough for the longest line in any cell."""
    lines = (line for row in view.cells for cell in row for line in cell.text.split("\n"))
    return max(_CELL_INCHES, 0.1 + _LETTER_INCHES * max(map(len, lines), default=1))


def grid_view(axes: Axes, view: Grid) -> None:
    """A rectangle and a text each."""
    columns = max(map(len, view.cells))
    for y, row in enumerate(view.cells):
        for x, cell in enumerate(row):
            if cell.text or cell.tone:
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=_TONES[cell.tone], edgecolor="black", linewidth=0.4,
                                         clip_on=False))  # fmt: skip
                axes.text(x + 0.5, y + 0.5, plain(cell.text), ha="center", va="center", fontsize=_FONT)
    axes.set(xlim=(0, columns), ylim=(len(view.cells), 0), title=plain(view.title))
    axes.set_aspect(_CELL_INCHES / _cell_width(view), anchor="NW")
    axes.set_yticks([y + 0.5 for y in range(len(view.rows))], [plain(each) for each in view.rows])
    axes.set_xticks([x + 0.5 for x in range(len(view.columns))], [plain(each) for each in view.columns])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=_FONT)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for tone, meaning in view.tones.items():
        axes.add_patch(_named(_TONES[tone], meaning))


def _named(tone: str, meaning: str, hatch: str = "") -> Rectangle:
    """What a legend shows of a tone: nothing that is seen in the axes."""
    return Rectangle((0, 0), 0, 0, facecolor=tone, hatch=hatch, edgecolor="black", linewidth=0.3, label=meaning)
