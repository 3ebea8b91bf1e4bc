"""Parity and errors against reference numbers; numbers of two words never in one picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tpusim.report.plots.figure import Picture, figure_of, plain
from tpusim.report.style import MAIN, SERIES
from tpusim.study.validation.comparison import Comparison

_WIDEST = 30


def plots(comparisons: Sequence[Comparison]) -> Iterator[Picture]:
    """A picture for each word and kind."""
    for stem in dict.fromkeys(each.numbers.picture for each in comparisons):
        chosen = [each for each in comparisons if each.numbers.picture == stem]
        status = chosen[0].numbers.status
        caption = (
            f"Simulated against {status} figures: each case (left), and how the errors of each set are spread (right)."
        )
        yield Picture(stem, caption, partial(draw, chosen))


def draw(comparisons: Sequence[Comparison]) -> Figure:
    """Sets of one status and unit: ours over theirs, and beside it how errors are spread."""
    figure = figure_of(7.4, 3.6)
    left, right = figure.subplots(1, 2)
    numbers = comparisons[0].numbers
    clouds = {each.numbers.name: [(row.theirs, row.ours) for row in each.rows] for each in comparisons}
    parity(left, clouds, numbers.status, numbers.unit, 14)
    left.set_title("parity")
    _draw_errors(right, comparisons)
    figure.legend(handles=left.get_legend_handles_labels()[0], loc="outside lower center", ncols=4)
    return figure


def parity(axes: Axes, clouds: Mapping[str, Sequence[tuple[float, float]]], word: str, unit: str, size: float) -> None:
    """Pairs (theirs, ours) around the diagonal by what a legend calls them; `word` says what theirs are."""
    for (label, pairs), (tone, marker) in zip(clouds.items(), SERIES, strict=False):
        theirs, ours = zip(*pairs, strict=True)
        axes.scatter(theirs, ours, size, marker=marker, facecolors="none", edgecolors=tone, linewidths=0.8,
                     label=plain(label))  # fmt: skip
    if unit == "cycles":
        axes.set(xscale="log", yscale="log")
    low, high = (pick(*axes.get_xlim(), *axes.get_ylim()) for pick in (min, max))
    axes.plot([low, high], [low, high], color="black", linewidth=0.7)
    axes.set(xlabel=f"{word} ({unit})", ylabel=f"tpusim ({unit})", xlim=(low, high), ylim=(low, high))


def _draw_errors(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    """Errors beyond the widest bin are counted in the outermost ones."""
    rows = [row for comparison in comparisons for row in comparison.rows]
    theirs: Any = {"label": "roofline", "color": "#c9c9c9"}
    ours: Any = {"label": "tpusim", "facecolor": "none", "edgecolor": MAIN, "linewidth": 1.2}
    for errors, style in (([row.roofline_error for row in rows], theirs), ([row.error for row in rows], ours)):
        axes.hist(np.clip(100 * np.array(errors), -_WIDEST, _WIDEST), bins=30, range=(-_WIDEST, _WIDEST), **style)
    axes.set(xlabel="error (%), the outermost bins hold all beyond", ylabel="cases", title="errors")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
