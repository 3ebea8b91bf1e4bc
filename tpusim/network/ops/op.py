"""What every op answers about itself, so that nobody above asks which op it is.

With it come the sizes of maps as files write them, and the axes over which kernels move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from math import prod
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.form import Reader, names_of, pair, size, whole
from tpusim.input.scalars import integer, show, worked_out

Shape: TypeAlias = tuple[int, int, int, int]
Index: TypeAlias = tuple[int, ...]

MOST_CHANNELS = 2**24
"""Beyond this a size is a slip, not a network."""

OFMAP = "ofmap"
"""The name of what an op makes, among its tensors."""

Sides: TypeAlias = tuple[int, int]
"""A size by rows, and one by columns."""

MOST_SIDE = 2**16
"""The largest extent of a map, and of what moves over it."""
Size: TypeAlias = Annotated[int, whole(MOST_SIDE)]
Channels: TypeAlias = Annotated[int, whole(MOST_CHANNELS)]
Images: TypeAlias = Annotated[int, whole(MOST_CHANNELS, 0)]
"""0: those of the batch."""
Steps: TypeAlias = Annotated[Sides, pair(MOST_SIDE)]


def short(sides: Sides) -> str:
    """ "3", or "3x5" where rows and columns differ."""
    return f"{sides[0]}" if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"


def steps_text(stride: Sides, dilation: Sides) -> str:
    """ "/2 d3": what stride and dilation are, where they are not 1."""
    text = f"/{short(stride)}" if prod(stride) > 1 else ""
    return text + (f" d{short(dilation)}" if prod(dilation) > 1 else "")


class Op(ABC):
    """A layer of a network: one operation, and the sizes of what it works on. Ops are frozen dataclasses."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    op: ClassVar[str]
    """The name in files."""
    unit: ClassVar[Literal["array", "vector"]]
    """Which part of a machine does it: a systolic array, or a vector unit by itself."""
    counted_by: ClassVar[Literal["image", "row"]] = "image"
    """What its input comes in."""
    spatial: ClassVar[bool] = True
    """Whether its maps have rows and columns, over which a kernel moves."""
    whole_rows: ClassVar[bool] = False
    """Whether an output takes all channels of an image, of an op that no array does."""
    exact: ClassVar[bool] = True
    """Whether what it makes of small whole numbers is held without a rounding, or rounded alike by all."""
    positive: ClassVar[bool] = False
    """Whether what it reads has to be zero or more."""
    grammar: ClassVar[str]
    """How its `text` is to be read."""
    sized_by: ClassVar[Mapping[str, int]]
    """Its fields that say of what size its ifmap is, each with the axis of [channel, row, col, image] that it is of."""

    name: str

    @property
    def shape_key(self) -> Hashable:
        """Equal for layers that differ in nothing but their name."""
        sizes = (getattr(self, field.name) for field in fields(self) if field.name != "name")
        return (self.op, *sizes)

    @property
    def core(self) -> Op:
        """What it is without what is fused to it; itself where nothing is."""
        return self

    @property
    def sample_parts(self) -> int:
        """Equal parts of one that what is summed up is counted in, of sources of whole numbers."""
        return 1

    @property
    @abstractmethod
    def text(self) -> str:
        """The shape in short."""

    @abstractmethod
    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Shapes of its tensors for `batch` images, by name: what it reads, then the `ofmap`.

        Maps are [channel, row, col, image]; the filter, where there is one, is
        [out_channel, tap_row, tap_col, in_channel of the group].
        """

    def sources(self, batch: int) -> dict[str, Shape]:
        """Shapes of the tensors that it reads, in order."""
        return {name: shape for name, shape in self.shapes(batch).items() if name != OFMAP}

    def reads(self, batch: int) -> dict[str, Shape]:
        """The tensors that other layers may have made, in the order in which files name them; the ifmap is first."""
        return self.sources(batch)

    @abstractmethod
    def terms(self, batch: int) -> int:
        """Numbers, or products of two, that one output sums up."""

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Axes and index by which its user knows the element of the ofmap at `index`."""
        return ("channel", "row", "col", "image"), index

    def with_more_input(self, batch: int) -> tuple[Self, int, str]:
        """A layer and batch of twice the input, and in words what was changed."""
        field, count = self._own_count
        if not count:
            return self, 2 * batch, f"--batch {2 * batch}"
        return replace(self, **{field: 2 * count}), batch, f"{field}={2 * count}"

    def with_less_input(self, batch: int) -> tuple[Self, int, str] | None:
        """A layer and batch of half the input, rounded down, and in words what it has; None where nothing is left."""
        field, count = self._own_count
        if not count:
            return (self, batch // 2, f"batch {batch // 2}") if batch > 1 else None
        half = count // 2
        return (replace(self, **{field: half}), batch, f"{field}={half}") if half else None

    @property
    def _own_count(self) -> tuple[str, int]:
        """The field that says how many images or rows there are whatever the batch, and its number; 0: it is not so."""
        field = next((field for field, axis in self.sized_by.items() if axis == 3), "")
        return field, getattr(self, field) if field else 0

    def filled(self, rows: int, cols: int) -> tuple[Self, str] | None:
        """The layer with channels rounded up so that they fill `rows` x `cols` PEs, and in words what was changed.

        None where no PE works on it.
        """
        return None

    def outputs(self, batch: int) -> int:
        """Elements of the ofmaps of `batch` images."""
        return prod(self.shapes(batch)[OFMAP])

    def operands(self, batch: int) -> int:
        """Elements of all that is read for `batch` images."""
        return sum(map(prod, self.sources(batch).values()))

    def weights(self, batch: int) -> int:
        """Elements that an array holds while others pass: those of the filter."""
        return 0

    def macs(self, batch: int) -> int:
        """Multiply-accumulates of an array for `batch` images, those with padding zeros included."""
        return 0


# ---- axes over which a kernel moves, and the padding at their ends as files write it

Ends: TypeAlias = tuple[int, int]
"""What is added before the first element of an axis, and after the last."""
Same: TypeAlias = Literal["same", "same_lower"]
"""Padding that gives an output for each step of the stride that the map has; an odd one comes last, or first."""

_SAME = "same", "same_lower"
_ELSEWHERE = {"valid": "0", "same_upper": "same"}
"""What other tools call paddings."""


@dataclass(frozen=True, slots=True)
class KernelAxis:
    """An axis of a map of `size` elements, over which `kernel` taps move, `dilation` apart, by `stride`."""

    name: str
    size: int
    kernel: int
    stride: int
    dilation: int
    padding: Ends | Same

    @property
    def reach(self) -> int:
        """Elements from the first tap to the last."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def ends(self) -> Ends:
        """The padding, in elements; `same` as ONNX and TensorFlow define it."""
        if isinstance(self.padding, tuple):
            return self.padding
        steps = -(-self.size // self.stride)
        added = max(0, (steps - 1) * self.stride + self.reach - self.size)
        less, more = added // 2, -(-added // 2)
        return (less, more) if self.padding == "same" else (more, less)

    @property
    def padded(self) -> int:
        """Elements, padding included."""
        return self.size + sum(self.ends)

    @property
    def outputs(self) -> int:
        """Positions of the kernel."""
        return (self.padded - self.reach) // self.stride + 1

    def problems(self) -> Iterator[Problem]:
        """What is wrong where the kernel has no position."""
        if self.reach > self.padded:
            only = f"but the padded input only {self.padded}"
            sizes = f"the kernel spans {self.reach} in {self.name} with its dilation, {only}"
            yield Problem(f"{sizes}; use a smaller kernel or dilation, or more padding", "kernel")


def kernel_axes(
    sides: Sides, kernel: Sides, stride: Sides, dilation: Sides, padding: Sides | tuple[int, int, int, int] | Same
) -> tuple[KernelAxis, KernelAxis]:
    """Height and width of a map, over which a kernel moves; padded as it is written."""
    rows, cols = (padding, padding) if isinstance(padding, str) else ends_of(padding)
    return (
        KernelAxis("height", sides[0], kernel[0], stride[0], dilation[0], rows),
        KernelAxis("width", sides[1], kernel[1], stride[1], dilation[1], cols),
    )


def ends_of(padding: Sides | tuple[int, int, int, int]) -> tuple[Ends, Ends]:
    """Top and bottom, left and right of a padding by (height, width), or by (top, left, bottom, right)."""
    top, left, bottom, right = padding if len(padding) == 4 else (*padding, *padding)
    return (top, bottom), (left, right)


def padding(counts: tuple[int, ...], forms: str) -> Reader:
    """`same`, `same_lower`, or whole numbers up to MOST_SIDE: as many as one of `counts`, or one for the first of them.

    Four numbers that are alike at opposite sides become two. `forms` is what a message says of how to write them.
    """

    def read(value: object, info: ValidationInfo) -> tuple[int, ...] | str:
        if isinstance(value, str) and value in _SAME:
            return value
        names = names_of(info)
        given = worked_out(value, names) if names else value
        if isinstance(given, bool) or integer(given) is not None:
            given = (given,) * counts[0]
        if not isinstance(given, list | tuple) or len(given) not in counts:
            word = value if isinstance(value, str) else ""
            known = _ELSEWHERE.get(word.casefold())
            hint = f"; did you mean {known}?" if known else did_you_mean(word, _SAME) or ";"
            raise InputError(f"{show(value)} is not a padding{hint} write {forms}, {' or '.join(_SAME)}")
        sides = tuple(size(part, 0, MOST_SIDE, names) for part in given)
        return sides[:2] if sides[:2] == sides[2:] else sides

    return Reader(read, f"{forms}, {' or '.join(_SAME)}; numbers 0 to {MOST_SIDE}")


_OF_SIDES = padding((2, 4), "a whole number, [height, width], [top, left, bottom, right]")
PadSides: TypeAlias = Annotated[Sides | tuple[int, int, int, int], _OF_SIDES]
KernelPadding: TypeAlias = Annotated[Sides | tuple[int, int, int, int] | Same, _OF_SIDES]
"""The padding of rows and columns."""
BATCH = "batch"
"""The size that every file may use; a run says what it is."""


# ---- ops of the vector unit


class TapWindow(NamedTuple):
    """What an output sees along an axis: the taps that stand on elements, and how many of all taps count."""

    taps: range
    counted: int


class VectorOp(Op):
    """An op that a vector unit does by itself: pooling, sums of maps, activations.

    An output is made of the elements under a window of the ifmap, and of one of each other source.
    """

    __slots__ = ()

    unit: ClassVar[Literal["array", "vector"]] = "vector"
    along_channels: ClassVar[bool] = False
    """Whether windows stand along the channels, not rows and columns. Then all elements under one are joined, and the
    operation takes what that gives, and the element in the middle.
    """

    @property
    @abstractmethod
    def operation(self) -> str:
        """What makes an output: a name that machines know."""

    @property
    def joining(self) -> str:
        """What makes one of the first of many elements, so that the operation takes that and what is left, later."""
        return self.operation

    @property
    def joining_more(self) -> str:
        """What does that where what is joined so far comes first."""
        return self.joining

    @property
    @abstractmethod
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Height and width: where windows stand. Padding stands for no element."""

    @property
    @abstractmethod
    def windows(self) -> tuple[tuple[TapWindow, ...], tuple[TapWindow, ...]]:
        """The window of each row and of each column of the ofmap."""

    def coefficients(self, counted: int) -> tuple[float, ...]:
        """What the operation is given besides, for an output in whose window `counted` elements count."""
        return ()
