"""The step of a network that several chips share, in words: its time by part, and what its chips exchange."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tpusim.base.words import counted
from tpusim.report.shown import Column, Content, Paragraphs, Sentences, Table
from tpusim.report.text import column_scale, percent, quantity, three_digits
from tpusim.result.records import CollectiveResult, Result, StageResult, StepResult
from tpusim.result.vocabulary.figures import BYTES, TIMES
from tpusim.result.vocabulary.states import STEP_PARTS, State

MOST_ROWS = 60
"""Most rows of collectives: those for which the chip waits longest, then the longest."""
_NUMBER = re.compile(r"_\d+(?=\.|$)")


class AlikeCollectives(NamedTuple):
    """Collectives of layers that come again and again, as blocks do: of equal bytes, over equal axes."""

    first: CollectiveResult
    many: int
    exposed_cycles: int

    @property
    def cycles(self) -> int:
        """Cycles of all of them together."""
        return self.many * self.first.times * self.first.cycles


def alike_collectives(step: StepResult) -> list[AlikeCollectives]:
    """Return the collectives of a step in order, those of copies of a layer as one."""
    found: dict[object, list[CollectiveResult]] = {}
    for each in step.collectives:
        kind = _NUMBER.sub("", each.name), each.op, each.bytes, each.axes, each.cycles
        found.setdefault(kind, []).append(each)
    return [
        AlikeCollectives(those[0], len(those), sum(each.times * each.exposed_cycles for each in those))
        for those in found.values()
    ]


def step_paragraphs(result: Result) -> Paragraphs:
    """Return what there is to say of a step: nothing of a run without one."""
    if (step := result.step) is None:
        return ()
    found: list[Sequence[Content]] = [*_exchanged(step)] if step.collectives else []
    if step.stages:
        stages = stage_table(step)
        found.append([stages, stages.legend()])
    legend = " ".join(f"{part.label}: {part.meaning}" for key, part in STEP_PARTS.items() if step.parts.get(key))
    return [*found, [Sentences(step_sentences(step))], [parts_table(step), Sentences([legend])]]


def step_sentences(step: StepResult) -> list[str]:
    """Say what a step takes and makes, and how much of what chips exchange layers hide."""
    axes = "".join(f"{name} {chips:,}, " for name, chips in step.mesh.items())
    told = [
        f"A step of {counted(step.chips, 'chip')}, {axes}on {step.slice} ({step.about}): {step.cycles:,} cycles = "
        f"{quantity(step.seconds * 1e6, TIMES)}.",
        f"{three_digits(step.items_per_second)} {step.items} a second, "
        f"{three_digits(step.items_per_second_chip)} a chip.",
    ]
    if step.stages:
        turns = "one forward and one backward in turn" if step.stages[0].backward_cycles else "one after another"
        busiest = min(range(len(step.stages)), key=lambda at: step.stages[at].bubble_cycles)
        told.append(
            f"{len(step.stages)} stages take {step.microbatches:,} microbatches, {turns}. Parts and collectives are of "
            f"stage {busiest}, which is busy longest."
        )
    if step.collectives:
        every, waits = sum(each.times * each.cycles for each in step.collectives), step.exposed_cycles
        scale = step.seconds * 1e6 / step.cycles
        told.append(
            f"What chips exchange takes {quantity(every * scale, TIMES)}, one after another; the chip waits for "
            f"{quantity(waits * scale, TIMES)} of it, and {percent(1 - waits / every)} % is hidden behind layers and "
            "behind one another."
        )
    return told


def parts_table(step: StepResult) -> Table[tuple[State, int]]:
    """Return a row a part of a step's time; they add up to it."""
    rows = [(STEP_PARTS[part], cycles) for part, cycles in step.parts.items() if cycles]
    each = step.seconds * 1e6 / step.cycles
    unit, size = column_scale((cycles * each for _, cycles in rows), TIMES)
    return Table(
        [
            Column("part", lambda row: row[0].label, justify="left"),
            Column("cycles", lambda row: f"{row[1]:,}"),
            Column(f"time\n{unit}", lambda row: three_digits(row[1] * each / size)),
            Column("share\n%", lambda row: percent(row[1] / step.cycles)),
        ],
        rows,
    )


def stage_table(step: StepResult) -> Table[tuple[int, StageResult]]:
    """Return a row a stage of a pipeline: its turns, what it sends, and its bubble."""
    each = step.seconds * 1e6 / step.cycles
    rows = [*enumerate(step.stages)]
    cycles = (value for _, stage in rows for value in (stage.forward_cycles, stage.update_cycles))
    unit, size = column_scale((value * each for value in cycles), TIMES)

    def time(name: str, head: str, part: int, legend: str = "") -> Column[tuple[int, StageResult]]:
        return Column(
            f"{head}\n{unit}", lambda row: three_digits(getattr(row[1], name) * each / size), part, legend=legend
        )

    back = bool(step.stages[0].backward_cycles)
    columns: list[Column[tuple[int, StageResult]]] = [
        Column("stage", lambda row: f"{row[0]}"),
        Column("layers", lambda row: f"{row[1].layers:,}", 3),
        time("forward_cycles", "forward", 0, "forward: of a microbatch"),
        *([time("backward_cycles", "backward", 0)] if back else []),
        *([time("update_cycles", "update", 1, "update: once a step")] if back else []),
        time("ahead_cycles", "ahead", 2, "ahead: what it makes goes to the next stage"),
        *([time("back_cycles", "back", 2, "back: gradients go to the stage ahead")] if back else []),
        *([Column[tuple[int, StageResult]](
            "held", lambda row: f"{row[1].held:,}", 1, legend="held: microbatches with values kept for the way back"
        )] if back else []),
        Column("bubble\n%", lambda row: percent(row[1].bubble_cycles / step.cycles), 0, legend=_BUBBLE),
    ]  # fmt: skip
    return Table(columns, rows)


_BUBBLE = "bubble: of the step, the stage has nothing to do"


def collective_table(rows: Sequence[AlikeCollectives], step: StepResult) -> Table[AlikeCollectives]:
    """Return a row for collectives that are alike."""
    each = step.seconds * 1e6 / step.cycles
    unit, size = column_scale((row.first.cycles * each for row in rows), TIMES)
    bytes_unit, bytes_size = column_scale((row.first.bytes for row in rows), BYTES)
    several = any(row.many > 1 for row in rows)
    columns: list[Column[AlikeCollectives]] = [
        Column("collective", lambda row: row.first.name, justify="left", part=4),
        *([Column[AlikeCollectives]("n", lambda row: f"{row.many:,}", legend=_N)] if several else []),
        Column("axes", lambda row: ", ".join(row.first.axes), 1, "left", _AXES),
        Column(f"size\n{bytes_unit}", lambda row: three_digits(row.first.bytes / bytes_size), 2, legend=_SIZE),
        Column("algorithm", lambda row: row.first.algorithm, 4, "left"),
        Column("cycles", lambda row: f"{row.first.cycles:,}"),
        Column(f"time\n{unit}", lambda row: three_digits(row.first.cycles * each / size), 3),
        Column("HBM\n%", lambda row: percent(row.first.hbm_cycles / row.first.cycles), 5, legend=_HBM),
        Column("waits\n%", lambda row: percent(row.exposed_cycles / row.cycles), 0, legend=_WAITS),
        Column("of step\n%", lambda row: percent(row.exposed_cycles / step.cycles), 0, legend=_OF_STEP),
    ]
    return Table(columns, rows)


_AXES = "axes: axes of the mesh along which chips take part"
_N = "n: collectives of copies of a layer, as one row; cycles are of one of them"
_SIZE = "size: bytes of a chip before it; of an all_gather after it"
_HBM = "HBM: cycles in which it uses HBM, of its cycles"
_WAITS = "waits: cycles in which the chip waits for it, of its cycles, mean over n; in the others layers run"
_OF_STEP = "of step: cycles in which the chip waits for all n, each as often as it takes place, of those of the step"


def _exchanged(step: StepResult) -> Paragraphs:
    every = alike_collectives(step)
    rows = every
    # A network without blocks has a collective for each of its weights.
    if len(every) > MOST_ROWS:
        ranked = sorted(range(len(every)), key=lambda at: (-every[at].exposed_cycles, -every[at].cycles))
        rows = [every[at] for at in sorted(ranked[:MOST_ROWS])]
    table = collective_table(rows, step)
    left = sum(row.many for row in every) - sum(row.many for row in rows)
    more = f"Not shown: {left:,} more, for which the chip waits less (--json and --out have all)." if left else ""
    return [table, more], [table.legend()]
