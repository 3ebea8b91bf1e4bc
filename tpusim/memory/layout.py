"""Where feature maps lie in HBM, and what moving a part of one costs: contiguous runs, in whole bursts."""

from __future__ import annotations

from typing import NamedTuple


class Box(NamedTuple):
    """A rectangular part of a feature map: ranges of channels, rows, cols (perhaps strided) and images."""

    channels: range
    rows: range
    cols: range
    images: range


def whole_bursts(size_bytes: int, burst: int) -> int:
    """`size_bytes` rounded up to whole bursts."""
    return -(-size_bytes // burst) * burst


def burst_bytes(box: Box, shape: tuple[int, int, int, int], element_bytes: int, burst: int) -> int:
    """The HBM bytes moved for `box` of a map [channel, row, col, image] that is stored HWCN: images of a channel lie
    side by side, channels of a pixel, pixels of a row, rows. Each contiguous run is rounded up to whole bursts;
    strided coordinates never share one.
    """
    channels, _, cols, images = shape
    run, whole = len(box.images), len(box.images) == images
    for part, extent in ((box.channels, channels), (box.cols, cols), (box.rows, None)):
        if not whole or (len(part) > 1 and part.step != 1):
            break
        run *= len(part)
        whole = len(part) == extent
    elements = len(box.channels) * len(box.rows) * len(box.cols) * len(box.images)
    return elements // run * whole_bursts(run * element_bytes, burst) if run else 0


def inside(places: range, shift: int, extent: int) -> range:
    """The part of `places` along one axis, displaced by `shift`, that lies in [0, extent)."""
    first = max(0, -((places.start + shift) // places.step))
    count = max(0, min(len(places), (extent - 1 - places.start - shift) // places.step + 1))
    moved = range(places.start + shift, places.stop + shift, places.step)
    return moved[first:count] if first < count else range(0)
