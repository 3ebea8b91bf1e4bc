"""Networks, layers and layouts of several exhibits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

from tpusim.network.ops.array_op import Conv2d
from tpusim.network.workload_file import load_workload

SEVEN = {
    "alexnet": "AlexNet", "densenet121": "DenseNet", "googlenet": "GoogleNet", "resnet50": "ResNet", "vgg16": "VGG",
    "yolov2": "YOLO", "zfnet": "ZFNet",
}  # fmt: skip
"""The paper's networks (section VI), with its names for them."""

RESNET = ((56, 64, 64, 3), (56, 128, 128, 3), (28, 128, 128, 3), (28, 256, 256, 3), (14, 256, 256, 3))
"""Layers of ResNet in the paper's notation W_I, C_I, C_O, W_F. The paper does not say which ones its Fig. 4 takes."""

STRIDES = 1, 2, 4
"""The strides of layers whose stride the paper varies."""

LAYOUTS = {"NHWC": (), "NCHW": ("mapping.layout=NCHW",)}
"""Layouts of maps for a GPU's library, and their settings; under NCHW it transposes maps first."""
LIBRARY = "channel_last"
"""How the library of a GPU convolves."""


@cache
def convolutions(network: str, batch: int) -> tuple[Conv2d, ...]:
    """The convolutions of a shipped network."""
    return tuple(each for each in load_workload(network, batch=batch).layers if isinstance(each, Conv2d))


def products(layers: Sequence[Conv2d]) -> tuple[Conv2d, ...]:
    """The product of each layer's lowered matrix, as a 1x1 convolution."""
    return tuple(each.product for each in layers)


def square(size: tuple[int, int, int, int], stride: int = 1) -> Conv2d:
    """The convolution that the paper writes W_I, C_I, C_O, W_F, padded so that stride 1 keeps the size."""
    width, channels, out, kernel = size
    name = f"{width}, {channels}, {out}, {kernel}"
    return Conv2d(name, channels, width, width, out, (kernel,) * 2, (stride,) * 2, (kernel // 2,) * 2)


def ifmap_elements(layer: Conv2d) -> int:
    """The elements of the ifmap of one image."""
    return prod(layer.tensors(1).ifmap)
