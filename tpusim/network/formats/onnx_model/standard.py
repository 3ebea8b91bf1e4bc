"""Rules of the ONNX standard that the onnx library's inference of shapes does not check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from onnx import NodeProto, numpy_helper

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted, few
from tpusim.network.formats import printable
from tpusim.network.formats.onnx_model.facts import tensors_of
from tpusim.network.formats.onnx_model.file import attributes_of, called, operator, said
from tpusim.network.formats.onnx_model.shapes import InferredGraph, ValueShape
from tpusim.network.formats.reasons import MOST_TOLD

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""By operator of a recurrent network, how many numbers its weights hold for each element of a state."""

_BY_SHAPE = 7
"""The opset from which on operands are broadcast by their shapes alone, aligned at their last axes."""
_BY_CHANNEL = 21
"""The opset from which on a GroupNormalization has numbers for each channel, no longer for each group."""
_GROUPS = "GroupNormalization"
_OF_GROUPS = 3
"""Number of operands of a GroupNormalization."""
_NORMALIZATIONS = ("LayerNormalization", "RMSNormalization")
_PICKING = ("Gather", "GatherElements")
_MOST_OPERANDS = 8
"""Most operands that a rule looks at, there or not."""

_Value = TypeVar("_Value", int, bytes, list[int])


class _Node(NamedTuple):
    """A node, and what is known around it.

    Attributes:
        operands: their shapes; None where one is left out or not known.
        result: the shape of the first result that has a name.
    """

    proto: NodeProto
    operands: Sequence[ValueShape | None]
    result: ValueShape
    opset: int

    def get(self, name: str, default: _Value) -> _Value:
        """Read an attribute, as `_get` does."""
        return _get(self.proto, name, default)


def _get(node: NodeProto, name: str, default: _Value) -> _Value:
    """Read an attribute in the type of its default; an attribute of another kind is reported elsewhere."""
    given = said(node).get(name)
    return given if isinstance(given, type(default)) else default


_Rule: TypeAlias = Callable[[_Node], Iterator[str]]


def refuse_forbidden(nodes: Iterable[NodeProto], found: InferredGraph, opset: int, path: Path) -> None:
    """Raise InputError with what the standard forbids of some nodes, as far as shapes are known."""
    _refuse(((node, says) for node in nodes for says in _forbidden(node, found.shapes, opset)), path)


def refuse_beyond(found: InferredGraph, path: Path) -> None:
    """Raise InputError where an index that stands in the file lies beyond its axis."""
    constants = tensors_of(found.graph)

    def beyond(node: NodeProto) -> Iterator[tuple[NodeProto, str]]:
        operand, at = node.input[:2]
        shape, axis = found.shapes.get(operand, ()), _get(node, "axis", 0)
        if at in constants and -len(shape) <= axis < len(shape):
            length, indices = shape[axis], numpy_helper.to_array(constants[at])
            for index in indices[(indices < -length) | (indices >= length)][:1]:
                yield node, f"its index {index} is beyond the {length:,} elements of that axis"

    picking = (each for each in found.graph.node if operator(each) in _PICKING)
    _refuse((told for node in picking for told in beyond(node)), path)


def _refuse(forbidden: Iterable[tuple[NodeProto, str]], path: Path) -> None:
    if told := [f"{operator(node)} {called(node)}: {says}" for node, says in forbidden]:
        says = few(told, MOST_TOLD, "; ", "; and {} more")
        raise InputError(Problem(f"{says}: the ONNX standard forbids that; export the model again", str(path)))


def _forbidden(node: NodeProto, shapes: Mapping[str, ValueShape], opset: int) -> Iterator[str]:
    """Yield what the standard forbids of a node.

    Source: the operators' texts of https://onnx.ai/onnx/operators.
    """
    known, name = attributes_of(node), operator(node)
    for each in node.attribute:
        if each.name not in known:
            others = f", but {', '.join(sorted(known))}" if known else ""
            yield f"ONNX has no attribute {printable(each.name)} there{others}"
    rule = None if opset < _BY_SHAPE and name in ("Gemm", "PRelu") else _RULES.get(name)
    result = shapes.get(next(filter(None, node.output), ""))
    # Without the result's shape, the rules have nothing to compare operands with.
    if result is None:
        return
    if min(result, default=0) < 0:
        yield f"its result would be {_text(result)}, less than nothing"
    operands = [shapes.get(name) if name else None for name in node.input]
    if rule is not None and operands and operands[0] is not None:
        yield from rule(_Node(node, [*operands, *[None] * _MOST_OPERANDS], result, opset))


def _padded(node: _Node) -> Iterator[str]:
    """Check that paddings are said once."""
    auto, pads = node.get("auto_pad", b"NOTSET"), node.get("pads", [])
    if auto not in (b"NOTSET", b"") and any(pads):
        yield f"auto_pad {printable(auto.decode(errors='replace'))} and pads {_text(pads)} both say what is added"


def _pool(node: _Node) -> Iterator[str]:
    """Check that each result has a whole window; a convolution says so as a layer."""
    yield from _padded(node)
    if 0 in node.result and 0 not in (node.operands[0] or ()):
        yield f"its result would be {_text(node.result)}: its window is larger than its map"


def _convolution(node: _Node) -> Iterator[str]:
    """Check channels, groups, taps and biases; of a deformable one also what says where it samples."""
    yield from _padded(node)
    maps, weights, *more = node.operands
    if maps is None or weights is None or min(len(maps), len(weights)) < 3:
        return
    turned, deformed = node.proto.op_type == "ConvTranspose", node.proto.op_type == "DeformConv"
    groups, kernel = node.get("group", 1), weights[2:]
    read, made = (weights[0], weights[1] * groups) if turned else (weights[1] * groups, weights[0])
    in_groups = f" in {groups:,} groups" if groups != 1 else ""
    if read != maps[1]:
        what = f"its weights {_text(weights)} are for {read:,} channels{in_groups}"
        yield f"{what}, and its input {_text(maps)} has {maps[1]:,}"
    elif groups < 1 or maps[1] % groups or made % groups:
        yield f"its {groups:,} groups do not divide its {maps[1]:,} channels and {made:,} outputs"
    if (given := node.get("kernel_shape", [*kernel])) != [*kernel]:
        yield f"kernel_shape says {_text(given)}, and its weights are {_text(weights)}"
    if (bias := more[1 if deformed else 0]) not in (None, (made,)):
        yield f"its biases are {_text(bias)}, for {made:,} outputs"
    if deformed:
        samples = node.get("offset_group", 1) * prod(kernel)
        for what, shape, channels in (("offsets", more[0], 2 * samples), ("masks", more[2], samples)):
            if shape is not None and shape != (wanted := (maps[0], channels, *node.result[2:])):
                yield f"its {what} are {_text(shape)}, and {_text(wanted)} are read"


def _spread(node: _Node, first: int) -> Iterator[str]:
    """Check that operands from `first` on can be broadcast to the result, or to the axes of it that are normalized."""
    whole = node.result
    if node.proto.op_type in _NORMALIZATIONS:
        axis = node.get("axis", -1)
        yield from _axis(node)
        whole = whole[axis:] if -len(whole) <= axis < len(whole) else whole
    for shape in node.operands[first:]:
        ends = zip_longest(reversed(shape or ()), reversed(whole))
        longer = len(shape or ()) > len(node.result)
        if longer or any(mine not in (None, 1, size) for mine, size in ends):
            yield f"its operand {_text(shape)} cannot be broadcast to {_text(whole)}"


def _axis(node: _Node) -> Iterator[str]:
    """Check that the axis, the last unless it says another, is one of those of the operand."""
    axis, axes = node.get("axis", -1), len(node.operands[0] or ())
    if not -axes <= axis < axes:
        yield f"its axis {axis} is none of the {axes} of its operand {_text(node.operands[0])}"


def _by_channel(node: _Node) -> Iterator[str]:
    """Check that every operand but the first has a number for each channel, or, where groups had one, each of these."""
    channels, wanted = prod(node.result[1:2]), "channels"
    numbers = channels
    if node.proto.op_type == _GROUPS:
        groups, given = node.get("num_groups", 0), len(node.proto.input)
        # The onnx library, which infers no shapes of this op, counts its operands neither.
        if given != _OF_GROUPS:
            yield f"it has {counted(given, 'operand')}, and reads {_OF_GROUPS}: a map, scales and shifts"
        if groups < 1 or channels % groups:
            yield f"its {groups:,} groups do not divide its {channels:,} channels"
        if node.opset < _BY_CHANNEL:
            numbers, wanted = groups, "groups"
    for at, shape in enumerate(node.operands[1:], start=1):
        if shape not in (None, (numbers,)):
            yield f"its operand {at} is {_text(shape)}, no number for each of {numbers:,} {wanted}"


def _recurrent(node: _Node) -> Iterator[str]:
    """Check weights, biases and states, by the elements of a state."""
    sequence, _, backs, *_ = node.operands
    if sequence is None or backs is None or len(sequence) != len(backs):
        return
    op, turned = node.proto.op_type, node.get("layout", 0)
    ways, hidden = 2 if node.get("direction", b"") == b"bidirectional" else 1, node.get("hidden_size", backs[2])
    gates, images = GATES[op] * hidden, sequence[0 if turned else 1]
    state = (images, ways, hidden) if turned else (ways, images, hidden)
    wanted = [
        sequence, (ways, gates, sequence[2]), (ways, gates, hidden), (ways, 2 * gates), (images,), state, state,
        (ways, 3 * hidden),
    ]  # fmt: skip
    for at, (shape, fits) in enumerate(zip(node.operands, wanted, strict=False)):
        if shape not in (None, fits):
            yield f"its operand {at} is {_text(shape)}, and states of {hidden:,} elements need {_text(fits)}"


def _window(node: _Node) -> Iterator[str]:
    """Check that a window over channels has a size, and holds any."""
    if not any(each.name == "size" for each in node.proto.attribute):
        yield "it has no size, and a window has a channel or more"
    elif (size := node.get("size", 1)) < 1:
        yield f"its size is {size}, and a window has a channel or more"


def _moved(node: _Node) -> Iterator[str]:
    """Check that there are as many elements before as after, and that every axis is named once."""
    given = node.operands[0] or ()
    axes = [*range(len(given))]
    if prod(given) != prod(node.result) or sorted(node.get("perm", axes)) != axes:
        yield f"its result {_text(node.result)} does not hold what its operand {_text(given)} does"


def _linear(node: _Node) -> Iterator[str]:
    """Check the scales and zero points of bytes: one of all, of each place along an axis, or of blocks along it."""
    values, scales, zeros, *_ = node.operands
    if values is None or scales is None:
        return
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    needed: ValueShape | None = None
    if scales not in ((), (1,)) or block:
        if not -len(values) <= axis < len(values):
            yield f"its axis {axis} is none of the {len(values)} of its operand {_text(values)}"
            return
        length = values[axis]
        needed = (length,)
        if block > 0:
            needed = *values[: axis % len(values)], -(-length // block), *values[axis % len(values) + 1 :]
    if needed is not None and scales != needed:
        yield f"its scales are {_text(scales)}, and {_text(values)} along axis {axis} needs {_text(needed)}"
    if zeros is not None and zeros != scales and {zeros, scales} != {(), (1,)}:
        yield f"its zero points are {_text(zeros)}, and its scales {_text(scales)}"


def _text(shape: Sequence[int] | None) -> str:
    return "x".join(map(str, shape)) if shape else "one number"


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
    **dict.fromkeys(("Conv", "ConvTranspose", "DeformConv"), _convolution),
    **dict.fromkeys(_NORMALIZATIONS, partial(_spread, first=1)),
    **dict.fromkeys((_GROUPS, "InstanceNormalization"), _by_channel),
    **dict.fromkeys(
        ("DepthToSpace", "Flatten", "Reshape", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"), _moved
    ),
    **dict.fromkeys(GATES, _recurrent),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _linear),
    "Gemm": partial(_spread, first=2),
    "LpNormalization": _axis,
    "LRN": _window,
    "PRelu": partial(_spread, first=1),
}
