"""Winograd's F(4x4, 3x3)."""

from __future__ import annotations

from tpusim.machines.tpu.lowering import winograd
from tpusim.machines.tpu.lowering.minimal_filtering import F4

lower, planned, least = winograd.of(F4)
