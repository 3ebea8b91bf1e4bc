"""What the parts of a feature map that a plan moves take of the HBM bus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.memory.layout import Box, Region, inside
from tpusim.memory.orders import HWCN, axes_of
from tpusim.memory.stored import Stored


class Moved(NamedTuple):
    """Bytes, and the rectangles of the tensor that they are."""

    bytes: int
    regions: tuple[Region, ...]


class Traffic:
    """What moves for boxes of maps that lie HWCN, whole bursts and padding included."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._known: dict[tuple[str, Box], Moved] = {}
        self._stored: dict[str, Stored] = {}

    def of(self, boxes: Iterable[Box], tensor: Tensor, apart: tuple[int, int]) -> Moved:
        """What moves for boxes in every strip; strips lie `apart` (rows, cols) from one another."""
        return together(self._of(box, tensor, apart) for box in boxes)

    def _of(self, box: Box, tensor: Tensor, apart: tuple[int, int]) -> Moved:
        """For one, worked out once: a chunk comes many times."""
        key = tensor.name, box
        if key not in self._known:
            strips, burst = tuple(self._strips(box, tensor, apart)), self.plan.hardware.hbm.burst_bytes
            runs = map(self._lying(tensor).runs, strips)
            self._known[key] = Moved(sum(each.moved(burst) for each in runs if each), strips)
        return self._known[key]

    def _strips(self, box: Box, tensor: Tensor, apart: tuple[int, int]) -> Iterator[Box]:
        """`box` in every strip, as far as it is inside the tensor."""
        shape, (_, height, width, _) = self.plan.shape, tensor.shape
        for row in range(shape.row.strips):
            for col in range(shape.col.strips):
                rows, cols = inside(box.rows, row * apart[0], height), inside(box.cols, col * apart[1], width)
                if rows and cols:
                    yield box._replace(rows=rows, cols=cols)

    def _lying(self, tensor: Tensor) -> Stored:
        if tensor.name not in self._stored:
            order, hardware = axes_of(HWCN), self.plan.hardware
            sizes = hardware.vector_memory.element_bytes, hardware.hbm.burst_bytes
            padded = tensor.padded or tensor.shape
            self._stored[tensor.name] = Stored(0, tensor.shape, padded, order, order, *sizes)
        return self._stored[tensor.name]


def together(moved: Iterable[Moved]) -> Moved:
    """One after another."""
    every = [*moved]
    return Moved(sum(each.bytes for each in every), tuple(region for each in every for region in each.regions))
