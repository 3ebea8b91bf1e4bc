"""Why a layer takes as long as it does, in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean
from textwrap import fill

from rich.table import Table

from tpusim.report.tables.layout import table
from tpusim.report.text import percent, quantity, scale, three_digits
from tpusim.result.vocabulary.figures import BYTES, TIMES
from tpusim.result.vocabulary.states import PHASES, STATES
from tpusim.study.explain.bottleneck import LEAST_GAIN, Bottleneck, Gain

NO_GAIN = 0.005
"""A relaxation that changes the cycles by less is listed by name only."""

NARROW = 72


WIDTH = 79
"""Characters of a line of words."""

_WORK = {"layer": "", "image": " for as many images", "row": " for as many rows", "MAC": " for as many MACs"}


def heading(found: Bottleneck, workload: str) -> str:
    """Which layer, on what, and how long it takes."""
    layer, case = found.layer, found.case
    unit, size = scale([layer.time_us], TIMES)
    s = "" if layer.ideal_cycles == 1 else "s"
    return "\n".join(
        (
            f"{workload} {layer.name}, batch {case.batch}, on {case.hardware.name}: {case.layer.text}",
            f"{layer.cycles:,} cycles = {three_digits(layer.time_us / size)} {unit}; PE utilisation "
            f"{percent(layer.pe_utilization)} % (100 % is {layer.ideal_cycles:,} cycle{s})",
        )
    )


def verdict(found: Bottleneck, width: int = WIDTH) -> str:
    """What bounds the layer, what relieving it gains, and whether the cycles of the array say the same."""
    if found.most is None:
        least = f"{100 * (LEAST_GAIN - 1):.0f} %"
        return fill(f"No single thing bounds this layer: nothing that was tried makes it {least} faster.", width)
    limit, finding = LIMITS[found.most.relaxation.limit]
    bound = f"Bound by {limit}: {finding(found)}"
    return "\n".join(fill(text, width) for text in (bound, _best(found.most, found), _cross_check(found)))


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
    rows = [
        [f"{_gain(gain)} x", _cycles(found, gain), gain_name(gain), gain.how]
        for gain in found.gains
        if abs(gain.gain - 1) >= NO_GAIN
    ]
    columns = [("gain", "right"), ("cycles", "right"), ("with", "left"), ("that is", "fold")]
    shown = 3 if width is not None and width < NARROW else 4
    return table(columns[:shown], [row[:shown] for row in rows])


def no_gain(found: Bottleneck, width: int = WIDTH) -> str:
    """The relaxations that change nothing, and those that could not be tried."""
    names = [gain.relaxation.name for gain in found.gains if abs(gain.gain - 1) < NO_GAIN]
    lines = [f"No difference: {', '.join(names)}."] if names else []
    lines += [f"Not tried: {each.relaxation.name} ({each.reason})." for each in found.untried]
    return "\n".join(fill(line, width) for line in lines)


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
    shares = {
        "HBM bus": units["hbm"]["busy"],
        "weight path": units["preload"]["busy"],
        "vector unit": units["vector_unit"]["busy"],
    }
    if "port" in units:
        shares["each port"] = cycles - units["port"]["idle"]
    listed = ", ".join(f"{name} {percent(busy / cycles)} %" for name, busy in shares.items())
    return fill(f"Busy beside it: {listed}", width)


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


def lowering_text(found: Bottleneck, width: int = WIDTH) -> str:
    """How the layer was lowered, a line an aspect."""
    aspects = found.explanation.aspects.items()
    return "\n".join(
        fill(text, width, initial_indent=f"  {name:<8}", subsequent_indent=" " * 10) for name, text in aspects
    )


def _filled_pes(found: Bottleneck) -> str:
    """Rows and columns of the array in use, the mean over passes."""
    array, streams = found.case.hardware.array, found.program.streams
    rows, cols = (fmean(values) for values in zip(*((each.rows, each.cols) for each in streams), strict=True))
    return f"{rows:.4g} of {array.rows} rows and {cols:.4g} of {array.cols} columns"


# ---- what is found, by what bounds the layer


def _array(found: Bottleneck) -> str:
    busy = percent(found.layer.units["systolic_array"]["busy"] / found.layer.cycles)
    return f"it is busy in {busy} % of the cycles, with {percent(found.layer.mapping_efficiency)} % of its PEs in use."


def _mapping(found: Bottleneck) -> str:
    used = percent(found.layer.mapping_efficiency)
    return f"{used} % of the PEs are in use; a pass fills {_filled_pes(found)}."


def _ports(found: Bottleneck) -> str:
    layer, elements = found.layer, found.layer.blocking.word_fill
    lost = percent(layer.units["systolic_array"]["port_stall"] / layer.cycles)
    words = "one element" if elements == 1 else f"{elements} elements"
    return f"words of {words} come and go too often for one port a lane; the array loses {lost} % of its cycles to it."


def _hbm(found: Bottleneck) -> str:
    layer = found.layer
    moved = quantity(layer.hbm_read_bytes + layer.hbm_write_bytes, BYTES)
    return f"moving {moved} keeps the bus busy in {percent(layer.units['hbm']['busy'] / layer.cycles)} % of the cycles."


def _latency(found: Bottleneck) -> str:
    return f"data comes {found.case.hardware.latency_cycles} cycles after it is asked for, and too little is under way."


def _weights(found: Bottleneck) -> str:
    return f"{_loads(found)}. Too little input shares them."


def _loads(found: Bottleneck) -> str:
    works = found.layer.units["systolic_array"]["busy"] / found.layer.passes
    return f"weights take {found.case.hardware.preload_cycles} cycles to load for a pass that computes for {works:,.0f}"


def _memory(found: Bottleneck) -> str:
    case, layer = found.case, found.layer
    once = case.layer.operands(case.batch) * case.hardware.vector_memory.element_bytes
    return f"cut into blocks that fit, the layer reads {layer.hbm_read_bytes / once:.2f} times its operands from HBM."


def _vector_unit(found: Bottleneck) -> str:
    unit, layer = found.case.hardware.vector_unit, found.layer
    adds = f"it adds partial sums in {percent(layer.units['vector_unit']['busy'] / layer.cycles)} % of the cycles"
    if not unit.unpack_cycles and not unit.pack_cycles:
        return f"{adds}."
    return f"a word takes {unit.unpack_cycles} cycles to unpack, or {unit.pack_cycles} to pack; {adds}."


def _sequencer(found: Bottleneck) -> str:
    sequencer = found.case.hardware.sequencer
    drains = ", and no block begins before the one ahead has drained" if sequencer.between_blocks == "drain" else ""
    return f"a layer takes {sequencer.launch_cycles} cycles to launch{drains}."


def _input(found: Bottleneck) -> str:
    phases, layer = found.phases, found.layer
    ends = phases.first_fill + phases.drain + phases.spill + phases.skew
    return (
        f"{_loads(found)}; the layer's start and end take {percent(ends / layer.cycles)} % of its cycles. More input "
        "would share them."
    )


LIMITS: dict[str, tuple[str, Callable[[Bottleneck], str]]] = {
    "array": ("the array", _array),
    "mapping": ("the mapping", _mapping),
    "ports": ("the ports of the vector memories", _ports),
    "hbm": ("HBM bandwidth", _hbm),
    "latency": ("HBM latency", _latency),
    "weights": ("loading weights", _weights),
    "memory": ("the size of the vector memories", _memory),
    "vector_unit": ("the vector unit", _vector_unit),
    "sequencer": ("the sequencer", _sequencer),
    "input": ("too little input", _input),
}
"""What can bound a layer, in words, and what is found then."""
