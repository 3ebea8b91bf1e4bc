"""Places of chips on a torus, ways between them, and the groups of chips that take part in a collective together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

Place = tuple[int, ...]
"""A chip, by its position along each axis."""


class TorusAxis(NamedTuple):
    """An axis of a torus: its name, its chips, and whether the last has a link to the first.

    Along a `direct` axis every chip reaches any other at once, over one link out of it, as over the network between
    slices.
    """

    name: str
    length: int
    wraps: bool = False
    direct: bool = False


class Span(NamedTuple):
    """Chips along an axis that belong together: `many` of them, every `stride`-th."""

    axis: int
    stride: int
    many: int


class LinkPort(NamedTuple):
    """The link out of a chip along an axis, up (1) or down (-1)."""

    place: Place
    axis: int
    way: int


@dataclass(frozen=True)
class Torus:
    """Axes with links between neighbours."""

    axes: tuple[TorusAxis, ...]

    @property
    def places(self) -> Iterator[Place]:
        """Every chip, the last axis fastest."""
        return product(*(range(axis.length) for axis in self.axes))

    @property
    def ports(self) -> Iterator[LinkPort]:
        """Every link, by the chip that it leaves."""
        for place in self.places:
            for number, axis in enumerate(self.axes):
                for way in (1,) if axis.direct else (1, -1):
                    if axis.length > 1 and (axis.wraps or axis.direct or 0 <= place[number] + way < axis.length):
                        yield LinkPort(place, number, way)

    def along(self, place: Place, axis: int, steps: int) -> tuple[LinkPort, ...]:
        """The links from a chip over `steps` neighbours (down where negative), past the end of an axis that wraps."""
        if steps == 0:
            return ()
        if self.axes[axis].direct:
            return (LinkPort(place, axis, 1),)
        way, found = (1 if steps > 0 else -1), []
        for _ in range(abs(steps)):
            found.append(LinkPort(place, axis, way))
            place = self._moved(place, axis, place[axis] + way)
        return tuple(found)

    def between(self, first: Place, last: Place) -> tuple[LinkPort, ...]:
        """The links of the shortest way, axis by axis; up, where both ways round are equally long."""
        found: list[LinkPort] = []
        for number, axis in enumerate(self.axes):
            steps = last[number] - first[number]
            if axis.wraps and abs(steps) * 2 > axis.length:
                steps -= int(math.copysign(axis.length, steps))
            if axis.wraps and abs(steps) * 2 == axis.length:
                steps = abs(steps)
            found += self.along(first, number, steps)
            first = self._moved(first, number, last[number])
        return tuple(found)

    def _moved(self, place: Place, axis: int, to: int) -> Place:
        return (*place[:axis], to % self.axes[axis].length, *place[axis + 1 :])


@dataclass(frozen=True)
class Group:
    """The chips of a torus that take part in a collective together: those of some spans, and as many such groups as the
    torus has, all at once.
    """

    torus: Torus
    spans: tuple[Span, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Chips along each span."""
        return tuple(span.many for span in self.spans)

    @property
    def size(self) -> int:
        """Chips of a group."""
        return math.prod(self.lengths)

    @property
    def is_whole(self) -> bool:
        """Whether all chips of the torus are in one group."""
        return self.size == math.prod(axis.length for axis in self.torus.axes)

    @property
    def joins_slices(self) -> bool:
        """Whether it goes along a direct axis."""
        return any(self.torus.axes[span.axis].direct for span in self.spans)

    @property
    def leaves_slices(self) -> bool:
        """Whether it goes along axes with links between neighbours, and along a direct one, too."""
        return len({self.torus.axes[span.axis].direct for span in self.spans}) > 1

    def closed(self, span: Span) -> bool:
        """Whether a span goes round an axis that wraps, or along one on which all are neighbours."""
        axis = self.torus.axes[span.axis]
        return axis.direct or (axis.wraps and span.stride * span.many == axis.length)

    def index(self, place: Place, span: Span) -> int:
        """Number of a chip along a span."""
        return place[span.axis] // span.stride % span.many

    def rank(self, place: Place) -> int:
        """Number of a chip in its group, the last span fastest."""
        found = 0
        for span in self.spans:
            found = found * span.many + self.index(place, span)
        return found

    def member(self, place: Place, indexes: Sequence[int]) -> Place:
        """The chip of the same group with these numbers along the spans."""
        found = [*place]
        for span, index in zip(self.spans, indexes, strict=True):
            found[span.axis] += (index - self.index(place, span)) * span.stride
        return tuple(found)

    def members(self, place: Place) -> list[Place]:
        """The group of a chip, in the order of its ranks."""
        return [self.member(place, each) for each in product(*map(range, self.lengths))]

    def next(self, place: Place, span: Span, way: int) -> Place:
        """The chip that follows in the ring of a span; behind the last comes the first."""
        step = (self.index(place, span) + way) % span.many - self.index(place, span)
        return (*place[: span.axis], place[span.axis] + step * span.stride, *place[span.axis + 1 :])

    def hop(self, place: Place, span: Span, way: int) -> tuple[LinkPort, ...]:
        """The links to that chip: of a line without wrap the last hop runs back over the line."""
        if self.closed(span):
            return self.torus.along(place, span.axis, way * span.stride)
        return self.torus.along(place, span.axis, self.next(place, span, way)[span.axis] - place[span.axis])

    def kind(self, place: Place) -> Place:
        """The chip that stands for all that stand alike: along closed spans and axes without a span the first, along
        others the one of the same number in the first part of the axis.
        """
        return tuple(position % period for position, period in zip(place, self._periods, strict=True))

    @cached_property
    def kinds(self) -> tuple[Place, ...]:
        """One chip of each kind."""
        return tuple(product(*map(range, self._periods)))

    @cached_property
    def sharing(self) -> tuple[Place, ...]:
        """The chips whose groups may use the same links: all along the axes of the spans."""
        spanned = {span.axis for span in self.spans}
        sides = [axis.length if number in spanned else 1 for number, axis in enumerate(self.torus.axes)]
        return tuple(product(*map(range, sides)))

    @cached_property
    def _periods(self) -> tuple[int, ...]:
        """Along each axis the chips after which they stand alike again."""
        found = [1] * len(self.torus.axes)
        for span in self.spans:
            if not self.closed(span):
                found[span.axis] = max(found[span.axis], span.stride * span.many)
        return tuple(found)

    def cycle(self, place: Place) -> list[Place]:
        """The group of a chip in the order of a ring through all of it: from neighbour to neighbour, and from the last
        to the first where there is such a way round.
        """
        order: list[tuple[int, ...]] = [()]
        spans = sorted(range(len(self.spans)), key=lambda number: -(self.lengths[number] % 2 == 0))
        for turn, number in enumerate(spans):
            count, last = self.lengths[number], turn == len(spans) - 1
            order = (
                _round(order, count) if last and turn and len(order) % 2 == 0 and count > 1 else _snake(order, count)
            )
        indexes = [[dict(zip(spans, each, strict=True))[n] for n in range(len(spans))] for each in order]
        return [self.member(place, each) for each in indexes]


def _snake(order: list[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    """A way through all, row after row, to and fro."""
    return [
        (*each, column)
        for row, each in enumerate(order)
        for column in (range(count) if row % 2 == 0 else reversed(range(count)))
    ]


def _round(order: list[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    """A way round through all of an even number of rows: through all columns but the first, and back along that."""
    there = [
        (*each, column)
        for row, each in enumerate(order)
        for column in (range(1, count) if row % 2 == 0 else reversed(range(1, count)))
    ]
    return [*there, *((*each, 0) for each in reversed(order))]
