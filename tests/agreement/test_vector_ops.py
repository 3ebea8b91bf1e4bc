"""Ops of the vector unit: right at every level, to the cycle, whatever the window sees of the padding."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.agreement.test_agreement import MOST_CYCLES, fitted, suppose
from tests.agreement.test_hazards import hazards
from tests.strategies import cases, machine, machines_of_all_kinds, spills, vector_ops
from tpusim.flow.verify import check_layer, expected, operands_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import planned_of
from tpusim.machines.tpu.program.check import check_program
from tpusim.network.ops import Add, Pool2d, VectorOp

LOWERING = "vector_ops"


@settings(max_examples=cases(1 / 25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=vector_ops(12, 4),
    batch=st.integers(1, 9),
    hardware=machines_of_all_kinds(8, st.sampled_from([1, 2, 3, 8])),
)
@example(layer=Pool2d("p", "max", 6, 7, 7, 3, 2, 1), batch=3, hardware=machine(4, 4, scalar_words=1))
@example(layer=Pool2d("p", "average", 6, 6, 7, 3, 2, 1, ceil_mode=True), batch=1, hardware=machine(4, 4))
@example(layer=Add("a", 9, 5, 4, other="image"), batch=1, hardware=machine(4, 4, word_elements=8))
def test_random_layers(layer: VectorOp, batch: int, hardware: Hardware) -> None:
    """Values at both levels, the engines to the cycle, no wait missing, all steps told ahead."""
    suppose(len(layer.sources(batch)) - 1 <= hardware.vector_unit.scalar_words)
    program, hardware = fitted(layer, batch, hardware, LOWERING)
    check_program(program, hardware)
    suppose(event.run(program, hardware).cycles < MOST_CYCLES)
    assert not [*hazards(program, hardware)]
    planned = planned_of(layer, batch, hardware, LOWERING)
    assert planned is not None
    assert not program.streams
    assert planned.transfers >= len(program.steps) > 0
    operands = operands_of(layer, batch, seed=3)
    ofmap = expected(layer, operands)
    timing, registers = register.run(program, hardware, operands)
    assert timing == event.run(program, hardware)
    assert (timing.reads, timing.writes) == (program.use.port_reads, program.use.port_writes)
    np.testing.assert_array_equal(registers["ofmap"], ofmap)
    np.testing.assert_array_equal(datapath.run(program, hardware, operands)["ofmap"], ofmap)
    assert check_layer(layer, batch, program, hardware, seed=3).mismatched == 0
    assert spills(program)
