"""Gradients of the reference against differences of what they are the gradient of, and against PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.strategies import pools
from tpusim import reference
from tpusim.network.ops import training
from tpusim.network.ops.channels import ChannelMaskedSums, ChannelMean, ChannelProducts, ChannelSum, ChannelVariance
from tpusim.network.ops.elementwise import (
    BatchNormGradient,
    BatchNormShift,
    Clip,
    ClipGradient,
    Gelu,
    GeluGradient,
    LeakyRelu,
    LeakyReluGradient,
    Pointwise,
    Relu,
    ReluGradient,
    ScaleShift,
    Sigmoid,
    SigmoidGradient,
    Silu,
    SiluGradient,
    Tanh,
    TanhGradient,
)
from tpusim.network.ops.pool2d import Pool2d, Pool2dChoice, Pool2dGradient
from tpusim.network.ops.rows import (
    CrossEntropy,
    CrossEntropyGradient,
    LayerNorm,
    LayerNormGradient,
    RmsNorm,
    RmsNormGradient,
    Softmax,
    SoftmaxGradient,
)

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


def like(kind: type[Pool2d], pool: Pool2d) -> Pool2d:
    """A pool's choice, or gradient."""
    return kind(**{each.name: getattr(pool, each.name) for each in fields(pool)})


def back(pool: Pool2d, x: Any, dy: Any) -> Any:
    """The gradient of a pool's ifmap, by way of its choice."""
    of_max = pool.kind == "max"
    choice = {"choice": reference.compute(like(Pool2dChoice, pool), {"ifmap": x})} if of_max else {}
    return reference.compute(like(Pool2dGradient, pool), {"ifmap": dy, **choice})


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(pools(3, 4, ("max", "average")))
def test_the_gradient_of_a_pool_is_its_transpose(pool: Pool2d) -> None:
    """What it has of x and dy is what the pool has: max and average are linear while choices stay."""
    x, dy = (drawn(*pool.shapes(2)[name]) for name in ("ifmap", "ofmap"))
    made = reference.compute(pool, {"ifmap": x})
    np.testing.assert_allclose((back(pool, x, dy) * x).sum((1, 2)), (made * dy).sum((1, 2)), rtol=1e-6, atol=1e-6)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(pools(2, 3, ("max",)))
def test_a_choice_is_the_first_of_the_largest(pool: Pool2d) -> None:
    layer = like(Pool2dChoice, pool)
    x = reference.operands(layer, 2, seed=1)["ifmap"] // 4
    made, (rows, cols) = reference.compute(layer, {"ifmap": x}), layer.axes
    for channel, row, col, image in product(*map(range, made.shape)):
        seen = {}
        for i, j in product(*map(range, layer.kernel)):
            y = row * layer.stride[0] + i * layer.dilation[0] - rows.ends[0]
            at = col * layer.stride[1] + j * layer.dilation[1] - cols.ends[0]
            if 0 <= y < layer.in_height and 0 <= at < layer.in_width:
                seen[i * layer.kernel[1] + j] = x[channel, y, at, image]
        assert made[channel, row, col, image] == max(seen, key=lambda tap: (seen[tap], -tap))


POOLS = [
    Pool2d("p", "max", 3, 9, 8, 3, 2, 1), Pool2d("p", "max", 3, 9, 8, (2, 3), 1, 1, 2),
    Pool2d("p", "max", 3, 9, 8, 3, 2, 0, ceil_mode=True), Pool2d("p", "average", 3, 9, 8, 3, 2, 1),
    Pool2d("p", "average", 3, 9, 8, 3, 2, 1, count_include_pad=True), Pool2d("p", "average", 3, 9, 8, (9, 8)),
    Pool2d("p", "average", 3, 9, 8, (3, 2), 3, 0, ceil_mode=True),
]  # fmt: skip


@pytest.mark.parametrize("pool", POOLS, ids=lambda each: each.text)
def test_gradients_of_pools_are_those_of_torch(pool: Pool2d) -> None:
    """Choices among equals, too: half of the elements are zero."""
    torch = pytest.importorskip("torch", reason="PyTorch is optional", exc_type=ImportError)
    x, dy = (drawn(*pool.shapes(2)[name]) for name in ("ifmap", "ofmap"))
    x = np.maximum(x, 0)
    leaf = torch.from_numpy(np.moveaxis(x, 3, 0).copy()).requires_grad_()
    given = {"kernel_size": pool.kernel, "stride": pool.stride, "padding": pool.padding, "ceil_mode": pool.ceil_mode}
    if pool.kind == "max":
        made = torch.nn.functional.max_pool2d(leaf, dilation=pool.dilation, **given)
    else:
        made = torch.nn.functional.avg_pool2d(leaf, count_include_pad=pool.count_include_pad, **given)
    made.backward(torch.from_numpy(np.moveaxis(dy, 3, 0).copy()))
    np.testing.assert_allclose(back(pool, x, dy), np.moveaxis(leaf.grad.numpy(), 0, 3), rtol=1e-6, atol=1e-6)


# ---- updates


def made(layer: Pointwise, *operands: Any) -> Any:
    return reference.compute(layer, dict(zip(layer.sources(2), operands, strict=True)))


def test_steps_by_hand() -> None:
    w, v, g = drawn(3, 4, 5, 2), drawn(2, 3, 4, 5).transpose(1, 2, 3, 0), drawn(5, 4, 3, 2).transpose(2, 1, 0, 3)
    np.testing.assert_allclose(made(training.WeightedSum(*MAP, factor=0.5, other_factor=-0.25), w, v), w / 2 - v / 4)
    np.testing.assert_allclose(made(training.AdamSecond(*MAP, decay=0.75), v * v, g), (3 * v**2 + g**2) / 4)
    np.testing.assert_allclose(
        made(training.AdamStep(*MAP, rate=0.5, epsilon=2), w, g, v * v), w - g / (2 * abs(v) + 4)
    )


def test_updates_are_those_of_torch() -> None:
    """Three steps of SGD with momentum, and of Adam, whose corrections are in its rate and epsilon."""
    torch = pytest.importorskip("torch", reason="PyTorch is optional", exc_type=ImportError)
    gradients = [drawn(3, 4, 5, 2) * at for at in (1, 2, -1)]
    w = by_sgd = by_adam = drawn(2, 3, 4, 5).transpose(1, 2, 3, 0).copy()
    velocity = first = second = np.zeros_like(w)
    for step, g in enumerate(gradients, 1):
        velocity = made(training.WeightedSum(*MAP, factor=0.875), velocity, g)
        by_sgd = made(training.WeightedSum(*MAP, other_factor=-0.125), by_sgd, velocity)
        first = made(training.WeightedSum(*MAP, factor=0.875, other_factor=0.125), first, g)
        second = made(training.AdamSecond(*MAP, decay=0.9375), second, g)
        root = (1 - 0.9375**step) ** 0.5
        by_adam = made(
            training.AdamStep(*MAP, rate=0.25 * root / (1 - 0.875**step), epsilon=root / 4), by_adam, first, second
        )
    sgd = partial(torch.optim.SGD, lr=0.125, momentum=0.875)
    adam = partial(torch.optim.Adam, lr=0.25, betas=(0.875, 0.9375), eps=0.25)
    for optimizer, found in ((sgd, by_sgd), (adam, by_adam)):
        leaf = torch.from_numpy(w.copy()).requires_grad_()
        steps = optimizer([leaf])
        for g in gradients:
            leaf.grad = torch.from_numpy(g)
            steps.step()
        np.testing.assert_allclose(found, leaf.detach().numpy(), rtol=1e-6)


# ---- batch normalization


def normalized(x: Any, weight: Any, bias: Any, dy: Any) -> tuple[Any, Any, Any, Any]:
    """The map by the ops of a training step; and the gradients of what it is made from: x, weight and bias."""
    maps, numbers = ("n", *x.shape[:3]), {"name": "n", "channels": x.shape[0], "images": 1}
    count = x[0].size
    mean = made(ChannelMean(*maps), x)
    variance = made(ChannelVariance(*maps), x, mean)
    scale = made(training.OverDeviation(**numbers, epsilon=0.5), variance, weight)
    y = made(ScaleShift(*maps), x, scale, made(BatchNormShift(**numbers), mean, scale, bias))
    total = made(ChannelSum(*maps), dy)
    products = made(ChannelProducts(*maps, centred=True), dy, x, mean)
    of_weight = made(training.OverDeviation(**numbers, epsilon=0.5), variance, products)
    slope = made(training.BatchNormSlope(**numbers, elements=count, epsilon=0.5), variance, scale, of_weight)
    offset = made(training.BatchNormOffset(**numbers, elements=count), mean, scale, slope, total)
    return y, made(BatchNormGradient(*maps), dy, x, scale, slope, offset), of_weight, total


def test_masked_sums_are_those_of_lines_above_zero_element_by_element() -> None:
    x, dy, (scale, shift) = drawn(3, 4, 5, 2), drawn(2, 5, 4, 3).T, drawn(2, 3).reshape(2, 3, 1, 1, 1)
    wanted = np.zeros((3, 2, 1, 1))
    for at in np.ndindex(x.shape):
        channel = at[0]
        if x[at] * scale[channel, 0, 0, 0] + shift[channel, 0, 0, 0] > 0:
            wanted[channel, :, 0, 0] += dy[at], dy[at] * x[at]
    # Where the sign of the map alone decided, or that of the shift, other elements would be kept.
    above = x * scale + shift > 0
    assert (above != (x > 0)).any()
    assert (above != (shift + 0 * x > 0)).any()
    np.testing.assert_allclose(made(ChannelMaskedSums("m", *x.shape[:3]), dy, x, scale, shift), wanted)


def test_a_batch_normalization_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is optional", exc_type=ImportError)
    x, dy, (weight, bias) = drawn(3, 4, 5, 2) + 1, drawn(2, 5, 4, 3).T, drawn(2, 3).reshape(2, 3, 1, 1, 1)
    leaves = [torch.from_numpy(np.moveaxis(each, 3, 0).copy()).requires_grad_() for each in (x, weight, bias)]
    of_x, of_weight, of_bias = leaves
    y = torch.nn.functional.batch_norm(of_x, None, None, of_weight.flatten(), of_bias.flatten(), training=True, eps=0.5)
    y.backward(torch.from_numpy(np.moveaxis(dy, 3, 0).copy()))
    wanted = (y.detach(), *(each.grad for each in leaves))
    for mine, theirs in zip(normalized(x, weight, bias, dy), wanted, strict=True):
        np.testing.assert_allclose(mine, np.moveaxis(theirs.numpy(), 0, 3), rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_batch_normalization_is_that_of_a_small_step() -> None:
    x, dy, (weight, bias) = drawn(2, 2, 3, 2) + 1, drawn(2, 3, 2, 2).T, drawn(2, 2).reshape(2, 2, 1, 1, 1)
    dx, step = normalized(x, weight, bias, dy)[1], 1e-4
    for at in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[at] += step
        behind[at] -= step
        apart = normalized(ahead, weight, bias, dy)[0] - normalized(behind, weight, bias, dy)[0]
        np.testing.assert_allclose(dx[at], (dy * apart).sum() / (2 * step), atol=1e-5)


# ---- rows


def rows_of(count: int) -> Any:
    """Rows of seven elements, [element, 1, 1, row]."""
    return np.random.default_rng(count).normal(1, 2, (7, 1, 1, count))


def test_gradients_of_rows_are_those_of_small_steps() -> None:
    x, dy, labels, scale = rows_of(2), rows_of(2)[::-1], abs(rows_of(2)), rows_of(1)
    norm, step = LayerNorm("n", 7, epsilon=0.5), 1e-4
    dx = made(LayerNormGradient("n", 7, epsilon=0.5), dy, x, scale)
    of_rms = made(RmsNormGradient("n", 7, epsilon=0.5), dy, x, scale)
    of_loss = made(CrossEntropyGradient("c", 7), x, labels / labels.sum(axis=0))
    of_shares = made(SoftmaxGradient("s", 7), dy, made(Softmax("s", 7), x))
    for at in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[at] += step
        behind[at] -= step
        apart = made(norm, ahead, scale, scale) - made(norm, behind, scale, scale)
        np.testing.assert_allclose(dx[at], (dy * apart).sum() / (2 * step), atol=1e-6)
        apart = made(RmsNorm("n", 7, epsilon=0.5), ahead, scale) - made(RmsNorm("n", 7, epsilon=0.5), behind, scale)
        np.testing.assert_allclose(of_rms[at], (dy * apart).sum() / (2 * step), atol=1e-6)
        apart = made(Softmax("s", 7), ahead) - made(Softmax("s", 7), behind)
        np.testing.assert_allclose(of_shares[at], (dy * apart).sum() / (2 * step), atol=1e-7)
        loss = (made(CrossEntropy("c", 7), each, labels / labels.sum(axis=0)) for each in (ahead, behind))
        np.testing.assert_allclose(of_loss[at], float(np.subtract(*loss).sum()) / (2 * step), atol=1e-6)


def test_gradients_of_rows_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is optional", exc_type=ImportError)
    x, dy, scale = rows_of(3), rows_of(3)[::-1].copy(), rows_of(1)

    def by_rows(each: Any) -> Any:
        return torch.from_numpy(each[:, 0, 0].T.copy())

    leaf = by_rows(x).requires_grad_()
    torch.nn.functional.layer_norm(leaf, (7,), by_rows(scale)[0], None, 0.5).backward(by_rows(dy))
    found = made(LayerNormGradient("n", 7, epsilon=0.5), dy, x, scale)
    np.testing.assert_allclose(found[:, 0, 0].T, leaf.grad.numpy(), rtol=1e-9, atol=1e-12)
    if hasattr(torch.nn.functional, "rms_norm"):
        leaf = by_rows(x).requires_grad_()
        torch.nn.functional.rms_norm(leaf, (7,), by_rows(scale)[0], 0.5).backward(by_rows(dy))
        found = made(RmsNormGradient("n", 7, epsilon=0.5), dy, x, scale)
        np.testing.assert_allclose(found[:, 0, 0].T, leaf.grad.numpy(), rtol=1e-9, atol=1e-12)
    leaf = by_rows(x).requires_grad_()
    torch.softmax(leaf, 1).backward(by_rows(dy))
    found = made(SoftmaxGradient("s", 7), dy, made(Softmax("s", 7), x))
    np.testing.assert_allclose(found[:, 0, 0].T, leaf.grad.numpy(), rtol=1e-9, atol=1e-12)
    leaf, right = by_rows(x).requires_grad_(), torch.tensor([2, 0, 6])
    labels = np.zeros_like(x)
    labels[right.numpy(), 0, 0, [0, 1, 2]] = 1
    loss = torch.nn.functional.cross_entropy(leaf, right)
    loss.backward()
    np.testing.assert_allclose(made(CrossEntropy("c", 7), x, labels).mean(), loss.item(), rtol=1e-9)
    found = made(CrossEntropyGradient("c", 7, factor=1 / 3), x, labels)
    np.testing.assert_allclose(found[:, 0, 0].T, leaf.grad.numpy(), rtol=1e-6, atol=1e-9)
