"""Copies: every chip copies each part to its chip, axis by axis over the shortest way; or its operand to the next."""

from __future__ import annotations

from functools import partial
from itertools import product

from tpusim.machines.tpu.slices.algorithms.ring import ring_through
from tpusim.machines.tpu.slices.collective import Collective, cut, most
from tpusim.machines.tpu.slices.exchange import Exchange, ExchangeStep, MovedPiece, OperandRange, ResultRanges, Way
from tpusim.machines.tpu.slices.torus import Group, Place

_MOST_MESSAGES = 4096
"""Most messages of all kinds of chips: copies are larger where there would be more, which moves the end by one of them.
"""


def exchanges(collective: Collective) -> Exchange:
    """An all-to-all: part by part, the same distance from every chip at a time."""
    group, elements, many = collective.group, collective.elements, collective.group.size
    size = most(elements, many)
    few = max(1, _MOST_MESSAGES // (many * len(group.kinds)))
    copies = min(few, most(size, max(1, collective.emitters.dma_bytes // collective.element_bytes)))

    def piece(place: Place, offset: tuple[int, ...], copy: int) -> MovedPiece:
        to, sender = group.rank(_other(place, group, offset, 1)), group.rank(place)
        own = cut(0, elements, many, to)
        start, stop = cut(*own, copies, copy)
        there = elements + sender * (own[1] - own[0]) + start - own[0]
        return MovedPiece(start, stop, there)

    offsets = [*product(*map(range, group.lengths))]
    ways = {offset: _way(group, offset) for offset in offsets}
    steps = [
        ExchangeStep(
            ways[offset], most(size, copies), False, (), partial(piece, offset=offset, copy=copy), _label(offset)
        )
        for copy in range(copies)
        for offset in offsets
    ]

    def leaves(rank: int) -> list[tuple[int, int]]:
        own = cut(0, elements, many, rank)
        return [(elements, elements + many * (own[1] - own[0]))]

    return Exchange(group, steps, elements + many * size, lambda _: (0, elements, 0), leaves)


def _label(offset: tuple[int, ...]) -> str:
    return f"copy to {', '.join(f'+{each}' for each in offset)}"


def _other(place: Place, group: Group, offset: tuple[int, ...], sign: int) -> Place:
    indexes = [
        (group.index(place, span) + sign * each) % span.many for span, each in zip(group.spans, offset, strict=True)
    ]
    return group.member(place, indexes)


def _way(group: Group, offset: tuple[int, ...]) -> Way:
    return Way(
        partial(_other, group=group, offset=offset, sign=1),
        partial(_other, group=group, offset=offset, sign=-1),
        lambda place: group.torus.between(place, _other(place, group, offset, 1)),
    )


def shifts(collective: Collective) -> Exchange:
    """A permute: every chip copies its operand to the next on the ring through the group, chunk behind chunk."""
    ring, elements = ring_through(collective.group), collective.elements
    copies = collective.passes(elements)

    def piece(_: Place, copy: int) -> MovedPiece:
        start, stop = cut(0, elements, copies, copy)
        return MovedPiece(start, stop, elements + start)

    steps = [
        ExchangeStep(ring.ways[1], most(elements, copies), False, (), partial(piece, copy=copy), f"chunk {copy + 1}")
        for copy in range(copies)
    ]
    whole = (elements, 2 * elements)
    # Ranks are counted along the ring.
    order = None if ring.group is not collective.group else tuple(map(ring.order.index, range(ring.group.size)))
    holds: OperandRange = lambda _: (0, elements, 0)  # noqa: E731 - as what it stands for
    leaves: ResultRanges = lambda _: [whole]  # noqa: E731
    return Exchange(ring.group, steps, 2 * elements, holds, leaves, order, ring.alike)
