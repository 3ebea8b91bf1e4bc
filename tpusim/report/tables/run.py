"""A result as tables and sentences for a terminal. Text only: `cli/actions/run` shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

from rich.table import Table

from tpusim.network.ops import OPS
from tpusim.report.tables.energy import energy_sentence
from tpusim.report.tables.layout import Column, figure_column, fitting, legend, table
from tpusim.report.tables.own import own_columns
from tpusim.report.text import folded, frequency, percent, quantity, scale, shortened
from tpusim.result.records import DramUse, LayerResult, Result, Total
from tpusim.result.vocabulary.figures import BYTES, COUNTS, LAYER, MEMORY, RATES, TIMES, Figure, known, value_of
from tpusim.result.vocabulary.lowerings import LOWERING, in_heading, worth_telling
from tpusim.result.vocabulary.runs import numbers_asked, size_of, with_extent
from tpusim.result.vocabulary.states import State, does_less, parts_in, parts_of

_RANKS = {
    "passes": 5, "multi_tile": 6, "cycles": 0, "time_us": 3, "mapping_efficiency": 4, "tflops": 10, "pe_utilization": 0,
}  # fmt: skip
"""Which of these columns goes first where there is no room; 0 stays."""
MOST_LAYERS = 1000
"""So many are shown; a table of more takes longer to lay out than its layers to simulate."""
_MOST_ALIKE = 8
"""So many layers in a row are shown one by one even if they are alike."""
_TRAFFIC = ("hbm_read_bytes", "hbm_write_bytes")
_TRANSFORMED = ("lowered_bytes", "transformation_cycles", "transformation_share")
_DRAM = ("hbm_reached_bytes_per_s", "hbm_overfetch", "row_hits", "row_misses", "row_conflicts", "channel_imbalance")
"""Shown where any layer has them."""
_WHOLE = "integers", "int8"
"""Types of numbers of which sums are exact."""
_TOGETHER = "PE, part, the stalls and idle add up to 100 % of the cycles"
_MORE = "busy, the stalls and idle add up to 100 % of the cycles; PE counts multiplications that need not be done, too"
"""Where an algorithm does without some, or another unit does them."""
_ALIKE = "n: layers in a row that are alike; figures are of one of them"
_CHECKED = "out: the check of the outputs: ok, how many are wrong, or - where there was none"


def layer_table(
    layers: Sequence[LayerResult],
    shapes: Mapping[str, str],
    width: int | None = None,
    asked: str | None = None,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> Table:
    """One row a layer, in as many columns as `width` characters hold (None: all of them).

    `shapes` maps the name of a layer to its shape in short; `asked` is the lowering that the run was asked for;
    `counts` says for how many layers in a row each stands, as `alike` has them.
    """
    columns = _shown(layers, shapes, width, asked, counts)
    return table(columns, layers, width, ["red" if layer.wrong else "" for layer in layers])


def alike(layers: Sequence[LayerResult]) -> dict[str, int]:
    """The layers that have rows of their own, by name, and for how many in a row each stands: many of which no figure
    differs, such as those of one `count`, share a row.
    """
    runs = ([*run] for _, run in groupby(layers, lambda layer: replace(layer, name="alike")))
    rows = (((run[0], len(run)),) if len(run) > _MOST_ALIKE else ((layer, 1) for layer in run) for run in runs)
    return {layer.name: count for row in rows for layer, count in row}


def costliest(layers: Sequence[LayerResult], counts: Mapping[str, int] = MappingProxyType({})) -> Sequence[LayerResult]:
    """As many as somebody may read, in network order: wrong ones first of all, then those that take most cycles."""
    if len(layers) <= MOST_LAYERS:
        return layers
    cycles = [layer.cycles * counts.get(layer.name, 1) for layer in layers]
    ranked = sorted(range(len(layers)), key=lambda at: (not layers[at].wrong, -cycles[at]))
    return [layers[at] for at in sorted(ranked[:MOST_LAYERS])]


def not_shown(layers: Sequence[LayerResult]) -> str:
    """That the table leaves out some; empty where it has all."""
    more = len(layers) - MOST_LAYERS
    if more <= 0:
        return ""
    return f"Not shown: {more:,} more; above are the wrong layers and the costliest (--json and --out have all)."


def layer_legend(
    layers: Sequence[LayerResult],
    shapes: Mapping[str, str],
    width: int | None = None,
    asked: str | None = None,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """What the columns of `layer_table` hold: of those it shows, and of no other."""
    return legend(_shown(layers, shapes, width, asked, counts), width)


def _shown(
    layers: Sequence[LayerResult],
    shapes: Mapping[str, str],
    width: int | None,
    asked: str | None,
    counts: Mapping[str, int],
) -> list[Column[LayerResult]]:
    return fitting(layer_columns(layers, shapes, max(12, width // 5) if width else None, asked, counts), layers, width)


def layer_columns(
    layers: Sequence[LayerResult],
    shapes: Mapping[str, str],
    name_width: int | None = None,
    asked: str | None = None,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> list[Column[LayerResult]]:
    """Every column of the layer table. One unit per column, so that the eye can compare."""

    def column(figure: Figure, rank: int = 0, alike: Sequence[str] = ()) -> Column[LayerResult]:
        unit = scale((value_of(layer, key) for layer in layers for key in alike or (figure.key,)), figure.units)
        return figure_column(figure, lambda layer: value_of(layer, figure.key), unit, rank)

    def part(state: State, more: str = "") -> Column[LayerResult]:
        key = state.key
        return Column(
            f"{state.head}\n%", lambda layer: percent(parts_of(layer).get(key, 0) / layer.cycles), 2,
            legend=state.head_legend + more,
        )  # fmt: skip

    *losses, idle = parts_in(layers)[1:]
    ranks = {key: rank for key, rank in _RANKS.items() if known(layers, key)}
    lowered = Column[LayerResult](LOWERING.head, lambda layer: layer.lowering, 0, "left", LOWERING.legend)
    several = any(counts.get(layer.name, 1) > 1 for layer in layers)
    return [
        Column("layer", lambda layer: shortened(layer.name, name_width), justify="left"),
        *([Column[LayerResult]("n", lambda layer: f"{counts[layer.name]:,}", legend=_ALIKE)] if several else []),
        Column("shape", lambda layer: shapes.get(layer.name, layer.op), 7, "left", _shape_legend(layers)),
        *([lowered] if worth_telling(layers, asked) else []),
        *(column(LAYER[key], rank) for key, rank in ranks.items()),
        *map(part, losses),
        part(idle, f"; {_MORE if any(map(does_less, layers)) else _TOGETHER}"),
        *(column(LAYER[key], 8, _TRAFFIC) for key in _TRAFFIC),
        *(column(LAYER[key], 7) for key in _TRANSFORMED if any(value_of(layer, key) for layer in layers)),
        *(column(LAYER[key], 6) for key in _DRAM if any(layer.dram for layer in layers)),
        *([column(LAYER["port_idle_ratio"], 9)] if known(layers, "port_idle_ratio") else []),
        *own_columns(layers),
        Column("out", outcome, 1, legend=_CHECKED),
    ]


def _shape_legend(layers: Sequence[LayerResult]) -> str:
    """How the shapes of these layers are to be read."""
    kinds = dict.fromkeys(OPS[layer.op] for layer in layers if layer.op in OPS)
    alike: dict[str, list[str]] = {}
    for kind in kinds:
        alike.setdefault(kind.grammar, []).append(kind.op)
    told = (f"{', '.join(ops)} {grammar}" for grammar, ops in alike.items())
    return f"shape: {'; '.join(told)}"


def heading(result: Result) -> str:
    """What was run on what, in one line."""
    engine = "both engines, in agreement" if result.engine == "both" else f"{result.engine} engine"
    numbers = f"{asked}, " if (asked := numbers_asked(result)) else ""
    return with_extent(
        f"{result.workload}, {size_of(result)}, on {result.hardware.get('name', 'unnamed hardware')}: "
        f"{in_heading(result)}, {engine}, {numbers}seed {result.seed}",
        result,
    )


def totals(total: Total, width: int | None = None) -> str:
    """The totals in sentences, every number with its unit, in lines of `width` characters (None: as long as it takes).

    What the array does with its cycles adds up to all of them.
    """
    cycles, parts = total.cycles, parts_of(total)
    names = {state.key: state.label.removeprefix("busy, ") for state in parts_in([total])[1:]}
    losses = ", ".join(f"{name} {percent(parts[key] / cycles)} %" for key, name in names.items())
    hbm = f"HBM read {quantity(total.hbm_read_bytes, BYTES)}, written {quantity(total.hbm_write_bytes, BYTES)}"
    useful = f"PE utilisation {percent(total.pe_utilization)} %"
    if does_less(total):
        useful = f"{useful}, as not all multiplications are the array's; busy {percent(parts['useful'] / cycles)} %"
    in_passes = "" if total.passes is None else f" in {total.passes:,} passes"
    lines = (
        f"Total: {cycles:,} cycles = {quantity(total.time_us, TIMES)} at {frequency(cycles / total.time_us * 1e6)}; "
        f"{quantity(total.macs, COUNTS)}MAC{in_passes}; {quantity(total.tflops * 1e12, COUNTS)}FLOPS",
        f"  Of the cycles: {useful}, {losses}; together 100 %",
        f"  {'; '.join(_mapped(total, hbm))}",
        *([_dram_line(total.dram)] if total.dram else []),
        *([f"  {energy_sentence(total)}"] if total.energy_use else []),
        f"  simulated in {total.wall_seconds:.2f} s",
    )
    return folded(lines, width, "    ") if width else "\n".join(lines)


def _mapped(total: Total, hbm: str) -> Iterator[str]:
    """What is told of the machine's memories, and of what fills its array where it has one."""
    if total.mapping_efficiency is not None:
        yield f"Mapping efficiency {percent(total.mapping_efficiency)} %"
    yield hbm
    if memory := total.vector_memory:
        yield (
            f"vector memory: peak {quantity(memory.peak_bytes, MEMORY)}, ports unused "
            f"{percent(memory.port_idle_ratio)} %"
        )


def _dram_line(use: DramUse) -> str:
    """What the DRAM did."""
    rows = use.row_hits + use.row_misses + use.row_conflicts
    return (
        f"  HBM: {quantity(use.hbm_moved_bytes, BYTES)} in bursts at {quantity(use.hbm_reached_bytes_per_s, RATES)}, "
        f"{use.hbm_overfetch:.3g} times the bytes wanted; row hits {percent(use.row_hits / rows)} %, misses "
        f"{percent(use.row_misses / rows)} %, conflicts {percent(use.row_conflicts / rows)} %; {use.refreshes:,} "
        f"refreshes; the busiest channel of a transfer moves {use.channel_imbalance:.3g} times the mean"
    )


_MOST_OF_A_BOUND = 99.9
"""What is told, in percent, of right elements whose error rounds to all of it."""


def verdict(result: Result) -> str:
    """The one line that says whether the values are right."""
    total = result.total
    if total.outputs_checked == 0:
        return "Outputs not checked (--no-check)."
    right = total.outputs_checked - total.outputs_mismatched
    share = total.error_share
    near = "are within the proven bound of sums in float64"
    # Of whole numbers only what takes a function is rounded.
    mixed = f"equal the reference or, where a layer rounds, {near}" if result.dtype in _WHOLE else near
    held = "equal the reference" if share is None else mixed
    counts = f"{right:,} of {total.outputs:,} elements {held}, {total.outputs_mismatched:,} wrong."
    if share is not None:
        told = 100 * share if total.outputs_mismatched else min(100 * share, _MOST_OF_A_BOUND)
        counts += f" The largest error worked out is {told:.3g} % of its bound."
    if total.intermediates_checked:
        counts += f" Of {total.intermediates_checked:,} on the way to them, {total.intermediates_mismatched:,} wrong."
    if total.outputs_checked < total.outputs:
        return f"{total.outputs_checked:,} outputs checked: {counts}"
    return f"Every output checked: {counts}"


def first_wrong(result: Result) -> str:
    """The first wrong layer and its first wrong element; empty when all is right."""
    layer = next((layer for layer in result.layers if layer.wrong), None)
    if layer is None:
        return ""
    wrong = f"layer {layer.name}: {layer.outputs_mismatched:,} of {layer.outputs_checked:,} outputs are wrong"
    if layer.intermediates_mismatched:
        wrong += f", {layer.intermediates_mismatched:,} of {layer.intermediates_checked:,} elements on the way to them"
    return f"{wrong}; the first: {layer.first_mismatch}" if layer.first_mismatch else wrong


def word_notice(result: Result) -> str:
    """What partly filled words cost; empty when every layer fills its words."""
    filled = [(layer, layer.blocking.word_fill) for layer in result.layers if layer.blocking]
    word = int(result.hardware["vector_memory"]["word_elements"]) if filled else 0
    layers = [layer for layer, fill in filled if fill < word]
    if not layers:
        return ""
    held = min(fill for _, fill in filled)
    stalls, cycles = zip(*((layer.stall_cycles["port_stall"], layer.cycles) for layer in layers), strict=True)
    where = f"in {len(layers)} of {len(result.layers)} layers"
    return (
        f"Words partly used: as few as {held} of {word} elements hold anything, {where} at batch {result.batch}; "
        f"feature maps there take up to {word / held:.3g} times the space and port accesses (port stalls: "
        f"{percent(sum(stalls) / sum(cycles))} %). Batches, and rows of a GEMM, that are multiples of {word} fill it."
    )


def outcome(layer: LayerResult) -> str:
    """The check of one layer in a word."""
    if layer.outputs_checked == 0:
        return "-"
    return f"{layer.wrong} wrong" if layer.wrong else "ok"
