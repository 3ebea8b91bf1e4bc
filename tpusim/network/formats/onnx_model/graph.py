"""A model with its weights, to be computed: its nodes, and which of them are layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.network.formats.asked import ModelOptions
from tpusim.network.formats.names import Names, printable
from tpusim.network.formats.onnx_model import layer_names, understood
from tpusim.network.formats.onnx_model.dims import inputs, set_sizes
from tpusim.network.formats.onnx_model.file import called, load, operator, opset_of
from tpusim.network.graph import Given, Graph, Node, NodeViews, OperandView, TensorView, Values


def read_graph(path: Path, asked: ModelOptions, images: int) -> Graph:
    """The graph of a model for a number of `images`.

    Raises:
        InputError: as `read` does; or the model is for a number of images of which `images` is no multiple, or holds
            what is no array.
    """
    read = understood(path, asked)
    own = images if read.batch.is_open else read.batch.fixed
    if images % own:
        says = f"the model is for {counted(own, 'image')} at once; its values take a --batch that is a multiple of that"
        raise InputError(Problem(says, str(path)))
    graph = read.model.graph
    named = zip(read.found.layers, layer_names(read.found.layers, Names()), strict=True)
    layers = {each.node.output[0]: (name, _views(each.views, own)) for each, name in named}

    def as_node(node: NodeProto) -> Node:
        asked_of = tuple(node.input), tuple(node.output), _attributes(node.attribute, path)
        return Node(operator(node), called(node), *asked_of, *layers.get(node.output[0] if node.output else "", ()))

    nodes = tuple(map(as_node, graph.node))
    sizes = read.batch.sizes(own)
    weights = _weights(load(path).graph, path)
    given = {name: each for name, each in _given(graph, sizes, path).items() if name not in weights}
    return Graph(str(path), given, _types_of_outputs(graph), nodes, weights, own, opset_of(read.model))


def _views(probed: Sequence[NodeViews], images: int) -> NodeViews:
    """Views for `images`, worked out from the views for one image and for two, or for all there can be."""
    one, two = probed[0], probed[-1]
    both = zip(one.sources.items(), two.sources.values(), strict=True)
    sources = {
        name: replace(each, view=_view(each.view, more.view, images))
        if isinstance(each, OperandView) and isinstance(more, OperandView) else each
        for (name, each), more in both
    }  # fmt: skip
    return NodeViews(sources, _view(one.result, two.result, images))


def _view(one: TensorView, two: TensorView, images: int) -> TensorView:
    """The view for `images`, worked out from the views for one image and for two."""

    def line(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
        return tuple(size + (images - 1) * (more - size) for size, more in zip(first, second, strict=True))

    return replace(one, shape=line(one.shape, two.shape), spread=line(one.spread, two.spread))


def _types_of_outputs(graph: GraphProto) -> dict[str, np.dtype[Any] | None]:
    """By name; None where the model says none, or one that NumPy does not have, such as bfloat16."""
    kinds = {each.name: each.type.tensor_type.elem_type for each in graph.output}
    types = {name: np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else None for name, kind in kinds.items()}
    return {name: dtype if dtype is None or dtype.isbuiltin == 1 else None for name, dtype in types.items()}


def _given(graph: GraphProto, sizes: Mapping[str, int], path: Path) -> dict[str, Given]:
    """What comes from outside, with its open sizes set."""
    found: dict[str, Given] = {}
    for value in inputs(graph):
        set_sizes(value, sizes)
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or kind.elem_type == TensorProto.STRING:
            says = f"the input {printable(value.name)} is no array of numbers, so that its values cannot be given"
            raise InputError(Problem(says, str(path)))
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        found[value.name] = Given(np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)), shape)
    return found


def _weights(graph: GraphProto, path: Path) -> dict[str, Values]:
    """Weights of the file, and of the files beside it."""
    if graph.sparse_initializer:
        raise InputError(Problem("its weights are sparse, so that its values cannot be computed", str(path)))
    return {each.name: _array(each, path) for each in graph.initializer}


def _array(tensor: TensorProto, path: Path) -> Values:
    try:
        return numpy_helper.to_array(tensor, str(path.parent))
    except Exception as error:  # The library raises what its C++ and the file system do, of no common class.
        says = f"the weights {printable(tensor.name)} cannot be read: {printable(str(error))}"
        raise InputError(Problem(says, str(path))) from None


def _attributes(attributes: Any, path: Path) -> dict[str, Any]:
    return dict(_plain(each, path) for each in attributes if each.type != AttributeProto.GRAPH)


def _plain(attribute: AttributeProto, path: Path) -> tuple[str, Any]:
    """A number, text, a list of them, or an array."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return attribute.name, _array(value, path)
    return attribute.name, [*_texts(value)] if isinstance(value, list) else next(_texts([value]))


def _texts(values: Any) -> Iterator[Any]:
    """Bytes as text."""
    return (each.decode(errors="replace") if isinstance(each, bytes) else each for each in values)
