"""Where the samples of a deformable convolution lie: around each four elements of the ifmap, and how near they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.lowering.block import Patch
from tpusim.machines.tpu.lowering.reduction import Tap
from tpusim.machines.tpu.program.addresses import encoded
from tpusim.network.ops import DeformConv2d
from tpusim.network.ops.offsets import MASK_PARTS, Offsets

CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""The elements around a sample: rows and columns beyond the one above and to the left of it."""

Kind = tuple[int, Tap]
"""Samples that differ: those of an offset group, for a tap."""
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Those of a layer for so many images, in words of `word_fill` of them; [offset_group, tap, row, col, image]."""

    layer: DeformConv2d
    batch: int
    word_fill: int

    @property
    def parts(self) -> int:
        """Equal parts of one that `blend` counts in."""
        return self._offsets.parts**2 * MASK_PARTS

    @cached_property
    def words(self) -> int:
        """Words of a pixel."""
        return -(-self.batch // self.word_fill)

    def band(self, rows: range) -> range:
        """The rows of the ifmap that samples of some output rows have around them, one at least."""
        first, stop = self._reach
        low, high = int(first[rows.start : rows.stop].min()), int(stop[rows.start : rows.stop].max())
        return range(low, high) if low < high else range(1)

    def pointers(self, patch: Patch, kinds: Sequence[Kind], band: range) -> Numbers:
        """[word, corner, element, kind] for the words of a patch of outputs: from the first word of a `band` of whole
        rows, whose words stand as those of the patch do, to the word that has the element.
        """
        groups, width = len(patch.groups), self.layer.in_width
        turns = np.arange(groups)[:, None]
        found = []
        for row, col in (self._corner(patch, kinds, at) for at in CORNERS):
            inside = (row >= 0) & (row < self.layer.in_height) & (col >= 0) & (col < width)
            offsets = ((row - band.start) * width + col) * groups + turns
            found.append(encoded(offsets, ~(inside & self._images(patch))))
        each = np.stack(found)
        # From [corner, kind, row, col, group, element].
        return np.moveaxis(each, (0, 1), (-3, -1)).reshape(patch.words, len(CORNERS), self.word_fill, len(kinds))

    def blend(self) -> Numbers:
        """How near each corner is, times the mask: [offset_group, tap, row, col, word, corner, element], in `parts`."""
        given, shape = self._offsets, self._down.shape
        down, across = self._down % given.parts, self._across % given.parts
        weights = np.zeros((*shape[:-1], self.words * self.word_fill, len(CORNERS)), np.int64)
        masks = given.masks.reshape(shape)
        for number, (low, right) in enumerate(CORNERS):
            near = (down if low else given.parts - down) * (across if right else given.parts - across)
            weights[..., : self.batch, number] = near * masks
        apart = weights.reshape(*shape[:-1], self.words, self.word_fill, len(CORNERS))
        return np.swapaxes(apart, -1, -2)

    # ---- in parts of the distance of neighbouring elements

    @cached_property
    def _offsets(self) -> Offsets:
        return self.layer.displaced(self.batch)

    @cached_property
    def _down(self) -> Numbers:
        stands = self._stands(0, self.layer.out_height)[:, None, :, None, None]
        return self._by_tap(stands * self._offsets.parts + self._offsets.down)

    @cached_property
    def _across(self) -> Numbers:
        stands = self._stands(1, self.layer.out_width)[None, :, None, :, None]
        return self._by_tap(stands * self._offsets.parts + self._offsets.across)

    def _stands(self, axis: int, outputs: int) -> Numbers:
        """[tap, output]: the rows or columns on which taps stand without offsets."""
        layer = self.layer
        taps, places = np.arange(layer.kernel[axis]) * layer.dilation[axis], np.arange(outputs) * layer.stride[axis]
        return taps[:, None] + places - layer.padding[axis]

    def _by_tap(self, values: Numbers) -> Numbers:
        groups, rows, cols, *rest = values.shape
        return values.reshape(groups, rows * cols, *rest)

    def _corner(self, patch: Patch, kinds: Sequence[Kind], corner: tuple[int, int]) -> tuple[Numbers, Numbers]:
        """The rows and the columns of a corner, [kind, row, col, group, element]; of images that there are not, any."""
        groups, (rows, cols) = [group for group, _ in kinds], zip(*(tap for _, tap in kinds), strict=True)
        taps = np.array(rows) * self.layer.kernel[1] + np.array(cols)
        images = range(patch.groups.start * self.word_fill, patch.groups.stop * self.word_fill)
        at = np.ix_(*map(np.array, (range(len(kinds)), patch.rows, patch.cols)), np.minimum(images, self.batch - 1))
        found = []
        for values, beyond in zip((self._down, self._across), corner, strict=True):
            each = values[np.array(groups), taps][at] // self._offsets.parts + beyond
            found.append(each.reshape(*each.shape[:3], len(patch.groups), self.word_fill))
        return found[0], found[1]

    def _images(self, patch: Patch) -> NDArray[np.bool_]:
        """Whether there is such an image, [group, element]."""
        first = patch.groups.start * self.word_fill
        return np.arange(first, first + len(patch.groups) * self.word_fill).reshape(-1, self.word_fill) < self.batch

    @cached_property
    def _reach(self) -> tuple[Numbers, Numbers]:
        """For each output row the first row of the ifmap around any of its samples, and the one after the last."""
        above = self._down // self._offsets.parts
        around = (0, 1, 3, 4)
        first, last = (
            np.maximum(above.min(axis=around), 0),
            np.minimum(above.max(axis=around) + 1, self.layer.in_height - 1),
        )
        return first, last + 1


@lru_cache(maxsize=8)
def samples_of(layer: DeformConv2d, batch: int, word_fill: int) -> Samples:
    """A layer is planned, and then lowered, perhaps several times."""
    return Samples(layer, batch, word_fill)
