"""A picture an exhibit: its charts side by side, or below one another where they are wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpusim.report.plots.figure import Picture, figure_of
from tpusim.report.plots.paper.cells import grid_size, grid_view, schedule_size, schedule_view
from tpusim.report.plots.paper.charts import bars_size, bars_view, chart_size, curves_view, errors_view, parity_view
from tpusim.study.paper.exhibit import Exhibit
from tpusim.study.paper.views import Bars, Curves, Errors, Grid, Parity, Schedule, View

Draw = Callable[[Axes, Any], None]
Size = Callable[[Any], tuple[float, float]]
"""Width and height in inches."""

_KINDS: Mapping[type, tuple[Draw, Size]] = {
    Bars: (bars_view, bars_size),
    Curves: (curves_view, chart_size),
    Parity: (parity_view, chart_size),
    Errors: (errors_view, chart_size),
    Schedule: (schedule_view, schedule_size),
    Grid: (grid_view, grid_size),
}
_WIDEST = 10.5
"""Inches that panels beside one another may take."""
_LEGEND = 0.45
"""Inches for the legend."""
_NARROW = 6.5
_FONT = 7


def pictures(made: Sequence[Exhibit]) -> Iterator[Picture]:
    """One of each exhibit that has anything to draw."""
    for each in made:
        if each.drawn:
            caption = f"{each.words.name}: {each.words.title}. {each.words.how}"
            yield Picture(each.words.stem, caption, partial(draw, each.drawn))


def draw(views: Sequence[View]) -> Figure:
    """Views in a grid of as many columns as find room."""
    sizes = [_KINDS[type(view)][1](view) for view in views]
    widest, tallest = (max(size[axis] for size in sizes) for axis in (0, 1))
    columns = max(1, min(len(views), int(_WIDEST / widest)))
    rows = ceil(len(views) / columns)
    heights = [max(size[1] for size in sizes[row * columns : (row + 1) * columns]) for row in range(rows)]
    figure = figure_of(columns * widest, max(sum(heights), tallest) + _LEGEND)
    plots = figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flatten()
    for plot, view in zip(plots, views, strict=False):
        _KINDS[type(view)][0](plot, view)
    for plot in plots[len(views) :]:
        plot.set_axis_off()
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    """One for all panels, each name once, below everything."""
    named: dict[str, Artist] = {}
    for plot in figure.axes:
        for handle, label in zip(*plot.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if len(named) > 1:
        columns = 3 if figure.get_figwidth() > _NARROW else 2
        figure.legend([*named.values()], [*named], loc="outside lower center", ncols=columns, fontsize=_FONT)
