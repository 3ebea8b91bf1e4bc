"""The sets of reference numbers that come with tpusim, as layers to simulate and figures to meet."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from zlib import crc32

from tpusim.network.ops import Conv2d, Gemm, Op

Row = dict[str, str]

FEWEST_CHANNELS = 8
"""Convolutions of fewer input channels are judged apart: the compiler has other ways for first layers."""

TRUSTED_BATCH, TRUSTED_NODES = 256, 512
"""Rows of the training profiles count only when they are at least this large: smaller ones wait for their input."""


@dataclass(frozen=True)
class Case:
    """Layers that run one after another, and what the reference says: cycles, or a share of peak in percent."""

    name: str
    layers: tuple[Op, ...]
    batch: int
    theirs: float

    @property
    def fitted(self) -> bool:
        """Whether the case is in the half of its set that fitted numbers may be chosen on."""
        return crc32(self.name.encode()) % 2 == 0


@dataclass(frozen=True)
class NumberSet:
    """Cases of one source, and the machine they are about; `changes` are overrides of its description."""

    name: str
    status: str
    about: str
    hardware: str
    changes: tuple[str, ...]
    unit: str
    cases: tuple[Case, ...]

    @property
    def picture(self) -> str:
        """The picture it is drawn into: one for each status and unit."""
        return self.status if self.unit == "cycles" else f"{self.status}_share"

    @property
    def fitted(self) -> bool:
        """Whether half of the cases served to choose the fitted numbers of the machine."""
        return self.name in FITTED


FITTED = ("gemm", "resnet50", "vgg16", "yolov2", "micro")
"""Sets of which half served to choose the fitted numbers of tpu_v2_core."""

ODD = "conv_64x56x56x64x64x3x1x1"
"""A measurement six times as long as its neighbour of equal work; see docs/validation.md."""


@cache
def number_sets() -> dict[str, NumberSet]:
    """Return every set by its name, in the order of reports."""
    v2, v3, f32 = "tpu_v2_core", "tpu_v3_core", ("vector_memory.element_bytes=4",)
    xla = "estimates of XLA:TPU for v2"
    sets = [
        NumberSet("gemm", "estimated", f"matrix products, {xla}", v2, (), "cycles", tuple(_gemms())),
        NumberSet("resnet50", "estimated", f"ResNet-50, {xla}", v2, (), "cycles", _thick("ResNet50")),
        NumberSet("vgg16", "estimated", f"VGG16, {xla}", v2, (), "cycles", _thick("VGG16")),
        NumberSet("yolov2", "estimated", f"YOLOv2, {xla}", v2, (), "cycles", _thick("YOLOv2")),
        NumberSet("micro", "estimated", f"sizes, channels, kernels, strides, {xla}", v2, (), "cycles", _thick("micro")),
        NumberSet("first_layers", "estimated", f"three channels, {xla}", v2, (), "cycles", _thin()),
        NumberSet("v3", "measured", "one core of TPU v3", v3, (), "cycles", tuple(_v3(odd=False))),
        NumberSet("v3_odd", "measured", "one core of TPU v3", v3, (), "cycles", tuple(_v3(odd=True))),
        NumberSet("training", "measured", "training steps on TPU v2", v2, f32, "% of peak", tuple(_training())),
    ]
    return {each.name: each for each in sets}


def _rows(name: str) -> Iterator[Row]:
    text = (files("tpusim.study.validation") / "truth" / f"{name}.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def _gemms() -> Iterator[Case]:
    for row in _rows("xla_tpu_v2_gemm"):
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        name = f"{m}x{n}x{k}"
        yield Case(name, (Gemm(name, m, n, k),), 1, float(row["estimated_cycles"]))


def _thick(network: str) -> tuple[Case, ...]:
    cases = (_conv_case(row) for row in _rows("xla_tpu_v2_conv") if row["network"] == network)
    return tuple(case for case in cases if _channels(case) >= FEWEST_CHANNELS)


def _thin() -> tuple[Case, ...]:
    return tuple(case for case in map(_conv_case, _rows("xla_tpu_v2_conv")) if _channels(case) < FEWEST_CHANNELS)


def _channels(case: Case) -> int:
    (layer,) = case.layers
    return layer.tensors(case.batch).ifmap[0]


def _conv_case(row: Row) -> Case:
    keys = ("in_height", "in_width", "in_channels", "out_channels", "kernel", "stride", "padding")
    sizes = [int(row[key]) for key in keys]
    height, width, channels, out, kernel, stride, _ = sizes
    layer = _conv(f"{height}x{width}x{channels}>{out} {kernel}x{kernel}/{stride}", sizes)
    return Case(layer.name, (layer,), int(row["batch"]), float(row["estimated_cycles_conv"]))


def _conv(name: str, sizes: list[int]) -> Conv2d:
    height, width, channels, out, kernel, stride, padding = sizes
    return Conv2d(name, channels, height, width, out, (kernel, kernel), (stride, stride), (padding, padding), (1, 1), 1)


def _training() -> Iterator[Case]:
    """The products of a step: forward, gradient of the input, gradient of the weights."""
    for row in _rows("measured_tpu_v2_fc_training"):
        batch, nodes = int(row["batch_per_core"]), int(row["nodes"])
        if batch < TRUSTED_BATCH or nodes < TRUSTED_NODES:
            continue
        forward, inputs, weights = (
            Gemm(name, m, nodes, k)
            for name, m, k in (("forward", batch, nodes), ("inputs", batch, nodes), ("weights", nodes, batch))
        )
        name = f"{row['hidden_layers']} layers of {nodes}, batch {batch}"
        yield Case(name, (forward, inputs, weights), 1, float(row["measured_mxu_flops_percent_of_peak"]))


def _v3(odd: bool) -> Iterator[Case]:
    for row in _rows("measured_tpu_v3"):
        if (row["workload"] == ODD) is not odd:
            continue
        kind, shape = row["workload"].split("_")
        sizes = [int(size) for size in shape.split("x")]
        # The sizes of a convolution begin with its batch.
        layer: Op = Gemm(row["workload"], *sizes) if kind == "gemm" else _conv("conv", sizes[1:])
        yield Case(row["workload"], (layer,), int(row["batch"] or 1), float(row["measured_cycles_940mhz"]))
