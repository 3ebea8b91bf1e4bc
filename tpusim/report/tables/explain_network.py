"""Why a network takes as long as it does: the layers that cost most with their verdicts, and what helps the whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tpusim.base.words import counted
from tpusim.report.shown import NONE, Column, CommandAnswer, Paragraphs, Sentences, Table, telling
from tpusim.report.tables.explain import LIMITS, bound_sentence, gain_data, gain_text, largest_loss
from tpusim.report.tables.step import parts_table, step_sentences
from tpusim.report.text import percent, quantity
from tpusim.result.chips import share_notice, shared_by
from tpusim.result.vocabulary.figures import TIMES
from tpusim.study.explain.bottleneck import ExplainedLayer, Gain
from tpusim.study.explain.network import CostlyLayers, ExplainedNetwork, NetworkGain

_NARROW = 100
"""Narrower terminals, in characters, leave out the column that says how a layer's change is set."""


def network_explained(found: ExplainedNetwork) -> CommandAnswer:
    """Return what a network's time goes to and what would help."""
    jobs = found.jobs
    heading = f"{network_named(found)}, on {jobs.hardware.label}"
    layers: list[Column[CostlyLayers]] = [
        Column("layer", lambda each: each.found.layer.name, justify="left", part=4),
        Column("equal\nlayers", lambda each: f"{len(each.names):,}"),
        Column("of run\n%", lambda each: percent(each.share)),
        Column("cycles\nof each", lambda each: f"{each.found.layer.cycles:,}", 2),
        Column("bound by", lambda each: bound_by(each.found), 1, "left"),
        Column("gain", lambda each: f"{gain_text(each.found.most)} x" if each.found.most else NONE),
        Column("with", lambda each: each.found.most.name if each.found.most else NONE, justify="left"),
        Column("that is", lambda each: each.found.most.how if each.found.most else NONE, 3, "fold", least=_NARROW),
    ]
    changes: list[Column[NetworkGain]] = [
        Column("gain", lambda each: f"{each.gain:.2f} x"),
        Column("cycles", lambda each: f"{each.cycles:,}"),
        Column(
            "with", lambda each: each.name + (", per item of the batch" if each.per == "image" else ""), justify="left"
        ),
        Column("that is", lambda each: each.how, justify="fold"),
    ]
    five = "the kinds of layers" if len(found.costly) > 1 else "the kind of layer"
    alone = ["Layers overlap on this machine: shares are of the network, and verdicts of each layer by itself."]
    whole: Paragraphs = []
    if found.gains:
        whole = [["What helps the whole network, simulated anew with each change", Table(changes, found.gains)]]
    of_chips: Paragraphs = []
    if found.step:
        of_chips = [[Sentences(step_sentences(found.step)), parts_table(found.step)]]
    paragraphs: Paragraphs = [
        [
            Sentences([heading], wide=True),
            f"{counted(len(found.layers), 'layer')} of {counted(found.kinds, 'kind')}: {found.cycles:,} cycles = "
            f"{quantity(found.time_us, TIMES)}",
            Sentences(alone if jobs.family.overlaps(jobs.machine) else []),
        ],
        *of_chips,
        [Sentences(_verdict(found))],
        [f"Where the time goes: {five} that cost most", Table(telling(layers, found.costly), found.costly)],
        *([Sentences([_why(each)])] for each in found.costly),
        *whole,
        [Sentences(_rest(found))],
    ]
    return CommandAnswer(paragraphs, _data(found))


def network_named(found: ExplainedNetwork) -> str:
    """Return the network, its batch and sizes, and how many chips share it."""
    work = found.jobs.work
    sizes = (f"{name} {size}" for name, size in work.sizes)
    batch = f"batch {work.batch}{' a chip' if found.step else ''}"
    chips = found.step.chips if found.step else work.chips
    return ", ".join(filter(None, [work.name, batch, *sizes, shared_by(chips)]))


def network_at_a_glance(found: ExplainedNetwork) -> list[tuple[str, str, str]]:
    """Return the figures that matter most, each with its name and what more there is to say."""
    first = found.costly[0]
    tiles = [
        ("time", quantity(found.time_us, TIMES), f"{found.cycles:,} cycles"),
        ("costs most", f"{percent(first.share)} %", _called(first)),
    ]
    if most := found.most:
        tiles.append(("helps the whole most", f"{most.gain:.2f} x", f"with {most.name}: {most.how}"))
    return tiles


def bound_by(found: ExplainedLayer) -> str:
    """Return what bounds a layer, in a word or two; "-" where nothing does, or where its family names no limits."""
    return LIMITS[found.limit][0] if found.limit else NONE


def _verdict(found: ExplainedNetwork) -> list[str]:
    share = percent(sum(each.share for each in found.costly))
    kinds = "kind of layer" if len(found.costly) == 1 else f"{len(found.costly)} kinds of layers"
    most, first = found.most, found.costly[0]
    said = [f"{_called(first)} cost{'s' * (len(first.names) == 1)} most, {percent(first.share)} % of the cycles; the "
            f"{kinds} below {'takes' if len(found.costly) == 1 else 'take'} {share} % together."]  # fmt: skip
    if most is None:
        return [*said, "Nothing that was tried makes the whole network faster."]
    per = ", per item of the batch" if most.per == "image" else ""
    whole = f"The whole network gains most with {most.name} ({most.how}): it is {most.gain:.2f} times as fast{per}"
    others = [each for each in found.gains if each.per == "network"]
    if most.per == "image" and others and others[0].gain > 1:
        best = others[0]
        whole += f". At this batch the best is {best.name} ({best.how}): {best.gain:.2f} times as fast"
    return [*said, f"{whole}."]


def _called(costly: CostlyLayers) -> str:
    name, more = costly.found.layer.name, len(costly.names) - 1
    return f"{name} and {more:,} equal to it" if more else name


def _why(costly: CostlyLayers) -> str:
    """Say of a layer what bounds it, and which changes gain most."""
    found = costly.found
    said = bound_sentence(found) or largest_loss(found)
    gains = [] if found.most is None else [_gained(found.most)]
    setting = found.best_setting
    if found.most and setting and setting is not found.most:
        gains.append(f"of what can be set, {_gained(setting)}")
    tried = "; ".join(gains)
    of_changes = f" {tried[0].upper()}{tried[1:]}." if tried else ""
    return f"{found.layer.name} ({found.setup.layer.text}): {said}{of_changes}"


def _gained(gain: Gain) -> str:
    return f"{gain.name} ({gain.how}) makes it {gain_text(gain)} times as fast"


def _rest(found: ExplainedNetwork) -> list[str]:
    """Say what was not tried on the whole, and how many simulations there were."""
    same = f"No difference to these layers, hence not tried on the whole: {', '.join(found.unmoved)}."
    each = "of one layer, or of all together" if found.jobs.family.overlaps(found.jobs.machine) else "of one layer"
    name, shared = found.costly[0].found.layer.name, "" if found.step else share_notice(found.jobs.work.chips)
    return [
        *([shared] if shared else []),
        *([same] if found.unmoved else []),
        *(f"Not tried: {untried.name} ({untried.reason})." for untried in found.untried),
        f"{found.simulations:,} simulations, each {each}, timing alone; equal layers were simulated once. "
        f"--layer {name} tells more of that layer.",
    ]


def _data(found: ExplainedNetwork) -> dict[str, Any]:
    jobs, work = found.jobs, found.jobs.work
    return {
        "hardware": jobs.hardware.to_dict(),
        "changes": dict(jobs.hardware.changes),
        "workload": work.name,
        "batch": work.batch,
        "lowering": jobs.lowering,
        "cycles": found.cycles,
        "time_us": found.time_us,
        **({"step": asdict(found.step)} if found.step else {}),
        "layers": len(found.layers),
        "kinds": found.kinds,
        "simulations": found.simulations,
        "costly": [
            {
                "name": each.found.layer.name,
                "equal": [*each.names],
                "op": each.found.layer.op,
                "shape": each.found.setup.layer.text,
                "lowering": each.found.layer.lowering,
                "cycles": each.cycles,
                "cycles_of_each": each.found.layer.cycles,
                "share": each.share,
                "bound_by": each.found.limit or None,
                "verdict": _why(each),
                "gains": [*map(gain_data, each.found.gains)],
            }
            for each in found.costly
        ],
        "gains": [
            {"with": each.name, "that_is": each.how, "per": each.per, "cycles": each.cycles, "gain": each.gain}
            for each in found.gains
        ],
        "unmoved": [*found.unmoved],
        "untried": [{"with": each.name, "reason": each.reason} for each in found.untried],
    }
