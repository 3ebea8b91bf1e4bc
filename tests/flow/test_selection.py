"""Layers by a glob of names, or from one to another."""

from __future__ import annotations

import pytest

from tests.flow.test_fusion import RESIDUAL, on
from tpusim.base.errors import InputError
from tpusim.flow.fusion import fused, select_layers
from tpusim.network.workload import Workload

TOGETHER = fused(RESIDUAL, on())


@pytest.mark.parametrize(
    ("work", "wanted", "found"),
    [
        (RESIDUAL, "*", ["a", "a_relu", "b", "sum", "relu", "c"]),
        (RESIDUAL, "*relu", ["a_relu", "relu"]),
        (RESIDUAL, "b..relu", ["b", "sum", "relu"]),
        (RESIDUAL, "sum..", ["sum", "relu", "c"]),
        (RESIDUAL, "..a_relu", ["a", "a_relu"]),
        (RESIDUAL, "b..b", ["b"]),
        (RESIDUAL, "..", ["a", "a_relu", "b", "sum", "relu", "c"]),
        (TOGETHER, "a_relu..sum", ["a", "b"]),
    ],
)
def test_layers_that_are_meant(work: Workload, wanted: str, found: list[str]) -> None:
    assert [layer.name for layer in select_layers(work, wanted).layers] == found


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("relu..a", r"^relu\.\.a: relu comes after a in n; name the first layer first"),
        ("summ..c", r"^summ\.\.c: n has no layer 'summ'; did you mean sum\? it has a, a_relu"),
        ("a..*", r"n has no layer '\*'"),
    ],
)
def test_ends_that_are_none(wanted: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        select_layers(RESIDUAL, wanted)
