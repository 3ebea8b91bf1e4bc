"""The picture of a sweep over lowerings: a group of bars a network, a bar a lowering, stacked by what the array did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpusim.report.plots.figure import figure_of, plain, stack
from tpusim.report.tables.sweep_lowerings import ComparedLowerings
from tpusim.result.vocabulary.states import ARRAY

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
    for (workload, lowering), at in places.items():
        _bar(axes, at, found, workload, lowering, numbered=len(places) <= _FEW)
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set(title=title, ylabel=f"time relative to {plain(found.reference)}", xlim=(-1, slots - _GAP))
    axes.margins(y=0.1)
    _name(axes, [*places.values()], found)
    handles = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return figure


def _bar(axes: Axes, at: float, found: ComparedLowerings, workload: str, lowering: str, numbered: bool) -> None:
    row, times = found.point(workload, lowering), found.times(workload, lowering)
    if row is None or times is None:
        foot = axes.get_xaxis_transform()
        axes.plot(
            at, 0.04, marker="x", color="black", markersize=4, ls="", transform=foot, label="failed: see points.csv"
        )
        return
    split = {state.key: row[f"{state.key}_cycles"] for state in ARRAY}
    stack(axes.bar, [at], [split], row["cycles"] / times, _BAR)
    if numbered:
        # Beyond the line at one, which would cross the number of a shorter bar.
        above: Any = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
        axes.annotate(f"{times:.2f}", (at, max(times, 1)), (0, 2), **above, fontsize=_SMALL, rotation=90)


def _name(axes: Axes, places: Sequence[float], found: ComparedLowerings) -> None:
    """The lowering under each bar, the network above each group."""
    axes.set_xticks(places, [plain(each) for each in found.lowerings] * len(found.workloads))
    axes.tick_params(axis="x", length=0, rotation=90, labelsize=_SMALL)
    groups, count = axes.secondary_xaxis("top"), len(found.lowerings)
    firsts = places[::count]
    groups.set_xticks([first + (count - 1) / 2 for first in firsts], [*map(plain, found.workloads)])
    groups.tick_params(length=0)
    groups.spines["top"].set_visible(False)
