"""The shape of a convolution as the lowering sees it: axes, strips, how words hold a feature map, how taps walk over
it; and which way round its tensors lie in tiles.

A tile is as long as a word and as wide as `hbm.channel_multiple`, 8 x 128 on a TPU: sublanes and lanes. Under
`mapping.layout: least_padding` tensors lie in them whichever way round pads less. All is read off convolutions that
Google's compiler was given (docs/validation.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import gcd, prod
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.cut.blocks import CHANNEL, COL, IMAGE, ROW, Block, Patch, padded, portions, word_groups
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import Counter, Counters
from tpusim.machines.tpu.program.tensors import PackedNumbers, Tensor
from tpusim.machines.tpu.program.transfers import Along, Coordinates, Part
from tpusim.memory.hbm_layout import Box
from tpusim.network.ops.array_op import STORED_BITS, ArrayOp, GroupedOp, Scatter, StoredTensor, Tensors

LEAST_FRAME = 3
"""Least cycles of a word: one port slot each for ifmap, partial sum and result."""


NOWHERE = -1
"""A k outside the filter, where no tap is: its weight is zero, and is never fetched."""


@dataclass(frozen=True)
class MapAxis:
    """A spatial axis. The *grid* is the set of padded coordinates any tap ever touches, renumbered 0, 1, ...

    Tap `t` of output `o` stands on padded coordinate `o * stride + t * dilation`; all of these are multiples
    of `pitch`, so only every `pitch`-th coordinate is fetched and stored (paper Fig. 8: the fill shrinks with
    the stride). With `whole`, every coordinate is fetched and stored.

    With `strips` above 1 the outputs are cut into that many strips of `extent` outputs each, which run side
    by side as if they were images of their own: a word then holds the same pixel of every strip (of both axes
    together). Strip `p` is displaced by `p * extent` outputs, with an extent of at least `least_extent`; the last
    strips may reach past the end, or lie beyond it. Grid points are those of strip 0. `padding` counts the elements
    before the first, and after the last.
    """

    size: int
    kernel: int
    stride: int
    padding: tuple[int, int]
    dilation: int
    strips: int = 1
    whole: bool = False
    least_extent: int = 1

    @cached_property
    def pitch(self) -> int:
        """Distance of neighbouring grid points, in ifmap elements."""
        if self.whole:
            return 1
        return gcd(self.stride, self.dilation) if self.kernel > 1 else self.stride

    @cached_property
    def step(self) -> int:
        """Grid points from one output to the next."""
        return self.stride // self.pitch

    @cached_property
    def tap_step(self) -> int:
        """Grid points from one tap to the next."""
        return self.dilation // self.pitch

    @property
    def cell(self) -> int:
        """Outputs of the layer for each output of this axis."""
        return 1

    def place(self, tap: int) -> int:
        """Grid points from output 0 to the point on which its tap `tap` stands."""
        return tap * self.tap_step

    def places(self, taps: range) -> range:
        """Places from the first to the last of `taps`."""
        return range(self.place(taps[0]), self.place(taps[-1]) + 1)

    @cached_property
    def outputs(self) -> int:
        """Number of output positions."""
        return (self.size + sum(self.padding) - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @cached_property
    def extent(self) -> int:
        """Output positions of a strip."""
        return max(-(-self.outputs // self.strips), self.least_extent)

    def stored(self, outputs: range, taps: range) -> range:
        """Grid points on which `taps` of `outputs` stand, without points that are padding in every strip; perhaps
        empty.
        """
        (first_real, end_real), places = self._real, self.places(taps)
        end = (outputs.stop - 1) * self.step + places.stop
        first = max(first_real, outputs.start * self.step + places.start)
        return range(first, max(first, min(end_real, end)))

    def stored_in_blocks(self, size: int, taps: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First points that are `stored` for neighbouring blocks of `size` outputs, and the points after the last."""
        starts, (first_real, end_real), places = np.arange(0, self.extent, size), self._real, self.places(taps)
        stops = np.minimum(starts + size, self.extent)
        firsts = np.maximum(first_real, starts * self.step + places.start)
        return firsts, np.maximum(firsts, np.minimum(end_real, (stops - 1) * self.step + places.stop))

    def reach(self, outputs: int, taps: range) -> int:
        """Grid points from the first to the last under neighbouring outputs, with padding."""
        return (outputs - 1) * self.step + len(self.places(taps))

    def most_stored(self, outputs: int) -> int:
        """The most grid points that a number of neighbouring outputs needs; at least 1."""
        taps = range(self.kernel)
        return min(self.reach(outputs, taps), max(1, len(self.stored(range(self.extent), taps))))

    @cached_property
    def _real(self) -> tuple[int, int]:
        """The first grid point that is not padding in every strip, and the point after the last."""
        # The last strip reaches furthest beyond strip 0, so it decides where real points begin.
        first = max(0, -(-self.padding[0] // self.pitch) - (self.strips - 1) * self.extent * self.step)
        return first, (self.size - 1 + self.padding[0]) // self.pitch + 1

    def under(self, outputs: range, taps: range) -> range:
        """The `outputs` from the first to the last for which one of `taps` does not stand on padding in every strip."""
        first_real, end_real = self._real
        first = -((taps[-1] * self.tap_step - first_real) // self.step)
        end = -((taps[0] * self.tap_step - end_real) // self.step)
        first = min(max(outputs.start, first), outputs.stop)
        return range(first, max(first, min(end, outputs.stop)))

    def read(self, taps: range) -> int:
        """Coordinates of the map on which one of `taps` stands for some output."""
        stood_on = np.zeros(self.size, np.bool_)
        for tap in taps:
            first = tap * self.dilation - self.padding[0]
            # Outputs whose tap stands ahead of the map begin none of its steps.
            ahead = max(0, -(first // self.stride))
            end = max(0, first + (self.outputs - 1) * self.stride + 1)
            stood_on[first + ahead * self.stride : end : self.stride] = True
        return int(np.count_nonzero(stood_on))

    def stood_on(self, outputs: range) -> range:
        """Grid points on which tap 0 of `outputs` stands."""
        return range(outputs.start * self.step, outputs.stop * self.step, self.step)

    def touched(self, grid: range, taps: range) -> range:
        """Grid points from the first to the last on which `taps` stand for outputs whose tap 0 stands on `grid`."""
        if not grid:
            return grid
        return range(grid[0] + taps[0] * self.tap_step, grid[-1] + taps[-1] * self.tap_step + 1)

    def coordinates(self, grid: range) -> range:
        """Ifmap coordinates of grid points in strip 0; the first may lie in the padding."""
        start, apart = grid.start * self.pitch - self.padding[0], grid.step * self.pitch
        return range(start, start + len(grid) * apart, apart)


class StripMaps:
    """Maps of several images whose pixels share words; cut maps also share words between strips."""

    __slots__ = ()

    images: int
    row: MapAxis
    col: MapAxis
    beside: int = 1
    """Strips of columns that fill words beside several images, under `mapping.strips: one_image`."""

    @property
    def strips(self) -> int:
        """Number of strips of the map, rows times columns, whose outputs share words."""
        return self.row.strips * self.col.strips

    def cut_into(self, rows: int, cols: int) -> Self:
        """The maps cut into a number of strips by rows, and one by columns."""
        maps: Any = self
        found: Self = replace(maps, row=replace(self.row, strips=rows), col=replace(self.col, strips=cols))
        return found

    @property
    def word_images(self) -> int:
        """Number of images, each strip counted."""
        return self.images * self.strips

    def word_groups(self, word_elements: int) -> tuple[int, int]:
        """(words of a pixel, elements used of a word): a word holds all strips of its share of the images."""
        groups, share = word_groups(self.images, word_elements // self.strips)
        return groups, share * self.strips

    def last_word(self, word_elements: int) -> int:
        """Elements used of the last word of a pixel: images that fill words unevenly leave more of it empty, but strips
        of fewer images would lie apart in it.
        """
        groups, fill = self.word_groups(word_elements)
        return fill if self.strips > 1 else self.images - (groups - 1) * fill

    @property
    def ifmap_apart(self) -> tuple[int, int]:
        """Rows and columns of the ifmap from one strip to the next."""
        return self.row.extent * self.row.stride, self.col.extent * self.col.stride

    @property
    def ofmap_apart(self) -> tuple[int, int]:
        """Rows and columns of the ofmap from one strip to the next."""
        return self.row.extent * self.row.cell, self.col.extent * self.col.cell

    def reached(self, rows: int, cols: int, groups: int) -> int:
        """Words of the grid points from the first to the last under a block of these sizes, with padding."""
        high, wide = (axis.reach(size, range(axis.kernel)) for axis, size in ((self.row, rows), (self.col, cols)))
        return high * wide * groups

    def blocks(self, groups: int, sizes: tuple[int, int, int]) -> list[Block]:
        """Outputs in blocks of `sizes` (rows, columns, groups): word groups outside, then rows, then columns."""
        rows, cols, together = sizes
        return [
            Block(of_rows, of_cols, of_groups)
            for of_groups in portions(groups, together)
            for of_rows in portions(self.row.extent, rows)
            for of_cols in portions(self.col.extent, cols)
        ]

    def patch(self, block: Block) -> Patch:
        """The patch of a map that is filled for all taps of a block."""
        row, col = self.row, self.col
        rows, cols = row.stored(block.rows, range(row.kernel)), col.stored(block.cols, range(col.kernel))
        return Patch(rows, cols, block.groups)

    def walk(self, tap: tuple[int, int], block: Block, patch: Patch, by_tap: bool) -> Counters:
        """A walk over the grid points on which a tap stands: rows, then columns, then word groups (paper Fig. 11)."""
        groups, before, counters = len(block.groups), 0, []
        axes = (self.row, block.rows, patch.rows, len(patch.cols) * groups), (self.col, block.cols, patch.cols, groups)
        for (axis, outputs, grid, stride), number in zip(axes, tap, strict=True):
            if by_tap:
                # A tap with lanes of its own stores only its own points, so it starts after the ones that are padding.
                real = axis.under(outputs, range(number, number + 1))
                before += (real.start - grid.start // axis.step) * stride
                counters.append(Counter(len(outputs), outputs.start - real.start, 1, len(real), stride))
            else:
                start = outputs.start * axis.step + axis.place(number) - grid.start
                counters.append(Counter(len(outputs), start, axis.step, len(grid), stride))
        return Counters(before, (*counters, Counter(groups, 0, 1, groups, 1)), block.span)

    def items(
        self, word_fill: int, rows: range, cols: range, groups: range, apart: tuple[int, int]
    ) -> tuple[Along, ...]:
        """Counters of a feature map in one lane: a word for each grid point and group, with all its strips and images.

        Strips lie `apart` (rows, cols) from one another; `word_fill` elements of a word are in use.
        """
        share = word_fill // self.strips
        first_images = range(groups.start * share, groups.stop * share, share)
        strips = tuple(
            Along(axis, range(0, count * distance, distance))
            for axis, count, distance in ((ROW, self.row.strips, apart[0]), (COL, self.col.strips, apart[1]))
            if count > 1
        )
        return (Along(ROW, rows), Along(COL, cols), Along(IMAGE, first_images), *strips, Along(IMAGE, range(share)))

    def part(
        self, fill: int, channels: Coordinates, of: Block | Patch, apart: tuple[int, int], base: int
    ) -> tuple[Part, Box]:
        """A part of a map with ascending channels, one a lane, from word `base` on; and its box."""
        items = self.items(fill, of.rows, of.cols, of.groups, apart)
        box = Box(range(channels[0], channels[-1] + 1), of.rows, of.cols, self.images_of(fill, of.groups))
        return Part(base, (0,), (Along(CHANNEL, channels),), items, fill), box

    def images_of(self, word_fill: int, groups: range) -> range:
        """Images in a range of word groups."""
        share = word_fill // self.strips
        return range(min(groups.start * share, self.images), min(groups.stop * share, self.images))


@dataclass(frozen=True, slots=True)
class ConvShape(StripMaps):
    """A convolution with `groups` independent channel groups; channel counts are per group.

    A group may itself be a `bundle` of several of the layer's groups, side by side; an output channel then has weights
    for some of its channels only. The last bundle may reach past the last channel.
    """

    groups: int
    channels: int
    out_channels: int
    images: int
    row: MapAxis
    col: MapAxis
    tensors: Tensors
    bundle: int = 1
    cell: int = 1
    """Words of results for each output and word group."""
    turned: bool = False
    """Whether the filter is that of the convolution whose gradient by the input this is, as it lies in memory."""
    packed: PackedNumbers | None = None
    """How the filter lies in HBM, if narrower than the machine's elements."""
    beside: int = 1

    @property
    def filter(self) -> Tensor:
        """The weights, output channel by output channel."""
        out_channels, *k = self.tensors.filter
        shape, whole = (out_channels, prod(k)), self.packed.bytes.denominator if self.packed else 1
        # Rows begin at whole bytes, whichever axis is innermost.
        filled = tuple(padded(each, whole) for each in shape) if whole > 1 else None
        return Tensor("filter", shape, packed=self.packed, padded=filled)

    def weight_cycles(self, bytes_per_cycle: Fraction, hardware: Hardware) -> tuple[float, float]:
        """Cycles for a weight: of a bus, and of the vector unit."""
        if self.packed is None:
            return hardware.element_bytes / float(bytes_per_cycle), 0.0
        unpacked = self.packed.operations / hardware.vector_unit.alus
        return float(self.packed.bytes) / float(bytes_per_cycle), float(unpacked)

    def bundled(self, groups: int) -> ConvShape:
        """The shape with bundles of `groups` groups each, side by side."""
        bundles, channels, out_channels = -(-self.groups // groups), groups * self.channels, groups * self.out_channels
        return replace(self, groups=bundles, channels=channels, out_channels=out_channels, bundle=groups)

    @property
    def taps(self) -> int:
        """Taps of the filter."""
        return self.row.kernel * self.col.kernel

    @property
    def every_tap(self) -> tuple[tuple[int, int], ...]:
        """All taps in the order of the filter."""
        return tuple(product(range(self.row.kernel), range(self.col.kernel)))

    def has(self, tap: tuple[int, int]) -> bool:
        """Whether the filter has a tap; windows of taps may reach beyond it."""
        return tap[0] < self.row.kernel and tap[1] < self.col.kernel

    def ks(self, tap: tuple[int, int], channels: range) -> Sequence[int]:
        """Indices k of the filter for `channels` under a tap: group after group, tap by tap, with channels inside;
        NOWHERE beyond the filter.
        """
        if not self.has(tap):
            return [NOWHERE] * len(channels)
        size, at, taps = self.channels // self.bundle, tap[0] * self.col.kernel + tap[1], self.taps
        if channels.stop <= size:
            return range(at * size + channels.start, at * size + channels.stop)
        return [(channel // size * taps + at) * size + channel % size for channel in channels]

    def in_strips_of(self, other: ConvShape) -> ConvShape:
        """The shape cut into the strips of another with as many outputs, so that words of both hold the same
        outputs.
        """
        pairs = (self.row, other.row), (self.col, other.col)
        row, col = (replace(a, strips=b.strips, least_extent=b.least_extent) for a, b in pairs)
        return replace(self, row=row, col=col)


def shape_of(layer: ArrayOp, batch: int, hardware: Hardware) -> ConvShape:
    """The convolution that computes `layer` on a machine.

    Strips of the map complement a small batch, so that words are not left empty (`mapping.strips`).
    """
    conv, images = layer.convolution(batch)
    whole = hardware.mapping.patch == "window"
    row, col = (
        MapAxis(size, conv.kernel[i], conv.stride[i], conv.pads[i], conv.dilation[i], whole=whole)
        for i, size in enumerate((conv.in_height, conv.in_width))
    )
    shape = shape_with(conv, images, (row, col), layer.tensors(batch), hardware)
    # Few channels stand in the place of images, and columns of the filter may fill words beside them.
    room = hardware.vector_memory.word_elements // images if layer.turned_ifmap else 1
    beside = min(col.outputs, max(1, room))
    return replace(shape, beside=beside, packed=packed_as(layer.filter_stored, hardware))


def packed_as(stored: StoredTensor, hardware: Hardware) -> PackedNumbers | None:
    """How numbers of a type lie in HBM; None where they are no narrower than the machine's elements.

    An operation widens a number, or as many as the machine takes to widen an operand; half a byte is singled out first.
    """
    if stored == "computed" or STORED_BITS[stored] >= 8 * hardware.element_bytes:
        return None
    size, widened = Fraction(STORED_BITS[stored], 8), max(Fraction(1), hardware.vector_unit.widen)
    return PackedNumbers(size, widened + (size < 1))


def shape_with(
    conv: GroupedOp | Scatter, images: int, axes: tuple[MapAxis, MapAxis], tensors: Tensors, hardware: Hardware
) -> ConvShape:
    """The shape of an op whose map has these axes."""
    row, col = in_strips(*axes, images, hardware)
    groups = conv.groups
    channels, out_channels = conv.in_channels // groups, conv.out_channels // groups
    return ConvShape(groups, channels, out_channels, images, row, col, tensors)


def in_strips(row: MapAxis, col: MapAxis, images: int, hardware: Hardware) -> tuple[MapAxis, MapAxis]:
    """Rows and columns cut into the strips that fill words, by `mapping.strips`."""
    room = hardware.vector_memory.word_elements
    if hardware.mapping.strips == "one_image":
        # Columns of one image are cut into one strip for each element of a word, wide enough for padding, too; but not
        # if a strip were narrower than what neighbours share. XLA does the same (service/space_to_batch_converter.cc).
        wide, reach = col.size + sum(col.padding), (col.reach(1, range(col.kernel)) - 1) * col.pitch + 1
        if images > 1 or col.outputs == 1 or reach - col.stride > -(-wide // room):
            return row, col
        return row, replace(col, strips=room, least_extent=-(-wide // (room * col.stride)))
    rows, cols = best_strips(row.outputs, col.outputs, images, room)
    return replace(row, strips=rows), replace(col, strips=cols)


def best_strips(rows: int, cols: int, images: int, word_elements: int) -> tuple[int, int]:
    """Strips by rows and by columns that fill a word best: fewest cycles for all outputs, then fewest words.

    Both axes are cut only where that takes fewer cycles than cutting one; among equal cuts, rows are cut.
    """

    def cost(cut: tuple[int, int]) -> tuple[int, bool, int, int]:
        r, c = cut
        words = -(-rows // r) * -(-cols // c)
        return words * max(r * c * images, LEAST_FRAME), min(r, c) > 1, words, c

    return min(_cuts(rows, cols, word_elements // images), key=cost)


AnyShape = TypeVar("AnyShape", bound=StripMaps)
"""A shape that may be cut into strips."""


def in_other_strips(
    shape: AnyShape, hardware: Hardware, tile: tuple[int, int] = (1, 1)
) -> Iterator[tuple[AnyShape, float]]:
    """Shapes in other strips that are best in words or in cycles, with their cycles of the array over this shape's.

    No other cut has both fewer words (port accesses) and fewer cycles, or as many in fewer strips. More strips leave
    room for fewer images in a word: five images take fewer words in eight strips, one by one. Where outputs are
    computed in tiles of (rows, columns), words and cycles are counted in outputs, as maps move, and in whole tiles.
    """
    rows, cols, elements = shape.row.outputs, shape.col.outputs, hardware.vector_memory.word_elements
    own = shape.row.strips, shape.col.strips
    if hardware.mapping.strips == "one_image":
        if shape.beside > 1 and own == (1, 1):
            yield shape.cut_into(1, shape.beside), -(-cols // shape.beside) / cols
        # Images that fill words are as they come; of some that do not, nothing is read off a compiler.
        if shape.images <= elements or shape.images % elements == 0:
            return

    def cost(r: int, c: int, together: tuple[int, int]) -> tuple[int, int]:
        groups, share = word_groups(shape.images, elements // (r * c))
        words = groups * padded(-(-rows // r), together[0]) * padded(-(-cols // c), together[1])
        return words, words * max(share * r * c, LEAST_FRAME)

    found: dict[tuple[int, int], float] = {}
    for together in dict.fromkeys(((1, 1), tile)):
        # Among equal costs, the fewest strips are taken, and rows before columns.
        costs = sorted((*cost(*cut, together), prod(cut), *reversed(cut)) for cut in _cuts(rows, cols, elements))
        least = costs[0][1] + 1, 0
        for _, cycles, strips, c, r in costs:
            if (cycles, strips) < least:
                least = cycles, strips
                share = cycles / cost(*own, together)[1]
                found[r, c] = min(share, found.get((r, c), share))
    found.pop(own, None)
    for (r, c), share in found.items():
        yield shape.cut_into(r, c), share


def _cuts(rows: int, cols: int, room: int) -> Iterator[tuple[int, int]]:
    """Strips by rows and by columns that fit in a word; a word has room for at least one."""
    return ((r, c) for r in range(1, min(rows, max(room, 1)) + 1) for c in range(1, min(cols, max(room, 1) // r) + 1))


# ---- how tensors lie in tiles


def channels_in_lanes(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether weights lie with input channels in lanes and output channels in words; true for 411 of 412 compiled
    layers.
    """
    return _least_padded(hardware) and _pads_less(shape.out_channels, shape.channels, hardware)


DENSE = "dense", "dense_taps", "dense_rows"
"""Values of `mapping.multi_tile` by which taps are stacked as Google's compiler stacks them."""


def alone(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether every tap has a pass of its own, because the summed channels of the weights lie in lanes.

    A convolution's filter has its output channels in lanes, unless input channels pad less there. The gradient by the
    input sums over the output channels, so its taps are alone where a convolution's are not; if images lie in lanes,
    they are stacked. Of fewer than R / 2 channels the compiler's code stacks taps all the same; its estimate
    (`dense_rows`) does not.
    """
    expected = hardware.mapping.multi_tile == "dense_rows"
    if not expected and 2 * shape.channels < hardware.array.rows:
        return False
    if not shape.turned:
        return channels_in_lanes(shape, hardware)
    known = _least_padded(hardware) and hardware.mapping.multi_tile in DENSE
    in_words = _pads_less(shape.channels, shape.out_channels, hardware)
    return known and not in_words and not images_in_lanes(shape, hardware)


def images_in_lanes(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether the ifmap lies with images in lanes and channels in words: few channels of many images.

    The compiler was seen to do so for kernels above 1 x 1.
    """
    one_by_one = shape.taps == 1 or shape.groups * shape.bundle > 1
    return _least_padded(hardware) and not one_by_one and _channels_in_words(shape, hardware)


def packed(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether a layer of few channels is packed by transposition of a map whose channels lie in words.

    With two or four images, up to four channels lie in lanes, and nothing is transposed.
    """
    points = shape.row.outputs * shape.col.outputs
    few = points > 1 and shape.channels <= hardware.mapping.transposed_channels and not hardware.banked
    return few and (not _least_padded(hardware) or _channels_in_words(shape, hardware))


def stored_ifmap(shape: ConvShape, hardware: Hardware) -> tuple[int, int]:
    """Channels and images of the ifmap as stored, with padding."""
    multiple, channels = hardware.hbm.channel_multiple, shape.tensors.ifmap[0]
    if images_in_lanes(shape, hardware):
        images = padded(shape.word_images, multiple) // shape.strips
        return padded(channels, hardware.vector_memory.word_elements), images
    return padded(channels, multiple), shape.images


def ifmap_of(shape: ConvShape, hardware: Hardware, name: str) -> Tensor:
    """The map that the passes of a convolution read, as stored: the layer's ifmap, or what another `name` says."""
    (channels, images), (_, *points, _) = stored_ifmap(shape, hardware), shape.tensors.ifmap
    return Tensor(name, shape.tensors.ifmap, converted=True, padded=(channels, *points, images))


def padded_map(extents: tuple[int, ...], hardware: Hardware) -> tuple[int, ...]:
    """The stored shape [channel, row, col, image] of a feature map that is no ifmap of a convolution."""
    channels, *rest = extents
    return padded(channels, hardware.hbm.channel_multiple), *rest


def taps_on_chip(shape: ConvShape, hardware: Hardware) -> int | None:
    """The most taps that are on chip together, in the order of the filter; None if not limited."""
    given = hardware.mapping.block.given.get("taps")
    return given or (shape.col.kernel if by_filter_row(shape, hardware) else None)


def by_filter_row(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether one filter row is on chip at a time, by `mapping.row_windows`; a given block excludes it.

    The compiler does so where its estimate leaves out a part of such a row: with at least R / 2 channels, no multiple
    of R, whose weights lie with their output channels in lanes.
    """
    least, rows = hardware.mapping.row_windows, hardware.array.rows
    if not least or hardware.banked or "taps" in hardware.mapping.block.given:
        return False
    large = min(shape.row.kernel, shape.col.kernel) >= least
    uneven = shape.channels >= rows / 2 and shape.channels % rows != 0
    return large and uneven and not channels_in_lanes(shape, hardware)


def _least_padded(hardware: Hardware) -> bool:
    return hardware.mapping.layout == "least_padding"


def _channels_in_words(shape: ConvShape, hardware: Hardware) -> bool:
    # Tiles of bfloat16 ifmaps are 2, 4 or 8 high.
    return _pads_less(shape.channels, shape.word_images, hardware, least=2)


def _pads_less(words: int, lanes: int, hardware: Hardware, least: int | None = None) -> bool:
    """Whether these numbers of elements take less padding in words and in lanes than the other way round.

    Tiles are as high as a word, or, with a `least` height, as the next power of two up to a word.
    """
    word, wide = hardware.vector_memory.word_elements, hardware.hbm.channel_multiple

    def high(count: int) -> int:
        return padded(count, min(word, max(least or word, 1 << (count - 1).bit_length())))

    return high(words) * padded(lanes, wide) < high(lanes) * padded(words, wide)
