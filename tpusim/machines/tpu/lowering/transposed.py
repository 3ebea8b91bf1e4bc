"""Transposed convolutions as a lowering sees them: cells of neighbouring outputs, one under each element of the ifmap.

A cell has stride x stride outputs. Tap t brings element i to row `i * stride - padding + t *
dilation`: to the same row of every cell, its *phase*, and in the next cell from the next element. So cells are
to this op what outputs are to a convolution of stride 1, and each output of a cell has taps of its own.

By stride phases each output of a cell is a convolution of stride 1. All phases read one ifmap block, and the results of
each are spilled to every n-th row and column of the ofmap.

By zero insertion it is an ordinary convolution of the ifmap with zeros between the elements, which stride phases avoid.
The zeros are not stored: address generators step over them, as over padding. But they are streamed, and every tap is
multiplied with all outputs of a cell, although it reaches only one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby, product
from math import prod
from typing import NamedTuple

from tpusim.base.errors import CapacityError, Problem, UnsuitableError
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import CHANNEL, COL, ROW, Block, Patch, as_coordinates, portions
from tpusim.machines.tpu.cut.geometry import NOWHERE, ConvShape, MapAxis, alone, shape_with
from tpusim.machines.tpu.cut.plan import OUT_CHANNEL, ColumnFold, K, Plan
from tpusim.machines.tpu.cut.reduction import Cut, LanePlace, ReductionPass, Tap, TapGroups, stacked
from tpusim.machines.tpu.cut.tiling import col_folds
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import Cutting, by_taps, draft_of, ranked_cuts
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering
from tpusim.machines.tpu.program.addresses import Counter, Counters
from tpusim.machines.tpu.program.transfers import Along, Coordinates, Part
from tpusim.machines.tpu.search.search import RankedTiling
from tpusim.memory.hbm_layout import Box, shifted
from tpusim.network.ops.array_op import ArrayOp, Scatter

IGNORED = frozenset({"transformation", "k_order", "patch", "search", "block.tap_cols"})
"""Fields below `mapping` that have no effect on transposed convolutions."""


@dataclass(frozen=True)
class CellAxis(MapAxis):
    """A spatial axis whose outputs are cells; the last may reach past the end.

    Attributes:
        count: number of outputs of the op.
        spread: stride of the op, which is also the number of outputs of a cell.
        stands: grid point under cell 0 and phase, for each tap.
    """

    count: int = 1
    spread: int = 1
    stands: tuple[tuple[int, int], ...] = ((0, 0),)

    @property
    def cell(self) -> int:
        """Outputs of the layer in one cell."""
        return self.spread

    @cached_property
    def outputs(self) -> int:
        """Number of cells."""
        return -(-self.count // self.spread)

    @property
    def phases(self) -> range:
        """Phases that have outputs."""
        return range(min(self.spread, self.count))

    def outputs_at(self, cells: range, phase: int) -> range:
        """Outputs of a phase in neighbouring cells."""
        return range(cells.start * self.spread + phase, cells.stop * self.spread + phase, self.spread)

    def place(self, tap: int) -> int:
        """Grid points from cell 0 to the point on which its tap `tap` stands."""
        return self.stands[tap][0]

    def places(self, taps: range) -> range:
        """Places from the lowest to the highest of some taps."""
        every = [self.place(tap) for tap in taps]
        return range(min(every), max(every) + 1)

    @cached_property
    def tap_at(self) -> dict[tuple[int, int], int]:
        """The tap at a grid point that belongs to a phase."""
        return {stand: tap for tap, stand in enumerate(self.stands)}

    def taps_of(self, phase: int) -> list[int]:
        """Taps whose products belong to a phase."""
        return self._taps_by_phase.get(phase, [])

    @cached_property
    def _taps_by_phase(self) -> dict[int, list[int]]:
        found = defaultdict[int, list[int]](list)
        for tap, (_, phase) in enumerate(self.stands):
            found[phase].append(tap)
        return found


def cells_of(layer: ArrayOp, batch: int, hardware: Hardware) -> ConvShape:
    """The shape of a transposed convolution on a machine.

    Raises:
        UnsuitableError: when the layer is another op.
        CapacityError: when the machine fetches each tap by itself.
    """
    if (op := layer.scatter) is None:
        says = f"this lowering is for conv_transpose2d and conv2d_input_gradient, not for {layer.op}"
        raise UnsuitableError(f"{says}; name it as the own lowering: of such layers")
    if hardware.mapping.fetch == "per_tap" and op.kernel != (1, 1):
        problem = "the taps of a cell share what is fetched of a block; write resident"
        raise CapacityError(Problem(problem, "mapping.fetch"))
    shape = shape_with(op, batch, (_axis(op, 0), _axis(op, 1)), layer.tensors(batch), hardware)
    return replace(shape, turned=op.turned)


def cell_axes(shape: ConvShape) -> tuple[CellAxis, CellAxis]:
    """Rows and columns of the cells of a shape."""
    assert isinstance(shape.row, CellAxis)
    assert isinstance(shape.col, CellAxis)
    return shape.row, shape.col


def _axis(op: Scatter, axis: int) -> CellAxis:
    """An axis of cells. The grid begins where the first of all taps stands under cell 0."""
    kernel, stride, shift = op.kernel[axis], op.stride[axis], op.cropped[axis]
    landed = [divmod(tap * op.dilation[axis] - shift, stride) for tap in range(kernel)]
    # No tap may stand ahead of the grid, so it begins with the tap that reaches furthest back.
    lead = max(cells for cells, _ in landed)
    stands = tuple((lead - cells, phase) for cells, phase in landed)
    size, count = op.sizes[axis], op.outputs[axis]
    return CellAxis(size, kernel, 1, (lead, 0), 1, count=count, spread=stride, stands=stands)


# ---- by stride phases


Phase = tuple[int, int]
"""Row and column of an output in its cell."""


class PhaseOutcome(NamedTuple):
    """Phases whose sums stand side by side in the columns of the array, with a tap for each grid point that they
    need.
    """

    phases: tuple[Phase, ...]
    taps: tuple[Tap, ...]


@dataclass(frozen=True)
class PhaseTaps(TapGroups):
    """Passes of transposed convolutions: taps of an outcome, stacked as far as the array has rows, times row folds."""

    groups = 1
    ruled = None

    @cached_property
    def outcomes(self) -> tuple[PhaseOutcome, ...]:
        """Phases that have outputs, with as many side by side as take the fewest passes."""
        row, col = cell_axes(self.shape)
        widest = len(col_folds(self.shape.out_channels, self.hardware)[0])
        # Phases share a pass only if one alone leaves columns free, which several column folds do not.
        room = self.hardware.array.cols // widest if widest == self.shape.out_channels else 1
        sizes = [
            (high, wide)
            for high, wide in product(range(1, len(row.phases) + 1), range(1, len(col.phases) + 1))
            if high * wide <= room
        ]

        def passes(size: tuple[int, int]) -> int:
            down, across = ([len(taps) for _, taps in along] for along in self._portioned(size))
            return sum(-(-max(1, rows * cols) // self._room) for rows, cols in product(down, across))

        # An output that no tap reaches is zero: a pass with zero weights writes it.
        return tuple(
            PhaseOutcome(tuple(product(rows, cols)), tuple(product(downwards, across)) or ((0, 0),))
            for (rows, downwards), (cols, across) in product(*self._portioned(min(sizes, key=passes)))
        )

    def tap_of(self, tap: Tap, phase: Phase) -> Tap | None:
        """The tap of a phase at the same point as another phase's tap; None if the phase has none there."""
        row, col = (axis.tap_at.get((axis.place(tap[at]), phase[at])) for at, axis in enumerate(cell_axes(self.shape)))
        return None if row is None or col is None else (row, col)

    @cached_property
    def multi_tile(self) -> int:
        """The most taps stacked in a pass."""
        return min(self._room, max(len(each.taps) for each in self.outcomes))

    @property
    def stacked(self) -> str:
        """Sentence about the taps of a pass."""
        return f"up to {self.multi_tile} stacked in a pass" if self.multi_tile > 1 else ""

    def _chunk(self, stacks: range, folds: range) -> tuple[list[ReductionPass], list[LanePlace]]:
        """Passes of all taps for some row folds: outcome by outcome, with the folds inside."""
        channels = [self._portions[fold] for fold in folds]
        passes = [
            stacked(outcome.taps[at.start : at.stop], each, place, number)
            for number, outcome in enumerate(self.outcomes)
            for at in portions(len(outcome.taps), self._room)
            for place, each in enumerate(channels)
        ]
        return passes, [self._place((), each) for each in channels]

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """All taps, and the folds of the first `channels` channels."""
        return taps and self.groups, super().held(None, channels)[1]

    def _portioned(self, size: tuple[int, int]) -> list[list[tuple[range, list[int]]]]:
        """Phases along each axis in portions of some size, each with a tap for every grid point that it needs."""
        found = []
        for axis, most in zip(cell_axes(self.shape), size, strict=True):
            parts = portions(len(axis.phases), most)
            taps = ({axis.place(tap): tap for phase in part for tap in axis.taps_of(phase)} for part in parts)
            found.append([(part, sorted(each.values())) for part, each in zip(parts, taps, strict=True)])
        return found

    @cached_property
    def _room(self) -> int:
        """Number of taps that fit in the rows of the array, or the forced number if it fits."""
        # A gradient's filter may lie with the summed channels in lanes; then a pass has one tap.
        if self.shape.turned and alone(self.shape, self.hardware):
            return 1
        room, wanted = max(1, self.hardware.array.rows // self.shape.channels), self.hardware.mapping.multi_tile
        return min(room, wanted) if isinstance(wanted, int) else room


MOST_PHASES = 2**18
"""Most phases: those of a stride of 512 along both axes, which take some seconds to be lowered."""
CLOSE = 0.1
"""Relative distance of estimates that do not tell which arrangement of the arrays is faster. Phases differ in their
number of passes; of arrays with weights of their own one may get all the long phases, which no estimate knows.
"""


def by_phases(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """Drafts by stride phases: one, or two that fill words in different ways.

    Raises:
        UnsuitableError: when it is no transposed convolution.
        CapacityError: when no tiling fits the vector memories; the machine fetches each tap by itself; or
            there are more phases than anybody meant.
    """
    shape = cells_of(layer, batch, hardware)
    if (phases := prod(axis.spread for axis in cell_axes(shape))) > MOST_PHASES:
        raise CapacityError(
            f"a stride so large makes {phases:,} phases, each with passes of its own, and {MOST_PHASES:,} are the most "
            "that are written down; choose a smaller stride"
        )
    ranked = _in_strips(PhaseTaps, shape, hardware)
    plans = ((PhasePlan(cut.shape, hardware, rank.tiling, cut), rank) for cut, rank in ranked)
    return [draft_of(plan, layer, rank).telling("phases", _told(plan), first=True) for plan, rank in plans]


def _in_strips(cutting: Cutting, shape: ConvShape, hardware: Hardware) -> list[tuple[Cut, RankedTiling]]:
    """Cuts with the estimate's choices. There is no search, as bounds are known only for passes that all results share.

    Windows of taps end with the filter, as no tap beyond stands on a grid point.
    """
    hardware = hardware.having("mapping", block=hardware.mapping.block.model_copy(update={"tap_cols": "auto"}))
    if hardware.mapping.search == "simulate":
        hardware = hardware.having("mapping", search="auto")
    return ranked_cuts(cutting, shape, hardware)


class _Indices(NamedTuple):
    """Indices of weights in the filter: the first that is there, and how far each lies from it."""

    first: int
    steps: Coordinates


class PhasePlan(Plan):
    """A plan of cells; each outcome has the weights and the outputs of its phases."""

    cut: PhaseTaps

    def width(self, at: ColumnFold) -> int:
        """Columns of the array in use: the output channels of every phase."""
        return len(at.channels) * len(self.cut.outcomes[at.outcome].phases)

    def weights(self, at: ColumnFold, group: int, number: int, base: int) -> tuple[Part, ...]:
        """Weights of each phase, in lanes of its own; of neighbours whose weights stand equally far apart, together."""
        channels = shifted(at.channels, group * self.shape.out_channels)
        word = self.hardware.vector_memory.word_elements
        phases, parts, place = self.cut.outcomes[at.outcome].phases, list[Part](), 0
        for steps, alike in groupby(phases, key=lambda phase: self._ks_of(number, phase).steps):
            firsts = [self._ks_of(number, phase).first for phase in alike]
            lane = [Along(OUT_CHANNEL, (*channels,) * len(firsts) if len(firsts) > 1 else channels)]
            if any(firsts):
                lane.append(Along(K, as_coordinates([first for first in firsts for _ in channels])))
            parts.append(Part(base, (place,), tuple(lane), (Along(K, steps),), word))
            place += len(firsts) * len(channels)
        return tuple(parts)

    def weights_brought(self, at: ColumnFold, group: int, numbers: range) -> int:
        """Number of weights of existing taps."""
        phases = self.cut.outcomes[at.outcome].phases
        every = (self._ks_of(number, phase).steps for number in numbers for phase in phases)
        return sum(len(steps) - steps.count(self._beyond) for steps in every) * len(at.channels)

    def weights_alike(self, at: ColumnFold, group: int, numbers: range, begins: int) -> None:
        """Nothing, as each phase has rows of its own."""

    def outputs_alike(self, at: ColumnFold, group: int, block: Block) -> None:
        """Nothing, as each phase has outputs of its own."""

    @cached_property
    def _beyond(self) -> int:
        """A step that leads out of the filter from any weight."""
        return NOWHERE - prod(self.shape.tensors.filter[1:])

    @cached_property
    def _ks_of(self) -> Callable[[int, Phase], _Indices]:
        """Filter index k of each array row of a pass, for the columns of a phase; the same for all blocks."""

        @cache
        def found(number: int, phase: Phase) -> _Indices:
            ks: list[int] = []
            for run in self.passes[number].runs:
                tap = self.cut.tap_of(run.tap, phase)
                ks += self.shape.ks(tap, run.channels) if tap else [NOWHERE] * len(run.channels)
            first = next((k for k in ks if k != NOWHERE), 0)
            return _Indices(first, as_coordinates([self._beyond if k == NOWHERE else k - first for k in ks]))

        return found

    def outputs(self, at: ColumnFold, group: int, block: Block, base: int) -> tuple[Part, list[Box]]:
        """Elements in every n-th row and column of the ofmap; each phase has rows and columns of its own."""
        channels = shifted(at.channels, group * self.shape.out_channels)
        phases = self.cut.outcomes[at.outcome].phases
        # The first phase is the origin; the lanes of others are offset from it by whole rows and columns.
        axes, ((row, col), *_) = cell_axes(self.shape), phases
        rows, cols = axes[0].outputs_at(block.rows, row), axes[1].outputs_at(block.cols, col)
        items = self.map_items(rows, cols, block.groups, self.shape.ofmap_apart)
        lane = [Along(CHANNEL, channels)]
        if len(phases) > 1:
            lanes = [*product(phases, channels)]
            apart = (ROW, [phase[0] - row for phase, _ in lanes]), (COL, [phase[1] - col for phase, _ in lanes])
            lane = [Along(CHANNEL, tuple(channel for _, channel in lanes))]
            lane += [Along(axis, as_coordinates(by)) for axis, by in apart if any(by)]
        images = self.images(block.groups)
        boxes = [Box(channels, shifted(rows, y - row), shifted(cols, x - col), images) for y, x in phases]
        return Part(base, (0,), tuple(lane), items, self.word_fill), boxes


def _told(plan: PhasePlan) -> str:
    """Sentence about the number of phases, and about their results."""
    (row, col), cut = cell_axes(plan.shape), plan.cut
    every = [phase for outcome in cut.outcomes for phase in outcome.phases]
    taps = [len(row.taps_of(down)) * len(col.taps_of(across)) for down, across in every]
    some = f"{min(taps)} to {max(taps)}" if min(taps) < max(taps) else f"{max(taps)}"
    together = max(len(outcome.phases) for outcome in cut.outcomes)
    beside = f", {together} side by side in the columns of the array" if together > 1 else ""
    apart = f"{counted(row.spread, 'row')} and {counted(col.spread, 'column')} apart in the ofmap"
    return f"{counted(len(every), 'phase')} with {some} of the taps each{beside}; the results of each lie {apart}"


STRIDE_PHASES = Lowering(
    "stride_phases",
    "channel_first of transposed convolutions: one for each output between two elements of the ifmap",
    by_phases,
    partial=True,
    ignores=IGNORED | {"row_windows", "transposed_channels", "block_k", "block.taps"},
    close=CLOSE,
)


# ---- by zero insertion


def by_zeros(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """Drafts by zero insertion: one, or two that fill words in different ways.

    Raises:
        UnsuitableError: when it is no transposed convolution.
        CapacityError: when no tiling fits the vector memories, or the machine fetches each tap by itself.
    """
    shape = cells_of(layer, batch, hardware)
    row, col = cell_axes(shape)
    # No compiler is known to stream zeros, so no machine's strips are those of one.
    strips = hardware.having("mapping", strips="balanced")
    ranked = _in_strips(by_taps, replace(shape, cell=row.spread * col.spread), strips)
    rows, cols = counted(row.spread - 1, "row"), counted(col.spread - 1, "column")
    zeros = f"{rows} and {cols} of zeros between the elements of the ifmap: streamed, not stored"
    plans = ((InsertedPlan(cut.shape, hardware, rank.tiling, cut), rank) for cut, rank in ranked)
    return [draft_of(plan, layer, rank).telling("zeros", zeros, first=True) for plan, rank in plans]


class InsertedPlan(Plan):
    """A plan of cells whose outputs are streamed one after another."""

    def walk(self, tap: Tap, block: Block, patch: Patch, by_tap: bool) -> Counters:
        """A walk cell by cell: a tap reads its element at the one output that it reaches, and zero at all others."""
        base, counters, window = super().walk(tap, block, patch, by_tap)
        # The counter counts the outputs of a cell; outside its one element it reads zero, as for padding.
        inside = tuple(
            Counter(axis.spread, -axis.stands[number][1], 1, 1, 0)
            for axis, number in zip(cell_axes(self.shape), tap, strict=True)
        )
        cell = self.shape.cell
        return Counters(base, (*counters, *inside), window and range(window.start * cell, window.stop * cell))

    def outputs_alike(self, at: ColumnFold, group: int, block: Block) -> None:
        """Nothing, as a cell has several outputs."""

    def outputs(self, at: ColumnFold, group: int, block: Block, base: int) -> tuple[Part, list[Box]]:
        """All outputs of the cells, which are neighbours in the ofmap."""
        row, col = cell_axes(self.shape)
        part, (box,) = super().outputs(at, group, block, base)
        rows, cols = (
            range(cells.start * axis.spread, cells.stop * axis.spread)
            for axis, cells in ((row, block.rows), (col, block.cols))
        )
        cells = self.map_items(rows[:: row.spread], cols[:: col.spread], block.groups, self.shape.ofmap_apart)
        inside = Along(ROW, range(row.spread)), Along(COL, range(col.spread))
        return part._replace(items=(*cells[:3], *inside, *cells[3:])), [box._replace(rows=rows, cols=cols)]


ZERO_INSERTION = Lowering(
    "zero_insertion",
    "transposed convolutions as ordinary ones, of an ifmap with zeros between its elements",
    by_zeros,
    partial=True,
    ignores=IGNORED,
)
