"""How many bits units have: as published of TPU v2, bfloat16 times bfloat16 into FP32."""

from __future__ import annotations

from tpusim.machines.tpu.description import Hardware

NARROW_BITS = 16
"""Of a weight, and of an element on its way through the array."""
WIDE_BITS = 32
"""Of a sum, and of an ALU of the vector unit."""


def word_bits(hardware: Hardware) -> int:
    """Of a word of the vector memories."""
    return 8 * hardware.word_bytes


def passed_bits() -> int:
    """That one multiplication hands on to its neighbours: an element to the right, a sum downwards."""
    return NARROW_BITS + WIDE_BITS


def pe_register_bits(hardware: Hardware) -> int:
    """Of a PE: its weights, and what it hands on."""
    return NARROW_BITS * hardware.array.weight_buffers + passed_bits()
