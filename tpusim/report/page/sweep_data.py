"""What the page of a sweep shows, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpusim.report.page.columns import Column, Style
from tpusim.report.page.states import STATES
from tpusim.report.page.sweep_file import SweepPoints, magnitude
from tpusim.report.tables import run as tables
from tpusim.result.records import STALL_CAUSES
from tpusim.study.sweep.column import DIRECTIONS, MAXIMIZE, MINIMIZE

_FINISHED_FIRST = ("time_us", "tflops", "pe_utilization", "port_idle_ratio")
_BETTER = {MINIMIZE: -1, MAXIMIZE: 1, None: 0}

Units = Sequence[tuple[str, float]]
_PLAIN: Units = (("", 1.0),)
_PERCENT: Units = (("%", 1.0),)
_CYCLES: Units = (("cycles", 1.0),)
_RATES: Units = (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("B/s", 1.0))
_KNOWN: dict[str, tuple[str, Style, Units, str]] = {
    "time_us": ("time", "three", tables.TIMES, ""),
    "tflops": ("speed", "three", (("TFLOPS", 1.0),), ""),
    "pe_utilization": ("PE utilisation", "percent", _PERCENT, "MACs / (PEs x cycles)"),
    "mapping_efficiency": ("PEs mapped", "percent", _PERCENT, "PEs that hold a weight"),
    "port_idle_ratio": ("ports idle", "percent", _PERCENT, "port cycles without an access"),
    "cycles": ("cycles", "count", _PLAIN, ""),
    "ideal_cycles": ("ideal cycles", "count", _PLAIN, "MACs / PEs"),
    "passes": ("passes", "count", _PLAIN, "through the array"),
    "macs": ("MACs", "three", tables.COUNTS, ""),
    "hbm_read_bytes": ("HBM read", "three", tables.BYTES, ""),
    "hbm_write_bytes": ("HBM written", "three", tables.BYTES, ""),
    **{f"{state.key}_cycles": (state.label, "count", _CYCLES, state.explain) for state in STATES
       if state.key in STALL_CAUSES},
    "reads": ("words read", "three", tables.COUNTS, "from the vector memories"),
    "writes": ("words written", "three", tables.COUNTS, "to the vector memories"),
    "peak_bytes": ("memory in use", "three", tables.MEMORY, "of the vector memories, at most"),
    "pes": ("PEs", "count", _PLAIN, "of the machine"),
    "lanes": ("lanes", "count", _PLAIN, "of the machine"),
    "sram_bytes": ("vector memories", "three", tables.MEMORY, "of the machine, all lanes together"),
    "hbm_bytes_per_s": ("HBM bandwidth", "three", _RATES, "of the machine"),
}  # fmt: skip
"""Label, style, units to choose from and explanation of each column of points.csv."""


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
        "figures": [_figure(key, columns[key]).to_dict() for key in _order(points.figures) if key != "batch"],
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
    time = tables.quantity(times[best], tables.TIMES)
    if len(times) == 1:
        return f"{workload}: {time}{_figures_at(points, best)}."
    return (
        f"{workload} is fastest with {settings}: {time}{_figures_at(points, best)}; "
        f"the slowest of its {len(times):,} points takes {tables.quantity(slowest, tables.TIMES)}, "
        f"{_times(slowest / times[best])} as long."
    )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 100 else f"{tables.three_digits(ratio)} times"


def _figures_at(points: SweepPoints, index: int) -> str:
    columns = points.columns
    speed, utilization = (columns.get(key, {index: None})[index] for key in ("tflops", "pe_utilization"))
    text = f", {tables.three_digits(speed)} TFLOPS" if isinstance(speed, float | int) else ""
    return text + (f", PE utilisation {tables.percent(utilization)} %" if isinstance(utilization, float | int) else "")


def _subtitle(points: SweepPoints) -> str:
    axes = [f"{axis} ({len(set(points.columns[axis]))} values)" for axis in points.axes]
    return f"{points.size:,} points over {' x '.join(axes) or 'no axis'}; timing alone, values not checked"


def _verdict(size: int, failed: int) -> dict[str, str]:
    if failed:
        return {"state": "wrong", "text": f"{failed:,} of {size:,} points failed; see below", "first": ""}
    return {"state": "right", "text": f"All {size:,} points finished", "first": ""}


def _axis(key: str, values: Sequence[str]) -> dict[str, Any]:
    """Its values in order, and what they measure when all of them do."""
    distinct = list(dict.fromkeys(values))
    measures = [magnitude(value) for value in distinct]
    known = [measure for measure in measures if measure is not None]
    if len(known) == len(distinct):
        distinct.sort(key=lambda value: known[measures.index(magnitude(value))])
        known.sort()
        return {"key": key, "values": distinct, "measures": known}
    return {"key": key, "values": distinct, "measures": None}


def _order(figures: Sequence[str]) -> list[str]:
    first = [key for key in _FINISHED_FIRST if key in figures]
    return [*first, *(key for key in figures if key not in first)]


def _figure(key: str, values: Sequence[Any]) -> Column:
    """How a column of points.csv is written; one that is not known here, in three digits as it stands."""
    label, style, units, title = _KNOWN.get(key, (key, "three", _PLAIN, ""))
    unit, divide = tables.scale([value for value in values if value is not None], units)
    return Column(key, label, style, unit, divide, title, better=_BETTER[DIRECTIONS.get(key)])
