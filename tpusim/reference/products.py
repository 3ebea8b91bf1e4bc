"""Ops that multiply maps by a filter, straight from their definitions, and the lowered matrix of a convolution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.reference import Box, Operand, Operands, Oracle, Tensor, batch_of, number_of

if TYPE_CHECKING:
    from tpusim.network.ops.array_op import ArrayOp, Conv1d, Conv2d, ConvTranspose2d, Gemm, Scatter
    from tpusim.network.ops.deform_conv2d import DeformConv2d, Offsets
    from tpusim.network.ops.gradients import Conv2dFilterGradient, Conv2dInputGradient
    from tpusim.network.ops.op import Index


_Places: TypeAlias = NDArray[np.int64]
_Doubles: TypeAlias = NDArray[np.float64]


def _groups(size: int, channels: range) -> Iterator[tuple[int, range]]:
    """Yield the groups of `size` that `channels` belong to, each with its share of them."""
    for group in range(channels.start // size, (channels.stop - 1) // size + 1):
        yield group, range(max(channels.start, group * size), min(channels.stop, (group + 1) * size))


def _within(part: range, whole: range) -> slice:
    """Return the place of a part of some channels among them."""
    return slice(part.start - whole.start, part.stop - whole.start)


_MOST_ELEMENTS = 1 << 19
"""About this many elements of receptive fields are gathered at a time, to stay within the cache."""


def conv2d(layer: Conv2d, operands: Operands, box: Box) -> Tensor:
    """Compute out[o, y, x, n] = sum over c, i, j of filter[o, i, j, c] * ifmap[c, y*s+i*d-p, ...], group by group, in
    `box`.
    """
    return np.asarray(shares_of_conv2d(layer, operands, box, 1)[0])


def shares_of_conv2d(layer: Conv2d, operands: Operands, box: Box, count: int) -> Tensor:
    """Compute the sums of `conv2d` in `count` shares [share, o, y, x, n], with equally many products but for one
    share.
    """
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    outputs = np.empty([count, *map(len, box)], number_of(ifmap, filter_))
    into, out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    for group, own in _groups(out, box[0]):
        fields = _receptive_fields(layer, ifmap[group * into : (group + 1) * into], box, outputs.dtype)
        weights = filter_[own.start : own.stop].astype(outputs.dtype, copy=False)
        _convolve(fields, weights, outputs[:, _within(own, box[0])])
    return outputs


def _receptive_fields(layer: Conv2d, ifmap: Operand, box: Box, number: np.dtype[Any]) -> Tensor:
    """Return the receptive fields of the outputs in `box` as a view, [kh, kw, c, h, w, n]; padding is zero."""
    reach = [(taps - 1) * step + 1 for taps, step in zip(layer.kernel, layer.dilation, strict=True)]
    under = [
        range(part.start * stride - pad, (part.stop - 1) * stride - pad + length)
        for part, stride, (pad, _), length in zip(box[1:3], layer.stride, layer.pads, reach, strict=True)
    ]
    window = _window(ifmap[..., box[3].start : box[3].stop], under, number)
    fields = np.lib.stride_tricks.sliding_window_view(window, reach, axis=(1, 2))
    (sh, sw), (dh, dw) = layer.stride, layer.dilation
    return fields[:, ::sh, ::sw, :, ::dh, ::dw].transpose(4, 5, 0, 1, 2, 3)


def _window(ifmap: Operand, under: Sequence[range], number: np.dtype[Any]) -> Tensor:
    """Return the rows and columns `under` a kernel; without a copy, if all of them are on the map."""
    rows, cols = under
    (to_row, from_row), (to_col, from_col) = (_stored(*each) for each in zip(under, ifmap.shape[1:3], strict=True))
    stored = ifmap[:, from_row, from_col]
    if stored.shape[1:3] == (len(rows), len(cols)):
        return stored.astype(number, copy=False)
    window = np.zeros((len(ifmap), len(rows), len(cols), ifmap.shape[-1]), number)
    window[:, to_row, to_col] = stored
    return window


def _stored(under: range, extent: int) -> tuple[slice, slice]:
    """Return where the positions `under` a kernel go that a map of that extent has, and where they come from."""
    first, stop = max(under.start, 0), max(under.start, 0, min(under.stop, extent))
    return slice(first - under.start, stop - under.start), slice(first, stop)


def _convolve(fields: Tensor, filter_: Tensor, outputs: Tensor) -> None:
    """Multiply fields [kh, kw, c, h, w, n], a view, into outputs [share, o, h, w, n].

    A few output rows at a time, and of a long sum some channels.
    """
    taps, channels, row = int(np.prod(fields.shape[:2])), fields.shape[2], int(np.prod(fields.shape[4:]))
    height = max(1, _MOST_ELEMENTS // (taps * channels * row))
    depth = min(channels, max(1, 8 * _MOST_ELEMENTS // (taps * row)))
    flat = outputs.reshape(*outputs.shape[:2], -1)
    # Shares differ by at most one product.
    ends = [*pairwise(number * taps * channels // len(outputs) for number in range(len(outputs) + 1))]
    for top in range(0, fields.shape[3], height):
        places = flat[..., top * row : (top + height) * row]
        for at in range(0, channels, depth):
            weights = filter_[..., at : at + depth].reshape(len(filter_), -1)
            part = fields[:, :, at : at + depth, top : top + height].reshape(weights.shape[1], -1)
            for place, (first, stop) in zip(places, ends, strict=True):
                mine = slice(max(first - taps * at, 0), min(stop - taps * at, len(part)))
                if mine.start >= mine.stop:
                    continue
                if first >= taps * at:
                    # The first part of a share overwrites, which spares clearing the outputs.
                    np.matmul(weights[:, mine], part[mine], out=place)
                else:
                    place += weights[:, mine] @ part[mine]


def conv1d(layer: Conv1d, operands: Operands, box: Box) -> Tensor:
    """Compute out[o, 0, x, n] = sum over c, j of filter[o, 0, j, c] * ifmap[c, 0, x*s+j*d-p, n], group by group, in
    `box`.
    """
    return np.asarray(shares_of_conv1d(layer, operands, box, 1)[0])


def shares_of_conv1d(layer: Conv1d, operands: Operands, box: Box, count: int) -> Tensor:
    """Compute the sums of `conv1d` in `count` shares [share, o, 0, x, n], as `shares_of_conv2d` does."""
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    channels, _, positions, images = box
    outputs = np.empty([count, *map(len, box)], number_of(ifmap, filter_))
    into, out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    first, reach = -layer.axis.ends[0], (layer.kernel - 1) * layer.dilation + 1
    under = range(positions.start * layer.stride + first, (positions.stop - 1) * layer.stride + first + reach)
    for group, own in _groups(out, channels):
        mine = ifmap[group * into : (group + 1) * into, ..., images.start : images.stop]
        window = _window(mine, [range(1), under], outputs.dtype)[:, 0]
        fields = np.lib.stride_tricks.sliding_window_view(window, reach, axis=1)[
            :, :: layer.stride, :, :: layer.dilation
        ]
        # Positions are taken a few at a time, as rows of a map are.
        fields = fields.transpose(3, 0, 1, 2)[None, :, :, :, None]
        weights = filter_[own.start : own.stop].astype(outputs.dtype, copy=False)
        _convolve(fields, weights, outputs[:, _within(own, channels)])
    return outputs


def scattered(layer: ConvTranspose2d | Conv2dInputGradient, operands: Operands, box: Box) -> Tensor:
    """Compute out[o, y*s+i*d-p, x*s+j*d-p, n] += filter[o, i, j, c] * ifmap[c, y, x, n], group by group, in `box`.

    Rows and columns of the box may be strided.
    """
    ifmap, filter_, op = operands["ifmap"], operands["filter"], layer.scatter
    channels, rows, cols, images = box
    outputs = np.zeros([len(part) for part in box], number_of(ifmap, filter_))
    size, into = op.out_channels // op.groups, op.in_channels // op.groups
    downwards, across = (landings(op, axis, wanted) for axis, wanted in enumerate((rows, cols)))
    together = _neighbours(across, _MOST_FACTORS // max(1, outputs.size))
    for group, own in _groups(size, channels):
        weights = filter_[own.start : own.stop]
        source = ifmap[group * into : (group + 1) * into, ..., images.start : images.stop]
        place = outputs[_within(own, channels)]
        for (i, from_rows, to_rows), (whole, taps) in product(downwards, together):
            elements = source[:, _slice(from_rows), _slice(whole)].astype(outputs.dtype, copy=False)
            mine = weights[:, i, [each.tap for each in taps]].astype(outputs.dtype)
            products = mine.reshape(-1, into) @ elements.reshape(into, -1)
            by_tap = products.reshape(len(own), len(taps), *elements.shape[1:])
            # Each tap brings a strided block of the ifmap into the box.
            for at, (_, from_cols, to_cols) in enumerate(taps):
                place[:, _slice(to_rows), _slice(to_cols)] += by_tap[:, at, :, _slice(_places_in(whole, from_cols))]
    return outputs


class _Landing(NamedTuple):
    """A tap that brings rows (or columns) `sources` of the ifmap to `places` in a box."""

    tap: int
    sources: range
    places: range


def landings(op: Scatter, axis: int, wanted: range) -> list[_Landing]:
    """Return the taps that bring rows (or columns) of the ifmap to some of those `wanted`."""
    stride, dilation, cropped = op.stride[axis], op.dilation[axis], op.cropped[axis]
    lands = np.arange(op.sizes[axis]) * stride - cropped - wanted.start
    found = []
    # What a tap brings is a stride apart, so of a long kernel few taps reach any that are wanted.
    apart = gcd(stride, wanted.step) if len(wanted) > 1 else stride
    for shift in range(0, op.kernel[axis] * dilation, dilation):
        if (lands[0] + shift) % apart:
            continue
        here = lands + shift
        sources = np.flatnonzero((here >= 0) & (here < wanted.stop - wanted.start) & (here % wanted.step == 0))
        if sources.size:
            found.append(_Landing(shift // dilation, _evenly(sources), _evenly(here[sources] // wanted.step)))
    return found


def _evenly(places: _Places) -> range:
    """Return places that are evenly spaced."""
    return range(int(places[0]), int(places[-1]) + 1, int(places[1] - places[0]) if len(places) > 1 else 1)


def _slice(places: range) -> slice:
    return slice(places.start, places.stop, places.step)


def _places_in(whole: range, part: range) -> range:
    """Return where the places of a part are among those of the whole."""
    return range(whole.index(part[0]), whole.index(part[-1]) + 1, part.step // whole.step)


def _neighbours(every: Sequence[_Landing], most: int) -> list[tuple[range, list[_Landing]]]:
    """Return all that some taps read together, and these taps; at most `most`, unless it is one, and so few that at
    least half of what is multiplied counts.
    """
    groups: list[tuple[range, list[_Landing]]] = []
    shortest = 0
    for each in every:
        whole, taps = groups[-1] if groups else (range(0), [])
        joined = range(min(whole.start, each.sources.start), max(whole.stop, each.sources.stop), each.sources.step)
        shortest = min(shortest, len(each.sources))
        in_step = each.sources.step == whole.step and (each.sources.start - whole.start) % whole.step == 0
        if len(taps) < most and in_step and len(joined) <= 2 * shortest:
            taps.append(each)
            groups[-1] = joined, taps
        else:
            groups.append((each.sources, [each]))
            shortest = len(each.sources)
    return groups


def conv2d_filter_gradient(layer: Conv2dFilterGradient, operands: Operands, box: Box) -> Tensor:
    """Compute out[o, i, j, c] = sum over y, x, n of filter[o, y, x, n] * ifmap[n, y*s+i*d-p, x*s+j*d-p, c], group by
    group, in `box`.
    """
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    sums = np.zeros([len(part) for part in box], number_of(ifmap, filter_))
    outs, taps_down, taps_across, ins = box
    size, terms = layer.out_channels // layer.groups, len(ifmap) // layer.groups
    for group, own in _groups(size, outs):
        place = sums[_within(own, outs)]
        by_output = filter_[own.start : own.stop].astype(sums.dtype)
        source = ifmap[group * terms : (group + 1) * terms, ..., ins.start : ins.stop]
        for (i, tap_row), (j, tap_col) in product(enumerate(taps_down), enumerate(taps_across)):
            if layer.is_a_product:
                place[:, i, j] = by_output[:, 0, 0] @ source[:, 0, 0].astype(sums.dtype)
                continue
            (to_rows, from_rows), (to_cols, from_cols) = (
                _under(layer, axis, tap, source.shape[1 + axis]) for axis, tap in enumerate((tap_row, tap_col))
            )
            elements = source[:, from_rows[:, None], from_cols].astype(sums.dtype)
            gradient = by_output[:, to_rows[:, None], to_cols]
            place[:, i, j] = np.tensordot(gradient, elements, ([1, 2, 3], [1, 2, 0]))
    return sums


def _under(layer: Conv2dFilterGradient, axis: int, tap: int, size: int) -> tuple[_Places, _Places]:
    """Return which rows (or columns) of the output have an element of the input under a tap, and those elements."""
    first = layer.axes[axis].ends[0]
    every = np.arange((layer.out_height, layer.out_width)[axis])
    stands = every * layer.stride[axis] + tap * layer.dilation[axis] - first
    real = (stands >= 0) & (stands < size)
    return every[real], stands[real]


def deform_conv2d(layer: DeformConv2d, operands: Operands, box: Box) -> Tensor:
    """Compute out[o, y, x, n] = sum over c, i, j of filter[o, i, j, c] * mask * sample, group by group, in `box`.

    A sample is what the ifmap [c, :, :, n] has at (y*s+i*d-p + down, ...), bilinearly; all around it is zero.
    """
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    channels, rows, cols, images = box
    outputs = np.zeros([len(part) for part in box], number_of(ifmap, filter_))
    size, into = layer.out_channels // layer.groups, layer.in_channels // layer.groups
    given, points = _offsets_of_shape(layer, ifmap.shape[-1]), (rows, cols, images)
    for group, own in _groups(size, channels):
        weights, place = filter_[own.start : own.stop].astype(outputs.dtype), outputs[_within(own, channels)]
        for tap in np.ndindex(*layer.kernel):
            samples = _samples(layer, ifmap, range(group * into, (group + 1) * into), tap, given, points)
            samples = samples.astype(outputs.dtype, copy=False)
            place += (weights[:, *tap] @ samples.reshape(into, -1)).reshape(place.shape)
    return outputs


@lru_cache(maxsize=4)
def _offsets_of_shape(layer: DeformConv2d, batch: int) -> Offsets:
    """Return the offsets of a layer, kept while it is computed box by box."""
    return layer.displaced(batch)


def _samples(
    layer: DeformConv2d, ifmap: Operand, channels: range, tap: tuple[int, int], given: Offsets,
    points: tuple[range, range, range],
) -> Tensor:  # fmt: skip
    """Return what a tap samples of some channels for the outputs in `points`, [channel, row, col, image]."""
    samples = np.empty((len(channels), *map(len, points)))
    size = layer.in_channels // layer.offset_groups
    for number, own in _groups(size, channels):
        here = np.ix_((number,), (tap[0],), (tap[1],), *points)
        down, across, mask = (each[here][0, 0, 0] for each in (given.down, given.across, given.masks))
        # Offsets are relative to the rows and columns on which the tap would stand without them.
        rows, cols = (
            np.array(points[axis]) * layer.stride[axis] + tap[axis] * layer.dilation[axis] - float(layer.padding[axis])
            for axis in (0, 1)
        )
        rows, cols = rows[:, None, None] + down / given.parts, cols[:, None] + across / given.parts
        found = _interpolated(ifmap[own.start : own.stop], rows, cols, points[2])
        samples[_within(own, channels)] = found * (mask / given.mask_parts)
    return samples


def _interpolated(ifmap: Operand, rows: _Doubles, cols: _Doubles, images: range) -> _Doubles:
    """Return the four elements around each place (rows, cols), weighted bilinearly and summed; [channel, *place]."""
    total = np.zeros((len(ifmap), *rows.shape))
    for y in (np.floor(rows), np.floor(rows) + 1):
        for x in (np.floor(cols), np.floor(cols) + 1):
            near = (1 - abs(rows - y)) * (1 - abs(cols - x))
            there = (y >= 0) & (y < ifmap.shape[1]) & (x >= 0) & (x < ifmap.shape[2])
            at = np.where(there, y, 0).astype(int), np.where(there, x, 0).astype(int)
            total += np.where(there, near, 0) * ifmap[:, *at, np.array(images)]
    return total


_MOST_FACTORS = 1 << 22
"""About this many factors are multiplied at a time, so that long sums take no more memory."""


def gemm(layer: Gemm, operands: Operands, box: Box) -> Tensor:
    """Compute the part [n, 1, 1, m] in `box` of the product of the ifmap [k, 1, 1, m] and the filter [n, 1, 1, k]; of
    several, group after group.
    """
    return np.asarray(shares_of_gemm(layer, operands, box, 1)[0])


def shares_of_gemm(layer: Gemm, operands: Operands, box: Box, count: int) -> Tensor:
    """Compute the sums of `gemm` in `count` shares [share, n, 1, 1, m], with equally many products but for
    one share.
    """
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    every, _, _, rows = box
    products = np.zeros((count, len(every), len(rows)), number_of(ifmap, filter_))
    ends = [number * layer.k // count for number in range(count + 1)]
    for group, cols in _groups(layer.n, every):
        first = filter_[cols.start : cols.stop, 0, 0]
        second = ifmap[group * layer.k : (group + 1) * layer.k, 0, 0, rows.start : rows.stop]
        step = max(1, _MOST_FACTORS // (len(cols) + len(rows)))
        for share, (start, stop) in zip(products[:, _within(cols, every)], pairwise(ends), strict=True):
            for at in range(start, stop, step):
                mine = slice(at, min(at + step, stop))
                factors = (each.astype(share.dtype, copy=False) for each in (first[:, mine], second[mine]))
                share += np.matmul(*factors)
    return products[:, :, None, None, :]


def lowered(layer: ArrayOp, operands: Operands, box: Box) -> Tensor:
    """Return the part in `box` of the lowered matrix [k, row, col, image].

    k = (tap_row * kernel width + tap_col) * channels of a group + channel, group after group.
    """
    ifmap = operands["ifmap"]
    conv, _ = layer.convolution(batch_of(layer, operands))
    lowered = np.empty([len(part) for part in box], number_of(ifmap))
    size = conv.in_channels // conv.groups * conv.kernel[0] * conv.kernel[1]
    for _, ks in _groups(size, box[0]):
        lowered[_within(ks, box[0])] = _lowered_group(conv, ifmap, (ks, *box[1:]))
    return lowered


def _element_name(layer: ArrayOp, index: Index) -> tuple[tuple[str, ...], Index]:
    """Name an element by axes and index: the element it copies, and its output."""
    k, row, col, image = index
    conv, _ = layer.convolution(1)
    size, (height, width) = conv.in_channels // conv.groups, conv.kernel
    group, rest = divmod(k, height * width * size)
    tap, channel = divmod(rest, size)
    axes = ("channel", "tap_row", "tap_col", "row", "col", "image")
    return axes, (group * size + channel, *divmod(tap, width), row, col, image)


def _lowered_group(layer: Conv2d, ifmap: Operand, box: Box) -> Tensor:
    """Return the part in `box`, all of whose rows are of one group."""
    size, (height, width) = layer.in_channels // layer.groups, layer.kernel
    group, first = divmod(box[0].start, height * width * size)
    ks = range(first, first + len(box[0]))
    taps = range(first // size, (ks.stop - 1) // size + 1)
    channels = range(first % size, (ks.stop - 1) % size + 1) if len(taps) == 1 else range(size)
    mine = ifmap[group * size + channels.start : group * size + channels.stop]
    fields = _receptive_fields(layer, mine, box, number_of(ifmap))
    first -= taps.start * size + channels.start
    return np.concatenate([fields[divmod(tap, width)] for tap in taps])[first : first + len(ks)]


LOWERED_MATRIX = Oracle(lowered, _element_name)
"""The lowered matrix of a convolution: the elements of the padded ifmap under the kernel."""
