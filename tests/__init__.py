"""The tests: rooms as in the package, and what spans them."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The checkout."""
