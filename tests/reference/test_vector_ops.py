"""Pooling and element-wise ops of the reference against nested loops, and against the onnx library."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.strategies import cases, pools
from tpusim import reference
from tpusim.base.errors import InputError
from tpusim.flow.verify import operands_of
from tpusim.network.ops.elementwise import (
    Add,
    Clip,
    Div,
    Erf,
    Exp,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Masked,
    Mul,
    Power,
    Rdiv,
    Relu,
    Rsub,
    ScaleShift,
    Sigmoid,
    Sqrt,
    Sub,
    Tanh,
)
from tpusim.network.ops.op import VectorOp
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.ops.rows import Lrn, Softmax
from tpusim.reference.nodes.primitives import NODES


@settings(max_examples=cases(usual=25), deadline=None, suppress_health_check=list(HealthCheck))
@given(pools(3, 4))
def test_a_pool_is_what_its_windows_hold(layer: Pool2d) -> None:
    operands = reference.operands(layer, 2, seed=1)
    found = reference.compute(layer, operands)
    for index in product(*map(range, found.shape)):
        np.testing.assert_allclose(found[index], by_hand(layer, operands["ifmap"], index), rtol=1e-6)


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (3, 2)])
def test_windows_of_a_primitive_are_those_of_a_pool(strides: tuple[int, int]) -> None:
    """Of rows and columns, as JAX has them, against windows that NumPy lays over the padded map."""
    values = np.random.default_rng(1).integers(-9, 9, (7, 9)).astype(np.float32)
    window = {
        "window_dimensions": (3, 2),
        "window_strides": strides,
        "padding": ((1, 0), (0, 1)),
        "window_dilation": (1, 2),
    }
    for name, filler, gather in (("reduce_window_max", -np.inf, np.max), ("reduce_window_sum", 0, np.sum)):
        padded = np.pad(values, window["padding"], constant_values=filler)
        every = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))[:: strides[0], :: strides[1], :, ::2]
        np.testing.assert_array_equal(NODES[name](values, **window), gather(every, (2, 3)))


def by_hand(layer: Pool2d, ifmap: Any, index: tuple[int, ...]) -> float:
    """One output; where a window ends beyond the padding, what lies there does not count in any way."""
    channel, row, col, image = index
    top, left, bottom, right = layer.padding if len(layer.padding) == 4 else (*layer.padding, *layer.padding)
    seen, counted = [], 0
    for i, j in product(*map(range, layer.kernel)):
        y = row * layer.stride[0] + i * layer.dilation[0] - top
        x = col * layer.stride[1] + j * layer.dilation[1] - left
        inside = 0 <= y < layer.in_height and 0 <= x < layer.in_width
        seen += [int(ifmap[channel, y, x, image])] if inside else []
        counted += inside or (layer.count_include_pad and y < layer.in_height + bottom and x < layer.in_width + right)
    return {"max": max(seen), "min": min(seen), "average": sum(seen) / counted}[layer.kind]


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "ceil", "out"),
    [
        (6, 3, 2, 0, False, 2), (6, 3, 2, 0, True, 3), (7, 3, 2, 1, False, 4), (7, 3, 2, 1, True, 4),
        (5, 2, 2, 1, True, 3), (4, 1, 3, 0, True, 2), (5, 3, 3, 1, True, 2), (4, 3, 3, 1, True, 2),
    ],
)  # fmt: skip
def test_ceil_mode_adds_no_window_that_begins_behind_the_map(
    size: int, kernel: int, stride: int, padding: int, ceil: bool, out: int
) -> None:
    layer = Pool2d("p", "max", 1, size, size, kernel, stride, padding, ceil_mode=ceil)
    assert layer.shapes(1)["ofmap"] == (1, out, out, 1)


@pytest.mark.parametrize(
    ("padding", "says"),
    [((2, 2), "window 0 of height stands on padding alone"), ((0, 0, 0, 9), "of width stands")],
)
def test_windows_that_see_nothing_are_refused(padding: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Pool2d("p", "max", 1, 6, 6, 2, 1, padding)


MAP = ("x", 3, 4, 5)
OPS: list[tuple[VectorOp, str, dict[str, Any]]] = [
    (Add(*MAP), "Add", {}), (Sub(*MAP, other="channel"), "Sub", {}), (Mul(*MAP, other="image"), "Mul", {}),
    (Mul(*MAP, other="pixel"), "Mul", {}), (Add(*MAP, other="number"), "Add", {}), (Sub(*MAP, other="map"), "Sub", {}),
    (Relu(*MAP), "Relu", {}), (LeakyRelu(*MAP, slope=0.1), "LeakyRelu", {"alpha": 0.1}),
    (Clip(*MAP, min=-2, max=3.5), "Clip", {"min": -2.0, "max": 3.5}),
    (HardSigmoid(*MAP), "HardSigmoid", {"alpha": 0.2, "beta": 0.5}), (HardSwish(*MAP), "HardSwish", {}),
    (Exp(*MAP), "Exp", {}), (Tanh(*MAP), "Tanh", {}), (Erf(*MAP), "Erf", {}), (Sigmoid(*MAP), "Sigmoid", {}),
    (Sqrt(*MAP), "Sqrt", {}), (Div(*MAP, other="map"), "Div", {}), (Gelu(*MAP), "Gelu", {}),
    (Gelu(*MAP, approximate="tanh"), "Gelu", {"approximate": "tanh"}),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "op", "attributes"), OPS, ids=lambda each: getattr(each, "text", ""))
def test_elements_are_what_the_onnx_library_makes_of_them(layer: VectorOp, op: str, attributes: dict[str, Any]) -> None:
    operands = operands_of(layer, 2, seed=1)
    # [image, channel, row, col], as ONNX has it.
    given = {name: np.moveaxis(each, -1, 0).astype(np.float32) for name, each in operands.items()}
    # The version of Clip whose ends are attributes.
    opset = {"Clip": 6, "Gelu": 20}.get(op, 14)
    node = helper.make_node(op, [*given], ["y"], **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, each.shape) for name, each in given.items()]
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (made,) = ReferenceEvaluator(model).run(None, given)
    # Its GELU cancels far below zero.
    atol = 0 if layer.exact else 1e-6
    np.testing.assert_allclose(reference.compute(layer, operands), np.moveaxis(made, 0, -1), rtol=1e-6, atol=atol)


@pytest.mark.parametrize(
    ("layer", "made"),
    [
        (Rsub(*MAP, other="channel"), lambda x, other: other - x),
        (Rdiv(*MAP, other="pixel"), lambda x, other: other / x),
        (Power(*MAP), lambda x: x**2),
        (Power(*MAP, exponent=3), lambda x: x**3),
    ],
    ids=lambda each: getattr(each, "text", ""),
)
def test_what_onnx_has_no_such_operator_for(layer: VectorOp, made: Any) -> None:
    operands = operands_of(layer, 2, seed=1)
    given = [each.astype(np.float64) for each in operands.values()]
    np.testing.assert_allclose(reference.compute(layer, operands), made(*given), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_local_response_by_hand(size: int) -> None:
    layer = Lrn("l", 5, 2, 3, size=size, alpha=0.7, beta=0.5, bias=2.0)
    x = reference.operands(layer, 2, seed=1)["ifmap"].astype(float)
    made = reference.compute(layer, {"ifmap": x})
    for channel in range(5):
        near = [x[c] ** 2 for c in range(channel - (size - 1) // 2, channel + size // 2 + 1) if 0 <= c < 5]
        np.testing.assert_allclose(made[channel], x[channel] / (2 + 0.7 / size * sum(near)) ** 0.5, rtol=1e-12)


def test_a_softmax_of_large_numbers_does_not_overflow() -> None:
    rows = np.float32([[1000, -1000], [1000, -1000], [999, 0]]).reshape(3, 1, 1, 2)
    made = reference.compute(Softmax("s", 3, 2), {"ifmap": rows})
    whole = 2 + np.exp(-1)
    np.testing.assert_allclose(made[:, 0, 0], np.array([[1, 0], [1, 0], [np.exp(-1), whole]]) / whole, rtol=1e-12)


def test_a_mask_is_where_the_scaled_map_is_above_zero() -> None:
    layer = Masked("m", 3, 4, 5)
    x, other, scale, shift = (each.astype(np.float32) for each in reference.operands(layer, 2, seed=1).values())
    made = reference.compute(layer, reference.operands(layer, 2, seed=1))
    np.testing.assert_array_equal(made, x * (np.maximum(other * scale + shift, 0) > 0))


def test_a_scale_and_a_shift_are_the_channels() -> None:
    layer = ScaleShift("s", 3, 4, 5)
    x, scale, shift = (each.astype(np.float32) for each in reference.operands(layer, 2, seed=1).values())
    made = reference.compute(layer, reference.operands(layer, 2, seed=1))
    np.testing.assert_array_equal(made, np.stack([x[c] * scale[c] + shift[c] for c in range(3)]))
