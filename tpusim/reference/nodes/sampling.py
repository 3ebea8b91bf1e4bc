"""Maps that are sampled at places of a grid, straight from ONNX's definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tpusim.reference.nodes.node import Call, Function, Values, as_real
from tpusim.reference.nodes.standard import evaluated

_SHARPNESS = -0.75
"""The coefficient of the cubic convolution."""


def _near(share: Values) -> Sequence[Values]:
    """Return the weights of the elements at -1, 0, 1 and 2 for a place that is a `share` behind 0."""
    a = _SHARPNESS

    def within(x: Values) -> Values:
        return np.asarray(((a + 2) * x - (a + 3)) * x * x + 1)

    def beyond(x: Values) -> Values:
        return np.asarray(((a * x - 5 * a) * x + 8 * a) * x - 4 * a)

    return beyond(share + 1), within(share), within(1 - share), beyond(2 - share)


_TAPS: Mapping[str, tuple[int, Callable[[Values], Sequence[Values]]]] = {
    "linear": (0, lambda share: (1 - share, share)), "cubic": (-1, _near), "nearest": (0, lambda share: [share + 1]),
}  # fmt: skip
"""By mode the first element that counts, from that below a place, and the weights of it and the next ones."""


def _taps(call: Call, along: Values, size: int, mode: str) -> list[tuple[Values, Values]]:
    """Return, for places from -1 to 1 along an axis, the elements that count, and their weights; padding weighs
    nothing.
    """
    aligned, padding = call.get("align_corners", 0), call.get("padding_mode", "zeros")
    at = (along.astype(np.float64) + 1) / 2
    at = at * (size - 1) if aligned else at * size - 0.5
    low = np.rint(at) if mode == "nearest" else np.floor(at)
    first, weights = _TAPS[mode]
    found = []
    for number, weight in enumerate(weights(at - low if mode != "nearest" else np.zeros_like(at)), start=first):
        place = low + number
        inside = (place >= 0) & (place < size)
        if padding == "reflection":
            # Mirrors stand on the outermost elements, or half an element behind them.
            edge, period = (0.0, max(1, 2 * (size - 1))) if aligned else (-0.5, 2 * size)
            turned = np.mod(place - edge, period)
            place, inside = np.minimum(turned, period - turned) + edge, np.ones_like(inside)
        elif padding == "border":
            inside = np.ones_like(inside)
        found.append((np.clip(np.rint(place), 0, size - 1).astype(np.int64), np.where(inside, weight, 0)))
    return found


def _grid_sample(values: Values, grid: Values, *, call: Call) -> Values:
    """Sample maps [image, channel, row, col] at (x, y) of a grid [image, row, col, 2]; others as the library does."""
    mode = str(call.get("mode", "linear")).removeprefix("bi")
    if values.ndim != 4 or mode not in _TAPS:
        return np.asarray(evaluated("GridSample", values, grid, call=call)[0])
    rows, cols = (_taps(call, grid[..., 1 - axis], values.shape[2 + axis], mode) for axis in (0, 1))
    images = np.arange(len(values)).reshape(-1, 1, 1)
    made = np.zeros((*grid.shape[:3], values.shape[1]))
    for row, down in rows:
        for col, across in cols:
            made += values[images, :, row, col] * (down * across)[..., None]
    return as_real(np.moveaxis(made, -1, 1), values)


NODES: dict[str, Function] = {"GridSample": _grid_sample}
"""The functions by the name of the operator."""
