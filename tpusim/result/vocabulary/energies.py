"""What the energy of a run goes to: in words, and how it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpusim.result.energy_use import EnergyUse
from tpusim.result.vocabulary.states import Look, State

ENERGIES: Mapping[str, State] = {part.key: part for part in (
    State("multiply_adds", "multiply-adds", Look("#0b3c5d", "#6db5ea"), "Products and sums of the PEs in use."),
    State("pe_registers", "registers of the PEs", Look("#9dbdd6", "#2f5878", "level"),
          "Elements, sums and weights that PEs hand on."),
    State("vector_operations", "vector unit", Look("#3a7d44", "#6fbf7b", "grid"),
          "Products and sums of the vector unit; partial sums above all."),
    State("port_reads", "port reads", Look("#d55e00", "#f08a35", "rising"), "Words read from the vector memories."),
    State("port_writes", "port writes", Look("#f0a3c6", "#b96c92", "falling"), "Words written to them."),
    State("serializers", "serializers", Look("#8a63b0", "#a98bc9", "bars"),
          "Words and elements in the registers between the ports and all else."),
    State("hbm_bits", "HBM bits", Look("#56b4e9", "#3f83ad", "dots"), "Bits moved from and to HBM."),
    State("hbm_activates", "HBM activates", Look("#f0e442", "#b5aa25", "crossed"),
          "Rows opened in the DRAM; without banks their share is in the bits.", seldom=True),
    State("leakage", "leakage", Look("#eceff2", "#2a323c"), "Of memories and registers, all the time."),
)}  # fmt: skip


def parts_in(uses: Sequence[EnergyUse]) -> tuple[State, ...]:
    """Those of ENERGIES that these are split into."""
    return tuple(part for part in ENERGIES.values() if not part.seldom or any(use.parts.get(part.key) for use in uses))
