"""A result as tables and sentences for a terminal. Text only: `tpusim.cli.app` does the printing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import Box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE
from tpusim.machines.tpu.description import Hardware
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult, Result, Total

STALL_NAMES = {"starved": "starved", "blocked": "blocked", "waiting_weights": "weights", "port_stall": "port"}
"""The short name of each stall cause."""

LEGEND = """\
pass: passes through the array. T: taps stacked in a pass (multi-tile). PE: MACs / (PEs x cycles). map: PEs
that hold a weight, mean over passes. starv, block, wait, port: stalls of the array, for HBM data late, output
side not ready, weights not loaded, SRAM port full. read, write: HBM. idle: ports without an access."""

TIMES = (("s", 1e6), ("ms", 1e3), ("us", 1.0))
BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
MEMORY = (("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
COUNTS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))

# One rule below the heading and single spaces between columns: 16 columns must fit a terminal of 120.
_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


@dataclass(frozen=True)
class Column:
    """One column of the layer table; where there is no room, that of the highest `rank` goes first."""

    header: str
    cell: Callable[[LayerResult], str]
    rank: int = 0
    justify: str = "right"


def layer_table(layers: Sequence[LayerResult], shapes: Mapping[str, str], width: int | None = None) -> Table:
    """One row a layer, in as many columns as `width` characters hold (None: all of them).

    `shapes` maps the name of a layer to its shape in short.
    """
    columns = layer_columns(layers, shapes, max(12, width // 5) if width else None)
    while width and _width(columns, layers) > width and any(column.rank for column in columns):
        columns.remove(max(columns, key=lambda column: column.rank))
    rows = [[column.cell(layer) for column in columns] for layer in layers]
    styles = ["red" if layer.outputs_mismatched else "" for layer in layers]
    return table([(column.header, column.justify) for column in columns], rows, styles)


def layer_columns(
    layers: Sequence[LayerResult], shapes: Mapping[str, str], name_width: int | None = None
) -> list[Column]:
    """Every column of the layer table. One unit per column, so that the eye can compare."""
    time, time_in = scale((layer.time_us for layer in layers), TIMES)
    data, data_in = scale((max(layer.hbm_read_bytes, layer.hbm_write_bytes) for layer in layers), BYTES)

    def stall(header: str, cause: str) -> Column:
        return Column(header, lambda layer: percent(layer.stall_cycles[cause] / layer.cycles), 2)

    return [
        Column("layer", lambda layer: shortened(layer.name, name_width), justify="left"),
        Column("shape", lambda layer: shapes.get(layer.name, layer.op), 7, justify="left"),
        Column("pass", lambda layer: f"{layer.passes}", 5),
        Column("T", lambda layer: f"{layer.multi_tile}", 6),
        Column("cycles", lambda layer: f"{layer.cycles:,}"),
        Column(f"time\n{time}", lambda layer: three_digits(layer.time_us / time_in), 3),
        Column("PE\n%", lambda layer: percent(layer.pe_utilization)),
        Column("map\n%", lambda layer: percent(layer.mapping_efficiency), 4),
        Column("TF/s", lambda layer: three_digits(layer.tflops), 10),
        stall("starv\n%", "starved"),
        stall("block\n%", "blocked"),
        stall("wait\n%", "waiting_weights"),
        stall("port\n%", "port_stall"),
        Column(f"read\n{data}", lambda layer: three_digits(layer.hbm_read_bytes / data_in), 8),
        Column(f"write\n{data}", lambda layer: three_digits(layer.hbm_write_bytes / data_in), 8),
        Column("idle\n%", lambda layer: percent(layer.vector_memory.port_idle_ratio), 9),
        Column("out", outcome, 1),
    ]


def heading(result: Result) -> str:
    """What was run on what, in one line."""
    engine = "both engines, in agreement" if result.engine == "both" else f"{result.engine} engine"
    return (
        f"{result.workload}, batch {result.batch}, on {result.hardware.get('name', 'unnamed hardware')}: "
        f"{result.lowering} lowering, {engine}, seed {result.seed}"
    )


def totals(total: Total) -> str:
    """The totals in sentences, every number with its unit."""
    cycles, memory = total.cycles, total.vector_memory
    shares = {name: percent(total.stall_cycles[cause] / cycles) for cause, name in STALL_NAMES.items()}
    stalls = ", ".join(f"{name} {share} %" for name, share in shares.items())
    return "\n".join(
        (
            f"Total: {cycles:,} cycles = {quantity(total.time_us, TIMES)} at "
            f"{cycles / total.time_us:g} MHz; {quantity(total.macs, COUNTS)}MAC in {total.passes:,} passes; "
            f"{quantity(total.tflops * 1e12, COUNTS)}FLOPS",
            f"  PE utilisation {percent(total.pe_utilization)} %, mapping efficiency "
            f"{percent(total.mapping_efficiency)} %; stalled: {stalls}",
            f"  HBM read {quantity(total.hbm_read_bytes, BYTES)}, written "
            f"{quantity(total.hbm_write_bytes, BYTES)}; vector memory: peak "
            f"{quantity(memory.peak_bytes, MEMORY)}, ports idle {percent(memory.port_idle_ratio)} %",
            f"  simulated in {total.wall_seconds:.2f} s",
        )
    )


def verdict(total: Total) -> str:
    """The one line that says whether the values are right."""
    if total.outputs_checked == 0:
        return "Outputs not checked (--no-check)."
    equal = total.outputs_checked - total.outputs_mismatched
    counts = f"{equal:,} of {total.outputs:,} elements equal the reference, {total.outputs_mismatched:,} wrong."
    if total.outputs_checked < total.outputs:
        return f"{total.outputs_checked:,} outputs checked: {counts}"
    return f"Every output checked: {counts}"


def first_wrong(result: Result) -> str:
    """The first wrong layer and its first wrong element; empty when all is right."""
    layer = next((layer for layer in result.layers if layer.outputs_mismatched), None)
    if layer is None:
        return ""
    wrong = f"layer {layer.name}: {layer.outputs_mismatched:,} of {layer.outputs_checked:,} outputs are wrong"
    return f"{wrong}; the first: {layer.first_mismatch}" if layer.first_mismatch else wrong


def word_notice(result: Result) -> str:
    """What partly filled words cost; empty when every layer fills its words."""
    word = int(result.hardware["vector_memory"]["word_elements"])
    layers = [layer for layer in result.layers if layer.blocking.word_fill < word]
    if not layers:
        return ""
    held = min(layer.blocking.word_fill for layer in layers)
    stalls, cycles = zip(*((layer.stall_cycles["port_stall"], layer.cycles) for layer in layers), strict=True)
    where = f"in {len(layers)} of {len(result.layers)} layers"
    return (
        f"Words partly used: as few as {held} of {word} elements hold anything, {where} at batch {result.batch}; "
        f"feature maps there take up to {word / held:.3g} times the space and port accesses (port stalls: "
        f"{percent(sum(stalls) / sum(cycles))} %). Batches, and rows of a GEMM, that are multiples of {word} fill it."
    )


def workload_table(workloads: Iterable[tuple[str, Workload, str]]) -> Table:
    """The shipped workloads, as (name, workload at batch 1, source)."""
    rows = [
        [name, f"{len(work.layers)}", quantity(sum(layer.macs(1) for layer in work.layers), COUNTS), source]
        for name, work, source in workloads
    ]
    return table([("workload", "left"), ("layers", "right"), ("MACs/image", "right"), ("source", "fold")], rows)


def hardware_table(machines: Iterable[Hardware]) -> Table:
    """The shipped hardware."""
    rows = [
        [
            machine.name,
            f"{machine.array.rows} x {machine.array.cols}",
            FREQUENCY.format(machine.clock_hz),
            f"{machine.lanes} x {SIZE.format(machine.vector_memory.capacity_bytes)}",
            f"{machine.vector_memory.word_elements} x {machine.vector_memory.element_bytes} B",
            BANDWIDTH.format(machine.hbm.bandwidth_bytes_per_s),
        ]
        for machine in machines
    ]
    names = ("array", "clock", "vector memory", "word", "HBM")
    return table([("hardware", "left"), *((name, "right") for name in names)], rows)


def outcome(layer: LayerResult) -> str:
    """The check of one layer in a word."""
    if layer.outputs_checked == 0:
        return "-"
    return f"{layer.outputs_mismatched} wrong" if layer.outputs_mismatched else "ok"


def shortened(name: str, width: int | None) -> str:
    """`name` cut at the left, as the end of a layer's name is what tells it from its neighbours."""
    if width is None or cell_len(name) <= width:
        return name
    while cell_len(name) >= width:
        name = name[1:]
    return f"…{name}"


def percent(ratio: float) -> str:
    """A ratio in percent, in at most four characters up to 100; "0" is exactly nothing."""
    if ratio == 0 or ratio >= 0.9995:
        return f"{100 * ratio:.0f}"
    return f"{100 * ratio:.1f}"


def three_digits(value: float) -> str:
    """Three significant digits, never an exponent."""
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return "0" if value == 0 else f"{value:.{decimals}f}"


def quantity(value: float, units: Sequence[tuple[str, float]]) -> str:
    """`value` in the largest unit of which there is at least one: "17.64 ms"."""
    unit, size = scale([value], units)
    return f"{value:,.0f} {unit}" if size == 1 and value == int(value) else f"{value / size:,.2f} {unit}"


def scale(values: Iterable[float], units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The largest unit of which the greatest of `values` makes at least one."""
    greatest = max(values, default=0.0)
    return next(((unit, size) for unit, size in units if greatest >= size), units[-1])


def _width(columns: Sequence[Column], layers: Sequence[LayerResult]) -> int:
    texts = ([*column.header.split("\n"), *map(column.cell, layers)] for column in columns)
    return sum(max(map(cell_len, text)) for text in texts) + len(columns) - 1


def table(
    columns: Iterable[tuple[str, str]], rows: Iterable[Sequence[str]], styles: Iterable[str] | None = None
) -> Table:
    """A table of (header, right | left | fold) columns in the house style."""
    made = Table(box=_RULE, padding=0, show_edge=False, header_style="bold")
    for header, justify in columns:
        fold = justify == "fold"
        made.add_column(
            Text(header),
            justify="right" if justify == "right" else "left",
            vertical="bottom",
            no_wrap=not fold,
            overflow="fold" if fold else "ellipsis",
        )
    rows = list(rows)
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        # Text, not str: a layer may be called "[red]".
        made.add_row(*map(Text, row), style=style)
    return made
