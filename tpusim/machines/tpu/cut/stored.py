"""Which way round the tensors of a layer lie in tiles, and what Google's compiler makes of it.

A tile is as long as a word and as wide as `hbm.channel_multiple`, 8 x 128 on a TPU: sublanes and lanes. Under
`mapping.layout: least_padding` tensors lie in them whichever way round pads less. All is read off convolutions that the
compiler was given (docs/validation.md).
"""

from __future__ import annotations

from tpusim.machines.tpu.cut.geometry import ConvShape, padded
from tpusim.machines.tpu.description import Hardware


def channels_in_lanes(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether weights lie with their input channels in lanes, their output channels in words; so do 411 of 412."""
    return _least_padded(hardware) and _pads_less(shape.out_channels, shape.channels, hardware)


def images_in_lanes(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether the ifmap lies with its images in lanes, its channels in words: few channels of many images.

    Seen of kernels above 1 x 1.
    """
    one_by_one = shape.taps == 1 or shape.groups * shape.bundle > 1
    return _least_padded(hardware) and not one_by_one and _channels_in_words(shape, hardware)


def packed(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether a layer of few channels is packed by transposition: of a map, whose channels lie in words.

    Beside two images, or four, up to four channels lie in lanes, and nothing is transposed.
    """
    points = shape.row.outputs * shape.col.outputs
    few = points > 1 and shape.channels <= hardware.mapping.transposed_channels and not hardware.banked
    return few and (not _least_padded(hardware) or _channels_in_words(shape, hardware))


def stored_ifmap(shape: ConvShape, hardware: Hardware) -> tuple[int, int]:
    """The channels and images that the ifmap is stored as, padding included."""
    multiple, channels = hardware.hbm.channel_multiple, shape.tensors.ifmap[0]
    if images_in_lanes(shape, hardware):
        images = padded(shape.word_images, multiple) // shape.strips
        return padded(channels, hardware.vector_memory.word_elements), images
    return padded(channels, multiple), shape.images


def padded_map(extents: tuple[int, ...], hardware: Hardware) -> tuple[int, ...]:
    """The shape [channel, row, col, image] as which any other feature map is stored."""
    channels, *rest = extents
    return padded(channels, hardware.hbm.channel_multiple), *rest


def taps_on_chip(shape: ConvShape, hardware: Hardware) -> int | None:
    """The most taps that are to be on chip together, in the order of the filter; None where that is open."""
    given = hardware.mapping.block.given.get("taps")
    return given or (shape.col.kernel if by_filter_row(shape, hardware) else None)


def by_filter_row(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether one filter row is to be on chip at a time, by `mapping.row_windows`; nothing is given.

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
    """Whether these numbers lie better in words and in lanes than the other way round.

    Tiles are as high as a word, or where there is a `least` height, and less than a word, a power of two.
    """
    word, wide = hardware.vector_memory.word_elements, hardware.hbm.channel_multiple

    def high(count: int) -> int:
        return padded(count, min(word, max(least or word, 1 << (count - 1).bit_length())))

    return high(words) * padded(lanes, wide) < high(lanes) * padded(words, wide)
