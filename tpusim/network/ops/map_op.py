"""Ops that make a map of elements of one map, each of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Self

from tpusim.input.fields import Name, whole
from tpusim.input.form import validated
from tpusim.network.ops.grouped import Channels, Size
from tpusim.network.ops.kernel_axis import KernelAxis
from tpusim.network.ops.op import MOST_CHANNELS, Shape
from tpusim.network.ops.vector_op import VectorOp, Window


@validated
class MapOp(VectorOp):
    """Such an op on maps of channels x height x width elements, one for each image.

    `images` is how many there are, such as the rows of a product; 0: those of the batch.
    """

    spatial: ClassVar[bool] = False
    sized_by: ClassVar[Mapping[str, int]] = {"channels": 0, "height": 1, "width": 2, "images": 3}

    name: Annotated[str, Name()]
    channels: Channels
    height: Size = 1
    width: Size = 1
    images: Annotated[int, whole(MOST_CHANNELS, 0)] = 0

    @property
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Windows of one element."""
        height, width = self.height, self.width
        return KernelAxis("height", height, 1, 1, 1, (0, 0)), KernelAxis("width", width, 1, 1, 1, (0, 0))

    @property
    def windows(self) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
        return (Window(range(1), 1),) * self.height, (Window(range(1), 1),) * self.width

    @property
    def map_text(self) -> str:
        """The map that it reads, in short."""
        return f"{self.height}x{self.width}x{self.channels}" + (f" n{self.images}" if self.images else "")

    def map(self, batch: int) -> Shape:
        """The shape of what comes in."""
        return self.channels, self.height, self.width, self.images or batch

    def terms(self, batch: int) -> int:
        """One: no sum grows with the layer."""
        return 1

    def with_more_input(self, batch: int) -> tuple[Self, int, str]:
        """Twice the images."""
        if not self.images:
            return VectorOp.with_more_input(self, batch)
        return replace(self, images=2 * self.images), batch, f"images={2 * self.images}"

    def with_less_input(self, batch: int) -> tuple[Self, int, str] | None:
        """Half the images."""
        if not self.images:
            return VectorOp.with_less_input(self, batch)
        half = self.images // 2
        return (replace(self, images=half), batch, f"images={half}") if half else None
