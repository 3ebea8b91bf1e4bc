"""Networks that Google's compiler took whole: which convolutions and products its operations hold, and what they take.

An operation may hold two of them, one after the other. Those that hold none, and the batched products of attention, of
which tpusim has no op, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, permutations
from math import prod

from tpusim.network.ops import Conv2d, Gemm, Op
from tpusim.study.validation.cases import Case
from tpusim.study.validation.tables import Row, rows, sizes

Dims = tuple[int, ...]

ESTIMATED = {
    "network_resnet18": "ResNet-18",
    "network_resnet50": "ResNet-50",
    "network_vgg16": "VGG16",
    "network_yolov2": "YOLOv2",
    "network_bert_layer": "a layer of BERT, 128 and 512 words",
}
SCHEDULED = {"scheduled_resnet50": "ResNet-50", "scheduled_vgg16": "VGG16"}

_BESIDE_LOOP = 630
"""Cycles of an operation's code outside its loop: part of what defines `scheduled_with_hbm` (truth/README.md)."""


def estimated(name: str) -> tuple[Case, ...]:
    """What the operations of one of the networks `ESTIMATED` are expected to take."""
    chosen = ((row, layers) for row, layers in _operations() if f"network_{row['network']}" == name)
    return tuple(_case(row, layers, float(row["estimated_cycles"])) for row, layers in chosen)


def scheduled(name: str) -> tuple[Case, ...]:
    """What the code of the operations of one of the networks `SCHEDULED` takes."""
    chosen = ((row, layers) for row, layers in _operations() if f"scheduled_{row['network']}" == name)
    found = ((row, layers, _code_of(row)) for row, layers in chosen)
    return tuple(_case(row, layers, code) for row, layers, code in found if code is not None)


def _case(row: Row, layers: tuple[Op, ...], theirs: float) -> Case:
    head, *rest = layers
    name = " ".join([row["index"], head.text, *(f">{layer.text.split('>')[1]}" for layer in rest)])
    # The rows of products hold the images already.
    batch = int(row["batch"]) if head.spatial else 1
    return Case(name, layers, batch, theirs, float(row["estimated_cycles"]), _code_of(row))


def _code_of(row: Row) -> float | None:
    """Cycles of the operation's code with HBM: `scheduled_with_hbm` of a convolution whose windows are all alike."""
    code = _code().get((row["network"], row["name"]))
    if code is None:
        return None
    loop, moving = float(code["scheduled_cycles"]), float(code["hbm_cycles"])
    return _BESIDE_LOOP + max(loop, moving) + moving / int(code["iterations"])


@cache
def _code() -> dict[tuple[str, str], Row]:
    """Emitted code by network and operation."""
    return {(row["case"].split("_")[0], row["name"]): row for row in rows("xla_tpu_v2_networks_scheduled")}


@cache
def _operations() -> list[tuple[Row, tuple[Op, ...]]]:
    """Operations of all networks that tpusim can run, and their layers in order."""
    held = (row for row in rows("xla_tpu_v2_networks") if "convolution" in f"{row['fused']} {row['conv_window']}")
    return [(row, layers_of(row)) for row in held if "lhs_dilate" not in row["conv_window"]]


def layers_of(row: Row) -> tuple[Op, ...]:
    """The convolutions or products of an operation, worked out from the shapes of what goes in and comes out."""
    tensors, (*_, out) = _shapes(row["operands"]), _shapes(row["output_shape"])
    batch = int(row["batch"])
    maps, weights = ([each for each in tensors if (each[0] == batch) is is_map] for is_map in (True, False))
    chain = _chain(weights, out[-1])
    inputs = [each for each in maps if each[-1] == chain[0][-2]]
    if len(chain[0]) == 2:
        return _products(chain, prod(inputs[0][:-1]))
    # Where none has as many channels, several are concatenated.
    _, height, width, _ = max(each for each in inputs or maps if len(each) == 4)
    return _convolutions(chain, (height, width), out, row["conv_window"])


def _shapes(text: str) -> list[Dims]:
    """The tensors in a text such as "bf16[8,56,56,64]{3,0,2,1:T(8,128)(2,1)} bf16[64]{0}" of two axes and more."""
    found = (tuple(map(int, dims.split(","))) for dims in re.findall(r"\w\[([\d,]+)\]", text))
    return [dims for dims in found if len(dims) > 1]


def _chain(weights: Sequence[Dims], out: int) -> tuple[Dims, ...]:
    """The weights in the order in which their channels meet; the last has `out` of them."""
    return next(
        order
        for order in permutations(weights)
        if order[-1][-1] == out and all(one[-1] == other[-2] for one, other in pairwise(order))
    )


def _products(chain: Sequence[Dims], rows_: int) -> tuple[Op, ...]:
    return tuple(Gemm(f"{rows_}x{k}>{n}", rows_, n, k) for k, n in chain)


def _convolutions(chain: Sequence[Dims], side: tuple[int, int], out: Dims, window: str) -> tuple[Op, ...]:
    """The window is that of one of them; what is left of the stride falls to the other, which keeps the map's size."""
    kernel, stride, padding = _window(window)
    all_strides = side[0] // out[1] if len(out) == 4 else stride
    layers: list[Conv2d] = []
    for high, wide, channels, channels_out in chain:
        own = (stride, padding) if (high, wide) == kernel else (all_strides // stride, (high // 2, wide // 2))
        layer = Conv2d("conv", channels, *side, channels_out, (high, wide), (own[0], own[0]), own[1])
        side = layer.out_height, layer.out_width
        layers.append(layer)
    return tuple(layers)


def _window(text: str) -> tuple[Dims, int, tuple[int, int]]:
    """Kernel, stride and padding of "convolution{size=3x3 stride=2x2 pad=1_1x1_1}"."""
    said = dict(re.findall(r"(\w+)=([\dx_]+)", text))
    down, across = (int(each.split("_")[0]) for each in said.get("pad", "0_0x0_0").split("x"))
    return sizes(said["size"]), sizes(said.get("stride", "1x1"))[0], (down, across)
