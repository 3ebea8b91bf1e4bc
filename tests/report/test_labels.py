"""Words of pictures: none is cut, none stands on another."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import rc_context

from tests.checks import ESTIMATE
from tests.pages import with_layers
from tpusim import load_hardware, load_workload
from tpusim.machines.lowered import unheard
from tpusim.report.plots.figure import STYLE, figure_of
from tpusim.report.plots.labels import OccupiedPlaces, name_marks, near, settled, titles
from tpusim.report.plots.layer import explained
from tpusim.report.plots.run import plots
from tpusim.result.records import Result
from tpusim.result.vocabulary.states import ARRAY, STATES
from tpusim.study.explain.bottleneck import Setup, alternatives, explain_layer

SPOTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12)
NAMES = ("fc", "conv1", "layer1.0.downsample and 11 more", "inception4e.branch2.1")


def assert_apart(boxes: list[Any]) -> None:
    assert [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])] == []


@settings(max_examples=6, deadline=None)
@given(SPOTS, st.randoms(use_true_random=False))
def test_names_beside_any_marks_are_apart_and_within_the_plot(spots: list[tuple[float, float]], random: Any) -> None:
    names = [random.choice(NAMES) for _ in spots]
    with rc_context(STYLE):
        figure = figure_of(5.2, 3.6)
        plot = figure.subplots()
        settled(figure)
        taken = OccupiedPlaces()
        taken.add_line(plot, [(0, 0.2), (0.4, 0.8), (1, 0.8)])
        lines = [*taken.lines]
        taken.add_marks(plot, spots, [4.0] * len(spots))
        left_out = name_marks(plot, spots, [4.0] * len(spots), names, taken, fontsize=7)
        written = [each for each in plot.texts if each.get_text()]
        boxes = [each.get_window_extent() for each in written]
    assert sorted([*left_out, *(each.get_text() for each in written)]) == sorted(names)
    assert_apart(boxes)
    for box in boxes:
        assert plot.bbox.x0 - 1 <= box.x0 < box.x1 <= plot.bbox.x1 + 1
        assert plot.bbox.y0 - 1 <= box.y0 < box.y1 <= plot.bbox.y1 + 1
        # A rounding of pixels may touch; a name may not be crossed.
        assert not any(line.x0 + 1 < box.x1 and box.x0 + 1 < line.x1 and line.y0 + 1 < box.y1 and box.y0 + 1 < line.y1
                       for line in lines)  # fmt: skip
    # There is room for the first, wherever it is.
    assert names[0] not in left_out or names.count(names[0]) > 1


def test_a_name_alone_stands_beside_its_mark() -> None:
    figure = figure_of(5.2, 3.6)
    plot = figure.subplots()
    settled(figure)
    assert name_marks(plot, [(0.5, 0.5)], [4.0], ["conv1"], OccupiedPlaces(), fontsize=7) == []
    (text,) = plot.texts
    box, at = text.get_window_extent(), plot.transData.transform((0.5, 0.5))
    assert 0 < box.x0 - at[0] < 10 / 72 * figure.dpi
    assert box.y0 < at[1] < box.y1


def test_spots_on_one_another_are_one_group() -> None:
    figure = figure_of(5.2, 3.6)
    plot = figure.subplots()
    assert near(plot, [(0.5, 0.5), (0.1, 0.1), (0.501, 0.5), (0.1, 0.1)], 3) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    "head", ["short", "tpu_v2 with array.size=64, hbm.bandwidth=350 GB/s, vector_memory.ports=each"]
)
def test_titles_end_within_the_picture(head: str) -> None:
    with rc_context(STYLE):
        figure = figure_of(5.2, 3.6)
        for plot in figure.subplots(2, 1):
            plot.set_title(head)
        figure.suptitle(head, x=0.01, ha="left", fontsize=9)
        settled(figure)
        found = titles(figure)
        assert len(found) == 3
        for title in found:
            assert title.get_text().split() == head.split()
            assert title.get_window_extent().x1 <= figure.bbox.x1
        assert_apart([*(each.get_window_extent() for each in (*found, *(plot.patch for plot in figure.axes)))])


@pytest.mark.parametrize("spread", [0.0, 0.02, *(pytest.param(each, marks=pytest.mark.long) for each in (0.3, 2.0))])
def test_names_on_a_roofline_are_apart(resnet50: Result, spread: float) -> None:
    """Twenty costly layers, from all in one place to far apart."""
    layers = [
        replace(layer, hbm_read_bytes=int(10_000_000 * (1 + spread * (n % 7))), hbm_write_bytes=0,
                tflops=8.0 / (1 + spread * (n % 5)), macs=2_000_000_000)
        for n, layer in enumerate(resnet50.layers[:20])
    ]  # fmt: skip
    with rc_context(STYLE):
        figure = next(each for each in plots(with_layers(resnet50, *layers)) if each.name == "roofline").draw()
        (plot,) = figure.axes
        words = [each for each in plot.texts if each.get_text()]
        upright = [each.get_window_extent() for each in words if not each.get_rotation()]
    named = [each.get_text() for each in words if "layer" in each.get_text() or "conv" in each.get_text()]
    assert len(named) == {0.0: 1, 0.02: 4}.get(spread, 5)
    assert any(each.get_text().startswith("HBM") for each in words)
    assert_apart(upright)
    if not spread:
        assert named == [f"{layers[0].name} and 19 more"]


def test_the_picture_of_a_layer_explains_every_tone() -> None:
    """Another lowering waits for the vector unit, as Winograd's does, and the layer as it is does not."""
    work, machine = load_workload("tiny", batch=8), load_hardware("tiny_4x4", ESTIMATE)
    setup = Setup(work.layers[0], work.batch, machine, "channel_first")
    (first, *others), _ = alternatives(setup, unheard)
    waits = {**first.layer.units["systolic_array"], "vector_work": 5}
    other = replace(first.layer, units={**first.layer.units, "systolic_array": waits})
    fit = [replace(first, layer=other), *others]
    with rc_context(STYLE):
        figure = explained(explain_layer(setup, unheard), "tiny", fit).draw()
        settled(figure)
        (legend,) = figure.legends
        box = legend.get_window_extent()
    told = {each.get_text() for each in legend.get_texts()}
    lost = {state.legend for state in ARRAY for each in fit if each.layer.units["systolic_array"].get(state.key)}
    assert lost <= told
    assert STATES["vector_work"].legend in lost
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_legends_of_a_run_are_within_their_pictures(resnet50: Result) -> None:
    # Of fewer layers a picture is narrower, and has as many states to explain.
    with rc_context(STYLE):
        for picture in plots(with_layers(resnet50, *resnet50.layers[:6])):
            figure = settled(picture.draw())
            for legend in figure.legends:
                box = legend.get_window_extent()
                assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, picture.name
