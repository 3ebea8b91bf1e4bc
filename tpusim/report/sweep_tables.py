"""A sweep as a table and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from tpusim.report.tables import percent, table, three_digits

COLUMNS = (
    "workload", "batch", "cycles", "time_us", "tflops", "pe_utilization", "mapping_efficiency", "port_idle_ratio",
    "macs", "passes", "ideal_cycles", "hbm_read_bytes", "hbm_write_bytes", "error",
)  # fmt: skip
"""Of a point in CSV, after its axes."""

Row = Mapping[str, Any]


def best_table(rows: Sequence[Row], axes: Sequence[str], most: int = 10) -> Table:
    """The points of the least time for each workload, at most `most` together."""
    finished = sorted((row for row in rows if not row["error"]), key=lambda row: (row["workload"], row["time_us"]))
    each = max(1, most // max(1, len({row["workload"] for row in finished})))
    taken: dict[str, int] = {}
    chosen = []
    for row in finished:
        taken[row["workload"]] = taken.get(row["workload"], 0) + 1
        if taken[row["workload"]] <= each:
            chosen.append(row)
    heads = [("workload", "left"), *((axis, "right") for axis in axes)]
    heads += [(name, "right") for name in ("cycles", "time\\nms", "TF/s", "PE\\n%", "map\\n%", "idle\\n%")]
    return table([(name.replace("\\n", "\n"), justify) for name, justify in heads], [_cells(r, axes) for r in chosen])


def to_csv(rows: Sequence[Row], axes: Sequence[str]) -> str:
    """A line a point: its axes, then COLUMNS."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*axes, *(name for name in COLUMNS if name not in axes)], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cells(row: Row, axes: Sequence[str]) -> list[str]:
    return [
        row["workload"],
        *(str(row[axis]) for axis in axes),
        f"{row['cycles']:,.0f}",
        three_digits(row["time_us"] / 1e3),
        three_digits(row["tflops"]),
        *(percent(row[name]) for name in ("pe_utilization", "mapping_efficiency", "port_idle_ratio")),
    ]
