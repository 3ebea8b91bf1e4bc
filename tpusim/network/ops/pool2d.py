"""Two-dimensional pooling, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Annotated, ClassVar, Literal, NamedTuple

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Choice, Name, Truth, validated, written
from tpusim.network.ops.op import (
    OFMAP,
    Channels,
    KernelAxis,
    KernelPadding,
    Shape,
    Size,
    Steps,
    TapWindow,
    VectorOp,
    kernel_axes,
    steps_text,
)


@validated
class Pool2d(VectorOp):
    """The largest element under each window of a channel, or their average; pairs are (height, width).

    Padding is no element. A kernel as large as the map pools all of it. As PyTorch and ONNX have it.

    Raises InputError, whose problems say which field, when no such op exists, or windows see no element at all.

    Attributes:
        name: name of the layer, which no other layer of the network has.
        kind: `max` for the largest element, `average` for the mean.
        channels: channels of the map.
        in_height: rows of the ifmap.
        in_width: columns of the ifmap.
        kernel: rows and columns of a window.
        stride: rows and columns from one window to the next.
        padding: rows and columns around the map that windows may reach into, as many on opposite sides; or [top, left,
            bottom, right]; or `same` or `same_lower`.
        dilation: rows and columns from one element of a window to the next.
        ceil_mode: whether what is left of the map at its far ends has a window of its own, if that begins on the map or
            the padding before it.
        count_include_pad: whether an average divides by padding, too, as if it were zero.
    """

    op: ClassVar[str] = "pool2d"
    grammar: ClassVar[str] = "rows x columns x channels, max or average of a kernel, /stride, d dilation, p padding"
    sized_by: ClassVar[Mapping[str, int]] = {"channels": 0, "in_height": 1, "in_width": 2}

    name: Annotated[str, Name(), written("pool1")]
    kind: Annotated[Literal["max", "average", "min"], Choice(), written("max")]
    channels: Annotated[Channels, written(64)]
    in_height: Annotated[Size, written(112)]
    in_width: Annotated[Size, written(112)]
    kernel: Annotated[Steps, written(3)]
    stride: Steps = (1, 1)
    padding: KernelPadding = (0, 0)
    dilation: Steps = (1, 1)
    ceil_mode: Annotated[bool, Truth()] = False
    count_include_pad: Annotated[bool, Truth()] = False

    def __post_init__(self) -> None:
        problems = [each for axis in self._given for each in axis.problems()]
        for axis, windows in [] if problems else zip(self.axes, self.windows, strict=True):
            which = next((at for at, each in enumerate(windows) if not each.taps), None)
            if which is not None:
                where = f"window {which} of {axis.name} stands on padding alone"
                problems.append(Problem(f"{where}; write less padding than the kernel reaches", "padding"))
        if problems:
            raise InputError(problems)

    @property
    def operation(self) -> str:
        """The machine's operation: a maximum, a minimum or a mean."""
        return _OPERATIONS.get(self.kind, "mean")

    @property
    def joining(self) -> str:
        """The operation that joins elements: maxima of maxima, sums of sums."""
        return _OPERATIONS.get(self.kind, "add")

    @property
    def selects(self) -> bool:
        """Whether an output is an element of its window, so that nothing is rounded."""
        return self.kind in _OPERATIONS

    @property
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Return height and width, padded for the last window that `ceil_mode` adds."""
        rows, cols = self._given
        return self._reaching(rows), self._reaching(cols)

    @property
    def windows(self) -> tuple[tuple[TapWindow, ...], tuple[TapWindow, ...]]:
        rows, cols = (
            _windows(axis, given, self.count_include_pad) for axis, given in zip(self.axes, self._given, strict=True)
        )
        return rows, cols

    @property
    def text(self) -> str:
        """The shape in short: "112x112x64 max 3x3/2" is rows x cols x channels, kind, kernel / stride; p: top, left,
        bottom, right.
        """
        text = f"{self.in_height}x{self.in_width}x{self.channels} {self.kind} {self.kernel[0]}x{self.kernel[1]}"
        text += steps_text(self.stride, self.dilation)
        (top, bottom), (left, right) = (axis.ends for axis in self.axes)
        return text + (f" p{top}x{left}x{bottom}x{right}" if any((top, left, bottom, right)) else "")

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        rows, cols = self.axes
        ofmap = self.channels, rows.outputs, cols.outputs, batch
        return {"ifmap": (self.channels, self.in_height, self.in_width, batch), OFMAP: ofmap}

    def terms(self, batch: int) -> int:
        """Return the elements of a window, where they are summed up."""
        return 1 if self.selects else prod(self.kernel)

    def coefficients(self, counted: int) -> tuple[float, ...]:
        """Return the factor of a sum, in place of a division."""
        return () if self.selects else (1 / counted,)

    @property
    def _given(self) -> tuple[KernelAxis, KernelAxis]:
        """Return height and width, padded as it is written."""
        return kernel_axes((self.in_height, self.in_width), self.kernel, self.stride, self.dilation, self.padding)

    def _reaching(self, axis: KernelAxis) -> KernelAxis:
        """Return the axis with padding up to the end of its last window, if that begins before the padding at the far
        end.
        """
        before, after = axis.ends
        more = -(-(axis.padded - axis.reach) // axis.stride) if self.ceil_mode else axis.outputs - 1
        # PyTorch leaves out a window that would begin in the padding at the far end.
        more -= self.ceil_mode and more * axis.stride >= axis.size + before
        reached = more * axis.stride + axis.reach - axis.size - before
        return axis._replace(padding=(before, max(after, reached) if more >= axis.outputs else after))


GRADIENTS_OF = frozenset({"max", "average"})
"""Kinds whose gradients are known."""
_OPERATIONS = {"max": "maximum", "min": "minimum"}
"""The operations that choose an element of a window, by kind."""


@lru_cache(maxsize=1 << 10)
def _windows(axis: KernelAxis, given: KernelAxis, include_pad: bool) -> tuple[TapWindow, ...]:
    """Return the window of each output; padding counts, but not beyond the `given` one."""
    before, after = given.ends
    seen, padded = range(given.size), range(-before, given.size + after)

    def window(output: int) -> TapWindow:
        at = range(output * axis.stride - before, output * axis.stride - before + axis.reach, axis.dilation)
        taps = [tap for tap, place in enumerate(at) if place in seen]
        # What `ceil_mode` adds beyond the padding as written is never counted.
        counted = sum(place in padded for place in at) if include_pad else len(taps)
        return TapWindow(range(taps[0], taps[-1] + 1) if taps else range(0), counted)

    return tuple(map(window, range(axis.outputs)))


@validated
class Pool2dChoice(Pool2d):
    """The number of the tap whose element is the largest under each window; of equals, the first, row by row.

    Raises InputError as `Pool2d` does.

    Attributes:
        kind: `max`, as of the pooling whose gradient needs the choice.
    """

    op: ClassVar[str] = "pool2d_choice"
    operation: ClassVar[str] = "first_largest"

    kind: Annotated[Literal["max"], Choice(), written("max")]


class Cover(NamedTuple):
    """The window of an output above an element, along an axis: with which tap, and how many of its taps count."""

    output: int
    tap: int
    counted: int


@validated
class Pool2dGradient(Pool2d):
    """The gradient of a pooling by its map: each element gets its share of the gradient of every window above it.

    The ifmap is the gradient of the pooling's ofmap. In a `max`, `choice` says which tap a window has chosen, and this
    tap gets the whole gradient; in an `average`, all elements that count get equal shares.

    Raises InputError as `Pool2d` does.
    """

    op: ClassVar[str] = "pool2d_gradient"
    sized_by: ClassVar[Mapping[str, int]] = {"channels": 0}

    kind: Annotated[Literal["max", "average"], Choice(), written("max")]

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Whether whole numbers are added alone; averages have shares of them, of several sizes."""
        return self.kind == "max"

    @property
    def numbered(self) -> Mapping[str, int]:
        return {"choice": prod(self.kernel)} if self.kind == "max" else {}

    @property
    def covers(self) -> tuple[tuple[tuple[Cover, ...], ...], ...]:
        """Return the windows above each row, and above each column, of the map; in order."""
        rows, cols = (_covers(axis, windows) for axis, windows in zip(self.axes, self.windows, strict=True))
        return rows, cols

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: the pooling's ofmap and ifmap change places."""
        made, read = (Pool2d.shapes(self, batch)[name] for name in (OFMAP, "ifmap"))
        return {"ifmap": made, **dict.fromkeys(self.numbered, made), OFMAP: read}

    def terms(self, batch: int) -> int:
        """Return the most windows above an element."""
        return max(1, prod(max(map(len, along)) for along in self.covers))


@lru_cache(maxsize=1 << 10)
def _covers(axis: KernelAxis, windows: tuple[TapWindow, ...]) -> tuple[tuple[Cover, ...], ...]:
    found: list[list[Cover]] = [[] for _ in range(axis.size)]
    for output, window in enumerate(windows):
        for tap in window.taps:
            # The pooling read backwards: from each window to the elements under it.
            place = output * axis.stride + tap * axis.dilation - axis.ends[0]
            found[place].append(Cover(output, tap, window.counted))
    return tuple(map(tuple, found))
