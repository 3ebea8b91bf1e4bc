"""How much of the vector memories is in use when, by hand and within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tests.agreement.chains import Chain
from tests.agreement.test_agreement import suppose
from tests.agreement.test_explicit import ORDERS, ordered
from tests.agreement.test_residence import found_for, with_room
from tests.strategies import (
    cases,
    conv,
    deform_convs,
    depthwise,
    layers,
    lowerings_of,
    machine,
    machines,
    machines_of_all_kinds,
    transposed_convs,
    vector_ops,
)
from tpusim.base.errors import CapacityError, InputError
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import cuts_of
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.lowering.explicit import EXPLICIT
from tpusim.machines.tpu.lowering.registry import LOWERINGS, meant
from tpusim.machines.tpu.lowering.riding import riding
from tpusim.machines.tpu.observation.timeline import words_in_use
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.steps import Stream
from tpusim.machines.tpu.program.transfers import Fill
from tpusim.machines.tpu.schedule.joined import linked
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.fused import Fused
from tpusim.network.ops.op import Op, VectorOp

SHORT = 4_000
"""Multiply-adds a PE of a layer that is lowered in no time."""


def used(program: Program, hardware: Hardware) -> dict[int, int]:
    """The words in use from each cycle on."""
    cycles, words = words_in_use(program, event.record(program, hardware).timeline())
    return dict(zip(cycles.tolist(), words.tolist(), strict=True))


@pytest.mark.parametrize("launch", [0, 10, 250])
def test_words_in_use_of_the_pass_by_hand(launch: int) -> None:
    """Filter: 2 words, from 0 until its weights are loaded at 12; ifmap: 2, 1 to 24; results: 2, 21 to 26.

    All of it later by the launch, until which nothing is in use: a whole number of frames of 2 cycles.
    """
    hardware = machine(4, 4, word_elements=2, sequencer={"launch_cycles": launch})
    words = {0: 2, 1: 4, 12: 2, 21: 4, 24: 2, 26: 0}
    later = {launch + cycle: count for cycle, count in words.items()}
    assert used(CHANNEL_FIRST.lower(Gemm("gemm", 4, 4, 4), 1, hardware)[0], hardware) == {0: 0} | later


@pytest.mark.parametrize("launch", [0, 7])
def test_words_are_in_use_until_their_last_reader_has_them(launch: int) -> None:
    """Two row folds and two column folds: either fold of the ifmap is streamed again for the second seven columns."""
    hardware = machine(4, 6, word_elements=2, sequencer={"launch_cycles": launch})
    program = CHANNEL_FIRST.lower(Gemm("gemm", m=3, n=7, k=5), 1, hardware)[0]
    assert [step.label for step in program.rows] == [
        "filter fill", "ifmap fill", "filter fill", "ifmap fill", "preload", "stream", "preload", "stream",
        "filter fill", "filter fill", "ofmap spill", "preload", "stream", "preload", "stream", "ofmap spill",
    ]  # fmt: skip
    tracks = event.record(program, hardware).timeline().tracks
    dma = {each.step: each for name in ("dma_0", "dma_1") for each in tracks[name]}
    preload, drain = ({each.step: each for each in tracks[name]} for name in ("preload", "drain"))
    held = [
        (dma[1].start, drain[12].end, 2), (dma[3].start, drain[14].end, 2),
        (dma[0].start, preload[4].end, 2), (dma[2].start, preload[6].end, 1),
        (dma[8].start, preload[11].end, 2), (dma[9].start, preload[13].end, 1),
        (drain[5].start, dma[10].end, 2), (drain[12].start, dma[15].end, 2),
    ]  # fmt: skip
    found = used(program, hardware)
    changes = {0} | {cycle for start, end, _ in held for cycle in (start, end)}
    assert found == {now: sum(words for start, end, words in held if start <= now < end) for now in sorted(changes)}
    assert list(found) == sorted(changes)


def test_what_a_pass_adds_to_is_in_use_once_by_hand() -> None:
    """Filter: 2 words, from 0 until its weights are loaded at 12; ifmap: 2, 1 to 30; what is added to: 2, 8 to 32."""
    hardware, layer = machine(4, 4, word_elements=2), Gemm("gemm", 4, 4, 4)
    draft, *_ = CHANNEL_FIRST.drafts(layer, 1, hardware)
    program = riding(draft, Fused("gemm", layer, adds=True, finish=()), hardware).lower()[0]
    assert used(program, hardware) == {0: 2, 1: 4, 8: 6, 12: 4, 30: 2, 32: 0}


@settings(max_examples=cases(1 / 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(hardware=machines(), layer=layers(), batch=st.integers(1, 9), adds=st.booleans())
def test_words_in_use_never_exceed_those_set_aside(
    hardware: Hardware, layer: Conv2d | Gemm, batch: int, adds: bool
) -> None:
    try:
        draft, *_ = CHANNEL_FIRST.drafts(layer, batch, hardware)
        whole = riding(draft, Fused(layer.name, layer, adds=True, finish=()), hardware) if adds else draft
        program, _ = whole.lower()
    except CapacityError:
        assume(False)
    cycles, words = words_in_use(program, event.record(program, hardware).timeline())
    assert (np.diff(cycles) > 0).all()
    assert words.min() >= 0
    assert words.max() <= program.words
    assert words[-1] == 0


def test_words_that_several_share_are_set_aside_once_by_hand() -> None:
    """Two lanes of words 0 and 1, three of words 2 to 5, one of word 9; and six words of banks, which are others."""
    held = Buffer("ifmap", 0, 4, 2), Buffer("lowered", 2, 4, 3), Buffer("filter", 9, 1, 1)
    program = Program((), held, (), 1, banked=(Buffer("ifmap", 0, 6, 1),))
    assert program.lane_words() == 2 * 2 + 4 * 3 + 1 + 6
    assert [program.lane_words(name) for name in ("ifmap", "lowered", "filter")] == [4 * 2 + 6, 4 * 3, 1]


def test_what_is_transformed_before_takes_no_memory_beside_the_product() -> None:
    """Whichever of the two is larger covers the other."""
    layer, held = conv(8, 12, 16, 3), {}
    for order in ORDERS:
        program, _ = EXPLICIT.lower(layer, 2, ordered(machine(8, 8, capacity_words=400), order))
        held[order] = program.lane_words(), [program.lane_words(each.name) for each in program.tensors]
    assert held["overlapped"][0] == sum(held["overlapped"][1])
    window, *product = held["before"][1]
    assert window > 0
    assert held["before"][0] == max(window, sum(product))


@settings(max_examples=cases(1 / 50), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    hardware=machines_of_all_kinds(),
    layer=st.one_of(layers(), depthwise(), transposed_convs(), deform_convs(), vector_ops()),
    batch=st.integers(1, 9),
)
@example(hardware=ordered(machine(8, 8, capacity_words=400), "before"), layer=conv(8, 12, 16, 3), batch=2)
def test_no_lowering_sets_more_aside_than_the_machine_has(hardware: Hardware, layer: Op, batch: int) -> None:
    """Nor than the words up to the last one that it uses, of which a smaller machine would have no more."""
    assume(layer.macs(batch) / hardware.pes < SHORT)
    names = {meant(layer, "channel_first")} if isinstance(layer, VectorOp) else lowerings_of(layer)
    for name in sorted(names):
        try:
            program, _ = LOWERINGS[name].lower(layer, batch, hardware)
        except (CapacityError, InputError):
            continue
        assert program.words <= hardware.capacity_words
        assert program.bank_words <= hardware.bank_words
        assert program.lane_words() <= hardware.lanes * program.words + program.bank_words


def test_an_ifmap_block_filled_in_pieces_stays_until_its_last_pass() -> None:
    """Also the pieces that no stream names."""
    hardware = machine(4, 4, word_elements=2, capacity_words=60)
    program = CHANNEL_FIRST.lower(conv(4, 12, 8, 1), 2, hardware)[0]
    wanted = [index for index, step in enumerate(program.rows) if step.label == "ifmap fill"]
    named = {fill: index for index, step in enumerate(program.rows) if isinstance(step, Stream) for fill in step.after}
    first, last = [fill for fill in wanted if fill in named][:2]
    unnamed = [fill for fill in wanted if first < fill < last]
    assert unnamed
    timeline = event.record(program, hardware).timeline()
    end = next(each.end for each in timeline.tracks["drain"] if each.step == named[last])
    cycles, words = words_in_use(program, timeline)
    pieces = [program.rows[fill] for fill in (*unnamed, last)]
    assert words[np.searchsorted(cycles, end) - 1] >= sum(each.words for each in pieces if isinstance(each, Fill))


@settings(max_examples=cases(1 / 50), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=with_room(), leaves=st.booleans())
def test_what_stays_is_in_use_until_its_last_reader_has_it(chain: Chain, leaves: bool) -> None:
    """From no word to no word, never more than there are, and no fewer than an outcome has while readers run."""
    found = found_for(chain, leaves)
    suppose(len(found.allocations) > 0)
    program = linked(found.layers, chain.hardware)
    suppose(len(program.rows) < 500)
    recorded = event.record(program, chain.hardware)
    timeline = recorded.timeline()
    cycles, words = words_in_use(program, timeline)
    assert words.min() >= 0
    assert words.max() <= chain.hardware.capacity_words
    assert words[-1] == 0
    cuts = cuts_of(recorded.log, program, chain.hardware)
    for each in found.allocations:
        last = max(layer for layer, _ in each.readers)
        begins, made = cuts[last], cuts[each.maker + 1]
        assert words[np.searchsorted(cycles, max(begins, made), "right") - 1] > 0
