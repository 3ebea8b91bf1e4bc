"""The shape of every value of a model, as the onnx library infers it.

Sizes that a model works out for itself are computed as far as shapes need them, and no further: small operators on
small whole numbers alone, by the onnx library's own reference of each. Nothing of the model is run that is not one of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.message import EncodeError
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    inliner,
    numpy_helper,
    shape_inference,
)
from onnx.reference import ReferenceEvaluator

from tpusim.base.errors import InputError, Problem
from tpusim.network.formats import printable
from tpusim.network.formats.onnx_model.dims import ModelBatch, inputs, set_sizes
from tpusim.network.formats.onnx_model.file import called, holds_values, operator
from tpusim.numerics.element_types import Values

ValueShape = tuple[int, ...]

MOST_ELEMENTS = 4096
"""Most elements of a computed tensor: larger ones are weights, whose content no shape follows from."""
_ALIKE = (
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "Div", "Equal", "Floor", "Gather", "Greater", "GreaterOrEqual",
    "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "ReduceMax", "ReduceMin",
    "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterND", "Sign", "Slice", "Sqrt", "Squeeze", "Sub", "Transpose",
    "Unsqueeze", "Where",
)  # fmt: skip
"""Operators whose results are about as large as their operands."""
_OF_SHAPES = ("Shape", "Size")
_LIKE_OPERAND = ("GroupNormalization", "MeanVarianceNormalization")
"""Operators with the shape of their first operand, for which the onnx library infers none."""
_LARGER = ("Constant", "ConstantOfShape", "Expand", "Pad", "Range", "Tile")
"""Operators whose results may be of any size: computed only where the size is known to be small."""

_OF_LISTS = "Invalid rank for"
"""The onnx library's error where it follows whole numbers of two axes, which it knows as lists, through an operator
that broadcasts them; about the model it says nothing.
"""
_MOST_ROUNDS = 500
_WEIGHTS_ALONE = 8
"""The version of the format from which on weights, also those of functions, need not be inputs."""
_REAL = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}


class Inferred(NamedTuple):
    """A graph of known sizes, with constants in place of the nodes they follow from; the shapes of its values, by name;
    and which values are real numbers.
    """

    graph: GraphProto
    shapes: Mapping[str, ValueShape]
    reals: frozenset[str]


def without_weights(model: ModelProto) -> frozenset[str]:
    """Make inputs of large weights, and drop shapes that the file has of inner values; return the names of all
    weights.
    """
    graph = model.graph
    weights = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    named = {each.name for each in graph.input}
    small = [each for each in graph.initializer if prod(each.dims) <= MOST_ELEMENTS and holds_values(each)]
    kept = {each.name for each in small}
    for tensor in graph.initializer:
        if tensor.name not in kept | named:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    light = [TensorProto.FromString(each.SerializeToString()) for each in small]
    del graph.initializer[:]
    graph.initializer.extend(light)
    del graph.value_info[:]
    # Before that version of the format, a weight had to be an input as well.
    model.ir_version = max(model.ir_version, _WEIGHTS_ALONE)
    return frozenset(weights)


def inlined(model: ModelProto, path: Path) -> ModelProto:
    """Put the bodies of the model's own functions where they are called. Raises InputError."""
    if not model.functions:
        return model
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # The library raises what its C++ does, of no common class.
        raise InputError(
            Problem(f"its functions cannot be put in place; onnx says: {_line(error)}", str(path))
        ) from None


def without_declared(model: ModelProto, path: Path) -> ModelProto:
    """Return the model without its file's shapes of outputs, which may be for other sizes of inputs.

    Raises InputError where the declared shapes fit no sizes.
    """
    free = ModelProto()
    free.CopyFrom(model)
    for dim in (dim for each in free.graph.input for dim in each.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value < 1:
            dim.Clear()
    _inferred(free, path)
    for value in free.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    del free.graph.input[:]
    free.graph.input.extend(model.graph.input)
    return free


def inferred(
    model: ModelProto, batch: ModelBatch, images: int, enough: Callable[[Inferred], bool], path: Path
) -> Inferred:
    """Infer shapes for a number of images; sizes that the model works out are computed until `enough` says so.

    The few whole numbers that are given for inputs, such as a rate or a length, are known.

    Raises:
        InputError: shapes contradict one another.
    """
    sized = ModelProto()
    sized.CopyFrom(model)
    for value in inputs(model.graph):
        array = batch.arrays.get(value.name)
        # A sequence or an optional value is no tensor.
        if array is None or not value.type.HasField("tensor_type"):
            continue
        wanted = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if array.size <= MOST_ELEMENTS and array.dtype.kind in "iub" and wanted.kind in "iub":
            sized.graph.initializer.append(numpy_helper.from_array(array.astype(wanted), value.name))
    for value in sized.graph.input:
        set_sizes(value, batch.sizes(images))
    found = _inferred(sized, path)
    for _ in range(_MOST_ROUNDS):
        if enough(found) or not fold(sized, found.shapes):
            break
        found = _inferred(sized, path)
    return found


def _inferred(model: ModelProto, path: Path, with_values: bool = True) -> Inferred:
    asked = ModelProto()
    asked.CopyFrom(model)
    for node in asked.graph.node:
        # The library's errors name a node by its name alone.
        node.name = called(node)
        if operator(node) in _LIKE_OPERAND:
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
    try:
        found = shape_inference.infer_shapes(asked, check_type=True, strict_mode=True, data_prop=with_values).graph
    except (shape_inference.InferenceError, EncodeError, ValueError) as error:
        if with_values and _OF_LISTS in str(error):
            return _inferred(model, path, with_values=False)
        says = f"the shapes of the model do not fit together; onnx says: {_line(error)}"
        raise InputError(Problem(says, str(path))) from None
    values = (*found.input, *found.value_info, *found.output)
    shapes = {each.name: shape for each in values if (shape := _shape(each)) is not None}
    reals = frozenset(each.name for each in values if each.type.tensor_type.elem_type in _REAL)
    return Inferred(model.graph, shapes | {each.name: tuple(each.dims) for each in found.initializer}, reals)


def _shape(value: ValueInfoProto) -> ValueShape | None:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    known = all(dim.HasField("dim_value") for dim in kind.shape.dim)
    return tuple(dim.dim_value for dim in kind.shape.dim) if known else None


def _line(error: Exception) -> str:
    return printable(" ".join(str(error).split()))


# ---- sizes that the model computes


def fold(model: ModelProto, shapes: Mapping[str, ValueShape]) -> bool:
    """Replace nodes whose results can be worked out by constants; return whether there were any."""
    known = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    folded = [*_folded(model, known, shapes)]
    for node in folded:
        model.graph.node.remove(node)
        model.graph.initializer.append(numpy_helper.from_array(known[node.output[0]], node.output[0]))
    return bool(folded)


def _folded(model: ModelProto, known: dict[str, Values], shapes: Mapping[str, ValueShape]) -> Iterator[NodeProto]:
    """Yield nodes whose single result is known now, and put the result into `known`."""
    for node in model.graph.node:
        if node.domain or len(node.output) != 1:
            continue
        value = _value(node, model, known, shapes)
        if value is not None and value.size <= MOST_ELEMENTS:
            known[node.output[0]] = value
            yield node


def _value(
    node: NodeProto, model: ModelProto, known: Mapping[str, Values], shapes: Mapping[str, ValueShape]
) -> Values | None:
    if node.op_type in _OF_SHAPES:
        shape = shapes.get(node.input[0]) if node.input else None
        ends = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if shape is None or node.op_type == "Size":
            return None if shape is None else np.asarray(prod(shape), dtype=np.int64)
        return np.asarray(shape[ends.get("start", 0) : ends.get("end", len(shape))], dtype=np.int64)
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


def _alone(node: NodeProto, model: ModelProto, given: Mapping[str, Values]) -> ModelProto:
    """Return a model of the node alone, with the opset of its model: without one the library assumes the newest."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.UNDEFINED, None)]
    graph = helper.make_graph([node], "alone", inputs, outputs)
    return helper.make_model(graph, opset_imports=model.opset_import)
