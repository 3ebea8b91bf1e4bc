"""Ops that a systolic array does: they multiply maps by a filter. Convolutions, and the matrix product."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.input.form import Name, validated
from tpusim.network.ops.op import (
    Channels,
    Ends,
    Index,
    KernelAxis,
    KernelPadding,
    Op,
    Shape,
    Sides,
    Size,
    Steps,
    kernel_axes,
    steps_text,
)


class Tensors(NamedTuple):
    """Shapes of the tensors of an op of the array, in elements.

    Maps are [channel, row, col, image], the filter is [out_channel, tap_row, tap_col, in_channel of the group].
    """

    ifmap: Shape
    filter: Shape
    ofmap: Shape


class ArrayOp(Op):
    """An op that multiplies maps by a filter: an ifmap, a filter, and MACs."""

    __slots__ = ()

    unit: ClassVar[Literal["array", "vector"]] = "array"

    @property
    @abstractmethod
    def folded(self) -> tuple[str, str]:
        """What row folds and column folds divide, in words: "64 input channels", "128 output channels"."""

    @abstractmethod
    def tensors(self, batch: int) -> Tensors:
        """Shapes of its tensors for `batch` images."""

    @abstractmethod
    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """The convolution that computes it on an array, and of how many images."""

    @abstractmethod
    def filled(self, rows: int, cols: int) -> tuple[Self, str]: ...

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Shapes of its `tensors`."""
        return self.tensors(batch)._asdict()

    def terms(self, batch: int) -> int:
        """The products of one output."""
        return prod(self.tensors(batch).filter[1:])

    def weights(self, batch: int) -> int:
        return prod(self.tensors(batch).filter)

    def macs(self, batch: int) -> int:
        return self.outputs(batch) * self.terms(batch)


class GroupedOp(ArrayOp):
    """An op over channels in independent groups: those of both maps are divided among them."""

    __slots__ = ()

    in_channels: int
    out_channels: int
    groups: int

    @property
    def folded(self) -> tuple[str, str]:
        into, out = self.in_channels // self.groups, self.out_channels // self.groups
        return counted(into, "input channel"), counted(out, "output channel")

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        """Each group has channels for every row and column."""
        into, out = (
            -(-channels // step) * step
            for channels, step in ((self.in_channels, self._into_step(rows)), (self.out_channels, self.groups * cols))
        )
        return replace(self, in_channels=into, out_channels=out), f"in_channels={into} out_channels={out}"

    def _into_step(self, rows: int) -> int:
        """Input channels that fill `rows` in each group."""
        return self.groups * rows

    def _group_problems(self) -> Iterator[Problem]:
        for key in ("in_channels", "out_channels"):
            if getattr(self, key) % self.groups:
                sizes = f"groups {self.groups} does not divide {key} {getattr(self, key)}"
                yield Problem(f"{sizes}; choose a divisor of both channel counts", "groups")


class PlanarOp(GroupedOp):
    """Such an op whose kernel moves over rows and columns; pairs are (height, width)."""

    __slots__ = ()

    sized_by: ClassVar[Mapping[str, int]] = {"in_channels": 0, "in_height": 1, "in_width": 2}

    in_height: int
    in_width: int
    kernel: Sides

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
        """ "56x56x64>128 3x3" is rows x cols x channels > channels, kernel."""
        channels = f"{self.in_channels}>{self.out_channels}"
        return f"{self.in_height}x{self.in_width}x{channels} {self.kernel[0]}x{self.kernel[1]}"

    def tensors(self, batch: int) -> Tensors:
        return Tensors(
            (self.in_channels, self.in_height, self.in_width, batch),
            (self.out_channels, *self.kernel, self.in_channels // self.groups),
            (self.out_channels, self.out_height, self.out_width, batch),
        )


@validated
class Conv2d(PlanarOp):
    """A 2-D convolution of images of in_channels x in_height x in_width elements; pairs are (height, width).

    Padding may be (top, left, bottom, right) too, or "same" or "same_lower": an output for each step of the stride.
    Raises InputError, whose problems say which field, when no such convolution exists.
    """

    op: ClassVar[str] = "conv2d"
    grammar: ClassVar[str] = (
        "rows x columns x channels > output channels, kernel, /stride, d dilation, p padding if uneven, g groups"
    )

    name: Annotated[str, Name()]
    in_channels: Channels
    in_height: Size
    in_width: Size
    out_channels: Channels
    kernel: Steps
    stride: Steps = (1, 1)
    padding: KernelPadding = (0, 0)
    dilation: Steps = (1, 1)
    groups: Channels = 1

    def __post_init__(self) -> None:
        problems = [*self._group_problems(), *(each for axis in self.axes for each in axis.problems())]
        if problems:
            raise InputError(problems)

    @property
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Height and width."""
        return kernel_axes((self.in_height, self.in_width), self.kernel, self.stride, self.dilation, self.padding)

    @property
    def pads(self) -> tuple[Ends, Ends]:
        """The padding before and after the rows, and the columns, in elements."""
        rows, cols = self.axes
        return rows.ends, cols.ends

    @property
    def out_height(self) -> int:
        return self.axes[0].outputs

    @property
    def out_width(self) -> int:
        return self.axes[1].outputs

    @property
    def shape_key(self) -> Hashable:
        """Equal for layers that differ in their names, or in how the same padding is written."""
        sizes = self.in_channels, self.in_height, self.in_width, self.out_channels, self.groups
        return self.op, *sizes, self.kernel, self.stride, self.pads, self.dilation

    @property
    def text(self) -> str:
        """ "56x56x64>128 3x3/2" is rows x cols x channels > channels, kernel / stride; p: top, left, bottom, right."""
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
        """The 1x1 convolution of the lowered matrix."""
        rows, once = self.in_channels * prod(self.kernel), (1, 1)
        one_tap = replace(self, kernel=once, stride=once, padding=(0, 0), dilation=once)
        return replace(one_tap, in_channels=rows, in_height=self.out_height, in_width=self.out_width)

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Itself, over the images of the batch."""
        return self, batch


@validated
class Gemm(ArrayOp):
    """A matrix product (m, k) x (k, n). Its m already counts the whole batch, which changes nothing else.

    To an array it is a convolution of m images of one pixel and k channels.
    """

    op: ClassVar[str] = "gemm"
    grammar: ClassVar[str] = "m x k > n"
    sized_by: ClassVar[Mapping[str, int]] = {"k": 0, "m": 3}
    counted_by: ClassVar[Literal["row"]] = "row"
    spatial: ClassVar[bool] = False

    name: Annotated[str, Name()]
    m: Channels
    n: Channels
    k: Channels

    @property
    def text(self) -> str:
        """ "8x512>1000" is m x k > n."""
        return f"{self.m}x{self.k}>{self.n}"

    @property
    def folded(self) -> tuple[str, str]:
        return f"k = {self.k}", f"n = {self.n}"

    def tensors(self, batch: int) -> Tensors:
        """The first factor is the ifmap, the second the filter."""
        return Tensors((self.k, 1, 1, self.m), (self.n, 1, 1, self.k), (self.n, 1, 1, self.m))

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """A 1x1 convolution; the rows are its images."""
        return Conv2d(self.name, self.k, 1, 1, self.n, (1, 1)), self.m

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Row and column of the product."""
        channel, _, _, image = index
        return ("m", "n"), (image, channel)

    def with_more_input(self, batch: int) -> tuple[Self, int, str]:
        """Twice the rows."""
        return replace(self, m=2 * self.m), batch, f"m={2 * self.m}"

    def with_less_input(self, batch: int) -> tuple[Self, int, str] | None:
        """Half the rows."""
        return (replace(self, m=self.m // 2), batch, f"m={self.m // 2}") if self.m > 1 else None

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        k, n = -(-self.k // rows) * rows, -(-self.n // cols) * cols
        return replace(self, k=k, n=n), f"k={k} n={n}"
