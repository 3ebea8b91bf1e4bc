"""Models in ONNX: the ops of a graph as layers, and what of it is left out, by name and count."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onnx import GraphProto, ModelProto, NodeProto

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.input.document import Document
from tpusim.network.entries import BIASES
from tpusim.network.formats.asked import ModelOptions
from tpusim.network.formats.names import Names, printable
from tpusim.network.formats.onnx_model.branches import branched, with_arrays
from tpusim.network.formats.onnx_model.dims import Batch, batch_of, inputs
from tpusim.network.formats.onnx_model.file import called, load, operator, opset_of
from tpusim.network.formats.onnx_model.known import NOT_TIMED
from tpusim.network.formats.onnx_model.nodes import (
    ARRAY_OPS,
    ON_BATCH,
    AsLayer,
    Sizes,
    UnfitNode,
    doubled,
    for_any_batch,
    layer,
    needed,
)
from tpusim.network.formats.onnx_model.recurrent import Unrolled, sequences, unrolled
from tpusim.network.formats.onnx_model.shapes import Values, constants_of, depends, inferred, inlined, without_weights
from tpusim.network.formats.onnx_model.vector_nodes import VECTOR_OPS, VectorNodes
from tpusim.network.formats.onnx_model.wires import wired
from tpusim.network.graph import NodeViews
from tpusim.network.ops import OPS
from tpusim.network.wiring import INPUTS

_MOST_TOLD = 8
_OF_THE_ARRAY = {name for name, op in OPS.items() if op.unit == "array"}


class LayerNode(NamedTuple):
    """A node that is a layer: its sizes for any batch, and what its values are to it, for each number of images for
    which the shapes were found.
    """

    node: NodeProto
    sizes: Sizes
    views: Sequence[NodeViews]


@dataclass
class _Found:
    """What a graph is made of: its nodes that are layers, and what is none."""

    layers: list[LayerNode] = field(default_factory=list)
    not_timed: Counter[str] = field(default_factory=Counter)
    not_known: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    """Of what the array would compute, why it cannot be a layer."""
    folded: int = 0
    same: list[str] = field(default_factory=list)
    """What batch normalizations make of which nothing is left to do."""
    taken: Sequence[str] = ()
    """Which branches were taken, in words."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Of how many steps recurrent networks are, by their names."""


def read(path: Path, asked: ModelOptions) -> Document:
    """The layers of a model, as a workload for any batch.

    Raises:
        InputError: the file is not whole, sizes are open that are not the batch, or, unless `asked` to skip them,
            there are ops that nobody here knows.
    """
    read = understood(path, asked)
    return _document(read, path, [*_notes(read.batch, asked, read.found)])


class Understood(NamedTuple):
    """A model without its large weights, functions put in place; its batch, what it is made of, shapes of values."""

    model: ModelProto
    batch: Batch
    found: _Found
    values: Values


def understood(path: Path, asked: ModelOptions) -> Understood:
    """What there is to know of a model. Raises as `read`."""
    model = load(path)
    batch = batch_of(inputs(model.graph), asked.dims, asked.arrays, path)
    weights = without_weights(model)
    ways = branched(inlined(model, path), batch, asked.arrays, path)
    stepped = _stepped(ways.model, batch, asked, path)
    model = stepped.model
    constants = constants_of(model.graph, weights)
    vector = VectorNodes.of(model) if asked.ops != "array" else None
    probes = _probes(model, batch, asked, constants, path)
    told = _Found(taken=ways.taken, steps=stepped.steps, reasons=[*ways.undecided, *stepped.left])
    found = _found(told, model.graph, probes, batch, vector)
    if found.not_known and not asked.skip_unknown:
        raise InputError(Problem(_unknown(found, batch), str(path)))
    if not found.layers:
        more = "; --ops all also takes those of the vector unit, such as pooling" if asked.ops == "array" else ""
        raise InputError(Problem(f"no op that could be run as a layer is in the model{more}", str(path)))
    return Understood(model, batch, found, probes[0])


def layer_names(layers: Sequence[LayerNode], names: Names) -> Iterator[str]:
    """The name of each layer's entry in the workload."""
    return (names.take(called(each.node), "count" in each.sizes) for each in layers)


def _stepped(model: ModelProto, batch: Batch, asked: ModelOptions, path: Path) -> Unrolled:
    """Recurrent networks as their steps, with the shapes that say how many these are."""
    wanted = sequences(model.graph)
    if not wanted:
        return Unrolled(model, {}, [])
    whole = with_arrays(model, asked.arrays)
    shapes = [inferred(whole, batch.sizes(images), wanted, frozenset(), path).shapes for images in batch.probed]
    return unrolled(model, shapes, opset_of(model))


def _probes(
    model: ModelProto, batch: Batch, asked: ModelOptions, constants: frozenset[str], path: Path
) -> list[Values]:
    """The shapes for as many images as it takes to know them for any number. Raises InputError where there are none."""
    ops = ARRAY_OPS if asked.ops == "array" else ARRAY_OPS.keys() | VECTOR_OPS
    wanted, probes = needed(model.graph, ops), list[Values]()
    whole = with_arrays(model, asked.arrays)
    for images in batch.probed:
        try:
            probes.append(inferred(whole, batch.sizes(images), wanted, constants, path))
        except InputError as error:
            if not probes:
                raise
            only = f"; for one image they do: give --dim {min(batch.names)}=1"
            raise InputError([Problem(f"{each.message}{only}", each.where) for each in error.problems]) from None
    return probes


def _found(
    found: _Found, graph: GraphProto, probes: Sequence[Values], batch: Batch, vector: VectorNodes | None
) -> _Found:
    """With `vector`, what takes the vector unit is a layer where it can be, else it takes no time."""
    for node in graph.node:
        name = operator(node)
        if name in ARRAY_OPS or name in NOT_TIMED:
            if not depends(node, probes[0].constants):
                found.folded += 1
            elif name in ARRAY_OPS:
                _add_layer(found, node, probes, batch)
            elif not vector or not _add_vector_layer(found, node, probes, batch, vector):
                found.not_timed[name] += 1
        else:
            found.not_known[name] += 1
            found.reasons += _inside(node)
    return found


def _add_layer(found: _Found, node: NodeProto, probes: Sequence[Values], batch: Batch) -> None:
    try:
        found.layers.append(_merged(node, [layer(node, values) for values in probes], batch))
    except (UnfitNode, InputError) as error:
        found.not_known[operator(node)] += 1
        found.reasons.append(f"{operator(node)} {called(node)}: {', '.join(str(error).splitlines())}")


def _add_vector_layer(
    found: _Found, node: NodeProto, probes: Sequence[Values], batch: Batch, vector: VectorNodes
) -> bool:
    """Whether a node is a layer of the vector unit, or part of the weights before it."""
    if node.op_type not in VECTOR_OPS:
        return False
    if vector.is_folded(node):
        found.same.append(node.output[0])
        # What it adds is left of it, whatever was added before.
        for before in found.layers:
            if before.node.output[0] == node.input[0]:
                before.sizes[BIASES] = True
        return True
    try:
        found.layers.append(_merged(node, [vector.layer(node, values) for values in probes], batch))
    except (UnfitNode, InputError):
        return False
    return True


def _merged(node: NodeProto, probed: Sequence[AsLayer], batch: Batch) -> LayerNode:
    """The layer for any batch, of what it is for one or more. Raises UnfitNode, or InputError where there is none."""
    one, two = (each.sizes for each in probed) if len(probed) == 2 else doubled(probed[0].sizes, batch.fixed)
    sizes = for_any_batch(one, two)
    build: Any = OPS[sizes["op"]]
    build(name="layer", **_of_one_image(sizes))
    return LayerNode(node, sizes, [each.views for each in probed])


def _of_one_image(sizes: Sizes) -> dict[str, Any]:
    """What the op is built with, to see that there is such a layer."""
    plain = {key: value for key, value in sizes.items() if key not in ("op", "count", BIASES)}
    return {key: 1 if key in ("m", "images") and isinstance(value, str) else value for key, value in plain.items()}


def _inside(node: NodeProto) -> Iterator[str]:
    """What the array would compute of the graphs inside a node."""
    inner: Counter[str] = Counter()
    left = [node]
    while left:
        for attribute in left.pop().attribute:
            for graph in (attribute.g, *attribute.graphs):
                left += graph.node
                inner.update(operator(each) for each in graph.node if operator(each) in ARRAY_OPS)
    if inner:
        yield f"{operator(node)} {called(node)} has inside {_listed(inner)}"


def _listed(ops: Mapping[str, int]) -> str:
    return ", ".join(f"{op} {count:,}" for op, count in ops.items())


def _unknown(found: _Found, batch: Batch) -> str:
    """All that is not known, at once."""
    total = counted(sum(found.not_known.values()), "op")
    why = f" ({'; '.join(found.reasons[:_MOST_TOLD])}{'; ...' if len(found.reasons) > _MOST_TOLD else ''})"
    leave = "tpusim run or import leaves them out with --skip-unknown, and says so"
    if any(ON_BATCH in reason for reason in found.reasons):
        settle = " ".join(f"--dim {shlex.quote(name)}=N" for name in sorted(batch.names))
        leave = f"{settle} says how many there are; {leave}"
    return f"{total} not known here: {_listed(found.not_known)}{why if found.reasons else ''}; {leave}"


def _document(read: Understood, path: Path, notes: Sequence[str]) -> Document:
    found, names = read.found, Names()
    named = zip(layer_names(found.layers, names), found.layers, strict=True)
    layers = {each.node.output[0]: {"name": name, **_ordered(each.sizes)} for name, each in named}
    given = [each.name for each in inputs(read.model.graph)]
    called_, entries, lost = wired(read.model.graph, layers, given, read.values, found.same, names)
    data = {
        "name": printable(path.stem) or "model",
        "source": f"{printable(path.name)}, {_origin(read.model)}",
        INPUTS: called_,
        "not_timed": dict(found.not_timed.most_common()),
        "not_known": dict(found.not_known.most_common()),
        "layers": entries,
    }
    nodes = {layers[each.node.output[0]]["name"]: each.node for each in found.layers}
    moved = {
        f"layers[{index}].{key}": (f"{path}: {operator(node)} {called(node)}: {key}", index + 1)
        for index, entry in enumerate(entries)
        if (node := nodes.get(entry["name"])) is not None
        for key in entry
    }
    return Document(str(path), data, {"": 1}, moved=moved, notes=(*notes, *_lost(lost)), images=read.batch.images)


def _lost(why: str) -> Iterator[str]:
    if why:
        yield f"what its layers read is not known: {why}"


def _ordered(sizes: Sizes) -> Sizes:
    """As people write them: the map before what moves over it."""
    first = (
        "op", "kind", "channels", "height", "width", "in_channels", "in_length", "in_height", "in_width",
        "out_channels", "m", "n", "k",
    )  # fmt: skip
    return {key: sizes[key] for key in dict.fromkeys((*first, *sizes)) if key in sizes}


def _origin(model: ModelProto) -> str:
    """What the file says of itself."""
    opsets = ", ".join(f"{printable(each.domain)} {each.version}".strip() for each in model.opset_import)
    maker = printable(f"{model.producer_name} {model.producer_version}".strip())
    return f"an ONNX model of opset {opsets}{f', made by {maker}' if maker else ''}"


def _notes(batch: Batch, asked: ModelOptions, found: _Found) -> Iterator[str]:
    if batch.is_open:
        yield f"its batch is open ({', '.join(sorted(batch.names))}); layers are for --batch images"
    else:
        many = f"the {counted(batch.images, 'image')} of --input" if batch.images else "--batch images"
        yield f"it is for {counted(batch.fixed, 'image')}; layers are written for one, and run for {many}"
    if batch.dims:
        yield f"sizes given: {', '.join(f'{name}={size}' for name, size in batch.dims.items())}"
    if several := [called(node) for node, each, _ in found.layers if "count" in each and each["op"] != "gemm"]:
        which = f"{counted(len(several), 'op')} of several maps an image ({several[0]}, ...)"
        yield f"{which}: a layer for each map"
    if any(each.sizes["op"] not in _OF_THE_ARRAY for each in found.layers):
        yield "pooling, sums and activations are layers of their own; --ops array leaves them out"
    if found.taken:
        more = f", and {len(found.taken) - _MOST_TOLD:,} more" if len(found.taken) > _MOST_TOLD else ""
        yield f"the branch that is taken of each If: {', '.join(found.taken[:_MOST_TOLD])}{more}"
    if found.steps:
        each = ", ".join(f"{name} {steps:,}" for name, steps in [*found.steps.items()][:_MOST_TOLD])
        more = ", ..." if len(found.steps) > _MOST_TOLD else ""
        yield f"recurrent networks are a product of all inputs, then one of the state a step; steps: {each}{more}"
    if found.same:
        yield f"{counted(len(found.same), 'batch normalization')} folded into the weights before: no time"
    if found.folded:
        yield f"{counted(found.folded, 'op')} of weights and shapes alone: worked out before the network runs, no time"
    if found.reasons:
        more = f"; and {len(found.reasons) - _MOST_TOLD:,} more" if len(found.reasons) > _MOST_TOLD else ""
        yield f"left out: {'; '.join(found.reasons[:_MOST_TOLD])}{more}"
