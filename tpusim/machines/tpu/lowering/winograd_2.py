"""Winograd's F(2x2, 3x3)."""

from __future__ import annotations

from tpusim.machines.tpu.lowering import winograd
from tpusim.machines.tpu.lowering.minimal_filtering import F2

lower, planned, least = winograd.of(F2)
