"""Pictures of sweeps that compare lowerings, or machines, alone: what each network takes by each, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from tpusim.report.plots.figure import columns_below, figure_of, plain, stack
from tpusim.report.style import MAIN
from tpusim.report.tables.sweep import PointTable, Row
from tpusim.result.vocabulary.states import ARRAY, LAUNCHING, STALLED, STATES
from tpusim.study.sweep.axes import HARDWARE

# ---- over lowerings: a group of bars a network, a bar a lowering, stacked by what the array did

_BAR = 0.84
_GAP = 1.2
"""The gap between groups, in bars."""
_SMALL = 6.5
_FEW = 90
"""Most bars of a picture in which each has its number above it."""


def lowerings_figure(title: str, found: PointTable) -> Figure:
    """Draw times as ratios to the reference on the same network; a cross marks a lowering that failed."""
    step = len(found.values) + _GAP
    slots = len(found.workloads) * step
    figure = figure_of(min(max(5.4, 1.2 + 0.19 * slots), 13.0), 3.9)
    axes = figure.subplots()
    places = {
        (workload, lowering): group * step + place
        for group, workload in enumerate(found.workloads)
        for place, lowering in enumerate(found.values)
    }
    done = {key: at for key, at in places.items() if key in found.points}
    _bars(axes, done, found, numbered=len(places) <= _FEW)
    if failed := [at for key, at in places.items() if key not in done]:
        foot: Any = {"transform": axes.get_xaxis_transform(), "label": "failed: see points.csv"}
        axes.plot(failed, [0.04] * len(failed), marker="x", color="black", markersize=4, ls="", **foot)
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set(title=title, ylabel=f"time relative to {plain(found.reference)}", xlim=(-1, slots - _GAP))
    axes.margins(y=0.1)
    # The lowering under each bar, the network above each group.
    axes.set_xticks([*places.values()], [plain(each) for each in found.values] * len(found.workloads))
    axes.tick_params(axis="x", length=0, rotation=90, labelsize=_SMALL)
    groups, middle = axes.secondary_xaxis("top"), (len(found.values) - 1) / 2
    groups.set_xticks([group * step + middle for group in range(len(found.workloads))], [*map(plain, found.workloads)])
    groups.tick_params(length=0)
    groups.spines["top"].set_visible(False)
    figure.legend(loc="outside lower center", ncols=columns_below(figure))
    return figure


def _bars(axes: Axes, places: Mapping[tuple[str, str], float], found: PointTable, numbered: bool) -> None:
    """Draw the bars of the points that were done, stacked by the states that occur."""
    rows, times = [found.points[key] for key in places], [found.times[key] for key in places]
    splits = [{state.key: row[f"{state.key}_cycles"] or 0 for state in ARRAY} for row in rows]
    units = np.array([row["cycles"] / each for row, each in zip(rows, times, strict=True)])
    for row, split in zip(rows, splits, strict=True):
        # Machines of other families wait for reasons of their own, which a sweep does not tell apart.
        split[STALLED.key] = row["cycles"] - sum(split.values())
    states = [state for state in (*ARRAY, STALLED) if any(split[state.key] for split in splits)]
    stack(axes.bar, [*places.values()], splits, units, _BAR, states)
    # The number stands beyond the line at one, which would cross the number of a shorter bar.
    above: Any = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": _SMALL, "rotation": 90}
    for at, each in zip(places.values(), times, strict=True) if numbered else ():
        axes.annotate(f"{each:.2f}", (at, max(each, 1)), (0, 2), **above)


# ---- over machines: two plots a network, its time above, and below what the cycles go to

_ACROSS = 4
"""Networks beside one another."""
_LEGEND = 2.3
"""Inches that a small legend of a state takes."""
_PARTS = (STATES["useful"], STATES["unused"], LAUNCHING, *(state for state in ARRAY if state.key != "busy"), STALLED)


def machines_figure(title: str, rows: Sequence[Row]) -> Figure:
    """Draw time and shares of the cycles, network by network, over machines; a cross marks a point that failed."""
    networks, machines = ([*dict.fromkeys(row[key] for row in rows)] for key in ("workload", HARDWARE))
    across = min(_ACROSS, len(networks))
    groups = ceil(len(networks) / across)
    wide = max(1.2, 0.5 + 0.16 * len(machines))
    figure = figure_of(max(3.6, 0.6 + wide * across), 1.6 + 2.7 * groups)
    plots = figure.subplots(2 * groups, across, sharex=True, squeeze=False)
    split = [*map(_shares, rows)]
    states = [state for state in _PARTS if any(each.get(state.key) for each in split)]
    times, handles = [row["time_us"] for row in rows if not row["error"]], dict[str, Any]()
    for index, network in enumerate(networks):
        line, column = divmod(index, across)
        above, below = plots[2 * line, column], plots[2 * line + 1, column]
        own = [(row, parts) for row, parts in zip(rows, split, strict=True) if row["workload"] == network]
        done = [(machines.index(row[HARDWARE]), row, parts) for row, parts in own if not row["error"]]
        at = [place for place, _, _ in done]
        above.plot(at, [row["time_us"] for _, row, _ in done], color=MAIN, marker="o", markersize=3, lw=1)
        above.set(title=plain(network), yscale="log", ylim=(0.7 * min(times), 1.4 * max(times)))
        above.yaxis.set_major_locator(LogLocator())
        above.yaxis.set_minor_formatter(NullFormatter())
        # In full: matplotlib writes a thousand as a power of ten.
        above.yaxis.set_major_formatter("{x:,.10g}")
        above.grid(axis="y", linewidth=0.3)
        stack(below.bar, at, [parts for _, _, parts in done], np.full(len(at), 0.01), _BAR, states)
        failed = [machines.index(row[HARDWARE]) for row, _ in own if row["error"]]
        if failed:
            cross: Any = {"marker": "x", "color": "black", "markersize": 4, "ls": "", "label": "failed: see points.csv"}
            below.plot(failed, [4] * len(failed), **cross)
        below.set(ylim=(0, 100), xlim=(-0.6, len(machines) - 0.4))
        below.set_xticks(range(len(machines)), [*map(plain, machines)], rotation=90, fontsize=_SMALL)
        below.tick_params(axis="x", length=0, labelbottom=True)
        handles |= {str(label): handle for handle, label in zip(*below.get_legend_handles_labels(), strict=True)}
        for plot in (above, below) if column else ():
            plot.tick_params(labelleft=False)
    for line in range(groups):
        plots[2 * line, 0].set_ylabel("time (us)")
        plots[2 * line + 1, 0].set_ylabel("cycles (%)")
    for plot in plots[-2:, len(networks) - across * (groups - 1) :].flatten():
        plot.remove()
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    order = dict.fromkeys(label for label in (*(state.legend for state in states), *handles) if label in handles)
    columns = max(1, int(figure.get_figwidth() / _LEGEND))
    look: Any = {"loc": "outside lower center", "ncols": columns, "fontsize": _SMALL}
    figure.legend([handles[each] for each in order], [*order], **look)
    return figure


def _shares(row: Row) -> Mapping[str, float]:
    """Return the shares of a point's cycles by the keys of _PARTS, launches apart; nothing where it failed."""
    if row["error"]:
        return {}
    split = {state.key: row[f"{state.key}_cycles"] or 0 for state in ARRAY}
    # Machines of other families wait for reasons of their own, which a sweep does not tell apart.
    split[STALLED.key] = row["cycles"] - sum(split.values())
    useful = min(row["pe_utilization"] * row["cycles"], split["busy"])
    launched = min(row["launch_cycles"] or 0, split["starved"])
    split |= {"useful": useful, "unused": split["busy"] - useful, LAUNCHING.key: launched}
    split["starved"] -= launched
    return {key: cycles / row["cycles"] for key, cycles in split.items()}
