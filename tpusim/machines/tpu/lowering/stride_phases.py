"""A transposed convolution by stride phases: each output of a cell is a convolution of stride 1, with taps of its own.

All phases read one ifmap block, and the results of each are spilled to every so manieth row and column of the ofmap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from tpusim.base.errors import CapacityError
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import CHANNEL, COL, ROW, Block, Columns
from tpusim.machines.tpu.lowering.cells import IGNORED, CellAxis, cell_axes, cells_of, chosen, with_aspect
from tpusim.machines.tpu.lowering.convolution import draft_of
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering
from tpusim.machines.tpu.lowering.geometry import shifted
from tpusim.machines.tpu.lowering.phase_taps import Phase, PhaseTaps
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import Run, as_coordinates
from tpusim.machines.tpu.lowering.weights import OUT_CHANNEL, K, Weights
from tpusim.machines.tpu.program.tensor import Along, Coordinates, Part
from tpusim.memory.layout import Box
from tpusim.network.ops import ArrayOp

MOST_PHASES = 2**18
"""Those of a stride of 512 along both axes, which take some seconds to be lowered."""

NOWHERE = -1
"""A k outside the filter: the weight of a phase that has no tap where others have one is zero, and does not come."""


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """One draft.

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
    plan = PhasePlan(shape, hardware, chosen(PhaseTaps, shape, hardware), PhaseTaps(shape, hardware))
    return [with_aspect(draft_of(plan, layer), "phases", _told(plan))]


@dataclass(frozen=True)
class PhaseWeights(Weights):
    """Each phase of an outcome has its weights in columns of its own."""

    cut: PhaseTaps

    def parts(self, at: Columns, group: int, number: int, base: int) -> tuple[Part, ...]:
        """Those of each phase in lanes of its own."""
        lane = (Along(OUT_CHANNEL, shifted(at.channels, group * self.shape.out_channels)),)
        return tuple(
            Part(base, (place * len(at.channels),), lane, (Along(K, self._ks_of(number, phase)),), self.word)
            for place, phase in enumerate(self.cut.outcomes[at.outcome].phases)
        )

    def count(self, at: Columns, group: int, numbers: range) -> int:
        """Those of taps that there are."""
        phases = self.cut.outcomes[at.outcome].phases
        every = [k for number in numbers for phase in phases for k in self._ks_of(number, phase)]
        return (len(every) - every.count(NOWHERE)) * len(at.channels)

    def _ks_of(self, number: int, phase: Phase) -> Coordinates:
        """The k of the filter in each array row of a pass, for the columns of a phase."""
        key = number, phase
        if key not in self._known:
            self._known[key] = as_coordinates([k for run in self.passes[number].runs for k in self._ks(run, phase)])
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[int, Phase], Coordinates]:
        """Blocks have them in common."""
        return {}

    def _ks(self, run: Run, phase: Phase) -> list[int]:
        tap, width, channels = self.cut.tap_of(run.tap, phase), self.shape.col.kernel, self.shape.channels
        if tap is None:
            return [NOWHERE] * len(run.channels)
        return [(tap[0] * width + tap[1]) * channels + channel for channel in run.channels]


class PhasePlan(Plan):
    """As any plan, of cells; an outcome has the weights and the outputs of its phases."""

    cut: PhaseTaps

    def width(self, at: Columns) -> int:
        """Columns of the array in use: the output channels of each phase."""
        return len(at.channels) * len(self._phases(at))

    @cached_property
    def weights(self) -> PhaseWeights:
        """Which of them stands where."""
        return PhaseWeights(self.shape, self.passes, self.hardware.vector_memory.word_elements, self.cut)

    def outputs(self, at: Columns, group: int, block: Block, base: int) -> tuple[Part, list[Box]]:
        """Every so manieth row and column of the ofmap; lanes of several phases lie apart in it."""
        channels, phases = shifted(at.channels, group * self.shape.out_channels), self._phases(at)
        (row, col), *_ = phases
        rows, cols = _spread(self.cut.axes[0], block.rows, row), _spread(self.cut.axes[1], block.cols, col)
        items = self.map_items(rows, cols, block.groups, self.strips_apart)
        lane = [Along(CHANNEL, channels)]
        if len(phases) > 1:
            lanes = [*product(phases, channels)]
            apart = (ROW, [phase[0] - row for phase, _ in lanes]), (COL, [phase[1] - col for phase, _ in lanes])
            lane = [Along(CHANNEL, tuple(channel for _, channel in lanes))]
            lane += [Along(axis, as_coordinates(by)) for axis, by in apart if any(by)]
        images = self.images(block.groups)
        boxes = [Box(channels, shifted(rows, y - row), shifted(cols, x - col), images) for y, x in phases]
        return Part(base, (0,), tuple(lane), items, self.word_fill), boxes

    def _phases(self, at: Columns) -> tuple[Phase, ...]:
        return self.cut.outcomes[at.outcome].phases


def _spread(axis: CellAxis, cells: range, phase: int) -> range:
    """The outputs of a phase of neighbouring cells."""
    return range(cells.start * axis.spread + phase, cells.stop * axis.spread + phase, axis.spread)


def _told(plan: PhasePlan) -> str:
    """How many phases there are, and what becomes of their results."""
    (row, col), cut = plan.cut.axes, plan.cut
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
    ways,
    partial=True,
    ignores=IGNORED | {"row_windows", "transposed_channels", "block_k", "block.taps"},
)
