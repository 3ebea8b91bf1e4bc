"""Local response normalization: its windows along the channels, what it takes, and what is told of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.strategies import machine
from tpusim.base.errors import InputError
from tpusim.flow.verify import expected, operands_of
from tpusim.machines.tpu.lowering import vector_ops
from tpusim.machines.tpu.program.transfers import Fill
from tpusim.network.ops.rows import Lrn


def test_windows_stand_on_the_channels_that_there_are() -> None:
    layer = Lrn("l", 5, 2, 3, size=4)
    assert [window.taps for window in layer.windows[0]] == [
        range(1, 4), range(0, 4), range(0, 4), range(0, 3), range(0, 2),
    ]  # fmt: skip
    assert (layer.text, layer.shapes(2)["ofmap"], layer.terms(2)) == ("2x3x5 4", (5, 2, 3, 2), 4)


@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0])
def test_an_element_by_hand(beta: float) -> None:
    layer = Lrn("l", 6, 1, 2, size=3, alpha=0.6, beta=beta, bias=2.0)
    operands = operands_of(layer, 2, seed=1)
    x, made = operands["ifmap"].astype(float), expected(layer, operands)
    squares = x[1, 0, 1, 0] ** 2 + x[2, 0, 1, 0] ** 2 + x[3, 0, 1, 0] ** 2
    assert made[2, 0, 1, 0] == pytest.approx(x[2, 0, 1, 0] / (2 + 0.2 * squares) ** beta, rel=1e-12)


def test_a_lane_has_a_pixel_and_a_step_the_squares_of_its_channels() -> None:
    """12 pixels in 8 lanes are two portions. Squares and their sum take 9 operations of five, 5 of three at edges; then
    come a line of it, two reciprocal roots of 5 operations, and three multiplications.
    """
    hardware = machine(8, 8, word_elements=4, alus=8, vector_unit={"scalar_words": 3})
    program, explained = vector_ops.VECTOR_OPS.lower(Lrn("l", 7, 3, 4), 4, hardware)
    lanes = {step.parts[0].lanes for step in program.rows if isinstance(step, Fill)}
    assert lanes == {8, 4}
    assert explained.aspects["folds"] == "2 portions of at most 8 pixels, one a lane"
    work = {(step.operation, len(step.operands)): step.beat(4, hardware).work for step in program.vectors}
    assert work["squares", 5] == 9 * 4
    assert work["squares", 3] == 5 * 4
    assert work["normalize_by_75", 2] == (5 + 2 * 5) * 4


def test_many_channels_are_summed_up_in_several_steps() -> None:
    hardware = machine(4, 4, word_elements=2, vector_unit={"scalar_words": 1})
    program, _ = vector_ops.VECTOR_OPS.lower(Lrn("l", 9, 1, 4, size=5), 2, hardware)
    names = [step.operation for step in program.vectors]
    assert names.count("squares") == names.count("normalize_by_75") > 0
    assert names.count("squares_more") > names.count("squares")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"beta": 0.6}, r"0.6 is none of 0.5, 0.75, 1.0"),
        ({"bias": 0.0}, r"0.0 is not above zero"),
        ({"alpha": -1.0}, r"-1.0 is below zero"),
    ],
)
def test_what_is_wrong_with_one(more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Lrn("l", 5, **more)
