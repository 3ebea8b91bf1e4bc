"""What a DRAM made of a trace, and the devices there are, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tpusim.base.units import BANDWIDTH, SIZE
from tpusim.base.words import counted
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.replay import Figures, Replay
from tpusim.memory.dram.trace import Trace
from tpusim.report.tables.layout import Column, fitting, legend, table

Row = tuple[str, Figures]

_NONE = "-"


def heading(result: Replay) -> str:
    """The device, and what the trace made of it in a sentence."""
    device, total = result.device, result.total
    peak = device.peak_bytes_per_s
    share = total.bandwidth_bytes_per_s / peak
    return (
        f"{device.name}: {device.channels} channels of {device.banks} banks, {peak / 1e9:.0f} GB/s at most; "
        f"mapping {device.mapping}.\n{total.bytes_moved:,} bytes moved for {total.bytes_requested:,} asked for, in "
        f"{total.last_ns or 0:,.1f} ns: {total.bandwidth_bytes_per_s / 1e9:.2f} GB/s, {100 * share:.1f} % of the peak."
    )


def beyond(trace: Trace, device: Device) -> str:
    """That the device has no such addresses; empty where it has all of a trace's."""
    bursts = int((trace.addresses >= device.capacity_bytes).sum())
    has = f"lie beyond the {SIZE.format(device.capacity_bytes)} of {device.name}, where addresses begin again at 0"
    return f"{counted(bursts, 'burst')} of the trace {has}." if bursts else ""


def channel_table(result: Replay, width: int | None = None) -> Table:
    """A row a channel, and one of all, in as many columns as `width` characters hold (None: all of them)."""
    return table(_COLUMNS, _rows(result), width)


def channel_legend(result: Replay, width: int | None = None) -> str:
    """What the columns hold."""
    return legend(fitting(_COLUMNS, _rows(result), width), width)


def device_table(devices: Sequence[Device]) -> Table:
    """The shipped devices."""
    columns: list[Column[Device]] = [
        Column("DRAM", lambda each: each.name, justify="left"),
        Column("channels", lambda each: f"{each.channels}"),
        Column("banks", lambda each: f"{each.organisation.bank_groups} x {each.organisation.banks}"),
        Column("row", lambda each: SIZE.format(each.organisation.columns * each.organisation.burst_bytes)),
        Column("capacity", lambda each: SIZE.format(each.capacity_bytes)),
        Column("at most", lambda each: BANDWIDTH.format(round(each.peak_bytes_per_s))),
        Column("refresh", lambda each: each.refresh.replace("_", " "), justify="left"),
    ]
    return table(columns, devices)


def _rows(result: Replay) -> list[Row]:
    rows = [(f"{c}", each) for c, each in enumerate(result.channels)]
    return [*rows, ("all", result.total)] if len(rows) > 1 else rows


def _ns(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.1f}"


_COLUMNS: tuple[Column[Row], ...] = (
    Column("channel", lambda row: row[0], justify="left"),
    Column(
        "first\nns", lambda row: _ns(row[1].first_ns), 3, legend="first, last: when the first and last data is there"
    ),
    Column("last\nns", lambda row: _ns(row[1].last_ns)),
    Column("asked\nbytes", lambda row: f"{row[1].bytes_requested:,}", 2, legend="asked: the bytes of the trace"),
    Column("moved\nbytes", lambda row: f"{row[1].bytes_moved:,}", legend="moved: those of all bursts read or written"),
    Column(
        "GB/s", lambda row: f"{row[1].bandwidth_bytes_per_s / 1e9:.2f}", legend="GB/s: moved until the last is there"
    ),
    Column("row hits", lambda row: f"{row[1].row_hits:,}", legend="row hits: bursts that were not the first of a row"),
    Column("activates", lambda row: f"{row[1].activates:,}", 1, legend="activates: rows opened"),
    Column("refreshes", lambda row: f"{row[1].refreshes:,}", 1),
)
