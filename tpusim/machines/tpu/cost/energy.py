"""What a machine takes for what was counted of a run, by what takes it."""

from __future__ import annotations

from typing import NamedTuple

from tpusim.machines.tpu.cost.widths import NARROW_BITS, passed_bits, register_bits, word_bits
from tpusim.machines.tpu.description import Hardware
from tpusim.technology import energy


class EnergyCounts(NamedTuple):
    """What happened: in the array, in the vector unit, at the ports, on the way to HBM, and how long it took.

    `pe_operations` are those of PEs in use, also where what they multiply is padding. Weights go down their column from
    PE to PE: `weight_moves`. Accesses are words over all lanes. `activates` is None where no rows are modelled.
    """

    pe_operations: int
    weight_moves: int
    vector_products: int
    vector_sums: int
    reads: int
    writes: int
    hbm_bytes: int
    activates: int | None
    seconds: float


def energies(counts: EnergyCounts, hardware: Hardware) -> dict[str, float]:
    """Picojoules by what takes them, under the keys of `tpusim.result.vocabulary.energies`."""
    silicon, bits = hardware.silicon, word_bits(hardware)
    capacity = hardware.vector_memory.capacity_bytes
    passed = counts.pe_operations * passed_bits() + counts.weight_moves * NARROW_BITS
    # A word is written into the register beside its port, and each element of it once more on its way from or to there.
    moved = 2 * (counts.reads + counts.writes) * bits
    return {
        "multiply_adds": energy.multiply_adds(silicon, counts.pe_operations),
        "pe_registers": energy.register_writes(silicon, passed),
        "vector_operations": energy.fp32(silicon, counts.vector_products, counts.vector_sums),
        "port_reads": counts.reads * energy.sram_access(silicon, "read", capacity, bits),
        "port_writes": counts.writes * energy.sram_access(silicon, "write", capacity, bits),
        "serializers": energy.register_writes(silicon, moved),
        "hbm_bits": energy.hbm_bits(silicon, 8 * counts.hbm_bytes, counts.activates is not None),
        "hbm_activates": energy.hbm_activates(silicon, counts.activates or 0, _row_bytes(hardware)),
        "leakage": _leakage(hardware) * counts.seconds,
    }


def _row_bytes(hardware: Hardware) -> int:
    """Bytes of a row of the DRAM; 0 where none is modelled."""
    device = hardware.hbm.dram
    return device.organisation.columns * device.organisation.burst_bytes if device else 0


def _leakage(hardware: Hardware) -> float:
    """Picojoules a second that all memories and registers leak."""
    memory, silicon, bits = hardware.vector_memory, hardware.silicon, word_bits(hardware)
    lanes = hardware.lanes * energy.sram_leakage(silicon, memory.capacity_bytes, bits)
    banks = hardware.banks * energy.sram_leakage(silicon, memory.bank_capacity_bytes, bits)
    return lanes + banks + energy.register_leakage(silicon, register_bits(hardware))
