"""The Pareto front of a sweep as a scatter plot of two or three columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import dist
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from tpusim.report.plots.figure import figure_of, plain, uncrowded
from tpusim.report.style import GREY, MAIN
from tpusim.result.vocabulary.figures import column_of
from tpusim.study.sweep.column import Goal

Row = Mapping[str, Any]

_LOG_RATIO = 10
_MOST_NAMED = 16
_LEAST_DISTANCE = 0.04
"""The least distance of two numbered points, as a part of the picture's width and height."""


def front_figure(title: str, rows: Sequence[Row], goals: Sequence[Goal], axes: Sequence[str]) -> Figure:
    """All points, those on the front (`pareto`) dark, numbered and named beside; the third goal is a tone."""
    finished = [row for row in rows if not row["error"]]
    front = sorted((row for row in finished if row["pareto"]), key=lambda row: goals[0].cost(row[goals[0].column]))
    rest = [row for row in finished if not row["pareto"]]
    figure = figure_of(5.4, 3.9)
    plot = figure.subplots()
    plot.plot(*_values(rest, goals[:2]), ls="", marker="o", markersize=3, color=GREY, label="other points")
    _draw_front(figure, plot, front, goals)
    for which, goal, values in zip("xy", goals, _values(finished, goals), strict=False):
        _lay_out(plot, which, goal, values)
    plot.set_title(title)
    named = _number(plot, _values(front, goals[:2]), goals)
    key = _key(named, front, axes)
    # The layout engine does not make room for text; an empty legend with a title is text that it knows.
    figure.set_size_inches(5.4 + 0.056 * max(map(len, key.split("\n"))), 3.9)
    figure.legend(handles=plot.get_legend_handles_labels()[0], loc="outside lower center", ncols=2)
    beside = figure.legend(handles=[], title=key, loc="outside right upper", alignment="left")
    beside.get_title().set(family="monospace", fontsize=6.5)
    return uncrowded(figure)


def _values(rows: Sequence[Row], goals: Sequence[Goal]) -> list[list[float]]:
    """A list a goal."""
    columns = [column_of(goal.column) for goal in goals]
    return [[column.scaled(row[column.key]) for row in rows] for column in columns]


def _draw_front(figure: Figure, plot: Axes, front: Sequence[Row], goals: Sequence[Goal]) -> None:
    """Beyond the steps nothing was found; they turn where the next point's first goal is reached."""
    x, y, *tones = _values(front, goals)
    if tones:
        points = plot.scatter(x, y, 34, *tones, marker="D", cmap="cividis", edgecolors="black", lw=0.6, zorder=3)
        points.set_label("Pareto front")
        figure.colorbar(points, ax=plot, label=_words(goals[2]))
    else:
        plot.plot(x, y, drawstyle="steps-post", color=MAIN, marker="D", markersize=4.5, lw=1, label="Pareto front")


def _lay_out(plot: Axes, which: str, goal: Goal, values: Sequence[float]) -> None:
    axis = plot.xaxis if which == "x" else plot.yaxis
    axis.set_label_text(_words(goal))
    if 0 < min(values) * _LOG_RATIO <= max(values):
        plot.set(**{f"{which}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    else:
        plot.set(**{f"{which}lim": (0, None)})
    # In full: matplotlib writes a million as 1e6 in the corner.
    axis.set_major_formatter("{x:,.10g}")


def _words(goal: Goal) -> str:
    return f"{plain(column_of(goal.column).title)}, {'less' if goal.minimize else 'more'} is better"


def _number(plot: Axes, spots: Sequence[Sequence[float]], goals: Sequence[Goal]) -> list[int]:
    """Number some points on their better side, where by definition no other is; returns which."""
    points = np.transpose(spots)
    named = _spread(plot.transAxes.inverted().transform(plot.transData.transform(points)))
    right, up = (-1 if goal.minimize else 1 for goal in goals[:2])
    sides: Any = {"ha": "left" if right > 0 else "right", "va": "bottom" if up > 0 else "top"}
    for number, point in enumerate(points[named], 1):
        plot.annotate(f"{number}", point, (4 * right, 4 * up), textcoords="offset points", fontsize=6.5, **sides)
    return named


def _spread(places: NDArray[np.float64]) -> list[int]:
    """At most _MOST_NAMED of these places, in order, that are so far from each other that numbers do not touch."""
    least = _LEAST_DISTANCE
    while True:
        kept: list[int] = []
        for index, place in enumerate(places):
            if all(dist(place, places[other]) >= least for other in kept):
                kept.append(index)
        if len(kept) <= _MOST_NAMED:
            return kept
        least *= 1.3


def _key(named: Sequence[int], front: Sequence[Row], axes: Sequence[str]) -> str:
    """What the numbers mean: a line a point, its axes in columns; those that are the same throughout come last."""
    short = _short(axes)
    fixed = [axis for axis in axes if len({row[axis] for row in front}) == 1]
    columns = [["", *(f"{number}" for number in range(1, len(named) + 1))]]
    columns += [[short[axis], *(f"{front[index][axis]}" for index in named)] for axis in axes if axis not in fixed]
    aligned = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]
    lines = ["  ".join(line) for line in zip(*aligned, strict=True)]
    if len(named) < len(front):
        lines += ["", f"and {len(front) - len(named)} close to these: see points.csv"]
    if fixed:
        lines += ["", "all:", *(f"{short[axis]} {front[0][axis]}" for axis in fixed)]
    return plain("\n".join(lines))


def _short(axes: Sequence[str]) -> dict[str, str]:
    """The last part of each path, where that is enough to tell the axes apart."""
    ends = {axis: ", ".join(path.rpartition(".")[2] for path in axis.split(",")) for axis in axes}
    return {axis: end if [*ends.values()].count(end) == 1 else axis for axis, end in ends.items()}
