"""What bounds a layer, in words: what was found, what relieves it, and whether the array's account agrees."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from tpusim.input.scalars import plain_number
from tpusim.report.text import folded, percent, quantity
from tpusim.result.records import DramUse, told
from tpusim.result.vocabulary.figures import BYTES, RATES
from tpusim.result.vocabulary.states import STATES
from tpusim.study.explain.bottleneck import LEAST_GAIN, Bottleneck, Gain

WIDTH = 79
"""Characters of a line of words."""

LIMITS = {
    "array": ("the array", "it is busy in {busy} % of the cycles, with {mapped} % of its PEs in use."),
    "mapping": ("the mapping", "{mapped} % of the PEs are in use; a pass fills {filled}."),
    "ports": ("the ports of the vector memories", "words of {elements} come and go too often for one port a lane; "
              "the array loses {port_stall} % of its cycles to it."),
    "banks": ("conflicts in the banks", "rows of the array ask one bank for several words at once; the array loses "
              "{bank_conflict} % of its cycles to it."),
    "hbm": ("HBM bandwidth", "moving {moved} keeps the bus busy in {hbm} % of the cycles."),
    "rows": ("rows and channels of HBM", "{rows}."),
    "latency": ("HBM latency", "data comes {latency} cycles after it is asked for, and too little is under way."),
    "weights": ("loading weights", "{loads}. Too little input shares them."),
    "memory": ("the size of the vector memories",
               "cut into blocks that fit, the layer reads {reads:.2f} times its operands from HBM."),
    "block": ("the block that is given", "with {given}, the layer reads {reads:.2f} times its operands from HBM."),
    "vector_unit": ("the vector unit", "{conversions}it {adds} in {vector_unit} % of the cycles."),
    "sequencer": ("the sequencer", "a layer takes {launch} cycles to launch{bodies}{drains}."),
    "input": ("too little input", "{loads}; the layer's start and end take {ends} % of its cycles. More input would "
              "share them."),
}  # fmt: skip
"""What can bound a layer, in words, and what is found then, of `_facts`."""

_WORK = {"layer": "", "image": " for as many images", "row": " for as many rows", "MAC": " for as many MACs"}


def verdict(found: Bottleneck, width: int = WIDTH) -> str:
    """What bounds the layer, what relieving it gains, and whether the cycles of the array say the same."""
    if found.most is None:
        least = f"{100 * (LEAST_GAIN - 1):.0f} %"
        return folded([f"No single thing bounds this layer: nothing that was tried makes it {least} faster."], width)
    limit, finding = LIMITS[found.most.relaxation.limit]
    bound = f"Bound by {limit}: {finding.format(**_facts(found))}"
    return folded((bound, _best(found.most, found), _cross_check(found)), width)


def _facts(found: Bottleneck) -> dict[str, object]:
    """What LIMITS tells of a layer: shares of its cycles, and what they come from."""
    layer, hardware, phases, units = found.layer, found.setup.hardware, found.phases, found.layer.units
    sequencer, streams = hardware.sequencer, found.program.streams
    # There are none where the vector unit does it all.
    rows, cols = (fmean(sizes or [0]) for sizes in ([each.rows for each in streams], [each.cols for each in streams]))
    operands = found.setup.layer.operands(found.setup.batch) * hardware.vector_memory.element_bytes
    ends = phases.first_fill + phases.drain + phases.spill + phases.skew
    word_fill = told(layer.blocking).word_fill
    drains = ", and no block begins before the one ahead has drained"
    return {
        "busy": percent(units["systolic_array"]["busy"] / layer.cycles),
        "mapped": percent(told(layer.mapping_efficiency)),
        "filled": f"{rows:.4g} of {hardware.array.rows} rows and {cols:.4g} of {hardware.array.cols} columns",
        "elements": "one element" if word_fill == 1 else f"{word_fill} elements",
        "port_stall": percent(units["systolic_array"]["port_stall"] / layer.cycles),
        "bank_conflict": percent(units["systolic_array"]["bank_conflict"] / layer.cycles),
        "moved": quantity(layer.hbm_read_bytes + layer.hbm_write_bytes, BYTES),
        "hbm": percent(units["hbm"]["busy"] / layer.cycles),
        "latency": hardware.latency_cycles,
        "rows": _rows(layer.dram) if layer.dram else "",
        "loads": _loads(found),
        "reads": layer.hbm_read_bytes / operands,
        "given": ", ".join(f"{name} {size}" for name, size in hardware.mapping.block.given.items()),
        "conversions": "".join(_a_word(found)),
        "adds": "works by itself" if found.program.vectors else "adds partial sums",
        "vector_unit": percent(units["vector_unit"]["busy"] / layer.cycles),
        "launch": sequencer.launch_cycles,
        "bodies": f", a block {sequencer.block_cycles} beyond its steps" if sequencer.block_cycles else "",
        "drains": drains if sequencer.between_blocks == "drain" else "",
        "ends": percent(ends / layer.cycles),
    }


def _loads(found: Bottleneck) -> str:
    """What more input would be shared by: the weights of a pass, or what the vector unit has to do."""
    layer, passes = found.layer, found.layer.passes
    if not passes:
        works = percent(layer.units["vector_unit"]["busy"] / layer.cycles)
        return f"the vector unit, which does it all, works in {works} % of the cycles"
    computes = layer.units["systolic_array"]["busy"] / passes
    takes = f"weights take {found.setup.hardware.preload_cycles} cycles to load"
    return f"{takes} for a pass that computes for {computes:,.0f}"


def _rows(use: DramUse) -> str:
    """What the DRAM did."""
    bursts = use.row_hits + use.row_misses + use.row_conflicts
    return (
        f"{percent((use.row_misses + use.row_conflicts) / max(1, bursts))} % of {bursts:,} bursts open a row, the "
        f"busiest channel of a transfer moves {use.channel_imbalance:.2f} times the mean, and {use.hbm_overfetch:.2f} "
        f"times the bytes wanted are moved, at {quantity(use.hbm_reached_bytes_per_s, RATES)}"
    )


def _a_word(found: Bottleneck) -> Iterator[str]:
    """What the vector unit takes for a word, besides adding."""
    unit = found.setup.hardware.vector_unit
    if unit.unpack_cycles or unit.pack_cycles:
        unpacks, packs = plain_number(unit.unpack_cycles), plain_number(unit.pack_cycles)
        yield f"a word takes {unpacks} cycles to unpack, or {packs} to pack; "
    if unit.stack_cycles:
        yield f"a word of stacked taps takes {plain_number(unit.stack_cycles)} for each copy beyond the second; "
    if unit.relayout_cycles and found.setup.hardware.mapping.entry == "relaid":
        yield f"a word of an ifmap in another layout takes {plain_number(unit.relayout_cycles)} cycles of loads; "
    if found.program.vectors and (unit.operand_cycles or unit.result_cycles or unit.ready_cycles):
        each = (plain_number(cycles) for cycles in (unit.operand_cycles, unit.result_cycles, unit.ready_cycles))
        yield "an operand takes {} cycles, a result {}, a word to be made ready {}; ".format(*each)
    if found.program.word_cycles > _streamed(found):
        yield f"a word that is streamed takes {found.program.word_cycles} to be transposed; "


def _streamed(found: Bottleneck) -> int:
    """Cycles that any word takes, however little of it is used."""
    hardware = found.setup.hardware
    return hardware.vector_memory.word_elements if hardware.array.streamed == "all" else 0


def _best(most: Gain, found: Bottleneck) -> str:
    """What gains the most; and, where that takes another layer, what gains the most with this one."""
    cycles = f"{cycles_text(found, most)} cycles{_WORK[most.relaxation.per]}"
    gains = f"With {most.relaxation.name}, it takes {cycles}: {gain_text(most)} times as fast."
    setting = found.best_setting
    if setting is None or setting is most:
        return gains
    return f"{gains} Of what can be set, {setting.relaxation.name}: {gain_text(setting)} times as fast."


def _cross_check(found: Bottleneck) -> str:
    share = found.layer.units["systolic_array"][found.main_state] / found.layer.cycles
    state = f"{STATES[found.main_state].doing} in {percent(share)} % of its cycles"
    if found.agrees:
        return f"The array's own account agrees: it is {state}."
    return (
        f"The array's own account points elsewhere: it is {state}. It tells what the array waits for, not what a "
        "change frees; the gains are simulated."
    )


def gain_text(gain: Gain) -> str:
    """How many times as fast."""
    return f"{gain.gain:,.0f}" if gain.gain >= 1000 else f"{gain.gain:.2f}"


def cycles_text(found: Bottleneck, gain: Gain) -> str:
    """Cycles for the work of the layer as it is."""
    cycles = found.layer.cycles / gain.gain
    return f"{cycles:,.0f}" if cycles >= 1 else "< 1"
