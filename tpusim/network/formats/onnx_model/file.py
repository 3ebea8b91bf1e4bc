"""An ONNX file as a model: read, and refused with one message where it is not whole."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted, few
from tpusim.input.source import read_bytes
from tpusim.network.formats import printable

MOST_BYTES = 2**31 - 1
"""Most bytes of a message of Protocol Buffers."""
_MAIN = ("", "ai.onnx")
_SHOWN = 4


def load(path: Path) -> ModelProto:
    """Read the model in a file, with all the files it names beside it. Raises InputError."""
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    if size > MOST_BYTES:
        says = f"{size / 2**30:.1f} GiB, and an ONNX file holds less than 2"
        raise _refused(path, f"{says}; save its weights as external data, in a file beside it")
    try:
        # `read_bytes` reserves memory for the whole request: one byte more than the size shows a file that grows.
        model: ModelProto = ModelProto.FromString(read_bytes(path, size + 1 if size else MOST_BYTES))
    except DecodeError:
        raise _refused(path, "is not ONNX, or is cut off; save the model again, or copy the whole file") from None
    if not model.ir_version or not model.HasField("graph"):
        raise _refused(path, "is not ONNX: it has no version and no graph; give a file that a tool exported as ONNX")
    if not model.graph.node:
        raise _refused(path, "the graph has no nodes; export the model itself, not its weights alone")
    if not model.opset_import:
        raise _refused(path, "says nothing of its opset, or is cut off; save the model again")
    _check_text(model, path)
    known = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in _MAIN and not 1 <= opset.version <= known:
            says = f"opset {opset.version}; onnx {onnx.__version__} knows opsets 1 to {known}"
            raise _refused(path, f"{says}: export the model for one of them, or install a newer onnx")
    _check_beside(model, path)
    _check_order(model.graph, path)
    _check_references(model.graph, path)
    return model


def operator(node: NodeProto) -> str:
    """Return the name of a node's operator, with its domain where that is not ONNX's own."""
    return _operator(node.domain, node.op_type)


@cache
def _operator(domain: str, op_type: str) -> str:
    of = "" if domain in _MAIN else f"{domain}."
    return printable(f"{of}{op_type}")[:60] or "an op without a name"


def said(node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node, by name."""
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def opset_of(model: ModelProto) -> int:
    """Return the version of ONNX's own operators."""
    return next((each.version for each in model.opset_import if each.domain in _MAIN), 1)


def attributes_of(node: NodeProto) -> set[str]:
    """Return the names of the attributes that the operator has in any opset; for an operator unknown to ONNX, the
    node's.

    What is an operand in new opsets was an attribute in old ones, and exporters leave it there.
    """
    own = {each.name for each in node.attribute}
    return _attributes().get(node.op_type, own) if node.domain in _MAIN else own


@cache
def _attributes() -> dict[str, set[str]]:
    found = defaultdict[str, set[str]](set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in _MAIN:
            found[schema.name].update(schema.attributes)
    return dict(found)


def called(node: NodeProto) -> str:
    """Return a node in words: its name, or the name of its first result."""
    return printable(node.name or next(filter(None, node.output), "") or "a node without a name")


def _refused(path: Path, message: str) -> InputError:
    return InputError(Problem(message, str(path)))


def _check_text(model: ModelProto, path: Path) -> None:
    """Check that names are text: bytes that are not come from a damaged file."""
    graph = model.graph
    named = (*graph.input, *graph.output, *graph.initializer, *(each.values for each in graph.sparse_initializer))
    dims = (dim for each in (*graph.input, *graph.output) for dim in each.type.tensor_type.shape.dim)
    nodes = (*graph.node, *(node for function in model.functions for node in function.node))
    texts = (
        *(each.domain for each in model.opset_import), model.producer_name, model.producer_version,
        *(each.name for each in named), *(dim.dim_param for dim in dims),
        *(text for node in nodes for text in (node.name, node.op_type, node.domain, *node.input, *node.output)),
        *(attribute.name for node in nodes for attribute in node.attribute),
    )  # fmt: skip
    if not all(isinstance(text, str) for text in texts):
        raise _refused(path, "a name in it is no text, so the file is damaged: copy it, or export the model again")


def _check_beside(model: ModelProto, path: Path) -> None:
    """Check that files of weights, if there are any, lie in the model's own folder; they are not read."""
    folders = {path.parent.resolve(), path.resolve().parent}
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            name = next((each.value for each in tensor.external_data if each.key == "location"), "")
            file = Path(name)
            # A model from elsewhere may name any file of this computer, also by a link in its folder.
            inside = name.isprintable() and not file.is_absolute() and ".." not in file.parts
            if not name or not inside or not _leads_into(path.parent / file, folders):
                says = f"the weights of {printable(tensor.name)} are said to be in {ascii(name)[:80]}"
                raise _refused(path, f"{says}; they must stand in the model's own folder")


def values_missing(model: ModelProto, path: Path) -> str:
    """Say which weights a model was shipped without; empty where none is missing. Their shapes are in the model."""
    files, stripped = Counter[str](), 0
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            name = next(each.value for each in tensor.external_data if each.key == "location")
            files[name] += not (path.parent / name).is_file()
        else:
            stripped += not holds_values(tensor)
    told = [f"{name} ({counted(tensors, 'tensor')})" for name, tensors in files.items() if tensors]
    parts = [f"files of weights are missing: {few(told, _SHOWN, more=' and {} more')}"] if told else []
    parts += [f"{counted(stripped, 'tensor')} of weights without values"] if stripped else []
    return ", and ".join(parts)


def holds_values(tensor: TensorProto) -> bool:
    """Return whether the values of a tensor stand in the model itself: they may be in a file, or left out."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return False
    kept = any(getattr(tensor, name) for name in _VALUES)
    return kept or tensor.data_type == TensorProto.UNDEFINED or not prod(tensor.dims)


_VALUES = ("raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
"""Fields of a tensor that hold its values."""


def _leads_into(file: Path, folders: Set[Path]) -> bool:
    """Return whether a file, links followed, lies in one of these folders, or below it."""
    try:
        real = file.resolve()
    except (OSError, RuntimeError):  # Links that go round in a circle.
        return False
    return any(real.is_relative_to(folder) for folder in folders)


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield all tensors that a model holds, those of its functions and of the graphs inside its nodes included."""
    graphs, nodes = [model.graph], [node for function in model.functions for node in function.node]
    sparse: list[SparseTensorProto] = []
    while graphs or nodes:
        for graph in graphs:
            yield from graph.initializer
            sparse += graph.sparse_initializer
            nodes += graph.node
        graphs, every = [], (each for node in nodes for each in node.attribute if each.type in _HOLDING)
        for each in every:
            yield from (each.t, *each.tensors)
            sparse += (each.sparse_tensor, *each.sparse_tensors)
            graphs += (each.g, *each.graphs)
        nodes = []
    for whole in sparse:
        yield from (whole.values, whole.indices)


_HOLDING = frozenset({
    AttributeProto.TENSOR, AttributeProto.TENSORS, AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS,
    AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.UNDEFINED,
})  # fmt: skip
"""Types of attributes that hold tensors."""


def _check_references(graph: GraphProto, path: Path) -> None:
    """Check that no attribute, also inside of branches, is that of a function: functions alone have such nodes."""
    for node in graph.node:
        for each in node.attribute:
            if each.ref_attr_name:
                says = f"{operator(node)} {called(node)}: {printable(each.name)} is an attribute of a function"
                raise _refused(path, f"{says}, and the node is in none; export the model again")
            for inner in (each.g, *each.graphs):
                _check_references(inner, path)


def _check_order(graph: GraphProto, path: Path) -> None:
    """Check that each node reads only what stands before it, and that the outputs exist."""
    sparse = (each.values for each in graph.sparse_initializer)
    made = {each.name for each in (*graph.input, *graph.initializer, *sparse)} | {""}
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    for node in graph.node:
        for name in node.input:
            if name not in made and name not in makers:
                says = f"{operator(node)} {called(node)} reads {printable(name)}, which nothing makes"
                raise _refused(path, f"{says}; the file is damaged: export the model again")
            if name not in made:
                says = f"{operator(node)} {called(node)} stands before what it reads, and ONNX wants nodes in order"
                every = enumerate(graph.node)
                reads = {at: [makers[each] for each in other.input if each in makers] for at, other in every}
                try:
                    # A circle has no order at all, so the message differs.
                    TopologicalSorter(reads).prepare()
                except CycleError as error:
                    circle = " > ".join(called(graph.node[at]) for at in reversed(error.args[1][: _SHOWN + 1]))
                    says = f"the graph goes round in a circle: {circle}; the file is damaged"
                raise _refused(path, f"{says}: export the model again")
        made.update(node.output)
    if lost := [printable(each.name) for each in graph.output if each.name not in made]:
        raise _refused(path, f"nothing makes its output {', '.join(lost[:_SHOWN])}; export the model again")
