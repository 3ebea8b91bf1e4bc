"""The block that `mapping.block` gives, in the units of the search: words, column folds, groups and row folds."""

from __future__ import annotations

from typing import NamedTuple

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape, InStrips, MapAxis
from tpusim.machines.tpu.lowering.reduction import Cut
from tpusim.machines.tpu.lowering.tiles import taps_on_chip
from tpusim.machines.tpu.lowering.tiling import col_folds, word_groups


class Given(NamedTuple):
    """What of a tiling is given; None where it is left to the search. At most what there is.

    Attributes:
        rows, cols, groups: extents of the block, in outputs and word groups.
        kept_folds: column folds of a block.
        chunk_taps, chunk_folds: groups and row folds of the reduction on chip together.
    """

    rows: int | None
    cols: int | None
    groups: int | None
    kept_folds: int | None
    chunk_taps: int | None
    chunk_folds: int | None


def given_block(shape: ConvShape, hardware: Hardware, cut: Cut) -> Given:
    """What the machine's policy says of the blocks of a layer."""
    block = hardware.mapping.block.given
    chunk_taps, chunk_folds = cut.held(taps_on_chip(shape, hardware), block.get("in_channels"))
    rows, cols, groups = given_outputs(shape, hardware)
    return Given(
        rows=rows,
        cols=cols,
        groups=groups,
        kept_folds=_kept_folds(block.get("out_channels"), shape, hardware),
        chunk_taps=chunk_taps,
        chunk_folds=chunk_folds,
    )


def given_outputs(shape: InStrips, hardware: Hardware) -> tuple[int | None, int | None, int | None]:
    """Rows, columns and word groups of a block; None where they are left to the search."""
    block = hardware.mapping.block.given
    rows, cols = _at_most(block.get("rows"), shape.row), _at_most(block.get("cols"), shape.col)
    return rows, cols, _groups(block.get("images"), shape, hardware)


def said(hardware: Hardware) -> str:
    """What is given, in words; empty where nothing is."""
    return ", ".join(f"{name} {value}" for name, value in hardware.mapping.block.given.items())


def _at_most(outputs: int | None, axis: MapAxis) -> int | None:
    return outputs and min(max(1, outputs // axis.cell), axis.extent)


def _groups(images: int | None, shape: InStrips, hardware: Hardware) -> int | None:
    """As many words of a pixel as hold so many images."""
    groups, fill = word_groups(shape.word_images, hardware.vector_memory.word_elements)
    return images and min(-(-images // max(1, fill // shape.strips)), groups)


def _kept_folds(channels: int | None, shape: ConvShape, hardware: Hardware) -> int | None:
    """The folds of the first so many output channels: no fold reaches over their end."""
    return channels and sum(fold.start < channels for fold in col_folds(shape.out_channels, hardware))
