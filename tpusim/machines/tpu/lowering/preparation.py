"""What the vector unit does with a new patch of the ifmap before passes use it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import prod

import numpy as np

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.reduction import Chunk

Sizes = tuple[int, int, int]
"""Rows and columns of the outputs of a block, and its word groups."""


def rotating(shape: ConvShape, chunk: Chunk, sizes: Sizes, hardware: Hardware) -> Fraction:
    """Cycles to rotate what a block needs, padding too, into the lane groups of copies beyond the second."""
    cycles = hardware.vector_unit.stack_cycles
    return chunk.rotations * prod(patch(shape, chunk, sizes)) * sizes[2] * cycles


def relaying(shape: ConvShape, chunk: Chunk, sizes: Sizes, hardware: Hardware) -> Fraction:
    """Cycles to lay out anew what a block needs, as far as passes do not hide them (`mapping.entry: relaid`).

    A word is put together by loads, one a cycle, in the first pass that wants it. They hide behind its stream but for
    the loads that the pass needs besides: of weights, of sums, and of words that are put together for several lane
    groups, which are written back in between.
    """
    cycles, (rows, cols, groups) = hardware.vector_unit.relayout_cycles, sizes
    if hardware.mapping.entry == "ready" or not cycles:
        return Fraction(0)
    word, words = hardware.vector_memory.word_elements, rows * cols * groups * shape.cell
    streamed = -(-words // hardware.array.count) * word
    again = words if any(len(place.first_lanes) > 1 for place in chunk.places) else 0
    total, new_words = Fraction(0), _new_words(shape, chunk, sizes, hardware)
    for number, each, new in zip(chunk.numbers, chunk.passes, new_words, strict=True):
        besides = -(-each.rows // word) + again + (words if number else 0)
        total += max(new * groups * cycles + besides - streamed, Fraction(0)) if new else 0
    return total


def _new_words(shape: ConvShape, chunk: Chunk, sizes: Sizes, hardware: Hardware) -> Iterator[int]:
    """Words of a group, as wide as all lanes, that each pass is the first of its chunk to want."""
    lanes, wanted = hardware.lanes, {run.channels[-1] for each in chunk.passes for run in each.runs}
    seen = np.zeros((max(wanted) // lanes + 1, *patch(shape, chunk, sizes)), dtype=bool)
    for each in chunk.passes:
        before = np.count_nonzero(seen)
        for run in each.runs:
            folds = slice(run.channels[0] // lanes, run.channels[-1] // lanes + 1)
            rows = _under(shape.row, run.tap[0], chunk.tap_rows, sizes[0])
            seen[folds, rows, _under(shape.col, run.tap[1], chunk.tap_cols, sizes[1])] = True
        yield int(np.count_nonzero(seen) - before)


def _under(axis: MapAxis, tap: int, taps: range, outputs: int) -> slice:
    """The grid points on which a tap stands, of those of a patch for several."""
    first = axis.place(tap) - axis.places(taps).start
    return slice(first, first + (outputs - 1) * axis.step + 1, axis.step)


def patch(shape: ConvShape, chunk: Chunk, sizes: Sizes) -> tuple[int, int]:
    """Rows and columns of grid points, padding too."""
    return shape.row.reach(sizes[0], chunk.tap_rows), shape.col.reach(sizes[1], chunk.tap_cols)
