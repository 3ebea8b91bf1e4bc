"""Placements of values among the chips of a mesh: how those of results follow from those of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tpusim.network.graph import Placement


def placement_of(spec: Any, rank: int) -> Placement:
    """Return a PartitionSpec as a placement of a value of `rank` axes."""
    each = [() if entry is None else entry if isinstance(entry, tuple) else (entry,) for entry in spec]
    return tuple(tuple(map(str, entry)) for entry in each) + ((),) * (rank - len(each))


def nowhere(aval: Any) -> Placement:
    return ((),) * len(aval.shape)


def shown(shape: Sequence[int], place: Placement) -> str:
    """Write a shape with the axes that part it, as JAX does: 16@x, 64."""
    return ", ".join(f"{size}@{'@'.join(axes)}" if axes else str(size) for size, axes in zip(shape, place, strict=True))


def common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes that both begin with."""
    many = 0
    while many < min(len(one), len(other)) and one[many] == other[many]:
        many += 1
    return one[:many]


def together(places: Sequence[Placement], rank: int) -> Placement:
    """Return the placement of a result of values that are placed so: axes of the first go before those of others."""
    made: list[tuple[str, ...]] = [()] * rank
    for place in places:
        used = {name for axes in made for name in axes}
        for axis, axes in enumerate(place):
            if not made[axis] and not used & {*axes}:
                made[axis] = axes
    return tuple(made)


def narrow(place: Placement, own: Sequence[int], shape: Sequence[int]) -> Placement:
    """Return the placement of an operand that has one element where the result has more."""
    return tuple(() if size < whole else axes for axes, size, whole in zip(place, own, shape, strict=True))


def next_exchange(place: Sequence[tuple[str, ...]], wanted: Placement) -> tuple[int, int, tuple[str, ...]] | None:
    """Return an axis of a value whose last axes of the mesh another axis wants next, that other axis, and these."""
    for axis, own in enumerate(place):
        for many in range(len(own) - len(common(own, wanted[axis])), 0, -1):
            axes = own[-many:]
            for to, other in enumerate(wanted):
                if to != axis and other[: len(place[to]) + many] == (*place[to], *axes):
                    return axis, to, axes
    return None


def reshaped(
    before: Sequence[int], after: Sequence[int], place: Placement, along: Callable[[Sequence[str]], int]
) -> Placement | None:
    """Return the placement behind a reshape: axes that become one are parted along the first, and so are those that one
    becomes. None where parts would not lie together.
    """
    made: list[tuple[str, ...]] = [()] * len(after)
    own, new = 0, 0
    while own < len(before) or new < len(after):
        first, other = own, new
        own, new = own + (own < len(before)), new + (new < len(after))
        sizes = prod(before[first:own]), prod(after[other:new])
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1] and own < len(before):
                own += 1
            elif new < len(after):
                new += 1
            else:
                own += 1
            sizes = prod(before[first:own]), prod(after[other:new])
        mine = [axis for axis in range(first, own) if before[axis] > 1]
        theirs = [axis for axis in range(other, new) if after[axis] > 1]
        # Parts along an inner axis are apart from one another in the whole.
        if any(place[axis] for axis in mine[1:]):
            return None
        if mine and place[mine[0]]:
            if after[theirs[0]] % along(place[mine[0]]):
                return None
            made[theirs[0]] = place[mine[0]]
    return tuple(made)
