"""docs/timing.md, rule by rule."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from numba import njit

from tests import ROOT
from tests.covering import covering
from tests.rules import rule
from tests.strategies import conv, machine
from tpusim.base.errors import DeadlockError
from tpusim.flow.simulation import simulate
from tpusim.flow.verify import operands_of
from tpusim.machines.tpu import event, register
from tpusim.machines.tpu.definition import CLIENTS, IFMAP, PSUM, RESULT, Frame, frame_of, word_cycles
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.observation.timeline import Timing, split
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream
from tpusim.machines.tpu.program.transfers import Spill
from tpusim.machines.tpu.register.array import sample_array, sample_sums, sample_weights
from tpusim.machines.tpu.register.lanes import sample_lanes
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.workload import Workload
from tpusim.result.records import Blocking, LayerResult, VectorMemoryUse

TIMING = (ROOT / "docs" / "timing.md").read_text()


def gemm(m: int, k: int, n: int) -> Gemm:
    return Gemm(name="gemm", m=m, n=n, k=k)


def timed(layer: Gemm | Conv2d, hardware: Hardware, batch: int = 1) -> tuple[Program, Timing]:
    program = CHANNEL_FIRST.lower(layer, batch, hardware)[0]
    return program, event.run(program, hardware)


@rule("T1", "T2", "T11", "T34", "T38", "T54", "T110", "T112", "T113", "T116", "T137")
def test_the_pass_worked_by_hand() -> None:
    """Section 7: each cycle of the table."""
    hardware = machine(4, 4, word_elements=2, bytes_per_cycle=64, latency_cycles=5)
    program, timing = timed(gemm(4, 4, 4), hardware)
    owners = event.record(program, hardware).log.owners["port"]
    taken = {name: np.flatnonzero(owners == client).tolist() for client, name in enumerate(CLIENTS)}
    assert taken["weight"] == [8, 10]
    assert taken["ifmap"] == [14, 16]
    assert taken["result"] == [21, 23]
    assert taken["psum"] == []
    assert taken["dma"] == [6, 7, 9, 11, 24, 25]
    assert timing.cycles == 35
    assert timing.units["systolic_array"] == split({"starved": 7, "port_stall": 6, "busy": 4}, 35)
    for row in (
        "words written in 6, 7",
        "words written in 9, 11",
        "read in 8, 10",
        "read in 14, 16",
        "written in 21, 23",
    ):
        assert row in TIMING
    assert re.search(r"\*\*35 cycles\*\*", TIMING)


@rule("T3", "T4")
def test_the_same_pass_by_hand_with_two_elements_and_two_pes_a_cycle() -> None:
    """Section 7, below the table."""
    hardware = machine(4, 4, word_elements=2, latency_cycles=5, array={"elements_per_cycle": 2, "pes_per_cycle": 2})
    program, timing = timed(gemm(4, 4, 4), hardware)
    owners = event.record(program, hardware).log.owners["port"]
    taken = {name: np.flatnonzero(owners == client).tolist() for client, name in enumerate(CLIENTS)}
    assert {name: taken[name] for name in ("weight", "ifmap", "result")} == {
        "weight": [8, 10], "ifmap": [14, 16], "result": [19, 21],
    }  # fmt: skip
    assert taken["dma"] == [6, 7, 9, 11, 22, 23]
    assert timing.units["systolic_array"] == split({"starved": 7, "port_stall": 8, "busy": 2}, 31)
    assert re.search(r"\*\*31 cycles\*\*", TIMING)


@rule("T1", "T4")
def test_where_elements_are_in_each_cycle() -> None:
    """Section 1: element m of a stream meets PE(r, c) at s + m // k + r // h + c // h, and its sum leaves below."""
    elements, rows, cols = 5, 7, 10
    pairs = [*product((1, 2, 3, 5, 8), (1, 2, 3, 7, 99))][::2]
    for at_once, crossed in pairs:
        hardware = machine(
            rows,
            cols,
            word_elements=elements,
            alus=1000,
            array={"elements_per_cycle": at_once, "pes_per_cycle": crossed},
        )
        layer = gemm(elements, rows, cols)
        running = register.RegisterMachine(timed(layer, hardware)[0], hardware, operands_of(layer, 1, seed=0))
        seen, sums = list[set[tuple[int, ...]]](), list[set[tuple[int, ...]]]()
        for _ in running.cycles():
            seen.append({(row, col, plane) for _, plane, row, col in np.argwhere(running.registers.array.window)})
            sums.append({(col, plane) for _, plane, col in np.argwhere(running.registers.wires.sums_tag)})
        begins = next(cycle for cycle, found in enumerate(seen) if found)
        for cycle, (found, left) in enumerate(zip(seen, sums, strict=True)):
            issued = {
                element: cycle - begins - element // at_once for element in range(elements)
            }  # Cycles since each has come to PE(0, 0).
            assert found == {
                (row, col, element % at_once)
                for element, since in issued.items()
                for row, col in product(range(rows), range(cols))
                if since == row // crossed + col // crossed
            }
            # On the wires at the end of the cycle in which the last row adds to it.
            assert left == {
                (col, element % at_once)
                for element, since in issued.items()
                for col in range(cols)
                if since + 1 == -(-rows // crossed) + col // crossed
            }


@rule("T3")
@pytest.mark.parametrize(("at_once", "crossed", "issue", "down", "skew"), [
    (1, 1, 8, 20, 29), (2, 1, 4, 20, 29), (3, 4, 3, 5, 7), (8, 3, 1, 7, 9), (9, 100, 1, 1, 0),
])  # fmt: skip
def test_what_elements_and_pes_a_cycle_change(at_once: int, crossed: int, issue: int, down: int, skew: int) -> None:
    """Sections 1 and 2, of words of 8 on 20 x 30 PEs: I, ceil(R / h) and the skew; the adds count elements."""
    hardware = machine(
        20,
        30,
        word_elements=8,
        alus=60,
        array={"elements_per_cycle": at_once, "pes_per_cycle": crossed, "streamed": "all"},
    )
    assert (hardware.skew, hardware.pes, hardware.macs_per_cycle) == (skew, 600, 600 * min(at_once, 8))
    frame = frame_of(hardware, 8, (IFMAP, PSUM, RESULT))
    assert (frame.issue_cycles, frame.latency, frame.add_cycles) == (issue, 1 + issue + down, 4)
    assert frame.period == max(issue, 3, 4)
    assert word_cycles(1, False, hardware) == issue
    layer = gemm(8, 20, 30)
    result = simulate(Workload("w", 1, (layer,)), hardware, engine="both").layers[0]
    assert result.ideal_cycles == -(-8 * 600 // hardware.macs_per_cycle)
    assert result.pe_utilization == 8 * 600 / (hardware.macs_per_cycle * result.cycles)


@rule("T35", "T36", "T55")
@pytest.mark.parametrize("rows", [8, 16, 128])
def test_passes_of_at_least_r_rows_leave_no_gap(rows: int) -> None:
    """Double-buffered weights: k passes of M = R rows take k * M cycles of the array, none between them."""
    hardware = machine(rows, 8, word_elements=8, alus=1000, capacity_words=8000, bytes_per_cycle=10**6)
    program, timing = timed(gemm(rows, 6 * rows, 8), hardware)
    assert len(program.streams) == 6
    array = timing.units["systolic_array"]
    assert array["busy"] == 6 * rows
    first_wait = array.get("starved", 0) + array.get("waiting_weights", 0)
    assert first_wait < 2 * rows + 60
    single = timed(gemm(rows, rows, 8), hardware)[1].units["systolic_array"]
    assert array["blocked"] == single["blocked"] == 0
    assert array.get("waiting_weights", 0) == single.get("waiting_weights", 0)


@rule("T36")
@pytest.mark.parametrize("rows", [8, 16, 128])
def test_one_weight_buffer_waits_for_the_stream_before(rows: int) -> None:
    """The preload, R cycles, cannot overlap: each pass after the first waits for its weights."""
    hardware = machine(
        rows, 8, word_elements=8, alus=1000, capacity_words=8000, bytes_per_cycle=10**6, array={"weight_buffers": 1}
    )
    array = timed(gemm(rows, 6 * rows, 8), hardware)[1].units["systolic_array"]
    single = timed(gemm(rows, rows, 8), hardware)[1].units["systolic_array"]
    extra = array["waiting_weights"] - single.get("waiting_weights", 0)
    assert 5 * rows <= extra <= 5 * (rows + 8)


@rule("T6", "T7")
@pytest.mark.parametrize(
    ("elements", "adds", "accumulates", "period", "result"),
    [(8, 4, True, 8, 5), (8, 8, True, 8, 2), (1, 1, True, 3, 2), (2, 1, True, 3, 2), (2, 1, False, 2, 1),
     (1, 1, False, 2, 1), (4, 9, True, 9, 2), (4, 3, True, 4, 2), (8, 99, False, 8, 1)],
)  # fmt: skip
def test_frames(elements: int, adds: int, accumulates: bool, period: int, result: int) -> None:
    """Section 2: the frame's length and its result slot, which no other client owns."""
    frame = Frame.of(elements, adds, (IFMAP, PSUM, RESULT) if accumulates else (IFMAP, RESULT))
    assert (frame.period, frame.result_slot) == (period, result)
    assert elements + frame.port_stall + frame.blocked == period
    owned = {0, frame.result_slot, *([1] if accumulates else [])}
    assert len(owned) == frame.slots
    for latency in range(2, 40):
        late = replace(frame, latency=latency)
        assert late.result_delay % period == frame.result_slot
        assert late.result_delay >= latency
        if accumulates:
            assert late.psum_delay + frame.add_cycles <= late.result_delay


@rule("T6")
def test_a_narrow_word_stalls_the_array_and_a_wide_one_does_not() -> None:
    """Three accesses a word: at one element a word the array runs a third of the time. HBM brings words so slowly that
    no fill waits for the port of wide ones.
    """
    machines = (machine(8, 8, word_elements=elements, bytes_per_cycle=8) for elements in (1, 4))
    narrow, wide = (timed(conv(8, 12, 8, 3), each, 4)[1].units["systolic_array"] for each in machines)
    assert 2 * narrow["busy"] <= narrow["port_stall"] < 2.2 * narrow["busy"]
    assert wide["port_stall"] == 0


@rule("T7")
def test_a_slow_vector_unit_blocks_the_array() -> None:
    """One ALU for eight lanes: 8 x 4 adds a word of 4 elements."""
    array = timed(conv(8, 12, 8, 3), machine(8, 8, word_elements=4, alus=1), 4)[1].units["systolic_array"]
    assert array["blocked"] >= array["busy"] // 4 * (32 - 4)


def test_steps_that_wait_for_one_another_are_a_deadlock() -> None:
    """The engine names who waits for whom instead of stopping in silence."""
    hardware = machine()
    program = CHANNEL_FIRST.lower(gemm(4, 4, 4), 1, hardware)[0]
    spill = next(index for index, step in enumerate(program.rows) if isinstance(step, Spill))
    steps: list[Step] = [*program.rows]
    at = next(index for index, step in enumerate(steps) if isinstance(step, Preload))
    steps[at] = Preload(after=(spill,), base=0, words=2, rows=4, cols=4)
    stuck = replace(program, rows=tuple(steps))
    with pytest.raises(DeadlockError, match=r"preload\) waits for step \d+ \(ofmap spill\)"):
        event.run(stuck, hardware)


def test_streams_are_the_passes() -> None:
    """H_F x ceil(W_F / T) x row folds x column folds, for every block."""
    program = CHANNEL_FIRST.lower(conv(10, 6, 9, 3, padding=1), 2, machine(4, 4, capacity_words=8000))[0]
    blocks = sum(isinstance(step, Spill) for step in program.rows)
    assert sum(isinstance(step, Stream) for step in program.rows) == blocks * 9 * 3


ORDERS = list(permutations(range(4)))[1::5]


@rule("T157")
@pytest.mark.parametrize("order", [*ORDERS[:2], *(pytest.param(each, marks=pytest.mark.long) for each in ORDERS[2:])])
def test_the_order_in_which_units_are_visited_does_not_matter(order: tuple[int, ...]) -> None:
    """Sample, then commit: the register engine gives the same whichever unit comes first."""
    layer, hardware = conv(3, 6, 5, 3, padding=1), machine(5, 4, word_elements=3)
    program = CHANNEL_FIRST.lower(layer, 4, hardware)[0]
    operands = operands_of(layer, 4, seed=0)
    plain = register.RegisterMachine(program, hardware, operands)
    shuffled = register.RegisterMachine(program, hardware, operands)
    shuffled.registers.clock.units[:] = order
    for each in (plain, shuffled):
        each.run()
    assert shuffled.timing() == plain.timing()
    np.testing.assert_array_equal(shuffled.hbm.tensor("ofmap"), plain.hbm.tensor("ofmap"))


@njit(_nrt=False)
def sampled(lanes: Any, banks: Any, array: Any, weights: Any, sums: Any, wires: Any) -> int:
    """Let all units sample."""
    failed: int = sample_lanes(lanes, banks, wires)
    sample_array(array, wires)
    sample_weights(weights, wires)
    sample_sums(sums, wires)
    return failed


@rule("T157")
@pytest.mark.long
def test_no_unit_drives_a_wire_while_it_samples() -> None:
    layer, hardware = conv(3, 6, 5, 3, padding=1), machine(5, 4, word_elements=3)
    program = CHANNEL_FIRST.lower(layer, 4, hardware)[0]
    running = register.RegisterMachine(program, hardware, operands_of(layer, 4, seed=0))
    for cycle in range(0, 400, 57):
        running.run_to(cycle)
        of, wires = running.registers, running.registers.wires
        before = [np.copy(wire) for wire in wires]
        assert sampled(of.lanes, of.banks, of.array, of.weights, of.sums, wires) == -1
        for name, wire, then in zip(wires._fields, wires, before, strict=True):
            assert np.array_equal(wire, then), name
        running = register.RegisterMachine(program, hardware, operands_of(layer, 4, seed=0))


@rule("T2")
@pytest.mark.parametrize(
    ("rows", "folds", "m"), covering(2, [8, 16, 32], [(1, 1), (1, 2), (4, 2), (5, 5)], [8, 64, 200])
)
def test_against_the_closed_form_of_scale_sim(rows: int, folds: tuple[int, int], m: int) -> None:
    """docs/timing.md, section 8: ours is the sum over folds without the array's skew, on the frame grid.

    SCALE-Sim (weight-stationary): ceil(K/R) * ceil(N/C) * (M + 2R + C - 2) - 1.
    """
    k_folds, n_folds = folds
    hardware = machine(
        rows,
        rows,
        word_elements=8,
        alus=8 * rows,
        capacity_words=8000,
        bytes_per_cycle=10**6,
        array={"weight_buffers": 1},
    )
    layer = gemm(m, k_folds * rows, n_folds * rows)
    program, timing = timed(layer, hardware)
    streams = len(program.streams)
    assert streams == k_folds * n_folds
    array = timing.units["systolic_array"]
    span = timing.cycles - array["idle"]
    first = timed(gemm(m, rows, rows), hardware)[1].units["systolic_array"]
    first_span = sum(first.values()) - first["idle"]
    assert span == first_span + (streams - 1) * (m + rows)
    scale_sim = streams * (m + 2 * rows + rows - 2) - 1
    assert scale_sim - (streams * (m + rows)) == streams * (2 * rows - 2) - 1


@rule("T55")
def test_every_field_of_the_hand_worked_pass() -> None:
    """The record that reports and JSON are made of, by hand (1 GHz, so a cycle is a nanosecond)."""
    hardware = machine(4, 4, word_elements=2, bytes_per_cycle=64, latency_cycles=5)
    layer = simulate(Workload("w", 1, (gemm(4, 4, 4),)), hardware).layers[0]
    assert replace(layer, energy_use=None) == LayerResult(
        name="gemm",
        op="gemm",
        macs=4 * 4 * 4,
        passes=1,
        multi_tile=1,
        cycles=35,
        time_us=pytest.approx(0.035),
        ideal_cycles=4,
        pe_utilization=64 / (16 * 35),
        mapping_efficiency=1.0,
        tflops=pytest.approx(2 * 64 / 35e-9 / 1e12),
        stall_cycles={
            "starved": 7,
            "blocked": 0,
            "waiting_weights": 0,
            "port_stall": 6,
            "bank_conflict": 0,
            "vector_work": 0,
            "conversion": 0,
        },
        hbm_read_bytes=64 + 64,
        hbm_write_bytes=64,
        vector_memory=VectorMemoryUse(
            reads=4 * (2 + 2 + 2),  # lanes x words of ifmap, weights, spill
            writes=4 * (2 + 2 + 2),  # fills and results
            port_idle_ratio=pytest.approx(1 - 48 / (4 * 35)),
            peak_bytes=4 * 8 * (2 + 2 + 2),  # lanes x word bytes x words of ifmap, weights, results
            ifmap_bytes=4 * 8 * 2,
        ),
        outputs=16,
        outputs_checked=16,
        outputs_mismatched=0,
        units=layer.units,
        blocking=Blocking(1, 1, 4, 1, 1, 1, "block_major", 2, 1),
        lowering="channel_first",
    )
    assert set(layer.units) == {"systolic_array", "preload", "vector_unit", "hbm", "port"}
    assert layer.units["port"] == {"ifmap": 2, "psum": 0, "result": 2, "weight": 2, "dma": 6, "idle": 23}


def test_both_engines_report_the_same_record() -> None:
    """The JSON of one engine is that of the other, entry by entry."""
    workload = Workload("w", 3, (conv(3, 6, 5, 3, padding=1),))
    reports = [simulate(workload, machine(5, 4), engine=name).to_dict()["layers"] for name in ("event", "register")]
    assert json.dumps(reports[0]) == json.dumps(reports[1])
