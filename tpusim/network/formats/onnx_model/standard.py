"""What the ONNX standard forbids of the sizes of a node, and the onnx library's inference of shapes lets pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import TypeAlias

from onnx import NodeProto, helper

from tpusim.network.formats.onnx_model.file import operator
from tpusim.network.formats.onnx_model.shapes import ValueShape

Known: TypeAlias = Sequence[ValueShape | None]
"""The shapes of operands; None where one is left out or not known."""
_Rule: TypeAlias = Callable[[NodeProto, Known, ValueShape], Iterator[str]]

_POOLS = ("AveragePool", "LpPool", "MaxPool")
"""Ops of which each result needs a whole window; a convolution says so as a layer."""

_BY_SHAPE = 7
"""The opset from which on operands are broadcast by their shapes alone, aligned at their last axes."""


def forbidden(node: NodeProto, shapes: Mapping[str, ValueShape], opset: int) -> Iterator[str]:
    """Say what of a node the standard forbids, as far as the shapes of its operands and its first result are known.

    Source: the operators' texts of https://onnx.ai/onnx/operators.
    """
    result, name = shapes.get(node.output[0]) if node.output else None, operator(node)
    rule = None if opset < _BY_SHAPE and name in ("Gemm", "PRelu") else _RULES.get(name)
    if result is None:
        return
    if min(result, default=0) < 0:
        yield f"its result would be {_text(result)}, less than nothing"
    operands = [shapes.get(name) if name else None for name in node.input]
    if name in _POOLS and operands[0] is not None and 0 in result and 0 not in operands[0]:
        yield f"its result would be {_text(result)}: its window is larger than its map"
    if rule is not None and operands and operands[0] is not None:
        yield from rule(node, [*operands, *[None] * _MOST_OPERANDS], result)


_MOST_OPERANDS = 5
"""Operands that a rule looks at, there or not."""


def _convolution(node: NodeProto, operands: Known, result: ValueShape) -> Iterator[str]:
    """Check channels, groups, taps and biases; of a deformable one also what says where it samples."""
    maps, weights, *more = operands
    if maps is None or weights is None or min(len(maps), len(weights)) < 3:
        return
    turned, deformed = node.op_type == "ConvTranspose", node.op_type == "DeformConv"
    groups, kernel = _number(node, "group", 1), weights[2:]
    read, made = (weights[0], weights[1] * groups) if turned else (weights[1] * groups, weights[0])
    in_groups = f" in {groups:,} groups" if groups != 1 else ""
    if read != maps[1]:
        what = f"its weights {_text(weights)} are for {read:,} channels{in_groups}"
        yield f"{what}, and its input {_text(maps)} has {maps[1]:,}"
    elif groups < 1 or maps[1] % groups or made % groups:
        yield f"its {groups:,} groups do not divide its {maps[1]:,} channels and {made:,} outputs"
    said = next((tuple(each.ints) for each in node.attribute if each.name == "kernel_shape"), kernel)
    if said != kernel:
        yield f"kernel_shape says {_text(said)}, and its weights are {_text(weights)}"
    if (bias := more[1 if deformed else 0]) not in (None, (made,)):
        yield f"its biases are {_text(bias)}, for {made:,} outputs"
    if deformed:
        samples = _number(node, "offset_group", 1) * prod(kernel)
        for what, shape, channels in (("offsets", more[0], 2 * samples), ("masks", more[2], samples)):
            if shape is not None and shape != (maps[0], channels, *result[2:]):
                yield f"its {what} are {_text(shape)}, and {_text((maps[0], channels, *result[2:]))} are read"


def _spread(first: int, onto: Callable[[NodeProto, ValueShape], ValueShape] = lambda node, result: result) -> _Rule:
    """Make the rule that operands from `first` on can be broadcast to the result, or to a part of it."""

    def rule(node: NodeProto, operands: Known, result: ValueShape) -> Iterator[str]:
        whole = onto(node, result)
        for shape in operands[first:]:
            ends = zip_longest(reversed(shape or ()), reversed(whole))
            if any(mine not in (None, 1, size) for mine, size in ends):
                yield f"its operand {_text(shape)} cannot be broadcast to {_text(whole)}"

    return rule


def _rows(node: NodeProto, result: ValueShape) -> ValueShape:
    """Return the axes along which a node normalizes."""
    axis = _number(node, "axis", -1)
    return result[axis:] if -len(result) <= axis < len(result) else result


def _by_channel(node: NodeProto, operands: Known, result: ValueShape) -> Iterator[str]:
    """Check that every operand but the first has a number for each channel."""
    for at, shape in enumerate(operands[1:], start=1):
        if shape not in (None, result[1:2]):
            yield f"its operand {at} is {_text(shape)}, no number for each of {prod(result[1:2]):,} channels"


def _moved(node: NodeProto, operands: Known, result: ValueShape) -> Iterator[str]:
    """Check that there are as many elements before as after, and that every axis is named once."""
    given = operands[0] or ()
    order = next((sorted(each.ints) for each in node.attribute if each.name == "perm"), None)
    if prod(given) != prod(result) or (order is not None and order != [*range(len(given))]):
        yield f"its result {_text(result)} does not hold what its operand {_text(given)} does"


def _number(node: NodeProto, name: str, default: int) -> int:
    """Read an attribute of one whole number; what is of another kind is told elsewhere."""
    given = next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)
    return given if isinstance(given, int) else default


def _text(shape: ValueShape | None) -> str:
    return "x".join(map(str, shape)) if shape else "one number"


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "DeformConv"), _convolution),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _spread(1, _rows)),
    **dict.fromkeys(
        ("DepthToSpace", "Flatten", "Reshape", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"), _moved
    ),
    "Gemm": _spread(2),
    "InstanceNormalization": _by_channel,
    "PRelu": _spread(1),
}
