"""Pictures of a sweep: curves over one axis, heat maps over two, a panel an axis over more; and the Pareto front."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from tpusim.report.plots.figure import Picture, figure_of, plain, uncrowded
from tpusim.report.plots.sweep_front_plot import front_figure
from tpusim.report.plots.sweep_labels import Scale, axis_label, rows_of, scale_of, zipped
from tpusim.report.plots.sweep_lowerings import LOWERING, Winners, lowerings_figure, winners_figure
from tpusim.report.style import GREY, MAIN, MARK, SERIES
from tpusim.report.tables.sweep import ComparedLowerings, over_lowerings
from tpusim.result.vocabulary.figures import COLUMNS, PERCENT
from tpusim.study.sweep.spec import Sweep

Row = Mapping[str, Any]

_LETTERS, _AROUND = 14, 0.8
"""Of a label in an inch, and the inches of a picture above and below what the label stands beside."""
_MOST_NUMBERS = 12
_MOST_PANELS = 12


def plots(sweep: Sweep, rows: Sequence[Row]) -> Iterator[Picture]:
    """Every picture; none where every point failed.

    A row is a point: its columns, its axes, and whether it is on the front as `pareto`.
    """
    finished = [row for row in rows if not row["error"]]
    if finished and over_lowerings([*sweep.axes]):
        yield _of_lowerings(sweep, rows)
    elif finished and _moves_along_one(sweep):
        yield from _along_one(sweep, finished)
    for workload, stem in file_names([*dict.fromkeys(row["workload"] for row in finished)]).items():
        yield from _of_workload(sweep, stem, [row for row in rows if row["workload"] == workload])


def file_names(workloads: Sequence[str]) -> dict[str, str]:
    """A part of a file name for each workload, safe on every file system, all different."""
    names: dict[str, str] = {}
    for workload in workloads:
        plain_name = re.sub(r"[^A-Za-z0-9._-]+", "_", workload)[:60].strip("._") or "workload"
        taken = {name.casefold() for name in names.values()}
        numbered = (f"{plain_name}_{number}" for number in range(2, len(workloads) + 2))
        names[workload] = next(name for name in (plain_name, *numbered) if name.casefold() not in taken)
    return names


def _moves_along_one(sweep: Sweep) -> bool:
    return len(sweep.axes) == 1 or sweep.combine == "zip"


def _along_one(sweep: Sweep, rows: Sequence[Row]) -> Iterator[Picture]:
    over = f"over {' and '.join(map(axis_label, sweep.axes))}; {_title(sweep, rows)}."
    draw = _twins if len({row["workload"] for row in rows}) == 1 else _stacked
    both = partial(draw, sweep, rows, ("tflops", "pe_utilization"))
    yield Picture("throughput", f"TFLOPS and PE utilisation {over}", both)
    idle = f"Share of the cycles in which the port of a vector memory is not used, {over}"
    if any(row["port_idle_ratio"] is not None for row in rows):
        yield Picture("port_idle", idle, partial(_stacked, sweep, rows, ("port_idle_ratio",)))


def _of_lowerings(sweep: Sweep, rows: Sequence[Row]) -> Picture:
    found, title = ComparedLowerings(rows), _title(sweep, rows)
    split = any(row.get("starved_cycles") is not None for row in rows)
    unit = "systolic array" if split else "machine"
    caption = (
        f"Time of each network by each lowering, in times of what {found.reference} takes; {title}. Stacked: what the"
        f" {unit} did meanwhile."
    ) + " A cross: the point failed." * found.some_failed
    return Picture("lowerings", caption, partial(lowerings_figure, title, found))


def _of_workload(sweep: Sweep, stem: str, rows: Sequence[Row]) -> Iterator[Picture]:
    title, finished = _title(sweep, rows), [row for row in rows if not row["error"]]
    if len(sweep.axes) == 2 and not _moves_along_one(sweep) and not sweep.search:
        for name, column in (("utilization", "pe_utilization"), ("tflops", "tflops")):
            over = f"over {' and '.join(map(axis_label, sweep.axes))}"
            caption = f"{COLUMNS[column].title} {over}; {title}. Framed: the most. A cross: the point failed."
            yield Picture(f"{name}_{stem}", caption, partial(_heat_map, title, rows, [*sweep.axes], column))
    elif not _moves_along_one(sweep):
        caption = f"TFLOPS of every point over each axis by itself, and of the best at each value; {title}."
        yield Picture(f"axes_{stem}", caption, partial(_panels, title, finished, [*sweep.axes]))
    winners = Winners(rows, [*sweep.axes])
    if LOWERING in sweep.axes and sweep.combine == "grid" and not sweep.search and winners.drawable:
        yield Picture(f"winners_{stem}", _of_winners(title, winners), partial(winners_figure, title, winners))
    if sweep.goals:
        caption = f"Pareto front of {' and '.join(map(str, sweep.goals))}; {title}."
        yield Picture(f"pareto_{stem}", caption, partial(front_figure, title, rows, sweep.goals, [*sweep.axes]))


def _of_winners(title: str, found: Winners) -> str:
    first = found.lowerings[0]
    return (
        f"The fastest lowering over {' and '.join(map(axis_label, found.others))}; {title}. In a cell: how many times "
        f"as fast as {first} the best of the others is. A cross: every point failed."
    )


def _title(sweep: Sweep, rows: Sequence[Row]) -> str:
    names, batches = ({row[key] for row in rows} for key in ("workload", "batch"))
    what = f": {rows[0]['workload']}" if len(names) == 1 else ""
    batch = f", batch {rows[0]['batch']}" if len(batches) == 1 else ""
    return plain(f"{sweep.name}{what}{batch}")


def _stacked(sweep: Sweep, rows: Sequence[Row], columns: Sequence[str]) -> Figure:
    """Columns one above the other; a curve a workload."""
    figure = figure_of(5.4, 1.6 + 1.8 * len(columns))
    plots = figure.subplots(len(columns), 1, sharex=True, squeeze=False).flatten()
    for plot, column in zip(plots, columns, strict=True):
        _curves(plot, sweep, rows, column)
        plot.set_xlabel(plot.get_xlabel() if plot is plots[-1] else "")
    plots[0].set_title(_title(sweep, rows))
    curves = plots[0].get_lines()
    if len(curves) > 1:
        figure.legend(handles=curves, loc="outside lower center", ncols=min(4, len(curves)))
    return uncrowded(figure)


def _twins(sweep: Sweep, rows: Sequence[Row], columns: Sequence[str]) -> Figure:
    """Two columns of one workload on twin axes, as in the paper's Fig. 16a."""
    figure = figure_of(5.4, 3.4)
    left = figure.subplots()
    right = left.twinx()
    left.set_title(_title(sweep, rows))
    for plot, column, tone, look in zip((left, right), columns, (0, 1), ("-", "--"), strict=True):
        _curves(plot, sweep, rows, column, first=tone, look=look)
        plot.yaxis.label.set_color(SERIES[tone][0])
        plot.lines[0].set_label(COLUMNS[column].title)
    right.spines["right"].set_visible(True)
    figure.legend(handles=[left.lines[0], right.lines[0]], loc="outside lower center", ncols=2)
    return uncrowded(figure)


def _curves(plot: Axes, sweep: Sweep, rows: Sequence[Row], column: str, first: int = 0, look: str = "-") -> None:
    """A line a workload over the axis, or over the steps of axes that move together."""
    shown, together = COLUMNS[column], len(sweep.axes) > 1
    axis = next(iter(sweep.axes))
    values = [row[axis] for row in rows]
    scale, values = zipped([*sweep.axes], rows) if together else (scale_of(axis, values), values)
    places = [scale.places[value] for value in values]
    for index, workload in enumerate(dict.fromkeys(row["workload"] for row in rows), first):
        chosen = [(x, row) for x, row in zip(places, rows, strict=True) if row["workload"] == workload]
        chosen.sort(key=lambda each: each[0])
        (tone, _), (_, marker) = (SERIES[n % len(SERIES)] for n in (index, index + index // len(SERIES)))
        y = [shown.scaled(row[column]) for _, row in chosen]
        plot.plot([x for x, _ in chosen], y, label=plain(workload), markersize=4, color=tone, marker=marker, ls=look)
    _lay_out(plot, scale)
    plot.set_ylabel(shown.title)
    most = max(shown.scaled(row[column]) for row in rows)
    plot.set_ylim(0, max(100, most) if shown.units == PERCENT else None)


def _lay_out(plot: Axes, scale: Scale, ticks: int = 12) -> None:
    """The scale along x."""
    plot.set_xscale(scale.kind)
    plot.xaxis.set_minor_locator(NullLocator())
    places, texts = scale.ticks(ticks)
    plot.set_xticks(places, texts)
    plot.set_xlabel(scale.label)


def _heat_map(title: str, rows: Sequence[Row], axes: Sequence[str], column: str) -> Figure:
    """The number in every cell where there is room; a cross where a point failed, a frame around the best."""
    shown = COLUMNS[column]
    across, down = (rows_of(axis, [row[axis] for row in rows]) for axis in axes)
    grid = np.full((len(down.places), len(across.places)), np.nan)
    figure = figure_of(min(9.0, 2.4 + 0.5 * grid.shape[1]), min(7.0, 1.5 + 0.35 * grid.shape[0]))
    plot = figure.subplots()
    for row in rows:
        x, y = int(across.places[row[axes[0]]]), int(down.places[row[axes[1]]])
        if row["error"]:
            plot.plot(x, y, marker="x", color="black", markersize=5)
        else:
            grid[y, x] = shown.scaled(row[column])
    top = max(100.0 if shown.units == PERCENT else 0.0, float(np.nanmax(grid)))
    image = plot.imshow(grid, cmap="Greys", vmin=0, vmax=top, aspect="auto", origin="lower")
    for (y, x), value in np.ndenumerate(grid) if max(grid.shape) <= _MOST_NUMBERS else ():
        if value == value:
            tone = "white" if value > 0.55 * top else "black"
            plot.text(x, y, f"{value:.1f}" if top >= 10 else f"{value:.2f}", ha="center", va="center", color=tone)
    best = np.unravel_index(np.nanargmax(grid), grid.shape)
    plot.add_patch(
        Rectangle((best[1] - 0.5, best[0] - 0.5), 1, 1, fill=False, edgecolor=MARK, linewidth=2, clip_on=False)
    )
    plot.set_xticks(*across.ticks())
    plot.set_yticks(*down.ticks())
    beside = fill(down.label, max(12, int(_LETTERS * (figure.get_figheight() - _AROUND))))
    plot.set(xlabel=across.label, ylabel=beside, title=title)
    figure.colorbar(image, label=shown.title)
    return uncrowded(figure)


def _panels(title: str, rows: Sequence[Row], axes: Sequence[str]) -> Figure:
    """For each axis, the TFLOPS of all points over its values, and a line through the best at each value."""
    varied = [axis for axis in axes if len({row[axis] for row in rows}) > 1][:_MOST_PANELS] or list(axes[:1])
    columns = min(3, len(varied))
    lines = ceil(len(varied) / columns)
    figure = figure_of(2.6 * columns + 0.4, 2.3 * lines + 0.5)
    plots = figure.subplots(lines, columns, sharey=True, squeeze=False).flatten()
    for plot, axis in zip(plots, varied, strict=False):
        _panel(plot, rows, axis)
    for plot in plots[len(varied) :]:
        plot.remove()
    for plot in plots[: len(varied) : columns]:
        plot.set_ylabel(COLUMNS["tflops"].title)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    figure.legend(handles=plots[0].get_lines(), loc="outside lower center", ncols=2)
    return uncrowded(figure)


def _panel(plot: Axes, rows: Sequence[Row], axis: str) -> None:
    scale = scale_of(axis, [row[axis] for row in rows])
    x, y = [scale.places[row[axis]] for row in rows], [row["tflops"] for row in rows]
    plot.plot(x, y, ls="", marker="o", markersize=2.5, color=GREY, label="a point")
    best = {place: max(high for at, high in zip(x, y, strict=True) if at == place) for place in sorted({*x})}
    plot.plot([*best], [*best.values()], color=MAIN, marker="D", markersize=3.5, label="the best at each value")
    _lay_out(plot, scale, ticks=7)
    plot.set_ylim(bottom=0)
