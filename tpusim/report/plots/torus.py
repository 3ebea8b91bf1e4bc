"""The picture of a torus: its chips, and each link as dark as the part of the time for which it is held."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from tpusim.machines.tpu.slices.summary import CollectiveTime
from tpusim.machines.tpu.slices.torus import LinkPort, Place
from tpusim.report.plots.figure import Picture, figure_of, plain
from tpusim.report.tables.collective import asked
from tpusim.report.text import percent

_MOST_SIDE = 16
"""Chips of an axis that are drawn; of a longer one the first."""
_MOST_PLANES = 4
_BESIDE = 0.09
"""Distance of the two directions of a link from its middle."""
_STUB = 0.45
"""Length of a link that goes round to the other end."""


def torus_picture(made: CollectiveTime) -> Picture:
    """Return the picture of a collective on its slice: a plane of chips for each position along the third axis."""
    least, most = min(made.links.values(), default=0.0), made.busiest
    caption = (
        f"{asked(made)}. Squares: chips. Arrows: links, one each way, by the part of the time for which each is held "
        f"({percent(least)} to {percent(most)} %); short ones leave the picture.{_left_out(made)}"
    )
    return Picture("torus", caption, partial(_drawn, made))


def _left_out(made: CollectiveTime) -> str:
    """Say which chips are drawn, where these are not all."""
    place = made.question.place
    if place.slices == 1 and max(place.torus[:2]) <= _MOST_SIDE and prod(place.torus[2:]) <= _MOST_PLANES:
        return ""
    return f" Drawn are the first slice, {_MOST_SIDE} chips of an axis and {_MOST_PLANES} planes at most."


def _drawn(made: CollectiveTime) -> Figure:
    torus = made.question.laid.torus
    sides = [min(axis.length, _MOST_SIDE) for axis in torus.axes if not axis.direct]
    across, down = (*sides, 1)[1], sides[0]
    planes = min(prod(sides[2:]), _MOST_PLANES)
    figure = figure_of(min(12.0, 1.0 + planes * (0.6 + 0.42 * across)), 1.1 + 0.42 * down)
    grid = figure.subplots(1, planes, squeeze=False)[0]
    colours = colormaps["cividis_r"]
    shared = {*made.question.collective.group.sharing}
    spanned = {span.axis for span in made.question.collective.group.spans}
    for plane, axes in enumerate(grid):
        for port in torus.ports:
            place = (*port.place, 0, 0)
            if torus.axes[port.axis].direct or place[2] != plane or place[0] >= down or place[1] >= across:
                continue
            # Groups beside one another take alike: the link of the first stands for all.
            like = LinkPort(tuple(p if n in spanned else 0 for n, p in enumerate(port.place)), port.axis, port.way)
            share = made.links.get(like if like.place in shared else port, 0.0)
            _arrow(axes, made, port, share, colours)
        axes.scatter([x for _ in range(down) for x in range(across)], [y for y in range(down) for _ in range(across)],
                     marker="s", s=46, color="#171b20", zorder=3)  # fmt: skip
        names = [axis.name for axis in torus.axes]
        axes.set(
            xlim=(-0.7, across - 0.3), ylim=(down - 0.3, -0.7), aspect="equal",
            xlabel=names[1] if len(names) > 1 and names[1] != "dcn" else "", ylabel=names[0],
            title=f"{names[2]} = {plane}" if planes > 1 else "",
        )  # fmt: skip
        axes.set_xticks(range(across))
        axes.set_yticks(range(down))
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    bar = figure.colorbar(ScalarMappable(Normalize(0, 100), colours), ax=list(grid), shrink=0.9)
    bar.set_label("time for which a link is held (%)")
    figure.suptitle(plain(asked(made)), fontsize=8, x=0.01, ha="left", wrap=True)
    return figure


def _arrow(axes: Any, made: CollectiveTime, port: LinkPort, share: float, colours: Any) -> None:
    """Draw a link: along the rows, along the columns, or as a short one into the next plane."""
    row, column = (*port.place, 0)[:2]
    if port.axis == 2:
        # Up and down behind the chip, as short lines.
        axes.plot([column + 0.1, column + 0.26], [row + 0.1 * port.way, row + 0.26 * port.way], color=colours(share),
                  linewidth=2, solid_capstyle="butt", zorder=2)  # fmt: skip
        return
    end = _end(made, port)
    step = _STUB if end is None else 1.0
    beside = _BESIDE * port.way
    start = (column, row + beside) if port.axis == 1 else (column + beside, row)
    stop = (column + step * port.way, row + beside) if port.axis == 1 else (column + beside, row + step * port.way)
    axes.annotate("", xy=stop, xytext=start, zorder=1,
                  arrowprops={"arrowstyle": "-|>", "color": colours(share), "linewidth": 1.6, "shrinkA": 3,
                              "shrinkB": 0 if end is None else 3, "mutation_scale": 6})  # fmt: skip


def _end(made: CollectiveTime, port: LinkPort) -> Place | None:
    """Return the chip that a link leads to, if it is drawn beside its own."""
    to = port.place[port.axis] + port.way
    length = made.question.laid.torus.axes[port.axis].length
    if not 0 <= to < min(length, _MOST_SIDE):
        return None
    return (*port.place[: port.axis], to, *port.place[port.axis + 1 :])
