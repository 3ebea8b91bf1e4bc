"""The vector memories over time as a picture: what layers need for themselves, and what stays between them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from tpusim.machines.tpu.description import Hardware
from tpusim.report.plots.figure import figure_of, plain
from tpusim.report.plots.roofline import hardware_of
from tpusim.report.style import GREY, HATCHES, MAIN
from tpusim.report.text import scale
from tpusim.result.records import LayerResult, Result, Words
from tpusim.result.vocabulary.figures import TIMES

_TYPE = 5.5
_LETTER, _LINE = 0.045, 0.08
"""Inches of a letter of that type, and of a line of it."""
_EDGED = 0.03
"""Inches of a box at least that has an edge of its own: of a smaller one it would leave nothing."""
_WIDTH, _HEIGHT = 7.2, 3.6
_INSIDE = 6.4, 2.6
"""Inches of the picture, and about those inside its axes."""


class _Held(NamedTuple):
    """Words from one time to another; `name`: whose outcome they are, nothing where they are a layer's own."""

    since: float
    until: float
    words: Words
    name: str


class _Scale(NamedTuple):
    """A unit of time in microseconds, KiB of a word, and how far both axes go in these."""

    time: float
    kib: float
    end: float
    top: float


def stays(result: Result) -> bool:
    """Whether anything stays on chip between layers."""
    return any(layer.residency and layer.residency.outcome for layer in result.layers)


def draw(result: Result, title: str) -> Figure:
    """A box for words and the time for which they are taken: an outcome from its maker to its last reader."""
    machine = hardware_of(result)
    assert isinstance(machine, Hardware)
    figure = figure_of(_WIDTH, _HEIGHT)
    axes = figure.subplots()
    unit, size = scale([result.total.time_us], TIMES)
    kib = machine.word_bytes / 1024
    to = _Scale(size, kib, result.total.time_us / size, machine.capacity_words * kib)
    for held in _held(result.layers):
        _box(axes, held, to)
    axes.set(title=title, xlim=(0, to.end), ylim=(0, to.top))
    axes.set(xlabel=f"time ({unit})", ylabel="vector memory of a lane (KiB)")
    looks = (("stays for layers behind", True), ("a layer's own, while it runs", False))
    marks = [Patch(label=label, **_look(outcome)) for label, outcome in looks]
    figure.legend(handles=marks, loc="outside lower center", ncols=2)
    return figure


def _held(layers: tuple[LayerResult, ...]) -> Iterator[_Held]:
    """All words that anybody holds: own ones, then outcomes. One that takes another's place does so when it begins."""
    starts = [*accumulate((layer.time_us for layer in layers), initial=0.0)]
    ends = {layer.name: end for layer, end in zip(layers, starts[1:], strict=True)}
    there = [(layer, start, layer.residency) for layer, start in zip(layers, starts, strict=False) if layer.residency]
    for layer, start, found in there:
        if found.own.words:
            yield _Held(start, ends[layer.name], found.own, "")
    outcomes = [_Held(start, max(ends[each] for each in found.readers), found.outcome, layer.name)
                for layer, start, found in there if found.outcome]  # fmt: skip
    for one in outcomes:
        taken = (each.since for each in outcomes if each.words == one.words and one.since < each.since < one.until)
        yield one._replace(until=min([one.until, *taken]))


def _look(outcome: bool) -> dict[str, Any]:
    tone, hatch = (MAIN, "") if outcome else (GREY, HATCHES["rising"][0])
    return {"facecolor": tone, "hatch": hatch, "edgecolor": "white" if outcome else "black", "linewidth": 0.3}


def _box(axes: Axes, held: _Held, to: _Scale) -> None:
    """Later ones cover those whose place they take; a name stands in it, or along it, where it fits whole."""
    since, width = held.since / to.time, (held.until - held.since) / to.time
    first, height = held.words.first * to.kib, held.words.words * to.kib
    across, up = width / to.end * _INSIDE[0], height / to.top * _INSIDE[1]
    look = _look(bool(held.name))
    if min(across, up) < _EDGED:
        look |= {"edgecolor": look["facecolor"], "hatch": ""}
    axes.add_patch(Rectangle((since, first), width, height, **look))
    long = len(held.name) * _LETTER
    along, upright = across > long and up > _LINE, up > long and across > _LINE
    if held.name and (along or upright):
        place: Any = {"ha": "center", "va": "center", "fontsize": _TYPE, "color": "white"}
        turned = 0 if along else 90
        axes.text(since + width / 2, first + height / 2, plain(held.name), rotation=turned, **place)
