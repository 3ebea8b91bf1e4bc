"""How much of a trace each form can hold; apart from the forms, so that asking needs none of their libraries."""

from __future__ import annotations

MOST_CYCLES = 2000
"""In a picture; more cannot be told apart."""

DOTS_PER_LANE = 2
"""At least, so that every lane is seen."""

MOST_INCHES = 40.0
"""A picture is not taller; of thousands of lanes some are then not seen."""

MOST_LANE_CYCLES = 4_000_000
"""Cycles times lanes in a VCD: some 30 MB."""

MOST_SLICES = 2_000_000
"""In a Perfetto trace: some 100 MB."""

MOST_TIMELINE_CYCLES = 20_000_000
"""Drawn for a Perfetto trace, for the memory of this computer: some 25 bytes a cycle."""
