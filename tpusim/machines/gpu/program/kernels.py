"""The kernels that a layer is, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from tpusim.machines.gpu.program.blocks import Blocks
from tpusim.machines.gpu.sections import Tile
from tpusim.network.ops.conv2d import Conv2d


class Run(NamedTuple):
    """Neighbouring channels of one tap, from `first` on, of a group; taps are counted row by row."""

    tap: int
    first: int
    channels: int


KStep: TypeAlias = tuple[Run, ...]
"""What a block multiplies at once: side by side, and zeros to the end of the k-step."""


class Stage(NamedTuple):
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


@dataclass(frozen=True)
class Products:
    """Blocks that multiply: of `conv` over `images`, each makes a tile of the ofmap, or of what is summed up later.

    Attributes:
        blocks: the outputs of a tile; tiles of channels, groups and parts of the sum come on top.
        steps: the k-steps of the whole sum, in order. `split` blocks share them, as evenly as may be; so many of them
            as a `unit` stay together.
        stages: what each moves; they repeat themselves after `period` of them, but for the last.
        patch: whether the first tap of a slab of channels stages what all taps of it read.
        source: the tensor that is gathered from, `ifmap` or `lowered`.
        a_bytes, b_bytes: what all blocks fetch of it and of the filter, padding of the map included, sectors not.
        hbm_read_bytes, hbm_write_bytes: between L2 and DRAM.
    """

    conv: Conv2d
    images: int
    tile: Tile
    blocks: Blocks
    split: int
    steps: tuple[KStep, ...]
    stages: tuple[Stage, ...]
    period: int
    unit: int
    resident: int
    patch: bool
    source: str
    a_bytes: int
    b_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int

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
        return self.tile.m * self.tile.n * (4 if self.split > 1 else 2)


@dataclass(frozen=True)
class Moves:
    """A kernel that moves bytes: `between` L2 and the SMs, or from and to DRAM; or one that takes what it takes.

    Attributes:
        what: lowered, transform, reduction, offsets, strided.
        fixed_ps: what it takes however many bytes.
    """

    what: str
    between: Literal["dram", "l2"]
    read_bytes: int = 0
    write_bytes: int = 0
    fixed_ps: int = 0
    launched: bool = True


Kernel: TypeAlias = Products | Moves


@dataclass(frozen=True)
class Program:
    """The kernels of a layer in order; exactly one makes `Products`."""

    kernels: tuple[Kernel, ...]
    lowered_bytes: int = 0

    @property
    def products(self) -> Products:
        """The one that multiplies."""
        return next(kernel for kernel in self.kernels if isinstance(kernel, Products))
