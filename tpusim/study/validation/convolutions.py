"""Convolutions that Google's compiler was given one by one: what it estimated, and what its code takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from tpusim.network.ops.conv2d import Conv2d
from tpusim.study.validation.cases import Case, Row, rows, sizes
from tpusim.study.validation.windows import their_block

USUAL_BATCH = 8
FIRST_CHANNELS = 4
"""Convolutions of at most so many input channels are judged apart: the compiler has other ways for first layers."""
THIN_CHANNELS, LANES = 64, 128
SUBLANES = 8
SMALL_KERNEL = 3
RELAID = ("mapping.entry=relaid",)

ESTIMATED = {
    "first_layers": f"at most {FIRST_CHANNELS} input channels",
    "fresh": "shapes drawn at random",
    "batch": "batches of 1 to 128",
    "1x1": "1x1 kernels",
    "3x3": "kernels of 2 or 3 taps a side",
    "thin": f"the same, less than {THIN_CHANNELS} input channels",
    "large_kernels": "kernels of 4 taps a side and more",
}
"""Classes of the estimates that belong to no network; each convolution is in the first that fits."""

SCHEDULED = {
    "scheduled_first": ESTIMATED["first_layers"],
    "scheduled_1x1": ESTIMATED["1x1"],
    "scheduled_3x3": ESTIMATED["3x3"],
    "scheduled_large": ESTIMATED["large_kernels"],
}
"""Classes of the emitted code."""


class Shape(NamedTuple):
    """Batch, ifmap, output channels, kernel, stride and padding of a convolution; maps have rows and columns."""

    batch: int
    height: int
    width: int
    channels: int
    out: int
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]

    @property
    def name(self) -> str:
        """ "56x56x64>128 3x3/2", and what is not usual."""
        (rows, cols), padded = self.kernel, any(self.padding) or self.kernel == (1, 1)
        text = f"{self.height}x{self.width}x{self.channels}>{self.out} {rows}x{cols}/{self.stride}"
        return text + ("" if padded else " unpadded") + (f" batch {self.batch}" if self.batch != USUAL_BATCH else "")

    @property
    def layer(self) -> Conv2d:
        """It as an op."""
        strides = (self.stride, self.stride)
        ifmap = self.channels, self.height, self.width
        return Conv2d(self.name, *ifmap, self.out, self.kernel, strides, self.padding)


def of_network(network: str) -> tuple[Case, ...]:
    """Estimates of the layers of a network, or of the sweep `micro`, without first layers."""
    chosen = (row for row in rows("xla_tpu_v2_conv") if row["network"] == network)
    pairs = ((_older_shape(row), row["estimated_cycles_conv"]) for row in chosen)
    return tuple(_case(shape, cycles) for shape, cycles in pairs if shape.channels > FIRST_CHANNELS)


def estimated(name: str) -> tuple[Case, ...]:
    """Estimates of one of the classes `ESTIMATED`."""
    return tuple(_case(shape, cycles) for shape, cycles in _single().items() if _estimated_class(shape) == name)


def scheduled(name: str) -> tuple[Case, ...]:
    """What the emitted code takes with HBM, for one of the classes `SCHEDULED`."""
    chosen = ((shape, row) for shape, row in _code().items() if _scheduled_class(shape) == name)
    cases = ((shape, _case(shape, row["scheduled_with_hbm"], row["estimated_cycles"])) for shape, row in chosen)
    return tuple(replace(case, changes=RELAID) if relaid(shape) else case for shape, case in cases)


def relaid(shape: Shape) -> bool:
    """Whether the code of a convolution compiled by itself lays its ifmap out anew.

    That comes from outside with columns of the map in sublanes, where the array wants images. Read off the instruction
    counts: from more than 64 channels on, where rows and columns fill tiles, the code loads 8 registers for each word;
    else a copy ahead of it has done so, an operation of its own. Between the layers of a network nothing is laid out
    anew. Words that hold strips of few images are loaded otherwise.
    """
    tiles = shape.height % SUBLANES == 0 and shape.width % SUBLANES == 0
    return tiles and shape.channels > THIN_CHANNELS and shape.batch >= SUBLANES


def uncharged(channels: int, taps: int) -> bool:
    """Whether the estimator leaves out some of the `taps` of the window of the kernel that is resident.

    For 64 channels and more that are no multiple of 128 it charges taps in threes, and those beyond the last three not
    at all. The code multiplies every one.
    """
    return channels >= THIN_CHANNELS and channels % LANES != 0 and taps > SMALL_KERNEL and taps % SMALL_KERNEL != 0


def _case(shape: Shape, theirs: str, price: str | None = None) -> Case:
    """A case of either word; `price` is the estimate where `theirs` is not."""
    code, windows = _code().get(shape), _further().get(shape)
    known = code or windows
    return Case(
        shape.name,
        (shape.layer,),
        shape.batch,
        float(theirs),
        estimated=float(price or theirs),
        scheduled=float(code["scheduled_with_hbm"]) if code else None,
        their_block=their_block(known).changes if known else (),
        quirk=price is None and windows is not None and uncharged(shape.channels, _resident_taps(windows)),
    )


@cache
def _single() -> dict[Shape, str]:
    """Estimates that belong to no network, each shape once: first layers of the older table, and what is new."""
    older = {_older_shape(row): row["estimated_cycles_conv"] for row in rows("xla_tpu_v2_conv")}
    newer = {shape: row["estimated_cycles_main"] for shape, row in _further().items()}
    return {
        shape: cycles
        for shape, cycles in (older | newer).items()
        if shape not in older or shape.channels <= FIRST_CHANNELS
    }


@cache
def _further() -> dict[Shape, Row]:
    """The larger table of estimates, which knows the compiler's windows."""
    return {_shape(row): row for row in rows("xla_tpu_v2_conv_more")}


@cache
def _code() -> dict[Shape, Row]:
    """The table of emitted code."""
    return {_shape(row): row for row in rows("xla_tpu_v2_scheduled")}


def _older_shape(row: Row) -> Shape:
    keys = ("batch", "in_height", "in_width", "in_channels", "out_channels", "kernel", "stride", "padding")
    batch, height, width, channels, out, kernel, stride, padding = (int(row[key]) for key in keys)
    return Shape(batch, height, width, channels, out, (kernel, kernel), stride, (padding, padding))


def _shape(row: Row) -> Shape:
    keys = ("batch", "H", "W", "ci", "co", "kh", "kw", "s", "ph", "pw")
    batch, height, width, channels, out, high, wide, stride, down, across = (int(row[key]) for key in keys)
    return Shape(batch, height, width, channels, out, (high, wide), stride, (down, across))


def _resident_taps(row: Row) -> int:
    height, width, *_ = sizes(row["kernel_window_bounds"])
    return height * width


def _estimated_class(shape: Shape) -> str:
    drawn = _further().get(shape, {}).get("set", "")
    if shape.channels <= FIRST_CHANNELS:
        return "first_layers"
    if drawn in ESTIMATED:
        return drawn
    size = _kernel_class(shape)
    if size == "3x3" and shape.channels < THIN_CHANNELS:
        return "thin"
    return "large_kernels" if size == "large" else size


def _scheduled_class(shape: Shape) -> str:
    return f"scheduled_{'first' if shape.channels <= FIRST_CHANNELS else _kernel_class(shape)}"


def _kernel_class(shape: Shape) -> str:
    longest = max(shape.kernel)
    return "1x1" if longest == 1 else "3x3" if longest <= SMALL_KERNEL else "large"
