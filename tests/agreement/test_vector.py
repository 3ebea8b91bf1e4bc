"""Steps of the vector unit in Programs written by hand, with streams, preloads and transfers around them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.agreement.engines import agreed_timing, clocked
from tests.agreement.test_hazards import hazards
from tests.rules import rule
from tests.strategies import cases, machine, machines_of_all_kinds
from tpusim.base.errors import CheckFailed
from tpusim.machines.tpu import datapath, event
from tpusim.machines.tpu.definition import Body, beat_of, body_share
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.program.addresses import (
    PADDING,
    AddressPattern,
    AddressTable,
    BankFeed,
    Counter,
    Counters,
    ElementTable,
    Feed,
    LaneGroup,
    PickedWords,
)
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Buffer, Constant, DerivedTensor, Program
from tpusim.machines.tpu.program.steps import Preload, Scalars, Step, Stream, Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Fill, Part, Spill
from tpusim.machines.tpu.sections import Slots
from tpusim.reference import Tensor as Values

HARDWARE = machine(4, 4, word_elements=2)
WORDS = 4
"""Of every area: eight images of a pixel, two a word."""
IFMAP, FILTER = Tensor("ifmap", (4, 5, 5, 8)), Tensor("filter", (4, 4))
RANDOM = np.random.default_rng(0)
OPERANDS = {each.name: RANDOM.integers(-9, 9, each.shape).astype(np.float32) for each in (IFMAP, FILTER)}
ONE, TWO, WEIGHTS, INTO = 0, 4, 8, 10
ALL = Counters(0, (Counter(WORDS, 0, 1, WORDS, 1),))


def at(base: int, lanes: int = 4, pattern: AddressPattern = ALL) -> Feed:
    """The words from `base` on, of the first lanes."""
    moved = pattern._replace(base=pattern.base + base) if isinstance(pattern, Counters) else pattern
    return Feed((LaneGroup(0, lanes, moved),))


def pixel(base: int, row: int, lanes: int = 4) -> Part:
    """The eight images of a pixel of column 0."""
    return Part(base, (0,), (Along(0, range(lanes)),), (Along(1, (row,)), Along(2, (0,)), Along(3, range(8))), 2)


def program(*vectors: Vector, spilled: int = INTO) -> Program:
    """Two pixels and the weights come, the vector unit works, and one area goes out."""
    steps: list[Step] = [
        Fill((), IFMAP, (pixel(ONE, 0),), 128),
        Fill((), IFMAP, (pixel(TWO, 1),), 128),
        Fill((), FILTER, (Part(WEIGHTS, (0,), (Along(0, range(4)),), (Along(1, range(4)),), 2),), 64),
    ]
    steps += [replace(each, after=(0, 1, 2)) for each in vectors]
    ofmap = Tensor("ofmap", IFMAP.shape)
    steps.append(Spill((len(steps) - 1,), ofmap, (pixel(spilled, 0),), 128))
    return Program((IFMAP, FILTER, ofmap), (Buffer("ifmap", 0, 8, 4), Buffer("ofmap", 8, 10, 4)), tuple(steps), 2)


def outcome(program: Program, hardware: Hardware = HARDWARE) -> Values:
    """[lane, element] of what is spilled, on which all levels agree, as both engines do on the time."""
    values = datapath.run(program, hardware, OPERANDS)["ofmap"]
    _, registers = clocked(program, hardware, OPERANDS)
    np.testing.assert_array_equal(registers["ofmap"], values)
    return values[:, 0, 0]


def multiply_add(*operands: Feed, scalars: int = 2, **more: Any) -> Vector:
    held = Scalars(WEIGHTS, -(-scalars // 2), scalars)
    return Vector((), "multiply_add", operands, at(INTO), WORDS, held, **more)


FIRST, SECOND = OPERANDS["ifmap"][:, 0, 0], OPERANDS["ifmap"][:, 1, 0]
FACTORS = OPERANDS["filter"]


# ---- what it computes


@rule("T60")
def test_operands_are_multiplied_by_the_scalars_of_their_lane() -> None:
    values = outcome(program(multiply_add(at(ONE), at(TWO))))
    np.testing.assert_array_equal(values, FIRST * FACTORS[:, :1] + SECOND * FACTORS[:, 1:2])


@rule("T63")
def test_operands_beyond_the_scalars_are_added() -> None:
    """The sums so far among them, which are read and written in turn."""
    first = multiply_add(at(ONE), at(TWO))
    values = outcome(program(first, multiply_add(at(ONE), at(INTO), scalars=1)))
    np.testing.assert_array_equal(values, FIRST * FACTORS[:, :1] * 2 + SECOND * FACTORS[:, 1:2])


@rule("T60")
def test_a_linear_combination() -> None:
    step = Vector((), "combine", (at(ONE), at(TWO), at(ONE)), at(INTO), WORDS, coefficients=(0.5, -1.0, 4.0))
    np.testing.assert_array_equal(outcome(program(step)), FIRST * 4.5 - SECOND)


@rule("T60")
def test_a_maximum() -> None:
    step = Vector((), "maximum", (at(ONE), at(TWO)), at(INTO), WORDS)
    np.testing.assert_array_equal(outcome(program(step)), np.maximum(FIRST, SECOND))


def test_padding_and_lanes_that_nothing_feeds_are_zero() -> None:
    shifted = Counters(ONE, (Counter(WORDS, -1, 1, WORDS, 1),))
    step = Vector((), "combine", (at(0, pattern=shifted), at(TWO, 2)), at(INTO), WORDS, coefficients=(1.0, 1.0))
    expected = np.zeros((4, 8))
    expected[:, 2:] = FIRST[:, :-2]
    expected[:2] += SECOND[:2]
    np.testing.assert_array_equal(outcome(program(step)), expected)


def test_results_go_where_their_addresses_say() -> None:
    """Backwards, and one nowhere, which keeps what was there before."""
    before = Vector((), "maximum", (at(TWO),), at(INTO), WORDS)
    there = at(0, pattern=AddressTable((INTO + 3, PADDING, INTO + 1, INTO)))
    values = outcome(program(before, Vector((), "maximum", (at(ONE),), there, WORDS))).reshape(4, 4, 2)
    words = FIRST.reshape(4, 4, 2)
    np.testing.assert_array_equal(values[:, [3, 1, 0]], words[:, [0, 2, 3]])
    np.testing.assert_array_equal(values[:, 2], SECOND.reshape(4, 4, 2)[:, 2])


# ---- what it picks, element by element

TABLES = WEIGHTS + 10
"""Where pointers stand: two operands of two elements are four pointers, and four of 2 B fill a word of 8 B."""
NUMBERS = RANDOM.integers(0, 8, (WORDS, 2, 2))
"""The word that each element is picked from: [result word, operand, element]."""


def picked(made: Program, numbers: Any = NUMBERS, per_word: int = 4) -> Program:
    """The Program, with pointers brought to it, the first three of which lead nowhere."""
    each = 2 * np.array(numbers)
    each.reshape(-1)[:3] = 1
    table = Tensor("pointers", (1, each.size), number_bytes=2)
    part = Part(TABLES, (0,), (Along(0, range(1)),), (Along(1, range(each.size)),), per_word)
    steps = [Fill((), table, (part,), 64)]
    steps += [replace(step, after=(0, *(other + 1 for other in step.after))) for step in made.rows]
    constant = Constant("pointers", each.astype(np.int32).tobytes())
    tensors, buffers = (*made.tensors, table), (*made.buffers, Buffer("pointers", TABLES, 8, 1))
    return replace(made, tensors=tensors, buffers=buffers, rows=tuple(steps), constants=(constant,))


def picks(operand: int, per_word: int = 4, lanes: tuple[int, int] = (0, 4)) -> Feed:
    table = ElementTable(TABLES, WORDS, 2, 2, 1, per_word)
    stored = int((np.arange(16).reshape(WORDS, 2, 2)[:, operand] > 2).sum())
    return Feed((LaneGroup(*lanes, PickedWords(table, operand, 0, ONE, stored)),))


def other(feed: Feed, **changes: Any) -> Feed:
    (group,) = feed.groups
    return Feed((group._replace(pattern=group.pattern._replace(**changes)),))


def chosen(operand: int) -> Values:
    """[lane, word, element] of what is picked."""
    words = np.concatenate([FIRST, SECOND], axis=1).reshape(4, 2 * WORDS, 2)
    each = words[:, NUMBERS[:, operand], np.arange(2)]
    return each * (np.arange(16).reshape(WORDS, 2, 2)[:, operand] > 2)


@rule("T73")
@pytest.mark.parametrize("per_word", [4, 3])
def test_elements_are_picked_by_pointers(per_word: int) -> None:
    """Where three fill a word, the pointers of a result take two words, of which the second has one."""
    numbers = NUMBERS if per_word == 4 else np.pad(NUMBERS.reshape(WORDS, 4), ((0, 0), (0, 2)))
    step = Vector((), "sum_of_products", (picks(0, per_word), at(TWO), picks(1, per_word), at(TWO)), at(INTO), WORDS)
    made = picked(program(step), numbers, per_word)
    expected = (chosen(0) + chosen(1)) * SECOND.reshape(4, WORDS, 2)
    np.testing.assert_array_equal(outcome(made).reshape(4, WORDS, 2), expected)
    pointers = 1 if per_word == 4 else 2
    (step,) = made.vectors
    assert step.reads == pointers + 2 + 1 + 2 + 1
    assert step.beat(2, HARDWARE).period == step.reads + 1
    # Of 16 elements in four lanes the first three are padding, and only lane 0 reads pointers.
    assert step.use.port_reads == WORDS * pointers + 4 * (16 - 3) + 2 * 4 * WORDS


@pytest.mark.parametrize(
    ("says", "operands"),
    [
        ("picks by pointer 1 of operand 0", (other(picks(0), which=1), at(TWO))),
        ("picks by pointer 0 of operand 2", (other(picks(0), operand=2), at(TWO))),
        ("picks by several tables", (picks(0), other(picks(1), table=ElementTable(0, WORDS, 2, 2, 1, 4)))),
        ("moves 4 words, and lane 0 reads 5", (other(picks(0), table=ElementTable(TABLES, 5, 2, 2, 1, 4)), at(TWO))),
        ("picks elements in some lanes", (Feed((*at(TWO, 2).groups, *picks(0, lanes=(2, 2)).groups)), at(0))),
        ("to sum_of_products 1 operands", (picks(0),)),
    ],
)  # fmt: skip
def test_what_cannot_be_picked_is_refused(says: str, operands: tuple[Feed, ...]) -> None:
    step = Vector((), "sum_of_products", operands, at(INTO), WORDS)
    with pytest.raises(CheckFailed, match=says):
        check_program(picked(program(step)), HARDWARE)


# ---- numbers that float32 does not hold, and tensors that are made of others


@pytest.mark.long
def test_what_float32_would_round_is_exact_in_doubles() -> None:
    step = Vector((), "combine", (at(ONE), at(TWO)), at(INTO), WORDS, coefficients=(2.0**26, 1.0))
    values = outcome(replace(program(step), doubles=True))
    np.testing.assert_array_equal(values, FIRST.astype(np.float64) * 2**26 + SECOND)
    assert (outcome(program(step)) != values).any()


def test_spills_divide_what_is_larger_on_chip() -> None:
    step = Vector((), "combine", (at(ONE),), at(INTO), WORDS, coefficients=(9.0,))
    made = program(step)
    *steps, spill = made.rows
    assert isinstance(spill, Spill)
    ofmap = replace(spill.tensor, scale=9)
    tensors = (*made.tensors[:2], ofmap)
    made = replace(made, tensors=tensors, rows=(*steps, replace(spill, tensor=ofmap)))
    np.testing.assert_array_equal(outcome(made), FIRST)


def test_an_operand_is_made_of_another() -> None:
    made = replace(program(multiply_add(at(ONE), scalars=1)), derived=(DerivedTensor("filter", "filter", np.negative),))
    np.testing.assert_array_equal(outcome(made), -FIRST * FACTORS[:, :1])


# ---- how long it takes


@rule("T64", "T72")
@pytest.mark.parametrize(
    ("alus", "reads", "period", "delay"),
    [(1000, 2, 3, 5), (8, 2, 3, 5), (4, 2, 6, 8), (1000, 1, 2, 3), (8, 3, 4, 7), (4, 3, 8, 11)],
)
def test_the_beat(alus: int, reads: int, period: int, delay: int) -> None:
    """Of 3, 1 and 4 operations for each of 2 x 4 elements; the write takes the first slot behind the work."""
    hardware = machine(4, 4, word_elements=2, alus=alus)
    step = multiply_add(*[at(ONE)] * reads, scalars=reads if reads < 3 else 2)
    beat = step.beat(2, hardware)
    assert (beat.period, beat.result_delay) == (period, delay)
    made = program(step)
    outcome(made, hardware)
    (work,) = event.logged(made, hardware).works
    assert work["start"] == work["issued"] + 1 + step.scalars.words
    assert work["done"] == work["start"] + (WORDS - 1) * period + delay + 1
    units = agreed_timing(made, hardware).units
    assert units["systolic_array"]["vector_work"] == work["done"] - work["issued"]
    assert units["vector_unit"]["busy"] == WORDS * beat.work
    assert units["port"]["vector"] == step.scalars.words + WORDS * (reads + 1)


@rule("T64")
def test_words_may_take_longer_than_ports_and_alus() -> None:
    hardware = machine(4, 4, word_elements=2, alus=1000)
    slow = {"operand_cycles": "5/2", "result_cycles": 3}
    hardware = hardware.with_overrides({f"vector_unit.{name}": value for name, value in slow.items()})
    assert multiply_add(at(ONE), at(TWO)).beat(2, hardware).period == 8
    outcome(program(multiply_add(at(ONE), at(TWO))), hardware)


@rule("T65", "T66")
@pytest.mark.parametrize(
    ("slots", "period", "delay", "port"),
    [
        # A word in a turn: eight reads, and four writes, of which three are beside reads of later words.
        ({"loads": 1, "stores": 1, "registers": 1}, 2, 2, 8 + 1),
        # Three of four words in a turn, then the one that is left: 6 reads by 2 slots, 3 writes by 1; the second of two
        # operands is joined to the first 4 cycles later.
        ({"loads": 2, "stores": 1, "registers": 3, "latency": 4, "window": 6}, 4, 4, 3 + 1 + 3),
        # The same, and the step takes 3 cycles more, whatever its turns.
        ({"loads": 2, "stores": 1, "registers": 3, "latency": 4, "window": 6, "body": 3}, 4, 4, 3 + 1 + 3),
        # Three operands that two slots read in 1.5 cycles a word: two words take three.
        ({"loads": 2, "stores": 4, "registers": 2, "operands": 3}, 3, 3, 6 + 1),
        # All four words in a turn, whose operations take longer than 8 reads and 4 writes by 4 slots.
        ({"loads": 4, "stores": 4, "registers": 8}, 4, 4, 2 + 1),
        # Two registers of two words: eight reads, four writes.
        ({"loads": 1, "stores": 1, "registers": 2, "register_bytes": 16}, 4, 4, 4 + 2),
    ],
)
def test_slots_read_and_write_beside_one_another(slots: dict[str, int], period: int, delay: int, port: int) -> None:
    slots = dict(slots)
    more = {"body": slots.pop("body", 0)}
    operands = [at(ONE), at(TWO), at(ONE)][: slots.pop("operands", 2)]
    hardware = machine(
        4, 4, word_elements=2, alus=24, vector_unit={"slots": Slots(**{"lanes": 4, "register_bytes": 8, **slots})}
    )
    step = multiply_add(*operands, **more)
    beat = step.beat(2, hardware)
    assert (beat.period, beat.result_delay) == (period, delay)
    made = program(step)
    outcome(made, hardware)
    timing = agreed_timing(made, hardware)
    assert timing.units["vector_unit"]["busy"] == beat.turns(WORDS) * beat.work
    assert timing.units["port"]["vector"] == step.scalars.words + port


@rule("T67")
def test_narrow_operands_are_widened_and_results_narrowed() -> None:
    """8 multiplications and 4 additions a word and lane; with 2 x 2 + 1 more an element, 32 operations for 16 ALUs."""
    slots = Slots(loads=4, stores=4, lanes=4, register_bytes=8, registers=1)
    plain = machine(4, 4, word_elements=2, alus=16, vector_unit={"slots": slots})
    narrow = machine(4, 4, word_elements=2, alus=16, vector_unit={"slots": slots, "widen": 2, "narrow": 1})
    step = multiply_add(at(ONE), at(TWO))
    assert (step.beat(2, plain).work, step.beat(2, narrow).work) == (2, 4)
    outcome(program(step), narrow)


@rule("T66")
def test_a_share_of_the_operands_is_widened() -> None:
    """As above, with half of the operands: 8 multiplications, 4 additions, 8 for two of four operands, 4 to narrow."""
    slots = Slots(loads=4, stores=4, lanes=4, register_bytes=8, registers=1)
    narrow = machine(4, 4, word_elements=2, alus=8, vector_unit={"slots": slots, "widen": 2, "narrow": 1})
    step = multiply_add(at(ONE), at(TWO))
    assert step.beat(2, narrow).work == 8
    shared = replace(step, widened=Fraction(1, 2))
    assert shared.beat(2, narrow).work == 6
    outcome(program(shared), narrow)


@rule("T67")
@pytest.mark.parametrize(
    ("operation", "widened", "narrow"), [("relu", 4, 1), ("power_3", 5, 1), ("add", 6, 6), ("copy", 0, 0)]
)
def test_what_is_moved_or_worked_on_as_it_is_stays_narrow(operation: str, widened: int, narrow: int) -> None:
    """8 elements a word: two operations to widen each operand, one to narrow; 8 ALUs.

    Of narrow elements two take an operation, but not in one instruction alone.
    """
    slots = Slots(loads=4, stores=4, lanes=4, register_bytes=8, registers=1)
    operands = (at(ONE), at(TWO)) if operation == "add" else (at(ONE),)
    step = Vector((), operation, operands, at(INTO), WORDS)
    for arithmetic, work in (("widened", widened), ("narrow", narrow)):
        hardware = machine(
            4,
            4,
            word_elements=2,
            alus=8,
            vector_unit={"slots": slots, "widen": 2, "narrow": 1, "arithmetic": arithmetic},
        )
        assert step.beat(2, hardware).work == work
        outcome(program(step), hardware)


@rule("T67")
def test_copies_are_widened_where_registers_hold_one_word_each() -> None:
    """8 elements a word and ALUs, two operations to widen and one to narrow, of a copy and of what is turned."""
    for packed, copied in ((True, 0), (False, 3)):
        slots = Slots(loads=1, stores=1, lanes=4, register_bytes=16, registers=1, packed=packed)
        hardware = machine(4, 4, word_elements=2, alus=8, vector_unit={"slots": slots, "widen": 2, "narrow": 1})
        copy, turn = (Vector((), each, (at(ONE),), at(INTO), WORDS) for each in ("copy", "turn"))
        assert (copy.beat(2, hardware).work, turn.beat(2, hardware).work) == (copied, 0)
        # Two words of 8 bytes share a register, or each has one.
        assert copy.beat(2, hardware).together == (2 if packed else 1)
        outcome(program(copy), hardware)


@rule("T68")
@pytest.mark.parametrize(
    ("operation", "changes", "work"),
    [
        # Four elements of a lane a cycle and three cycles a register of two.
        ("exp", {"lookup_cycles": 3}, 6),
        # A register every second cycle, and 7 operations an element: 14 a lane, 4 ALUs a lane.
        ("exp", {"lookup_cycles": "1/2"}, 4),
        ("turn", {"turn_cycles": "5/2"}, 3),
        ("copy", {"turn_cycles": "5/2"}, 0),
    ],
)
def test_units_beside_the_alus_may_set_the_pace(operation: str, changes: dict[str, Any], work: int) -> None:
    slots = Slots(loads=4, stores=4, lanes=4, register_bytes=8, registers=1)
    hardware = machine(4, 4, word_elements=2, alus=16, vector_unit={"slots": slots})
    changed = {f"vector_unit.slots.{name}": value for name, value in changes.items()}
    hardware = hardware.with_overrides({**changed, "vector_unit.functions.exp": "3 + 4 + 2"})
    step = Vector((), operation, (at(ONE),), at(INTO), WORDS)
    assert step.beat(2, hardware).work == work
    outcome(program(step), hardware)


@rule("T69")
def test_a_long_sum_waits_for_itself_unless_a_body_holds_others() -> None:
    """Two operands of 64 that are joined to a word, 5 cycles apart: a body of 128 registers has two such sums."""
    for window, period in ((64, 10), (128, 5), (1024, 1)):
        slots = Slots(loads=4, stores=4, lanes=4, register_bytes=8, registers=2, latency=5, window=window)
        hardware = machine(4, 4, word_elements=2, alus=1000, vector_unit={"slots": slots})
        step = multiply_add(at(ONE), at(TWO), chain=64)
        assert step.beat(2, hardware).period == period, window
        outcome(program(step), hardware)


@rule("T70")
@pytest.mark.parametrize(
    ("body", "cycles"),
    # 100 words of 4 lanes, in registers of 2 lanes and 2 rows: 200; a body holds 64, 16, or 50 that are turned.
    [("fused", 4 * 40), ("summed", 4 * 49), ("bare", 13 * 53), ("bare_summed", 13 * 62), ("turned", 4 * 30)],
)
def test_what_bodies_take_is_shared_by_their_words(body: Body, cycles: int) -> None:
    given = {"body_cycles": 40, "sum_cycles": 9, "bare_cycles": 50, "map_cycles": 3, "turn_body_cycles": 30}
    windows = {"window": 64, "bare_window": 16, "turn_window": 50}
    slots = Slots(loads=1, stores=1, lanes=2, register_bytes=8, registers=1, **given, **windows)
    hardware = machine(4, 4, word_elements=2, vector_unit={"slots": slots})
    assert body_share(100, 4, hardware, body, maps=2) * 100 == cycles
    plain = machine(4, 4, word_elements=2, vector_unit={"slots": slots.model_copy(update={"body_cycles": 0})})
    assert body_share(100, 4, plain, body) == 0


@rule("T65")
def test_words_of_several_pixels_share_no_register() -> None:
    """Registers of two words load and store two a cycle, or one where a pixel has one word."""
    hardware = machine(
        4, 4, word_elements=2, vector_unit={"slots": Slots(loads=1, stores=1, lanes=4, register_bytes=16, registers=2)}
    )
    step = multiply_add(at(ONE), at(TWO))
    both = [each.beat(2, hardware) for each in (step, replace(step, packed=1), replace(step, packed=8))]
    assert [(each.loads, each.stores, each.together) for each in both] == [(2, 2, 4), (1, 1, 2), (2, 2, 4)]
    outcome(program(replace(step, packed=1)), hardware)


@rule("T65")
def test_registers_have_no_more_lanes_than_the_machine() -> None:
    """A smaller `array.size` keeps the ALUs a lane, so words of all lanes take no longer."""
    large = load_hardware("tpu_v4_core")
    for size in (128, 64, 8):
        hardware = large.with_overrides([f"array.size={size}"])
        assert beat_of(1, 20, 8, hardware) == beat_of(1, 20, 8, large)


@rule("T65")
def test_a_word_longer_than_a_register_lies_in_several() -> None:
    hardware = load_hardware("tpu_v6e")
    # 8 and 32 elements of 2 bytes; a register has 32 bytes in each of 128 of 256 lanes.
    short, long = (beat_of(2, 1, 8, hardware.having("vector_memory", word_elements=each)) for each in (8, 32))
    assert (short.loads, short.stores, short.together) == (3, 2, 16)
    assert (long.loads, long.stores, long.together) == (1, 1, 4)


@rule("T63", "T85")
def test_a_delay_is_the_vector_units() -> None:
    later, sooner = (agreed_timing(program(multiply_add(at(ONE), delay=each, scalars=1)), HARDWARE) for each in (30, 0))
    assert later.cycles == sooner.cycles + 30
    stood = (each.units["systolic_array"]["vector_work"] for each in (later, sooner))
    assert next(stood) == next(stood) + 30
    outcome(program(multiply_add(at(ONE), delay=30, scalars=1)))


# ---- what it cannot do


WRONG = {
    "knows multiply_add, combine, sum_of_products, maximum": {"operation": "dream"},
    "1 operands by 1 scalars and 1 coefficients": {"coefficients": (1.0,)},
    "to combine 1 operands by 1 scalars": {"operation": "combine"},
    "makes 0 words": {"words": 0, "operands": (Feed(()),), "writes": Feed(())},
    "begins 4 cycles before it can": {"delay": -4},
    "reads 1 words for 3 scalars": {"scalars": Scalars(0, 1, 3), "operands": (at(0), at(0), at(0))},
    "room for 2": {"scalars": Scalars(0, 3, 5), "operands": (at(0),) * 5},
    "words of lanes": {"operands": (BankFeed(at(0).groups),)},
    "moves 3 words, and lane 0 reads 4": {"words": 3},
    r"names lanes \[0, 5\)": {"writes": at(INTO, 5)},
}


@pytest.mark.parametrize("says", WRONG)
def test_what_the_vector_unit_cannot_do_is_refused(says: str) -> None:
    step = replace(multiply_add(at(ONE), scalars=1), **WRONG[says])
    with pytest.raises(CheckFailed, match=says):
        check_program(program(step), HARDWARE)


# ---- among all other steps

AREAS = 8
"""Areas of WORDS words that steps read and write; behind them those of two sections of weights."""


class Writer:
    """Writes steps of all kinds that wait for what they need: whoever wrote what they read, whoever used what they
    overwrite.
    """

    def __init__(self, draw: st.DrawFn, hardware: Hardware) -> None:
        self.draw, self.hardware = draw, hardware
        self.random = np.random.default_rng(draw(st.integers(0, 99)))
        self.width = min(hardware.array.rows, hardware.array.cols, 4)
        self.word = hardware.vector_memory.word_elements
        self.steps: list[Step] = []
        self.writer: dict[int, int] = {}
        self.users: defaultdict[int, list[int]] = defaultdict(list)
        self.ifmap, self.ofmap = (Tensor(name, (self.width, 64, WORDS * self.word)) for name in ("ifmap", "ofmap"))
        self.filter = Tensor("filter", (self.width, 64))
        self.weights = -(-self.width // self.word)
        self.pointers: list[NDArray[np.int64]] = []
        for area in range(AREAS):
            self.fill(area)
        self.fill_weights()

    def program(self) -> Program:
        for _ in range(self.draw(st.integers(2, 12))):
            getattr(
                self, self.draw(st.sampled_from(["vector", "vector", "vector", "pick", "stream", "fill", "spill"]))
            )()
        for area in range(AREAS):
            self.spill(area)
        depth = AREAS * WORDS + self.weights + self.most_pointer_words
        numbers = np.concatenate([np.ones(1, np.int64), *self.pointers])
        tensors = self.ifmap, self.filter, self.ofmap, self.table(numbers.size)
        constants = (Constant("pointers", numbers.astype(np.int32).tobytes()),)
        buffers = (Buffer("ifmap", 0, depth, self.hardware.lanes),)
        return Program(tensors, buffers, tuple(self.steps), self.word, constants=constants)

    def area(self) -> int:
        return self.draw(st.integers(0, AREAS - 1))

    def add(self, make: Any, reads: list[int], writes: list[int], **waits: Any) -> int:
        index = len(self.steps)
        after = {self.writer[each] for each in [*reads, *writes] if each in self.writer}
        after |= {user for each in writes for user in self.users[each]}
        self.steps.append(make(tuple(sorted(after))))
        for each in writes:
            self.writer[each], self.users[each] = index, []
        for each in reads:
            self.users[each].append(index)
        return index

    def part(self, area: int) -> Part:
        row = self.draw(st.integers(0, 63))
        items = Along(1, (row,)), Along(2, range(WORDS * self.word))
        return Part(area * WORDS, (0,), (Along(0, range(self.width)),), items, self.word)

    def fill(self, area: int | None = None) -> None:
        area = self.area() if area is None else area
        moved = self.draw(st.sampled_from([64, 900]))
        self.add(lambda after: Fill(after, self.ifmap, (self.part(area),), moved), [], [area])

    def fill_weights(self) -> None:
        items = (Along(1, range(self.width)),)
        part = Part(AREAS * WORDS, (0,), (Along(0, range(self.width)),), items, self.word)
        self.add(lambda after: Fill(after, self.filter, (part,), 64), [], [AREAS])

    def spill(self, area: int | None = None) -> None:
        area = self.area() if area is None else area
        self.add(lambda after: Spill(after, self.ofmap, (self.part(area),), 128), [area], [])

    def stream(self) -> None:
        source, into = self.area(), self.area()
        accumulate, size = self.draw(st.booleans()), self.width
        base = AREAS * WORDS
        delay = self.draw(st.sampled_from([0, 0, 20]))
        preload = self.add(lambda after: Preload(after, base, self.weights, size, size, delay), [AREAS], [])
        # In other words than it reads: sums come later than reads.
        into = (into + 1) % AREAS if into == source else into
        reads, result = self.feed(source, WORDS), into * WORDS
        self.add(lambda after: Stream(after, preload, reads, result, WORDS, size, size, accumulate), [source], [into])

    def vector(self) -> None:
        into, words = self.area(), self.draw(st.integers(1, WORDS))
        sources = [each for each in self.draw(st.lists(st.integers(0, AREAS - 1), min_size=1, max_size=5))]
        writes = self.feed(into, words, plain=True)
        operands = tuple(writes if each == into else self.feed(each, words) for each in sources)
        more = self.operation(len(operands))
        more |= {
            "widened": self.draw(st.sampled_from([Fraction(1), Fraction(2, 3)])),
            "packed": self.draw(st.sampled_from([0, 1])),
        }
        delay = self.draw(st.sampled_from([0, 0, 0, 13]))
        self.add(
            lambda after: Vector(after, operands=operands, writes=writes, words=words, delay=delay, **more),
            [*sources, AREAS], [into],
        )  # fmt: skip

    @property
    def most_pointer_words(self) -> int:
        """Those of two operands, of which two lane groups pick side by side."""
        return WORDS * -(-2 * self.word * 2 // self.word)

    def table(self, size: int) -> Tensor:
        return Tensor("pointers", (1, size), number_bytes=4)

    def pick(self) -> None:
        """One or two operands are picked, times others that are not, none of them from where results go."""
        into, words, together = self.area(), self.draw(st.integers(1, WORDS)), self.draw(st.integers(1, 2))
        others = st.integers(1, AREAS - 1).map(lambda apart: (into + apart) % AREAS)
        sources = self.draw(st.lists(others, min_size=1, max_size=2))
        table = ElementTable(AREAS * WORDS + self.weights, words, len(sources), self.word, together, self.word)
        shape = words, table.operands, table.elements, together
        numbers = self.random.integers(-1, WORDS, shape)
        encoded = np.where(numbers < 0, 1, 2 * numbers)
        self.fill_pointers(table, encoded)
        operands: list[Feed] = []
        for operand, area in enumerate(sources):
            stored = (numbers[:, operand] >= 0).sum(axis=(0, 1)).tolist()
            cut = self.draw(st.integers(1, self.width - 1)) if together > 1 and self.width > 1 else self.width
            patterns = [PickedWords(table, operand, which, area * WORDS, stored[which]) for which in range(together)]
            groups = (LaneGroup(0, cut, patterns[0]), LaneGroup(cut, self.width - cut, patterns[-1]))
            operands += [Feed(tuple(each for each in groups if each.lanes)), self.feed(self.draw(others), words)]
        writes = self.feed(into, words, plain=True)
        reads = [*range(AREAS), AREAS + 1]
        self.add(
            lambda after: Vector(after, "sum_of_products", tuple(operands), writes, words), reads, [into]
        )  # fmt: skip

    def fill_pointers(self, table: ElementTable, encoded: NDArray[np.int64]) -> None:
        """Each result word's begin a word."""
        first = 1 + sum(each.size for each in self.pointers)
        each = encoded.reshape(table.words, -1)
        each = np.pad(each, ((0, 0), (0, table.word_words * table.per_word - table.pointers)))
        self.pointers.append(each.reshape(-1))
        items = (Along(1, range(first, first + each.size)),)
        part = Part(table.base, (0,), (Along(0, range(1)),), items, table.per_word)
        self.add(lambda after: Fill(after, self.table(first + each.size), (part,), 64), [], [AREAS + 1])

    def operation(self, operands: int) -> dict[str, Any]:
        name = self.draw(st.sampled_from(["multiply_add", "combine", "maximum"]))
        if name == "combine":
            factors = st.tuples(*[st.sampled_from([1.0, -1.0, 2.0, 0.5])] * operands)
            return {"operation": name, "coefficients": self.draw(factors)}
        if name == "maximum":
            return {"operation": name}
        most = min(operands, self.width, self.hardware.vector_unit.scalar_words * self.word)
        count = self.draw(st.integers(1, most))
        return {"operation": name, "scalars": Scalars(AREAS * WORDS, -(-count // self.word), count)}

    def feed(self, area: int, words: int, plain: bool = False) -> Feed:
        """All lanes by one pattern, or the first and the others by two; counters with padding, or a table."""
        base = area * WORDS
        if plain:
            return at(base, self.width, Counters(0, (Counter(words, 0, 1, words, 1),)))
        cut = self.draw(st.integers(0, self.width))
        groups = [(0, cut), (cut, self.width - cut)]
        return Feed(tuple(LaneGroup(lane, lanes, self.pattern(base, words)) for lane, lanes in groups if lanes))

    def pattern(self, base: int, words: int) -> AddressPattern:
        start = self.draw(st.integers(-2, 2))
        if self.draw(st.booleans()):
            return Counters(base, (Counter(words, start, 1, WORDS, 1),))
        places = st.one_of(st.just(PADDING), st.integers(base, base + WORDS - 1))
        return AddressTable(tuple(self.draw(st.lists(places, min_size=words, max_size=words))))


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, Hardware]:
    hardware = draw(machines_of_all_kinds(8, st.sampled_from([1, 2, 3, 8])))
    changes: dict[str, Any] = {"vector_memory.capacity": f"{96 * hardware.word_bytes} B"}
    if hardware.banked:
        changes["vector_memory.organization"] = "lanes"
    hardware = hardware.with_overrides(changes)
    return Writer(draw, hardware).program(), hardware


@rule("T62")
@settings(max_examples=cases(1 / 40), deadline=None, suppress_health_check=list(HealthCheck))
@given(made=programs())
def test_random_steps_of_all_kinds(made: tuple[Program, Hardware]) -> None:
    """Values at both levels, the engines to the cycle, every wait that is needed, and the timeline adds up."""
    program, hardware = made
    assert not [*hazards(program, hardware)]
    random = np.random.default_rng(1)
    operands = {
        name: random.integers(-4, 5, program.tensor(name).shape).astype(np.float32) for name in ("ifmap", "filter")
    }
    timing, registers = clocked(program, hardware, operands)
    np.testing.assert_array_equal(registers["ofmap"], datapath.run(program, hardware, operands)["ofmap"])
    timeline = event.record(program, hardware).timeline()
    for unit in ("systolic_array", "vector_unit"):
        for state, cycles in timeline.tracks[unit].sums().items():
            assert timing.units[unit][state] == cycles, (unit, state)
