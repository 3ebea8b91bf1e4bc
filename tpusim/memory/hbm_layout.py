"""Layouts of tensors in HBM: the order of axes, the runs of addresses of a part, and whole bursts.

Machines name the layouts of feature maps by their axes: CHW, HWC, HWCN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.scalars import show, unknown_key

Addresses: TypeAlias = NDArray[np.int64]

Region: TypeAlias = tuple[range, ...]
"""A rectangular part of a tensor: coordinates along each axis, ascending and perhaps strided."""

AXES = "CHWN"
"""Axes of a feature map in the order of its shape: channel, row (height), column (width), image."""

HWCN = "HWCN"
"""Layout of the words that the array streams: images of a channel side by side (paper section IV)."""

FILTER = "filter"
AS_READ = "as_read"
"""A layout of the filter: pass by pass, in the order in which weights are fetched, so that a fill is one run."""

TRANSFORMED = "transformed"
"""A filter that is transformed before the layer; it is always stored as it is read."""

FILTERS: Mapping[str, tuple[int, ...] | None] = {AS_READ: None, "OHWI": (0, 1), "HWIO": (1, 0)}
"""Layouts of the filter [out_channel, k], where k is tap by tap with channels inside: its axes, outermost first."""

TENSORS = "ifmap", "ofmap", "lowered", FILTER
"""Tensors that may have a layout of their own."""

_EXAMPLES = "such as CHW, HWC or HWCN (C channels, H rows, W columns, N images, which are outermost where left out)"


class Box(NamedTuple):
    """A rectangular part of a feature map: ranges of channels, rows, cols (perhaps strided) and images."""

    channels: range
    rows: range
    cols: range
    images: range


Bytes: TypeAlias = int | Fraction
"""A number of bytes; elements of half a byte share bytes."""


def whole_bursts(size_bytes: Bytes, burst: int) -> int:
    """`size_bytes` rounded up to whole bursts."""
    return -(-size_bytes // burst) * burst


def shifted(part: range, by: int) -> range:
    """The range moved up by `by`."""
    return range(part.start + by, part.stop + by, part.step)


def inside(places: range, shift: int, extent: int) -> range:
    """The part of `places` along one axis, displaced by `shift`, that lies in [0, extent)."""
    first = max(0, -((places.start + shift) // places.step))
    count = max(0, min(len(places), (extent - 1 - places.start - shift) // places.step + 1))
    return shifted(places, shift)[first:count] if first < count else range(0)


def whole_bytes(start: Bytes, size: Bytes) -> tuple[int, int]:
    """The first byte that holds a part of `size` from `start` on, and the number of such bytes."""
    first = floor(start)
    return first, ceil(start + size) - first


class Runs(NamedTuple):
    """Runs of `size` neighbouring bytes; the first begins at address `base`.

    Nested `levels` of (count, bytes apart) give the starts of the others, with the last level moving fastest; this is
    the order in which they are asked for.
    """

    base: int
    levels: tuple[tuple[int, int], ...]
    size: int

    @property
    def number(self) -> int:
        """Number of runs."""
        return prod([count for count, _ in self.levels])

    def moved(self, burst: int) -> int:
        """Bytes that cross a bus without addresses: each run in whole bursts of `burst` bytes."""
        return self.number * whole_bursts(self.size, burst)

    @property
    def starts(self) -> Addresses:
        """Address of each run, int64[number]."""
        starts = np.full(1, self.base, np.int64)
        for count, apart in self.levels:
            starts = np.add.outer(starts, np.arange(count, dtype=np.int64) * apart).ravel()
        return starts


class Bursts:
    """Expands runs to the addresses of bursts of `burst` bytes.

    Runs that differ only by whole bursts in their start are expanded once.
    """

    def __init__(self, burst: int) -> None:
        self.burst = burst
        self._known: dict[Runs, Addresses] = {}

    def of(self, runs: Iterable[Runs]) -> Addresses:
        """Address of every burst, int64[bursts], in the order in which runs ask for it.

        A burst in which a run ends and the next begins is asked for once.
        """
        parts = []
        for each in runs:
            whole, rest = divmod(each.base, self.burst)
            kind = each._replace(base=rest)
            if kind not in self._known:
                # Numbers of the bursts that each run touches, run after run.
                first, last = kind.starts // self.burst, (kind.starts + kind.size - 1) // self.burst
                counts = last - first + 1
                ends = np.cumsum(counts)
                touched = np.repeat(first - ends + counts, counts) + np.arange(ends[-1])
                self._known[kind] = _once(touched) * self.burst
            parts.append(self._known[kind] + whole * self.burst)
        if not parts:
            return np.zeros(0, np.int64)
        return parts[0] if len(parts) == 1 else _once(np.concatenate(parts))


def _once(numbers: Addresses) -> Addresses:
    """Numbers without those that equal the one before."""
    again = numbers[1:] == numbers[:-1]
    return numbers[np.concatenate(([True], ~again))] if again.any() else numbers


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in HBM, from the byte at `base` on.

    Attributes:
        shape: its elements along each axis.
        padded: its elements along each axis with padding, which comes after the last element of an axis.
        order: its axes from the outermost to the innermost.
        needed: its axes in the order in which a transfer needs them, the last moving fastest. A run is never cut, but
            runs come in this order.
        element_bytes: bytes of one element; of half a byte, rows along the innermost axis take whole bytes.
        burst: bytes of a burst; runs between which no whole burst lies are one, as its bursts hold what is between.
    """

    base: int
    shape: tuple[int, ...]
    padded: tuple[int, ...]
    order: tuple[int, ...]
    needed: tuple[int, ...]
    element_bytes: Bytes
    burst: int

    @cached_property
    def apart(self) -> tuple[Bytes, ...]:
        """Bytes from one coordinate of each axis to the next."""
        inner = [self.order[self.order.index(axis) + 1 :] for axis in range(len(self.order))]
        return tuple(self.element_bytes * prod(self.padded[each] for each in axes) for axes in inner)

    @property
    def bytes(self) -> int:
        """Bytes of the tensor, with padding."""
        return ceil(prod(self.padded) * self.element_bytes)

    def runs(self, region: Region) -> Runs | None:
        """The runs of a part with ascending coordinates, and of the padding that it ends with; None if no part is
        inside the tensor.
        """
        base: Bytes = self.base
        size, levels = self.element_bytes, dict[int, tuple[int, int]]()
        shape, padded, strides = self.shape, self.padded, self.apart
        for axis in reversed(self.order):
            part, extent = region[axis], shape[axis]
            if part.start < 0 or part.stop > extent:
                part = inside(part, 0, extent)
            # A part with the last element also has the padding behind it.
            if part.stop == extent and part.step == 1:
                part = range(part.start, padded[axis]) if part else part
            elif part[-1:] == range(extent - 1, extent) and len(part) == 1:
                part = range(extent - 1, padded[axis])
            count, apart = len(part), part.step * strides[axis]
            if not count:
                return None
            base += part.start * strides[axis]
            if apart <= whole_bursts(size, self.burst):
                size += (count - 1) * apart
            elif count > 1:
                levels[axis] = count, floor(apart)
        first, size = whole_bytes(base, size)
        return Runs(first, tuple([levels[axis] for axis in self.needed if axis in levels]) if levels else (), size)


class Layouts(NamedTuple):
    """The layout of `every` feature map, and layouts of `named` tensors, as pairs of tensor and layout."""

    every: str = HWCN
    named: tuple[tuple[str, str], ...] = ()

    def of(self, tensor: str) -> str:
        """The layout of a tensor."""
        return dict(self.named).get(tensor, AS_READ if tensor in (FILTER, TRANSFORMED) else self.every)

    @property
    def written(self) -> str | dict[str, str]:
        """The layouts as files write them."""
        return dict(self.named) if self.named else self.every


def axes_of(order: str) -> tuple[int, ...]:
    """Axes of a feature map, outermost first: (3, 0, 1, 2) for CHW, with images outside."""
    return tuple(map(AXES.index, order if "N" in order else f"N{order}"))


def read_layouts(value: object) -> Layouts:
    """The layouts that a file gives: one for all feature maps, or a mapping by tensor.

    Raises:
        InputError: with every problem; `where` is the tensor.
    """
    if isinstance(value, Layouts):
        return value
    if not isinstance(value, Mapping):
        return Layouts(_order(value))
    named, problems = [], []
    for tensor, order in value.items():
        try:
            if tensor not in TENSORS:
                raise InputError(unknown_key(str(tensor), TENSORS, did_you_mean(str(tensor), TENSORS), " in layout"))
            if tensor == FILTER and order not in FILTERS:
                hint = did_you_mean(str(order), FILTERS) or ";"
                said = f"is not a layout of the filter{hint} write {' or '.join(FILTERS)}"
                raise InputError(f"{show(order)} {said}")
            named.append((tensor, str(order) if tensor == FILTER else _order(order)))
        except InputError as error:
            problems.append(Problem(str(error), str(tensor)))
    if problems:
        raise InputError(problems)
    # Defaults are left out, so that equal layouts compare equal however they are written.
    return Layouts(named=tuple(sorted(each for each in named if each[1] != Layouts().of(each[0]))))


def _order(value: object) -> str:
    """A layout of feature maps by its name."""
    letters = sorted(value) if isinstance(value, str) else []
    if letters in (sorted(AXES), sorted(AXES.replace("N", ""))):
        return str(value)
    upper = str(value).upper()
    hint = f"; did you mean {upper}?" if upper != value and sorted(upper) in (sorted(AXES), sorted("CHW")) else ";"
    raise InputError(f"{show(value)} is not a layout of feature maps{hint} write the order of their axes, {_EXAMPLES}")
