"""The plan of a deformable convolution: the plan of its product, with room for bands and tables.

Bands are whole rows of the ifmap; tables hold pointers to the elements around each sample, and their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.cut.blocks import Patch, word_groups
from tpusim.machines.tpu.cut.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import Chunk, Tap, TapGroups
from tpusim.machines.tpu.cut.tiling import Counts, Tiling
from tpusim.machines.tpu.definition import beat_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import encoded, pointers_a_word
from tpusim.machines.tpu.program.operations import Arity, work_of
from tpusim.machines.tpu.search.estimates import Candidates
from tpusim.machines.tpu.search.search import choose
from tpusim.network.ops.deform_conv2d import MASK_PARTS, DeformConv2d, Offsets

CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Elements around a sample, as rows and columns beyond the element above and to the left of it."""

Kind = tuple[int, Tap]
"""A kind of samples: an offset group and a tap."""
SampleNumbers = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """The samples of a layer, in words of `word_fill` images; [offset_group, tap, row, col, image]."""

    layer: DeformConv2d
    batch: int
    word_fill: int

    @property
    def parts(self) -> int:
        """Number of equal parts of 1 in which `blend` counts."""
        return self._offsets.parts**2 * MASK_PARTS

    @cached_property
    def words(self) -> int:
        """Words of a pixel."""
        return -(-self.batch // self.word_fill)

    def band(self, rows: range) -> range:
        """Rows of the ifmap around the samples of some output rows; at least one."""
        first, stop = self._reach
        low, high = int(first[rows.start : rows.stop].min()), int(stop[rows.start : rows.stop].max())
        return range(low, high) if low < high else range(1)

    def pointers(self, patch: Patch, kinds: Sequence[Kind], band: range) -> SampleNumbers:
        """Pointers [word, corner, element, kind] for the words of a patch of outputs.

        A pointer counts from the first word of a `band` of whole rows, stored like the patch, to the word with the
        element.
        """
        groups, width = len(patch.groups), self.layer.in_width
        turns = np.arange(groups)[:, None]
        # The last word may have images beyond the last one: a mask [group, element] tells which exist.
        images = np.arange(patch.groups.start * self.word_fill, patch.groups.stop * self.word_fill)
        there, found = images.reshape(-1, self.word_fill) < self.batch, []
        # Rows and columns around samples, [kind, row, col, group, element]; any value for images that do not exist.
        at = np.ix_(*map(np.array, (range(len(kinds)), patch.rows, patch.cols)), np.minimum(images, self.batch - 1))
        of_kinds = [(group, row * self.layer.kernel[1] + col) for group, (row, col) in kinds]
        offset_groups, taps = map(np.array, zip(*of_kinds, strict=True))
        shape, parts = (len(kinds), len(patch.rows), len(patch.cols), groups, self.word_fill), self._offsets.parts
        lying = [values[offset_groups, taps][at].reshape(shape) // parts for values in self._places]
        for corner in CORNERS:
            row, col = (values + beyond for values, beyond in zip(lying, corner, strict=True))
            inside = (row >= 0) & (row < self.layer.in_height) & (col >= 0) & (col < width)
            offsets = ((row - band.start) * width + col) * groups + turns
            found.append(encoded(offsets, ~(inside & there)))
        each = np.stack(found)
        # From [corner, kind, row, col, group, element] to the order in which words are gathered.
        return np.moveaxis(each, (0, 1), (-3, -1)).reshape(patch.words, len(CORNERS), self.word_fill, len(kinds))

    def blend(self) -> SampleNumbers:
        """Weights of the corners by distance, times the mask: [offset_group, tap, row, col, word, corner, element], in
        `parts`.
        """
        given = self._offsets
        down, across = (values % given.parts for values in self._places)
        shape = down.shape
        weights = np.zeros((*shape[:-1], self.words * self.word_fill, len(CORNERS)), np.int64)
        masks = given.masks.reshape(shape)
        for number, (low, right) in enumerate(CORNERS):
            near = (down if low else given.parts - down) * (across if right else given.parts - across)
            weights[..., : self.batch, number] = near * masks
        apart = weights.reshape(*shape[:-1], self.words, self.word_fill, len(CORNERS))
        return np.swapaxes(apart, -1, -2)

    # ---- in fractions of the distance of neighbouring elements

    @cached_property
    def _offsets(self) -> Offsets:
        return self.layer.displaced(self.batch)

    @cached_property
    def _places(self) -> tuple[SampleNumbers, SampleNumbers]:
        """Row and column of each sample."""
        layer, given, found = self.layer, self._offsets, list[SampleNumbers]()
        by_axis = (given.down, layer.out_height, (1, 3, 4)), (given.across, layer.out_width, (0, 2, 4))
        for axis, (moved, outputs, others) in enumerate(by_axis):
            taps, places = np.arange(layer.kernel[axis]) * layer.dilation[axis], np.arange(outputs) * layer.stride[axis]
            # Places of taps without offsets, [tap, output], along the axes [tap row, tap col, row, col, image].
            stands = np.expand_dims(taps[:, None] + places - layer.padding[axis], others)
            groups, rows, cols, *rest = (values := stands * given.parts + moved).shape
            found.append(values.reshape(groups, rows * cols, *rest))
        return found[0], found[1]

    @cached_property
    def _reach(self) -> tuple[SampleNumbers, SampleNumbers]:
        """For each output row, the first row of the ifmap around any of its samples, and the row after the last."""
        above, around = self._places[0] // self._offsets.parts, (0, 1, 3, 4)
        last = np.minimum(above.max(axis=around) + 1, self.layer.in_height - 1)
        return np.maximum(above.min(axis=around), 0), last + 1


# ---- the cut: channel-first's, where each tap has words of its own, gathered from samples


class LaneRun(NamedTuple):
    """Neighbouring lanes of a place with the same samples."""

    first_lane: int
    lanes: int
    kind: Kind


def kinds_of(lanes: Sequence[LaneRun]) -> tuple[Kind, ...]:
    """Kinds of a place, each once, in the order of their pointers."""
    return tuple(dict.fromkeys(each.kind for each in lanes))


@dataclass(frozen=True)
class SampledTaps(TapGroups):
    """Row folds times groups of taps, one of which is on chip at a time. A tap has the same samples for all channels of
    an offset group.
    """

    layer: DeformConv2d
    batch: int
    by_tap: ClassVar[bool] = True
    """Each tap always has words of its own."""

    @cached_property
    def samples(self) -> Samples:
        """Samples of the layer, in words of this machine."""
        _, fill = word_groups(self.batch, self.hardware.vector_memory.word_elements)
        return Samples(self.layer, self.batch, fill)

    @cached_property
    def every_place(self) -> list[tuple[LaneRun, ...]]:
        """Lanes of every place of every chunk, by channel group."""
        groups, chunks = range(self.shape.groups if self.layer.offset_groups > 1 else 1), self.chunks(1, self.folds)
        return [self.lanes_of(each, at, group) for group in groups for each in chunks for at in range(len(each.places))]

    @cached_property
    def most_kinds(self) -> int:
        """The most kinds side by side in a place."""
        return max(len(kinds_of(lanes)) for lanes in self.every_place)

    def pointer_words(self, hardware: Hardware) -> int:
        """Pointer words of a word of samples, for the place with the most kinds."""
        return -(-len(CORNERS) * self.samples.word_fill * self.most_kinds // pointers_a_word(hardware))

    def lanes_of(self, chunk: Chunk, place: int, group: int) -> tuple[LaneRun, ...]:
        """Lanes of a place of a chunk for a channel group, in runs that sample alike."""
        held = chunk.places[place]
        size, first = self.layer.in_channels // self.layer.offset_groups, group * self.shape.channels
        found, lane = list[LaneRun](), 0
        kinds = (((first + channel) // size, tap) for channel, tap in zip(held.channels, held.taps, strict=True))
        for kind, alike in groupby(kinds):
            found.append(LaneRun(lane, len([*alike]), kind))
            lane += found[-1].lanes
        return tuple(found)


def shape_of(layer: DeformConv2d, batch: int) -> ConvShape:
    """A convolution of stride 1 over gathered samples, in which each tap of each output has a point.

    Words hold images only: with strips, samples of one strip would lie in another.
    """
    rows, cols = (
        MapAxis(size=outputs + kernel - 1, kernel=kernel, stride=1, padding=(0, 0), dilation=1)
        for outputs, kernel in ((layer.out_height, layer.kernel[0]), (layer.out_width, layer.kernel[1]))
    )
    into, out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    return ConvShape(layer.groups, into, out, batch, rows, cols, layer.tensors(batch))


# ---- the plan's areas

OPERATION = "sum_of_products"
"""The operation that makes a word of samples: the sum of the corners times their weights."""
GATHERED = "gathered"
"""The area of gathered samples."""


# ---- blocks that leave room for bands and tables


@lru_cache(maxsize=1 << 8)
def sampling_of(layer: DeformConv2d, batch: int, hardware: Hardware) -> tuple[Plan, int]:
    """The cheapest plan by its estimate and its number of bands and tables: two each, or one if two do not fit.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    pointers_a_word(hardware)
    shape, hardware = shape_of(layer, batch), hardware.having("mapping", entry="ready")
    cut = SampledTaps(shape, hardware, layer, batch)
    try:
        among = _BandPairs
        tiling = choose(cut, hardware, among)
    except CapacityError:
        among = _SingleBands
        tiling = choose(cut, hardware, among)
    return Plan(shape, hardware, tiling, cut, GATHERED), among.copies


class _BandPairs(Candidates):
    """Blocks with two bands and two tables of each."""

    cut: SampledTaps
    copies = 2

    def lane_words(self, tilings: Tiling[Counts]) -> Counts:
        """Words of buffers, bands and tables."""
        words, layer = tilings.rows * tilings.cols * tilings.groups, self.cut.layer
        # A block that ends within a row may begin with any row, so the largest reach of all rows counts.
        sizes, where = np.unique(tilings.rows, return_inverse=True)
        starts = ((size, range(0, layer.out_height, 1 if tilings.span.any() else size)) for size in sizes.tolist())
        band, high = self.cut.samples.band, layer.out_height
        most = [max(len(band(range(at, min(at + size, high)))) for at in every) for size, every in starts]
        bands = tilings.chunk_folds * np.array(most, np.int64)[where] * layer.in_width * tilings.groups
        a_word = self.cut.pointer_words(self.hardware) + len(CORNERS)
        # Places that sample alike share a table, so this is an upper limit.
        tables = np.minimum(tilings.chunk_folds, len({*self.cut.every_place})) * words * a_word
        return np.asarray(tilings.words + self.copies * (bands + tables))

    def estimate(self, tilings: Tiling[Any]) -> NDArray[np.float64]:
        """Estimated cycles of the layer for every candidate."""
        costs, chunks = self._costs(tilings), self._parts(tilings)
        # A column fold that the block does not keep needs its samples gathered again.
        again = -(-self.columns // tilings.kept_folds)
        loads = self.shape.groups * tilings.blocks * np.where(chunks > 1, chunks * again, again)
        places, words = loads * tilings.chunk_folds, tilings.rows * tilings.cols * tilings.groups
        # The vector unit gathers one word after another.
        unit, elements = self.hardware.vector_unit, self.word_fill
        operations = work_of(OPERATION, Arity(2 * len(CORNERS), 0, 0), (), unit).operations
        operands = self.cut.pointer_words(self.hardware) + len(CORNERS) * (elements + 1)
        beat = beat_of(operands, operations, elements, self.hardware, picked=True)
        gathering = places * (words * beat.period + beat.result_delay)
        array = costs.results * self.passes * costs.per_pass
        filters = self.shape.groups * self.columns * self._filter_loads(tilings) * self._section_cycles(tilings)
        # Two loads are under way at once, each from its latency to its last word.
        waits = loads * self.hardware.latency_cycles
        return np.asarray(np.maximum(gathering + array + waits, filters + costs.results * costs.spill) + costs.spill)

    def late(self, tilings: Tiling[Any]) -> NDArray[np.float64]:
        """Zero: nothing is left out that would differ between tilings."""
        return np.zeros_like(tilings.rows, dtype=np.float64)


class _SingleBands(_BandPairs):
    """Blocks with one band and one table of each kind, which are filled again once they have been gathered from."""

    copies = 1
