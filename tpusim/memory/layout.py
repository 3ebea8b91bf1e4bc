"""Parts of tensors in HBM, and whole bursts."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Region: TypeAlias = tuple[range, ...]
"""A rectangular part of a tensor: coordinates along each axis, ascending and perhaps strided."""


class Box(NamedTuple):
    """A rectangular part of a feature map: ranges of channels, rows, cols (perhaps strided) and images."""

    channels: range
    rows: range
    cols: range
    images: range


def whole_bursts(size_bytes: int, burst: int) -> int:
    """`size_bytes` rounded up to whole bursts."""
    return -(-size_bytes // burst) * burst


def inside(places: range, shift: int, extent: int) -> range:
    """The part of `places` along one axis, displaced by `shift`, that lies in [0, extent)."""
    first = max(0, -((places.start + shift) // places.step))
    count = max(0, min(len(places), (extent - 1 - places.start - shift) // places.step + 1))
    moved = range(places.start + shift, places.stop + shift, places.step)
    return moved[first:count] if first < count else range(0)
