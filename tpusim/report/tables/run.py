"""The answer of `tpusim run`: the table of layers, the times by op, totals, notices and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain, groupby
from operator import attrgetter
from types import MappingProxyType

from tpusim.machines.family import KEY, USUAL
from tpusim.network.ops import OPS
from tpusim.network.workload import Workload
from tpusim.report.shown import Column, Paragraphs, Sentences, Table, figure_column
from tpusim.report.tables import sentences as said
from tpusim.report.tables.step import step_paragraphs
from tpusim.report.text import column_scale, percent, quantity, three_digits, written
from tpusim.result.chips import share_notice
from tpusim.result.records import HbmContents, LayerResult, OpUse, Result, by_op, by_phase
from tpusim.result.vocabulary.figures import BYTES, LAYER, TIMES, Figure, known, own_figure, own_keys, value_of
from tpusim.result.vocabulary.runs import LOWERING, by_reference, left_out, lowered_by, worth_telling
from tpusim.result.vocabulary.states import State, does_less, parts_in, parts_of

_RANKS = {
    "passes": 5, "multi_tile": 6, "cycles": 0, "time_us": 3, "mapping_efficiency": 4, "tflops": 10, "pe_utilization": 0,
}  # fmt: skip
"""The order in which columns leave a table that is too wide: the highest number first; 0 stays."""
MOST_LAYERS = 1000
"""Most rows of the table; with more it takes longer to lay out than its layers to simulate."""
_MOST_ALIKE = 8
"""Most layers in a row that are shown one by one even if they are alike."""
_TRAFFIC = ("hbm_read_bytes", "hbm_write_bytes")
_TRANSFORMED = ("lowered_bytes", "transformation_cycles", "transformation_share")
_DRAM = ("hbm_reached_bytes_per_s", "hbm_overfetch", "row_hits", "row_misses", "row_conflicts", "channel_imbalance")
"""Columns shown where any layer uses the DRAM."""
_TOGETHER = "PE, part, the stalls and idle add up to 100 % of the cycles"
_MORE = "busy, the stalls and idle add up to 100 % of the cycles; PE counts multiplications that need not be done, too"
"""Columns shown where an algorithm leaves out multiplications, or another unit does them."""
_ALIKE = "n: layers that are alike, in a row or in blocks of a row; figures are of one of them"
_CHECKED = "out: the check of the outputs: ok, how many are wrong, or - where there was none"
_OWN_RANK = 3
"""Rank of the columns of one machine family alone: they go together where there is no room."""
_MORE_OPS = " --ops all times those that the vector unit computes."


def run_paragraphs(work: Workload, result: Result) -> Paragraphs:
    """Return all paragraphs on a run; layers are named in the words of its workload."""
    counts = alike(result.layers, work.copies)
    apart = [layer for layer in result.layers if layer.name in counts]
    shapes = {layer.name: layer.text for layer in work.layers}
    layers = layer_table(costliest(apart, counts), shapes, result.lowering, counts)
    ops = use_table("op", by_op(result.layers))
    phases = use_table("phase", by_phase(result.layers))
    missing = left_out(result.not_timed.items(), result.not_known.items())
    on_tpu = result.hardware.get(KEY, USUAL) == USUAL
    missing += _MORE_OPS if on_tpu and len(work.never_timed) < len(work.not_timed) else ""
    lowerings = filter(None, (lowered_by(result), said.unasked_notice(work, result), said.bound_notice(work, result)))
    return (
        [Sentences([said.heading(result)], wide=True)],
        [layers, not_shown(apart)],
        [layers.legend()],
        [ops] if ops else [],
        [phases] if phases else [],
        *step_paragraphs(result),
        [hbm_table(result.hbm_use)] if result.hbm_use else [],
        [
            said.totals(result.total, "Layers of a chip, one by one" if result.step else "Total"),
            "" if result.step else share_notice(result.chips),
            " ".join(lowerings),
            said.fusion_notice(work, result),
            said.overlap_notice(result),
            said.word_notice(result),
            missing,
            by_reference(result),
            said.verdict(result),
        ],
    )


def layer_table(
    layers: Sequence[LayerResult],
    shapes: Mapping[str, str],
    asked: str | None = None,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> Table[LayerResult]:
    """Return a row a layer.

    `shapes` maps the name of a layer to its shape in short; `asked` is the lowering that the run was asked for;
    `counts` says for how many layers in a row each stands, as `alike` has them. One unit per column, so that the eye
    can compare.
    """

    def column(figure: Figure, rank: int = 0, alike: Sequence[str] = ()) -> Column[LayerResult]:
        unit = column_scale((value_of(layer, key) for layer in layers for key in alike or (figure.key,)), figure.units)
        return figure_column(figure, lambda layer: value_of(layer, figure.key), unit, rank)

    def part(state: State, more: str = "") -> Column[LayerResult]:
        key = state.key
        return Column(
            f"{state.head}\n%", lambda layer: percent(parts_of(layer).get(key, 0) / layer.cycles), 2,
            legend=state.head_legend + more,
        )  # fmt: skip

    *losses, idle = parts_in(layers)[1:]
    kinds: dict[str, list[str]] = {}
    for op in dict.fromkeys(layer.op for layer in layers if layer.op in OPS):
        kinds.setdefault(OPS[op].grammar, []).append(OPS[op].op)
    grammars = "; ".join(f"{', '.join(ops)} {grammar}" for grammar, ops in kinds.items())
    several = any(counts.get(layer.name, 1) > 1 for layer in layers)
    lowered: Column[LayerResult] = Column(LOWERING.head, lambda layer: layer.lowering, 0, "left", LOWERING.legend)
    columns: list[Column[LayerResult]] = [
        Column("layer", lambda layer: layer.name, justify="left", part=5),
        *([Column[LayerResult]("n", lambda layer: f"{counts[layer.name]:,}", legend=_ALIKE)] if several else []),
        Column("shape", lambda layer: shapes.get(layer.name, layer.op), 7, "left", f"shape: {grammars}"),
        *([lowered] if worth_telling(layers, asked) else []),
        *(column(LAYER[key], rank) for key, rank in _RANKS.items() if known(layers, key)),
        *map(part, losses),
        part(idle, f"; {_MORE if any(map(does_less, layers)) else _TOGETHER}"),
        *(column(LAYER[key], 8, _TRAFFIC) for key in _TRAFFIC),
        *(column(LAYER[key], 7) for key in _TRANSFORMED if any(value_of(layer, key) for layer in layers)),
        *(column(LAYER[key], 6) for key in _DRAM if any(layer.dram for layer in layers)),
        *([column(LAYER["port_idle_ratio"], 9)] if known(layers, "port_idle_ratio") else []),
        *(_own_column(key, layers) for key in own_keys(layers)),
        Column("out", said.outcome, 1, legend=_CHECKED),
    ]
    return Table(columns, layers, ["red" if layer.wrong else "" for layer in layers])


def _own_column(key: str, layers: Sequence[LayerResult]) -> Column[LayerResult]:
    """Make a column that only one machine family has: words as they are, numbers in one unit."""
    figure = own_figure(key)
    numbers = [value for layer in layers if isinstance(value := layer.own.get(key), int | float)]
    unit, size = column_scale(numbers, figure.units)

    def cell(layer: LayerResult) -> str:
        value = layer.own.get(key)
        return value if isinstance(value, str) else written(figure, value, size)

    head = figure.head.replace(" ", "\n")
    return Column(f"{head}\n{unit}" if unit else head, cell, _OWN_RANK, legend=figure.legend)


_FIGURES = attrgetter(*(each.name for each in fields(LayerResult) if each.name not in ("name", "inputs")))
"""All of a layer but its name and, as blocks read one another, what it reads."""
_FEWEST_BLOCKS = 3
"""Fewest blocks that share rows."""


def alike(
    layers: Sequence[LayerResult], copies: Mapping[str, tuple[int, int]] = MappingProxyType({})
) -> dict[str, int]:
    """Return the layers that have rows of their own, by name, and how many layers each stands for.

    Layers share a row if no figure differs: many in a row, such as those of one `count`, or those of blocks in a row;
    `copies` has the block and the copy of a layer (`Workload.copies`).
    """
    kinds = [*map(_FIGURES, layers)]
    found: dict[str, int] = {}

    def tell(places: Sequence[int], blocks: int = 1) -> None:
        for run in ([*run] for _, run in groupby(places, kinds.__getitem__)):
            rows = [(run[0], len(run))] if len(run) > _MOST_ALIKE else [(at, 1) for at in run]
            found.update((layers[at].name, count * blocks) for at, count in rows)

    def block(span: Sequence[int]) -> object:
        return copies.get(layers[span[0]].name, (None,))[0], [kinds[at] for at in span]

    apart: list[int] = []
    spans = ([*span] for _, span in groupby(range(len(layers)), lambda at: copies.get(layers[at].name)))
    for same in ([*same] for _, same in groupby(spans, block)):
        if len(same) >= _FEWEST_BLOCKS and len(same[0]) > 1:
            tell(apart)
            tell(same[0], len(same))
            apart = []
        else:
            apart += chain.from_iterable(same)
    tell(apart)
    return found


def costliest(layers: Sequence[LayerResult], counts: Mapping[str, int] = MappingProxyType({})) -> Sequence[LayerResult]:
    """Return the layers worth a row, in network order: wrong ones first of all, then those that take most cycles."""
    if len(layers) <= MOST_LAYERS:
        return layers
    cycles = [layer.cycles * counts.get(layer.name, 1) for layer in layers]
    ranked = sorted(range(len(layers)), key=lambda at: (not layers[at].wrong, -cycles[at]))
    return [layers[at] for at in sorted(ranked[:MOST_LAYERS])]


def not_shown(layers: Sequence[LayerResult]) -> str:
    """Say how many layers the table leaves out; empty where it has all."""
    more = len(layers) - MOST_LAYERS
    if more <= 0:
        return ""
    return f"Not shown: {more:,} more; above are the wrong layers and the costliest (--json and --out have all)."


def hbm_table(use: HbmContents) -> Table[tuple[str, int, int]]:
    """Return a row a part of what HBM has to hold, and one for all of it, with the padding of tiles and without."""
    sizes = use.parts.items()
    told = [(part.replace("_", " "), size, use.unpadded_parts.get(part, 0)) for part, size in sizes]
    rows = [*told, (f"all, of {quantity(use.capacity_bytes, BYTES)}", use.need_bytes, use.unpadded_bytes)]
    unit, size = column_scale((each[1] for each in rows), BYTES)
    columns: list[Column[tuple[str, int, int]]] = [
        Column("HBM holds", lambda row: row[0], justify="left"),
        Column(f"needs\n{unit}", lambda row: three_digits(row[1] / size)),
    ]
    if use.unpadded_bytes < use.need_bytes:
        columns.append(Column(f"unpadded\n{unit}", lambda row: three_digits(row[2] / size)))
    return Table(columns, rows)


def use_table(head: str, uses: Mapping[str, OpUse]) -> Table[tuple[str, OpUse]] | None:
    """Return a row an op, or a phase of a training step; None where all layers are of one."""
    rows = [*uses.items()]
    if len(rows) < 2:
        return None
    unit, size = column_scale((use.time_us for _, use in rows), TIMES)
    columns: list[Column[tuple[str, OpUse]]] = [
        Column(head, lambda row: row[0], justify="left"),
        Column("layers", lambda row: f"{row[1].layers:,}"),
        Column("cycles", lambda row: f"{row[1].cycles:,}"),
        Column(f"time\n{unit}", lambda row: three_digits(row[1].time_us / size)),
        Column("share\n%", lambda row: percent(row[1].share)),
    ]
    return Table(columns, rows)
