"""The record of what a layer or a run took in joules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpusim.result.quantities import Count, Figure


@dataclass(frozen=True)
class EnergyUse:
    """What was taken, in picojoules, by the constants of `technology`: a model. `parts` add up to `energy`.

    `energy_delay` is picojoules times seconds; `tops_per_watt` 10^12 operations a joule, two a MAC. `counts` are
    of what takes energy and is told nowhere else.
    """

    technology: str
    energy: Figure
    energy_delay: Figure
    tops_per_watt: Figure
    parts: Mapping[str, Figure]
    counts: Mapping[str, Count]


def energy_use(
    technology: str, parts: Mapping[str, float], counts: Mapping[str, int], macs: int, seconds: float
) -> EnergyUse:
    """What follows from `parts` in picojoules, for so many `macs` in so many `seconds`."""
    energy = sum(parts.values())
    # 10^12 operations a joule are as many a picojoule.
    return EnergyUse(technology, energy, energy * seconds, 2 * macs / energy if energy else 0.0, parts, counts)
