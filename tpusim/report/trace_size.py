"""How much of a trace a picture can hold; apart from the picture, so that asking needs no matplotlib."""

from __future__ import annotations

MOST_CYCLES = 2000
"""In a picture; more cannot be told apart."""

DOTS_PER_LANE = 2
"""At least, so that every lane is seen."""

MOST_INCHES = 40.0
"""A picture is not taller; of thousands of lanes some are then not seen."""
