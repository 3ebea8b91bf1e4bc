"""The way back, op by op: layers that make the gradients of a layer's operands, and of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, Protocol, TypeAlias

from tpusim.base.errors import InputError, Problem
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.flash_attention import FlashAttentionGradient
from tpusim.network.ops.gradients import Conv2dFilterGradient, Conv2dInputGradient
from tpusim.network.ops.op import Op, Shape
from tpusim.network.ops.pool2d import Pool2dChoice, Pool2dGradient
from tpusim.network.workload import BACKWARD, Source, Training, Workload


@dataclass(frozen=True)
class Value:
    """An output of a layer of the step, or an input of it.

    Attributes:
        names: layers that made it, or inputs; the outputs of several lie side by side along the channels.
        shape: [channel, row, col, image].
        direct: whether readers see it as it was made.
        weights: whether it is trained.
    """

    names: tuple[str, ...]
    shape: Shape
    direct: bool = True
    weights: bool = False

    @property
    def turned(self) -> Value:
        """The value, read in another form."""
        return replace(self, direct=False)

    @property
    def source(self) -> Source:
        """What its readers name."""
        return Source(self.names, self.direct)


Gradients: TypeAlias = Sequence[Value | None]
"""The gradients of the first operands of a layer, as many as may have one; None where one is not needed."""


class StepWriter(Protocol):
    """A step while it is written, as the layers of the way back are added to it.

    Attributes:
        network: the network; `training`: what is asked; `batch`: its images.
    """

    network: Workload
    training: Training
    batch: int

    def add(self, layer: Op, *reads: Value, phase: str = BACKWARD) -> Value:
        """Add a layer that reads these; return its output."""

    def map(self, op: str, name: str, shape: Shape, *reads: Value, phase: str = BACKWARD, **more: Any) -> Value:
        """Add an op of the vector unit on maps of a shape."""

    def update(self, name: str, shape: Shape, gradient: Value) -> None:
        """Note weights that are to be updated by their gradient."""

    def is_needed(self, operand: Value) -> bool:
        """Whether a layer that trains, or one ahead of it, made an operand."""

    def operand(self, operand: Value) -> Value:
        """An operand of the network's layer, for the way back: kept, or computed again."""

    def result(self, layer: Op) -> Value:
        """The result of the network's layer, for the way back."""


# ---- batch normalisation: a channel's elements less their mean, over their deviation, times gamma, plus beta


def normalised(step: StepWriter, name: str, made: Value, again: str, phase: str) -> Value:
    """Add a batch normalisation of a value; a copy of it uses the statistics that there are."""
    shape, channel = made.shape, (made.shape[0], 1, 1, 1)
    if not again:
        gamma, beta = (Value((f"{name}.{each}",), channel) for each in ("gamma", "beta"))
        mean = step.map("channel_mean", f"{name}.mean", shape, made, phase=phase)
        variance = step.map("channel_variance", f"{name}.variance", shape, made, mean, phase=phase)
        epsilon = step.training.epsilon
        scale = step.map("over_deviation", f"{name}.scale", channel, variance, gamma, phase=phase, epsilon=epsilon)
        step.map("batch_norm_shift", f"{name}.shift", channel, mean, scale, beta, phase=phase)
    scale, shift = (Value((f"{name}.{each}",), channel) for each in ("scale", "shift"))
    return step.map("scale_shift", name + again, shape, made, scale, shift, phase=phase)


def normalised_gradient(step: StepWriter, name: str, made: Value, gradient: Value) -> Value:
    """Add the gradients of a batch normalisation by its input, gamma and beta; return the first.

    It is scale * gradient + slope * input + offset: the statistics depend on the input, too.
    """
    shape, channel, epsilon = made.shape, (made.shape[0], 1, 1, 1), step.training.epsilon
    mean, variance, scale = (Value((f"{name}.{each}",), channel) for each in ("mean", "variance", "scale"))
    elements = prod(shape[1:])
    by_beta = step.map("channel_sum", f"{name}.dbeta", shape, gradient)
    centred = step.map("channel_products", f"{name}.centred", shape, gradient, made, mean, centred=True)
    by_gamma = step.map("over_deviation", f"{name}.dgamma", channel, variance, centred, epsilon=epsilon)
    more: dict[str, Any] = {"elements": elements, "epsilon": epsilon}
    slope = step.map("batch_norm_slope", f"{name}.slope", channel, variance, scale, by_gamma, **more)
    offset = step.map("batch_norm_offset", f"{name}.offset", channel, mean, scale, slope, by_beta, elements=elements)
    step.update(f"{name}.gamma", channel, by_gamma)
    step.update(f"{name}.beta", channel, by_beta)
    return step.map("batch_norm_gradient", f"{name}.dx", shape, gradient, made, scale, slope, offset)


# ---- gradients, op by op


def _of_convolution(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    conv, _ = layer.convolution(step.batch)
    how: tuple[Any, ...] = conv.kernel, conv.stride, conv.padding, conv.dilation, conv.groups
    sizes = conv.in_channels, conv.in_height, conv.in_width, conv.out_channels
    weights = step.add(
        Conv2dFilterGradient(f"{layer.name}.dw", *sizes, *how), step.operand(operands[0]).turned, gradient.turned
    )
    step.update(f"{layer.name}.filter", weights.shape, weights)
    _of_bias(step, layer, gradient)
    if not step.is_needed(operands[0]):
        return [None]
    return [_by_input(step, Conv2dInputGradient(f"{layer.name}.dx", *sizes, *how), gradient, operands[1].turned)]


def _by_input(step: StepWriter, layer: Conv2dInputGradient, gradient: Value, weights: Value) -> Value:
    """Add the gradient of a convolution by its input, in the form that takes the fewest multiplications."""
    high, wide = layer.out_height, layer.out_width
    strided, padded = prod(layer.stride) > 1, any(sum(axis.ends) for axis in layer.axes)
    if strided and prod(layer.kernel) == 1 and not padded:
        # Most of the input is under no tap, and its gradient zero: that needs no multiplication.
        sizes, groups = (layer.in_channels, high, wide, layer.out_channels), layer.groups
        under = Conv2dInputGradient(f"{layer.name}.touched", *sizes, kernel=(1, 1), groups=groups)
        touched, whole = step.add(under, gradient, weights), (layer.in_height, layer.in_width)
        more: dict[str, Any] = {"step": layer.stride, "out_height": whole[0], "out_width": whole[1]}
        return step.map("spread", layer.name, touched.shape, touched, **more)
    around = [axis.reach - 1 - end for axis in layer.axes for end in axis.ends]
    if layer.groups > 1 and not strided and min(around) >= 0:
        # With the taps turned round it is a convolution, which goes through many groups at once.
        top, bottom, left, right = around
        turned = Conv2d(
            layer.name, layer.out_channels, high, wide, layer.in_channels, layer.kernel,
            padding=(top, left, bottom, right), dilation=layer.dilation, groups=layer.groups,
        )  # fmt: skip
        return step.add(turned, gradient, weights)
    return step.add(layer, gradient, weights)


def _of_transposed(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    """A transposed convolution is the gradient by the input of a convolution, which is its own gradient by the input.

    Raises InputError where no convolution has just this gradient.
    """
    sizes = layer.out_channels, layer.out_height, layer.out_width, layer.in_channels
    how = layer.kernel, layer.stride, layer.padding, layer.dilation, layer.groups
    forward = Conv2d(f"{layer.name}.dx", *sizes, *how)
    weights = step.add(
        Conv2dFilterGradient(f"{layer.name}.dw", *sizes, *how), gradient.turned, step.operand(operands[0]).turned
    )
    step.update(f"{layer.name}.filter", weights.shape, weights)
    _of_bias(step, layer, gradient)
    return [step.add(forward, gradient, operands[1].turned) if step.is_needed(operands[0]) else None]


def _of_product(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    first, second = operands
    by_second = Gemm(f"{layer.name}.dw", m=layer.k, n=layer.n, k=layer.m, groups=layer.groups)
    found: list[Value | None] = [None, None]
    if second.weights:
        weights = step.add(by_second, step.operand(first).turned, gradient.turned)
        step.update(f"{layer.name}.filter", weights.shape, weights)
        _of_bias(step, layer, gradient)
    elif step.is_needed(second):
        found[1] = step.add(by_second, step.operand(first).turned, gradient.turned).turned
    if step.is_needed(first):
        by_first = Gemm(f"{layer.name}.dx", m=layer.m, n=layer.k, k=layer.n, groups=layer.groups)
        found[0] = step.add(by_first, gradient, step.operand(second).turned)
    return found


def _of_bias(step: StepWriter, layer: Op, gradient: Value) -> None:
    if layer.name in step.network.biases:
        summed = step.map("channel_sum", f"{layer.name}.db", gradient.shape, gradient)
        step.update(f"{layer.name}.bias", summed.shape, summed)


def _of_activation(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    """Some activations tell their slope by their result, others by their operand."""
    known = step.operand(operands[0]) if layer.op in ("silu", "gelu") else step.result(layer)
    own = {each.name: getattr(layer, each.name) for each in fields(layer) if each.name not in _SIZES}
    return [step.map(f"{layer.op}_gradient", f"{layer.name}.dx", gradient.shape, gradient, known, **own)]


_SIZES = frozenset({"name", "channels", "height", "width", "images"})


def _of_pooling(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    own = {each.name: getattr(layer, each.name) for each in fields(layer) if each.name != "name"}
    choice = []
    if layer.kind == "max":
        choice = [step.add(Pool2dChoice(f"{layer.name}.choice", **own), step.operand(operands[0]))]
    return [step.add(Pool2dGradient(f"{layer.name}.dx", **own), gradient, *choice)]


def _of_sum(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    """What is added from outside is weights: numbers of channels, or a table such as that of positions."""
    for each in operands[1:]:
        by_other = gradient
        if layer.other == "map":
            # Each element is a channel here, whose sum is over the images.
            rows = prod(each.shape), 1, 1, gradient.shape[3]
            by_other = step.map("channel_sum", f"{layer.name}.db", rows, gradient.turned).turned
        elif layer.other == "channel":
            by_other = step.map("channel_sum", f"{layer.name}.db", gradient.shape, gradient)
        elif layer.other != "each":
            raise InputError(_apart(layer))
        if each.weights:
            step.update(each.names[0], each.shape, by_other)
    return [gradient] * (len(operands) if layer.other == "each" else 1)


def _of_factors(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    if layer.other != "each":
        raise InputError(_apart(layer))
    pairs = zip(("dx", "dother"), operands, reversed(operands), strict=True)
    return [
        step.map("mul", f"{layer.name}.{end}", gradient.shape, gradient, step.operand(other))
        if step.is_needed(own)
        else None
        for end, own, other in pairs
    ]


def _apart(layer: Any) -> Problem:
    says = f"the gradient of a {layer.op} whose other operand has a number for each {layer.other} is not known"
    return Problem(f"{says}; leave it out, or write it with `other: each`", f"layer {layer.name}")


def _of_rows(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    """The gradients of a normalisation of rows. That of the scale takes the normalised rows, which are made again, with
    a scale of ones and a shift of zeros.
    """
    rows, scale, *shift = operands
    name, shape, read, more = layer.name, rows.shape, step.operand(rows), {"epsilon": layer.epsilon}
    plain = [Value((f"{name}.{each}",), scale.shape) for each in ("ones", *["zeros" for _ in shift])]
    again = step.map(layer.op, f"{name}.normalised", shape, read, *plain, **more)
    by_scale = step.map("channel_products", f"{name}.dscale", shape, gradient, again)
    step.update(scale.names[0], scale.shape, by_scale)
    for each in shift:
        step.update(each.names[0], each.shape, step.map("channel_sum", f"{name}.dshift", shape, gradient))
    if not step.is_needed(rows):
        return [None]
    return [step.map(f"{layer.op}_gradient", f"{name}.dx", shape, gradient, read, scale, **more)]


def _of_gate(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    """The gradient of what a gate lets through passes it, too; that of the gate passes the slope of its function."""
    (gate, other), shape, name = map(step.operand, operands), gradient.shape, layer.name
    found: list[Value | None] = [None, None]
    if step.is_needed(operands[0]):
        slope, more = ("silu_gradient", {}) if layer.op == "swiglu" else ("gelu_gradient", {"approximate": "tanh"})
        of_gate = step.map("mul", f"{name}.dgate", shape, gradient, other)
        found[0] = step.map(slope, f"{name}.dx", shape, of_gate, gate, **more)
    if step.is_needed(operands[1]):
        found[1] = step.map(layer.op, f"{name}.dother", shape, gate, gradient)
    return found


def _of_rotation(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    return [step.add(replace(layer, name=f"{layer.name}.dx", back=not layer.back), gradient)]


def _of_softmax(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    """Elements that a mask hides have shares of zero, and so gradients of zero."""
    return [step.map("softmax_gradient", f"{layer.name}.dx", gradient.shape, gradient, step.result(layer))]


def _of_flash_attention(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    """One op makes the gradients by queries, keys and values, side by side: scores are not kept, and made once more."""
    own = {each.name: getattr(layer, each.name) for each in fields(layer) if each.name != "name"}
    made = step.add(
        FlashAttentionGradient(f"{layer.name}.dx", **own), gradient, *(step.operand(each).turned for each in operands)
    )
    return [Value(made.names, each.shape, direct=False) for each in operands]


def _of_table(step: StepWriter, layer: Any, operands: Sequence[Value], gradient: Value) -> Gradients:
    """Rows of a table that are taken: the gradients of each row's takers are added by a product with ones where a taker
    has taken the row, and zeros elsewhere.
    """
    (table,) = operands
    product = Gemm(f"{layer.name}.dw", m=layer.images, n=layer.channels, k=layer.rows)
    taken = Value((f"{layer.name}.taken",), (layer.rows, 1, 1, layer.images))
    weights = step.add(product, taken, gradient.turned)
    step.update(table.names[0], weights.shape, weights)
    return [None]


def _of_norm(step: StepWriter, layer: Op, operands: Sequence[Value], gradient: Value) -> Gradients:
    return [normalised_gradient(step, layer.name, step.operand(operands[0]), gradient)]


def _same(step: StepWriter, layer: Op, operands: Sequence[Value], gradient: Value) -> Gradients:
    return [gradient]


Backward: TypeAlias = Callable[[StepWriter, Any, Sequence[Value], Value], Gradients]
BACKWARD_OF: Mapping[str, Backward] = {
    **dict.fromkeys(("conv2d", "conv1d"), _of_convolution),
    "conv_transpose2d": _of_transposed,
    "gemm": _of_product,
    **dict.fromkeys(("relu", "leaky_relu", "clip", "sigmoid", "tanh", "silu", "gelu"), _of_activation),
    "pool2d": _of_pooling,
    "add": _of_sum,
    "mul": _of_factors,
    "copy": _same,
    **dict.fromkeys(("layer_norm", "rms_norm"), _of_rows),
    **dict.fromkeys(("swiglu", "geglu"), _of_gate),
    "rotary": _of_rotation,
    "softmax": _of_softmax,
    "flash_attention": _of_flash_attention,
    "embedding": _of_table,
    "scale_shift": _of_norm,
}
"""By op the layers that make the gradients of its operands."""
