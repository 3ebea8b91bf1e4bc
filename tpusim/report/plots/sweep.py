"""Pictures of a sweep: curves, heat maps or a panel an axis; which lowering is the fastest where; the Pareto front."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import ceil, dist
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import NullLocator

from tpusim.network.entries import LOWERING
from tpusim.report.plots.compared import lowerings_figure, machines_figure
from tpusim.report.plots.figure import (
    Picture,
    Scale,
    axis_label,
    figure_of,
    in_full,
    in_unit,
    plain,
    rows_of,
    scale_of,
    uncrowded,
    zipped,
)
from tpusim.report.plots.labels import OccupiedPlaces, Spot, name_marks, settled
from tpusim.report.style import GREY, MAIN, MARK, SERIES
from tpusim.report.tables.sweep import Row, compares, comparison, speed_of
from tpusim.report.text import three_digits
from tpusim.result.vocabulary.figures import COLUMNS, LESS, PERCENT, column_of
from tpusim.study.sweep.points import Sweep
from tpusim.study.sweep.reader import Goal
from tpusim.study.sweep.run import on_front

_LETTERS, _AROUND = 14, 0.8
"""Letters of a label in an inch, and the inches of a picture above and below what the label stands beside."""
_LEGEND_LETTERS = 70
"""Letters beside one another in a legend below curves."""
_CROSS = " A cross: the point failed."
_MOST_NUMBERS = 12
_MOST_PANELS = 12


def plots(sweep: Sweep, rows: Sequence[Row]) -> Iterator[Picture]:
    """Yield every picture; none where every point failed.

    A row is a point: its columns, its axes, and whether it is on the front as `pareto`.
    """
    finished, title = [row for row in rows if not row["error"]], _title(sweep, rows)
    axis = compares([*sweep.axes])
    if finished and axis == LOWERING:
        found = comparison(rows, axis)
        unit = "systolic array" if any(row.get("starved_cycles") is not None for row in rows) else "machine"
        caption = (
            f"Time of each network by each lowering, in times of what {found.reference} takes; {title}. Stacked: what"
            f" the {unit} did meanwhile."
        ) + " A cross: the point failed." * found.some_failed
        yield Picture("lowerings", caption, partial(lowerings_figure, title, found))
    elif finished and axis:
        caption = (
            f"Each network on each machine; {title}. Above: its time, on a logarithmic scale. Below: what its cycles go"
            " to; the lowest part is the PE utilisation."
        ) + " A cross: the point failed." * (len(finished) < len(rows))
        yield Picture("machines", caption, partial(machines_figure, title, rows))
    elif finished and _moves_along_one(sweep):
        over = f"over {' and '.join(map(axis_label, sweep.axes))}; {_title(sweep, finished)}."
        over += _CROSS * (len(finished) < len(rows))
        speed, wanted = speed_of(finished), [goal.column for goal in _drawn_goals(sweep)]
        draw = _twins if len({row["workload"] for row in finished}) == 1 else _stacked
        both = partial(draw, sweep, rows, (speed, "pe_utilization"))
        yield Picture("throughput", f"{_capital(COLUMNS[speed].label)} and PE utilisation {over}", both)
        if others := [column for column in wanted if column not in (speed, "pe_utilization")]:
            told = f"{_capital(' and '.join(COLUMNS[column].label for column in others))} {over}"
            yield Picture("goals", told, partial(_stacked, sweep, rows, others))
        idle = f"Share of the cycles in which the port of a vector memory is not used, {over}"
        # Machines without vector memories have no such figure.
        if any(row["port_idle_ratio"] is not None for row in finished) and "port_idle_ratio" not in wanted:
            yield Picture("port_idle", idle, partial(_stacked, sweep, rows, ("port_idle_ratio",)))
    for workload, stem in file_names([*dict.fromkeys(row["workload"] for row in finished)]).items():
        yield from _of_workload(sweep, stem, [row for row in rows if row["workload"] == workload])


def file_names(workloads: Sequence[str]) -> dict[str, str]:
    """Return a part of a file name for each workload, safe on every file system, all different."""
    names: dict[str, str] = {}
    for workload in workloads:
        plain_name = re.sub(r"[^A-Za-z0-9._-]+", "_", workload)[:60].strip("._") or "workload"
        taken = {name.casefold() for name in names.values()}
        numbered = (f"{plain_name}_{number}" for number in range(2, len(workloads) + 2))
        names[workload] = next(name for name in (plain_name, *numbered) if name.casefold() not in taken)
    return names


def _moves_along_one(sweep: Sweep) -> bool:
    return len(sweep.axes) == 1 or sweep.combine == "zip"


def _drawn_goals(sweep: Sweep) -> list[Goal]:
    """Return the goals that are figures of points: others are axes, along which figures are drawn."""
    return [goal for goal in sweep.goals if goal.column in COLUMNS]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of_workload(sweep: Sweep, stem: str, rows: Sequence[Row]) -> Iterator[Picture]:
    title, finished = _title(sweep, rows), [row for row in rows if not row["error"]]
    speed, wanted = speed_of(finished), _drawn_goals(sweep)
    crosses = _CROSS * (len(finished) < len(rows))
    if len(sweep.axes) == 2 and not _moves_along_one(sweep) and not sweep.search:
        shown = {goal.column: goal.minimize for goal in wanted}
        for column in dict.fromkeys(("pe_utilization", speed, *shown)):
            over = f"over {' and '.join(map(axis_label, sweep.axes))}"
            least = shown.get(column, COLUMNS[column].better == LESS)
            best = f"Framed: the {'least' if least else 'most'}."
            caption = f"{_capital(COLUMNS[column].label)} {over}; {title}. {best}{crosses}"
            name = {"pe_utilization": "utilization"}.get(column, column)
            yield Picture(f"{name}_{stem}", caption, partial(_heat_map, title, rows, [*sweep.axes], column, least))
    elif not _moves_along_one(sweep):
        goals = wanted or [Goal(speed, False)]
        what = _capital(" and ".join(COLUMNS[goal.column].label for goal in goals))
        caption = f"{what} of every point over each axis by itself, and of the best at each value; {title}.{crosses}"
        yield Picture(f"axes_{stem}", caption, partial(_panels, title, rows, [*sweep.axes], goals))
    mapped = LOWERING in sweep.axes and sweep.combine == "grid" and not sweep.search
    if mapped and (winners := _winners(title, stem, rows, [*sweep.axes])):
        yield winners
    if sweep.goals:
        caption = f"Pareto front of {' and '.join(map(str, sweep.goals))}; {title}."
        if len(sweep.goals) > 2:
            caption += " The line: the front of the first two alone. Tones: the third."
        yield Picture(f"pareto_{stem}", caption, partial(front_figure, title, rows, sweep.goals, [*sweep.axes]))


def _title(sweep: Sweep, rows: Sequence[Row]) -> str:
    names, batches = ({row[key] for row in rows} for key in ("workload", "batch"))
    what = f": {rows[0]['workload']}" if len(names) == 1 else ""
    batch = f", batch {rows[0]['batch']}" if len(batches) == 1 else ""
    return plain(f"{sweep.name}{what}{batch}{f', {sweep.setup}' * bool(sweep.setup)}")


def _put_title(plot: Axes, sweep: Sweep, rows: Sequence[Row]) -> None:
    """Write the title of finished points, above the crosses of others."""
    finished = [row for row in rows if not row["error"]]
    plot.set_title(_title(sweep, finished), pad=_ROOM if len(finished) < len(rows) else None)


def _stacked(sweep: Sweep, rows: Sequence[Row], columns: Sequence[str]) -> Figure:
    """Draw columns one above the other; a curve a workload."""
    figure = figure_of(5.4, 1.6 + 1.8 * len(columns))
    plots = figure.subplots(len(columns), 1, sharex=True, squeeze=False).flatten()
    for plot, column in zip(plots, columns, strict=True):
        _curves(plot, sweep, rows, column)
        plot.set_xlabel(plot.get_xlabel() if plot is plots[-1] else "")
    _put_title(plots[0], sweep, rows)
    curves = plots[0].get_lines()
    if len(curves) > 1:
        figure.legend(handles=curves, loc="outside lower center", ncols=_legends(curves))
    return uncrowded(figure)


def _legends(curves: Sequence[Line2D]) -> int:
    """Return how many names of curves stand beside one another below a picture."""
    return max(1, min(len(curves), _LEGEND_LETTERS // (8 + max(len(str(curve.get_label())) for curve in curves))))


def _twins(sweep: Sweep, rows: Sequence[Row], columns: Sequence[str]) -> Figure:
    """Draw two columns of one workload on twin axes, as in the paper's Fig. 16a."""
    figure = figure_of(5.4, 3.4)
    left = figure.subplots()
    right = left.twinx()
    _put_title(left, sweep, rows)
    for plot, column, tone, look in zip((left, right), columns, (0, 1), ("-", "--"), strict=True):
        _curves(plot, sweep, rows, column, first=tone, look=look)
        plot.yaxis.label.set_color(SERIES[tone][0])
        plot.lines[0].set_label(plot.get_ylabel())
    right.spines["right"].set_visible(True)
    figure.legend(handles=[left.lines[0], right.lines[0], *left.lines[1:]], loc="outside lower center", ncols=3)
    return uncrowded(figure)


def _curves(plot: Axes, sweep: Sweep, rows: Sequence[Row], column: str, first: int = 0, look: str = "-") -> None:
    """Draw a line a workload over the axis, or over the steps of axes that move together; crosses for failed points."""
    axis = next(iter(sweep.axes))
    values = [row[axis] for row in rows]
    scale, values = zipped([*sweep.axes], rows) if len(sweep.axes) > 1 else (scale_of(axis, values), values)
    places = [scale.places[value] for value in values]
    # Some points lack some figures: a GPU has no vector memories.
    done = [(x, row) for x, row in zip(places, rows, strict=True) if not row["error"] and row[column] is not None]
    title, size = in_unit(COLUMNS[column], [row[column] for _, row in done])
    top, curves = max(row[column] for _, row in done) / size, dict[str, dict[float, float]]()
    whole = COLUMNS[column].units == PERCENT
    top = max(100, top) if whole else top
    for x, row in sorted(done, key=lambda each: each[0]):
        curves.setdefault(row["workload"], {})[x] = row[column] / size
    # Curves on one another take turns along the line, and stand around one another at its points.
    names = [*curves]
    piles: list[list[str]] = []
    for name in names:
        pile = next((each for each in piles if _lie_near(curves[each[0]], curves[name], top)), None)
        piles.append([name]) if pile is None else pile.append(name)
    for index, name in enumerate(names, first):
        pile = next(each for each in piles if name in each)
        place, others = pile.index(name), len(pile) - 1
        (tone, _), (_, marker) = (SERIES[n % len(SERIES)] for n in (index, index + index // len(SERIES)))
        turns: Any = (-_TURN * place, (_TURN, _TURN * others)) if others else look
        plot.plot(
            [*curves[name]], [*curves[name].values()], label=plain(name), color=tone, marker=marker, ls=turns,
            markersize=4 + 4 * place, fillstyle="none" if place else "full",
        )  # fmt: skip
    if first == 0:
        _cross(plot, [x for x, row in zip(places, rows, strict=True) if row["error"]])
    _lay_out(plot, scale)
    plot.set_ylabel(title)
    plot.set_ylim(0, top if whole else None)


_ABOVE, _ROOM = 1.035, 16
"""Height of a cross above a plot, in heights of the plot: beside no value; and points from there to the title."""


def _cross(plot: Axes, places: Sequence[float]) -> None:
    """Draw a cross above a plot wherever a point failed."""
    if places:
        above: Any = {"transform": plot.get_xaxis_transform(), "label": "failed: see points.csv", "clip_on": False}
        plot.plot(sorted({*places}), [_ABOVE] * len({*places}), marker="x", color="black", markersize=4, ls="", **above)


_TURN, _NEAR = 3, 0.02


def _lie_near(one: Mapping[float, float], other: Mapping[float, float], top: float) -> bool:
    """Return whether two curves can hardly be told apart at half of their places, on a plot that ends at `top`."""
    near = [abs(one[x] - other[x]) <= _NEAR * top for x in one.keys() & other.keys()]
    return 2 * sum(near) > len(near)


def _lay_out(plot: Axes, scale: Scale, ticks: int = 12) -> None:
    """Lay out the scale along x."""
    plot.set_xscale(scale.kind)
    plot.xaxis.set_minor_locator(NullLocator())
    places, texts = scale.ticks(ticks)
    plot.set_xticks(places, texts)
    plot.set_xlabel(scale.label)


_TONES_OF_CELLS = ListedColormap(colormaps["Greys"](np.linspace(0, 0.55, 256)))
"""From white to a grey on which black numbers are read: maps begin at zero, and often have no small number."""


def _heat_map(title: str, rows: Sequence[Row], axes: Sequence[str], column: str, least: bool) -> Figure:
    """Draw the number in every cell where there is room; a cross where a point failed, a frame around the best."""
    shown, size = in_unit(COLUMNS[column], [row[column] for row in rows if not row["error"]])
    across, down = (rows_of(axis, [row[axis] for row in rows]) for axis in axes)
    grid = np.full((len(down.places), len(across.places)), np.nan)
    figure = figure_of(min(9.0, 2.4 + 0.5 * grid.shape[1]), min(7.0, 1.5 + 0.35 * grid.shape[0]))
    plot = figure.subplots()
    for row in rows:
        x, y = int(across.places[row[axes[0]]]), int(down.places[row[axes[1]]])
        if row["error"]:
            plot.plot(x, y, marker="x", color="black", markersize=5)
        else:
            grid[y, x] = row[column] / size
    # Shares are shaded up to 100 %, so that pictures of different sweeps compare.
    top = max(100.0 if COLUMNS[column].units == PERCENT else 0.0, float(np.nanmax(grid)))
    image = plot.imshow(grid, cmap=_TONES_OF_CELLS, vmin=0, vmax=top, aspect="auto", origin="lower")
    for (y, x), value in np.ndenumerate(grid) if max(grid.shape) <= _MOST_NUMBERS else ():
        # NaN, a failed point, is not equal to itself.
        if value == value:
            digits = 0 if top >= 1000 else 1 if top >= 10 else 2
            plot.text(x, y, f"{value:,.{digits}f}", ha="center", va="center", color="black")
    best = np.unravel_index((np.nanargmin if least else np.nanargmax)(grid), grid.shape)
    plot.add_patch(
        Rectangle((best[1] - 0.5, best[0] - 0.5), 1, 1, fill=False, edgecolor=MARK, linewidth=2, clip_on=False)
    )
    plot.set_xticks(*across.ticks())
    plot.set_yticks(*down.ticks())
    beside = fill(down.label, max(12, int(_LETTERS * (figure.get_figheight() - _AROUND))))
    plot.set(xlabel=across.label, ylabel=beside, title=title)
    in_full(figure.colorbar(image, label=shown).ax.yaxis)
    return uncrowded(figure)


def _panels(title: str, rows: Sequence[Row], axes: Sequence[str], goals: Sequence[Goal]) -> Figure:
    """Draw for each axis each goal of all points over its values, and a line through the best at each value.

    A cross above: a point of that value failed.
    """
    finished, failed = ([row for row in rows if bool(row["error"]) is lost] for lost in (False, True))
    varied = [axis for axis in axes if len({row[axis] for row in rows}) > 1][:_MOST_PANELS] or list(axes[:1])
    columns = len(varied) if len(varied) <= 4 else 3
    lines = ceil(len(varied) / columns)
    figure = figure_of(2.6 * columns + 0.4, 2.3 * lines * len(goals) + 0.5)
    grid, handles = figure.subplots(lines * len(goals), columns, squeeze=False), dict[str, Line2D]()
    for number, goal in enumerate(goals):
        plots, pick = grid[number * lines : (number + 1) * lines].flatten(), min if goal.minimize else max
        label, size = in_unit(COLUMNS[goal.column], [row[goal.column] for row in finished])
        y = [row[goal.column] / size for row in finished]
        for plot, axis in zip(plots, varied, strict=False):
            scale = scale_of(axis, [row[axis] for row in rows])
            x = [scale.places[row[axis]] for row in finished]
            plot.plot(x, y, ls="", marker="o", markersize=2.5, color=GREY, label="a point")
            # Points of one value lie above one another; the line joins the best of each.
            best = {place: pick(value for at, value in zip(x, y, strict=True) if at == place) for place in sorted({*x})}
            plot.plot([*best], [*best.values()], color=MAIN, marker="D", markersize=3.5, label="the best at each value")
            _cross(plot, [scale.places[row[axis]] for row in failed])
            _lay_out(plot, scale, ticks=7)
            plot.set_ylim(0, 1.06 * max(y))
            in_full(plot.yaxis)
            handles |= {str(line.get_label()): line for line in plot.get_lines()}
        for plot in plots[len(varied) :]:
            plot.remove()
        for plot in plots[: len(varied) : columns]:
            plot.set_ylabel(f"{label}, {_direction(goal)}" if len(goals) > 1 else label)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    figure.legend(handles=[*handles.values()], loc="outside lower center", ncols=3)
    return uncrowded(figure)


# ---- over lowerings and two or three other axes: a map of which lowering is the fastest where


MOST_CELLS = 24
"""Most cells along an axis: in more the numbers could not be read."""
_TONES = (
    ("#ffffff", "black"), ("#a9cbe3", "black"), ("#0b3c5d", "white"), ("#d55e00", "black"), ("#6e6e6e", "white"),
    ("#e8d9a8", "black"), ("#000000", "white"),
)  # fmt: skip
"""Tone of the first lowering, the second, ..., and of the text written on it; the tones differ in lightness."""


def _winners(title: str, stem: str, rows: Sequence[Row], axes: Sequence[str]) -> Picture | None:
    """Draw the fastest lowering over two or three other axes, a panel for each value of the third, beside one another.

    None where there are more values than numbers have room for, or lowerings than tones.
    """
    others = [axis for axis in axes if axis != LOWERING]
    # Others are compared with the first lowering; those that choose another lowering are not drawn.
    lowerings = [*dict.fromkeys(row[LOWERING] for row in rows if row[LOWERING] != "auto")]
    few = all(len({row[axis] for row in rows}) <= MOST_CELLS for axis in axes)
    if len(others) not in (2, 3) or not 1 < len(lowerings) <= len(_TONES) or not few:
        return None
    # Keys are across, down and panel (None: there is one); values are cycles by lowering, without failed points.
    cells: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in rows:
        took = cells.setdefault((*(row[axis] for axis in others), None)[:3], {})
        if row[LOWERING] in lowerings and not row["error"]:
            took[row[LOWERING]] = row["cycles"]
    told = f"how many times as fast as {lowerings[0]} the best of the others is"
    caption = (
        f"The fastest lowering over {' and '.join(map(axis_label, others))}; {title}. In a cell: {told}. A cross: every"
        " point failed."
    )

    def draw() -> Figure:
        across, down = (rows_of(axis, [row[axis] for row in rows]) for axis in others[:2])
        panels = list(dict.fromkeys(panel for _, _, panel in cells))
        wide, high = 0.45 * len(across.places), 0.33 * len(down.places)
        figure = figure_of(min(13.0, 1.2 + len(panels) * max(1.9, wide + 0.2)), min(9.0, 1.5 + high))
        plots = figure.subplots(1, len(panels), sharey=True, squeeze=False).flatten()
        for plot, panel in zip(plots, panels, strict=True):
            own = {cell: took for cell, took in cells.items() if cell[2] == panel}
            _draw_winners(plot, own, lowerings, across, down)
            if panel is not None:
                plot.set_title(plain(f"{axis_label(others[2])}: {panel}"))
        plots[0].set_ylabel(down.label)
        figure.suptitle(f"{title}\nin a cell: {told}", x=0.01, ha="left", fontsize=9)
        shown = zip(lowerings, _TONES, strict=False)
        handles = [Patch(facecolor=tone, edgecolor="black", linewidth=0.5, label=name) for name, (tone, _) in shown]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
        return uncrowded(figure)

    return Picture(f"winners_{stem}", caption, draw)


def _draw_winners(
    plot: Axes, cells: Mapping[tuple[Any, ...], Mapping[str, int]], lowerings: Sequence[str], across: Scale, down: Scale
) -> None:
    """Draw every cell in the tone of its fastest lowering (of equals the first), with its gain; a cross where no point
    was done.
    """
    for cell, took in cells.items():
        x, y = across.places[cell[0]], down.places[cell[1]]
        if not took:
            plot.plot(x, y, marker="x", color="black", markersize=5)
            continue
        tone, ink = _TONES[lowerings.index(min(took, key=took.__getitem__))]
        plot.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=tone, edgecolor="black", linewidth=0.5))
        # The gain is over the first lowering, hence none where that one failed.
        first, *rest = (took.get(each) for each in lowerings)
        best = min(filter(None, rest), default=None)
        gain = f"{first / best:.2f}" if first and best else "-"
        plot.text(x, y, gain, ha="center", va="center", color=ink, fontsize=7)
    plot.set_xticks(*across.ticks(MOST_CELLS))
    plot.set_yticks(*down.ticks(MOST_CELLS))
    plot.set(xlabel=across.label, xlim=(-0.5, len(across.places) - 0.5), ylim=(-0.5, len(down.places) - 0.5))


# ---- the Pareto front as a scatter plot of two or three columns

_LOG_RATIO = 10
_MOST_NAMED = 16
_LEAST_DISTANCE = 0.015
"""The least distance of two numbered points, as a part of the picture's width and height."""


def front_figure(title: str, rows: Sequence[Row], goals: Sequence[Goal], axes: Sequence[str]) -> Figure:
    """Draw all points, the front (`pareto`) dark, numbered and named beside; of three goals the third is a tone.

    The line is the front of the first two goals: beyond it nothing was found.
    """
    finished = [row for row in rows if not row["error"]]
    front, rest = ([row for row in finished if row["pareto"] is on] for on in (True, False))
    front.sort(key=lambda row: [goal.cost(row[goal.column]) for goal in goals])
    units = [in_unit(column_of(goal.column), [row[goal.column] for row in finished]) for goal in goals]
    labels = [f"{label}, {_direction(goal)}" for (label, _), goal in zip(units, goals, strict=True)]

    def places(points: Iterable[Row]) -> list[Spot]:
        (x, y, *_), ((_, wide), (_, high), *_) = goals, units
        return [(row[x.column] / wide, row[y.column] / high) for row in points]

    figure, alone = figure_of(5.4, 3.9), len(goals) == 2
    plot = figure.subplots()
    plot.plot(*_split(places(rest)), ls="", marker="o", markersize=3, color=GREY, label="other points")
    # Each step turns where the next point's first goal is reached.
    edge, (first, second) = places(_edge(front, goals[:2])), (column_of(goal.column).label for goal in goals[:2])
    told = "Pareto front" if alone else plain(f"front of {first} and {second} alone")
    steps: Any = {"drawstyle": "steps-post", "color": MAIN, "lw": 1, "label": told}
    plot.plot(*_split(edge), marker="D" if alone else "", markersize=4.5, **steps)
    for goal, (_, size), label in zip(goals[2:], units[2:], labels[2:], strict=True):
        tones = [row[goal.column] / size for row in front]
        look: Any = {"marker": "D", "zorder": 3, "edgecolors": "black", "lw": 0.6, "cmap": "cividis"}
        points = plot.scatter(*_split(places(front)), 34, tones, label="Pareto front of all three", **look)
        in_full(figure.colorbar(points, ax=plot, label=label).ax.yaxis)
    sides = zip("xy", (plot.xaxis, plot.yaxis), labels, _split(places(finished)), strict=False)
    for which, axis, label, values in sides:
        axis.set_label_text(label)
        if 0 < min(values) * _LOG_RATIO <= max(values):
            plot.set(**{f"{which}scale": "log"})
        else:
            plot.set(**{f"{which}lim": (min(0, *values), None)})
        in_full(axis)
    plot.set_title(title)
    chosen = _spread(plot, places(front))
    key = _key(chosen, front, axes, goals[2:])
    # The layout engine does not make room for text; an empty legend with a title is text that it knows.
    figure.set_size_inches(5.4 + 0.056 * max(map(len, key.split("\n"))), 3.9)
    figure.legend(handles=plot.get_legend_handles_labels()[0], loc="outside lower center", ncols=2)
    beside = figure.legend(handles=[], title=key, loc="outside right upper", alignment="left")
    beside.get_title().set(family="monospace", fontsize=6.5)
    settled(uncrowded(figure))
    taken, numbers = OccupiedPlaces(), [f"{number}" for number in range(1, len(chosen) + 1)]
    taken.add_line(plot, [corner for one, other in pairwise(edge) for corner in (one, (other[0], one[1]), other)])
    taken.add_marks(plot, places(rest), [1.5] * len(rest))
    taken.add_marks(plot, places(front), [3.5] * len(front))
    name_marks(plot, places(front[index] for index in chosen), [3.5] * len(chosen), numbers, taken, fontsize=6.5)
    return figure


def _split(places: Sequence[Spot]) -> tuple[list[float], list[float]]:
    return [x for x, _ in places], [y for _, y in places]


def _direction(goal: Goal) -> str:
    return f"{'less' if goal.minimize else 'more'} is better"


def _edge(front: Sequence[Row], goals: Sequence[Goal]) -> list[Row]:
    """Return the points of a front that are on that of these two goals as well, in the order of the first."""
    costs = np.array([[goal.cost(row[goal.column]) for goal in goals] for row in front], dtype=np.float64)
    return [row for row, on in zip(front, on_front(costs.reshape(-1, 2)), strict=True) if on]


def _spread(plot: Axes, spots: Sequence[Spot]) -> list[int]:
    """Return at most _MOST_NAMED of these places, in order, so far from each other that numbers have room."""
    places = plot.transAxes.inverted().transform(plot.transData.transform(np.asarray(spots)))
    least = _LEAST_DISTANCE
    while True:
        kept: list[int] = []
        for index, place in enumerate(places):
            if all(dist(place, places[other]) >= least for other in kept):
                kept.append(index)
        if len(kept) <= _MOST_NAMED:
            return kept
        least *= 1.3


def _key(named: Sequence[int], front: Sequence[Row], axes: Sequence[str], tones: Sequence[Goal]) -> str:
    """Say what the numbers mean: a line a point, its axes in columns, and its `tones` as numbers; axes of one value
    throughout come last.
    """
    # The last part of each path, where that is enough to tell the axes apart.
    ends = {axis: ", ".join(path.rpartition(".")[2] for path in axis.split(",")) for axis in axes}
    short = {axis: end if [*ends.values()].count(end) == 1 else axis for axis, end in ends.items()}
    fixed = [axis for axis in axes if len({row[axis] for row in front}) == 1]
    columns = [["", *(f"{number}" for number in range(1, len(named) + 1))]]
    columns += [[short[axis], *(f"{front[index][axis]}" for index in named)] for axis in axes if axis not in fixed]
    for goal in tones:
        label, size = in_unit(column_of(goal.column), [row[goal.column] for row in front])
        columns += [[label, *(three_digits(front[index][goal.column] / size) for index in named)]]
    aligned = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]
    lines = ["  ".join(line) for line in zip(*aligned, strict=True)]
    if len(named) < len(front):
        lines += ["", f"and {len(front) - len(named)} close to these: see points.csv"]
    if fixed:
        lines += ["", "all:", *(f"{short[axis]} {front[0][axis]}" for axis in fixed)]
    return plain("\n".join(lines))
