"""Schedules and grids of cells of an exhibit, each into axes of its own."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from tpusim.report.plots.figure import plain
from tpusim.study.paper.views import Grid, Schedule

_TONES = ("#ffffff", "#9dbdd6", "#f0c08a", "#c9dfc0", "#d5d5d5", "#d9c7e8", "#f3e3a1", "#b9d3d0", "#e3b7b0", "#8f8f8f")
"""By number; the first is blank. Each holds black text."""
_CELL_INCHES, _LETTER_INCHES = 0.3, 0.075
_ROW_INCHES = 0.42
_KINDS = {
    "fill": ("#f0c08a", "", "HBM fills the ifmap"),
    "other": ("#ffffff", "...", "other transfers"),
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
    seen = []
    for place, (_, spans) in enumerate(view.rows):
        for kind in dict.fromkeys(span.kind for span in spans):
            tone, hatch, meaning = _KINDS[kind]
            pieces = [(span.start, span.end - span.start) for span in spans if span.kind == kind]
            axes.broken_barh(
                pieces, (place - 0.36, 0.72), facecolor=tone, edgecolor="black", linewidth=0.3, hatch=hatch
            )
            seen.append(Patch(facecolor=tone, hatch=hatch, edgecolor="black", linewidth=0.3, label=meaning))
    axes.set_yticks(range(len(view.rows)), [plain(name) for name, _ in view.rows])
    axes.set(xlim=(0, view.end), ylim=(len(view.rows) - 0.5, -0.5), title=plain(view.title), xlabel=view.unit)
    distinct = list({patch.get_label(): patch for patch in seen}.values())
    axes.legend(handles=distinct, loc="upper left", bbox_to_anchor=(1.0, 1.05), fontsize=6.5)


def grid_size(view: Grid) -> tuple[float, float]:
    """A cell as wide as the longest text in any."""
    longest = max((len(cell.text) for row in view.cells for cell in row), default=1)
    wide = max(_CELL_INCHES, 0.1 + _LETTER_INCHES * longest)
    names = max(map(len, view.rows), default=0) * _LETTER_INCHES
    columns = max(map(len, view.cells))
    extra = 0.9 + 0.17 * len(view.tones)
    return max(3.2, columns * wide + names + 0.4), len(view.cells) * _CELL_INCHES + extra


def grid_view(axes: Axes, view: Grid) -> None:
    """A rectangle and a text each."""
    columns = max(map(len, view.cells))
    for y, row in enumerate(view.cells):
        for x, cell in enumerate(row):
            if cell.text or cell.tone:
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=_TONES[cell.tone], edgecolor="black", linewidth=0.4))
                axes.text(x + 0.5, y + 0.5, plain(cell.text), ha="center", va="center", fontsize=6.5)
    axes.set(xlim=(0, columns), ylim=(len(view.cells), 0), title=plain(view.title))
    axes.set_yticks([y + 0.5 for y in range(len(view.rows))], [plain(each) for each in view.rows])
    axes.set_xticks([x + 0.5 for x in range(len(view.columns))], [plain(each) for each in view.columns])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=6.5)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    handles = [Patch(facecolor=_TONES[n], edgecolor="black", linewidth=0.3, label=t) for n, t in view.tones.items()]
    if handles:
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.02), fontsize=6.5)
