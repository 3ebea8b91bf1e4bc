"""A layer explained, as one small picture: where its cycles go, and what each relaxation gains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpusim.report.plots.figure import Picture, figure_of, plain, stack
from tpusim.report.style import GREY, MAIN
from tpusim.report.tables.explain_text import LIMITS, NO_GAIN, gain_name
from tpusim.study.explain.bottleneck import Bottleneck, Gain

_MOST_GAINS = 8


def picture(found: Bottleneck, workload: str) -> Picture:
    """Above, where the cycles of the array go; below, the largest gains."""
    layer, setup = found.layer, found.setup
    run = f"{workload} {layer.name} at batch {setup.batch} on {setup.hardware.name}"
    bound = f"bound by {LIMITS[found.limit][0]}" if found.limit else "no single bound"
    caption = (
        f"Above: what the systolic array did in the {layer.cycles:,} cycles of {run}. Below: how many times as fast the"
        f" layer is with one thing relaxed, simulated one at a time; dark: the largest gain ({bound})."
    )
    return Picture("explained", caption, partial(_figure, found, f"{workload} {layer.name}, {bound}"))


def _figure(found: Bottleneck, title: str) -> Figure:
    changing = [gain for gain in found.gains if abs(gain.gain - 1) >= NO_GAIN]
    shown = changing[:_MOST_GAINS] or found.gains[:1]
    figure = figure_of(6.4, 2.0 + 0.22 * len(shown))
    cycles, gains = figure.subplots(2, 1, height_ratios=(1, 0.4 * len(shown) + 0.4))
    cycles.set_title(plain(title))
    stack(cycles.barh, 0, [found.layer.units["systolic_array"]], found.layer.cycles / 100, 0.6)
    cycles.set(xlim=(0, 100), yticks=[], xlabel=f"share of the array's {found.layer.cycles:,} cycles (%)")
    _draw_gains(gains, found, shown)
    figure.legend(*cycles.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_gains(axes: Axes, found: Bottleneck, shown: Sequence[Gain]) -> None:
    """The bottleneck's darkest."""
    tones = [MAIN if gain is found.most else GREY for gain in shown]
    axes.barh([gain_name(gain) for gain in shown], [gain.gain for gain in shown], 0.7, color=tones)
    for row, gain in enumerate(shown):
        # Beyond the line at one, which would cross the number of a shorter bar.
        at = (max(gain.gain, 1), row)
        axes.annotate(f"{gain.gain:.2f}", at, (3, 0), textcoords="offset points", va="center")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("times as fast with this one thing relaxed")
