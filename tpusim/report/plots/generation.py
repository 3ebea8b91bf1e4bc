"""The picture of a generation: the time of its tokens by part, over the tokens that are there before them."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tpusim.report.plots.figure import LETTERS_OF_TITLE, Picture, figure_of, plain
from tpusim.report.style import HATCHES, MARK
from tpusim.report.tables.generation import MEANING
from tpusim.report.text import scale
from tpusim.result.vocabulary.figures import TIMES
from tpusim.result.vocabulary.runs import shared_by
from tpusim.study.generation import Generation

_LOOKS = (("#0b3c5d", ""), ("#9dbdd6", "level"), ("#c49a6c", "rising"), ("#eceff2", "dots"))
"""Tone and hatch of a token's first part, the second, ..."""
_BAR = 0.7
"""The part of the least distance between two simulated tokens that a bar is wide."""


def time_of_tokens(made: Generation, sizes: str) -> Picture:
    """Return the picture of a generation; `sizes` are those of the workload in words.

    A bar is a simulated token; the other tokens lie on lines between the tops of bars.
    """
    caption = (
        f"Time of a token of {made.workload} at batch {made.batch}{sizes}, on {made.machine}, by the number of tokens "
        "whose keys it sees. Bars: simulated tokens, by part. Dashed: the time in which HBM moves their bytes."
    )
    return Picture("token_time", caption, partial(_drawn, made))


def _drawn(made: Generation) -> Figure:
    tokens = made.simulated
    contexts = np.array([each.context for each in tokens])
    microseconds = np.array([[part.cycles for part in each.parts] for each in tokens]).T / made.clock_hz * 1e6
    bounds = np.array([each.hbm_bytes for each in tokens]) / made.bandwidth * 1e6
    unit, size = scale(microseconds.sum(axis=0), TIMES)
    wide = _BAR * min((behind - before for before, behind in pairwise(contexts)), default=1)
    figure = figure_of(5.4, 3.4)
    axes = figure.subplots()
    below = np.zeros(len(tokens))
    for part, (tone, hatch), times in zip(tokens[0].parts, _LOOKS, microseconds / size, strict=False):
        look: Any = {"color": tone, "hatch": HATCHES[hatch][0], "edgecolor": "black", "linewidth": 0.2}
        axes.bar(contexts, times, wide, below, label=f"{part.name}: {MEANING[part.name]}", **look)
        below = below + times
    # A bound of one token is a line across its bar.
    across = [contexts[0] - wide / 2, *contexts, contexts[-1] + wide / 2]
    levels = [bounds[0], *bounds, bounds[-1]]
    moved = "bytes at the bandwidth of HBM"
    axes.plot(across, np.array(levels) / size, color=MARK, linestyle="--", linewidth=1.2, label=moved)
    share = f", {shared_by(made.chips)}" * (made.chips > 1)
    told = f"{made.workload}, batch {made.batch}{share}, on {made.machine}"
    axes.set(
        title=plain(fill(told, LETTERS_OF_TITLE)),
        xlabel="tokens whose keys a token sees",
        ylabel=f"time of a token ({unit})",
        xlim=(contexts[0] - wide, contexts[-1] + wide),
        ylim=(0, 1.08 * max(below.max(), bounds.max() / size)),
    )
    axes.set_xticks(contexts, [f"{each:,}" for each in contexts])
    figure.legend(loc="outside lower center", ncols=1, reverse=True)
    return figure
