"""The cut of a deformable convolution: channel-first's, where each tap has words of its own, gathered from samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.reduction import Chunk, TapGroups
from tpusim.machines.tpu.lowering.samples import Kind
from tpusim.network.ops import DeformConv2d


class Lanes(NamedTuple):
    """Neighbouring lanes of a place whose samples lie alike."""

    first_lane: int
    lanes: int
    kind: Kind


@dataclass(frozen=True)
class SampledTaps(TapGroups):
    """Row folds times groups of taps, of which one is on chip at a time. What a tap samples lies alike for all channels
    of an offset group.
    """

    layer: DeformConv2d
    batch: int

    @property
    def _by_tap(self) -> bool:
        """It always has."""
        return True

    def lanes_of(self, chunk: Chunk, place: int, group: int) -> tuple[Lanes, ...]:
        """The lanes of a place of a chunk for a channel group, those together that sample alike."""
        held = chunk.places[place]
        size, first = self.layer.in_channels // self.layer.offset_groups, group * self.shape.channels
        return tuple(_alike([((first + c) // size, tap) for c, tap in zip(held.channels, held.taps, strict=True)]))


def _alike(kinds: list[Kind]) -> Iterator[Lanes]:
    first = 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at] != kinds[first]:
            yield Lanes(first, at - first, kinds[first])
            first = at


def shape_of(layer: DeformConv2d, batch: int) -> ConvShape:
    """A convolution of stride 1 over a map on which each tap of each output stands somewhere; what its taps multiply is
    gathered. Words hold images alone: strips would have samples in one another.
    """
    rows, cols = (
        MapAxis(size=outputs + kernel - 1, kernel=kernel, stride=1, padding=(0, 0), dilation=1)
        for outputs, kernel in ((layer.out_height, layer.kernel[0]), (layer.out_width, layer.kernel[1]))
    )
    into, out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    return ConvShape(layer.groups, into, out, batch, rows, cols, layer.tensors(batch))
