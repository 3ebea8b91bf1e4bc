"""Pictures of one layer: explained, and traced cycle by cycle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tpusim.machines.lowered import LaneCycle
from tpusim.report.plots.figure import CYCLE_COUNTS, DOTS_PER_INCH, Picture, columns_below, figure_of, plain, stack
from tpusim.report.style import GREY, MAIN, MARK
from tpusim.report.tables.explain import LIMITS, NO_GAIN, alone_text, gain_name, planned_anew
from tpusim.report.text import scale
from tpusim.report.trace.lanes import DOTS_PER_LANE, MOST_INCHES
from tpusim.result.vocabulary.states import ACCESSES, ARRAY, MOVING, WORKING
from tpusim.study.explain.bottleneck import Alternative, Bottleneck

_MOST_GAINS = 8


def explained(found: Bottleneck, workload: str, lowerings: Sequence[Alternative] = ()) -> Picture:
    """Draw where the cycles of the array go; below, the largest gains; and what other lowerings take, if there are
    any.
    """
    layer, setup = found.layer, found.setup
    run = f"{workload} {layer.name} at batch {setup.batch} on {setup.hardware.label}"
    bound = f"bound by {LIMITS[found.limit][0]}" if found.limit else "no single bound"
    caption = (
        f"Above: what the systolic array did in the {layer.cycles:,} cycles of {run}. Below: how many times as fast the"
        f" layer is with one thing relaxed, simulated one at a time; dark: the largest gain ({bound}); same plan:"
        " what the layer gains with its present blocks and passes, where another plan gains more."
    )
    others = lowerings if len(lowerings) > 1 else ()
    if others:
        caption += " At the foot: the layer by each lowering that fits; (now) marks its present one."
    changing = [gain for gain in found.gains if abs(gain.gain - 1) >= NO_GAIN]
    shown = changing[:_MOST_GAINS] or found.gains[:1]

    def draw() -> Figure:
        rows = [1, 0.4 * len(shown) + 0.4, *([0.4 * len(others) + 0.4] if others else [])]
        figure = figure_of(6.4, 2.0 + 0.22 * len(shown) + (0.5 + 0.22 * len(others) if others else 0))
        cycles, gains, *costs = figure.subplots(len(rows), 1, height_ratios=rows)
        cycles.set_title(plain(f"{workload} {layer.name}, {bound}"))
        stack(cycles.barh, 0, [layer.units["systolic_array"]], layer.cycles / 100, 0.6)
        cycles.set(xlim=(0, 100), yticks=[], xlabel=f"share of the array's {layer.cycles:,} cycles (%)")
        # The bar of the bottleneck is the darkest.
        tones = [MAIN if gain is found.most else GREY for gain in shown]
        gains.barh([gain_name(gain) for gain in shown], [gain.gain for gain in shown], 0.7, color=tones)
        for row, gain in enumerate(shown):
            # The number stands beyond the line at one, which would cross the number of a shorter bar.
            at = (max(gain.gain, 1), row)
            same = f" (same plan: {alone_text(gain)})" if planned_anew(gain) else ""
            gains.annotate(f"{gain.gain:.2f}{same}", at, (3, 0), textcoords="offset points", va="center")
        gains.axvline(1, color="black", linewidth=0.8)
        gains.invert_yaxis()
        gains.margins(x=0.4 if any(map(planned_anew, shown)) else 0.12)
        gains.set_xlabel("times as fast with this one thing relaxed")
        for axes in costs:
            # One bar a lowering, the fastest above.
            word, size = scale((float(each.layer.cycles) for each in others), CYCLE_COUNTS)
            places, splits = range(len(others)), [each.layer.units["systolic_array"] for each in others]
            stack(axes.barh, places, splits, size, 0.7)
            names = [each.lowering + (" (now)" if each.lowering == layer.lowering else "") for each in others]
            axes.set_yticks(places, map(plain, names))
            axes.invert_yaxis()
            axes.set_xlabel(f"cycles by each lowering ({word})" if word else "cycles by each lowering")
        # Other lowerings may wait for what the present one does not.
        named: dict[str, Any] = {}
        for axes in (cycles, *costs):
            handles, labels = axes.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        order = [state.legend for state in ARRAY if state.legend in named]
        figure.legend([named[each] for each in order], order, loc="outside lower center", ncols=columns_below(figure))
        return figure

    return Picture("explained", caption, draw)


# ---- a trace: a column for every cycle

_PORTS_INCHES, _REST_INCHES = 1.3, 3.1


def traced(cycles: Sequence[LaneCycle], title: str, kind: str) -> bytes:
    """Return the file's contents, `kind` is "png" or "svg"; `cycles` are consecutive, MOST_CYCLES at most."""
    return Picture("trace", "", partial(draw_trace, cycles, title)).contents(kind)


def draw_trace(cycles: Sequence[LaneCycle], title: str) -> Figure:
    """Draw the ports of all lanes over time, and below them, if there are any, activations that PEs hold and weights on
    their way.
    """
    works = any(cycle.working or cycle.moving for cycle in cycles)
    # Every lane gets its dots as long as the picture stays below its largest height.
    tall = max(_PORTS_INCHES, min(MOST_INCHES, len(cycles[0].ports) * DOTS_PER_LANE / DOTS_PER_INCH))
    wide = max(6.5, min(12.0, 4.0 + 0.08 * len(cycles)))
    figure = figure_of(wide, tall + _REST_INCHES - (0 if works else _PORTS_INCHES))
    heights = (tall, _PORTS_INCHES)[: 1 + works]
    ports, *array = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False).flatten()
    ports.set_title(plain(title))
    _draw_ports(ports, cycles)
    # Steps begin half a cycle early, so that each cycle's number stands below the middle of its column.
    edges = [cycle.number - 0.5 for cycle in cycles] + [cycles[-1].number + 0.5]
    for plot in array:
        for count, label, tone, look in (("working", WORKING, MAIN, "-"), ("moving", MOVING, MARK, "--")):
            values = [getattr(cycle, count) for cycle in cycles]
            plot.stairs(values, edges, baseline=None, color=tone, lw=1.5, ls=look, label=fill(label, 40))
        plot.set(ylim=(0, None), ylabel="PEs")
    (array or [ports])[-1].set_xlabel("cycle")
    ports.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    seen = {letter for cycle in cycles for letter in cycle.ports}
    tones = [
        Patch(facecolor=each.tone, edgecolor="black", linewidth=0.3, label=fill(f"{letter} {each.meaning}", 40))
        for letter, each in ACCESSES.items()
        if letter in seen and each.meaning
    ]
    figure.legend(
        handles=[*tones, *(patch for plot in array for patch in plot.patches)],
        loc="outside lower center",
        ncols=2 if wide < 9 else 4,
    )
    return figure


def _draw_ports(axes: Axes, cycles: Sequence[LaneCycle]) -> None:
    """Draw a tone for each kind of access, and its letter where there is room."""
    lanes, first = len(cycles[0].ports), cycles[0].number
    tones = {letter: to_rgb(access.tone) for letter, access in ACCESSES.items()}
    image = [[tones[cycle.ports[lane]] for cycle in cycles] for lane in range(lanes)]
    extent = first - 0.5, first + len(cycles) - 0.5, lanes - 0.5, -0.5
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=extent)
    if lanes <= 8 and len(cycles) <= 100:
        for cycle in cycles:
            for lane, letter in enumerate(cycle.ports.replace(".", " ")):
                color = "white" if letter in "RWk" else "black"
                axes.text(cycle.number, lane, letter, ha="center", va="center", fontsize=5.5, color=color)
    axes.set_yticks(range(0, lanes, -(-lanes // 8)))
    axes.set_ylabel("lane's port")
