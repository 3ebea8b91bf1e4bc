"""How the weights of a layer lie, and how many taps are on chip together: what Google's compiler makes of both."""

from __future__ import annotations

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape, padded


def channels_in_lanes(shape: ConvShape, hardware: Hardware) -> bool:
    """Whether weights lie with their input channels in lanes and their output channels in words, as that pads less.

    411 of 412 convolutions that the compiler was given are laid out so.
    """
    word, lanes = hardware.vector_memory.word_elements, hardware.lanes
    into, out = shape.channels, shape.out_channels
    less = padded(out, word) * padded(into, lanes) < padded(into, word) * padded(out, lanes)
    return less and hardware.mapping.weights == "least_padding"


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
