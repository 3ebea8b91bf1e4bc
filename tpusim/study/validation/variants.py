"""Convolutions that are none of the usual: what Google's compiler estimated of them."""

from __future__ import annotations

from tpusim.network.ops.conv2d import Conv2d
from tpusim.network.ops.conv_transpose2d import ConvTranspose2d
from tpusim.network.ops.op import Op
from tpusim.study.validation.cases import Case, Row, rows
from tpusim.study.validation.convolutions import USUAL_BATCH

ESTIMATED = {
    "depthwise": "a channel a group, by the vector unit",
    "dilated": "taps apart from one another",
    "grouped": "several channels a group",
    "transposed": "zeros between the elements of the ifmap",
}
"""Classes of them, as the table calls them."""
LOWERINGS = {"depthwise": "vector", "transposed": "zero_insertion"}
"""Those that they are compiled by, as far as the emitters' names and prices tell; of others, channel_first."""


def estimated(name: str) -> tuple[Case, ...]:
    """Estimates of one of the classes `ESTIMATED`; copies into another layout are operations of their own."""
    chosen = (row for row in rows("xla_tpu_v2_variants") if row["set"] == name)
    return tuple(_case(row) for row in chosen)


def _case(row: Row) -> Case:
    layer, batch, cycles = _op(row), int(row["batch"]), float(row["estimated_cycles_main"])
    return Case(layer.name, (layer,), batch, cycles, estimated=cycles)


def _op(row: Row) -> Op:
    height, width, channels, out, groups = (int(row[key]) for key in ("H", "W", "ci", "co", "g"))
    kernel, stride, dilation, apart = (int(row["kh"]), int(row["kw"])), int(row["s"]), int(row["dil"]), int(row["lhs"])
    name = f"{height}x{width}x{channels}>{out} {kernel[0]}x{kernel[1]}/{stride}"
    name += f" g{groups}" * (groups > 1) + f" d{dilation}" * (dilation > 1) + f" zeros {apart}" * (apart > 1)
    name += f" batch {row['batch']}" if int(row["batch"]) != USUAL_BATCH else ""
    before = int(row["ph"]), int(row["pw"])
    if apart == 1:
        pairs = kernel, (stride, stride), before, (dilation, dilation)
        return Conv2d(name, channels, height, width, out, *pairs, groups)
    # As the gradient of a convolution has it: the table pads what it has dilated, an op crops what it has made.
    cropped = kernel[0] - 1 - before[0], kernel[1] - 1 - before[1]
    added = int(row["ph2"]) - before[0], int(row["pw2"]) - before[1]
    return ConvTranspose2d(name, channels, height, width, out, kernel, (apart, apart), cropped, added)
