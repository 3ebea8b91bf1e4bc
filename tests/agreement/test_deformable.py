"""Deformable convolutions: samples gathered element by element, in both engines, against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree, agreed_timing
from tests.agreement.test_agreement import fitted, suppose
from tests.agreement.test_hazards import hazards
from tests.checks import check_layer
from tests.rules import rule
from tests.strategies import cases, deform_convs, fills, machine, machines_of_all_kinds
from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import lowered, planned_of
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Stream, Vector
from tpusim.machines.tpu.program.transfers import Fill
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.ops.deform_conv2d import DeformConv2d

SMALL = machine(8, 8, word_elements=4)


def deformed(into: int, size: int, out: int, kernel: Any = 3, **more: Any) -> DeformConv2d:
    return DeformConv2d("d", into, size, size, out, kernel, **{"padding": 1, **more})


@settings(max_examples=cases(1 / 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=deform_convs(), batch=st.integers(1, 9), hardware=machines_of_all_kinds(12, st.sampled_from([1, 2, 3, 8])))
def test_engines_agree_on_any_machine(layer: DeformConv2d, batch: int, hardware: Hardware) -> None:
    suppose(not hardware.banked and layer.macs(batch) / hardware.pes < 400)
    program, hardware = fitted(layer, batch, hardware, "deformable")
    suppose(agreed_timing(program, hardware).cycles < 5_000)
    assert not [*hazards(program, hardware)]
    planned = planned_of(layer, batch, hardware, "deformable")[0]
    assert planned is not None
    assert planned.passes >= len(program.streams)
    assert planned.passes + planned.transfers >= len(program.rows) - len(program.streams)
    agree(layer, batch, program, hardware)


@rule("T73")
@pytest.mark.parametrize(
    ("offsets", "modulated"),
    [
        ("zero", True),
        pytest.param("integer", False, marks=pytest.mark.long),
        pytest.param("half", True, marks=pytest.mark.long),
        ((0.5, -1.25) * 9, False),
    ],
)
def test_slots_are_those_of_the_activity_not_of_the_offsets(offsets: Any, modulated: bool) -> None:
    """Wherever samples lie, a word takes as long; what lies outside the map is not read."""
    layer = deformed(6, 3, 7, offsets=offsets, modulated=modulated)
    timing = agree(layer, 5, lowered(layer, 5, SMALL, "deformable")[0], SMALL)
    plain = deformed(6, 3, 7, offsets="zero")
    assert timing.cycles == agreed_timing(lowered(plain, 5, SMALL, "deformable")[0], SMALL).cycles
    assert min(cycles for unit in timing.units.values() for cycles in unit.values()) >= 0


@rule("T73")
def test_a_word_takes_a_read_an_element_and_corner() -> None:
    """E = 4: a word of 16 pointers (2 B each in 16 B: 2 words), 16 elements, 4 words of weights, and a write."""
    layer = deformed(8, 4, 8, 1, padding=0)
    program = lowered(layer, 4, SMALL, "deformable")[0]
    (step,) = program.vectors
    assert (step.words, step.reads) == (16, 2 + 16 + 4)
    beat = step.beat(program.word_fill, SMALL)
    # 7 operations for each of 4 elements in 8 lanes by 16 ALUs.
    assert (beat.work, beat.period) == (14, 23)
    (work,) = event.logged(program, SMALL).works
    assert work["done"] - work["start"] == 15 * 23 + beat.result_delay + 1
    assert agreed_timing(program, SMALL).units["port"]["vector"] == 16 * 23
    stored = sum(each.accesses for each in step.operands[::2])
    assert step.use.port_reads == 16 * 2 + stored + 16 * 4 * 8


# ---- what is gathered, and from what


def test_words_of_samples_serve_all_column_folds_that_a_block_keeps() -> None:
    wide, narrow = deformed(8, 6, 24), deformed(8, 6, 8)
    gathered = [
        sum(each.words for each in lowered(layer, 4, SMALL, "deformable")[0].vectors) for layer in (wide, narrow)
    ]
    assert gathered[0] == gathered[1] == 9 * 36


def test_where_sums_are_not_kept_samples_are_gathered_again() -> None:
    layer, some = deformed(8, 3, 24), SMALL.with_overrides({"mapping.block.out_channels": 16})
    program, told = lowered(layer, 4, some, "deformable")
    assert sum(each.words for each in program.vectors) == 2 * 9 * 9
    assert "gathered 2 times: not all column folds are done" in told.aspects["samples"]
    agree(layer, 4, program, some)


def test_a_block_brings_the_rows_that_its_samples_touch() -> None:
    """All offsets are whole numbers down to 2: a row of outputs has 3 + 4 rows of samples around it, and one below."""
    layer = replace(deformed(4, 14, 4, offsets="integer"), in_width=4)
    tight = machine(4, 4, word_elements=2, capacity_words=300)
    program, told = lowered(layer, 2, tight, "deformable")
    assert told.blocking.blocks > 1
    rows = {len(part.items[0].coordinates) for fill in fills(program, "ifmap") for part in fill.parts}
    assert max(rows) <= told.blocking.rows + 2 + 4 + 1 < 14
    assert check_layer(layer, 2, program, tight, seed=2).mismatched == 0


def test_bands_and_tables_come_while_others_are_gathered_from() -> None:
    """Unless there is no room for two of each: then they wait for what was gathered last."""
    layer = deformed(16, 4, 8)
    tight = machine(8, 8, word_elements=4, capacity_words=46)
    assert min(gathered_beside(lowered(layer, 4, SMALL, "deformable")[0])) > 0
    program = lowered(layer, 4, tight, "deformable")[0]
    assert max(gathered_beside(program)) == 0
    assert not [*hazards(program, tight)]
    assert check_layer(layer, 4, program, tight, seed=2).mismatched == 0


def gathered_beside(program: Program) -> Iterator[int]:
    """How many steps gather between each table that replaces another, and the step that had its words last."""
    vectors = [index for index, step in enumerate(program.rows) if isinstance(step, Vector)]
    for index, step in enumerate(program.rows):
        if isinstance(step, Fill) and step.tensor.name == "blend" and step.after:
            yield sum(max(step.after) < each < index for each in vectors)


def test_lanes_of_other_offset_groups_go_to_other_words() -> None:
    layer = deformed(8, 5, 4, 2, offset_groups=4)
    program = lowered(layer, 3, SMALL, "deformable")[0]
    step = program.vectors[0]
    assert [group.lanes for group in step.operands[0].groups] == [2, 2, 2, 2]
    assert step.picks is not None
    assert step.picks.together == 4
    agree(layer, 3, program, SMALL)


def test_a_pass_waits_for_its_samples_and_they_for_what_they_are_gathered_from() -> None:
    layer, hardware = deformed(16, 6, 16), machine(8, 8, word_elements=4, capacity_words=200)
    program = lowered(layer, 4, hardware, "deformable")[0]
    assert not [*hazards(program, hardware)]
    for kind in (Vector, Stream, Fill):
        steps = tuple(replace(step, after=()) if isinstance(step, kind) else step for step in program.rows)
        assert any(hazards(replace(program, rows=steps), hardware)), kind


def test_what_is_read_through_a_wrong_pointer_is_seen() -> None:
    layer = deformed(6, 5, 7)
    program = lowered(layer, 5, SMALL, "deformable")[0]
    pointers, blend = program.constants
    numbers = np.frombuffer(pointers.numbers, np.int32).copy()
    numbers[np.flatnonzero(numbers % 2 == 0)[50]] += 2
    wrong = replace(program, constants=(replace(pointers, numbers=numbers.tobytes()), blend))
    assert check_layer(layer, 5, wrong, SMALL, seed=2).mismatched


# ---- who is refused


def test_other_layers_and_machines_are_refused() -> None:
    with pytest.raises(UnsuitableError, match="this lowering is for deform_conv2d, not for conv2d"):
        lowered(Conv2d("c", 4, 5, 5, 4, 3), 2, SMALL, "deformable")
    with pytest.raises(UnsuitableError, match="layer d: no convolution of fixed taps computes a deform_conv2d"):
        lowered(deformed(4, 5, 4), 2, SMALL, "explicit")
    with pytest.raises(CapacityError, match="layer d: the smallest tiling needs"):
        lowered(deformed(4, 5, 4), 2, machine(8, 8, word_elements=4, capacity_words=20), "deformable")
