"""What an engine that keeps time reports of one Program: the same record from every such engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Cycles of the layer, and the split of every unit's cycles; each split adds up to `cycles`."""

    cycles: int
    units: Mapping[str, Mapping[str, int]]
