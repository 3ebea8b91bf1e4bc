"""What silicon has besides arrays and ports, docs/timing.md sections 2, 3 and 5: each mechanism by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.rules import rule
from tests.strategies import conv, machine
from tpusim.base.errors import InputError
from tpusim.flow.jobs import resolve
from tpusim.flow.recordings import trace
from tpusim.machines.tpu import event
from tpusim.machines.tpu.definition import IFMAP, PORTS, PSUM, RESULT, Frame
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST, by_taps, plan_of
from tpusim.machines.tpu.observation.timeline import Timing, unwatched
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.workload import Workload

GEMM = Gemm("gemm", 4, 4, 4)


def timed(layer: Conv2d | Gemm, batch: int = 1, **options: Any) -> tuple[Program, Timing]:
    hardware = machine(4, 4, **options)
    program = CHANNEL_FIRST.lower(layer, batch, hardware)[0]
    return program, event.run(program, hardware)


@rule("T109")
@pytest.mark.parametrize("launch", [1, 7, 250])
def test_a_launch_moves_everything_back(launch: int) -> None:
    _, plain = timed(conv(5, 6, 5, 3), 2)
    _, launched = timed(conv(5, 6, 5, 3), 2, sequencer={"launch_cycles": launch})
    period = 3
    # The frame grid does not move with the launch.
    assert launch <= launched.cycles - plain.cycles + period
    assert launched.cycles - plain.cycles <= launch + period
    assert launched.units["hbm"]["busy"] == plain.units["hbm"]["busy"]


@rule("T111")
def test_a_conversion_paces_its_transfers_and_no_others() -> None:
    """Slower than the bytes: so many cycles a word, of ifmap fills and of spills."""
    program, plain = timed(GEMM, bytes_per_cycle=10**6)
    kinds = ("ifmap fill", "ofmap spill")
    fills, spills = (sum(s.words for s in program.rows if s.label == kind) for kind in kinds)
    count = {kind: sum(s.label == kind for s in program.rows) for kind in kinds}
    for option, words, kind in (("unpack_cycles", fills, kinds[0]), ("pack_cycles", spills, kinds[1])):
        paced, timing = timed(GEMM, bytes_per_cycle=10**6, vector_unit={option: 5})
        assert paced.rows == program.rows
        # At such a bandwidth every transfer takes one cycle without conversion.
        assert timing.units["hbm"]["busy"] - plain.units["hbm"]["busy"] == 5 * words - count[kind]


@rule("T111")
def test_a_slow_bus_hides_the_conversion() -> None:
    _, slow = timed(GEMM, bytes_per_cycle=1)
    _, paced = timed(GEMM, bytes_per_cycle=1, vector_unit={"unpack_cycles": 2, "pack_cycles": 2})
    assert paced == slow


def waiting(program: Program) -> int:
    """Preloads that wait for a stream."""
    preloads = (step for step in program.rows if isinstance(step, Preload))
    return sum(any(isinstance(program.rows[other], Stream) for other in step.after) for step in preloads)


@rule("T41")
@pytest.mark.parametrize(("policy", "chunks"), [("auto", 6), ("needed", 1)])
def test_draining_blocks_do_not_overlap(policy: str, chunks: int) -> None:
    """The first preload of every block, column fold and chunk waits for the stream ahead, and only that one."""
    layer, options = conv(5, 9, 7, 3), {"capacity_words": 60, "mapping": {"chunks": policy}}
    drained = machine(sequencer={"between_blocks": "drain"}, **options)  # type: ignore[arg-type]
    plain, fast = timed(layer, 2, **options)
    program, slow = timed(layer, 2, sequencer={"between_blocks": "drain"}, **options)
    plan = plan_of(by_taps, layer, 2, drained)
    assert len(plan.chunks) == chunks
    bodies = len(plan.blocks) * len(plan.chunks) * -(-len(plan.col_folds) // plan.tiling.kept_folds)
    assert waiting(program) == bodies - 1
    assert waiting(plain) == 0
    assert slow.units["preload"]["blocked"] > fast.units["preload"]["blocked"]


@rule("T110", "T122")
@pytest.mark.parametrize(("channels", "moved"), [(1, 8), (8, 8), (9, 16)])
@pytest.mark.parametrize("rows", [4, 16])
def test_padding_is_moved_in_whole_bursts(channels: int, moved: int, rows: int) -> None:
    """Every fill a multiple of the burst; all fills together the padded map, however it is folded."""
    hardware = machine(rows, 4, hbm={"channel_multiple": 8, "burst_bytes": 64})
    program = CHANNEL_FIRST.lower(Conv2d("c", channels, 4, 4, 3, (1, 1), (1, 1), (0, 0), (1, 1), 1), 16, hardware)[0]
    fills = [step.hbm_bytes for step in program.rows if step.label == "ifmap fill"]
    assert all(size % 64 == 0 for size in fills)
    assert sum(fills) == moved * 4 * 4 * 16 * 4


@rule("T122")
@pytest.mark.parametrize(("channels", "stored"), [(3, 8), (8, 8), (9, 16)])
def test_channels_are_stored_in_multiples(channels: int, stored: int) -> None:
    plain, _ = timed(conv(channels, 6, 4, 3), 2, hbm={"burst_bytes": 4})
    padded, _ = timed(conv(channels, 6, 4, 3), 2, hbm={"burst_bytes": 4, "channel_multiple": 8})

    def fetched(program: Program) -> int:
        return sum(step.hbm_bytes for step in program.rows if step.label == "ifmap fill")

    assert fetched(padded) * channels == fetched(plain) * stored


@pytest.mark.parametrize(
    ("channels", "rows", "kernel", "taps"), [(1, 12, 3, 9), (2, 12, 3, 6), (3, 12, 3, 3), (5, 12, 3, 2), (1, 4, 2, 4)]
)
def test_whole_filter_rows_are_stacked_where_several_fit(channels: int, rows: int, kernel: int, taps: int) -> None:
    hardware = machine(rows, 4, mapping={"multi_tile": "rows"})
    assert CHANNEL_FIRST.lower(conv(channels, 6, 4, kernel), 1, hardware)[1].multi_tile == taps


def clients(accumulates: bool) -> tuple[int, ...]:
    """Of a stream's words."""
    return (IFMAP, PSUM, RESULT) if accumulates else (IFMAP, RESULT)


@rule("T16")
@pytest.mark.parametrize(
    ("elements", "adds", "accumulates", "arrays", "period", "result"),
    [(8, 1, True, 2, 8, 4), (8, 3, True, 2, 8, 5), (8, 6, True, 2, 8, 4), (4, 1, True, 2, 6, 4), (2, 1, False, 2, 4, 2),
     (8, 20, True, 2, 20, 4), (8, 2, True, 3, 9, 6)],
)  # fmt: skip
def test_frames_of_several_arrays(
    elements: int, adds: int, accumulates: bool, arrays: int, period: int, result: int
) -> None:
    """No two clients own one slot, and a word is added before it is written."""
    frame = Frame.of(elements, adds, clients(accumulates), arrays=arrays)
    assert (frame.period, frame.result_slot) == (period, result)
    kinds = (Frame.IFMAP_SLOT, result, *([] if frame.psum_slot is None else [frame.psum_slot]))
    assert (frame.psum_slot is not None) == accumulates
    owned = [first + array for first in kinds for array in range(arrays)]
    assert len(set(owned)) == len(owned) == frame.slots
    assert max(owned) < period
    for latency in range(2, 40):
        late = replace(frame, latency=latency)
        assert late.result_delay % period == result
        if accumulates:
            assert late.psum_delay + frame.add_cycles <= late.result_delay


@rule("T15")
def test_two_arrays_take_half_the_time_of_a_long_stream() -> None:
    one, two = (
        timed(Gemm("g", 512, 4, 4), word_elements=8, alus=1000, bytes_per_cycle=10**6, array={"count": count})[1]
        for count in (1, 2)
    )
    assert one.units["systolic_array"]["busy"] == 2 * two.units["systolic_array"]["busy"] == 512
    assert one.units["port"]["ifmap"] == two.units["port"]["ifmap"]


@rule("T26")
def test_separate_ports_are_in_nobodys_way() -> None:
    """Words of one element need three slots a frame of one; with a port for each client, one. HBM is what fills wait
    for, as it brings a word of four lanes in four cycles.
    """
    layer, shared = conv(8, 8, 4, 3), machine(4, 4, word_elements=1, bytes_per_cycle=4)
    separate = shared.with_overrides(["vector_memory.ports=separate"])
    before, after = (event.run(CHANNEL_FIRST.lower(layer, 2, each)[0], each) for each in (shared, separate))
    stalls = {unit: after.units[unit]["port_stall"] for unit in ("systolic_array", "preload")}
    assert stalls == {"systolic_array": 0, "preload": 0}
    assert before.units["systolic_array"]["port_stall"] >= 2 * before.units["systolic_array"]["busy"]
    assert after.units["systolic_array"]["busy"] == before.units["systolic_array"]["busy"]
    assert {sum(split.values()) for split in after.units.values()} == {after.cycles}


@rule("T26")
@pytest.mark.parametrize(
    ("elements", "adds", "arrays", "period"), [(1, 1, 1, 1), (8, 8, 1, 8), (2, 5, 1, 5), (1, 1, 3, 3)]
)
def test_a_frame_of_separate_ports(elements: int, adds: int, arrays: int, period: int) -> None:
    """docs/timing.md, section 2: F = max(E, n, adds), D_p = L - 1, D_w = D_p + adds; without sums, L."""
    frame, plain = (
        Frame.of(elements, adds, clients(accumulates), PORTS["separate"], arrays, latency=30)
        for accumulates in (True, False)
    )
    assert frame.period == period
    assert (frame.psum_delay, frame.result_delay) == (29, 29 + adds)
    assert (plain.period, plain.result_delay) == (max(elements, arrays), 30)


@rule("T26")
def test_the_pass_worked_by_hand_with_separate_ports() -> None:
    """Section 7 again: the ifmap comes in 8 and 9, no longer behind the preload in 9 and 11; its weights are later.

    From 7 on it is there, and waits for the port of the DMA.
    """
    hardware = machine(4, 4).with_overrides(["vector_memory.ports=separate"])
    timing = event.run(CHANNEL_FIRST.lower(GEMM, 1, hardware)[0], hardware)
    array = timing.units["systolic_array"]
    assert (timing.cycles, array["starved"], array["port_stall"]) == (35, 7, 10 - 7)
    assert array["waiting_weights"] == 12 - 10 + 1
    assert timing.units["port_dma"] == {"dma": 6, "idle": 29}


@rule("T37")
@pytest.mark.parametrize("rate", [1, 2, 3, 8, 100])
def test_weights_enter_faster(rate: int) -> None:
    """A column of 12 weights in words of 8: the second word holds four."""
    hardware = machine(12, 12, word_elements=8).with_overrides([f"array.weights_per_cycle={rate}"])
    assert hardware.preload_cycles == {1: 12, 2: 6, 3: 3 + 2, 8: 2, 100: 2}[rate]
    program = CHANNEL_FIRST.lower(Gemm(name="gemm", m=1, n=12, k=120), 1, hardware)[0]
    preload = event.run(program, hardware).units["preload"]
    assert preload["busy"] == 10 * hardware.preload_cycles


@rule("T27")
def test_a_trace_of_lanes_shows_one_port() -> None:
    pytest.importorskip("numba")
    work = Workload("one", 1, (conv(3, 4, 4, 3),))
    own = r"^vector_memory\.ports: a trace of lanes shows one port a lane, and here each client has its own"
    with pytest.raises(InputError, match=own):
        next(trace(resolve(work, machine(4, 4, vector_memory={"ports": "separate"})))[1](0, unwatched))
    banks = r"^vector_memory\.organization: a trace of lanes shows one port a lane, and here the ifmap is read thr"
    with pytest.raises(InputError, match=banks):
        next(
            trace(resolve(work, machine(4, 4, vector_memory={"organization": "banked"}), "channel_last"))[1](
                0, unwatched
            )
        )
