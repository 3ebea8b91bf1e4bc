"""Collectives: all engines agree to the cycle, and every element of every chip is what the definition says."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines.tpu.slices.collectives import CollectiveCase, random_case, random_rates, with_passes
from tests.strategies import cases
from tpusim.machines.tpu.slices import event, processes, register
from tpusim.machines.tpu.slices.algorithms.registry import ALGORITHMS, algorithms_for, exchange_of
from tpusim.machines.tpu.slices.collective import OPS, Collective, cut
from tpusim.machines.tpu.slices.exchange import Exchange, ExchangeLog, Messages, Rates, Way, messages_of
from tpusim.machines.tpu.slices.mesh_placement import torus_of
from tpusim.machines.tpu.slices.slice import Emitters, load_slice
from tpusim.machines.tpu.slices.summary import Question, timed_collective
from tpusim.machines.tpu.slices.timing import timed
from tpusim.machines.tpu.slices.torus import Group, Place, Span, Torus, TorusAxis
from tpusim.machines.tpu.slices.values import Memories, executed
from tpusim.reference.collectives import expected


def operands_of(exchange: Exchange, collective: Collective, seed: int) -> dict[Place, np.ndarray]:
    random = np.random.default_rng(seed)
    places = exchange.group.sharing
    return {place: random.integers(-8, 9, collective.elements).astype(float) for place in places}


def checked(
    exchange: Exchange, op: str, operands: dict[Place, np.ndarray], result: Callable[[Place], np.ndarray]
) -> int:
    """Compare every element of every chip; the number of chips."""
    group, seen = exchange.group, 0
    for first in (place for place in operands if group.rank(place) == 0):
        members = sorted(group.members(first), key=exchange.rank)
        wanted = expected(op, [operands[place] for place in members])
        for place, want in zip(members, wanted, strict=True):
            assert np.array_equal(result(place), want), place
            seen += 1
    return seen


def agree(case: CollectiveCase, seed: int) -> None:
    collective, algorithm, rates = case
    exchange = exchange_of(collective, algorithm)
    of_kinds = messages_of(exchange, rates, collective.element_bytes)
    every = messages_of(exchange, rates, collective.element_bytes, every=True)
    operands = operands_of(exchange, collective, seed)
    memories = Memories(exchange, operands)
    logs: list[ExchangeLog] = [event.run(every), processes.run(every), register.run(exchange, every, memories)]
    # The slowest of all chips, and every visit of every message.
    assert {event.run(of_kinds).cycles, *(log.cycles for log in logs)} == {logs[0].cycles}
    assert all(log.starts == logs[0].starts and log.ends == logs[0].ends for log in logs)
    results = executed(exchange, every, logs[0], operands)
    assert checked(exchange, collective.op, operands, results.__getitem__) == len(every.places)
    assert checked(exchange, collective.op, operands, memories.result) == len(every.places)


def test_engines_and_values_agree() -> None:
    """Of a few dozen; `scripts/prove slices` takes 2,000."""
    for seed in range(cases()):
        agree(random_case(seed), seed)


def test_the_cases_have_everything() -> None:
    """Every op by every algorithm, lines and rings, parts of axes, crossing groups, one chip for many, and all."""
    found = [random_case(seed) for seed in range(300)]
    assert {each.algorithm for each in found} == {*ALGORITHMS}
    assert {each.collective.op for each in found} == {*OPS}
    groups = [each.collective.group for each in found]
    assert {len(group.kinds) < len(group.sharing) for group in groups} == {True, False}
    assert any(span.stride > 1 for group in groups for span in group.spans)
    assert any(axis.direct for group in groups for axis in group.torus.axes)
    assert any(not exchange_of(each.collective, each.algorithm).alike for each in found)
    assert {group.size for group in groups} >= {2, 3, 4, 5, 6, 8, 9, 12, 15, 16}


def test_values_are_right_in_every_order_that_steps_allow() -> None:
    """What a step needs it waits for: nothing is right because something else happens to take longer."""
    for seed in range(cases(usual=40)):
        case = random_case(seed)
        exchange = exchange_of(case.collective, case.algorithm)
        every = messages_of(exchange, case.rates, case.collective.element_bytes, every=True)
        operands = operands_of(exchange, case.collective, seed)
        results = executed(exchange, every, any_order(exchange, every, Random(seed)), operands)
        assert checked(exchange, case.collective.op, operands, results.__getitem__) == len(every.places), seed


def any_order(exchange: Exchange, messages: Messages, random: Random) -> ExchangeLog:
    """A log in which one thing happens at a time, whichever can; what goes one way from a chip stays in order."""
    log = ExchangeLog([[0] for _ in messages.visits], [0] * len(messages.visits))
    missing, now = [len(each) for each in messages.after], 0
    ready = defaultdict[tuple[int, Way], deque[int]](deque)
    begun = defaultdict[tuple[int, Way], deque[int]](deque)

    def line(message: int) -> tuple[int, Way]:
        return message // messages.steps, exchange.steps[message % messages.steps].way

    for message, many in enumerate(missing):
        if not many:
            ready[line(message)].append(message)
    while lines := [queue for queue in (*ready.values(), *begun.values()) if queue]:
        now += 1
        picked = random.choice(lines)
        message = picked.popleft()
        if picked is ready[line(message)]:
            begun[line(message)].append(message)
            log.starts[message] = [now]
            continue
        log.ends[message] = now
        for waiter in messages.waiters[message]:
            missing[waiter] -= 1
            if not missing[waiter]:
                ready[line(waiter)].append(waiter)
    return log


def test_passes_that_repeat_are_left_out_without_a_change() -> None:
    left_out = 0
    for seed in range(cases(usual=40)):
        case = with_passes(random_case(seed), 24)
        few, whole = (timed(*case, whole=whole) for whole in (False, True))
        assert few.cycles == whole.cycles, seed
        held = [dict(zip(each.messages.servers, each.held, strict=True)) for each in (few, whole)]
        assert held[0] == held[1], seed
        left_out += few.left_out > 0
    assert left_out > 2


SMALL = Emitters(launch_ps=1, chunk_bytes=4, most_passes=16, dma_bytes=4)


def group_of(*sides: int, wraps: bool = True) -> Group:
    torus = Torus(tuple(TorusAxis("xyz"[at], side, wraps) for at, side in enumerate(sides)))
    return Group(torus, tuple(Span(at, 1, side) for at, side in enumerate(sides)))


def test_a_wrong_step_is_seen() -> None:
    """A message that goes astray leaves a chip with a wrong element."""
    collective = Collective("all_reduce", 12, 4, group_of(4), SMALL)
    exchange = exchange_of(collective, "rotated_pincer")
    rates = random_rates(Random(0), 1)
    every = messages_of(exchange, rates, 4, every=True)
    operands = {place: np.arange(12.0) + place[0] for place in every.places}
    log = event.run(every)
    # One that adds begins before what it adds to has come.
    late = next(number for number, before in enumerate(every.after) if before)
    log.starts[late][0] = 0
    with pytest.raises(AssertionError):
        checked(exchange, "all_reduce", operands, executed(exchange, every, log, operands).__getitem__)


@pytest.mark.parametrize(("sides", "op", "algorithm", "many"), [
    ((4,), "all_reduce", "rotated_pincer", 2 * 2 * 3), ((4, 4), "all_reduce", "rotated_pincer", 4 * 2 * 2 * 3),
    ((4, 4, 4), "all_reduce", "rotated_pincer", 6 * 2 * 3 * 3), ((4, 4), "all_gather", "gather_ring", 2 * 15),
    ((4,), "reduce_scatter", "scatter_ring", 2 * 3), ((4, 4), "all_to_all", "direct", 16),
])  # fmt: skip
def test_steps_are_those_of_the_rings(sides: tuple[int, ...], op: str, algorithm: str, many: int) -> None:
    """2k streams of k phases, each of n - 1 hops up and as many to join; of one pass."""
    emitters = SMALL.model_copy(update={"chunk_bytes": 2**20, "dma_bytes": 2**20})
    exchange = exchange_of(Collective(op, 256, 4, group_of(*sides), emitters), algorithm)
    assert len(exchange.steps) == many


def test_the_streams_of_a_pincer_begin_on_different_axes_and_use_every_link() -> None:
    collective = Collective("all_reduce", 96, 4, group_of(4, 4, 4), SMALL)
    exchange = exchange_of(collective, "rotated_pincer")
    first = {port for step in exchange.steps[:6] for port in step.way.ports((0, 0, 0))}
    assert len(first) == 6


def test_the_last_hop_of_a_line_runs_back_over_it() -> None:
    line, ring = group_of(4, wraps=False), group_of(4)
    for way, last in ((1, 3), (-1, 0)):
        assert [len(line.hop((at,), line.spans[0], way)) for at in range(4)] == [
            3 if at == last else 1 for at in range(4)
        ]
        assert all(len(ring.hop((at,), ring.spans[0], way)) == 1 for at in range(4))


def test_chips_that_stand_alike_take_alike() -> None:
    """One of a torus, as many as the line has, however many there are."""
    assert len(group_of(16, 16).kinds) == 1
    assert len(group_of(8, 8, wraps=False).kinds) == 64
    torus = Torus((TorusAxis("x", 8), TorusAxis("y", 16, wraps=True)))
    assert len(Group(torus, (Span(0, 1, 8), Span(1, 1, 16))).kinds) == 8
    # Pairs along a ring are lines of two, and every other chip of a ring is a ring.
    assert len(Group(torus, (Span(1, 1, 2),)).kinds) == 2
    assert len(Group(torus, (Span(1, 2, 8),)).kinds) == 1


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_of_a_range_cover_it(parts: int) -> None:
    ranges = [cut(3, 20, parts, part) for part in range(parts)]
    assert ranges[0][0] == 3
    assert ranges[-1][1] == 20
    assert all(before[1] == behind[0] for before, behind in pairwise(ranges))


RATES = Rates(launch=5, link=(Fraction(4),), hop=(3,), memory=Fraction(16), latency=2, adds=Fraction(8))
"""Words of 4 bytes: a link carries one in a cycle, memory moves four."""


@pytest.mark.parametrize(("sides", "wraps", "op", "elements", "cycles"), [
    # Read from 5 on, on the link 2 later, which takes 4; there after a hop of 3, and stored in 1.
    ((3,), True, "permute", 4, 5 + 2 + 4 + 3 + 1),
    # The last chip's way back has two links, of which the second begins a hop behind the first.
    ((3,), False, "permute", 4, 5 + 2 + 3 + 4 + 3 + 1),
    # Two hops each way round, 2 + 1 + 3 to arrive, 3 to add: up begins at 5, and again at 15, where its read has waited
    # a cycle for the sum of the other way; down is a cycle behind both times, as memory serves one at a time.
    ((3,), True, "reduce_scatter", 6, 5 + 9 + 1 + 9 + 1),
])  # fmt: skip
def test_cycles_are_those_that_anybody_counts(
    sides: tuple[int, ...], wraps: bool, op: str, elements: int, cycles: int
) -> None:
    emitters = Emitters(launch_ps=1, chunk_bytes=64, most_passes=16, dma_bytes=64, streams="apart", passes=2)
    collective = Collective(op, elements, 4, group_of(*sides, wraps=wraps), emitters)
    assert timed(collective, algorithms_for(op, collective.group)[-1], RATES).cycles == cycles


def test_a_long_message_takes_its_bytes_over_the_slowest_link() -> None:
    """Hops and launch aside: a gather brings all but its own part over two links, an all-reduce twice that."""
    emitters = Emitters(launch_ps=1, chunk_bytes=4000, most_passes=16, dma_bytes=64, streams="apart", passes=4)
    rates = replace(RATES, memory=Fraction(10**6), adds=Fraction(10**6))
    for op, algorithm, times in (("all_gather", "gather_ring", 1), ("all_reduce", "rotated_pincer", 2)):
        collective = Collective(op, 80_000, 4, group_of(8), emitters)
        ideal = times * 80_000 * 7 / 8 / 2
        assert ideal < timed(collective, algorithm, rates).cycles < 1.05 * ideal


def test_a_message_visits_both_chips_and_what_is_between_them() -> None:
    """It is read at home; what is added is read there, too, and the sum is written: memory is held three times."""
    emitters = SMALL.model_copy(update={"chunk_bytes": 2**20})
    for op, there in (("permute", ["memory"]), ("reduce_scatter", ["memory", "adder", "memory"])):
        collective = Collective(op, 12, 4, group_of(3), emitters)
        messages = messages_of(exchange_of(collective, algorithms_for(op, collective.group)[-1]), RATES, 4, every=True)
        visited = [messages.servers[visit.server] for visit in messages.visits[0]]
        assert [each.unit for each in visited] == ["memory", "link", *there]
        assert [each.place for each in visited] == [(0,), (0,), *[(1,)] * len(there)]
        assert all(visit.holds > 0 for visits in messages.visits for visit in visits)


@pytest.mark.parametrize(("streams", "passes", "second", "next_pass"), [
    ("together", 1, (0, 1), (4, 5)), ("apart", 1, (0,), (4,)), ("apart", 2, (0,), ()), ("together", 2, (0, 1), ()),
])  # fmt: skip
def test_hops_wait_for_those_before(
    streams: str, passes: int, second: tuple[int, ...], next_pass: tuple[int, ...]
) -> None:
    """A gather of four chips has three hops of two streams: steps 0 and 1, 2 and 3, 4 and 5; then comes a pass."""
    emitters = SMALL.model_copy(update={"streams": streams, "passes": passes})
    steps = exchange_of(Collective("all_gather", 64, 4, group_of(4), emitters), "gather_ring").steps
    assert [steps[at].after for at in (0, 2, 6)] == [(), second, next_pass]
    if passes == 2:
        assert steps[12].after == steps[6].after + ((4, 5) if streams == "together" else (4,))


@pytest.mark.parametrize("algorithm", ["rotated_pincer", "short_pincer"])
def test_the_network_between_slices_carries_the_smallest_parts(algorithm: str) -> None:
    torus = Torus((TorusAxis("x", 4, wraps=True), TorusAxis("dcn", 2, wraps=True, direct=True)))
    group = Group(torus, (Span(0, 1, 4), Span(1, 1, 2)))
    emitters = SMALL.model_copy(update={"chunk_bytes": 2**20})
    exchange = exchange_of(Collective("all_reduce", 64, 4, group, emitters), algorithm)
    most = [max(step.elements for step in exchange.steps if step.way.ports((0, 0))[0].axis == axis) for axis in (0, 1)]
    assert most[0] >= 2 * most[1]


@given(
    slice_name=st.sampled_from(["v5e_2x2", "v6e_1x4", "v5e_4x4", "v7x_2x2x2", "v4_4x4x4", "v5e_16x16"]),
    joined=st.sampled_from([1, 2, 3]), network=st.sampled_from(["3 GB/s", "60 GB/s"]), op=st.sampled_from([*OPS]),
    size=st.integers(2**11, 2**24), more=st.integers(1, 2**20), passes=st.sampled_from([1, 4]), data=st.data(),
)  # fmt: skip
@settings(max_examples=cases(0.45), deadline=None)
def test_laws_of_time(
    slice_name: str, joined: int, network: str, op: str, size: int, more: int, passes: int, data: st.DataObject
) -> None:
    """Never below the closed form; one pass at a time, more bytes take hardly less, and no faster link or network, and
    no shorter hop, takes more than its place in queues may cost.

    Links, axes and slices in every mix: a ring through axes and the network between slices has the rates of both.
    """
    changes = [f"slices={joined}", f"interconnect.dcn.bandwidth={network}"]
    if passes > 1:
        changes += [f"interconnect.collectives.passes={passes}", "interconnect.collectives.streams=apart"]
    place = load_slice(slice_name, changes)
    names = [axis.name for axis in torus_of(place).axes if axis.length > 1]
    axes = tuple(data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1)))
    asked = Question(place, op, 2 * size, axes)
    # By one algorithm, as the compiler takes another for more bytes.
    asked = replace(asked, algorithm=data.draw(st.sampled_from(algorithms_for(op, asked.collective.group))))
    made = timed_collective(asked)
    assert made.seconds >= made.bound
    if passes > 1:
        # What meets at a memory in another order may end later.
        return
    # Parts that divide better among streams and chips may win back a little.
    assert timed_collective(replace(asked, size=2 * (size + more))).cycles >= 0.99 * made.cycles
    for change in ("link.bandwidth=90 TB/s", "link.hop=1 ps", "dcn.bandwidth=90 GB/s", "collectives.launch=1 ps"):
        easier = load_slice(slice_name, [*changes, f"interconnect.{change}"])
        # What comes sooner to a server may hold up what is wanted more: by less than a tenth.
        assert timed_collective(replace(asked, place=easier)).cycles <= 1.1 * made.cycles, change


@pytest.mark.parametrize("op", [*OPS])
def test_what_leaves_a_slice_takes_the_time_of_the_network(op: str) -> None:
    """Half of the bytes of a group of two slices are on the other side, or all where they go to a neighbour."""
    slow, fast = (
        timed_collective(Question(load_slice("v5e_16x16", ["slices=2", f"interconnect.dcn.bandwidth={rate}"]),
                                  op, 2**26, ("x", "dcn"))).seconds for rate in ("0.1 GB/s", "50 GB/s")
    )  # fmt: skip
    # At least what each of 16 chips of a slice has to get of the other, side by side.
    least = 2**26 * (1 if op == "permute" else 1 / 32) / 1e8
    assert slow > least
    assert slow > 5 * fast
