"""The numbers that a network is computed with: random operands, rounding of given ones, and the type of sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError

Values: TypeAlias = NDArray[Any]

LEAST, MOST = -128, 127
"""Range of a signed byte."""
EXACT_FLOAT32 = 1 << 24
"""float32 holds every whole number up to here exactly."""
MOST_SUM = (1 << 31) - 1
"""The largest sum that 32 bits hold."""


@dataclass(frozen=True)
class ElementType:
    """A type of operands.

    Attributes:
        name: name for `--dtype`.
        says: description of operands and sums.
        exact: whether sums are whole numbers, so that outputs must be equal; others have a bound.
        rounded: function from numbers to the nearest operands, as int8 or float32.
        drawn: function that draws random operands of a shape.
        limit: largest sum of products that may occur; 0 for no limit.
        product: largest product of two whole numbers.
    """

    name: str
    says: str
    exact: bool
    rounded: Callable[[Values], Values]
    drawn: Callable[[np.random.Generator, tuple[int, ...]], Values]
    limit: int = 0
    product: int = LEAST * LEAST

    def check_sum(self, products: int) -> None:
        """Raise InputError if a sum of `products` products may exceed the limit."""
        if self.limit and products * self.product > self.limit:
            most = self.limit // self.product
            problem = f"a sum of {products:,} products of {self.name} may not fit 32 bits, {most:,} always do"
            raise InputError(f"{problem}; use dtype f32, or check nothing")

    def needs_doubles(self, products: int) -> bool:
        """Whether sums of `products` products may exceed what float32 holds exactly."""
        return self.exact and self.limit > 0 and products * self.product > EXACT_FLOAT32


def all_finite(values: Values) -> bool:
    """Whether all values are finite. The sum tells quickly: it is finite unless a value is not, or it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())


def to_float32(values: Values) -> Values:
    """The nearest float32."""
    return values.astype(np.float32, copy=False)


def to_bfloat16(values: Values) -> Values:
    """The nearest numbers with 8 significant bits, as float32; ties go to the even one. NaN stays NaN."""
    single = np.asarray(values, np.float32)
    bits = single.view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    near = ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)
    # Adding to the bits of a NaN could turn it into a number.
    return np.where(np.isnan(single), single, near)


def to_float16(values: Values) -> Values:
    """The nearest numbers of float16 (IEEE 754 binary16), as float32: 11 significant bits, steps of 2^-24 below 2^-14,
    infinity from 65,520 on; ties go to the even one. NaN stays NaN.
    """
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


def to_float8(values: Values) -> Values:
    """The nearest numbers of e4m3 (OCP 8-bit floating point, without infinities), as float32: 4 significant bits, steps
    of 2^-9 below 2^-6, at most 448 in size; of two as near the even one. NaN stays NaN.
    """
    single = np.asarray(values, np.float32)
    _, exponents = np.frexp(single)
    steps = np.ldexp(np.float32(1), np.maximum(exponents - 4, -9))
    nearest: Values = np.clip(np.rint(single / steps) * steps, -448, 448).astype(np.float32)
    return nearest


def to_int8(values: Values) -> Values:
    """The nearest whole numbers of a byte; numbers beyond become the last one."""
    return np.clip(np.rint(values), LEAST, MOST).astype(np.int8)


def _whole(values: Values) -> Values:
    """Whole numbers of two bytes, unchanged."""
    return values.astype(np.int16, copy=False)


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Random numbers of mean 0 and deviation 1."""
    return random.standard_normal(shape, np.float32)


def _bytes(random: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Random whole numbers from LEAST to MOST."""
    return np.frombuffer(random.bytes(prod(shape)), np.int8).reshape(shape)


def _odd_sixteenths(random: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Random odd sixteenths between -8 and 8, none of them zero."""
    return ((2.0 * random.integers(-64, 64, shape, np.int8) + 1) / 16).astype(np.float32)


F32 = ElementType("f32", "float32, sums in float32", False, to_float32, _normal)
BF16 = ElementType("bf16", "bfloat16, sums in float32", False, to_bfloat16, lambda *asked: to_bfloat16(_normal(*asked)))
F16 = ElementType("f16", "float16, sums in float32", False, to_float16, lambda *asked: to_float16(_normal(*asked)))
_E4M3 = "8-bit floating point (e4m3), sums in float32"
F8 = ElementType("f8", _E4M3, False, to_float8, lambda *asked: to_float8(_normal(*asked)))
INT8 = ElementType("int8", "whole numbers from -128 to 127, sums of 32 bits", True, to_int8, _bytes, MOST_SUM)
_UNITS = 255
OFFSETS = ElementType("int8", "bytes less their zero points", True, _whole, _bytes, MOST_SUM, _UNITS * _UNITS)
"""What a quantized model multiplies: a byte, signed or not, less its zero point."""
SIXTEENTHS = ElementType("sixteenths", "odd sixteenths, results in float32", False, to_float32, _odd_sixteenths)
"""Operands of a layer that rounds anyway, where other layers get whole numbers."""

ELEMENT_TYPES = {each.name: each for each in (F32, BF16, F16, F8, INT8)}
"""Types by their `--dtype` name; without one, operands are small whole numbers (`tpusim.reference.operands`)."""
