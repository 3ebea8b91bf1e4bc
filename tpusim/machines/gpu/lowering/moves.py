"""The kernels around the products: offsets, transposed maps, sums of parts."""

from __future__ import annotations

from collections.abc import Iterator

from tpusim.machines.gpu.lowering.layer import Layer
from tpusim.machines.gpu.program.kernels import Kernel, Moves, Products

_FLOAT = 4


def transforms(layer: Layer) -> Iterator[Kernel]:
    """Maps that come channel by channel are transposed ahead; the epilogue writes them either way."""
    if layer.gpu.mapping.layout == "NCHW" and not layer.is_a_product:
        yield Moves("transform", "dram", layer.ifmap_bytes, layer.ifmap_bytes)


def library(layer: Layer) -> Iterator[Kernel]:
    """What the library does ahead of a convolution: its offsets, and what strides take beyond."""
    launch = layer.gpu.launch
    if not layer.is_a_product:
        yield Moves("offsets", "l2", fixed_ps=launch.offsets_ps)
        if layer.strided:
            yield Moves("strided", "l2", fixed_ps=launch.strided_ps, launched=False)


def reduction(layer: Layer, products: Products) -> Moves | None:
    """What adds the parts of a sum, which were written as floats; None where there is one."""
    if products.split == 1:
        return None
    parts = products.split * layer.outputs * layer.conv.out_channels * _FLOAT
    # Blocks write the parts in their epilogues.
    return Moves("reduction", "l2", parts, layer.ofmap_bytes, layer.gpu.launch.reduction_ps)
