"""Convolutions in blocks, passes and chunks, whichever way their reduction is cut: a `Plan` as units.

Patches of the ifmap and sections of the weights come, passes go over blocks, sums of a block go. A lowering of plain
convolutions is a way to cut:

* Channel-first implicit im2col (paper sections III-IV): every tap of the filter is a 1x1 convolution; its passes read
  the ifmap where it lies, at shifted addresses. The lowered matrix never exists.
* The same with bundles for groups: several channel groups stand side by side in the rows and columns of a pass. The
  weights that would join a group's rows to another's columns are zero, and come from nowhere. Where no two groups fit,
  it is channel-first.
* Implicit GEMM and channel-last, whose passes end wherever they are full (`cut/dense`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from itertools import accumulate, chain
from math import ceil
from typing import Any, TypeAlias

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.cut.blocks import Patch, even, even_extents, growing
from tpusim.machines.tpu.cut.dense import Dense, DenseTaps, TransposedCut
from tpusim.machines.tpu.cut.geometry import DENSE, AnyShape, ConvShape, in_other_strips, packed, shape_of
from tpusim.machines.tpu.cut.plan import Plan, by_outcome
from tpusim.machines.tpu.cut.reduction import Cut, TapGroups
from tpusim.machines.tpu.cut.tiling import MOST_PIECES, Tiling, col_folds, preparing
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.definition import Frame, finish_cycles, frame_of, stream_clients
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Handover, Lowering, explanation_of
from tpusim.machines.tpu.program.program import Explanation, StepCounts
from tpusim.machines.tpu.schedule.units import (
    Area,
    EqualMoves,
    Moves,
    Pass,
    Piece,
    Policy,
    SlotNeed,
    Touch,
    Unit,
    Units,
    beside,
    one_ahead_if_free,
)
from tpusim.machines.tpu.search.search import CLOSE, NEAR, RankedTiling, Standing, candidates_of, standing, tilings_of
from tpusim.machines.tpu.sections import BlockSizes
from tpusim.network.ops.array_op import ArrayOp

IFMAP, WEIGHTS, SUMS = range(3)
"""The places of a unit's needs."""

Load = tuple[int, ...]
"""The ifmap of a channel group, a block and a chunk; or the weights of a group, a column fold and a section. Behind
these, where a step of a pipeline moves what the step ahead has not, how often others have come."""


LONG = 2_000
"""Fewest stages of a layer whose turns may be copied; of fewer stages that would save little."""


class Convolution(Units):
    """The stages of a plan as units; the passes of a section as acts."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.traffic = plan, Traffic(plan.hardware, plan.shape)
        self.word_fill, self.tensors = plan.word_fill, (plan.ifmap, plan.filter, plan.ofmap)
        # The first loads grow piece by piece, so that the first pass waits for little. A loop over blocks that drains
        # has one body for all of them, the first included.
        sequencer, loads = plan.hardware.sequencer, plan.hardware.mapping.loads
        drains = sequencer.between_blocks == "drain"
        several = plan.shape.groups * len(plan.blocks) * len(plan.turns) * len(plan.chunks) > 1
        turn = sequencer.block_cycles + sequencer.loop_cycles * several
        order, lag, arrays = ("weights", "ifmap"), plan.tiling.lag, self._arrays()
        self._pipelined = loads == "windows"
        gaps = one_ahead_if_free if self._pipelined else beside
        self.policy = Policy(
            order, gaps, lag, grows=not drains, drains=drains, whole=loads != "pieces", pipelined=self._pipelined,
            turn=turn, arrays=arrays,
        )  # fmt: skip
        self._data = [Touch(IFMAP, tuple(each.places)) for each in plan.passes]
        self._weights = [Touch(WEIGHTS, (number,)) for number in range(len(plan.passes))]
        # What is filled of the ifmap for a block and a chunk, which groups and column folds have in common; what passes
        # read of it, as it comes again for other column folds; and the results of columns, which blocks have in common.
        self.patch = cache(lambda block, chunk: plan.patch(plan.blocks[block], plan.chunks[chunk]))
        self._reads = cache(lambda block, chunk, base: plan.reads(plan.chunks[chunk], plan.blocks[block], base))
        self._walks = cache(lambda block, chunk: plan.walks_alike(plan.chunks[chunk], plan.blocks[block]))
        # Cycles in which the vector unit prepares what a block needs, each way of it rounded up: few blocks differ.
        self._prepared = cache(
            lambda chunk, sizes: sum(map(ceil, preparing(plan.cut, plan.chunks[chunk], sizes, plan.hardware)))
        )
        # Passes with which sums begin, sections with which they are done; words of weights before those of each pass.
        self._first_passes = frozenset(numbers.start for numbers in plan.chunks[0].sums)
        self._last_sections = frozenset(sections[-1] for sections in by_outcome(plan.sections)[-1])
        self._offsets = [*accumulate(plan.pass_words, initial=0)]
        self._turns: Sequence[range] = plan.turns
        first = plan.blocks[0].rectangles[0]
        self._results = cache(lambda group, fold: plan.outputs(plan.columns[fold], group, first, 0)[0])

    @cached_property
    def follows(self) -> Hashable:
        """Shape, tiling and cut on the machine, whatever its clock; None for units that add to those of a plan."""
        plan = self.plan
        if type(self) is not Convolution:
            return None
        own = tuple((each.name, getattr(plan.cut, each.name)) for each in fields(plan.cut) if each.name != "hardware")
        return type(plan), plan.source, plan.shape, plan.tiling, plan.hardware.untimed, type(plan.cut), own

    @cached_property
    def more(self) -> Mapping[str, Any]:
        """How long words take to be made ready."""
        return {"word_cycles": self.plan.word_cycles}

    @property
    def areas(self) -> tuple[Area, ...]:
        """Ifmap, filter, partial sums."""
        plan, (ifmap, weights, sums) = self.plan, self.plan.tiling.buffers
        lanes, cols = plan.ifmap_lanes or max(each.rows for each in plan.passes), max(map(plan.width, plan.columns))
        held = Area("ifmap", plan.ifmap.name, *ifmap, lanes, self.cut_ifmap, self._ready)
        return (
            replace(held, memory=plan.ifmap_memory, fill=plan.fill),
            Area("weights", "filter", *weights, cols, self._sections),
            Area("sums", "ofmap", *sums, cols),
        )

    def _arrays(self) -> int:
        """How many of the arrays with weights of their own take sums: the fewest that take the least time for all.

        The frame of more arrays may be longer, and sums that are fewer than arrays leave some without. A pass over few
        words takes as long as the weights of the next.
        """
        plan, queues = self.plan, self.plan.hardware.array.queues
        sums, words = plan.shape.groups * len(plan.blocks) * len(plan.columns), plan.tiling.psum_words
        clients = stream_clients(len(plan.passes) > 1)

        def takes(arrays: int) -> int:
            hardware = plan.hardware.having("array", count=arrays)
            period = frame_of(hardware, plan.word_fill, clients, 1, plan.word_cycles).period
            return -(-sums // arrays) * max(words * period, hardware.preload_cycles)

        return min(range(1, queues + 1), key=takes) if queues > 1 else 1

    def units(self) -> Iterator[Unit]:
        plan, sections, kept, ahead = self.plan, self.plan.sections, self.plan.tiling.kept_folds, None
        windows, held, come = self._pipelined, [(-1, -1, -1)] * 2, [0, 0]
        unit, overhang, converting = plan.hardware.vector_unit, cache(self._overhang), cache(self._converted)
        converts = unit.convert_weight_cycles or unit.convert_result_cycles
        for stage in plan.stages_of(self._turns):
            group, block, fold, number = stage.group, stage.block, stage.fold, stage.section
            section = sections[number]
            # The loop brings a window whenever it is not that of the step ahead, though a buffer may have it still.
            for area, window in enumerate(((group, block, section.chunk), (group, fold // kept, section.chunk))):
                come[area] += windows and window != held[area]
                held[area] = window
            needs = (
                SlotNeed("ifmap", (group, block, section.chunk, come[IFMAP])),
                SlotNeed("weights", (group, fold, number, come[WEIGHTS])),
                SlotNeed("sums", (group, block, fold)),
            )
            leaves = SUMS if number in self._last_sections else -1
            body = group, block, fold // kept, section.chunk
            # What a step of a pipeline moves is moved ahead of the step, or behind it.
            gap = not self._pipelined or body != ahead
            fill, idle, converted = plan.fill_of(plan.blocks[block]), 0, 0
            if body != ahead:
                turn = fold // kept
                idle = overhang(block, turn, section.chunk) if windows else 0
                if converts:
                    converted = converting(plan.results(plan.blocks[block]), turn, section.chunk)
            passes = len(section.numbers)
            yield Unit(needs, body, stage, passes, leaves=leaves, gap=gap, fill=fill, ahead=converted, idle=idle)
            ahead = body

    def _overhang(self, block: int, turn: int, chunk: int) -> int:
        """Cycles of a body for rows, columns and passes of its windows that lie beyond the layer: the code of the loop
        is the same for all windows, and computes the last ones whole.
        """
        plan, queues = self.plan, self.policy.arrays
        numbers = [max(len(some) for some in each.sums) for each in plan.chunks]
        folds, words = len(plan.turns[turn]), plan.results(plan.blocks[block])
        every = max(numbers) * -(-len(plan.turns[0]) // queues) * self._of_a_pass(plan.tiling.psum_words)
        return every - numbers[chunk] * -(-folds // queues) * self._of_a_pass(words)

    def _of_a_pass(self, words: int) -> int:
        """Cycles of a pass over some words: those of its stream, or of the weights of the next."""
        frame, hardware = self._frame, self.plan.hardware
        return max(frame.frames(words) * frame.period, hardware.preload_cycles)

    @cached_property
    def _frame(self) -> Frame:
        plan, clients = self.plan, stream_clients(len(self.plan.passes) > 1)
        hardware = plan.hardware
        if hardware.array.queues > 1:
            hardware = hardware.having("array", count=self.policy.arrays)
        return frame_of(hardware, plan.word_fill, clients, 1, plan.word_cycles)

    def _converted(self, words: int, turn: int, chunk: int) -> int:
        """Cycles for a body whose passes stream `words`: in which the vector unit converts weights, as far as passes do
        not hide it, and the results that the body leaves.

        It adds to sums beside the passes, too. They wait for the first weights in any case.
        """
        plan, hardware, columns = self.plan, self.plan.hardware, self.plan.turns[turn]
        unit, sums = hardware.vector_unit, [plan.chunks[chunk].sums[plan.columns[at].outcome] for at in columns]
        weights = [plan.pass_words[number] for numbers in sums for number in numbers]
        streamed = Fraction(self._of_a_pass(words) * len(weights), self.policy.arrays)
        added = len(weights) - sum(number in self._first_passes for numbers in sums for number in numbers)
        beside = sum(weights) * unit.convert_weight_cycles
        adding = Fraction(finish_cycles(plan.word_fill, 1, hardware), hardware.array.count)
        beside += added * words * adding * bool(beside)
        first = max(weights, default=0) * unit.convert_weight_cycles
        left = words * len(columns) * (chunk == len(plan.chunks) - 1) * unit.convert_result_cycles
        return ceil(max(beside - streamed, first) + left)

    @property
    def turns(self) -> int:
        """Turns over the column folds that blocks keep together; all but the last are equally wide."""
        plan = self.plan
        if type(self) is not Convolution or len(plan.turns) * len(plan.sections) * len(plan.blocks) < LONG:
            return 0
        kinds = {(each.outcome, plan.width(each), len(each.channels)) for each in plan.columns[: plan.turns[-1].start]}
        return len(plan.turns) if len(kinds) == 1 else 0

    def of_turns(self, turns: Sequence[int]) -> Convolution:
        found = copy(self)
        found._turns = [self.plan.turns[turn] for turn in turns]
        return found

    def turn_of(self, unit: Unit) -> tuple[Hashable, int]:
        plan, stage = self.plan, unit.about
        outside = plan.tiling.loop_order != "block_major"
        return (stage.group, -1 if outside else stage.block), stage.fold // plan.tiling.kept_folds

    def counted(self) -> StepCounts | None:
        """Passes, and transfers by the loads and the pieces for which there are folds or slots of the DMA queue."""
        if self._pipelined:
            return None
        plan, tiling, chunks, sections = self.plan, self.plan.tiling, len(self.plan.chunks), self.plan.sections
        blocks, columns, folds = tiling.blocks, len(plan.columns), len(plan.col_folds)
        # Of the ifmap for a channel group: its loads, by the pieces for which there are folds or slots of the queue.
        loads, held = blocks * chunks, min(tiling.kept_folds, columns)
        if chunks == 1 and (tiling.loop_order == "block_major" or blocks == 1):
            held = columns
        elif loads > tiling.ifmap_buffers:
            loads *= -(-columns // tiling.kept_folds)
        slots = (tiling.ifmap_buffers - 1) * held * -(-len(sections) * folds // (chunks * columns))
        places = max((len(chunk.places) for chunk in plan.chunks if chunk.one_by_one), default=1)
        ifmap = loads * min(MOST_PIECES, places if places > 1 else max(1, slots))
        # Of the filter: its sections once, where they stay for all blocks, else for each.
        together = columns if tiling.loop_order == "block_major" else min(tiling.kept_folds, columns)
        again = 1 if together * len(sections) * folds <= tiling.filter_buffers * columns else blocks
        weights = again * folds * sum(min(MOST_PIECES, len(section.numbers)) for section in sections)
        transfers = plan.shape.groups * (blocks * columns + ifmap + weights)
        return StepCounts(plan.shape.groups * blocks * folds * len(plan.passes), transfers)

    # ---- what comes

    def _ready(self, load: Load) -> int:
        _, block, chunk, *_ = load
        return self._prepared(chunk, self.plan.blocks[block].sizes)

    def cut_ifmap(self, load: Load, gaps: int, grows: bool) -> Sequence[Piece]:
        """By places where they come one by one, else by rows: pieces share the rows that taps of both stand on."""
        _, block, number, *_ = load
        chunk, patch = self.plan.chunks[number], self.patch(block, number)
        places = range(len(chunk.places))
        if chunk.one_by_one:
            return [self._piece(load, patch, cut, patch) for cut in self._cuts(len(places), grows)]
        # Where shared rows go to other words, they would come again.
        parts = patch.cut(1 if chunk.shares_points else min(gaps, MOST_PIECES))
        return [self._piece(load, patch, places, part) for part in parts]

    def _piece(self, load: Load, patch: Patch, places: range, filled: Patch) -> Piece:
        group, _, chunk, *_ = load
        alike = self.plan.filled_alike(group, chunk, patch, places, filled) if filled.words else None
        brings = partial(self._filled, load, patch, places, filled)
        return Piece(places.start, places, brings, self.needs(filled), alike=alike)

    def needs(self, filled: Patch) -> tuple[SlotNeed, ...]:
        """Steps that a fill of a part of the ifmap waits for: none, as the ifmap is an operand."""
        return ()

    def _filled(self, load: Load, patch: Patch, places: range, filled: Patch, base: int) -> Iterator[Moves]:
        if filled.words:
            (group, _, chunk, *_), plan = load, self.plan
            parts, boxes = plan.filled(group, plan.chunks[chunk], patch, places, filled, base)
            yield self.traffic.moves(plan.ifmap, parts, boxes, plan.shape.ifmap_apart)

    def _sections(self, load: Load, gaps: int, grows: bool) -> list[Piece]:
        """The weights of some passes in each piece; lane c takes those of array column c, W to a word."""
        plan, (group, fold, section, *_) = self.plan, load
        numbers, offsets, at = plan.sections[section].numbers, self._offsets, plan.columns[fold]

        def weights(some: range, base: int) -> Iterator[Moves]:
            firsts = ((number, base - offsets[numbers.start] + offsets[number]) for number in some)
            parts = tuple(part for number, first in firsts for part in plan.weights(at, group, number, first))
            yield self.traffic.numbers(plan.filter, parts, plan.weights_brought(at, group, some))

        first, pieces = offsets[numbers.start], list[Piece]()
        for cut in self._cuts(len(numbers), grows):
            some = numbers[cut.start : cut.stop]
            alike = plan.weights_alike(at, group, some, offsets[some.start] - first)
            pieces.append(Piece(cut.start, some, partial(weights, some), alike=alike))
        return pieces

    def _cuts(self, count: int, grows: bool) -> Sequence[range]:
        if self._pipelined:
            return [range(count)]
        return growing(count, -(-count // MOST_PIECES)) if grows else even(count, MOST_PIECES)

    # ---- what is done with it, and what goes

    def alike(self, unit: Unit) -> Hashable:
        """Units of a section are alike whose passes walk alike over as many words, and have as many columns."""
        plan, stage = self.plan, unit.about
        walks = self._walks(stage.block, plan.sections[stage.section].chunk)
        return stage.section, walks, plan.width(plan.columns[stage.fold]), unit.fill

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Pass]:
        plan, stage, (ifmap, weights, sums) = self.plan, unit.about, bases
        section = plan.sections[stage.section]
        first, feeds = plan.chunks[section.chunk].numbers.start, self._reads(stage.block, section.chunk, ifmap)
        cols, words = plan.width(plan.columns[stage.fold]), plan.results(plan.blocks[stage.block])
        for number in section.numbers:
            size = plan.pass_words[number]
            yield Pass(
                self._weights[number], self._data[number], SUMS, number in self._first_passes,
                weights, size, plan.passes[number].rows, cols, feeds[number - first], sums, words,
            )  # fmt: skip
            weights += size

    def channels(self, unit: Unit) -> tuple[int, ...]:
        return tuple(self._results(unit.about.group, unit.about.fold).lane[0].coordinates)

    def left_alike(self, unit: Unit) -> EqualMoves | None:
        plan, stage = self.plan, unit.about
        return plan.outputs_alike(plan.columns[stage.fold], stage.group, plan.blocks[stage.block])

    def spill(self, unit: Unit, base: int) -> Moves:
        plan, stage, parts, boxes = self.plan, unit.about, [], []
        for each in plan.blocks[stage.block].rectangles:
            part, held = plan.outputs(plan.columns[stage.fold], stage.group, each, base)
            parts.append(part)
            boxes += held
            base += part.words
        return self.traffic.moves(plan.ofmap, tuple(parts), boxes, plan.shape.ofmap_apart)


# ---- which drafts there are

Cutting: TypeAlias = Callable[[ConvShape, Hardware], Cut]
"""A function that cuts the reduction of a convolution for a machine."""


def convolved(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """The drafts of a convolution that is cut in such a way.

    Raises:
        CapacityError: when no tiling fits the memories; or the machine has banks, and a part of a block's ifmap is to
            be fetched by itself.
    """
    if hardware.banked:
        # Few machines have banks: whoever reads of lanes need not read of them.
        from tpusim.machines.tpu.lowering.banked import convolved_from_banks

        return convolved_from_banks(cutting, layer, batch, hardware)
    if layer.long_sums:
        # All of a long sum fits only beside few outputs, for which its weights would come again and again.
        hardware = hardware.having("mapping", chunks="auto")
    return [
        replace(draft_of(plan, layer, rank), standing=partial(_standing, cutting, plan, rank))
        for plan, rank in plans_of(cutting, layer, batch, hardware)
    ]


def _standing(cutting: Cutting, plan: Plan, rank: RankedTiling) -> Standing:
    """The standing of a plan's tiling among all of its shape, whatever block is given."""
    free = plan.hardware.having("mapping", block=BlockSizes(), block_m="auto")
    return standing(candidates_of(free)(cutting(plan.shape, free), free), rank.estimate())


def draft_of(
    plan: Plan, layer: ArrayOp, rank: RankedTiling, explained: Callable[[Any, ArrayOp], Explanation] = explanation_of
) -> Draft:
    """The draft of a plan, explained in the usual way unless `explained` is given; `rank` is that of its tiling."""
    told = partial(explained, plan, layer)
    units, tiling = partial(Convolution, plan), rank.tiling
    return Draft(units, lambda each: (each, told()), tiling.blocks, rank.least, rank.estimate, rank.of_any)


def plan_of(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> Plan:
    """The plan of a layer by the estimate. Raises CapacityError."""
    return plans_of(cutting, layer, batch, hardware)[0][0]


def plans_of(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> list[tuple[Plan, RankedTiling]]:
    """The plans that a simulation should choose from, with their tilings' ranks; first the choice of the estimate.

    Raises:
        CapacityError: when no tiling fits the memories.
    """
    cuts = ranked_cuts(cutting, shape_of(layer, batch, hardware), hardware)
    return [(Plan(cut.shape, hardware, rank.tiling, cut), rank) for cut, rank in cuts]


def ranked_cuts(cutting: Cutting, shape: ConvShape, hardware: Hardware) -> list[tuple[Cut, RankedTiling]]:
    """The cuts of a shape, each with a tiling, from which a simulation should choose.

    The estimate's choice is first, and the only one under `search: estimate`.

    Raises:
        CapacityError: when no tiling fits the memories.
    """

    @cache
    def cut(each: ConvShape, on: Hardware) -> Cut:
        # A reduction is cut alike whatever search follows, so that all searches of a layer share what is known of it.
        return cutting(each, on.having("mapping", search="estimate"))

    ways = ranked_shapes(lambda each, on: tilings_of(cut(each, on), on), shape, hardware)
    return [(cut(each, hardware), rank) for each, rank in ways]


def ranked_shapes(
    ranks: Callable[[AnyShape, Hardware], Sequence[RankedTiling]],
    shape: AnyShape,
    hardware: Hardware,
    tile: tuple[int, int] = (1, 1),
) -> list[tuple[AnyShape, RankedTiling]]:
    """The shape in different strips, each with a tiling, from which a simulation should choose.

    `ranks` gives the tilings of a shape on a machine; `tile` is the (rows, columns) of outputs that are computed
    together. The estimate's choice is first, and the only one under `search: estimate`. Tilings in other strips with an
    estimate `NEAR` it follow, then the choices of poorer machines. All other tilings follow, by expected and by
    estimated cycles in turn, because only the estimate tells tilings with equal bounds apart. Strips that are not
    balanced are compared only where they may take fewer cycles.

    Raises:
        CapacityError: when no tiling fits the memories.
    """
    search, ways = hardware.mapping.search, [(shape, ranks(shape, hardware))]
    own = ways[0][1][0]
    for other, share in in_other_strips(shape, hardware, tile):
        if search == "simulate" or own.estimate() > (1 + CLOSE) * own.floor(min(share, 1)):
            with suppress(CapacityError):
                ways.append((other, ranks(other, hardware)))
    if len(ways) > 1:
        ways.sort(key=lambda way: way[1][0].estimate() * (1 if way[0] is shape else 1 + CLOSE))
        if search != "simulate":
            # Where others are not expected to take much less, time tells.
            beside = search == "auto" and own.estimate() <= (1 + NEAR) * ways[0][1][0].estimate()
            ways = [ways[0], *(way for way in ways[1:] if beside and way[0] is shape)]
    every = [(each, rank) for each, ranked in ways for rank in ranked]
    near = (1 + NEAR) * every[0][1].estimate()
    firsts = [(each, ranked[0]) for each, ranked in ways if ranked[0].estimate() <= near]
    for poorer in hardware.poorer() if search != "estimate" else ():
        # What fits a machine with less of something fits this one, and should take no more time here.
        with suppress(CapacityError):
            (other, rank), *_ = ranked_shapes(ranks, shape, poorer.having("mapping", search="estimate"), tile)
            if search == "simulate" or rank.estimate() < every[0][1].estimate():
                firsts.append((other, rank))
    if search == "auto":
        of_any = partial(_of_any, ranks, shape, hardware, tile)
        firsts[0] = firsts[0][0], firsts[0][1]._replace(of_any=of_any)
    # A plan that is found twice is timed once.
    found: dict[tuple[AnyShape, Tiling[int]], RankedTiling] = {}
    guessed = sorted(every, key=lambda way: way[1].expected)
    estimated = sorted(every, key=lambda way: way[1].estimate())
    for each, rank in (*firsts, *chain(*zip(guessed, estimated, strict=True))):
        found.setdefault((each, rank.tiling), rank)
    return [(each, rank) for (each, _), rank in found.items()]


def _of_any(
    ranks: Callable[[AnyShape, Hardware], Sequence[RankedTiling]],
    shape: AnyShape,
    hardware: Hardware,
    tile: tuple[int, int],
) -> float:
    """Cycles that no tiling of a shape can beat, in any strips; 0 if the choice of a poorer machine is timed, too, as
    that may be a little faster than a choice close to this bound.
    """
    if next(hardware.poorer(), None):
        return 0.0
    ways = [ranks(shape, hardware)]
    for other, _ in in_other_strips(shape, hardware, tile):
        with suppress(CapacityError):
            ways.append(ranks(other, hardware))
    return min(ranked[0].of_any() for ranked in ways)


# ---- lowerings that are a way to cut


def by_taps(shape: ConvShape, hardware: Hardware) -> Cut:
    """The cut by taps that the policy asks for; groups of one tap if there is nothing to stack."""
    mapping = hardware.mapping
    if packed(shape, hardware):
        return TransposedCut(shape, hardware)
    uneven = shape.channels % hardware.array.rows or "tap_cols" in mapping.block.given
    if shape.taps > 1 and uneven and mapping.multi_tile in DENSE:
        return DenseTaps(shape, hardware)
    return TapGroups(shape, hardware)


@lru_cache(maxsize=1 << 12)
def by_bundles(shape: ConvShape, hardware: Hardware) -> Cut:
    """The cut of the bundles with the fewest passes for all groups; of several, the largest."""
    array = hardware.array
    room = max(1, min(array.rows // shape.channels, array.cols // shape.out_channels))
    sizes = (size for size in reversed(even_extents(shape.groups)) if size <= room)

    def passes(bundles: Cut) -> int:
        columns = len(col_folds(bundles.shape.out_channels, hardware))
        return bundles.shape.groups * columns * bundles.groups * bundles.folds

    return min((by_taps(shape.bundled(size), hardware) for size in sizes), key=passes)


def _unused(hardware: Hardware) -> frozenset[str]:
    """Fields that mean nothing to passes that are cut by taps."""
    alone = frozenset({"block.tap_cols"}) if hardware.mapping.multi_tile not in DENSE else frozenset[str]()
    return alone | {"transformation", "k_order"}


CHANNEL_FIRST = Lowering(
    "channel_first",
    "implicit im2col, tap by tap: a pass multiplies all pixels by one tap of the filter, or by a few",
    partial(convolved, by_taps),
    pipelined=True,
    banks=True,
    ignores=_unused,
)
PRODUCTS = Handover(CHANNEL_FIRST, lambda layer, batch: layer.convolution(batch)[0].is_a_product)
"""Matrix products, whose ifmap is the lowered matrix already."""
BLOCK_DIAGONAL = Lowering(
    "block_diagonal",
    "channel_first with several channel groups in a pass, side by side: grouped and depthwise layers",
    partial(convolved, by_bundles),
    pipelined=True,
    banks=True,
    left=Handover(CHANNEL_FIRST, lambda layer, batch: layer.convolution(batch)[0].groups == 1),
    ignores=CHANNEL_FIRST.ignores,
)
_UNKNOWN_TO_DENSE = frozenset({"transformation", "multi_tile", "transposed_channels", "block.tap_cols"})
IMPLICIT_GEMM = Lowering(
    "implicit_gemm",
    "implicit im2col cut into passes of one length, wherever a tap of the filter ends",
    partial(convolved, lambda shape, hardware: Dense(shape, hardware, hardware.mapping.k_order)),
    pipelined=True,
    banks=True,
    ignores=_UNKNOWN_TO_DENSE,
)
CHANNEL_LAST = Lowering(
    "channel_last",
    "implicit im2col whose passes go through the taps of a channel, then of the next",
    partial(convolved, partial(Dense, k_order="taps_fastest")),
    pipelined=True,
    banks=True,
    ignores=_UNKNOWN_TO_DENSE | {"k_order"},
)
