"""A trace as a picture: a column for every cycle."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from tpusim.engine.trace import UNUSED, Cycle
from tpusim.report.figure import STYLE, figure_of, rendered

_KINDS = (
    # letter, meaning, colour (ordered in grey)
    (".", "free", "#ffffff"),
    (UNUSED, "slot unused", "#e8e8e8"),
    ("f", "filled", "#d9d26f"),
    ("s", "spilled", "#c49a6c"),
    ("k", "reads weights", "#8fb8d9"),
    ("P", "reads partial sum", "#d55e00"),
    ("W", "writes result", "#4f6d8f"),
    ("R", "reads ifmap", "#0b3c5d"),
)


def picture(cycles: Sequence[Cycle], title: str, kind: str) -> bytes:
    """Ports of all lanes over time, and below them PEs at work and weights on their way; a PNG, SVG or PDF."""
    with rc_context(rc=STYLE):
        figure = figure_of(min(12.0, 4.0 + 0.08 * len(cycles)), 3.6)
        ports, array = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1))
        ports.set_title(title.replace("$", r"\$"))
        _draw_ports(ports, cycles)
        _draw_array(array, cycles)
        seen = {letter for cycle in cycles for letter in cycle.ports}
        tones = [
            Patch(facecolor=color, edgecolor="black", linewidth=0.3, label=f"{letter} {meaning}")
            for letter, meaning, color in _KINDS[1:]
            if letter in seen
        ]
        figure.legend(handles=[*tones, *array.get_lines()], loc="outside lower center", ncols=4)
        return rendered(figure, kind)


def _draw_ports(axes: Axes, cycles: Sequence[Cycle]) -> None:
    """A tone for each kind of access, and its letter where there is room."""
    codes = {letter: code for code, (letter, _, _) in enumerate(_KINDS)}
    lanes, first = len(cycles[0].ports), cycles[0].number
    axes.imshow(
        [[codes[cycle.ports[lane]] for cycle in cycles] for lane in range(lanes)],
        ListedColormap([color for _, _, color in _KINDS]),
        aspect="auto",
        interpolation="nearest",
        vmin=0,
        vmax=len(_KINDS) - 1,
        extent=(first - 0.5, first + len(cycles) - 0.5, lanes - 0.5, -0.5),
    )
    if lanes <= 8 and len(cycles) <= 100:
        for cycle in cycles:
            for lane, letter in enumerate(cycle.ports.replace(".", " ")):
                color = "white" if letter in "RW" else "black"
                axes.text(cycle.number, lane, letter, ha="center", va="center", fontsize=5.5, color=color)
    axes.set_yticks(range(0, lanes, -(-lanes // 8)))
    axes.set_ylabel("lane's port")


def _draw_array(axes: Axes, cycles: Sequence[Cycle]) -> None:
    numbers = [cycle.number for cycle in cycles]
    axes.step(numbers, [c.working for c in cycles], where="mid", color="#0b3c5d", label="PEs that hold an activation")
    axes.step(numbers, [c.moving for c in cycles], where="mid", color="#d55e00", ls="--", label="weights on their way")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cycle")
    axes.set_ylabel("PEs")
