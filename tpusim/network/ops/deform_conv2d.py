"""The deformable 2-D convolution (Dai et al. 2017, arXiv 1703.06211), with the mask of its second version."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm, prod
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationInfo

from tpusim.base.errors import InputError, Problem, UnsuitableError, did_you_mean
from tpusim.input.form import Reader, Truth, names_of, pair, validated
from tpusim.input.scalars import integer, show
from tpusim.input.source import read_arrays
from tpusim.network.ops.array_op import Conv2d, SteppedOp
from tpusim.network.ops.op import BATCH, MOST_SIDE, Channels, Shape, Sides, steps_text

SUFFIX = ".npz"
"""The suffix of files of offsets."""


@dataclass(frozen=True)
class OffsetFile:
    """Offsets in a file: numbers [image, 2 x offset group x tap, row, col], in `parts` of an element; `digest`
    identifies them.

    One image stands for all.
    """

    shape: tuple[int, ...]
    parts: int
    digest: int
    numbers: bytes = field(repr=False)

    def by_tap(self, samples: tuple[int, ...]) -> NDArray[np.int64]:
        """Return offsets [down or across, *samples], for `samples` [offset_group, tap_row, tap_col, row, col, image].

        Raises InputError when it is for another number of images.
        """
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


def offset_file(path: Path) -> OffsetFile:
    """Read the offsets in a file. Nothing in it is unpickled.

    Raises InputError when it is no such file, or has other numbers than multiples of a quarter up to MOST_SIDE.
    """
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
    counted = values.astype(np.float64) * _WRITTEN
    # Written as "not within", so that NaN counts as wrong.
    wrong = ~(np.abs(counted) <= MOST_SIDE * _WRITTEN) | (counted != np.rint(counted))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        says = f"{values[at]} at {list(at)} is no offset; multiples of 1/{_WRITTEN} up to {MOST_SIDE:,} are"
        raise InputError(f"{show(str(path))}: {says}, so round them")
    # Offsets without an axis of images hold for every image.
    shape = (1, *values.shape) if values.ndim == 3 else values.shape
    numbers = counted.astype(np.int32).tobytes()
    return OffsetFile(shape, _WRITTEN, zlib.crc32(numbers), numbers)


GivenOffsets: TypeAlias = str | tuple[float, ...] | OffsetFile
"""The way offsets are drawn; or offsets of every output and image: for each offset group, tap by tap, down and across;
or the offsets in a file.
"""
OffsetParts: TypeAlias = NDArray[np.int64]

MASK_PARTS = 4
"""A mask is a number from 0 to 1, a multiple of one part in this many."""
MOST = 2
"""Offsets are drawn from -MOST to MOST."""
KINDS: dict[str, int] = {"random": 4, "zero": 1, "integer": 1, "half": 2}
"""Ways to draw offsets, and the equal parts of an element for each: `half` lies halfway between elements both ways."""
_WRITTEN = 4


class Offsets(NamedTuple):
    """The places where a deformable convolution samples its ifmap.

    They decide which words are read, so that they belong to the layer, and are the same whatever the seed of a run. All
    are fractions of a few equal parts: what is interpolated of whole numbers is exact.

    Displacements [offset_group, tap_row, tap_col, row, col, image] down and across, `parts` to an element; and the
    masks, `mask_parts` to one.
    """

    parts: int
    down: OffsetParts
    across: OffsetParts
    masks: OffsetParts
    mask_parts: int = MASK_PARTS


def offset_parts(given: GivenOffsets) -> int:
    """Return how many equal parts of an element such offsets are counted in."""
    return KINDS[given] if isinstance(given, str) else _WRITTEN


def drawn(given: GivenOffsets, key: Hashable, shape: tuple[int, ...], modulated: bool) -> Offsets:
    """Draw the offsets of a layer known by `key`, for samples of a `shape` [offset_group, tap_row, tap_col, row, col,
    image].
    """
    random, both = np.random.default_rng(zlib.crc32(repr(key).encode())), (2, *shape)
    if isinstance(given, OffsetFile):
        down, across = given.by_tap(shape)
    elif given == "zero":
        down, across = np.zeros(both, np.int64)
    elif given == "half":
        # Odd numbers of halves lie halfway between elements.
        down, across = 2 * random.integers(-MOST, MOST, both) + 1
    elif isinstance(given, str):
        most = MOST * KINDS[given]
        down, across = random.integers(-most, most, both, endpoint=True)
    else:
        # A list has a pair for each tap of each offset group, down first.
        quarters = np.array([round(each * _WRITTEN) for each in given]).reshape(*shape[:3], 2)
        down, across = (np.broadcast_to(each[..., None, None, None], shape) for each in np.moveaxis(quarters, -1, 0))
    masks = random.integers(0, MASK_PARTS, shape, endpoint=True) if modulated else np.full(shape, MASK_PARTS)
    return Offsets(offset_parts(given), down, across, masks)


def _read(value: object, info: ValidationInfo) -> GivenOffsets:
    """Read a word of KINDS, or multiples of a quarter from -MOST_SIDE to MOST_SIDE, in a list or a file."""
    if isinstance(value, OffsetFile) or (isinstance(value, str) and value in KINDS):
        return value
    if isinstance(value, str) and value.endswith(SUFFIX):
        found = offset_file(Path(value))
        # Without a run there is no batch yet to compare the file with.
        if images := names_of(info).get(BATCH):
            found.check_images(images)
        return found
    if not isinstance(value, list | tuple):
        hint = did_you_mean(value, KINDS) if isinstance(value, str) else ""
        others = f"a list of numbers, or an {SUFFIX} file"
        raise InputError(f"{show(value)} are no offsets{hint or ';'} write {', '.join(KINDS)}, {others}")
    numbers = [each if isinstance(each, float) else integer(each) for each in value]
    for given, number in zip(value, numbers, strict=True):
        if number is None or not abs(number) <= MOST_SIDE or Fraction(number) * _WRITTEN % 1:
            multiple = f"a multiple of 1/{_WRITTEN}, such as -1.25, up to {MOST_SIDE:,}"
            raise InputError(f"{show(given)} is no offset; write {multiple}")
    return tuple(float(number) for number in numbers if number is not None)


_Padding: TypeAlias = Annotated[Sides, pair(MOST_SIDE, 0, "; as much is added on opposite sides")]


@validated
class DeformConv2d(SteppedOp):
    """A deformable 2-D convolution, every field as torchvision has it; pairs are (height, width).

    Each tap of each output of each image is displaced by an offset, and reads the ifmap there: interpolated bilinearly
    between elements, zero outside.

    Raises InputError, whose problems say which field, when no such op exists.

    Attributes:
        padding: rows and columns of zeros around the ifmap, as many on opposite sides.
        offset_groups: groups of channels whose taps have offsets of their own.
        modulated: whether each sample is multiplied by a mask, a number from 0 to 1.
        offsets: how far taps are displaced, in elements. `random`: multiples of 1/4 from -2 to 2. `integer`: whole
            numbers. `half`: halfway between elements. `zero`: not at all. A list: of each offset group, tap by tap,
            down and across, the same for all outputs. A file: the offsets of every output.

    Examples:
        >>> from tpusim import DeformConv2d
        >>> layer = DeformConv2d("dcn1", 64, 14, 14, out_channels=64, kernel=3, padding=1, modulated=True)
        >>> layer.text
        '14x14x64>64 3x3 m'
    """

    op: ClassVar[str] = "deform_conv2d"
    grammar: ClassVar[str] = (
        "rows x columns x channels > output channels, kernel, /stride, d dilation, g groups, o offset groups, m masks"
    )

    padding: _Padding = (0, 0)
    offset_groups: Channels = 1
    modulated: Annotated[bool, Truth()] = False
    offsets: Annotated[
        GivenOffsets, Reader(_read, f"{', '.join(KINDS)}, a list of multiples of 1/{_WRITTEN}, or an {SUFFIX} file")
    ] = "random"

    @property
    def text(self) -> str:
        """The shape in short: "14x14x512>512 3x3/2 o4 m" is rows x cols x channels > channels, kernel / stride, offset
        groups, masks.
        """
        text = self.map_text + steps_text(self.stride, self.dilation)
        text += f" g{self.groups}" if self.groups > 1 else ""
        text += f" o{self.offset_groups}" if self.offset_groups > 1 else ""
        return text + (" m" if self.modulated else "")

    @property
    def sample_parts(self) -> int:
        """Return how many equal parts of one samples are counted in, of an ifmap of whole numbers."""
        return offset_parts(self.offsets) ** 2 * (MASK_PARTS if self.modulated else 1)

    def samples(self, batch: int) -> tuple[int, ...]:
        """Return the shape [offset_group, tap_row, tap_col, row, col, image] of the samples of a channel."""
        return self.offset_groups, *self.kernel, self.out_height, self.out_width, batch

    def displaced(self, batch: int) -> Offsets:
        """Return offsets and masks for `batch` images: the same for all layers of a shape."""
        return drawn(self.offsets, (self.shape_key, batch), self.samples(batch), self.modulated)

    def reads(self, batch: int) -> dict[str, Shape]:
        """Return what is read, with offsets, down and across for each tap, and masks, one a tap."""
        groups, height, width, *place = self.samples(batch)
        taps, (rows, cols, images) = groups * height * width, place
        given = {"offsets": (2 * taps, rows, cols, images), "mask": (taps, rows, cols, images)}
        read = self.tensors(batch)
        return {"ifmap": read.ifmap, **(given if self.modulated else {"offsets": given["offsets"]})}

    def operands(self, batch: int) -> int:
        """Count operands, with two offsets a sample, and its mask."""
        given = 3 if self.modulated else 2
        return SteppedOp.operands(self, batch) + given * prod(self.samples(batch))

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        """Raise UnsuitableError, which names the lowering that needs no convolution."""
        raise UnsuitableError(f"no convolution of fixed taps computes a {self.op}; lower it by deformable")

    def _into_step(self, rows: int) -> int:
        return lcm(self.offset_groups, self.groups * rows)

    def size_problems(self) -> Iterator[Problem]:
        if self.in_channels % self.offset_groups:
            sizes = f"offset_groups {self.offset_groups} does not divide in_channels {self.in_channels}"
            yield Problem(f"{sizes}; choose a divisor of in_channels", "offset_groups")
        wanted = 2 * self.offset_groups * prod(self.kernel)
        of_file = wanted, self.out_height, self.out_width
        if isinstance(self.offsets, OffsetFile) and self.offsets.shape[1:] != of_file:
            sizes = " x ".join(map(str, self.offsets.shape[1:]))
            needed = f"{' x '.join(map(str, of_file))}: 2 x offset groups x taps, rows, columns"
            yield Problem(f"the file has {sizes} offsets an image; save {needed}", "offsets")
        if isinstance(self.offsets, tuple) and len(self.offsets) != wanted:
            rows, cols = self.kernel
            sizes = f"{len(self.offsets)} offsets for {self.offset_groups} x {rows} x {cols} taps, each down and across"
            yield Problem(f"{sizes}; write {wanted} of them, or a word", "offsets")
        yield from SteppedOp.size_problems(self)
