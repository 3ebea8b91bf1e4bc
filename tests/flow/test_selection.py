"""Layers by a glob of names, or from one to another."""

from __future__ import annotations

import pytest

from tests.flow.test_fusion import RESIDUAL, on
from tpusim.base.errors import InputError
from tpusim.flow.jobs import names_picked, resolve
from tpusim.network.workload import Workload

TOGETHER = resolve(RESIDUAL, on()).work


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
    assert names_picked(work, wanted) == {*found}
    picked = resolve(RESIDUAL, on("none" if work is RESIDUAL else "results")).picked(wanted)
    assert [layer.name for layer in picked.work.layers] == [job.layer.name for job in picked.each] == found


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
        names_picked(RESIDUAL, wanted)
