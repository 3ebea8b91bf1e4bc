"""Sentences about a run: heading, totals, verdict, energy, notices, overlaps; for a terminal and the page."""

from __future__ import annotations

from collections import Counter

from tpusim.base.words import counted
from tpusim.flow.lowerings import AUTO
from tpusim.machines.family import KEY, USUAL, family_named
from tpusim.network.ops.fused import Fused
from tpusim.network.workload import Workload
from tpusim.report.shown import Sentences
from tpusim.report.text import frequency, percent, quantity, three_digits
from tpusim.result.chips import cores_of_its_chip
from tpusim.result.records import LayerResult, Result, Total, by_op
from tpusim.result.vocabulary.fields import by_path
from tpusim.result.vocabulary.figures import BYTES, COUNTS, JOULES, MEMORY, PLAIN, RATES, TIMES, own_figure
from tpusim.result.vocabulary.runs import in_heading, numbers_asked, size_of, with_extent
from tpusim.result.vocabulary.states import does_less, energies_in, parts_in, parts_of

_WHOLE = "integers", "int8"
"""Number types whose sums are exact."""


def heading(result: Result) -> str:
    """Say what was run on what, and the peak of the machine: a run of that rate has a utilisation of 1.

    A machine that is a part of a chip is said to be one.
    """
    engine = "all engines, in agreement" if result.engine == "both" else f"{result.engine} engine"
    numbers = f"{asked}, " if (asked := numbers_asked(result)) else ""
    total = result.total
    told = with_extent(
        f"{result.workload}, {size_of(result)}, on {result.machine}: "
        f"{in_heading(result)}, {engine}, {numbers}seed {result.seed}",
        result,
    )
    cores = cores_of_its_chip(result.hardware)
    part = f"one of the {cores} cores of a chip" if cores > 1 else ""
    if not total.pe_utilization:
        return f"{told}; {part}" if part else told
    peak = f"peak {quantity(total.tflops * 1e12 / total.pe_utilization, COUNTS)}FLOPS"
    return f"{told}; {peak}, {part}" if part else f"{told}; {peak}"


def totals(total: Total, name: str = "Total") -> Sentences:
    """Return the totals in sentences, every number with its unit, behind what they are of.

    What the array does with its cycles adds up to all of them.
    """
    cycles, parts = total.cycles, parts_of(total)
    names = {state.key: state.label.removeprefix("busy, ") for state in parts_in([total])[1:]}
    losses = ", ".join(f"{name} {percent(parts[key] / cycles)} %" for key, name in names.items())
    useful = f"PE utilisation {percent(total.pe_utilization)} %"
    if does_less(total):
        useful = (
            f"{useful}, as some multiplications are not done by the array; busy {percent(parts['useful'] / cycles)} %"
        )
    moved = [f"HBM read {quantity(total.hbm_read_bytes, BYTES)}, written {quantity(total.hbm_write_bytes, BYTES)}"]
    if total.mapping_efficiency is not None:
        moved.insert(0, f"Mapping efficiency {percent(total.mapping_efficiency)} %")
    if memory := total.vector_memory:
        peak, unused = quantity(memory.peak_bytes, MEMORY), percent(memory.port_idle_ratio)
        moved.append(f"vector memory: peak {peak}, ports unused {unused} %")
    in_passes = "" if total.passes is None else f" in {total.passes:,} passes"
    lines = [
        f"{name}: {cycles:,} cycles = {quantity(total.time_us, TIMES)} at {frequency(cycles / total.time_us * 1e6)}; "
        f"{quantity(total.macs, COUNTS)}MAC{in_passes}; {quantity(total.tflops * 1e12, COUNTS)}FLOPS",
        f"  Of the cycles: {useful}, {losses}; together 100 %",
        f"  {'; '.join(moved)}",
    ]
    if total.launch_cycles and "launch" not in parts:
        launches, share = f"{total.launch_cycles:,}", percent(total.launch_cycles / cycles)
        lines.insert(2, f"  Launches of layers take {launches} cycles, {share} % of all; the array is starved in them")
    if use := total.dram:
        rows = use.row_hits + use.row_misses + use.row_conflicts
        bursts, rate = quantity(use.hbm_moved_bytes, BYTES), quantity(use.hbm_reached_bytes_per_s, RATES)
        asked = ""
        if use.hbm_asked_bytes is not None:
            once = use.hbm_asked_bytes - use.hbm_moved_bytes
            shared = f", {quantity(once, BYTES)} of them served by bursts already on their way" if once else ""
            asked = f"{quantity(use.hbm_asked_bytes, BYTES)} read and written in bursts{shared}; "
        lines.append(
            f"  HBM: {asked}{bursts} moved at {rate}, {use.hbm_overfetch:.3g} times the bytes of the elements asked "
            f"for; row hits "
            f"{percent(use.row_hits / rows)} %, misses {percent(use.row_misses / rows)} %, conflicts "
            f"{percent(use.row_conflicts / rows)} %; {use.refreshes:,} refreshes; the busiest channel of a transfer "
            f"moves {use.channel_imbalance:.3g} times the mean"
        )
    lines += [f"  {energy_sentence(total)}"] if total.energy_use else []
    return Sentences([*lines, f"  simulated in {total.wall_seconds:.2f} s"], "    ", wide=True)


_MOST_OF_A_BOUND = 99.9
"""Shown in percent for right elements whose error rounds to the whole bound."""


def verdict(result: Result) -> str:
    """Say in one line whether the values are right."""
    total = result.total
    if total.outputs_checked == 0:
        return "Outputs not checked (--no-check)."
    right = total.outputs_checked - total.outputs_mismatched
    share = total.error_share
    near = "are within the proven bound of sums in float64"
    # A whole number is rounded only where a function of reals is applied to it.
    mixed = f"equal the reference or, where a layer rounds, {near}" if result.dtype in _WHOLE else near
    held = "equal the reference" if share is None else mixed
    counts = f"{right:,} of {total.outputs:,} elements {held}, {total.outputs_mismatched:,} wrong."
    if share is not None:
        told = 100 * share if total.outputs_mismatched else min(100 * share, _MOST_OF_A_BOUND)
        counts += f" The largest error worked out is {told:.3g} % of its bound."
    if total.intermediates_checked:
        counts += (
            f" Of {total.intermediates_checked:,} intermediate elements, {total.intermediates_mismatched:,} wrong."
        )
    if total.outputs_checked < total.outputs:
        return f"{total.outputs_checked:,} outputs checked: {counts}"
    return f"Every output checked: {counts}"


def first_wrong(result: Result) -> str:
    """Name the first wrong layer and its first wrong element; empty when all is right."""
    layer = next((layer for layer in result.layers if layer.wrong), None)
    if layer is None:
        return ""
    wrong = f"layer {layer.name}: {layer.outputs_mismatched:,} of {layer.outputs_checked:,} outputs are wrong"
    if layer.intermediates_mismatched:
        wrong += f", {layer.intermediates_mismatched:,} of {layer.intermediates_checked:,} intermediate elements"
    return f"{wrong}; the first: {layer.first_mismatch}" if layer.first_mismatch else wrong


def word_notice(result: Result) -> str:
    """Say what partly filled words cost; empty when every layer fills its words."""
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
    """Return the check of one layer in a word."""
    if layer.outputs_checked == 0:
        return "-"
    return f"{layer.wrong} wrong" if layer.wrong else "ok"


def energy_sentence(record: LayerResult) -> str:
    """Say how much energy a run takes, by part, and that this is a model; empty where it is unknown."""
    use = record.energy_use
    if use is None:
        return ""
    shares = ", ".join(
        f"{part.label} {percent(use.parts.get(part.key, 0.0) / use.energy)} %" for part in energies_in([use])
    )
    watts = use.energy / record.time_us / 1e6
    return (
        f"Energy, a model in {use.technology}: {quantity(use.energy, JOULES)}, {three_digits(watts)} W on the mean, "
        f"{three_digits(use.tops_per_watt)} TOPS/W; {shares}"
    )


def op_sentence(result: Result) -> str:
    """Say the time by op: "By op: conv2d 71.2 % of the time (53 layers), ..."; empty where all layers are of one op."""
    uses = by_op(result.layers)
    if len(uses) < 2:
        return ""
    told = (f"{op} {percent(use.share)} % ({counted(use.layers, 'layer')})" for op, use in uses.items())
    return f"Time by op: {', '.join(told)}."


def own_text(key: str, value: float | str) -> str:
    """Write a figure that only one machine family has, with its unit."""
    units = own_figure(key).units
    return value if isinstance(value, str) else f"{value:,}" if units == PLAIN else quantity(value, units)


def unasked_notice(work: Workload, result: Result) -> str:
    """Say how many layers of several groups got lowerings that were not asked for; empty where none did."""
    unasked = {each.layer for each in work.lowerings if each.where is None}
    number = sum(layer.name in unasked for layer in result.layers)
    if not number:
        return ""
    goes = "layer of several groups goes" if number == 1 else "layers of several groups go"
    own = f"--lowering {result.lowering} gives each group passes of its own"
    return f"{number:,} {goes} by the lowering that the estimate prefers; {own}."


def bound_notice(work: Workload, result: Result) -> str:
    """Say which lowerings auto left out because their roundings have no proven bound; empty where it left out none."""
    family, own = family_named(result.hardware.get(KEY, USUAL)), {each.layer: each.lowering for each in work.lowerings}
    chosen = any(own.get(layer.name, result.lowering) == AUTO for layer in result.layers)
    left = [name for name in family.lowerings if name in family.unbounded]
    if not (chosen and left) or result.correct is None or result.dtype in _WHOLE:
        return ""
    why = f"no bound is proven for their roundings of {result.dtype}"
    return f"{AUTO} left out {', '.join(left)}: {why}; --no-check lets it take them."


# ---- layers that are not apart: that overlap, or ride on the results of others


def fusion_notice(work: Workload, result: Result) -> str:
    """Say how many layers ride on the results of others, or why none does, and where biases are; empty where none
    should.
    """
    if result.hardware.get("sequencer", {}).get("fusion") != "results":
        return ""
    within, outside = sum(isinstance(each, Fused) and each.bias for each in work.layers), len(work.biases)
    biases = f" The sums of {counted(within, 'layer')} begin at biases." if within else ""
    biases += f" The biases of {counted(outside, 'layer')} are added outside the machine." if outside else ""
    if told := riding(result):
        return f"{told[:-1]} (+ in their shapes).{biases}"
    if busy := sum(isinstance(each, Fused) and each.on_the_way for each in work.layers):
        does = f"{counted(busy, 'layer')} {'does' if busy == 1 else 'do'}"
        return f"{does} the work of others on the way (+ in their shapes).{biases}"
    if len(work.never_timed) < len(work.not_timed):
        why = "additions and activations are left out; --ops all has them"
    elif not work.edges:
        why = "the workload does not say what its layers read (inputs:)"
    else:
        why = "no addition or activation follows a convolution or a product in a way that allows it"
    return f"No layer rides on the results of another: {why}.{biases}"


def riding(result: Result) -> str:
    """Say how many layers ride on the results of how many others; empty where none does."""
    carried = [len(layer.riders) for layer in result.layers if layer.riders]
    riders = sum(carried)
    if not riders:
        return ""
    return f"{counted(riders, 'layer')} {'rides' if riders == 1 else 'ride'} on the results of {len(carried):,}."


def overlap_of(layer: LayerResult) -> str:
    """Say what a layer saves as it overlaps with others, and which layers read its output on chip; empty where it is
    alone.
    """
    hidden, found = layer.hidden_cycles, layer.residency
    told = [f"{abs(hidden):,} cycles {'more' if hidden < 0 else 'fewer'} than alone"] if hidden else []
    told += [f"{quantity(layer.hbm_saved_bytes, BYTES)} fewer through HBM"] if layer.hbm_saved_bytes else []
    if found and found.outcome:
        too = ", and goes to HBM as well" if found.spilled else ""
        told.append(f"its output stays on chip for {', '.join(found.readers)}{too}")
    told += [f"begins on an empty machine, as {layer.apart}"] if layer.apart else []
    return "; ".join(told)


def overlap_notice(result: Result) -> str:
    """Say what overlapping layers save; empty where they do not overlap."""
    hardware = dict(by_path(result.hardware))
    if hardware.get("sequencer.between_layers", "drain") == "drain":
        return ""
    hidden, cycles = result.total.hidden_cycles, result.total.cycles
    share = percent(abs(hidden) / (cycles + hidden))
    told = f"Layers overlap: {abs(hidden):,} cycles {'more' if hidden < 0 else 'fewer'} than one by one, {share} %."
    apart = Counter(layer.apart for layer in result.layers if layer.apart)
    begin = "; ".join(f"{counted(count, 'layer')}, as {why}" for why, count in apart.items())
    between = f" Begun on an empty machine: {begin}." if begin else ""
    searched = hardware.get("mapping.search") == "simulate"
    chosen = " and the ".join(["lowering"] * (result.lowering == AUTO) + ["block"] * searched)
    alone = f" Each has the {chosen} that is fastest for it alone, but perhaps not for all together."
    stays = f"\n{_stays_notice(result)}" if any(layer.residency for layer in result.layers) else ""
    return f"{told}{between}{alone if chosen else ''}{stays}"


def _stays_notice(result: Result) -> str:
    """Say what outputs that stay on chip save."""
    total, stay = result.total, sum(bool(each.residency and each.residency.outcome) for each in result.layers)
    saved, moved = total.hbm_saved_bytes, total.hbm_read_bytes + total.hbm_write_bytes
    if not stay:
        return "No output stays on chip: none is read word by word as it was written, or there is no room."
    told = f"Outputs of {stay} of {counted(len(result.layers), 'layer')} stay on chip"
    if any("scratch_write_bytes" in each.own for each in result.layers):
        told += ", some of the others in the scratch memory"
    return f"{told}: {quantity(saved, BYTES)} fewer through HBM, {percent(saved / (saved + moved))} %."
