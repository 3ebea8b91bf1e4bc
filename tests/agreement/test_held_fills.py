"""What units are said to wait for while they wait for fills: HBM, conversion, the port, or words still in use."""

from __future__ import annotations

import pytest

from tests.agreement.engines import agree
from tests.rules import rule
from tests.strategies import machine
from tpusim import load_hardware, load_workload, simulate
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.observation.timeline import HOLDERS, Timing, held_by
from tpusim.network.ops.array_op import Gemm

ONE_STRIP = [
    "mapping.strips=one_image",
    *(f"mapping.block.{name}={size}" for name, size in {"rows": 5, "cols": 55, "images": 3, "taps": 11}.items()),
]
"""Words of which 3 of 8 elements are used, filled again and again."""


@rule("T136")
def test_fills_that_wait_for_the_port_are_not_hbms() -> None:
    """121 passes of 825 cycles each over patches of 15,240 words, each of which crosses the port in turn."""
    work = load_workload("alexnet", batch=3).with_layers(lambda each: each.name == "conv1")
    layer = simulate(work, load_hardware("tpu_v2", ONE_STRIP), check=False).layers[0]
    array, hbm, port = (layer.units[unit] for unit in ("systolic_array", "hbm", "port"))
    assert layer.cycles == 564_256
    assert hbm["busy"] < 0.04 * layer.cycles
    assert port["idle"] < 0.01 * layer.cycles
    assert array["port_stall"] > 0.8 * layer.cycles
    assert array["starved"] < 0.002 * layer.cycles


def both(layer: Gemm, hardware: Hardware) -> Timing:
    """The time of a layer, the same by both engines."""
    pytest.importorskip("numba")
    program = CHANNEL_FIRST.lower(layer, 1, hardware)[0]
    return agree(layer, 1, program, hardware)


def waits(timing: Timing) -> dict[str, int]:
    """What the array waits for, but for what it never does."""
    return {cause: timing.units["systolic_array"][cause] for cause in HOLDERS}


@rule("T136")
def test_the_pass_worked_by_hand_and_converted() -> None:
    """docs/timing.md, section 7, with 10 cycles to unpack a word: the ifmap has come at 7 and is unpacked at 26."""
    hardware = machine(4, 4).with_overrides(["vector_unit.unpack_cycles=10"])
    found = waits(both(Gemm("gemm", 4, 4, 4), hardware))
    assert found == {"blocked": 0, "starved": 7, "conversion": 27 - 8, "port_stall": 1}


@rule("T136")
def test_a_launch_and_a_slow_hbm_are_hbms() -> None:
    """64 B in 64 cycles each: the ifmap has come at 90 + 128 + 5, and is written then; a cycle goes to the grid."""
    hardware = machine(4, 4, bytes_per_cycle=1).with_overrides(["sequencer.launch_cycles=90"])
    found = waits(both(Gemm("gemm", 4, 4, 4), hardware))
    assert found == {"blocked": 0, "starved": 90 + 128 + 5 + 1 + 1, "conversion": 0, "port_stall": 0}


@rule("T136")
def test_words_still_in_use_are_the_output_sides() -> None:
    """Two buffers for four maps: the third is filled when the first pass, over at 11, has written its results in 17.

    The second is over at 15, and a spill, which waits for the same, is ahead of the fill in the queue.
    """
    hardware = machine(4, 4, latency_cycles=1, bytes_per_cycle=1000).with_overrides(["vector_memory.capacity=48 B"])
    timing = both(Gemm("gemm", 8, 4, 4), hardware)
    assert timing.units["systolic_array"]["blocked"] == 18 - 15


@rule("T136")
@pytest.mark.parametrize(
    ("now", "cause"), [(0, "blocked"), (2, "blocked"), (3, "starved"), (5, "conversion"), (8, "port_stall")]
)
def test_of_what_holds_a_fill_the_first_counts(now: int, cause: str) -> None:
    """Its bytes would not have come sooner had the words been free, nor would a wider port have helped before."""
    assert held_by(freed=3, come=5, converted=8, now=now) == cause
    assert held_by(freed=0, come=9, converted=9, now=now) == ("starved" if now < 9 else "port_stall")
