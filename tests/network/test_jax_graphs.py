"""Random networks in JAX, there and back: values are those of `jax.grad`, and both engines keep the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

GRAPHS = os.environ.get("TPUSIM_GRAPHS")
"""How many, where a proof by hand asks for more; it fails without JAX."""
if not GRAPHS:
    pytest.importorskip("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from tests.network.test_jax import agrees  # noqa: E402

Layer = tuple[Callable[..., Any], Any]
"""What makes a map of a map and parameters, and the parameters."""
_SEEDS = range(int(GRAPHS or 12))
_MOST_LAYERS = 6
_NHWC = ("NHWC", "HWIO", "NHWC")


class _Dice:
    """Draws layers for a map. Numbers are whole ones, so that equals are equal, and signs are sure, on both sides."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def among(self, *choices: Any) -> Any:
        return choices[int(self._random.integers(len(choices)))]

    def whole(self, *shape: int) -> Any:
        return self._random.integers(-2, 3, shape).astype(np.float32)

    def layer(self, shape: tuple[int, ...]) -> Layer:
        """Draw a layer that maps of this shape fit in."""
        kinds = [self._bias, self._activation, self._residual]
        if len(shape) == 4:
            kinds += [self._conv, self._conv, self._conv, self._pool]
        else:
            kinds += [self._product, self._product]
        drawn: Layer = self.among(*kinds)(shape)
        return drawn

    def _conv(self, shape: tuple[int, ...]) -> Layer:
        *_, rows, cols, channels = shape
        groups = self.among(*(each for each in (1, 1, 2, channels) if channels % each == 0))
        kernel = self.among(*range(1, min(3, rows) + 1)), self.among(*range(1, min(3, cols) + 1))
        stride = self.among((1, 1), (1, 1), (2, 2), (2, 1))
        padding = self.among("SAME", "VALID")
        if stride == (1, 1) and self.among(True, False):
            # JAX 0.10.2 reads beyond its map where a gradient pads one end and cuts off the other.
            padding = [tuple(self.among(*range(size)) for _ in range(2)) for size in kernel]
        dilation = self.among((1, 1), (1, 1), (1, 2)) if padding == "SAME" else (1, 1)
        weights = self.whole(*kernel, channels // groups, groups * self.among(1, 2, 3))
        how = {"rhs_dilation": dilation, "dimension_numbers": _NHWC, "feature_group_count": groups}
        return (lambda x, w: lax.conv_general_dilated(x, w, stride, padding, **how)), weights

    def _pool(self, shape: tuple[int, ...]) -> Layer:
        window = (1, self.among(1, min(2, shape[1])), min(2, shape[2]), 1)
        strides, padding = (1, *self.among((1, 1), (2, 2), (2, 1)), 1), self.among("SAME", "VALID")
        if self.among(True, False):
            return (lambda x, _: lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)), None
        size = np.float32(np.prod(window))
        return (lambda x, _: lax.reduce_window(x, 0.0, lax.add, window, strides, padding) / size), None

    def _product(self, shape: tuple[int, ...]) -> Layer:
        return (lambda x, w: x @ w), self.whole(shape[-1], self.among(1, 3, 5))

    def _bias(self, shape: tuple[int, ...]) -> Layer:
        return (lambda x, b: x + b), self.whole(shape[-1])

    def _activation(self, shape: tuple[int, ...]) -> Layer:
        function = self.among(jax.nn.relu, jax.nn.relu, jnp.tanh, jax.nn.sigmoid)
        return (lambda x, _: function(x)), None

    def _residual(self, shape: tuple[int, ...]) -> Layer:
        return (lambda x, b: x + jax.nn.relu(x * b)), self.whole(shape[-1])


def _network(dice: _Dice) -> tuple[Callable[..., Any], Any, Any]:
    """Return a loss over weights and images; it begins with what the array computes, so that there is a layer."""
    shape = dice.among(1, 2, 3), dice.among(2, 3, 4), dice.among(3, 4), dice.among(1, 2, 4)
    x, functions, params = dice.whole(*shape), list[Callable[..., Any]](), list[Any]()
    made: tuple[int, ...] = shape
    most, flat = dice.among(*range(1, _MOST_LAYERS + 1)), dice.among(True, False)
    while len(functions) < most:
        if flat and len(functions) == most // 2 and len(made) == 4:
            made = made[0], int(np.prod(made[1:]))
            flat = False
            functions.append((lambda x, _: x.reshape(len(x), -1)))
            params.append(None)
            continue
        function, weights = dice.layer(made) if functions else dice._conv(made)
        out = jax.eval_shape(function, jax.ShapeDtypeStruct(made, np.float32), weights).shape
        if 0 in out:
            continue
        functions.append(function)
        params.append(weights)
        made = out

    slopes = dice.whole(*made)

    def loss(params: Any, x: Any) -> Any:
        for function, weights in zip(functions, params, strict=True):
            x = function(x, weights)
        return jnp.mean(x * slopes) + jnp.mean(x * x) / 4

    return loss, params, x


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_random_network_and_its_gradients(seed: int) -> None:
    dice = _Dice(seed)
    loss, params, x = _network(dice)
    changes = [f"array.rows={dice.among(2, 4, 7)}", f"array.cols={dice.among(3, 4, 8)}"]
    changes += [f"array.weight_buffers={dice.among(1, 2)}"]
    step = jax.jit(jax.value_and_grad(loss, (0, 1)))
    agrees(step, params, x, machine="tiny_4x4", changes=changes, engine="both")
