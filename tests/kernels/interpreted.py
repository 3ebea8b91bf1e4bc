"""Runs layers through the Triton kernel in its interpreter, in both orders, and counts outputs that are wrong.

NumPy arrays stand for tensors, so that PyTorch need not be there.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from tpusim import reference
from tpusim.kernels.block_channel_first import ORDERS, KernelTile, convolve
from tpusim.network.ops.array_op import Conv2d

BATCH = 2
TILE = KernelTile(pixels=32, out_channels=16, channels=16)


class Held:
    """A NumPy array with what Triton's interpreter asks of a tensor."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = np.ascontiguousarray(array)

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> Held:
        return self

    def cpu(self) -> Held:
        return self

    def new_empty(self, size: int, device: str) -> Held:
        return Held(np.empty(size, self.dtype))

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def set_(self, storage: Held, *_: object) -> None:
        self.array = storage.array

    def copy_(self, other: Held) -> None:
        assert other.array is self.array


def outputs(layer: Conv2d, order: str) -> tuple[int, int]:
    """How many there are, and how many of them are wrong."""
    operands = reference.operands(layer, BATCH, seed=1)
    ifmap = Held(operands["ifmap"].transpose(3, 1, 2, 0).astype(np.float16))
    # The filter is [out_channel, kernel_row, kernel_col, channel].
    filters = Held(operands["filter"].transpose(1, 2, 3, 0).astype(np.float16))
    expected = reference.compute(layer, operands).transpose(3, 1, 2, 0)
    ofmap = Held(np.full(expected.shape, np.nan, np.float32))
    convolve(layer, ifmap, filters, ofmap, order, TILE)
    return expected.size, int(np.count_nonzero(ofmap.array != expected))


def order_told(order: str) -> float:
    """An output of two taps and two slabs of channels, whose sum says by its rounding in which order it was added.

    Tap 0 brings 2^24 from the first slab and 1 from the second, which is lost beside it, tap 1 -2^24 from the first.
    """
    slab = TILE.channels
    layer = Conv2d("order", in_channels=2 * slab, in_height=1, in_width=2, out_channels=1, kernel=(1, 2))
    ifmap, filters = np.zeros((1, 1, 2, 2 * slab), np.float16), np.full((1, 2, 2 * slab, 1), 4096, np.float16)
    ifmap[0, 0, 0, 0], ifmap[0, 0, 0, slab], ifmap[0, 0, 1, 0] = 4096, 1 / 4096, -4096
    ofmap = Held(np.full((1, 1, 1, 1), np.nan, np.float32))
    convolve(layer, Held(ifmap), Held(filters), ofmap, order, TILE)
    return float(ofmap.array.item())


def main(cases: str) -> None:
    """Print the sums over all layers, in both orders, as JSON; and what tells the orders apart."""
    sizes = [{key: _pair(value) for key, value in case.items()} for case in json.loads(cases)]
    found = [outputs(Conv2d(name="layer", **each), order) for each in sizes for order in ORDERS]
    counted, wrong = map(sum, zip(*found, strict=True))
    print(json.dumps({"outputs": counted, "wrong": wrong, "orders": {each: order_told(each) for each in ORDERS}}))


def _pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    main(sys.argv[1])
