"""The answer of `tpusim collective`: time and bandwidth, the use of links, what a chip does, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tpusim.machines.tpu.slices.algorithms.registry import ALGORITHMS
from tpusim.machines.tpu.slices.checked import MOST_CHECKED, MOST_CHIPS, CheckedCollective
from tpusim.machines.tpu.slices.collective import OPS
from tpusim.machines.tpu.slices.summary import CollectiveTime
from tpusim.report.shown import Bars, Column, CommandAnswer, Content, Paragraphs, Sentences, Table
from tpusim.report.text import column_scale, percent, quantity, three_digits
from tpusim.result.vocabulary.figures import MEMORY, RATES, TIMES
from tpusim.result.vocabulary.states import CHIP_STATES
from tpusim.study.explain.collectives import Changed, ExplainedCollective

_SIZES = (("TiB", 2.0**40), ("GiB", 2.0**30), *MEMORY)
WAYS = {1: "+", -1: "-"}


def size_text(size: int) -> str:
    """Write a number of bytes as people ask for it: "64 MiB"."""
    unit, scale = next((unit, scale) for unit, scale in _SIZES if size >= scale)
    return f"{size / scale:,.4g} {unit}"


def asked(made: CollectiveTime, with_size: bool = True) -> str:
    """Say what a collective is, on what."""
    question = made.question
    size = f" of {size_text(question.size)}" if with_size else ""
    return f"{question.op.replace('_', '-')}{size} on {question.place.label}: {question.place.words}"


def one(
    made: CollectiveTime, checked: CheckedCollective | None, explained: ExplainedCollective | None
) -> CommandAnswer:
    """Return the answer about one size."""
    paragraphs: list[Sequence[Content]] = [[Sentences([asked(made)], wide=True)], [Sentences(_told(made, checked))]]
    states = [(state.label, float(made.account[key])) for key, state in CHIP_STATES.items() if made.account[key]]
    legend = " ".join(f"{state.label}: {state.meaning}" for key, state in CHIP_STATES.items() if made.account[key])
    paragraphs.append(["Cycles of the chip that is done last", Bars(states, made.cycles), Sentences([legend])])
    paragraphs.append(["Time for which links are held", _link_table(made)])
    if explained:
        paragraphs += _explained(explained)
    return CommandAnswer(paragraphs, {**_data(made), "checked": _checked(checked), **_explained_data(explained)})


def curve(made: Sequence[CollectiveTime]) -> CommandAnswer:
    """Return the answer about several sizes."""
    unit, scale = column_scale([each.seconds * 1e6 for each in made], TIMES)
    table: Table[CollectiveTime] = Table(
        [
            Column("bytes", lambda each: size_text(each.question.size)),
            Column(f"time\n{unit}", lambda each: three_digits(each.seconds * 1e6 / scale)),
            Column("bandwidth\nGB/s", lambda each: three_digits(each.bandwidth / 1e9)),
            Column(f"closed form\n{unit}", lambda each: three_digits(each.bound * 1e6 / scale), 1),
            Column("of it\n%", lambda each: percent(each.bound / each.seconds), 2),
            Column("busiest link\n%", lambda each: percent(each.busiest), 3),
            Column("waits for a\nneighbour %", lambda each: percent(each.account["neighbour_wait"] / each.cycles), 4),
            Column("algorithm", lambda each: each.algorithm, 5, "left"),
        ],
        list(made),
    )
    about = (
        "bandwidth: as a benchmark counts it. closed form: bytes over links, without hops and launch. waits for a "
        "neighbour: of the chip that is done last."
    )
    paragraphs: Paragraphs = [[Sentences([asked(made[0], with_size=False)], wide=True)], [table, Sentences([about])]]
    return CommandAnswer(paragraphs, {"sizes": [_data(each) for each in made]})


def _told(made: CollectiveTime, checked: CheckedCollective | None) -> list[str]:
    question, choice = made.question, made.question.choice
    group = question.collective.group
    names = ", ".join(question.names)
    found = [f"{size_text(question.size)}: {OPS[question.op].bytes_are}; {OPS[question.op].about}."]
    if question.mesh:
        found += [f"Mesh {each}." for each in question.laid.words]
    found.append(f"{'Axes' if ',' in names else 'Axis'} {names}: {group.size:,} chips together.")
    found.append(
        f"{quantity(made.seconds * 1e6, TIMES)}, {made.cycles:,} cycles; {quantity(made.bandwidth, RATES)} as a "
        "benchmark prints it."
    )
    found.append(
        f"Closed form, bytes over links without hops and launch: {quantity(made.bound * 1e6, TIMES)}, "
        f"{percent(made.bound / made.seconds)} % of the time."
    )
    found.append(f"Bound by {bound_of(made)}.")
    named = f"; in the compiler's code {choice.emitter}" if choice.emitter else ""
    if choice.strategy:
        named += f", {choice.strategy}, colours {choice.colours}, phases {choice.phases}"
    # No code of the compiler was read in which chips of several slices take part.
    usual = "the usual is" if group.joins_slices else "the compiler takes"
    taken = named if made.algorithm == choice.algorithm else f"; {usual} {choice.algorithm}"
    found.append(f"By {made.algorithm}: {ALGORITHMS[made.algorithm].about}{taken}.")
    if checked:
        engines = f", in agreement: {', '.join(checked.engines)}" if len(checked.engines) > 1 else ""
        found.append(f"{checked.elements:,} elements of all chips checked: {checked.wrong} wrong{engines}.")
    else:
        found.append(
            f"Its values are not checked: they are computed of up to {MOST_CHIPS} chips with {MOST_CHECKED:,} "
            "elements together."
        )
    return found


def bound_of(made: CollectiveTime) -> str:
    """Say what takes most of a collective's time."""
    account, cycles = made.account, made.cycles
    busiest = f"the busiest is held for {percent(made.busiest)} % of the time"
    most = max(account, key=lambda key: account[key])
    share = percent(account[most] / cycles)
    if most == "sends":
        return f"links: one of the last chip carries for {share} % of the time, and {busiest}"
    words = {"neighbour_wait": "waiting for neighbours", "launch": "its launch", "adds": "additions",
             "moves": "memory"}  # fmt: skip
    return f"{words[most]}, {share} % of the time; of links {busiest}"


AxisLinks = tuple[str, Sequence[float]]
"""The links along an axis in one direction, and the part of the time for which each is held."""


def _by_axis(made: CollectiveTime) -> list[AxisLinks]:
    """Return the links of the chips that may share links with the first, which stand for all others."""
    torus, found = made.question.laid.torus, dict[str, list[float]]()
    group = made.question.collective.group
    shown, spanned = {*group.sharing}, {span.axis for span in group.spans}
    for port in torus.ports:
        if port.place in shown and port.axis in spanned:
            found.setdefault(f"{torus.axes[port.axis].name}{WAYS[port.way]}", []).append(made.links.get(port, 0.0))
    return sorted(found.items())


def _link_table(made: CollectiveTime) -> Table[AxisLinks]:
    return Table(
        [
            Column("link", lambda each: each[0], justify="left"),
            Column("links", lambda each: f"{len(each[1]):,}", 1),
            Column("least %", lambda each: percent(min(each[1]))),
            Column("mean %", lambda each: percent(sum(each[1]) / len(each[1]))),
            Column("most %", lambda each: percent(max(each[1]))),
        ],
        _by_axis(made),
    )


def _explained(found: ExplainedCollective) -> Iterator[Sequence[Content]]:
    yield ["What would help", _changes(found, found.easier, "with")]
    if found.axes:
        yield ["Over other axes", _changes(found, found.axes, "axes")]
    if found.algorithms:
        yield ["By another algorithm", _changes(found, found.algorithms, "algorithm")]


def _changes(found: ExplainedCollective, changed: Changed, head: str) -> Table[tuple[str, CollectiveTime]]:
    unit, scale = column_scale([found.made.seconds * 1e6], TIMES)
    return Table(
        [
            Column(head, lambda each: each[0], justify="fold", widest=60),
            Column("chips", lambda each: f"{each[1].question.collective.group.size:,}", 2),
            Column(f"time\n{unit}", lambda each: three_digits(each[1].seconds * 1e6 / scale)),
            Column("change\n%", lambda each: f"{100 * (each[1].seconds / found.made.seconds - 1):+.1f}"),
            Column("bandwidth\nGB/s", lambda each: three_digits(each[1].bandwidth / 1e9), 1),
        ],
        [*changed.items()],
    )


def _data(made: CollectiveTime) -> dict[str, Any]:
    question, choice = made.question, made.question.choice
    return {
        "op": question.op,
        "bytes": question.size,
        "slice": question.place.to_dict(),
        "axes": list(question.names),
        "mesh": {name: [list(span) for span in spans] for name, spans in question.laid.axes.items()},
        "chips": question.collective.group.size,
        "algorithm": made.algorithm,
        "compiler": {
            "algorithm": choice.algorithm, "emitter": choice.emitter, "strategy": choice.strategy,
            "colours": choice.colours, "phases": choice.phases, "books": list(choice.books),
        },
        "cycles": made.cycles,
        "time_s": made.seconds,
        "bandwidth_bytes_per_s": made.bandwidth,
        "closed_form_s": made.bound,
        "account": dict(made.account),
        "links": {name: {"least": min(shares), "mean": sum(shares) / len(shares), "most": max(shares)}
                  for name, shares in _by_axis(made)},
    }  # fmt: skip


def _checked(checked: CheckedCollective | None) -> dict[str, Any] | None:
    if checked is None:
        return None
    return {"elements": checked.elements, "wrong": checked.wrong, "engines": list(checked.engines)}


def _explained_data(found: ExplainedCollective | None) -> dict[str, Any]:
    if found is None:
        return {}
    groups = {"easier": found.easier, "other_axes": found.axes, "other_algorithms": found.algorithms}
    return {
        name: [{"what": what, "cycles": each.cycles, "time_s": each.seconds} for what, each in changed.items()]
        for name, changed in groups.items()
    }
