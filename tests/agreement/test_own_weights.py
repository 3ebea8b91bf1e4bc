"""Arrays with weights of their own: passes of one array run beside those of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate, product, starmap
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree, agreed_timing, clocked
from tests.agreement.test_agreement import CASES, MOST_CYCLES, Layer, fitted, least_cycles, short, suppose
from tests.covering import covering
from tests.machines.tpu.test_timeline import slices_add_up
from tests.rules import rule
from tests.strategies import (
    cases,
    conv,
    deform_convs,
    lowerings_of,
    machine,
    machines,
    machines_of_all_kinds,
    small_layers,
    transposed_convs,
    with_resident_taps,
)
from tpusim.base.errors import CheckFailed
from tpusim.flow.verify import operands_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.definition import IFMAP, POINTER, PORTS, PSUM, RESULT, Clients, Frame, Ports
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.observation.timeline import words_in_use
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Fill, Part, Spill
from tpusim.network.ops.array_op import ConvTranspose2d, Gemm
from tpusim.reference import Tensor as Values

Turn = Callable[[int, Stream], int]
"""The array of a pass, by its number and its stream."""
MOST_PASSES = 200
PARTS = 2
"""In which cases are tried, perhaps side by side; the first of each is the least that can be drawn."""


def dealt(program: Program, turn: Turn) -> Program:
    """The Program with its passes dealt out to arrays, and all waits that the one order of passes made needless.

    Who waits for a pass waits for the last passes ahead of it on all arrays; a pass waits for what passes ahead of it
    wait for, and for those of other arrays that write what it touches, or touch what it writes.
    """
    numbered = {step.preload: (number, step) for number, step in enumerate(program.streams)}
    arrays = {index: turn(*each) for index, each in numbered.items()}
    steps, last = list(program.rows), _Last()
    for index, step in enumerate(program.rows):
        after = {*step.after}.union(*(last.behind[each] for each in step.after))
        if isinstance(step, Preload):
            after |= last.waits(Preload, arrays[index])
            steps[index] = replace(step, array=arrays[index])
        elif isinstance(step, Stream):
            after |= last.waits(Stream, arrays[step.preload]) | last.met(step, arrays[step.preload])
        steps[index] = replace(steps[index], after=tuple(sorted(after)))
        last.see(index, step, arrays)
    return replace(program, rows=tuple(steps))


class _Last:
    """What is known of the steps ahead: the last of each kind on each array, and what others have waited for."""

    def __init__(self) -> None:
        self.behind: defaultdict[int, set[int]] = defaultdict(set)
        self._last: dict[tuple[type[Any], int], int] = {}
        self._waited: dict[type[Any], set[int]] = {Preload: set(), Stream: set()}
        self._streams: list[tuple[int, int, Stream]] = []

    def see(self, index: int, step: Any, arrays: dict[int, int]) -> None:
        if isinstance(step, Vector):
            self._streams = []
        if not isinstance(step, Preload | Stream):
            return
        array = arrays[step.preload if isinstance(step, Stream) else index]
        self._last[type(step), array] = index
        self.behind[index] = {each for (kind, _), each in self._last.items() if kind is type(step)}
        self._waited[type(step)] |= {*step.after}
        if isinstance(step, Stream):
            self._streams.append((index, array, step))

    def waits(self, kind: type[Any], array: int) -> set[int]:
        return self._waited[kind].union(*(self.behind[each] for each in self._waited[kind]))

    def met(self, step: Stream, array: int) -> set[int]:
        """The last stream of each other array that touches the same words, one of both writing."""
        found: dict[int, int] = {}
        for index, other, before in self._streams:
            both = ((before.words_written, step.words_read), (before.words_read, step.words_written),
                    (before.words_written, step.words_written))  # fmt: skip
            if other != array and any(starmap(_overlap, both)):
                found[other] = index
        return {*found.values()}


def _overlap(some: Iterable[range], others: Iterable[range]) -> bool:
    ours = [*some]
    return any(one.start < other.stop and other.start < one.stop for other in others for one in ours)


def by_result(arrays: int) -> Turn:
    """Passes that add to one result stay on one array; the next result is the next array's."""
    begun = [-1]

    def turn(number: int, step: Stream) -> int:
        begun[0] += not step.accumulate
        return max(begun[0], 0) % arrays

    return turn


def in_turn(arrays: int) -> Turn:
    """Neighbouring passes on different arrays, those that add to one result too, which then wait for one another."""
    return lambda number, step: number % arrays


def at_random(arrays: int, seed: int) -> Turn:
    rng = np.random.default_rng(seed)
    return lambda number, step: int(rng.integers(arrays))


def own(hardware: Hardware, count: int) -> Hardware:
    array = hardware.array.model_copy(update={"count": count, "weights": "own"})
    return hardware.model_copy(update={"array": array})


def lowered(layer: Layer, batch: int, hardware: Hardware, name: str, turn: Turn | None) -> tuple[Program, Hardware]:
    """With passes as `turn` deals them out, or as lowerings do. Give up what would be long, or does not know banks."""
    suppose(not hardware.banked)
    suppose(layer.macs(batch) / (hardware.array.rows * hardware.array.cols) < 800)
    suppose(least_cycles(layer, batch, hardware) < MOST_CYCLES)
    program, hardware = fitted(layer, batch, hardware, name)
    suppose(len(program.streams) < MOST_PASSES)
    return dealt(program, turn) if turn else program, hardware


@st.composite
def programs(draw: st.DrawFn) -> tuple[Layer, int, Program, Hardware]:
    """By every lowering without pointers, passes dealt out to two to four arrays in one way or another."""
    layer = draw(st.one_of(small_layers(), small_layers(), transposed_convs(), deform_convs()))
    hardware = draw(machines_of_all_kinds(16, st.sampled_from([1, 2, 3, 4, 8, 16])))
    batch, count, seed = draw(st.integers(1, 9)), draw(st.integers(2, 4)), draw(st.integers(0, 99))
    if isinstance(layer, ConvTranspose2d):
        hardware = with_resident_taps(hardware)
    name = draw(st.sampled_from(sorted(lowerings_of(layer) - {"indirect"})))
    turn = draw(st.sampled_from([None, None, by_result(count), in_turn(count), at_random(count, seed)]))
    program, hardware = lowered(layer, batch, own(hardware, count), name, turn)
    word_cycles = max(program.word_cycles, draw(st.sampled_from([0, 0, 3, 11, 40])))
    return layer, batch, replace(program, word_cycles=word_cycles), hardware


relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck))


@rule("T19")
@pytest.mark.parametrize("part", range(PARTS))
@settings(relaxed, max_examples=-(-CASES // 2 // PARTS))
@given(case=programs())
def test_engines_agree_to_the_cycle(part: int, case: tuple[Layer, int, Program, Hardware]) -> None:
    """And values are right, as for arrays that share weights."""
    layer, batch, program, hardware = case
    agree(layer, batch, program, hardware, timing=short(program, hardware))


@rule("T22")
@settings(relaxed, max_examples=cases(1 / 15))
@given(case=programs())
def test_slices_add_up_to_the_accounts(case: tuple[Layer, int, Program, Hardware]) -> None:
    """Those of each array; and all words that were in use are free in the end."""
    _, _, program, hardware = case
    timeline = event.record(program, hardware).timeline()
    slices_add_up(timeline, agreed_timing(program, hardware))
    _, words = words_in_use(program, timeline)
    assert words.min() >= words[-1] == 0


@settings(relaxed, max_examples=cases(1 / 15))
@given(layer=small_layers(), batch=st.integers(1, 9), hardware=machines(16))
def test_one_array_has_its_own_weights_anyway(layer: Layer, batch: int, hardware: Hardware) -> None:
    suppose(least_cycles(layer, batch, hardware) < MOST_CYCLES)
    program, hardware = fitted(layer, batch, own(hardware, 1), "channel_first")
    shared = hardware.model_copy(update={"array": hardware.array.model_copy(update={"weights": "shared"})})
    assert agreed_timing(program, hardware) == agreed_timing(program, shared)


# ---- what it gains


ROWS, COLS, WORDS, ELEMENTS, PASSES = 16, 4, 2, 8, 8
IMAGES, WEIGHT_WORDS = WORDS * ELEMENTS, ROWS // ELEMENTS


def independent(hardware: Hardware) -> Program:
    """Passes of two words each, all over the same ifmap, each with weights and a result of its own."""
    ifmap, filter_ = Tensor("ifmap", (ROWS, IMAGES)), Tensor("filter", (COLS, ROWS * PASSES))
    ofmap = Tensor("ofmap", (COLS, PASSES, IMAGES))
    images = Along(1, range(IMAGES))
    streamed = Part(0, (0,), (Along(0, range(ROWS)),), (images,), ELEMENTS)
    weights = Part(WORDS, (0,), (Along(0, range(COLS)),), (Along(1, range(ROWS * PASSES)),), ELEMENTS)
    results = WORDS + WEIGHT_WORDS * PASSES
    steps: list[Step] = [Fill((), ifmap, (streamed,), 64), Fill((), filter_, (weights,), 64)]
    reads = Feed((LaneGroup(0, ROWS, Counters(0, (Counter(WORDS, 0, 1, WORDS, 1),))),))
    for number in range(PASSES):
        base, array = WORDS + number * WEIGHT_WORDS, number % hardware.array.queues
        steps.append(Preload((1,), base, WEIGHT_WORDS, ROWS, COLS, array=array))
        result = results + number * WORDS
        steps.append(Stream((0,), len(steps) - 1, reads, result, WORDS, ROWS, COLS, accumulate=False))
    items = Along(1, range(PASSES)), Along(2, range(IMAGES))
    spilled = Part(results, (0,), (Along(0, range(COLS)),), items, ELEMENTS)
    steps.append(Spill(tuple(range(3, len(steps), 2)), ofmap, (spilled,), 64))
    words = {"ifmap": WORDS, "filter": WEIGHT_WORDS * PASSES, "ofmap": WORDS * PASSES}
    bases = accumulate(words.values(), initial=0)
    buffers = tuple(Buffer(name, base, held, ROWS) for (name, held), base in zip(words.items(), bases, strict=False))
    return Program((ifmap, filter_, ofmap), buffers, tuple(steps), ELEMENTS)


def products_of(program: Program, hardware: Hardware) -> tuple[Values, Values]:
    """The ofmap [column, pass, image], on which all agree, engines to the cycle; and what passes multiply."""
    random = np.random.default_rng(0)
    shapes = {each.name: each.shape for each in program.tensors if each.name != "ofmap"}
    operands = {name: random.integers(-9, 9, shape).astype(np.float32) for name, shape in shapes.items()}
    _, written = clocked(program, hardware, operands)
    np.testing.assert_array_equal(written["ofmap"], datapath.run(program, hardware, operands)["ofmap"])
    weights = operands["filter"].reshape(COLS, PASSES, ROWS)
    return written["ofmap"], np.einsum("cpr,ri->cpi", weights, operands["ifmap"])


def at_work(hardware: Hardware) -> int:
    """The cycles from the first preload until the last result is written; values and both engines are checked."""
    program = independent(hardware)
    values, products = products_of(program, hardware)
    np.testing.assert_array_equal(values, products)
    log = event.record(program, hardware).log
    return int(log.moves["ready"][-1] - log.loads["start"].min())


@rule("T23")
@pytest.mark.parametrize(("ports", "cycles"), [("shared", [170, 164, 132, 88]), ("separate", [170, 163, 131, 85])])
def test_few_words_and_many_weights_gain_by_weights_of_their_own(ports: str, cycles: list[int]) -> None:
    """A pass streams for 16 cycles, and its weights take as long, of 8 passes 128 cycles. Two arrays that share weights
    stream it in 8 cycles, and wait for all weights nevertheless; arrays of their own load them at the same time.
    """
    more: Any = {"vector_memory": {"ports": ports}, "word_elements": ELEMENTS, "alus": 1000}
    kinds = ((1, "shared"), (2, "shared"), (2, "own"), (4, "own"))
    found = [at_work(machine(ROWS, COLS, array={"count": n, "weights": weights}, **more)) for n, weights in kinds]
    assert found == cycles


@rule("T20", "T62")
@pytest.mark.parametrize(("late", "ports", "word_cycles"), covering(2, [0, 1], PORTS, [0, 40]))
def test_a_vector_step_waits_for_all_arrays(late: int, ports: str, word_cycles: int) -> None:
    """It adds what two arrays make, names neither in what it waits for, and passes behind it wait for it."""
    more: Any = {"vector_memory": {"ports": ports}, "word_elements": ELEMENTS, "alus": 1000}
    hardware = machine(ROWS, COLS, array={"count": 2, "weights": "own"}, **more)
    program = independent(hardware)
    first, second, third = (
        Feed((LaneGroup(0, COLS, Counters(stream.result_base, (Counter(WORDS, 0, 1, WORDS, 1),))),))
        for stream in program.streams[:3]
    )
    steps = [
        replace(step, delay=200) if isinstance(step, Preload) and index == 2 + 2 * late else step
        for index, step in enumerate(program.rows[:6])
    ]
    steps.append(Vector((), "add", (first, second), third, WORDS))
    steps.append(Preload((1,), WORDS, WEIGHT_WORDS, ROWS, COLS, array=1 - late))
    behind = replace(program.streams[0], after=(0,), preload=7, result_base=program.streams[3].result_base)
    spill = program.rows[-1]
    assert isinstance(spill, Spill)
    (part,) = spill.parts
    written = part._replace(items=(Along(1, range(4)), part.items[1]))
    steps += [behind, replace(spill, after=(3, 5, 6, 8), parts=(written,))]
    program = replace(program, rows=tuple(steps), word_cycles=word_cycles)
    values, products = products_of(program, hardware)
    np.testing.assert_array_equal(values[:, 2], products[:, 0] + products[:, 1])
    np.testing.assert_array_equal(values[:, 3], products[:, 0])
    log = event.record(program, hardware).log
    assert log.works["issued"][0] >= 200 + 2 * ROWS
    assert log.passes["start"][log.passes["step"] == 8] > log.works["done"][0]


@rule("T23")
def test_lowerings_deal_sums_out() -> None:
    """Of a product of few rows, whose weights take longer to load than to be used, two arrays make light work. The
    frame of four would be as much longer as they are more, so that two of them get none.
    """
    cycles = {}
    for count, weights in product((1, 2, 4), ("shared", "own")):
        choices = {"array.count": count, "array.weights": weights, "hbm.bandwidth": "2 TB/s"}
        hardware = load_hardware("tpu_v2", choices)
        program, _ = CHANNEL_FIRST.lower(Gemm("g", 128, 4096, 1024), 1, hardware)
        assert {*program.arrays} - {-1} == {*range(min(2, hardware.array.queues))}
        cycles[count, weights] = event.run(program, hardware).cycles
    assert cycles[1, "own"] == cycles[1, "shared"]
    assert cycles[2, "own"] < 0.7 * cycles[2, "shared"]
    assert cycles[4, "own"] < 0.6 * cycles[4, "shared"]


@rule("T17", "T20")
def test_two_passes_run_beside_one_another() -> None:
    """Both arrays are busy in the same cycles, each in its own slots of the frame."""
    hardware = machine(4, 4, word_elements=8, alus=1000, array={"count": 2, "weights": "own"})
    program = dealt(CHANNEL_FIRST.lower(Gemm("two", m=64, n=8, k=4), 1, hardware)[0], by_result(2))
    assert [array for array, step in zip(program.arrays, program.rows, strict=True) if isinstance(step, Stream)] == [
        0,
        1,
    ]
    tracks = event.record(program, hardware).timeline().tracks
    (first,), (second,) = ([each for each in tracks[name]] for name in ("stream", "stream_1"))
    period = program.frame(hardware).period
    assert (first.start % period, second.start % period) == (0, 1)
    assert max(first.start, second.start) < min(first.end, second.end)


# ---- the frame


@rule("T18")
@pytest.mark.parametrize("ports", PORTS.values(), ids=PORTS)
@pytest.mark.parametrize("clients", [(IFMAP, RESULT), (IFMAP, PSUM, RESULT), (IFMAP, POINTER, PSUM, RESULT)])
@pytest.mark.parametrize(("arrays", "elements"), [(2, 8), (2, 1), (3, 16), (4, 8), (4, 25)])
def test_a_cycle_of_the_frame_is_for_the_weights_of_one_array(
    arrays: int, elements: int, clients: Clients, ports: Ports
) -> None:
    """Or for pointers, where they share the port; cycles that no stream owns go to the arrays in turn."""
    frame = Frame.of(elements, 3, clients, ports, arrays, together=1)
    shared = Frame.of(elements, 3, clients, ports, arrays)
    assert replace(shared, together=1) == frame
    waits = [frame.weight_waits(array) for array in range(arrays)]
    pointers = frame.pointer_slots if frame.shared else range(0)
    for at in range(frame.period):
        assert sum(each[at] == 0 for each in waits) == (at not in pointers)
        for each in waits:
            assert each[(at + each[at]) % frame.period] == 0
    counts = [each.count(0) for each in waits]
    assert max(counts) - min(counts) <= 1
    assert shared.weight_waits(0).count(0) == frame.period - len(pointers)


# ---- what is refused


@rule("T17")
def test_an_array_that_the_machine_does_not_have() -> None:
    hardware = machine(4, 4, array={"count": 2, "weights": "own"})
    program = CHANNEL_FIRST.lower(Gemm("g", 4, 12, 4), 1, hardware)[0]
    check_program(dealt(program, in_turn(2)), hardware)
    for wrong, others in ((in_turn(3), hardware), (in_turn(2), machine(4, 4, array={"count": 2}))):
        with pytest.raises(
            CheckFailed, match=r"\(preload\) is for array \d; the machine has \d with weights of their own"
        ):
            check_program(dealt(program, wrong), others)


@rule("T21")
def test_pointers_are_read_for_the_first_array() -> None:
    hardware = machine(4, 4, array={"count": 2, "weights": "own"})
    layer = conv(4, 5, 4, 3)
    program = LOWERINGS["indirect"].lower(layer, 2, hardware)[0]
    agree(layer, 2, program, hardware)
    with pytest.raises(CheckFailed, match="reads pointers for array 1; they are read for the first array alone"):
        check_program(dealt(program, in_turn(2)), hardware)


@rule("T20")
def test_the_order_in_which_arrays_are_visited_does_not_matter() -> None:
    """In a cycle none of them sees what another does in it."""
    layer, hardware = conv(4, 4, 9, 3, padding=1), machine(4, 3, word_elements=4, array={"count": 3, "weights": "own"})
    program = dealt(LOWERINGS["winograd_2"].lower(layer, 4, hardware)[0], in_turn(3))
    operands = operands_of(layer, 4, seed=0)
    told, _ = register.run(program, hardware, operands)
    turned = register.RegisterMachine(program, hardware, operands)
    turned.registers.streams.turns[:] = [2, 1, 0]
    turned.run()
    assert turned.timing() == told


def test_passes_of_few_rows_go_to_all_arrays() -> None:
    """Weights take longer to load than a row takes to stream, so that one array would wait for all of them."""
    hardware = machine(array={"count": 2, "weights": "own"})
    program, _ = CHANNEL_FIRST.lower(Gemm("fc", 1, 64, 8), 1, hardware)
    assert {step.array for step in program.rows if isinstance(step, Preload)} == {0, 1}
