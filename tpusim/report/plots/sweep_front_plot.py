"""The Pareto front of a sweep as a scatter plot of two or three columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from tpusim.report.plots.figure import figure_of, plain
from tpusim.report.style import MAIN
from tpusim.result.vocabulary.figures import column_of
from tpusim.study.sweep.column import Goal

Row = Mapping[str, Any]

_REST = "#b0b0b0"
_LOG_RATIO = 10
_MOST_NAMED = 16
_LABEL: Any = {"textcoords": "offset points", "fontsize": 6.5}
_LEAST_DISTANCE = 0.04
"""The least distance of two numbered points, as a part of the picture's width and height."""


def front_figure(title: str, rows: Sequence[Row], goals: Sequence[Goal], axes: Sequence[str]) -> Figure:
    """All points, those on the front (`pareto`) dark, numbered and named beside; the third goal is a tone."""
    finished = [row for row in rows if not row["error"]]
    front = sorted((row for row in finished if row["pareto"]), key=lambda row: goals[0].cost(row[goals[0].column]))
    figure = figure_of(5.4, 3.9)
    plot = figure.subplots()
    x, y = (goal.column for goal in goals[:2])
    rest = [row for row in finished if not row["pareto"]]
    plot.plot(_values(rest, x), _values(rest, y), ls="", marker="o", markersize=3, color=_REST, label="other points")
    _draw_front(figure, plot, front, goals)
    for goal, limits in zip(goals, ("x", "y"), strict=False):
        _lay_out(plot, goal, limits, _values(finished, goal.column))
    plot.set_title(title)
    named = _numbered(plot, front, goals)
    _number(plot, named, goals)
    key = _key(named, front, axes)
    # The layout engine does not make room for text; an empty legend with a title is text that it knows.
    figure.set_size_inches(5.4 + 0.056 * max(map(len, key.split("\n"))), 3.9)
    figure.legend(handles=plot.get_legend_handles_labels()[0], loc="outside lower center", ncols=2)
    beside = figure.legend(handles=[], title=key, loc="outside right upper", alignment="left")
    beside.get_title().set(family="monospace", fontsize=6.5)
    return figure


def _values(rows: Sequence[Row], column: str) -> list[float]:
    return [column_of(column).scaled(row[column]) for row in rows]


def _draw_front(figure: Figure, plot: Axes, front: Sequence[Row], goals: Sequence[Goal]) -> None:
    """Beyond the steps nothing was found; they turn where the next point's first goal is reached."""
    x, y, *tones = (_values(front, goal.column) for goal in goals)
    if tones:
        points = plot.scatter(x, y, 34, *tones, marker="D", cmap="cividis", edgecolors="black", lw=0.6, zorder=3)
        points.set_label("Pareto front")
        figure.colorbar(points, ax=plot, label=_words(goals[2]))
    else:
        plot.plot(x, y, drawstyle="steps-post", color=MAIN, marker="D", markersize=4.5, lw=1, label="Pareto front")


def _lay_out(plot: Axes, goal: Goal, which: str, values: Sequence[float]) -> None:
    axis = plot.xaxis if which == "x" else plot.yaxis
    axis.set_label_text(_words(goal))
    if 0 < min(values) * _LOG_RATIO <= max(values):
        (plot.set_xscale if which == "x" else plot.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    elif which == "x":
        plot.set_xlim(left=0)
    else:
        plot.set_ylim(bottom=0)
    # In full: matplotlib writes a million as 1e6 in the corner.
    axis.set_major_formatter("{x:,.10g}")


def _words(goal: Goal) -> str:
    return f"{plain(column_of(goal.column).title)}, {'less' if goal.minimize else 'more'} is better"


def _numbered(plot: Axes, front: Sequence[Row], goals: Sequence[Goal]) -> list[Row]:
    """At most _MOST_NAMED points of the front, in order, whose numbers do not touch."""
    least = _LEAST_DISTANCE
    while True:
        named: list[tuple[Row, tuple[float, float]]] = []
        for row in front:
            place = _place(plot, row, goals)
            if all(hypot(place[0] - x, place[1] - y) >= least for _, (x, y) in named):
                named.append((row, place))
        if len(named) <= _MOST_NAMED:
            return [row for row, _ in named]
        least *= 1.3


def _place(plot: Axes, row: Row, goals: Sequence[Goal]) -> tuple[float, float]:
    """In parts of the plot's width and height."""
    x, y = plot.transAxes.inverted().transform(plot.transData.transform(_at(row, goals)))
    return float(x), float(y)


def _at(row: Row, goals: Sequence[Goal]) -> tuple[float, float]:
    x, y = (column_of(goal.column).scaled(row[goal.column]) for goal in goals[:2])
    return x, y


def _number(plot: Axes, named: Sequence[Row], goals: Sequence[Goal]) -> None:
    """On the better side of each point, where by definition no other is."""
    right, up = (-1 if goal.minimize else 1 for goal in goals[:2])
    for number, row in enumerate(named, 1):
        sides: Any = {"ha": "left" if right > 0 else "right", "va": "bottom" if up > 0 else "top"}
        plot.annotate(f"{number}", _at(row, goals), (4 * right, 4 * up), **_LABEL, **sides)


def _key(named: Sequence[Row], front: Sequence[Row], axes: Sequence[str]) -> str:
    """What the numbers mean: a line a point, its axes in columns; those that are the same throughout come last."""
    fixed = [axis for axis in axes if len({row[axis] for row in front}) == 1]
    columns = [["", *(f"{number}" for number in range(1, len(named) + 1))]]
    columns += [[_short(axis, axes), *(str(row[axis]) for row in named)] for axis in axes if axis not in fixed]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in zip(*columns, strict=True)
    ]
    if len(named) < len(front):
        lines += ["", f"and {len(front) - len(named)} close to these: see points.csv"]
    if fixed:
        lines += ["", "all:", *(f"{_short(axis, axes)} {front[0][axis]}" for axis in fixed)]
    return plain("\n".join(lines))


def _short(axis: str, axes: Sequence[str]) -> str:
    """The last part of each path, where that is enough to tell the axes apart."""
    return _ends(axis) if sum(_ends(each) == _ends(axis) for each in axes) == 1 else axis


def _ends(axis: str) -> str:
    return ", ".join(path.rpartition(".")[2] for path in axis.split(","))
