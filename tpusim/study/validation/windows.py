"""The windows of Google's compiler as blocks of ours.

Its code is a loop over windows of output, kernel and input, in units of vector registers: 8 sublanes x 128 lanes.
What each bound counts was read off 276 convolutions, all of whose bounds agree with it (a test):

* iterations: output channels, images, rows, columns; filter rows, filter columns, input channels.
* kernel: filter rows, filter columns, sublanes and lanes of channels. Input channels lie in sublanes and output
  channels in lanes, or the other way round where that pads less (`weights_transposed`).
* output: rows, columns, sublanes of images, lanes of channels. Where images lie in lanes: sublanes of channels, lanes
  of images. With one image, sublanes hold strips of its columns, and the columns are those of a strip.
* input: the same of its own, with the halo; rows and columns past the map are clipped only when they are copied.

That the first iteration is the outermost is the order in which they are written, not known otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tpusim.machines.tpu.sections import BlockSizes
from tpusim.study.validation.cases import Row, sizes

SUBLANES, LANES = 8, 128


class Iterations(NamedTuple):
    """How often each of the dimensions is cut, the outermost first."""

    out_channels: int
    images: int
    rows: int
    cols: int
    tap_rows: int
    tap_cols: int
    in_channels: int


@dataclass(frozen=True)
class Windows:
    """What of a convolution is on chip at a time, at most: extents in elements, padded to sublanes and lanes."""

    rows: int
    cols: int
    images: int
    out_channels: int
    tap_rows: int
    tap_cols: int
    in_channels: int
    iterations: Iterations


@dataclass(frozen=True)
class TheirBlock:
    """The block of ours that is a window of theirs, and the order of blocks; or the `reason` why there is none."""

    block: BlockSizes
    loop_order: str = "auto"
    reason: str = ""

    @property
    def changes(self) -> tuple[str, ...]:
        """The overrides of a machine that make its blocks so, instead of all that it says of them; none where there is
        no such block.
        """
        sizes = tuple(f"mapping.block.{name}={value}" for name, value in self.block.given.items())
        return (*sizes, "mapping.block_m=auto", f"mapping.loop_order={self.loop_order}") if sizes else ()


def their_block(row: Row) -> TheirBlock:
    """The block that the compiler chose for a convolution, a row of a table that knows its windows, in our words."""
    windows = windows_of(row)
    if reason := _reason(row, windows):
        return TheirBlock(BlockSizes(), reason=reason)
    # Windows are padded to whole registers.
    block = BlockSizes(
        rows=windows.rows,
        cols=windows.cols,
        images=min(windows.images, int(row["batch"])),
        in_channels=min(windows.in_channels, int(row["ci"])),
        out_channels=min(windows.out_channels, int(row["co"])),
        taps=windows.tap_rows * windows.tap_cols,
    )
    return TheirBlock(block, "filter_major" if windows.iterations.out_channels > 1 else "block_major")


def windows_of(row: Row) -> Windows:
    """The windows of a row of the tables."""
    tap_rows, tap_cols, *weights = sizes(row["kernel_window_bounds"])
    rows, cols, *values = sizes(row["output_window_bounds"])
    in_sublanes, in_lanes = values[0] * SUBLANES, values[1] * LANES
    images, out_channels = (in_lanes, in_sublanes) if images_in_lanes(row) else (in_sublanes, in_lanes)
    in_channels = weights[1] * LANES if weights_transposed(row) else weights[0] * SUBLANES
    iterations = Iterations(*sizes(row["iteration_bounds"]))
    return Windows(rows, cols, images, out_channels, tap_rows, tap_cols, in_channels, iterations)


def weights_transposed(row: Row) -> bool:
    """Whether input channels lie in lanes, output channels in sublanes: where that pads the weights less."""
    channels, out = int(row["ci"]), int(row["co"])
    return _up(out, SUBLANES) * _up(channels, LANES) < _up(channels, SUBLANES) * _up(out, LANES)


def images_in_lanes(row: Row) -> bool:
    """Whether the images of the output lie in lanes."""
    return not any(words in row["emitter"] for words in ("OutputBatchInSublanes", "AllBatchInSublanes"))


def _reason(row: Row, windows: Windows) -> str:
    """Why our blocks are not theirs, if so."""
    tap_rows, tap_cols = int(row["kh"]), int(row["kw"])
    if images_in_lanes(row):
        return "images lie in lanes, ours in words"
    if windows.tap_cols < tap_cols and tap_rows > 1:
        filter_ = f"{windows.tap_rows} x {windows.tap_cols} of {tap_rows} x {tap_cols} taps"
        return f"{filter_} at a time: ours follow one another along the rows of the filter"
    return ""


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
