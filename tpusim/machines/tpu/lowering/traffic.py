"""What the parts of a feature map that are moved take of the HBM bus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import InStrips, shifted
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.memory.layout import Box, Region
from tpusim.memory.orders import HWCN, axes_of
from tpusim.memory.stored import Stored


class Moved(NamedTuple):
    """Bytes, and the rectangles of the tensor that they are."""

    bytes: int
    regions: tuple[Region, ...]


class Traffic:
    """What moves for boxes of maps that lie HWCN, whole bursts and padding included."""

    def __init__(self, shape: InStrips, hardware: Hardware) -> None:
        self.shape, self.hardware = shape, hardware
        self._known: dict[tuple[str, Box], Moved] = {}
        self._stored: dict[str, Stored] = {}

    def of(self, boxes: Iterable[Box], tensor: Tensor, apart: tuple[int, int]) -> Moved:
        """What moves for boxes in every strip; strips lie `apart` (rows, cols) from one another."""
        each = [self._of(box, tensor, apart) for box in boxes]
        if len(each) == 1:
            return each[0]
        return Moved(sum([moved for moved, _ in each]), tuple([region for _, regions in each for region in regions]))

    def _of(self, box: Box, tensor: Tensor, apart: tuple[int, int]) -> Moved:
        """For one, worked out once: a chunk comes many times."""
        key = tensor.name, box
        if key not in self._known:
            shape, burst = self.shape, self.hardware.hbm.burst_bytes
            strips = (box,) if shape.strips == 1 else tuple(self._strips(box, apart))
            runs = map(self._lying(tensor).runs, strips)
            self._known[key] = Moved(sum([each.moved(burst) for each in runs if each]), strips)
        return self._known[key]

    def _strips(self, box: Box, apart: tuple[int, int]) -> Iterator[Box]:
        """`box` in every strip."""
        row, col = self.shape.row.strips, self.shape.col.strips
        for down, across in product(range(row), range(col)):
            yield box._replace(rows=shifted(box.rows, down * apart[0]), cols=shifted(box.cols, across * apart[1]))

    def _lying(self, tensor: Tensor) -> Stored:
        if tensor.name not in self._stored:
            order, hardware = axes_of(HWCN), self.hardware
            sizes = hardware.vector_memory.element_bytes, hardware.hbm.burst_bytes
            padded = tensor.padded or tensor.shape
            self._stored[tensor.name] = Stored(0, tensor.shape, padded, order, order, *sizes)
        return self._stored[tensor.name]
