"""Models in ONNX: the ops of a graph as layers, the ops that are left out by name and count; and, with weights, the
graph.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import gcd, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted, few
from tpusim.input.document import Document
from tpusim.network.entries import BIASES, INPUTS
from tpusim.network.formats import ModelOptions, Names, RunBatch, printable, reasons
from tpusim.network.formats.layer_of_node import LayerOfNode, LayerSizes, UnfitNode
from tpusim.network.formats.onnx_model.array_nodes import ARRAY_OPS, NO_MULTIPLE, ON_BATCH, KnownNode, in_run
from tpusim.network.formats.onnx_model.dims import ModelBatch, ModelRun, batch_of, inputs, set_sizes
from tpusim.network.formats.onnx_model.every_batch import for_any_batch
from tpusim.network.formats.onnx_model.facts import NOT_TIMED, STAYING, Facts
from tpusim.network.formats.onnx_model.file import called, load, operator, opset_of, values_missing
from tpusim.network.formats.onnx_model.rewrites import RewrittenModel, rewritten
from tpusim.network.formats.onnx_model.shapes import InferredGraph, inlined, without_declared, without_weights
from tpusim.network.formats.onnx_model.standard import refuse_beyond, refuse_forbidden
from tpusim.network.formats.onnx_model.vector_nodes import VECTOR_OPS
from tpusim.network.formats.onnx_model.wires import wired
from tpusim.network.formats.reasons import MOST_TOLD, LeftOut
from tpusim.network.graph import GivenInput, Graph, Node, OperandView
from tpusim.network.ops import OPS
from tpusim.network.ops.op import OFMAP
from tpusim.numerics.element_types import Values

_OF_THE_ARRAY = {name for name, op in OPS.items() if op.unit == "array"}


@dataclass
class UnderstoodModel:
    """A model without its large weights, functions put in place: its nodes that are layers, and the other nodes.

    Attributes:
        whole: the model, with its batch, in which some nodes are replaced by others.
        run: the images that it was read for.
        values: the shapes of its values in a run of the model.
        left: what becomes no layer, and why.
        layers: nodes that are layers: of sizes for the batch, and with the views of their values in one run.
        same: results of batch normalizations that merged into the layer before them.
        missing: which weights the model was shipped without, in words.
    """

    whole: RewrittenModel
    run: ModelRun
    facts: Facts
    values: InferredGraph
    left: LeftOut
    layers: list[tuple[NodeProto, LayerOfNode]] = field(default_factory=list)
    folded: int = 0
    same: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def graph(self) -> GraphProto:
        """The graph of the model."""
        return self.whole.model.graph


def read(path: Path, asked: ModelOptions) -> Document:
    """The layers of a model, as a workload for the batch that is asked for, or for every batch.

    Raises:
        InputError: the file is not whole, sizes are open that are not the batch, or, unless `asked` to skip them,
            there are ops that nobody here knows; where no batch is asked for, its sizes are no line of the batch.
    """
    opened = OpenedModel.of(path, asked)
    if asked.batch is not None or opened.batch.runs is not None:
        # Arrays hold as many images as they do, whatever the usual number is.
        return _document(understood(opened, asked.batch or RunBatch(1, usual=True)), path)
    own = 1 if opened.batch.names else understood(opened, RunBatch(1, usual=True)).run.own
    read_at = {own * times: _document(understood(opened, RunBatch(own * times)), path) for times in _TIMES}
    return for_any_batch(read_at, path, min(opened.batch.names, default=""))


_TIMES = (2, 3, 5, 8, 24)
"""Numbers of images, as multiples of those of the model, that show how sizes follow the batch. For one image alone some
of them are like those of a model of one image, of which nothing follows the batch.
"""


class OpenedModel(NamedTuple):
    """A model as its file has it, without large weights; `weights` are the names of all, and `missing` says of which
    the values are not there.
    """

    path: Path
    asked: ModelOptions
    model: ModelProto
    weights: frozenset[str]
    batch: ModelBatch
    missing: str

    @classmethod
    def of(cls, path: Path, asked: ModelOptions) -> OpenedModel:
        """Open the model in a file. Raises InputError."""
        model = load(path)
        batch = batch_of(inputs(model.graph), asked.dims, asked.arrays, path)
        missing, weights = values_missing(model, path), without_weights(model)
        return cls(path, asked, without_declared(inlined(model, path), path), weights, batch, missing)


def understood(opened: OpenedModel, wanted: RunBatch) -> UnderstoodModel:
    """Find what there is to know of a model for the batch of a run. Raises as `read`."""
    path, asked, batch = opened.path, opened.asked, opened.batch
    own = batch.own or wanted.images
    # A dimension that only its place makes the batch is one of another kind if the run is of one image.
    if batch.by_place and not batch.names and not wanted.usual and wanted.images != own:
        if wanted.images > 1:
            says = f"the first dimension of the inputs is {own:,} as given, and the batch {wanted.images:,}; give batch"
            advice = f"{says} {own:,} if that dimension counts images, 1 if it counts something else"
            raise InputError(Problem(advice, str(path)))
        own = 1
    whole = rewritten(opened.model, batch, own, path)
    facts = Facts.of(whole.model, opened.weights)
    ops = {*ARRAY_OPS} if asked.ops == "array" else ARRAY_OPS.keys() | VECTOR_OPS
    values = _inferred_for(whole, ops, facts.opset)
    if batch.fixed:
        own = _images_of(whole.model, values, own, alone=not wanted.usual and wanted.images == 1)
    run = _run(batch, own, wanted, path)
    read = UnderstoodModel(whole, run, facts, values, LeftOut(reasons=[*whole.left]), missing=opened.missing)
    for node in read.graph.node:
        name = operator(node)
        # Convolutions and products inside such a node are lost with it, and are named.
        if name not in ARRAY_OPS and name not in NOT_TIMED:
            read.left.not_known[name] += 1
            read.left.reasons += _inside(node)
        # Constants are worked out before the network runs, and take no time even if a layer could compute them.
        elif all(name in facts.constants for name in node.output):
            read.folded += 1
        elif name in ops:
            _add_layer(read, node, path)
        elif name in VECTOR_OPS:
            read.left.not_timed[name] += 1
        else:
            why = whole.why.get(next(iter(node.output), "")) or _UNLIKE.get(name, reasons.NO_LAYER)
            read.left.take_no_time(name, _in_place(node, values.reals) if name in STAYING else why)
    if read.left.not_known and not asked.skip_unknown:
        raise InputError(Problem(_unknown(read), str(path)))
    if not read.layers:
        more = "; ops all also takes those of the vector unit, such as pooling" if asked.ops == "array" else ""
        why = f": {read.left.why_untimed()}" if read.left.untimed else ""
        raise InputError(Problem(f"no op that could be run as a layer is in the model{why}{more}", str(path)))
    return read


_OF_IMAGES = frozenset({
    "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "MaxPool", "AveragePool", "GlobalMaxPool",
    "GlobalAveragePool",
})  # fmt: skip
"""Operators whose first operand has its images along axis 0."""


def _images_of(model: ModelProto, values: InferredGraph, first: int, alone: bool) -> int:
    """Return how many images a model of fixed sizes holds: its first dimension, unless a convolution or pool has
    others; or there is none, and the model is to run `alone`: then the dimension counts something else.
    """
    maps = (values.shapes.get(node.input[0]) for node in model.graph.node if node.op_type in _OF_IMAGES)
    images = [shape[0] for shape in maps if shape and shape[0] > 0]
    if alone and not images:
        return 1
    return first if all(each % first == 0 for each in images) else gcd(*images)


def _run(batch: ModelBatch, own: int, wanted: RunBatch, path: Path) -> ModelRun:
    """Return the images of a run. Raises InputError where the model is not for that batch."""
    if batch.runs is not None:
        return ModelRun(own * batch.runs, own)
    if wanted.usual and not (batch.fixed and wanted.images % own == 0):
        return ModelRun(own, own)
    if wanted.images % own:
        of = "as its inputs are" if batch.fixed else "as the sizes given are"
        says = f"the model is for {counted(own, 'image')} at once, {of}; give {own:,} or a multiple, or leave it out"
        raise InputError(Problem(says, f"{path}: batch {wanted.images}"))
    return ModelRun(wanted.images, own)


def layer_names(layers: Sequence[tuple[NodeProto, LayerOfNode]], names: Names) -> Iterator[str]:
    """Yield the name of each layer's entry in the workload."""
    return (names.take(called(node), "count" in layer.sizes) for node, layer in layers)


def _inferred_for(whole: RewrittenModel, ops: Set[str], opset: int) -> InferredGraph:
    """Infer the shapes that layers of these `ops` need. Raises InputError where there are none, or the standard forbids
    them.
    """
    nodes = [node for node in whole.model.graph.node if node.op_type in ops]
    wanted = {name for node in nodes for name in (*node.input[:2], *node.output[:1]) if name}

    def inferred_with(more: int) -> InferredGraph:
        found = whole.inferred(lambda found: wanted <= found.shapes.keys(), more)
        refuse_forbidden(found.graph.node, found, opset, whole.path)
        refuse_beyond(found, whole.path)
        return found

    try:
        return inferred_with(0)
    except InputError as error:
        if whole.images == 1 or not whole.batch.names:
            raise
        name = min(whole.batch.names)
        try:
            inferred_with(1 - whole.images)
        except InputError:
            raise error from None
        # A model that is open may be sound for one image alone.
        only = f"; for one image they do: give --dim {shlex.quote(name)}=1"
        raise InputError([Problem(f"{each.message}{only}", each.where) for each in error.problems]) from None


def _add_layer(read: UnderstoodModel, node: NodeProto, path: Path) -> None:
    """Add a node that is a layer, part of the weights before it, or none after all.

    Raises InputError for a layer whose result has other sizes than the onnx library infers.
    """
    if node.output[0] in read.facts.merged:
        read.same.append(node.output[0])
        # Only the addition of the biases is left of this node: the layer before it takes them.
        for before, layer in read.layers:
            if before.output[0] == node.input[0]:
                layer.sizes[BIASES] = True
        return
    try:
        layer = _as_layer(node, read)
        plain = {key: value for key, value in layer.sizes.items() if key not in ("op", "count", BIASES)}
        if "kernel" in plain:
            del plain["images"]
        build: Any = OPS[layer.sizes["op"]]
        made = build(name="layer", **plain).shapes(1)[OFMAP]
        sizes = in_run(layer.sizes, read.run.times, read.run.images)
        read.layers.append((node, LayerOfNode(sizes, layer.views)))
    except (UnfitNode, InputError) as error:
        name, why = operator(node), ", ".join(str(error).splitlines())
        if name in ARRAY_OPS:
            read.left.not_known[name] += 1
            read.left.reasons.append(f"{name} {called(node)}: {why}")
        else:
            read.left.take_no_time(name, why)
        return
    result = layer.views.result
    inferred_as = result.sizes(result.shape) if result.axes else made
    if any(
        one != other for axis, (one, other) in enumerate(zip(made, inferred_as, strict=True)) if axis != result.images
    ):
        sizes_told = (" x ".join(map(str, shape[:3])) for shape in (made, inferred_as))
        says = "{} {}: by its attributes it makes {} of an image, and onnx infers {}; export the model again"
        raise InputError(Problem(says.format(operator(node), called(node), *sizes_told), str(path)))


_BIAS_OPERANDS = {"Conv": 2, "ConvTranspose": 2, "DeformConv": 3, "Gemm": 2}
"""The operand of a node that holds its biases."""
_LONGEST_MATRIX = 3
"""Most axes of a value of unknown origin that has its channels last."""


def _as_layer(node: NodeProto, read: UnderstoodModel) -> LayerOfNode:
    """Return the layer that a node of ARRAY_OPS or VECTOR_OPS is, in one run of the model. Raises UnfitNode where there
    is none.
    """
    values, facts = read.values, read.facts
    shapes, names, op = values.shapes, [*node.input], node.op_type
    least = 2 if op in ARRAY_OPS else 1
    counting = names[:least] if op in ARRAY_OPS else names
    lost = next((name for name in (*counting, *node.output[:1]) if name and name not in shapes), None)
    if lost is not None or len(names) < least or not all(names[:least]):
        raise UnfitNode(f"the shape of {lost} is not known" if lost else "an operand is missing")
    if op not in ARRAY_OPS and node.output[0] not in values.reals:
        raise UnfitNode("it works on whole numbers")
    if op not in ARRAY_OPS and facts.nans.intersection(names):
        raise UnfitNode("it reads nan, which no check can hold against another")
    of_operands, result = [shapes.get(name, ()) for name in names], shapes[node.output[0]]
    by_rank = max(len(of_operands[0]), len(result)) > _LONGEST_MATRIX
    there = KnownNode(
        op, names, of_operands, result, {each.name: each for each in node.attribute},
        next((facts.first[name] for name in names if name in facts.first), by_rank), sum(map(bool, node.output)), facts,
        read.run.times,
    )  # fmt: skip
    if op in VECTOR_OPS and not prod(result):
        raise UnfitNode("it makes no elements")
    made = (ARRAY_OPS.get(op) or VECTOR_OPS[op])(there)
    for each in made.views.sources.values():
        if isinstance(each, OperandView) and each.shared and not there.in_all_runs(each.at):
            raise UnfitNode(f"its {each.shared} differ from one run of the model to the next")
    if op in VECTOR_OPS:
        return made
    bias = there.name(_BIAS_OPERANDS.get(op, len(names)))
    # Biases are one number for each output channel, stored in the model; a Gemm may add any other matrix as well.
    by_channel = op != "Gemm" or (bias in shapes and prod(shapes[bias][:-1]) == 1)
    if bias and bias in facts.constants and by_channel:
        made.sizes[BIASES] = True
    return made


def _inside(node: NodeProto) -> Iterator[str]:
    """Yield the operators of the array in the graphs inside a node."""
    inner: Counter[str] = Counter()
    left = [node]
    while left:
        for attribute in left.pop().attribute:
            for graph in (attribute.g, *attribute.graphs):
                left += graph.node
                inner.update(operator(each) for each in graph.node if operator(each) in ARRAY_OPS)
    if inner:
        yield f"{operator(node)} {called(node)} has inside {_listed(inner)}"


def _in_place(node: NodeProto, reals: Set[str]) -> str:
    """Return why a node of STAYING takes no time; reals that become whole numbers do not stay as they are."""
    casts = node.op_type in ("Cast", "CastLike")
    return reasons.ROUNDED if casts and node.input[0] in reals and node.output[0] not in reals else reasons.IN_PLACE


_UNLIKE = {
    **dict.fromkeys(("LpPool", "GlobalLpPool"), "pools take the largest element or the mean"),
    **dict.fromkeys(("Compress", "Gather", "GatherElements", "GatherND", "NonZero"), reasons.BY_VALUES),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), reasons.TO_PLACES),
    **dict.fromkeys(("TopK", "Unique"), reasons.SORTED),
    **dict.fromkeys(("ArgMax", "ArgMin"), reasons.PLACES),
    **dict.fromkeys(("Ceil", "DynamicQuantizeLinear", "Floor", "QuantizeLinear", "Round"), reasons.ROUNDED),
    "DequantizeLinear": "bytes become real numbers where they are read",
    **dict.fromkeys(
        ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"),
        reasons.TRUTH,
    ),
    **dict.fromkeys(("CumProd", "CumSum"), reasons.IN_TURN),
    "NonMaxSuppression": "boxes are left out one after another, as those before them say",
    **dict.fromkeys(("GridSample", "RoiAlign"), "where it samples follows from values"),
}
"""Reasons of operators that are like those of layers."""


def _listed(ops: Mapping[str, int]) -> str:
    return ", ".join(f"{op} {count:,}" for op, count in ops.items())


def _unknown(read: UnderstoodModel) -> str:
    """Describe all unknown ops at once."""
    left = read.left
    total = counted(left.not_known.total(), "op")
    why = f" ({few(left.reasons, MOST_TOLD, '; ', '; ...')})" if left.reasons else ""
    leave = "tpusim run or import leaves them out with --skip-unknown, and says so"
    settle = " ".join(f"--dim {shlex.quote(name)}=N" for name in sorted(read.whole.batch.names))
    if settle and any(ON_BATCH in reason for reason in left.reasons):
        leave = f"{settle} says how many there are; {leave}"
    elif settle and read.whole.batch.by_place and any(NO_MULTIPLE in reason for reason in left.reasons):
        leave = f"if its inputs begin with no number of images, give {settle} and batch 1; {leave}"
    return f"{total} not known here: {_listed(left.not_known)}{why}; {leave}"


def _document(read: UnderstoodModel, path: Path) -> Document:
    names, notes = Names(), [*_notes(read)]
    named = zip(layer_names(read.layers, names), read.layers, strict=True)
    layers = {node.output[0]: {"name": name, **_ordered(layer.sizes)} for name, (node, layer) in named}
    given = [each.name for each in inputs(read.graph)]
    opsets = ", ".join(f"{printable(each.domain)} {each.version}".strip() for each in read.whole.model.opset_import)
    maker = printable(f"{read.whole.model.producer_name} {read.whole.model.producer_version}".strip())
    origin = f"an ONNX model of opset {opsets}{f', made by {maker}' if maker else ''}"
    views = {node.output[0]: layer.views for node, layer in read.layers}
    known = read.values, read.facts.constants, {*read.same}
    called_, entries, lost = wired(read.graph, layers, views, given, *known, names, read.run)
    # Large weights are inputs of the graph by now. The file names only the ones that a layer reads as it reads a map.
    reads = {each for entry in entries for each in entry.get(INPUTS, ())}
    weights = {each for name, each in zip(given, called_, strict=False) if name in read.facts.constants}
    data = {
        "name": printable(path.stem) or "model",
        "source": f"{printable(path.name)}, {origin}",
        INPUTS: [each for each in called_ if each in reads or each not in weights],
        **read.left.counts(),
        "layers": entries,
    }
    nodes = {layers[node.output[0]]["name"]: node for node, _ in read.layers}
    moved = {
        f"layers[{index}].{key}": (f"{path}: {operator(node)} {called(node)}: {key}", index + 1)
        for index, entry in enumerate(entries)
        if (node := nodes.get(entry["name"])) is not None
        for key in entry
    }
    if lost:
        notes.append(f"what its layers read is not known: {lost}")
    return Document(str(path), data, {"": 1}, moved=moved, notes=tuple(notes), images=read.run.images)


def _ordered(sizes: LayerSizes) -> LayerSizes:
    """Order sizes as people write them: the map before the kernel that moves over it."""
    first = (
        "op", "kind", "channels", "height", "width", "in_channels", "in_length", "in_height", "in_width",
        "out_channels", "m", "n", "k",
    )  # fmt: skip
    return {key: sizes[key] for key in dict.fromkeys((*first, *sizes)) if key in sizes}


def _notes(read: UnderstoodModel) -> Iterator[str]:
    batch, run = read.whole.batch, read.run
    if read.missing:
        yield f"{read.missing}; layers are timed by their shapes, and checked with random ones"
    if batch.names:
        named = ", ".join(sorted(batch.names))
        yield f"the model leaves its batch open ({named}); layers are for the batch of a run"
    else:
        yield f"the model is for {counted(run.own, 'image')}; a larger batch is several runs, whose layers run together"
    if batch.dims:
        yield f"sizes given: {', '.join(f'{name}={size}' for name, size in batch.dims.items())}"
    if several := [called(node) for node, layer in read.layers if "count" in layer.sizes]:
        which = f"{counted(len(several), 'op')} of several maps an image ({several[0]}, ...)"
        yield f"{which}: a layer for each map"
    if any(layer.sizes["op"] not in _OF_THE_ARRAY for _, layer in read.layers):
        yield "pooling, sums and activations are layers of their own; a run of the array's ops alone leaves them out"
    if read.whole.taken:
        yield f"the branch that is taken of each If: {few(read.whole.taken, MOST_TOLD, more=', and {} more')}"
    if read.whole.steps:
        each = few(read.whole.steps, MOST_TOLD)
        yield f"recurrent networks are a product of all inputs, then one of the state a step; steps: {each}"
    if read.whole.expanded:
        yield f"taken as the operators that they are made of, or a part of: {_listed(read.whole.expanded)}"
    if read.same:
        yield f"{counted(len(read.same), 'batch normalization')} folded into the weights before: no time"
    if read.folded:
        yield f"{counted(read.folded, 'op')} of weights and shapes alone: worked out before the network runs, no time"
    yield from read.left.notes()


# ---- the graph, with its weights


def read_graph(path: Path, asked: ModelOptions, images: int) -> Graph:
    """Read the graph of a model for a number of `images`.

    Raises:
        InputError: as `read` does; or the model is for a number of images of which `images` is no multiple, or holds
            what is no array.
    """
    opened = OpenedModel.of(path, asked)
    if opened.missing:
        advice = "put them beside the model, or leave --input and --save-outputs out"
        raise InputError(Problem(f"{opened.missing}; {advice}", str(path)))
    read = understood(opened, RunBatch(images))
    own, graph = read.run.own, read.graph
    named = zip(read.layers, layer_names(read.layers, Names()), strict=True)
    layers = {node.output[0]: (name, layer.views) for (node, layer), name in named}

    def as_node(node: NodeProto) -> Node:
        plain = (each for each in node.attribute if each.type != AttributeProto.GRAPH)
        attributes = {each.name: _plain(each, path) for each in plain}
        own = layers.get(node.output[0], ()) if node.output else ()
        return Node(operator(node), called(node), tuple(node.input), tuple(node.output), attributes, *own)

    nodes = tuple(map(as_node, graph.node))
    kinds = {each.name: each.type.tensor_type.elem_type for each in graph.output}
    types = {name: np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else None for name, kind in kinds.items()}
    # None: the model names no type, or one that NumPy does not have, such as bfloat16.
    outputs = {name: dtype if dtype is None or dtype.isbuiltin == 1 else None for name, dtype in types.items()}
    sizes = read.whole.batch.sizes(own)
    whole = load(path)
    held = whole.graph
    if held.sparse_initializer:
        raise InputError(Problem("its weights are sparse, so that its values cannot be computed", str(path)))
    weights = {each.name: _array(each, path) for each in held.initializer}
    given = {name: each for name, each in _given(graph, sizes, path).items() if name not in weights}
    return Graph(str(path), given, outputs, nodes, weights, own, opset_of(read.whole.model))


def _given(graph: GraphProto, sizes: Mapping[str, int], path: Path) -> dict[str, GivenInput]:
    """Return the inputs from outside, with their open sizes set."""
    found: dict[str, GivenInput] = {}
    for value in inputs(graph):
        set_sizes(value, sizes)
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or kind.elem_type == TensorProto.STRING:
            says = f"the input {printable(value.name)} is no array of numbers, so that its values cannot be given"
            raise InputError(Problem(says, str(path)))
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        found[value.name] = GivenInput(np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)), shape)
    return found


def _array(tensor: TensorProto, path: Path) -> Values:
    try:
        return numpy_helper.to_array(tensor, str(path.parent))
    except Exception as error:  # The library raises what its C++ and the file system do, of no common class.
        says = f"the weights {printable(tensor.name)} cannot be read: {printable(str(error))}"
        raise InputError(Problem(says, str(path))) from None


def _plain(attribute: AttributeProto, path: Path) -> Any:
    """Return an attribute as a number, text, a list of them, or an array."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return _array(value, path)
    plain = [
        each.decode(errors="replace") if isinstance(each, bytes) else each
        for each in (value if isinstance(value, list) else [value])
    ]
    return plain if isinstance(value, list) else plain[0]
