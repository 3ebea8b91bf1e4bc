"""The shape of a convolution as the lowering sees it; a GEMM is a 1x1 convolution over one pixel."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tpusim.workload import Conv2d, Gemm


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis. The *grid* is the set of padded coordinates any tap ever touches, renumbered 0, 1, ...

    Tap `t` of output `o` stands on padded coordinate `o * stride + t * dilation`; all of these are multiples
    of `pitch`, so only every `pitch`-th coordinate is fetched and stored (paper Fig. 8: the fill shrinks with
    the stride).
    """

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def pitch(self) -> int:
        """Distance of neighbouring grid points in ifmap elements."""
        return gcd(self.stride, self.dilation) if self.kernel > 1 else self.stride

    @property
    def step(self) -> int:
        """Grid points from one output to the next."""
        return self.stride // self.pitch

    @property
    def tap_step(self) -> int:
        """Grid points from one tap to the next."""
        return self.dilation // self.pitch

    @property
    def outputs(self) -> int:
        """Number of output positions."""
        return (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    def stored(self, outputs: range) -> range:
        """Grid points that `outputs` touch and that are not padding (perhaps none)."""
        first_real = -(-self.padding // self.pitch)
        end_real = (self.size - 1 + self.padding) // self.pitch + 1
        end = (outputs.stop - 1) * self.step + (self.kernel - 1) * self.tap_step + 1
        first = max(first_real, outputs.start * self.step)
        return range(first, max(first, min(end_real, end)))

    def coordinates(self, grid: range) -> range:
        """The ifmap coordinates of grid points."""
        start = grid.start * self.pitch - self.padding
        return range(start, start + len(grid) * self.pitch, self.pitch)


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A convolution with `groups` independent channel groups; channel counts are per group."""

    groups: int
    channels: int
    out_channels: int
    images: int
    row: Axis
    col: Axis

    @property
    def ifmap_shape(self) -> tuple[int, int, int, int]:
        """[in_channel, row, col, image]."""
        return (self.groups * self.channels, self.row.size, self.col.size, self.images)

    @property
    def filter_shape(self) -> tuple[int, int, int, int]:
        """[out_channel, tap_row, tap_col, in_channel of the group]."""
        return (self.groups * self.out_channels, self.row.kernel, self.col.kernel, self.channels)

    @property
    def ofmap_shape(self) -> tuple[int, int, int, int]:
        """[out_channel, row, col, image]."""
        return (self.groups * self.out_channels, self.row.outputs, self.col.outputs, self.images)


def shape_of(layer: Conv2d | Gemm, batch: int) -> ConvShape:
    """The convolution that `layer` is; in a GEMM the `m` rows are the images of a one-pixel ifmap."""
    if isinstance(layer, Gemm):
        point = Axis(size=1, kernel=1, stride=1, padding=0, dilation=1)
        return ConvShape(1, layer.k, layer.n, layer.m, point, point)
    row, col = (
        Axis(size, layer.kernel[i], layer.stride[i], layer.padding[i], layer.dilation[i])
        for i, size in enumerate((layer.in_height, layer.in_width))
    )
    groups = layer.groups
    return ConvShape(groups, layer.in_channels // groups, layer.out_channels // groups, batch, row, col)
