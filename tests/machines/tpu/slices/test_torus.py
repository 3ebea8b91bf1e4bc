"""Ways over a torus: the links of each step lead where its elements go, and there is no shorter way."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from random import Random

import pytest

from tests.machines.tpu.slices.collectives import random_case, random_group
from tests.strategies import cases
from tpusim.machines.tpu.slices.algorithms.registry import exchange_of
from tpusim.machines.tpu.slices.algorithms.ring import ring_through
from tpusim.machines.tpu.slices.torus import Group, LinkPort, Place, Span, Torus, TorusAxis


def ends_of(torus: Torus, port: LinkPort) -> list[Place]:
    """The chips that a link leads to: any other, where all along an axis are neighbours."""
    axis = torus.axes[port.axis]
    if axis.direct:
        positions = [*range(axis.length)]
    elif axis.wraps:
        positions = [(port.place[port.axis] + port.way) % axis.length]
    else:
        positions = [port.place[port.axis] + port.way]
    return [(*port.place[: port.axis], at, *port.place[port.axis + 1 :]) for at in positions if 0 <= at < axis.length]


def leads(torus: Torus, first: Place, last: Place, ports: tuple[LinkPort, ...]) -> bool:
    """Whether links that there are follow one another from a chip to another."""
    there = {*torus.ports}
    at = {first}
    for port in ports:
        if port not in there or port.place not in at:
            return False
        at = {*ends_of(torus, port)}
    return last in at


def distances(torus: Torus, first: Place) -> dict[Place, int]:
    """Links from a chip to every other, counted by going over all of them."""
    out: dict[Place, list[Place]] = {}
    for port in torus.ports:
        out.setdefault(port.place, []).extend(ends_of(torus, port))
    found, queue = {first: 0}, deque([first])
    while queue:
        here = queue.popleft()
        for place in out.get(here, []):
            if place not in found:
                found[place] = found[here] + 1
                queue.append(place)
    return found


def test_the_way_between_chips_is_the_shortest() -> None:
    for seed in range(cases(usual=40)):
        torus = random_group(Random(seed)).torus
        for first in torus.places:
            shortest = distances(torus, first)
            for last in torus.places:
                ports = torus.between(first, last)
                assert len(ports) == shortest[last], (torus, first, last)
                assert first == last or leads(torus, first, last, ports)


def test_the_links_of_a_step_lead_where_its_elements_go() -> None:
    """Values know nothing of links, and time knows nothing of values: both are told by a step, which may not lie."""
    for seed in range(cases(usual=60)):
        case = random_case(seed)
        exchange = exchange_of(case.collective, case.algorithm)
        torus = exchange.group.torus
        for way in {step.way for step in exchange.steps}:
            for place in exchange.group.sharing:
                to = way.to(place)
                assert way.origin(to) == place, seed
                assert to in exchange.group.members(place), seed
                assert to == place or leads(torus, place, to, way.ports(place)), (seed, place)


@pytest.mark.parametrize(
    "sides", [(2, 2), (2, 4), (4, 4), (3, 4), (4, 3), (3, 3), (2, 2, 2), (2, 3, 4), (3, 3, 2), (5, 1, 4)]
)
@pytest.mark.parametrize("wraps", [False, True])
def test_the_ring_through_several_axes_goes_from_neighbour_to_neighbour(sides: tuple[int, ...], wraps: bool) -> None:
    """It is simulated as a ring of its own, so that no engine would see a step that jumps."""
    torus = Torus(tuple(TorusAxis("xyz"[at], side, wraps and side > 2) for at, side in enumerate(sides)))
    group = Group(torus, tuple(Span(at, 1, side) for at, side in enumerate(sides) if side > 1))
    members, ring = group.cycle((0,) * len(sides)), ring_through(group)
    assert sorted(members) == [*torus.places]
    assert all(len(torus.between(*pair)) == 1 for pair in pairwise(members))
    assert ring.order == tuple(map(group.rank, members))
    assert ring.group.closed(ring.group.spans[0]) == (len(torus.between(members[-1], members[0])) == 1)
    if any(side % 2 == 0 for side in sides):
        assert len(torus.between(members[-1], members[0])) == 1


def test_a_ring_through_joined_slices_knows_which_links_are_slow() -> None:
    torus = Torus((TorusAxis("x", 4), TorusAxis("dcn", 2, wraps=True, direct=True)))
    ring = ring_through(Group(torus, (Span(0, 1, 4), Span(1, 1, 2))))
    ports = [port for place in torus.places for port in ring.ways[1].ports(place)]
    assert {torus.axes[port.axis].name for port in ports} == {"x", "dcn"}
