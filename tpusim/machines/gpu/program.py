"""The waist: the kernels of a layer, and the k-steps of their blocks with their traffic."""

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
"""Outputs as flat positions in [image, row, col], [block, row of the tile]; -1 for rows of a tile without an output."""


@dataclass(frozen=True)
class ConsecutiveTiles:
    """Tiles of `rows` consecutive outputs each, for `outputs` in all."""

    outputs: int
    rows: int

    @property
    def count(self) -> int:
        """Number of tiles."""
        return -(-self.outputs // self.rows)

    def places(self, first: int, stop: int) -> Outputs:
        """Outputs of the tiles [first, stop)."""
        at = np.arange(first * self.rows, stop * self.rows, dtype=np.int64)
        # The last tile may reach past the outputs; such places are -1, and multiplied in vain.
        return np.where(at < self.outputs, at, -1).reshape(-1, self.rows)


@dataclass(frozen=True)
class Boxes:
    """Tiles of `box` = (images, rows, columns), for a map of `extent` = (images, rows, columns)."""

    extent: tuple[int, int, int]
    box: tuple[int, int, int]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tiles along images, rows and columns."""
        images, rows, cols = (-(-size // side) for size, side in zip(self.extent, self.box, strict=True))
        return images, rows, cols

    @property
    def count(self) -> int:
        """Number of tiles."""
        images, rows, cols = self.counts
        return images * rows * cols

    def corners(self, first: int, stop: int) -> NDArray[np.int64]:
        """The first image, row and column of the tiles [first, stop), [tile, 3]."""
        at = np.stack(np.unravel_index(np.arange(first, stop), self.counts), axis=1)
        return np.asarray(at * self.box, np.int64)

    def places(self, first: int, stop: int) -> Outputs:
        """Outputs of the tiles [first, stop)."""
        inside = np.stack(np.meshgrid(*map(np.arange, self.box), indexing="ij"), axis=-1).reshape(1, -1, 3)
        at = self.corners(first, stop)[:, None] + inside
        there = (at < np.array(self.extent)).all(axis=-1)
        return np.where(there, np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), self.extent, mode="clip"), -1)

    def shapes(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Number of tiles of each shape: tiles at the ends may be smaller."""
        axes = [
            [each for each in ((size // side, side), (1, size % side)) if all(each)]
            for size, side in zip(self.extent, self.box, strict=True)
        ]
        for (some, images), (more, rows), (most, cols) in product(*axes):
            yield some * more * most, (images, rows, cols)


Blocks = ConsecutiveTiles | Boxes


def unique(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Number of different positions y * stride + i * dilation, for `outputs` neighbouring outputs y and `taps` taps i.

    A position repeats if the tap moves by stride / g and the output by dilation / g the other way, g being their
    greatest common divisor; such pairs are counted once. Nothing is saved if the stride is as long as the kernel.
    """
    # Positions y * stride + i * dilation are equal for two pairs only if they differ by multiples of these steps.
    common = gcd(stride, dilation)
    again = max(0, outputs - dilation // common) * max(0, taps - stride // common)
    return outputs * taps - again


class ChannelRun(NamedTuple):
    """Neighbouring channels of one tap, from `first` on, of a group; taps are counted row by row."""

    tap: int
    first: int
    channels: int


KStep: TypeAlias = tuple[ChannelRun, ...]
"""Channels that a block multiplies at once, run by run; zeros fill the rest of the k-step."""


class StepTraffic(NamedTuple):
    """Traffic of one k-step of a block, in bytes, and the offsets that it reads.

    Attributes:
        fetched: bytes from L2, in whole sectors.
        requested: bytes through the load port, including those that the L1 cache has.
        stored: bytes into shared memory.
        taps: number of taps that begin with it, whose offsets are read.
    """

    fetched: int
    requested: int
    stored: int
    taps: int = 0


PART_BYTES = 4
"""Bytes of a part of a sum, which is written as a float."""


@dataclass(frozen=True)
class ProductKernel:
    """Blocks that multiply: each makes a tile of the ofmap of `conv` over `images`, or of parts that are added later.

    Attributes:
        blocks: tiles of outputs; their number is multiplied by tiles of channels, by groups and by parts of the sum.
        steps: k-steps of the whole sum, in order. `split` blocks share them as evenly as possible; `unit` of them
            stay together.
        stages, period: traffic of each k-step; it repeats after `period` k-steps, except for the last ones.
        patch: whether the first tap of a slab of channels stages the elements for all its taps.
        resident: number of blocks that an SM holds together.
        a_bytes, b_bytes: bytes of map and filter that all blocks fetch, with padding, without the rest of sectors.
        hbm_read_bytes, hbm_write_bytes: bytes between L2 and DRAM.
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
        """Tiles of output channels, over all groups."""
        return self.conv.groups * -(-(self.conv.out_channels // self.conv.groups) // self.tile.n)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.blocks.count * self.columns * self.split

    @property
    def part(self) -> int:
        """K-steps of a block; the last block that shares a sum may have fewer."""
        return -(-len(self.steps) // (self.unit * self.split)) * self.unit

    @property
    def epilogue_bytes(self) -> int:
        """Bytes that a block writes: 2 an output, or a float for a part of a sum."""
        return self.tile.m * self.tile.n * (PART_BYTES if self.split > 1 else 2)


@dataclass(frozen=True)
class MoveKernel:
    """A kernel that moves bytes between L2 and the SMs, or from and to DRAM; or a kernel of fixed time.

    Attributes:
        what: kind of the kernel: lowered, transform, reduction, offsets or strided.
        fixed_ps: time that does not depend on the bytes.
        launched: whether it is launched by itself, and is not part of the next kernel.
    """

    what: str
    between: Literal["dram", "l2"]
    read_bytes: int = 0
    write_bytes: int = 0
    fixed_ps: int = 0
    launched: bool = True

    @property
    def hbm_read_bytes(self) -> int:
        """Bytes that the kernel reads from DRAM."""
        return self.read_bytes if self.between == "dram" else 0

    @property
    def hbm_write_bytes(self) -> int:
        """Bytes that the kernel writes to DRAM."""
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
