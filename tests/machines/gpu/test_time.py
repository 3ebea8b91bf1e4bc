"""Both interpreters that keep time agree to the cycle, and, where nothing is contended, with a closed form."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines.gpu import conv, convolutions, fits, gpu, lowered, paces
from tests.strategies import cases
from tpusim.machines.gpu import event, stepping
from tpusim.machines.gpu.definition import BlockPace, waves
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.event import resident
from tpusim.machines.gpu.lowering import LOWERINGS, resident_cycles
from tpusim.network.ops.array_op import Conv2d


@settings(max_examples=cases(0.12), deadline=None)
@given(paces(), st.integers(1, 4))
def test_event_and_stepping_agree(pace: BlockPace, blocks: int) -> None:
    told, stepped = resident(pace, blocks), stepping.resident(pace, blocks)
    assert told.total() == stepped.total()
    assert +told == +stepped


@settings(max_examples=cases(0.1), deadline=None)
@given(paces())
def test_a_block_by_itself_takes_the_closed_form(pace: BlockPace) -> None:
    """One k-step on its way, one block: it multiplies, or its operands are on their way, whatever takes longer."""
    alone = replace(pace, ahead=1)
    holds = [store + alone.step + alone.multiply for _, store in alone.stages]
    brought = [load + alone.latency for load, _ in alone.stages]
    begun = [store if alone.held else hold for (_, store), hold in zip(alone.stages, holds, strict=True)]
    between = sum(max(hold, early + next_) for hold, early, next_ in zip(holds, begun, brought[1:], strict=False))
    assert resident(alone, 1).total() == brought[0] + between + holds[-1] + alone.epilogue


def test_alike_rounds_are_left_out_exactly() -> None:
    """A long sum is as many rounds longer than a short one as it has more of them; it takes no longer to time."""
    pace = BlockPace(((30, 4), (10, 4)), 2, 100, 5, 50, 20, 1, held=True, together=1)
    short, longer, more = (resident(replace(pace, stages=pace.stages * times), 3) for times in (100, 1100, 2100))
    assert more.total() - longer.total() == longer.total() - short.total()


@settings(max_examples=cases(0.004), deadline=None)
@given(convolutions(), st.sampled_from(["1", "3"]), st.sampled_from(["true", "false"]))
def test_layers_agree(case: tuple[Conv2d, int], ahead: str, copies: str) -> None:
    machine = gpu(f"sm.loads_under_way={ahead}", f"sm.async_copy={copies}")
    for lowering in LOWERINGS:
        if program := fits(*case, machine, lowering):
            timing = event.run(program, machine)
            assert timing == stepping.run(program, machine, lambda cycles: None)
            assert all(sum(unit.values()) == timing.cycles for unit in timing.units.values())


def products_of(machine: Gpu, layer: Conv2d, lowering: str = "channel_last") -> float:
    """Cycles."""
    return event.run(lowered(layer, 8, machine, lowering), machine).cycles


def test_waves_hold_every_block_once() -> None:
    machine = gpu()
    products = lowered(conv(64, 28, 256, 3), 8, machine, "channel_last").products
    held = sum(Counter({blocks: sms for blocks, sms in wave.items()}).total() for wave in waves(products, machine))
    assert sum(blocks * sms for wave in waves(products, machine) for blocks, sms in wave.items()) == products.count
    assert held <= machine.sm.count * len(waves(products, machine))


def test_estimates_are_near_what_engines_find() -> None:
    pace = BlockPace(((60, 10),) * 200, 1, 400, 100, 500, 1000, 1, held=True, together=1)
    one = replace(pace, stages=pace.stages[:1])
    for blocks in (1, 2, 4):
        assert resident_cycles(one, [200], blocks) == pytest.approx(resident(pace, blocks).total(), rel=0.02)


def test_a_loaded_port_bounds_a_set() -> None:
    pace = BlockPace(((700, 10),) * 50, 1, 400, 100, 100, 1000, 1, held=True, together=1)
    assert resident(pace, 4).total() == pytest.approx(50 * 4 * 700, rel=0.05)


@pytest.mark.parametrize(
    ("slower", "faster"),
    [("sm.fma_per_cycle=256", "sm.fma_per_cycle=512"), ("l2.bytes_per_cycle=16", "l2.bytes_per_cycle=64"),
     ("dram.bandwidth=1 GB/s", "dram.bandwidth=900 GB/s"), ("sm.count=2", "sm.count=4"),
     ("sm.step_cycles=300", "sm.step_cycles=100"), ("mapping.layout=NCHW", "mapping.layout=NHWC")],
)  # fmt: skip
def test_every_part_of_the_machine_matters(slower: str, faster: str) -> None:
    layer = conv(96, 7, 32, 3, padding=(1, 1))
    assert products_of(gpu(slower), layer) > products_of(gpu(faster), layer)


def test_asynchronous_copies_take_no_time_of_blocks() -> None:
    layer = conv(96, 28, 128, 3, padding=(1, 1))
    assert products_of(gpu("sm.async_copy=true", "sm.loads_under_way=3"), layer) < products_of(gpu(), layer)


def test_parts_of_a_sum_fill_a_machine_of_few_blocks() -> None:
    layer, many = conv(96, 7, 32, 3, padding=(1, 1)), "sm.count=40"
    assert products_of(gpu(many, "mapping.split_k=none"), layer) > products_of(gpu(many), layer)


def test_few_channels_pay_for_whole_k_steps() -> None:
    """Of 32 places 4 are used: without padding, eight taps share a k-step."""
    layer = conv(4, 56, 64, 3, padding=(1, 1))
    assert products_of(gpu(), layer) > 1.5 * products_of(gpu("mapping.pad_taps=false"), layer)


def test_a_patch_saves_time_where_loading_binds() -> None:
    layer, slow = conv(64, 32, 64, 3, padding=(1, 1)), "l2.bytes_per_cycle=16"
    with_patch, without = gpu(slow), gpu(slow, "mapping.reuse=none")
    assert products_of(with_patch, layer, "block_channel_first") < 0.8 * products_of(
        without, layer, "block_channel_first"
    )
    strided = conv(64, 32, 64, 3, stride=(4, 4), padding=(1, 1))
    figures = [
        event.run(lowered(strided, 8, each, "block_channel_first"), each).figures for each in (with_patch, without)
    ]
    assert figures[0]["a_bytes"] == figures[1]["a_bytes"]
