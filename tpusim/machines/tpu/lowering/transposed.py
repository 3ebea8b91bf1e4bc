"""The cut of first layers: K is packed densely, by transposing the ifmap's words ahead of the array."""

from __future__ import annotations

from dataclasses import dataclass

from tpusim.machines.tpu.lowering.dense import Dense


@dataclass(frozen=True)
class Transposed(Dense):
    """Passes as full as K allows, whatever a word of weights holds: ceil(H_F W_F C_I / R) of them.

    The lanes hold the ifmap as the transposition hands it on; that takes its time for each word of a stream.
    """

    @property
    def transposed(self) -> bool:
        """Yes."""
        return True

    @property
    def stacked(self) -> str:
        """What is told of the taps of a pass."""
        free = "" if self.hardware.vector_unit.transpose_cycles else " that takes no time (transpose_cycles)"
        return f"{super().stacked}, fed through a transposition{free}"
