"""The page of a run in words: its title, its verdict, and what the figures say."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain

from tpusim.report.plots.roofline import Peaks, memory_roof
from tpusim.report.tables.by_op import op_sentence
from tpusim.report.tables.run import first_wrong, word_notice
from tpusim.report.tables.run import verdict as verdict_text
from tpusim.report.tables.together import overlap_notice, riding
from tpusim.report.text import frequency, percent, quantity, three_digits
from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.fields import FIELDS
from tpusim.result.vocabulary.figures import BYTES, COUNTS, MEMORY, TIMES
from tpusim.result.vocabulary.lowerings import lowered_by
from tpusim.result.vocabulary.runs import left_out, numbers_asked, size_of, with_extent
from tpusim.result.vocabulary.states import State, all_parts, main_name, parts_of, peak_of

Piece = str | dict[str, int]
Sentence = list[Piece]
"""Text, and layers by their place in the network, which the page shows by name."""


def title(result: Result) -> str:
    """What was run on what."""
    title = f"{result.workload} on {result.hardware.get('name', 'unnamed hardware')}, {size_of(result)}"
    return with_extent(title, result)


def verdict(result: Result) -> dict[str, str]:
    """Whether the values are right: a word for the colour, the sentence, the first wrong element."""
    total = result.total
    state = "wrong" if total.wrong else "unchecked" if not total.outputs_checked else "right"
    if state == "right" and total.outputs_checked < total.outputs:
        state = "partly"
    return {"state": state, "text": verdict_text(result), "first": first_wrong(result)}


def tiles(result: Result, peaks: Peaks) -> list[dict[str, str]]:
    """The totals, each with what it is a part of."""
    total = result.total
    traffic = total.hbm_read_bytes + total.hbm_write_bytes
    seconds, memory = total.time_us / 1e6, total.vector_memory
    mapped = "" if total.mapping_efficiency is None else f"; {percent(total.mapping_efficiency)} % of PEs mapped"
    clock = frequency(total.cycles / seconds)
    rows = (
        ("time", quantity(total.time_us, TIMES), f"{total.cycles:,} cycles at {clock}"),
        ("speed", f"{three_digits(total.tflops)} TFLOPS", f"of {three_digits(peaks.tflops)} TFLOPS at most"),
        ("PE utilisation", f"{percent(total.pe_utilization)} %",
         f"{quantity(total.macs, COUNTS)}MAC{mapped}"),
        ("HBM traffic", quantity(traffic, BYTES),
         f"{quantity(total.hbm_read_bytes, BYTES)} read, {quantity(total.hbm_write_bytes, BYTES)} written; "
         f"{percent(traffic / seconds / peaks.hbm_bytes_per_s)} % of the bandwidth"),
        *([("vector memory", quantity(memory.peak_bytes, MEMORY),
            f"most allocated, of {quantity(peaks.memory_bytes, MEMORY)}; "
            f"ports unused {percent(memory.port_idle_ratio)} %")] if memory else []),
    )  # fmt: skip
    return [{"label": label, "value": value, "note": note} for label, value, note in rows]


def sentences(result: Result, peaks: Peaks) -> list[Sentence]:
    """What a reader should know first, each sentence from the figures alone."""
    found: list[Sentence] = [
        _costliest(result.layers),
        _largest_loss(result),
        _bound_by_memory(result, peaks),
        [op_sentence(result)],
        [lowered_by(result)],
        [riding(result)],
        *map(_alone, overlap_notice(result).splitlines()),
        [word_notice(result)],
        [left_out(result.not_timed.items(), result.not_known.items())],
    ]
    return [sentence for sentence in found if any(sentence)]


def _alone(text: str) -> Sentence:
    return [text]


def plain(sentence: Sequence[Piece], result: Result) -> str:
    """A sentence without links."""
    return "".join(part if isinstance(part, str) else result.layers[part["layer"]].name for part in sentence)


def inputs(result: Result) -> list[tuple[str, str]]:
    """What else it takes to repeat the run."""
    return [
        ("workload", result.workload),
        ("batch", FIELDS["batch"].shown(result.batch)),
        ("lowering", result.lowering),
        ("engine", "both, in agreement" if result.engine == "both" else result.engine),
        *([("dtype", result.dtype), ("sums", result.sums)] if numbers_asked(result) else []),
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
    parts, run = parts_of(result.total), result.total.cycles
    total, by_layer = [*parts.values()], [parts_of(layer) for layer in result.layers]
    splits = [[each.get(key, 0.0) for key in parts] for each in by_layer]
    losses = total[1:]
    states, unit = all_parts(result.total), main_name(result.total)
    busy = f"The {unit} is busy in {percent((total[0] + total[1]) / run)} % of the cycles, "
    busy += f"and does the work of {percent(total[0] / run)} %. "
    if not any(losses):
        return [busy]
    state = 1 + losses.index(max(losses))
    of_state = [split[state] for split in splits]
    opening = f"{busy}The largest loss is {states[state].doing}: {percent(total[state] / run)} % of the cycles"
    if len(splits) == 1:
        return [opening, _why(result.layers[0], states[state]), "."]
    order = [index for index in _descending(of_state) if of_state[index]][:3]
    why = _why(result.layers[order[0]], states[state], "in the first, ")
    return [f"{opening}, the largest parts of it in ", *_with_shares(order, of_state, total[state]), why, "."]


def _why(layer: LayerResult, state: State, where: str = "") -> str:
    if state.key != "unused" or layer.mapping_efficiency is None:
        return ""
    return f"; {where}passes map {percent(layer.mapping_efficiency)} % of the PEs"


def _bound_by_memory(result: Result, peaks: Peaks) -> Sentence:
    """Layers whose roof is the HBM's, of those that have multiplications for the array's peak to be of any use."""
    layers, unit = [layer for layer in result.layers if layer.macs], peak_of(result.total)
    bound = [layer for layer in layers if memory_roof(layer, peaks) < peaks.tflops]
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


def _with_shares(order: Sequence[int], values: Sequence[float], of: float) -> list[Piece]:
    """Layers with their shares: "conv1 (8.0 %), fc (2.1 %)"."""
    parts: list[list[Piece]] = [[", ", {"layer": index}, f" ({percent(values[index] / of)} %)"] for index in order]
    return [*chain.from_iterable(parts)][1:]
