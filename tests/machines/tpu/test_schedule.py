"""Buffers and pieces: what each stage finds in its buffer, and when each piece is fetched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.machines.tpu.cut.blocks import even, growing
from tpusim.machines.tpu.lowering.indirect import loaded
from tpusim.machines.tpu.schedule.scheduler import Tenancy, spread
from tpusim.machines.tpu.schedule.units import beside

counts = st.integers(1, 60)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 4))
def test_every_stage_finds_its_key_in_the_buffer_of_its_load(wanted: list[int], buffers: int) -> None:
    """Walking over the stages with real buffers: what is there is never loaded, the oldest goes first."""
    uses = loaded(wanted, buffers)
    loads = [*dict.fromkeys(uses)]
    held: dict[int, Tenancy] = {}
    used: dict[int, int] = {}
    for stage, key in enumerate(wanted):
        for load in (each for each in loads if each.first == stage):
            assert key not in [each.key for each in held.values()]
            if load.base in held:
                assert len(held) == buffers
                assert held[load.base].first == min(each.first for each in held.values())
            assert (load.before.last if load.before else -1) == used.pop(load.base, -1)
            held[load.base] = load
        load = uses[stage]
        assert held[load.base] is load
        assert load.key == key
        used[load.base] = stage
    assert {load.base for load in loads} == set(range(min(buffers, len({*wanted}))))
    assert [load.first for load in loads] == sorted({load.first for load in loads})


@pytest.mark.parametrize(
    ("stage", "freed", "slots"),
    [(0, -1, [0]), (1, -1, [1]), (3, -1, [1, 2, 3]), (5, 1, [3, 4, 5]), (5, 3, [5]), (5, 4, [5])],
)
def test_a_load_may_come_once_its_buffer_is_free(stage: int, freed: int, slots: list[int]) -> None:
    """Slot j runs beside stage j - 1; a buffer that stage s frees can be filled beside stage s + 1."""
    assert [*beside(freed, stage, 0)] == slots


@given(counts, st.integers(0, 9), counts)
def test_pieces_are_spread_evenly_and_the_last_comes_last(pieces: int, first: int, length: int) -> None:
    slots = range(first, first + length)
    chosen = spread(pieces, slots)
    assert len(chosen) == pieces
    assert chosen == sorted(chosen)
    assert chosen[-1] == slots[-1]
    together = [chosen.count(slot) for slot in slots]
    assert max(together) - min(together) <= 1


@pytest.mark.parametrize(
    ("pieces", "slots", "chosen"), [(1, 4, [3]), (2, 4, [1, 3]), (3, 4, [0, 1, 3]), (4, 2, [0, 0, 1, 1])]
)
def test_pieces_by_hand(pieces: int, slots: int, chosen: list[int]) -> None:
    assert spread(pieces, range(slots)) == chosen


@given(counts, counts)
def test_growing_pieces_double_up_to_the_largest(count: int, largest: int) -> None:
    cuts = growing(count, largest)
    assert [at for cut in cuts for at in cut] == [*range(count)]
    sizes = [*map(len, cuts)]
    wanted = [min(largest, 2 ** max(0, number - 1)) for number in range(len(cuts))]
    assert all(size == least for size, least in zip(sizes[:-1], wanted, strict=False) if least < largest)
    assert max(sizes) <= largest
    assert sizes[:-1] == sorted(sizes[:-1])


@given(counts, counts)
def test_even_pieces_differ_by_one_at_most(count: int, pieces: int) -> None:
    cuts = even(count, pieces)
    assert [at for cut in cuts for at in cut] == [*range(count)]
    sizes = [*map(len, cuts)]
    assert max(sizes) - min(sizes) <= 1
    assert len(cuts) == min(count, pieces)
