"""Where words of a picture stand: titles within it, and names beside their marks, none on another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, product
from math import ceil, hypot
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from tpusim.report.style import GREY

_AIR = 2.0
"""Least distance, in points, of a name from its mark and from other words."""
_RINGS = 16
"""Distances from its mark at which a name is tried, the nearest first."""
_SIDES = (
    (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1),
    (0.5, 1), (0.5, -1), (-0.5, 1), (-0.5, -1), (1, 0.5), (1, -0.5), (-1, 0.5), (-1, -0.5),
)  # fmt: skip
"""Sides of a mark on which a name is tried, right and up: beside, above and below it before all between them."""
_POINT = 1 / 72
"""Inches."""

Spot = tuple[float, float]
Pixel = NDArray[np.float64]
"""A place in pixels: right, up."""


# ---- the layout, once and for all


def settled(figure: Figure) -> Figure:
    """Lay a figure out, with titles folded that are wider than the picture, and leave it so."""
    if layout := figure.get_layout_engine():
        heads = titles(figure)
        # A title far too wide leaves no room for plots, and where these begin is known only after the first time.
        for head in heads:
            _fold(head, figure)
        layout.execute(figure)
        if any([_fold(head, figure) for head in heads]):
            layout.execute(figure)
    figure.set_layout_engine("none")
    return figure


def titles(figure: Figure) -> list[Text]:
    """Return the titles of a figure and of its plots."""
    heads = [figure.get_suptitle(), *(plot.get_title("left") for plot in figure.axes)]
    texts = [*figure.texts, *chain.from_iterable(plot.get_children() for plot in figure.axes)]
    return [each for each in texts if isinstance(each, Text) and each.get_text() in heads if each.get_text()]


def _fold(title: Text, figure: Figure) -> bool:
    """Fold a title until it ends within the figure; say whether it had to be folded more than before."""
    before, letters = title.get_text(), max(map(len, title.get_text().splitlines()))
    while (box := title.get_window_extent()).x1 > figure.bbox.x1 and letters > 1:
        room = (figure.bbox.x1 - box.x0) / box.width
        letters = min(letters - 1, max(1, int(letters * room)))
        title.set_text("\n".join(fill(line, letters, break_on_hyphens=False) for line in before.splitlines()))
    return title.get_text() != before


# ---- names beside marks


@dataclass(frozen=True)
class OccupiedPlaces:
    """The places of a plot that names keep off, in pixels: words already there, lines, and marks.

    Names stand on marks where there is no other room, but never on words or lines.
    """

    words: list[Bbox] = field(default_factory=list)
    lines: list[Bbox] = field(default_factory=list)
    marks: list[Bbox] = field(default_factory=list)

    def add_line(self, plot: Axes, places: Sequence[Spot]) -> None:
        """Take a line through places of a plot."""
        for one, other in pairwise(_pixels(plot, places)):
            self.lines.extend(_chain(one, other, _POINT * plot.figure.dpi / 2))

    def add_marks(self, plot: Axes, places: Sequence[Spot], radii: Sequence[float]) -> None:
        """Take the marks at places of a plot, each with its radius in points."""
        inch = plot.figure.dpi * _POINT
        self.marks.extend(
            _around(at, at, radius * inch) for at, radius in zip(_pixels(plot, places), radii, strict=True)
        )


def name_marks(
    plot: Axes, spots: Sequence[Spot], radii: Sequence[float], names: Sequence[str], taken: OccupiedPlaces, **look: Any
) -> list[str]:
    """Write each name beside its mark where nothing else stands, the first ones first; return those without room.

    The figure must be `settled`. A name that stands away from its mark has a thin line to it, which crosses no word.
    The same plot always gives the same places. `radii` are those of the marks, in points; `look` is that of the text.
    """
    left_out, inch = [], plot.figure.dpi * _POINT
    for name, spot, at, radius in zip(names, spots, _pixels(plot, spots), radii, strict=True):
        text = plot.annotate(name, spot, (0, 0), textcoords="offset points", ha="center", va="center", **look)
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
        size = text.get_window_extent()
        found = _free(plot, at, radius * inch, (size.width, size.height), taken)
        if found is None:
            text.remove()
            left_out.append(name)
            continue
        box, end = found
        text.set_position(_offset(np.add(box.min, box.max) / 2, at, inch))
        taken.words.append(box)
        if end is not None:
            line: Any = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": radius}
            plot.annotate("", spot, _offset(end, at, inch), textcoords="offset points", arrowprops=line, zorder=1)
            taken.lines.extend(_chain(at, end, inch / 2))
    return left_out


def _free(plot: Axes, at: Pixel, radius: float, size: Spot, taken: OccupiedPlaces) -> tuple[Bbox, Pixel | None] | None:
    """Return the nearest free place around a mark, and where the line to it ends if it needs one; None without any.

    If there is no place where neither touches another mark, the line may, or else the name as well.
    """
    beyond = _around(at, at, radius)
    others = [mark for mark in taken.marks if not mark.overlaps(beyond)]
    for kept, crossed in ((taken.marks, others), (taken.marks, []), ([], [])):
        for box, far in _around_mark(plot, at, radius, size):
            inside = np.all(plot.bbox.min <= box.min) and np.all(box.max <= plot.bbox.max)
            if not inside or _meets([box], (*taken.words, *taken.lines, *kept)):
                continue
            end = np.clip(at, box.min, box.max)
            if not far or not _meets(_chain(at, end, 0.5), (*taken.words, *crossed)):
                return box, end if far else None
    return None


def _meets(boxes: Iterable[Bbox], others: Sequence[Bbox]) -> bool:
    return any(box.overlaps(other) for box in boxes for other in others)


def _offset(place: Pixel, at: Pixel, inch: float) -> Spot:
    """Return how far a place is from a mark, in points."""
    right, up = (place - at) / inch
    return float(right), float(up)


def _around_mark(plot: Axes, at: Pixel, radius: float, size: Spot) -> Iterator[tuple[Bbox, bool]]:
    """Yield places around a mark for a text of this size, the nearest first; and whether it needs a line to it."""
    air, half = _AIR * _POINT * plot.figure.dpi, np.array(size) / 2
    for ring, side in product(range(_RINGS), _SIDES):
        # The text's rim is one `air` away from the mark's, and in each ring half a line further.
        middle = at + np.array(side) * (half + radius + air + ring * half[1])
        yield Bbox([middle - half, middle + half]), ring > 0


def _pixels(plot: Axes, places: Sequence[Spot]) -> Pixel:
    found: Pixel = plot.transData.transform(np.asarray(places, dtype=float).reshape(-1, 2))
    return found


def _chain(one: Pixel, other: Pixel, half: float) -> list[Bbox]:
    """Return a line as a chain of boxes, `half` as wide: one box around a slanted line would be far too large."""
    count = max(1, ceil(min(abs(other - one)) / (4 * half)))
    return [_around(*ends, half) for ends in pairwise(np.linspace(one, other, count + 1))]


def _around(one: Pixel, other: Pixel, margin: float) -> Bbox:
    (x0, x1), (y0, y1) = (sorted(pair) for pair in zip(one, other, strict=True))
    return Bbox.from_extents(x0 - margin, y0 - margin, x1 + margin, y1 + margin)


def near(plot: Axes, spots: Sequence[Spot], least: float) -> list[list[int]]:
    """Group spots less than `least` points from the first of their group; groups and their spots in the order given."""
    pixels, groups = _pixels(plot, spots), list[list[int]]()
    for index, (x, y) in enumerate(pixels):
        reach = least * _POINT * plot.figure.dpi
        own = next((each for each in groups if hypot(x - pixels[each[0]][0], y - pixels[each[0]][1]) < reach), None)
        groups.append([index]) if own is None else own.append(index)
    return groups
