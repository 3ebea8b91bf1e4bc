"""The plan of a layer: its blocks, passes and stages, and where each buffer lies in the vector memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.reduction import ReductionPass, Tap, col_folds, multi_tile, reduction, row_folds
from tpusim.machines.tpu.lowering.tiling import Tiling, weight_words, word_groups
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.tensor import Along, Coordinates, Tensor

CHANNEL, ROW, COL, IMAGE = range(4)
"""The axes of a feature map."""

OUT_CHANNEL, K = range(2)
"""The axes of the filter."""


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
    def ifmap(self) -> Tensor:
        """The input feature map."""
        return Tensor("ifmap", self.shape.tensors.ifmap, converted=True)

    @cached_property
    def filter(self) -> Tensor:
        """The weights, an output channel after the other."""
        shape = self.shape
        taps = shape.row.kernel * shape.col.kernel
        return Tensor("filter", (shape.groups * shape.out_channels, taps * shape.channels))

    @cached_property
    def ofmap(self) -> Tensor:
        """The output feature map."""
        return Tensor("ofmap", self.shape.tensors.ofmap, converted=True)

    @cached_property
    def passes(self) -> tuple[ReductionPass, ...]:
        """The passes that add up to one output block."""
        return reduction(self.shape, self.hardware)

    @cached_property
    def taps(self) -> frozenset[Tap]:
        """Every tap of the filter."""
        return frozenset(tap for each in self.passes for tap in each.taps)

    @cached_property
    def pass_words(self) -> list[int]:
        """Words a lane needs for the weights of each pass."""
        return weight_words(self.passes, self.hardware)

    @cached_property
    def filter_rows(self) -> list[Along]:
        """The k of the filter whose weight stands in each array row of a pass: taps outside, channels inside."""
        width, channels = self.shape.col.kernel, self.shape.channels
        rows = ([(i * width + j) * channels + c for i, j in each.taps for c in each.channels] for each in self.passes)
        return [Along(K, _as_range(ks)) for ks in rows]

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
    def first_lanes(self) -> tuple[int, ...]:
        """Where each copy of the ifmap begins: one for every tap stacked."""
        return tuple(copy * len(self.row_folds[0]) for copy in range(self.multi_tile))

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

    def walk(self, tap: Tap, block: Block) -> tuple[Counter, ...]:
        """The grid points on which a tap stands: rows, then columns, then the word groups of each (paper Fig. 11)."""
        groups, cols = len(block.groups), len(block.grid_cols)
        row = _counter(self.shape.row, tap[0], block.rows, block.grid_rows, cols * groups)
        return (
            row,
            _counter(self.shape.col, tap[1], block.cols, block.grid_cols, groups),
            Counter(groups, 0, 1, groups, 1),
        )

    def reads(self, each: ReductionPass, block: Block, base: int, walks: Mapping[Tap, tuple[Counter, ...]]) -> Feed:
        """One lane group a tap, each with its own walk over the row fold's part of the block at `base`."""
        lanes, at = len(each.channels), base + each.fold * block.grid_words
        taps = enumerate(each.taps)
        return Feed(tuple([LaneGroup(index * lanes, lanes, Counters(at, walks[tap])) for index, tap in taps]))

    def map_items(self, rows: range, cols: range, groups: range, strip_rows: int) -> tuple[Along, ...]:
        """What one lane holds of a feature map: a word a grid point and group, of every strip and image in it.

        Strips lie `strip_rows` rows apart.
        """
        strips = self.shape.row.strips
        share = self.word_fill // strips
        first_images = range(groups.start * share, groups.stop * share, share)
        apart = (Along(ROW, range(0, strips * strip_rows, strip_rows)),) if strips > 1 else ()
        return (Along(ROW, rows), Along(COL, cols), Along(IMAGE, first_images), *apart, Along(IMAGE, range(share)))

    def images(self, groups: range) -> range:
        """The images in a range of word groups; strips share the one word of a pixel."""
        images = self.shape.images
        return range(min(groups.start * self.word_fill, images), min(groups.stop * self.word_fill, images))


def portions(extent: int, size: int) -> list[range]:
    """`range(extent)` in portions of `size`, the last perhaps smaller."""
    return [range(at, min(at + size, extent)) for at in range(0, extent, size)]


def _counter(axis: MapAxis, tap: int, outputs: range, grid: range, stride: int) -> Counter:
    start = outputs.start * axis.step + tap * axis.tap_step - grid.start
    return Counter(len(outputs), start, axis.step, len(grid), stride)


def _as_range(ks: list[int]) -> Coordinates:
    """Neighbours as a range, which is smaller than a table."""
    together = range(ks[0], ks[0] + len(ks))
    return together if ks == [*together] else tuple(ks)
