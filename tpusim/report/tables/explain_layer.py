"""What is told of a layer that is explained: its place, what helps it, where its cycles go, how it is lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill

from rich.table import Table

from tpusim.base.words import counted
from tpusim.network.workload import Workload
from tpusim.report.tables.energy import energy_sentence
from tpusim.report.tables.explain_verdict import WIDTH, cycles_text, gain_text
from tpusim.report.tables.layout import Column, table
from tpusim.report.text import folded, percent, quantity
from tpusim.result.vocabulary.figures import BYTES, TIMES
from tpusim.result.vocabulary.states import PHASES, UNITS
from tpusim.study.explain.bottleneck import Bottleneck, Gain
from tpusim.study.explain.overlap import Between

_MOST_NAMED = 6
NO_GAIN = 0.005
"""A relaxation that changes the cycles by less is listed by name only."""

NARROW = 72


def heading(found: Bottleneck, workload: str) -> str:
    """Which layer, on what, how its shape is to be read, and how long it takes."""
    layer, setup = found.layer, found.setup
    core = setup.layer.core
    more = "" if core is setup.layer else ", + what rides on results"
    shape = folded([f"({core.op} {core.grammar}{more})"], WIDTH, " ")
    use = f"PE utilisation {percent(layer.pe_utilization)} % (100 % is {counted(layer.ideal_cycles, 'cycle')})"
    return (
        f"{workload} {layer.name}, batch {setup.batch}, on {setup.hardware.name}: {setup.layer.text}\n{shape}\n"
        f"{layer.cycles:,} cycles = {quantity(layer.time_us, TIMES)}; {use if layer.macs else 'nothing for the array'}"
    )


def neighbours(work: Workload, layer: str, width: int = WIDTH) -> str:
    """What the layer reads, who reads it, and what rides on its results; empty where nobody knows."""
    (reads, read_by), riders = work.neighbours(layer), work.carried_by(layer)
    told = []
    if reads:
        by = f"; what it makes is read by {_listed(read_by)}" if read_by else ""
        told.append(f"It reads {_listed(reads)}{by}.")
    if riders:
        told.append(f"On its results {'rides' if len(riders) == 1 else 'ride'} {_listed(riders)}.")
    return folded([" ".join(told)], width, "  ")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def gains_table(found: Bottleneck, width: int | None = None) -> Table:
    """What each relaxation gains, the most first; those that change nothing are left to `no_gain`.

    Below NARROW characters it does without what was set.
    """
    columns: list[Column[Gain]] = [
        Column("gain", lambda gain: f"{gain_text(gain)} x"),
        Column("cycles", lambda gain: cycles_text(found, gain)),
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


def by_itself(between: Between | None, width: int = WIDTH) -> str:
    """That a layer of a machine on which layers overlap is explained alone; empty for other machines."""
    if between is None or not between.asked:
        return ""
    told = "Layers overlap on this machine; but for the line that says so, all that follows is of this one by itself."
    return folded([told], width)


def overlap_line(between: Between | None, width: int = WIDTH) -> str:
    """What it hides that the layer overlaps with its neighbours; empty where it has none."""
    if between is None:
        return ""
    hidden, saved = between.hidden_cycles, between.hbm_saved_bytes
    saves = f"all of them take {abs(hidden):,} cycles {'more' if hidden < 0 else 'fewer'} together"
    saves = saves if hidden else "all of them take as long as one by one"
    less = f", and move {quantity(saved, BYTES)} less through HBM" if saved else ""
    share = f"it takes {between.own_cycles:,} of the cycles, and " if between.asked else ""
    ahead = f"; it does not with the one ahead, as {between.apart}" if between.apart else ""
    overlap = f"Overlapping with its neighbours (sequencer.between_layers={between.how})"
    return folded([f"{overlap}: {share}{saves}{less}{ahead}"], width)


def gain_name(gain: Gain) -> str:
    """What was relaxed, and what its cycles are counted by."""
    per = gain.relaxation.per
    return gain.relaxation.name + ("" if per == "layer" else f", per {per}")


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
