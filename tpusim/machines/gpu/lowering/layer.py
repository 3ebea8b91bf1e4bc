"""What lowerings ask of a layer: the convolution that it is, and the bytes of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tpusim.base.errors import UnsuitableError
from tpusim.machines.gpu.description import Gpu
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.conv2d import Conv2d
from tpusim.network.ops.op import Op

_CONVOLUTIONS = "conv2d", "conv1d", "gemm"


@dataclass(frozen=True)
class Layer:
    """A convolution of so many images, on a GPU."""

    conv: Conv2d
    images: int
    gpu: Gpu

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.conv.in_channels // self.conv.groups

    @property
    def out_channels(self) -> int:
        """Output channels of a group."""
        return self.conv.out_channels // self.conv.groups

    @property
    def taps(self) -> int:
        """Taps of the filter."""
        return prod(self.conv.kernel)

    @property
    def outputs(self) -> int:
        """Rows of the product: outputs of a channel."""
        return self.images * self.conv.out_height * self.conv.out_width

    @property
    def strided(self) -> bool:
        """Whether it leaves outputs out."""
        return prod(self.conv.stride) > 1

    @property
    def is_a_product(self) -> bool:
        """Whether it is a matrix product by itself."""
        return self.conv.is_a_product and self.conv.in_height == self.conv.in_width == 1

    @property
    def ifmap_bytes(self) -> int:
        """The size of the ifmap."""
        return prod(self.conv.tensors(self.images).ifmap) * self.gpu.element_bytes

    @property
    def touched_bytes(self) -> int:
        """The size of the rows and columns of the ifmap that some tap reads, about."""
        kept = [min(1.0, taps / step) for taps, step in zip(self.conv.kernel, self.conv.stride, strict=True)]
        return round(self.ifmap_bytes * prod(kept))

    @property
    def filter_bytes(self) -> int:
        """The size of the filter."""
        return prod(self.conv.tensors(self.images).filter) * self.gpu.element_bytes

    @property
    def ofmap_bytes(self) -> int:
        """The size of the ofmap."""
        return self.outputs * self.conv.out_channels * self.gpu.element_bytes


def layer_of(op: Op, batch: int, gpu: Gpu) -> Layer:
    """Raises UnsuitableError where an op is no convolution or product."""
    if not isinstance(op, ArrayOp) or op.op not in _CONVOLUTIONS:
        made = ", ".join(_CONVOLUTIONS)
        says = f"{op.op} has no lowering on a GPU yet; there are those of {made}"
        advice = "; --ops array leaves out what is neither" if op.unit == "vector" else ""
        raise UnsuitableError(f"layer {op.name}: {says}{advice}")
    conv, images = op.convolution(batch)
    return Layer(conv, images, gpu)
