"""An ofmap held against the reference part by part gives the verdict of comparing all of it at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from tests.agreement.test_corruption import CORRUPTIONS
from tests.checks import check_layer
from tests.covering import few
from tests.strategies import cases, conv, layers, machine, machines
from tpusim import reference
from tpusim.base.errors import CapacityError
from tpusim.flow.boxes import Coverage, indices, outline, straight
from tpusim.flow.verify import expected, operands_of, verdict_of
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Along, Part, Spill
from tpusim.network.ops.op import Op
from tpusim.numerics.equality import Verdict
from tpusim.reference import Box

LAYER, BATCH = conv(6, 9, 7, 3), 3
MACHINE = machine(4, 4, capacity_words=60)


def in_the_end(layer: Op, batch: int, program: Program, hardware: Hardware) -> Verdict:
    operands = operands_of(layer, batch, seed=5)
    return verdict_of(layer, operands, datapath.run(program, hardware, operands))


@settings(max_examples=cases(1 / 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=layers(), batch=st.integers(1, 9), hardware=machines())
def test_a_sound_program(layer: Op, batch: int, hardware: Hardware) -> None:
    assume(layer.macs(batch) / hardware.pes < 2_000)
    try:
        program = CHANNEL_FIRST.lower(layer, batch, hardware)[0]
    except CapacityError:
        reject()
    verdict = check_layer(layer, batch, program, hardware, seed=5)
    assert verdict == in_the_end(layer, batch, program, hardware) == Verdict(layer.outputs(batch), 0, None)


def lose_all_spills_but_one(program: Program) -> Program:
    """The last; the others write their values where it does."""
    last = next(step for step in reversed(program.rows) if isinstance(step, Spill))

    def lost(step: Spill) -> Spill:
        return replace(step, parts=tuple(last.parts[0]._replace(base=part.base) for part in step.parts))

    return replace(program, rows=tuple(lost(step) if isinstance(step, Spill) else step for step in program.rows))


@pytest.mark.parametrize(
    "corrupt", few(3, [*CORRUPTIONS.values(), lose_all_spills_but_one]), ids=[*CORRUPTIONS, "spills"]
)
def test_a_corrupted_program(corrupt: Callable[[Program], Program]) -> None:
    """Elements written twice, or never, among them."""
    program = corrupt(CHANNEL_FIRST.lower(LAYER, BATCH, MACHINE)[0])
    verdict = check_layer(LAYER, BATCH, program, MACHINE, seed=5)
    assert verdict == in_the_end(LAYER, BATCH, program, MACHINE)
    assert verdict.mismatched > 0


def test_what_is_never_written_is_wrong_though_all_else_is_right() -> None:
    layer, batch = conv(4, 4, 8, 1), 8
    program = CHANNEL_FIRST.lower(layer, batch, MACHINE)[0]
    *steps, last = program.rows
    assert isinstance(last, Spill)
    verdict = check_layer(layer, batch, replace(program, rows=tuple(steps)), MACHINE, seed=5)
    never = sum(part.lanes * prod(len(each.coordinates) for each in part.items) for part in last.parts)
    assert verdict.mismatched == never > 0
    assert verdict.first is not None
    assert verdict.first.actual is None


def test_an_element_counts_as_it_was_written_last() -> None:
    """Spilled a second time, after the words have been used again: what was right is wrong."""
    program = CHANNEL_FIRST.lower(LAYER, BATCH, MACHINE)[0]
    first = next(step for step in program.rows if isinstance(step, Spill))
    again = replace(program, rows=(*program.rows, first))
    verdict = check_layer(LAYER, BATCH, again, MACHINE, seed=5)
    assert verdict == in_the_end(LAYER, BATCH, again, MACHINE)
    assert verdict.mismatched > 0


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=layers(), batch=st.integers(1, 9), data=st.data())
def test_the_reference_of_a_box_is_that_part_of_the_whole(layer: Op, batch: int, data: st.DataObject) -> None:
    operands = operands_of(layer, batch, seed=5)
    whole, box = expected(layer, operands), []
    for size in whole.shape:
        first = data.draw(st.integers(0, size - 1))
        box.append(range(first, data.draw(st.integers(first + 1, size))))
    part = reference.compute(layer, operands, tuple(box))
    np.testing.assert_array_equal(part, whole[tuple(slice(each.start, each.stop) for each in box)])


@settings(max_examples=cases(usual=25), deadline=None)
@given(data=st.data())
def test_marks_of_boxes_are_those_of_their_elements(data: st.DataObject) -> None:
    shape, steps = (3, 9, 8, 2), (1, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), 1)

    def span(size: int, step: int) -> range:
        first = data.draw(st.integers(0, size - 1))
        return range(first, data.draw(st.integers(first + 1, size)), step)

    def box() -> Box:
        channels, rows, cols, images = map(span, shape, steps)
        return channels, rows, cols, images

    boxes = [box() for _ in range(data.draw(st.integers(1, 4)))]
    boxes += [tuple(map(range, shape))] if data.draw(st.booleans()) else []  # type: ignore[list-item]
    marks, covered = np.zeros(shape, np.bool_), Coverage(boxes, shape)
    for each in boxes:
        marks[np.ix_(*each)] = True
        covered.add(each)
        np.testing.assert_array_equal(covered.elements, marks)
        assert covered.whole == marks.all()


def test_how_many_are_compared_is_told() -> None:
    told: list[int] = []
    check_layer(LAYER, BATCH, CHANNEL_FIRST.lower(LAYER, BATCH, MACHINE)[0], MACHINE, seed=5, told=told.append)
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] >= LAYER.outputs(BATCH)


@pytest.mark.parametrize("size", [6, 5])
def test_pixels_from_all_over_a_map_are_one_box(size: int) -> None:
    """As words hold them where there are fewer images than elements: columns 0, 2, 4, then 1, 3, 5."""
    along = (Along(2, range(2)), Along(2, range(0, 6, 2)))
    part = Part(0, (0,), (Along(0, range(2)),), along, 1)
    lengths, _, _, ((places, box),) = outline(*straight(part), (2, 1, size, 1))
    values = np.full(lengths, -1)
    values[indices(places, lengths)] = np.arange(size)[:, None]
    assert box == (range(2), range(1), range(size), range(1))
    columns = [0, 2, 4, 1, 3, 5]
    assert values[0, 0, :, 0].tolist() == [column if column < size else -1 for column in columns]


def test_a_part_whose_lanes_differ_along_several_axes() -> None:
    """A spill, said again with lanes that count along the rows as well: the same verdict, and a wrong row is found."""
    program = CHANNEL_FIRST.lower(LAYER, BATCH, MACHINE)[0]

    def said(rows: range) -> Program:
        def again(step: Spill) -> Spill:
            (part,) = step.parts
            channel, (row, first), *items = *part.lane, *part.items
            lane = (channel, Along(row, tuple(rows[lane % len(rows)] for lane in range(part.lanes))))
            return replace(step, parts=(part._replace(lane=lane, items=(Along(row, first), *items)),))

        return replace(program, rows=tuple(again(s) if isinstance(s, Spill) else s for s in program.rows))

    assert check_layer(LAYER, BATCH, said(range(1)), MACHINE, seed=5) == Verdict(LAYER.outputs(BATCH), 0, None)
    verdict = check_layer(LAYER, BATCH, said(range(2)), MACHINE, seed=5)
    assert verdict == in_the_end(LAYER, BATCH, said(range(2)), MACHINE)
    assert verdict.mismatched > 0
