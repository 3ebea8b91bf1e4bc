"""A picture of each exhibit of `tpusim paper`: its views side by side, or below one another where they are wide.

And pictures of `tpusim validate`: parity with reference numbers, and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from tpusim.report.plots.figure import Picture, columns_below, figure_of, plain
from tpusim.report.style import HATCHES, MAIN, MARK, SERIES
from tpusim.study.paper import exhibit
from tpusim.study.validation.comparison import Comparison

_WIDEST = 10.5
"""Inches that panels beside one another may take."""
_LEGEND = 0.45
"""Inches for the legend."""
_FONT = 7


def pictures(made: Sequence[exhibit.Exhibit]) -> Iterator[Picture]:
    """Yield a picture of each exhibit that has anything to draw."""
    for each in made:
        if each.drawn:
            caption = f"{each.words.name}: {each.words.title}. {each.words.how}"
            yield Picture(each.words.stem, caption, partial(draw, each.drawn))


def draw(views: Sequence[exhibit.View]) -> Figure:
    """Draw views in a grid of as many columns as find room."""
    sizes = [_size(view) for view in views]
    widest, tallest = (max(size[axis] for size in sizes) for axis in (0, 1))
    columns = max(1, min(len(views), int(_WIDEST / widest)))
    rows = ceil(len(views) / columns)
    heights = [max(size[1] for size in sizes[row * columns : (row + 1) * columns]) for row in range(rows)]
    figure = figure_of(columns * widest, max(sum(heights), tallest) + _LEGEND)
    plots = figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flatten()
    for plot, view in zip(plots, views, strict=False):
        _KINDS[type(view)](plot, view)
        plot.set_title(plain(view.title))
    for plot in plots[len(views) :]:
        plot.set_axis_off()
    # A legend for all panels, each name once, below everything.
    named: dict[str, Artist] = {}
    for plot in figure.axes:
        for handle, label in zip(*plot.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if len(named) > 1:
        below = columns_below(figure)
        figure.legend([*named.values()], [*named], loc="outside lower center", ncols=below, fontsize=_FONT)
    return figure


# ---- bars, curves and errors

_SIZE = 5.0, 3.6
"""Width and height of most charts, in inches."""
_BAR_INCHES = 0.16
_FILLED = 0.84
_LOOKS = ("-", "--", ":", "-.")
_LIGHT = ("#9dbdd6", "#f0b27a", "#e6e6e6", "#7a7a7a", "#c9dfc0", "#d9c7e8")
_HATCHES = ("", "rising", "dots", "falling", "grid", "bars")
_BINS = np.arange(-32.5, 35, 5)
"""Bounds of the bins of errors in percent; the outermost bins hold everything beyond."""


def _bars(axes: Axes, view: exhibit.BarChart) -> None:
    """Draw groups of bars; tone and hatch tell the series."""
    places = np.arange(len(view.groups))
    _beside(axes, places, _FILLED / len(view.series), view.series)
    axes.set_xticks(places, [plain(each) for each in view.groups])
    if sum(map(len, view.groups)) > 12 * _SIZE[0]:
        axes.tick_params(axis="x", rotation=30)
    axes.set(ylabel=plain(view.unit))
    _marks(axes, view.marks)


def _errors(axes: Axes, view: exhibit.Errors) -> None:
    """Draw how many layers have which error: in every bin a bar each series."""

    def shares(values: Sequence[float | None]) -> Any:
        inside = np.clip([each for each in values if each is not None], _BINS[0] + 1, _BINS[-1] - 1)
        counts, _ = np.histogram(inside, _BINS)
        return counts / len(inside) * 100

    series = {label: shares(values) for label, values in view.series.items()}
    _beside(axes, _BINS[:-1] + 2.5, 5 * _FILLED / len(series), series)
    axes.set(xlabel="error (%), the outermost bars hold all beyond", ylabel="layers (%)")


def _beside(axes: Axes, places: Any, thick: float, series: exhibit.Values) -> None:
    """Draw a bar of every series around every place."""
    for index, (label, values) in enumerate(series.items()):
        at = places + (index - (len(series) - 1) / 2) * thick
        look: Any = {"color": _LIGHT[index % len(_LIGHT)], "hatch": HATCHES[_HATCHES[index % len(_HATCHES)]][0]}
        axes.bar(at, _numbers(values), thick, label=plain(label), edgecolor="black", linewidth=0.4, **look)


def _curves(axes: Axes, view: exhibit.Curves) -> None:
    """Draw lines with markers; a second axis where a series has its scale on the right."""
    _lines(axes, view.x, view.left, 0)
    axes.set(xlabel=plain(view.x_label), ylabel=plain(view.left_label))
    _marks(axes, view.marks)
    axes.set_ylim(bottom=0)
    if view.doubling:
        axes.set_xscale("log", base=2)
    # A logarithmic axis would add ticks between the ones that have texts.
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(view.x, [f"{each:g}" for each in view.x])
    if view.right:
        other = axes.twinx()
        _lines(other, view.x, {f"{label} (right)": values for label, values in view.right.items()}, len(view.left))
        other.set_ylabel(plain(view.right_label))
        other.set_ylim(bottom=0)
        other.spines["right"].set_visible(True)


def _lines(axes: Axes, x: Sequence[float], lines: exhibit.Values, first: int) -> None:
    for index, (label, values) in enumerate(lines.items(), first):
        tone, marker = SERIES[index % len(SERIES)]
        look: Any = {"color": tone, "marker": marker, "ls": _LOOKS[index % len(_LOOKS)], "markersize": 4}
        axes.plot(x, _numbers(values), label=plain(label), **look)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]


def _marks(axes: Axes, marks: exhibit.Marks) -> None:
    for label, value in marks.items():
        axes.axhline(value, color=MARK, linewidth=1, ls="--", label=plain(label))


# ---- schedules and cells

_TONES = ("#ffffff", "#86aed0", "#fae3c8", "#bfcfa8", "#8d8d8d", "#d9c7e8")
"""Tones of cells by number; the first is blank. Each holds black text, and neighbours differ in grey."""
_CELL_INCHES, _LETTER_INCHES = 0.3, 0.075
_ROW_INCHES = 0.42
_SPANS = {
    "fill": ("#f0c08a", "", "HBM fills the ifmap"),
    "other": ("#ffffff", "...", "other transfers"),
    "ports": ("#ffffff", "|||", "a transfer waits for ports of the lanes"),
    "busy": ("#0b3c5d", "", "the array works"),
    "starved": ("#ffffff", "///", "the array waits for data"),
    "port_stall": ("#fff7b0", "\\\\\\", "the array waits for ports of the lanes"),
    "waiting": ("#d5d5d5", "xxx", "the array waits for something else"),
}
"""Tone, hatch and meaning of the spans of a schedule, by their kind."""


def _schedule(axes: Axes, view: exhibit.ScheduleChart) -> None:
    """Draw a bar for every span, rows from the top down."""
    for place, slots in enumerate(view.rows.values()):
        for kind in dict.fromkeys(kind for _, _, kind in slots):
            tone, hatch, meaning = _SPANS[kind]
            pieces = [(start, end - start) for start, end, own in slots if own == kind]
            axes.broken_barh(
                pieces, (place - 0.36, 0.72), facecolor=tone, edgecolor="black", linewidth=0.3, hatch=hatch
            )
            _named(axes, tone, meaning, hatch)
    axes.set_yticks(range(len(view.rows)), [plain(name) for name in view.rows])
    axes.set(xlim=(0, view.end), ylim=(len(view.rows) - 0.5, -0.5), xlabel="cycles")


def _cell_width(view: exhibit.CellGrid) -> float:
    """Return the inches of a cell that holds the longest line of any."""
    lines = (line for row in view.cells for cell in row for line in cell.text.split("\n"))
    return max(_CELL_INCHES, 0.1 + _LETTER_INCHES * max(map(len, lines), default=1))


def _grid(axes: Axes, view: exhibit.CellGrid) -> None:
    """Draw a rectangle and a text for every cell."""
    columns = max(map(len, view.cells))
    for y, row in enumerate(view.cells):
        for x, cell in enumerate(row):
            if cell.text or cell.tone:
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=_TONES[cell.tone], edgecolor="black", linewidth=0.4,
                                         clip_on=False))  # fmt: skip
                axes.text(x + 0.5, y + 0.5, plain(cell.text), ha="center", va="center", fontsize=_FONT)
    axes.set(xlim=(0, columns), ylim=(len(view.cells), 0))
    axes.set_aspect(_CELL_INCHES / _cell_width(view), anchor="NW")
    axes.set_yticks([y + 0.5 for y in range(len(view.rows))], [plain(each) for each in view.rows])
    axes.set_xticks([x + 0.5 for x in range(len(view.columns))], [plain(each) for each in view.columns])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=_FONT)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for tone, meaning in view.tones.items():
        _named(axes, _TONES[tone], meaning)


def _named(axes: Axes, tone: str, meaning: str, hatch: str = "") -> None:
    """Add an entry to the legend, by a rectangle that is not seen in the axes."""
    patch = Rectangle((0, 0), 0, 0, facecolor=tone, hatch=hatch, edgecolor="black", linewidth=0.3, label=meaning)
    axes.add_patch(patch)


_KINDS: Mapping[type, Callable[[Axes, Any], None]] = {
    exhibit.BarChart: _bars,
    exhibit.Curves: _curves,
    exhibit.Parity: lambda axes, view: parity(axes, view.clouds, view.word, "cycles", 16),
    exhibit.Errors: _errors,
    exhibit.ScheduleChart: _schedule,
    exhibit.CellGrid: _grid,
}
"""The function that draws each kind of view."""


def _size(view: exhibit.View) -> tuple[float, float]:
    """Return width and height in inches; bars take what they need, and a cell is as wide as the longest text in any."""
    match view:
        case exhibit.BarChart(groups=groups, series=series):
            return max(_SIZE[0], 1.2 + _BAR_INCHES * len(groups) * (len(series) + 1)), _SIZE[1]
        case exhibit.ScheduleChart(rows=rows):
            return 7.2, 0.95 + _ROW_INCHES * len(rows)
        case exhibit.CellGrid(cells=cells, rows=names):
            beside = max(map(len, names), default=0) * _LETTER_INCHES
            width = max(map(len, cells)) * _cell_width(view) + beside + 0.3
            return max(_LETTER_INCHES * len(view.title), width), len(cells) * _CELL_INCHES + 0.5
    return _SIZE


# ---- parity and errors against reference numbers; numbers of two words never in one picture

_WIDEST_ERROR = 30


def plots(comparisons: Sequence[Comparison]) -> Iterator[Picture]:
    """Yield a picture for each word and kind."""
    for stem in dict.fromkeys(each.numbers.picture for each in comparisons):
        chosen = [each for each in comparisons if each.numbers.picture == stem]
        status = chosen[0].numbers.status
        caption = (
            f"Simulated against {status} figures: each case (left), and how the errors of each set are spread (right)."
        )
        yield Picture(stem, caption, partial(draw_comparisons, chosen))


def draw_comparisons(comparisons: Sequence[Comparison]) -> Figure:
    """Draw sets of one status and unit: our figures over theirs, and beside it how errors are spread."""
    figure = figure_of(7.4, 3.6)
    left, right = figure.subplots(1, 2)
    numbers, rows = comparisons[0].numbers, [row for each in comparisons for row in each.rows]
    clouds = {each.numbers.name: [(row.theirs, row.ours) for row in each.rows] for each in comparisons}
    parity(left, clouds, numbers.status, numbers.unit, 14)
    left.set_title("parity")
    # Errors beyond the widest bin are counted in the outermost ones.
    reach = (-_WIDEST_ERROR, _WIDEST_ERROR)
    theirs: Any = {"label": "roofline", "color": "#c9c9c9"}
    ours: Any = {"label": "tpusim", "facecolor": "none", "edgecolor": MAIN, "linewidth": 1.2}
    for errors, style in (([row.roofline_error for row in rows], theirs), ([row.error for row in rows], ours)):
        right.hist(np.clip(100 * np.array(errors), *reach), bins=30, range=reach, **style)
    right.set(xlabel="error (%), the outermost bins hold all beyond", ylabel="cases", title="errors")
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    # Below both: within the plots a legend would stand on marks or bars.
    handles = [each for plot in (left, right) for each in plot.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def parity(axes: Axes, clouds: Mapping[str, Sequence[tuple[float, float]]], word: str, unit: str, size: float) -> None:
    """Draw pairs (theirs, ours) around the diagonal, by their names in a legend; `word` says what theirs are."""
    for (label, pairs), (tone, marker) in zip(clouds.items(), SERIES, strict=False):
        theirs, ours = zip(*pairs, strict=True)
        axes.scatter(theirs, ours, size, marker=marker, facecolors="none", edgecolors=tone, linewidths=0.8,
                     label=plain(label))  # fmt: skip
    if unit in ("cycles", "us"):
        axes.set(xscale="log", yscale="log")
    low, high = (pick(*axes.get_xlim(), *axes.get_ylim()) for pick in (min, max))
    axes.plot([low, high], [low, high], color="black", linewidth=0.7)
    axes.set(xlabel=f"{word} ({unit})", ylabel=f"tpusim ({unit})", xlim=(low, high), ylim=(low, high))
