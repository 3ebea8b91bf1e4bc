"""The waist: the kernels of a layer, what their blocks stage and multiply step by step, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.gpu.description import BlockTile
from tpusim.network.ops.array_op import Conv2d

Outputs = NDArray[np.int64]
"""Positions in [image, row, col], flat, [block, row of the tile]; -1 where a row of the tile has none."""


@dataclass(frozen=True)
class InOrder:
    """Tiles of `rows` outputs each, one after another: of `outputs` in all."""

    outputs: int
    rows: int

    @property
    def count(self) -> int:
        """Tiles."""
        return -(-self.outputs // self.rows)

    def places(self, first: int, stop: int) -> Outputs:
        """What the tiles from `first` to before `stop` make."""
        at = np.arange(first * self.rows, stop * self.rows, dtype=np.int64)
        return np.where(at < self.outputs, at, -1).reshape(-1, self.rows)


@dataclass(frozen=True)
class Boxes:
    """Tiles of `box` = images, rows and columns, of a map whose `extent` says how many it has of each."""

    extent: tuple[int, int, int]
    box: tuple[int, int, int]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tiles along images, rows and columns."""
        images, rows, cols = (-(-size // side) for size, side in zip(self.extent, self.box, strict=True))
        return images, rows, cols

    @property
    def count(self) -> int:
        """Tiles."""
        images, rows, cols = self.counts
        return images * rows * cols

    def corners(self, first: int, stop: int) -> NDArray[np.int64]:
        """The first image, row and column of the tiles from `first` to before `stop`, [tile, 3]."""
        at = np.stack(np.unravel_index(np.arange(first, stop), self.counts), axis=1)
        return np.asarray(at * self.box, np.int64)

    def places(self, first: int, stop: int) -> Outputs:
        """What they make."""
        inside = np.stack(np.meshgrid(*map(np.arange, self.box), indexing="ij"), axis=-1).reshape(1, -1, 3)
        at = self.corners(first, stop)[:, None] + inside
        there = (at < np.array(self.extent)).all(axis=-1)
        return np.where(there, np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), self.extent, mode="clip"), -1)

    def shapes(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """How many tiles there are of each shape: those at the ends may be smaller."""
        axes = [
            [each for each in ((size // side, side), (1, size % side)) if all(each)]
            for size, side in zip(self.extent, self.box, strict=True)
        ]
        for (some, images), (more, rows), (most, cols) in product(*axes):
            yield some * more * most, (images, rows, cols)


Blocks = InOrder | Boxes


def unique(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Different positions y * stride + i * dilation, of `outputs` neighbouring outputs y and `taps` taps i.

    Output and tap may move against one another by stride / g taps and dilation / g outputs, g being their greatest
    common divisor: each pair that may has been counted already. Nothing is saved where the stride is as long as the
    kernel.
    """
    common = gcd(stride, dilation)
    again = max(0, outputs - dilation // common) * max(0, taps - stride // common)
    return outputs * taps - again


class ChannelRun(NamedTuple):
    """Neighbouring channels of one tap, from `first` on, of a group; taps are counted row by row."""

    tap: int
    first: int
    channels: int


KStep: TypeAlias = tuple[ChannelRun, ...]
"""What a block multiplies at once: side by side, and zeros to the end of the k-step."""


class StepTraffic(NamedTuple):
    """What one k-step of a block moves, in bytes, and what it looks up.

    Attributes:
        fetched: from L2, in whole sectors.
        requested: through the load port, what the L1 cache has included.
        stored: into shared memory.
        taps: that begin with it, and of which offsets are to be read.
    """

    fetched: int
    requested: int
    stored: int
    taps: int = 0


PART_BYTES = 4
"""Parts of a sum are written as floats."""


@dataclass(frozen=True)
class ProductKernel:
    """Blocks that multiply: of `conv` over `images`, each makes a tile of the ofmap, or of what is summed up later.

    Attributes:
        blocks: the outputs of a tile; tiles of channels, groups and parts of the sum come on top.
        steps: the k-steps of the whole sum, in order. `split` blocks share them, as evenly as may be; `unit` of them
            stay together.
        stages: what each moves; they repeat themselves after `period` of them, but for the last.
        patch: whether the first tap of a slab of channels stages what all taps of it read.
        resident: blocks that an SM holds together.
        a_bytes, b_bytes: what all blocks fetch of map and filter, padding of the map included, sectors not.
        hbm_read_bytes, hbm_write_bytes: between L2 and DRAM.
    """

    conv: Conv2d
    images: int
    tile: BlockTile
    blocks: Blocks
    steps: tuple[KStep, ...]
    stages: tuple[StepTraffic, ...]
    period: int
    unit: int
    resident: int
    patch: bool
    a_bytes: int
    b_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    split: int = 1

    what: ClassVar[str] = "products"
    launched: ClassVar[bool] = True

    @property
    def columns(self) -> int:
        """Tiles of output channels, those of every group."""
        return self.conv.groups * -(-(self.conv.out_channels // self.conv.groups) // self.tile.n)

    @property
    def count(self) -> int:
        """Blocks."""
        return self.blocks.count * self.columns * self.split

    @property
    def part(self) -> int:
        """K-steps of a block; the last of those that share a sum may have fewer."""
        return -(-len(self.steps) // (self.unit * self.split)) * self.unit

    @property
    def epilogue_bytes(self) -> int:
        """What a block writes: halves, or, where it made a part of the sum, floats."""
        return self.tile.m * self.tile.n * (PART_BYTES if self.split > 1 else 2)


@dataclass(frozen=True)
class MoveKernel:
    """A kernel that moves bytes: `between` L2 and the SMs, or from and to DRAM; or one that takes what it takes.

    Attributes:
        what: lowered, transform, reduction, offsets, strided.
        fixed_ps: what it takes however many bytes.
        launched: whether it is a kernel by itself, and not a part of the next one.
    """

    what: str
    between: Literal["dram", "l2"]
    read_bytes: int = 0
    write_bytes: int = 0
    fixed_ps: int = 0
    launched: bool = True

    @property
    def hbm_read_bytes(self) -> int:
        """Bytes that it reads from DRAM."""
        return self.read_bytes if self.between == "dram" else 0

    @property
    def hbm_write_bytes(self) -> int:
        """Bytes that it writes to DRAM."""
        return self.write_bytes if self.between == "dram" else 0


Kernel: TypeAlias = ProductKernel | MoveKernel


@dataclass(frozen=True)
class GpuProgram:
    """The kernels of a layer in order; exactly one is a `ProductKernel`."""

    kernels: tuple[Kernel, ...]
    lowered_bytes: int = 0

    @property
    def products(self) -> ProductKernel:
        """The kernel that multiplies."""
        return next(kernel for kernel in self.kernels if isinstance(kernel, ProductKernel))
