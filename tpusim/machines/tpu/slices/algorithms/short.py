"""The short variant of the rotated pincer, for few bytes: parts go straight to where they are added.

An axis takes two steps, in which parts cross as many links as they are apart, where rings take one of many small steps
after another. What that is in the compiler's code is not known beyond its name; this is ours. Parts of several chips
may be added to the same elements at once: each is one sum, as if the adder held them from its read to its write.
"""

from __future__ import annotations

from functools import partial

from tpusim.machines.tpu.slices.algorithms.ring import kept_and_left
from tpusim.machines.tpu.slices.algorithms.rotated_pincer import rotations
from tpusim.machines.tpu.slices.collective import Collective, cut, most
from tpusim.machines.tpu.slices.exchange import Exchange, ExchangeStep, MovedPiece, Way
from tpusim.machines.tpu.slices.torus import Group, Place, Span


def reduces(collective: Collective) -> Exchange:
    """An all-reduce of which each colour begins on another axis; else as the rotated pincer."""
    group, elements, orders = collective.group, collective.elements, rotations(collective.group)
    steps: list[ExchangeStep] = []

    def part(place: Place, colour: int, phase: int) -> tuple[int, int]:
        found = cut(0, elements, len(orders), colour)
        for span in orders[colour][:phase]:
            found = cut(*found, span.many, group.index(place, span))
        return found

    def piece(place: Place, colour: int, phase: int, offset: int, joins: bool) -> MovedPiece:
        span = orders[colour][phase]
        owner = (group.index(place, span) + offset * (not joins)) % span.many
        start, stop = cut(*part(place, colour, phase), span.many, owner)
        return MovedPiece(start, stop, start, None) if joins else MovedPiece(start, stop, None, start)

    phases = range(len(orders[0]))
    ways = {(span, offset): _way(group, span, offset) for span in group.spans for offset in range(1, span.many)}
    before: list[tuple[int, ...]] = [()] * len(orders)
    for phase, joins in [*((phase, False) for phase in phases), *((phase, True) for phase in reversed(phases))]:
        for colour, order in enumerate(orders):
            size, first = most(elements, len(orders)), len(steps)
            for each in order[: phase + 1]:
                size = most(size, each.many)
            name = group.torus.axes[order[phase].axis].name
            for offset in range(1, order[phase].many):
                made = partial(piece, colour=colour, phase=phase, offset=offset, joins=joins)
                label = f"{'join' if joins else 'add'} along {name}, +{offset}"
                steps.append(ExchangeStep(ways[order[phase], offset], size, not joins, before[colour], made, label))
            # A neighbour that is ahead says nothing of a chip's own sums, so the phases before count as well.
            before[colour] = (*before[colour], *range(first, len(steps)))
    return Exchange(group, steps, elements, *kept_and_left(collective))


def _way(group: Group, span: Span, offset: int) -> Way:
    return Way(
        partial(group.next, span=span, way=offset), partial(group.next, span=span, way=-offset),
        lambda place: group.torus.between(place, group.next(place, span, offset)),
    )  # fmt: skip
