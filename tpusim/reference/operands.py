"""Random operands: small integers, a byte each.

Every partial sum is an exact integer below 2**24, or one of so many equal parts where a layer interpolates, so that
results are equal whatever the order of summation.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError
from tpusim.network.ops.op import Op

Operand: TypeAlias = NDArray[Any]
Operands: TypeAlias = Mapping[str, Operand]
"""Those of a layer, by the names of its tensors."""
Tensor: TypeAlias = NDArray[np.floating[Any]]

EXACT = 1 << 24
"""float32 holds every integer up to here exactly."""

OPERAND_BITS = 4
"""Operands are signed integers of this many bits, fewer where a long sum would not be exact."""


def number_of(*operands: Operand) -> np.dtype[Any]:
    """What sums of such operands are computed in: float32, or float64 where one of them comes in that."""
    return np.result_type(np.float32, *(each.dtype for each in operands))


def operands(layer: Op, batch: int, seed: int) -> dict[str, Operand]:
    """All that a layer reads, by name; the same seed and layer give the same, whatever other layers run.

    Raises:
        InputError: when the sum is so long that float32 cannot hold it exactly.
    """
    products = layer.terms(batch) * layer.sample_parts
    bits = next((b for b in range(OPERAND_BITS, 0, -1) if products * 4 ** (b - 1) <= EXACT), 0)
    if not bits:
        raise InputError(
            f"layer {layer.name}: a sum of {layer.terms(batch)} products is not exact in float32; use --no-check"
        )
    random = np.random.default_rng([seed, zlib.crc32(repr(layer).encode())])
    return {name: _integers(random, shape, bits) for name, shape in layer.sources(batch).items()}


def _integers(random: np.random.Generator, shape: tuple[int, ...], bits: int) -> Operand:
    """Eight numbers from each random 64-bit word."""
    count = prod(shape)
    words = random.integers(1 << 64, size=-(-count // 8), dtype=np.uint64)
    numbers = words.view(np.int8)[:count]
    np.right_shift(numbers, 8 - bits, out=numbers)
    return numbers.reshape(shape)
