"""A trace as a picture: a column for every cycle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tpusim.machines.tpu.observation.timeline import ACCESSES, MOVING, WORKING, Cycle
from tpusim.report.plots.figure import DOTS_PER_INCH, Picture, figure_of, plain
from tpusim.report.style import MAIN, MARK
from tpusim.report.trace.lanes import DOTS_PER_LANE, MOST_INCHES

_PORTS_INCHES, _REST_INCHES = 1.3, 3.1


def picture(cycles: Sequence[Cycle], title: str, kind: str) -> bytes:
    """The file's contents, `kind` is "png" or "svg"; `cycles` are consecutive, MOST_CYCLES at most."""
    return Picture("trace", "", partial(draw, cycles, title)).contents(kind)


def draw(cycles: Sequence[Cycle], title: str) -> Figure:
    """Ports of all lanes over time, and below them, if there are any, activations that PEs hold and weights on their
    way.
    """
    works = any(cycle.working or cycle.moving for cycle in cycles)
    tall = max(_PORTS_INCHES, min(MOST_INCHES, len(cycles[0].ports) * DOTS_PER_LANE / DOTS_PER_INCH))
    wide = max(6.5, min(12.0, 4.0 + 0.08 * len(cycles)))
    figure = figure_of(wide, tall + _REST_INCHES - (0 if works else _PORTS_INCHES))
    heights = (tall, _PORTS_INCHES)[: 1 + works]
    ports, *array = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False).flatten()
    ports.set_title(plain(title))
    _draw_ports(ports, cycles)
    for plot in array:
        _draw_array(plot, cycles)
    (array or [ports])[-1].set_xlabel("cycle")
    ports.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    seen = {letter for cycle in cycles for letter in cycle.ports}
    tones = [
        Patch(facecolor=each.tone, edgecolor="black", linewidth=0.3, label=fill(f"{letter} {each.meaning}", 40))
        for letter, each in ACCESSES.items()
        if letter in seen and each.meaning
    ]
    figure.legend(
        handles=[*tones, *(patch for plot in array for patch in plot.patches)],
        loc="outside lower center",
        ncols=2 if wide < 9 else 4,
    )
    return figure


def _draw_ports(axes: Axes, cycles: Sequence[Cycle]) -> None:
    """A tone for each kind of access, and its letter where there is room."""
    lanes, first = len(cycles[0].ports), cycles[0].number
    tones = {letter: to_rgb(access.tone) for letter, access in ACCESSES.items()}
    image = [[tones[cycle.ports[lane]] for cycle in cycles] for lane in range(lanes)]
    extent = first - 0.5, first + len(cycles) - 0.5, lanes - 0.5, -0.5
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=extent)
    if lanes <= 8 and len(cycles) <= 100:
        for cycle in cycles:
            for lane, letter in enumerate(cycle.ports.replace(".", " ")):
                color = "white" if letter in "RW" else "black"
                axes.text(cycle.number, lane, letter, ha="center", va="center", fontsize=5.5, color=color)
    axes.set_yticks(range(0, lanes, -(-lanes // 8)))
    axes.set_ylabel("lane's port")


def _draw_array(axes: Axes, cycles: Sequence[Cycle]) -> None:
    edges = [cycle.number - 0.5 for cycle in cycles] + [cycles[-1].number + 0.5]
    for count, label, tone, look in (("working", WORKING, MAIN, "-"), ("moving", MOVING, MARK, "--")):
        values = [getattr(cycle, count) for cycle in cycles]
        axes.stairs(values, edges, baseline=None, color=tone, lw=1.5, ls=look, label=fill(label, 40))
    axes.set(ylim=(0, None), ylabel="PEs")
