"""Words for a run that is a part of something: one chip's share of a network, or one core of a chip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shared_by(chips: int) -> str:
    """Say that a workload is the part of one of several chips that share a network; empty where it is all of it."""
    return f"one chip's share of {chips:,}" if chips > 1 else ""


def share_notice(chips: int) -> str:
    """Say what the figures of a chip's share leave out; empty where the workload is all of its network."""
    return f"This is one chip's share of {chips:,}: what the chips exchange takes no time here." if chips > 1 else ""


def cores_of_its_chip(hardware: Mapping[str, Any]) -> int:
    """Return the cores of the chip of which a machine, as files write it, is one; 1 where it is no part of a chip."""
    held = hardware.get("chip_cores")
    return held if isinstance(held, int) else 1


def part_notes(chips: int, machine: object, cores: int) -> list[str]:
    """Return the notes on all figures: that they are of a chip's share of a network, or of one of a chip's cores."""
    part = f"{machine} is one of the {cores} cores of a chip." if cores > 1 else ""
    return [note for note in (share_notice(chips), part) if note]
