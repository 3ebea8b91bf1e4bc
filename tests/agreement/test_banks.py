"""Machines with banks: what conflicts cost is what anybody counts, and the engines agree to the cycle.

Programs are made by hand: random maps of words to banks, random addresses for every row.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agreed_timing
from tests.rules import rule
from tests.strategies import cases, machine
from tpusim.base.errors import CheckFailed, InputError
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.addresses import (
    PADDING,
    AddressPattern,
    AddressTable,
    BankFeed,
    Counter,
    Counters,
    Feed,
    LaneGroup,
)
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, BankFill, BankPart, Fill, Part, Spill
from tpusim.reference import Tensor as Values

CASES = cases(1 / 4)
thorough = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Case:
    """A Program on a machine with banks, and where each word [a, b] of the ifmap stands."""

    hardware: Hardware
    program: Program
    operands: dict[str, Values]
    places: Any

    @property
    def feeds(self) -> list[list[list[int]]]:
        """For every pass the address of each row's words, or PADDING; of rows that are fed."""
        return [[walk(group.pattern) for group in stream.reads.groups] for stream in self.program.streams]

    def timing(self) -> Timing:
        return agreed_timing(self.program, self.hardware)


def walk(pattern: AddressPattern) -> list[int]:
    """The addresses of a pattern, from its definition."""
    if isinstance(pattern, AddressTable):
        return [*pattern.addresses]
    addresses = [pattern.base]
    for each in pattern.counters:
        positions = [each.start + count * each.step for count in range(each.length)]
        addresses = [
            PADDING
            if before == PADDING or not 0 <= at < each.extent
            else before + at * each.stride + at // each.wrap * each.jump
            for before in addresses
            for at in positions
        ]
    return addresses if pattern.window is None else addresses[pattern.window.start : pattern.window.stop]


@st.composite
def machines_with_banks(draw: st.DrawFn) -> Hardware:
    return machine(
        rows=draw(st.integers(1, 9)),
        cols=draw(st.integers(1, 6)),
        word_elements=draw(st.integers(1, 8)),
        alus=draw(st.sampled_from([1, 4, 64])),
        bytes_per_cycle=draw(st.sampled_from([1, 64, 5000])),
        latency_cycles=draw(st.sampled_from([1, 40])),
        array={
            "weight_buffers": draw(st.integers(1, 2)),
            "weights_per_cycle": draw(st.sampled_from([1, 1, 3])),
            "elements_per_cycle": draw(st.sampled_from([1, 1, 2, 3])),
            "pes_per_cycle": draw(st.sampled_from([1, 1, 2, 4, 20])),
        },
        vector_memory={
            "ports": draw(st.sampled_from(["shared", "shared", "separate"])),
            "organization": "banked",
            "banks": draw(st.sampled_from(["lanes", 1, 2, 3, 8, 13])),
            "bank_ports": draw(st.integers(1, 3)),
        },
        vector_unit={"unpack_cycles": draw(st.sampled_from([0, 2]))},
        sequencer={"launch_cycles": draw(st.sampled_from([0, 17]))},
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    hardware = draw(machines_with_banks())
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    fill = draw(st.integers(1, hardware.vector_memory.word_elements))
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    return made(hardware, random, fill, shape, draw(st.integers(1, 4)), draw(st.integers(1, 12)))


def made(hardware: Hardware, random: Any, fill: int, shape: tuple[int, int], passes: int, words: int) -> Case:
    """`passes` passes of `words` words, every row with a pattern of its own, over an ifmap of `shape` words."""
    rows, cols = int(random.integers(1, hardware.array.rows + 1)), int(random.integers(1, hardware.array.cols + 1))
    ifmap, filter_ = Tensor("ifmap", (*shape, fill), True), Tensor("filter", (cols, passes * rows))
    ofmap = Tensor("ofmap", (cols, words, fill))
    offsets, size = random_map(random, shape)
    base = int(random.integers(0, 20))
    items = Along(1, range(shape[1])), Along(2, range(fill))
    part = BankPart(base, offsets, (Along(0, range(shape[0])),), items, fill)
    word = hardware.vector_memory.word_elements
    weights = -(-rows // word)
    column = (Along(0, range(cols)),)
    steps: list[Step] = [
        BankFill((), ifmap, (part,), 4 * shape[0] * shape[1] * fill, hardware.banks),
        Fill(
            (),
            filter_,
            tuple(
                Part(at * weights, (0,), column, (Along(1, range(at * rows, (at + 1) * rows)),), word)
                for at in range(passes)
            ),
            4 * cols * rows * passes,
        ),
    ]
    for at in range(passes):
        steps.append(Preload((1,), at * weights, weights, rows, cols))
        groups = [
            LaneGroup(row, 1, random_pattern(random, part, shape, words))
            for row in range(rows)
            if random.random() < 0.9
        ]
        steps.append(Stream((0,), len(steps) - 1, BankFeed(tuple(groups)), passes * weights, words, rows, cols, at > 0))
    out = Part(passes * weights, (0,), column, (Along(1, range(words)), Along(2, range(fill))), fill)
    steps.append(Spill((len(steps) - 1,), ofmap, (out,), 4 * cols * words * fill))
    buffers = Buffer("filter", 0, passes * weights, cols), Buffer("ofmap", passes * weights, words, cols)
    program = Program((ifmap, filter_, ofmap), buffers, tuple(steps), fill, (Buffer("ifmap", base, size, 1),))
    operands = {each.name: random.integers(1, 9, each.shape).astype(np.float32) for each in (ifmap, filter_)}
    return Case(hardware, program, operands, part.addresses)


def random_map(random: Any, shape: tuple[int, int]) -> tuple[Any, int]:
    """An offset for each coordinate of either axis, no two sums the same, and the words from the first to the last."""
    inner = int(random.integers(0, 2))
    near = random.permutation(shape[inner] + int(random.integers(0, 3)))[: shape[inner]]
    apart = int(near.max()) + 1 + int(random.integers(0, 5))
    far = random.permutation(shape[1 - inner] + int(random.integers(0, 3)))[: shape[1 - inner]] * apart
    offsets = {inner: tuple(near.tolist()), 1 - inner: tuple(far.tolist())}
    return (offsets[0], offsets[1]), int(near.max() + far.max()) + 1


def random_pattern(random: Any, part: BankPart, shape: tuple[int, int], words: int) -> AddressPattern:
    """A table of words that are there and padding; or, where the map is as even as that, counters that wrap."""
    held = part.addresses.ravel()
    # Counters would read words between those of the map, which nothing writes.
    if random.random() < 0.5 or len(np.unique(held)) <= np.ptp(held):
        chosen = random.choice(np.append(held, PADDING), words)
        return AddressTable(tuple(chosen.tolist()))
    # A counter over positions, whose words after every `wrap` of them lie `jump` further.
    low, stop = int(held.min()), int(held.max()) + 1
    wrap, jump = int(random.integers(1, 4)), int(random.integers(0, 3))
    span = stop - low
    extent = max(at + 1 for at in range(span) if at + at // wrap * jump < span)
    step = int(random.integers(1, 3))
    return Counters(low, (Counter(words, int(random.integers(-2, 3)), step, extent, 1, wrap, jump),))


def conflict_cycles(case: Case) -> tuple[int, int, int]:
    """(cycles the array waits, cycles the banks are read, words read), counted one by one in plain Python."""
    memory, frame = case.hardware.vector_memory, period(case)
    lost = reading = reads = 0
    for stream, rows in zip(case.program.streams, case.feeds, strict=True):
        for word in range(stream.words):
            wanted = defaultdict(set)
            for row in rows:
                if row[word] != PADDING:
                    wanted[row[word] % case.hardware.banks].add(row[word])
            cycles = max([1, *(ceil(len(each) / memory.bank_ports) for each in wanted.values())])
            reading += cycles
            reads += sum(map(len, wanted.values()))
            # The first word may be read in its own frame's first cycle alone, every other in all of a frame's.
            late = cycles - 1 if word == 0 else cycles - frame
            lost += max(0, ceil(late / frame))
    return lost * frame, reading, reads


def period(case: Case) -> int:
    """Cycles of a frame, by docs/timing.md: what the elements, the slots of the shared port and the adds need."""
    program, hardware = case.program, case.hardware
    accumulates = any(stream.accumulate for stream in program.streams)
    adds = ceil(program.word_fill * hardware.lanes / hardware.vector_unit.alus) if accumulates else 0
    slots = (2 if accumulates else 1) if hardware.vector_memory.ports == "shared" else 1
    return max(ceil(program.word_fill / hardware.array.elements_per_cycle), slots, adds)


def gathered(case: Case) -> Values:
    """The ofmap, by NumPy's own indexing."""
    held = {PADDING: np.zeros(case.program.word_fill, np.float32)}
    for place, address in np.ndenumerate(case.places):
        held[int(address)] = case.operands["ifmap"][place]
    total: Any = 0
    for number, (stream, rows) in enumerate(zip(case.program.streams, case.feeds, strict=True)):
        fed = np.zeros((stream.rows, stream.words, case.program.word_fill), np.float32)
        for group, row in zip(stream.reads.groups, rows, strict=True):
            fed[group.first_lane] = [held.get(address, held[PADDING]) for address in row]
        weights = case.operands["filter"][:, number * stream.rows : (number + 1) * stream.rows]
        total = total + np.einsum("cr,rme->cme", weights, fed)
    return np.asarray(total, np.float32)


@rule("T56", "T58")
@thorough
@given(case=cases())
def test_conflicts_cost_what_anybody_counts(case: Case) -> None:
    """And the values are those that stand at the addresses, in both engines, which agree on every figure."""
    timing = case.timing()
    waits, reading, reads = conflict_cycles(case)
    assert timing.units["systolic_array"]["bank_conflict"] == waits
    assert timing.units["port_ifmap"]["ifmap"] == reading
    others = [step.use.port_reads for step in case.program.rows if not isinstance(step, Stream)]
    psums = sum(stream.words * stream.cols * stream.accumulate for stream in case.program.streams)
    assert timing.reads == reads + sum(others) + psums
    told, written = register.run(case.program, case.hardware, case.operands)
    assert told == timing
    expected = gathered(case)
    np.testing.assert_array_equal(written["ofmap"], expected)
    np.testing.assert_array_equal(datapath.run(case.program, case.hardware, case.operands)["ofmap"], expected)


# ---- one pass by hand, as docs/timing.md tells it

ASKED = (0, 2, 4, 6), (0, 1, 2, 3), (1, 3, 5, PADDING), (5, 5, 5, 5)
"""What the four rows ask for, word by word."""


def by_hand(rows: Any = ASKED, part: BankPart | None = None) -> tuple[Program, Hardware]:
    """Four rows, two banks, words of two; the eight words of the ifmap stand in their order."""
    ifmap, filter_, ofmap = Tensor("ifmap", (8, 2)), Tensor("filter", (4, 4)), Tensor("ofmap", (4, 4, 2))
    word = part or BankPart(0, (range(8),), (Along(0, range(8)),), (Along(1, range(2)),), 2)
    weights = Part(0, (0,), (Along(0, range(4)),), (Along(1, range(4)),), 2)
    out = Part(2, (0,), (Along(0, range(4)),), (Along(1, range(4)), Along(2, range(2))), 2)
    feed = BankFeed(
        tuple(LaneGroup(row, 1, AddressTable(tuple(each))) for row, each in enumerate(zip(*rows, strict=True)))
    )
    steps: tuple[Step, ...] = (
        Fill((), filter_, (weights,), 64),
        BankFill((), ifmap, (word,), 64, 2),
        Preload((0,), 0, 2, 4, 4),
        Stream((1,), 2, feed, 2, 4, 4, 4, False),
        Spill((3,), ofmap, (out,), 128),
    )
    buffers = Buffer("filter", 0, 2, 4), Buffer("ofmap", 2, 4, 4)
    hardware = machine(4, 4, vector_memory={"organization": "banked", "banks": 2})
    return Program((ifmap, filter_, ofmap), buffers, steps, 2, (Buffer("ifmap", 0, 8, 1),)), hardware


@rule("T59")
@pytest.mark.parametrize(("banks", "writing"), [(1, 8), (2, 4), (4, 2), (16, 1)])
def test_words_for_banks_are_unpacked_by_the_vector_unit_of_the_lanes(banks: int, writing: int) -> None:
    """Eight words, four lanes: two at a time, six cycles each, whatever the number of banks."""
    words = BankPart(0, (range(8),), (Along(0, range(8)),), (Along(1, range(2)),), 2)
    fill = BankFill((), Tensor("ifmap", (8, 2), converted=True), (words,), 64, banks)
    assert (fill.words, fill.lane_words) == (writing, 8)
    assert (
        fill.conversion_cycles(
            machine(4, 4, vector_memory={"organization": "banked", "banks": banks}, vector_unit={"unpack_cycles": 6})
        )
        == 2 * 6
    )


@rule("T56", "T57")
def test_the_pass_worked_by_hand() -> None:
    """docs/timing.md, section 4."""
    log = event.logged(*by_hand())
    (stream,), fill, columns = log.passes, log.moves[1], log.columns
    assert (fill["start"], fill["done"]) == (1, 12), "four words a bank, in 8 to 11, after those of the filter"
    assert stream["start"] == 14
    assert (14 + columns.bank_reads).tolist() == [14, 15, 16, 17, 19, 20, 21, 22, 23, 25]
    assert (14 + columns.delivered).tolist() == [18, 20, 24, 26]
    timing = agreed_timing(*by_hand())
    assert timing.units["systolic_array"]["bank_conflict"] == 2 * 2 + 0 + 2 + 0
    assert timing.reads == 4 + 4 + 3 + 1 + 4 * 2 + 4 * 4
    told, written = register.run(*by_hand(), operands_by_hand())
    assert told == timing
    np.testing.assert_array_equal(written["ofmap"], expected_by_hand())


def operands_by_hand() -> dict[str, Values]:
    random = np.random.default_rng(3)
    return {"ifmap": random.integers(1, 99, (8, 2)).astype("f4"), "filter": random.integers(1, 9, (4, 4)).astype("f4")}


def expected_by_hand() -> Values:
    ifmap, filter_ = operands_by_hand().values()
    fed = np.array([[ifmap[at] if at != PADDING else np.zeros(2) for at in word] for word in ASKED])
    return np.einsum("cr,mre->cme", filter_, fed).astype("f4")


# ---- what is wrong is seen

TURNED = (0, 1, 2, 4, 3, 5, 6, 7)
SOUND = by_hand()[0].rows[1].parts[0]  # type: ignore[attr-defined]
WRONG = {
    "two words in each other's bank": lambda: by_hand(part=SOUND._replace(offsets=(TURNED,))),
    "a word in a wrong line": lambda: by_hand(part=SOUND._replace(offsets=((2, 1, 0, *range(3, 8)),))),
    "a wrong address": lambda: by_hand(rows=(*ASKED[:3], (5, 5, 4, 5))),
    "padding for a word": lambda: by_hand(rows=((0, PADDING, 4, 6), *ASKED[1:])),
    "a word for padding": lambda: by_hand(rows=(*ASKED[:2], (1, 3, 5, 7), ASKED[3])),
    "two rows exchanged": lambda: by_hand(rows=tuple((b, a, *rest) for a, b, *rest in ASKED)),
}


def both(program: Program, hardware: Hardware) -> tuple[Values, Values]:
    """What the data path computes, and the register engine."""
    operands = operands_by_hand()
    return datapath.run(program, hardware, operands)["ofmap"], register.run(program, hardware, operands)[1]["ofmap"]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_bank_or_address_gives_a_wrong_number(name: str) -> None:
    for values in both(*by_hand()):
        np.testing.assert_array_equal(values, expected_by_hand())
    one, other = both(*WRONG[name]())
    assert (one != expected_by_hand()).any()
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("engine", [datapath, register], ids=["data path", "register"])
@pytest.mark.parametrize("address", [-2, 8, 10**6])
def test_a_word_that_no_bank_has_is_refused(address: int, engine: Any) -> None:
    asked = by_hand(rows=(*ASKED[:3], (5, 5, address, 5)))
    filled = by_hand(part=SOUND._replace(offsets=((*range(7), address),)))
    for program, hardware in (asked, filled):
        with pytest.raises(CheckFailed, match=f"word {address} is outside the banks' words 0..7"):
            engine.run(program, hardware, operands_by_hand())


def with_step(program: Program, index: int, **changes: Any) -> Program:
    steps = [*program.rows]
    steps[index] = replace(steps[index], **changes)
    return replace(program, rows=tuple(steps))


PROGRAM, BANKED = by_hand()
UNBANKED, WEIGHTS = replace(PROGRAM, banked=()), replace(PROGRAM.rows[0])
LANES = Feed(PROGRAM.streams[0].reads.groups)
REFUSED = {
    "reads from the lanes, and the ifmap is in banks": (with_step(PROGRAM, 3, reads=LANES), BANKED),
    "reads from banks, and there are none": (
        replace(UNBANKED, rows=(WEIGHTS, WEIGHTS, *UNBANKED.rows[2:])),
        machine(4, 4),
    ),
    "fills 2 banks, and there are 0": (UNBANKED, machine(4, 4)),
    "fills 2 banks, and there are 3": (PROGRAM, machine(4, 4, vector_memory={"organization": "banked", "banks": 3})),
    "offsets for other words": (with_step(PROGRAM, 1, parts=(SOUND._replace(offsets=(range(7),)),)), BANKED),
    "takes 8 words of banks; there are 6": (
        PROGRAM,
        machine(4, 4, bank_words=3, vector_memory={"organization": "banked", "banks": 2}),
    ),
}


@pytest.mark.parametrize("says", REFUSED)
def test_a_program_for_another_memory_is_refused(says: str) -> None:
    with pytest.raises(CheckFailed, match=says):
        check_program(*REFUSED[says])


def test_several_arrays_on_banks_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        load_hardware("tpu_v2", ["vector_memory.organization=banked", "array.count=2"])
    (problem,) = caught.value.problems
    assert problem.where is not None
    assert "vector_memory.organization" in str(caught.value)
    assert "banks feed one array, and array.count is 2; set array.count to 1, or write lanes" in problem.message
