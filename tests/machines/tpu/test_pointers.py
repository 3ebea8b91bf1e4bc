"""Pointers: their size, what they cost, gathers through any of them, and that a wrong one is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.agreement.engines import agreed_timing
from tests.covering import covering
from tests.rules import rule
from tests.strategies import conv, fills, machine
from tpusim.base.errors import CapacityError, CheckFailed
from tpusim.flow.engines import Task, timed
from tpusim.flow.verify import operands_of
from tpusim.machines.lowered import unheard
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.definition import IFMAP, POINTER, PORTS, PSUM, RESULT, Frame
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.lowering.indirect import INDIRECT, NAME, PointedProgram
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.machines.tpu.program.addresses import (
    MOST_WORDS,
    PADDING,
    AddressTable,
    BankFeed,
    Feed,
    LaneGroup,
    Pointers,
    pointer_bytes,
    pointers_a_word,
)
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Buffer, Constant, Program
from tpusim.machines.tpu.program.steps import Preload, Stream
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Fill, Part, Spill
from tpusim.machines.tpu.runs.prepared import PreparedLayer
from tpusim.network.workload_file import load_workload
from tpusim.numerics.equality import Verdict

Numbers = NDArray[np.int64]

# ---- their size


@rule("T29")
@pytest.mark.parametrize(
    ("words", "elements", "size", "per_word"),
    [(8192, 8, 2, 16), (128, 8, 1, 32), (129, 8, 2, 16), (2**15, 2, 2, 4), (2**15 + 1, 2, 3, 2), (2**23, 1, 3, 1)],
)
def test_a_pointer_names_every_word_and_holds_a_flag(words: int, elements: int, size: int, per_word: int) -> None:
    hardware = machine(word_elements=elements, capacity_words=words)
    assert (pointer_bytes(hardware), pointers_a_word(hardware)) == (size, per_word)


@rule("T28")
def test_of_tpu_v2_sixteen_fill_a_word() -> None:
    hardware = load_hardware("tpu_v2")
    assert (pointer_bytes(hardware), pointers_a_word(hardware)) == (2, 16)


def test_machines_that_cannot_hold_them_are_refused() -> None:
    layer = conv(2, 4, 2, 3)
    with pytest.raises(CapacityError, match="8,388,608 words of a lane apart, and the vector memory has 8,388,609"):
        INDIRECT.lower(layer, 1, machine(word_elements=1, capacity_words=MOST_WORDS + 1))
    with pytest.raises(CapacityError, match="a pointer takes 2 B, and a word has 1 B"):
        INDIRECT.lower(
            layer, 1, load_hardware("tiny_4x4", ["vector_memory.word_elements=1", "vector_memory.element_bytes=1"])
        )


@rule("T28")
def test_as_many_as_taps_and_outputs_and_those_of_like_blocks_once() -> None:
    """XNNPACK's H_F W_F round_up(H_O W_O, mr): ours are rounded up to words, table by table, for unlike blocks."""
    layer, whole = conv(8, 12, 8, 3, padding=1), machine(8, 8, word_elements=8, capacity_words=8192)
    one, more = (
        INDIRECT.lower(layer, 8, whole.with_overrides({"mapping.block_m": words}))[1].choices for words in (144, 36)
    )
    assert (one["blocks"], one["pointers"], one["pointer_words"]) == (1, 9 * 12 * 12, 9 * -(-12 * 12 // 16))
    assert more["blocks"] == 4
    assert int(more["pointers"]) < 9 * 12 * 12
    assert all(found["initialisations"] == found["tables"] for found in (one, more))


def test_a_layer_of_one_block_has_one_pointer_for_every_tap_and_output() -> None:
    found = INDIRECT.lower(conv(8, 5, 8, 3, padding=1), 8, machine(8, 8, word_elements=8, bytes_per_cycle=10**6))[
        1
    ].choices
    assert found["pointers"] == 9 * int(found["rows"]) * int(found["cols"]) * int(found["blocks"])


# ---- plain products


@pytest.mark.parametrize("network", ["resnet50"])
def test_a_product_is_left_as_it_is(network: str) -> None:
    hardware = load_hardware("tpu_v2")
    layers = {layer.shape_key: layer for layer in load_workload(network, batch=8).layers}.values()
    plain = [layer for layer in layers if not layer.spatial or layer.text.split()[-1] == "1x1"]
    assert plain
    for layer in plain[:4]:
        assert INDIRECT.lower(layer, 8, hardware) == CHANNEL_FIRST.lower(layer, 8, hardware)


# ---- what they cost


@rule("T31")
@pytest.mark.parametrize(
    ("elements", "accumulates", "without", "with_"),
    [(8, True, 8, 8), (8, False, 8, 8), (4, True, 4, 4), (3, True, 3, 4), (2, True, 3, 4), (1, True, 3, 4),
     (3, False, 3, 3), (2, False, 2, 3), (1, False, 2, 3)],
)  # fmt: skip
def test_the_slot_is_free_in_a_long_frame_and_costs_a_cycle_in_a_short_one(
    elements: int, accumulates: bool, without: int, with_: int
) -> None:
    clients = (IFMAP, PSUM, RESULT) if accumulates else (IFMAP, RESULT)
    assert Frame.of(elements, 1, clients).period == without
    frame = Frame.of(elements, 1, (IFMAP, POINTER, *clients[1:]))
    assert (frame.period, frame.pointer_slots) == (with_, range(1, 2))
    owned = {0, 1, frame.result_slot, *([] if frame.psum_slot is None else [frame.psum_slot])}
    assert len(owned) == frame.slots == len(clients) + 1


def test_with_ports_of_their_own_pointers_cost_no_slot() -> None:
    frame = Frame.of(1, 1, (IFMAP, POINTER, PSUM, RESULT), PORTS["separate"])
    assert (frame.period, frame.pointer_slots, frame.weight_waits(0)) == (1, range(1), (0,))


@rule("T33")
def test_several_arrays_share_the_slot_of_one_reader() -> None:
    clients = IFMAP, POINTER, PSUM, RESULT
    assert Frame.of(8, 1, clients, arrays=2, pointer_words=1).slots == 7
    assert Frame.of(8, 1, clients, arrays=3, pointer_words=2).pointer_slots == range(3, 5)


@rule("T31")
@pytest.mark.parametrize(("elements", "more"), [(8, 0), (4, 0), (3, 1), (2, 1), (1, 1)])
def test_long_passes_cost_a_cycle_a_frame_or_nothing(elements: int, more: int) -> None:
    """Beside that the array may wait for the frame in which the first pointers of a pass are read."""
    hardware = machine(8, 8, word_elements=elements, bytes_per_cycle=10**6, capacity_words=10**5)
    layer = conv(8, 40, 8, 3, padding=1)
    plain, pointed = (lowering(layer, elements, hardware)[0] for lowering in (CHANNEL_FIRST.lower, INDIRECT.lower))
    assert [stream.words for stream in plain.streams] == [stream.words for stream in pointed.streams]
    one, other = (event.run(program, hardware).units["systolic_array"] for program in (plain, pointed))
    assert one["busy"] == other["busy"]
    assert pointed.frame(hardware).port_stall - plain.frame(hardware).port_stall == more
    # All that it waits for behind fills, weights, and what frees its output; fills wait for the port themselves.
    passes = event.logged(pointed, hardware).passes
    spent = int((passes["start"] - 1 - passes["cleared"]).sum())
    assert 0 <= spent < len(plain.streams) * 2 * pointed.frame(hardware).period
    frames = sum(stream.words for stream in plain.streams)
    assert other["port_stall"] >= frames * pointed.frame(hardware).port_stall + spent


# ---- a wrong one is seen

LAYER, BATCH = conv(6, 6, 7, 3, padding=1), 2
MACHINE = machine(4, 4, capacity_words=120)


def verdict_of(program: Program, engine: str, hardware: Hardware = MACHINE) -> Verdict:
    explanation = INDIRECT.lower(LAYER, BATCH, MACHINE)[1]
    task = Task(
        LAYER, BATCH, PreparedLayer(program, explanation, hardware, "indirect"), check=True, seed=0, watch=unheard
    )
    return timed(task, engine)[1]()


def with_number(program: Program, at: int, number: int) -> Program:
    numbers = program.constants[0].values.astype(np.int32)
    numbers[at] = number
    return replace(program, constants=(Constant(NAME, numbers.tobytes()),))


def numbers_of(program: Program) -> NDArray[np.float32]:
    return program.constants[0].values


def first(program: Program, padding: bool) -> int:
    """The first pointer that is padding, or that is none and has a neighbour."""
    found = np.flatnonzero(numbers_of(program) % 2 == padding)
    return int(found[len(found) // 2])


@pytest.mark.parametrize("engine", ["event", "register"])
def test_the_sound_program_passes(engine: str) -> None:
    assert verdict_of(INDIRECT.lower(LAYER, BATCH, MACHINE)[0], engine).mismatched == 0


@rule("T29")
@pytest.mark.parametrize(
    ("wrong", "engine"), covering(1, ["one more", "one less", "a flag cleared", "a flag set"], ["event", "register"])
)
def test_a_wrong_pointer_gives_wrong_outputs(wrong: str, engine: str) -> None:
    program = INDIRECT.lower(LAYER, BATCH, MACHINE)[0]
    at = first(program, wrong == "a flag cleared")
    number = int(numbers_of(program)[at])
    changed = {"one more": number + 2, "one less": number - 2, "a flag set": number + 1, "a flag cleared": number - 1}
    corrupted = with_number(program, at, changed[wrong])
    assert corrupted != program
    verdict = verdict_of(corrupted, engine)
    assert verdict.mismatched > 0
    assert str(verdict.first).startswith("ofmap[channel=")


@pytest.mark.parametrize("engine", ["event", "register"])
def test_a_pointer_outside_the_memory_is_refused(engine: str) -> None:
    program = INDIRECT.lower(LAYER, BATCH, MACHINE)[0]
    with pytest.raises(CheckFailed, match=r"words \[.*were addressed|word \d+ is outside"):
        verdict_of(with_number(program, first(program, padding=False), 2 * 10**6), engine)


def seen(program: Program, engine: str) -> bool:
    """Whether the check sees that it is wrong: by its outputs, or by addresses that do not exist."""
    try:
        return verdict_of(program, engine).mismatched > 0
    except CheckFailed:
        return True


@pytest.mark.parametrize(
    ("edit", "engine"), covering(1, ["another table", "a fill lost", "padding alone"], ["register", "event"])
)
def test_pointers_that_are_not_there_are_seen(edit: str, engine: str) -> None:
    program = INDIRECT.lower(LAYER, BATCH, MACHINE)[0]
    at = next(i for i, step in enumerate(program.rows) if isinstance(step, Fill) and step.tensor.name == NAME)
    fill = program.rows[at]
    assert isinstance(fill, Fill)
    part = fill.parts[0]
    axis, numbers = part.items[0]
    assert isinstance(numbers, range)
    other = range(numbers.start + 1, numbers.stop + 1)
    if edit == "another table":
        step: Fill = replace(fill, parts=(part._replace(items=(Along(axis, other),)),))
    elif edit == "a fill lost":
        step = replace(fill, parts=(part._replace(base=part.base + 1),))
    else:
        step = replace(fill, parts=(part._replace(items=(Along(axis, range(-(10**4), -(10**4) + len(numbers))),)),))
    steps = [*program.rows]
    steps[at] = step
    broken = replace(program, rows=tuple(steps))
    assert seen(broken, engine)


def test_a_pass_that_contradicts_itself_is_refused() -> None:
    program = INDIRECT.lower(LAYER, BATCH, MACHINE)[0]
    index = next(i for i, step in enumerate(program.rows) if isinstance(step, Stream))
    stream = program.rows[index]
    assert isinstance(stream, Stream)
    group = stream.reads.groups[0]
    assert isinstance(group.pattern, Pointers)
    table = group.pattern.table
    beside = group._replace(pattern=group.pattern._replace(table=table._replace(base=0)))
    wrong = {
        "there is one reader": (group, beside),
        "reads through pointer 7 of": (group._replace(pattern=group.pattern._replace(which=7)),),
    }
    for says, groups in wrong.items():
        steps = [*program.rows]
        steps[index] = replace(stream, reads=Feed(groups))
        with pytest.raises(CheckFailed, match=says):
            check_program(replace(program, rows=tuple(steps)), MACHINE)


def test_only_passes_that_read_from_lanes_read_pointers() -> None:
    program = INDIRECT.lower(LAYER, BATCH, MACHINE)[0]
    index, stream = next((i, step) for i, step in enumerate(program.rows) if isinstance(step, Stream))
    at, spill = next((i, step) for i, step in enumerate(program.rows) if isinstance(step, Spill))
    through = replace(spill, parts=(spill.parts[0]._replace(feed=stream.reads),))
    with pytest.raises(CheckFailed, match="spills through pointers"):
        check_program(with_step(program, at, through), MACHINE)
    banked = machine(4, 4, capacity_words=300, vector_memory={"organization": "banked"})
    from_banks = replace(stream, reads=BankFeed(stream.reads.groups))
    with pytest.raises(CheckFailed, match="reads banks through pointers"):
        check_program(with_step(program, index, from_banks), banked)
    with pytest.raises(CapacityError, match="this lowering reads from lanes alone"):
        lowered(LAYER, BATCH, banked, "indirect")


def with_step(program: Program, at: int, step: Spill | Stream) -> Program:
    return replace(program, rows=(*program.rows[:at], step, *program.rows[at + 1 :]))


# ---- gathers


def gathering(
    addresses: Numbers, words: int, hardware: Hardware, folds: int = 1, elements: int = 0
) -> tuple[PointedProgram, dict[str, NDArray[np.float32]]]:
    """A pass over a map of `words` words a lane, by any addresses [pass, tap, word]; the passes add up."""
    passes, taps, length = addresses.shape
    fill, rows, rng = elements or hardware.vector_memory.word_elements, hardware.array.rows, np.random.default_rng(5)
    lanes = rows // taps
    ifmap = Tensor("ifmap", (lanes, 1, words, fill))
    filter_, ofmap = (
        Tensor("filter", (hardware.array.cols, lanes * taps)),
        Tensor("ofmap", (hardware.array.cols, 1, length, fill)),
    )
    word = hardware.vector_memory.word_elements
    weight_words = -(-lanes * taps // word)
    copies = tuple(tap * lanes for tap in range(taps))
    into = words + weight_words
    cols = (Along(0, range(hardware.array.cols)),)
    map_part = Part(0, copies, (Along(0, range(lanes)),), (Along(2, range(words)), Along(3, range(fill))), fill)
    weights = Part(words, (0,), cols, (Along(1, range(lanes * taps)),), word)
    out = Part(into, (0,), cols, (Along(2, range(length)), Along(3, range(fill))), fill)
    steps: list[Fill | Preload | Stream | Spill] = [Fill((), ifmap, (map_part,), 64), Fill((), filter_, (weights,), 64)]
    for number in range(passes):
        groups = (
            LaneGroup(tap * lanes, lanes, AddressTable(tuple(addresses[number, tap].tolist()))) for tap in range(taps)
        )
        steps.append(Preload((1,), words, weight_words, lanes * taps, hardware.array.cols))
        reads = Feed(tuple(groups))
        steps.append(Stream((0,), len(steps) - 1, reads, into, length, lanes * taps, hardware.array.cols, number > 0))
    steps.append(Spill((len(steps) - 1,), ofmap, (out,), 64))
    buffers = (
        Buffer("ifmap", 0, words, rows),
        Buffer("filter", words, weight_words, rows),
        Buffer("ofmap", into, length, rows),
    )
    program = Program((ifmap, filter_, ofmap), buffers, tuple(steps), fill)
    operands = {each.name: rng.integers(1, 9, each.shape).astype(np.float32) for each in (ifmap, filter_)}
    return PointedProgram(program, hardware), operands


@pytest.mark.parametrize("seed", range(12))
def test_random_pointers_are_numpys_fancy_indexing(seed: int) -> None:
    """In both engines to the cycle; any order, words again and again, padding, whatever shares a word of pointers."""
    rng = np.random.default_rng(seed)
    hardware = machine(
        int(rng.integers(4, 9)),
        int(rng.integers(1, 7)),
        word_elements=int(rng.choice([1, 2, 3, 8])),
        capacity_words=4000,
        array={"count": int(rng.choice([1, 1, 2, 3, 16])), "weight_buffers": int(rng.integers(1, 3))},
        vector_memory={"ports": str(rng.choice(["shared", "separate"]))},
    )
    words, length, passes, taps = (int(rng.integers(1, most)) for most in (90, 60, 5, 5))
    addresses = rng.integers(-1, words, (passes, taps, length))
    pointed, operands = gathering(addresses, words, hardware)
    lanes = hardware.array.rows // taps
    stored = np.concatenate([operands["ifmap"][:, 0], np.zeros((lanes, 1, operands["ifmap"].shape[3]))], axis=1)
    # PADDING is -1, the last of them: zeros.
    assert PADDING == -1
    gathered = stored[:, addresses]
    expected = np.einsum("otl,lptwe->owe", operands["filter"].reshape(-1, taps, lanes), gathered)
    check_program(pointed.program, hardware)
    np.testing.assert_array_equal(datapath.run(pointed.program, hardware, operands)["ofmap"][:, 0], expected)
    timing, written = register.run(pointed.program, hardware, operands)
    np.testing.assert_array_equal(written["ofmap"][:, 0], expected)
    assert timing == agreed_timing(pointed.program, hardware)
    assert pointed.program.use.port_reads == timing.reads


def test_the_largest_memory_is_reached_to_its_last_word() -> None:
    """2^23 words: the largest pointer is 2^24 - 2, which single precision still tells from its neighbours."""
    hardware = machine(2, 1, word_elements=1, capacity_words=MOST_WORDS)
    words = MOST_WORDS - 64
    addresses = np.array([[[words - 1, words - 2, 0, words - 3, PADDING, words - 4]]])
    pointed, operands = gathering(addresses, words, hardware)
    # The map is placed where it ends with the memory.
    stored = np.append(operands["ifmap"][:, 0, :, 0], np.zeros((2, 1)), axis=1)
    expected = operands["filter"] @ stored[:, addresses[0, 0]]
    written = datapath.run(pointed.program, hardware, operands)["ofmap"][:, 0, :, 0]
    np.testing.assert_array_equal(written, expected)
    assert numbers_of(pointed.program).max() == 2 * (words - 1)


def test_what_has_no_room_for_a_table_is_refused() -> None:
    addresses = np.arange(50).reshape(1, 1, 50)
    gathering(addresses, 200, machine(4, 4, word_elements=8, capacity_words=255))
    with pytest.raises(CapacityError, match=r"need 4 words beside the 251 .* at least 8160 B"):
        gathering(addresses, 200, machine(4, 4, word_elements=8, capacity_words=254))


def test_of_more_tables_than_fit_the_oldest_gives_way() -> None:
    rng = np.random.default_rng(0)
    addresses = rng.integers(0, 50, (6, 1, 50))[[0, 1, 2, 3, 4, 5, 0]]
    plenty, _ = gathering(addresses, 50, machine(4, 4, word_elements=8, capacity_words=1000))
    few, operands = gathering(addresses, 50, machine(4, 4, word_elements=8, capacity_words=101 + 8))
    assert [len(each) for each in (plenty.tables, plenty.fills, few.tables, few.fills)] == [6, 6, 6, 7]
    assert few.words < plenty.words
    hardware = machine(4, 4, word_elements=8, capacity_words=101 + 8)
    timing, written = register.run(few.program, hardware, operands)
    assert timing == agreed_timing(few.program, hardware)
    np.testing.assert_array_equal(written["ofmap"], datapath.run(plenty.program, hardware, operands)["ofmap"])


# ---- in HBM


def test_initialisation_is_counted_and_shared() -> None:
    """One set of pointers for both buffers of the ifmap, all its row folds, all column folds and all images."""
    hardware = machine(4, 4, word_elements=4, capacity_words=1000)
    few, many = (INDIRECT.lower(conv(8, 6, 12, 3, padding=1), batch, hardware) for batch in (4, 8))
    assert few[1].blocking.rows == many[1].blocking.rows
    assert few[1].choices["pointers"] == many[1].choices["pointers"]
    for program, explanation in (few, many):
        moved = sum(step.hbm_bytes for step in fills(program, NAME))
        assert moved == explanation.choices["pointer_hbm_bytes"]
        assert len(fills(program, NAME)) == explanation.choices["initialisations"] == explanation.choices["tables"]
        others = sum(step.hbm_bytes for step in program.rows if isinstance(step, Fill) and step.tensor.name != NAME)
        assert program.use.hbm_read_bytes == others + moved
        assert "images share them" in explanation.aspects["pointer"]


def test_what_pointers_take_of_a_layer_of_resnet() -> None:
    """56 x 56, 3 x 3, batch 8: 28,224 pointers, a tap and output each, would be 0.88 % of the ifmap. Of fourteen blocks
    of four rows the twelve between the edges are alike, as are the taps of the others that touch no padding.
    """
    layer, hardware = conv(64, 56, 64, 3, padding=1), load_hardware("tpu_v2")
    explanation, (plain, _) = (
        INDIRECT.lower(layer, 8, hardware)[1],
        CHANNEL_FIRST.lower(layer, 8, hardware),
    )
    found = explanation.choices
    assert (found["rows"], found["cols"], found["blocks"]) == (4, 56, 14)
    assert round(28_224 * 2 / (56 * 56 * 64 * 8 * 4), 4) == 0.0088
    assert found["pointers"] == (9 + 6 + 6) * 4 * 56 == 28_224 / 6
    assert found["pointer_hbm_bytes"] == 2 * int(found["pointers"]) == 9_408
    assert plain.use.hbm_read_bytes == 9_551_872
    assert "9 x 3,136 taps" in explanation.aspects["pointer"]
    assert "9.408 kB from HBM, 0.10 % more than without" in explanation.aspects["pointer"]


def test_the_operands_of_a_layer_are_all_that_is_asked_for() -> None:
    program = INDIRECT.lower(LAYER, BATCH, MACHINE)[0]
    assert {*datapath.run(program, MACHINE, operands_of(LAYER, BATCH, 0))} == {"ofmap"}
    assert {*register.run(program, MACHINE, operands_of(LAYER, BATCH, 0))[1]} == {"ofmap"}
