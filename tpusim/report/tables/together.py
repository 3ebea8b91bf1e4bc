"""What is told of layers that are not apart: that overlap, or ride on the results of others."""

from __future__ import annotations

from collections import Counter

from tpusim.base.words import counted
from tpusim.flow.lowerings import AUTO
from tpusim.network.ops.fused import Fused
from tpusim.network.workload import Workload
from tpusim.report.text import percent, quantity
from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.figures import BYTES


def fusion_notice(work: Workload, result: Result) -> str:
    """How many layers ride on the results of others, or why none does; empty where none is to."""
    if result.hardware.get("sequencer", {}).get("fusion") != "results":
        return ""
    biases = _biases_notice(work)
    if told := riding(result):
        return f"{told[:-1]} (+ in their shapes).{biases}"
    if len(work.never_timed) < len(work.not_timed):
        why = "additions and activations are left out; --ops all has them"
    elif not work.edges:
        why = "the workload does not say what its layers read (inputs:)"
    else:
        why = "none follows a convolution or a product in a way that it could"
    return f"No layer rides on the results of another: {why}.{biases}"


def _biases_notice(work: Workload) -> str:
    """How many layers have their biases in the machine, and how many have not; empty where none has any."""
    within, outside = sum(isinstance(each, Fused) and each.bias for each in work.layers), len(work.biases)
    told = f" The sums of {counted(within, 'layer')} begin at biases." if within else ""
    return f"{told} The biases of {counted(outside, 'layer')} are added outside the machine." if outside else told


def riding(result: Result) -> str:
    """How many layers ride on the results of how many others; empty where none does."""
    carried = [len(layer.riders) for layer in result.layers if layer.riders]
    riders = sum(carried)
    if not riders:
        return ""
    return f"{counted(riders, 'layer')} {'rides' if riders == 1 else 'ride'} on the results of {len(carried):,}."


def overlap_of(layer: LayerResult) -> str:
    """What a layer saves as it overlaps with others, and who reads on chip what it makes; empty where it is alone."""
    hidden, found = layer.hidden_cycles, layer.residency
    told = [f"{abs(hidden):,} cycles {'more' if hidden < 0 else 'fewer'} than alone"] if hidden else []
    told += [f"{quantity(layer.hbm_saved_bytes, BYTES)} fewer through HBM"] if layer.hbm_saved_bytes else []
    if found and found.outcome:
        too = ", and goes to HBM as well" if found.spilled else ""
        told.append(f"what it makes stays on chip for {', '.join(found.readers)}{too}")
    told += [f"begins on an empty machine, as {layer.apart}"] if layer.apart else []
    return "; ".join(told)


def overlap_notice(result: Result) -> str:
    """What it saves that layers overlap; empty where they do not."""
    if result.hardware.get("sequencer", {}).get("between_layers", "drain") == "drain":
        return ""
    hidden, cycles = result.total.hidden_cycles, result.total.cycles
    share = percent(abs(hidden) / (cycles + hidden))
    told = f"Layers overlap: {abs(hidden):,} cycles {'more' if hidden < 0 else 'fewer'} than one by one, {share} %."
    apart = Counter(layer.apart for layer in result.layers if layer.apart)
    begin = "; ".join(f"{counted(count, 'layer')} on an empty machine, as {why}" for why, count in apart.items())
    between = f" Not between all: {begin}." if begin else ""
    stays = f"\n{_stays_notice(result)}" if any(layer.residency for layer in result.layers) else ""
    return f"{told}{between}{_chosen_alone(result)}{stays}"


def _stays_notice(result: Result) -> str:
    """What it saves that outcomes stay on chip."""
    total, stay = result.total, sum(bool(each.residency and each.residency.outcome) for each in result.layers)
    saved, moved = total.hbm_saved_bytes, total.hbm_read_bytes + total.hbm_write_bytes
    if not stay:
        return "No outcome stays on chip: none is read word for word as it is made, or none has room."
    of = f"outcomes of {stay} of {counted(len(result.layers), 'layer')}"
    if any("scratch_write_bytes" in each.own for each in result.layers):
        of += ", of others some lie in the scratch memory"
    return f"On chip stay {of}: {quantity(saved, BYTES)} fewer through HBM, {percent(saved / (saved + moved))} %."


def _chosen_alone(result: Result) -> str:
    """What by simulation is chosen for a layer that overlaps with others; empty where nothing is."""
    searched = result.hardware.get("mapping", {}).get("search") == "simulate"
    chosen = ["lowering"] * (result.lowering == AUTO) + ["block"] * searched
    if not chosen:
        return ""
    return (
        f" Each has the {' and the '.join(chosen)} that is fastest for it alone, which need not be so for all together."
    )
