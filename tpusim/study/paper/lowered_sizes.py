"""Table I: what ifmaps and lowered matrices take in memory."""

from __future__ import annotations

from dataclasses import replace

from tpusim.machines.tpu.description import load_hardware
from tpusim.network.ops.conv2d import Conv2d
from tpusim.study.paper.claim import COUNTED, Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import Simulated, point_of
from tpusim.study.paper.layers import convolutions, ifmap_elements
from tpusim.study.paper.views import Table

_STATED = {
    "alexnet": ("AlexNet", 1.39, 14.57), "resnet50": ("ResNet", 34.55, 81.11), "vgg16": ("VGG16", 34.65, 311.80),
    "yolov2": ("YOLO", 530.56, 869.50), "densenet121": ("DesNet", 1196.48, 5641.70),
}  # fmt: skip
"""Ifmaps and lowered ifmaps of Table I in MB."""
_EVEN_MAPS = {27: 28, 13: 14}
"""Sides of AlexNet's pooled maps in torchvision, and those that give the numbers of the paper."""
_MIB = 2**20
_BYTES = 4


def _variants() -> dict[str, tuple[str, str, tuple[Conv2d, ...]]]:
    """Network, variant in words, and its convolutions, by a name of each."""
    plain = {name: (name, "", convolutions(name, 1)) for name in _STATED}
    even = tuple(_with_side(each, _EVEN_MAPS.get(each.in_height, each.in_height)) for each in plain["alexnet"][2])
    straight = tuple(each for each in plain["resnet50"][2] if "downsample" not in each.name)
    return plain | {
        "alexnet_even": ("alexnet", "maps of 28 and 14 pixels a side, not 27 and 13", even),
        "resnet50_straight": ("resnet50", "without its four projections", straight),
    }


def _with_side(layer: Conv2d, side: int) -> Conv2d:
    return replace(layer, in_height=side, in_width=side)


def asked() -> Asked:
    """Every variant by explicit im2col, one image."""
    machine = load_hardware("tpu_v2")
    return {key: point_of(key, layers, machine, 1, "explicit") for key, (_, _, layers) in _variants().items()}


def _sizes(layers: tuple[Conv2d, ...], done: Simulated) -> tuple[float, float]:
    """MiB of ifmaps and of lowered matrices; an ifmap that is its own lowered matrix counts as both."""
    ifmaps = [_BYTES * ifmap_elements(each) for each in layers]
    lowered = [int(row["lowered_bytes"]) or own for row, own in zip(done.layers, ifmaps, strict=True)]
    return sum(ifmaps) / _MIB, sum(lowered) / _MIB


def make(found: Found) -> Shown:
    """A row a variant."""
    rows, same, more = [], [], []
    for key, (network, variant, layers) in _variants().items():
        called, ifmap, lowered = _STATED[network]
        ours = _sizes(layers, found[key])
        when = f"{called}{', ' if variant else ''}{variant}"
        rows.append((called, variant, *(f"{each:,.2f}" for each in (ifmap, ours[0], lowered, ours[1]))))
        same += [
            Finding(f"of the ifmaps of {when}", ours[0] / ifmap, COUNTED),
            Finding(f"of its lowered ifmaps ({when})", ours[1] / lowered, COUNTED),
        ]
        more.append(Finding(when, ours[1] / ours[0], COUNTED))
    head = ("network", "variant", "ifmaps, paper", "ifmaps, ours", "lowered, paper", "lowered, ours")
    return Shown([Table(head, rows, "MiB")], {"table_1_sizes": same, "table_1_overhead": more})
