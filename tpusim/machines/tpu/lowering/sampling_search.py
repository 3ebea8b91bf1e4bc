"""Choose how a deformable convolution is cut: blocks beside which there is room for what is gathered from."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.definition.beat import Beat
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.candidates import Candidates
from tpusim.machines.tpu.lowering.estimate import Estimate
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.sampled_taps import SampledTaps, shape_of
from tpusim.machines.tpu.lowering.samples import CORNERS
from tpusim.machines.tpu.lowering.sampling import (
    GATHERED,
    Sampling,
    beat_for,
    every_place,
    most_kinds,
    pointer_words,
    samples_for,
)
from tpusim.machines.tpu.lowering.search import choose
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling
from tpusim.machines.tpu.program.pointers import pointers_a_word
from tpusim.network.ops import DeformConv2d


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
