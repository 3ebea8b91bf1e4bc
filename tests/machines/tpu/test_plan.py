"""How a layer is cut up: every output, weight and image is in one piece and no other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.strategies import cases, conv, layers, machine, machines
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.cut.blocks import portions
from tpusim.machines.tpu.cut.geometry import MapAxis
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import TapGroups
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST, Convolution, plan_of
from tpusim.machines.tpu.schedule.scheduler import buffers, link
from tpusim.machines.tpu.search.search import _brought, _needing
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.op import Op


def planned(layer: Op, batch: int, hardware: Hardware) -> Plan:
    return plan_of(TapGroups, layer, batch, hardware)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    try:
        return planned(draw(layers()), draw(st.integers(1, 9)), draw(machines()))
    except CapacityError:
        assume(False)
        raise


relaxed = settings(max_examples=cases(1 / 6), deadline=None, suppress_health_check=list(HealthCheck))


@given(st.integers(0, 99), st.integers(1, 30))
def test_portions(extent: int, size: int) -> None:
    parts = portions(extent, size)
    assert [at for part in parts for at in part] == [*range(extent)]
    assert all(len(part) == size for part in parts[:-1])


@relaxed
@given(plans())
def test_blocks_have_every_output_once(plan: Plan) -> None:
    """Rows of a strip, columns and word groups; the first is the largest."""
    shape = plan.shape
    groups = -(-shape.word_images // plan.word_fill)
    times = np.zeros((shape.row.extent, shape.col.extent, groups), np.int64)
    for block in plan.blocks:
        times[block.rows.start : block.rows.stop, block.cols.start : block.cols.stop, block.groups.start :][
            ..., : len(block.groups)
        ] += 1
        assert block.words <= plan.blocks[0].words
    assert (times == 1).all()


def touched(axis: MapAxis, outputs: range, taps: range) -> set[int]:
    """Ifmap coordinates under one of the taps of some output of some strip, each as strip 0 would call it."""
    return {
        output * axis.stride + tap * axis.dilation - axis.padding[0]
        for output, tap, strip in product(outputs, taps, range(axis.strips))
        if 0 <= (output + strip * axis.extent) * axis.stride + tap * axis.dilation - axis.padding[0] < axis.size
    }


@relaxed
@given(plans())
def test_blocks_fetch_what_their_outputs_touch(plan: Plan) -> None:
    """And nothing before the first tap or after the last, nor, without strips, outside the ifmap."""
    row, col = plan.shape.row, plan.shape.col
    for block, chunk in product((*plan.blocks[:3], *plan.blocks[-3:]), (*plan.chunks[:2], *plan.chunks[-2:])):
        patch = plan.patch(block, chunk)
        for axis, outputs, grid, taps in (
            (row, block.rows, patch.rows, chunk.tap_rows),
            (col, block.cols, patch.cols, chunk.tap_cols),
        ):
            coordinates = axis.coordinates(grid)
            assert touched(axis, outputs, taps) <= {*coordinates}
            first, last = outputs[0] * axis.stride, outputs[-1] * axis.stride
            reached = range(first + taps[0] * axis.dilation, last + taps[-1] * axis.dilation + 1)
            ends = [coordinates[0], coordinates[-1]] if grid else []
            assert all(end + axis.padding[0] in reached for end in ends)
            assert axis.strips > 1 or all(0 <= end < axis.size for end in ends)


@st.composite
def axes(draw: st.DrawFn) -> MapAxis:
    kernel, dilation, size = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 40))
    padding = draw(st.tuples(st.integers(0, 8), st.integers(0, 8)))
    axis = MapAxis(
        size, kernel, draw(st.integers(1, 6)), padding, dilation, draw(st.sampled_from([1, 1, 2, 3, 8])),
        whole=draw(st.booleans()),
    )  # fmt: skip
    assume(axis.outputs > 0)
    return axis


@settings(max_examples=cases(2), deadline=None)
@given(axes(), st.data())
def test_points_are_counted_as_those_that_are_there(axis: MapAxis, data: st.DataObject) -> None:
    """For an axis at once, one by one for a block."""
    first = data.draw(st.integers(0, axis.kernel - 1))
    taps = range(first, data.draw(st.integers(first + 1, axis.kernel)))
    whole = replace(axis, strips=1)
    assert axis.read(taps) == len(touched(whole, range(axis.outputs), taps))
    size = data.draw(st.integers(1, axis.extent))
    starts = range(0, axis.extent, size)
    blocks = [axis.stored(range(at, min(at + size, axis.extent)), taps) for at in starts]
    firsts, ends = axis.stored_in_blocks(size, taps)
    assert [*map(range, firsts.tolist(), ends.tolist())] == blocks
    assert _needing(axis, size, taps) == sum(map(bool, blocks))
    shifts = [strip * axis.extent * axis.stride for strip in range(axis.strips)]
    stands = [at + shift for block in blocks for at in axis.coordinates(block) for shift in shifts]
    assert _brought(axis, size, taps) == sum(0 <= at < axis.size for at in stands)


@relaxed
@given(plans())
def test_passes_have_every_weight_once(plan: Plan) -> None:
    """And a fold of columns has each output channel."""
    taps = plan.shape.row.kernel * plan.shape.col.kernel
    weights = [k for rows in plan.weight_rows for k in rows.coordinates]
    assert sorted(weights) == [*range(taps * plan.shape.channels)]
    assert [len(rows.coordinates) for rows in plan.weight_rows] == [each.rows for each in plan.passes]
    assert max(each.rows for each in plan.passes) <= plan.hardware.array.rows
    assert [channel for fold in plan.col_folds for channel in fold] == [*range(plan.shape.out_channels)]
    assert max(map(len, plan.col_folds)) <= plan.hardware.array.cols
    assert [number for section in plan.sections for number in section.numbers] == [*range(len(plan.passes))]


@relaxed
@given(plans())
def test_stages_have_every_section_of_every_block_once(plan: Plan) -> None:
    """Channel groups outside, then blocks and tiles of column folds as the tiling says; chunks, folds, sections."""
    stages = [*plan.stages]
    sizes = plan.shape.groups, len(plan.blocks), len(plan.col_folds), len(plan.sections)
    assert len(stages) == np.prod(sizes)
    assert len({*stages}) == len(stages)
    outside = []
    for each in stages:
        block, tile = each.block, each.fold // plan.tiling.kept_folds
        pair = (block, tile) if plan.tiling.loop_order == "block_major" else (tile, block)
        outside.append((each.group, *pair, plan.sections[each.section].chunk, each.fold, each.section))
    assert outside == sorted(outside)


@relaxed
@given(plans())
def test_word_groups_have_every_image_once(plan: Plan) -> None:
    """Strips of an image share its word, with those of others."""
    share = plan.word_fill // plan.shape.strips
    assert plan.word_fill % plan.shape.strips == 0
    groups = -(-plan.shape.images // share)
    images = Counter(image for group in range(groups) for image in plan.images(range(group, group + 1)))
    assert images == Counter(range(plan.shape.images))


@pytest.mark.parametrize(
    ("images", "fill", "shared"),
    [(8, 4, [range(4), range(4, 8)]), (7, 4, [range(4), range(4, 7)]), (9, 3, [range(3), range(3, 6), range(6, 9)])],
)
def test_images_of_a_partial_word_are_those_there_are(images: int, fill: int, shared: list[range]) -> None:
    """Seven images in words of four: the second word group has three."""
    plan = planned(Gemm("g", m=images, n=3, k=3), 1, machine(4, 4, word_elements=4))
    assert plan.word_fill == fill
    assert [plan.images(range(group, group + 1)) for group in range(len(shared))] == shared
    assert plan.images(range(len(shared))) == range(images)


def test_partial_words_cost_the_bytes_of_the_images_there_are() -> None:
    """Seven rows of nine numbers in words of four: 252 bytes come in, and go out, whatever the words hold."""
    program = CHANNEL_FIRST.lower(Gemm("g", m=7, n=9, k=9), 1, machine(9, 9, word_elements=4, hbm={"burst_bytes": 4}))[
        0
    ]
    assert sum(step.hbm_bytes for step in program.rows if step.label == "ifmap fill") == 252
    assert sum(step.use.hbm_write_bytes for step in program.rows) == 252


def test_buffers_lie_one_after_another() -> None:
    plan = planned(conv(6, 9, 7, 3), 3, machine(4, 4, capacity_words=200))
    tiling = plan.tiling
    assert (tiling.ifmap_buffers, tiling.psum_buffers) == (2, 2)
    units = Convolution(plan)
    found = buffers(units, link(units))
    sizes = 2 * tiling.ifmap_words, tiling.filter_buffers * tiling.section_words, 2 * tiling.psum_words
    assert [each.tensor for each in found] == ["ifmap", "filter", "ofmap"]
    assert tuple(each.words for each in found) == sizes
    assert [each.base for each in found] == [0, sizes[0], sum(sizes[:2])]
    assert found[-1].base + found[-1].words == tiling.words
