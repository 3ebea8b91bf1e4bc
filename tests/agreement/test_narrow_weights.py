"""Weights that are narrower in HBM than on the chip: fewer bytes, and the vector unit widens them on their way."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree, agreed_timing
from tests.agreement.test_agreement import IN_LANES, fitted, least_cycles, suppose
from tests.checks import ESTIMATE
from tests.covering import covering
from tests.rules import rule
from tests.strategies import cases, dram, fills, gemms, lowerings_of, machine, machines, machines_of_all_kinds
from tpusim import Workload, simulate
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.cut.geometry import packed_as
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.sections import ScratchMemory
from tpusim.memory.hbm_layout import Layouts
from tpusim.network.ops.array_op import STORED_BITS, Gemm

NARROW = "int8", "int4"


@settings(max_examples=cases(1 / 8), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=gemms(largest=30),
    stored=st.sampled_from(NARROW),
    hardware=machines_of_all_kinds(16, st.sampled_from([1, 2, 3, 4, 8, 16])),
    data=st.data(),
)
def test_the_engines_agree(layer: Gemm, stored: str, hardware: Hardware, data: st.DataObject) -> None:
    """By every lowering, from a pipe and from banks; every output is right."""
    layer = replace(layer, stored=stored)
    name = data.draw(st.sampled_from(sorted(lowerings_of(layer) - (IN_LANES if hardware.banked else set()))))
    suppose(layer.macs(1) / hardware.pes < 800)
    suppose(least_cycles(layer, 1, hardware) < 2000)
    program, hardware = fitted(layer, 1, hardware, name)
    agree(layer, 1, program, hardware)


@settings(max_examples=cases(1 / 8), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=gemms(largest=60), stored=st.sampled_from(NARROW), hardware=machines())
def test_no_run_is_faster_than_its_bound(layer: Gemm, stored: str, hardware: Hardware) -> None:
    """The search leaves out tilings by their bounds, so that these must hold with unpacking, too."""
    layer, hardware = replace(layer, stored=stored), hardware.having("mapping", search="simulate")
    try:
        drafts = CHANNEL_FIRST.drafts(layer, 1, hardware)
    except CapacityError:
        suppose(False)
        raise
    for draft in drafts[:3]:
        program, _ = draft.lower()
        running = hardware.arranged(draft.arrangement) if draft.arrangement else hardware
        assert draft.least <= agreed_timing(program, running).cycles


@pytest.mark.parametrize("layout", [Layouts(), *(Layouts(named=(("filter", each),)) for each in ("OHWI", "HWIO"))])
@pytest.mark.parametrize("sizes", [(5, 64, 128), (3, 7, 9)])
def test_runs_of_narrow_weights_are_whole_bytes(sizes: tuple[int, int, int], layout: Layouts) -> None:
    """Half a byte each, whichever axis is innermost; runs stay inside their tensor."""
    m, n, k = sizes
    hardware = machine(8, 8, hbm={"burst_bytes": 1}).having("hbm", layout=layout)
    for stored, bits in STORED_BITS.items():
        program, hardware = fitted(Gemm("fc", m, n, k, stored=stored), 1, hardware, "channel_first")
        moves = TransferRuns(program, hardware)
        for step in fills(program, "filter"):
            for run in moves.runs(step):
                numbers = run.base, run.size, *(each for level in run.levels for each in level)
                assert {*map(type, numbers)} == {int}
                assert moves.bases["filter"] <= run.base
            assert moves.wanted(step) <= min(moves.bytes(step), step.hbm_bytes)
        assert sum(map(moves.wanted, fills(program, "filter"))) >= n * k * bits // 8


@pytest.mark.parametrize(("stored", "share"), [("int8", 2), ("int4", 4)])
def test_bytes_are_an_exact_share_of_those_of_bf16(stored: str, share: int) -> None:
    hardware = load_hardware("tpu_v6e")
    moved = {}
    for each in ("computed", stored):
        program, _ = fitted(Gemm("fc", 8, 1024, 2048, stored=each), 1, hardware, "channel_first")
        moved[each] = sum(step.hbm_bytes for step in fills(program, "filter"))
    assert moved["computed"] == 2 * 1024 * 2048 == share * moved[stored]


def test_a_product_of_one_row_takes_the_time_of_its_bytes() -> None:
    """Halves of bytes halve the time beyond the launch; quarters meet the rate at which weights enter the arrays."""
    hardware = load_hardware("tpu_v6e")

    def beyond(stored: str) -> int:
        layer = Gemm("up", 1, 14336, 4096, stored=stored)
        cycles = simulate(Workload("decode", 1, [layer]), hardware, check=False).total.cycles
        return cycles - hardware.sequencer.launch_cycles

    whole = beyond("computed")
    assert 1.85 < whole / beyond("int8") < 2
    assert 2.8 < whole / beyond("int4") < 4


@rule("T111")
def test_unpacking_by_hand() -> None:
    """An operation an element, or as many as an operand takes, and one more for half a byte: of all elements of a word
    in all lanes, by so many ALUs.
    """
    hardware = load_hardware("tpu_v6e")
    assert packed_as("computed", hardware) is None
    int8, int4 = (packed_as(each, hardware) for each in NARROW)
    assert int8
    assert (int8.bytes, int8.operations) == (1, 1)
    assert int4
    assert (int4.bytes, int4.operations) == (Fraction(1, 2), 2)
    assert int8.cycles(hardware) == Fraction(256 * 8, 4096)
    slow = load_hardware("tpu_v3_core")
    assert packed_as("int8", slow) == (1, 2)
    # A machine whose elements have a byte reads them as they are.
    assert packed_as("int8", hardware.of_type("f8")) is None

    program, _ = fitted(Gemm("fc", 1, 1024, 2048, stored="int4"), 1, hardware, "channel_first")
    for step in fills(program, "filter"):
        words = -(-step.hbm_bytes * 2 // (256 * 8))
        assert step.conversion_cycles(hardware) == ceil(words * Fraction(2 * 256 * 8, 4096))


def test_slow_unpacking_sets_the_pace() -> None:
    """With one ALU, weights come as fast as it widens them, and the bound knows it."""
    hardware = machine(8, 8, bytes_per_cycle=64).having("vector_unit", alus=1)
    layer = Gemm("fc", 1, 64, 64, stored="int8")
    program, hardware = fitted(layer, 1, hardware, "channel_first")
    assert agreed_timing(program, hardware).cycles > 64 * 64
    (draft,) = CHANNEL_FIRST.drafts(layer, 1, hardware.having("mapping", search="estimate"))
    assert draft.estimate() > 64 * 64
    assert draft.least == 0 or draft.least > 64 * 64


def test_banks_of_a_dram_serve_narrow_weights() -> None:
    device = dram(refresh="none")
    burst = device.organisation.burst_bytes
    hardware = machine(8, 8, hbm={"burst_bytes": burst}).having("hbm", model="banks", device=device)
    layer = Gemm("fc", 4, 63, 65, stored="int4")
    program, hardware = fitted(layer, 1, hardware, "channel_first")
    agree(layer, 1, program, hardware)


@pytest.mark.parametrize(("between", "scratch"), covering(1, ["drain", "overlap", "stay"], [True, False]))
def test_layers_that_follow_one_another(between: str, scratch: bool) -> None:
    """Both engines, every output; a scratch memory holds weights that come again as HBM does."""
    hardware = load_hardware("tiny_4x4", ESTIMATE).having("sequencer", between_layers=between)
    if scratch:
        memory = ScratchMemory(capacity_bytes=1 << 16, bandwidth_bytes_per_s=10**10, latency_ps=1000)
        hardware = hardware.model_copy(update={"scratch_memory": memory})
    layers = (
        Gemm("one", 40, 12, 9, stored="int4"),
        Gemm("two", 40, 17, 12, stored="int8"),
        Gemm("three", 40, 9, 17),
    )
    edges = {"two": ["one"], "three": ["two"]}
    assert simulate(Workload("chain", 1, layers, edges=edges), hardware, engine="both").correct
