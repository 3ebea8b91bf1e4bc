"""The data path: which values a Program computes, through the simulated vector memories.

Every operand is read from a vector-memory word at a generated address and every result is written back
through one, so a wrong address, lane, weight or order gives a wrong number. Steps are executed in list order.

Passes that add to the same words one after the other are multiplied together: operands and weights are
copied out of the memories when their step comes up, and one matrix product does the sums of them all. It
runs no later than the next step that touches those words. Exact arithmetic makes that the same as one pass
at a time.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.steps import (
    AddressPattern,
    Box,
    FilterFill,
    FilterTile,
    IfmapFill,
    LaneGroup,
    Preload,
    Program,
    Spill,
    Stream,
    inside,
)

Tensor = NDArray[np.float32]

OPERAND_ELEMENTS = 1 << 19
"""Streamed operands gathered before they are multiplied: enough for BLAS, little enough for the cache."""


def run(program: Program, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> Tensor:
    """The ofmap [out_channel, row, col, image]; NaN where the Program never spilled.

    Args:
        ifmap: [in_channel, row, col, image]; filter_: [out_channel, tap_row, tap_col, in_channel of the group].

    Raises:
        CheckFailed: when a step addresses words or lanes that do not exist.
    """
    return _Run(program, hardware, ifmap, filter_).ofmap()


class _Run:
    def __init__(self, program: Program, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> None:
        self.program = program
        self.elements = program.word_fill
        self.share = program.word_fill // program.strips
        word = hardware.vector_memory.word_elements
        self.memory = np.zeros((hardware.lanes, program.peak_words, word), dtype=np.float32)
        self.ifmap = _in_words(ifmap, self.share)
        self.filter = filter_
        self.output = np.full((*program.ofmap_shape[:3], *self.ifmap.shape[3:]), np.nan, dtype=np.float32)
        self.weights: dict[int, Tensor] = {}
        self.reduction = _Reduction(self.elements)

    def ofmap(self) -> Tensor:
        """Execute every step."""
        for index, step in enumerate(self.program.steps):
            match step:
                case Stream():
                    self._stream(step)
                case Preload():
                    self._preload(index, step)
                case IfmapFill():
                    self._fill_ifmap(step)
                case FilterFill():
                    for tile in step.tiles:
                        self._fill_weights(tile)
                case Spill():
                    self._spill(step)
        whole = self.output.reshape(*self.output.shape[:3], -1)
        return whole[..., : self.program.images]

    def _words(self, lanes: range, base: int, words: int) -> Tensor:
        """A view [lanes, words, W] of the memories, after any pending sums that belong there."""
        count, depth, _ = self.memory.shape
        if not (base >= 0 and base + words <= depth and lanes.start >= 0 and lanes.stop <= count):
            raise CheckFailed(
                f"words [{base}, {base + words}) of lanes [{lanes.start}, {lanes.stop}) were addressed; "
                f"the layer has {depth} words in {count} lanes"
            )
        self.reduction.settle(base, words)
        return self.memory[lanes.start : lanes.stop, base : base + words]

    # ---- HBM to vector memory and back

    def _fill_ifmap(self, step: IfmapFill) -> None:
        """The box, one row fold after another, into every copy's lanes."""
        box, lanes = step.box, step.fold_channels
        groups = _word_groups(box, self.share)
        shape = (len(box.rows), len(box.cols), len(groups))
        for fold in range(-(-len(box.channels) // lanes)):
            channels = box.channels[fold * lanes : (fold + 1) * lanes]
            for copy in range(step.copies):
                at = range(copy * lanes, copy * lanes + len(channels))
                place = self._words(at, step.base + fold * step.fold_stride, prod(shape))
                self._fill_lanes(place.reshape(len(at), *shape, -1), replace(box, channels=channels), groups)

    def _fill_lanes(self, place: Tensor, box: Box, groups: range) -> None:
        """[channel, row, col, group, element] from HBM; each strip has its elements of every word."""
        for strip in range(self.program.strips):
            shift, at = strip * self.program.ifmap_strip, strip * self.share
            elements = place[..., at : at + self.share]
            rows = inside(box.rows, shift, self.ifmap.shape[1])
            if len(rows) < len(box.rows):
                elements[...] = 0
            if rows:
                first = (rows.start - shift - box.rows.start) // box.rows.step
                part = self.ifmap[_cut(box.channels), _cut(rows), _cut(box.cols), _cut(groups)]
                elements[:, first : first + len(rows)] = part

    def _fill_weights(self, tile: FilterTile) -> None:
        """Lane c takes column c's weights, W to a word, taps outside, channels inside."""
        taps = [self.filter[_cut(tile.out_channels), i, j, _cut(tile.channels)] for i, j in tile.taps]
        column = np.concatenate(taps, axis=1)
        word = self.memory.shape[2]
        full, rest = divmod(tile.rows, word)
        place = self._words(range(len(column)), tile.base, full + bool(rest))
        place[:, :full] = column[:, : full * word].reshape(len(column), full, word)
        if rest:
            place[:, full, :rest] = column[:, full * word :]

    def _spill(self, step: Spill) -> None:
        box = step.box
        groups = _word_groups(box, self.share)
        shape = (len(box.channels), len(box.rows), len(box.cols), len(groups))
        words = self._words(range(shape[0]), step.base, prod(shape[1:])).reshape(*shape, -1)
        for strip in range(self.program.strips):
            rows = inside(box.rows, strip * self.program.ofmap_strip, self.output.shape[1])
            place = self.output[_cut(box.channels), _cut(rows), _cut(box.cols), _cut(groups)]
            at = strip * self.share
            place[...] = words[:, : len(rows), ..., at : at + self.share]

    # ---- the array

    def _preload(self, index: int, step: Preload) -> None:
        """Weights [cols, rows], as they stand in the memories now."""
        word = self.memory.shape[2]
        words = self._words(range(step.cols), step.base, -(-step.rows // word))
        self.weights[index] = words.reshape(step.cols, -1)[:, : step.rows].copy()

    def _stream(self, step: Stream) -> None:
        """Copy the operands that lanes [0, rows) issue; a row that no lane group feeds gets zeros."""
        parts = [self._words(_lanes(group), group.pattern.base, _depth(group.pattern)) for group in step.reads]
        if not self.reduction.continues(step):
            results = self._words(range(step.cols), step.result_base, step.words)
            self.reduction.multiply()
            self.reduction.open(step, results[..., : self.elements])
        operands = self.reduction.rows(step.rows)
        if sum(group.lanes for group in step.reads) != step.rows:
            operands[...] = 0
        for group, words in zip(step.reads, parts, strict=True):
            at = slice(group.first_lane, min(group.first_lane + group.lanes, step.rows))
            _read(words[..., : self.elements], group.pattern, operands[at])
        self.reduction.add(self.weights.pop(step.preload))


class _Reduction:
    """Passes that add up in the same words: gathered one by one, multiplied and added together."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.base = self.end = 0
        self.results: Tensor = np.empty((0, 0, 0), np.float32)
        self.accumulate = False
        self.operands: Tensor = np.empty((0, 0), np.float32)
        self.weights: list[Tensor] = []
        self.filled = 0

    def settle(self, base: int, words: int) -> None:
        """Do the pending sums before words [base, base + words) are touched."""
        if base < self.end and self.base < base + words:
            self.multiply()

    def continues(self, step: Stream) -> bool:
        """Whether `step` adds to the very words of the pending passes."""
        same = self.base == step.result_base and self.results.shape[:2] == (step.cols, step.words)
        return bool(self.weights) and same and step.accumulate

    def open(self, step: Stream, results: Tensor) -> None:
        """Start a reduction into `results` [cols, words, E]."""
        self.base, self.end = step.result_base, step.result_base + step.words
        self.results, self.accumulate = results, step.accumulate

    def rows(self, rows: int) -> Tensor:
        """Room for the operands [rows, elements] of the next pass."""
        columns = self.results.shape[1] * self.elements
        if self.filled + rows > len(self.operands) or self.operands.shape[1] != columns:
            self.multiply()
            height = max(rows, OPERAND_ELEMENTS // columns)
            if height > len(self.operands) or self.operands.shape[1] != columns:
                self.operands = np.empty((height, columns), np.float32)
        return self.operands[self.filled : self.filled + rows]

    def add(self, weights: Tensor) -> None:
        """The operands just gathered meet `weights` [cols, rows]."""
        self.weights.append(weights)
        self.filled += weights.shape[1]

    def multiply(self) -> None:
        """Add the pending products into the result words; the reduction may go on after that."""
        if not self.weights:
            return
        weights, operands = np.concatenate(self.weights, axis=1), self.operands[: self.filled]
        if self.accumulate or not self.results[0].flags.c_contiguous:
            sums = (weights @ operands).reshape(self.results.shape)
            self.results[...] = self.results + sums if self.accumulate else sums
        else:
            np.matmul(weights, operands, out=self.results.reshape(len(weights), -1))
        self.weights, self.filled, self.accumulate = [], 0, True


def _read(words: Tensor, pattern: AddressPattern, operands: Tensor) -> None:
    """What the address generators fetch: words [lanes, depth, E] into operands [lanes, elements]."""
    rows, cols = pattern.inside(0), pattern.inside(1)
    lanes, groups, elements = len(operands), pattern.counts[2], words.shape[2]
    place = operands.reshape(lanes, *pattern.counts, elements)
    if len(rows) < pattern.counts[0] or len(cols) < pattern.counts[1]:
        operands[...] = 0
    grid = words[:lanes].reshape(lanes, *pattern.extent, groups, elements)
    place[:, _cut(rows), _cut(cols)] = grid[:, _walk(pattern, 0, rows), _walk(pattern, 1, cols)]


def _walk(pattern: AddressPattern, axis: int, counts: range) -> slice:
    """The grid points that `counts` stand on."""
    start, step = pattern.start[axis], pattern.step[axis]
    return slice(start + counts.start * step, start + (counts.stop - 1) * step + 1, step) if counts else slice(0, 0)


def _depth(pattern: AddressPattern) -> int:
    return pattern.extent[0] * pattern.extent[1] * pattern.counts[2]


def _lanes(group: LaneGroup) -> range:
    return range(group.first_lane, group.first_lane + group.lanes)


def _cut(part: range) -> slice:
    return slice(part.start, part.stop, part.step) if part else slice(0, 0)


def _word_groups(box: Box, elements: int) -> range:
    return range(box.images.start // elements, -(-box.images.stop // elements))


def _in_words(ifmap: Tensor, elements: int) -> Tensor:
    """[c, h, w, n] as [c, h, w, word group, E]; images that the last word lacks are zero."""
    missing = -ifmap.shape[3] % elements
    if missing:
        ifmap = np.pad(ifmap, ((0, 0), (0, 0), (0, 0), (0, missing)))
    return ifmap.reshape(*ifmap.shape[:3], -1, elements)
