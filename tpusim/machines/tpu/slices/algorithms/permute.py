"""A permute: every chip copies its operand to the next on the ring through the group, chunk behind chunk."""

from __future__ import annotations

from functools import partial

from tpusim.machines.tpu.slices.algorithms.ring import ring_through
from tpusim.machines.tpu.slices.collective import Collective, cut, most
from tpusim.machines.tpu.slices.exchange import Exchange, ExchangeStep, MovedPiece, OperandRange, ResultRanges
from tpusim.machines.tpu.slices.torus import Place


def shifts(collective: Collective) -> Exchange:
    """A permute by one chip."""
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
