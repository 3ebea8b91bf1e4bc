"""The plan of a convolution in tiles: blocks of them, and where their words lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tpusim.machines.tpu.lowering.block import Block, Patch
from tpusim.machines.tpu.lowering.filtering import Filtering, Tiles
from tpusim.machines.tpu.lowering.maps import portions
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.memory.orders import TRANSFORMED


@dataclass(frozen=True)
class TilePlan:
    """How a layer is cut up; `plan` tells how its maps lie, and where their buffers are.

    Behind these come the transformed data of a block, [row fold, place, tile], and what lies between stages.
    """

    plan: Plan
    filtering: Filtering

    @cached_property
    def transformed(self) -> Tensor:
        """The filter in HBM, transformed beforehand: [product, out_channel, channel]."""
        shape = self.plan.shape
        return Tensor(TRANSFORMED, (len(self.filtering.by.products), shape.out_channels, shape.channels))

    @cached_property
    def ofmap(self) -> Tensor:
        """The outputs, on chip larger by what makes the transformed filter whole numbers, or not quite whole."""
        by = self.filtering.by
        return replace(self.plan.ofmap, scale=by.outputs_scale, lost=by.lost(self.plan.shape.channels))

    @cached_property
    def sections(self) -> list[range]:
        """Products whose weights share a filter buffer, with all row folds of each."""
        each = self.plan.tiling.section_passes // len(self.filtering.row_folds)
        return portions(len(self.filtering.by.products), each)

    @property
    def data_base(self) -> int:
        """First word of the transformed data."""
        return self.plan.tiling.words

    @property
    def scratch_base(self) -> int:
        """First word of what lies between stages, and of the products."""
        return self.data_base + self.data_words

    @cached_property
    def data_words(self) -> int:
        """Words of the transformed data."""
        return self.filtering.data_words(self._most)

    @cached_property
    def scratch_words(self) -> int:
        """Words of what lies between stages."""
        return self.filtering.scratch_words(self._most)

    @property
    def _most(self) -> Tiles:
        """Those of the largest block."""
        tiling = self.plan.tiling
        return self.filtering.tiles(tiling.rows, tiling.cols, tiling.groups)

    def tiles(self, block: Block) -> Tiles:
        """Those of a block; of columns there is one at least, perhaps of padding."""
        tiles = self.filtering.tiles(len(block.rows), len(block.cols), len(block.groups))
        return tiles._replace(cols=max(1, len(self.patch(block).cols)))

    def patch(self, block: Block) -> Patch:
        """What is filled of the ifmap for a block."""
        row, col = self.plan.shape.row, self.plan.shape.col
        rows, cols = row.stored(block.rows, range(row.kernel)), col.stored(block.cols, range(col.kernel))
        return Patch(rows, cols, block.groups)
