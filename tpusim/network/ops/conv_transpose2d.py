"""The transposed 2-D convolution."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Annotated, ClassVar, TypeAlias

from tpusim.base.errors import InputError, Problem, UnsuitableError
from tpusim.input.form import Name, pair, validated
from tpusim.network.ops.array_op import Conv2d, PlanarOp
from tpusim.network.ops.op import MOST_SIDE, Channels, Sides, Size, Steps, short

_Cropped: TypeAlias = Annotated[Sides, pair(MOST_SIDE, 0, "; as much is cut off on opposite sides")]
_Added: TypeAlias = Annotated[Sides, pair(MOST_SIDE, 0, "; rows and columns added at the far ends")]


@validated
class ConvTranspose2d(PlanarOp):
    """A transposed 2-D convolution, every field as PyTorch has it; pairs are (height, width).

    Each element of the ifmap, times each tap of the filter, is added to an output: that of row
    `row * stride - padding + tap_row * dilation`, the same by columns. What falls outside the ofmap is dropped. The
    filter's axes stand as in a convolution; PyTorch has [in_channel, out_channel of the group, ...].

    Raises InputError, whose problems say which field, when no such op exists.
    """

    op: ClassVar[str] = "conv_transpose2d"
    grammar: ClassVar[str] = "rows x columns x channels > output channels, kernel, *stride, d dilation, g groups"

    name: Annotated[str, Name()]
    in_channels: Channels
    in_height: Size
    in_width: Size
    out_channels: Channels
    kernel: Steps
    stride: Steps = (1, 1)
    padding: _Cropped = (0, 0)
    output_padding: _Added = (0, 0)
    dilation: Steps = (1, 1)
    groups: Channels = 1

    def __post_init__(self) -> None:
        if problems := [*self._group_problems(), *self._size_problems()]:
            raise InputError(problems)

    @property
    def out_height(self) -> int:
        return self._outputs(0)

    @property
    def out_width(self) -> int:
        return self._outputs(1)

    @property
    def text(self) -> str:
        """ "28x28x256>128 4x4*2" is rows x cols x channels > channels, kernel * stride."""
        text = f"{self.map_text}*{short(self.stride)}"
        text += f" d{short(self.dilation)}" if prod(self.dilation) > 1 else ""
        return text + (f" g{self.groups}" if self.groups > 1 else "")

    def macs(self, batch: int) -> int:
        """MACs of the definition: each element of the ifmap times each weight of its channel, with what is cut off."""
        return prod(self.tensors(batch).ifmap) * prod(self.kernel) * (self.out_channels // self.groups)

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """There is none: UnsuitableError names the lowerings that do without."""
        says = f"no convolution of one stride computes a {self.op}; lower it by stride_phases or zero_insertion"
        raise UnsuitableError(says)

    def _outputs(self, axis: int) -> int:
        size, reach = (self.in_height, self.in_width)[axis], self.dilation[axis] * (self.kernel[axis] - 1) + 1
        spread = (size - 1) * self.stride[axis] + reach
        return spread - 2 * self.padding[axis] + self.output_padding[axis]

    def _size_problems(self) -> Iterator[Problem]:
        for axis, side in enumerate(("height", "width")):
            added, stride, dilation = self.output_padding[axis], self.stride[axis], self.dilation[axis]
            if added >= max(stride, dilation):
                sizes = f"output_padding {added} in {side} is not below its stride {stride} or its dilation {dilation}"
                yield Problem(f"{sizes}; write at most {max(stride, dilation) - 1}", "output_padding")
            elif (outputs := self._outputs(axis)) < 1:
                whole = outputs + 2 * self.padding[axis]
                sizes = f"padding {self.padding[axis]} cuts off all {whole} of the output's {side}, from both ends"
                yield Problem(f"{sizes}; write at most {(whole - 1) // 2}", "padding")
