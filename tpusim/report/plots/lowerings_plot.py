"""The picture of a sweep over lowerings: a group of bars a network, a bar a lowering, stacked by what the array did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpusim.report.plots.figure import columns_below, figure_of, plain, stack
from tpusim.report.tables.sweep_lowerings import ComparedLowerings
from tpusim.result.vocabulary.states import ARRAY, STALLED

_BAR = 0.84
_GAP = 1.2
"""Between groups, in bars."""
_SMALL = 6.5
_FEW = 90
"""Up to so many bars, each has its number above it."""


def lowerings_figure(title: str, found: ComparedLowerings) -> Figure:
    """Heights are times of what the reference takes on the same network; a cross marks what failed."""
    step = len(found.lowerings) + _GAP
    slots = len(found.workloads) * step
    figure = figure_of(min(max(5.4, 1.2 + 0.19 * slots), 13.0), 3.9)
    axes = figure.subplots()
    places = {
        (workload, lowering): group * step + place
        for group, workload in enumerate(found.workloads)
        for place, lowering in enumerate(found.lowerings)
    }
    done = {key: at for key, at in places.items() if found.point(*key)}
    _bars(axes, done, found, numbered=len(places) <= _FEW)
    _crosses(axes, [at for key, at in places.items() if key not in done])
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set(title=title, ylabel=f"time relative to {plain(found.reference)}", xlim=(-1, slots - _GAP))
    axes.margins(y=0.1)
    _name(axes, [*places.values()], found)
    figure.legend(loc="outside lower center", ncols=columns_below(figure))
    return figure


def _bars(axes: Axes, places: Mapping[tuple[str, str], float], found: ComparedLowerings, numbered: bool) -> None:
    """Those of the points that were done, of the states that any of them was in."""
    rows, times = [found.point(*key) or {} for key in places], [found.times(*key) or 0.0 for key in places]
    splits = [{state.key: row[f"{state.key}_cycles"] or 0 for state in ARRAY} for row in rows]
    units = np.array([row["cycles"] / each for row, each in zip(rows, times, strict=True)])
    for row, split in zip(rows, splits, strict=True):
        # Machines of other families wait for reasons of their own, which a sweep does not tell apart.
        split[STALLED.key] = row["cycles"] - sum(split.values())
    states = [state for state in (*ARRAY, STALLED) if any(split[state.key] for split in splits)]
    stack(axes.bar, [*places.values()], splits, units, _BAR, states)
    # Beyond the line at one, which would cross the number of a shorter bar.
    above: Any = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": _SMALL, "rotation": 90}
    for at, each in zip(places.values(), times, strict=True) if numbered else ():
        axes.annotate(f"{each:.2f}", (at, max(each, 1)), (0, 2), **above)


def _crosses(axes: Axes, places: Sequence[float]) -> None:
    """Where a point failed."""
    if places:
        foot: Any = {"transform": axes.get_xaxis_transform(), "label": "failed: see points.csv"}
        axes.plot(places, [0.04] * len(places), marker="x", color="black", markersize=4, ls="", **foot)


def _name(axes: Axes, places: Sequence[float], found: ComparedLowerings) -> None:
    """The lowering under each bar, the network above each group."""
    axes.set_xticks(places, [plain(each) for each in found.lowerings] * len(found.workloads))
    axes.tick_params(axis="x", length=0, rotation=90, labelsize=_SMALL)
    groups, count = axes.secondary_xaxis("top"), len(found.lowerings)
    firsts = places[::count]
    groups.set_xticks([first + (count - 1) / 2 for first in firsts], [*map(plain, found.workloads)])
    groups.tick_params(length=0)
    groups.spines["top"].set_visible(False)
