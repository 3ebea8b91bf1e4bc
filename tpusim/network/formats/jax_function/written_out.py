"""Functions that models write out, as one node each, recognised by what they compute: activations by their values,
norms, softmaxes and their masks by their terms.

The nodes inside must be read by nothing else: otherwise they would be computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import erf, erfc, pi, prod
from typing import Any, NamedTuple

import numpy as np

from tpusim.network.formats.jax_function.layers import ValueShape
from tpusim.network.formats.jax_function.nodes import FlatGraph, Pattern, node_by_node, scope_of, unspread
from tpusim.network.formats.jax_function.turns import with_turns
from tpusim.network.graph import Node
from tpusim.numerics.element_types import Values

_MOST_INSIDE = 24
"""Most nodes of a function that is written out."""


# ---- activations

_Element = Callable[..., Any]


_ELEMENTS: Mapping[str, _Element] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh, "square": np.square,
    "abs": np.abs, "max": np.maximum, "min": np.minimum, "pow": np.power, "sqrt": np.sqrt, "exp2": np.exp2,
    "logistic": lambda x: 1 / (1 + np.exp(-x)), "erf": np.vectorize(erf, otypes=[float]),
    "erfc": np.vectorize(erfc, otypes=[float]), "sign": np.sign, "rsqrt": lambda x: 1 / np.sqrt(x),
    "ne": np.not_equal, "select_n": lambda which, one, other: np.where(which, other, one),
}  # fmt: skip
"""Primitives that work element by element, as far as activations are made of them."""
_TELLTALES = frozenset({"abs", "erf", "erfc", "exp", "exp2", "expm1", "logistic", "tanh"})
"""Primitives of which every activation has one, and arithmetic alone has none."""
_LAST = frozenset({"add", "div", "integer_pow", "log", "log1p", "mul", "select_n", "sub"})
"""Primitives that make the result of an activation."""
_SAMPLES = np.concatenate([np.linspace(-9, 9, 145), [-60.0, -30.0, -1e-3, 1e-3, 30.0, 60.0]])
_FAR = np.array([-1e30, -1e4, -200.0, -100.0, 100.0, 200.0, 1e4], np.float32)
"""Where exponents overflow in float32, unless a function is written so that they do not matter."""
_ACTIVATIONS: Mapping[str, _Element] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + _ELEMENTS["erf"](x / np.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / pi) * (x + 0.044715 * x**3))),
    "softplus": lambda x: np.logaddexp(0, x),
    "logistic": _ELEMENTS["logistic"],
}
"""By the node's operator the function that a layer computes."""
_NEAR = {"bfloat16": 1e-3, "float16": 1e-4}
"""How far a function may be off, for the constants that a type has; 1e-6 for others."""


def _activation(flat: FlatGraph, last: Node) -> Node | None:
    """Return one node in the place of those that make an activation of a value, however it is written."""
    value = last.outputs[0]
    if not flat.is_real(value) or prod(flat.shapes[value]) < 2:
        return None
    inside, front = [last], {name for name in last.inputs if flat.number(name) is None}
    while len(inside) <= _MOST_INSIDE and front:
        if len(front) == 1 and len(inside) > 1 and any(each.op in _TELLTALES for each in inside):
            (source,) = front
            if flat.shapes[source] == flat.shapes[value] and flat.closed(last, [source]):
                op = _named(flat, inside, source)
                if op:
                    return replace(last, op=op, name=f"{scope_of(last)}{op}", inputs=(source,), attributes={})
        # The value that is made last is looked into first.
        latest = max(front, key=lambda name: flat.order.get(name, -1))
        node = flat.makers.get(latest)
        if node is None or not (node.op in _ELEMENTS or node.op in ("integer_pow", "convert_element_type")):
            return None
        if node.op == "convert_element_type" and not (flat.is_real(node.inputs[0]) and flat.is_real(latest)):
            return None
        inside.append(node)
        front = (front - {latest}) | {name for name in node.inputs if flat.number(name) is None}
    return None


def _named(flat: FlatGraph, inside: Sequence[Node], source: str) -> str | None:
    """Return the activation that nodes compute of a value, by their values at many places."""
    made = _sampled(flat, inside, source, _SAMPLES)
    allowed = _NEAR.get(flat.types[source].name, 1e-6)
    with np.errstate(all="ignore"):
        errors = {
            op: np.max(np.abs(made - function(_SAMPLES)) / (1 + np.abs(_SAMPLES)))
            for op, function in _ACTIVATIONS.items()
        }
        best = min(errors, key=lambda op: float(errors[op]) if np.isfinite(errors[op]) else np.inf)
        if not errors[best] <= allowed:
            return None
        far, wanted = _sampled(flat, inside, source, _FAR), _ACTIVATIONS[best](_FAR.astype(np.float64))
        return best if np.allclose(far, wanted, rtol=1e-3, atol=1e-3) else None


def _sampled(flat: FlatGraph, inside: Sequence[Node], source: str, samples: Values) -> Values:
    """Compute nodes, the last one first in the list, for samples of their source, in the samples' type."""
    known = {source: samples}
    for node in sorted(inside, key=lambda each: flat.order[each.outputs[0]]):
        given = [known.get(name, np.asarray(flat.number(name), samples.dtype)) for name in node.inputs]
        with np.errstate(all="ignore"):
            if node.op == "convert_element_type":
                made = given[0]
            elif node.op == "integer_pow":
                made = given[0] ** np.asarray(float(node.attributes["y"]), samples.dtype)
            else:
                made = _ELEMENTS[node.op](*given)
        known[node.outputs[0]] = np.asarray(made, samples.dtype)
    return known[inside[0].outputs[0]]


# ---- norms


class _Norm(NamedTuple):
    """What a norm divides by: the root of a mean of squares of a value, or of what is left of it without its mean, and
    of a number.
    """

    source: str
    centred: bool
    epsilon: float


def _norm(flat: FlatGraph, last: Node) -> Node | None:
    """Return one node in the place of those that make a norm of rows along the last axis: by the root of the mean of
    its squares, or a layer normalization.
    """
    shape, core, shift = flat.shapes[last.outputs[0]], last.outputs[0], ""
    if not flat.is_real(core) or not shape or shape[-1] < 2:
        return None
    if last.op == "add":
        vectors = [name for name in last.inputs if _is_vector(flat, name, shape)]
        if len(vectors) != 1:
            return None
        (shift,), (core,) = vectors, [name for name in last.inputs if name not in vectors]
    norms = (_divisor(flat, *each, shape) for each in _factors(flat, core, ""))
    norm = next((each for each in norms if each), None)
    if norm is None or (shift and not norm.centred):
        return None
    scale, whole, roots = list[str](), 0, 0
    for name, inverted in _factors(flat, core, "" if norm.centred else norm.source):
        if not inverted and (_centred(flat, name) if norm.centred else name) == norm.source:
            whole += 1
        elif _divisor(flat, name, inverted, shape) == norm:
            roots += 1
        elif not inverted and _is_vector(flat, name, shape):
            scale.append(name)
        else:
            return None
    ends = norm.source, *scale, *filter(None, [shift])
    if (whole, roots) != (1, 1) or len(scale) > 1 or not flat.closed(last, ends):
        return None
    op = "layer_norm" if norm.centred else "rms_norm"
    operands = ("scale",) * len(scale) + ("shift",) * bool(shift)
    attributes = {"epsilon": float(str(np.float32(norm.epsilon))), "operands": operands}
    return replace(last, op=op, name=f"{scope_of(last)}{op}", inputs=ends, attributes=attributes)


def _is_vector(flat: FlatGraph, name: str, shape: ValueShape) -> bool:
    """Return whether a value has a number for each channel."""
    given = flat.shapes[name]
    # Of a single row a vector is as large as the row; what is given is taken for the weights.
    alone = given == shape == shape[-1:] and name not in flat.makers
    return alone or (given[-1:] == shape[-1:] and prod(given) == shape[-1] < prod(shape))


def _factors(flat: FlatGraph, name: str, source: str) -> Iterator[tuple[str, bool]]:
    """Yield the factors of a product, and whether they divide; `source` is a factor as it is."""
    waiting = [(name, False)]
    while waiting:
        name, inverted = waiting.pop()
        node = flat.makers.get(name := flat.of_reals(name))
        if flat.number(name) == 1:
            continue
        if node is None or node.op not in ("div", "mul") or name == source:
            yield name, inverted
        else:
            waiting += [(node.inputs[0], inverted), (node.inputs[1], inverted ^ (node.op == "div"))]


def _divisor(flat: FlatGraph, name: str, inverted: bool, shape: ValueShape) -> _Norm | None:
    """Return what a factor says of a norm, if it is the root of one, or one over that."""
    if flat.shapes[name] != (*shape[:-1], 1):
        return None
    value = flat.behind_moves(name)
    squared = _root(flat, value) if inverted else _reciprocal_root(flat, value)
    total = flat.made_by(squared, "add") if squared else None
    for mean, number in (total.inputs, total.inputs[::-1]) if total else ():
        epsilon, value = flat.number(number), flat.behind_moves(mean)
        if not epsilon or epsilon <= 0:
            continue
        if source := _of_variance(flat, value, shape):
            return _Norm(source, True, epsilon)
        if source := _of_squares(flat, value, shape):
            inner = _centred(flat, source)
            return _Norm(inner or source, bool(inner), epsilon)
    return None


def _of_variance(flat: FlatGraph, name: str, shape: ValueShape) -> str:
    """Return of what a value is the mean of squares less the square of the mean, or zero at least; "" if of nothing."""
    least = flat.made_by(name, "max")
    for bound, inner in (least.inputs, least.inputs[::-1]) if least else ():
        name = flat.behind_moves(inner) if flat.number(bound) == 0 else name
    node = flat.made_by(name, "sub")
    square = flat.made_by(flat.behind_moves(node.inputs[1]), "square", "integer_pow", "mul") if node else None
    if (
        not node
        or not square
        or square.attributes.get("y", 2) != 2
        or not flat.same(square.inputs[0], square.inputs[-1])
    ):
        return ""
    source = _of_squares(flat, flat.behind_moves(node.inputs[0]), shape)
    mean = _of_mean(flat, flat.behind_moves(square.inputs[0]), shape)
    return source if source and flat.of_reals(mean) == source else ""


def _centred(flat: FlatGraph, name: str) -> str:
    """Return the value of which another is what is left without the mean of its row; "" if of none."""
    node = flat.made_by(flat.of_reals(name), "sub")
    if not node:
        return ""
    source, mean = flat.of_reals(node.inputs[0]), flat.behind_moves(node.inputs[1])
    shape = flat.shapes[source]
    kept = flat.shapes[node.inputs[1]] == (*shape[:-1], 1)
    return source if kept and shape and flat.of_reals(_of_mean(flat, mean, shape)) == source else ""


def _of_mean(flat: FlatGraph, name: str, shape: ValueShape) -> str:
    """Return of what a value is the mean along the last axis; "" if of nothing of this shape."""
    node = flat.made_by(name, "mean", "mul")
    if node and node.op == "mul":
        one, other = node.inputs if flat.number(node.inputs[1]) is not None else node.inputs[::-1]
        number = flat.number(other)
        if number is None or abs(number * shape[-1] - 1) > 1e-6:
            return ""
        node = flat.made_by(flat.behind_moves(one), "reduce_sum")
    if not node or [*node.attributes["axes"]] != [len(shape) - 1] or flat.shapes[node.inputs[0]] != shape:
        return ""
    return node.inputs[0]


def _of_squares(flat: FlatGraph, name: str, shape: ValueShape) -> str:
    """Return of whose squares a value is the mean along the last axis; "" if of nobody's."""
    squares = flat.makers.get(flat.of_reals(_of_mean(flat, name, shape)))
    if squares and (
        squares.op == "square"
        or (squares.op == "integer_pow" and squares.attributes["y"] == 2)
        or (squares.op == "mul" and flat.same(*squares.inputs))
    ):
        return flat.of_reals(squares.inputs[0])
    return ""


def _root(flat: FlatGraph, name: str) -> str:
    """Return of what a value is the root; "" if of nothing."""
    if node := flat.made_by(name, "sqrt"):
        return flat.behind_moves(node.inputs[0])
    node = flat.made_by(name, "pow")
    return flat.behind_moves(node.inputs[0]) if node and flat.number(node.inputs[1]) == 0.5 else ""


def _reciprocal_root(flat: FlatGraph, name: str) -> str:
    """Return of what a value is one over the root; "" if of nothing."""
    if node := flat.made_by(name, "rsqrt"):
        return flat.behind_moves(node.inputs[0])
    if (node := flat.made_by(name, "pow")) and flat.number(node.inputs[1]) == -0.5:
        return flat.behind_moves(node.inputs[0])
    if (node := flat.made_by(name, "div")) and flat.number(node.inputs[0]) == 1:
        return _root(flat, flat.behind_moves(node.inputs[1]))
    if (node := flat.made_by(name, "integer_pow")) and node.attributes["y"] == -1:
        return _root(flat, flat.behind_moves(node.inputs[0]))
    return ""


# ---- attention

_UNSEEN = -1e4
"""At most this is added to scores of keys that a query does not see, or stands in their place."""


def _softmax(flat: FlatGraph, last: Node) -> Node | None:
    """Read e to the power of elements less the largest of their row, over the sum of these."""
    powers = flat.of_reals(last.inputs[0])
    raised = flat.made_by(powers, "exp")
    total = flat.made_by(flat.behind_moves(last.inputs[1]), "reduce_sum")
    less = flat.made_by(flat.of_reals(raised.inputs[0]), "sub") if raised else None
    if not total or not less or not flat.same(total.inputs[0], powers) or len(total.attributes["axes"]) != 1:
        return None
    (axis,), source, shape = total.attributes["axes"], flat.of_reals(less.inputs[0]), flat.shapes[last.outputs[0]]
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    if flat.shapes[last.inputs[1]] != kept or flat.shapes[less.inputs[1]] != kept or flat.shapes[source] != shape:
        return None
    if not _is_largest(flat, flat.behind_moves(less.inputs[1]), source, int(axis)):
        return None
    turned = flat.made_by(source, "transpose")
    if not flat.closed(last, [source, *(turned.inputs if turned else ())]):
        return None
    name = f"{scope_of(last)}softmax"
    return replace(last, op="softmax", name=name, inputs=(source,), attributes={"axis": int(axis)})


def _is_largest(flat: FlatGraph, name: str, source: str, axis: int) -> bool:
    """Return whether a value is the largest element of each row of another, perhaps from before that was turned."""
    before, order = source, [*range(len(flat.shapes[source]))]
    if (node := flat.made_by(name, "transpose")) and (turned := flat.made_by(source, "transpose")):
        before, order = flat.of_reals(turned.inputs[0]), [int(each) for each in turned.attributes["permutation"]]
        left = sorted(each for each in order if each != order[axis])
        if [*node.attributes["permutation"]] != [left.index(each) for each in order if each != order[axis]]:
            return False
        name = flat.behind_moves(node.inputs[0])
    most = flat.made_by(name, "reduce_max")
    return most is not None and [*most.attributes["axes"]] == [order[axis]] and flat.same(most.inputs[0], before)


def _masked(flat: FlatGraph, node: Node) -> Node | None:
    """Return a softmax with its mask, if each row is a query that sees the keys up to its own, or the last of these."""
    axis = int(node.attributes["axis"])
    source = flat.of_reals(node.inputs[0])
    mask = flat.makers.get(source)
    if mask is None or flat.uses[source] > 1 or axis != len(flat.shapes[source]) - 1:
        return None
    seen, scores = _seen(flat, mask)
    if seen is None or flat.shapes[scores] != flat.shapes[source]:
        return None
    if seen.all():
        return replace(node, inputs=(scores,))
    found = _causal(np.broadcast_to(seen, flat.shapes[source]))
    if not found:
        return None
    queries_axis, window = found
    attributes = {"axis": axis, "queries_axis": queries_axis, "window": window}
    return replace(node, op="masked_softmax", name=f"{scope_of(node)}softmax", inputs=(scores,), attributes=attributes)


def _seen(flat: FlatGraph, mask: Node) -> tuple[Values | None, str]:
    """Return which keys a mask that is constant lets each query see, and the scores that it is a mask of."""
    if mask.op == "select_n" and len(mask.inputs) == 3 and mask.inputs[0] in flat.constants:
        which = unspread(np.asarray(flat.constants[mask.inputs[0]]))
        for at, scores in ((1, mask.inputs[2]), (2, mask.inputs[1])):
            filler = flat.number(mask.inputs[at])
            if filler is not None and filler <= _UNSEEN:
                return (which.astype(bool) if at == 1 else ~which.astype(bool)), scores
    if mask.op == "add":
        for bias, scores in (mask.inputs, mask.inputs[::-1]):
            if bias in flat.constants:
                added = unspread(np.asarray(flat.constants[bias]))
                if ((added == 0) | (added <= _UNSEEN)).all():
                    return added == 0, scores
    return None, ""


def _causal(seen: Values) -> tuple[int, int] | None:
    """Return the axis of the queries, and their window or 0, of a mask whose last axis are keys; None if it is of
    another kind.
    """
    moving = [at for at, step in enumerate(seen.strides[:-1]) if step and seen.shape[at] > 1]
    held = seen[tuple(slice(None) if at in (*moving, seen.ndim - 1) else slice(0, 1) for at in range(seen.ndim))]
    moving = [at for at in moving if not (held == held.take([0], at)).all()]
    if len(moving) > 1 or seen.ndim < 2:
        return None
    axis = moving[0] if moving else seen.ndim - 2
    rows = np.moveaxis(held, axis, -2)[(0,) * (seen.ndim - 2)]
    rows = np.broadcast_to(rows, (seen.shape[axis], seen.shape[-1]))
    queries, keys = rows.shape
    if keys < queries:
        return None
    last = np.arange(queries)[:, None] + (keys - queries)
    window = int(rows[-1].sum())
    numbers = np.arange(keys)[None]
    if not ((numbers <= last) & (numbers > last - window) == rows).all():
        return None
    return axis, window if window < keys else 0


def with_attentions(flat: FlatGraph) -> Iterator[Node]:
    """Yield the nodes; where a softmax stands between two products, all three are called those of an attention, and the
    scale of its scores goes to the queries, which are fewer.
    """
    readers: dict[str, list[Node]] = {}
    for node in flat.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    changed: dict[int, list[Node]] = {}
    for node in flat.nodes:
        if node.op not in ("softmax", "masked_softmax"):
            continue
        value = node.outputs[0]
        while len(found := readers.get(value, [])) == 1 and (
            found[0].op in ("transpose", "reshape", "convert_element_type") and value not in flat.outputs
        ):
            value = found[0].outputs[0]
        path, scores = _scores(flat, node.inputs[0])
        if len(found) != 1 or found[0].op != "dot_general" or scores is None:
            continue
        values, scope = found[0], scope_of(scores)
        changed[id(values)] = [replace(values, name=f"{scope_of(values)}attention.values")]
        changed[id(node)] = [replace(node, name=f"{node.name.removesuffix('softmax')}attention.softmax")]
        changed |= _with_scale(flat, scores, path, f"{scope}attention.scores")
    for node in flat.nodes:
        yield from changed.get(id(node), [node])


def _scores(flat: FlatGraph, name: str, scale: Node | None = None) -> tuple[Node | None, Node | None]:
    """Return what scales scores by a number, if anything, and the product that makes them."""
    while (node := flat.makers.get(name)) and flat.uses[name] == 1:
        if node.op == "dot_general":
            return scale, node
        if node.op in ("mul", "div") and scale is None:
            numbers = [flat.number(each) for each in node.inputs]
            at = 1 if numbers[1] is not None else 0 if numbers[0] is not None and node.op == "mul" else None
            if at is None or not numbers[at]:
                break
            scale, name = node, node.inputs[1 - at]
        elif node.op in ("transpose", "reshape", "convert_element_type"):
            name = node.inputs[0]
        elif node.op in ("add", "select_n") and scale is None:
            # Of a mask, or a bias, and scores.
            found = (_scores(flat, each) for each in node.inputs[node.op == "select_n" :])
            return next((each for each in found if each[1]), (None, None))
        else:
            break
    return None, None


def _with_scale(flat: FlatGraph, scores: Node, scale: Node | None, name: str) -> dict[int, list[Node]]:
    """Return by their ids what comes in the place of a product of scores, and of what scales them."""
    called = replace(scores, name=name)
    smaller = min((0, 1), key=lambda at: prod(flat.shapes[scores.inputs[at]]))
    queries = scores.inputs[smaller]
    if scale is None or prod(flat.shapes[queries]) >= prod(flat.shapes[scores.outputs[0]]):
        return {id(scores): [called]}
    scaled = flat.know(f"{scores.outputs[0]}.scaled", flat.shapes[queries], flat.types[queries], scale.outputs[0])
    at = 1 if flat.number(scale.inputs[1]) is not None else 0
    number = flat.know(f"{scaled}.number", (), np.dtype(np.float32), scaled)
    flat.constants[number] = np.asarray(flat.number(scale.inputs[at]), np.float32)
    given = (queries, number) if at else (number, queries)
    factor = Node(scale.op, f"{scope_of(scale)}attention.scale", given, (scaled,), scale.attributes)
    inputs = tuple(scaled if each == smaller else name for each, name in enumerate(scores.inputs))
    handed = Node("copy", scale.name, (scale.inputs[1 - at],), scale.outputs, {})
    return {id(scores): [factor, replace(called, inputs=inputs)], id(scale): [handed]}


WRITTEN_OUT: Sequence[Pattern] = (
    node_by_node(_activation, *_LAST), node_by_node(_norm, "add", "div", "mul"), with_turns,
    node_by_node(_softmax, "div"), node_by_node(_masked, "softmax"), with_attentions,
)  # fmt: skip
"""What puts one node in the place of several, in this order."""
