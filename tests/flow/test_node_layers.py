"""Parts of a value, and all of them together as layers read them."""

from __future__ import annotations

import numpy as np
import pytest

from tpusim.flow.node_layers import BatchParts, together

MAPS = np.arange(2 * 3 * 5 * 4.0).reshape(2, 3, 5, 4)
"""[channel, row, col, image]."""
NCHW = np.moveaxis(MAPS, -1, 0)


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("whole", [NCHW, NCHW.copy(), NCHW[:, ::-1]], ids=["turned", "straight", "mirrored"])
def test_what_was_one_array_is_not_copied(whole: np.ndarray, parts: int) -> None:
    again = together(np.split(whole, parts))
    np.testing.assert_array_equal(again, whole)
    assert np.shares_memory(again, whole)


@pytest.mark.parametrize(
    "parts",
    [
        [NCHW[:1], NCHW[2:3], NCHW[1:2]], [NCHW[:2], NCHW[1:3]], [NCHW[:1], NCHW[1:2].copy()],
        [NCHW[:1], NCHW[1:]], [NCHW[:1, :, :1], NCHW[:1, :, 1:2, :3]], [NCHW[:0], NCHW[:0]],
    ],
    ids=["out of order", "overlapping", "elsewhere", "of two lengths", "of two shapes", "empty"],
)  # fmt: skip
def test_others_are_joined(parts: BatchParts) -> None:
    if parts[0].shape[1:] != parts[1].shape[1:]:
        with pytest.raises(ValueError, match="must match"):
            together(parts)
    else:
        np.testing.assert_array_equal(together(parts), np.concatenate(parts))


def test_the_same_part_again() -> None:
    np.testing.assert_array_equal(together([NCHW[:1], NCHW[:1]]), np.concatenate([NCHW[:1], NCHW[:1]]))
