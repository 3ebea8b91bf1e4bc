"""Values that went through tiles in shared memory are those of the reference, in every order, on every output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.machines.gpu import conv, convolutions, gpu, lowered, mappings
from tests.strategies import cases
from tpusim import reference
from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.flow.simulation import simulate
from tpusim.machines.gpu import datapath
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.lowering import LOWERINGS
from tpusim.machines.gpu.program import GpuProgram
from tpusim.network.ops.array_op import Conv1d, Conv2d, Gemm
from tpusim.network.ops.elementwise import Relu
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload


def check(program: GpuProgram, layer: Op, batch: int) -> None:
    """Hold every tensor that is written against the reference."""
    operands = reference.operands(layer, batch, 0)
    told: list[int] = []
    written = datapath.run(program, operands, np.dtype(np.float32), told.append)
    assert sum(told) == layer.outputs(batch)
    for name, values in written.items():
        box = tuple(map(range, values.shape))
        expected = reference.TENSORS[name].compute(layer, operands, box)
        assert np.array_equal(values, expected), (name, layer, batch)


@settings(max_examples=cases(0.25), deadline=None)
@given(convolutions(), mappings())
def test_every_output_of_every_lowering(case: tuple[Conv2d, int], machine: Gpu) -> None:
    for lowering in LOWERINGS:
        check(lowered(*case, machine, lowering), *case)


@pytest.mark.parametrize(
    "layer", [Gemm("g", 70, 90, 130), Conv1d("c", 20, 30, 33, 3, 2, (1, 1), 2)], ids=lambda op: op.op
)
def test_products_and_sequences_are_convolutions(layer: Op) -> None:
    for lowering in LOWERINGS:
        check(lowered(layer, 2, gpu(), lowering), layer, 2)


def test_a_wrong_tile_is_seen() -> None:
    """The check can fail: a k-step that reads a tap too far gives other values."""
    layer = conv(8, 9, 16, 3, padding=(1, 1))
    program = lowered(layer, 1, gpu(), "channel_last")
    products = program.products
    first, *rest = products.steps
    wrong = replace(products, steps=((first[0]._replace(tap=1),), *rest))
    with pytest.raises(AssertionError):
        check(GpuProgram((wrong,)), layer, 1)


def test_a_patch_without_room_is_told_of() -> None:
    layer = conv(64, 64, 64, 7, stride=(4, 4))
    with pytest.raises(CapacityError, match=r"layer conv: .* does not fit the shared memory"):
        lowered(layer, 1, gpu("sm.shared=8 KiB"), "block_channel_first")


def test_a_tile_without_registers_is_told_of() -> None:
    with pytest.raises(CapacityError, match=r"smallest tile takes 4096 registers, and an SM has 9; set sm.registers"):
        lowered(conv(8, 9, 16, 3), 1, gpu("sm.registers=9"), "channel_last")


def test_other_ops_are_refused() -> None:
    with pytest.raises(UnsuitableError, match="relu has no lowering on a GPU yet"):
        lowered(Relu("r", 8, 4, 4), 1, gpu(), "channel_last")
    with pytest.raises(UnsuitableError, match="relu has no lowering on a GPU yet"):
        simulate(Workload("net", 1, (Relu("r", 8, 4, 4),)), gpu(), lowering="auto")
