"""Several channel groups in a pass: both engines and the check agree, and only a group's own weights are moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree
from tests.agreement.test_agreement import fitted, short, suppose
from tests.checks import check_layer
from tests.strategies import cases, conv, fills, grouped_convs, machine, machines_of_all_kinds
from tpusim.flow.verify import expected, operands_of
from tpusim.machines.tpu import event, register
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Along, Fill
from tpusim.network.ops.array_op import Conv2d

NAME = "block_diagonal"


def lowered(layer: Conv2d, hardware: Hardware, name: str = NAME, batch: int = 2) -> Program:
    return LOWERINGS[name].lower(layer, batch, hardware)[0]


@settings(max_examples=cases(0.04), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=grouped_convs(),
    batch=st.integers(1, 9),
    hardware=machines_of_all_kinds(16, st.sampled_from([1, 2, 3, 4, 8, 16])),
)
def test_both_engines_and_the_check_agree(layer: Conv2d, batch: int, hardware: Hardware) -> None:
    suppose(layer.macs(batch) / hardware.pes < 800)
    program, hardware = fitted(layer, batch, hardware, NAME)
    agree(layer, batch, program, hardware, seed=4, timing=short(program, hardware))


# Groups, channels and output channels of each, rows and columns of the array; groups side by side.
@pytest.mark.parametrize(
    ("groups", "into", "out", "array", "together"),
    [
        (8, 1, 1, (8, 8), 8),
        (8, 2, 1, (8, 8), 4),
        (8, 1, 3, (8, 8), 2),
        (7, 2, 2, (6, 9), 3),
        (3, 5, 1, (8, 8), 1),
        (1, 4, 4, (8, 8), 1),
    ],
)
def test_as_many_groups_as_fit(groups: int, into: int, out: int, array: tuple[int, int], together: int) -> None:
    """By rows and by columns; 1x1, so that there are no taps to stack instead."""
    layer, hardware = conv(groups * into, 5, groups * out, 1, groups=groups), machine(*array)
    program, told = LOWERINGS[NAME].lower(layer, 2, hardware)
    assert len(program.streams) == -(-groups // together) * told.blocking.blocks
    assert (f"{together} groups side by side" in told.aspects["taps"]) == (together > 1)
    zeros = f"{100 / together:.3g} % of its weights are a group's own, the others zero"
    assert (zeros in told.aspects["folds"]) == (together > 1)


@pytest.mark.parametrize("groups", [1, 4, 7, 12])
def test_zeros_come_from_nowhere(groups: int) -> None:
    """HBM hands out each weight once, however many zeros stand beside it."""
    layer = conv(groups, 6, groups, 3, padding=1, groups=groups)
    hardware = machine(8, 8, capacity_words=8000, hbm={"burst_bytes": 4})
    moved = sum(step.hbm_bytes for step in fills(lowered(layer, hardware), "filter"))
    assert moved == layer.groups * 9 * hardware.vector_memory.element_bytes


def test_one_group_is_channel_first() -> None:
    layer, hardware = conv(5, 6, 7, 3, padding=1), machine(8, 4)
    assert lowered(layer, hardware) == lowered(layer, hardware, "channel_first")


def test_a_group_that_takes_the_weights_of_its_neighbour_is_seen() -> None:
    layer, hardware = conv(6, 5, 6, 3, groups=6), machine(8, 8)
    program = lowered(layer, hardware)
    at = next(at for at, step in enumerate(program.rows) if isinstance(step, Fill) and step.tensor.name == "filter")
    assert check_layer(layer, 2, moved_column(program, at), hardware, seed=1).mismatched
    operands = operands_of(layer, 2, seed=1)
    written: Any = register.run(moved_column(program, at), hardware, operands)[1]
    assert (written["ofmap"] != expected(layer, operands)).any()


def moved_column(program: Program, at: int) -> Program:
    """The last column of a fill has its weights in the rows of the group before."""
    step = program.rows[at]
    assert isinstance(step, Fill)
    out_channels, starts = step.parts[0].lane
    wrong = Along(starts.axis, (*starts.coordinates[:-1], starts.coordinates[-2]))
    parts = tuple(part._replace(lane=(out_channels, wrong)) for part in step.parts)
    return replace(program, rows=(*program.rows[:at], replace(step, parts=parts), *program.rows[at + 1 :]))


@pytest.mark.parametrize(
    ("channels", "size"),
    [
        pytest.param(32, 112, marks=pytest.mark.long),
        pytest.param(144, 56, marks=pytest.mark.long),
        (384, 14),
        pytest.param(960, 7, marks=pytest.mark.long),
    ],
)
def test_depthwise_layers_of_mobilenet_v2_are_twenty_times_faster(channels: int, size: int) -> None:
    layer, hardware = conv(channels, size, channels, 3, padding=1, groups=channels), load_hardware("tpu_v2")
    alone, together = (
        event.run(lowered(layer, hardware, name, batch=8), hardware).cycles for name in ("channel_first", NAME)
    )
    assert alone > 20 * together
