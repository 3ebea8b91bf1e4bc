"""Boxes of a tensor: the boxes that the elements of a part fill, and larger boxes that hold several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.lowered import AxisCounter, WrittenPart
from tpusim.reference import Box

AxisCounters = Sequence[AxisCounter]
Standing = slice | NDArray[np.intp]
"""Places of neighbours among the coordinates of a part: a slice if they are consecutive, otherwise an index array."""
Neighbours = tuple[Standing, range]
"""Neighbours along an axis of the tensor: their places in a part, and their coordinates.

If boxes may be strided, evenly spaced rows or columns are neighbours, too.
"""
SPATIAL = 1, 2
"""Axes of a feature map along which a box may be strided."""
PlacedBox = tuple[tuple[Standing, ...], Box]
"""A box of a tensor, and the places of its elements in a part."""


class Outline(NamedTuple):
    """The coordinates of a part, axis by axis.

    Attributes:
        lengths: number of coordinates along each axis of the tensor.
        counts: number of coordinates of each counter.
        order: permutation from counters sorted by axis to [lane, *items].
        boxes: boxes of the tensor that hold the elements; elements outside the tensor are in no box.
    """

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    order: tuple[int, ...]
    boxes: tuple[PlacedBox, ...]


def straight(part: WrittenPart) -> tuple[AxisCounters, ...]:
    """Counters of a part, if they are independent; if lanes differ along several axes, the counters of each lane."""
    if len(part.lane) == 1:
        return ((*part.lane, *part.items),)
    axes = [axis for axis, _ in part.lane]
    each_lane = zip(*(coordinates for _, coordinates in part.lane), strict=True)
    return tuple(
        (*((axis, range(at, at + 1)) for axis, at in zip(axes, ats, strict=True)), *part.items) for ats in each_lane
    )


@lru_cache(maxsize=512)
def outline(counters: AxisCounters, shape: tuple[int, ...], strided: bool = False) -> Outline:
    """The outline of a part of a tensor of four axes; `counters` are `straight`.

    Boxes may be `strided` if the reference can compute such boxes.
    """
    # Counters of one axis are brought together, as a run of coordinates is a property of the axis.
    by_axis = [[at for at, (along, _) in enumerate(counters) if along == axis] for axis in range(len(shape))]
    steps = [tuple(counters[at][1] for at in mine) for mine in by_axis]
    order = [at for mine in by_axis for at in mine]
    back = tuple(order.index(at) for at in range(len(counters)))
    counts = tuple(len(counters[at][1]) for at in order)
    axes = [
        _runs(mine, size, strided and at in SPATIAL) for at, (mine, size) in enumerate(zip(steps, shape, strict=True))
    ]
    boxes = []
    for runs in product(*(runs for _, runs in axes)):
        channels, rows, cols, images = (run for _, run in runs)
        boxes.append((tuple(place for place, _ in runs), (channels, rows, cols, images)))
    return Outline(tuple(length for length, _ in axes), counts, back, tuple(boxes))


def in_order(places: tuple[Standing, ...]) -> bool:
    """Whether the elements of a box follow one another in the part as they do in the box."""
    return all(isinstance(each, slice) for each in places)


def indices(places: tuple[Standing, ...], lengths: tuple[int, ...]) -> tuple[Standing, ...]:
    """NumPy's index for these places in a part with `lengths` coordinates along its axes."""
    if in_order(places):
        return places
    every = zip(places, lengths, strict=True)
    return np.ix_(*(np.arange(length)[each] if isinstance(each, slice) else each for each, length in every))


@lru_cache(maxsize=4096)
def _runs(steps: tuple[Sequence[int], ...], size: int, strided: bool) -> tuple[int, tuple[Neighbours, ...]]:
    """Number of coordinates that nested counters walk along an axis, and the runs of those in [0, size)."""
    coordinates = np.zeros(1, np.int64)
    for each in steps:
        coordinates = np.add.outer(coordinates, each).reshape(-1)
    count, apart = len(coordinates), np.diff(coordinates)
    # One strided box replaces a box for every coordinate.
    if strided and len(apart) and apart[0] > 1 and (apart == apart[0]).all():
        every = range(int(coordinates[0]), int(coordinates[-1]) + 1, int(apart[0]))
        first, stop = (max(0, -(-(end - every.start) // every.step)) for end in (0, size))
        run = every[first:stop]
        return count, ((slice(first, first + len(run)), run),) if run else ()
    # Coordinates that fall back, as counters wrap around, are not runs in order.
    if (apart < 0).any() and (scattered := _scattered(coordinates, size)):
        return count, scattered
    runs = []
    for first, stop, low in _stretches(coordinates):
        if run := range(max(low, 0), min(low + stop - first, size)):
            runs.append((slice(run.start + first - low, run.stop + first - low), run))
    return count, tuple(runs)


def _scattered(coordinates: NDArray[np.int64], size: int) -> tuple[Neighbours, ...]:
    """Runs of the coordinates in [0, size) in any order, as a word may hold pixels from all over a map; none if one
    repeats.
    """
    order = np.argsort(coordinates, kind="stable")
    order = order[(coordinates[order] >= 0) & (coordinates[order] < size)]
    if (np.diff(coordinates[order]) == 0).any():
        return ()
    return tuple(
        (order[first:stop], range(low, low + stop - first)) for first, stop, low in _stretches(coordinates[order])
    )


def _stretches(coordinates: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first coordinate) of stretches of consecutive coordinates."""
    ends = [0, *(np.flatnonzero(np.diff(coordinates) != 1) + 1).tolist(), len(coordinates)]
    return ((first, stop, int(coordinates[first])) for first, stop in pairwise(ends) if first < stop)


def merged(boxes: Iterable[Box], fits: Callable[[Box], bool]) -> list[tuple[Box, int]]:
    """Larger boxes, as large as `fits` allows, each with the number of consecutive `boxes` that it holds."""
    held = [(box, 1) for box in boxes]
    while True:
        fewer: list[tuple[Box, int]] = []
        for box, count in held:
            union = _union(fewer[-1][0], box) if fewer else None
            if union and fits(union):
                fewer[-1] = union, fewer[-1][1] + count
            else:
                fewer.append((box, count))
        # Unions may themselves be joined, so passes go on until one changes nothing.
        if len(fewer) == len(held):
            return held
        held = fewer


class Coverage:
    """Elements of a tensor that lie in some of `boxes`: one mark for all elements between edges of boxes."""

    def __init__(self, boxes: Sequence[Box], shape: tuple[int, ...]) -> None:
        self._edges = []
        for axis, size in enumerate(shape):
            places = {box[axis] for box in boxes}
            ends = {0, size}.union(*((place.start, place.stop) for place in places))
            strided = any(place.step > 1 for place in places)
            self._edges.append([*range(max(ends) + 1)] if strided else sorted(ends))
        self._at = [{edge: number for number, edge in enumerate(edges)} for edges in self._edges]
        self._marks = np.zeros([len(each) - 1 for each in self._edges], np.bool_)
        self._inside = tuple(slice(at[size]) for at, size in zip(self._at, shape, strict=True))

    def add(self, box: Box) -> None:
        """Mark the elements of one of the boxes."""
        spans = (slice(at[place.start], at[place.stop], place.step) for at, place in zip(self._at, box, strict=True))
        self._marks[tuple(spans)] = True

    @property
    def whole(self) -> bool:
        """Whether every element of the tensor is marked."""
        return bool(self._marks[self._inside].all())

    @property
    def elements(self) -> NDArray[np.bool_]:
        """The mark of every element."""
        marks = self._marks[self._inside]
        for axis, edges in enumerate(self._edges):
            marks = marks.repeat(np.diff(edges[: marks.shape[axis] + 1]), axis)
        return marks


def _union(one: Box, other: Box) -> Box | None:
    """The box of both, if the second continues the first along one axis and equals it along the others; else None."""
    apart = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    if len(apart) != 1 or {each.step for each in apart[0]} != {1} or apart[0][0].stop != apart[0][1].start:
        return None
    channels, rows, cols, images = (range(a.start, b.stop, a.step) for a, b in zip(one, other, strict=True))
    return channels, rows, cols, images


def places(box: Box) -> tuple[slice, ...]:
    """Slices of a box in its tensor."""
    return tuple(slice(part.start, part.stop, part.step) for part in box)


def within(box: Box, at: Iterable[Any]) -> tuple[int, ...]:
    """Index in the tensor of a place in a box."""
    return tuple(part[int(place)] for part, place in zip(box, at, strict=True))


def alone(at: tuple[int, ...]) -> Box:
    """The box of one element."""
    channel, row, col, image = (range(place, place + 1) for place in at)
    return channel, row, col, image
