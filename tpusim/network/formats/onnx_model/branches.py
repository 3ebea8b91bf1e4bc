"""Branches of a model: an If whose condition is known before the network runs gives way to what is in its branch.

Conditions follow from weights, from shapes, and from inputs that were given as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

from tpusim.network.formats.onnx_model.dims import Arrays, Batch, inputs
from tpusim.network.formats.onnx_model.file import called
from tpusim.network.formats.onnx_model.folding import MOST_ELEMENTS
from tpusim.network.formats.onnx_model.shapes import settled

_IF = "If"
_CONSTANT = "Constant"


class Branched(NamedTuple):
    """A model without the Ifs that could be settled: `taken` tells of these, `undecided` of the others, in words."""

    model: ModelProto
    taken: Sequence[str] = ()
    undecided: Sequence[str] = ()


def branched(model: ModelProto, batch: Batch, arrays: Arrays, path: Path) -> Branched:
    """The model, each If that can be settled replaced by its branch, those inside of branches too."""
    taken: list[str] = []
    while ifs := [node for node in model.graph.node if node.op_type == _IF]:
        known = [_conditions(model, ifs, batch.sizes(images), arrays, path) for images in batch.probed]
        alike = {name: value for name, value in known[0].items() if all(each.get(name) == value for each in known)}
        ready = [node for node in ifs if node.input[0] in alike]
        if not ready:
            return Branched(model, taken, [_undecided(model.graph, node, known, batch) for node in ifs])
        taken += [f"{called(node)} {'then' if alike[node.input[0]] else 'else'}" for node in ready]
        model = _replaced(model, alike)
    return Branched(model, taken)


def _conditions(
    model: ModelProto, ifs: Iterable[NodeProto], sizes: Mapping[str, int], arrays: Arrays, path: Path
) -> dict[str, bool]:
    """What conditions are, by name, of those that are known for such sizes."""
    sized = with_arrays(model, arrays)
    conditions = {node.input[0] for node in ifs}
    settled(sized, sizes, lambda _: conditions <= {each.name for each in sized.graph.initializer}, path)
    known = {each.name: each for each in sized.graph.initializer}
    values = {node.input[0]: numpy_helper.to_array(known[node.input[0]]) for node in ifs if node.input[0] in known}
    return {name: bool(each.reshape(-1)[0]) for name, each in values.items() if each.size == 1}


def with_arrays(model: ModelProto, arrays: Arrays) -> ModelProto:
    """A copy that holds the few whole numbers that are given for its inputs, such as a rate or a length."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for value in inputs(model.graph):
        array = arrays.get(value.name)
        wanted = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if array is not None and array.size <= MOST_ELEMENTS and array.dtype.kind in "iub" and wanted.kind in "iub":
            copy.graph.initializer.append(numpy_helper.from_array(array.astype(wanted), value.name))
    return copy


def _undecided(graph: GraphProto, node: NodeProto, known: Sequence[Mapping[str, bool]], batch: Batch) -> str:
    """Why nobody knows yet which branch is taken, and what would settle it."""
    name = called(node)
    if all(node.input[0] in each for each in known):
        return f"If {name}: the batch decides it; give --dim {min(batch.names)}=N"
    by = [each.name for each in inputs(graph) if each.name in _ancestors(graph, node.input[0])]
    if not by:
        return f"If {name}: what decides it is worked out in ways that are not known here"
    decides = f"{' and '.join(by)} {'decides' if len(by) == 1 else 'decide'} it"
    return f"If {name}: {decides}; tpusim run --input FILE.npz with {' and '.join(by)} in it settles that"


def _ancestors(graph: GraphProto, name: str) -> set[str]:
    """All values that one is made of."""
    found = {name}
    for node in reversed(graph.node):
        if found & {*node.output}:
            found |= {*read_by(node)}
    return found


def read_by(node: NodeProto) -> Iterator[str]:
    """What a node reads, the graphs inside it included, by name; what these make themselves, too."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (each.name for each in graph.output)
            yield from chain.from_iterable(map(read_by, graph.node))


# ---- putting a branch in the place of its If


def _replaced(model: ModelProto, known: Mapping[str, bool]) -> ModelProto:
    """With the branch of each If whose condition is known, and without what nobody reads any more."""
    changed = ModelProto()
    changed.CopyFrom(model)
    taken = names_in(changed.graph)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type == _IF and node.input[0] in known:
            nodes += _branch(node, known[node.input[0]], taken)
        else:
            nodes.append(node)
    del changed.graph.node[:]
    changed.graph.node.extend(_needed(nodes, {each.name for each in model.graph.output}))
    return changed


def names_in(graph: GraphProto) -> set[str]:
    """Names of all values of a graph."""
    given = chain((each.name for each in graph.input), (each.name for each in graph.initializer))
    return {*given, *(name for node in graph.node for name in node.output)}


def _branch(node: NodeProto, condition: bool, taken: set[str]) -> Iterator[NodeProto]:
    """The nodes of its branch, their weights constants among them, and what hands its results on.

    What they make is given another name where that is `taken`; all of it is taken then.
    """
    wanted = "then_branch" if condition else "else_branch"
    graph = next(each.g for each in node.attribute if each.name == wanted)
    own = [*(each.name for each in graph.initializer), *(name for each in graph.node for name in each.output if name)]
    renamed = {name: free(name, taken) for name in own}
    for tensor in graph.initializer:
        yield helper.make_node(_CONSTANT, [], [renamed[tensor.name]], value=tensor)
    for each in graph.node:
        yield _with_names(each, lambda name: renamed.get(name, name))
    for made, name in zip(graph.output, node.output, strict=True):
        if name:
            yield helper.make_node("Identity", [renamed.get(made.name, made.name)], [name], name=called(node))


def free(name: str, taken: set[str]) -> str:
    """The name, or the same with a number, that is not `taken`; it is then."""
    found = next(each for each in chain([name], (f"{name}_{at}" for at in count(2))) if each not in taken)
    taken.add(found)
    return found


def _with_names(node: NodeProto, name_of: Callable[[str], str]) -> NodeProto:
    """The node, of values of other names; graphs inside it read these."""
    copy = NodeProto()
    copy.CopyFrom(node)
    _rename(copy, name_of)
    return copy


def _rename(node: NodeProto, name_of: Callable[[str], str]) -> None:
    for names in (node.input, node.output):
        changed = [*map(name_of, names)]
        del names[:]
        names.extend(changed)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            for inner in attribute.g.node:
                _rename(inner, name_of)
            for made in attribute.g.output:
                made.name = name_of(made.name)


def _needed(nodes: Sequence[NodeProto], outputs: set[str]) -> list[NodeProto]:
    """Nodes on which outputs of the network depend."""
    read, kept = {*outputs}, list[NodeProto]()
    for node in reversed(nodes):
        if read & {*node.output}:
            read |= {*read_by(node)}
            kept.append(node)
    return kept[::-1]
