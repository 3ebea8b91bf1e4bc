"""Ops of a training step: their sizes, what is drawn for them, and what is told of wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tpusim import reference
from tpusim.base.errors import InputError
from tpusim.flow.numbers import numbers_of
from tpusim.network.ops.channels import ChannelProducts, ChannelSum
from tpusim.network.ops.elementwise import BatchNormGradient
from tpusim.network.ops.pool2d import Pool2dChoice, Pool2dGradient
from tpusim.network.ops.rows import LayerNormGradient
from tpusim.network.ops.training import AdamSecond, AdamStep, BatchNormSlope, OverDeviation


def test_a_gradient_of_a_pool_turns_its_maps_around() -> None:
    layer = Pool2dGradient("g", "max", 5, 9, 8, 3, 2, 1)
    assert layer.shapes(2) == {"ifmap": (5, 5, 4, 2), "choice": (5, 5, 4, 2), "ofmap": (5, 9, 8, 2)}
    assert [*Pool2dGradient("g", "average", 5, 9, 8, 3).shapes(2)] == ["ifmap", "ofmap"]


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "most"), [(3, 1, 1, 9), (3, 2, 1, 4), (2, 3, 1, 1), (3, 2, 2, 9), (1, 2, 1, 1)]
)
def test_the_most_windows_above_an_element(kernel: int, stride: int, dilation: int, most: int) -> None:
    layer = Pool2dGradient("g", "average", 1, 15, 15, kernel, stride, 0, dilation)
    assert layer.terms(1) == most


@pytest.mark.parametrize("dtype", ["integers", "f32", "bf16", "int8"])
def test_choices_are_drawn_from_the_taps(dtype: str) -> None:
    layer = Pool2dGradient("g", "max", 7, 20, 20, (2, 3))
    choice = numbers_of(dtype, "any").operands(layer, 3, seed=1)["choice"]
    assert {*np.unique(choice)} == {*range(6)}
    assert reference.number_of(choice) == np.float32


def test_what_has_a_number_a_channel() -> None:
    number, maps = (4, 1, 1, 1), (4, 3, 2, 5)
    assert ChannelSum("s", 4, 3, 2).shapes(5) == {"ifmap": maps, "ofmap": number}
    centred = ChannelProducts("p", 4, 3, 2, centred=True)
    assert centred.shapes(5) == {"ifmap": maps, "other": maps, "about": number, "ofmap": number}
    assert (ChannelSum("s", 4, 3, 2).terms(5), centred.terms(5)) == (30, 60)
    gradient = BatchNormGradient("b", 4, 3, 2).shapes(5)
    assert [gradient[name] for name in ("scale", "slope", "offset")] == [number] * 3


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (Pool2dChoice, {"kind": "average", "channels": 1, "in_height": 4, "in_width": 4, "kernel": 2}, "kind.*max"),
        (AdamSecond, {"channels": 1, "decay": 1.5}, r"1.5 is no share from 0 to 1"),
        (AdamStep, {"channels": 1, "epsilon": 0.0}, r"0.0 is not above zero"),
        (OverDeviation, {"channels": 1, "epsilon": -1.0}, r"-1.0 is not above zero"),
        (BatchNormSlope, {"channels": 1, "elements": 0}, "elements"),
        (LayerNormGradient, {"channels": 1, "epsilon": 0.0}, r"0.0 is not above zero"),
    ],
)
def test_what_is_wrong_with_one(kind: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        kind(name="x", **fields)
