"""The bytes of a layer and of a run, by hand and against what steps touch."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.strategies import cases, layers, machine, machines
from tpusim.base.errors import CapacityError
from tpusim.flow.simulation import simulate
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Stream
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.report.tables.sentences import heading, totals

WIDE = machine(4, 6, word_elements=2)
"""6 lanes, words of 8 bytes."""
FOLDED = Gemm("folded", m=3, n=7, k=5)
LONG = Gemm("long", m=20, n=1, k=4)


def test_bytes_by_hand_where_the_array_is_not_square() -> None:
    """Three rows in two words. Ifmap: two row folds in 4 lanes. Weights: 2 + 1 words, results: 2; of two column folds,
    each in 6 lanes.
    """
    layer = simulate(Workload("w", 1, (FOLDED,)), WIDE).layers[0]
    assert layer.vector_memory.ifmap_bytes == 8 * 4 * 2 * 2
    assert layer.vector_memory.peak_bytes == 8 * (4 * 2 * 2 + 6 * 2 * 3 + 6 * 2 * 2)
    assert layer.hbm_read_bytes == sum(64 * -(-size * 4 // 64) for size in (4 * 3, 3, 6 * 4, 6, 4, 1))
    assert layer.hbm_write_bytes == sum(64 * -(-size * 4 // 64) for size in (3 * 6, 3))


def test_the_utilisation_of_the_pes_is_the_share_of_the_peak_that_is_reached() -> None:
    """The model FLOP utilisation, of each layer and of the run, on 24 PEs and two arrays of as many."""
    for hardware in (WIDE, WIDE.having("array", count=2)):
        peak = 2 * hardware.array.count * 24 * hardware.clock_hz
        run = simulate(Workload("w", 1, (FOLDED, LONG)), hardware, check=False)
        for each, macs in zip((*run.layers, run.total), (3 * 7 * 5, 20 * 4, 105 + 80), strict=True):
            assert each.pe_utilization == pytest.approx(2 * macs / (each.time_us / 1e6) / peak)
            assert each.tflops / each.pe_utilization == pytest.approx(peak / 1e12)
        assert heading(run).endswith(f"seed 0; peak {peak / 1e9:.2f} GFLOPS")


def test_cycles_of_launches_are_told_apart() -> None:
    """Each layer is launched by itself, or a chain as one; a run without launches takes as many cycles less."""
    work = Workload("w", 3, [Gemm("one", m=3, n=7, k=5), Gemm("two", m=3, n=6, k=7)], edges={"two": ["one"]})
    for between, launches in (("drain", 2), ("overlap", 1)):
        launched, free = (
            simulate(
                work,
                WIDE.with_overrides({"sequencer.launch_cycles": each, "sequencer.between_layers": between}),
                check=False,
            )
            for each in (75, 0)
        )
        assert [layer.launch_cycles for layer in launched.layers] == [75, 75 * (launches - 1)]
        # A slot of the ports may come a cycle sooner or later.
        assert launched.total.launch_cycles == 75 * launches
        assert launched.total.cycles - free.total.cycles == pytest.approx(75 * launches, abs=2 * launches)
        stalls = (run.total.stall_cycles["starved"] for run in (launched, free))
        assert next(stalls) - next(stalls) == pytest.approx(75 * launches, abs=2 * launches)
        assert json.loads(launched.to_json())["total"]["launch_cycles"] == 75 * launches
        share = f"{75 * launches / launched.total.cycles * 100:.1f} %"
        said = totals(launched.total).lines[2]
        assert said == f"  Launches of layers take {75 * launches} cycles, {share} of all; the array is starved in them"
        assert "Launches" not in "".join(totals(free.total).lines)


def test_the_total_has_the_most_of_any_layer() -> None:
    """One layer has the larger memory, the other the larger ifmap."""
    run = simulate(Workload("w", 1, (FOLDED, LONG)), WIDE, check=False)
    folded, long = (layer.vector_memory for layer in run.layers)
    assert folded.peak_bytes > long.peak_bytes
    assert folded.ifmap_bytes < long.ifmap_bytes
    assert run.total.vector_memory.peak_bytes == folded.peak_bytes
    assert run.total.vector_memory.ifmap_bytes == long.ifmap_bytes
    assert run.total.hbm_read_bytes == sum(layer.hbm_read_bytes for layer in run.layers)
    assert run.total.hbm_write_bytes == sum(layer.hbm_write_bytes for layer in run.layers)


def touched(program: Program, tensor: str) -> list[tuple[range, range]]:
    """(lanes, words) of every transfer of a tensor, and of every pass that writes it."""
    found = []
    for step in program.rows:
        match step:
            case Transfer() if step.tensor.name == tensor:
                for part in step.parts:
                    words = range(part.base, part.base + part.words)
                    found += [(range(first, first + part.lanes), words) for first in part.first_lanes]
            case Stream() if tensor == "ofmap":
                found.append((range(step.cols), range(step.result_base, step.result_base + step.words)))
    return found


@settings(max_examples=cases(0.1), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=layers(), batch=st.integers(1, 9), hardware=machines())
def test_buffers_are_where_steps_go_and_no_wider(layer: Op, batch: int, hardware: Hardware) -> None:
    """The last lane is used; a last word need not be, where one block is smaller than another."""
    try:
        program = CHANNEL_FIRST.lower(layer, batch, hardware)[0]
    except CapacityError:
        assume(False)
    for buffer in program.buffers:
        places = touched(program, buffer.tensor)
        for _, words in places:
            assert buffer.base <= words.start <= words.stop <= buffer.base + buffer.words
        assert max((lanes.stop for lanes, _ in places), default=buffer.lanes) == buffer.lanes
    ends = [buffer.base + buffer.words for buffer in program.buffers]
    assert [buffer.base for buffer in program.buffers] == [0, *ends[:-1]]
    assert program.words == ends[-1] <= hardware.capacity_words
