"""Convolutions that are none of the usual: what Google's compiler estimated of them."""

from __future__ import annotations

from tpusim.network.ops import Conv2d
from tpusim.study.validation.cases import Case
from tpusim.study.validation.convolutions import USUAL_BATCH
from tpusim.study.validation.tables import Row, rows

ESTIMATED = {"depthwise": "a channel a group, by the vector unit"}
"""Classes of them, as the table calls them."""
LOWERINGS = {"depthwise": "vector"}
"""Those that they are compiled by, as far as the emitters' names tell."""


def estimated(name: str) -> tuple[Case, ...]:
    """Estimates of one of the classes `ESTIMATED`; copies into another layout are operations of their own."""
    chosen = (row for row in rows("xla_tpu_v2_variants") if row["set"] == name)
    return tuple(_case(row) for row in chosen)


def _case(row: Row) -> Case:
    batch, height, width, channels, out, groups = (int(row[key]) for key in ("batch", "H", "W", "ci", "co", "g"))
    kernel, padding = (int(row["kh"]), int(row["kw"])), (int(row["ph"]), int(row["pw"]))
    stride, dilation, cycles = int(row["s"]), int(row["dil"]), float(row["estimated_cycles_main"])
    name = f"{height}x{width}x{channels}>{out} {kernel[0]}x{kernel[1]}/{stride} g{groups}"
    name += f" batch {batch}" if batch != USUAL_BATCH else ""
    strides, dilations = (stride, stride), (dilation, dilation)
    layer = Conv2d(name, channels, height, width, out, kernel, strides, padding, dilations, groups)
    return Case(name, (layer,), batch, cycles, estimated=cycles)
