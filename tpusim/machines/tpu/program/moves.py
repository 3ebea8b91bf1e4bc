"""Rectangles of tensors that transfers move, and their runs of addresses in HBM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from itertools import accumulate, groupby, product
from math import ceil, prod

import numpy as np

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensors import HBM, Tensor
from tpusim.machines.tpu.program.transfers import Along, Coordinates, Transfer
from tpusim.memory.hbm_layout import (
    AS_READ,
    AXES,
    FILTER,
    FILTERS,
    Addresses,
    Bursts,
    Bytes,
    Region,
    Runs,
    StoredTensor,
    axes_of,
    inside,
    whole_bursts,
    whole_bytes,
)


def regions_of(step: Transfer) -> tuple[Region, ...]:
    """Rectangles of the tensor that a transfer moves, in order; they may reach beyond the tensor.

    Elements that several lanes hold are fetched once, and a part that goes on where the part before ends is joined with
    it. Where counters of one axis overlap, as those of strips do, so do rectangles.
    """
    if step.regions is not None:
        return step.regions
    found: list[Region] = []
    for part in step.parts:
        for region in regions_of_part(part.lane, part.items, len(step.tensor.shape)):
            if together := found and _one(found[-1], region):
                found[-1] = together
            else:
                found.append(region)
    return tuple(found)


@lru_cache(maxsize=1 << 12)
def regions_of_part(lane: tuple[Along, ...], items: tuple[Along, ...], axes: int) -> tuple[Region, ...]:
    """Rectangles of a part: its lanes and items together."""
    held = [[each.coordinates for each in items if each.axis == axis] for axis in range(axes)]
    # The first elements of all lanes, each once; neighbours along the first axis that differs become one range.
    first, points = lane[0].axis, set[tuple[int, ...]]()
    for at in zip(*(each.coordinates for each in lane), strict=True):
        point = [0] * axes
        for (axis, _), coordinate in zip(lane, at, strict=True):
            point[axis] += coordinate
        points.add(tuple(point))
    by_others = sorted(points, key=lambda point: (*point[:first], *point[first + 1 :], point[first]))
    regions: list[Region] = []
    for others, neighbours in groupby(by_others, key=lambda point: (*point[:first], *point[first + 1 :])):
        alone = [range(each, each + 1) for each in others]
        for part in _evenly([point[first] for point in neighbours]):
            of_lanes = (*alone[:first], part, *alone[first:])
            regions += product(*(_sums((one, *more)) for one, more in zip(of_lanes, held, strict=True)))
    return tuple(regions)


def box_of(step: Transfer) -> Region:
    """The smallest rectangle that holds all elements of a transfer's parts."""
    axes = len(step.tensor.shape)
    held = [ends_of(part.lane, part.items, axes) for part in step.parts]
    axes_ends = zip(*held, strict=True)
    return tuple(range(min(low), max(high) + 1) for low, high in (zip(*each, strict=True) for each in axes_ends))


@lru_cache(maxsize=1 << 12)
def ends_of(lane: tuple[Along, ...], items: tuple[Along, ...], axes: int) -> tuple[tuple[int, int], ...]:
    """The lowest and the highest coordinate along each axis."""
    low, high = [0] * axes, [0] * axes
    for axis, coordinates in (*lane, *items):
        low[axis] += min(coordinates[0], coordinates[-1]) if isinstance(coordinates, range) else min(coordinates)
        high[axis] += max(coordinates[0], coordinates[-1]) if isinstance(coordinates, range) else max(coordinates)
    return tuple(zip(low, high, strict=True))


@lru_cache(maxsize=1 << 16)
def _elements(shape: tuple[int, ...], region: Region) -> int:
    """Number of a region's elements inside a tensor of this shape."""
    return prod(len(inside(part, 0, extent)) for part, extent in zip(region, shape, strict=True))


def _sums(counters: Sequence[Coordinates]) -> list[range]:
    """Sums of one coordinate from each counter, as few ranges as possible; tables of coordinates one after another."""
    sums = [range(1)]
    for coordinates in counters:
        sums = [each for one in sums for other in _evenly(coordinates) for each in _sum(one, other)]
    return sums


def _sum(one: range, other: range) -> list[range]:
    """Sums of two ranges; one range if the steps of the outer follow the last step of the inner."""
    inner, outer = (one, other) if one.step < other.step or len(other) == 1 else (other, one)
    start = inner.start + outer.start
    if len(outer) == 1 or len(inner) == 1 or outer.step == inner.step * len(inner):
        step = outer.step if len(inner) == 1 else inner.step
        return [range(start, start + len(inner) * len(outer) * step, step)]
    return [range(inner.start + at, inner.stop + at, inner.step) for at in outer]


def _evenly(coordinates: Coordinates | list[int]) -> list[range]:
    """Coordinates in ascending order, each once: one range if evenly spaced, otherwise a range for each run of
    neighbours.
    """
    if isinstance(coordinates, range):
        return [coordinates if coordinates.step > 0 else coordinates[::-1]]
    found: list[range] = []
    for at in sorted(set(coordinates)):
        if found and found[-1].stop == at:
            found[-1] = range(found[-1].start, at + 1)
        else:
            found.append(range(at, at + 1))
    return found


def _one(before: Region, region: Region) -> Region | None:
    """Both regions as one rectangle, if the second continues the first along one axis; else None."""
    differ = [axis for axis, (one, other) in enumerate(zip(before, region, strict=True)) if one != other]
    if len(differ) != 1:
        return None
    (axis,) = differ
    one, other = before[axis], region[axis]
    if one.step != 1 or other.step != 1 or one.stop != other.start:
        return None
    return (*before[:axis], range(one.start, other.stop), *before[axis + 1 :])


_NEEDED = tuple(map(AXES.index, "HWNC"))
"""Axes from the outermost in a transfer: a word is one image or several of a pixel; lanes are channels, side by side.
"""

_HeldWords = tuple[tuple[Along, ...], tuple[Along, ...]]
"""Lanes and items of a part."""


class TransferRuns:
    """Runs of addresses of every transfer of a Program on a machine.

    Tensors lie one after another from address 0 on, in the Program's order, each at a multiple of `hbm.alignment` and
    as `hbm.layout` says. A transfer's runs come region by region: rows outermost, then columns, images and
    channels, unless these are neighbours in HBM. A filter stored as it is read has the parts of its
    fills one after another, column fold by column fold; an element that is in several parts is stored several times.
    """

    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.program, self.hardware = program, hardware
        self._bursts = Bursts(hardware.hbm.burst_bytes)
        self._region = cache(lambda name, region: self._stored[name].runs(region))

    @cached_property
    def bases(self) -> dict[str, int]:
        """First address of each tensor, by name."""
        return {each.name: end for each, end in zip(self.program.tensors, self._ends, strict=False)}

    @property
    def size(self) -> int:
        """Bytes from address 0 to the end of the last tensor."""
        return self._ends[-1]

    @cached_property
    def _ends(self) -> list[int]:
        """First address of the first tensor, then the end of each tensor."""
        sizes = (
            whole_bursts(self._bytes(each), self.hardware.hbm.alignment_bytes) if each.place == HBM else 0
            for each in self.program.tensors
        )
        return [*accumulate(sizes, initial=0)]

    def order(self, name: str) -> str:
        """Layout of a tensor, by the name that files give it."""
        return self.hardware.hbm.layout.of(name)

    def runs(self, step: Transfer) -> list[Runs]:
        """Runs of a transfer, in order; none if all of it is padding."""
        if self._as_read(step.tensor):
            return self._pieces(step)
        found = (self._region(step.tensor.name, region) for region in regions_of(step))
        return [each for each in found if each]

    def bursts(self, step: Transfer) -> Addresses:
        """Addresses of a transfer's bursts, in order."""
        return self._bursts.of(self.runs(step))

    def bytes(self, step: Transfer) -> int:
        """Bytes that the pipe moves for a transfer: each run in whole bursts, wherever it begins."""
        return sum(each.moved(self.hardware.hbm.burst_bytes) for each in self.runs(step))

    def wanted(self, step: Transfer) -> int:
        """Bytes of the elements that a transfer wants, without padding and without bytes between them."""
        elements = sum(_elements(step.tensor.shape, each) for each in regions_of(step))
        return ceil(elements * self._element_bytes(step.tensor))

    # ---- tensors that have axes

    @cached_property
    def _stored(self) -> dict[str, StoredTensor]:
        return {each.name: self._lying(each, self.bases[each.name]) for each in self.program.tensors}

    def _lying(self, tensor: Tensor, base: int) -> StoredTensor:
        """A tensor as it is stored from `base` on."""
        axes, burst = tuple(range(len(tensor.shape))), self.hardware.hbm.burst_bytes
        order, needed = axes, axes
        if tensor.role == FILTER:
            order = FILTERS[self.order(FILTER)] or axes
        elif len(axes) == len(AXES):
            order, needed = axes_of(self.order(tensor.role)), _NEEDED
        padded = tensor.padded or tensor.shape
        return StoredTensor(base, tensor.shape, padded, order, needed, self._element_bytes(tensor), burst)

    def _element_bytes(self, tensor: Tensor) -> Bytes:
        return tensor.stored_bytes(self.hardware.element_bytes)

    # ---- tensors that are stored as they are read

    def _as_read(self, tensor: Tensor) -> bool:
        return self.order(tensor.role) == AS_READ

    def _bytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor in HBM."""
        if not self._as_read(tensor):
            return self._lying(tensor, 0).bytes
        elements = sum(self._size(tensor, held) for held in self._offsets[tensor.name])
        return ceil(elements * self._element_bytes(tensor))

    @cached_property
    def _offsets(self) -> dict[str, dict[_HeldWords, int]]:
        """Elements ahead of each part, by tensor; parts of the same lanes are together, in the order of their first
        use.
        """
        found: dict[Tensor, dict[tuple[Along, ...], dict[_HeldWords, None]]] = {}
        rows = self.program.rows
        read = rows.told(lambda each: isinstance(each, Transfer) and self._as_read(each.tensor))
        moves = map(rows.located, np.flatnonzero(read).tolist())
        # Rows that do the same in the same place are one object.
        for step in {id(step): step for step in moves}.values():
            assert isinstance(step, Transfer)
            of_lanes = found.setdefault(step.tensor, {})
            for part in step.parts:
                # A dict as an ordered set: parts used twice count once.
                of_lanes.setdefault(part.lane, {})[part.lane, part.items] = None
        ahead: dict[str, dict[_HeldWords, int]] = {}
        for tensor, of_lanes in found.items():
            parts = [held for each in of_lanes.values() for held in each]
            sizes = accumulate((self._size(tensor, held) for held in parts), initial=0)
            ahead[tensor.name] = dict(zip(parts, sizes, strict=False))
        return ahead

    def _size(self, tensor: Tensor, held: _HeldWords) -> int:
        """Elements of a part that lie inside the tensor."""
        return sum(_elements(tensor.shape, each) for each in regions_of_part(*held, len(tensor.shape)))

    def _pieces(self, step: Transfer) -> list[Runs]:
        """Runs of a transfer's parts; parts that follow one another in HBM are one run."""
        offsets, size, base = self._offsets[step.tensor.name], self._element_bytes(step.tensor), self.bases
        found: list[tuple[Bytes, Bytes]] = []
        for part in step.parts:
            held = part.lane, part.items
            start, taken = base[step.tensor.name] + offsets[held] * size, self._size(step.tensor, held) * size
            if found and sum(found[-1]) == start:
                found[-1] = found[-1][0], found[-1][1] + taken
            elif taken:
                found.append((start, taken))
        pieces = (whole_bytes(*each) for each in found)
        return [Runs(first, (), size) for first, size in pieces]
