"""The deformable 2-D convolution (Dai et al. 2017, arXiv 1703.06211), with the mask of its second version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import lcm, prod
from typing import Annotated, ClassVar, Self, TypeAlias

from tpusim.base.errors import InputError, Problem, UnsuitableError
from tpusim.input.form import Name, Truth, pair, validated
from tpusim.network.ops.array_op import Tensors
from tpusim.network.ops.conv2d import Conv2d
from tpusim.network.ops.grouped import MOST_SIDE, Channels, GroupedOp, Sides, Size, Steps, short
from tpusim.network.ops.kernel_axis import KernelAxis
from tpusim.network.ops.offset_file import OffsetFile
from tpusim.network.ops.offsets import MASK_PARTS, Given, Offsets, drawn, offset_parts, offsets
from tpusim.network.ops.op import Shape

_Padding: TypeAlias = Annotated[Sides, pair(MOST_SIDE, 0, "; as much is added on opposite sides")]
_Offsets: TypeAlias = Annotated[Given, offsets(MOST_SIDE)]


@validated
class DeformConv2d(GroupedOp):
    """A deformable 2-D convolution, every field as torchvision has it; pairs are (height, width).

    Each tap of each output of each image is displaced by an offset, the same for all channels of one of
    `offset_groups`; between elements of the ifmap it is interpolated bilinearly, outside them it is zero. `modulated`
    multiplies each sample by a mask. What `offsets` and masks are, network/ops/offsets.py tells.

    Raises InputError, whose problems say which field, when no such op exists.
    """

    op: ClassVar[str] = "deform_conv2d"
    grammar: ClassVar[str] = (
        "rows x columns x channels > output channels, kernel, /stride, d dilation, g groups, o offset groups, m masks"
    )
    sized_by: ClassVar[Mapping[str, int]] = {"in_channels": 0, "in_height": 1, "in_width": 2}

    name: Annotated[str, Name()]
    in_channels: Channels
    in_height: Size
    in_width: Size
    out_channels: Channels
    kernel: Steps
    stride: Steps = (1, 1)
    padding: _Padding = (0, 0)
    dilation: Steps = (1, 1)
    groups: Channels = 1
    offset_groups: Channels = 1
    modulated: Annotated[bool, Truth()] = False
    offsets: _Offsets = "random"

    def __post_init__(self) -> None:
        if problems := [*self._group_problems(), *self._offset_problems(), *self._size_problems()]:
            raise InputError(problems)

    @property
    def out_height(self) -> int:
        """Rows of the ofmap."""
        return self._axes[0].outputs

    @property
    def out_width(self) -> int:
        """Columns of the ofmap."""
        return self._axes[1].outputs

    @property
    def text(self) -> str:
        """ "14x14x512>512 3x3/2 o4 m" is rows x cols x channels > channels, kernel / stride, offset groups, masks."""
        text = f"{self.in_height}x{self.in_width}x{self.in_channels}>{self.out_channels}"
        text += f" {self.kernel[0]}x{self.kernel[1]}"
        text += f"/{short(self.stride)}" if prod(self.stride) > 1 else ""
        text += f" d{short(self.dilation)}" if prod(self.dilation) > 1 else ""
        text += f" g{self.groups}" if self.groups > 1 else ""
        text += f" o{self.offset_groups}" if self.offset_groups > 1 else ""
        return text + (" m" if self.modulated else "")

    @property
    def sample_parts(self) -> int:
        """Equal parts of one that samples are counted in, of an ifmap of whole numbers."""
        return offset_parts(self.offsets) ** 2 * (MASK_PARTS if self.modulated else 1)

    def tensors(self, batch: int) -> Tensors:
        return Tensors(
            (self.in_channels, self.in_height, self.in_width, batch),
            (self.out_channels, *self.kernel, self.in_channels // self.groups),
            (self.out_channels, self.out_height, self.out_width, batch),
        )

    def samples(self, batch: int) -> tuple[int, ...]:
        """The shape [offset_group, tap_row, tap_col, row, col, image] of what is sampled of a channel."""
        return self.offset_groups, *self.kernel, self.out_height, self.out_width, batch

    def displaced(self, batch: int) -> Offsets:
        """Offsets and masks for so many images: the same for all layers of a shape."""
        return drawn(self.offsets, (self.shape_key, batch), self.samples(batch), self.modulated)

    def reads(self, batch: int) -> dict[str, Shape]:
        """Offsets and masks, too: down and across for each tap, then one a tap."""
        groups, height, width, *place = self.samples(batch)
        taps, (rows, cols, images) = groups * height * width, place
        given = {"offsets": (2 * taps, rows, cols, images), "mask": (taps, rows, cols, images)}
        read = self.tensors(batch)
        return {"ifmap": read.ifmap, **(given if self.modulated else {"offsets": given["offsets"]})}

    def operands(self, batch: int) -> int:
        """With two offsets a sample, and its mask."""
        given = 3 if self.modulated else 2
        return GroupedOp.operands(self, batch) + given * prod(self.samples(batch))

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """There is none: UnsuitableError names the lowering that does without."""
        raise UnsuitableError(f"no convolution of fixed taps computes a {self.op}; lower it by deformable")

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        """Whole offset groups too."""
        into = lcm(self.offset_groups, self.groups * rows)
        into, out = (
            -(-channels // step) * step
            for channels, step in ((self.in_channels, into), (self.out_channels, self.groups * cols))
        )
        return replace(self, in_channels=into, out_channels=out), f"in_channels={into} out_channels={out}"

    @property
    def _axes(self) -> tuple[KernelAxis, KernelAxis]:
        rows, cols = ((each, each) for each in self.padding)
        return (
            KernelAxis("height", self.in_height, self.kernel[0], self.stride[0], self.dilation[0], rows),
            KernelAxis("width", self.in_width, self.kernel[1], self.stride[1], self.dilation[1], cols),
        )

    def _size_problems(self) -> Iterator[Problem]:
        for axis in self._axes:
            yield from axis.problems()

    def _offset_problems(self) -> Iterator[Problem]:
        if self.in_channels % self.offset_groups:
            sizes = f"offset_groups {self.offset_groups} does not divide in_channels {self.in_channels}"
            yield Problem(f"{sizes}; choose a divisor of in_channels", "offset_groups")
        wanted = 2 * self.offset_groups * prod(self.kernel)
        of_file = wanted, self.out_height, self.out_width
        if isinstance(self.offsets, OffsetFile) and self.offsets.shape[1:] != of_file:
            sizes = " x ".join(map(str, self.offsets.shape[1:]))
            needed = f"{' x '.join(map(str, of_file))}: 2 x offset groups x taps, rows, columns"
            yield Problem(f"the file has {sizes} offsets an image; save {needed}", "offsets")
        if isinstance(self.offsets, tuple) and len(self.offsets) != wanted:
            rows, cols = self.kernel
            sizes = f"{len(self.offsets)} offsets for {self.offset_groups} x {rows} x {cols} taps, each down and across"
            yield Problem(f"{sizes}; write {wanted} of them, or a word", "offsets")
