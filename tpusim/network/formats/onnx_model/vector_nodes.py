"""What the vector unit computes of a node of a model: a layer's sizes and views, from the shapes of its operands.

A map is [channel, row, col, image] here. Behind a convolution, axis 1 of a value are the channels; behind a product the
last; what takes an element at a time leaves that as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import inf, isfinite, prod
from typing import Any

from tpusim.base.words import counted
from tpusim.network.formats.layer_of_node import LayerOfNode, LayerSizes, UnfitNode, on_map, on_rows, pooled
from tpusim.network.formats.onnx_model.array_nodes import KnownNode, map_axes, maps_of, matrix, padding_of
from tpusim.network.graph import IMAGES, OperandView, TensorView
from tpusim.network.ops.elementwise import KEPT, ROWS
from tpusim.network.ops.moves import AXES
from tpusim.network.ops.op import Shape

_FLAT_SOFTMAX = 13
"""Before this opset all axes from one on count as one, and that is the second unless something is said."""


Handler = Callable[[KnownNode], LayerOfNode]


# ---- pooling


def _kind_of(op: str) -> str:
    """Return the kind of pooling that an operator is."""
    return next((kind for kind in ("max", "min") if kind in op.lower()), "average")


def _pool(node: KnownNode) -> LayerOfNode:
    axes = len(node.shapes[0]) - 2
    if axes not in (1, 2):
        raise UnfitNode(f"it has {axes} axes; 1 and 2 are known")
    maps, one = maps_of(node), [1] * (2 - axes)
    if node.op.startswith("Global"):
        return pooled(_kind_of(node.op), *maps, node.shapes[0])
    pads = padding_of(node, axes)
    if isinstance(pads, list) and axes == 1:
        pads = [0, pads[0], 0, pads[1]]
    steps: dict[str, Any] = {
        "kernel": [*one, *node.ints("kernel_shape", axes, 1)],
        "stride": [*one, *node.ints("strides", axes, 1)],
        "padding": pads,
        "dilation": [*one, *node.ints("dilations", axes, 1)],
        "ceil_mode": bool(node.get("ceil_mode", 0)),
        "count_include_pad": bool(node.get("count_include_pad", 0)),
    }
    return pooled(_kind_of(node.op), *maps, node.shapes[0], **steps)


# ---- element by element


def _map(node: KnownNode, op: str, channels_first: bool | None = None, **fields: Any) -> LayerOfNode:
    """Return a layer of one operand that makes as many elements; with `channels_first`, whatever is known of its
    place.
    """
    first = node.first if channels_first is None else channels_first
    if len(node.result) < 2:
        raise UnfitNode(f"it works on values of {len(node.result)} axes; maps have two or more")
    maps = TensorView(map_axes(len(node.result), first))
    return on_map(op, maps, replace(maps, shape=node.result), node.result, **fields)


_BY_SHAPE = 7
"""The opset from which on operands are broadcast by their shapes alone."""
_NAMES = {"Sum": "add", "Max": "maximum", "Min": "minimum"}
"""The ops of operators that have another name there."""


def _arithmetic(node: KnownNode) -> LayerOfNode:
    name = _NAMES.get(node.op, node.op.lower())
    if len(node.shapes) != 2:
        raise UnfitNode(f"it has {counted(len(node.shapes), 'operand')}; 2 are known")
    whole = [index for index, shape in enumerate(node.shapes) if shape == node.result]
    if not whole:
        raise UnfitNode("neither operand is as large as what it makes")
    main = next((index for index in whole if not node.constant[index]), whole[0])
    at = 1 - main
    if len(node.result) == 2 and node.result[0] > 1 and node.constant[at] and node.shapes[at] == node.result:
        raise UnfitNode("its constant has numbers of its own for each image")
    if node.op == "PRelu" and (main == 1 or node.facts.opset < _BY_SHAPE):
        raise UnfitNode("its slopes are spread over its map in a way of their own")
    if main == 1 and node.op in ("Sub", "Div"):
        name = f"r{name}"
    found = _smaller(node, at, _map(node, name).views.result)
    if found is None:
        raise UnfitNode("its operands are spread over one another as no layer here knows it")
    result, kind, beside = found
    made = on_map(name, TensorView(result.axes), result, node.result, main, other=kind)
    return made.reading(other=beside)


def _smaller(node: KnownNode, at: int, maps: TensorView) -> tuple[TensorView, str, OperandView] | None:
    """View the result as `maps`, or otherwise, so that along each axis operand `at`, which may be smaller, has all
    elements, or one; and return what it has a number for, and its view. None where there is no such way.
    """
    mine, constant = node.shapes[at], node.constant[at]
    # It may have fewer axes than the result.
    fewer = len(node.result) - len(mine)
    own = [fewer + axis for axis, size in enumerate(mine) if size > 1]
    for result in (maps, _spread(node, own, constant)):
        other = TensorView(tuple(tuple(axis - fewer for axis in each if axis >= fewer) for each in result.axes))
        if kind := _kind(other.sizes(mine), result.sizes(node.result), constant, node.in_all_runs(at)):
            return result, kind, OperandView(at, other, "" if KEPT[kind][IMAGES] else "numbers")
    return None


def _spread(node: KnownNode, own: Sequence[int], constant: bool) -> TensorView:
    """View the result so that along each axis of the map the other operand either has all elements, or one; `own` are
    the axes of the result along which it has elements.
    """
    axes = range(len(node.result))
    channel = map_axes(len(axes), node.first)[0]
    (channels,) = channel
    if constant:
        # All images share it, so they run along the other axes.
        channel = channel if channels in own or not own else (own[-1],)
        others = [axis for axis in own if axis not in channel]
        images = [axis for axis in axes if axis not in {*own, *channel}]
    else:
        images = [axis for axis in axes if axis in own or node.result[axis] == 1]
        rest = [axis for axis in axes if axis not in images]
        channel = channel if channels in own else (*rest,)
        others = [axis for axis in rest if axis not in channel]
        images = [axis for axis in images if axis not in channel]
    rows, cols = (others[:-1], others[-1:]) if len(others) > 1 else (others, [])
    return TensorView((channel, (*rows,), (*cols,), (*images,)), node.result)


def _where(node: KnownNode) -> LayerOfNode:
    """Read a choice; what is smaller than the result is spread over it, unless it is a condition that no part of the
    map has elements of its own for.
    """
    result, kind, condition = _map(node, "where").views.result, "each", None
    if node.shapes[0] != node.result and (found := _smaller(node, 0, result)):
        result, kind, condition = found
    first, second, third = (
        OperandView(at, TensorView(result.axes, spread=() if node.shapes[at] == node.result else node.result))
        for at in (1, 2, 0)
    )
    made = on_map("where", first.view, result, node.result, 1, condition=kind)
    return made.reading(other=second, condition=condition or third)


_KINDS = sorted(KEPT.items(), key=lambda each: (not each[1][IMAGES], each[0] == "map"))
"""What another operand may have a number for, as it is looked for: what the network makes belongs to its image where it
can, and what all images share to a channel.
"""


def _kind(mine: Shape, result: Shape, constant: bool, shared: bool) -> str | None:
    """Return along which axes the other operand has elements of its own. A constant is the same for all images."""
    if prod(mine) == 1 and constant:
        return "number"
    for kind, kept in _KINDS:
        alike = all(a == b if keep else a == 1 for a, b, keep in zip(mine[:3], result[:3], kept[:3], strict=True))
        allowed = not constant if kept[IMAGES] else shared
        if alike and allowed and mine[IMAGES] == (result[IMAGES] if kept[IMAGES] else 1):
            return kind
    return None


def _scale_shift(node: KnownNode) -> LayerOfNode:
    """Read a batch normalization as a number a channel that elements are multiplied by, and one that is added."""
    if node.get("training_mode", 0):
        raise UnfitNode("it is for training")
    scale, shift = (OperandView(at, matrix(1, [0]), "numbers") for at in (1, 2))
    return _map(node, "scale_shift", channels_first=True).reading(scale=scale, shift=shift)


def _pointwise(op: str, channels_first: bool | None = None, **fields: tuple[str, Any]) -> Handler:
    """Make the reader of a layer whose fields are attributes of the node; each field comes with its attribute and
    default.
    """
    return lambda node: _map(node, op, channels_first, **{field: node.get(*each) for field, each in fields.items()})


def _power(node: KnownNode) -> LayerOfNode:
    """Read a power as a square, a cube, or a root."""
    exponent = node.facts.numbers.get(node.name(1))
    if exponent in (2, 3) and exponent:
        return _map(node, "power", exponent=int(exponent))
    if exponent != 1 / 2:
        raise UnfitNode("its exponent is none of 2, 3 and a half")
    return _map(node, "sqrt")


def _swish(node: KnownNode) -> LayerOfNode:
    if node.get("alpha", 1.0) != 1:
        raise UnfitNode("its alpha is not 1")
    return _map(node, "silu")


def _clip(node: KnownNode) -> LayerOfNode:
    """Read a Clip; its ends are attributes in old models, operands in others."""
    ends: LayerSizes = {}
    for at, key in enumerate(("min", "max"), start=1):
        name = node.name(at)
        if name and name not in node.facts.numbers:
            raise UnfitNode(f"its {key} is worked out by the model")
        end = node.facts.numbers[name] if name else node.get(key, -inf)
        # Beyond infinity nothing is clipped.
        if isfinite(end):
            ends[key] = end
    return _map(node, "clip", **ends)


# ---- whole rows


def _softmax(node: KnownNode) -> LayerOfNode:
    """Read a Softmax along one axis, or, in old models, along all from one on."""
    axes, flat = len(node.result), node.facts.opset < _FLAT_SOFTMAX
    axis = node.get("axis", 1 if flat else -1) % max(1, axes)
    return _rows(node, "softmax", range(axis, axes) if flat else [axis])


def _norm(node: KnownNode, op: str, **defaults: float) -> LayerOfNode:
    """Read a normalization along all axes from one on; its numbers of a channel may have fewer axes, and default to
    numbers.
    """
    axes = range(node.get("axis", -1) % max(1, len(node.result)), len(node.result))
    sources: dict[str, OperandView | float] = {**defaults}
    row = tuple(node.result[axis] for axis in axes)
    for at, name in enumerate(sources, start=1):
        if node.name(at):
            own = node.shapes[at][-len(row) :]
            sources[name] = OperandView(at, matrix(len(row), range(len(row)), own, row), "numbers")
    return _rows(node, op, axes).reading({"epsilon": node.get("epsilon", 1e-5)}, **sources)


def _reduced(node: KnownNode) -> LayerOfNode:
    """Read a mean, a largest or smallest element, or a sum along some axes.

    Of maps, whose channels are before their last axes, a mean is pooling all of the map; along the last axes of others
    it is one of rows. Along further axes, all elements that become one are a window, or, of a sum, a channel.
    """
    shape, given = node.shapes[0], node.attributes.get("axes")
    axes = given.ints if given and not node.name(1) else node.facts.lists.get(node.name(1), ())
    along = sorted(axis % max(1, len(shape)) for axis in axes)
    if not along or along[0] == 0:
        raise UnfitNode("it is along the first axis, or along all of them")
    last = along == [*range(along[0], len(shape))]
    if last and node.first and along[0] == 2 and len(shape) in (3, 4) and node.op != "ReduceSum":
        return _pool(node._replace(op=f"Global{node.op}"))
    if last and node.op == "ReduceMean":
        return _rows(node, "reduce_mean", along)
    kept = [axis for axis in range(len(shape)) if axis not in along]
    places = kept if len(node.result) < len(shape) else [*range(len(shape))]
    if node.op == "ReduceSum":
        if node.runs > 1:
            raise UnfitNode("its sums are those of one run of the model")
        maps = TensorView(((*kept,), (), (*along,), ()))
    else:
        maps = TensorView(((*kept[1:],), (), (*along,), (0,)))
    made = tuple(tuple(places.index(axis) for axis in axes if axis in places) for axes in maps.axes)
    result = TensorView(made, node.result)
    summed = node.op == "ReduceSum"
    return on_map("channel_sum", maps, result, shape) if summed else pooled(_kind_of(node.op), maps, result, shape)


def _rows(node: KnownNode, op: str, along: Sequence[int]) -> LayerOfNode:
    """Return rows along some axes, and as many rows as the other axes hold."""
    axes, result = len(node.shapes[0]), node.result
    if axes < 2:
        raise UnfitNode(f"it works on values of {axes} axes; rows have two or more")
    left = [axis for axis in along if axis < len(result)]
    return on_rows(op, matrix(axes, along), matrix(len(result), left, result), node.shapes[0])


# ---- moves: a part that is cut out, or joined, is read where it lies

_FIRST = "images", "channels", "height", "width"
_LAST = {1: ("channels",), 2: ("images", "channels"), 3: ("images", "height", "channels"),
         4: ("images", "height", "width", "channels")}  # fmt: skip
"""The names of the axes when channels come last, by the number of axes."""
_SHUFFLE = [0, 2, 1, 3, 4]
_NEAREST = {
    ("asymmetric", "floor"), *((pixel, mode) for pixel in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
                               for mode in ("round_prefer_floor", "round_prefer_ceil")),
}  # fmt: skip
"""Ways to choose the nearest element that agree where maps grow by whole factors."""


def _transpose(node: KnownNode) -> LayerOfNode:
    """Read a turn of up to four axes, or of more that stay together; groups of channels that change places are
    shuffled.

    Axes are images, channels, height and width where channels come first, else images, height, width and channels.
    """
    shape, given = node.shapes[0], node.attributes.get("perm")
    order = [*given.ints] if given else [*range(len(shape))][::-1]
    if sorted(order) != [*range(len(shape))]:
        raise UnfitNode("perm does not name every axis once")
    moved = [axis for axis in order if shape[axis] != 1 or axis == 0]
    if moved == sorted(moved):  # Whatever the number of images, which axis 0 may be.
        raise UnfitNode("elements keep their order")
    if order == _SHUFFLE:
        maps = TensorView(((1, 2), (3,), (4,), (0,)))
        return on_map("channel_shuffle", maps, replace(maps, shape=node.result), shape, groups=shape[1])
    runs = _together(order) if len(order) > len(AXES) else [(axis,) for axis in order]
    read = sorted(runs)
    if len(read) > len(AXES):
        raise UnfitNode("more than four axes change places")
    names = _FIRST[: len(read)] if node.first else _LAST[len(read)]
    maps = TensorView(tuple(dict(zip(names, read, strict=True)).get(name, ()) for name in AXES))
    ends = (*accumulate(map(len, runs)),)
    made = {name: (*range(end - len(run), end),) for name, run, end in zip(names, runs, ends, strict=True)}
    places = {name: names[read.index(run)] for name, run in zip(names, runs, strict=True)}
    turned = [places.get(axis, axis) for axis in AXES]
    result = TensorView(tuple(made.get(name, ()) for name in AXES), node.result, images=turned.index("images"))
    return on_map("transpose", maps, result, shape, order=turned)


def _together(order: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the axes that stay neighbours; the first may be the images, and stays alone."""
    runs: list[tuple[int, ...]] = []
    for axis in order:
        if runs and runs[-1][-1] == axis - 1 != 0:
            runs[-1] = *runs[-1], axis
        else:
            runs.append((axis,))
    return runs


def _pad(node: KnownNode) -> LayerOfNode:
    """Read padding by zeros, around rows and columns: an attribute in old models, an operand in others."""
    sizes, filler, which = (node.name(at) for at in (1, 2, 3))
    numbers, lists = node.facts.numbers, node.facts.lists
    if filler and filler not in numbers:
        raise UnfitNode("what it adds is worked out by the model")
    shape, given = node.shapes[0], node.attributes.get("pads")
    value = numbers[filler] if filler else node.get("value", 0.0)
    pads, axes = given.ints if given and not sizes else lists.get(sizes, ()), lists.get(which, ())
    mode = node.get("mode", "constant")
    if mode != "constant" or value or len(shape) not in (3, 4):
        raise UnfitNode("it adds other elements than zeros around a map")
    around = [*(axis % len(shape) for axis in axes)] or [*range(len(shape))]
    if len(pads) != 2 * len(around) or min(pads, default=0) < 0:
        raise UnfitNode("what it adds is worked out by the model, or less than nothing")
    ends = dict(zip(around, zip(pads[: len(around)], pads[len(around) :], strict=True), strict=True))
    # The layer pads rows and columns only.
    if any(ends.get(axis, (0, 0)) != (0, 0) for axis in (0, 1)):
        raise UnfitNode("it adds images or channels")
    rows, cols = (ends.get(axis, (0, 0)) for axis in _sides(shape))
    return _move(node, "pad", padding=[rows[0], cols[0], rows[1], cols[1]])


def _slice(node: KnownNode) -> LayerOfNode:
    """Read a strided part along an axis: the bounds are operands, in old models attributes, and then without a
    stride.
    """
    shape = node.shapes[0]
    starts, ends, axes, steps = (node.facts.lists.get(node.name(at), ()) for at in (1, 2, 3, 4))
    cuts = zip(axes, starts, ends, steps, strict=False)
    kept = {
        axis % len(shape): range(*slice(start, stop, step).indices(shape[axis])) for axis, start, stop, step in cuts
    }
    cut = [(axis, part) for axis, part in kept.items() if part != range(shape[axis])]
    if len(shape) not in (3, 4) or not node.first or len(cut) != 1 or cut[0][0] == 0:
        raise UnfitNode("it is not along channels, rows or columns alone")
    ((axis, part),) = cut
    # Without a stride, the part lies in one piece, and readers find it there.
    if part.step < 2 or len(part) < 2:
        raise UnfitNode("what is left is read where it lies")
    along = "channels" if axis == 1 else ("height", "width")[axis - len(shape)]
    return _move(node, "slice", axis=along, start=part[0], stop=part[-1] + 1, step=part.step)


def _upsample(node: KnownNode) -> LayerOfNode:
    """Read an Upsample by whole factors, along rows and columns, of the nearest element."""
    shape, result = node.shapes[0], node.result
    how = node.get("coordinate_transformation_mode", "half_pixel"), node.get("nearest_mode", "round_prefer_floor")
    if node.get("mode", "nearest") != "nearest" or (node.op == "Resize" and how not in _NEAREST):
        raise UnfitNode("it does not take the nearest element")
    if len(shape) not in (3, 4) or len(result) != len(shape) or shape[:2] != result[:2]:
        raise UnfitNode("it is not along the rows and columns of a map")
    if any(not size or more % size for size, more in zip(shape, result, strict=True)):
        raise UnfitNode("it does not grow by whole factors")
    rows, cols = (result[axis] // shape[axis] if axis >= 0 else 1 for axis in _sides(shape))
    return _move(node, "upsample", scale=[rows, cols])


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    """Return the axes of rows and of columns; a map of one row has no axis of rows."""
    return (2, 3) if len(shape) == 4 else (-1, 2)


def _move(node: KnownNode, op: str, **fields: Any) -> LayerOfNode:
    """Return a layer of one operand, a map whose channels come first."""
    return on_map(op, *maps_of(node), node.shapes[0], **fields)


VECTOR_OPS: dict[str, Handler] = {
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), _pool),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Sum"), _arithmetic),
    "Where": _where,
    "BatchNormalization": _scale_shift,
    "LeakyRelu": _pointwise("leaky_relu", slope=("alpha", 0.01)),
    "Clip": _clip,
    "HardSigmoid": _pointwise("hard_sigmoid", alpha=("alpha", 0.2), beta=("beta", 0.5)),
    "HardSwish": _pointwise("hard_swish"),
    **{row.onnx: _pointwise(op) for op, row in ROWS.items() if row.onnx},
    "Pow": _power,
    "Gelu": _pointwise("gelu", approximate=("approximate", "none")),
    "Softmax": _softmax,
    "LayerNormalization": partial(_norm, op="layer_norm", scale=1.0, shift=0.0),
    "RMSNormalization": partial(_norm, op="rms_norm", scale=1.0),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduced),
    "Swish": _swish,
    "LRN": _pointwise("lrn", True, size=("size", 1), alpha=("alpha", 1e-4), beta=("beta", 0.75), bias=("bias", 1.0)),
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    **dict.fromkeys(("Resize", "Upsample"), _upsample),
}
"""The operators of ONNX that the vector unit computes."""
