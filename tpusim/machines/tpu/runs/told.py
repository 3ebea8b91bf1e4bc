"""What people are told of a TPU: what tells one from another, and what its units are."""

from __future__ import annotations

from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE, TIME
from tpusim.machines.tpu.description import Hardware


def facts(hardware: Hardware) -> dict[str, str]:
    """Values with their units, by what they are; nothing for banks where it has none."""
    memory = hardware.vector_memory
    banks = f"{hardware.banks} x {SIZE.format(memory.bank_capacity_bytes)}" if hardware.banked else ""
    return {
        "array": f"{hardware.array.rows} x {hardware.array.cols}",
        "clock": FREQUENCY.format(hardware.clock_hz),
        "vector memory": f"{hardware.lanes} x {SIZE.format(memory.capacity_bytes)}",
        "banks": banks,
        "word": f"{memory.word_elements} x {memory.element_bytes} B",
        "HBM": BANDWIDTH.format(hardware.hbm.bandwidth_bytes_per_s),
    }


def blocks(hardware: Hardware) -> dict[str, list[str]]:
    """What each unit is, in short lines; "word" is what ports and registers beside them move."""
    array, memory, hbm, scratch = hardware.array, hardware.vector_memory, hardware.hbm, hardware.scratch_memory
    word = f"{memory.word_elements} x {memory.element_bytes} B"
    banks = [f"{hardware.banks} banks x {SIZE.format(memory.bank_capacity_bytes)}"] if hardware.banks else []
    arrays = f"{array.count} x " if array.count > 1 else ""
    return {
        "hbm": [
            BANDWIDTH.format(hbm.bandwidth_bytes_per_s),
            f"latency {TIME.format(hbm.latency_ps)}",
            f"bursts of {SIZE.format(hbm.burst_bytes)}",
        ],
        "dma": [
            "one queue, in order",
            *([f"scratch memory of {SIZE.format(scratch.capacity_bytes)}"] if scratch else []),
        ],
        "memory": [f"{hardware.lanes} x {SIZE.format(memory.capacity_bytes)}", *banks],
        "preload": [f"{hardware.preload_cycles} cycles a preload", f"{array.weight_buffers} weights a PE"],
        "serializer": [f"{hardware.lanes} x one word", f"of {word}"],
        "array": [f"{arrays}{array.rows} x {array.cols} PEs", f"at {FREQUENCY.format(hardware.clock_hz)}"],
        "deserializer": [f"{hardware.lanes} x one word", f"of {word}"],
        "vector_unit": [f"{hardware.vector_unit.alus} ALUs", "adds partial sums"],
        "word": [word],
    }
