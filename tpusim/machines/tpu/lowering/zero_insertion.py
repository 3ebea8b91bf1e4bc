"""A transposed convolution as an ordinary one of its ifmap with zeros between the elements: what stride phases save.

The zeros are nowhere: address generators step over them, as over padding. But they are streamed, and every tap is
multiplied with all outputs, of which it reaches one in a cell.
"""

from __future__ import annotations

from dataclasses import replace

from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import channel_first
from tpusim.machines.tpu.lowering.block import COL, ROW, Block, Columns, Patch
from tpusim.machines.tpu.lowering.cells import IGNORED, cell_axes, cells_of, chosen
from tpusim.machines.tpu.lowering.convolution import draft_of
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import Tap
from tpusim.machines.tpu.program.addresses import Counter, Counters
from tpusim.machines.tpu.program.tensor import Along, Part
from tpusim.memory.layout import Box
from tpusim.network.ops import ArrayOp


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """A draft, the only one.

    Raises:
        UnsuitableError: when it is no transposed convolution.
        CapacityError: when no tiling fits the vector memories, or the machine fetches each tap by itself.
    """
    shape = cells_of(layer, batch, hardware)
    row, col = cell_axes(shape)
    shape, cut = replace(shape, cell=row.spread * col.spread), channel_first.cut
    plan = InsertedPlan(shape, hardware, chosen(cut, shape, hardware), cut(shape, hardware))
    rows, cols = counted(row.spread - 1, "row"), counted(col.spread - 1, "column")
    zeros = f"{rows} and {cols} of zeros between the elements of the ifmap: streamed, not stored"
    return [draft_of(plan, layer).telling("zeros", zeros, first=True)]


class InsertedPlan(Plan):
    """As any plan, of cells, whose outputs are streamed one after another."""

    def walk(self, tap: Tap, block: Block, patch: Patch, by_tap: bool) -> Counters:
        """Cell by cell, the one output that the tap reaches; at all others stands a zero."""
        base, counters, window = super().walk(tap, block, patch, by_tap)
        inside = tuple(
            Counter(axis.spread, -axis.stands[number][1], 1, 1, 0)
            for axis, number in zip(cell_axes(self.shape), tap, strict=True)
        )
        cell = self.shape.cell
        return Counters(base, (*counters, *inside), window and range(window.start * cell, window.stop * cell))

    def outputs(self, at: Columns, group: int, block: Block, base: int) -> tuple[Part, list[Box]]:
        """All outputs of the cells, which lie side by side in the ofmap."""
        row, col = cell_axes(self.shape)
        part, (box,) = super().outputs(at, group, block, base)
        rows, cols = (
            range(cells.start * axis.spread, cells.stop * axis.spread)
            for axis, cells in ((row, block.rows), (col, block.cols))
        )
        cells = self.map_items(rows[:: row.spread], cols[:: col.spread], block.groups, self.strips_apart)
        inside = Along(ROW, range(row.spread)), Along(COL, range(col.spread))
        return part._replace(items=(*cells[:3], *inside, *cells[3:])), [box._replace(rows=rows, cols=cols)]


ZERO_INSERTION = Lowering(
    "zero_insertion",
    "transposed convolutions as ordinary ones, of an ifmap with zeros between its elements",
    ways,
    partial=True,
    ignores=IGNORED,
)
