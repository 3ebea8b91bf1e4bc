"""The third interpreter: values pass through tiles in shared memory, k-step by k-step, many blocks at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.gpu.program import Boxes, ChannelRun, ConsecutiveTiles, GpuProgram, KStep, ProductKernel
from tpusim.network.ops.array_op import Conv2d
from tpusim.reference import Operands, Tensor

_MOST_ELEMENTS = 1 << 22
"""Most elements of tiles, patches and sums that are held at a time."""
_Places = NDArray[np.int64]


def run(
    program: GpuProgram, operands: Operands, number: np.dtype[Any], told: Callable[[int], None]
) -> dict[str, Tensor]:
    """The ofmap [out_channel, row, col, image], and the lowered matrix if one is written; NaN where nothing is
    written.
    """
    products, conv = program.products, program.products.conv
    out = np.full((products.images * conv.out_height * conv.out_width, conv.out_channels), np.nan, number)
    taps, channels = prod(conv.kernel), conv.in_channels // conv.groups
    lowered = np.full((conv.groups, len(out), taps, channels), np.nan, number) if program.lowered_bytes else None
    for group in range(conv.groups):
        made = slice(group * conv.out_channels // conv.groups, (group + 1) * conv.out_channels // conv.groups)
        filter_ = operands["filter"][made].astype(number).reshape(made.stop - made.start, taps, -1)
        map_ = _Map(conv, operands["ifmap"], group, number)
        pixels = map_ if lowered is None else _Matrix(map_, lowered[group])
        for places, values in _tiles(products, pixels, filter_):
            there = places >= 0
            out[places[there], made] = values[there]
            told(int(np.count_nonzero(there)) * (made.stop - made.start))
    shape = products.images, conv.out_height, conv.out_width, conv.out_channels
    written = {"ofmap": out.reshape(shape).transpose(3, 1, 2, 0)}
    if lowered is not None:
        # From [group, output, tap, channel] to the axes of the reference's lowered matrix.
        maps = lowered.reshape(conv.groups, products.images, conv.out_height, conv.out_width, taps * channels)
        rows = conv.groups * taps * channels
        in_order = maps.transpose(0, 4, 2, 3, 1)
        written["lowered"] = in_order.reshape(rows, conv.out_height, conv.out_width, products.images)
    return written


@dataclass(frozen=True)
class _Map:
    """The channels of a group as the map is stored in DRAM, [image, row, col, channel], with padding around it."""

    conv: Conv2d
    ifmap: NDArray[Any]
    group: int
    number: np.dtype[Any]

    @cached_property
    def rows(self) -> Tensor:
        """Pixels, [pixel, channel], and one last pixel of zeros, which stands for all places outside the map."""
        size = self.conv.in_channels // self.conv.groups
        part = self.ifmap[self.group * size : (self.group + 1) * size].transpose(3, 1, 2, 0)
        padded = np.pad(part.astype(self.number), ((0, 0), *self.conv.pads, (0, 0))).reshape(-1, size)
        return np.concatenate([padded, np.zeros((1, size), self.number)])

    @property
    def sides(self) -> tuple[int, int, int]:
        """Images, rows and columns, with padding."""
        rows, cols = (axis.padded for axis in self.conv.axes)
        return self.ifmap.shape[-1], rows, cols

    def at(self, image: _Places, row: _Places, col: _Places) -> _Places:
        """Places of pixels, by padded rows and columns; pixels outside the map share the pixel of zeros."""
        images, rows, cols = self.sides
        inside = (image < images) & (row < rows) & (col < cols) & (image >= 0)
        return np.where(inside, (image * rows + row) * cols + col, images * rows * cols)

    def gather(self, outputs: _Places, step: KStep) -> Iterator[Tensor]:
        """Values that each run of a k-step reads for outputs [...]: [..., channel]; zeros where there is no output."""
        conv = self.conv
        image, row, col = np.unravel_index(np.maximum(outputs, 0), (self.sides[0], conv.out_height, conv.out_width))
        image = np.where(outputs < 0, -1, image)
        for run in step:
            down, across = divmod(run.tap, conv.kernel[1])
            rows, cols = (
                at * stride + tap * apart
                for at, stride, tap, apart in zip(
                    (row, col), conv.stride, (down, across), conv.dilation, strict=True
                )
            )  # fmt: skip
            yield self.rows[self.at(image, rows, cols), run.first : run.first + run.channels]


class _Matrix:
    """The lowered matrix of a group, [output, tap, channel], which a kernel of its own writes and products read."""

    def __init__(self, pixels: _Map, written: Tensor) -> None:
        self.written, taps = written, prod(pixels.conv.kernel)
        outputs = np.arange(len(written), dtype=np.int64)
        for tap in range(taps):
            (part,) = pixels.gather(outputs, (ChannelRun(tap, 0, written.shape[-1]),))
            written[:, tap] = part

    def gather(self, outputs: _Places, step: KStep) -> Iterator[Tensor]:
        """The values that `_Map.gather` would give."""
        for run in step:
            part = self.written[np.maximum(outputs, 0), run.tap, run.first : run.first + run.channels]
            yield np.where(outputs[..., None] < 0, part.dtype.type(0), part)


def _tiles(products: ProductKernel, pixels: _Map | _Matrix, filter_: Tensor) -> Iterator[tuple[_Places, Tensor]]:
    """Outputs of blocks, [block, row], and their values [block, row, out_channel], some blocks at a time."""
    width = max(len(filter_), max(sum(run.channels for run in step) for step in products.steps))
    together = max(1, _MOST_ELEMENTS // (products.tile.m * width))
    for first in range(0, products.blocks.count, together):
        which = first, min(first + together, products.blocks.count)
        source = _Patch(pixels, products.blocks, which) if products.patch else pixels
        places = products.blocks.places(*which)
        total = np.zeros((*places.shape, len(filter_)), filter_.dtype)
        for part in range(0, len(products.steps), products.part):
            # Split-k: several blocks share a sum, each makes the part of its own k-steps, and a reduction adds the
            # parts.
            steps = products.steps[part : part + products.part]
            sums = np.zeros((places.size, len(filter_)), filter_.dtype)
            for step in steps:
                # Shared memory holds a k-step of both operands; the zeros at its end change nothing.
                a = np.concatenate(list(source.gather(places, step)), axis=-1)
                b = np.concatenate([filter_[:, run.tap, run.first : run.first + run.channels] for run in step], axis=-1)
                sums += a.reshape(places.size, -1) @ b.T
            total += sums.reshape(total.shape)
        yield places, total


class _Patch:
    """Elements that the taps of boxes read, each once: [block, element of the patch, channel].

    The first tap of a slab of channels stages the patch that all taps of the slab read.
    """

    def __init__(self, pixels: _Map | _Matrix, boxes: ConsecutiveTiles | Boxes, which: tuple[int, int]) -> None:
        assert isinstance(boxes, Boxes)
        assert isinstance(pixels, _Map)
        conv, (images, *sides) = pixels.conv, boxes.box
        self.conv, self.pixels, self.slabs = conv, pixels, dict[int, Tensor]()
        axes = zip(sides, conv.kernel, conv.stride, conv.dilation, strict=True)
        reads = [np.add.outer(np.arange(n) * stride, np.arange(k) * apart) for n, k, stride, apart in axes]
        # Elements along an axis that are read, and the one among them that output y reads for tap i.
        found = [np.unique(read, return_inverse=True) for read in reads]
        self.kept = [each[0] for each in found]
        self.index = [each[1].reshape(read.shape) for each, read in zip(found, reads, strict=True)]
        self.images = np.arange(images)
        corners = boxes.corners(*which)
        (image, row, col), (down, across) = corners.T, conv.stride
        self.at = pixels.at(
            (image[:, None] + self.images)[:, :, None, None],
            (row[:, None] * down + self.kept[0])[:, None, :, None],
            (col[:, None] * across + self.kept[1])[:, None, None, :],
        ).reshape(len(corners), -1)

    def gather(self, outputs: _Places, step: KStep) -> Iterator[Tensor]:
        """The values that `_Map.gather` would give, for the outputs of the boxes."""
        (run,) = step
        if run.tap == 0:
            self.slabs[run.first] = self.pixels.rows[self.at, run.first : run.first + run.channels]
        # The element of the patch that each row of the tile reads for this tap.
        down, across = divmod(run.tap, self.conv.kernel[1])
        rows, cols = self.index[0][:, down], self.index[1][:, across]
        sides = len(self.kept[0]), len(self.kept[1])
        at = (self.images[:, None, None] * sides[0] + rows[:, None]) * sides[1] + cols
        yield self.slabs[run.first][:, at.ravel()]
