"""Functions of JAX as networks: what a function computes for given arguments, op by op, as layers; and the graph of its
values.

A function is traced, never compiled or run; only what follows from its constants alone is computed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pydantic import InstanceOf

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted, few
from tpusim.input.document import Document
from tpusim.input.form import validated
from tpusim.network.entries import INPUTS, Entry
from tpusim.network.formats import ModelOptions, Names, printable, reasons
from tpusim.network.formats.jax_function.flat import BACK, MOST_STEPS, flattened
from tpusim.network.formats.jax_function.layers import LAYERS, OF_THE_ARRAY, KnownPrimitive, layout_behind
from tpusim.network.formats.jax_function.named import named
from tpusim.network.formats.jax_function.nodes import FlatGraph
from tpusim.network.formats.jax_function.patterns import ENDLESS
from tpusim.network.formats.jax_function.sharded import localized, mesh_of
from tpusim.network.formats.layer_of_node import LayerOfNode, UnfitNode
from tpusim.network.formats.reasons import LeftOut
from tpusim.network.graph import Axes, GivenInput, Graph, Node, OperandView, Placement, TensorView, ValueExchange
from tpusim.network.ops import OPS
from tpusim.network.ops.op import Shape
from tpusim.network.workload import Workload
from tpusim.network.workload_file import workload_of
from tpusim.numerics.element_types import Values

NOT_TIMED = frozenset({
    "abs", "add", "add_any", "and", "argmax", "argmin", "axis_index", "broadcast_in_dim", "cbrt", "ceil", "clamp",
    "concatenate", "convert_element_type", "copy", "cos", "cumsum", "div", "dot_general", "dynamic_slice",
    "dynamic_update_slice", "eq", "erfc", "exp", "exp2", "expand_dims", "expm1", "floor", "gather", "ge", "gt",
    "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "mean", "min", "mul", "ne", "neg", "not",
    "or", "pad", "pow", "average_pool", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_precision",
    "reduce_prod", "reduce_sum", "reduce_window_max", "reduce_window_sum", "rem", "reshape", "rev", "round", "rsqrt",
    "scatter", "scatter-add", "select_and_scatter_add", "select_n", "sign", "sin", "slice", "split", "sqrt", "square",
    "squeeze", "sub", "tan", "tanh", "top_k", "transpose", "xor", "window_choice", "max_pool_gradient", "relu_gradient",
    "weighted_sum", "turn_table",
})  # fmt: skip
"""Primitives whose values are known, and that take no time unless they are layers (`layers`)."""
LAX = "lax."
"""The word before the names of primitives, some of which layers have, too."""
_WHY = {
    "cond": "values decide which branch is taken",
    "ragged_dot_general": "how many rows each product has follows from values; give whole numbers, not their shape",
    "scan": f"it has more than {MOST_STEPS:,} steps",
    "while": "values decide how often it goes round",
}
"""By primitive the reason why it is not known."""
_UNLIKE = {
    **dict.fromkeys(
        (
            "broadcast_in_dim", "concatenate", "copy", "expand_dims", "reshape", "slice", "split", "squeeze",
            "turn_table",
        ),
        reasons.IN_PLACE,
    ),
    **dict.fromkeys(("ceil", "floor", "reduce_precision", "round"), reasons.ROUNDED),
    **dict.fromkeys(
        ("and", "eq", "ge", "gt", "is_finite", "le", "lt", "ne", "not", "or", "reduce_and", "reduce_or", "xor"),
        reasons.TRUTH,
    ),
    **dict.fromkeys(("dynamic_slice", "gather"), reasons.BY_VALUES),
    **dict.fromkeys(("dynamic_update_slice", "scatter", "scatter-add"), reasons.TO_PLACES),
    **dict.fromkeys(("argmax", "argmin"), reasons.PLACES),
    "axis_index": "it is the place of a chip", "cumsum": reasons.IN_TURN, "top_k": reasons.SORTED,
    "convert_element_type": "its numbers are of another type where they are read",
}  # fmt: skip
"""By primitive the reason why it takes no time, whatever it works on."""
_SUMMED = "conv2d_filter_gradient"
"""The op that sums over the images of a batch: several layers cannot stand for one of more images."""
_BY_BATCH = frozenset({
    "conv1d", "conv2d", "conv_transpose2d", "pool2d", "pool2d_choice", "pool2d_gradient", "conv2d_input_gradient",
    _SUMMED,
})  # fmt: skip
"""Ops whose images are those of the batch."""


@validated
class JaxWorkload(Workload):
    """The workload that a function of JAX is, with the graph of its values.

    Attributes:
        graph: the nodes, of which some are layers, with the values of constants.
        arguments: the arguments of the function that are arrays, by name.
        document: the file that it would be written as, of which a sweep changes parts.
    """

    graph: InstanceOf[Graph] | None = field(default=None, compare=False, repr=False)
    arguments: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    document: InstanceOf[Document] | None = field(default=None, compare=False, repr=False)


@dataclass
class UnderstoodFunction:
    """A function made flat: which of its nodes are layers, and what the others are."""

    label: str
    name: str
    flat: FlatGraph
    layers: dict[str, LayerOfNode] = field(default_factory=dict)
    """By the first value that a node makes."""
    left: LeftOut = field(default_factory=LeftOut)
    mesh: tuple[tuple[str, int], ...] = ()
    """The chips that share it, of which this is one's share."""
    places: dict[str, Placement] = field(default_factory=dict)
    """By input and output how the whole of it is parted among them."""

    @property
    def batch(self) -> int:
        """Return the images that go through layers together: all that those have which count them."""
        return gcd(*(many for _, _, many in self.images())) or 1

    def images(self) -> list[tuple[str, str, int]]:
        """Return the images of the layers that count them, with the names of their nodes and their ops."""
        layers = ((node.name, self.layers.get(node.outputs[0])) for node in self.flat.nodes)
        return [
            (name, each.sizes["op"], each.sizes["images"])
            for name, each in layers
            if each and each.sizes["op"] in _BY_BATCH
        ]


def from_jax(function: Callable[..., Any], *arguments: Any, skip_unknown: bool, ops: str | None) -> JaxWorkload:
    """Return a function as a workload, for these arguments. Raises InputError."""
    name = getattr(function, "__name__", "function")
    read, given = understood(function, arguments, name, name, skip_unknown)
    document = _document(read)
    work = workload_of(document, read.batch, ops)
    plain = {each: getattr(work, each) for each in ("name", "batch", "layers", "source", "lowerings", "not_timed",
             "not_known", "sizes", "edges", "riders", "biases", "chips", "mesh", "collectives")}  # fmt: skip
    return JaxWorkload(**plain, graph=_graph(read), arguments=given, document=document)


def read(path: Path, asked: ModelOptions) -> Document:
    """Read the function that FILE.py:NAME names as a workload. Raises InputError."""
    return _document(_read(path, asked))


def read_graph(path: Path, asked: ModelOptions, images: int) -> Graph:
    """Read the graph of such a function, which is for one number of images alone. Raises InputError."""
    found = _read(path, asked)
    if images != found.batch:
        raise InputError(Problem(f"its shapes are for {counted(found.batch, 'image')}; give that batch", str(path)))
    return _graph(found)


def _read(path: Path, asked: ModelOptions) -> UnderstoodFunction:
    return understood(*named(path, asked), str(path), str(path).rpartition(":")[2], asked.skip_unknown)[0]


# ---- what a function computes


def understood(
    function: Callable[..., Any], arguments: Sequence[Any], label: str, name: str, skip_unknown: bool
) -> tuple[UnderstoodFunction, dict[str, Values]]:
    """Trace a function; return what there is to know of it, and its arguments that are arrays.

    Raises InputError where it cannot be traced, has primitives that are unknown here, unless they are skipped, or no
    layers.
    """
    try:
        with mesh_of(arguments):
            closed, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
    except Exception as error:  # The function is the user's, and may raise anything.
        says = f"JAX cannot trace it for these arguments: {printable(' '.join(str(error).split()))}"
        raise InputError(Problem(says, label)) from None
    names = Names()
    inputs = [names.take(each) for each in _argument_names(function, arguments)]
    outputs = [names.take(f"output{_place(path)}") for path, _ in jax.tree_util.tree_flatten_with_path(out)[0]]
    leaves = jax.tree_util.tree_leaves(arguments)
    given = {
        name: _plain(leaf) for name, leaf in zip(inputs, leaves, strict=True)
        if not isinstance(leaf, jax.ShapeDtypeStruct)
    }  # fmt: skip
    closed, mesh, placed = localized(closed, label)
    places = dict(zip((*inputs, *outputs), placed, strict=True)) if mesh else {}
    sizes = {name: value for name, value in given.items() if not any(places.get(name, ()))}

    def flat(batch: int = 0) -> UnderstoodFunction:
        found = flattened(closed, inputs, outputs, batch, sizes, dict(mesh))
        read = UnderstoodFunction(label, printable(name), found, mesh=mesh, places=places)
        _find_layers(read)
        return read

    read = flat()
    # The way there says what the batch is: on the way back, channels may stand in the place of images.
    there = gcd(*(many for name, _, many in read.images() if not name.startswith(BACK)))
    # Where layers still sum over other images, only those over one image stay: the others are products.
    for batch in (there or read.batch, 1):
        summed = all(many == read.batch for _, op, many in read.images() if op == _SUMMED)
        if summed and read.batch == (there or read.batch):
            break
        read = flat(batch)
    if read.left.not_known and not skip_unknown:
        raise InputError(Problem(_unknown(read), label))
    if not read.layers:
        why = f": {read.left.why_untimed()}" if read.left.untimed else ""
        raise InputError(Problem(f"nothing that it computes could be run as a layer{why}", label))
    return read, given


def _argument_names(function: Callable[..., Any], arguments: Sequence[Any]) -> Iterator[str]:
    """Yield a name for each array among the arguments: that of the parameter, and its place in it."""
    try:
        called = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        called = []
    alone = [each.name for each in called if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    for at, argument in enumerate(arguments):
        base = alone[at] if at < len(alone) else f"argument_{at}"
        for path, _ in jax.tree_util.tree_flatten_with_path(argument)[0]:
            yield f"{base}{_place(path)}"


def _place(path: Sequence[Any]) -> str:
    """Write the place of an array in lists, tuples and dicts, such as ".layers.0.weights"."""
    words = re.findall(r"[\w-]+", jax.tree_util.keystr(tuple(path)))
    return "".join(f".{word}" for word in words)


def _find_layers(read: UnderstoodFunction) -> None:
    """Sort the nodes: layers, what takes no time, and what is unknown."""
    flat, layouts = read.flat, dict[str, Axes | None]()
    makers = {name: node.op for node in flat.nodes for name in node.outputs}
    for node in flat.nodes:
        if node.exchange:
            layouts[node.outputs[0]] = layouts.get(node.inputs[0])
            continue
        known = KnownPrimitive(
            node,
            [flat.shapes[name] for name in node.inputs],
            flat.shapes[node.outputs[0]],
            [layouts.get(name) for name in node.inputs],
            [flat.number(name) for name in node.inputs],
            [name in flat.constants for name in node.inputs],
        )
        try:
            if node.op not in LAYERS or (node.op == "select_n" and makers.get(node.inputs[2]) in ENDLESS):
                raise UnfitNode(flat.refused.get(node.outputs[0]) or _WHY.get(node.op, ""))
            made = _as_layer(known, flat)
            read.layers[node.outputs[0]], layout = made, made.views.result.axes
            # One that was chosen for another operand alone is not handed on.
            own = "other" not in made.sizes or layout == known.layout
            layouts[node.outputs[0]] = layout if layout[0] and own else None
        except (UnfitNode, InputError) as error:
            layouts[node.outputs[0]] = layout_behind(known)
            why = ", ".join(str(error).splitlines())
            whole = flat.types[node.outputs[0]].kind in "iub"
            if node.op not in NOT_TIMED or (node.op in OF_THE_ARRAY and (not whole or "bytes" in why)):
                read.left.not_known[f"{LAX}{node.op}"] += 1
                read.left.reasons += [f"{node.name}: {why}"] if why else []
            else:
                read.left.take_no_time(f"{LAX}{node.op}", _UNLIKE.get(node.op, "") or why or reasons.NO_LAYER)


def _as_layer(known: KnownPrimitive, flat: FlatGraph) -> LayerOfNode:
    """Return the layer that a node is. Raises UnfitNode, or InputError for sizes of which no layer can be."""
    node = known.node
    types = [flat.types[name] for name in (*node.inputs[node.op == "select_n" :], *node.outputs)]
    bytes_ = node.op in _OF_BYTES and all(each.name in _BYTES for each in types[:2])
    if bytes_ and types[-1].name != "int32":
        raise UnfitNode(f"its sums of bytes are {types[-1].name}; ask for preferred_element_type=jnp.int32")
    if not bytes_ and any(each.kind in "iubc" or each.name in _BYTES for each in types):
        raise UnfitNode("it works on whole numbers")
    if not prod(known.result) or not all(map(prod, known.shapes)):
        raise UnfitNode("it has no elements")
    single = prod(known.result) == 1 and max(map(prod, known.shapes)) == 1
    if single and node.op not in OF_THE_ARRAY:
        raise UnfitNode("it works on one number")
    made = LAYERS[node.op](known)
    if bytes_:
        made = made._replace(views=replace(made.views, whole=True))
    sizes = {key: each for key, each in made.sizes.items() if key not in ("op", "count")}
    if made.sizes["op"] in _BY_BATCH:
        del sizes["images"]
    build: Any = OPS[made.sizes["op"]]
    build(name="layer", **sizes)
    return made


def _unknown(read: UnderstoodFunction) -> str:
    """Describe all that is unknown at once."""
    firsts: dict[str, str] = {}
    for node in read.flat.nodes:
        given = ", ".join(f"{read.flat.types[name]}{[*read.flat.shapes[name]]}" for name in node.inputs) or "nothing"
        line = read.flat.lines.get(node.outputs[0], "")
        firsts.setdefault(f"{LAX}{node.op}", f"{given} at {line}" if line else given)
    told = ", ".join(f"{op} {many:,} (first of {firsts[op]})" for op, many in read.left.not_known.items())
    why = f": {few(read.left.reasons, reasons.MOST_TOLD, '; ', '; ...')}" if read.left.reasons else ""
    total = counted(read.left.not_known.total(), "primitive")
    return (
        f"{total} not known here: {told}{why}; --skip-unknown, skip_unknown=True in Python, "
        "leaves them out, and says so"
    )


# ---- as a workload, and as a graph


_OF_BYTES = frozenset({"conv_general_dilated", "dot_general"})
"""Primitives that multiply bytes, if their sums are of 32 bits."""
_BYTES = frozenset({"int4", "int8", "uint4", "uint8"})
"""Types whose numbers an array multiplies as bytes."""
_SHORT = {"conv_general_dilated": "conv", "dot_general": "dot", "reduce_window_max": "max_pool", "add_any": "add"}
"""Names of layers, where those of primitives are long."""


def _entries(read: UnderstoodFunction) -> dict[str, str]:
    """Return the names of the layers' entries, by the value that they make."""
    names, found = Names(), dict[str, str]()
    for name in read.flat.inputs:
        names.take(name)
    for node in read.flat.nodes:
        layer = read.layers.get(node.outputs[0])
        if layer is not None or node.exchange:
            called, line = node.name, read.flat.lines.get(node.outputs[0], "")
            if node.op in _SHORT and called.endswith(node.op):
                called = f"{called.removesuffix(node.op)}{_SHORT[node.op]}"
            wanted = f"{called}@{line}" if line else called
            found[node.outputs[0]] = names.take(wanted, layer is not None and "count" in _sizes(layer, read.batch))
    return found


def _sizes(layer: LayerOfNode, batch: int) -> dict[str, Any]:
    """Return a layer's sizes for a batch: where it has more images than that, several layers stand for it."""
    sizes = dict(layer.sizes)
    images = sizes.get("images")
    if sizes["op"] in _BY_BATCH:
        del sizes["images"]
        assert isinstance(images, int)
        if images != batch:
            sizes["count"] = images // batch
    elif images == batch:
        del sizes["images"]
    return sizes


def _document(read: UnderstoodFunction) -> Document:
    entries = [*_FunctionWires(read).entries()]
    made = {entry["name"] for entry in entries}
    given = dict.fromkeys(each for entry in entries for each in entry[INPUTS] if each not in made)
    data = {
        "name": read.name,
        "source": f"{printable(read.label)}, a function of JAX {jax.__version__}",
        INPUTS: [*given],
        **read.left.counts(),
        **({"share_of": dict(read.mesh), "chips": prod(many for _, many in read.mesh)} if read.mesh else {}),
        "layers": entries,
    }
    images = any(each.sizes["op"] in _BY_BATCH for each in read.layers.values())
    says = f"its convolutions and pools have {counted(read.batch, 'image')}: that is the batch"
    alone = "it has no convolution or pool, so that the batch is 1; products have their own sizes"
    notes = says if images else alone, *read.left.notes()
    return Document(read.label, data, {"": 1}, notes=notes, images=read.batch)


class _FunctionWires:
    """The entries of a workload, one after another, and which reads which."""

    def __init__(self, read: UnderstoodFunction) -> None:
        self._read, self._names, self._entry_of = read, Names(), _entries(read)
        for name in (*read.flat.inputs, *self._entry_of.values()):
            self._names.take(name)
        self._at: dict[str, tuple[str, Shape | None, Axes | None]] = {
            name: (name, None, None) for name in read.flat.inputs}  # fmt: skip
        """By value the entry that it is the output of, the shape and the axes in which that makes it; None for an input
        that nobody has read.
        """
        self._of: dict[str, tuple[str, ...]] = {name: (name,) for name in read.flat.inputs}
        """By value the entries that it is made of."""
        self._from_layers = set[str]()
        self._views = dict[tuple[str, Shape, Axes], str]()

    def entries(self) -> Iterator[Entry]:
        """Yield layers, and entries that take no time, each behind what it reads."""
        for node in self._read.flat.nodes:
            value = node.outputs[0]
            if node.exchange:
                yield self._exchange(node, node.exchange)
                continue
            if value in self._entry_of:
                yield from self._layer(node)
                continue
            of = tuple({each: 0 for name in node.inputs for each in self._of.get(name, ())})
            if of:
                self._of |= dict.fromkeys(node.outputs, of)
            if self._from_layers & {*node.inputs}:
                self._from_layers |= {*node.outputs}
            if joined := self._joined(node):
                yield joined

    def _layer(self, node: Node) -> Iterator[Entry]:
        value, batch = node.outputs[0], self._read.batch
        layer, name = self._read.layers[value], self._entry_of[value]
        sizes = _sizes(layer, batch)
        made: list[str] = []
        for number, source in enumerate(layer.views.sources.values()):
            if not isinstance(source, OperandView):
                continue
            read = node.inputs[source.at]
            # Weights are given, or worked out from what is given; the first tensor is always read.
            if number and (read not in self._from_layers or len(made) < number):
                continue
            if read not in self._of:
                # A map that the function holds itself is an input to its layers.
                self._of[read], self._at[read] = (read,), (read, None, None)
            shape = source.view.sizes(source.view.shape or self._read.flat.shapes[read])
            yield from self._seen(read, shape, source.view.axes, "count" in sizes, made)
        yield {"name": name, "op": sizes.pop("op"), INPUTS: made, **sizes}
        result = layer.views.result
        self._of[value] = (name,)
        self._from_layers.add(value)
        if "count" not in sizes:
            self._at[value] = name, result.sizes(result.shape), result.axes

    def _exchange(self, node: Node, exchange: ValueExchange) -> Entry:
        """Return the entry of what chips exchange; readers take its outcome in whatever shape."""
        value, name, shapes = node.outputs[0], self._entry_of[node.outputs[0]], self._read.flat.shapes
        # What the function holds itself is an input.
        of = self._of.get(node.inputs[0], (node.inputs[0],))
        self._of[value], self._at[value] = (name,), (name, None, None)
        self._from_layers.add(value)
        elements = prod(shapes[value if exchange.op == "all_gather" else node.inputs[0]])
        return {"name": name, "op": "collective", "does": exchange.op, INPUTS: [*of], "over": [*exchange.over],
                "elements": elements}  # fmt: skip

    def _seen(self, value: str, shape: Shape, axes: Axes, part: bool, made: list[str]) -> Iterator[Entry]:
        """Add to `made` the entry that a layer reads a value as, and yield it if it is new: a view of what makes the
        value, unless that makes exactly this.
        """
        name, known, order = self._at.get(value, ("", None, None))
        if name and known is None:
            known, order = shape, axes
            if not part:
                self._at[value] = name, shape, axes
        if name and (part or (known, order) == (shape, axes)):
            made.append(name)
            return
        if (value, shape, axes) not in self._views:
            view = self._names.take(f"{value}.view")
            self._views[value, shape, axes] = view
            channels, height, width, images = shape
            yield {"name": view, "op": "view", INPUTS: [*self._of[value]], "channels": channels, "height": height,
                   "width": width, "images": images}  # fmt: skip
        made.append(self._views[value, shape, axes])

    def _joined(self, node: Node) -> Entry | None:
        """Return the entry of maps that stand side by side along the channels, if a node is that."""
        places = [self._at.get(name) for name in node.inputs]
        if node.op != "concatenate" or not all(each and each[1] for each in places):
            return None
        orders = {each[2] for each in places if each}
        (axes,) = orders if len(orders) == 1 else (None,)
        if axes is None or axes[0] != (node.attributes["dimension"],):
            return None
        name, value = self._names.take(node.name), node.outputs[0]
        shape = TensorView(axes).sizes(self._read.flat.shapes[value])
        self._at[value], self._of[value] = (name, shape, axes), (name,)
        return {"name": name, "op": "concat", INPUTS: [each[0] for each in places if each]}


def _graph(read: UnderstoodFunction) -> Graph:
    """Return the nodes with their layers, and the constants."""
    flat, entries = read.flat, _entries(read)
    nodes = tuple(
        node if node.exchange else
        replace(node, op=f"{LAX}{node.op}", layer=entries[node.outputs[0]], views=read.layers[node.outputs[0]].views)
        if node.outputs[0] in entries else replace(node, op=f"{LAX}{node.op}") for node in flat.nodes
    )  # fmt: skip
    used = {name for node in nodes for name in node.inputs}
    constants = {name: _plain(value) for name, value in flat.constants.items() if name in used}
    given = {name: GivenInput(_type(flat.types[name]), flat.shapes[name]) for name in flat.inputs}
    outputs = {name: _type(flat.types[name]) for name in flat.outputs}
    return Graph(read.label, given, outputs, nodes, constants, read.batch, 0, read.mesh, read.places)


def _plain(value: Any) -> Values:
    """Return an array of JAX as one of NumPy, which has no bfloat16, and no numbers of four bits."""
    made = np.asarray(value)
    return made.astype(_type(made.dtype), copy=False)


def _type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.name in ("int4", "uint4"):
        return np.dtype(dtype.name.replace("4", "8"))
    return dtype if dtype.isbuiltin == 1 else np.dtype(np.float32)
