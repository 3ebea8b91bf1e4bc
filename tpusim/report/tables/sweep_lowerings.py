"""A sweep over lowerings alone: every network by every lowering, in times of what the first of them takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.table import Table

from tpusim.report.tables.layout import Column, legend, path_head, table
from tpusim.report.text import scale, three_digits
from tpusim.result.vocabulary.figures import TIMES

Row = Mapping[str, Any]

AXIS = "lowering"


def over_lowerings(axes: Sequence[str]) -> bool:
    """Whether a sweep of these axes compares lowerings and nothing else."""
    return [*axes] == [AXIS]


@dataclass(frozen=True)
class ComparedLowerings:
    """The points of such a sweep, failed ones included."""

    rows: Sequence[Row]

    @cached_property
    def workloads(self) -> tuple[str, ...]:
        """In the order of the sweep."""
        return tuple(dict.fromkeys(row["workload"] for row in self.rows))

    @cached_property
    def lowerings(self) -> tuple[str, ...]:
        """In the order of the axis."""
        return tuple(dict.fromkeys(row[AXIS] for row in self.rows))

    @cached_property
    def reference(self) -> str:
        """What the others are measured by: the first lowering that did every network, or else the most of them."""
        done = [row[AXIS] for row in self.rows if not row["error"]]
        return max(self.lowerings, key=done.count)

    @property
    def some_failed(self) -> bool:
        """Whether any point did."""
        return any(row["error"] for row in self.rows)

    def point(self, workload: str, lowering: str) -> Row | None:
        """One point; None where it failed, or where there is nothing to measure it by."""
        return self._done.get((workload, lowering)) if (workload, self.reference) in self._done else None

    def times(self, workload: str, lowering: str) -> float | None:
        """Its time over that of the reference."""
        row = self.point(workload, lowering)
        return row["time_us"] / self._done[workload, self.reference]["time_us"] if row else None

    @cached_property
    def _done(self) -> Mapping[tuple[str, str], Row]:
        return {(row["workload"], row[AXIS]): row for row in self.rows if not row["error"]}


def compared(rows: Sequence[Row], width: int | None) -> list[Table | str]:
    """A row a network, a column a lowering; and what they hold."""
    found = ComparedLowerings(rows)
    points = ((workload, found.point(workload, found.reference)) for workload in found.workloads)
    first = {workload: row["time_us"] for workload, row in points if row}
    unit, size = scale(first.values(), TIMES)
    others = [lowering for lowering in found.lowerings if lowering != found.reference]
    columns = [
        Column[str]("workload", lambda workload: workload, justify="left"),
        Column[str](
            f"{path_head(found.reference)}\n{unit}",
            lambda workload: three_digits(first[workload] / size) if workload in first else "-",
            legend=f"{found.reference}: its time. The others: times as long{'. -: failed' * found.some_failed}",
        ),
        *(_column(found, lowering) for lowering in others),
    ]
    return [table(columns, found.workloads), "", legend(columns, width)]


def _column(found: ComparedLowerings, lowering: str) -> Column[str]:
    def cell(workload: str) -> str:
        times = found.times(workload, lowering)
        return "-" if times is None else f"{times:.2f}"

    return Column(path_head(lowering), cell)
