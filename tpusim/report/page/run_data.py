"""What the page of a run shows, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from tpusim.base.errors import InputError
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.report.page import machine, run_words
from tpusim.report.page.columns import Column, column, text_column
from tpusim.report.plots.roofline import hardware_of, intensity, peaks_of
from tpusim.report.style import hatches
from tpusim.report.tables import run as tables
from tpusim.report.tables.energy import energy_sentence
from tpusim.report.tables.own import own_text
from tpusim.report.tables.together import overlap_of
from tpusim.result.records import LayerResult, Result, Total, told
from tpusim.result.vocabulary.energies import parts_in as energies_in
from tpusim.result.vocabulary.figures import FIGURES, LAYER, LESS, PERCENT, Figure, known, value_of
from tpusim.result.vocabulary.lowerings import LOWERING, worth_telling
from tpusim.result.vocabulary.own import own_figure, own_keys
from tpusim.result.vocabulary.states import (
    ARRAY_UNIT,
    UNITS,
    State,
    main_name,
    main_title,
    parts_in,
    parts_of,
    unit_name,
)


def run_data(result: Result) -> dict[str, Any]:
    """Everything on the page; figures are those of the result, in its units.

    Raises:
        InputError: when the result lacks what the page needs.
    """
    hardware = hardware_of(result)
    peaks = peaks_of(hardware)
    if isinstance(hardware, Hardware):
        for layer in result.layers:
            _check_units(layer, f"layer {layer.name}")
        _check_units(result.total, "total")
    states = parts_in([result.total])
    return {
        "title": run_words.title(result),
        "subtitle": tables.heading(result),
        "verdict": run_words.verdict(result),
        "tiles": run_words.tiles(result, peaks),
        "sentences": run_words.sentences(result, peaks),
        "unit": {"name": main_name(result.total), "title": main_title(result.total)},
        "states": [{"key": state.key, "label": state.label, "meaning": state.meaning} for state in states],
        "hatches": hatches(),
        "total": {
            **{key: value_of(result.total, key) for key in ("cycles", "time_us", "pe_utilization")},
            "time": column(LAYER["time_us"], [result.total.time_us]),
            "states": [parts_of(result.total)[state.key] for state in states],
        },
        "energy": _energy(result.total),
        "peaks": asdict(peaks),
        "columns": _columns(result),
        "layers": [_layer(layer, result.total.cycles, states) for layer in result.layers],
        "diagram": machine.diagram(result, hardware) if isinstance(hardware, Hardware) else None,
        "machine": machine.fields(result.hardware),
        "inputs": run_words.inputs(result),
    }


def _energy(total: Total) -> dict[str, Any] | None:
    """What it went to, the sentence, and picojoules by part; None in a result that tells none."""
    if (use := total.energy_use) is None:
        return None
    parts = [{"key": part.key, "label": part.label, "meaning": part.meaning} for part in energies_in([use])]
    return {
        "parts": parts,
        "amounts": [use.parts.get(part["key"], 0.0) for part in parts],
        "whole": use.energy,
        "column": column(LAYER["energy"], use.parts.values()),
        "said": f"{energy_sentence(total).partition(';')[0]}.",
    }


def _check_units(record: LayerResult | Total, name: str) -> None:
    missing = [unit for unit in UNITS if "busy" not in record.units.get(unit, ())]
    missing += [] if machine.ports_of(record.units) else ["port"]
    if missing:
        raise InputError(f"{name}: units has no {', '.join(missing)}; write the result again with this version")


def _layer(layer: LayerResult, run_cycles: int, states: Sequence[State]) -> dict[str, Any]:
    """A row of the table, with what charts and details need besides."""
    parts = parts_of(layer)
    return {
        **layer.own,
        "name": layer.name,
        "op": layer.op,
        **{figure.key: value_of(layer, figure.key) for figure in FIGURES.values()},
        "multi_tile": layer.multi_tile,
        **{state.key: parts.get(state.key, 0) / layer.cycles for state in states},
        "share": layer.cycles / run_cycles,
        "states": [parts.get(state.key, 0) for state in states],
        "flop_per_byte": intensity(layer),
        "ifmap_bytes": layer.vector_memory.ifmap_bytes if layer.vector_memory else None,
        "lowering": layer.lowering,
        "check": tables.outcome(layer),
        "wrong": layer.wrong > 0,
        "mapping": _mapping(layer),
        "reads": ", ".join(layer.inputs),
        "riders": ", ".join(layer.riders),
        "overlap": overlap_of(layer),
        "units": _unit_shares(layer.units),
        "mismatch": str(layer.first_mismatch) if layer.first_mismatch else None,
    }


def _mapping(layer: LayerResult) -> str:
    """How the lowering cut the layer up, in a sentence; of a machine of another family, what it tells of it."""
    cut = layer.blocking
    if cut is None:
        return "; ".join(f"{own_figure(key).label} {own_text(key, value)}" for key, value in layer.own.items())
    passes = told(layer.passes)
    chunks = f"the reduction in {cut.chunks:,} chunks; " if cut.chunks > 1 else ""
    return (
        f"{counted(cut.blocks, 'block')} of {cut.rows} x {cut.cols} outputs and {counted(cut.images, 'image')} in "
        f"{passes:,} {'pass' if passes == 1 else 'passes'}; {counted(cut.row_folds, 'row fold')}, "
        f"{counted(cut.col_folds, 'column fold')}; {counted(told(layer.multi_tile), 'tap')} stacked in a pass; "
        f"{chunks}loop order {cut.loop_order}; {counted(cut.word_fill, 'element')} of a word in use, from "
        f"{counted(cut.strips, 'strip')}"
    )


def _unit_shares(units: Mapping[str, Mapping[str, int]]) -> list[tuple[str, float]]:
    """The busy share of every unit; of a port, that of all its owners."""
    names = UNITS if ARRAY_UNIT in units else {unit: unit_name(unit) for unit in units}
    busy = [(name, units[unit].get("busy", 0) / sum(units[unit].values())) for unit, name in names.items()]
    owned = [(name, 1 - split["idle"] / sum(split.values())) for name, split in machine.ports_of(units).items()]
    return [*busy, *owned]


def _columns(result: Result) -> list[Column]:
    """Those of the table of layers."""

    def of(figure: Figure, bar: Literal["", "widest", "whole"] = "", alike: Sequence[str] = ()) -> Column:
        keys = alike or (figure.key,)
        return column(figure, (value_of(layer, key) for layer in result.layers for key in keys), bar)

    states = parts_in([result.total])
    traffic, differ = ("hbm_read_bytes", "hbm_write_bytes"), worth_telling(result.layers, result.lowering)

    def those(*keys: str) -> list[Column]:
        return [of(LAYER[key]) for key in keys if known(result.layers, key)]

    return [
        text_column("name", "layer", "in network order, until sorted otherwise"),
        text_column("op", "kind"),
        *([text_column(LOWERING.key, LOWERING.label, LOWERING.meaning)] if differ else []),
        of(LAYER["cycles"]),
        of(LAYER["time_us"]),
        column(LAYER["share"], bar="widest"),
        of(LAYER["pe_utilization"], "whole"),
        *those("mapping_efficiency"),
        *(column(Figure(state.key, state.short, float, LESS, PERCENT, meaning=state.meaning)) for state in states[1:]),
        *those("tflops", "macs", "passes", "multi_tile"),
        *(of(LAYER[key], alike=traffic) for key in traffic),
        *those("peak_bytes", "port_idle_ratio"),
        *_own_columns(result.layers),
        text_column("check", "check", "outputs against the reference"),
    ]


def _own_columns(layers: Sequence[LayerResult]) -> list[Column]:
    """Those of what only the machine's family tells."""
    columns = []
    for key in own_keys(layers):
        values = [layer.own.get(key, 0) for layer in layers]
        numbers = [value for value in values if not isinstance(value, str)]
        figure = own_figure(key)
        words = len(numbers) < len(values)
        columns.append(text_column(key, figure.label) if words else column(figure, numbers))
    return columns
