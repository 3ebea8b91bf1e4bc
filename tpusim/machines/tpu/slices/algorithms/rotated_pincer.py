"""The rotated pincer: an all-reduce over k axes in k phases, by 2k streams that begin on different axes.

Each stream has a part of the elements and a direction. It adds up along its first axis, then along the next, until each
chip has its part of the sum, and joins the parts again, axis by axis in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tpusim.machines.tpu.slices.algorithms.ring import WAYS, RingWalk, kept_and_left, way_along
from tpusim.machines.tpu.slices.collective import Collective, cut, most
from tpusim.machines.tpu.slices.exchange import Exchange, ExchangeStep, MovedPiece, Way
from tpusim.machines.tpu.slices.torus import Group, Place, Span

Stream = tuple[tuple[Span, ...], int]
"""Axes in the order of a stream, and its direction."""


def rotations(group: Group) -> list[tuple[Span, ...]]:
    """The orders of the axes: each begins on another. The network between slices comes last in all of them, as the
    parts are smallest there.
    """
    spans = [span for span in group.spans if not group.torus.axes[span.axis].direct]
    slow = tuple(span for span in group.spans if span not in spans)
    return [(*spans[turn:], *spans[:turn], *slow) for turn in range(len(spans))] or [slow]


def reduces(collective: Collective) -> Exchange:
    """An all-reduce; a reduce-scatter is one of which a chip keeps its part, an all-gather one of padded parts."""
    streams = [(order, way) for way in WAYS for order in rotations(collective.group)]
    walk = _walk(collective, streams)
    return walk.exchange(collective.group, collective.elements, *kept_and_left(collective))


def _walk(collective: Collective, streams: Sequence[Stream]) -> RingWalk:
    group, elements = collective.group, collective.elements
    share = most(elements, len(streams))
    passes = max(collective.passes(share, order[0].many) for order, _ in streams)
    walk = RingWalk(collective, len(streams), passes)
    ways = {(span, way): way_along(group, span, way) for order, way in streams for span in order}

    def part(place: Place, stream: int, turn: int, phase: int) -> tuple[int, int]:
        """Return the elements that a chip's ring of a phase has to do with."""
        order, way = streams[stream]
        found = cut(*cut(0, elements, len(streams), stream), passes, turn)
        for span in order[:phase]:
            found = cut(*found, span.many, (group.index(place, span) + way) % span.many)
        return found

    def piece(place: Place, stream: int, turn: int, phase: int, hop: int, joins: bool) -> MovedPiece:
        order, way = streams[stream]
        span = order[phase]
        number = (group.index(place, span) + way * (joins - hop)) % span.many
        start, stop = cut(*part(place, stream, turn, phase), span.many, number)
        return MovedPiece(start, stop, start, None) if joins else MovedPiece(start, stop, None, start)

    hops = _hops(streams[0][0])
    for turn in walk.turns:
        for phase, hop, joins in hops:
            if hop == 0:
                walk.phase_over()
            for stream, (order, way) in enumerate(streams):
                span = order[phase]
                # Rings of other axes may be longer.
                if hop >= span.many - 1:
                    continue
                size = most(share, passes)
                for each in order[: phase + 1]:
                    size = most(size, each.many)
                made = partial(piece, stream=stream, turn=turn, phase=phase, hop=hop, joins=joins)
                name = group.torus.axes[span.axis].name
                label = f"pass {turn + 1}, {'join' if joins else 'add'} along {name}, hop {hop + 1}"
                walk.hop(stream, ways[span, way], size, not joins, made, label)
            walk.all_hopped()
        walk.pass_over()
    return walk


def _hops(spans: Sequence[Span]) -> list[tuple[int, int, bool]]:
    """Phases and hops in order, for the longest ring of any stream: adding up, then joining in reverse."""
    longest, phases = max(span.many for span in spans) - 1, range(len(spans))
    up = [(phase, hop, False) for phase in phases for hop in range(longest)]
    return up + [(phase, hop, True) for phase in reversed(phases) for hop in range(longest)]


# ---- for few bytes


def reduces_short(collective: Collective) -> Exchange:
    """The variant for few bytes, of which each colour begins on another axis; else as the rotated pincer.

    Parts go straight to where they are added. An axis takes two steps, in which parts cross as many links as they are
    apart, where rings take one of many small steps after another. What that is in the compiler's code is not known
    beyond its name; this is ours. Parts of several chips may be added to the same elements at once: each is one sum, as
    if the adder held them from its read to its write.
    """
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
