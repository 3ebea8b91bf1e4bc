"""What the page of a sweep shows, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpusim.base.units import magnitude
from tpusim.report.page.columns import Column, column
from tpusim.report.page.sweep_file import SweepPoints
from tpusim.report.text import percent, quantity, three_digits
from tpusim.result.vocabulary.figures import TIMES, column_of

_FIRST = ("time_us", "tflops", "pe_utilization", "port_idle_ratio")


def sweep_data(points: SweepPoints) -> dict[str, Any]:
    """Everything on the page. Points are columns, as a row of keys each would make the file several times larger."""
    columns = points.columns
    failed = [index for index, error in enumerate(columns["error"]) if error]
    return {
        "title": f"Sweep {points.name}",
        "subtitle": _subtitle(points),
        "verdict": _verdict(points.size, len(failed)),
        "sentences": [[sentence] for sentence in sentences(points)],
        "axes": [_axis(axis, [str(value) for value in columns[axis]]) for axis in points.axes],
        "figures": _figures(points),
        "points": columns,
        "front": [index for index, mark in enumerate(columns.get("pareto", ())) if mark == "True"],
        "failed": failed,
    }


def sentences(points: SweepPoints) -> list[str]:
    """The fastest point of each workload, and how far the others are from it."""
    return [_fastest(points, str(workload)) for workload in dict.fromkeys(points.columns["workload"])]


def _fastest(points: SweepPoints, workload: str) -> str:
    columns = points.columns
    times = {
        index: float(time)
        for index, time in enumerate(columns["time_us"])
        if isinstance(time, float | int) and not columns["error"][index] and columns["workload"][index] == workload
    }
    if not times:
        return f"{workload}: every point failed."
    best, slowest = min(times, key=times.__getitem__), max(times.values())
    settings = ", ".join(f"{axis} = {columns[axis][best]}" for axis in points.axes)
    time = quantity(times[best], TIMES)
    if len(times) == 1:
        return f"{workload}: {time}{_figures_at(points, best)}."
    return (
        f"{workload} is fastest with {settings}: {time}{_figures_at(points, best)}; "
        f"the slowest of its {len(times):,} points takes {quantity(slowest, TIMES)}, "
        f"{_times(slowest / times[best])} as long."
    )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 100 else f"{three_digits(ratio)} times"


def _figures_at(points: SweepPoints, index: int) -> str:
    columns = points.columns
    speed, utilization = (columns.get(key, {index: None})[index] for key in ("tflops", "pe_utilization"))
    text = f", {three_digits(speed)} TFLOPS" if isinstance(speed, float | int) else ""
    return text + (f", PE utilisation {percent(utilization)} %" if isinstance(utilization, float | int) else "")


def _subtitle(points: SweepPoints) -> str:
    axes = [f"{axis} ({len(set(points.columns[axis]))} values)" for axis in points.axes]
    return f"{points.size:,} points over {' x '.join(axes) or 'no axis'}; timing alone, values not checked"


def _verdict(size: int, failed: int) -> dict[str, str]:
    text = f"{failed:,} of {size:,} points failed; see below" if failed else f"All {size:,} points finished"
    return {"state": "wrong" if failed else "right", "text": text, "first": ""}


def _axis(key: str, values: Sequence[str]) -> dict[str, Any]:
    """Its values in order, and what they measure when all of them do."""
    distinct = dict.fromkeys(values)
    known = {value: measure for value in distinct if (measure := magnitude(value)) is not None}
    if len(known) < len(distinct):
        return {"key": key, "values": [*distinct], "measures": None}
    order = sorted(known, key=known.__getitem__)
    return {"key": key, "values": order, "measures": [known[value] for value in order]}


def _figures(points: SweepPoints) -> list[Column]:
    """How the columns of points.csv are written; one that is not known here, in three digits as it stands."""
    keys = dict.fromkeys((*_FIRST, *points.figures))
    return [
        column(column_of(key), (value for value in points.columns[key] if isinstance(value, float | int)))
        for key in keys
        if key in points.figures and key != "batch"
    ]
