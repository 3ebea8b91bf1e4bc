"""Ops that a systolic array does: they multiply maps by a filter. Convolutions over one axis and two, transposed ones,
and the matrix product.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from math import prod
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, TypeAlias

from tpusim.base.errors import InputError, Problem, UnsuitableError
from tpusim.base.words import counted
from tpusim.input.form import Choice, Name, pair, validated, written
from tpusim.network.ops.op import (
    MOST_SIDE,
    Channels,
    Ends,
    Index,
    KernelAxis,
    KernelPadding,
    Op,
    Same,
    Shape,
    Sides,
    Size,
    Steps,
    kernel_axes,
    padding,
    short,
    steps_text,
)

StoredTensor: TypeAlias = Literal["computed", "int8", "int4"]
"""The type in which HBM has numbers: that which they are computed with, or a narrower one."""
STORED_BITS: Mapping[str, int] = {"int8": 8, "int4": 4}
"""Bits of a number in the types that HBM has instead of that of the computation."""


def stored_bits(stored: StoredTensor, element_bytes: int) -> int:
    """Return the bits of an element of a type in HBM, no wider than an element of the computation."""
    # A machine whose own elements are as narrow gains nothing by a narrow type.
    return min(STORED_BITS.get(stored, 8 * element_bytes), 8 * element_bytes)


class Tensors(NamedTuple):
    """Shapes of the tensors of an op of the array, in elements.

    Maps are [channel, row, col, image], the filter is [out_channel, tap_row, tap_col, in_channel of the group].
    """

    ifmap: Shape
    filter: Shape
    ofmap: Shape


class Scatter(NamedTuple):
    """Products of each element of a map with each tap of a filter, which are added to outputs.

    Row r under tap t goes to row `r * stride + t * dilation - cropped` of the result, and likewise by columns; what
    falls outside is dropped.

    Attributes:
        groups, in_channels, out_channels: channels of the map and of the result, of all groups together.
        sizes, outputs: rows and columns of the map, and of the result.
        turned: whether the filter lies in memory as that of the convolution whose gradient this is, which has the
            channels of the result where a transposed convolution has those of the map.
    """

    groups: int
    in_channels: int
    out_channels: int
    sizes: Sides
    outputs: Sides
    kernel: Sides
    stride: Sides
    dilation: Sides
    cropped: Sides
    turned: bool = False


class ArrayOp(Op):
    """An op that multiplies maps by a filter: an ifmap, a filter, and MACs."""

    __slots__ = ()

    unit: ClassVar[Literal["array", "vector"]] = "array"
    long_sums: ClassVar[bool] = False
    """Whether its outputs are few and their sums long, so that sums are cut for memory's sake before outputs are."""
    turned_ifmap: ClassVar[bool] = False
    """Whether its ifmap has images in the place of channels, and channels in that of images."""

    @property
    def scatter(self) -> Scatter | None:
        """The op as a scatter; None for ops that gather what an output needs, as convolutions do."""
        return None

    @property
    @abstractmethod
    def folded(self) -> tuple[str, str]:
        """The sizes that row folds and column folds divide, in words: "64 input channels", "128 output channels"."""

    @property
    def filter_stored(self) -> StoredTensor:
        """The type in which HBM has the filter."""
        return "computed"

    @abstractmethod
    def tensors(self, batch: int) -> Tensors:
        """Return the shapes of its tensors for `batch` images."""

    @abstractmethod
    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Return the convolution that computes the op on an array, and its number of images."""

    @abstractmethod
    def filled(self, rows: int, cols: int) -> tuple[Self, str]: ...

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return the shapes of its `tensors`."""
        return self.tensors(batch)._asdict()

    def terms(self, batch: int) -> int:
        """Return the number of products of one output."""
        return prod(self.tensors(batch).filter[1:])

    def weights(self, batch: int) -> int:
        return prod(self.tensors(batch).filter)

    def macs(self, batch: int) -> int:
        return self.outputs(batch) * self.terms(batch)


class GroupedOp(ArrayOp):
    """An op over channels in independent groups; the channels of both maps are divided among them.

    Attributes:
        groups: groups of channels. A depthwise convolution has a group for each channel.
    """

    __slots__ = ()

    in_channels: int
    out_channels: int
    groups: int

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        for key, size in (("in_channels", self.in_channels), ("out_channels", self.out_channels)):
            if size % self.groups:
                sizes = f"groups {self.groups} does not divide {key} {size}"
                problems.append(Problem(f"{sizes}; choose a divisor of both channel counts", "groups"))
        if problems := [*problems, *self.size_problems()]:
            raise InputError(problems)

    @abstractmethod
    def size_problems(self) -> Iterable[Problem]:
        """Yield what is wrong with its sizes, but for the groups."""

    @property
    def folded(self) -> tuple[str, str]:
        into, out = self.in_channels // self.groups, self.out_channels // self.groups
        return counted(into, "input channel"), counted(out, "output channel")

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        """Return the op with enough channels in each group for every row and column, and the change in words."""
        into, out = (
            # Rounded up, as a layer that is to fill the array must not lose channels.
            -(-channels // step) * step
            for channels, step in ((self.in_channels, self._into_step(rows)), (self.out_channels, self.groups * cols))
        )
        return replace(self, in_channels=into, out_channels=out), f"in_channels={into} out_channels={out}"

    def _into_step(self, rows: int) -> int:
        """Return input channels that fill `rows` in each group."""
        return self.groups * rows


@validated
class PlanarOp(GroupedOp):
    """A grouped op whose kernel moves over rows and columns; pairs are (height, width).

    Attributes:
        name: name of the layer, which no other layer of the network has.
        in_channels: channels of the ifmap.
        in_height: rows of the ifmap.
        in_width: columns of the ifmap.
        out_channels: channels of the ofmap.
        kernel: rows and columns of the filter.
        stride: rows and columns from one position of the kernel to the next.
        padding: rows and columns of zeros around the ifmap, as many on opposite sides; or [top, left, bottom, right];
            or `same` or `same_lower`, by which the ofmap has an output for each step of the stride, an odd zero being
            last or first.
    """

    sized_by: ClassVar[Mapping[str, int]] = {"in_channels": 0, "in_height": 1, "in_width": 2}

    name: Annotated[str, Name(), written("conv1")]
    in_channels: Annotated[Channels, written(64)]
    in_height: Annotated[Size, written(56)]
    in_width: Annotated[Size, written(56)]
    out_channels: Annotated[Channels, written(128)]
    kernel: Annotated[Steps, written(3)]
    stride: Steps = (1, 1)
    padding: KernelPadding = (0, 0)

    @property
    @abstractmethod
    def out_height(self) -> int:
        """Rows of the ofmap."""

    @property
    @abstractmethod
    def out_width(self) -> int:
        """Columns of the ofmap."""

    @property
    def map_text(self) -> str:
        """The shape in short: "56x56x64>128 3x3" is rows x cols x channels > channels, kernel."""
        channels = f"{self.in_channels}>{self.out_channels}"
        return f"{self.in_height}x{self.in_width}x{channels} {self.kernel[0]}x{self.kernel[1]}"

    def tensors(self, batch: int) -> Tensors:
        return Tensors(
            (self.in_channels, self.in_height, self.in_width, batch),
            (self.out_channels, *self.kernel, self.in_channels // self.groups),
            (self.out_channels, self.out_height, self.out_width, batch),
        )


@validated
class SteppedOp(PlanarOp):
    """A planar op whose kernel steps over the rows and columns of the ifmap: an output for each of its positions.

    Attributes:
        dilation: rows and columns from one tap of the kernel to the next.
    """

    dilation: Steps = (1, 1)
    groups: Channels = 1

    @property
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Height and width."""
        return kernel_axes((self.in_height, self.in_width), self.kernel, self.stride, self.dilation, self.padding)

    @property
    def out_height(self) -> int:
        return self.axes[0].outputs

    @property
    def out_width(self) -> int:
        return self.axes[1].outputs

    def size_problems(self) -> Iterator[Problem]:
        for axis in self.axes:
            yield from axis.problems()


@validated
class Conv2d(SteppedOp):
    """A 2-D convolution of images of in_channels x in_height x in_width elements; pairs are (height, width).

    Raises InputError, whose problems say which field, when no such convolution exists.

    Examples:
        >>> from tpusim import Conv2d
        >>> layer = Conv2d("conv1", 3, 224, 224, out_channels=64, kernel=7, stride=2, padding=3)
        >>> layer.text, layer.out_height
        ('224x224x3>64 7x7/2', 112)
        >>> layer.macs(batch=1)
        118013952
    """

    op: ClassVar[str] = "conv2d"
    grammar: ClassVar[str] = (
        "rows x columns x channels > output channels, kernel, /stride, d dilation, p padding if uneven, g groups"
    )

    @property
    def pads(self) -> tuple[Ends, Ends]:
        """The padding before and after the rows, and the columns, in elements."""
        rows, cols = self.axes
        return rows.ends, cols.ends

    @property
    def shape_key(self) -> Hashable:
        """Equal for layers that differ in their names, or in how the same padding is written."""
        sizes = self.in_channels, self.in_height, self.in_width, self.out_channels, self.groups
        # The padding in elements, not as it is written: `same` and a number may mean one layer.
        return self.op, *sizes, self.kernel, self.stride, self.pads, self.dilation

    @property
    def text(self) -> str:
        """The shape in short: "56x56x64>128 3x3/2" is rows x cols x channels > channels, kernel / stride; p: top, left,
        bottom, right.
        """
        text = self.map_text + steps_text(self.stride, self.dilation)
        (top, bottom), (left, right) = self.pads
        text += f" p{top}x{left}x{bottom}x{right}" if (top, left) != (bottom, right) else ""
        return text + (f" g{self.groups}" if self.groups > 1 else "")

    @property
    def is_a_product(self) -> bool:
        """Whether the ifmap is its own lowered matrix."""
        return prod((*self.kernel, *self.stride)) == 1 and self.pads == ((0, 0), (0, 0))

    @property
    def product(self) -> Conv2d:
        """Return the 1x1 convolution of the lowered matrix."""
        rows, once = self.in_channels * prod(self.kernel), (1, 1)
        one_tap = replace(self, kernel=once, stride=once, padding=(0, 0), dilation=once)
        return replace(one_tap, in_channels=rows, in_height=self.out_height, in_width=self.out_width)

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Return the op itself, over the images of the batch."""
        return self, batch


_Ends: TypeAlias = Annotated[Ends | Same, padding((2,), "a whole number, [before, after]")]


@validated
class Conv1d(GroupedOp):
    """A 1-D convolution of sequences of in_channels x in_length elements.

    Raises InputError, whose problems say which field, when no such convolution exists.

    Attributes:
        name: name of the layer, which no other layer of the network has.
        in_channels: channels of the sequence.
        in_length: elements of a channel.
        out_channels: channels of the ofmap.
        kernel: taps of the filter.
        stride: elements from one position of the kernel to the next.
        padding: zeros before and after each channel, [before, after] or one number for both; or `same` or `same_lower`,
            by which the ofmap has an output for each step of the stride, an odd zero being last or first.
        dilation: elements from one tap of the kernel to the next.

    Examples:
        >>> from tpusim import Conv1d
        >>> layer = Conv1d("conv2", in_channels=384, in_length=3000, out_channels=384, kernel=3, stride=2, padding=1)
        >>> layer.text, layer.out_length
        ('3000x384>384 3/2', 1500)
    """

    op: ClassVar[str] = "conv1d"
    grammar: ClassVar[str] = "length x channels > output channels, kernel, /stride, d dilation, p padding, g groups"
    sized_by: ClassVar[Mapping[str, int]] = {"in_channels": 0, "in_length": 2}

    name: Annotated[str, Name(), written("conv1")]
    in_channels: Annotated[Channels, written(384)]
    in_length: Annotated[Size, written(3000)]
    out_channels: Annotated[Channels, written(384)]
    kernel: Annotated[Size, written(3)]
    stride: Size = 1
    padding: _Ends = (0, 0)
    dilation: Size = 1
    groups: Channels = 1

    def size_problems(self) -> Iterator[Problem]:
        return self.axis.problems()

    @property
    def axis(self) -> KernelAxis:
        """The length as an axis of the kernel."""
        return KernelAxis("length", self.in_length, self.kernel, self.stride, self.dilation, self.padding)

    @property
    def out_length(self) -> int:
        """Elements of a channel of the ofmap."""
        return self.axis.outputs

    @property
    def shape_key(self) -> Hashable:
        """Equal for layers that differ in their names, or in how the same padding is written."""
        return self.op, self._plane.shape_key

    @property
    def text(self) -> str:
        """The shape in short: "1500x384>512 3/2" is length x channels > channels, kernel / stride; p is before x after,
        where uneven.
        """
        (before, after), text = self.axis.ends, f"{self.in_length}x{self.in_channels}>{self.out_channels} {self.kernel}"
        text += f"/{self.stride}" if self.stride > 1 else ""
        text += f" d{self.dilation}" if self.dilation > 1 else ""
        text += f" p{before}x{after}" if before != after else ""
        return text + (f" g{self.groups}" if self.groups > 1 else "")

    def tensors(self, batch: int) -> Tensors:
        return self._plane.tensors(batch)

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Return a 2-D convolution over maps of one row."""
        return self._plane, batch

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Name an element without its row, of which there is only one."""
        channel, _, position, image = index
        return ("channel", "position", "image"), (channel, position, image)

    @property
    def _plane(self) -> Conv2d:
        # One row gives the same sums, so everything behind the ops needs to know only convolutions over two axes.
        sizes = self.in_channels, 1, self.in_length, self.out_channels
        (before, after), steps = self.axis.ends, ((1, self.kernel), (1, self.stride))
        return Conv2d(self.name, *sizes, *steps, (0, before, 0, after), (1, self.dilation), self.groups)


def no_convolution(layer: ArrayOp) -> UnsuitableError:
    """The error of a scatter for lowerings of convolutions."""
    says = f"no convolution of one stride computes a {layer.op}; lower it by stride_phases or zero_insertion"
    return UnsuitableError(says)


_Cropped: TypeAlias = Annotated[Sides, pair(MOST_SIDE, 0, "; as much is cut off on opposite sides")]
_Added: TypeAlias = Annotated[Sides, pair(MOST_SIDE, 0, "; rows and columns added at the far ends")]


@validated
class ConvTranspose2d(PlanarOp):
    """A transposed 2-D convolution, every field as PyTorch has it; pairs are (height, width).

    Each element of the ifmap, times each tap of the filter, is added to an output: that of row `row * stride - padding
    + tap_row * dilation`, and likewise by columns. What falls outside the ofmap is dropped. The filter's axes stand as
    in a convolution; PyTorch has [in_channel, out_channel of the group, ...].

    Raises InputError, whose problems say which field, when no such op exists.

    Attributes:
        stride: rows and columns of the ofmap from one element of the ifmap to the next.
        padding: rows and columns that are cut off the ofmap, as many on opposite sides.
        output_padding: rows and columns that are added to the ofmap at its far ends; up to the padding, they are such
            as it has cut off there.
        dilation: rows and columns from one tap of the kernel to the next.

    Examples:
        >>> from tpusim import ConvTranspose2d
        >>> layer = ConvTranspose2d("up1", 256, 28, 28, out_channels=128, kernel=4, stride=2, padding=1)
        >>> layer.out_height, layer.out_width
        (56, 56)
    """

    op: ClassVar[str] = "conv_transpose2d"
    grammar: ClassVar[str] = "rows x columns x channels > output channels, kernel, *stride, d dilation, g groups"

    padding: _Cropped = (0, 0)
    output_padding: _Added = (0, 0)
    dilation: Steps = (1, 1)
    groups: Channels = 1

    @property
    def out_height(self) -> int:
        return self._outputs(0)

    @property
    def out_width(self) -> int:
        return self._outputs(1)

    @property
    def text(self) -> str:
        """The shape in short: "28x28x256>128 4x4*2" is rows x cols x channels > channels, kernel * stride."""
        text = f"{self.map_text}*{short(self.stride)}"
        text += f" d{short(self.dilation)}" if prod(self.dilation) > 1 else ""
        return text + (f" g{self.groups}" if self.groups > 1 else "")

    def macs(self, batch: int) -> int:
        """Count MACs of the definition: each element of the ifmap times each weight of its channel, cropped outputs
        included.
        """
        return prod(self.tensors(batch).ifmap) * prod(self.kernel) * (self.out_channels // self.groups)

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Raise UnsuitableError, which names the lowerings that need no convolution."""
        raise no_convolution(self)

    @property
    def scatter(self) -> Scatter:
        sizes, outputs = (self.in_height, self.in_width), (self.out_height, self.out_width)
        channels = self.groups, self.in_channels, self.out_channels
        return Scatter(*channels, sizes, outputs, self.kernel, self.stride, self.dilation, self.padding)

    def _outputs(self, axis: int) -> int:
        size, reach = (self.in_height, self.in_width)[axis], self.dilation[axis] * (self.kernel[axis] - 1) + 1
        # PyTorch's formula: padding is cut off at both ends, output_padding is added at one.
        spread = (size - 1) * self.stride[axis] + reach
        return spread - 2 * self.padding[axis] + self.output_padding[axis]

    def size_problems(self) -> Iterator[Problem]:
        for axis, side in enumerate(("height", "width")):
            added, stride, dilation = self.output_padding[axis], self.stride[axis], self.dilation[axis]
            most = self.padding[axis] + max(stride, dilation) - 1
            # PyTorch's limit, beyond what the padding has cut off there.
            if added > most:
                sizes = f"output_padding {added} in {side} is not below its stride {stride} or its dilation {dilation}"
                more = f", and its padding {self.padding[axis]} besides" if self.padding[axis] else ""
                yield Problem(f"{sizes}{more}; write at most {most}", "output_padding")
            elif (outputs := self._outputs(axis)) < 1:
                whole = outputs + 2 * self.padding[axis]
                sizes = f"padding {self.padding[axis]} cuts off all {whole} of the output's {side}, from both ends"
                yield Problem(f"{sizes}; write at most {(whole - 1) // 2}", "padding")


@validated
class Gemm(ArrayOp):
    """A matrix product (m, k) x (k, n), such as a fully connected layer; or `groups` of them side by side, each of
    factors of its own, such as the heads of an attention.

    To an array it is a convolution of m images of one pixel and k channels, in as many groups.

    Attributes:
        name: name of the layer, which no other layer of the network has.
        m: rows of the first factor and of the product. The number counts the whole batch: `batch` in a file stands for
            a row an image.
        n: columns of the second factor (the weights) and of the product.
        k: columns of the first factor, and rows of the second.
        groups: products side by side, the batch axis of a batched product. Channels of the ifmap are the columns of
            the first factors, group after group, and those of the ofmap the columns of the products.
        stored: type in which HBM has the second factor: that of the computation, or narrower whole numbers, which are
            widened on their way to the array.

    Examples:
        >>> from tpusim import Gemm
        >>> layer = Gemm("fc", m=8, n=1000, k=512)
        >>> layer.text, layer.macs(batch=8)
        ('8x512>1000', 4096000)
        >>> Gemm("scores", m=4, n=1024, k=128, groups=8).text
        '4x128>1024 g8'
        >>> Gemm("fc", m=8, n=1000, k=512, stored="int8").text
        '8x512>1000 w8'
    """

    op: ClassVar[str] = "gemm"
    grammar: ClassVar[str] = "m x k > n, g products side by side, w bits of weights in HBM"
    sized_by: ClassVar[Mapping[str, int]] = {"k": 0, "m": 3}
    counted_by: ClassVar[Literal["row"]] = "row"
    spatial: ClassVar[bool] = False

    name: Annotated[str, Name(), written("fc")]
    m: Annotated[Channels, written("batch")]
    n: Annotated[Channels, written(1000)]
    k: Annotated[Channels, written(512)]
    groups: Annotated[Channels, written("8*batch")] = 1
    # Left out of the text that random operands are drawn by: they do not depend on it.
    stored: Annotated[StoredTensor, Choice()] = field(default="computed", repr=False, kw_only=True)

    @property
    def text(self) -> str:
        """The shape in short: "8x512>1000" is m x k > n; g8 are eight products side by side, w8 weights of 8 bits."""
        text = f"{self.m}x{self.k}>{self.n}" + (f" g{self.groups}" if self.groups > 1 else "")
        return text + (f" w{STORED_BITS[self.stored]}" if self.stored in STORED_BITS else "")

    @property
    def filter_stored(self) -> StoredTensor:
        return self.stored

    @property
    def folded(self) -> tuple[str, str]:
        return f"k = {self.k}", f"n = {self.n}"

    def tensors(self, batch: int) -> Tensors:
        """Return shapes: the first factors are the ifmap, the second ones the filter."""
        # All rows of a product meet the same weights, as the images of a batch do.
        columns = self.groups * self.n
        return Tensors((self.groups * self.k, 1, 1, self.m), (columns, 1, 1, self.k), (columns, 1, 1, self.m))

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Return a 1x1 convolution; the rows are its images."""
        channels = self.groups * self.k, self.groups * self.n
        return Conv2d(self.name, channels[0], 1, 1, channels[1], (1, 1), groups=self.groups), self.m

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Name an element by row and column of the product, and by the product where there are several."""
        channel, _, _, image = index
        if self.groups == 1:
            return ("m", "n"), (image, channel)
        return ("group", "m", "n"), (channel // self.n, image, channel % self.n)

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        k, n = -(-self.k // rows) * rows, -(-self.n // cols) * cols
        return replace(self, k=k, n=n), f"k={k} n={n}"
