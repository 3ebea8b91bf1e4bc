"""What the lowering is told to choose: the parameters of a machine that are not made of silicon."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ValidationInfo, field_validator

from tpusim.base.errors import InputError, Problem
from tpusim.input.fields import Choice, whole
from tpusim.input.form import FileSection

_MOST = 2**24
_MOST_PES_A_SIDE = 65536

_Extent = Annotated[int | Literal["auto"], Choice(_MOST)]


class BlockSizes(FileSection):
    """The block of a layer: what of it is on chip at a time. What is `auto` is chosen; more than there is means all.

    `rows` x `cols` outputs (of a strip, where a small batch is cut into strips) of `images` (rows of a product;
    in whole words) and `out_channels` are computed before the next block. Their reduction holds `in_channels` and
    `taps` of the filter at a time, in its order: fewer than all are chunks, of whole passes, at least one.
    """

    rows: _Extent = "auto"
    cols: _Extent = "auto"
    images: _Extent = "auto"
    in_channels: _Extent = "auto"
    out_channels: _Extent = "auto"
    taps: _Extent = "auto"

    @property
    def given(self) -> dict[str, int]:
        """The fields that are not left to the search."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


_RECTANGLE = ("rows", "cols", "images")


class MappingPolicy(FileSection):
    """Choices of the lowering: how many taps one pass stacks, which loop goes outside, and when a reduction is cut.

    Multi-tile `auto` is the paper's rule, min(R / C_I, W_F); `rows` also stacks whole filter rows where several fit;
    `dense` fills passes as the code of Google's compiler does, across filter rows, `dense_rows` as its estimate has it
    (`lowering/dense`). What else it does:
    tensors lie in tiles whichever way round pads less (`layout: least_padding`); layers of at most
    `transposed_channels` are packed by transposing words (0: none), in `vector_unit.transpose_cycles`; kernels of at
    least `row_windows` taps a side, whose channels do not fill the array, are held a filter row at a time (0: none);
    blocks keep all of their column folds (`column_folds`), and bring the points between those they need (`patch`).
    Words that a batch leaves half empty are filled with strips of the map, in the way that takes fewest cycles
    (`strips: balanced`), or only those of `one_image`, with strips of its columns.
    An ifmap is `ready` as its words are, or arrives in another layout and is laid out anew, patch by patch (`entry:
    relaid`), as that of a layer compiled by itself.
    Of ops of whole rows, such as softmax, rows are `kept` on chip from one stage to the next where they fit, or
    `read_again` for each, as by operations of their own (`rows`).
    Blocks are chosen by an `estimate`, or those that may be the best are timed on the event engine (`simulate`).
    Chunks of the reduction are taken where they are cheaper (`auto`), or only where it does not fit whole (`needed`).
    A block, or chunk of one, begins with the first of the `pieces` that its loads come in, or when they are `whole`.
    Where the ifmap is transformed before it is multiplied, that goes on beside the product (`overlapped`) or all of it
    `before`, by way of HBM; or what a block needs of the lowered matrix never leaves the vector memories (`on_chip`).
    What a block needs of the ifmap is fetched for all taps at once, or for each tap by itself (paper Fig. 8).

    A `block` is what is on chip at a time. A pass is what the array does at a time, and may be cut at given sizes of
    its own: words streamed (`block_m`), rows that it fills (`block_k`, of dense passes), columns (`block_n`); at most
    what there is. As a pass streams all words of its block, `block_m` is also the size of a block, one that disregards
    rows of the map: it excludes rows, cols, images. `k_order` is implicit GEMM's: channels or taps move fastest.
    A run may take several lowerings: a choice goes to those that know it.
    """

    multi_tile: Annotated[int | Literal["auto", "rows", "dense", "dense_rows"], Choice(65536)] = "auto"
    loop_order: Annotated[Literal["auto", "block_major", "filter_major"], Choice()] = "auto"
    chunks: Annotated[Literal["auto", "needed"], Choice()] = "auto"
    transformation: Annotated[Literal["overlapped", "before", "on_chip"], Choice()] = "overlapped"
    loads: Annotated[Literal["pieces", "whole"], Choice()] = "pieces"
    fetch: Annotated[Literal["resident", "per_tap"], Choice()] = "resident"
    k_order: Annotated[Literal["channels_fastest", "taps_fastest"], Choice()] = "channels_fastest"
    patch: Annotated[Literal["touched", "window"], Choice()] = "touched"
    layout: Annotated[Literal["plain", "least_padding"], Choice()] = "plain"
    strips: Annotated[Literal["balanced", "one_image"], Choice()] = "balanced"
    row_windows: Annotated[int, whole(_MOST_PES_A_SIDE, least=0)] = 0
    transposed_channels: Annotated[int, whole(_MOST_PES_A_SIDE, least=0)] = 0
    column_folds: Annotated[Literal["one", "all"], Choice()] = "one"
    entry: Annotated[Literal["ready", "relaid"], Choice()] = "ready"
    rows: Annotated[Literal["kept", "read_again"], Choice()] = "kept"
    search: Annotated[Literal["estimate", "simulate"], Choice()] = "estimate"
    block_m: _Extent = "auto"
    block_k: Annotated[int | Literal["auto"], Choice(_MOST_PES_A_SIDE)] = "auto"
    block_n: Annotated[int | Literal["auto"], Choice(_MOST_PES_A_SIDE)] = "auto"
    block: BlockSizes = BlockSizes()

    @field_validator("block")
    @classmethod
    def _one_size(cls, block: BlockSizes, info: ValidationInfo) -> BlockSizes:
        # A block_m that is itself wrong is missing from info.data, and reported on its own.
        words, given = info.data.get("block_m", "auto"), [name for name in _RECTANGLE if name in block.given]
        if given and isinstance(words, int):
            message = f"block_m gives the size of a block, too: {words} words; set one of them to auto"
            raise InputError([Problem(message, given[0])])
        return block
