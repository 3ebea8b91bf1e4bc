"""Why a layer takes as long as it does, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from textwrap import fill
from typing import Any

from rich.table import Table

from tpusim.base.words import counted
from tpusim.input.scalars import plain_number
from tpusim.network.workload import Workload
from tpusim.report.tables.energy import energy_sentence
from tpusim.report.tables.layout import Column, table
from tpusim.report.text import document, folded, percent, quantity
from tpusim.result.records import DramUse, told
from tpusim.result.vocabulary.figures import BYTES, RATES, TIMES
from tpusim.result.vocabulary.states import PHASES, STATES, UNITS
from tpusim.study.explain.bottleneck import LEAST_GAIN, Bottleneck, Gain
from tpusim.study.explain.overlap import Between

_MOST_NAMED = 6
NO_GAIN = 0.005
"""A relaxation that changes the cycles by less is listed by name only."""

NARROW = 72

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


def heading(found: Bottleneck, workload: str) -> str:
    """Which layer, on what, how its shape is to be read, and how long it takes."""
    layer, setup = found.layer, found.setup
    shape = folded([f"({setup.layer.op} {setup.layer.grammar})"], WIDTH, " ")
    use = f"PE utilisation {percent(layer.pe_utilization)} % (100 % is {counted(layer.ideal_cycles, 'cycle')})"
    return (
        f"{workload} {layer.name}, batch {setup.batch}, on {setup.hardware.name}: {setup.layer.text}\n{shape}\n"
        f"{layer.cycles:,} cycles = {quantity(layer.time_us, TIMES)}; {use if layer.macs else 'nothing for the array'}"
    )


def neighbours(reads: Sequence[str], read_by: Sequence[str], width: int = WIDTH) -> str:
    """What the layer reads, and who reads it; empty where nobody knows."""
    if not reads:
        return ""
    by = f"; what it makes is read by {_listed(read_by)}" if read_by else ""
    return folded([f"It reads {_listed(reads)}{by}."], width, "  ")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


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
    cycles = f"{_cycles(found, most)} cycles{_WORK[most.relaxation.per]}"
    gains = f"With {most.relaxation.name}, it takes {cycles}: {_gain(most)} times as fast."
    setting = found.best_setting
    if setting is None or setting is most:
        return gains
    return f"{gains} Of what can be set, {setting.relaxation.name}: {_gain(setting)} times as fast."


def _cross_check(found: Bottleneck) -> str:
    share = found.layer.units["systolic_array"][found.main_state] / found.layer.cycles
    state = f"{STATES[found.main_state].doing} in {percent(share)} % of its cycles"
    if found.agrees:
        return f"The array's own account agrees: it is {state}."
    return (
        f"The array's own account points elsewhere: it is {state}. It tells what the array waits for, not what a "
        "change frees; the gains are simulated."
    )


def gains_table(found: Bottleneck, width: int | None = None) -> Table:
    """What each relaxation gains, the most first; those that change nothing are left to `no_gain`.

    Below NARROW characters it does without what was set.
    """
    columns: list[Column[Gain]] = [
        Column("gain", lambda gain: f"{_gain(gain)} x"),
        Column("cycles", lambda gain: _cycles(found, gain)),
        Column("with", gain_name, justify="left"),
        Column("that is", lambda gain: gain.how, justify="fold"),
    ]
    shown = 3 if width is not None and width < NARROW else 4
    return table(columns[:shown], [gain for gain in found.gains if abs(gain.gain - 1) >= NO_GAIN])


def no_gain(found: Bottleneck, width: int = WIDTH) -> str:
    """The relaxations that change nothing, and those that could not be tried."""
    names = [gain.relaxation.name for gain in found.gains if abs(gain.gain - 1) < NO_GAIN]
    untried = (f"Not tried: {each.relaxation.name} ({each.reason})." for each in found.untried)
    return folded([*([f"No difference: {', '.join(names)}."] if names else []), *untried], width)


def cycles_bars(found: Bottleneck, width: int = WIDTH) -> str:
    """Where the array's cycles went, as bars of text."""
    cycles = found.layer.cycles
    rows = [(PHASES[phase], count) for phase, count in asdict(found.phases).items() if count]
    wide, digits = max(len(name) for name, _ in rows), len(f"{cycles:,}")
    # Two spaces, one after the name, and " 99.9 % " before the number.
    longest = max(5, width - wide - digits - 12)
    bars = [(name, "#" * max(1, round(longest * count / cycles)), count) for name, count in rows]
    return "\n".join(
        f"  {name:<{wide}} {bar:<{longest}} {percent(count / cycles):>4} % {count:>{digits},}"
        for name, bar, count in bars
    )


def units_line(found: Bottleneck, width: int = WIDTH) -> str:
    """How busy everything else is."""
    units, cycles = found.layer.units, found.layer.cycles
    busy = {name: units[unit]["busy"] for unit, name in UNITS.items() if unit != "systolic_array"}
    if "port" in units:
        busy["each port"] = cycles - units["port"]["idle"]
    shares = (f"{name} {percent(count / cycles)} %" for name, count in busy.items())
    return folded([f"Busy beside it: {', '.join(shares)}"], width)


def energy_line(found: Bottleneck, width: int = WIDTH) -> str:
    """What it takes in joules, and where they go."""
    return folded([energy_sentence(found.layer)], width)


def overlap_line(between: Between | None, width: int = WIDTH) -> str:
    """What it hides that the layer overlaps with its neighbours; empty where it has none."""
    if between is None:
        return ""
    hidden = between.hidden_cycles
    saves = f"all of them take {abs(hidden):,} cycles {'more' if hidden < 0 else 'fewer'} together"
    ahead = f"; it does not with the one ahead, as {between.apart}" if between.apart else ""
    overlap = "Overlapping with its neighbours (sequencer.between_layers=overlap)"
    return folded([f"{overlap}: {saves}{ahead}"], width)


def gain_name(gain: Gain) -> str:
    """What was relaxed, and what its cycles are counted by."""
    per = gain.relaxation.per
    return gain.relaxation.name + ("" if per == "layer" else f", per {per}")


def _gain(gain: Gain) -> str:
    return f"{gain.gain:,.0f}" if gain.gain >= 1000 else f"{gain.gain:.2f}"


def _cycles(found: Bottleneck, gain: Gain) -> str:
    """Cycles for the work of the layer as it is."""
    cycles = found.layer.cycles / gain.gain
    return f"{cycles:,.0f}" if cycles >= 1 else "< 1"


def lowering_heading(found: Bottleneck, own: bool, width: int = WIDTH) -> str:
    """By what; where it was chosen, that it was; and where the layer has its `own` lowering, that this counts."""
    asked, taken = found.setup.lowering, found.layer.lowering
    chosen = "" if asked == taken else f", the fastest ({asked})"
    whose = " - what the workload says of this layer, which goes before --lowering" if own else ""
    return folded([f"How it is lowered, by {taken}{chosen}{whose}"], width)


def lowering_text(found: Bottleneck, width: int = WIDTH) -> str:
    """How the layer was lowered, a line an aspect."""
    aspects = found.explanation.aspects.items()
    return "\n".join(
        fill(text, width, initial_indent=f"  {name:<8}", subsequent_indent=" " * 10) for name, text in aspects
    )


def to_json(
    found: Bottleneck,
    work: Workload,
    lowerings: Sequence[Mapping[str, Any]] = (),
    between: Between | None = None,
) -> str:
    """The layer as in the result JSON, every relaxation with its cycles, what each of `lowerings` costs, and what is
    saved `between` its neighbours, where layers overlap.
    """
    setup, (reads, read_by) = found.setup, work.neighbours(found.layer.name)
    return document(
        hardware=setup.hardware.to_dict(),
        workload=work.name,
        batch=setup.batch,
        lowering=setup.lowering,
        layer={**asdict(found.layer), "inputs": reads},
        read_by=read_by,
        phases=asdict(found.phases),
        tiling=dict(found.explanation.choices),
        overlapping=asdict(between) if between else None,
        bound_by=found.limit,
        main_state=found.main_state,
        agrees=found.agrees,
        gains=[
            {
                "with": gain.relaxation.name,
                "that_is": gain.how,
                "relieves": gain.relaxation.limit,
                "per": gain.relaxation.per,
                "cycles": gain.cycles,
                "macs": gain.macs,
                "gain": gain.gain,
            }
            for gain in found.gains
        ],
        untried=[{"with": each.relaxation.name, "reason": each.reason} for each in found.untried],
        lowerings=list(lowerings),
    )
