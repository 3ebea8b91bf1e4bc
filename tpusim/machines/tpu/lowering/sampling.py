"""The plan of a deformable convolution: that of its product, and what the vector unit gathers the product's words from.

Beside the plan's buffers stand bands of the ifmap, whole rows of it, and tables: pointers to the elements around each
sample, and how near these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.definition import Beat, beat_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import Block, Patch
from tpusim.machines.tpu.lowering.candidates import Candidates
from tpusim.machines.tpu.lowering.estimate import Estimate
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.sampled_taps import Lanes, SampledTaps, shape_of
from tpusim.machines.tpu.lowering.samples import CORNERS, Kind, Samples, samples_of
from tpusim.machines.tpu.lowering.search import choose
from tpusim.machines.tpu.lowering.tiles import padded_map
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling, word_groups
from tpusim.machines.tpu.program.addresses import ElementTable, pointer_bytes, pointers_a_word
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.network.ops import DeformConv2d

OPERATION = "sum_of_products"
"""What makes a word of samples: each corner times how near it is."""
POINTERS, BLEND, GATHERED = "pointers", "blend", "gathered"
"""The tensors of the tables, and the area in which samples stand."""


def samples_for(cut: SampledTaps, hardware: Hardware) -> Samples:
    """The samples of what is cut, in words of such a machine."""
    _, fill = word_groups(cut.batch, hardware.vector_memory.word_elements)
    return samples_of(cut.layer, cut.batch, fill)


def kinds_of(lanes: Sequence[Lanes]) -> tuple[Kind, ...]:
    """Those of a place, each once, in the order in which pointers stand side by side."""
    return tuple(dict.fromkeys(each.kind for each in lanes))


def pointer_words(kinds: int, elements: int, hardware: Hardware) -> int:
    """Pointer words of a word of samples, of which places have so many kinds side by side."""
    return -(-len(CORNERS) * elements * kinds // pointers_a_word(hardware))


def beat_for(kinds: int, elements: int, hardware: Hardware) -> Beat:
    """How such words are gathered one after another."""
    operations = OPERATIONS[OPERATION].alu(Arity(2 * len(CORNERS), 0, 0), ())
    reads = pointer_words(kinds, elements, hardware) + len(CORNERS) * (elements + 1)
    return beat_of(reads, operations, elements, hardware)


def most_kinds(cut: SampledTaps) -> int:
    """Kinds side by side in any place."""
    return max(len(kinds_of(lanes)) for lanes in every_place(cut))


def every_place(cut: SampledTaps) -> list[tuple[Lanes, ...]]:
    """The lanes of every place of every chunk, by channel group."""
    groups = range(cut.shape.groups) if cut.layer.offset_groups > 1 else range(1)
    chunks = cut.chunks(1, cut.folds)
    return [cut.lanes_of(chunk, place, at) for at in groups for chunk in chunks for place in range(len(chunk.places))]


class TableKey(NamedTuple):
    """What tells tables apart: the block, and the lanes of each place."""

    block: int
    lanes: tuple[tuple[Lanes, ...], ...]


@dataclass(frozen=True)
class Sampling:
    """How samples are gathered for a `plan` whose cut is SampledTaps, with so many `copies` of bands and tables."""

    plan: Plan
    copies: int

    @property
    def cut(self) -> SampledTaps:
        """The plan's."""
        assert isinstance(self.plan.cut, SampledTaps)
        return self.plan.cut

    @cached_property
    def samples(self) -> Samples:
        """Where they lie."""
        return samples_for(self.cut, self.plan.hardware)

    # ---- tensors

    @cached_property
    def ifmap(self) -> Tensor:
        """What is sampled."""
        shape = self.plan.shape.tensors.ifmap
        return Tensor("ifmap", shape, converted=True, padded=padded_map(shape, self.plan.hardware))

    @cached_property
    def blend(self) -> Tensor:
        """How near each corner is: [offset_group, tap, row, col, word, corner, element]."""
        layer, samples = self.cut.layer, self.samples
        taps, points = prod(layer.kernel), (layer.out_height, layer.out_width)
        shape = (layer.offset_groups, taps, *points, samples.words, len(CORNERS), samples.word_fill)
        return Tensor(BLEND, shape, number_bytes=self.plan.hardware.vector_memory.element_bytes)

    def table_key(self, group: int, block: int, chunk: int) -> TableKey:
        """The table by which a chunk of a group and a block is gathered: places that sample alike share one."""
        held = self.plan.chunks[chunk]
        lanes = (self.cut.lanes_of(held, place, group) for place in range(len(held.places)))
        return TableKey(block, tuple(dict.fromkeys(lanes)))

    # ---- and where it stands

    @cached_property
    def band_words(self) -> int:
        """Words of a band, of all places of a chunk."""
        return max(
            len(chunk.places) * self.band_size(block) for chunk in self.plan.chunks for block in self.plan.blocks
        )

    def band(self, block: Block) -> range:
        """The rows of the ifmap that a block samples."""
        return self.samples.band(block.rows)

    def band_size(self, block: Block) -> int:
        """Words of a place of it."""
        return len(self.band(block)) * self.cut.layer.in_width * len(block.groups)

    @cached_property
    def table_words(self) -> tuple[int, int]:
        """Words of a table of pointers, and of one of blends: of the largest block and the most kinds."""
        plan = self.plan
        words = max(plan.patch(block, plan.chunks[0]).words for block in plan.blocks)
        return words * pointer_words(most_kinds(self.cut), plan.word_fill, plan.hardware), words * len(CORNERS)

    @cached_property
    def tables_a_chunk(self) -> int:
        """Tables that stand beside one another."""
        plan = self.plan
        groups, chunks = range(plan.shape.groups), range(len(plan.chunks))
        return max(len(self.table_key(group, 0, chunk).lanes) for group in groups for chunk in chunks)

    @property
    def words(self) -> int:
        """Words beside the plan's."""
        return self.copies * (self.band_words + self.tables_a_chunk * sum(self.table_words))

    def table(self, lanes: Sequence[Lanes], patch: Patch, base: int, number: int) -> ElementTable:
        """The pointers of a place, whose table is one of those from word `base` on."""
        per_word = pointers_a_word(self.plan.hardware)
        kinds = len(kinds_of(lanes))
        return ElementTable(
            base + number * self.table_words[0], patch.words, len(CORNERS), self.plan.word_fill, kinds, per_word
        )

    def pointer_numbers(self, key: TableKey, lanes: Sequence[Lanes], patch: Patch) -> np.ndarray:
        """The same as they stand: [word, number], each word of samples beginning a word."""
        band = self.band(self.plan.blocks[key.block])
        numbers = self.samples.pointers(patch, kinds_of(lanes), band).reshape(patch.words, -1)
        table = self.table(lanes, patch, 0, 0)
        return np.pad(numbers, ((0, 0), (0, table.word_words * table.per_word - table.pointers)))

    @cached_property
    def pointer_bytes(self) -> int:
        """Bytes of one pointer."""
        return pointer_bytes(self.plan.hardware)


# ---- blocks beside which there is room for what is gathered from


@lru_cache(maxsize=1 << 8)
def sampling_of(layer: DeformConv2d, batch: int, hardware: Hardware) -> Sampling:
    """The cheapest by its estimate, with two bands and tables each, or where that does not fit, one.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    pointers_a_word(hardware)
    shape, hardware = shape_of(layer, batch), hardware.with_entry("ready")
    cut = SampledTaps(shape, hardware, layer, batch)
    try:
        among = _Doubled
        tiling = choose(shape, hardware, cut, among)
    except CapacityError:
        among = _Single
        tiling = choose(shape, hardware, cut, among)
    return Sampling(Plan(shape, hardware, tiling, cut, GATHERED), among.copies)


class _Estimate(Estimate):
    """The vector unit gathers, then the array multiplies; or what HBM takes of all that, if that is more."""

    cut: SampledTaps

    def cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Estimated cycles of the layer for every candidate."""
        costs, loads = self._costs(tilings), self._gatherings(tilings)
        places, words = loads * tilings.chunk_folds, tilings.rows * tilings.cols * tilings.groups
        gathering = places * (words * self._beat.period + self._beat.result_delay)
        array = costs.results * self.passes * costs.per_pass
        filters = self.shape.groups * self.columns * self._filter_loads(tilings) * self._section_cycles(tilings)
        # Two under way at once, each from its latency on.
        waits = loads * self.hardware.latency_cycles
        return np.asarray(np.maximum(gathering + array + waits, filters + costs.results * costs.spill) + costs.spill)

    def late(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Nothing is left out that tells tilings apart."""
        return np.zeros(len(tilings.rows))

    def _gatherings(self, tilings: Tiling[Counts]) -> Counts:
        """Chunks that are gathered: for every block, and again for column folds that it does not keep."""
        again = -(-self.columns // tilings.kept_folds)
        chunks = np.where(self._chunks(tilings) > 1, self._chunks(tilings) * again, again)
        return np.asarray(self.shape.groups * tilings.blocks * chunks)

    @cached_property
    def _beat(self) -> Beat:
        return beat_for(most_kinds(self.cut), self.of.word_fill, self.hardware)


class _Doubled(Candidates):
    """Blocks with two bands and two tables of each."""

    cut: SampledTaps
    estimated = _Estimate
    copies = 2

    def lane_words(self, tilings: Tiling[Counts]) -> Counts:
        """Words of buffers, bands and tables."""
        words = tilings.rows * tilings.cols * tilings.groups
        bands = tilings.chunk_folds * self._bands(tilings) * self.cut.layer.in_width * tilings.groups
        kinds = most_kinds(self.cut)
        a_word = pointer_words(kinds, self.word_fill, self.hardware) + len(CORNERS)
        tables = np.minimum(tilings.chunk_folds, self._tables) * words * a_word
        return np.asarray(tilings.words + self.copies * (bands + tables))

    @cached_property
    def _tables(self) -> int:
        """Different ones, at most, of a tap."""
        return len({*every_place(self.cut)})

    def _bands(self, tilings: Tiling[Counts]) -> Counts:
        """Rows of the ifmap that any block samples, at most; one that ends within a row may begin with any."""
        samples, height = samples_for(self.cut, self.hardware), self.cut.layer.out_height
        most = {
            size: max(
                len(samples.band(range(at, min(at + size, height))))
                for at in range(0, height, 1 if tilings.span.any() else size)
            )
            for size in np.unique(tilings.rows).tolist()
        }
        return np.array([most[size] for size in tilings.rows.tolist()], np.int64)


class _Single(_Doubled):
    """One of each, which is filled when it has been gathered from."""

    copies = 1
