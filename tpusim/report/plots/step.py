"""Pictures of a step that several chips share: its time by part, what its collectives hide, and when all of it runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tpusim.report.plots.figure import Picture, figure_of, plain
from tpusim.report.style import HATCHES
from tpusim.report.tables.step import AlikeCollectives, alike_collectives
from tpusim.report.text import percent, scale, shortened
from tpusim.result.records import CollectiveResult, Result, StepResult
from tpusim.result.vocabulary.figures import TIMES
from tpusim.result.vocabulary.runs import with_extent
from tpusim.result.vocabulary.states import STEP_PARTS, Look

_HIDDEN = Look("#9dbdd6", "#2f5878", "level")
"""The look of a collective beside which layers run."""
_MOST_BARS = 12
"""Most kinds of collectives with a bar of their own: those that take longest."""
_MOST_LAYERS = 40
"""Most layers of a timeline: more could not be told apart."""
_NAME_WIDTH = 34
_WIDTH = 7.2
_TYPE = 5.5
_LETTER = 0.045
"""Inches of a letter of that size of type."""
_FEWEST_LETTERS = 8
_INSIDE = 6.0
"""Inches of the width that are inside the axes of a timeline, about."""


def step_pictures(result: Result) -> Iterator[Picture]:
    """Yield the pictures of the step of a run: nothing of a run without one."""
    if (step := result.step) is None:
        return
    mesh = ", ".join(f"{axis} {chips:,}" for axis, chips in step.mesh.items())
    of = with_extent(f"{result.workload} on {step.slice}, {mesh}", result)
    yield Picture("step_parts", _parts_caption(of, step), partial(_draw_parts, plain(of), step))
    # Turns of a pipeline come again and again, and nothing tells when each of their layers runs.
    if step.layer_starts and step.collectives:
        first, last = _window(step)
        whole = last - first == len(result.layers)
        what = "all of it" if whole else f"layers {first + 1:,} to {last:,} of {len(result.layers):,}, in its middle"
        caption = (
            f"A step of {of}: {what}. Above: layers of a chip, one after another. Below: collectives, each on a row of "
            "its op and axes; hatched and dark where no layer runs, so that the chip waits, light where layers hide it."
        )
        yield Picture("step_timeline", caption, partial(_draw_timeline, plain(of), result, step, first, last))


# ---- parts, and what is hidden


def _parts_caption(of: str, step: StepResult) -> str:
    caption = f"A step of {of}. Above: its {step.cycles:,} cycles, by what a chip does in them."
    if step.collectives:
        caption += (
            " Below: its collectives, those of copies of a layer together: what layers or other collectives hide, and "
            "what the chip waits for."
        )
    return caption


def _draw_parts(title: str, step: StepResult) -> Figure:
    rows = sorted(alike_collectives(step), key=lambda row: -row.cycles)[:_MOST_BARS]
    heights = (1.0, 0.5 + 0.3 * len(rows)) if rows else (1.0,)
    figure = figure_of(_WIDTH, 1.1 + 0.23 * sum(heights) * 2)
    whole, *below = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_whole(whole, step)
    whole.set_title(title)
    if below:
        _draw_collectives(below[0], rows, step)
    handles = [Patch(label=STEP_PARTS[part].label, **_look(STEP_PARTS[part].look))
               for part, cycles in step.parts.items() if cycles]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    return figure


def _look(look: Look) -> dict[str, Any]:
    return {"facecolor": look.light, "hatch": HATCHES[look.hatch][0], "edgecolor": "black", "linewidth": 0.3}


def _draw_whole(axes: Axes, step: StepResult) -> None:
    """Draw the parts of the step in one bar, with their shares where there is room."""
    each, before = 1e6 * step.seconds / step.cycles, 0.0
    unit, size = scale([1e6 * step.seconds], TIMES)
    for part, cycles in step.parts.items():
        wide = cycles * each / size
        axes.barh(0, wide, 0.8, before, **_look(STEP_PARTS[part].look))
        if cycles > 0.05 * step.cycles:
            told: Any = {
                "ha": "center",
                "va": "center",
                "fontsize": 7,
                "bbox": {"facecolor": "white", "pad": 1, "lw": 0},
            }
            axes.text(before + wide / 2, 0, f"{percent(cycles / step.cycles)} %", **told)
        before += wide
    axes.set(xlim=(0, before), ylim=(-0.5, 0.5), xlabel=f"time of the step ({unit})")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def _draw_collectives(axes: Axes, rows: Sequence[AlikeCollectives], step: StepResult) -> None:
    """Draw a bar for collectives that are alike, the longest first: hidden, and waited for."""
    each = 1e6 * step.seconds / step.cycles
    unit, size = scale((row.cycles * each for row in rows), TIMES)
    places = np.arange(len(rows))[::-1]
    waits = np.array([row.exposed_cycles for row in rows]) * each / size
    all_of_it = np.array([row.cycles for row in rows]) * each / size
    axes.barh(places, waits, 0.72, **_look(STEP_PARTS["links"].look), label="the chip waits")
    axes.barh(places, all_of_it - waits, 0.72, waits, **_look(_HIDDEN), label="hidden")
    names = (f"{shortened(row.first.name, _NAME_WIDTH)}{f' x {row.many:,}' if row.many > 1 else ''}" for row in rows)
    axes.set_yticks(places, [plain(name) for name in names], fontsize=7)
    axes.set(xlabel=f"time of collectives ({unit})", xlim=(0, 1.02 * all_of_it.max()))
    axes.legend(loc="lower right")


# ---- when it runs


def _window(step: StepResult) -> tuple[int, int]:
    """Return the first layer of a timeline, and the one behind its last: those in the middle of the step."""
    count = len(step.layer_starts)
    if count <= _MOST_LAYERS:
        return 0, count
    # In the middle of a training step are the last layers forward and the first ones back.
    middle = min(bisect_right(step.layer_starts, step.cycles // 2), count - _MOST_LAYERS // 2)
    first = max(0, middle - _MOST_LAYERS // 2)
    return first, min(first + _MOST_LAYERS, count)


def _draw_timeline(title: str, result: Result, step: StepResult, first: int, last: int) -> Figure:
    begin = step.layer_starts[first] if first else 0
    end = step.layer_ends[last - 1] if last < len(step.layer_starts) else step.cycles
    spans = [*zip(step.layer_starts, step.layer_ends, strict=True)][first:last]
    shown = [each for each in step.collectives if each.start < end and each.end > begin]
    lanes = list(dict.fromkeys((each.op, each.axes) for each in shown))
    each = 1e6 * step.seconds / step.cycles
    unit, size = scale([(end - begin) * each], TIMES)
    figure = figure_of(_WIDTH, 1.3 + 0.42 * (1 + len(lanes)))
    axes = figure.subplots()

    def time(cycle: int) -> float:
        return cycle * each / size

    def bar(row: int, span: tuple[int, int], look: Look, name: str = "") -> None:
        since, until = (min(max(cycle, begin), end) for cycle in span)
        if until > since:
            axes.broken_barh([(time(since), time(until - since))], (row - 0.4, 0.8), **_look(look))
        # A name stands in its bar, or as much of it as tells what it is.
        letters = int((until - since) / (end - begin) * _INSIDE / _LETTER) - 1
        if name and letters >= min(_FEWEST_LETTERS, len(name)):
            middle: Any = {"ha": "center", "va": "center", "fontsize": _TYPE, "color": "white"}
            axes.text(time(since + until) / 2, row, plain(shortened(name, letters)), **middle)

    for layer, span in zip(result.layers[first:last], spans, strict=True):
        bar(0, span, STEP_PARTS["compute"].look, layer.name)
    # Hidden is drawn first, as what the chip waits for lies on it.
    waits = [*_gaps(spans, begin, end)]
    for collective in shown:
        row = 1 + lanes.index((collective.op, collective.axes))
        bar(row, (collective.start, collective.end), _HIDDEN)
        for wait in waits:
            bar(row, _common(collective, wait), STEP_PARTS["links"].look)
    names = ["layers", *(f"{op.replace('_', ' ')}\n{', '.join(over)}" for op, over in lanes)]
    axes.set_yticks(range(len(names)), [plain(name) for name in names])
    axes.set(title=title, xlim=(time(begin), time(end)), ylim=(len(names) - 0.5, -0.5), xlabel=f"time ({unit})")
    looks = (("a layer runs", STEP_PARTS["compute"].look), ("collective, hidden behind layers", _HIDDEN),
             ("collective, no layer runs", STEP_PARTS["links"].look))  # fmt: skip
    handles = [Patch(label=label, **_look(look)) for label, look in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _gaps(spans: Sequence[tuple[int, int]], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the cycles from `begin` to `end` in which no layer runs."""
    now = begin
    for since, until in spans:
        if since > now:
            yield now, since
        now = until
    if end > now:
        yield now, end


def _common(collective: CollectiveResult, span: tuple[int, int]) -> tuple[int, int]:
    """Return the cycles of a span in which a collective runs; none where the second is not behind the first."""
    return max(collective.start, span[0]), min(collective.end, span[1])
