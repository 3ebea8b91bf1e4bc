"""Primitives of JAX as layers: sizes of the layer, and its views of the operands, from their shapes.

The axes of a value may stand in any order. A layer views them as they lie, so a transposition takes no layer. Behind a
convolution or a product it is known which axis is the channels, and primitives that keep the shape hand this on.
Elsewhere the last axis is taken for the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite, prod
from typing import Any, NamedTuple

from tpusim.base.errors import InputError
from tpusim.network.formats.layer_of_node import LayerOfNode, LayerSizes, UnfitNode, on_map, on_rows, pooled
from tpusim.network.graph import Axes, Node, NodeViews, OperandView, TensorView
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.ops.elementwise import KEPT
from tpusim.network.ops.op import Shape

ValueShape = tuple[int, ...]


class KnownPrimitive(NamedTuple):
    """A node, and what is known of its operands and its result.

    Attributes:
        shapes: of the operands.
        result: the shape of the result.
        layouts: which axes of each operand are channels, rows, columns and images; None where it is not known.
        numbers: operands that are one constant number; None for others.
        constant: by operand, whether it is a constant.
    """

    node: Node
    shapes: Sequence[ValueShape]
    result: ValueShape
    layouts: Sequence[Axes | None]
    numbers: Sequence[float | None]
    constant: Sequence[bool]

    @property
    def layout(self) -> Axes:
        """The layout of the result of a node that keeps the shape of an operand."""
        alike = (
            known for shape, known in zip(self.shapes, self.layouts, strict=True) if known and shape == self.result
        )
        return next(alike, rows_of(len(self.result), (len(self.result) - 1,)))


Handler = Callable[[KnownPrimitive], LayerOfNode]


def rows_of(rank: int, channels: Sequence[int]) -> Axes:
    """View a value as rows along its axes `channels`; all other axes count the rows."""
    channels = tuple(channels) if rank else ()
    return channels, (), (), tuple(axis for axis in range(rank) if axis not in channels)


def layout_behind(known: KnownPrimitive) -> Axes | None:
    """Return the layout of a result that no layer makes, if it follows from that of an operand."""
    if known.node.op == "transpose" and (before := known.layouts[0]):
        places = known.node.attributes["permutation"]
        return tuple(tuple(places.index(axis) for axis in axes) for axes in before)
    alike = zip(known.shapes, known.layouts, strict=True)
    return next((layout for shape, layout in alike if layout and len(shape) == len(known.result)), None)


# ---- convolutions and products


def _conv(known: KnownPrimitive) -> LayerOfNode:
    """Read a convolution with its axes in any order; where its input is spread by zeros, a transposed one."""
    said, (maps, weights) = known.node.attributes, known.shapes
    lhs, rhs, out = (getattr(said["dimension_numbers"], f"{which}_spec") for which in ("lhs", "rhs", "out"))
    axes, batches, groups = len(lhs) - 2, said["batch_group_count"], said["feature_group_count"]
    if axes not in (1, 2):
        raise UnfitNode(f"it has {axes} axes; 1 and 2 are known")
    view = _map_view(lhs, maps, batches)
    channels, height, width, images = view.sizes(view.shape or maps)
    kernel, spread = [weights[axis] for axis in rhs[2:]], said["lhs_dilation"]
    sizes = {"images": images, "in_channels": channels, "out_channels": weights[rhs[0]], "groups": groups * batches}
    taps = TensorView(_as_filter(rhs))
    result = TensorView(_as_map(out), known.result)
    stride, dilation, pads = said["window_strides"], said["rhs_dilation"], said["padding"]
    if prod(spread) > 1:
        if prod(stride) > 1:
            raise UnfitNode("its input is spread, and its window has a stride")
        axis_by_axis = zip(out[2:], (height, width)[-axes:], spread, kernel, dilation, pads, strict=True)
        cuts = [cut_off(known.result[axis], *each) for axis, *each in axis_by_axis]
        ends = [each for each in cuts if each]
        if len(ends) < axes:
            raise UnfitNode("no transposed convolution cuts off its ends as it does")
        # A transposed convolution adds products where a convolution collects them, so its filter is the other way
        # round, unless the map is.
        turned = [3 - axes + axis for axis, (_, _, turns) in enumerate(ends) if turns]
        taps = TensorView(taps.axes, mirrored=tuple(axis for axis in range(3 - axes, 3) if axis not in turned))
        # An axis that is mirrored from end to end is read and written backwards, which costs nothing.
        view = TensorView(view.axes, view.shape, mirrored=tuple(turned))
        result = TensorView(result.axes, result.shape, mirrored=tuple(turned))
        one, none = [1] * (2 - axes), [0] * (2 - axes)
        steps: LayerSizes = {
            "op": "conv_transpose2d", "in_height": height, "in_width": width, "kernel": [*one, *kernel],
            "stride": [*one, *spread], "padding": [*none, *(start for start, _, _ in ends)],
            "output_padding": [*none, *(more for _, more, _ in ends)], "dilation": [*one, *dilation],
        }  # fmt: skip
    elif axes == 2:
        steps = {
            "op": "conv2d", "in_height": height, "in_width": width, "kernel": kernel, "stride": [*stride],
            "padding": [before for before, _ in pads] + [after for _, after in pads], "dilation": [*dilation],
        }  # fmt: skip
    else:
        steps = {"op": "conv1d", "in_length": width, "kernel": kernel[0], "stride": stride[0], "padding": [*pads[0]],
                 "dilation": dilation[0]}  # fmt: skip
    sources = {"ifmap": OperandView(0, view), "filter": OperandView(1, taps, "weights")}
    return LayerOfNode({**steps, **sizes}, NodeViews(sources, result))


def _as_map(spec: Sequence[int]) -> Axes:
    """View a value as a map, by its axes in the order images, channels, then one or two of space."""
    images, channels, *sides = spec
    return (channels,), *((),) * (2 - len(sides)), *((axis,) for axis in sides), (images,)


def _as_filter(spec: Sequence[int]) -> Axes:
    """View a value as a filter, by its axes in the order output channels, input channels, then one or two of space."""
    outputs, inputs, *sides = spec
    return (outputs,), *((),) * (2 - len(sides)), *((axis,) for axis in sides), (inputs,)


def _map_view(spec: Sequence[int], shape: ValueShape, groups: int) -> TensorView:
    """View the input of a convolution; groups of images are groups of channels, each with filters of its own."""
    if groups == 1:
        return TensorView(_as_map(spec))
    images = spec[0]
    split = (*shape[:images], groups, shape[images] // groups, *shape[images + 1 :])
    channels, rows, cols, _ = _as_map([axis + (axis > images) for axis in spec])
    return TensorView(((images, *channels), rows, cols, (images + 1,)), split)


def cut_off(
    size: int, given: int, stride: int, kernel: int, dilation: int, pads: tuple[int, int]
) -> tuple[int, int, bool] | None:
    """Return the ends of an axis of a transposed convolution that makes `size` elements of `given`.

    These are the elements cut off at both ends, those added at the far end, and whether the axis is mirrored; None if
    no such ends come to the same as the `pads` around the spread map.
    """
    reach = dilation * (kernel - 1)
    whole = (given - 1) * stride + reach + 1
    for start, turned in ((reach - pads[0], False), (reach - pads[1], True)):
        # A transposed convolution cuts off as much at both ends, so the other padding must come out as output_padding.
        if start >= 0 and 0 <= (more := size - whole + 2 * start) < start + max(stride, dilation):
            return start, more, turned
    return None


class Side(NamedTuple):
    """An axis of a convolution: its size, padding at its `ends`, and how many elements from the first on are `used`."""

    size: int
    taps: int
    stride: int
    dilation: int
    ends: tuple[int, int]
    used: int


def forward_side(size: int, start: int, taps: int, stride: int, dilation: int, outputs: int) -> Side:
    """Return the axis of a convolution that makes just `outputs`; elements that would only make more are left out."""
    reach = (taps - 1) * dilation + 1
    behind = (outputs - 1) * stride + reach - start - size
    if -behind >= stride:
        size, behind = size + behind, 0
    # People write the same padding at both ends, where the far one makes no more outputs.
    alike = (size + 2 * start - reach) // stride + 1 == outputs
    return Side(size, taps, stride, dilation, (start, start if alike else max(0, behind)), size + min(0, behind))


def forward(sides: Sequence[Side], in_channels: int, out_channels: int, groups: int) -> LayerSizes | None:
    """Return the sizes of the convolution with these one or two axes; None if there is no such convolution."""
    if len(sides) not in (1, 2):
        return None
    rows, cols = sides if len(sides) == 2 else (Side(1, 1, 1, 1, (0, 0), 1), *sides)
    (top, bottom), (left, right) = rows.ends, cols.ends
    sizes: LayerSizes = {
        "in_channels": in_channels, "in_height": rows.size, "in_width": cols.size, "out_channels": out_channels,
        "kernel": [rows.taps, cols.taps], "stride": [rows.stride, cols.stride], "padding": [top, left, bottom, right],
        "dilation": [rows.dilation, cols.dilation], "groups": groups,
    }  # fmt: skip
    try:
        Conv2d("layer", **sizes)
    except InputError:
        return None
    return sizes


def _filter_gradient(known: KnownPrimitive) -> LayerOfNode:
    """Read the gradient of a convolution by its filter, for which channels and images of the map change places.

    If the convolution is a product, its pixels count as images.
    """
    said, (shape, window) = known.node.attributes, known.shapes
    lhs, rhs, out = said["dimension_numbers"]
    maps = _map_view(lhs, shape, said["batch_group_count"])
    (*apart, images), rows, cols, channels = maps.axes
    outputs, high, wide, own = _as_filter(rhs)
    axes: tuple[Axes, Axes] = maps.axes, (outputs, high, wide, own)
    if said["is_a_product"]:
        axes = ((*apart, *rows, *cols, images), (), (), channels), (outputs, (), (), (*high, *wide, *own))
    sources = {"ifmap": OperandView(0, TensorView(axes[0], maps.shape)), "filter": OperandView(1, TensorView(axes[1]))}
    sizes = {"op": "conv2d_filter_gradient", "images": window[rhs[1]], **said["conv"]}
    return LayerOfNode(sizes, NodeViews(sources, TensorView(_as_map(out), known.result)))


def _input_gradient(known: KnownPrimitive) -> LayerOfNode:
    """Read the gradient of a convolution by its input, whose filter JAX has turned round along both axes."""
    said = known.node.attributes
    lhs, rhs, out = said["dimension_numbers"]
    maps, taps = _as_map(lhs), _as_filter(rhs)
    sources = {"ifmap": OperandView(0, TensorView(maps)),
               "filter": OperandView(1, TensorView(taps, mirrored=(1, 2)), "weights")}  # fmt: skip
    sizes = {"op": "conv2d_input_gradient", "images": known.shapes[0][lhs[0]], **said["conv"]}
    return LayerOfNode(sizes, NodeViews(sources, TensorView(_as_map(out), known.result)))


def _spread_out(known: KnownPrimitive) -> LayerOfNode:
    """Read padding that sets the elements of a map apart, with zeros between and behind them."""
    layout, config = known.layouts[0], known.node.attributes["padding_config"]
    apart = [axis for axis, each in enumerate(config) if any(each)]
    sides = [axes[0] for axes in layout[1:3] if len(axes) == 1] if layout else []
    ahead = any(config[axis][0] or min(config[axis]) < 0 for axis in apart)
    if known.numbers[1] != 0 or not layout or len(sides) < 2 or not {*apart} <= {*sides} or ahead:
        raise UnfitNode("it pads")
    height, width = (known.result[axis] for axis in sides)
    more: LayerSizes = {"step": [int(config[axis][2]) + 1 for axis in sides], "out_height": height, "out_width": width}
    return on_map("spread", TensorView(layout), TensorView(layout, known.result), known.shapes[0], **more)


def _dot(known: KnownPrimitive) -> LayerOfNode:
    """Read a product over any axes: products side by side, one for each element of the axes that both factors share."""
    (one, other), (outer, more) = known.node.attributes["dimension_numbers"]
    first, second = known.shapes
    rows = [axis for axis in range(len(first)) if axis not in (*one, *outer)]
    cols = [axis for axis in range(len(second)) if axis not in (*other, *more)]
    at, made = len(outer) + len(rows), len(known.result)
    sizes: LayerSizes = {"op": "gemm", "m": prod(first[axis] for axis in rows), "k": prod(first[axis] for axis in one),
                         "n": prod(second[axis] for axis in cols)}  # fmt: skip
    if outer:
        sizes["groups"] = prod(first[axis] for axis in outer)
    maps = TensorView(((*outer, *one), (), (), tuple(rows)))
    weights = TensorView(((*more, *cols), (), (), tuple(other)))
    sources = {"ifmap": OperandView(0, maps), "filter": OperandView(1, weights, "" if outer else "factors")}
    result = TensorView(((*range(len(outer)), *range(at, made)), (), (), (*range(len(outer), at),)), known.result)
    return LayerOfNode(sizes, NodeViews(sources, result))


# ---- element by element


def _map(known: KnownPrimitive, op: str, at: int = 0, axes: Axes = (), **fields: Any) -> LayerOfNode:
    """Return a layer that makes one element of each element of operand `at`, viewed by `axes` or else by its layout."""
    maps = TensorView(axes or known.layout)
    return on_map(op, maps, TensorView(maps.axes, known.result), known.result, at, **fields)


def _arithmetic(known: KnownPrimitive, op: str) -> LayerOfNode:
    whole = [at for at in (0, 1) if known.shapes[at] == known.result]
    if not whole:
        raise UnfitNode("neither operand is as large as what it makes")
    # The ifmap is what other layers make; a constant is the operand beside it.
    main = next((at for at in whole if not known.constant[at]), whole[0])
    return _with_other(known, f"r{op}" if main and op in ("sub", "div") else op, main, 1 - main)


def _with_other(known: KnownPrimitive, op: str, main: int, at: int) -> LayerOfNode:
    """Return a layer of operand `main` and operand `at`, which may be spread over the result."""
    mine, result, axes = known.shapes[at], known.result, known.layout
    kind = _kind(_spread(axes, mine).sizes(mine), TensorView(axes).sizes(result))
    if kind is None:
        # What images share and rows do not is a map, whatever these axes are called.
        *outer, last = range(len(result))
        rows = tuple(axis for axis in outer if mine[axis] == result[axis])
        axes = (last,), rows, (), tuple(axis for axis in outer if axis not in rows)
        kind = _kind(_spread(axes, mine).sizes(mine), TensorView(axes).sizes(result))
    if kind is None:
        raise UnfitNode("its operands are spread over one another as no layer here knows it")
    other = OperandView(at, _spread(axes, mine), "" if KEPT[kind][-1] else "numbers")
    return _map(known, op, main, axes, other=kind).reading(other=other)


def _spread(axes: Axes, shape: ValueShape) -> TensorView:
    return TensorView(axes if shape else ((), (), (), ()))


def _kind(mine: Shape, result: Shape) -> str | None:
    """Return the kind of an operand by the axes along which it has elements of its own; None if no layer takes it."""
    if mine == result:
        return "each"
    # The fewest axes: along one of a single element it makes no difference.
    for kind in sorted(KEPT, key=lambda kind: sum(KEPT[kind])):
        if all(one == (whole if kept else 1) for one, whole, kept in zip(mine, result, KEPT[kind], strict=True)):
            return kind
    return None


def _select(known: KnownPrimitive) -> LayerOfNode:
    """Read a choice between zero and a value: the value times a mask of zeros and ones."""
    if len(known.shapes) != 3 or known.numbers[1] != 0 or known.shapes[2] != known.result:
        raise UnfitNode("it chooses between two values")
    return _with_other(known, "mul", 2, 0)


def _limit(known: KnownPrimitive, end: str) -> LayerOfNode:
    """Read the larger, or the smaller, of a value and a number."""
    at = next((at for at in (0, 1) if known.numbers[at] is not None), None)
    if at is None or known.shapes[1 - at] != known.result:
        raise UnfitNode("it compares two maps")
    if (end, known.numbers[at]) == ("min", 0):
        return _map(known, "relu", 1 - at)
    ends: LayerSizes = {end: known.numbers[at]}
    return _map(known, "clip", 1 - at, **ends)


def _clamp(known: KnownPrimitive) -> LayerOfNode:
    low, _, high = known.numbers
    if low is None or high is None:
        raise UnfitNode("its ends are no numbers")
    ends: LayerSizes = {end: each for end, each in (("min", low), ("max", high)) if isfinite(each)}
    return _map(known, "clip", 1, **ends)


def _power(known: KnownPrimitive) -> LayerOfNode:
    exponent = known.node.attributes.get("y", 2)
    if exponent == -1:
        return _with_number(known, "rdiv", 1.0)
    if exponent not in (2, 3):
        raise UnfitNode("its exponent is none of 2, 3 and -1")
    return _map(known, "power", exponent=exponent)


def _with_number(known: KnownPrimitive, op: str, number: float) -> LayerOfNode:
    return _map(known, op, other="number").reading(other=number)


# ---- windows and rows


def _pool(known: KnownPrimitive, kind: str, op: str = "pool2d") -> LayerOfNode:
    """Read a pooling, or an op with the same fields, such as the gradient of one."""
    said, gradient = known.node.attributes, op == "pool2d_gradient"
    # The fields are those of the pooling, also of its gradient.
    shape = known.result if gradient else known.shapes[0]
    windows = [said[name] for name in ("window_dimensions", "window_strides", "window_dilation", "padding")]
    moved = [axis for axis, each in enumerate(zip(*windows, strict=True)) if each != (1, 1, 1, (0, 0))]
    if prod(said["base_dilation"]) > 1:
        raise UnfitNode("its map is spread")
    layout = known.layouts[0]
    if layout is None or max(map(len, layout[1:3])) > 1 or not {*moved} <= {*layout[1], *layout[2]}:
        layout = _usual(len(shape), moved)
    rows, cols = layout[1:3]
    usual: list[Any] = [1, 1, 1, (0, 0)]
    kernel, stride, dilation, pads = (
        [each[axes[0]] if axes else one for axes in (rows, cols)] for each, one in zip(windows, usual, strict=True)
    )
    padding = [before for before, _ in pads] + [after for _, after in pads]
    maps = TensorView(layout)
    made = pooled(
        kind, maps, TensorView(layout, known.result), shape, kernel=kernel, stride=stride, padding=padding,
        dilation=dilation, count_include_pad=said.get("include_pad", False),
    )  # fmt: skip
    choice = {"choice": OperandView(1, maps)} if len(known.shapes) > 1 else {}
    return made.reading({"op": op}, **choice)


def _usual(rank: int, moved: Sequence[int]) -> Axes:
    """Return the layout of maps whose windows move along axes `moved`: images first, channels second or last."""
    last = rank - 1 not in moved
    if rank not in (3, 4) or 0 in moved or (not last and 1 in moved):
        raise UnfitNode("its windows are not along one or two axes beside images and channels")
    return _as_map([0, rank - 1, *range(1, rank - 1)] if last else [0, 1, *range(2, rank)])


def _mean(known: KnownPrimitive) -> LayerOfNode:
    """Read a mean: over all rows and columns of maps it is a pooling, over other axes a mean of rows."""
    (shape,), along, layout = known.shapes, known.node.attributes["axes"], known.layouts[0]
    if layout and {*along} == {*layout[1], *layout[2]}:
        left = [axis for axis in range(len(shape)) if axis not in along]
        made = tuple(tuple(left.index(axis) for axis in axes if axis in left) for axes in layout)
        return pooled("average", TensorView(layout), TensorView(made, known.result), shape)
    return _rows(known, "reduce_mean", along)


def _sum(known: KnownPrimitive) -> LayerOfNode:
    """Read a sum over all axes but the channel's."""
    (shape,), along = known.shapes, known.node.attributes["axes"]
    layout = known.layouts[0] or rows_of(len(shape), (len(shape) - 1,))
    # JAX sums over axes of one element, too: that is a move.
    if prod(shape) == prod(known.result):
        raise UnfitNode("it sums up one element each")
    if not layout[0] or {*along} != {*range(len(shape))} - {*layout[0]}:
        raise UnfitNode("it sums over other axes than all but the channels'")
    order = sorted(layout[0])
    made = tuple(order.index(axis) for axis in layout[0]), (), (), ()
    return on_map("channel_sum", TensorView(layout), TensorView(made, known.result), shape)


def _pair(known: KnownPrimitive, op: str) -> LayerOfNode:
    """Read an op of two values of one shape, with the numbers that the node has as its fields."""
    return _map(known, op, **known.node.attributes).reading(other=OperandView(1, TensorView(known.layout)))


def _softmax(known: KnownPrimitive) -> LayerOfNode:
    return _rows(known, "softmax", [known.node.attributes["axis"]])


def _masked_softmax(known: KnownPrimitive) -> LayerOfNode:
    """Read a softmax whose rows are queries, in turn, that see the keys up to their own."""
    said, shape = known.node.attributes, known.shapes[0]
    queries = said["queries_axis"]
    others = (axis for axis in range(len(shape) - 1) if axis != queries)
    rows = TensorView(((len(shape) - 1,), (), (), (*others, queries)))
    more = {"queries": shape[queries], **({"window": said["window"]} if said["window"] else {})}
    return on_rows("softmax", rows, TensorView(rows.axes, known.result), shape, **more)


def _norm(known: KnownPrimitive, op: str, usual: Mapping[str, float]) -> LayerOfNode:
    """Read a norm of rows; weights that it has not are its `usual` numbers."""
    said = known.node.attributes
    beside: dict[str, OperandView | float] = {**usual}
    for at, name in enumerate(said["operands"], start=1):
        rank = len(known.shapes[at])
        beside[name] = OperandView(at, TensorView(rows_of(rank, (rank - 1,))), "weights")
    rows = _rows(known, op, [len(known.result) - 1])
    return rows.reading({"epsilon": said["epsilon"]}, **beside)


def _rotary(known: KnownPrimitive) -> LayerOfNode:
    """Read a turn: axes along which the tables change are tokens, and others images."""
    (shape, table, _), pairs = known.shapes, known.node.attributes["pairs"]
    *outer, last = range(len(shape))
    tokens = tuple(axis for axis in outer if table[axis] > 1)
    others = tuple(axis for axis in outer if table[axis] == 1)
    # Of pairs the result has an axis, as the points are viewed.
    points = TensorView(((last + 1, last) if pairs else (last,), (), tokens, others), known.result if pairs else ())
    column = TensorView(((last,), (), tokens, others))
    made = on_map("rotary", points, TensorView(points.axes, known.result), known.result)
    return made.reading(cos=OperandView(1, column, "cosines"), sin=OperandView(2, column, "sines"))


def _rows(known: KnownPrimitive, op: str, along: Sequence[int]) -> LayerOfNode:
    """Return an op of rows along some axes; the other axes count the rows."""
    shape, made = known.shapes[0], len(known.result)
    rows = TensorView(rows_of(len(shape), sorted(along)))
    result = TensorView(rows.axes if known.result == shape else rows_of(made, ()), known.result)
    return on_rows(op, rows, result, shape)


LAYERS: Mapping[str, Handler] = {
    "conv_general_dilated": _conv, "filter_gradient": _filter_gradient, "input_gradient": _input_gradient,
    "dot_general": _dot, "pad": _spread_out, "add_any": partial(_arithmetic, op="add"),
    **{op: partial(_arithmetic, op=op) for op in ("add", "sub", "mul", "div")},
    **{op: partial(_map, op=op) for op in ("exp", "tanh", "erf", "sqrt", "silu", "softplus", "gelu")},
    "logistic": partial(_map, op="sigmoid"), "gelu_tanh": partial(_map, op="gelu", approximate="tanh"),
    "neg": lambda known: _with_number(known, "mul", -1.0), "square": _power, "integer_pow": _power,
    "select_n": _select, "max": partial(_limit, end="min"), "min": partial(_limit, end="max"), "clamp": _clamp,
    **{op: partial(_pair, op=op) for op in ("relu_gradient", "weighted_sum")}, "reduce_sum": _sum,
    "window_choice": partial(_pool, kind="max", op="pool2d_choice"), "mean": _mean, "softmax": _softmax,
    "max_pool_gradient": partial(_pool, kind="max", op="pool2d_gradient"),
    "reduce_window_max": partial(_pool, kind="max"), "average_pool": partial(_pool, kind="average"),
    "masked_softmax": _masked_softmax, "rms_norm": partial(_norm, op="rms_norm", usual={"scale": 1.0}),
    "layer_norm": partial(_norm, op="layer_norm", usual={"scale": 1.0, "shift": 0.0}), "rotary": _rotary,
}  # fmt: skip
"""The primitives that may be layers, and what is put in the place of several of them (`flat`)."""
OF_THE_ARRAY = frozenset({"conv_general_dilated", "dot_general", "filter_gradient", "input_gradient"})
"""Primitives that are the work of an array; where no layer is one of them, work is missing."""
