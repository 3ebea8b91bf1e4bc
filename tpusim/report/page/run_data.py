"""What the page of a run shows, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpusim.base.errors import InputError
from tpusim.report.page import machine, run_words
from tpusim.report.page.columns import Bar, Column
from tpusim.report.page.states import STATES, states_of
from tpusim.report.plots.roofline import hardware_of, peaks_of
from tpusim.report.tables import run as tables
from tpusim.result.records import LayerResult, Result, Total

_UNITS = {"systolic_array": "systolic array", "preload": "weight path", "vector_unit": "vector unit", "hbm": "HBM"}
"""What the page calls the units but the ports."""


def run_data(result: Result) -> dict[str, Any]:
    """Everything on the page; figures are those of the result, in its units.

    Raises:
        InputError: when the result lacks what the page needs.
    """
    hardware = hardware_of(result)
    peaks = peaks_of(hardware)
    for layer in result.layers:
        _check_units(layer, f"layer {layer.name}")
    _check_units(result.total, "total")
    return {
        "title": run_words.title(result),
        "subtitle": tables.heading(result),
        "verdict": run_words.verdict(result),
        "tiles": run_words.tiles(result, peaks),
        "sentences": run_words.sentences(result, hardware, peaks),
        "states": [state.to_dict() for state in STATES],
        "total": _total(result.total, hardware.pes),
        "peaks": peaks.to_dict(),
        "columns": [column.to_dict() for column in _columns(result)],
        "layers": [_layer(layer, hardware.pes, result.total.cycles) for layer in result.layers],
        "diagram": machine.diagram(result, hardware),
        "machine": machine.fields(result.hardware),
        "inputs": run_words.inputs(result),
    }


def _check_units(record: LayerResult | Total, name: str) -> None:
    ports = machine.ports_of(record.units)
    missing = [*(unit for unit in _UNITS if unit not in record.units), *([] if ports else ["port"])]
    if missing:
        raise InputError(f"{name}: units has no {', '.join(missing)}; write the result again with this version")


def _total(total: Total, pes: int) -> dict[str, Any]:
    return {"cycles": total.cycles, "time_us": total.time_us, "pe_utilization": total.pe_utilization,
            "states": states_of(total, pes)}  # fmt: skip


def _layer(layer: LayerResult, pes: int, run_cycles: int) -> dict[str, Any]:
    """A row of the table, with what charts and details need besides."""
    traffic = layer.hbm_read_bytes + layer.hbm_write_bytes
    return {
        **{name: getattr(layer, name) for name in ("name", "op", "macs", "passes", "multi_tile", "cycles", "time_us",
           "pe_utilization", "mapping_efficiency", "tflops", "hbm_read_bytes", "hbm_write_bytes")},
        **{cause: cycles / layer.cycles for cause, cycles in layer.units["systolic_array"].items()},
        "share": layer.cycles / run_cycles,
        "states": states_of(layer, pes),
        "flop_per_byte": 2 * layer.macs / traffic if traffic else None,
        "port_idle_ratio": layer.vector_memory.port_idle_ratio,
        "peak_bytes": layer.vector_memory.peak_bytes,
        "ifmap_bytes": layer.vector_memory.ifmap_bytes,
        "check": tables.outcome(layer),
        "wrong": layer.outputs_mismatched > 0,
        "mapping": _mapping(layer),
        "units": _unit_shares(layer.units),
        "mismatch": str(layer.first_mismatch) if layer.first_mismatch else None,
    }  # fmt: skip


def _mapping(layer: LayerResult) -> str:
    """How the lowering cut the layer up, in a sentence."""
    cut = layer.blocking
    return (
        f"{_times(cut.blocks, 'block')} of {cut.rows} x {cut.cols} outputs and {_times(cut.images, 'image')} in "
        f"{_times(layer.passes, 'pass', 'passes')}; {_times(cut.row_folds, 'row fold')}, "
        f"{_times(cut.col_folds, 'column fold')}; {_times(layer.multi_tile, 'tap')} stacked in a pass; "
        f"loop order {cut.loop_order}; {_times(cut.word_fill, 'element')} of a word in use, from "
        f"{_times(cut.strips, 'strip')}"
    )


def _times(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _unit_shares(units: Mapping[str, Mapping[str, int]]) -> list[tuple[str, float]]:
    """The busy share of every unit; of a port, that of all its owners."""
    busy = [(name, units[unit]["busy"] / sum(units[unit].values())) for unit, name in _UNITS.items()]
    owned = [(name, 1 - split["idle"] / sum(split.values())) for name, split in machine.ports_of(units).items()]
    return [*busy, *owned]


def _columns(result: Result) -> list[Column]:
    """One unit a column, so that the eye can compare."""
    layers = result.layers
    time, us = tables.scale((layer.time_us for layer in layers), tables.TIMES)
    traffic, size = tables.scale((max(layer.hbm_read_bytes, layer.hbm_write_bytes) for layer in layers), tables.BYTES)
    memory, bytes_ = tables.scale((layer.vector_memory.peak_bytes for layer in layers), tables.MEMORY)
    macs, many = tables.scale((layer.macs for layer in layers), tables.COUNTS)

    def share(key: str, label: str, title: str, bar: Bar = "") -> Column:
        return Column(key, label, "percent", "%", title=title, bar=bar)

    return [
        Column("name", "layer", "text", title="in network order, until sorted otherwise"),
        Column("op", "kind", "text"),
        Column("cycles", "cycles"),
        Column("time_us", "time", "three", time, us),
        share("share", "of run", "its share of the run's cycles", bar="widest"),
        share("pe_utilization", "PE util.", "MACs / (PEs x cycles)", bar="whole"),
        share("mapping_efficiency", "mapped", "PEs that hold a weight, mean over passes"),
        *(share(state.key, state.short, state.explain) for state in STATES if state.key not in ("useful", "unused")),
        Column("tflops", "speed", "three", "TFLOPS"),
        Column("macs", "MACs", "three", macs, many),
        Column("passes", "passes", title="through the array"),
        Column("multi_tile", "taps", title="stacked in a pass (multi-tile)"),
        Column("hbm_read_bytes", "HBM read", "three", traffic, size),
        Column("hbm_write_bytes", "written", "three", traffic, size),
        Column("peak_bytes", "memory", "three", memory, bytes_, title="vector memory allocated"),
        share("port_idle_ratio", "ports idle", "cycles of the ports without an access"),
        Column("check", "check", "text", title="outputs against the reference"),
    ]
