"""Turns of points by their positions, as one node each: rotary embeddings, however they are written out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from tpusim.network.formats.jax_function.nodes import FlatGraph, scope_of
from tpusim.network.graph import Node


class _Part(NamedTuple):
    """Half of the channels of a value: the first or second half, or, where pairs stand side by side, every second."""

    of: str
    pairs: bool
    number: int


class _Term(NamedTuple):
    """A product of a value, or of a part of one, with a table, and its sign."""

    sign: int
    value: str
    table: str


def with_turns(flat: FlatGraph) -> Iterator[Node]:
    """Yield the nodes, with one in the place of those that turn points by tables of cosines and sines: half of the
    channels are one coordinate, or every second.
    """
    for node in flat.nodes:
        found = None
        if node.op in ("concatenate", "reshape", "add", "sub") and flat.is_real(node.outputs[0]):
            found = _turned_parts(flat, node) or _turned_whole(flat, node)
        yield from found or (node,)


def _terms(flat: FlatGraph, name: str, sign: int = 1) -> list[_Term]:
    """Return the two products whose sum or difference a value is; [] for any other value."""
    node = flat.makers.get(flat.of_reals(name))
    if node is None or node.op not in ("add", "sub"):
        return []
    signs = sign, -sign if node.op == "sub" else sign
    found = [_term(flat, each, one) for each, one in zip(node.inputs, signs, strict=True)]
    return [each for each in found if each] if all(found) else []


def _term(flat: FlatGraph, name: str, sign: int) -> _Term | None:
    node = flat.makers.get(flat.of_reals(name))
    if node and node.op == "neg":
        return _term(flat, node.inputs[0], -sign)
    if node is None or node.op != "mul":
        return None
    sizes = [prod(flat.shapes[each]) for each in node.inputs]
    constant = [each in flat.constants for each in node.inputs]
    # The table is a constant, or has fewer elements.
    at = constant.index(True) if any(constant) else sizes.index(min(sizes))
    value, table = node.inputs[1 - at], node.inputs[at]
    if flat.shapes[value] != flat.shapes[node.outputs[0]] or not (any(constant) or min(sizes) < max(sizes)):
        return None
    return _Term(sign, flat.of_reals(value), flat.of_reals(table))


def _part(flat: FlatGraph, name: str) -> tuple[int, _Part] | None:
    """Return of which value another is half of the channels, the last axis, and its sign."""
    sign, name = 1, flat.of_reals(name)
    while node := flat.made_by(name, "neg"):
        sign, name = -sign, flat.of_reals(node.inputs[0])
    node = flat.made_by(name, "squeeze", "reshape")
    pairs = node is not None and flat.shapes[node.inputs[0]] == (*flat.shapes[name], 1)
    found = _cut(flat, node.inputs[0] if node and pairs else name, pairs)
    return (sign, found) if found else None


def _cut(flat: FlatGraph, name: str, pairs: bool) -> _Part | None:
    node = flat.makers.get(name)
    if node is None or node.op not in ("slice", "split"):
        return None
    source, shape = node.inputs[0], flat.shapes[node.inputs[0]]
    last, width = len(shape) - 1, shape[-1]
    if node.op == "split":
        sizes = [int(each) for each in node.attributes["sizes"]]
        if node.attributes["axis"] != last or len(sizes) != 2 or sizes[0] != sizes[1]:
            return None
        number, step = node.outputs.index(name), 1
    else:
        said, strides = node.attributes, node.attributes["strides"] or (1,) * len(shape)
        outer = zip(said["start_indices"], said["limit_indices"], strides, shape, strict=True)
        if any((start, end, step) != (0, size, 1) for start, end, step, size in [*outer][:-1]):
            return None
        start, end, step = said["start_indices"][-1], said["limit_indices"][-1], strides[-1]
        if step == 2 and start in (0, 1) and -(-(end - start) // 2) * 2 == width and not pairs:
            return _Part(flat.of_reals(source), True, int(start))
        if step != 1 or 2 * (end - start) != width or start not in (0, width // 2):
            return None
        number = int(start > 0)
    if not pairs:
        return _Part(flat.of_reals(source), False, number)
    # Pairs stand along an axis of their own.
    node = flat.made_by(source, "reshape")
    if not node or width != 2:
        return None
    before = flat.shapes[node.inputs[0]]
    if before != (*shape[:-2], 2 * shape[-2]):
        return None
    return _Part(flat.of_reals(node.inputs[0]), True, number)


def _joined(flat: FlatGraph, node: Node) -> tuple[str, str, bool] | None:
    """Return two values that a node joins along the last axis, and whether their elements stand in pairs."""
    shape, pairs = flat.shapes[node.outputs[0]], node.op == "reshape"
    if pairs:
        inner = flat.made_by(node.inputs[0], "concatenate")
        if not inner or flat.shapes[node.inputs[0]] != (*shape[:-1], shape[-1] // 2, 2):
            return None
        node = inner
    if node.op != "concatenate" or len(node.inputs) != 2:
        return None
    one, other = node.inputs
    if node.attributes["dimension"] != len(flat.shapes[one]) - 1 or flat.shapes[one] != flat.shapes[other]:
        return None
    if not pairs:
        return one, other, False
    if flat.shapes[one][-1] != 1:
        return None
    makers = [flat.made_by(each, "reshape", "broadcast_in_dim", "expand_dims") for each in (one, other)]
    first, second = makers
    if not first or not second or any(flat.shapes[each.inputs[0]] != flat.shapes[one][:-1] for each in (first, second)):
        return None
    return first.inputs[0], second.inputs[0], True


def _turned_parts(flat: FlatGraph, node: Node) -> list[Node] | None:
    """Read points that turn coordinate by coordinate: x cos - y sin, and y cos + x sin."""
    joined = _joined(flat, node)
    if not joined:
        return None
    tables: list[list[tuple[int, str]]] = []
    sources = set[tuple[str, bool]]()
    for at, name in enumerate(joined[:2]):
        terms = [*_terms(flat, name)]
        found = [(term, _part(flat, term.value)) for term in terms]
        if len(found) != 2:
            return None
        both: dict[int, tuple[int, str]] = {}
        for term, part in found:
            if part is None:
                return None
            sign, half = part
            sources.add((half.of, half.pairs))
            both[half.number] = sign * term.sign, term.table
        if len(both) != 2:
            return None
        tables.append([both[at], both[1 - at]])
    if len(sources) != 1 or next(iter(sources))[1] != joined[2]:
        return None
    (first, second), source = tables, next(iter(sources))[0]
    return _turn(flat, node, source, joined[2], (first[0], second[0]), (first[1], second[1]))


def _turned_whole(flat: FlatGraph, node: Node) -> list[Node] | None:
    """Read points that turn all at once: x cos + y sin, where y is x with its coordinates exchanged, one negative."""
    if node.op not in ("add", "sub") or flat.shapes[node.outputs[0]][-1:] in ((), (1,)):
        return None
    terms = [*_terms(flat, node.outputs[0])]
    if len(terms) != 2:
        return None
    for plain, turned in (terms, terms[::-1]):
        maker = flat.makers.get(turned.value)
        joined = _joined(flat, maker) if maker and maker.op in ("concatenate", "reshape") else None
        if not joined:
            continue
        parts = [_part(flat, each) for each in joined[:2]]
        first, second = parts
        if not first or not second or (first[1].number, second[1].number) != (1, 0):
            continue
        if any(part.of != plain.value or part.pairs != joined[2] for _, part in (first, second)):
            continue
        width = flat.shapes[node.outputs[0]][-1]
        if any(flat.shapes[term.table][-1:] != (width,) for term in terms):
            continue
        signs = tuple(sign * turned.sign for sign, _ in (first, second))
        sin = [(sign, turned.table) for sign in signs]
        return _turn(flat, node, plain.value, joined[2], [(plain.sign, plain.table)], sin)
    return None


def _turn(
    flat: FlatGraph,
    node: Node,
    source: str,
    pairs: bool,
    cos: Sequence[tuple[int, str]],
    sin: Sequence[tuple[int, str]],
) -> list[Node] | None:  # fmt: skip
    """Return the node of a turn behind those of its tables, which have a column for each channel, those of the first
    coordinate ahead. `cos` and `sin` are signs and tables: of each coordinate, or one for all channels.
    """
    shape = flat.shapes[node.outputs[0]]
    names = [name for _, name in (*cos, *sin)]
    if flat.shapes[source] != shape or shape[-1] % 2 or not flat.closed(node, [source, *names]):
        return None
    made, tables = list[Node](), list[str]()
    for word, halves in (("cos", cos), ("sin", sin)):
        wide = [(1,) * (len(shape) - len(flat.shapes[name])) + flat.shapes[name] for _, name in halves]
        rows = np.broadcast_shapes(*(each[:-1] for each in wide))
        # A table for all channels, or one for each coordinate.
        widths = {each[-1] for each in wide}
        if widths - {shape[-1], shape[-1] // 2} or (len(halves) == 1 and widths != {shape[-1]}):
            return None
        if any(one not in (1, whole) for one, whole in zip(rows, shape, strict=False)):
            return None
        name = f"{node.outputs[0]}.{word}"
        flat.know(name, (*rows, shape[-1]), flat.types[halves[0][1]], node.outputs[0])
        attributes = {"signs": tuple(sign for sign, _ in halves), "pairs": pairs, "channels": shape[-1]}
        inputs = tuple(name for _, name in halves)
        made.append(Node("turn_table", f"{scope_of(node)}{word}", inputs, (name,), attributes))
        tables.append(name)
    if not pairs:
        return [*made, _turned(node, source, tables, node.outputs, pairs)]
    # Layers make the two coordinates of a pair as they stand: along an axis of their own.
    apart, dtype = f"{node.outputs[0]}.pairs", flat.types[node.outputs[0]]
    flat.know(apart, (*shape[:-1], shape[-1] // 2, 2), dtype, node.outputs[0])
    moved = Node("reshape", f"{scope_of(node)}reshape", (apart,), node.outputs, {"new_sizes": shape})
    return [*made, _turned(node, source, tables, (apart,), pairs), moved]


def _turned(node: Node, source: str, tables: Sequence[str], outputs: tuple[str, ...], pairs: bool) -> Node:
    return Node("rotary", f"{scope_of(node)}rotary", (source, *tables), outputs, {"pairs": pairs})
