"""What comes before the weights of a block, and what words wait for: rules by hand, and both engines on any delays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree, agreed_timing
from tests.agreement.test_agreement import short
from tests.covering import covering
from tests.rules import rule
from tests.strategies import cases, conv, fills, gemms, machine, machines, small_layers
from tpusim.base.errors import CapacityError, CheckFailed
from tpusim.machines.tpu.cut.geometry import shape_of
from tpusim.machines.tpu.cut.reduction import TapGroups
from tpusim.machines.tpu.definition import word_cycles
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import explicit
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST, Cutting, convolved
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream
from tpusim.machines.tpu.search.estimates import Candidates
from tpusim.machines.tpu.sections import BlockSizes
from tpusim.network.ops.array_op import Conv2d, Gemm


def delayed(program: Program, delays: Sequence[int]) -> Program:
    """Its preloads delayed by these, over and over."""
    steps, number = list(program.rows), 0
    for index, step in enumerate(steps):
        if isinstance(step, Preload):
            steps[index] = replace(step, delay=delays[number % len(delays)])
            number += 1
    return replace(program, rows=tuple(steps))


def delays(program: Program) -> list[int]:
    return [step.delay for step in program.rows if isinstance(step, Preload)]


@rule("T48")
@settings(max_examples=cases(2 / 25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=st.one_of(small_layers(), gemms(largest=60)),
    batch=st.integers(1, 4),
    hardware=machines(8),
    some=st.lists(st.sampled_from([0, 0, 1, 2, 7, 30]), min_size=1, max_size=4),
)
def test_any_preload_may_be_delayed(layer: Conv2d | Gemm, batch: int, hardware: Hardware, some: Sequence[int]) -> None:
    """Those of the passes that the event engine takes many of at once as well."""
    try:
        program = delayed(CHANNEL_FIRST.lower(layer, batch, hardware)[0], some)
    except CapacityError:
        assume(False)
    short(program, hardware)
    agree(layer, batch, program, hardware)


def test_many_passes_alike_with_a_delay_among_them() -> None:
    layer, hardware = Gemm("long", 8, 4, 400), machine(4, 4, bytes_per_cycle=1000, vector_memory={"ports": "separate"})
    program = CHANNEL_FIRST.lower(layer, 1, hardware)[0]
    plain = agree(layer, 1, program, hardware)
    for at in (40, 99):
        some = [50 if number == at else 0 for number in range(100)]
        timing = agree(layer, 1, delayed(program, some), hardware)
        assert plain.cycles < timing.cycles <= plain.cycles + 50 + program.frame(hardware).period


@rule("T48")
def test_a_delay_by_hand() -> None:
    """docs/timing.md, section 7: the preload of 8 begins in 13 and reads in 13, 15; the ifmap is there before it."""
    layer, hardware = Gemm("gemm", 4, 4, 4), machine(4, 4, sequencer={"block_cycles": 5})
    program = CHANNEL_FIRST.lower(layer, 1, hardware)[0]
    assert delays(program) == [5]
    timing, plain = agree(layer, 1, program, hardware), agreed_timing(delayed(program, [0]), hardware)
    assert timing.units["preload"] == {**plain.units["preload"], "blocked": 5, "idle": timing.cycles - 13 - 4}
    # Weights are in the array at 17 instead of 12, so that the first word is read in 18 instead of 14.
    assert (plain.cycles, timing.cycles) == (35, 39)


@rule("T40", "T49")
@pytest.mark.parametrize("between", ["drain", "overlap"])
@pytest.mark.parametrize(
    ("order", "column_folds"), [("block_major", "one"), ("block_major", "all"), ("filter_major", "one")]
)
def test_the_loop_comes_to_each_block(between: str, order: str, column_folds: str) -> None:
    """A body is a block with the column folds that it keeps."""
    layer = Gemm("g", 24, 12, 6)
    hardware = machine(
        4,
        4,
        capacity_words=30,
        sequencer={"between_blocks": between, "block_cycles": 30},
        mapping={"loop_order": order, "chunks": "needed"},
    )
    mapping = hardware.mapping.model_copy(update={"column_folds": column_folds})
    hardware = hardware.model_copy(update={"mapping": mapping})
    program, explanation = CHANNEL_FIRST.lower(layer, 1, hardware)
    blocking, columns = explanation.blocking, explanation.blocking.col_folds
    assert (blocking.blocks > 1, blocking.chunks, columns) == (True, 1, 3)
    bodies = blocking.blocks * (1 if column_folds == "all" else 3)
    assert sorted(delays(program)) == [0] * (len(program.streams) - bodies) + [30] * bodies
    for index, step in enumerate(program.rows):
        if isinstance(step, Preload) and step.delay:
            assert not next(each for each in program.rows[index:] if isinstance(each, Stream)).accumulate
    agree(layer, 1, program, hardware)


@rule("T53")
def test_a_loop_that_drains_shows_what_its_bodies_take() -> None:
    """Every body, serially; where blocks overlap, long passes hide it."""
    layer = Gemm("g", 480, 4, 4)
    more = {}
    for between in ("drain", "overlap"):
        options: dict[str, Any] = {"word_elements": 8, "capacity_words": 60, "bytes_per_cycle": 5000}
        hardware = machine(4, 4, latency_cycles=1, sequencer={"between_blocks": between}, **options)
        program, explanation = CHANNEL_FIRST.lower(layer, 1, hardware.with_overrides(["mapping.block_m=12"]))
        assert (explanation.blocking.blocks, len(program.streams)) == (5, 5)
        some, many = (agree(layer, 1, delayed(program, [each]), hardware).cycles for each in (20, 60))
        more[between] = many - some
    assert more == {"drain": 5 * 40, "overlap": 40}


@rule("T50")
@pytest.mark.parametrize(("copies", "cycles"), covering(1, [1, 2, 3, 9], [0.75, 3, "1/3"]))
def test_copies_beyond_the_second_are_rotated(copies: int, cycles: object) -> None:
    """So many cycles a word and copy, rounded up for a block, before the passes that use a new patch; once."""
    layer = conv(1, 9, 6, 3, padding=1)
    hardware = machine(
        9,
        4,
        capacity_words=200,
        mapping={"multi_tile": copies, "loop_order": "block_major"},
        vector_unit={"stack_cycles": cycles},
    )
    program = CHANNEL_FIRST.lower(layer, 2, hardware)[0]
    parts = [part for fill in fills(program, "ifmap") for part in fill.parts]
    assert {len(part.first_lanes) for part in parts} == {copies}
    per_copy, blocks = hardware.vector_unit.stack_cycles, {part.base for part in parts}
    assert per_copy.limit_denominator(9) == per_copy
    if len(blocks) == 1:
        total = ceil(sum(part.words for part in parts) * max(0, copies - 2) * per_copy)
        assert sum(delays(program)) == total
    assert (sum(delays(program)) > 0) == (copies > 2)
    agree(layer, 2, program, hardware)


@rule("T50")
def test_a_patch_that_stays_is_rotated_once() -> None:
    """Several column folds use it, one after another."""
    layer, hardware = (
        conv(1, 6, 12, 3),
        machine(4, 4, mapping={"multi_tile": 4, "loop_order": "block_major"}, vector_unit={"stack_cycles": 1}),
    )
    program, explanation = CHANNEL_FIRST.lower(layer, 1, hardware)
    assert (explanation.blocking.col_folds, explanation.blocking.blocks) == (3, 1)
    assert [*filter(None, delays(program))] == [2 * sum(fill.words for fill in fills(program, "ifmap"))]


@rule("T51")
@pytest.mark.parametrize(
    ("channels", "kernel", "tile", "new"),
    [
        (4, 1, 1, [36 * 9 + 2 - 72]),
        # A pass streams 16 words in 32 cycles, two words of weights and 16 sums come besides.
        (4, 3, 1, [16 * 9 + 2 - 32] + 4 * [4 * 9 + 2 + 16 - 32]),
        # 16 words more are loaded again; the passes of one tap have one word of weights.
        (2, 3, 2, [20 * 9 + 2 + 16 - 32, 4 * 9 + 1 + 32 - 32] + 2 * [5 * 9 + 2 + 32 - 32, 9 + 1 + 32 - 32]),
        # Two words a point, each in a pass of its own.
        (8, 1, 1, [36 * 9 + 2 - 72, 36 * 9 + 2 + 36 - 72]),
    ],
)
def test_an_ifmap_that_arrives_in_another_layout_is_laid_out_anew(
    channels: int, kernel: int, tile: int, new: list[int]
) -> None:
    """Each word once, in the first pass that wants it; what its stream does not hide comes ahead of the block."""
    layer = conv(channels, 6, 4, kernel)
    for entry, total in (("relaid", sum(new)), ("ready", 0)):
        hardware = machine(
            4,
            4,
            mapping={"multi_tile": tile, "entry": entry, "loop_order": "block_major"},
            vector_unit={"relayout_cycles": 9},
        )
        whole = hardware.mapping.model_copy(update={"block": BlockSizes(rows=6, cols=6, in_channels=8)})
        hardware = hardware.model_copy(update={"mapping": whole})
        program, explanation = CHANNEL_FIRST.lower(layer, 2, hardware)
        assert (explanation.blocking.blocks, explanation.blocking.chunks) == (1, 1)
        assert [*filter(None, delays(program))] == [total] * (total > 0)
        agree(layer, 2, program, hardware)


@rule("T51")
def test_what_passes_hide_takes_nothing() -> None:
    """As many cycles as a word streams; the loads of weights remain."""
    program = CHANNEL_FIRST.lower(
        conv(4, 6, 4, 1), 2, machine(4, 4, vector_unit={"relayout_cycles": 2}, mapping={"entry": "relaid"})
    )[0]
    assert sum(delays(program)) == 2 * sum(delay > 0 for delay in delays(program)) > 0


def test_a_transformation_ahead_takes_any_layout() -> None:
    """The lowered matrix is written as it is read."""
    hardware = machine(4, 4, vector_unit={"relayout_cycles": 9}, mapping={"entry": "relaid"})
    assert not any(delays(explicit.EXPLICIT.lower(conv(3, 6, 4, 3), 2, hardware)[0]))


@rule("T8")
@pytest.mark.parametrize(
    ("cycles", "words", "groups", "each"),
    [(64, 8, 1, 64), (64, 8, 3, 22), (64, 8, 8, 8), (64, 8, 20, 8), (0, 8, 2, 0), (7, 1, 9, 7)],
)
def test_words_of_a_pixel_are_transposed_together(cycles: int, words: int, groups: int, each: int) -> None:
    hardware = machine(vector_unit={"transpose_cycles": cycles, "transpose_words": words})
    assert word_cycles(groups, True, hardware) == each


@rule("T8")
@pytest.mark.parametrize(
    ("kernel", "gather", "each"),
    [(3, "1/2", 2 + 5), (5, "1/2", 2 + 13), (5, 1, 2 + 25), (3, 0, 2), (7, 1, 2 + 25)],
)
def test_the_taps_of_a_pass_are_put_side_by_side(kernel: int, gather: Any, each: int) -> None:
    """4 channels of 3x3 or 5x5 taps fill one pass, those of 7x7 two: 24.5 taps a pass."""
    hardware = machine(128, 128, vector_unit={"transpose_cycles": 2, "gather_cycles": gather}).having(
        "mapping", transposed_channels=4
    )
    layer = conv(4, 6, 8, kernel, padding=kernel // 2)
    program = CHANNEL_FIRST.lower(layer, 2, hardware)[0]
    assert program.word_cycles == each
    agree(layer, 2, program, hardware)


@rule("T50")
@pytest.mark.parametrize(("by", "rotations"), [("copy", 14), ("column", 3), ("word", 1)])
def test_which_copies_are_rotated(by: str, rotations: int) -> None:
    """Taps of one channel stand side by side, 16 copies of a word; two of these come by themselves."""
    layer, hardware = (
        conv(1, 6, 4, 5),
        machine(32, 32, mapping={"multi_tile": "dense"}, vector_unit={"stack_cycles": 2, "stack_by": by}),
    )
    program = CHANNEL_FIRST.lower(layer, 2, hardware)[0]
    assert sum(delays(program)) == 6 * 6 * 2 * rotations
    agree(layer, 2, program, hardware)


class TransposedCut(TapGroups):
    """A cut whose ifmap is transposed for each pass."""

    transposed = True


@rule("T8")
@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize("arrays", [1, 2])
def test_a_lowering_that_transposes_has_long_frames(batch: int, arrays: int) -> None:
    """A frame lasts as long as its words take; what is beyond elements and slots is booked as blocked."""
    layer = conv(1, 6, 4, 3)
    words = {"transpose_cycles": 31, "stack_cycles": 2}
    hardware = machine(bytes_per_cycle=1000, array={"count": arrays}, vector_unit=words, mapping={"multi_tile": 4})
    program = convolved(TransposedCut, layer, batch, hardware)[0].lower()[0]
    groups = -(-batch // 2)
    assert program.word_cycles == -(-31 // groups)
    frame = program.frame(hardware)
    assert frame.period == program.word_cycles * arrays
    assert frame.issue_cycles + frame.port_stall + frame.blocked == frame.period
    # Nothing is rotated, either.
    assert delays(program) == [0] * len(program.streams)
    timing = agree(layer, batch, program, hardware)
    frames = sum(-(-step.words // arrays) for step in program.streams)
    assert timing.units["systolic_array"]["blocked"] >= frames * frame.blocked > 0
    assert CHANNEL_FIRST.lower(layer, batch, hardware)[0].word_cycles == 0


@rule("T8")
def test_a_word_may_stream_all_of_it() -> None:
    """However few of its elements are used; what is beyond them is booked as blocked."""
    layer, found = Gemm("g", 5, 9, 7), {}
    for streamed in ("used", "all"):
        hardware = machine(4, 4, word_elements=8, array={"streamed": streamed})
        program = CHANNEL_FIRST.lower(layer, 1, hardware)[0]
        frame = program.frame(hardware)
        found[streamed] = program.word_fill, frame.issue_cycles, frame.period, frame.blocked
        agree(layer, 1, program, hardware)
    assert found == {"used": (5, 5, 5, 0), "all": (5, 5, 8, 3)}


def test_what_no_machine_can_do_is_refused() -> None:
    hardware = machine()
    program = CHANNEL_FIRST.lower(Gemm("g", 4, 4, 4), 1, hardware)[0]
    with pytest.raises(CheckFailed, match=r"step \d+ \(preload\) begins 3 cycles before it can"):
        check_program(delayed(program, [-3]), hardware)
    with pytest.raises(CheckFailed, match="makes words ready in -1 cycles"):
        check_program(replace(program, word_cycles=-1), hardware)


# ---- blocks are chosen with these costs


def chosen(layer: Conv2d | Gemm, **sequencer: int) -> tuple[int, int]:
    """The blocks that the search takes, and the cycles of the layer."""
    hardware = machine(
        8, 8, capacity_words=1000, bytes_per_cycle=30, sequencer={"between_blocks": "drain", **sequencer}
    )
    program, explanation = CHANNEL_FIRST.lower(layer, 1, hardware)
    return explanation.blocking.blocks, agreed_timing(program, hardware).cycles


def test_blocks_are_fewer_where_each_costs_more() -> None:
    """And the layer takes less time than with the blocks of a machine on which they cost nothing."""
    layer = conv(8, 80, 16, 3)
    (many, cheap), (few, dear) = chosen(layer), chosen(layer, block_cycles=1000)
    assert few < many
    assert dear - cheap < 1000 * many


def test_the_estimate_knows_what_a_stacked_word_and_a_long_frame_take() -> None:
    """Where all blocks are alike, the estimate grows as the engine's cycles do."""
    layer = conv(1, 30, 8, 3)
    for unit, entry, cut in (
        ({"stack_cycles": 5}, "ready", TapGroups),
        ({"transpose_cycles": 40}, "ready", TransposedCut),
        ({"relayout_cycles": 60}, "relaid", TapGroups),
    ):
        cycles, estimates = [], []
        for costs, comes in (({}, "ready"), (unit, entry)):
            mapping = {"multi_tile": 9, "entry": comes}
            hardware = machine(
                9, 8, bytes_per_cycle=1000, vector_unit=costs, sequencer={"between_blocks": "drain"}, mapping=mapping
            )
            program, explanation = convolved(cut, layer, 2, hardware)[0].lower()
            cycles.append(agreed_timing(program, hardware).cycles)
            estimates.append(estimated(cut, layer, 2, hardware, explanation.blocking.blocks))
        grown = cycles[1] - cycles[0]
        assert grown > 0.3 * cycles[0]
        assert estimates[1] - estimates[0] == pytest.approx(grown, rel=0.1)


def estimated(cutting: Cutting, layer: Conv2d, batch: int, hardware: Hardware, blocks: int) -> float:
    """The estimate of the tiling that is taken, found among those of the first way."""
    shape = shape_of(layer, batch, hardware)
    candidates = Candidates(cutting(shape, hardware), hardware)
    tilings = next(candidates.whole())
    return float(candidates.estimate(tilings)[tilings.blocks == blocks].min())
