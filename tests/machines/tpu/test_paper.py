"""What the paper states and what its figures show (Zhou et al., IISWC 2021)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.strategies import conv
from tpusim.flow.simulation import simulate
from tpusim.machines.tpu.description import load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload
from tpusim.result.records import Result


def timed(workload: str, *overrides: str, batch: int = 8) -> Result:
    return simulate(load_workload(workload, batch=batch), load_hardware("tpu_v2", list(overrides)), check=False)


def test_two_stacked_taps_double_utilisation_and_workspace() -> None:
    """Section IV-B, Fig. 11: C_I = 2 on a 4 x 4 array; tiles (1,1) and (1,2) run as one pass."""
    layer = Conv2d("fig11", 2, 5, 5, 4, (1, 2), (1, 1), (0, 0), (1, 1), 1)
    results = {
        tile: simulate(
            Workload("fig11", 2, (layer,)), load_hardware("tiny_4x4", [f"mapping.multi_tile={tile}"])
        ).layers[0]
        for tile in (1, 2)
    }
    assert results[1].passes == 2 * results[2].passes
    assert results[2].mapping_efficiency == 2 * results[1].mapping_efficiency == 1.0
    assert results[2].vector_memory.ifmap_bytes == 2 * results[1].vector_memory.ifmap_bytes
    assert all(result.outputs_checked == result.outputs for result in results.values())
    assert all(result.outputs_mismatched == 0 for result in results.values())


def test_the_whole_3x3_layer_of_fig_11() -> None:
    """W_F = 3 taps a filter row, two at a time: passes of 2 and 1 taps."""
    hardware = load_hardware("tiny_4x4")
    streams = CHANNEL_FIRST.lower(conv(2, 5, 4, 3), 2, hardware)[0].streams
    assert [stream.rows for stream in streams] == [4, 2, 4, 2, 4, 2]


@pytest.mark.parametrize(
    ("channels", "kernel", "tiles"),
    [
        (8, 3, 3),
        (8, 5, 5),
        (16, 7, 7),
        (32, 3, 3),
        (32, 5, 4),
        (64, 3, 2),
        (64, 7, 2),
        (128, 3, 1),
        (200, 3, 1),
        (3, 7, 7),
    ],
)
def test_multi_tile_rule(channels: int, kernel: int, tiles: int) -> None:
    """Section VII-A: min(128 / C_I, W_F)."""
    program, explanation = CHANNEL_FIRST.lower(conv(channels, 16, 16, kernel), 8, load_hardware("tpu_v2"))
    assert explanation.multi_tile == tiles
    folds = -(-channels // 128)
    assert len(program.streams) % (kernel * -(-kernel // tiles) * folds) == 0


def test_multi_tile_forced_from_1_to_9() -> None:
    """Fig. 14a: N = 8, C_I = 8, W_I = C_O = 128, W_F = 3. Workspace is linear, the speed-up diminishes."""
    layer = conv(8, 128, 128, 3, padding=1)
    rows = [
        simulate(
            Workload("fig14a", 8, (layer,)), load_hardware("tpu_v2", [f"mapping.multi_tile={n}"]), check=False
        ).layers[0]
        for n in range(1, 10)
    ]
    assert [row.multi_tile for row in rows] == list(range(1, 10))
    workspace = [row.vector_memory.ifmap_bytes for row in rows]
    assert workspace == [n * workspace[0] for n in range(1, 10)]
    cycles = [row.cycles for row in rows]
    assert all(later <= sooner * 1.01 for sooner, later in pairwise(cycles))
    saved_first = cycles[0] - cycles[2]
    assert saved_first > 2 * (cycles[2] - cycles[8]) > 0
    assert cycles[0] / cycles[2] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("layers", [("conv5_1",), pytest.param((), marks=pytest.mark.long)])
def test_word_size_of_vgg16(layers: tuple[str, ...]) -> None:
    """Fig. 16b: the idle share of the ports rises with the word size and is above one half at 8."""
    work = load_workload("vgg16", batch=8).with_layers(lambda layer: not layers or layer.name in layers)
    machines = {word: load_hardware("tpu_v2", [f"vector_memory.word_elements={word}"]) for word in (1, 2, 8, 32)}
    runs = {word: simulate(work, each, check=False) for word, each in machines.items()}
    idle = [run.total.vector_memory.port_idle_ratio for run in runs.values()]
    assert all(narrow < wide for narrow, wide in pairwise(idle)), idle
    assert runs[8].total.vector_memory.port_idle_ratio > 0.5
    assert runs[1].total.stall_cycles["port_stall"] > runs[1].total.cycles / 2
    # But for fills whose words have come, which cross it one by one: those of the first blocks.
    assert runs[8].total.stall_cycles["port_stall"] < 0.001 * runs[8].total.cycles


@pytest.mark.long
def test_array_size_of_vgg16() -> None:
    """Fig. 16a: TFLOPS rise and utilisation falls with the array, by about half from 128 to 256."""
    runs = [timed("vgg16", f"array.size={size}").total for size in (64, 128, 256)]
    assert all(small.tflops < large.tflops for small, large in pairwise(runs))
    assert all(small.pe_utilization > large.pe_utilization for small, large in pairwise(runs))
    assert 0.4 < runs[2].pe_utilization / runs[1].pe_utilization < 0.6
