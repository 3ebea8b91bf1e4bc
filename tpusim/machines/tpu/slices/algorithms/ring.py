"""Rings: parts go from neighbour to neighbour, both ways round at once, and are joined or added on the way.

One ring goes through all chips of a group, from neighbour to neighbour, whatever axes it has. Of a line without wrap
the last hop runs back over the line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tpusim.machines.tpu.slices.collective import Collective, cut, most
from tpusim.machines.tpu.slices.exchange import Exchange, ExchangeStep, MovedPiece, OperandRange, ResultRanges, Way
from tpusim.machines.tpu.slices.torus import Group, LinkPort, Place, Span, Torus, TorusAxis

WAYS = (1, -1)


def way_along(group: Group, span: Span, way: int) -> Way:
    """The way to the next chip along a span."""
    return Way(
        partial(group.next, span=span, way=way), partial(group.next, span=span, way=-way),
        partial(group.hop, span=span, way=way),
    )  # fmt: skip


class RingWalk:
    """The steps of all chips as they are written: hop after hop of some streams, pass after pass.

    A hop waits for the one before it of its stream, or of all streams where these go together; the first of a pass for
    the last of the pass before, or of an earlier one where several passes may be under way. All hops of a phase wait
    for the end of those before, too: what comes from a neighbour that is ahead says nothing of a chip's own sums.
    """

    def __init__(self, collective: Collective, streams: int, passes: int) -> None:
        emitters = collective.emitters
        self.steps: list[ExchangeStep] = []
        self.passes = passes
        self.turns = range(min(passes, collective.written or passes))
        self._under_way, self._together = emitters.passes, emitters.streams == "together"
        self._ends: list[list[tuple[int, ...]]] = []
        self._before: list[tuple[int, ...]] = [()] * streams
        self._now: list[tuple[int, ...]] = [()] * streams
        self._phases: list[tuple[int, ...]] = [()] * streams

    def hop(
        self, stream: int, way: Way, elements: int, adds: bool, piece: Callable[[Place], MovedPiece], label: str
    ) -> None:
        """Write the next hop of a stream."""
        waited = [*zip(self._before, self._phases, strict=True)]
        streams = waited if self._together else [waited[stream]]
        after = tuple(sorted({number for before, phases in streams for number in (*before, *phases)}))
        self._now[stream] = (len(self.steps),)
        self.steps.append(ExchangeStep(way, elements, adds, after, piece, label))

    def all_hopped(self) -> None:
        """End a hop of all streams: what comes next waits for it."""
        self._before = [*self._now]

    def phase_over(self) -> None:
        """End a phase of all streams."""
        self._phases = [phases + last for phases, last in zip(self._phases, self._now, strict=True)]

    def pass_over(self) -> None:
        """End a pass of all streams."""
        self._phases = [()] * len(self._now)
        self._ends.append(self._before)
        if len(self._ends) >= self._under_way:
            self._before = self._ends[-self._under_way]
        else:
            self._before = [()] * len(self._now)
        self._now = [*self._before]

    def exchange(
        self, group: Group, elements: int, holds: OperandRange, leaves: ResultRanges,
        order: tuple[int, ...] | None = None, alike: bool = True,
    ) -> Exchange:  # fmt: skip
        """Return the steps as an exchange."""
        return Exchange(group, self.steps, elements, holds, leaves, order, alike, self.passes, len(self.turns))


@dataclass(frozen=True, eq=False)
class ChipRing:
    """A ring through all chips of a group.

    Attributes:
        group: the chips, on the torus that carries the ring: a ring of its own, where no other group uses its links.
        order: rank of the chip at each position.
        position: position of a chip.
        ways: the way to the next chip, up and down.
        alike: whether chips of one kind stand alike on it.
    """

    group: Group
    order: tuple[int, ...]
    position: Callable[[Place], int]
    ways: Mapping[int, Way]
    alike: bool = True


def ring_through(group: Group) -> ChipRing:
    """Return the ring through a group: its own axis where it has one, else a way round through all."""
    order = tuple(range(group.size))
    if len(group.spans) <= 1:
        span = group.spans[0] if group.spans else Span(0, 1, 1)
        return ChipRing(
            group, order, partial(group.index, span=span), {way: way_along(group, span, way) for way in WAYS}
        )
    members = group.cycle((0,) * len(group.torus.axes))
    order = tuple(map(group.rank, members))
    if group.leaves_slices or any(span.stride > 1 for span in group.spans):
        # Links differ, or groups cross one another: the links are those of the torus, and no two chips stand alike.
        places = [group.members(place) for place in group.sharing if group.rank(place) == 0]
        return _crossing(group, order, [[each[rank] for rank in order] for each in places])
    last_hop = group.torus.between(members[-1], members[0])
    axis = TorusAxis("ring", group.size, wraps=len(last_hop) == 1 and group.size > 2)
    span = Span(0, 1, group.size)
    ring = Group(Torus((axis,)), (span,))
    return ChipRing(ring, order, partial(ring.index, span=span), {way: way_along(ring, span, way) for way in WAYS})


def _crossing(group: Group, order: tuple[int, ...], rings: Sequence[Sequence[Place]]) -> ChipRing:
    after = {way: {ring[at]: ring[(at + way) % len(ring)] for ring in rings for at in range(len(ring))} for way in WAYS}
    position = {place: at for ring in rings for at, place in enumerate(ring)}
    ways = {
        way: Way(after[way].__getitem__, after[-way].__getitem__, partial(_links, group.torus, after[way]))
        for way in WAYS
    }
    return ChipRing(group, order, position.__getitem__, ways, alike=False)


def _links(torus: Torus, after: Mapping[Place, Place], place: Place) -> tuple[LinkPort, ...]:
    return torus.between(place, after[place])


def kept_and_left(collective: Collective) -> tuple[OperandRange, ResultRanges]:
    """Where operands and results of an op stand in memory: a reduce-scatter keeps a chip's part of all that is added
    up, an all-gather begins with such parts.
    """
    whole, ranks = (0, collective.elements), collective.group.size

    def own(rank: int) -> tuple[int, int]:
        return cut(*whole, ranks, rank)

    holds: OperandRange = (
        (lambda rank: (*own(rank), own(rank)[0])) if collective.op == "all_gather" else (lambda _: (*whole, 0))
    )
    leaves: ResultRanges = (lambda rank: [own(rank)]) if collective.op == "reduce_scatter" else (lambda _: [whole])
    return holds, leaves


def joins(collective: Collective) -> Exchange:
    """An all-gather: each half of a chip's part goes round one way."""
    return _around(collective, gathers=True)


def adds_up(collective: Collective) -> Exchange:
    """A reduce-scatter: halves of the parts go round, one each way, and grow by every chip's operand."""
    return _around(collective, gathers=False)


def _around(collective: Collective, gathers: bool) -> Exchange:
    ring, many = ring_through(collective.group), collective.group.size
    half = most(most(collective.elements, many), 2)
    passes = collective.passes(half)
    walk = RingWalk(collective, len(WAYS), passes)

    def piece(place: Place, way: int, turn: int, hop: int) -> MovedPiece:
        # A part that is joined starts at its own chip; one that is added up ends there.
        number = (ring.position(place) - way * (hop + (not gathers))) % many
        own = cut(0, collective.elements, many, ring.order[number])
        start, stop = cut(*cut(*own, 2, WAYS.index(way)), passes, turn)
        return MovedPiece(start, stop, **{"stored" if gathers else "added": start})

    for turn in walk.turns:
        for hop in range(many - 1):
            for stream, way in enumerate(WAYS):
                made = partial(piece, way=way, turn=turn, hop=hop)
                walk.hop(
                    stream, ring.ways[way], most(half, passes), not gathers, made, f"pass {turn + 1}, hop {hop + 1}"
                )
            walk.all_hopped()
        walk.pass_over()

    ranks = ring.order if ring.group is not collective.group else None
    return walk.exchange(ring.group, collective.elements, *kept_and_left(collective), ranks, ring.alike)
