"""The 2-D convolution."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from math import prod
from typing import Annotated, ClassVar, TypeAlias

from tpusim.base.errors import InputError
from tpusim.input.form import Name, validated
from tpusim.network.ops.array_op import Tensors
from tpusim.network.ops.grouped import MOST_SIDE, Channels, GroupedOp, Sides, Size, Steps, short
from tpusim.network.ops.kernel_axis import Ends, KernelAxis, Same, padding

_Padding: TypeAlias = Annotated[
    Sides | tuple[int, int, int, int] | Same,
    padding(MOST_SIDE, (2, 4), "a whole number, [height, width], [top, left, bottom, right]"),
]


@validated
class Conv2d(GroupedOp):
    """A 2-D convolution of images of in_channels x in_height x in_width elements; pairs are (height, width).

    Padding may be (top, left, bottom, right) too, or "same" or "same_lower": an output for each step of the stride.
    Raises InputError, whose problems say which field, when no such convolution exists.
    """

    op: ClassVar[str] = "conv2d"
    grammar: ClassVar[str] = (
        "rows x columns x channels > output channels, kernel, /stride, d dilation, p padding if uneven, g groups"
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

    def __post_init__(self) -> None:
        problems = [*self._group_problems()]
        problems += [each for axis in self.axes for each in axis.problems()]
        if problems:
            raise InputError(problems)

    @property
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Height and width."""
        rows, cols = self._padding
        return (
            KernelAxis("height", self.in_height, self.kernel[0], self.stride[0], self.dilation[0], rows),
            KernelAxis("width", self.in_width, self.kernel[1], self.stride[1], self.dilation[1], cols),
        )

    @property
    def pads(self) -> tuple[Ends, Ends]:
        """The padding before and after the rows, and the columns, in elements."""
        rows, cols = self.axes
        return rows.ends, cols.ends

    @property
    def out_height(self) -> int:
        """Rows of the ofmap."""
        return self.axes[0].outputs

    @property
    def out_width(self) -> int:
        """Columns of the ofmap."""
        return self.axes[1].outputs

    @property
    def shape_key(self) -> Hashable:
        """Equal for layers that differ in their names, or in how the same padding is written."""
        sizes = self.in_channels, self.in_height, self.in_width, self.out_channels, self.groups
        return self.op, *sizes, self.kernel, self.stride, self.pads, self.dilation

    @property
    def text(self) -> str:
        """ "56x56x64>128 3x3/2" is rows x cols x channels > channels, kernel / stride; p: top, left, bottom, right."""
        text = f"{self.in_height}x{self.in_width}x{self.in_channels}>{self.out_channels}"
        text += f" {self.kernel[0]}x{self.kernel[1]}"
        text += f"/{short(self.stride)}" if prod(self.stride) > 1 else ""
        text += f" d{short(self.dilation)}" if prod(self.dilation) > 1 else ""
        (top, bottom), (left, right) = self.pads
        text += f" p{top}x{left}x{bottom}x{right}" if (top, left) != (bottom, right) else ""
        return text + (f" g{self.groups}" if self.groups > 1 else "")

    @property
    def is_a_product(self) -> bool:
        """Whether the ifmap is its own lowered matrix."""
        return prod((*self.kernel, *self.stride)) == 1 and self.pads == ((0, 0), (0, 0))

    @property
    def product(self) -> Conv2d:
        """The 1x1 convolution of the lowered matrix."""
        rows, once = self.in_channels * prod(self.kernel), (1, 1)
        one_tap = replace(self, kernel=once, stride=once, padding=(0, 0), dilation=once)
        return replace(one_tap, in_channels=rows, in_height=self.out_height, in_width=self.out_width)

    def tensors(self, batch: int) -> Tensors:
        return Tensors(
            (self.in_channels, self.in_height, self.in_width, batch),
            (self.out_channels, *self.kernel, self.in_channels // self.groups),
            (self.out_channels, self.out_height, self.out_width, batch),
        )

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Itself, over the images of the batch."""
        return self, batch

    @property
    def _padding(self) -> tuple[Ends | Same, Ends | Same]:
        """What is written for each axis."""
        if isinstance(self.padding, str):
            return self.padding, self.padding
        top, left, bottom, right = self.padding if len(self.padding) == 4 else (*self.padding, *self.padding)
        return (top, bottom), (left, right)
