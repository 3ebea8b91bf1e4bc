"""What the parts of a feature map that a plan moves take of the HBM bus."""

from __future__ import annotations

from collections.abc import Iterator

from tpusim.machines.tpu.lowering.geometry import padded
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.tiles import stored_ifmap
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.memory.layout import Box, burst_bytes, inside


class Traffic:
    """Bytes by box, whole bursts and padding included."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._known: dict[tuple[str, Box], int] = {}

    def bytes_of(self, box: Box, tensor: Tensor, apart: tuple[int, int]) -> int:
        """HBM bytes of `box` in every strip, worked out once: a chunk comes many times."""
        key = tensor.name, box
        if key not in self._known:
            self._known[key] = sum(self._strip_bytes(each, tensor) for each in self._strips(box, tensor, apart))
        return self._known[key]

    def _strips(self, box: Box, tensor: Tensor, apart: tuple[int, int]) -> Iterator[Box]:
        """`box` in every strip, as far as it is inside the tensor; strips lie `apart` (rows, cols) from one another."""
        shape, (_, height, width, _) = self.plan.shape, tensor.shape
        for row in range(shape.row.strips):
            for col in range(shape.col.strips):
                rows, cols = inside(box.rows, row * apart[0], height), inside(box.cols, col * apart[1], width)
                yield box._replace(rows=rows, cols=cols)

    def _strip_bytes(self, box: Box, tensor: Tensor) -> int:
        hardware, (channels, height, width, images) = self.plan.hardware, tensor.shape
        stored, together = self._stored(tensor)
        # Padding comes after the last of all channels, and of all images.
        moved = range(box.channels.start, stored if box.channels.stop == channels else box.channels.stop)
        batch = range(box.images.start, together if box.images.stop == images else box.images.stop)
        shape, element = (stored, height, width, together), hardware.vector_memory.element_bytes
        return burst_bytes(box._replace(channels=moved, images=batch), shape, element, hardware.hbm.burst_bytes)

    def _stored(self, tensor: Tensor) -> tuple[int, int]:
        """The channels and images that a feature map is stored as."""
        if tensor.name == self.plan.ifmap.name:
            return stored_ifmap(self.plan.shape, self.plan.hardware)
        channels, *_, images = tensor.shape
        return padded(channels, self.plan.hardware.hbm.channel_multiple), images
