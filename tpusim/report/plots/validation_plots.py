"""Parity and errors against reference numbers; numbers of two words never in one picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tpusim.report.plots.figure import Picture, figure_of
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
    parity, errors = figure.subplots(1, 2)
    _draw_parity(parity, comparisons)
    _draw_errors(errors, comparisons)
    figure.legend(handles=parity.get_legend_handles_labels()[0], loc="outside lower center", ncols=4)
    return figure


def _draw_parity(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    unit, status = comparisons[0].numbers.unit, comparisons[0].numbers.status
    for comparison, (tone, marker) in zip(comparisons, SERIES, strict=False):
        theirs, ours = [row.theirs for row in comparison.rows], [row.ours for row in comparison.rows]
        axes.scatter(theirs, ours, 14, marker=marker, facecolors="none", edgecolors=tone, linewidths=0.8,
                     label=comparison.numbers.name)  # fmt: skip
    if unit == "cycles":
        axes.set_xscale("log")
        axes.set_yscale("log")
    low, high = (pick(*axes.get_xlim(), *axes.get_ylim()) for pick in (min, max))
    axes.plot([low, high], [low, high], color="black", linewidth=0.7)
    axes.set(xlabel=f"{status} ({unit})", ylabel=f"tpusim ({unit})", title="parity", xlim=(low, high), ylim=(low, high))


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
