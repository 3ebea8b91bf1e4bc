"""Tensors as they lie in HBM and the scratch memory, and the parts of them that transfers move, as views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import ArrayLike, NDArray

from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensor import Along, Elements, Tensor
from tpusim.machines.tpu.program.transfers import Transfer

Values = NDArray[Any]
Reach = list[tuple[int, int]]
"""By axis, the lowest coordinate that a Program names and the one after the highest."""


class HbmTensor:
    """A tensor with a margin of zeros wherever a Program reaches beyond it, so that every part is a view.

    What is written into the margin is lost.
    """

    def __init__(self, tensor: Tensor, content: ArrayLike, parts: Iterable[Elements]) -> None:
        """`content` is an array of as many elements, used itself where there is no margin, or the value of them all."""
        given, reach = np.asarray(content), _reach(tensor, parts)
        self._low, self._shape = [low for low, _ in reach], tensor.shape
        extent = tuple(high - low for low, high in reach)
        if given.ndim and extent == tensor.shape:
            self._stored = given.reshape(extent)
            return
        self._stored = np.zeros(extent, given.dtype)
        self.values[...] = given.reshape(tensor.shape) if given.ndim else given

    @property
    def values(self) -> Values:
        """The tensor without its margin."""
        inside = (slice(-low, size - low) for low, size in zip(self._low, self._shape, strict=True))
        return self._stored[tuple(inside)]

    def read(self, part: Elements) -> Values:
        """The elements of a part, [lane, *items]."""
        if _even((*part.lane, *part.items)):
            return self._view(part)
        if not _even(part.items):
            return self._stored[self._index(part)]
        views = [self._view(part._replace(lane=lane)) for lane in _stretches(part.lane)]
        return views[0] if len(views) == 1 else np.concatenate(views)

    def write(self, part: Elements, values: Values) -> None:
        """Store `values` [lane, *items] where the part lies."""
        if _even((*part.lane, *part.items)):
            self._view(part)[...] = values
        else:
            self._stored[self._index(part)] = values
        for axis, (low, size) in enumerate(zip(self._low, self._shape, strict=True)):
            before = (slice(None),) * axis
            self._stored[(*before, slice(0, -low))] = 0
            self._stored[(*before, slice(size - low, None))] = 0

    def _view(self, part: Elements) -> Values:
        """Every counter becomes an axis of the view; those of the lanes, which move together, one."""
        start = [-low for low in self._low]
        for axis, coordinates in (*part.lane, *part.items):
            start[axis] += coordinates[0]
        origin = self._stored[tuple(slice(at, None) for at in start)]
        apart = [
            origin.strides[axis] * (coordinates[1] - coordinates[0] if len(coordinates) > 1 else 1)
            for axis, coordinates in (*part.lane, *part.items)
        ]
        among = len(part.lane)
        counts = [part.lanes, *(len(each.coordinates) for each in part.items)]
        return as_strided(origin, counts, [sum(apart[:among]), *apart[among:]])

    def _index(self, part: Elements) -> tuple[NDArray[np.int64], ...]:
        """The coordinates along each axis, broadcast over [lane, *items]."""
        index = [np.full(1, -low) for low in self._low]
        together = [part.lane, *((each,) for each in part.items)]
        for at, alongs in enumerate(together):
            for axis, coordinates in alongs:
                index[axis] = index[axis] + np.array(coordinates).reshape(-1, *[1] * (len(together) - 1 - at))
        return tuple(index)


def hbm_tensors(program: Program, given: Mapping[str, Values], apart: Iterable[str]) -> dict[str, HbmTensor]:
    """Every tensor of a Program but those `apart`; those that are not given hold NaN until they are written."""

    def content(name: str) -> ArrayLike:
        if name not in given:
            return np.array(np.nan, program.number)
        # What is written later is as wide as results are, and the caller's array stays as it is.
        return given[name].astype(program.number) if name in program.written else given[name]

    names = {each.name: each for each in program.tensors if each.name not in apart}
    return {name: HbmTensor(each, content(name), parts_of(program, name)) for name, each in names.items()}


def parts_of(program: Program, name: str) -> list[Elements]:
    """Every part of a tensor that a step moves, or that is handed on to it."""
    names = {name, *(each.sources[0] for each in program.handed if each.tensor == name and each.same)}
    moves = (step for step in program.steps if isinstance(step, Transfer))
    ends = ((step, (step.tensor, step.written)) for step in moves)
    return [part for step, both in ends if any(each and each.name in names for each in both) for part in step.parts]


def _reach(tensor: Tensor, parts: Iterable[Elements]) -> Reach:
    reach = [(0, size) for size in tensor.shape]
    for part in parts:
        for axis, (low, high) in enumerate(_extremes(part, len(reach))):
            reach[axis] = min(reach[axis][0], low), max(reach[axis][1], high + 1)
    return reach


def _extremes(part: Elements, axes: int) -> Iterator[tuple[int, int]]:
    """The lowest and highest coordinate along each axis."""
    low, high = [0] * axes, [0] * axes
    for axis, coordinates in (*part.lane, *part.items):
        ends = (coordinates[0], coordinates[-1]) if isinstance(coordinates, range) else coordinates
        low[axis] += min(ends)
        high[axis] += max(ends)
    return zip(low, high, strict=True)


def _even(counters: Iterable[Along]) -> bool:
    """Whether every counter walks evenly spaced coordinates."""
    return all(isinstance(each.coordinates, range) for each in counters)


@lru_cache(maxsize=1024)
def _stretches(lane: tuple[Along, ...]) -> list[tuple[Along, ...]]:
    """The lanes in stretches, in each of which they differ evenly along every axis."""
    coordinates = np.array([each.coordinates for each in lane])
    turns = (np.flatnonzero(np.diff(coordinates, 2).any(axis=0)) + 2).tolist()
    # A stretch ends where the next lane breaks its step; what follows has a step of its own.
    ends = [0]
    for turn in turns:
        ends += [turn] if turn - ends[-1] > 1 else []
    cuts = pairwise([*ends, coordinates.shape[1]])
    return [tuple(Along(a.axis, a.coordinates[first:stop]) for a in lane) for first, stop in cuts]
