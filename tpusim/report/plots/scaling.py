"""The picture of how a network scales: what all chips make over their number, and where the time of a step goes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from tpusim.report.plots.figure import CYCLE_COUNTS, Picture, figure_of, in_full, plain, stack, uncrowded
from tpusim.report.plots.labels import OccupiedPlaces, name_marks, settled
from tpusim.report.style import GREY, MAIN
from tpusim.report.tables.scaling import sizes_of, title
from tpusim.report.text import percent, quantity, scale
from tpusim.result.vocabulary.figures import TIMES
from tpusim.result.vocabulary.states import STEP_PARTS
from tpusim.study.scaling import Scaling, shares_of

_RADIUS = 3.0
"""Points."""
_A_BAR = 0.65
"""Inches of a bar with what stands above it."""
_BESIDE = 1.5
"""The chips at the ends of the axis, over the most and the fewest."""


def scaling_picture(made: Scaling) -> Picture:
    """Return the picture: rates over chips with the ideal, and below each slice the parts of a step's time."""
    left = [each.slice for each in made.each if each.refusal]
    missing = f" Not drawn, as they cannot run it so: {', '.join(left)}." * bool(left)
    items = made.done[0][1].items
    sizes = f" ({named})" if (named := sizes_of(made)) else ""
    caption = (
        f"{title(made)}{sizes}. Left: {items} a second of all chips, with the part of the ideal; dashed: the rate of a "
        f"chip of {made.done[0][0].slice} times chips. Right: what a chip does in a step, by its share of the time; "
        f"above each bar the time of a step.{missing}"
    )
    return Picture("scaling", caption, partial(_drawn, made))


def _drawn(made: Scaling) -> Figure:
    width = max(7.2, 4.6 + _A_BAR * len(made.done))
    figure = figure_of(width, 3.5)
    rates, parts = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_parts(parts, made)
    figure.suptitle(plain(title(made)), fontsize=8, x=0.01, ha="left")
    figure.legend(*parts.get_legend_handles_labels(), loc="outside lower center", ncols=min(5, len(made.parts)))
    _draw_rates(uncrowded(figure), rates, made)
    return figure


def _draw_rates(figure: Figure, axes: Axes, made: Scaling) -> None:
    """Draw what all chips make, with the ideal line, both axes logarithmic; each point has the name of its slice."""
    chips = np.array([each.chips for each, _ in made.done], float)
    rates = np.array([step.items_per_second for _, step in made.done])
    word, size = scale(rates, CYCLE_COUNTS)
    rates, ideal_rate = rates / size, made.ideal_rate / size
    ends = [chips.min() / _BESIDE, chips.max() * _BESIDE]
    items = f"{word} {made.done[0][1].items}".strip()
    axes.set(xscale="log", yscale="log", xlabel="chips", ylabel=f"{items} a second, of all chips")
    axes.plot(ends, [end * ideal_rate for end in ends], color=GREY, linestyle="--", linewidth=1.2)
    axes.plot(chips, rates, color=MAIN, marker="o", markersize=2 * _RADIUS, linewidth=1.2)
    axes.set(xlim=ends, ylim=(min(rates.min() / 2, ideal_rate * ends[0]), max(rates.max(), ideal_rate * ends[1]) * 1.2))
    in_full(axes.yaxis)
    # Slices have few numbers of chips, and each of them is written.
    axes.xaxis.set_major_locator(FixedLocator(sorted({*chips})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, color="#e3e6ea", linewidth=0.6)
    # Names find their places where nothing moves any more.
    settled(figure)
    taken = OccupiedPlaces()
    ideal = [(end, end * ideal_rate) for end in ends]
    spots = [*zip(chips, rates, strict=True)]
    taken.add_line(axes, ideal)
    taken.add_line(axes, spots)
    taken.add_marks(axes, spots, [_RADIUS] * len(spots))
    look: Any = {"fontsize": 7}
    names = [f"{plain(each.slice)}\n{percent(made.of_ideal(step))} %" for each, step in made.done]
    name_marks(axes, spots, [_RADIUS] * len(spots), names, taken, **look)
    middle = ends[0] * (ends[1] / ends[0]) ** 0.5
    name_marks(axes, [(middle, middle * ideal_rate)], [0.0], ["ideal"], taken, color="#545d68", **look)


def _draw_parts(axes: Axes, made: Scaling) -> None:
    """Draw a bar a slice: the shares of its step, from the bottom up as the vocabulary has them."""
    places = np.arange(len(made.done))
    shares = [shares_of(step) for _, step in made.done]
    states = [STEP_PARTS[part] for part in made.parts]
    # Shares of one, a hundred of which are the height of a bar.
    stack(axes.bar, places, shares, 0.01, 0.72, states)
    # The vocabulary's legend says what a state of the array means; parts of a step have a caption for that.
    for container, state in zip(axes.containers, states, strict=True):
        container.set_label(state.label)
    for at, (_, step) in enumerate(made.done):
        axes.annotate(quantity(1e6 * step.seconds, TIMES), (at, 100), (0, 2), textcoords="offset points", ha="center",
                      fontsize=7)  # fmt: skip
    axes.set_xticks(places, [f"{plain(each.slice)}\n{each.chips:,} chips" for each, _ in made.done])
    axes.set(ylim=(0, 100), ylabel="share of the time of a step (%)", xlim=(-0.6, len(places) - 0.4))
    axes.tick_params(axis="x", length=0)
