"""What a model says of its values beyond their shapes: small constants, which axis the channels are, what is folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any

from numpy.typing import NDArray
from onnx import GraphProto, numpy_helper

Numbers = Mapping[str, float]
"""Constants of one element, by name."""
Lists = Mapping[str, tuple[int, ...]]
"""Constants of a few whole numbers along one axis, by name."""

_CHANNELS_FIRST = frozenset({
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "BatchNormalization",
})  # fmt: skip
_CHANNELS_LAST = frozenset({"Gemm", "MatMul"})
_TURNS = frozenset({
    "DepthToSpace", "Expand", "Flatten", "Gather", "Reshape", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Behind these, any axis may be the channels."""
_MOST_AXES = 8
"""Lists of more are not those of axes."""


def numbers_of(graph: GraphProto) -> dict[str, float]:
    """Constants of one element."""
    found = _constants(graph, 1).items()
    return {name: float(each.reshape(-1)[0]) for name, each in found if each.size == 1 and each.dtype.kind in "fiu"}


def lists_of(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    """Constants of a few whole numbers along one axis, which may be axes or sizes."""
    found = _constants(graph, _MOST_AXES).items()
    return {name: tuple(map(int, each)) for name, each in found if each.ndim == 1 and each.dtype.kind in "iu"}


def _constants(graph: GraphProto, most: int) -> dict[str, NDArray[Any]]:
    """Constants of at most `most` elements, by name."""
    tensors = {each.name: each for each in graph.initializer if prod(each.dims) <= most}
    for node in graph.node:
        value = node.op_type == "Constant" and next((each.t for each in node.attribute if each.name == "value"), None)
        if value and prod(value.dims) <= most:
            tensors[node.output[0]] = value
    return {name: numpy_helper.to_array(each) for name, each in tensors.items() if not each.external_data}


def channels_first_of(graph: GraphProto) -> dict[str, bool]:
    """By value that comes of a convolution or product, whether its channels are axis 1, and not the last."""
    first: dict[str, bool] = {}
    for node in graph.node:
        known = [first[name] for name in node.input if name in first]
        if node.op_type in _CHANNELS_FIRST | _CHANNELS_LAST:
            first.update(dict.fromkeys(node.output, node.op_type in _CHANNELS_FIRST))
        elif node.op_type not in _TURNS and known:
            first.update(dict.fromkeys(node.output, known[0]))
    return first


def merged_of(graph: GraphProto) -> frozenset[str]:
    """The results of batch normalizations that become part of the weights before them."""
    makers = {name: node.op_type for node in graph.node for name in node.output}
    uses = Counter([name for node in graph.node for name in node.input] + [each.name for each in graph.output])
    alone = (each for each in graph.node if each.op_type == "BatchNormalization" and uses[each.input[0]] == 1)
    return frozenset(each.output[0] for each in alone if makers.get(each.input[0]) in ("Conv", "ConvTranspose", "Gemm"))
