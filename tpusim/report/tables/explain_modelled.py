"""Why a layer takes as long as it does on a machine of any family, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.table import Table

from tpusim.base.words import counted
from tpusim.report.tables.layout import Column, figure_column, table
from tpusim.report.tables.own import own_text
from tpusim.report.text import document, folded, percent, quantity, scale
from tpusim.result.records import LayerResult
from tpusim.result.vocabulary.figures import BYTES, LAYER, TIMES, value_of
from tpusim.result.vocabulary.own import own_figure
from tpusim.result.vocabulary.states import all_parts, main_name, parts_of, unit_name
from tpusim.study.explain.modelled import Easier, Explained

LEAST_GAIN = 1.01
"""What gains less bounds nothing."""
NO_GAIN = 0.005
"""What changes the cycles by less is listed by name only."""
WIDTH = 79


def heading(found: Explained, workload: str) -> str:
    """Which layer, on what, and how long it takes."""
    layer, asked = found.layer, found.asked
    use = f"PE utilisation {percent(layer.pe_utilization)} % (100 % is {counted(layer.ideal_cycles, 'cycle')})"
    return (
        f"{workload} {layer.name}, batch {asked.batch}, on {asked.machine.name}: {asked.layer.text}\n"
        f"{layer.cycles:,} cycles = {quantity(layer.time_us, TIMES)}; {use}"
    )


def verdict(found: Explained, width: int = WIDTH) -> str:
    """What gains the most, and the largest loss."""
    most = next(iter(found.easier), None)
    if most is None or most.gain < LEAST_GAIN:
        bound = (
            f"No single thing bounds this layer: nothing that was tried makes it {100 * (LEAST_GAIN - 1):.0f} % faster."
        )
    else:
        bound = f"With {most.name}, it is {most.gain:.2f} times as fast: of all that was tried, that gains the most."
    parts = parts_of(found.layer)
    states = {state.key: state for state in all_parts(found.layer)}
    largest = max((key for key in parts if key != "useful"), key=parts.__getitem__)
    share = percent(parts[largest] / found.layer.cycles)
    return folded([f"{bound} The largest loss is {states[largest].doing}: {share} % of the cycles."], width)


def gains_table(found: Explained, width: int | None = None) -> Table:
    """A row a thing made easier, where that makes a difference, the best first."""
    columns = [
        Column[Easier]("gain", lambda each: f"{each.gain:.2f} x"),
        Column[Easier]("cycles", lambda each: f"{found.layer.cycles / each.gain:,.0f}"),
        Column[Easier]("with", lambda each: each.name, justify="left"),
        Column[Easier]("that is", lambda each: each.how, 1, "fold"),
    ]
    return table(columns, [each for each in found.easier if abs(each.gain - 1) >= NO_GAIN], width)


def no_gain(found: Explained, width: int = WIDTH) -> str:
    """What makes no difference, and what could not be tried."""
    names = [each.name for each in found.easier if abs(each.gain - 1) < NO_GAIN]
    untried = (f"Not tried: {each.name} ({each.reason})." for each in found.untried)
    return folded([*([f"No difference: {', '.join(names)}."] if names else []), *untried], width)


def cycles_bars(found: Explained, width: int = WIDTH) -> str:
    """Where the cycles of the main unit went, as bars of text."""
    cycles, parts = found.layer.cycles, parts_of(found.layer)
    rows = [(state.label, parts[state.key]) for state in all_parts(found.layer) if parts[state.key] >= 1]
    wide, digits = max(len(name) for name, _ in rows), len(f"{cycles:,}")
    # Two spaces, one after the name, and " 99.9 % " before the number.
    longest = max(5, width - wide - digits - 12)
    bars = [f"Where the cycles of the {main_name(found.layer)} go"]
    for name, count in rows:
        bar = "#" * max(1, round(longest * count / cycles))
        bars.append(f"  {name:<{wide}} {bar:<{longest}} {percent(count / cycles):>4} % {count:>{digits},.0f}")
    return "\n".join(bars)


def units_line(found: Explained, width: int = WIDTH) -> str:
    """How busy everything else is."""
    _, *others = found.layer.units.items()
    shares = (f"{unit_name(unit)} {percent(of.get('busy', 0) / found.layer.cycles)} %" for unit, of in others)
    return folded([f"Busy beside it: {', '.join(shares)}"], width) if others else ""


def lowering_text(found: Explained, width: int = WIDTH) -> str:
    """By which lowering, and what it chose."""
    asked, taken = found.asked.lowering, found.layer.lowering
    chosen = "" if asked == taken else f", the fastest ({asked})"
    told = (f"{own_figure(key).label} {own_text(key, value)}" for key, value in found.layer.own.items())
    return folded([f"How it is lowered, by {taken}{chosen}: {', '.join(told)}"], width, "  ")


def lowerings_table(found: Explained, width: int | None = None) -> Table:
    """A row a lowering, the fastest first."""
    rows, now = found.by_lowering, found.layer
    unit, size = scale([float(each.hbm_read_bytes + each.hbm_write_bytes) for each in rows], BYTES)
    columns = [
        Column[LayerResult]("", lambda each: "*" if each.lowering == now.lowering else "", justify="left"),
        Column[LayerResult]("lowering", lambda each: each.lowering, justify="left"),
        Column[LayerResult]("cycles", lambda each: f"{each.cycles:,}"),
        Column[LayerResult]("times\nas long", lambda each: f"{each.cycles / now.cycles:.2f}"),
        figure_column(LAYER["pe_utilization"], lambda each: value_of(each, "pe_utilization"), ("%", 1), 1),
        Column[LayerResult](f"HBM\n{unit}", lambda each: f"{(each.hbm_read_bytes + each.hbm_write_bytes) / size:,.2f}"),
    ]
    return table(columns, rows, width)


def unfit(found: Explained, width: int = WIDTH) -> str:
    """The lowerings by which it cannot run."""
    return folded((f"By {each.name} it cannot run here: {each.reason}." for each in found.unfit), width)


def paragraphs(found: Explained, workload: str, room: int | None) -> Iterator[str | Table]:
    """All of it, as it is shown."""
    width = min(WIDTH, room or WIDTH)
    yield from _with_gap(heading(found, workload))
    yield from _with_gap(verdict(found, width))
    yield gains_table(found, room)
    yield ""
    yield from _with_gap(no_gain(found, width))
    yield cycles_bars(found, width)
    yield from _with_gap(units_line(found, width))
    yield from _with_gap(lowering_text(found, width))
    yield lowerings_table(found, room)
    yield from _with_gap(unfit(found, width))
    yield "*: as it is lowered now."


def _with_gap(text: str) -> Sequence[str]:
    return [text, ""] if text else []


def to_json(found: Explained, workload: str) -> str:
    """The layer as in the result JSON, everything tried with its cycles, and the layer by each lowering."""
    asked = found.asked
    return document(
        hardware=asked.machine.to_dict(),
        workload=workload,
        batch=asked.batch,
        lowering=asked.lowering,
        layer=asdict(found.layer),
        gains=[
            {"with": each.name, "that_is": each.how, "cycles": each.cycles, "gain": each.gain} for each in found.easier
        ],
        untried=[{"with": each.name, "reason": each.reason} for each in found.untried],
        lowerings=[
            *(
                {"lowering": each.lowering, "cycles": each.cycles, "time_us": each.time_us}
                for each in found.by_lowering
            ),
            *({"lowering": each.name, "unfit": each.reason} for each in found.unfit),
        ],
    )
