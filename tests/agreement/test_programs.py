"""Programs written by hand, with what a Program may hold and our lowering never asks for: the engines agree on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.agreement.engines import agreed_timing, clocked
from tests.rules import rule
from tests.strategies import machine
from tpusim.base.errors import CheckFailed
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.program.addresses import (
    PADDING,
    AddressPattern,
    AddressTable,
    Counter,
    Counters,
    Feed,
    LaneGroup,
)
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Fill, Part, Spill
from tpusim.machines.tpu.runs.prepared import transformation_cycles
from tpusim.reference import Tensor as Values

CHANNEL, ROW, COL, IMAGE = range(4)
HARDWARE = machine(4, 4, word_elements=2)
IFMAP, FILTER, OFMAP = Tensor("ifmap", (4, 3, 6, 8)), Tensor("filter", (4, 4)), Tensor("ofmap", (4, 6, 7, 8))
RANDOM = np.random.default_rng(0)
OPERANDS = {each.name: RANDOM.integers(1, 9, each.shape).astype(np.float32) for each in (IFMAP, FILTER)}
PIXEL = Part(0, (0,), (Along(CHANNEL, range(4)),), (Along(IMAGE, range(8)),), 2)
"""The eight images of pixel 0, 0: four words in each of four lanes."""
WEIGHTS = Part(4, (0,), (Along(0, range(4)),), (Along(1, range(4)),), 2)
INTO, BESIDE = 6, 10
"""Words for the results of two passes."""
ALL = Counters(0, (Counter(4, 0, 1, 4, 1),))
"""The four words one after another."""


def feed(*groups: tuple[int, int], pattern: AddressPattern = ALL) -> Feed:
    """(first lane, lanes), all with one pattern."""
    return Feed(tuple(LaneGroup(first, lanes, pattern) for first, lanes in groups))


def program(*, fill: Part = PIXEL, reads: Feed | None = None, spill: Part = PIXEL) -> Program:
    """Two passes over the same words: every lane reads the first, the second is read as `reads` says and spilled."""
    steps: tuple[Step, ...] = (
        Fill((), IFMAP, (fill,), 128),
        Fill((), FILTER, (WEIGHTS,), 64),
        Preload((1,), WEIGHTS.base, 2, 4, 4),
        Stream((0,), 2, feed((0, 4)), INTO, 4, 4, 4, False),
        Preload((1,), WEIGHTS.base, 2, 4, 4),
        Stream((0,), 4, reads or feed((0, 4)), BESIDE, 4, 4, 4, False),
        Spill((5,), OFMAP, (spill._replace(base=BESIDE),), 128),
    )
    buffers = Buffer("ifmap", 0, 4, 4), Buffer("filter", 4, 2, 4), Buffer("ofmap", 6, 8, 4)
    return Program((IFMAP, FILTER, OFMAP), buffers, steps, 2)


def change(index: int, **changes: Any) -> Program:
    """The Program with a step changed, or the only part of it."""
    sound = program()
    step = sound.rows[index]
    changed = replace(step, **changes) if hasattr(step, next(iter(changes))) else with_part(step, **changes)
    return replace(sound, rows=(*sound.rows[:index], changed, *sound.rows[index + 1 :]))


def with_part(step: Any, **changes: Any) -> Step:
    return replace(step, parts=(step.parts[0]._replace(**changes),))


def written(program: Program) -> Values:
    """The ofmap, which both engines that compute must agree on; and they take as long as the event engine says."""
    values = datapath.run(program, HARDWARE, OPERANDS)["ofmap"]
    _, registers = clocked(program, HARDWARE, OPERANDS)
    np.testing.assert_array_equal(registers["ofmap"], values)
    return values


def products(ifmap: Values) -> Values:
    """What the array makes of [channel, element]."""
    return OPERANDS["filter"][:, : len(ifmap)] @ ifmap


def spilled(values: Values, *place: Any) -> Values:
    """An ofmap that has `values` at `place` and was never written elsewhere."""
    ofmap = np.full(OFMAP.shape, np.nan, np.float32)
    ofmap[place] = values
    return ofmap


def test_the_program_itself() -> None:
    np.testing.assert_array_equal(written(program()), spilled(products(OPERANDS["ifmap"][:, 0, 0]), slice(4), 0, 0))


# ---- rows that nothing feeds


FED = {
    "the last": [(0, 3)],
    "the first": [(1, 3)],
    "between": [(0, 1), (3, 1)],
    "two, another pair fed twice": [(0, 2), (0, 2)],
    "one, another fed twice": [(0, 3), (2, 1)],
    "all but one": [(2, 1)],
    "none, but from the last to the first": [(2, 2), (0, 2)],
}


@pytest.mark.parametrize("groups", FED.values(), ids=FED)
def test_a_row_that_no_lane_group_feeds_gets_zeros(groups: list[tuple[int, int]]) -> None:
    """Not what stood there in the pass before."""
    rows = sorted({lane for first, lanes in groups for lane in range(first, first + lanes)})
    fed = np.zeros((4, 8), np.float32)
    fed[rows] = OPERANDS["ifmap"][rows, 0, 0]
    partly = program(reads=feed(*groups))
    values = datapath.run(partly, HARDWARE, OPERANDS)["ofmap"]
    np.testing.assert_array_equal(values[:, 0, 0], products(fed))
    np.testing.assert_array_equal(register.run(partly, HARDWARE, OPERANDS)[1]["ofmap"], values)


# ---- addresses


def test_a_table_of_addresses() -> None:
    """In any order, a word twice, and padding."""
    gathered = np.zeros((4, 4, 2), np.float32)
    gathered[:, [0, 1, 3]] = OPERANDS["ifmap"][:, 0, 0].reshape(4, 4, 2)[:, [3, 0, 3]]
    reads = feed((0, 4), pattern=AddressTable((3, 0, PADDING, 3)))
    np.testing.assert_array_equal(written(program(reads=reads))[:, 0, 0], products(gathered.reshape(4, 8)))


@pytest.mark.parametrize(("first", "stop"), [(0, 4), (1, 5), (3, 7), (5, 9), (2, 6), (8, 12)])
def test_counters_that_begin_and_end_anywhere(first: int, stop: int) -> None:
    """Within a row of three, with padding around: the words and the accesses of the same addresses one by one."""
    counters = Counter(4, -1, 1, 2, 2), Counter(3, -1, 2, 2, 1)
    rows = [[row * 2 + col if 0 <= row < 2 and 0 <= col < 2 else PADDING for col in (-1, 1, 3)] for row in range(-1, 3)]
    addresses = tuple(address for row in rows for address in row)[first:stop]
    window = Counters(0, counters, range(first, stop))
    by_window, by_table = (program(reads=feed((0, 4), pattern=each)) for each in (window, AddressTable(addresses)))
    np.testing.assert_array_equal(written(by_window), written(by_table))
    assert agreed_timing(by_window, HARDWARE) == agreed_timing(by_table, HARDWARE)


@pytest.mark.parametrize("base", [-9, 10**6])
def test_a_walk_that_is_all_padding_may_begin_anywhere(base: int) -> None:
    nowhere = Counters(base, (Counter(4, 4, 1, 4, 1),))
    assert (written(program(reads=feed((0, 4), pattern=nowhere)))[:, 0, 0] == 0).all()


def test_a_window_that_its_counters_do_not_have_is_refused() -> None:
    wrong = program(reads=feed((0, 4), pattern=ALL._replace(window=range(1, 5))))
    with pytest.raises(CheckFailed, match="walks positions that its counters do not have"):
        check_program(wrong, HARDWARE)


BELOW = {
    "counters": lambda by: change(5, reads=feed((0, 4), pattern=ALL._replace(base=-by))),
    "counters that go down": lambda by: change(
        5, reads=feed((0, 4), pattern=Counters(3 - by, (Counter(4, 0, 1, 4, -1),)))
    ),
    "results": lambda by: change(5, result_base=-by),
    "weights": lambda by: change(4, base=-by),
    "a fill": lambda by: change(0, base=-by),
    "a spill": lambda by: change(6, base=-by),
}


@pytest.mark.parametrize("engine", [datapath, register], ids=["data path", "register"])
@pytest.mark.parametrize("by", [1, 2])
@pytest.mark.parametrize("name", BELOW)
def test_a_word_below_the_first_is_refused(name: str, by: int, engine: Any) -> None:
    """-1 too, which a table has for padding."""
    with pytest.raises(CheckFailed, match=rf"words \[-{by}, |word -\d is outside"):
        engine.run(BELOW[name](by), HARDWARE, OPERANDS)


@pytest.mark.parametrize("engine", [datapath, register], ids=["data path", "register"])
@pytest.mark.parametrize("address", [-2, 14])
def test_a_table_names_words_that_exist(address: int, engine: Any) -> None:
    wrong = program(reads=feed((0, 4), pattern=AddressTable((0, 1, address, 3))))
    with pytest.raises(CheckFailed, match=rf"\[-2, |, 15\)|word {address} is outside"):
        engine.run(wrong, HARDWARE, OPERANDS)


# ---- parts of tensors


PLACES = {
    "every second row and column": (range(4), range(0, 4, 2), range(1, 5, 2), range(2)),
    "backwards": (range(3, -1, -1), range(5, 3, -1), range(6, -1, -6), range(7, 4, -2)),
    "tables": ((2, 0, 3, 1), (5, 0), (3, 6), (7, 1)),
    "a table beside ranges": (range(4), (4, 1), range(0, 4, 3), range(6, 8)),
    "an item a word": (range(4), range(0, 6, 5), (0, 2), (0, 3)),
    "no whole number of items a word": (range(4), (4,), (0, 6, 5, 1, 3, 2, 4), (2,)),
}


def place_of(name: str) -> tuple[Part, tuple[Any, ...]]:
    """A part of eight items a lane at most, and where NumPy finds it."""
    channels, rows, cols, images = PLACES[name]
    items = Along(ROW, rows), Along(COL, cols), Along(IMAGE, images)
    return Part(0, (0,), (Along(CHANNEL, channels),), items, 2), np.ix_(channels, rows, cols, images)


@pytest.mark.parametrize("name", PLACES)
def test_a_spill_goes_where_its_part_says(name: str) -> None:
    part, place = place_of(name)
    counts = tuple(map(len, PLACES[name]))
    values = products(OPERANDS["ifmap"][:, 0, 0])[:, : int(np.prod(counts[1:]))].reshape(counts)
    np.testing.assert_array_equal(written(program(spill=part)), spilled(values, *place))


@pytest.mark.parametrize("name", ["every second row and column", "tables"])
def test_a_fill_comes_from_where_its_part_says(name: str) -> None:
    """Rows and columns of the ifmap, which has fewer: what lies outside is zero."""
    part, place = place_of(name)
    wide = np.zeros((4, 6, 7, 8), np.float32)
    wide[:, :3, :6] = OPERANDS["ifmap"]
    whole = spilled(products(wide[place].reshape(4, 8)), slice(4), 0, 0)
    np.testing.assert_array_equal(written(program(fill=part)), whole)


def test_what_is_spilled_outside_its_tensor_is_lost() -> None:
    """The second of two rows and the first of two columns, two images each."""
    part = PIXEL._replace(items=(Along(ROW, (0, -1)), Along(COL, (7, 6)), Along(IMAGE, range(2))))
    values = products(OPERANDS["ifmap"][:, 0, 0]).reshape(4, 2, 2, 2)
    np.testing.assert_array_equal(written(program(spill=part)), spilled(values[:, 0, 1], slice(4), 0, 6, slice(2)))


DIAGONALS = {
    "channel and row": ((CHANNEL, range(4)), (ROW, range(4))),
    "channel, row backwards, column": ((CHANNEL, range(4)), (ROW, range(2, -2, -1)), (COL, range(0, 8, 2))),
    "by tables": ((ROW, (0, 2, 1, 0)), (CHANNEL, (3, 3, 0, 1)), (COL, (1, 5, 0, 2))),
    "one axis twice": ((CHANNEL, (0, 1, 1, 0)), (ROW, range(4)), (CHANNEL, range(0, 4))),
    "an axis of the items too": ((CHANNEL, range(4)), (IMAGE, range(4))),
}


def diagonal(name: str) -> tuple[Part, tuple[Values, ...]]:
    """Lanes that differ along several axes at once, with two columns of four images each; where NumPy finds them."""
    lane = tuple(Along(axis, coordinates) for axis, coordinates in DIAGONALS[name])
    place = [np.zeros((4, 2, 4), np.int64) for _ in range(4)]
    for axis, coordinates in lane:
        place[axis] += np.array(coordinates)[:, None, None]
    place[COL] += np.arange(2)[:, None]
    place[IMAGE] += np.arange(4)
    return Part(0, (0,), lane, (Along(COL, range(2)), Along(IMAGE, range(4))), 2), tuple(place)


@pytest.mark.parametrize("name", DIAGONALS)
def test_lanes_may_differ_along_several_axes(name: str) -> None:
    """Outside a tensor a fill finds zeros, and what is spilled is lost."""
    part, place = diagonal(name)

    def inside(shape: tuple[int, ...]) -> Any:
        return np.all([(at >= 0) & (at < size) for at, size in zip(place, shape, strict=True)], axis=0)

    there = inside(IFMAP.shape)
    values = np.zeros((4, 2, 4), np.float32)
    values[there] = OPERANDS["ifmap"][tuple(at[there] for at in place)]
    np.testing.assert_array_equal(written(program(fill=part))[:, 0, 0], products(values.reshape(4, 8)))
    there = inside(OFMAP.shape)
    results = products(OPERANDS["ifmap"][:, 0, 0]).reshape(4, 2, 4)
    spilled_there = spilled(results[there], *(at[there] for at in place))
    np.testing.assert_array_equal(written(program(spill=part)), spilled_there)


def test_lanes_that_are_counted_in_two_ways_are_refused() -> None:
    part = PIXEL._replace(lane=(Along(CHANNEL, range(4)), Along(ROW, range(3))))
    with pytest.raises(CheckFailed, match=r"step 0 .* counts its lanes in two ways"):
        check_program(program(fill=part), HARDWARE)


# ---- spills that find their words at addresses of their own


@rule("T114")
def test_a_spill_takes_each_lane_group_from_its_own_addresses() -> None:
    """Backwards with a word left out, and by a table with a word twice; padding is zero."""
    backwards = Counters(BESIDE + 2, (Counter(4, 0, 1, 3, -1),))
    groups = LaneGroup(0, 2, backwards), LaneGroup(2, 2, AddressTable((BESIDE + 3, PADDING, BESIDE, BESIDE)))
    words = products(OPERANDS["ifmap"][:, 0, 0]).reshape(4, 4, 2)
    taken = np.zeros((4, 4, 2), np.float32)
    taken[:2, :3] = words[:2, [2, 1, 0]]
    taken[2:, [0, 2, 3]] = words[2:, [3, 0, 0]]
    made = change(6, feed=Feed(groups))
    np.testing.assert_array_equal(written(made), spilled(taken.reshape(4, 8), slice(4), 0, 0))
    assert made.use.port_reads == program().use.port_reads - 4


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([(0, 3)], "other lanes than the 4"),
        ([(1, 3), (0, 1)], "other lanes than the 4"),
        ([(0, 4), (4, 1)], "other lanes than the 4"),
    ],
    ids=["too few", "out of order", "too many"],
)
def test_addresses_are_those_of_the_lanes_that_are_spilled(groups: list[tuple[int, int]], says: str) -> None:
    with pytest.raises(CheckFailed, match=says):
        check_program(change(6, feed=feed(*groups)), HARDWARE)


@rule("T114")
def test_only_spills_have_addresses_of_their_own_and_as_many_as_words() -> None:
    with pytest.raises(CheckFailed, match=r"step 0 .* has addresses for other lanes"):
        check_program(change(0, feed=feed((0, 4))), HARDWARE)
    with pytest.raises(CheckFailed, match="moves 4 words, and lane 0 reads 1"):
        check_program(change(6, feed=feed((0, 4), pattern=AddressTable((BESIDE,)))), HARDWARE)


# ---- tensors that are written and read again


@rule("T115")
def test_what_was_spilled_is_read_again() -> None:
    """The sums come back from HBM in other lanes, once the last lane's are there."""
    back = Fill((6,), OFMAP, (PIXEL._replace(lane=(Along(CHANNEL, range(3, -1, -1)),)),), 128)
    again = (back, Preload((1,), WEIGHTS.base, 2, 4, 4), Stream((7,), 8, feed((0, 4)), INTO, 4, 4, 4, False))
    out = Tensor("out", OFMAP.shape)
    sound = program()
    steps = (*sound.rows, *again, Spill((9,), out, (PIXEL._replace(base=INTO),), 128))
    made = replace(sound, tensors=(*sound.tensors, out), rows=steps)
    first = products(OPERANDS["ifmap"][:, 0, 0])
    expected = products(first[::-1])
    timing, registers = clocked(made, HARDWARE, OPERANDS)
    for values in (registers, datapath.run(made, HARDWARE, OPERANDS)):
        np.testing.assert_array_equal(values["out"][:, 0, 0], expected)
    moves = event.record(made, HARDWARE).log.moves
    assert moves[3]["ready"] == moves[2]["ended"] + HARDWARE.latency_cycles + HARDWARE.lanes - 1
    assert made.intermediates == {"ofmap"}
    assert transformation_cycles(made, timing) == timing.bus["ofmap spill"]


# ---- words that change between passes


OTHER = Tensor("other", FILTER.shape)
NEXT = PIXEL._replace(lane=(Along(CHANNEL, range(3, -1, -1)),))
"""The same pixel, its channels in other lanes."""
TWICE = {**OPERANDS, OTHER.name: RANDOM.integers(1, 9, OTHER.shape).astype(np.float32)}


def chained(*steps: Step) -> Values:
    """Results BESIDE after some steps, each of which waits for the step before it and for the two first fills."""
    fills = Fill((), IFMAP, (PIXEL,), 128), Fill((), FILTER, (WEIGHTS,), 64)
    spill = Spill((), OFMAP, (PIXEL._replace(base=BESIDE),), 128)
    waiting = tuple(replace(step, after=(number + 1,)) for number, step in enumerate((*steps, spill)))
    made = replace(program(), tensors=(IFMAP, FILTER, OTHER, OFMAP), rows=(*fills, *waiting))
    values = datapath.run(made, HARDWARE, TWICE)["ofmap"]
    timing, registers = register.run(made, HARDWARE, TWICE)
    np.testing.assert_array_equal(registers["ofmap"], values)
    assert timing == agreed_timing(made, HARDWARE)
    return values[:, 0, 0]


def preload() -> Preload:
    return Preload((), WEIGHTS.base, 2, 4, 4)


def stream(preload: int, into: int, *, first: int = 0, accumulate: bool = False) -> Stream:
    """A pass over four words from `first` on."""
    return Stream((), preload, feed((0, 4), pattern=ALL.moved(first)), into, 4, 4, 4, accumulate)


def test_weights_are_those_of_the_preload_whatever_comes_into_their_words_before_the_pass() -> None:
    refill = Fill((), OTHER, (WEIGHTS,), 64)
    values = chained(preload(), refill, stream(2, BESIDE))
    np.testing.assert_array_equal(values, products(OPERANDS["ifmap"][:, 0, 0]))


def test_a_pass_reads_what_came_into_the_words_that_the_pass_before_read() -> None:
    refill = Fill((), IFMAP, (NEXT,), 128)
    values = chained(preload(), stream(2, INTO), refill, preload(), stream(5, BESIDE))
    np.testing.assert_array_equal(values, products(OPERANDS["ifmap"][::-1, 0, 0]))


def test_passes_that_add_up_take_the_weights_that_came_after_those_before_them() -> None:
    def two(first: int, into: int) -> tuple[Step, ...]:
        return preload(), stream(first, into), preload(), stream(first + 2, into, accumulate=True)

    values = chained(*two(2, INTO), Fill((), OTHER, (WEIGHTS,), 64), *two(7, BESIDE))
    np.testing.assert_array_equal(values, 2 * TWICE["other"] @ OPERANDS["ifmap"][:, 0, 0])


def test_weights_that_wait_to_be_multiplied_are_not_those_that_come_meanwhile() -> None:
    refill = Fill((), OTHER, (WEIGHTS,), 64)
    values = chained(preload(), stream(2, BESIDE), refill, preload(), stream(5, BESIDE, accumulate=True))
    ifmap = OPERANDS["ifmap"][:, 0, 0]
    np.testing.assert_array_equal(values, products(ifmap) + TWICE["other"] @ ifmap)


def test_a_pass_reads_sums_that_were_made_anew() -> None:
    def chain(first: int) -> tuple[Step, ...]:
        """Sums, and beside them the products of the pixel and of the sums."""
        more = preload(), stream(first + 4, BESIDE, first=INTO, accumulate=True)
        return preload(), stream(first, INTO), preload(), stream(first + 2, BESIDE), *more

    values = chained(*chain(2), Fill((), OTHER, (WEIGHTS,), 64), *chain(9))
    once = TWICE["other"] @ OPERANDS["ifmap"][:, 0, 0]
    np.testing.assert_array_equal(values, once + TWICE["other"] @ once)


def test_a_pass_reads_sums_to_which_the_pass_before_added_what_it_read_there() -> None:
    own = preload(), stream(4, INTO, first=INTO, accumulate=True)
    values = chained(preload(), stream(2, INTO), *own, preload(), stream(6, BESIDE, first=INTO))
    once = products(OPERANDS["ifmap"][:, 0, 0])
    np.testing.assert_array_equal(values, products(once + products(once)))
