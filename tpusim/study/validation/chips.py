"""What was measured on the chips, and the compiler's two words of the same shapes on TPU v3."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tpusim.network.ops.conv2d import Conv2d
from tpusim.network.ops.gemm import Gemm
from tpusim.network.ops.op import Op
from tpusim.study.validation.cases import Case, Row, rows, sizes

TRUSTED_BATCH, TRUSTED_NODES = 256, 512
"""Rows of the training profiles count only when they are at least this large: smaller ones wait for their input."""

ODD = "conv_64x56x56x64x64x3x1x1"
"""A measurement six times as long as its neighbour of equal work; see docs/validation.md."""


def measured_v3(odd: bool) -> tuple[Case, ...]:
    """Measurements of one core of TPU v3; the odd row alone, or all others."""
    chosen = (row for row in rows("measured_tpu_v3") if (row["workload"] == ODD) is odd)
    return tuple(_v3(row["workload"], float(row["measured_cycles_940mhz"])) for row in chosen)


def estimated_v3() -> tuple[Case, ...]:
    """What the compiler expects of the same shapes, of float32."""
    return tuple(_v3(name, float(row["estimated_main"])) for name, row in _of_compiler().items())


def scheduled_v3() -> tuple[Case, ...]:
    """What the code of the convolutions among them takes; that of the products is told without waiting for HBM."""
    cases = (_v3(name, float(row["scheduled_cycles"])) for name, row in _of_compiler().items())
    return tuple(case for case in cases if case.scheduled is not None)


def training() -> Iterator[Case]:
    """The products of a step: forward, gradient of the input, gradient of the weights."""
    for row in rows("measured_tpu_v2_fc_training"):
        batch, nodes = int(row["batch_per_core"]), int(row["nodes"])
        if batch < TRUSTED_BATCH or nodes < TRUSTED_NODES:
            continue
        forward, inputs, weights = (
            Gemm(name, m, nodes, k)
            for name, m, k in (("forward", batch, nodes), ("inputs", batch, nodes), ("weights", nodes, batch))
        )
        name = f"{row['hidden_layers']} layers of {nodes}, batch {batch}"
        yield Case(name, (forward, inputs, weights), 1, float(row["measured_mxu_flops_percent_of_peak"]))


def _v3(name: str, theirs: float) -> Case:
    row = _of_compiler()[name]
    kind, shape = name.split("_")
    estimated, scheduled = float(row["estimated_main"]), float(row["scheduled_cycles"])
    if kind == "gemm":
        return Case(name, (Gemm(name, *sizes(shape)),), 1, theirs, estimated)
    batch, height, width, channels, out, kernel, stride, padding = sizes(shape)
    layer: Op = Conv2d(
        "conv", channels, height, width, out, (kernel, kernel), (stride, stride), (padding, padding)
    )  # fmt: skip
    return Case(name, (layer,), batch, theirs, estimated, scheduled)


@cache
def _of_compiler() -> dict[str, Row]:
    """Estimates and schedules of float32 by name; the measurements agree best with that type."""
    return {row["case"]: row for row in rows("tpu_v3_measured_estimated_scheduled") if row["dtype"] == "f32"}
