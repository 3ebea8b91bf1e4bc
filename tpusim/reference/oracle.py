"""The oracle: convolution and matrix product straight from their definitions, in vectorised NumPy.

Shares no code with the lowering, the data path or the engines. Operands are small integers held in float32,
so every partial sum is an exact integer below 2**24 and results are equal whatever the order of summation.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError
from tpusim.network.workload import Conv2d, Gemm

Tensor = NDArray[np.float32]

EXACT = 1 << 24
"""float32 holds every integer up to here exactly."""

OPERAND_BITS = 4
"""Operands are signed integers of this many bits, fewer where a long sum would not be exact."""

CHUNK_ELEMENTS = 1 << 19
"""The receptive fields of about this many elements are gathered at a time, to stay within the cache."""


def operands(layer: Conv2d | Gemm, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random integer operands of a layer: ifmap [c, h, w, n] and filter [c_out, kh, kw, c_in / groups].

    A GEMM's (m, k) x (k, n) is the ifmap [k, 1, 1, m] and the filter [n, 1, 1, k]. The same seed and layer
    give the same numbers, whatever other layers run.

    Raises:
        InputError: when the sum is so long that float32 cannot hold it exactly.
    """
    if isinstance(layer, Gemm):
        ifmap, filter_ = (layer.k, 1, 1, layer.m), (layer.n, 1, 1, layer.k)
    else:
        ifmap = (layer.in_channels, layer.in_height, layer.in_width, batch)
        filter_ = (layer.out_channels, *layer.kernel, layer.in_channels // layer.groups)
    bits = _exact_bits(layer, filter_[1] * filter_[2] * filter_[3])
    random = np.random.default_rng([seed, zlib.crc32(repr(layer).encode())])
    return _integers(random, ifmap, bits), _integers(random, filter_, bits)


def _exact_bits(layer: Conv2d | Gemm, products: int) -> int:
    """The widest operands, up to OPERAND_BITS, with which a sum of `products` products is exact."""
    bits = next((b for b in range(OPERAND_BITS, 0, -1) if products * 4 ** (b - 1) <= EXACT), 0)
    if not bits:
        raise InputError(f"layer {layer.name}: a sum of {products} products is not exact in float32; use --no-check")
    return bits


def _integers(random: np.random.Generator, shape: tuple[int, ...], bits: int) -> Tensor:
    """Eight numbers from each random 64-bit word."""
    count = int(np.prod(shape))
    words = random.integers(1 << 64, size=-(-count // 8), dtype=np.uint64)
    return (words.view(np.int8)[:count] >> (8 - bits)).astype(np.float32).reshape(shape)


def compute(layer: Conv2d | Gemm, ifmap: Tensor, filter_: Tensor) -> Tensor:
    """The layer's outputs [c_out, h, w, n]; for a GEMM [n, 1, 1, m]."""
    if isinstance(layer, Gemm):
        return (filter_[:, 0, 0, :] @ ifmap[:, 0, 0, :])[:, None, None, :]
    return convolve(ifmap, filter_, layer.stride, layer.padding, layer.dilation, layer.groups)


def convolve(
    ifmap: Tensor,
    filter_: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Tensor:
    """Direct convolution: out[o, y, x, n] = sum over c, i, j of filter[o, i, j, c] * ifmap[c, y*s+i*d-p, ...].

    Args:
        ifmap: [c, h, w, n]; filter_: [c_out, kh, kw, c / groups]; the pairs are (vertical, horizontal).
    """
    (ph, pw), (kh, kw) = padding, filter_.shape[1:3]
    if ph or pw:
        ifmap = np.pad(ifmap, ((0, 0), (ph, ph), (pw, pw), (0, 0)))
    reach = ((kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1)
    fields = np.lib.stride_tricks.sliding_window_view(ifmap, reach, axis=(1, 2))
    fields = fields[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]].transpose(4, 5, 0, 1, 2, 3)
    outputs = np.empty((filter_.shape[0], *fields.shape[3:]), dtype=np.float32)
    for group in range(groups):
        channels = slice(group * filter_.shape[3], (group + 1) * filter_.shape[3])
        per_group = filter_.shape[0] // groups
        out = slice(group * per_group, (group + 1) * per_group)
        _convolve_group(fields[:, :, channels], filter_[out], outputs[out])
    return outputs


def _convolve_group(fields: Tensor, filter_: Tensor, outputs: Tensor) -> None:
    """fields [kh, kw, c, h, w, n], a view; a few output rows at a time."""
    taps = int(np.prod(fields.shape[:3]))
    weights = filter_.reshape(filter_.shape[0], taps)
    row = int(np.prod(fields.shape[4:]))
    height = max(1, CHUNK_ELEMENTS // (taps * row))
    flat = outputs.reshape(len(outputs), -1)
    for top in range(0, fields.shape[3], height):
        part = fields[:, :, :, top : top + height].reshape(taps, -1)
        np.matmul(weights, part, out=flat[:, top * row : top * row + part.shape[1]])
