"""The shape of every value of a model, as the onnx library infers it, and which values are constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from math import prod
from pathlib import Path

from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, inliner, shape_inference

from tpusim.base.errors import InputError, Problem
from tpusim.network.formats.names import printable
from tpusim.network.formats.onnx_model.dims import set_sizes
from tpusim.network.formats.onnx_model.folding import MOST_ELEMENTS, Shape, fold

_MOST_ROUNDS = 500
_WEIGHTS_ALONE = 8
"""The version of the format from which on weights, also those of functions, need not be inputs."""
_FIXED = ("Constant", "Shape", "Size")
"""Operators whose values are known once shapes are."""


_REAL = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}


@dataclass(frozen=True)
class Values:
    """Shapes of a model's values, by name, where they are known for the images; and which are `reals`."""

    shapes: Mapping[str, Shape]
    constants: frozenset[str]
    reals: frozenset[str] = frozenset()

    def shape(self, name: str) -> Shape:
        """Raises LookupError where it is not known."""
        return self.shapes[name]


def without_weights(model: ModelProto) -> frozenset[str]:
    """Make inputs of large weights, and forget shapes that the file has for other sizes; the names of all weights."""
    graph = model.graph
    weights = {each.name for each in graph.initializer} | {each.values.name for each in graph.sparse_initializer}
    named = {each.name for each in graph.input}
    small = [each for each in graph.initializer if prod(each.dims) <= MOST_ELEMENTS and not each.external_data]
    kept = {each.name for each in small}
    for tensor in graph.initializer:
        if tensor.name not in kept | named:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    light = [TensorProto.FromString(each.SerializeToString()) for each in small]
    del graph.initializer[:]
    graph.initializer.extend(light)
    del graph.value_info[:]
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    # Before that version, a weight had to be an input as well.
    model.ir_version = max(model.ir_version, _WEIGHTS_ALONE)
    return frozenset(weights)


def inlined(model: ModelProto, path: Path) -> ModelProto:
    """The model with the bodies of its own functions where they are called. Raises InputError."""
    if not model.functions:
        return model
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # The library raises what its C++ does, of no common class.
        raise InputError(
            Problem(f"its functions cannot be put in place; onnx says: {_line(error)}", str(path))
        ) from None


def constants_of(graph: GraphProto, weights: frozenset[str]) -> frozenset[str]:
    """Values that follow from weights and shapes alone."""
    known = {*weights}
    for node in graph.node:
        if node.op_type in _FIXED or (node.input and all(name in known or not name for name in node.input)):
            known.update(node.output)
    return frozenset(known)


def inferred(
    model: ModelProto, sizes: Mapping[str, int], needed: Set[str], constants: frozenset[str], path: Path
) -> Values:
    """The shapes where the open dimensions have `sizes`; those that are `needed` also where the model works them out.

    Raises:
        InputError: shapes contradict one another.
    """
    sized = ModelProto()
    sized.CopyFrom(model)
    shapes, reals = settled(sized, sizes, lambda shapes: needed <= shapes.keys(), path)
    return Values(shapes, constants, reals)


def settled(
    model: ModelProto, sizes: Mapping[str, int], enough: Callable[[Mapping[str, Shape]], bool], path: Path
) -> tuple[dict[str, Shape], frozenset[str]]:
    """Give open dimensions their `sizes`, and put what follows from these in its place, until that is `enough`.

    Returns:
        Shapes by name, and which values are real.

    Raises:
        InputError: shapes contradict one another.
    """
    for value in model.graph.input:
        set_sizes(value, sizes)
    shapes, reals = _inferred(model, path)
    for _ in range(_MOST_ROUNDS):
        if enough(shapes) or not fold(model, shapes):
            break
        shapes, reals = _inferred(model, path)
    return shapes, reals


def _inferred(model: ModelProto, path: Path) -> tuple[dict[str, Shape], frozenset[str]]:
    """Shapes by name, and which values are real."""
    try:
        found = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    except (shape_inference.InferenceError, EncodeError, ValueError) as error:
        raise InputError(Problem(_contradiction(error), str(path))) from None
    values = (*found.input, *found.value_info, *found.output)
    shapes = {each.name: shape for each in values if (shape := _shape(each)) is not None}
    reals = frozenset(each.name for each in values if each.type.tensor_type.elem_type in _REAL)
    return shapes | {each.name: tuple(each.dims) for each in found.initializer}, reals


def depends(node: NodeProto, constants: frozenset[str]) -> bool:
    """Whether a node works on what the model is given."""
    return not all(name in constants for name in node.output)


def _shape(value: ValueInfoProto) -> Shape | None:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    known = all(dim.HasField("dim_value") for dim in kind.shape.dim)
    return tuple(dim.dim_value for dim in kind.shape.dim) if known else None


def _contradiction(error: Exception) -> str:
    return f"the shapes of the model do not fit together; onnx says: {_line(error)}"


def _line(error: Exception) -> str:
    return printable(" ".join(str(error).split()))
