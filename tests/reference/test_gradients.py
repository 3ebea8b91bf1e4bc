"""Gradients of the reference against differences of what they are the gradient of, and against PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tpusim import reference
from tpusim.network.ops.elementwise import (
    Clip,
    Gelu,
    LeakyRelu,
    Pointwise,
    Relu,
    ReluGradient,
    Sigmoid,
    SigmoidGradient,
    Silu,
    SiluGradient,
    Tanh,
    TanhGradient,
)
from tpusim.network.ops.training import ClipGradient, GeluGradient, LeakyReluGradient

MAP = ("x", 3, 4, 5)
OF_RESULTS = "relu", "leaky_relu", "clip", "sigmoid", "tanh"
"""Activations whose results tell their slopes."""
ACTIVATIONS: list[tuple[Pointwise, Pointwise, Callable[[Any], Callable[[Any], Any]]]] = [
    (Relu(*MAP), ReluGradient(*MAP), lambda f: f.relu),
    (LeakyRelu(*MAP, slope=0.1), LeakyReluGradient(*MAP, slope=0.1), lambda f: lambda x: f.leaky_relu(x, 0.1)),
    (Clip(*MAP, min=-0.5, max=1), ClipGradient(*MAP, min=-0.5, max=1), lambda f: lambda x: f.hardtanh(x, -0.5, 1)),
    (Sigmoid(*MAP), SigmoidGradient(*MAP), lambda f: f.sigmoid),
    (Tanh(*MAP), TanhGradient(*MAP), lambda f: f.tanh),
    (Silu(*MAP), SiluGradient(*MAP), lambda f: f.silu),
    (Gelu(*MAP), GeluGradient(*MAP), lambda f: f.gelu),
    (Gelu(*MAP, approximate="tanh"), GeluGradient(*MAP, approximate="tanh"),
     lambda f: lambda x: f.gelu(x, approximate="tanh")),
]  # fmt: skip
of_activations = pytest.mark.parametrize(
    ("layer", "gradient", "of"), ACTIVATIONS, ids=lambda each: getattr(each, "op", "")
)


def drawn(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(0, 2, shape)


def gradient_of(layer: Pointwise, gradient: Pointwise, x: Any, dy: Any) -> Any:
    """What the gradient makes of `dy`, and of what the layer makes of `x`, or of that itself."""
    told = reference.compute(layer, {"ifmap": x}) if layer.op in OF_RESULTS else x
    return reference.compute(gradient, {"ifmap": dy, "other": told})


@of_activations
def test_a_slope_is_that_of_a_small_step(layer: Pointwise, gradient: Pointwise, of: Any) -> None:
    x, dy = drawn(3, 4, 5, 2), drawn(2, 5, 4, 3).transpose(3, 2, 1, 0)
    step = 1e-6
    ahead, behind = (reference.compute(layer, {"ifmap": x + by}) for by in (step, -step))
    np.testing.assert_allclose(gradient_of(layer, gradient, x, dy), dy * (ahead - behind) / (2 * step), atol=1e-7)


@of_activations
def test_slopes_are_those_of_torch(layer: Pointwise, gradient: Pointwise, of: Any) -> None:
    """At the bends, too."""
    torch = pytest.importorskip("torch", reason="PyTorch is optional", exc_type=ImportError)
    x, dy = drawn(3, 4, 5, 2), drawn(2, 5, 4, 3).transpose(3, 2, 1, 0).copy()
    x[0, 0, 0], x[0, 0, 1], x[0, 0, 2] = 0, -0.5, 1
    leaf = torch.from_numpy(x).requires_grad_()
    of(torch.nn.functional)(leaf).backward(torch.from_numpy(dy))
    np.testing.assert_allclose(gradient_of(layer, gradient, x, dy), leaf.grad.numpy(), rtol=1e-7, atol=1e-12)
