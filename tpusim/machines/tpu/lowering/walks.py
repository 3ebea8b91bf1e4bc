"""How a tap walks over the grid points of a patch."""

from __future__ import annotations

from tpusim.machines.tpu.lowering.block import Block, Patch
from tpusim.machines.tpu.lowering.geometry import InStrips, MapAxis
from tpusim.machines.tpu.lowering.reduction import Tap
from tpusim.machines.tpu.program.addresses import Counter, Counters


def walk_of(shape: InStrips, tap: Tap, block: Block, patch: Patch, by_tap: bool) -> Counters:
    """The grid points on which a tap stands: rows, then columns, then the word groups of each (paper Fig. 11)."""
    counter, groups, cols = _own_counter if by_tap else _counter, len(block.groups), len(patch.cols)
    before_rows, row = counter(shape.row, tap[0], block.rows, patch.rows, cols * groups)
    before_cols, col = counter(shape.col, tap[1], block.cols, patch.cols, groups)
    return Counters(before_rows + before_cols, (row, col, Counter(groups, 0, 1, groups, 1)), block.span)


def _counter(axis: MapAxis, tap: int, outputs: range, grid: range, stride: int) -> tuple[int, Counter]:
    """From word 0 on, the grid points of a tap among those of all taps of a chunk."""
    start = outputs.start * axis.step + axis.place(tap) - grid.start
    return 0, Counter(len(outputs), start, axis.step, len(grid), stride)


def _own_counter(axis: MapAxis, tap: int, outputs: range, grid: range, stride: int) -> tuple[int, Counter]:
    """The words before, and the points of a tap that has lanes of its own."""
    real = axis.under(outputs, range(tap, tap + 1))
    before = real.start - grid.start // axis.step
    return before * stride, Counter(len(outputs), outputs.start - real.start, 1, len(real), stride)
