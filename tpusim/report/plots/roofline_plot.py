"""The layers of a run under the roofs of its machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import sqrt
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpusim.report.plots.figure import figure_of, plain, titled
from tpusim.report.plots.roofline import Peaks, intensity
from tpusim.report.style import MAIN
from tpusim.report.text import shortened
from tpusim.result.records import LayerResult, Result

_MOST_NAMED = 5
_NAME_WIDTH = 26
_LABEL: Any = {"textcoords": "offset points", "fontsize": 7}


def roofline_figure(result: Result, peaks: Peaks) -> Figure:
    """A mark a layer, the larger the more cycles it takes, under the bounds of the machine.

    Layers without MACs or traffic are left out.
    """
    figure = figure_of(5.2, 3.6)
    axes = figure.subplots()
    layers = [layer for layer in result.layers if intensity(layer) and layer.tflops]
    spots = [(intensity(layer) or 0.0, layer.tflops) for layer in layers]
    _roofs(axes, peaks, [x for x, _ in spots])
    for layer, (x, y) in zip(layers, spots, strict=True):
        size = 6 + 24 * sqrt(layer.cycles / result.total.cycles)
        style: Any = {"color": MAIN, "alpha": 0.55, "markeredgecolor": "black", "markeredgewidth": 0.4}
        axes.plot([x], [y], "s" if layer.op == "gemm" else "o", markersize=size, **style)
    _name_costliest(axes, layers, spots)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte of HBM traffic", ylabel="TFLOPS")
    axes.set_ylim(min((y for _, y in spots), default=peaks.tflops / 100) / 2, peaks.tflops * 2)
    titled(axes, result)
    return figure


def _roofs(axes: Axes, peaks: Peaks, reached: Sequence[float]) -> None:
    ridge = peaks.tflops * 1e12 / peaks.hbm_bytes_per_s
    ends = [min([*reached, ridge]) / 2, ridge, max([*reached, ridge]) * 2]
    axes.plot(ends, [x * peaks.tflops / ridge for x in ends[:2]] + [peaks.tflops], color="black", linewidth=1.2)
    axes.set_xlim(ends[0], ends[-1])
    pes = f"{peaks.pes:,} PEs: {peaks.tflops:.1f} TFLOPS"
    bandwidth = f"HBM: {peaks.hbm_bytes_per_s / 1e9:,.0f} GB/s, enough\nfrom {ridge:.0f} operations a byte"
    axes.annotate(pes, (ends[-1], peaks.tflops), (-2, 9), **_LABEL, ha="right")
    axes.annotate(bandwidth, (ridge, peaks.tflops), (-8, 0), **_LABEL, ha="right")


def _name_costliest(axes: Axes, layers: Sequence[LayerResult], spots: Sequence[tuple[float, float]]) -> None:
    """The costliest layers by name; those on one spot together."""
    order = sorted(range(len(layers)), key=lambda i: -layers[i].cycles)[:_MOST_NAMED]
    for spot, same in groupby(sorted(order, key=lambda i: spots[i]), key=lambda i: spots[i]):
        first, *others = same
        name = plain(shortened(layers[first].name, _NAME_WIDTH))
        more = f" and {len(others)} like it" if others else ""
        axes.annotate(f"{name}{more}", spot, (0, -14), **_LABEL, ha="center", va="top")
