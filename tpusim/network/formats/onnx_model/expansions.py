"""Operators that are written out as others, of which layers are known: those of quantized models, and those that
exporters put in the place of several.

Source: the operators' texts of https://onnx.ai/onnx/operators, and of ONNX Runtime's docs/ContribOperators.md for the
domain com.microsoft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tpusim.network.formats.layer_of_node import UnfitNode
from tpusim.network.formats.onnx_model.attention import ATTENTION
from tpusim.network.formats.onnx_model.new_nodes import Expansion, NewNodes, SeveralOps

# ---- bytes


def _dequantized(given: SeveralOps, new: NewNodes, at: int) -> str:
    """Add the real numbers of operand `at`, which its scale and its zero point follow."""
    return new.add("DequantizeLinear", [name for name in given.names[at : at + 3] if name])


def _quantized(given: SeveralOps, new: NewNodes, value: str, scale: int) -> None:
    """Add the result, of the scale of operand `scale` and the zero point behind it."""
    operands = [value, given.name(scale), given.name(scale + 1)]
    new.add("QuantizeLinear", [name for name in operands if name], given.output())


def _requantized(given: SeveralOps, new: NewNodes, sums: str, factor: str, scale: int) -> None:
    """Add the bytes of sums that are worth `factor` each: they are scaled at once, and rounded once."""
    reals = new.add("Cast", [sums], to=TensorProto.FLOAT)
    scaled = new.add("Mul", [reals, new.add("Div", [factor, given.name(scale)])])
    operands = [scaled, new.constant(1.0), given.name(scale + 1)]
    new.add("QuantizeLinear", [name for name in operands if name], given.output())


def _along_rows(given: SeveralOps, new: NewNodes, at: int) -> str:
    """Return a scale or zero point of a first factor, whose single axis is that of the rows."""
    name = given.name(at)
    return new.shaped(name, [-1, 1]) if len(given.shapes.get(name, ())) == 1 and given.shapes[name] != (1,) else name


def _q_matmul(given: SeveralOps, new: NewNodes) -> None:
    one, _, zero, other, other_scale, other_zero = given.names[:6]
    sums = new.add("MatMulInteger", [one, other, zero, other_zero])
    _requantized(given, new, sums, new.add("Mul", [_along_rows(given, new, 1), other_scale]), 6)


def _q_conv(given: SeveralOps, new: NewNodes) -> None:
    maps, scale, zero, weights, weight_scale, weight_zero = given.names[:6]
    ones = [1] * (len(given.shape(3)) - 2)
    sums = new.add("ConvInteger", [maps, weights, zero, weight_zero], **given.attributes)
    if bias := given.name(8):
        sums = new.add("Add", [sums, new.shaped(bias, [1, -1, *ones])])
    _requantized(given, new, sums, new.shaped(new.add("Mul", [scale, weight_scale]), [-1, *ones]), 6)


def _q_gemm(given: SeveralOps, new: NewNodes) -> None:
    one, scale, zero, other, other_scale, other_zero, bias = (given.name(at) for at in range(7))
    if given.get("alpha", 1.0) != 1.0:
        raise UnfitNode("its alpha is not 1")
    one, other = (
        new.add("Transpose", [name], perm=[1, 0]) if given.get(f"trans{which}", 0) else name
        for which, name in (("A", one), ("B", other))
    )
    sums = new.add("MatMulInteger", [one, other, zero, other_zero])
    sums = new.add("Add", [sums, bias]) if bias else sums
    factor = new.add("Mul", [scale, other_scale])
    if given.name(7):
        _requantized(given, new, sums, factor, 7)
    else:
        new.add("Mul", [new.add("Cast", [sums], to=TensorProto.FLOAT), factor], given.output())


def _real_product(given: SeveralOps, new: NewNodes, sums: str, factor: str, bias: str) -> None:
    """Add the real numbers of a product of bytes, and its biases."""
    reals = new.add("Cast", [sums], to=TensorProto.FLOAT)
    scaled = new.add("Mul", [reals, factor], "" if bias else given.output())
    if bias:
        new.add("Add", [scaled, bias], given.output())


def _product_to_reals(given: SeveralOps, new: NewNodes) -> None:
    one, other, scale, other_scale, zero, other_zero, bias = (given.name(at) for at in range(7))
    sums = new.add("MatMulInteger", [one, other, zero, other_zero])
    _real_product(given, new, sums, new.add("Mul", [scale, other_scale]), bias)


def _dynamic_product(given: SeveralOps, new: NewNodes) -> None:
    values, other, other_scale, other_zero, bias = (given.name(at) for at in range(5))
    names = [new.named(each) for each in ("bytes", "scale", "zero")]
    new.made.append(helper.make_node("DynamicQuantizeLinear", [values], names, name=names[0]))
    sums = new.add("MatMulInteger", [names[0], other, names[2], other_zero])
    _real_product(given, new, sums, new.add("Mul", [names[1], other_scale]), bias)


def _q_two(given: SeveralOps, new: NewNodes, op: str) -> None:
    """Write out an operator of two maps of bytes."""
    _quantized(given, new, new.add(op, [_dequantized(given, new, 0), _dequantized(given, new, 3)]), 6)


def _q_one(given: SeveralOps, new: NewNodes, op: str) -> None:
    """Write out an operator of one map of bytes."""
    given.refuse(attributes=("channels_last",))
    others = ("channels_last", "opset")
    said = {name: value for name, value in given.attributes.items() if name not in others}
    _quantized(given, new, new.add(op, [_dequantized(given, new, 0)], **said), 3)


def _q_concat(given: SeveralOps, new: NewNodes) -> None:
    parts = [_dequantized(given, new, at) for at in range(2, len(given.names), 3)]
    _quantized(given, new, new.add("Concat", parts, axis=given.get("axis", 1)), 0)


# ---- several operators in one


def _activated(given: SeveralOps, new: NewNodes, value: str, more: Sequence[Any] = ()) -> None:
    """Add the activation that a fused operator names, of the value."""
    name = given.get("activation", b"").decode(errors="replace")
    numbers = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
    if name == "Clip":
        new.add("Clip", [value, *(new.constant(each) for each in more)], given.output())
    elif name in ("", "Relu", "Sigmoid", "Tanh", *numbers):
        said = dict(zip(numbers.get(name, ()), more, strict=False))
        new.add(name or "Identity", [value], given.output(), **said)
    else:
        raise UnfitNode(f"its activation {name} is not known")


def _fused_conv(given: SeveralOps, new: NewNodes) -> None:
    said = {name: value for name, value in given.attributes.items() if not name.startswith("activation")}
    made = new.add("Conv", [name for name in given.names[:3] if name], **said)
    made = new.add("Add", [made, given.name(3)]) if given.name(3) else made
    _activated(given, new, made, given.attributes.get("activation_params", ()))


def _fused_gemm(given: SeveralOps, new: NewNodes) -> None:
    said = {name: value for name, value in given.attributes.items() if not name.startswith("activation")}
    more = [value for name, value in given.attributes.items() if name.startswith("activation_")]
    _activated(given, new, new.add("Gemm", given.names, **said), more)


def _fused_matmul(given: SeveralOps, new: NewNodes) -> None:
    given.refuse(attributes=("transBatchA", "transBatchB"))
    factors = list[str]()
    for at, which in enumerate("AB"):
        name, rank = given.name(at), len(given.shape(at)) if given.get(f"trans{which}", 0) else 0
        if rank > 1:
            name = new.add("Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2])
        factors.append(name)
    alpha = given.get("alpha", 1.0)
    made = new.add("MatMul", factors, given.output() if alpha == 1.0 else "")
    if alpha != 1.0:
        new.add("Mul", [made, new.constant(alpha)], given.output())


def _gelu(given: SeveralOps, new: NewNodes, approximate: str) -> None:
    """Write out a GELU, of a sum with biases where there are some."""
    value = new.add("Add", given.names[:2]) if given.name(1) else given.name(0)
    new.add("Gelu", [value], given.output(), approximate=approximate)


def _quick_gelu(given: SeveralOps, new: NewNodes) -> None:
    gate = new.add("Sigmoid", [new.add("Mul", [given.name(0), new.constant(given.get("alpha", 1.702))])])
    new.add("Mul", [given.name(0), gate], given.output())


def _skipped(given: SeveralOps, new: NewNodes, bias: int) -> str:
    """Add the sum of an input and what skipped it, with biases; a fourth result is the sum itself."""
    total = new.add("Add", given.names[:2], "" if given.name(bias) else given.output(3))
    return new.add("Add", [total, given.name(bias)], given.output(3)) if given.name(bias) else total


def _skip_layer_norm(given: SeveralOps, new: NewNodes) -> None:
    operands = [_skipped(given, new, 4), given.name(2), *filter(None, [given.name(3)])]
    new.add("LayerNormalization", operands, given.output(), axis=-1, epsilon=given.get("epsilon", 1e-12))


def _skip_rms_norm(given: SeveralOps, new: NewNodes) -> None:
    operands = [_skipped(given, new, 3), given.name(2)]
    new.add("RMSNormalization", operands, given.output(), axis=-1, epsilon=given.get("epsilon", 1e-12))


def _rms_norm(given: SeveralOps, new: NewNodes) -> None:
    said = {"axis": given.get("axis", -1), "epsilon": given.get("epsilon", 1e-5)}
    new.add("RMSNormalization", given.names[:2], given.output(), **said)


def _grouped(given: SeveralOps, new: NewNodes, groups: int, scale: str, shift: str) -> None:
    """Add a normalization of groups of channels, each of which is a row; then a factor and an addend a channel."""
    _, channels, *sides = given.shape(0)
    ones = [1] * len(sides)
    rows = new.shaped(given.name(0), [0, groups, -1])
    told = new.add("LayerNormalization", [rows, new.constant([1.0])], axis=-1, epsilon=given.get("epsilon", 1e-5))
    maps = new.add("Reshape", [told, new.add("Shape", [given.name(0)])])
    scaled = new.add("Mul", [maps, new.shaped(scale, [1, channels, *ones])])
    new.add("Add", [scaled, new.shaped(shift, [1, channels, *ones])], given.output())


def _instance_norm(given: SeveralOps, new: NewNodes) -> None:
    _grouped(given, new, given.shape(0)[1], given.name(1), given.name(2))


_BY_CHANNEL = 21
"""The opset from which on a GroupNormalization has numbers for each channel, no longer for each group."""


def _group_norm(given: SeveralOps, new: NewNodes) -> None:
    channels, groups = given.shape(0)[1], given.get("num_groups", 0)
    if groups < 1 or channels % groups:
        raise UnfitNode(f"its {groups:,} groups do not divide its {channels:,} channels")
    numbers = list(given.names[1:3])
    if new.opset < _BY_CHANNEL:
        each = new.numbers([1, channels // groups])
        numbers = [new.shaped(new.add("Expand", [new.shaped(name, [-1, 1]), each]), [-1]) for name in numbers]
    _grouped(given, new, groups, *numbers)


def _two_by_two(given: SeveralOps, new: NewNodes, op: str) -> None:
    """Write out an operator of any number of operands."""
    *inner, last = given.names[1:]
    so_far = given.name(0)
    for name in inner:
        so_far = new.add(op, [so_far, name])
    new.add(op, [so_far, last], given.output())


# ---- reductions


def _axes(given: SeveralOps) -> list[int]:
    """Return the axes of a reduction, in order; an attribute in old models, an operand in others."""
    rank = len(given.shape(0))
    if given.name(1) and given.name(1) not in given.lists:
        raise UnfitNode("its axes are worked out by the model")
    said = given.lists[given.name(1)] if given.name(1) else given.attributes.get("axes", ())
    if said:
        return sorted(axis % max(1, rank) for axis in said)
    return [] if given.get("noop_with_empty_axes", 0) else [*range(rank)]


def _reduce(given: SeveralOps, new: NewNodes, op: str, value: str, axes: Sequence[int], **how: Any) -> str:
    """Add a reduction along some axes."""
    return new.reduced(op, value, axes, keepdims=given.get("keepdims", 1), **how)


def _in_two(given: SeveralOps, new: NewNodes, op: str) -> None:
    """Write out a reduction along several axes: along all but the first, and then along that.

    A reduction of all of an image would be a window of a single channel, in a single lane.
    """
    shape, axes = given.shape(0), _axes(given)
    many = [axis for axis in axes if shape[axis] > 1]
    if 0 in axes or len(many) < 2 or any(shape[axis] > 1 for axis in range(1, len(shape)) if axis not in axes):
        raise UnfitNode("it is no reduction of all of an image along several axes")
    first, *_ = many
    inner = new.reduced(op, given.name(0), [axis for axis in axes if axis != first], keepdims=1)
    _reduce(given, new, op, inner, [first] if given.get("keepdims", 1) else axes, output=given.output())


def _squares(given: SeveralOps, new: NewNodes, root: bool) -> None:
    """Write out a sum of squares, or its root."""
    if given.name(0) not in given.reals:
        raise UnfitNode("it works on whole numbers")
    axes = _axes(given)
    if not axes:
        raise UnfitNode("it reduces nothing")
    squares = new.add("Mul", [given.name(0)] * 2)
    total = _reduce(given, new, "ReduceSum", squares, axes, output="" if root else given.output())
    if root:
        new.add("Sqrt", [total], given.output())


# ---- sums over named axes


def _einsum(given: SeveralOps, new: NewNodes) -> None:
    """Write a sum of products of two values over named axes as a product of matrices, many side by side."""
    text = given.get("equation", b"").decode(errors="replace").replace(" ", "")
    if len(given.names) != 2 or "." in text:
        raise UnfitNode("it is of other than two operands, or of axes without names")
    (first, second), made = _named_axes(text)
    if any(len({*axes}) < len(axes) for axes in (first, second, made)) or not {*made} <= {*first, *second}:
        raise UnfitNode("it has an axis twice")
    sizes = dict(zip(first + second, (*given.shape(0), *given.shape(1)), strict=True))
    outer = [axis for axis in first if axis in second and axis in made]
    inner = [axis for axis in first if axis in second and axis not in made]
    rows, cols = ([axis for axis in axes if axis in made and axis not in outer] for axes in (first, second))
    if len(outer) + len(inner) + len(rows) < len(first) or len(outer) + len(inner) + len(cols) < len(second):
        raise UnfitNode("it sums up an axis of one operand alone")

    def matrices(at: int, axes: str, wanted: Sequence[str], sides: Sequence[Sequence[str]]) -> str:
        order = [axes.index(axis) for axis in wanted]
        turned = given.names[at]
        turned = new.add("Transpose", [turned], perm=order) if order != sorted(order) else turned
        return new.shaped(turned, [prod(sizes[axis] for axis in side) for side in sides])

    many = [outer] if outer else []
    one = matrices(0, first, [*outer, *rows, *inner], [*many, rows, inner])
    other = matrices(1, second, [*outer, *inner, *cols], [*many, inner, cols])
    every = [*outer, *rows, *cols]
    back = [every.index(axis) for axis in made]
    turns = back != sorted(back)
    apart = new.shaped(
        new.add("MatMul", [one, other]), [sizes[axis] for axis in every], "" if turns else given.output()
    )
    if turns:
        new.add("Transpose", [apart], given.output(), perm=back)


def _named_axes(text: str) -> tuple[list[str], str]:
    """Return the axes of two operands and of the result; unsaid, those that are named once, in their order."""
    read, _, made = text.partition("->")
    axes = read.split(",")
    if len(axes) != 2:
        raise UnfitNode("its equation names no two operands")
    once = "".join(sorted(axis for axis in {*read} - {","} if read.count(axis) == 1))
    return axes, made if "->" in text else once


# ---- embeddings


def _embedded(given: SeveralOps, new: NewNodes) -> None:
    words, segments, table, places, of_segments, scale, shift, _, positions = (given.name(at) for at in range(9))
    tokens = given.shape(0)[1]
    total = new.add("Gather", [table, words], axis=0)
    at = positions or new.numbers(range(tokens))
    total = new.add("Add", [total, new.add("Gather", [places, at], axis=0)], "" if segments else given.output(2))
    if segments:
        total = new.add("Add", [total, new.add("Gather", [of_segments, segments], axis=0)], given.output(2))
    said = {"axis": -1, "epsilon": given.get("epsilon", 1e-12)}
    new.add("LayerNormalization", [total, scale, *filter(None, [shift])], given.output(), **said)
    if given.output(1):
        kept = new.add("ReduceSum", [given.name(7), new.numbers([1])], keepdims=0) if given.name(7) else ""
        new.add("Identity", [kept or new.constant([0], np.int32)], given.output(1))


OF_MANY: Mapping[str, Expansion] = {op: partial(_two_by_two, op=op) for op in ("Max", "Min", "Sum")}
"""By operator of any number of operands how more than two are written out."""
OF_ALL: Mapping[str, Expansion] = {op: partial(_in_two, op=op) for op in ("ReduceMax", "ReduceMin", "ReduceSum")}
"""By operator that reduces along axes how it is written out where these are all of an image."""
_OWN: Mapping[str, Expansion] = {
    "Einsum": _einsum, "GroupNormalization": _group_norm, "InstanceNormalization": _instance_norm,
    "QLinearConv": _q_conv, "QLinearMatMul": _q_matmul, "ReduceL2": partial(_squares, root=True),
    "ReduceSumSquare": partial(_squares, root=False), "SimplifiedLayerNormalization": _rms_norm,
}  # fmt: skip
_OF_MICROSOFT: Mapping[str, Expansion] = {
    **ATTENTION, "BiasGelu": partial(_gelu, approximate="none"), "DynamicQuantizeMatMul": _dynamic_product,
    "EmbedLayerNormalization": _embedded, "FastGelu": partial(_gelu, approximate="tanh"), "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm, "FusedMatMul": _fused_matmul, "Gelu": partial(_gelu, approximate="none"),
    "MatMulIntegerToFloat": _product_to_reals, "QGemm": _q_gemm,
    **{f"QLinear{op}": partial(_q_two, op=op) for op in ("Add", "Mul")}, "QLinearConcat": _q_concat,
    **{f"QLinear{op}": partial(_q_one, op=op)
       for op in ("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax")},
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_layer_norm, "SkipSimplifiedLayerNormalization": _skip_rms_norm,
}  # fmt: skip
DYNAMIC_LSTM = "com.microsoft.DynamicQuantizeLSTM"
"""An LSTM whose weights are bytes, and whose inputs and outputs are rounded to bytes as they come."""
EXPANSIONS: Mapping[str, Expansion] = {
    **_OWN, **{f"com.microsoft.{name}": each for name, each in _OF_MICROSOFT.items()},
}  # fmt: skip
"""By operator, with its domain, how it is written out."""
