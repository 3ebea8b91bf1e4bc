"""Time by kind of op, as a table and in a sentence."""

from __future__ import annotations

from rich.table import Table

from tpusim.base.words import counted
from tpusim.report.tables.layout import Column, table
from tpusim.report.text import percent, scale, three_digits
from tpusim.result.by_op import OpUse, by_op
from tpusim.result.records import Result
from tpusim.result.vocabulary.figures import TIMES

Row = tuple[str, OpUse]


def op_table(result: Result) -> Table | None:
    """A row an op, the costliest first; None where all layers are of one."""
    rows = [*by_op(result.layers).items()]
    if len(rows) < 2:
        return None
    unit, size = scale((use.time_us for _, use in rows), TIMES)
    columns: list[Column[Row]] = [
        Column("op", lambda row: row[0], justify="left"),
        Column("layers", lambda row: f"{row[1].layers:,}"),
        Column("cycles", lambda row: f"{row[1].cycles:,}"),
        Column(f"time\n{unit}", lambda row: three_digits(row[1].time_us / size)),
        Column("share\n%", lambda row: percent(row[1].share)),
    ]
    return table(columns, rows)


def op_sentence(result: Result) -> str:
    """The same in words: "By op: conv2d 71.2 % of the time (53 layers), ..."; empty where all layers are of one."""
    uses = by_op(result.layers)
    if len(uses) < 2:
        return ""
    told = (f"{op} {percent(use.share)} % ({counted(use.layers, 'layer')})" for op, use in uses.items())
    return f"Time by op: {', '.join(told)}."
