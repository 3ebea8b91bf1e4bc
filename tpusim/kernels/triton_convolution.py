"""Block-level channel-first implicit im2col as a Triton kernel. Needs the extra `gpu`; imported when it is launched."""

# Triton reads a kernel's source: its arguments have no types but `constexpr`.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolution(
    ifmap, filters, ofmap,
    images, height, width, channels, out_height, out_width, out_channels,
    stride_rows, stride_cols, dilation_rows, dilation_cols, top, left,
    KERNEL_ROWS: tl.constexpr, KERNEL_COLS: tl.constexpr, CHANNELS_OUTSIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the ofmap: BLOCK_M pixels by BLOCK_N output channels.

    Each k-step multiplies the tile's pixels, seen by one tap, with BLOCK_K input channels of that tap. The two orders
    of the k-steps are the paper's: all taps of a slab of channels, then of the next, or all slabs of a tap first.
    """
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    outs = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    image, inside = pixels // (out_height * out_width), pixels % (out_height * out_width)
    first_row = (inside // out_width) * stride_rows - top
    first_col = (inside % out_width) * stride_cols - left
    taps = KERNEL_ROWS * KERNEL_COLS
    slabs = tl.cdiv(channels, BLOCK_K)
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, taps * slabs):
        if CHANNELS_OUTSIDE:
            tap, slab = step % taps, step // taps
        else:
            tap, slab = step // slabs, step % slabs
        rows = first_row + (tap // KERNEL_COLS) * dilation_rows
        cols = first_col + (tap % KERNEL_COLS) * dilation_cols
        ins = slab * BLOCK_K + tl.arange(0, BLOCK_K)
        there = (image < images) & (rows >= 0) & (rows < height) & (cols >= 0) & (cols < width)
        at = ((image * height + rows) * width + cols) * channels
        a = tl.load(ifmap + at[:, None] + ins[None, :], mask=there[:, None] & (ins < channels)[None, :], other=0.0)
        at_weight = (tap * channels + ins) * out_channels
        known = (ins < channels)[:, None] & (outs < out_channels)[None, :]
        b = tl.load(filters + at_weight[:, None] + outs[None, :], mask=known, other=0.0)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    placed = (image < images)[:, None] & (outs < out_channels)[None, :]
    tl.store(ofmap + (pixels * out_channels)[:, None] + outs[None, :], sums.to(ofmap.dtype.element_ty), mask=placed)
