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
import onnx
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
from tpusim.network.formats.onnx_model.expansions import DYNAMIC_LSTM, EXPANSIONS
from tpusim.network.formats.onnx_model.file import called, holds_values, operator, opset_of, said
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
_NEW_LIKE_OPERAND = ("Gelu", "HardSwish", "LayerNormalization", "RMSNormalization", "Swish")
"""Operators with that shape that a model of an older opset than theirs may have, written out of another domain's."""
_REALS_LIKE_OPERAND = ("ai.onnx.ml.Normalizer", "ai.onnx.ml.Scaler")
"""Operators with that shape, for which the library infers none, that make float32 of any numbers."""
_POOLS = ("AveragePool", "LpPool", "MaxPool")
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


class InferredGraph(NamedTuple):
    """A graph of known sizes, with constants in place of the nodes they follow from; the shapes of its values, by name;
    which values are real numbers; and the types of elements, as ONNX counts them.
    """

    graph: GraphProto
    shapes: Mapping[str, ValueShape]
    reals: frozenset[str]
    kinds: Mapping[str, int]


def without_weights(model: ModelProto) -> frozenset[str]:
    """Make inputs of large weights, and drop shapes that the file has of inner values, but for results of operators
    that the onnx library does not know; return the names of all weights.
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
    unknown = {name for node in graph.node if not _known(node, model) for name in node.output}
    told = [each for each in (*graph.value_info, *graph.output) if each.name in unknown and _shape_known(each)]
    del graph.value_info[:]
    graph.value_info.extend({each.name: each for each in told}.values())
    # Before that version of the format, a weight had to be an input as well.
    model.ir_version = max(model.ir_version, _WEIGHTS_ALONE)
    return frozenset(weights)


def _known(node: NodeProto, model: ModelProto) -> bool:
    """Return whether shapes follow from an operator: it is one of ONNX's own, or a function of the model."""
    own = {(each.domain, each.name) for each in model.functions}
    known = operator(node) in EXPANSIONS or operator(node) == DYNAMIC_LSTM or onnx.defs.has(node.op_type, node.domain)
    return bool(known or (node.domain, node.op_type) in own)


def _shape_known(value: ValueInfoProto) -> bool:
    """Return whether a file tells the number of a value's axes."""
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"))


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
    model: ModelProto, batch: ModelBatch, images: int, enough: Callable[[InferredGraph], bool], path: Path
) -> InferredGraph:
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
    for value in (*sized.graph.input, *sized.graph.value_info):
        set_sizes(value, batch.sizes(images))
    found = _inferred(sized, path)
    for _ in range(_MOST_ROUNDS):
        if enough(found) or not fold(sized, found.shapes):
            break
        found = _inferred(sized, path)
    return found


def _inferred(model: ModelProto, path: Path, with_values: bool = True) -> InferredGraph:
    asked = ModelProto()
    asked.CopyFrom(model)
    for node in asked.graph.node:
        # The library's errors name a node by its name alone.
        node.name = called(node)
        later = operator(node) in _NEW_LIKE_OPERAND and not onnx.defs.has(node.op_type, opset_of(model))
        if operator(node) == DYNAMIC_LSTM:
            # The library infers an LSTM by its inputs and attributes alone, and its weights have to be of their type.
            inputs = [node.input[0]] * 3
            del node.input[:]
            node.input.extend(inputs)
            node.op_type, node.domain = "LSTM", ""
        if later or operator(node) in _LIKE_OPERAND:
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
        if operator(node) in _REALS_LIKE_OPERAND:
            node.op_type, node.domain = "Cast", ""
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    while True:
        try:
            found = shape_inference.infer_shapes(asked, check_type=True, strict_mode=True, data_prop=with_values).graph
        except (shape_inference.InferenceError, EncodeError, ValueError) as error:
            if with_values and _OF_LISTS in str(error):
                return _inferred(model, path, with_values=False)
            says = f"the shapes of the model do not fit together; onnx says: {_line(error)}"
            raise InputError(Problem(says, str(path))) from None
        values = (*found.input, *found.value_info, *found.output)
        shapes = {each.name: shape for each in values if (shape := _shape(each)) is not None}
        # What stands behind such a pool is wrong by as much, so the pools are put right one behind the other.
        if not any([_without_last_window(node, shapes) for node in asked.graph.node]):
            break
    kinds = {each.name: each.type.tensor_type.elem_type for each in values}
    kinds |= {each.name: each.data_type for each in found.initializer}
    reals = frozenset(each.name for each in values if kinds[each.name] in _REAL)
    known = shapes | {each.name: tuple(each.dims) for each in found.initializer}
    return InferredGraph(model.graph, known, reals, kinds)


def _without_last_window(node: NodeProto, shapes: Mapping[str, ValueShape]) -> bool:
    """Put a pool right that rounds the number of its windows up, and return whether there was need.

    Below opset 22 the onnx library also counts windows that begin in the padding behind the map. No runtime makes them:
    neither ONNX's own evaluator, nor ONNX Runtime, nor PyTorch. The windows are written as paddings that divide.
    """
    if operator(node) not in _POOLS or not {*node.input[:1], *node.output[:1]} <= shapes.keys():
        return False
    how = said(node)
    sides, told = shapes[node.input[0]][2:], shapes[node.output[0]][2:]
    kernel, axes = how.get("kernel_shape", []), len(sides)
    if not how.get("ceil_mode") or how.get("auto_pad", b"NOTSET") != b"NOTSET" or len(kernel) != axes:
        return False
    strides, dilations = how.get("strides", [1] * axes), how.get("dilations", [1] * axes)
    pads = [*how.get("pads", [0] * 2 * axes)]
    if {len(strides), len(dilations)} != {axes} or len(pads) != 2 * axes or min(strides, default=0) < 1:
        return False
    right = list[int]()
    for at, (side, windows, stride) in enumerate(zip(sides, told, strides, strict=True)):
        beyond = (windows - 1) * stride >= side + pads[at]
        right.append(windows - beyond)
        reach = (kernel[at] - 1) * dilations[at] + 1
        pads[axes + at] = max(0, (right[-1] - 1) * stride + reach - side - pads[at])
    if right == [*told] or min(right) < 1:
        return False
    kept = [each for each in node.attribute if each.name not in ("ceil_mode", "pads")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", pads)])
    return True


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
        if shape is None or node.op_type == "Size":
            return None if shape is None else np.asarray(prod(shape), dtype=np.int64)
        return np.asarray(shape[said(node).get("start", 0) : said(node).get("end", len(shape))], dtype=np.int64)
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
