"""The 2-D convolution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Annotated, ClassVar, Self, TypeAlias

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.input.fields import Name, pair, whole
from tpusim.input.form import validated
from tpusim.network.ops.op import MOST_CHANNELS, Op, Tensors

Sides: TypeAlias = tuple[int, int]

_MOST_SIDE = 2**16
_Size: TypeAlias = Annotated[int, whole(_MOST_SIDE)]
_Channels: TypeAlias = Annotated[int, whole(MOST_CHANNELS)]
_Steps: TypeAlias = Annotated[Sides, pair(_MOST_SIDE)]
_Padding: TypeAlias = Annotated[Sides, pair(_MOST_SIDE, 0, "; padding is the same on opposite sides")]


@validated
class Conv2d(Op):
    """A 2-D convolution of images of in_channels x in_height x in_width elements; pairs are (height, width).

    Raises InputError, whose problems say which field, when no such convolution exists.
    """

    op: ClassVar[str] = "conv2d"
    grammar: ClassVar[str] = "rows x columns x channels > output channels, kernel, /stride, d dilation, g groups"

    name: Annotated[str, Name()]
    in_channels: _Channels
    in_height: _Size
    in_width: _Size
    out_channels: _Channels
    kernel: _Steps
    stride: _Steps = (1, 1)
    padding: _Padding = (0, 0)
    dilation: _Steps = (1, 1)
    groups: _Channels = 1

    def __post_init__(self) -> None:
        if problems := [*self._group_problems(), *self._fit_problems()]:
            raise InputError(problems)

    @property
    def out_height(self) -> int:
        """Rows of the ofmap."""
        return (self._padded(0) - self._reach(0)) // self.stride[0] + 1

    @property
    def out_width(self) -> int:
        """Columns of the ofmap."""
        return (self._padded(1) - self._reach(1)) // self.stride[1] + 1

    @property
    def text(self) -> str:
        """ "56x56x64>128 3x3/2" is rows x cols x channels > channels, kernel / stride."""
        text = f"{self.in_height}x{self.in_width}x{self.in_channels}>{self.out_channels}"
        text += f" {self.kernel[0]}x{self.kernel[1]}"
        text += f"/{_short(self.stride)}" if prod(self.stride) > 1 else ""
        text += f" d{_short(self.dilation)}" if prod(self.dilation) > 1 else ""
        return text + (f" g{self.groups}" if self.groups > 1 else "")

    @property
    def folded(self) -> tuple[str, str]:
        into, out = self.in_channels // self.groups, self.out_channels // self.groups
        return counted(into, "input channel"), counted(out, "output channel")

    @property
    def is_a_product(self) -> bool:
        """Whether the ifmap is its own lowered matrix."""
        return prod((*self.kernel, *self.stride)) == 1 and self.padding == (0, 0)

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

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        """Each group has channels for every row and column."""
        into, out = (
            self.groups * -(-channels // self.groups // side) * side
            for channels, side in ((self.in_channels, rows), (self.out_channels, cols))
        )
        return replace(self, in_channels=into, out_channels=out), f"in_channels={into} out_channels={out}"

    def _padded(self, axis: int) -> int:
        return (self.in_height, self.in_width)[axis] + 2 * self.padding[axis]

    def _reach(self, axis: int) -> int:
        """Input elements from the first tap to the last."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def _group_problems(self) -> Iterator[Problem]:
        for key in ("in_channels", "out_channels"):
            if getattr(self, key) % self.groups:
                sizes = f"groups {self.groups} does not divide {key} {getattr(self, key)}"
                yield Problem(f"{sizes}; choose a divisor of both channel counts", "groups")

    def _fit_problems(self) -> Iterator[Problem]:
        for axis, side in enumerate(("height", "width")):
            reach, size = self._reach(axis), self._padded(axis)
            if reach > size:
                sizes = f"the kernel spans {reach} in {side} with its dilation, but the padded input only {size}"
                yield Problem(f"{sizes}; use a smaller kernel or dilation, or more padding", "kernel")


def _short(sides: Sides) -> str:
    return f"{sides[0]}" if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"
