"""What a transfer carries: the words that each lane gets from HBM, or gives back to it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.steps import Box, FilterFill, IfmapFill, Program, Spill, Transfer, inside

Tensor = NDArray[np.float32]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Words:
    """Word `k` of a transfer: its address, the lanes `[lanes, words]` that take part, values [lanes, words, W]."""

    addresses: Indices
    lanes: NDArray[np.bool_]
    values: Tensor


@dataclass(frozen=True)
class HbmWords:
    """The words of all transfers of a Program, each only for the lanes that may take part: values [place, W].

    Word `k` of transfer `step` has its address for all lanes at `addresses[step][k]`; lane `i` finds it at place
    `first[step] + i * step.words + k`, for `i` below `lanes_of(step)`, and `used[place]` says whether it takes part.
    The words of a spill are empty until the lanes give them.
    """

    first: dict[int, int]
    addresses: dict[int, Indices]
    used: NDArray[np.bool_]
    values: Tensor

    @classmethod
    def of(cls, program: Program, ifmap: Tensor, filter_: Tensor, word_elements: int) -> HbmWords:
        """What HBM holds before the first cycle."""
        transfers = {i: step for i, step in enumerate(program.steps) if isinstance(step, Transfer)}
        sizes = [lanes_of(step) * step.words for step in transfers.values()]
        first = dict(zip(transfers, accumulate(sizes, initial=0), strict=False))
        used, values = np.zeros(sum(sizes), np.bool_), np.zeros((sum(sizes), word_elements), np.float32)
        addresses = {}
        for (index, step), size in zip(transfers.items(), sizes, strict=True):
            words = words_of(program, step, ifmap, filter_, lanes_of(step), word_elements)
            at = slice(first[index], first[index] + size)
            addresses[index], used[at] = words.addresses, words.lanes.reshape(-1)
            values[at] = words.values.reshape(-1, word_elements)
        return cls(first, addresses, used, values)

    def ofmap(self, program: Program) -> Tensor:
        """What the spills have brought, as [channel, row, col, image]; NaN where nothing came."""
        ofmap = np.full(program.ofmap_shape, np.nan, np.float32)
        for index, at in self.first.items():
            step = program.steps[index]
            if isinstance(step, Spill):
                words = self.values[at : at + lanes_of(step) * step.words]
                store(program, step, words.reshape(lanes_of(step), step.words, -1), ofmap)
        return ofmap


def lanes_of(step: Transfer) -> int:
    """From lane 0 on, as many as may take part in a transfer."""
    if isinstance(step, IfmapFill):
        return (step.copies - 1) * step.fold_channels + min(step.fold_channels, len(step.box.channels))
    if isinstance(step, FilterFill):
        return max(len(tile.out_channels) for tile in step.tiles)
    return len(step.box.channels)


def words_of(program: Program, step: Transfer, ifmap: Tensor, filter_: Tensor, lanes: int, word_elements: int) -> Words:
    """The words of one transfer."""
    if isinstance(step, IfmapFill):
        return ifmap_words(program, step, ifmap, lanes, word_elements)
    if isinstance(step, FilterFill):
        return filter_words(step, filter_, lanes, word_elements)
    return spill_words(step, lanes, word_elements)


def ifmap_words(program: Program, step: IfmapFill, ifmap: Tensor, lanes: int, word_elements: int) -> Words:
    """The words of an ifmap fill; ifmap is [channel, row, col, image]."""
    box, per_fold = step.box, step.fold_channels
    share = program.word_fill // program.strips
    groups = range(box.images.start // share, -(-box.images.stop // share))
    grid = (len(box.rows), len(box.cols), len(groups))
    values = np.zeros((lanes, step.words, word_elements), np.float32)
    mask = np.zeros((lanes, step.words), np.bool_)
    addresses = np.empty(step.words, np.int64)
    for index, channel in enumerate(box.channels):
        fold, lane = divmod(index, per_fold)
        at = slice(fold * prod(grid), (fold + 1) * prod(grid))
        addresses[at] = step.base + fold * step.fold_stride + np.arange(prod(grid))
        for copy in range(step.copies):
            mask[copy * per_fold + lane, at] = True
            values[copy * per_fold + lane, at] = _pixels(program, box, ifmap[channel], grid, share, word_elements)
    return Words(addresses, mask, values)


def _pixels(
    program: Program, box: Box, plane: Tensor, grid: tuple[int, int, int], share: int, word_elements: int
) -> Tensor:
    """One channel [row, col, image] as words [words, W]; what lies outside the map is zero."""
    words = np.zeros((*grid, word_elements), np.float32)
    first_image = box.images.start
    for i, row in enumerate(box.rows):
        for strip in range(program.strips):
            real = row + strip * program.ifmap_strip
            if not 0 <= real < plane.shape[0]:
                continue
            for image in box.images:
                group, element = divmod(image - first_image, share)
                words[i, :, group, strip * share + element] = plane[
                    real, box.cols.start : box.cols.stop : box.cols.step, image
                ]
    return words.reshape(-1, word_elements)


def filter_words(step: FilterFill, filter_: Tensor, lanes: int, word_elements: int) -> Words:
    """The words of a filter fill; filter is [out_channel, tap_row, tap_col, in_channel of the group]."""
    values = np.zeros((lanes, step.words, word_elements), np.float32)
    mask = np.zeros((lanes, step.words), np.bool_)
    addresses, at = np.empty(step.words, np.int64), 0
    for tile in step.tiles:
        words = -(-tile.rows // word_elements)
        addresses[at : at + words] = tile.base + np.arange(words)
        for lane, channel in enumerate(tile.out_channels):
            column = np.concatenate(
                [filter_[channel, i, j, tile.channels.start : tile.channels.stop] for i, j in tile.taps]
            )
            values[lane, at : at + words].reshape(-1)[: tile.rows] = column
            mask[lane, at : at + words] = True
        at += words
    return Words(addresses, mask, values)


def spill_words(step: Spill, lanes: int, word_elements: int) -> Words:
    """The words a spill will collect, still empty."""
    mask = np.zeros((lanes, step.words), np.bool_)
    mask[: len(step.box.channels)] = True
    return Words(step.base + np.arange(step.words), mask, np.zeros((lanes, step.words, word_elements), np.float32))


def store(program: Program, step: Spill, values: Tensor, ofmap: Tensor) -> None:
    """Put the words of a spill, [lanes, words, W], into the ofmap [channel, row, col, image]."""
    box, share = step.box, program.word_fill // program.strips
    grid = values.reshape(len(values), len(box.rows), len(box.cols), -1, values.shape[2])
    for strip in range(program.strips):
        rows = inside(box.rows, strip * program.ofmap_strip, ofmap.shape[1])
        for image in box.images:
            group, element = divmod(image - box.images.start, share)
            part = grid[: len(box.channels), : len(rows), :, group, strip * share + element]
            if rows:
                ofmap[
                    box.channels.start : box.channels.stop,
                    rows.start : rows.stop,
                    box.cols.start : box.cols.stop,
                    image,
                ] = part
