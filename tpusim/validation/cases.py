"""The sets of reference numbers that come with tpusim, as layers to simulate and figures to meet."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from zlib import crc32

from tpusim.workload import Conv2d, Gemm

Layer = Conv2d | Gemm
Row = dict[str, str]

FEWEST_CHANNELS = 8
"""Convolutions of fewer input channels are judged apart: the compiler has other ways for first layers."""

TRUSTED_BATCH, TRUSTED_NODES = 256, 512
"""Of the training profiles only rows at least this large: smaller ones wait for their input."""


@dataclass(frozen=True)
class Case:
    """Layers that run one after another, and what the reference says: cycles, or a share of peak in percent."""

    name: str
    layers: tuple[Layer, ...]
    batch: int
    theirs: float

    @property
    def fitted(self) -> bool:
        """Whether the case belongs to the half that the fitted numbers of the machine were chosen on."""
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


@cache
def number_sets() -> dict[str, NumberSet]:
    """Every set by its name."""
    v2, f32 = "tpu_v2_core", ("vector_memory.element_bytes=4",)
    sets = [
        NumberSet("gemm", "estimated", "matrix products, XLA:TPU v2", v2, (), "cycles", tuple(_gemms())),
        *(
            NumberSet(name, "estimated", f"{about}, XLA:TPU v2", v2, (), "cycles", tuple(_convs(network, _is_thick)))
            for name, network, about in (
                ("micro", "micro", "convolutions over size, channels, kernel and stride"),
                ("resnet50", "ResNet50", "convolutions of ResNet-50"),
                ("vgg16", "VGG16", "convolutions of VGG16"),
                ("yolov2", "YOLOv2", "convolutions of YOLOv2"),
            )
        ),
        NumberSet(
            "first_layers", "estimated", "convolutions of 3 channels, XLA:TPU v2", v2, (), "cycles",
            tuple(_convs(None, lambda layer: not _is_thick(layer))),
        ),
        NumberSet("training", "measured", "matrix products of training steps, TPU v2", v2, f32, "% of peak",
                  tuple(_training())),
    ]  # fmt: skip
    return {each.name: each for each in sets}


def _rows(name: str) -> Iterator[Row]:
    text = (files("tpusim") / "truth" / f"{name}.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def _gemms() -> Iterator[Case]:
    for row in _rows("xla_tpu_v2_gemm"):
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        name = f"{m}x{n}x{k}"
        yield Case(name, (Gemm(name, m, n, k),), 1, float(row["estimated_cycles"]))


def _is_thick(layer: Conv2d) -> bool:
    return layer.in_channels >= FEWEST_CHANNELS


def _convs(network: str | None, wanted: Callable[[Conv2d], bool]) -> Iterator[Case]:
    for row in _rows("xla_tpu_v2_conv"):
        layer = _conv(row)
        if network in (None, row["network"]) and wanted(layer):
            yield Case(layer.name, (layer,), int(row["batch"]), float(row["estimated_cycles_conv"]))


def _conv(row: Row) -> Conv2d:
    height, width, channels, out, kernel, stride, padding = (
        int(row[key]) for key in ("in_height", "in_width", "in_channels", "out_channels", "kernel", "stride", "padding")
    )
    name = f"{height}x{width}x{channels}>{out} {kernel}x{kernel}/{stride}"
    return Conv2d(
        name=name,
        in_channels=channels,
        in_height=height,
        in_width=width,
        out_channels=out,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(padding, padding),
        dilation=(1, 1),
        groups=1,
    )


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
