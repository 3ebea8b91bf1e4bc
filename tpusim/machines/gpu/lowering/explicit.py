"""The lowered matrix is written to DRAM by a kernel of its own; the product then knows nothing of taps."""

from __future__ import annotations

from tpusim.machines.gpu.lowering.choice import fastest
from tpusim.machines.gpu.lowering.gather import gathered, lowered_bytes
from tpusim.machines.gpu.lowering.layer import Layer
from tpusim.machines.gpu.lowering.moves import reduction, transforms
from tpusim.machines.gpu.lowering.steps import compact
from tpusim.machines.gpu.program.kernels import Moves, Program


def lower(layer: Layer) -> Program:
    """A layer that is its own lowered matrix has no such kernel. Raises CapacityError."""
    steps = compact(layer.taps, layer.channels, layer.gpu.mapping.k_step)
    made = 0 if layer.conv.is_a_product else lowered_bytes(layer)
    source = "lowered" if made else "ifmap"
    products = fastest(layer, lambda tile: gathered(layer, tile, steps, 1, source))
    ahead = [Moves("lowered", "dram", layer.touched_bytes, made)] if made else []
    summed = reduction(layer, products)
    return Program((*transforms(layer), *ahead, products, *([summed] if summed else [])), made)
