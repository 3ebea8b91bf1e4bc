"""The look of every picture, and the names and scales of the axes of sweeps."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from tpusim.base.units import magnitude
from tpusim.base.words import visible
from tpusim.report.plots import FORMATS
from tpusim.report.plots.labels import settled
from tpusim.report.style import HATCHES
from tpusim.report.text import scale
from tpusim.result.vocabulary.fields import axis_title
from tpusim.result.vocabulary.figures import PERCENT
from tpusim.result.vocabulary.figures import Figure as Column
from tpusim.result.vocabulary.states import ARRAY, State

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.4,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: a journal's checks and a reader's search find text
    "svg.fonttype": "none",  # text stays text: searchable, and in the reader's font
    "svg.hashsalt": "tpusim",  # the same result gives the same file
}
DOTS_PER_INCH = 200
CYCLE_COUNTS = (("billion", 1e9), ("million", 1e6), ("thousand", 1e3), ("", 1.0))
"""The units that cycles are counted in along an axis."""

_WIDE = 6.5
"""Inches that three of the states' legends take beside one another."""

_APART = 0.03
"""Least distance in inches between names below a plot."""

MOST_BARS = 200
"""In a picture of 12 inches, more bars than this have no gap between them."""

_METADATA = {"pdf": ("CreationDate", "Subject"), "svg": ("Date", "Description"), "png": ("Software", "Description")}
"""File metadata by format: None for entries that would differ from file to file, and the entry that holds the caption.
"""


def figure_of(width: float, height: float) -> Figure:
    """Make an empty figure, in inches, that lays itself out."""
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def columns_below(figure: Figure) -> int:
    """Return how many columns a legend of the array's states has room for, below everything else."""
    return 3 if figure.get_figwidth() > _WIDE else 2


def uncrowded(figure: Figure) -> Figure:
    """Stand names below a plot upright where they would run into one another, and make the figure as much taller."""
    if layout := figure.get_layout_engine():
        layout.execute(figure)
    for plot in (each for each in figure.axes if each.xaxis.get_visible()):
        boxes = [label.get_window_extent() for label in plot.get_xticklabels() if label.get_visible()]
        if any(left.x1 + _APART * figure.dpi > right.x0 for left, right in pairwise(boxes)):
            plot.tick_params(axis="x", rotation=90)
            more = max(box.width for box in boxes) / figure.dpi
            figure.set_figheight(figure.get_figheight() + more)
    return figure


def in_full(axis: Axis) -> None:
    """Write the numbers along an axis in full, as matplotlib writes a million as 1e6; at 1, 2 and 5 on a logarithmic
    one.
    """
    if axis.get_scale() == "log":
        low, high = sorted(axis.get_view_interval())
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _DECADES * low else (1,)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter("{x:,.10g}")


_DECADES = 10**3.5
"""On a longer logarithmic axis only powers of ten have a number."""


def plain(text: str) -> str:
    """Escape `text` for matplotlib, to which a dollar is mathematics and a leading underscore means hidden."""
    return visible(f" {text}" if text.startswith("_") else text).replace("$", r"\$")


def bars(axes: Axes, count: int) -> Callable[..., Any]:
    """Return the function that draws `count` bars: `axes.bar`, or, where no gap between them would show, one area.

    A thousand bars of their own take half a minute, an area none.
    """

    def area(at: Sequence[int], sizes: Any, thick: float, below: Any = 0, *, color: str, **look: Any) -> None:
        edges = np.column_stack([np.asarray(at) - 0.5, np.asarray(at) + 0.5]).ravel()
        base = np.broadcast_to(below, len(at))
        # Not `stairs`, which walks over every corner in Python.
        # Without an edge there would be no hatch either.
        look = {**look, "facecolor": color, "linewidth": 0.01}
        axes.fill_between(edges, np.repeat(base, 2), np.repeat(base + sizes, 2), **look)

    return axes.bar if count <= MOST_BARS else area


def stack(
    draw: Callable[..., Any],
    at: Any,
    splits: Sequence[Mapping[str, float]],
    units: Any,
    thick: float,
    states: Sequence[State] = ARRAY,
) -> None:
    """Draw a bar for each split of the array's cycles, its states on top of one another; `draw` is `bar`, or of
    `bars`.
    """
    below = np.zeros(len(splits))
    for state in states:
        sizes = np.array([split.get(state.key, 0) for split in splits]) / units
        if state.seldom and not sizes.any():
            continue
        look = {"color": state.look.light, "hatch": HATCHES[state.look.hatch][0], "label": state.legend}
        draw(at, sizes, thick, below, edgecolor="black", linewidth=0.2, **look)
        below = below + sizes


@dataclass(frozen=True)
class Picture:
    """A picture with the caption it has in a paper; `draw` makes its figure."""

    name: str
    caption: str
    draw: Callable[[], Figure]

    def __post_init__(self) -> None:
        # A caption names what results name, and an SVG may hold no control characters.
        object.__setattr__(self, "caption", visible(self.caption))

    def files(self, kinds: Sequence[str] = FORMATS) -> Iterator[tuple[str, bytes]]:
        """Yield file name and contents in each format; the same picture gives the same bytes.

        The figure is drawn and laid out once: that takes longer than to save it.
        """
        with styled():
            figure = settled(self.draw())
        for kind in kinds:
            yield f"{self.name}.{kind}", self._saved(figure, kind)

    def contents(self, kind: str) -> bytes:
        """Return what `files` yields for one format."""
        ((_, contents),) = self.files([kind])
        return contents

    def _saved(self, figure: Figure, kind: str) -> bytes:
        buffer, (changing, told) = io.BytesIO(), _METADATA[kind]
        with styled():
            figure.savefig(buffer, format=kind, metadata={changing: None, told: self.caption})
        return buffer.getvalue()


@contextmanager
def styled() -> Iterator[None]:
    """Draw as every picture looks; letters that the font lacks are boxes in pixels, and the reader's in SVG."""
    with rc_context(rc=STYLE), catch_warnings():
        filterwarnings("ignore", "Glyph .* missing from font")
        yield


# ---- what the axes and columns of a sweep are called, and where their values stand


def in_unit(column: Column, values: Iterable[float | None]) -> tuple[str, float]:
    """Return what an axis with these values of a column says, and their divisor: "time (ms)", 1000."""
    if column.units == PERCENT:
        return column.title, column.usual[1]
    units = column.units
    if len(units) == 1:
        ((only, _),) = units
        units = tuple((f"{count} {only}".strip(), size) for count, size in CYCLE_COUNTS if size != 1e3)
    unit, size = scale(values, units)
    return plain(f"{column.label} ({unit})" if unit else column.label), size


_OF_NUMBERS = "0123456789.eE_+- "
_LOG_RATIO = 8

AxisValue = int | float | str


def axis_label(axis: str) -> str:
    """Return an axis in words, with its unit where its values carry none: "array size (PEs a side)"."""
    return plain(axis_title(axis))


@dataclass(frozen=True)
class Scale:
    """The place of each value of an axis, the text written there, and the label along the axis."""

    places: Mapping[AxisValue, float]
    texts: Mapping[AxisValue, str]
    label: str
    kind: str
    """Matplotlib's "log" or "linear"; places of words are 0, 1, 2, ..."""

    def ticks(self, most: int = 12) -> tuple[list[float], list[str]]:
        """Return places and texts of about `most` ticks that have room."""
        order = sorted(self.places, key=self.places.__getitem__)
        across = {value: math.log(place) if self.kind == "log" else place for value, place in self.places.items()}
        least = (across[order[-1]] - across[order[0]]) / most * 0.999
        shown = order[:1]
        for value in order[1:]:
            if across[value] - across[shown[-1]] >= least:
                shown.append(value)
        return [self.places[value] for value in shown], [plain(self.texts[value]) for value in shown]


def scale_of(axis: str, values: Iterable[AxisValue]) -> Scale:
    """Place numbers and quantities by their size, over a wide range on a logarithmic scale; words in a row."""
    label, texts = axis_label(axis), {value: str(value) for value in values}
    places = {value: place for value, text in texts.items() if (place := magnitude(text)) is not None}
    if len(texts) < 2 or len(places) < len(texts):
        return _in_a_row(texts, label)
    units = {text.strip().lstrip(_OF_NUMBERS) for text in texts.values()}
    if len(units) == 1 and (unit := units.pop()):
        texts = {value: text.removesuffix(unit).strip() for value, text in texts.items()}
        label = f"{label} ({unit})"
    wide = 0 < min(places.values()) * _LOG_RATIO <= max(places.values())
    return Scale(places, texts, label, "log" if wide else "linear")


def rows_of(axis: str, values: Iterable[AxisValue]) -> Scale:
    """Place every value one step after the other, as in a heat map; numbers in rising order."""
    scale = scale_of(axis, values)
    return _in_a_row(
        {value: scale.texts[value] for value in sorted(scale.places, key=scale.places.__getitem__)}, scale.label
    )


def zipped(axes: Sequence[str], rows: Sequence[Mapping[str, AxisValue]]) -> tuple[Scale, list[AxisValue]]:
    """Place axes that move together: one step a combination, its values below one another."""
    texts = ["\n".join(str(row[axis]) for axis in axes) for row in rows]
    return _in_a_row(dict(zip(texts, texts, strict=True)), "\n".join(map(axis_label, axes))), [*texts]


def _in_a_row(texts: Mapping[AxisValue, str], label: str) -> Scale:
    return Scale({value: float(place) for place, value in enumerate(texts)}, texts, label, "linear")
