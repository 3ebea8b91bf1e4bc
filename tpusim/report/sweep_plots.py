"""Pictures of a sweep: curves over one axis, heat maps over two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tpusim.report.figure import FORMATS, STYLE, figure_of, rendered

Row = Mapping[str, Any]

_TONES = ("#0b3c5d", "#d55e00", "#56b4e9", "#7a7a7a", "#c49a6c", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P")


def plots(name: str, rows: Sequence[Row], axes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Every picture as (file name, contents); none for more than two axes."""
    finished = [row for row in rows if not row["error"]]
    with rc_context(rc=STYLE):
        for stem, figure in _figures(name, finished, axes):
            for kind in FORMATS:
                yield f"{stem}.{kind}", rendered(figure, kind)


def _figures(name: str, rows: Sequence[Row], axes: Sequence[str]) -> Iterator[tuple[str, Figure]]:
    if rows and len(axes) == 1:
        yield "throughput", _curves(name, rows, axes[0], throughput=True)
        yield "port_idle", _curves(name, rows, axes[0], throughput=False)
    if rows and len(axes) == 2:
        for workload in dict.fromkeys(row["workload"] for row in rows):
            chosen = [row for row in rows if row["workload"] == workload]
            yield f"utilization_{workload}", _heat_map(f"{name}: {workload}", chosen, axes)


def _curves(name: str, rows: Sequence[Row], axis: str, throughput: bool) -> Figure:
    """TFLOPS and utilisation on twin axes (the paper's Fig. 16a), or the ports' idle ratio (Fig. 16b)."""
    figure = figure_of(5.4, 3.4)
    left = figure.subplots()
    values = list(dict.fromkeys(row[axis] for row in rows))
    left.set_xticks(range(len(values)), [str(value) for value in values])
    left.set(xlabel=axis, title=name.replace("$", r"\$"))
    right = left.twinx() if throughput else None
    for index, workload in enumerate(dict.fromkeys(row["workload"] for row in rows)):
        chosen = [row for row in rows if row["workload"] == workload]
        style: Any = {"color": _TONES[index % len(_TONES)], "marker": _MARKERS[index % len(_MARKERS)], "markersize": 4}
        x = [values.index(row[axis]) for row in chosen]
        if right is None:
            left.plot(x, [100 * row["port_idle_ratio"] for row in chosen], label=workload, **style)
            continue
        left.plot(x, [row["tflops"] for row in chosen], label=f"{workload}, TFLOPS", **style)
        right.plot(
            x, [100 * row["pe_utilization"] for row in chosen], ls="--", label=f"{workload}, utilisation", **style
        )
    _label(left, right)
    figure.legend(loc="outside lower center", ncols=4 if right is None else 2)
    return figure


def _label(left: Axes, right: Axes | None) -> None:
    left.set_ylim(bottom=0)
    left.set_ylabel("port cycles without an access (%)" if right is None else "TFLOPS")
    if right is None:
        left.set_ylim(0, 100)
    else:
        right.set_ylim(0, 100)
        right.set_ylabel("PE utilisation (%)")
        right.spines["right"].set_visible(True)


def _heat_map(title: str, rows: Sequence[Row], axes: Sequence[str]) -> Figure:
    """PE utilisation, the number in every cell."""
    figure = figure_of(5.4, 3.8)
    plot = figure.subplots()
    across, down = (list(dict.fromkeys(row[axis] for row in rows)) for axis in axes)
    cells = {(row[axes[0]], row[axes[1]]): 100 * row["pe_utilization"] for row in rows}
    grid = [[cells.get((x, y), float("nan")) for x in across] for y in down]
    image = plot.imshow(grid, cmap="Greys", vmin=0, vmax=100, aspect="auto", origin="lower")
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            plot.text(x, y, f"{value:.1f}", ha="center", va="center", color="white" if value > 60 else "black")
    plot.set_xticks(range(len(across)), [str(value) for value in across])
    plot.set_yticks(range(len(down)), [str(value) for value in down])
    plot.set(xlabel=axes[0], ylabel=axes[1], title=title.replace("$", r"\$"))
    figure.colorbar(image, label="PE utilisation (%)")
    return figure
