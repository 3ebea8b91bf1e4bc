"""The plan of a layer: its blocks, passes and stages, places of buffers, and the weights of each array row."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, groupby, product
from math import prod
from typing import ClassVar, NamedTuple

from tpusim.machines.tpu.cut.blocks import CHANNEL, COL, ROW, Block, Patch, as_coordinates, portions, spanning
from tpusim.machines.tpu.cut.geometry import ConvShape, ifmap_of, padded_map
from tpusim.machines.tpu.cut.reduction import Chunk, Cut, LanePlace, ReductionPass, Tap
from tpusim.machines.tpu.cut.tiling import Tiling, col_folds, parted, weight_words
from tpusim.machines.tpu.definition import word_cycles
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Coordinates, Elements, Fill, InboundTransfer, Part
from tpusim.machines.tpu.schedule.units import EqualMoves
from tpusim.memory.hbm_layout import Box, shifted

# ---- stages


class ColumnFold(NamedTuple):
    """A portion of the output channels, of one outcome, that passes bring out of the columns of the array."""

    channels: range
    outcome: int


class Section(NamedTuple):
    """Passes of a chunk and an outcome, by number, whose weights share a filter buffer."""

    chunk: int
    numbers: range
    outcome: int


class SectionPasses(NamedTuple):
    """Passes of one section for one channel group, block and column fold (of an outcome)."""

    group: int
    block: int
    fold: int
    section: int


def by_outcome(sections: Sequence[Section]) -> list[list[list[int]]]:
    """Numbers of the sections of each chunk, outcome by outcome."""
    chunks = [[*each] for _, each in groupby(range(len(sections)), lambda at: sections[at].chunk)]
    return [[[*each] for _, each in groupby(chunk, lambda at: sections[at].outcome)] for chunk in chunks]


# ---- the plan


OUT_CHANNEL, K = range(2)
"""Axes of the filter."""


@dataclass(frozen=True)
class Plan:
    """A layer cut up. The vector memory has ifmap buffers, then filter buffers, then partial sums.

    The ifmap is called `source`, since another tensor may be multiplied in its place.
    """

    shape: ConvShape
    hardware: Hardware
    tiling: Tiling[int]
    cut: Cut
    source: str = "ifmap"

    @cached_property
    def ifmap(self) -> Tensor:
        """The input feature map."""
        return ifmap_of(self.shape, self.hardware, self.source)

    @cached_property
    def filter(self) -> Tensor:
        """The weights, output channel by output channel."""
        return self.shape.filter

    @cached_property
    def ofmap(self) -> Tensor:
        """The output feature map."""
        ofmap = self.shape.tensors.ofmap
        own = self.hardware.vector_memory.result_bytes or None
        return Tensor("ofmap", ofmap, converted=True, hbm_bytes=own, padded=padded_map(ofmap, self.hardware))

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """Parts of the reduction whose ifmap is on chip together."""
        return self.cut.chunks(self.tiling.chunk_taps, self.tiling.chunk_folds)

    @cached_property
    def passes(self) -> tuple[ReductionPass, ...]:
        """Passes that add up to one output block."""
        return tuple(each for chunk in self.chunks for each in chunk.passes)

    # ---- weights: a word of a lane holds consecutive weights of its column

    def weights(self, at: ColumnFold, group: int, number: int, base: int) -> tuple[Part, ...]:
        """Weights of a pass for some columns, from word `base` on, an output channel a lane.

        In a bundle, each column begins where the rows of its own group do; other rows lie outside the filter and are
        zero.
        """
        lane, size = self._lanes_of_columns(at.channels, group), self.hardware.vector_memory.word_elements
        return (Part(base, (0,), lane, (self.weight_rows[number],), size),)

    def weights_alike(self, at: ColumnFold, group: int, numbers: range, begins: int) -> EqualMoves | None:
        """What brings the weights of some passes to their buffer, from the word where they begin: passes are alike
        whose rows are as far apart in the filter.
        """
        if self.shape.bundle > 1:
            return None
        form, k = self._form_of_weights(numbers)
        return EqualMoves((form, len(at.channels), begins), (at.channels.start + group * self.shape.out_channels, k))

    @cached_property
    def _form_of_weights(self) -> Callable[[range], tuple[int, int]]:
        """A number for the weights of passes relative to a row of the filter, and that row."""
        # What is kept by the plan leaves the plan out, so that both are gone with the last who uses it.
        forms, every, passes, shape = dict[Hashable, int](), self.weight_rows, self.passes, self.shape

        @cache
        def form(numbers: range) -> tuple[int, int]:
            rows = [every[number].coordinates for number in numbers]
            starts = [each.start for each in rows if isinstance(each, range)]
            # Rows of several taps are a table, which is not moved.
            first = starts[0] if len(starts) == len(rows) else 0
            lie = (*((each[0] - first, each[-1] - first, len(each)) if first else each for each in rows),)
            runs = (run for number in numbers for run in passes[number].runs if shape.has(run.tap))
            return forms.setdefault((lie, sum(len(run.channels) for run in runs)), len(forms)), first

        return form

    @cached_property
    def _lanes_of_columns(self) -> Callable[[range, int], tuple[Along, ...]]:
        """Weights along the lanes for some columns and a group, which all passes have in common."""
        shape = self.shape

        def lanes(channels: range, group: int) -> tuple[Along, ...]:
            own = _groups_of(channels, shape)
            lane = Along(OUT_CHANNEL, shifted(channels, group * shape.out_channels))
            if not any(own):
                return (lane,)
            apart = -prod(shape.tensors.filter[1:])
            return lane, Along(K, tuple([apart * each for each in own]))

        return cache(lanes)

    def weights_brought(self, at: ColumnFold, group: int, numbers: range) -> int:
        """Number of weights of some passes that come from HBM; the zeros of a bundle do not."""
        shape = self.shape
        if shape.bundle == 1:
            inside = (run for number in numbers for run in self.passes[number].runs if shape.has(run.tap))
            return sum(len(run.channels) for run in inside) * len(at.channels)
        left = shape.tensors.filter[0] * shape.bundle // shape.out_channels - group * shape.bundle
        columns = collections.Counter(own for own in _groups_of(at.channels, shape) if own < left)
        return sum(self._row_groups[number][own] * count for number in numbers for own, count in columns.items())

    @cached_property
    def weight_rows(self) -> list[Along]:
        """Filter index k of the weight in each array row, for each pass; of a bundle, group after group."""
        ks = ([self.shape.ks(run.tap, run.channels) for run in each.runs] for each in self.passes)
        return [Along(K, _in_a_row(each)) for each in ks]

    @cached_property
    def _row_groups(self) -> list[collections.Counter[int]]:
        """Array rows that each group of a bundle has in each pass."""
        size = self.shape.channels // self.shape.bundle
        inside = ((run for run in each.runs if self.shape.has(run.tap)) for each in self.passes)
        return [collections.Counter(c // size for run in runs for c in run.channels) for runs in inside]

    @cached_property
    def pass_words(self) -> list[int]:
        """Words of a lane for the weights of each pass."""
        return weight_words(self.passes, self.hardware)

    @cached_property
    def col_folds(self) -> tuple[range, ...]:
        """Output channels, at most as many as array columns at a time."""
        return col_folds(self.shape.out_channels, self.hardware)

    @cached_property
    def columns(self) -> tuple[ColumnFold, ...]:
        """Column folds of every outcome."""
        outcomes = range(len(self.chunks[0].sums))
        return tuple(ColumnFold(fold, outcome) for fold in self.col_folds for outcome in outcomes)

    @cached_property
    def sections(self) -> list[Section]:
        """Passes whose weights share a filter buffer, chunk by chunk."""
        size = self.tiling.section_passes
        return [
            Section(index, numbers[part.start : part.stop], outcome)
            for index, chunk in enumerate(self.chunks)
            for outcome, numbers in enumerate(chunk.sums)
            for part in portions(len(numbers), size)
        ]

    @cached_property
    def word_fill(self) -> int:
        """Elements of a word in use."""
        return self._word_groups[1]

    @cached_property
    def last_fill(self) -> int:
        """Elements of the last word of each pixel, if that streams by a frame of its own; else 0."""
        own = parted(self.tiling, self.cut, self.hardware)
        return self.shape.last_word(self.hardware.vector_memory.word_elements) if own else 0

    def fill_of(self, block: Block) -> int:
        """Elements of a word that passes over a block stream, where they are fewer than `word_fill`; else 0."""
        return self.last_fill if block.groups.start == self._word_groups[0] - 1 else 0

    @property
    def word_cycles(self) -> int:
        """Least cycles of a streamed word, whatever part of it is used; 0 if there is no minimum."""
        return word_cycles(self._word_groups[0], self.cut.transposed, self.hardware, self.cut.gathered)

    @cached_property
    def _word_groups(self) -> tuple[int, int]:
        return self.shape.word_groups(self.hardware.vector_memory.word_elements)

    @cached_property
    def blocks(self) -> list[Block]:
        """The ofmap in blocks: word groups outside, then rows, then columns; or in spans of words."""
        row, col = self.shape.row, self.shape.col
        if self.tiling.span:
            every = row.extent, col.extent, self._word_groups[0]
            return [spanning(every, words) for words in portions(prod(every), self.tiling.span)]
        return self.shape.blocks(self._word_groups[0], (self.tiling.rows, self.tiling.cols, self.tiling.groups))

    def patch(self, block: Block, chunk: Chunk) -> Patch:
        """The patch of the ifmap that is filled for a block and a chunk."""
        row, col = self.shape.row, self.shape.col
        if chunk.by_tap:
            rows, cols = row.under(block.rows, chunk.tap_rows), col.under(block.cols, chunk.tap_cols)
            return Patch(row.stood_on(rows), col.stood_on(cols), block.groups)
        return Patch(row.stored(block.rows, chunk.tap_rows), col.stored(block.cols, chunk.tap_cols), block.groups)

    # ---- where the ifmap stands

    ifmap_memory: ClassVar[str] = "lanes"
    ifmap_lanes: ClassVar[int] = 0
    """Lanes that take part; 0 for as many as passes have rows."""
    fill: ClassVar[type[InboundTransfer]] = Fill

    def read(self, channels: Coordinates, patch: Patch, base: int) -> tuple[Part, Box]:
        """A part of a patch of the ifmap with ascending channels, one a lane, from word `base` on; and its box."""
        rows, cols = self.shape.row.coordinates(patch.rows), self.shape.col.coordinates(patch.cols)
        points = Patch(rows, cols, patch.groups)
        return self.shape.part(self.word_fill, channels, points, self.shape.ifmap_apart, base)

    def filled(
        self, group: int, chunk: Chunk, patch: Patch, places: range, filled: Patch, base: int
    ) -> tuple[tuple[Elements, ...], Iterable[Box]]:
        """Parts for some places of a patch that begins at word `base`, each with all its copies; and their boxes in
        strip 0.
        """
        row, col = self.shape.row, self.shape.col
        rows, cols = row.coordinates(filled.rows), col.coordinates(filled.cols)
        items = self.map_items(rows, cols, filled.groups, self.shape.ifmap_apart)
        first = base + patch.words_before(filled)
        parts = tuple([
            Part(first + at * patch.words, place.first_lanes, self.lanes_of(place, group), items, self.word_fill)
            for at, place in ((at, chunk.places[at]) for at in places)
        ])  # fmt: skip
        rows, cols = filled.rows, filled.cols
        if chunk.shares_points:
            rows, cols = row.touched(rows, chunk.tap_rows), col.touched(cols, chunk.tap_cols)
        rows, cols, images = row.coordinates(rows), col.coordinates(cols), self.images(filled.groups)
        boxes = (
            Box(
                shifted(channels, group * self.shape.channels),
                shifted(rows, down * row.dilation),
                shifted(cols, across * col.dilation),
                images,
            )
            for (down, across), channels in chunk.brought(places)
        )
        return parts, boxes

    def filled_alike(self, group: int, number: int, patch: Patch, places: range, filled: Patch) -> EqualMoves:
        """What `filled` moves for chunk `number`: parts of patches are alike that differ in their place alone and have
        no padding.
        """
        shape, images = self.shape, self.images(filled.groups)
        rows, cols = shape.row.coordinates(filled.rows), shape.col.coordinates(filled.cols)
        origin = group * shape.channels, rows.start, cols.start, images.start
        high, wide = self._reach[number]
        reach = shape.channels, rows.stop - rows.start + high, cols.stop - cols.start + wide, len(images)
        sizes = patch.words, patch.words_before(filled), len(rows), len(cols), len(filled.groups), len(images)
        return EqualMoves((number, places, *sizes, *_edges(self.ifmap, origin, reach)), origin)

    @cached_property
    def _reach(self) -> list[tuple[int, int]]:
        """Rows and columns by which the boxes of each chunk may reach beyond the points of tap 0 in strip 0."""
        row, col, (down, across) = self.shape.row, self.shape.col, self.shape.ifmap_apart
        return [
            (
                2 * (each.tap_rows.stop - 1) * row.dilation + (row.strips - 1) * down,
                2 * (each.tap_cols.stop - 1) * col.dilation + (col.strips - 1) * across,
            )
            for each in self.chunks
        ]

    @property
    def stages(self) -> Iterator[SectionPasses]:
        """Stages in order: blocks outside and kept column folds inside, or the other way round; within these, chunk by
        chunk.
        """
        return self.stages_of(self.turns)

    @cached_property
    def turns(self) -> list[range]:
        """Column folds that blocks keep together, a range for each turn."""
        return portions(len(self.columns), self.tiling.kept_folds)

    def stages_of(self, turns: Sequence[range]) -> Iterator[SectionPasses]:
        """Stages of some turns, in order."""
        pairs = [*product(range(len(self.blocks)), turns)]
        if self.tiling.loop_order != "block_major":
            # A stable sort keeps the blocks in order within their column folds.
            pairs.sort(key=lambda pair: pair[1].start)
        of_chunks = by_outcome(self.sections)
        return (
            SectionPasses(group, block, fold, section)
            for group in range(self.shape.groups)
            for block, folds in pairs
            for of_chunk in of_chunks
            for fold in folds
            for section in of_chunk[self.columns[fold].outcome]
        )

    def walk(self, tap: Tap, block: Block, patch: Patch, by_tap: bool) -> Counters:
        """A walk over the grid points on which a tap stands: rows, then columns, then word groups (paper Fig. 11)."""
        return self.shape.walk(tap, block, patch, by_tap)

    def walks_alike(self, chunk: Chunk, block: Block) -> Hashable:
        """What the passes of a chunk walk over for a block, in patches that begin at one word."""
        patch, found = self.patch(block, chunk), list[tuple[object, ...]]()
        pairs = (block.rows, patch.rows, chunk.tap_rows), (block.cols, patch.cols, chunk.tap_cols)
        for axis, (outputs, grid, taps) in zip((self.shape.row, self.shape.col), pairs, strict=True):
            if chunk.by_tap:
                # A tap with lanes of its own stores only its own points.
                own = (axis.under(outputs, range(tap, tap + 1)) for tap in taps)
                first = grid.start // axis.step - outputs.start
                found.append(
                    (len(outputs), len(grid), first, *((each.start - outputs.start, len(each)) for each in own))
                )
            else:
                found.append((len(outputs), len(grid), outputs.start * axis.step - grid.start))
        return *found, len(block.groups), block.span

    def reads(self, chunk: Chunk, block: Block, base: int) -> list[Feed]:
        """Feeds of the passes of a chunk, for patches at `base`: a lane group for each run, with the walk of
        its tap.
        """
        patch = self.patch(block, chunk)
        walks = {tap: self.walk(tap, block, patch, chunk.by_tap) for tap in chunk.taps}
        at = [base + place * patch.words for place in range(len(chunk.places))]
        return [
            Feed(tuple([
                LaneGroup(lane, len(channels), walks[tap].moved(at[place]))
                for lane, tap, channels, place in each.runs
            ]))
            for each in chunk.passes
        ]  # fmt: skip

    def lanes_of(self, place: LanePlace, group: int) -> tuple[Along, ...]:
        """Coordinates that differ from lane to lane of a place: the channel, and the tap if each lane has its own."""
        by, at = group * self.shape.channels, place.channels
        lane = [Along(CHANNEL, shifted(at, by) if isinstance(at, range) else tuple([each + by for each in at]))]
        for number, (name, axis) in enumerate(((ROW, self.shape.row), (COL, self.shape.col))):
            shifts = [tap[number] * axis.dilation for tap in place.taps]
            lane += [Along(name, as_coordinates(shifts))] if any(shifts) else []
        return tuple(lane)

    def map_items(self, rows: range, cols: range, groups: range, apart: tuple[int, int]) -> tuple[Along, ...]:
        """Counters of a feature map in one lane: a word for each grid point and group, with all its strips and images.

        Strips lie `apart` (rows, cols) from one another.
        """
        return self.shape.items(self.word_fill, rows, cols, groups, apart)

    # ---- outcomes

    def results(self, block: Block) -> int:
        """Words that a pass over a block streams, which are as many as leave each column."""
        return block.words * self.shape.cell

    def width(self, at: ColumnFold) -> int:
        """Columns of the array in use."""
        return len(at.channels)

    def outputs(self, at: ColumnFold, group: int, block: Block, base: int) -> tuple[Part, list[Box]]:
        """The part of the outputs in the results of a rectangular block, and its boxes in strip 0."""
        channels = shifted(at.channels, group * self.shape.out_channels)
        part, box = self.shape.part(self.word_fill, channels, block, self.shape.ofmap_apart, base)
        return part, [box]

    def outputs_alike(self, at: ColumnFold, group: int, block: Block) -> EqualMoves | None:
        """What `outputs` moves: blocks of one rectangle are alike that differ in their place alone."""
        if block.span is not None:
            return None
        shape, images = self.shape, self.images(block.groups)
        (down, across), channels = shape.ofmap_apart, len(at.channels)
        origin = (
            at.channels.start + group * shape.out_channels, block.rows.start, block.cols.start, images.start
        )  # fmt: skip
        high, wide = len(block.rows) + (shape.row.strips - 1) * down, len(block.cols) + (shape.col.strips - 1) * across
        edges = _edges(self.ofmap, origin, (channels, high, wide, len(images)))
        return EqualMoves((channels, *block.sizes, len(images), *edges), origin)

    def images(self, groups: range) -> range:
        """Images in a range of word groups."""
        return self.shape.images_of(self.word_fill, groups)


def _groups_of(columns: range, shape: ConvShape) -> list[int]:
    """Number of each output channel's group within its bundle."""
    size = shape.out_channels // shape.bundle
    return [column // size for column in columns] if shape.bundle > 1 else [0]


def _edges(tensor: Tensor, origin: Sequence[int], reach: Sequence[int]) -> Iterator[int | None]:
    """Along each axis nothing for elements from `origin` on that are all inside a tensor, ahead of its padding; else
    where they begin, as what is moved then depends on it.
    """
    for first, size, extent, padded in zip(origin, reach, tensor.shape, tensor.padded or tensor.shape, strict=True):
        stop = first + size
        yield None if first >= 0 and (stop < extent or stop == extent == padded) else first


def _in_a_row(coordinates: Sequence[Sequence[int]]) -> Coordinates:
    """Coordinates one after another, as a range where they are consecutive."""
    if len(coordinates) == 1 and isinstance(only := coordinates[0], range):
        return only
    return as_coordinates([*chain.from_iterable(coordinates)])
