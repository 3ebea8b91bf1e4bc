"""Which rectangles of a tensor a transfer moves: those it names, or those that its parts are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, product

from tpusim.machines.tpu.program.tensor import Along, Coordinates
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.memory.layout import Region


def regions_of(step: Transfer) -> tuple[Region, ...]:
    """The rectangles, in the order in which they are moved; perhaps beyond the tensor.

    Of what parts are, lanes that hold the same have it fetched once, and a part that goes on where the one before ends
    is one with it. Where counters of one axis overlap, as those of strips do, so do rectangles.
    """
    if step.regions is not None:
        return step.regions
    axes = len(step.tensor.shape)
    return tuple(_joined(region for part in step.parts for region in regions_of_part(part.lane, part.items, axes)))


@lru_cache(maxsize=1 << 12)
def regions_of_part(lane: tuple[Along, ...], items: tuple[Along, ...], axes: int) -> tuple[Region, ...]:
    """What lanes and items of a part take together."""
    held = [[each.coordinates for each in items if each.axis == axis] for axis in range(axes)]
    return tuple(
        region
        for of_lanes in _of_lanes(lane, axes)
        for region in product(*(_sums((first, *more)) for first, more in zip(of_lanes, held, strict=True)))
    )


def box_of(step: Transfer) -> Region:
    """The smallest rectangle that holds all elements of its parts."""
    axes = len(step.tensor.shape)
    held = [_ends(part.lane, part.items, axes) for part in step.parts]
    axes_ends = zip(*held, strict=True)
    return tuple(range(min(low), max(high) + 1) for low, high in (zip(*each, strict=True) for each in axes_ends))


@lru_cache(maxsize=1 << 12)
def _ends(lane: tuple[Along, ...], items: tuple[Along, ...], axes: int) -> tuple[tuple[int, int], ...]:
    """The lowest and the highest coordinate along each axis."""
    low, high = [0] * axes, [0] * axes
    for axis, coordinates in (*lane, *items):
        low[axis] += min(coordinates[0], coordinates[-1]) if isinstance(coordinates, range) else min(coordinates)
        high[axis] += max(coordinates[0], coordinates[-1]) if isinstance(coordinates, range) else max(coordinates)
    return tuple(zip(low, high, strict=True))


def _of_lanes(lane: tuple[Along, ...], axes: int) -> Iterator[Region]:
    """What lanes hold the first of, each once: neighbours along the first axis that tells them apart together."""
    first = lane[0].axis
    points = {tuple(map(sum, zip(*(_unit(*each, axes) for each in at), strict=True))) for at in _together(lane)}
    by_others = sorted(points, key=lambda point: (*point[:first], *point[first + 1 :], point[first]))
    for others, alike in groupby(by_others, key=lambda point: (*point[:first], *point[first + 1 :])):
        for part in _evenly([point[first] for point in alike]):
            alone = [range(each, each + 1) for each in others]
            yield (*alone[:first], part, *alone[first:])


def _together(lane: tuple[Along, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """For each lane the axes and coordinates by which it differs."""
    axes = [each.axis for each in lane]
    return (tuple(zip(axes, at, strict=True)) for at in zip(*(each.coordinates for each in lane), strict=True))


def _unit(axis: int, coordinate: int, axes: int) -> tuple[int, ...]:
    return (*(0,) * axis, coordinate, *(0,) * (axes - axis - 1))


def _sums(counters: Sequence[Coordinates]) -> list[range]:
    """The sums of a coordinate of each counter, as few ranges as walk them; those of a table one after another."""
    sums = [range(1)]
    for coordinates in counters:
        sums = [each for one in sums for other in _evenly(coordinates) for each in _sum(one, other)]
    return sums


def _sum(one: range, other: range) -> list[range]:
    """The sums of two ranges: one range where the steps of one follow upon the last of the other."""
    inner, outer = (one, other) if one.step < other.step or len(other) == 1 else (other, one)
    start = inner.start + outer.start
    if len(outer) == 1 or len(inner) == 1 or outer.step == inner.step * len(inner):
        step = outer.step if len(inner) == 1 else inner.step
        return [range(start, start + len(inner) * len(outer) * step, step)]
    return [range(inner.start + at, inner.stop + at, inner.step) for at in outer]


def _evenly(coordinates: Coordinates | list[int]) -> list[range]:
    """Coordinates in ascending order, each once: as they are where they are evenly spaced, else neighbours together."""
    if isinstance(coordinates, range):
        return [coordinates if coordinates.step > 0 else coordinates[::-1]]
    found: list[range] = []
    for at in sorted(set(coordinates)):
        if found and found[-1].stop == at:
            found[-1] = range(found[-1].start, at + 1)
        else:
            found.append(range(at, at + 1))
    return found


def _joined(regions: Iterable[Region]) -> Iterator[Region]:
    """Those that go on along one axis where the one before ends, together with it."""
    before: Region | None = None
    for region in regions:
        together = before and _one(before, region)
        if before and not together:
            yield before
        before = together or region
    yield from [before] if before else []


def _one(before: Region, region: Region) -> Region | None:
    """Both as one rectangle, if they are one."""
    differ = [axis for axis, (one, other) in enumerate(zip(before, region, strict=True)) if one != other]
    if len(differ) != 1:
        return None
    (axis,) = differ
    one, other = before[axis], region[axis]
    if one.step != 1 or other.step != 1 or one.stop != other.start:
        return None
    return (*before[:axis], range(one.start, other.stop), *before[axis + 1 :])
