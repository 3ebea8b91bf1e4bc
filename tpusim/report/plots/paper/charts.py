"""Bars, curves, parity and errors of an exhibit, each into axes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from tpusim.report.plots.figure import plain
from tpusim.report.style import HATCHES, MARK, SERIES
from tpusim.study.paper.views import Bars, Curves, Errors, Mark, Parity, Series

_SIZE = 5.0, 3.6
_BAR_INCHES = 0.16
_FILLED = 0.84
_LOOKS = ("-", "--", ":", "-.")
_HATCHES = ("", "rising", "dots", "falling", "grid", "bars")
_BINS = np.arange(-32.5, 35, 5)
"""Of errors in percent; the outermost hold all beyond."""


def chart_size(_: object) -> tuple[float, float]:
    """The size of most charts, in inches."""
    return _SIZE


def bars_size(view: Bars) -> tuple[float, float]:
    """As wide as the bars need."""
    return max(_SIZE[0], 1.2 + _BAR_INCHES * len(view.groups) * (len(view.series) + 1)), _SIZE[1]


def bars_view(axes: Axes, view: Bars) -> None:
    """A group of bars each, tones and hatches by series."""
    places, thick = np.arange(len(view.groups)), _FILLED / len(view.series)
    for index, series in enumerate(view.series):
        at = places + (index - (len(view.series) - 1) / 2) * thick
        heights = [np.nan if value is None else value for value in series.values]
        look: Any = {"color": _light(index), "hatch": HATCHES[_HATCHES[index % len(_HATCHES)]][0]}
        axes.bar(at, heights, thick, label=plain(series.label), edgecolor="black", linewidth=0.4, **look)
    axes.set_xticks(places, [plain(each) for each in view.groups])
    if sum(map(len, view.groups)) > 12 * _SIZE[0]:
        axes.tick_params(axis="x", rotation=30)
    axes.set(title=plain(view.title), ylabel=plain(view.unit))
    _marks(axes, view.marks)


def curves_view(axes: Axes, view: Curves) -> None:
    """Lines with markers; a second axis where there is something to the right."""
    _lines(axes, view.x, view.left, 0)
    axes.set(title=plain(view.title), xlabel=plain(view.x_label), ylabel=plain(view.left_label))
    _marks(axes, view.marks)
    axes.set_ylim(bottom=0)
    if view.doubling:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(view.x, [f"{each:g}" for each in view.x])
    if view.right:
        other = axes.twinx()
        right = [Series(f"{each.label} (right)", each.values) for each in view.right]
        _lines(other, view.x, right, len(view.left))
        other.set_ylabel(plain(view.right_label))
        other.set_ylim(bottom=0)
        other.spines["right"].set_visible(True)


def parity_view(axes: Axes, view: Parity) -> None:
    """Pairs around the diagonal."""
    for cloud, (tone, marker) in zip(view.clouds, SERIES, strict=False):
        theirs, ours = zip(*cloud.pairs, strict=True)
        axes.scatter(theirs, ours, 16, marker=marker, facecolors="none", edgecolors=tone, linewidths=0.8,
                     label=plain(cloud.label))  # fmt: skip
    axes.set(xscale="log", yscale="log")
    low, high = (pick(*axes.get_xlim(), *axes.get_ylim()) for pick in (min, max))
    axes.plot([low, high], [low, high], color="black", linewidth=0.7)
    axes.set(title=plain(view.title), xlabel=f"{view.word} ({view.unit})", ylabel=f"tpusim ({view.unit})")
    axes.set(xlim=(low, high), ylim=(low, high))


def errors_view(axes: Axes, view: Errors) -> None:
    """Layers by their error, a bar each series in every bin."""
    edges, thick = _BINS, 5 * _FILLED / len(view.series)
    for index, series in enumerate(view.series):
        values = np.clip([value for value in series.values if value is not None], edges[0] + 1, edges[-1] - 1)
        counts, _ = np.histogram(values, edges)
        at = edges[:-1] + 2.5 + (index - (len(view.series) - 1) / 2) * thick
        look: Any = {"color": _light(index), "hatch": HATCHES[_HATCHES[index % len(_HATCHES)]][0]}
        axes.bar(at, counts / len(values) * 100, thick, label=plain(series.label), edgecolor="black", linewidth=0.4,
                 **look)  # fmt: skip
    axes.set(title=plain(view.title), xlabel="error (%), the outermost bars hold all beyond", ylabel="layers (%)")


def _lines(axes: Axes, x: Sequence[float], lines: Sequence[Series], first: int) -> None:
    for index, each in enumerate(lines, first):
        tone, marker = SERIES[index % len(SERIES)]
        values = [np.nan if value is None else value for value in each.values]
        look: Any = {"color": tone, "marker": marker, "ls": _LOOKS[index % len(_LOOKS)], "markersize": 4}
        axes.plot(x, values, label=plain(each.label), **look)


def _marks(axes: Axes, marks: Sequence[Mark]) -> None:
    for mark in marks:
        axes.axhline(mark.value, color=MARK, linewidth=1, ls="--", label=plain(mark.label))


def _light(index: int) -> str:
    return ("#9dbdd6", "#f0b27a", "#e6e6e6", "#7a7a7a", "#c9dfc0", "#d9c7e8")[index % 6]
