"""The layers of a model that each layer reads: outputs of its nodes, as the entries of a workload file name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from math import prod

from onnx import GraphProto, NodeProto

from tpusim.base.errors import InputError
from tpusim.network.entries import INPUTS, Entry, EntryOutput, Wiring, read_layers
from tpusim.network.formats import Names
from tpusim.network.formats.onnx_model.dims import ModelRun
from tpusim.network.formats.onnx_model.file import called
from tpusim.network.formats.onnx_model.shapes import InferredGraph, ValueShape
from tpusim.network.graph import IMAGES, Axes, NodeViews, OperandView, TensorView
from tpusim.network.ops.op import BATCH, Shape
from tpusim.network.workload import INPUT

_SAME = frozenset({"Dropout", "Identity"})
_MAP_AXES = 4
_ROWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


def wired(
    graph: GraphProto, layers: Mapping[str, Entry], views: Mapping[str, NodeViews], given: Sequence[str],
    values: InferredGraph, constants: Set[str], same: Set[str], names: Names, run: ModelRun,
) -> tuple[Sequence[str], Sequence[Entry], str]:  # fmt: skip
    """Return the names of a network's inputs; entries with the names of what they read, entries that take no time among
    them; and why entries do not name that, if they do not.

    `layers` are entries, and `views` what they read and make, by the first result of their nodes; `given` are the
    network's inputs, `same` results that are no other than the first operands; `names` has those of layers.
    """
    inputs = {name: names.take(name) for name in given or (INPUT,)}
    try:
        entries = [*_Wires(graph, layers, views, inputs, values, constants, same, names, run).entries()]
    except InputError as error:
        return [], [*layers.values()], error.problems[0].message
    return [*inputs.values()], entries, ""


class _Wires:
    """The nodes of a model, one after another, and the entries that hold their results."""

    def __init__(
        self, graph: GraphProto, layers: Mapping[str, Entry], views: Mapping[str, NodeViews], inputs: Mapping[str, str],
        values: InferredGraph, constants: Set[str], same: Set[str], names: Names, run: ModelRun,
    ) -> None:  # fmt: skip
        self._graph, self._layers, self._same, self._names = graph, layers, same, names
        self._shapes, self._constants = values.shapes, constants
        self._layer_views, self._runs = views, run.times
        self._batch, self._sizes = run.images, {BATCH: run.images}
        self._wiring = Wiring([*inputs.values()], run.images, ())
        self._first = next(iter(inputs.values()))
        self._at = dict(inputs)
        """By value the entry whose output is exactly that value."""
        self._of = dict[str, tuple[str, ...]]()
        """By other values the entries whose outputs they are made of."""
        self._places = dict[str, tuple[Axes, int]]()
        """By value where its elements stand in the output of its entry, as far as that is known."""
        self._views = dict[tuple[str, Shape], str]()
        self._makers = {name: node for node in graph.node for name in node.output}

    def entries(self) -> Iterator[Entry]:
        """Yield the layers, and entries that take no time, each behind what it reads."""
        for node in self._graph.node:
            if not node.output or all(name in self._constants for name in node.output):
                continue
            entry = self._layers.get(node.output[0])
            read = [name for name in node.input if name and name not in self._constants]
            if entry is not None:
                yield from self._layer(entry, node, read)
            elif node.op_type in _SAME or node.output[0] in self._same:
                self._pass_on(node, read[:1])
            elif made := self._free(node, read):
                yield self._added(made)
                self._at[node.output[0]] = made["name"]
            # `_free` may have found that the value is one already known.
            elif node.output[0] not in self._at:
                self._pass_on(node, read, changed=True)

    def _pass_on(self, node: NodeProto, read: Sequence[str], changed: bool = False) -> None:
        """Follow values through a node that is not simulated."""
        if not changed and read and read[0] in self._at:
            self._at[node.output[0]] = self._at[read[0]]
            if read[0] in self._places:
                self._places[node.output[0]] = self._places[read[0]]
            return
        of = tuple(dict.fromkeys(each for name in read for each in self._entries_of(name))) or (self._first,)
        self._of |= dict.fromkeys(node.output, of)

    def _entries_of(self, value: str) -> tuple[str, ...]:
        return (self._at[value],) if value in self._at else self._of.get(value, (self._first,))

    def _layer(self, entry: Entry, node: NodeProto, read: Sequence[str]) -> Iterator[Entry]:
        (*layers,) = read_layers(entry, self._sizes).layers
        wanted = [*layers[0].reads(self._batch).values()]
        if layers[0].unit != "array":
            # In the order in which the layer has them, as it takes its sizes from the first.
            sources = self._layer_views[node.output[0]].sources.values()
            order = [node.input[each.at] for each in sources if isinstance(each, OperandView)]
            read = [name for name in order if name in read]
        read = read[: len(wanted)] or [""]
        inputs: list[str] = []
        for name, shape in zip(read, wanted, strict=False):
            whole = (*shape[:3], shape[3] * len(layers))
            made = self._made(name)
            # Each of several layers reads a part.
            fits = made is not None and ("count" in entry or (made.fits(shape) and self._stands(name, node)))
            if not fits and (name, whole) not in self._views:
                view = self._view(name, whole)
                yield self._added(view)
                self._views[name, whole] = view["name"]
            inputs.append(self._views.get((name, whole)) or self._at[name])
        yield self._added({**{key: entry[key] for key in ("name", "op")}, INPUTS: inputs, **entry})
        self._at[node.output[0]] = entry["name"]
        if (places := self._seen(self._layer_views[node.output[0]].result, node.output[0])) is not None:
            self._places[node.output[0]] = places

    def _stands(self, value: str, reader: NodeProto) -> bool:
        """Return whether a layer reads a value in the places where it stands; sizes may be equal by chance."""
        sources = self._layer_views[reader.output[0]].sources.values()
        views = (each.view for each in sources if isinstance(each, OperandView) and reader.input[each.at] == value)
        places = next((self._seen(view, value) for view in views), None)
        # The first that reads an input of the network settles where its elements stand.
        return places is None or self._places.setdefault(value, places) == places

    def _seen(self, view: TensorView, value: str) -> tuple[Axes, int] | None:
        """Return the places of a value's elements in a tensor, and the axis along which several runs stand."""
        shape = self._shape(value)
        if not view.axes or (view.spread or view.shape or shape) != shape:
            return None
        return view.places(shape), view.images if self._runs > 1 else IMAGES

    def _made(self, value: str) -> EntryOutput | None:
        return self._wiring.made.get(self._at[value]) if value in self._at else None

    def _added(self, entry: Entry) -> Entry:
        read_layers(entry, self._sizes, self._wiring)
        return entry

    def _view(self, value: str, shape: Shape) -> Entry:
        """Return an entry between a layer and its input, of the size that the layer reads."""
        maker = self._makers.get(value)
        channels, height, width, images = shape
        return {
            "name": self._names.take(called(maker) if maker is not None else value or "view"),
            "op": "view",
            INPUTS: [*self._entries_of(value)],
            "channels": channels,
            "height": height,
            "width": width,
            **({"images": images} if images != self._batch else {}),
        }

    # ---- what takes no time and is no view

    def _free(self, node: NodeProto, read: Sequence[str]) -> Entry | None:
        """Return the entry that a node is, or None; a node that makes nothing new is only remembered."""
        if node.op_type == "Concat":
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            maps = [self._map(name) for name in read]
            if len(read) < len(node.input) or None in maps or axis not in (1, 1 - len(self._shape(read[0]))):
                return None
            return {"name": self._names.take(called(node)), "op": "concat", INPUTS: [self._at[name] for name in read]}
        if node.op_type not in _ROWS or len(read) != 1 or read[0] not in self._at:
            return None
        (value,), result, at = read, self._shape(node.output[0]), self._at[read[0]]
        before, shape = self._shape(value), self._map(value)
        if min(len(before), len(result)) >= _MAP_AXES and (before[0], before[-2:]) == (result[0], result[-2:]):
            # Channels in groups, or groups as channels again, keep their places: images, rows and columns stay.
            self._at[node.output[0]] = at
            return None
        # In other cases, axis 1 has to hold all elements of an image.
        if shape is None or not result or prod(result[2:]) != 1 or result[:2] != (before[0], prod(shape[:3])):
            return None
        if shape[1] * shape[2] == 1:
            self._at[node.output[0]] = at
            return None
        return {"name": self._names.take(called(node)), "op": "flatten", INPUTS: [at]}

    def _map(self, value: str) -> Shape | None:
        """Return the map that an entry outputs, if the value has the axes images, channels, rows, columns in this
        order.
        """
        made, shape = self._made(value), self._shape(value)
        if made is None or made.shape is None or len(shape) < 2:
            return None
        channels, *sides = shape[1:]
        rows, cols = [1] * (2 - len(sides)) + sides if len(sides) <= 2 else (prod(sides[:-1]), sides[-1])
        return made.shape if made.shape[:3] == (channels, rows, cols) else None

    def _shape(self, value: str) -> ValueShape:
        return self._shapes.get(value, ())
