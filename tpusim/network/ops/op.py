"""The questions that every op answers about itself, so that no caller asks which op it is.

With it come the sizes of maps as files write them, and the axes over which kernels move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import Field, fields, replace
from functools import cache, lru_cache
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.form import Reader, names_of, pair, size, whole
from tpusim.input.scalars import integer, name_text, show, worked_out

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Shape: TypeAlias = tuple[int, int, int, int]
Index: TypeAlias = tuple[int, ...]

MOST_CHANNELS = 2**24
"""Most channels of an op: a larger size is a slip, not a network."""

OFMAP = "ofmap"
"""The name of an op's result, among its tensors."""

Sides: TypeAlias = tuple[int, int]
"""A size by rows, and one by columns."""

MOST_SIDE = 2**22
"""The largest extent of a map, and of a kernel that moves over it."""
Size: TypeAlias = Annotated[int, whole(MOST_SIDE)]
Channels: TypeAlias = Annotated[int, whole(MOST_CHANNELS)]
Images: TypeAlias = Annotated[int, whole(MOST_CHANNELS, 0)]
"""A number of images; 0: those of the batch."""
Steps: TypeAlias = Annotated[Sides, pair(MOST_SIDE)]


def short(sides: Sides) -> str:
    """Write "3", or "3x5" where rows and columns differ."""
    return f"{sides[0]}" if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"


def steps_text(stride: Sides, dilation: Sides) -> str:
    """Write stride and dilation where they are not 1: "/2 d3"."""
    text = f"/{short(stride)}" if prod(stride) > 1 else ""
    return text + (f" d{short(dilation)}" if prod(dilation) > 1 else "")


@cache
def _all_but_name(kind: type[Op]) -> Callable[[Op], Hashable]:
    return attrgetter("op", *(field.name for field in fields(kind) if field.name != "name"))


class Op(ABC):
    """A layer of a network: one operation, and the sizes of its operands. Ops are frozen dataclasses."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    op: ClassVar[str]
    """The op's name in files."""
    unit: ClassVar[Literal["array", "vector"]]
    """The part of a machine that does the op: a systolic array, or a vector unit by itself."""
    counted_by: ClassVar[Literal["image", "row"]] = "image"
    """The unit that its input is counted in."""
    spatial: ClassVar[bool] = True
    """Whether its maps have rows and columns, over which a kernel moves."""
    whole_rows: ClassVar[bool] = False
    """Whether an output takes all channels of an image, for an op of the vector unit."""
    whole_channels: ClassVar[bool] = False
    """Whether an output takes all pixels and images of a channel, for an op of the vector unit."""
    exact: ClassVar[bool] = True
    """Whether its result of small whole numbers is held without a rounding, or rounded alike by all."""
    positive: ClassVar[bool] = False
    """Whether its inputs have to be zero or more."""
    grammar: ClassVar[str]
    """How its `text` is to be read."""
    sized_by: ClassVar[Mapping[str, int]]
    """The fields that give the size of its ifmap, each with its axis of [channel, row, col, image]."""

    name: str

    @property
    def shape_key(self) -> Hashable:
        """Equal for layers that differ in nothing but their name."""
        return _all_but_name(type(self))(self)

    def called(self, name: str) -> Self:
        """Return the layer by another name. Raises InputError where that is no name."""
        made = copy(self)
        object.__setattr__(made, "name", name_text(name))
        return made

    @property
    def core(self) -> Op:
        """The op without what is fused to it; itself where nothing is."""
        return self

    @property
    def sample_parts(self) -> int:
        """Return how many equal parts of one the summands are counted in, for sources of whole numbers."""
        return 1

    @property
    def numbered(self) -> Mapping[str, int]:
        """The sources that are made of whole numbers from zero on, each with the number that these are below."""
        return {}

    @property
    def fixed(self) -> Mapping[str, Callable[[int], NDArray[np.float32]]]:
        """The sources whose elements follow from the op itself, each with what makes them for a batch: tables, numbers
        of keys. No other layer makes them, and no run draws them.
        """
        return {}

    @property
    @abstractmethod
    def text(self) -> str:
        """The shape in short."""

    @abstractmethod
    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return the shapes of its tensors for `batch` images, by name: its inputs, then the `ofmap`.

        Maps are [channel, row, col, image]; the filter, where there is one, is
        [out_channel, tap_row, tap_col, in_channel of the group].
        """

    def sources(self, batch: int) -> dict[str, Shape]:
        """Return the shapes of its inputs, in order."""
        return {name: shape for name, shape in self.shapes(batch).items() if name != OFMAP}

    def reads(self, batch: int) -> dict[str, Shape]:
        """Return the tensors that other layers may have made, in the order in which files name them; the ifmap is
        first.
        """
        return {name: shape for name, shape in self.sources(batch).items() if name not in self.fixed}

    def batch_of(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """Return the number of images of tensors of these shapes, by name."""
        return shapes["ifmap"][-1]

    @abstractmethod
    def terms(self, batch: int) -> int:
        """Return how many numbers, or products of two, one output sums up."""

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Name the element of the ofmap at `index`: axes and coordinates as a user knows them."""
        return ("channel", "row", "col", "image"), index

    def factors(self, batch: int) -> frozenset[str]:
        """Return names of inputs that multiply what goes into a product of two, or comes out of it."""
        return frozenset()

    def with_more_input(self, batch: int) -> tuple[Self, int, str]:
        """Return a layer and batch of twice the input, and the change in words."""
        field, count = self._own_count
        if not count:
            return self, 2 * batch, f"--batch {2 * batch}"
        return replace(self, **{field: 2 * count}), batch, f"{field}={2 * count}"

    def with_less_input(self, batch: int) -> tuple[Self, int, str] | None:
        """Return a layer and batch of half the input, rounded down, and its size in words; None where nothing is
        left.
        """
        field, count = self._own_count
        if not count:
            return (self, batch // 2, f"batch {batch // 2}") if batch > 1 else None
        # Half of one is nothing, which is no layer.
        half = count // 2
        return (replace(self, **{field: half}), batch, f"{field}={half}") if half else None

    @property
    def _own_count(self) -> tuple[str, int]:
        """Return the field that fixes the number of images or rows whatever the batch, and its value; 0: none does."""
        field = next((field for field, axis in self.sized_by.items() if axis == 3), "")
        return field, getattr(self, field) if field else 0

    def filled(self, rows: int, cols: int) -> tuple[Self, str] | None:
        """Return the layer with channels rounded up to fill `rows` x `cols` PEs, and the change in words.

        None where no PE works on it.
        """
        return None

    def outputs(self, batch: int) -> int:
        """Count the elements of the ofmaps of `batch` images."""
        return prod(self.shapes(batch)[OFMAP])

    def operands(self, batch: int) -> int:
        """Count the elements of all inputs for `batch` images."""
        return sum(map(prod, self.sources(batch).values()))

    def weights(self, batch: int) -> int:
        """Count the elements of the filter, which an array holds while others pass."""
        return 0

    def macs(self, batch: int) -> int:
        """Count the multiply-accumulates of an array for `batch` images, those with padding zeros included."""
        return 0


# ---- axes over which a kernel moves, and the padding at their ends as files write it

Ends: TypeAlias = tuple[int, int]
"""Zeros added before the first element of an axis, and after the last."""
Same: TypeAlias = Literal["same", "same_lower"]
"""Padding that gives an output for each step of the stride that the map has; an odd one comes last, or first."""

_SAME = "same", "same_lower"
_ELSEWHERE = {"valid": "0", "same_upper": "same"}
"""Other tools' words for paddings."""


class KernelAxis(NamedTuple):
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
        # A stride larger than the kernel may skip the end, and then nothing is added.
        added = max(0, (steps - 1) * self.stride + self.reach - self.size)
        less, more = added // 2, -(-added // 2)
        return (less, more) if self.padding == "same" else (more, less)

    @property
    def padded(self) -> int:
        """Elements, padding included."""
        return self.size + sum(self.ends)

    @property
    def outputs(self) -> int:
        """Number of positions of the kernel."""
        return (self.padded - self.reach) // self.stride + 1

    @property
    def apart(self) -> bool:
        """Whether each element is under the kernel at one position at most, and none of them is padding."""
        return self.reach <= self.stride and not any(self.ends) and self.size % self.stride == 0

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong where the kernel has no position."""
        if self.reach > self.padded:
            only = f"but the padded input only {self.padded}"
            sizes = f"the kernel spans {self.reach} in {self.name} with its dilation, {only}"
            yield Problem(f"{sizes}; use a smaller kernel or dilation, or more padding", "kernel")


# A layer is asked for its axes again and again.
@lru_cache(maxsize=1024)
def kernel_axes(
    sides: Sides, kernel: Sides, stride: Sides, dilation: Sides, padding: Sides | tuple[int, int, int, int] | Same
) -> tuple[KernelAxis, KernelAxis]:
    """Return the two axes of a map over which a kernel moves, with the padding that a file gives."""
    rows, cols = (padding, padding) if isinstance(padding, str) else ends_of(padding)
    return (
        KernelAxis("height", sides[0], kernel[0], stride[0], dilation[0], rows),
        KernelAxis("width", sides[1], kernel[1], stride[1], dilation[1], cols),
    )


def ends_of(padding: Sides | tuple[int, int, int, int]) -> tuple[Ends, Ends]:
    """Return top and bottom, left and right of a padding by (height, width), or by (top, left, bottom, right)."""
    top, left, bottom, right = padding if len(padding) == 4 else (*padding, *padding)
    return (top, bottom), (left, right)


def padding(counts: tuple[int, ...], forms: str) -> Reader:
    """Make the reader of `same`, `same_lower`, or whole numbers up to MOST_SIDE: one for all sides, or as many as
    `counts` allows.

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
        # One form for one padding, so that layers that are equal compare equal.
        return sides[:2] if sides[:2] == sides[2:] else sides

    return Reader(read, f"{forms}, {' or '.join(_SAME)}; numbers 0 to {MOST_SIDE}")


_OF_SIDES = padding((2, 4), "a whole number, [height, width], [top, left, bottom, right]")
PadSides: TypeAlias = Annotated[Sides | tuple[int, int, int, int], _OF_SIDES]
KernelPadding: TypeAlias = Annotated[Sides | tuple[int, int, int, int] | Same, _OF_SIDES]
"""The padding of rows and columns."""
BATCH = "batch"
"""The size that every file may use; its value is the run's batch."""


# ---- ops of the vector unit


class TapWindow(NamedTuple):
    """The window of an output along an axis: the taps that stand on elements, and how many of all taps count."""

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
    operation takes the result, and the element in the middle.
    """

    @property
    @abstractmethod
    def operation(self) -> str:
        """The operation that makes an output: a name that machines know."""

    @property
    def joining(self) -> str:
        """The operation that makes one of the first of many elements, so that `operation` takes that and the last,
        later.
        """
        return self.operation

    @property
    def joining_more(self) -> str:
        """The operation that joins more elements, where the joined ones come first."""
        return self.joining

    @property
    @abstractmethod
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Return height and width: the places of windows. Padding stands for no element."""

    @property
    @abstractmethod
    def windows(self) -> tuple[tuple[TapWindow, ...], tuple[TapWindow, ...]]:
        """Return the window of each row and of each column of the ofmap."""

    @property
    def partner(self) -> int:
        """How many channels on, and around, a second element of the ifmap is that an output takes; 0: it takes one."""
        return 0

    def coefficients(self, counted: int) -> tuple[float, ...]:
        """Return further arguments of the operation, for an output in whose window `counted` elements count."""
        return ()
