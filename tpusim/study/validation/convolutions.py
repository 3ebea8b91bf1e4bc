"""Convolutions that Google's compiler was given one by one: its estimates, and the cycles of its code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tpusim.network.ops.array_op import Conv2d, ConvTranspose2d
from tpusim.network.ops.gradients import Conv2dFilterGradient, Conv2dInputGradient
from tpusim.network.ops.op import Op
from tpusim.study.validation.cases import Case, Row, cached, numbers, rows, sizes

USUAL_BATCH = 8
FIRST_CHANNELS = 4
"""Convolutions with at most this many input channels are judged separately: the compiler treats first layers
differently.
"""
THIN_CHANNELS = 64
SMALL_KERNEL = 3
SUBLANES, LANES = 8, 128
RELAID = ("mapping.entry=relaid",)

ESTIMATED = {
    "first_layers": f"at most {FIRST_CHANNELS} input channels",
    "fresh": "shapes drawn at random",
    "batch": "batches of 1 to 128",
    "1x1": "1x1 kernels",
    "3x3": "kernels of 2 or 3 taps a side",
    "thin": f"kernels of 2 or 3 taps a side, fewer than {THIN_CHANNELS} input channels",
    "large_kernels": "kernels of 4 taps a side and more",
}
"""Classes of estimates that belong to no network; a convolution is in the first class that fits."""

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
        """The convolution as an op."""
        strides = (self.stride, self.stride)
        ifmap = self.channels, self.height, self.width
        return Conv2d(self.name, *ifmap, self.out, self.kernel, strides, self.padding)


def of_network(network: str) -> tuple[Case, ...]:
    """Estimates of the layers of a network, or of the sweep `micro`, without first layers."""
    chosen = (row for row in rows("xla_tpu_v2_conv") if row["network"] == network)
    pairs = ((shape_of(row, _OLDER), row["estimated_cycles_conv"]) for row in chosen)
    return tuple(_case(shape, cycles) for shape, cycles in pairs if shape.channels > FIRST_CHANNELS)


def estimated(name: str) -> tuple[Case, ...]:
    """Estimates of one of the classes `ESTIMATED`."""
    return tuple(_case(shape, cycles) for shape, cycles in _single().items() if _estimated_class(shape) == name)


def scheduled(name: str) -> tuple[Case, ...]:
    """Cycles of emitted code with HBM, for one of the classes `SCHEDULED`."""
    kinds = ((shape, "first" if shape.channels <= FIRST_CHANNELS else _kernel_class(shape)) for shape in _code())
    chosen = ((shape, _code()[shape]) for shape, kind in kinds if f"scheduled_{kind}" == name)
    cases = ((shape, _case(shape, row["scheduled_with_hbm"], row["estimated_cycles"])) for shape, row in chosen)
    return tuple(replace(case, changes=RELAID) if relaid(shape) else case for shape, case in cases)


def relaid(shape: Shape) -> bool:
    """Whether the code of a convolution compiled by itself lays its ifmap out anew.

    The ifmap comes from outside with columns of the map in sublanes, where the array needs images. Read off the
    instruction
    counts: from more than 64 channels on, where rows and columns fill tiles, the code loads 8 registers for each word;
    otherwise a copy ahead of it, an operation of its own, has done so. Between the layers of a network nothing is laid
    out anew. Words that hold strips of few images are loaded otherwise.
    """
    tiles = shape.height % SUBLANES == 0 and shape.width % SUBLANES == 0
    return tiles and shape.channels > THIN_CHANNELS and shape.batch >= SUBLANES


def uncharged(channels: int, taps: int) -> bool:
    """Whether the estimator leaves out some of the `taps` of the resident kernel window.

    For 64 channels or more that are no multiple of 128, it charges taps in threes, and taps beyond the last three not
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
        quirk=price is None and windows is not None and uncharged(shape.channels, windows_of(windows).taps),
    )


@cached
def _single() -> dict[Shape, str]:
    """Estimates that belong to no network, each shape once: first layers of the older table, and new shapes."""
    older = {shape_of(row, _OLDER): row["estimated_cycles_conv"] for row in rows("xla_tpu_v2_conv")}
    newer = {shape: row["estimated_cycles_main"] for shape, row in _further().items()}
    return {
        shape: cycles
        for shape, cycles in (older | newer).items()
        if shape not in older or shape.channels <= FIRST_CHANNELS
    }


@cached
def _further() -> dict[Shape, Row]:
    """The larger table of estimates, which has the compiler's windows."""
    return {shape_of(row): row for row in rows("xla_tpu_v2_conv_more")}


@cached
def _code() -> dict[Shape, Row]:
    """The table of emitted code."""
    return {shape_of(row): row for row in rows("xla_tpu_v2_scheduled")}


_OLDER = "batch in_height in_width in_channels out_channels kernel kernel stride padding padding"
_NEWER = "batch H W ci co kh kw s ph pw"
"""Columns of the tables, in the order of a shape."""


def shape_of(row: Row, columns: str = _NEWER) -> Shape:
    """Return the convolution of a row of the tables."""
    batch, height, width, channels, out, high, wide, stride, down, across = numbers(row, columns)
    return Shape(batch, height, width, channels, out, (high, wide), stride, (down, across))


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


def _kernel_class(shape: Shape) -> str:
    longest = max(shape.kernel)
    return "1x1" if longest == 1 else "3x3" if longest <= SMALL_KERNEL else "large"


# ---- variants

VARIANTS = {
    "depthwise": "a channel a group, by the vector unit",
    "dilated": "taps apart from one another",
    "grouped": "several channels a group",
    "transposed": "zeros between the elements of the ifmap",
}
"""Classes of unusual convolutions, by the names of their table."""
LOWERINGS = {"depthwise": "vector", "transposed": "zero_insertion"}
"""Lowerings by which variants are compiled, as far as emitters' names and prices tell; channel_first for others."""


def variants(name: str) -> tuple[Case, ...]:
    """Estimates of one of the classes `VARIANTS`; copies into another layout are operations of their own."""
    chosen = (row for row in rows("xla_tpu_v2_variants") if row["set"] == name)
    priced = ((_variant(row), int(row["batch"]), float(row["estimated_cycles_main"])) for row in chosen)
    return tuple(Case(layer.name, (layer,), batch, cycles, estimated=cycles) for layer, batch, cycles in priced)


def _variant(row: Row) -> Op:
    shape, (groups, dilation, apart) = shape_of(row), numbers(row, "g dil lhs")
    _, height, width, channels, out, kernel, stride, before = shape
    name = f"{height}x{width}x{channels}>{out} {kernel[0]}x{kernel[1]}/{stride}"
    name += f" g{groups}" * (groups > 1) + f" d{dilation}" * (dilation > 1) + f" zeros {apart}" * (apart > 1)
    name += f" batch {shape.batch}" if shape.batch != USUAL_BATCH else ""
    if apart == 1:
        pairs = kernel, (stride, stride), before, (dilation, dilation)
        return Conv2d(name, channels, height, width, out, *pairs, groups)
    # The gradient of a convolution: the table pads what it has dilated, while our op crops its result.
    cropped = kernel[0] - 1 - before[0], kernel[1] - 1 - before[1]
    added = int(row["ph2"]) - before[0], int(row["pw2"]) - before[1]
    return ConvTranspose2d(name, channels, height, width, out, kernel, (apart, apart), cropped, added)


# ---- gradients

GRADIENTS = {
    "gradients_forward": "the convolutions of the gradients below",
    "gradients_filter": "gradients by the filter",
    "gradients_input": "gradients by the input, stride 1",
    "gradients_strided": "gradients by the input of larger strides, which are priced with the zeros between outputs",
}
"""Classes of estimates of a convolution and its gradients."""
GRADIENT_CODE = "scheduled_gradients"
_GRADIENTS: dict[str, type[Conv2d | Conv2dFilterGradient | Conv2dInputGradient]] = {
    "forward": Conv2d,
    "filter_gradient": Conv2dFilterGradient,
    "input_gradient": Conv2dInputGradient,
}
_SAMPLED = {"wgrad": "filter_gradient", "dgrad": "input_gradient"}


def gradients(name: str) -> tuple[Case, ...]:
    """Estimates of one of the classes `GRADIENTS`; a layer that two networks have counts once."""
    chosen = {(shape_of(row), row["op"]): row for row in rows("xla_tpu_v2_gradients") if _gradient_class(row) == name}
    cases = ((shape, op, float(row["estimated_cycles_main"])) for (shape, op), row in chosen.items())
    return tuple(_gradient(shape, op, cycles) for shape, op, cycles in cases)


def _gradient_class(row: Row) -> str:
    if row["op"] == "input_gradient":
        return "gradients_input" if int(row["s"]) == 1 else "gradients_strided"
    return "gradients_" + row["op"].removesuffix("_gradient")


def _gradient(shape: Shape, op: str, theirs: float) -> Case:
    """A case of a convolution or one of its gradients."""
    sizes = shape.channels, shape.height, shape.width, shape.out
    pairs = shape.kernel, (shape.stride, shape.stride), shape.padding
    name = shape.name if op == "forward" else f"{shape.name} {op.removesuffix('_gradient')}"
    return Case(name, (_GRADIENTS[op](name, *sizes, *pairs),), shape.batch, theirs)


def scheduled_gradients() -> tuple[Case, ...]:
    """Cycles of code of single gradients, with HBM as of the operations of networks (`operations`); no copies."""
    return tuple(filter(None, map(_sampled, rows("xla_tpu_v2_scheduled_samples"))))


def _sampled(row: Row) -> Case | None:
    told = re.fullmatch(r"(wgrad|dgrad) (\d+)x(\d+)>(\d+) (\d)x(\d)/(\d) N(\d+)", row["case"])
    if told is None or not row["emitter"]:
        return None
    op, *numbers_told = told.groups()
    side, channels, out, high, wide, stride, batch = map(int, numbers_told)
    shape = Shape(batch, side, side, channels, out, (high, wide), stride, (high // 2, wide // 2))
    return _gradient(shape, _SAMPLED[op], with_hbm(row))


def with_hbm(code: Row) -> float:
    """Cycles of code with HBM, as `scheduled_with_hbm` of a convolution whose windows are all alike."""
    loop, moving = float(code["scheduled_cycles"]), float(code["hbm_cycles"])
    return _BESIDE_LOOP + max(loop, moving) + moving / int(code["iterations"])


_BESIDE_LOOP = 630
"""Cycles of an operation's code outside its loop: part of what defines `scheduled_with_hbm` (truth/README.md)."""


# ---- the compiler's windows
#
# The windows of Google's compiler as blocks of ours.
#
# Its code is a loop over windows of output, kernel and input, in units of vector registers: 8 sublanes x 128 lanes.
# What each bound counts was read off 276 convolutions, all of whose bounds agree with it (a test):
#
# * iterations: output channels, images, rows, columns; filter rows, filter columns, input channels.
# * kernel: filter rows, filter columns, sublanes and lanes of channels. Input channels lie in sublanes and output
#   channels in lanes, or the other way round where that pads less (`weights_transposed`).
# * output: rows, columns, sublanes of images, lanes of channels. Where images lie in lanes: sublanes of channels, lanes
#   of images. With one image, sublanes hold strips of its columns, and the columns are those of a strip.
# * input: the same of its own, with the halo; rows and columns past the map are clipped only when they are copied.
#
# That the first iteration is the outermost is the order in which they are written, not known otherwise.


class Iterations(NamedTuple):
    """Number of cuts of each dimension, the outermost first."""

    out_channels: int
    images: int
    rows: int
    cols: int
    tap_rows: int
    tap_cols: int
    in_channels: int


@dataclass(frozen=True)
class CompilerWindow:
    """The part of a convolution that is on chip at a time, at most: extents in elements, padded to sublanes and
    lanes.
    """

    rows: int
    cols: int
    images: int
    out_channels: int
    tap_rows: int
    tap_cols: int
    in_channels: int
    iterations: Iterations

    @property
    def taps(self) -> int:
        """Taps of a filter that are on chip at a time."""
        return self.tap_rows * self.tap_cols


@dataclass(frozen=True)
class TheirBlock:
    """Our block that equals a compiler's window, with the order of blocks; or the `reason` why there is none."""

    block: Mapping[str, int] = field(default_factory=dict)
    loop_order: str = "auto"
    reason: str = ""

    @property
    def changes(self) -> tuple[str, ...]:
        """Overrides of a machine that give it these blocks, in place of its own; none if there is no such block."""
        sizes = tuple(f"mapping.block.{name}={value}" for name, value in self.block.items())
        return (*sizes, "mapping.block_m=auto", f"mapping.loop_order={self.loop_order}") if sizes else ()


def their_block(row: Row) -> TheirBlock:
    """The compiler's block for a convolution, a row of a table with its windows, as a block of ours."""
    windows, tap_rows, tap_cols = windows_of(row), int(row["kh"]), int(row["kw"])
    if images_in_lanes(row):
        return TheirBlock(reason="images lie in lanes, ours in words")
    if windows.tap_cols < tap_cols and tap_rows > 1:
        taps = f"{windows.tap_rows} x {windows.tap_cols} of {tap_rows} x {tap_cols} taps"
        return TheirBlock(reason=f"{taps} at a time: ours follow one another along the rows of the filter")
    # Windows are padded to whole registers.
    block = dict(
        rows=windows.rows,
        cols=windows.cols,
        images=min(windows.images, int(row["batch"])),
        in_channels=min(windows.in_channels, int(row["ci"])),
        out_channels=min(windows.out_channels, int(row["co"])),
        taps=windows.taps,
    )
    return TheirBlock(block, "filter_major" if windows.iterations.out_channels > 1 else "block_major")


def windows_of(row: Row) -> CompilerWindow:
    """The windows of a row of the tables."""
    tap_rows, tap_cols, *weights = sizes(row["kernel_window_bounds"])
    rows, cols, *values = sizes(row["output_window_bounds"])
    in_sublanes, in_lanes = values[0] * SUBLANES, values[1] * LANES
    images, out_channels = (in_lanes, in_sublanes) if images_in_lanes(row) else (in_sublanes, in_lanes)
    in_channels = weights[1] * LANES if weights_transposed(row) else weights[0] * SUBLANES
    iterations = Iterations(*sizes(row["iteration_bounds"]))
    return CompilerWindow(rows, cols, images, out_channels, tap_rows, tap_cols, in_channels, iterations)


def weights_transposed(row: Row) -> bool:
    """Whether input channels lie in lanes and output channels in sublanes, which is so if that pads the
    weights less.
    """
    channels, out = int(row["ci"]), int(row["co"])
    return _up(out, SUBLANES) * _up(channels, LANES) < _up(channels, SUBLANES) * _up(out, LANES)


def images_in_lanes(row: Row) -> bool:
    """Whether the images of the output lie in lanes."""
    return not any(words in row["emitter"] for words in ("OutputBatchInSublanes", "AllBatchInSublanes"))


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
