"""How a layer was lowered, in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tpusim.network.workload import Gemm
from tpusim.report.tables.run import scale, three_digits
from tpusim.study.explain.bottleneck import Bottleneck

WIDTH = 79
"""Characters of a line of words."""

_MEMORY = (("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
_ORDERS = {
    "block_major": "block by block, in each all output channels (block_major)",
    "filter_major": "column fold by column fold, in each all blocks (filter_major)",
}


def lowering_text(found: Bottleneck, width: int = WIDTH) -> str:
    """How the layer was cut up, a line an aspect."""
    return "\n".join(
        textwrap.fill(text, width, initial_indent=f"  {name:<8}", subsequent_indent=" " * 10)
        for name, text in _aspects(found)
    )


def filled_pes(found: Bottleneck) -> str:
    """Rows and columns of the array in use, the mean over passes."""
    array, plan = found.case.hardware.array, found.plan
    rows = sum(each.rows for each in plan.passes) / len(plan.passes)
    cols = sum(map(len, plan.col_folds)) / len(plan.col_folds)
    return f"{rows:.4g} of {array.rows} rows and {cols:.4g} of {array.cols} columns"


def _aspects(found: Bottleneck) -> Iterator[tuple[str, str]]:
    if not isinstance(found.case.layer, Gemm):
        yield "taps", _taps(found)
    yield "folds", _folds(found)
    yield "passes", _passes(found)
    yield "block", _block(found)
    yield "order", _ORDERS[found.plan.tiling.loop_order]
    yield "words", _words(found)
    yield "memory", _buffers(found)


def _taps(found: Bottleneck) -> str:
    shape, stacked = found.plan.shape, found.plan.multi_tile
    rows, cols = shape.row.kernel, shape.col.kernel
    if rows * cols == 1:
        return f"1, over {_counted(shape.channels, 'channel')}{_groups(shape.groups)}"
    each = f"{rows} x {cols} = {rows * cols}, each a 1 x 1 convolution over {_counted(shape.channels, 'channel')}"
    return each + _groups(shape.groups) + (f"; {stacked} stacked in a pass (multi-tile)" if stacked > 1 else "")


def _groups(groups: int) -> str:
    return f" in each of {groups} groups" if groups > 1 else ""


def _folds(found: Bottleneck) -> str:
    plan, shape = found.plan, found.plan.shape
    into, out = _counted(shape.channels, "input channel"), _counted(shape.out_channels, "output channel")
    if isinstance(found.case.layer, Gemm):
        into, out = f"k = {shape.channels}", f"n = {shape.out_channels}"
    rows, cols = _counted(len(plan.row_folds), "row fold"), _counted(len(plan.col_folds), "column fold")
    return f"{rows} for {into}, {cols} for {out}; a pass fills {filled_pes(found)}"


def _passes(found: Bottleneck) -> str:
    plan = found.plan
    block = f"a block of {_counted(len(plan.col_folds[0]), 'output channel')}"
    if len(plan.passes) == 1:
        return f"{found.layer.passes:,}, each for {block}"
    return f"{found.layer.passes:,}, of which {len(plan.passes)} add up to {block}"


def _block(found: Bottleneck) -> str:
    blocking, shape = found.layer.blocking, found.plan.shape
    blocks = _counted(blocking.blocks, "block")
    if isinstance(found.case.layer, Gemm):
        return f"{_counted(blocking.images, 'row')} of input; {blocks} for all {shape.images}"
    strips = f" in each of {blocking.strips} strips" if blocking.strips > 1 else ""
    return (
        f"{blocking.rows} x {blocking.cols} outputs{strips} of {_counted(blocking.images, 'image')}; {blocks} for "
        f"all {shape.row.outputs} x {shape.col.outputs} of {_counted(shape.images, 'image')}"
    )


def _words(found: Bottleneck) -> str:
    blocking, word = found.layer.blocking, found.case.hardware.vector_memory.word_elements
    what = "row" if isinstance(found.case.layer, Gemm) else "image"
    images = _counted(blocking.word_fill // blocking.strips, what)
    held = f"{blocking.strips} strips of {images}" if blocking.strips > 1 else images
    return f"{blocking.word_fill} of {_counted(word, 'element')} used: {held}"


def _buffers(found: Bottleneck) -> str:
    plan, hardware = found.plan, found.case.hardware
    tiling, word = plan.tiling, hardware.word_bytes
    buffers = (
        ("ifmap", tiling.ifmap_buffers, tiling.ifmap_words),
        ("filter", tiling.filter_buffers, tiling.chunk_words),
        ("results", tiling.psum_buffers, tiling.psum_words),
    )
    held = ", ".join(f"{count} x {_size(words * word)} of {name}" for name, count, words in buffers)
    part = f"; a filter buffer holds {tiling.chunk_passes} of {len(plan.passes)} passes" if len(plan.chunks) > 1 else ""
    return f"{_size(tiling.words * word)} of {_size(hardware.vector_memory.capacity_bytes)} a lane: {held}{part}"


def _size(size_bytes: int) -> str:
    unit, scaled = scale([size_bytes], _MEMORY)
    return f"{three_digits(size_bytes / scaled) if scaled > 1 else size_bytes} {unit}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
