"""A picture of where the time goes by the kind of op."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from tpusim.base.words import counted
from tpusim.report.plots.figure import figure_of, plain
from tpusim.report.plots.network import looks
from tpusim.report.text import percent, scale
from tpusim.result.by_op import by_op
from tpusim.result.records import Result
from tpusim.result.vocabulary.figures import TIMES


def draw(result: Result, title: str) -> Figure:
    """A bar an op, the costliest at the top, with its share and number of layers."""
    uses = by_op(result.layers)
    figure = figure_of(5.2, 0.9 + 0.28 * len(uses))
    axes = figure.subplots()
    unit, size = scale((use.time_us for use in uses.values()), TIMES)
    at, times = np.arange(len(uses)), [use.time_us / size for use in uses.values()]
    drawn = axes.barh(at, times, 0.7, edgecolor="black", linewidth=0.3)
    for bar, (tone, hatch) in zip(drawn, looks([*uses]).values(), strict=True):
        bar.set(facecolor=tone, hatch=hatch)
    told = [f"{percent(use.share)} %, {counted(use.layers, 'layer')}" for use in uses.values()]
    axes.bar_label(drawn, told, padding=3, fontsize=7)
    axes.set_yticks(at, [plain(op) for op in uses])
    axes.invert_yaxis()
    axes.set(title=title, xlabel=f"time ({unit})", xlim=(0, 1.3 * max(times)))
    return figure
