"""Ops of language models in the reference, against sums by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tpusim import reference
from tpusim.base.errors import InputError
from tpusim.network.ops.rows import RmsNorm


def drawn(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(0, 2, shape)


def test_rows_are_divided_by_the_root_of_their_mean_square() -> None:
    x, scale = drawn(5, 1, 1, 3), drawn(5, 1, 1, 1)
    made = reference.compute(RmsNorm("r", 5, epsilon=0.5), {"ifmap": x, "scale": scale})
    for row in range(3):
        whole = sum(each**2 for each in x[:, 0, 0, row]) / 5 + 0.5
        np.testing.assert_allclose(made[:, 0, 0, row], x[:, 0, 0, row] / whole**0.5 * scale[:, 0, 0, 0], rtol=1e-12)


@pytest.mark.parametrize(("kind", "fields", "says"), [(RmsNorm, {"epsilon": 0.0}, "epsilon: 0.0 is not above zero")])
def test_what_is_wrong_with_one(kind: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        kind("x", 4, **fields)
