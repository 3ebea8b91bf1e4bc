"""Where a deformable convolution samples its ifmap: the offsets of its taps, and the masks of its samples.

They decide which words are read, so that they belong to the layer, and are the same whatever the seed of a run. All are
fractions of a few equal parts: what is interpolated of whole numbers is exact.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainValidator, ValidationInfo

from tpusim.base.errors import InputError, did_you_mean
from tpusim.input.form import names_of
from tpusim.input.scalars import integer, show
from tpusim.network.ops.offset_file import SUFFIX, OffsetFile, offset_file
from tpusim.network.sizes import BATCH

Given: TypeAlias = str | tuple[float, ...] | OffsetFile
"""How offsets are drawn; or those of every output and image: of each offset group, tap by tap, down and across; or
those of a file.
"""
Parts: TypeAlias = NDArray[np.int64]

MASK_PARTS = 4
"""Equal parts of one that masks are counted in: they are drawn from 0 to 1."""
MOST = 2
"""Offsets are drawn from -MOST to MOST."""
KINDS: dict[str, int] = {"random": 4, "zero": 1, "integer": 1, "half": 2}
"""Ways to draw offsets, and the equal parts that each counts in: `half` lies halfway between elements both ways."""
_WRITTEN = 4


class Offsets(NamedTuple):
    """Displacements [offset_group, tap_row, tap_col, row, col, image] down and across, `parts` to an element; and the
    masks, MASK_PARTS to one.
    """

    parts: int
    down: Parts
    across: Parts
    masks: Parts


def offset_parts(given: Given) -> int:
    """The equal parts of an element that such offsets are counted in."""
    return KINDS[given] if isinstance(given, str) else _WRITTEN


def drawn(given: Given, key: Hashable, shape: tuple[int, ...], modulated: bool) -> Offsets:
    """Those of a layer known by `key`, for samples of a `shape` [offset_group, tap_row, tap_col, row, col, image]."""
    random = np.random.default_rng(zlib.crc32(repr(key).encode()))
    down, across = _displaced(random, given, shape)
    masks = random.integers(0, MASK_PARTS, shape, endpoint=True) if modulated else np.full(shape, MASK_PARTS)
    return Offsets(offset_parts(given), down, across, masks)


def _displaced(random: np.random.Generator, given: Given, shape: tuple[int, ...]) -> Parts:
    """[down or across, *shape]."""
    if isinstance(given, OffsetFile):
        return given.by_tap(shape)
    return _drawn(random, given, (2, *shape)) if isinstance(given, str) else _written(given, shape)


def _drawn(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Parts:
    """Evenly from all that there are."""
    most = MOST * KINDS[kind]
    match kind:
        case "zero":
            return np.zeros(shape, np.int64)
        case "half":
            return 2 * random.integers(-MOST, MOST, shape) + 1
    return random.integers(-most, most, shape, endpoint=True)


def _written(given: tuple[float, ...], shape: tuple[int, ...]) -> Parts:
    """[down or across, *shape] of those that are the same everywhere."""
    values = np.array([round(each * _WRITTEN) for each in given])
    groups, rows, cols = shape[:3]
    by_tap = np.moveaxis(values.reshape(groups, rows, cols, 2), -1, 0)
    return np.broadcast_to(by_tap[..., None, None, None], (2, *shape))


def offsets(most: int) -> PlainValidator:
    """A word of KINDS, or multiples of a quarter from -`most` to `most`, in a list or a file."""

    def read(value: object, info: ValidationInfo) -> Given:
        if isinstance(value, OffsetFile) or (isinstance(value, str) and value in KINDS):
            return value
        if isinstance(value, str) and value.endswith(SUFFIX):
            found = offset_file(Path(value), _WRITTEN, most)
            if images := names_of(info).get(BATCH):
                found.check_images(images)
            return found
        if not isinstance(value, list | tuple):
            hint = did_you_mean(value, KINDS) if isinstance(value, str) else ""
            words = ", ".join(KINDS)
            others = f"a list of numbers, or an {SUFFIX} file"
            raise InputError(f"{show(value)} are no offsets{hint or ';'} write {words}, {others}")
        return tuple(_quarters(each, most) for each in value)

    return PlainValidator(read)


def _quarters(value: object, most: int) -> float:
    number = value if isinstance(value, float) else integer(value)
    if number is None or not abs(number) <= most or Fraction(number) * _WRITTEN % 1:
        raise InputError(f"{show(value)} is no offset; write a multiple of 1/{_WRITTEN}, such as -1.25, up to {most:,}")
    return float(number)
