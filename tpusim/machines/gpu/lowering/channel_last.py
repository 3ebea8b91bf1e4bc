"""As the library does it: blocks gather each tap by offsets worked out ahead, tap by tap, each padded to a k-step."""

from __future__ import annotations

from tpusim.machines.gpu.lowering.choice import fastest
from tpusim.machines.gpu.lowering.gather import gathered
from tpusim.machines.gpu.lowering.layer import Layer
from tpusim.machines.gpu.lowering.moves import library, reduction, transforms
from tpusim.machines.gpu.lowering.steps import compact, padded
from tpusim.machines.gpu.program.kernels import Program


def lower(layer: Layer) -> Program:
    """Raises CapacityError."""
    mapping = layer.gpu.mapping
    if mapping.pad_taps:
        steps = padded(layer.taps, layer.channels, mapping.k_step, channels_outside=False)
        period = len(steps) // layer.taps
    else:
        steps, period = compact(layer.taps, layer.channels, mapping.k_step), 1
    products = fastest(layer, lambda tile: gathered(layer, tile, steps, period, offsets=not layer.is_a_product))
    summed = reduction(layer, products)
    return Program((*transforms(layer), *library(layer), products, *([summed] if summed else [])))
