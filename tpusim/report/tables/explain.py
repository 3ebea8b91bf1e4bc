"""Why a layer takes as long as it does: its place, what would help it, where its cycles go, and other lowerings; as
paragraphs for people and as data for other tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from tpusim.base.words import counted
from tpusim.flow.lowerings import ASKED
from tpusim.input.scalars import plain_number
from tpusim.network.workload import Workload
from tpusim.report.shown import NONE, Bars, Column, CommandAnswer, Content, Legend, Listing, Sentences, Table, telling
from tpusim.report.tables.sentences import energy_sentence, own_text
from tpusim.report.text import column_scale, folded, percent, quantity, three_digits
from tpusim.result.chips import shared_by
from tpusim.result.records import DramUse, LayerResult, told
from tpusim.result.vocabulary.figures import BYTES, COUNTS, MEMORY, RATES, TIMES, Scales, own_figure, value_of
from tpusim.result.vocabulary.states import (
    ARRAY_UNIT,
    PHASES,
    STATES,
    UNITS,
    all_parts,
    main_account,
    main_name,
    main_unit,
    parts_of,
    unit_name,
)
from tpusim.study.explain.bottleneck import (
    LEAST_GAIN,
    Alternative,
    Bottleneck,
    ExplainedLayer,
    Gain,
    LayerInChain,
    UntriedChange,
)

NO_GAIN = 0.005
"""Least effect on the cycles, as a ratio, of a change that has a row; others are listed by name only."""
_MOST_NAMED = 6
_PLANS = Sentences([
    "same plan: times as fast with the present blocks and passes; a plan chosen for the change gives the rest of the "
    "gain. Where the chosen plan is slower, the gain is that of the present plan. -: the present plan does not suit "
    "the change."
])  # fmt: skip
_NARROW = 72
"""Narrower terminals, in characters, leave out the column that says what was set."""


def explained(
    found: ExplainedLayer,
    work: Workload,
    between: LayerInChain | None,
    fit: Sequence[Alternative],
    unfit: Sequence[UntriedChange],
) -> CommandAnswer:
    """Say what bounds the layer, what overlapping saves it `between` its neighbours, and what each lowering costs."""
    layer, setup = found.layer, found.setup
    core = setup.layer.core
    more = "" if core is setup.layer else ", + what rides on results"
    shape = folded([f"({core.op} {core.grammar}{more})"], indent=" ")
    alone = "Layers overlap on this machine. Except on the line about it, all figures are of this layer by itself."
    changing, same = _by_effect(found.gains)
    columns: list[Column[Gain]] = [
        Column("gain", lambda gain: f"{gain_text(gain)} x"),
        Column("same\nplan", alone_text, 1),
        Column("cycles", lambda gain: cycles_text(found, gain)),
        Column("with", gain_name, justify="left"),
        Column("that is", lambda gain: gain.how, justify="fold", least=_NARROW),
    ]
    table = Table(telling(columns, changing), changing)
    use = f"PE utilisation {percent(layer.pe_utilization)} % (100 % is {counted(layer.ideal_cycles, 'cycle')})"
    use = use if layer.macs else "nothing for the array"
    whose = " - what the workload says of this layer, which goes before --lowering"
    own = any(each.layer == layer.name and not (each.where or "").startswith(ASKED) for each in work.lowerings)
    return CommandAnswer(
        (
            [
                Sentences(
                    [_heading(layer, setup.hardware.label, setup.batch, work.name, setup.layer.text, work.chips)]
                ),
                shape,
                f"{layer.cycles:,} cycles = {quantity(layer.time_us, TIMES)}; {use}",
                _neighbours(work, layer.name),
                Sentences([alone] if between and between.asked else []),
            ],
            [verdict(found)],
            [table],
            [_PLANS] if len(table.columns) == len(columns) else [],
            [no_gain([gain.name for gain in same], found.untried)],
            [
                f"Where the cycles of the {_main_name(layer)} go",
                Bars(_amounts(found), layer.cycles),
                _busy(_others_busy(layer), layer.cycles),
                _overlap(between),
                Sentences([energy_sentence(layer)]),
            ],
            [Sentences([_lowered(layer, setup.lowering) + whose * own]), *_choices(found)],
            *(_by_lowering(fit, unfit, layer.lowering) if len(fit) + len(unfit) > 1 else ()),
        ),
        _data(found, work, between, fit, unfit),
    )


def _main_name(layer: LayerResult) -> str:
    return "array" if main_unit(layer) == ARRAY_UNIT else main_name(layer)


def _amounts(found: ExplainedLayer) -> list[tuple[str, float]]:
    """Where the cycles go: of a TPU's array by its phases, of another machine by the parts of its main unit."""
    if isinstance(found, Bottleneck):
        return [(PHASES[phase], count) for phase, count in asdict(found.phases).items() if count]
    parts = parts_of(found.layer)
    return [(state.label, parts[state.key]) for state in all_parts(found.layer) if parts[state.key] >= 1]


def _others_busy(layer: LayerResult) -> list[tuple[str, int]]:
    """How many cycles each other unit is busy."""
    if main_unit(layer) != ARRAY_UNIT:
        return [(unit_name(unit), of.get("busy", 0)) for unit, of in layer.units.items() if unit != main_unit(layer)]
    busy = [(name, layer.units[unit]["busy"]) for unit, name in UNITS.items() if unit != ARRAY_UNIT]
    if "port" in layer.units:
        busy.append(("each port", layer.cycles - layer.units["port"]["idle"]))
    return busy


def _choices(found: ExplainedLayer) -> list[Content]:
    """What the lowering chose, as it tells it; else the figures that the machine's family has of its own."""
    if isinstance(found, Bottleneck):
        return [Listing(found.explanation.aspects | _rank(found))]
    own = (f"{own_figure(key).label} {own_text(key, value)}" for key, value in found.layer.own.items())
    return [Sentences([", ".join(own)], "  ")] if found.layer.own else []


def _data(
    found: ExplainedLayer,
    work: Workload,
    between: LayerInChain | None,
    fit: Sequence[Alternative],
    unfit: Sequence[UntriedChange],
) -> dict[str, Any]:
    """Return the layer as in the result JSON, every relaxation with its cycles, each lowering's cost, and what is
    saved.
    """
    setup, (reads, read_by) = found.setup, work.neighbours(found.layer.name)
    return {
        "hardware": setup.hardware.to_dict(),
        "changes": dict(setup.hardware.changes),
        "workload": work.name,
        "batch": setup.batch,
        "lowering": setup.lowering,
        "layer": {**asdict(found.layer), "inputs": reads, "riders": work.carried_by(found.layer.name)},
        "read_by": read_by,
        "overlapping": asdict(between) if between else None,
        "bound_by": found.limit or None,
        **(_of_the_array(found) if isinstance(found, Bottleneck) else {}),
        "gains": [*map(gain_data, found.gains)],
        "untried": [{"with": each.name, "reason": each.reason} for each in found.untried],
        "lowerings": [
            *(
                {
                    "lowering": each.lowering,
                    **_figures(each.layer, "cycles", "time_us", "hbm_read_bytes", "hbm_write_bytes"),
                    "workspace_bytes": each.workspace_bytes,
                    **_figures(each.layer, "peak_bytes", "reads", "writes"),
                    "units": {main_unit(each.layer): dict(main_account(each.layer))},
                }
                for each in fit
            ),
            *({"lowering": each.name, "unfit": each.reason} for each in unfit),
        ],
    }


def _of_the_array(found: Bottleneck) -> dict[str, Any]:
    """Return what only a machine with an array tells."""
    return {
        "phases": asdict(found.phases),
        "tiling": dict(found.explanation.choices),
        "rank": {**found.standing._asdict(), "first": vars(found.standing.first)} if found.standing else None,
        "main_state": found.main_state,
        "agrees": found.agrees,
    }


def gain_data(gain: Gain) -> dict[str, Any]:
    """Return a change and what it gains, as JSON has it."""
    return {
        "with": gain.relaxation.name,
        "that_is": gain.how,
        "relieves": gain.relaxation.limit,
        "per": gain.relaxation.per,
        "cycles": gain.cycles,
        "macs": gain.macs,
        "gain": gain.gain,
        "same_plan": gain.alone,
        "run_cycles": gain.run_cycles,
    }


def _rank(found: Bottleneck) -> dict[str, str]:
    """Say how the tiling stands among all that fit; empty where its lowering does not tell."""
    if (rank := found.standing) is None:
        return {}
    told = f"of {counted(rank.tilings, 'tiling')} that fit, "
    if not rank.faster:
        return {"rank": f"{told}none is expected to be faster than this one, of {rank.estimate:,.0f} cycles"}
    first, less, layer = rank.first, f"{rank.least:,.0f} ({rank.least / rank.estimate - 1:+.1%})", found.setup.layer
    told += f"{rank.faster:,} {'is' if rank.faster == 1 else 'are'} expected to be faster than this one, of "
    told += f"{rank.estimate:,.0f} cycles; the first of them takes {less}, in blocks of "
    if layer.spatial:
        strips = found.explanation.blocking.strips
        told += f"{first.rows} x {first.cols} outputs{f' in each of {strips} strips' if strips > 1 else ''} and "
    return {"rank": f"{told}{counted(first.groups, 'word')} of {layer.counted_by}s"}


def _figures(layer: LayerResult, *keys: str) -> dict[str, float]:
    """Return those figures that machines of its family have."""
    return {key: value for key in keys if (value := value_of(layer, key)) is not None}


def _neighbours(work: Workload, layer: str) -> Sentences:
    """Say what the layer reads, what reads it, and what rides on its results; empty where a result does not tell."""
    (reads, read_by), riders = work.neighbours(layer), work.carried_by(layer)

    def listed(names: Sequence[str]) -> str:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return f"{', '.join(names[:_MOST_NAMED])}{more}"

    by = f"; its output is read by {listed(read_by)}" if read_by else ""
    reading = [f"It reads {listed(reads)}{by}."] if reads else []
    riding = [f"On its results {'rides' if len(riders) == 1 else 'ride'} {listed(riders)}."] if riders else []
    return Sentences([" ".join([*reading, *riding])], "  ")


def _overlap(between: LayerInChain | None) -> Sentences:
    """Say how much overlapping with its neighbours hides of the layer; empty where it overlaps with none."""
    if between is None:
        return Sentences(())
    hidden, saved = between.hidden_cycles, between.hbm_saved_bytes
    saves = f"all of them take {abs(hidden):,} cycles {'more' if hidden < 0 else 'fewer'} together"
    saves = saves if hidden else "all of them take as long as one by one"
    less = f", and move {quantity(saved, BYTES)} less through HBM" if saved else ""
    share = f"it takes {between.own_cycles:,} of the cycles, and " if between.asked else ""
    ahead = f"; it does not overlap with the layer ahead, as {between.apart}" if between.apart else ""
    overlap = f"Overlapping with its neighbours (sequencer.between_layers={between.how})"
    return Sentences([f"{overlap}: {share}{saves}{less}{ahead}"])


def gain_name(gain: Gain) -> str:
    """Return what was relaxed, and what its cycles are counted by."""
    per = gain.relaxation.per
    return gain.relaxation.name + ("" if per == "layer" else f", per {per}")


def _by_lowering(fit: Sequence[Alternative], unfit: Sequence[UntriedChange], taken: str) -> Iterator[list[Content]]:
    """Yield a row a lowering, the fastest first; the legend of the columns; and the lowerings that do not fit."""
    now = next((each.layer.cycles for each in fit if each.lowering == taken), 0)

    def size(
        head: str, value: Callable[[Alternative], float | None], units: Scales, rank: int, of: str
    ) -> Column[Alternative]:
        """Make a column of sizes in one unit, so that the eye can compare."""
        known = [found for each in fit if (found := value(each)) is not None]
        unit, scaled = column_scale(known, units)
        legend = f"{head}: {of}".replace("\n", " ")

        def text(each: Alternative) -> str:
            found = value(each)
            return NONE if found is None else three_digits(found / scaled)

        return Column(f"{head}\n{unit}", text, rank, legend=legend)

    columns = telling(
        [
            *_lowering_columns(taken, now),
            size("HBM", lambda each: each.hbm_bytes, BYTES, 1, "bytes read and written"),
            size(
                "HBM\nworkspace",
                # A machine whose lowerings need none has no such column.
                lambda each: each.workspace_bytes if any(other.workspace_bytes for other in fit) else None,
                BYTES,
                2,
                "tensors beside ifmap, filter and ofmap",
            ),
            size("vector\nmemory", lambda each: value_of(each.layer, "peak_bytes"), MEMORY, 3, "in use, of all lanes"),
            size("port\naccesses", lambda each: each.accesses, COUNTS, 4, "words read and written, of all lanes"),
        ],
        fit,
    )
    yield ["What it costs by each lowering", Table(columns, fit)]
    alike = {each.reason: " or ".join(other.name for other in unfit if other.reason == each.reason) for each in unfit}
    cannot = [f"By {names} it cannot run here: {reason}." for reason, names in alike.items()]
    yield [Legend(columns), Sentences(cannot)]


def _heading(layer: LayerResult, machine: str, batch: int, workload: str, text: str, chips: int = 1) -> str:
    size = ", ".join(filter(None, [f"batch {batch}", shared_by(chips)]))
    return f"{workload} {layer.name}, {size}, on {machine}: {text}"


def _by_effect(gains: Sequence[Gain]) -> tuple[list[Gain], list[Gain]]:
    """Part changes into those that change the cycles, and those that do not."""
    changing = [each for each in gains if abs(each.gain - 1) >= NO_GAIN]
    return changing, [each for each in gains if abs(each.gain - 1) < NO_GAIN]


def no_gain(names: Sequence[str], untried: Sequence[UntriedChange]) -> Sentences:
    """Say which changes make no difference, and which could not be tried."""
    same = [f"No difference: {', '.join(names)}."] if names else []
    return Sentences([*same, *(f"Not tried: {each.name} ({each.reason})." for each in untried)])


def _busy(units: Iterable[tuple[str, int]], cycles: int) -> Sentences:
    """Say how busy all other units are."""
    shares = [f"{name} {percent(count / cycles)} %" for name, count in units]
    return Sentences([f"Busy beside it: {', '.join(shares)}"] if shares else [])


def _lowered(layer: LayerResult, asked: str) -> str:
    chosen = "" if asked == layer.lowering else f", the fastest ({asked})"
    return f"How it is lowered, by {layer.lowering}{chosen}"


def _lowering_columns(taken: str, now: int) -> list[Column[Alternative]]:
    """Return the columns of a lowering's name, and of its cycles beside the present ones."""
    return [
        Column("", lambda each: "*" if each.lowering == taken else "", justify="left"),
        Column("lowering", lambda each: each.lowering, justify="left"),
        Column("cycles", lambda each: f"{each.layer.cycles:,}"),
        Column(
            "times\nas long",
            lambda each: f"{each.layer.cycles / now:.2f}" if now else NONE,
            legend=f"times as long: as by {taken} (*), its lowering now",
        ),
    ]


# ---- what bounds a layer of a TPU, in words


LIMITS = {
    "array": ("the array", "it is busy in {busy} % of the cycles, with {mapped} % of its PEs in use."),
    "mapping": ("the mapping", "{mapped} % of the PEs are in use; a pass fills {filled}."),
    "ports": ("the ports of the vector memories", "words of {elements} come and go too often for one port a lane; "
              "the array loses {port_stall} % of its cycles to this."),
    "banks": ("conflicts in the banks", "rows of the array ask one bank for several words at once; the array loses "
              "{bank_conflict} % of its cycles to it."),
    "hbm": ("HBM bandwidth", "moving {moved} keeps the bus busy in {hbm} % of the cycles."),
    "rows": ("rows and channels of HBM", "{rows}."),
    "latency": ("HBM latency", "data comes {latency} cycles after it is asked for, and too few requests are "
                "under way."),
    "weights": ("loading weights", "{loads}. Too little input shares them."),
    "memory": ("the size of the vector memories",
               "cut into blocks that fit, the layer reads {reads:.2f} times its operands from HBM."),
    "block": ("the block that is given", "with {given}, the layer reads {reads:.2f} times its operands from HBM."),
    "vector_unit": ("the vector unit", "{conversions}it {adds} in {vector_unit} % of the cycles."),
    "sequencer": ("the sequencer", "a layer takes {launch} cycles to launch{bodies}{drains}."),
    "input": ("too little input", "{loads}; the layer's start and end take {ends} % of its cycles. More input would "
              "share them."),
}  # fmt: skip
"""The sentence for everything that can bound a layer; names in braces are keys of `_facts`."""

_ACCOUNT = "It tells what the array waits for, not what a change frees; the gains are simulated."
_WORK = {"layer": "", "image": " for as many images", "row": " for as many rows", "MAC": " for as many MACs"}


def verdict(found: ExplainedLayer) -> Sentences:
    """Say what bounds the layer, what relieving it gains, and whether the cycles of the array agree; of a machine
    without an array what its largest loss is.
    """
    bound = bound_sentence(found)
    if not isinstance(found, Bottleneck):
        gains = [_best(found.most, found)] if found.most else []
        return Sentences([*([bound] if bound else []), *gains, largest_loss(found)])
    if found.most is None:
        return Sentences([bound])
    share = percent(found.layer.units["systolic_array"][found.main_state] / found.layer.cycles)
    state = f"it is {STATES[found.main_state].doing} in {share} % of its cycles"
    agrees = f"The array's own account agrees: {state}."
    if not found.agrees:
        agrees = f"The array's own account points elsewhere: {state}. {_ACCOUNT}"
    return Sentences([bound, _best(found.most, found), agrees])


def bound_sentence(found: ExplainedLayer) -> str:
    """Say what bounds the layer; empty where its family names no limits."""
    if found.most is None:
        least = f"{100 * (LEAST_GAIN - 1):.0f} %"
        return f"No single thing bounds this layer: nothing that was tried makes it {least} faster."
    if not isinstance(found, Bottleneck):
        return ""
    limit, finding = LIMITS[found.most.relaxation.limit]
    return f"Bound by {limit}: {finding.format(**_facts(found))}"


def largest_loss(found: ExplainedLayer) -> str:
    """Say which state but useful work takes most of the main unit's cycles."""
    parts = parts_of(found.layer)
    states = {state.key: state for state in all_parts(found.layer)}
    largest = max((key for key in parts if key != "useful"), key=parts.__getitem__)
    share = percent(parts[largest] / found.layer.cycles)
    return f"The largest loss is {states[largest].doing}: {share} % of the cycles."


def _facts(found: Bottleneck) -> dict[str, object]:
    """Return the values that LIMITS names: shares of a layer's cycles, and where they come from."""
    layer, hardware, phases, units = found.layer, found.setup.hardware, found.phases, found.layer.units
    sequencer, streams = hardware.sequencer, found.program.streams
    # A layer that the vector unit does alone has no passes of the array, hence no sizes.
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
    """Name the load that more input would share: the weights of a pass, or the work of the vector unit."""
    layer, passes = found.layer, found.layer.passes
    if not passes:
        works = percent(layer.units["vector_unit"]["busy"] / layer.cycles)
        return f"the vector unit, which does it all, works in {works} % of the cycles"
    computes = layer.units["systolic_array"]["busy"] / passes
    takes = f"weights take {found.setup.hardware.preload_cycles} cycles to load"
    return f"{takes} for a pass that computes for {computes:,.0f}"


def _rows(use: DramUse) -> str:
    """Say how many rows the DRAM opened."""
    bursts = use.row_hits + use.row_misses + use.row_conflicts
    return (
        f"{percent((use.row_misses + use.row_conflicts) / max(1, bursts))} % of {bursts:,} bursts open a row, the "
        f"busiest channel of a transfer moves {use.channel_imbalance:.2f} times the mean, and {use.hbm_overfetch:.2f} "
        f"times the bytes of the elements asked for are moved, at {quantity(use.hbm_reached_bytes_per_s, RATES)}"
    )


def _a_word(found: Bottleneck) -> Iterator[str]:
    """Yield what the vector unit takes for a word, besides adding."""
    unit = found.setup.hardware.vector_unit
    if unit.unpack_cycles or unit.pack_cycles:
        unpacks, packs = plain_number(unit.unpack_cycles), plain_number(unit.pack_cycles)
        yield f"a word takes {unpacks} cycles to unpack, or {packs} to pack; "
    if unit.stack_cycles and found.layer.passes:
        beyond = f"for each copy beyond the first {unit.stack_free}"
        yield f"a word of stacked taps takes {plain_number(unit.stack_cycles)} {beyond}; "
    if unit.relayout_cycles and found.setup.hardware.mapping.entry == "relaid":
        yield f"a word of an ifmap in another layout takes {plain_number(unit.relayout_cycles)} cycles of loads; "
    if found.program.vectors and (unit.operand_cycles or unit.result_cycles or unit.ready_cycles):
        each = (plain_number(cycles) for cycles in (unit.operand_cycles, unit.result_cycles, unit.ready_cycles))
        yield "an operand takes {} cycles, a result {}, a word to be made ready {}; ".format(*each)
    hardware = found.setup.hardware
    # Any word takes as many cycles, however little of it is used.
    word, array = hardware.vector_memory.word_elements, hardware.array
    least = -(-word // array.elements_per_cycle) if array.streamed == "all" else 0
    if found.program.word_cycles > least:
        yield f"a word that is streamed takes {found.program.word_cycles} to be transposed; "


def _best(most: Gain, found: ExplainedLayer) -> str:
    """Say which change gains the most, and how much of it the present plan keeps; and, where another lowering is
    needed, which change gains the most with this one.
    """
    cycles = f"{cycles_text(found, most)} cycles{_WORK[most.relaxation.per]}"
    gains = f"With {most.relaxation.name}, it takes {cycles}: {gain_text(most)} times as fast{_by_plan(most)}."
    setting = found.best_setting
    if setting is None or setting is most:
        return gains
    can_be_set = f"Of what can be set, the best is {setting.relaxation.name}: {gain_text(setting)} times as fast"
    return f"{gains} {can_be_set}{_by_plan(setting)}."


def gain_text(gain: Gain) -> str:
    """Write how many times as fast the layer is after a change."""
    return f"{gain.gain:,.0f}" if gain.gain >= 1000 else f"{gain.gain:.2f}"


def planned_anew(gain: Gain) -> bool:
    """Return whether another plan than the present one is known to give a part of the gain."""
    return gain.alone is not None and gain.gain - gain.alone >= NO_GAIN


def _by_plan(gain: Gain) -> str:
    """Say how much of a gain another plan gives; empty where that is nothing or unknown."""
    if gain.alone is None or not planned_anew(gain):
        return ""
    if abs(gain.alone - 1) < NO_GAIN:
        return ", all of it with another plan"
    return f", {alone_text(gain)} times with the present plan, the rest with another"


def alone_text(gain: Gain) -> str:
    """Write how many times as fast the layer is by the present plan."""
    return NONE if gain.alone is None else gain_text(replace(gain, gain=gain.alone))


def cycles_text(found: ExplainedLayer, gain: Gain) -> str:
    """Write the cycles for the work of the layer as it is."""
    cycles = found.layer.cycles / gain.gain
    return f"{cycles:,.0f}" if cycles >= 1 else "< 1"
