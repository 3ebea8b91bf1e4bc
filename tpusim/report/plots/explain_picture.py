"""A layer explained, as one small picture: where its cycles go, and what each relaxation gains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpusim.report.plots.figure import CYCLE_COUNTS, Picture, figure_of, plain, stack
from tpusim.report.style import GREY, MAIN
from tpusim.report.tables.explain import LIMITS, NO_GAIN, gain_name
from tpusim.report.text import scale
from tpusim.study.explain.alternatives import Alternative
from tpusim.study.explain.bottleneck import Bottleneck, Gain

_MOST_GAINS = 8


def picture(found: Bottleneck, workload: str, lowerings: Sequence[Alternative] = ()) -> Picture:
    """Above, where the cycles of the array go; then the largest gains; and what other lowerings take, if there are."""
    layer, setup = found.layer, found.setup
    run = f"{workload} {layer.name} at batch {setup.batch} on {setup.hardware.name}"
    bound = f"bound by {LIMITS[found.limit][0]}" if found.limit else "no single bound"
    caption = (
        f"Above: what the systolic array did in the {layer.cycles:,} cycles of {run}. Below: how many times as fast the"
        f" layer is with one thing relaxed, simulated one at a time; dark: the largest gain ({bound})."
    )
    others = lowerings if len(lowerings) > 1 else ()
    if others:
        caption += " At the foot: the layer by each lowering that fits; now: what it is lowered by."
    return Picture("explained", caption, partial(_figure, found, others, f"{workload} {layer.name}, {bound}"))


def _figure(found: Bottleneck, lowerings: Sequence[Alternative], title: str) -> Figure:
    changing = [gain for gain in found.gains if abs(gain.gain - 1) >= NO_GAIN]
    shown = changing[:_MOST_GAINS] or found.gains[:1]
    rows = [1, 0.4 * len(shown) + 0.4, *([0.4 * len(lowerings) + 0.4] if lowerings else [])]
    figure = figure_of(6.4, 2.0 + 0.22 * len(shown) + (0.5 + 0.22 * len(lowerings) if lowerings else 0))
    cycles, gains, *costs = figure.subplots(len(rows), 1, height_ratios=rows)
    cycles.set_title(plain(title))
    stack(cycles.barh, 0, [found.layer.units["systolic_array"]], found.layer.cycles / 100, 0.6)
    cycles.set(xlim=(0, 100), yticks=[], xlabel=f"share of the array's {found.layer.cycles:,} cycles (%)")
    _draw_gains(gains, found, shown)
    for axes in costs:
        _draw_lowerings(axes, lowerings, found.layer.lowering)
    figure.legend(*cycles.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_lowerings(axes: Axes, lowerings: Sequence[Alternative], taken: str) -> None:
    """A bar each, the fastest above."""
    word, size = scale((float(each.layer.cycles) for each in lowerings), CYCLE_COUNTS)
    splits = [each.layer.units["systolic_array"] for each in lowerings]
    stack(axes.barh, range(len(lowerings)), splits, size, 0.7)
    names = [each.lowering + (" (now)" if each.lowering == taken else "") for each in lowerings]
    axes.set_yticks(range(len(lowerings)), map(plain, names))
    axes.invert_yaxis()
    axes.set_xlabel(f"cycles by each lowering ({word})" if word else "cycles by each lowering")


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
