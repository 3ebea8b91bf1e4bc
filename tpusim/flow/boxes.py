"""Where the elements of a part stand in its tensor: the boxes that they fill, and larger ones that hold several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.lowered import Counter, Part
from tpusim.reference import Box

Counters = Sequence[Counter]
Places = slice | NDArray[np.intp]
"""Where neighbours stand among the coordinates of a part: side by side, or here and there."""
Run = tuple[Places, range]
"""Neighbours along an axis of the tensor: their places, and which they are. Rows or columns that are evenly spaced are
neighbours too where boxes may be strided.
"""
SPATIAL = 1, 2
"""The axes of a feature map along which a box may be strided."""
Placed = tuple[tuple[Places, ...], Box]
"""A box in a tensor, and where its elements stand in a part."""


class Outline(NamedTuple):
    """The coordinates of a part, axis by axis.

    Attributes:
        lengths: how many there are along each axis of the tensor.
        counts: the same, counter by counter.
        order: what makes [lane, *items] of the counters of the first axis, then those of the second, ...
        boxes: where they lie in the tensor; what lies outside it is in none.
    """

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    order: tuple[int, ...]
    boxes: tuple[Placed, ...]


def straight(part: Part) -> tuple[Counters, ...]:
    """The counters of a part whose counters are independent; lane by lane, where lanes differ along several axes."""
    if len(part.lane) == 1:
        return ((*part.lane, *part.items),)
    axes = [axis for axis, _ in part.lane]
    each_lane = zip(*(coordinates for _, coordinates in part.lane), strict=True)
    return tuple(
        (*((axis, range(at, at + 1)) for axis, at in zip(axes, ats, strict=True)), *part.items) for ats in each_lane
    )


def outline(counters: Counters, shape: tuple[int, ...], strided: bool = False) -> Outline:
    """The outline of a part of a tensor of that shape, which has four axes; `counters` are `straight`.

    Boxes may be `strided` where whoever computes them can do that.
    """
    by_axis = [[at for at, (along, _) in enumerate(counters) if along == axis] for axis in range(len(shape))]
    steps = [tuple(counters[at][1] for at in mine) for mine in by_axis]
    order = [at for mine in by_axis for at in mine]
    back = tuple(order.index(at) for at in range(len(counters)))
    counts = tuple(len(counters[at][1]) for at in order)
    axes = [
        _runs(mine, size, strided and at in SPATIAL) for at, (mine, size) in enumerate(zip(steps, shape, strict=True))
    ]
    return Outline(tuple(length for length, _ in axes), counts, back, tuple(_boxes([runs for _, runs in axes])))


def in_order(places: tuple[Places, ...]) -> bool:
    """Whether the elements of a box follow one another as in the box."""
    return all(isinstance(each, slice) for each in places)


def indices(places: tuple[Places, ...], lengths: tuple[int, ...]) -> tuple[Places, ...]:
    """What stands for such places of a part, of so many coordinates along each axis, in an expression of NumPy."""
    if in_order(places):
        return places
    every = zip(places, lengths, strict=True)
    return np.ix_(*(np.arange(length)[each] if isinstance(each, slice) else each for each, length in every))


def _boxes(axes: Iterable[tuple[Run, ...]]) -> Iterator[Placed]:
    for runs in product(*axes):
        channels, rows, cols, images = (run for _, run in runs)
        yield tuple(place for place, _ in runs), (channels, rows, cols, images)


@lru_cache(maxsize=4096)
def _runs(steps: tuple[Sequence[int], ...], size: int, strided: bool) -> tuple[int, tuple[Run, ...]]:
    """How many coordinates nested counters walk along an axis, and the runs of those in [0, size)."""
    coordinates = np.zeros(1, np.int64)
    for each in steps:
        coordinates = np.add.outer(coordinates, each).reshape(-1)
    apart = np.diff(coordinates)
    if strided and len(apart) and apart[0] > 1 and (apart == apart[0]).all():
        return len(coordinates), _every(range(int(coordinates[0]), int(coordinates[-1]) + 1, int(apart[0])), size)
    if (apart < 0).any() and (scattered := _scattered(coordinates, size)):
        return len(coordinates), scattered
    ends = [0, *(np.flatnonzero(apart != 1) + 1).tolist(), len(coordinates)]
    lows = [(first, stop, int(coordinates[first])) for first, stop in pairwise(ends)]
    inside = ((first - low, range(max(low, 0), min(low + stop - first, size))) for first, stop, low in lows)
    runs = tuple((slice(run.start + by, run.stop + by), run) for by, run in inside if run)
    return len(coordinates), runs


def _scattered(coordinates: NDArray[np.int64], size: int) -> tuple[Run, ...]:
    """Runs of those in [0, size) in whatever order they come, as words hold pixels from all over a map; none where one
    comes twice.
    """
    order = np.argsort(coordinates, kind="stable")
    order = order[(coordinates[order] >= 0) & (coordinates[order] < size)]
    apart = np.diff(coordinates[order])
    if (apart == 0).any() or not len(order):
        return ()
    ends = [0, *(np.flatnonzero(apart != 1) + 1).tolist(), len(order)]
    runs = ((order[first:stop], int(coordinates[order[first]])) for first, stop in pairwise(ends))
    return tuple((places, range(low, low + len(places))) for places, low in runs)


def _every(coordinates: range, size: int) -> tuple[Run, ...]:
    """The run of those in [0, size)."""
    first, stop = (max(0, -(-(end - coordinates.start) // coordinates.step)) for end in (0, size))
    run = coordinates[first:stop]
    return ((slice(first, first + len(run)), run),) if run else ()


def merged(boxes: Iterable[Box], fits: Callable[[Box], bool]) -> list[tuple[Box, int]]:
    """Boxes that hold so many of `boxes` each, one after another, as large as `fits` allows."""
    held = [(box, 1) for box in boxes]
    while True:
        fewer: list[tuple[Box, int]] = []
        for box, count in held:
            union = _union(fewer[-1][0], box) if fewer else None
            if union and fits(union):
                fewer[-1] = union, fewer[-1][1] + count
            else:
                fewer.append((box, count))
        if len(fewer) == len(held):
            return held
        held = fewer


def _union(one: Box, other: Box) -> Box | None:
    """The box that both make up, where the other follows along one axis and is as long along the rest."""
    apart = [axis for axis in range(len(one)) if one[axis] != other[axis]]
    if len(apart) != 1 or {one[apart[0]].step, other[apart[0]].step} != {1}:
        return None
    if one[apart[0]].stop != other[apart[0]].start:
        return None
    channels, rows, cols, images = (range(a.start, b.stop, a.step) for a, b in zip(one, other, strict=True))
    return channels, rows, cols, images


def places(box: Box) -> tuple[slice, ...]:
    """Where a box stands in its tensor."""
    return tuple(slice(part.start, part.stop, part.step) for part in box)


def within(box: Box, at: Iterable[Any]) -> tuple[int, ...]:
    """Which element of the tensor a box has at a place."""
    return tuple(part[int(place)] for part, place in zip(box, at, strict=True))


def alone(at: tuple[int, ...]) -> Box:
    """The box of one element."""
    channel, row, col, image = (range(place, place + 1) for place in at)
    return channel, row, col, image
