"""A network as a picture: its layers below one another, in columns, with what each reads and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tpusim.base.words import counted
from tpusim.report.plots.figure import figure_of, plain
from tpusim.report.style import GREY, HATCHES
from tpusim.report.text import percent, quantity, scale, shortened
from tpusim.result.records import LayerResult, Result, by_op
from tpusim.result.vocabulary.figures import TIMES

MOST_LAYERS = 1000
"""Most layers of a picture: with more it cannot be read."""
MOST_APART = 3
"""Most alike layers side by side, such as the heads of an attention, that are still drawn one by one."""

_ROWS = 44
_COLUMNS = 4
_PITCH = 0.125
"""Inches from row to row."""
_LANE = 0.09
_NAME_WIDTH = 30
_BAR = 0.9
_LETTER = 0.045
"""Inches of the longest bar, and of a letter of a name."""
_TYPE = 5.5
_LOOKS = (
    ("#0b3c5d", ""), ("#d55e00", "rising"), ("#56b4e9", "dots"), ("#7a7a7a", "crossed"), ("#c49a6c", "level"),
    ("#e9e9e9", "bars"), ("#b3a100", "falling"), ("#f7f7f7", "grid"),
)  # fmt: skip
"""Tone and hatch of the op that takes the most time, the second, ...; all further ops look like the last."""


def looks(ops: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return tone and matplotlib's hatch of each op."""
    known = [(tone, HATCHES[hatch][0]) for tone, hatch in _LOOKS]
    return {op: known[min(at, len(known) - 1)] for at, op in enumerate(ops)}


def has_edges(result: Result) -> bool:
    """Return whether there is anything to draw: edges, and not too many layers."""
    return any(layer.inputs for layer in result.layers) and len([*_gathered(result.layers)]) <= MOST_LAYERS


def _gathered(layers: Sequence[LayerResult]) -> Iterator[tuple[str, Sequence[LayerResult]]]:
    """Yield what is drawn in a row, with its name: a layer, or several of one entry that read the same."""
    for _, run in groupby(layers, lambda each: (_entry(each.name), each.op, each.outputs, each.inputs)):
        alike = [*run]
        if len(alike) > MOST_APART and _entry(alike[0].name) != alike[0].name:
            yield f"{_entry(alike[0].name)} ({len(alike)} layers)", alike
        else:
            yield from ((each.name, [each]) for each in alike)


def _entry(name: str) -> str:
    """Return the name of a numbered layer without its number."""
    before, _, number = name.rpartition("_")
    return before if number.isdecimal() else name


def _drawn(result: Result) -> Iterator[LayerResult]:
    """Yield a layer for each row, which reads other rows; the time of several is that of all."""
    rows = [*_gathered(result.layers)]
    row = {each.name: name for name, alike in rows for each in alike}
    for name, alike in rows:
        read = tuple(dict.fromkeys(row.get(each, each) for each in alike[0].inputs))
        cycles, time = (sum(figures) for figures in zip(*((each.cycles, each.time_us) for each in alike), strict=True))
        yield replace(alike[0], name=name, inputs=read, cycles=cycles, time_us=time)


@dataclass(frozen=True)
class _Place:
    """The places of rows in columns of the picture.

    Attributes:
        rows: how many stand in one.
        lanes: how many lanes there are beside them.
        letters: how long names are.
    """

    rows: int
    lanes: int
    letters: int

    @property
    def bars(self) -> float:
        """Inches from the left of a column to its bars."""
        return self.lanes * _LANE + _LETTER * self.letters + 0.15

    @property
    def width(self) -> float:
        """Inches of a column."""
        return self.bars + _BAR + 0.2

    def of(self, row: int, lane: float = 0.0) -> tuple[float, float]:
        """Return a place in inches from the upper left corner."""
        column, down = divmod(row, self.rows)
        return column * self.width + (lane + 0.5) * _LANE, down * _PITCH

    def down(self, lane: float, first: int, last: int) -> list[list[tuple[float, float]]]:
        """Return a line from row to row: a piece in each column that it goes through."""
        pieces = []
        for column in range(first // self.rows, last // self.rows + 1):
            top, end = max(first, column * self.rows), min(last, (column + 1) * self.rows - 1)
            (x, y0), (_, y1) = self.of(top, lane), self.of(end, lane)
            before, after = _PITCH / 2 * (top > first), _PITCH / 2 * (end < last)
            pieces.append([(x, y0 - before), (x, y1 + after)])
        return pieces


def draw_network(result: Result, title: str) -> Figure:
    """Draw the network: each layer's output is a line down to the layers that read it; a bar is the layer's time."""
    layers = {layer.name: layer for layer in _drawn(result)}
    # Inputs of the network have rows of their own, above the layers.
    given = dict.fromkeys(name for layer in layers.values() for name in layer.inputs if name not in layers)
    names = [*given, *layers]
    lines = outputs(names, {name: layer.inputs for name, layer in layers.items()})
    made = dict(zip(names, lines, strict=True))
    columns = min(_COLUMNS, -(-len(names) // _ROWS))
    letters = max(len(shortened(name, _NAME_WIDTH)) for name in names)
    place = _Place(-(-len(names) // columns), 1 + max(each.lane for each in lines), letters)
    height = place.rows * _PITCH
    figure = figure_of(max(4.5, columns * place.width + 0.2), height + 0.9)
    axes = figure.subplots()
    axes.set(xlim=(0, columns * place.width), ylim=(height, -_PITCH), title=title)
    axes.set_axis_off()
    # An output that no layer reads has no line.
    kept = [each for each in lines if each.last > each.row]
    pieces = [piece for each in kept for piece in place.down(each.lane, each.row, each.last)]
    for name, layer in layers.items():
        row, own, _ = made[name]
        lanes = [made[each].lane for each in layer.inputs]
        pieces += [[place.of(row, lane), place.of(row, own)] for lane in lanes if lane != own]
    axes.add_collection(LineCollection(pieces, colors="black", linewidths=0.6, zorder=1))
    _draw_layers(axes, place, made, layers)
    uses = by_op(result.layers)
    patches = [
        Patch(facecolor=tone, hatch=hatch, edgecolor="black", linewidth=0.3, label=f"{op}: {percent(uses[op].share)} %")
        for op, (tone, hatch) in looks([*uses]).items()
    ]
    below = max(2, int(figure.get_figwidth() / 1.3))
    longest = quantity(max(layer.time_us for layer in layers.values()), TIMES)
    told = f"bars: time of a layer, the longest {longest}; below: share of all time by op"
    figure.legend(handles=patches, loc="outside lower center", ncols=below, fontsize=7, title=told, title_fontsize=7)
    return figure


def _draw_layers(axes: Axes, place: _Place, made: Mapping[str, Output], layers: Mapping[str, LayerResult]) -> None:
    tones = looks([*by_op([*layers.values()])])
    longest = max(layer.cycles for layer in layers.values())
    for name, each in made.items():
        (left, y), layer = place.of(each.row, place.lanes), layers.get(name)
        x, _ = place.of(each.row, each.lane)
        tone, hatch = tones[layer.op] if layer else ("white", "")
        axes.plot(
            [x], [y], marker="o", markersize=3, color=tone, markeredgecolor="black", markeredgewidth=0.4, zorder=2
        )
        if layer:
            look: Any = {"color": tone, "hatch": hatch, "edgecolor": "black", "linewidth": 0.3}
            at = left + place.bars - place.lanes * _LANE
            axes.barh(y, _BAR * layer.cycles / longest, 0.7 * _PITCH, at, **look)
        style: Any = {"fontsize": _TYPE, "va": "center", "color": "black" if layer else GREY}
        axes.text(left, y, plain(shortened(name, _NAME_WIDTH)), **style)


# ---- where the edges run when layers stand below one another: a line for each output, in lanes


class Output(NamedTuple):
    """The output of a row's layer: a line down a lane, as far as the row of the last layer that reads it."""

    row: int
    lane: int
    last: int


def outputs(names: Sequence[str], inputs: Mapping[str, Sequence[str]]) -> list[Output]:
    """Return the output of each row. Lines in one lane stand behind one another; the leftmost free lane is taken."""
    rows = {name: row for row, name in enumerate(names)}
    last = {row: row for row in rows.values()}
    for name, read in inputs.items():
        for each in read:
            last[rows[each]] = max(last[rows[each]], rows[name])
    found: list[Output] = []
    # The row where each lane's line ends.
    until: list[int] = []
    for row in range(len(names)):
        lane = next((lane for lane, end in enumerate(until) if end <= row), len(until))
        until[lane : lane + 1] = [last[row]]
        found.append(Output(row, lane, last[row]))
    return found


# ---- where the time goes by the kind of op


def draw_ops(result: Result, title: str) -> Figure:
    """Draw a bar an op, the costliest at the top, with its share and number of layers."""
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
    # The room on the right is for the texts beside the bars.
    axes.set(title=title, xlabel=f"time ({unit})", xlim=(0, 1.3 * max(times)))
    return figure
