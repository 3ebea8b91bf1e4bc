"""How many bits units have: as published of TPU v2, bfloat16 times bfloat16 into FP32."""

from __future__ import annotations

from tpusim.machines.tpu.description import Hardware

NARROW_BITS = 16
"""Of a weight, and of an element on its way through the array."""
WIDE_BITS = 32
"""Of a sum, and of an ALU of the vector unit."""


def word_bits(hardware: Hardware) -> int:
    """Bits of a word of the vector memories."""
    return 8 * hardware.word_bytes


def passed_bits() -> int:
    """Bits that one multiplication hands on to its neighbours: an element to the right, a sum downwards."""
    return NARROW_BITS + WIDE_BITS


def pe_register_bits(hardware: Hardware) -> int:
    """Bits of a PE: its weights, those on their way down its column, and what it hands on."""
    weights = hardware.array.weight_buffers + hardware.array.weights_per_cycle
    return NARROW_BITS * weights + passed_bits()


def serializer_words(hardware: Hardware) -> int:
    """A word out and a word in, in each lane, for each array."""
    return 2 * hardware.lanes * hardware.array.count


def scalar_words(hardware: Hardware) -> int:
    """Words that all lanes of the vector unit keep."""
    return hardware.lanes * hardware.vector_unit.scalar_words


def register_bits(hardware: Hardware) -> int:
    """Bits of all flip-flops: in the PEs, beside the ports, in the vector unit."""
    words = serializer_words(hardware) + scalar_words(hardware)
    return hardware.pes * pe_register_bits(hardware) + words * word_bits(hardware)
