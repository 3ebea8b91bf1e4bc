"""Lowerings as their modules describe them, and drafts of a layer: units that are not scheduled yet.

Then the explanation of a lowering, in words and figures, for a `Plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from tpusim.base.errors import CapacityError, Problem, UnsuitableError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.geometry import StripMaps, by_filter_row
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.tiling import Tiling, said
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import ExplainedProgram, Explanation, Program, StepCounts
from tpusim.machines.tpu.schedule.scheduler import planned, program_of
from tpusim.machines.tpu.schedule.units import Units
from tpusim.machines.tpu.search.search import Standing
from tpusim.machines.tpu.sections import Arrangement, MappingPolicy
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.op import Op, Shape
from tpusim.result.records import Blocking

_SAID = {"array": "array", "vector": "vector unit"}
"""Names of a machine's units for people."""


@dataclass(frozen=True)
class Draft:
    """A way to lower a layer, one of those that its lowering leaves to simulation.

    Attributes:
        make: makes the units.
        finish: turns the Program of the units into the Program to be run, and explains it.
        blocks: number of blocks; the more blocks, the more steps, if units have equal numbers of portions.
        least: cycles that every run of this draft takes at least; 0 where there is no choice.
        estimate: gives the cycles that the lowering expects, for convolutions and vector steps.
        of_any: gives cycles that every run of any draft of the layer takes at least; 0 where nobody knows.
        around: gives a context for these calls, which may add the layer's name to errors.
        arrangement: how the arrays are used; None: as the machine has them.
        standing: gives the standing of its tiling among all that fit, whatever block is given; None where a lowering
            does not tell.
    """

    make: Callable[[], Units]
    finish: Callable[[Program], ExplainedProgram]
    blocks: int = 1
    least: float = 0.0
    estimate: Callable[[], float] = float
    of_any: Callable[[], float] = float
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    arrangement: Arrangement | None = None
    standing: Callable[[], Standing | None] = lambda: None

    @cached_property
    def units(self) -> Units:
        """The units to be scheduled."""
        return self.make()

    def lower(self) -> ExplainedProgram:
        """The Program, and its explanation."""
        with self.around():
            return self.finish(_written(self.units))

    def telling(self, aspect: str, words: str, first: bool = False) -> Draft:
        """The draft with one more aspect explained, behind all others or `first`."""

        def finish(program: Program) -> ExplainedProgram:
            program, told = self.finish(program)
            aspects = {aspect: words, **told.aspects} if first else {**told.aspects, aspect: words}
            return program, replace(told, aspects=aspects)

        return replace(self, finish=finish)

    def finished(self, program: Program) -> Program:
        """The Program to be run, made from a Program of the units at any addresses."""
        return self.finish(program)[0]

    @property
    def planned(self) -> StepCounts:
        """Numbers of steps of the Program; vector steps count as transfers."""
        with self.around():
            return planned(self.units)


MOST_KEPT, LONGEST = 400, 5_000
"""Most Programs that a process keeps for machines that differ in time alone, and most steps of each."""

_kept: dict[Hashable, Program] = {}
"""Programs by what they follow from, the oldest first."""


def _written(units: Units) -> Program:
    """The Program of the units, or the equal one of others that were scheduled before."""
    if units.follows is None:
        return program_of(units)
    if (program := _kept.pop(units.follows, None)) is None:
        program = program_of(units)
        if len(program.rows) > LONGEST:
            return program
        if len(_kept) >= MOST_KEPT:
            del _kept[next(iter(_kept))]
    _kept[units.follows] = program
    return program


class Handover(NamedTuple):
    """Layers that a lowering leaves to another one, because both would do the same."""

    to: Lowering
    which: Callable[[ArrayOp, int], bool]


@dataclass(frozen=True)
class Lowering:
    """A lowering: its name, the ops it takes, and how it makes drafts.

    Attributes:
        name: name for `--lowering`, and of its module.
        gloss: description in one line, for users who choose.
        ways: gives the drafts of an op, a batch and a machine; the first is what a run without search takes. Raises
            CapacityError when nothing fits the memories, UnsuitableError for ops that it is not made for.
        unit: unit of the machine whose ops it takes.
        whole_rows: whether it takes ops of whole rows, in place of ops of single places.
        whole_channels: whether it takes ops of whole channels, in place of these.
        partial: whether it refuses some layers (UnsuitableError).
        pipelined: whether it makes steps of a pipeline of bodies (`mapping.loads: windows`); elsewhere their loads are
            whole.
        multiplies: whether its work goes through the arrays, which a layer may arrange.
        close: relative distance within which its estimates of two arrangements count as equal.
        banks: whether it can read from banks.
        carries: kinds of work that may be fused to its layers: on results "bias", "add", "finish"; "way" for work on
            what comes and on what goes.
        left: layers that it leaves to another lowering.
        least: gives cycles that every run takes at least, before anything is lowered; 0 if unknown.
        ignores: fields below `mapping` that have no effect.
    """

    name: str
    gloss: str
    ways: Callable[[Any, int, Hardware], Sequence[Draft]]
    unit: str = "array"
    whole_rows: bool = False
    whole_channels: bool = False
    partial: bool = False
    pipelined: bool = False
    multiplies: bool = True
    close: float = 0.0
    banks: bool = False
    carries: frozenset[str] = frozenset({"bias", "add", "finish", "way"})
    left: Handover | None = None
    least: Callable[[Any, int, Hardware], float] | None = None
    ignores: Callable[[Hardware], frozenset[str]] | frozenset[str] = frozenset()

    def takes(self, layer: Op) -> bool:
        """Whether an op is of the lowering's unit and kind."""
        own = layer.whole_rows == self.whole_rows and layer.whole_channels == self.whole_channels
        return layer.unit == self.unit and own

    def leaves(self, layer: Op, batch: int) -> bool:
        """Whether it leaves a layer to another lowering. Raises UnsuitableError for ops that are no convolutions."""
        return self.left is not None and isinstance(layer.core, ArrayOp) and self.left.which(layer.core, batch)

    def drafts(self, layer: Op, batch: int, hardware: Hardware) -> Sequence[Draft]:
        """The drafts of a layer's core: one, or what a simulation should choose from. Raises as `ways`."""
        if layer.core.unit != self.unit:
            says = f"{layer.core.op} is an op of the {_SAID[layer.core.unit]}, and {self.name} lowers those of the "
            raise UnsuitableError(f"{says}{_SAID[self.unit]}; name another lowering, or none")
        if self.left and self.leaves(layer, batch):
            return self.left.to.drafts(layer, batch, hardware)
        if hardware.banked and not self.banks:
            says = "this lowering reads from lanes alone; write lanes, or take another lowering"
            raise CapacityError(Problem(says, "vector_memory.organization"))
        return self._arranged(layer.core, batch, hardware)

    def _arranged(self, layer: Any, batch: int, hardware: Hardware) -> Sequence[Draft]:
        """The drafts of the arrangement of the arrays that is expected to be fastest; of equals, of the first.

        A simulation chooses from the drafts of all arrangements, the first of each ahead of the others.
        """
        every = hardware.arrangements(hardware.array.cols)[:1]
        if self.multiplies:
            # A product has one group; an attention has queries in all columns.
            groups = getattr(layer, "groups", 1)
            columns = hardware.array.cols if layer.whole_rows else layer.tensors(batch).ofmap[0] // groups
            every = hardware.arrangements(columns)
        found, failures = list[Sequence[Draft]](), list[CapacityError]()
        machine = hardware if self.pipelined and not hardware.banked else hardware.without_windows()
        for way in every:
            try:
                drafts = [replace(each, arrangement=way) for each in self.ways(layer, batch, machine.arranged(way))]
                found.append(
                    drafts
                    if len(every) == 1
                    else [each.telling("arrays", way.words(hardware.array)) for each in drafts]
                )
            except CapacityError as error:
                failures.append(error)
        if not found:
            raise failures[-1]
        if len(found) > 1:
            # Arrangements that tie by their estimates keep their order.
            least = min(drafts[0].estimate() for drafts in found) * (1 + self.close)
            found.sort(key=lambda drafts: max(drafts[0].estimate(), least))
            firsts = [drafts[0] for drafts in found]
            found[0] = [replace(firsts[0], of_any=lambda: min(each.of_any() for each in firsts)), *found[0][1:]]
        if hardware.mapping.search != "simulate" or not found[0][0].estimate():
            return found[0]
        return [*(drafts[0] for drafts in found), *(draft for drafts in found for draft in drafts[1:])]

    def lower(self, layer: Op, batch: int, hardware: Hardware) -> ExplainedProgram:
        """The first draft, scheduled. Raises as `ways`."""
        return self.drafts(layer, batch, hardware)[0].lower()

    def unused(self, hardware: Hardware) -> list[str]:
        """Fields below `mapping` that a machine sets and this lowering ignores."""
        ignored = self.ignores(hardware) if callable(self.ignores) else self.ignores
        ignored |= {"row_windows", "transposed_channels"} if hardware.banked else frozenset()
        mapping, plain = hardware.mapping, MappingPolicy()
        given = [name for name, value in mapping if name != "block" and value != getattr(plain, name)]
        return [name for name in (*given, *(f"block.{name}" for name in mapping.block.given)) if name in ignored]


def one_draft(
    units: Units, explained: Callable[[Program], Explanation], estimate: Callable[[], float] = float
) -> list[Draft]:
    """Drafts of a lowering without a choice, which explains a layer once it has its Program."""
    return [Draft(lambda: units, lambda program: (program, explained(program)), estimate=estimate)]


# ---- explanations


_ORDERS = {
    "block_major": "block by block, in each all output channels (block_major)",
    "filter_major": "column fold by column fold, in each all blocks (filter_major)",
}

_BEGINS = {
    "pieces": "",
    "whole": "; each begins when its loads are whole",
    "windows": "; a step of a pipeline each, whose loads come while the step ahead runs",
}


def explanation_of(plan: Plan, layer: ArrayOp, into: str = "") -> Explanation:
    """The explanation of a lowered `layer`; `into` names what row folds divide, if not its channels."""
    blocking, tiling, columns = blocking_of(plan), plan.tiling, len(plan.col_folds)
    passes, block = len(plan.passes), f"a block of {counted(len(plan.col_folds[0]), 'output channel')}"
    every = f"{passes * columns * len(plan.blocks) * plan.shape.groups:,}"
    kept = min(tiling.kept_folds, columns)
    drains = plan.hardware.sequencer.between_blocks == "drain" and kept > 1
    body = f"; {'all' if kept == columns else kept} column folds in one body" if drains else ""
    whole = _BEGINS[plan.hardware.mapping.loads]
    cut = len(plan.sections) > len(plan.chunks)
    part = f"; a filter buffer holds {tiling.section_passes} of {passes} passes" if cut else ""
    areas = zip((plan.ifmap.name, "filter", "results"), tiling.buffers, strict=True)
    aspects = {"taps": _taps(plan)} if layer.spatial else {}
    aspects |= {
        "folds": _folds(plan, layer, into),
        "passes": f"{every}, of which {passes} add up to {block}" if passes > 1 else f"{every}, each for {block}",
        "block": block_of(plan, blocking, layer),
        **({"chunks": _chunks(plan)} if len(plan.chunks) > 1 else {}),
        "order": _ORDERS[tiling.loop_order] + body + whole,
        "words": words_of(plan, layer),
        "memory": memory_of(areas, plan.hardware) + part,
    }
    return Explanation(plan.cut.multi_tile, blocking, dict(vars(tiling)), aspects)


def blocking_of(plan: Plan) -> Blocking:
    """The blocking of a plan, as results show it."""
    folds = plan.cut.row_folds, len(plan.col_folds), len(plan.chunks)
    return cut_up(plan.tiling, plan.shape, plan.shape.tensors.ofmap, plan.word_fill, *folds)


def cut_up(
    tiling: Tiling[int], shape: StripMaps, ofmap: Shape, fill: int, row_folds: int, col_folds: int, chunks: int = 1
) -> Blocking:
    """The blocking of an ofmap [channel, row, col, image] with `fill` elements used of each word."""
    _, high, wide, images = ofmap
    return Blocking(
        rows=min(tiling.rows * shape.row.cell, high), cols=min(tiling.cols * shape.col.cell, wide),
        images=min(tiling.groups * fill, images), blocks=tiling.blocks, row_folds=row_folds, col_folds=col_folds,
        loop_order=tiling.loop_order, word_fill=fill, strips=shape.strips, chunks=chunks,
    )  # fmt: skip


def _taps(plan: Plan) -> str:
    shape, stacked = plan.shape, plan.cut.stacked
    rows, cols = shape.row.kernel, shape.col.kernel
    # Channel counts are of one group, or of one bundle of groups, so the sentence must say how many there are.
    groups = f" in each of {shape.groups} groups" if shape.groups > 1 else ""
    if shape.bundle > 1:
        bundles = f", in each of {shape.groups} bundles" if shape.groups > 1 else ""
        groups = f" of {shape.bundle} groups side by side{bundles}"
    if rows * cols == 1:
        return f"1, over {counted(shape.channels, 'channel')}{groups}"
    own = "; each fetched for itself (per_tap)" if plan.chunks[0].by_tap and not plan.chunks[0].scattered else ""
    each = f"{rows} x {cols} = {rows * cols}, each a 1 x 1 convolution over {counted(shape.channels, 'channel')}"
    return each + groups + (f"; {stacked}" if stacked else "") + own


def _folds(plan: Plan, layer: ArrayOp, into: str) -> str:
    """Sentence about folds, and about the rows and columns of the array in use: the mean over passes."""
    (channels, out), shape, array, zeros = layer.folded, plan.shape, plan.hardware.array, ""
    if shape.bundle > 1:
        channels, out = counted(shape.channels, "input channel"), counted(shape.out_channels, "output channel")
        zeros = f", and {100 / shape.bundle:.3g} % of its weights are a group's own, the others zero"
    rows = sum(each.rows for each in plan.passes) / len(plan.passes)
    cols = sum(map(plan.width, plan.columns)) / len(plan.columns)
    filled = f"{rows:.4g} of {array.rows} rows and {cols:.4g} of {array.cols} columns"
    folds = counted(len(plan.col_folds), "column fold")
    return f"{plan.cut.folded(into or channels)}, {folds} for {out}; a pass fills {filled}{zeros}"


def block_of(plan: Plan, blocking: Blocking, layer: Op) -> str:
    """Sentence about the size of a block, the ifmap that is fetched for it, and sizes that were given."""
    shape, blocks = plan.shape, counted(blocking.blocks, "block")
    if layer.spatial and not plan.tiling.span:
        return outputs_of(blocking, shape.tensors.ofmap, shape, plan.hardware)
    held = f"{counted(blocking.images, layer.counted_by)} of input; {blocks} for all {shape.images}"
    if layer.spatial:
        held = f"{counted(plan.blocks[0].words, 'word')} a lane, wherever a row of the map ends; {blocks} for all"
    return held + besides_of(shape, plan.hardware)


def besides_of(shape: StripMaps, hardware: Hardware) -> str:
    """Sentence about points fetched between taps, and about given sizes of a block, if any."""
    between = any(axis.pitch < replace(axis, whole=False).pitch for axis in (shape.row, shape.col))
    more = "; the points between those that its stride touches come, too (window)" if between else ""
    return more + (f"; given: {wanted}" if (wanted := said(hardware)) else "")


def outputs_of(blocking: Blocking, ofmap: Shape, shape: StripMaps, hardware: Hardware) -> str:
    """Sentence about the outputs of a block, their share of all, and about further points that are fetched."""
    _, high, wide, images = ofmap
    strips = f" in each of {blocking.strips} strips" if blocking.strips > 1 else ""
    held = f"{blocking.rows} x {blocking.cols} outputs{strips} of {counted(blocking.images, 'image')}"
    held = f"{held}; {counted(blocking.blocks, 'block')} for all {high} x {wide} of {counted(images, 'image')}"
    return held + besides_of(shape, hardware)


def _chunks(plan: Plan) -> str:
    """Sentence about how the reduction is cut: sums stay on chip, operands come and go."""
    tiling, cut = plan.tiling, plan.cut
    size = cut.size_of(tiling.chunk_taps) if tiling.chunk_taps < cut.groups else counted(tiling.chunk_folds, "row fold")
    kept = counted(min(tiling.kept_folds, len(plan.col_folds)), "column fold")
    row = ", one filter row at a time (row_windows)" if by_filter_row(plan.shape, plan.hardware) else ""
    return f"the reduction comes in {len(plan.chunks):,} chunks of {size}{row}, while the sums of {kept} stay on chip"


def words_of(plan: Plan, layer: Op) -> str:
    """Sentence about the content of a word."""
    relaid = plan.hardware.mapping.entry == "relaid"
    free = "" if plan.hardware.vector_unit.relayout_cycles else " in no time (relayout_cycles)"
    how = f"; the ifmap arrives in another layout, and is laid out anew{free}" if relaid else ""
    last = plan.fill_of(plan.blocks[-1])
    fewer = f", and {counted(last, layer.counted_by)} in the last word of each pixel" if last else ""
    return used_of(plan.word_fill, plan.shape, layer, plan.hardware) + fewer + how


def used_of(fill: int, shape: StripMaps, layer: Op, hardware: Hardware) -> str:
    """Sentence about the used part of a word."""
    images, word = counted(fill // shape.strips, layer.counted_by), hardware.vector_memory.word_elements
    held = f"{shape.strips} strips of {images}" if shape.strips > 1 else images
    return f"{fill} of {counted(word, 'element')} used: {held}"


def memory_of(areas: Iterable[tuple[str, tuple[int, int]]], hardware: Hardware) -> str:
    """Sentence about the words of each buffer of the vector memory, and the number of its slots, 0 for a single one."""
    held = [(name, words, count) for name, (words, count) in areas if words]
    parts = (
        f"{f'{count} x ' if count else ''}{SIZE.format(words * hardware.word_bytes)} of {name}"
        for name, words, count in held
    )
    total = SIZE.format(sum(words * max(count, 1) for _, words, count in held) * hardware.word_bytes)
    return f"{total} of {SIZE.format(hardware.vector_memory.capacity_bytes)} a lane: {', '.join(parts)}"
