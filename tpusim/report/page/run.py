"""The content of the page of a run, as plain data: its words, its figures and layers, its machine, its pictures."""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Literal

from tpusim.base.errors import InputError
from tpusim.base.words import counted
from tpusim.machines.family import Machine, family_of, peak_tflops
from tpusim.report.page.assemble import PageColumn, Phrase, Sentence, column, page, text_column
from tpusim.report.plots.figure import Picture
from tpusim.report.plots.run import hardware_of, intensity, memory_bounds, memory_of, network_of
from tpusim.report.plots.step import step_pictures
from tpusim.report.shown import text_of
from tpusim.report.style import hatches
from tpusim.report.tables import sentences as said
from tpusim.report.tables.step import alike_collectives, collective_table, step_sentences
from tpusim.report.text import frequency, percent, quantity, three_digits
from tpusim.result.chips import share_notice
from tpusim.result.records import LayerResult, Result, Total, told
from tpusim.result.vocabulary import figures, runs, states
from tpusim.result.vocabulary.fields import FIELDS, by_path, field_of


def run_page(result: Result) -> bytes:
    """Return the bytes of the page of a run. Raises InputError when the result lacks what the page needs."""
    pictures = {"network": _held(network_of(result)), "held": _held(memory_of(result))}
    return page("run", {**run_data(result), **pictures, "step": _step(result)})


def _step(result: Result) -> dict[str, Any] | None:
    """Return the step of several chips: its pictures, and its collectives as a table; None of a run without one."""
    if (step := result.step) is None:
        return None
    table = collective_table(alike_collectives(step), step) if step.collectives else None
    return {
        "pictures": [*map(_held, step_pictures(result))],
        "heads": [[each.header.replace("\n", " "), each.justify == "right"] for each in table.columns] if table else [],
        "rows": [[each.text(row, None) for each in table.columns] for row in table.rows] if table else [],
        "legend": text_of(table.legend()) if table else "",
    }


def _held(picture: Picture | None) -> dict[str, str] | None:
    """Return a picture as an address that holds it, and its caption; None where there is nothing to see."""
    if picture is None:
        return None
    svg = b64encode(picture.contents("svg")).decode()
    return {"source": f"data:image/svg+xml;base64,{svg}", "caption": picture.caption}


def run_data(result: Result) -> dict[str, Any]:
    """Return everything on the page; figures are those of the result, in its units.

    Raises:
        InputError: when the result lacks what the page needs.
    """
    hardware = hardware_of(result)
    blocks = family_of(hardware).blocks(hardware)
    if blocks:
        # Results are read from files that anybody may have edited: the diagram looks these units up.
        for layer in result.layers:
            _check_units(layer, f"layer {layer.name}")
        _check_units(result.total, "total")
    shown = states.parts_in([result.total])
    return {
        "title": runs.with_extent(f"{result.workload} on {result.machine}, {runs.size_of(result)}", result),
        "subtitle": said.heading(result),
        "verdict": verdict(result),
        "tiles": tiles(result, hardware),
        "sentences": sentences(result, hardware),
        "unit": {"name": states.main_name(result.total), "title": states.unit_name(states.main_unit(result.total))},
        "states": [{"key": state.key, "label": state.label, "meaning": state.meaning} for state in shown],
        "hatches": hatches(),
        "total": {
            **{key: figures.value_of(result.total, key) for key in ("cycles", "time_us", "pe_utilization")},
            "time": column(figures.LAYER["time_us"], [result.total.time_us]),
            "states": [states.parts_of(result.total)[state.key] for state in shown],
        },
        "energy": _energy(result.total),
        "peaks": {
            "tflops": peak_tflops(hardware),
            "hbm_bytes_per_s": hardware.hbm_bytes_per_s,
            "memory_bytes": hardware.sram_bytes,
            "pes": hardware.pes,
        },
        "columns": _columns(result),
        "layers": [*_layers(result, shown)],
        "diagram": diagram(result, hardware, blocks) if blocks else None,
        "machine": fields(result.hardware),
        "inputs": inputs(result),
    }


def _energy(total: Total) -> dict[str, Any] | None:
    """Return the joules by part in picojoules, with the sentence about them; None in a result without energy."""
    if (use := total.energy_use) is None:
        return None
    parts = [{"key": part.key, "label": part.label, "meaning": part.meaning} for part in states.energies_in([use])]
    return {
        "parts": parts,
        "amounts": [use.parts.get(part["key"], 0.0) for part in parts],
        "whole": use.energy,
        "column": column(figures.LAYER["energy"], use.parts.values()),
        "said": f"{said.energy_sentence(total).partition(';')[0]}.",
    }


def _check_units(record: LayerResult, name: str) -> None:
    missing = [unit for unit in states.UNITS if "busy" not in record.units.get(unit, ())]
    missing += [] if ports_of(record.units) else ["port"]
    if missing:
        raise InputError(f"{name}: units has no {', '.join(missing)}; write the result again with this version")


def _layers(result: Result, shown: Sequence[states.State]) -> Iterator[dict[str, Any]]:
    """Yield the row of each layer; what layers of a kind share is worked out once."""
    rows: dict[int, dict[str, Any]] = {}
    for layer, first in zip(result.layers, result.kinds, strict=True):
        if id(first) not in rows:
            rows[id(first)] = _layer(first, result.total.cycles, shown)
        names = {"name": layer.name, "reads": ", ".join(layer.inputs), "riders": ", ".join(layer.riders)}
        yield {**rows[id(first)], **names}


def _layer(layer: LayerResult, run_cycles: int, shown: Sequence[states.State]) -> dict[str, Any]:
    """Return a layer's row of the table, with what charts and details need besides."""
    parts, units = states.parts_of(layer), layer.units
    names = states.UNITS if states.ARRAY_UNIT in units else {unit: states.unit_name(unit) for unit in units}
    # Busy shares; of a port, that of all its owners.
    busy = [(name, units[unit].get("busy", 0) / sum(units[unit].values())) for unit, name in names.items()]
    return {
        **layer.own,
        "name": layer.name,
        "op": layer.op,
        **{figure.key: figures.value_of(layer, figure.key) for figure in figures.FIGURES.values()},
        "multi_tile": layer.multi_tile,
        **{state.key: parts.get(state.key, 0) / layer.cycles for state in shown},
        "share": layer.cycles / run_cycles,
        "states": [parts.get(state.key, 0) for state in shown],
        "flop_per_byte": intensity(layer),
        "ifmap_bytes": layer.vector_memory.ifmap_bytes if layer.vector_memory else None,
        "lowering": layer.lowering,
        "check": said.outcome(layer),
        "wrong": layer.wrong > 0,
        "mapping": _mapping(layer),
        "reads": ", ".join(layer.inputs),
        "riders": ", ".join(layer.riders),
        "overlap": said.overlap_of(layer),
        "units": [*busy, *((name, 1 - of["idle"] / sum(of.values())) for name, of in ports_of(units).items())],
        "mismatch": str(layer.first_mismatch) if layer.first_mismatch else None,
    }


def _mapping(layer: LayerResult) -> str:
    """Say how the lowering cut the layer up; for a machine of another family, what its own figures tell."""
    cut = layer.blocking
    if cut is None:
        return "; ".join(
            f"{figures.own_figure(key).label} {said.own_text(key, value)}" for key, value in layer.own.items()
        )
    passes = told(layer.passes)
    chunks = f"the reduction in {cut.chunks:,} chunks; " if cut.chunks > 1 else ""
    return (
        f"{counted(cut.blocks, 'block')} of {cut.rows} x {cut.cols} outputs and {counted(cut.images, 'image')} in "
        f"{passes:,} {'pass' if passes == 1 else 'passes'}; {counted(cut.row_folds, 'row fold')}, "
        f"{counted(cut.col_folds, 'column fold')}; {counted(told(layer.multi_tile), 'tap')} stacked in a pass; "
        f"{chunks}loop order {cut.loop_order}; {counted(cut.word_fill, 'element')} of a word in use, from "
        f"{counted(cut.strips, 'strip')}"
    )


def _columns(result: Result) -> list[PageColumn]:
    """Return the columns of the table of layers; figures of one machine family alone are words, or numbers in
    a unit.
    """

    def of(key: str, bar: Literal["", "widest", "whole"] = "", alike: Sequence[str] = ()) -> PageColumn:
        # Columns that are compared share a unit, the one that suits all of them.
        told = {id(layer): [figures.value_of(layer, each) for each in alike or (key,)] for layer in kinds}
        values = chain.from_iterable(told[id(first)] for first in result.kinds)
        return column(figures.LAYER[key], values, bar)

    kinds = [*{id(first): first for first in result.kinds}.values()]
    shown = states.parts_in([result.total])
    traffic, differ = ("hbm_read_bytes", "hbm_write_bytes"), runs.worth_telling(result.layers, result.lowering)

    own = []
    for key in figures.own_keys(result.layers):
        values = [layer.own.get(key, 0) for layer in result.layers]
        numbers, figure = [value for value in values if not isinstance(value, str)], figures.own_figure(key)
        own.append(text_column(key, figure.label) if len(numbers) < len(values) else column(figure, numbers))

    def those(*keys: str) -> list[PageColumn]:
        return [of(key) for key in keys if figures.known(kinds, key)]

    return [
        text_column("name", "layer", "in network order, until sorted otherwise"),
        text_column("op", "kind"),
        *([text_column(runs.LOWERING.key, runs.LOWERING.label, runs.LOWERING.meaning)] if differ else []),
        of("cycles"),
        of("time_us"),
        column(figures.LAYER["share"], bar="widest"),
        of("pe_utilization", "whole"),
        *those("mapping_efficiency"),
        *(
            column(figures.Figure(state.key, state.short, float, figures.LESS, figures.PERCENT, meaning=state.meaning))
            for state in shown[1:]
        ),
        *those("tflops", "macs", "passes", "multi_tile"),
        *(of(key, alike=traffic) for key in traffic),
        *those("peak_bytes", "port_idle_ratio"),
        *own,
        text_column("check", "check", "outputs against the reference"),
    ]


# ---- the machine: its fields with units, and the blocks of its diagram

Share = tuple[str, str, float]
"""A share of the cycles: its key, its name, and how much it is."""


def fields(hardware: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return every field as (path, value with its unit); a list is one line: "m 256, n 128; m 128, n 128"."""
    return [(path, field_of(path).shown(_in_a_line(value))) for path, value in by_path(hardware)]


def _in_a_line(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    parts = (each.items() if isinstance(each, Mapping) else [("", each)] for each in value)
    return "; ".join(", ".join(f"{key} {of}".strip() for key, of in part) for part in parts)


def ports_of(units: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Return the accounts of lane 0's ports, shared and of one client each, by their names on the page."""
    alone = {
        f"port of {client.label}": units[f"port_{key}"]
        for key, client in states.CLIENTS.items()
        if f"port_{key}" in units
    }
    return {"ports": units["port"], **alone} if "port" in units else alone


def diagram(result: Result, hardware: Machine, own: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a block for every unit: its name, its `own` parameters, and the parts of its cycles."""
    units, cycles = result.total.units, result.total.cycles
    (word,), total_memory = own["word"], quantity(hardware.sram_bytes, figures.MEMORY)
    port_lines, port_parts = _ports(units, word, cycles)
    parts = states.parts_of(result.total)
    dma_share = f"on {percent(_owned(units, 'dma') / cycles)} % of port cycles"

    def busy(unit: str) -> list[Share]:
        return [("busy", states.STATES["busy"].label, units[unit]["busy"] / cycles)]

    blocks = {
        "hbm": ("HBM", own["hbm"], busy("hbm")),
        "dma": ("DMA", [*own["dma"], dma_share], []),
        "memory": ("Vector memories", [*own["memory"], f"= {total_memory}", *port_lines], port_parts),
        "preload": ("Weight path", own["preload"], busy("preload")),
        "serializer": ("Serializers", own["serializer"], []),
        "array": ("Systolic array", own["array"],
                  [(state.key, state.label, parts[state.key] / cycles) for state in states.parts_in([result.total])]),
        "deserializer": ("De-serializers", own["deserializer"], []),
        "vector_unit": ("Vector unit", own["vector_unit"], busy("vector_unit")),
    }  # fmt: skip
    return {key: {"name": name, "lines": lines, "parts": parts} for key, (name, lines, parts) in blocks.items()}


def _owned(units: Mapping[str, Mapping[str, int]], client: str) -> int:
    """Return the port cycles of a client, on whichever port."""
    return sum(split.get(client, 0) for split in ports_of(units).values())


def _ports(units: Mapping[str, Mapping[str, int]], word: str, cycles: int) -> tuple[list[str], list[Share]]:
    """Return the shares of the one port; of several ports, each port's own shares as texts, as they add up to
    nothing.
    """
    owners = {key for split in ports_of(units).values() for key in split}
    parts = [(key, each.label, _owned(units, key) / cycles) for key, each in states.CLIENTS.items() if key in owners]
    if "port" in units:
        shared = [(key, label, units["port"].get(key, 0) / cycles) for key, label, _ in parts]
        return [f"one port, words of {word}"], shared
    shares = [f"{label} {percent(share)} %" for key, label, share in parts if key != "idle"]
    return [f"a port a client, words of {word}", *shares], []


# ---- its words: title, verdict, totals, and what the figures say


def verdict(result: Result) -> dict[str, str]:
    """Say whether the values are right: a word for the colour, the sentence, the first wrong element."""
    total = result.total
    state = "wrong" if total.wrong else "unchecked" if not total.outputs_checked else "right"
    if state == "right" and total.outputs_checked < total.outputs:
        state = "partly"
    return {"state": state, "text": said.verdict(result), "first": said.first_wrong(result)}


def tiles(result: Result, hardware: Machine) -> list[dict[str, str]]:
    """Return the totals, each with what it is a part of."""
    total = result.total
    traffic = total.hbm_read_bytes + total.hbm_write_bytes
    read, written = (quantity(moved, figures.BYTES) for moved in (total.hbm_read_bytes, total.hbm_write_bytes))
    seconds, memory = total.time_us / 1e6, total.vector_memory
    mapped = "" if total.mapping_efficiency is None else f"; {percent(total.mapping_efficiency)} % of PEs mapped"
    clock = frequency(total.cycles / seconds)
    rows = (
        ("time", quantity(total.time_us, figures.TIMES), f"{total.cycles:,} cycles at {clock}"),
        ("speed", f"{three_digits(total.tflops)} TFLOPS", f"of {three_digits(peak_tflops(hardware))} TFLOPS at most"),
        ("PE utilisation", f"{percent(total.pe_utilization)} %",
         f"{quantity(total.macs, figures.COUNTS)}MAC{mapped}"),
        ("HBM traffic", quantity(traffic, figures.BYTES),
         f"{read} read, {written} written; "
         f"{percent(traffic / seconds / hardware.hbm_bytes_per_s)} % of the bandwidth"),
        *([("vector memory", quantity(memory.peak_bytes, figures.MEMORY),
            f"most allocated, of {quantity(hardware.sram_bytes, figures.MEMORY)}; "
            f"ports unused {percent(memory.port_idle_ratio)} %")] if memory else []),
    )  # fmt: skip
    return [{"label": label, "value": value, "note": note} for label, value, note in rows]


def sentences(result: Result, hardware: Machine) -> list[Sentence]:
    """Return what a reader should know first, each sentence from the figures alone."""
    together: list[Sentence] = [[line] for line in said.overlap_notice(result).splitlines()]
    share = step_sentences(result.step) if result.step else [share_notice(result.chips)]
    of_chips: list[Sentence] = [[line] for line in share]
    found: list[Sentence] = [
        *of_chips,
        _costliest(result.layers),
        _largest_loss(result),
        _bound_by_memory(result, hardware),
        [said.op_sentence(result)],
        [runs.lowered_by(result)],
        [said.riding(result)],
        *together,
        [said.word_notice(result)],
        [runs.left_out(result.not_timed.items(), result.not_known.items())],
    ]
    return [sentence for sentence in found if any(sentence)]


def inputs(result: Result) -> list[tuple[str, str]]:
    """Return what else is needed to repeat the run."""
    return [
        ("workload", result.workload),
        ("batch", FIELDS["batch"].shown(result.batch)),
        ("lowering", result.lowering),
        ("engine", "all, in agreement" if result.engine == "both" else result.engine),
        *([("dtype", result.dtype), ("sums", result.sums)] if runs.numbers_asked(result) else []),
        ("seed", f"{result.seed}"),
        ("tpusim", result.tpusim),
        ("simulated in", f"{result.total.wall_seconds:.2f} s"),
    ]


def _costliest(layers: Sequence[LayerResult]) -> Sentence:
    if len(layers) == 1:
        return []
    cycles = [layer.cycles for layer in layers]
    order, run = _descending(cycles), sum(cycles)
    half = 1 + bisect_left([*accumulate(cycles[i] for i in order)], run / 2)
    of_layers = f"{half} of {len(layers)} layers take" if half > 1 else f"1 of {len(layers)} layers takes"
    return [f"{of_layers} half of the time; the costliest: ", *_with_shares(order[:3], cycles, run), "."]


def _largest_loss(result: Result) -> Sentence:
    parts, run, unit = states.parts_of(result.total), result.total.cycles, states.main_name(result.total)
    busy = f"The {unit} is busy in {percent((parts['useful'] + parts['unused']) / run)} % of the cycles, "
    busy += f"and does the work of {percent(parts['useful'] / run)} %. "
    loss = max(states.all_parts(result.total)[1:], key=lambda state: parts[state.key])
    lost = parts[loss.key]
    # Without any loss there is no largest one to name.
    if not lost:
        return [busy]
    opening = f"{busy}The largest loss is {loss.doing}: {percent(lost / run)} % of the cycles"
    if len(result.layers) == 1:
        return [opening, _why(result.layers[0], loss), "."]
    by_layer = [states.parts_of(layer).get(loss.key, 0.0) for layer in result.layers]
    order = [index for index in _descending(by_layer) if by_layer[index]][:3]
    why = _why(result.layers[order[0]], loss, "in the first, ")
    return [f"{opening}, the largest parts of it in ", *_with_shares(order, by_layer, lost), why, "."]


def _why(layer: LayerResult, state: states.State, where: str = "") -> str:
    if state.key != "unused" or layer.mapping_efficiency is None:
        return ""
    return f"; {where}passes map {percent(layer.mapping_efficiency)} % of the PEs"


def _bound_by_memory(result: Result, hardware: Machine) -> Sentence:
    """Name the layers whose roof is the HBM's, among those with enough multiplications for the array's peak to
    matter.
    """
    layers, total = [layer for layer in result.layers if layer.macs], result.total
    # The unit whose peak the roofline shows: the array, or what the machine has in its place.
    unit = states.main_name(total) if states.main_unit(total) == states.ARRAY_UNIT else "machine"
    bound = [layer for layer in layers if memory_bounds(layer, hardware)]
    if not layers:
        return []
    if not bound:
        return [f"HBM bounds no layer: each does enough operations a byte for the {unit}'s peak."]
    share = percent(sum(layer.cycles for layer in bound) / result.total.cycles)
    which = " with MACs" if len(layers) < len(result.layers) else ""
    return [
        f"{len(bound)} of {len(layers)} layers{which}, with {share} % of the time, do too few operations a byte of HBM "
        f"traffic to reach the {unit}'s peak."
    ]


def _descending(values: Sequence[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: -values[i])


def _with_shares(order: Sequence[int], values: Sequence[float], of: float) -> list[Phrase]:
    """Write layers with their shares: "conv1 (8.0 %), fc (2.1 %)"."""
    parts: list[list[Phrase]] = [[", ", {"layer": index}, f" ({percent(values[index] / of)} %)"] for index in order]
    return [*chain.from_iterable(parts)][1:]
