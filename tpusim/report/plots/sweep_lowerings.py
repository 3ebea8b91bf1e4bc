"""Pictures of a sweep over lowerings: what each takes on every network, and which is the fastest where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from tpusim.report.plots.figure import columns_below, figure_of, plain, stack, uncrowded
from tpusim.report.plots.sweep_labels import Scale, axis_label, rows_of
from tpusim.report.tables.sweep import ComparedLowerings
from tpusim.result.vocabulary.states import ARRAY, STALLED

# ---- alone: a group of bars a network, a bar a lowering, stacked by what the array did


_BAR = 0.84
_GAP = 1.2
"""Between groups, in bars."""
_SMALL = 6.5
_FEW = 90
"""Bars of a picture at most of which each has its number above it."""


def lowerings_figure(title: str, found: ComparedLowerings) -> Figure:
    """Heights are times of what the reference takes on the same network; a cross marks what failed."""
    step = len(found.lowerings) + _GAP
    slots = len(found.workloads) * step
    figure = figure_of(min(max(5.4, 1.2 + 0.19 * slots), 13.0), 3.9)
    axes = figure.subplots()
    places = {
        (workload, lowering): group * step + place
        for group, workload in enumerate(found.workloads)
        for place, lowering in enumerate(found.lowerings)
    }
    done = {key: at for key, at in places.items() if found.point(*key)}
    _bars(axes, done, found, numbered=len(places) <= _FEW)
    _crosses(axes, [at for key, at in places.items() if key not in done])
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set(title=title, ylabel=f"time relative to {plain(found.reference)}", xlim=(-1, slots - _GAP))
    axes.margins(y=0.1)
    _name(axes, [*places.values()], found)
    figure.legend(loc="outside lower center", ncols=columns_below(figure))
    return figure


def _bars(axes: Axes, places: Mapping[tuple[str, str], float], found: ComparedLowerings, numbered: bool) -> None:
    """Bars of the points that were done, stacked by the states that any of them was in."""
    rows, times = [found.point(*key) or {} for key in places], [found.times(*key) or 0.0 for key in places]
    splits = [{state.key: row[f"{state.key}_cycles"] or 0 for state in ARRAY} for row in rows]
    units = np.array([row["cycles"] / each for row, each in zip(rows, times, strict=True)])
    for row, split in zip(rows, splits, strict=True):
        # Machines of other families wait for reasons of their own, which a sweep does not tell apart.
        split[STALLED.key] = row["cycles"] - sum(split.values())
    states = [state for state in (*ARRAY, STALLED) if any(split[state.key] for split in splits)]
    stack(axes.bar, [*places.values()], splits, units, _BAR, states)
    # Beyond the line at one, which would cross the number of a shorter bar.
    above: Any = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": _SMALL, "rotation": 90}
    for at, each in zip(places.values(), times, strict=True) if numbered else ():
        axes.annotate(f"{each:.2f}", (at, max(each, 1)), (0, 2), **above)


def _crosses(axes: Axes, places: Sequence[float]) -> None:
    """Where a point failed."""
    if places:
        foot: Any = {"transform": axes.get_xaxis_transform(), "label": "failed: see points.csv"}
        axes.plot(places, [0.04] * len(places), marker="x", color="black", markersize=4, ls="", **foot)


def _name(axes: Axes, places: Sequence[float], found: ComparedLowerings) -> None:
    """The lowering under each bar, the network above each group."""
    axes.set_xticks(places, [plain(each) for each in found.lowerings] * len(found.workloads))
    axes.tick_params(axis="x", length=0, rotation=90, labelsize=_SMALL)
    groups, count = axes.secondary_xaxis("top"), len(found.lowerings)
    firsts = places[::count]
    groups.set_xticks([first + (count - 1) / 2 for first in firsts], [*map(plain, found.workloads)])
    groups.tick_params(length=0)
    groups.spines["top"].set_visible(False)


# ---- and two or three other axes: a map of which lowering is the fastest where


Row = Mapping[str, Any]
Cell = tuple[Any, Any, Any]
"""A value of each axis: across, down, of a panel (None: there is one)."""

LOWERING = "lowering"
MOST_CELLS = 24
"""Along an axis; of more nobody could read the numbers."""
_TONES = (
    ("#ffffff", "black"), ("#a9cbe3", "black"), ("#0b3c5d", "white"), ("#d55e00", "black"), ("#6e6e6e", "white"),
    ("#e8d9a8", "black"), ("#000000", "white"),
)  # fmt: skip
"""Of the first lowering, the second, ..., and what is written on it; they differ in lightness."""


@dataclass(frozen=True)
class Winners:
    """Points over `lowering` and two or three other axes, of one workload."""

    rows: Sequence[Row]
    axes: Sequence[str]

    @property
    def drawable(self) -> bool:
        """Whether there is a map to draw: numbers and tones for all of it."""
        few = all(len({row[axis] for row in self.rows}) <= MOST_CELLS for axis in self.axes)
        return len(self.others) in (2, 3) and 1 < len(self.lowerings) <= len(_TONES) and few

    @cached_property
    def others(self) -> list[str]:
        """The axes that make cells."""
        return [axis for axis in self.axes if axis != LOWERING]

    @cached_property
    def lowerings(self) -> list[str]:
        """In the order of the sweep, the first being what others are compared with; not those that choose another."""
        return [*dict.fromkeys(row[LOWERING] for row in self.rows if row[LOWERING] != "auto")]

    @cached_property
    def cycles(self) -> dict[Cell, dict[str, int]]:
        """Cycles of each cell, by lowering; what failed is missing."""
        found: dict[Cell, dict[str, int]] = {}
        for row in self.rows:
            of_cell = found.setdefault(self.cell(row), {})
            if row[LOWERING] in self.lowerings and not row["error"]:
                of_cell[row[LOWERING]] = row["cycles"]
        return found

    def cell(self, row: Row) -> Cell:
        """Where a point belongs."""
        across, down, *panel = (row[axis] for axis in self.others)
        return across, down, panel[0] if panel else None

    def winner(self, cell: Cell) -> str | None:
        """The fastest; of equals the first."""
        return min(self.cycles[cell], key=self.cycles[cell].__getitem__, default=None)

    def gain(self, cell: Cell) -> float | None:
        """How many times as fast as the first lowering the best of the others is."""
        first, *others = self.lowerings
        took = self.cycles[cell]
        best = min((took[each] for each in others if each in took), default=None)
        return took[first] / best if first in took and best else None


def winners_figure(title: str, found: Winners) -> Figure:
    """A panel for each value of the third axis, beside one another."""
    across, down = (rows_of(axis, [row[axis] for row in found.rows]) for axis in found.others[:2])
    panels = list(dict.fromkeys(panel for _, _, panel in found.cycles))
    wide, high = 0.45 * len(across.places), 0.33 * len(down.places)
    figure = figure_of(min(13.0, 1.2 + len(panels) * max(1.9, wide + 0.2)), min(9.0, 1.5 + high))
    plots = figure.subplots(1, len(panels), sharey=True, squeeze=False).flatten()
    for plot, panel in zip(plots, panels, strict=True):
        _panel(plot, found, panel, across, down)
        if panel is not None:
            plot.set_title(plain(f"{axis_label(found.others[2])}: {panel}"))
    plots[0].set_ylabel(down.label)
    told = f"in a cell: how many times as fast as {found.lowerings[0]} the best of the others is"
    figure.suptitle(f"{title}\n{told}", x=0.01, ha="left", fontsize=9)
    shown = zip(found.lowerings, _TONES, strict=False)
    handles = [Patch(facecolor=tone, edgecolor="black", linewidth=0.5, label=name) for name, (tone, _) in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return uncrowded(figure)


def _panel(plot: Axes, found: Winners, panel: Any, across: Scale, down: Scale) -> None:
    """Every cell in the tone of its winner, with the gain; a cross where no point was done."""
    for cell in (each for each in found.cycles if each[2] == panel):
        x, y = across.places[cell[0]], down.places[cell[1]]
        winner, gain = found.winner(cell), found.gain(cell)
        if winner is None:
            plot.plot(x, y, marker="x", color="black", markersize=5)
            continue
        tone, ink = _TONES[found.lowerings.index(winner)]
        plot.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=tone, edgecolor="black", linewidth=0.5))
        plot.text(x, y, "-" if gain is None else f"{gain:.2f}", ha="center", va="center", color=ink, fontsize=7)
    plot.set_xticks(*across.ticks(MOST_CELLS))
    plot.set_yticks(*down.ticks(MOST_CELLS))
    plot.set(xlabel=across.label, xlim=(-0.5, len(across.places) - 0.5), ylim=(-0.5, len(down.places) - 0.5))
