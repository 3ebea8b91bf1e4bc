"""What an engine that keeps time reports of one Program: the same record from every such engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Cycles of the layer; the split of every unit's cycles, each adding up to `cycles`; port accesses.

    `reads` and `writes` are words over all lanes. A slot that padding or an idle lane leaves unused is no
    access.
    """

    cycles: int
    units: Mapping[str, Mapping[str, int]]
    reads: int
    writes: int
