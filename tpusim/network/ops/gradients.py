"""Gradients of a convolution: by its input, and by its filter. Both have the fields of the convolution itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar, Self

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.input.form import validated
from tpusim.network.ops.array_op import Conv2d, Scatter, SteppedOp, Tensors, no_convolution
from tpusim.network.ops.op import MOST_CHANNELS, Ends, Index, Sides


@validated
class _ConvGradient(SteppedOp):
    """A gradient of a convolution with these fields."""

    # What the op reads is no ifmap of these sizes, so a layer before it cannot give them.
    sized_by: ClassVar[Mapping[str, int]] = {}

    @property
    def forward(self) -> Conv2d:
        """The convolution."""
        sizes = self.in_channels, self.in_height, self.in_width, self.out_channels
        return Conv2d(self.name, *sizes, self.kernel, self.stride, self.padding, self.dilation, self.groups)

    @property
    def shape_key(self) -> Hashable:
        """Equal for gradients of convolutions with an equal key."""
        return self.op, self.forward.shape_key

    @property
    def text(self) -> str:
        """The shape of the convolution in short: "56x56x64>128 3x3/2"."""
        return self.forward.text


@validated
class Conv2dInputGradient(_ConvGradient):
    """The gradient of a 2-D convolution by its input, of the gradient by its output; pairs are (height, width).

    The fields are those of the convolution. It reads the gradient by the output [out_channel, row, col, image], as its
    `ifmap`, and the convolution's filter with input and output channels exchanged: [in_channel, tap_row, tap_col,
    out_channel of the group]. Each element of the gradient, times each tap, is added to the input's element under the
    tap; what falls on padding is dropped.

    Raises InputError, whose problems say which field, when no such convolution exists.

    Examples:
        >>> from tpusim import Conv2dInputGradient
        >>> layer = Conv2dInputGradient("dx", 64, 56, 56, out_channels=128, kernel=3, stride=2, padding=1)
        >>> layer.shapes(8)["ifmap"], layer.shapes(8)["ofmap"]
        ((128, 28, 28, 8), (64, 56, 56, 8))
    """

    op: ClassVar[str] = "conv2d_input_gradient"
    grammar: ClassVar[str] = f"as the {Conv2d.op}'s, {Conv2d.grammar}"

    @property
    def scatter(self) -> Scatter:
        sizes, outputs = (self.out_height, self.out_width), (self.in_height, self.in_width)
        channels, first = (
            (self.groups, self.out_channels, self.in_channels),
            (self.axes[0].ends[0], self.axes[1].ends[0]),
        )
        return Scatter(*channels, sizes, outputs, self.kernel, self.stride, self.dilation, first, turned=True)

    @property
    def folded(self) -> tuple[str, str]:
        into, out = self.out_channels // self.groups, self.in_channels // self.groups
        return counted(into, "output channel"), counted(out, "input channel")

    def tensors(self, batch: int) -> Tensors:
        ifmap, _, ofmap = self.forward.tensors(batch)
        return Tensors(ofmap, (self.in_channels, *self.kernel, self.out_channels // self.groups), ifmap)

    def macs(self, batch: int) -> int:
        """Count MACs of the convolution, those with padding zeros included."""
        return self.forward.macs(batch)

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Raise UnsuitableError, which names the lowerings that need no convolution."""
        raise no_convolution(self)

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        """Return the op with as many output channels as rows, and input channels as columns, and the change."""
        into, out = (
            -(-channels // (step * self.groups)) * step * self.groups
            for channels, step in ((self.in_channels, cols), (self.out_channels, rows))
        )
        return replace(self, in_channels=into, out_channels=out), f"in_channels={into} out_channels={out}"


@validated
class Conv2dFilterGradient(_ConvGradient):
    """The gradient of a 2-D convolution by its filter, of the gradient by its output; pairs are (height, width).

    The fields are those of the convolution. Channel-first, it is a convolution again: images take the place of input
    channels, which are summed over, and input channels the place of images. The gradient by the output is the filter,
    with a tap for each of its pixels, and stride and dilation are exchanged. So taps are stacked in a pass by the
    paper's rule (section VII), with images in place of channels. A 1x1 convolution's is a matrix product over all
    pixels of all images.

    It reads the convolution's input as its `ifmap`, [image, row, col, in_channel of the group], without rows and
    columns under no tap; the gradient by the output as its `filter`, [out_channel, row, col, image]; of several groups
    the images of one stand behind those of another in the ifmap. Of a 1x1 convolution the pixels stand behind one
    another: [pixel and image, 1, 1, in_channel] and [out_channel, 1, 1, pixel and image]. The ofmap is the filter's
    gradient, [out_channel, tap_row, tap_col, in_channel of the group].

    Raises InputError, whose problems say which field, when no such convolution exists.

    Examples:
        >>> from tpusim import Conv2dFilterGradient
        >>> layer = Conv2dFilterGradient("dw", 64, 56, 56, out_channels=128, kernel=3, stride=2, padding=1)
        >>> layer.shapes(8)["ifmap"], layer.shapes(8)["filter"], layer.shapes(8)["ofmap"]
        ((8, 56, 56, 64), (128, 28, 28, 8), (128, 3, 3, 64))
    """

    op: ClassVar[str] = "conv2d_filter_gradient"
    grammar: ClassVar[str] = f"as the {Conv2d.op}'s, {Conv2d.grammar}"
    long_sums: ClassVar[bool] = True
    turned_ifmap: ClassVar[bool] = True

    def size_problems(self) -> Iterator[Problem]:
        problems = [*SteppedOp.size_problems(self)]
        yield from problems
        for number, axis in enumerate(() if problems else self.axes):
            if self._reached(number) <= 0:
                says = f"every tap along the {axis.name} stands on padding, so the filter has no gradient"
                yield Problem(f"{says}; take less padding, or a larger kernel", "padding")

    @property
    def is_a_product(self) -> bool:
        """Whether the kernel has one tap, which stands on no padding."""
        return prod(self.kernel) == 1 and not any(sum(axis.ends) for axis in self.axes)

    @property
    def summed(self) -> int:
        """Pixels of the output, over which it sums for each image."""
        return self.out_height * self.out_width

    @property
    def folded(self) -> tuple[str, str]:
        rows, cols = counted(self.out_height, "row"), counted(self.out_width, "column")
        return f"the images, {rows} and {cols}", counted(self.out_channels // self.groups, "output channel")

    @property
    def used(self) -> Sides:
        """Rows and columns of the input up to the last under a tap."""
        rows, cols = (min(axis.size, self._reached(number)) for number, axis in enumerate(self.axes))
        return rows, cols

    def _reached(self, number: int) -> int:
        axis = self.axes[number]
        return (axis.outputs - 1) * axis.stride + axis.reach - axis.ends[0]

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Return the convolution whose outputs are the filter's gradient, and its images: the input channels.

        Raises InputError where images, or their pixels, are more than a convolution has channels.
        """
        each, summed = self.in_channels // self.groups, self.groups * (self.summed if self.is_a_product else 1)
        if summed * batch > MOST_CHANNELS:
            says = f"its sum is over {summed * batch:,} terms at batch {batch:,}, and {MOST_CHANNELS:,} are the most"
            advice = f"take a smaller batch, at most {MOST_CHANNELS // summed:,} for this layer"
            raise InputError(Problem(f"{says}; {advice}", f"layer {self.name}"))
        if self.is_a_product:
            return Conv2d(self.name, summed * batch, 1, 1, self.out_channels, groups=self.groups, kernel=(1, 1)), each
        (top, left), behind = (axis.ends[0] for axis in self.axes), self._behind
        images, kernel = self.groups * batch, (self.out_height, self.out_width)
        around = top, left, *behind
        sizes = images, *self.used, self.out_channels
        return Conv2d(self.name, *sizes, kernel, self.dilation, around, self.stride, self.groups), each

    @property
    def _behind(self) -> Ends:
        """Padding behind the last row and the last column that a tap stands on."""
        rows, cols = (max(0, self._reached(number) - axis.size) for number, axis in enumerate(self.axes))
        return rows, cols

    def batch_of(self, shapes: Mapping[str, Sequence[int]]) -> int:
        return shapes["filter"][-1] // (self.summed if self.is_a_product else 1)

    def tensors(self, batch: int) -> Tensors:
        conv, images = self.convolution(batch)
        return conv.tensors(images)

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Name an element of the filter."""
        return ("out_channel", "tap_row", "tap_col", "in_channel"), index

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        """Return the op with enough output channels for every column, and the change in words: images fill the rows."""
        step = self.groups * cols
        out = -(-self.out_channels // step) * step
        return replace(self, out_channels=out), f"out_channels={out}"
