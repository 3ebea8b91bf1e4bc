"""Offsets from a file of NumPy: the only array of an .npz, as torchvision takes them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import InputError
from tpusim.input.scalars import show
from tpusim.input.source import read_arrays

SUFFIX = ".npz"


@dataclass(frozen=True)
class OffsetFile:
    """What a file says: numbers [image, 2 x offset group x tap, row, col], `parts` to an element; `digest` tells them.

    One image stands for all.
    """

    shape: tuple[int, ...]
    parts: int
    digest: int
    numbers: bytes = field(repr=False)

    def by_tap(self, samples: tuple[int, ...]) -> NDArray[np.int64]:
        """[down or across, offset_group, tap_row, tap_col, row, col, image] of so many `samples`. Raises InputError."""
        *taps, rows, cols, images = samples
        numbers = np.frombuffer(self.numbers, np.int32).astype(np.int64)
        by_image = numbers.reshape(self.shape[0], *taps, 2, rows, cols)
        self.check_images(images)
        return np.broadcast_to(np.moveaxis(by_image, (4, 0), (0, -1)), (2, *samples))

    def check_images(self, images: int) -> None:
        """Raise InputError when it is for another number of images."""
        if self.shape[0] not in (1, images):
            given = f"offsets for {self.shape[0]} images in a batch of {images}"
            raise InputError(f"{given}; give those of 1, or of {images}")


def offset_file(path: Path, parts: int, most: int) -> OffsetFile:
    """What a file says. Nothing in it is unpickled.

    Raises InputError when it is no such file, or has other numbers than multiples of 1/`parts` up to `most`.
    """
    values = _read(path)
    counted = values.astype(np.float64) * parts
    wrong = ~(np.abs(counted) <= most * parts) | (counted != np.rint(counted))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        says = f"{values[at]} at {list(at)} is no offset; multiples of 1/{parts} up to {most:,} are"
        raise InputError(f"{show(str(path))}: {says}, so round them")
    shape = (1, *values.shape) if values.ndim == 3 else values.shape
    numbers = counted.astype(np.int32).tobytes()
    return OffsetFile(shape, parts, zlib.crc32(numbers), numbers)


def _read(path: Path) -> NDArray[Any]:
    """The array of a file, real numbers along three or four axes."""
    try:
        arrays = [*read_arrays(path).values()]
    except InputError as error:
        raise InputError(f"{show(str(path))}: {error.problems[0].message}") from None
    if len(arrays) != 1:
        raise InputError(f"{show(str(path))} has {len(arrays)} arrays; save one")
    (values,) = arrays
    if values.dtype.kind not in "fiu" or values.ndim not in (3, 4):
        says = f"{show(str(path))} has {values.ndim} axes of {values.dtype}"
        raise InputError(f"{says}; write numbers [image, 2 x offset group x tap, row, col], or without the image")
    return values


def beside(layers: object, folder: Path) -> object:
    """Layers as a file gives them, with the path of each such file from here instead of from that folder."""
    return [_beside(each, folder) for each in layers] if isinstance(layers, list) else layers


def _beside(layer: object, folder: Path) -> object:
    given = layer.get("offsets") if isinstance(layer, Mapping) else None
    if not isinstance(layer, Mapping) or not isinstance(given, str) or not given.endswith(SUFFIX):
        return layer
    return {**layer, "offsets": str(folder / given)}
