"""Sizes that a model works out for itself: constants are folded as far as shapes need them, and no further.

Small operators on small integers alone are computed, by the onnx library's own reference of each; nothing of the model
is run that is not one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = NDArray[Any]
Shape = tuple[int, ...]

MOST_ELEMENTS = 4096
"""Larger tensors are weights: no shape follows from what they hold."""
_ALIKE = (
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "Div", "Equal", "Floor", "Gather", "Greater", "GreaterOrEqual",
    "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "ReduceMax", "ReduceMin",
    "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterND", "Sign", "Slice", "Sqrt", "Squeeze", "Sub", "Transpose",
    "Unsqueeze", "Where",
)  # fmt: skip
"""Whose results are about as large as their operands."""
_OF_SHAPES = ("Shape", "Size")
_LARGER = ("Constant", "ConstantOfShape", "Expand", "Pad", "Range", "Tile")
"""Whose results may be of any size: computed once it is known to be a small one."""


def fold(model: ModelProto, shapes: Mapping[str, Shape]) -> bool:
    """Put what can be worked out in place of the nodes that do; whether there was anything."""
    known = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    folded = [*_folded(model, known, shapes)]
    for node in folded:
        model.graph.node.remove(node)
        model.graph.initializer.append(numpy_helper.from_array(known[node.output[0]], node.output[0]))
    return bool(folded)


def _folded(model: ModelProto, known: dict[str, Array], shapes: Mapping[str, Shape]) -> Iterator[NodeProto]:
    """Nodes of one result that is known now, and put into `known`."""
    for node in model.graph.node:
        if node.domain or len(node.output) != 1:
            continue
        value = _of_shape(node, shapes) if node.op_type in _OF_SHAPES else _value(node, model, known, shapes)
        if value is not None and value.size <= MOST_ELEMENTS:
            known[node.output[0]] = value
            yield node


def _value(node: NodeProto, model: ModelProto, known: Mapping[str, Array], shapes: Mapping[str, Shape]) -> Array | None:
    size = prod(shapes.get(node.output[0], (MOST_ELEMENTS + 1,)))
    small = node.op_type in _ALIKE or (node.op_type in _LARGER and size <= MOST_ELEMENTS)
    given = {name: known[name] for name in node.input if name in known}
    if not small or not all(name in given for name in node.input if name):
        return None
    try:
        (value,) = ReferenceEvaluator(_alone(node, model, given)).run(None, given)
    except Exception:  # What the library cannot compute stays unknown; inference says what follows from that.
        return None
    return np.asarray(value)


def _alone(node: NodeProto, model: ModelProto, given: Mapping[str, Array]) -> ModelProto:
    """A model of the node: by itself, the library would take it for one of the newest opset."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.UNDEFINED, None)]
    graph = helper.make_graph([node], "alone", inputs, outputs)
    return helper.make_model(graph, opset_imports=model.opset_import)


def _of_shape(node: NodeProto, shapes: Mapping[str, Shape]) -> Array | None:
    """What Shape or Size gives of a value whose shape is known."""
    shape = shapes.get(node.input[0]) if node.input else None
    if shape is None:
        return None
    if node.op_type == "Size":
        return np.asarray(prod(shape), dtype=np.int64)
    ends = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return np.asarray(shape[ends.get("start", 0) : ends.get("end", len(shape))], dtype=np.int64)
