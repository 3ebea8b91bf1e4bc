"""The plan of a layer: its blocks, passes and stages, and where each buffer lies in the vector memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import Axis, ConvShape
from tpusim.machines.tpu.lowering.reduction import ReductionPass, col_folds, multi_tile, reduction, row_folds
from tpusim.machines.tpu.lowering.tiling import Tiling, weight_words, word_groups
from tpusim.machines.tpu.program.steps import AddressPattern, Box, LaneGroup


@dataclass(frozen=True)
class Block:
    """A rectangular part of the ofmap, and the ifmap grid points it needs."""

    rows: range
    cols: range
    groups: range
    grid_rows: range
    grid_cols: range

    @property
    def words(self) -> int:
        """Words of one output channel."""
        return len(self.rows) * len(self.cols) * len(self.groups)

    @property
    def grid_words(self) -> int:
        """Words of one input channel."""
        return len(self.grid_rows) * len(self.grid_cols) * len(self.groups)


@dataclass(frozen=True, slots=True)
class Stage:
    """The passes of one chunk for one channel group, block and column fold."""

    group: int
    block: int
    fold: int
    chunk: int


@dataclass(frozen=True)
class Plan:
    """How a layer is cut up. Vector memory: ifmap buffers, then filter buffers, then partial sums."""

    shape: ConvShape
    hardware: Hardware
    tiling: Tiling[int]

    @cached_property
    def passes(self) -> tuple[ReductionPass, ...]:
        """The passes that add up to one output block."""
        return reduction(self.shape, self.hardware)

    @cached_property
    def pass_words(self) -> list[int]:
        """Words a lane needs for the weights of each pass."""
        return weight_words(self.passes, self.hardware)

    @cached_property
    def weight_offsets(self) -> list[int]:
        """Words of weights before those of each pass, in a buffer that held all of them."""
        return list(accumulate(self.pass_words, initial=0))

    @cached_property
    def row_folds(self) -> tuple[range, ...]:
        """Input channels, at most R at a time."""
        return row_folds(self.shape, self.hardware)

    @cached_property
    def col_folds(self) -> tuple[range, ...]:
        """Output channels, at most C at a time."""
        return col_folds(self.shape, self.hardware)

    @cached_property
    def multi_tile(self) -> int:
        """Taps stacked in a pass."""
        return multi_tile(self.shape, self.hardware)

    @cached_property
    def chunks(self) -> list[range]:
        """Passes whose weights share a filter buffer."""
        return portions(len(self.passes), self.tiling.chunk_passes)

    @cached_property
    def word_fill(self) -> int:
        """Elements of a word in use."""
        return self._word_groups[1]

    @cached_property
    def _word_groups(self) -> tuple[int, int]:
        return word_groups(self.shape.word_images, self.hardware.vector_memory.word_elements)

    @cached_property
    def blocks(self) -> list[Block]:
        """The ofmap in blocks: word groups outside, then rows, then cols."""
        row, col = self.shape.row, self.shape.col
        return [
            Block(rows, cols, groups, row.stored(rows), col.stored(cols))
            for groups in portions(self._word_groups[0], self.tiling.groups)
            for rows in portions(row.extent, self.tiling.rows)
            for cols in portions(col.extent, self.tiling.cols)
        ]

    @cached_property
    def stages(self) -> list[Stage]:
        """Every column fold of a block before the next block, or every block of a fold before the next."""
        blocks, folds = range(len(self.blocks)), range(len(self.col_folds))
        block_major = [(block, fold) for block in blocks for fold in folds]
        filter_major = [(block, fold) for fold in folds for block in blocks]
        pairs = block_major if self.tiling.loop_order == "block_major" else filter_major
        return [
            Stage(group, block, fold, chunk)
            for group in range(self.shape.groups)
            for block, fold in pairs
            for chunk in range(len(self.chunks))
        ]

    def ifmap_base(self, buffer: int) -> int:
        """First word of an ifmap buffer."""
        return buffer * self.tiling.ifmap_words

    def filter_base(self, buffer: int) -> int:
        """First word of a filter buffer."""
        ifmap_end = self.tiling.ifmap_buffers * self.tiling.ifmap_words
        return ifmap_end + buffer * self.tiling.chunk_words

    def psum_base(self, buffer: int) -> int:
        """First word of a partial-sum buffer."""
        return self.filter_base(self.tiling.filter_buffers) + buffer * self.tiling.psum_words

    def images(self, groups: range) -> range:
        """The images in a range of word groups; strips share the one word of a pixel."""
        images = self.shape.images
        return range(min(groups.start * self.word_fill, images), min(groups.stop * self.word_fill, images))

    def reads(self, each: ReductionPass, block: Block, base: int) -> tuple[LaneGroup, ...]:
        """One lane group a tap, each with its own shifted address pattern (paper Fig. 11)."""
        lanes, at = len(each.channels), base + each.fold * block.grid_words
        return tuple(
            LaneGroup(index * lanes, lanes, self._pattern(tap, block, at)) for index, tap in enumerate(each.taps)
        )

    def _pattern(self, tap: tuple[int, int], block: Block, base: int) -> AddressPattern:
        row, col = self.shape.row, self.shape.col
        return AddressPattern(
            base=base,
            counts=(len(block.rows), len(block.cols), len(block.groups)),
            start=(
                _start(row, tap[0], block.rows, block.grid_rows),
                _start(col, tap[1], block.cols, block.grid_cols),
            ),
            step=(row.step, col.step),
            extent=(len(block.grid_rows), len(block.grid_cols)),
        )


def portions(extent: int, size: int) -> list[range]:
    """`range(extent)` in portions of `size`, the last perhaps smaller."""
    return [range(at, min(at + size, extent)) for at in range(0, extent, size)]


def burst_bytes(box: Box, shape: tuple[int, int, int, int], element_bytes: int, burst: int) -> int:
    """HBM bytes moved for `box` of a tensor stored HWCN: each contiguous run is rounded up to whole bursts."""
    channels, _, cols, images = shape
    run, whole = len(box.images), len(box.images) == images
    for part, extent in ((box.channels, channels), (box.cols, cols), (box.rows, None)):
        if not whole or part.step != 1:
            break
        run *= len(part)
        whole = len(part) == extent
    elements = len(box.channels) * len(box.rows) * len(box.cols) * len(box.images)
    return elements // run * (-(-run * element_bytes // burst) * burst) if run else 0


def _start(axis: Axis, tap: int, outputs: range, grid: range) -> int:
    return outputs.start * axis.step + tap * axis.tap_step - grid.start
