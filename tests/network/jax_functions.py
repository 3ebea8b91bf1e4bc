"""Functions of JAX for tests: networks as people write them, their losses, and arguments for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

NHWC = ("NHWC", "HWIO", "NHWC")
_RANDOM = np.random.default_rng(7)


def reals(*shape: int, size: float = 1.0) -> Any:
    return (_RANDOM.standard_normal(shape) * size).astype(np.float32)


def conv(x: Any, weights: Any, stride: int = 1, padding: Any = "SAME", **more: Any) -> Any:
    return lax.conv_general_dilated(x, weights, (stride, stride), padding, dimension_numbers=NHWC, **more)


def mlp(layers: Any, x: Any) -> Any:
    for weights, bias in layers[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    weights, bias = layers[-1]
    return x @ weights + bias


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(labels, logits.shape[-1]), axis=-1))


def mlp_loss(layers: Any, x: Any, labels: Any) -> Any:
    return cross_entropy(mlp(layers, x), labels)


def cnn(params: Any, x: Any) -> Any:
    x = jax.nn.relu(conv(x, params["conv1"]) + params["bias1"])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    x = jax.nn.relu(conv(x, params["conv2"], 2))
    return jnp.mean(x, axis=(1, 2)) @ params["dense"]


def cnn_loss(params: Any, x: Any, labels: Any) -> Any:
    return cross_entropy(cnn(params, x), labels)


def norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    apart = x - mean
    return apart * lax.rsqrt(jnp.mean(apart * apart, axis=-1, keepdims=True) + 1e-5) * scale + shift


def block(params: Any, x: Any, causal: bool = True) -> Any:
    """A block of a transformer, of four heads; x is [sequence, place, feature]."""
    batch, length, width = x.shape
    with jax.named_scope("attention"):
        seen = norm(x, *params["norm1"])
        query, key, value = jnp.split(seen @ params["qkv"], 3, axis=-1)
        query, key, value = (each.reshape(batch, length, 4, width // 4) for each in (query, key, value))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(width // 4).astype(np.float32)
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value).reshape(batch, length, width)
        x = x + mixed @ params["out"]
    with jax.named_scope("mlp"):
        return x + jax.nn.gelu(norm(x, *params["norm2"]) @ params["up"]) @ params["down"]


def block_loss(params: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(block(params, x)))


def vision(params: Any, images: Any) -> Any:
    """A vision transformer of one block: patches by a convolution, a token ahead of them, places added."""
    patches = conv(images, params["patch"], 4, "VALID")
    patches = patches.reshape(patches.shape[0], -1, patches.shape[-1])
    token = jnp.broadcast_to(params["token"], (patches.shape[0], 1, patches.shape[-1]))
    x = jnp.concatenate([token, patches], axis=1) + params["places"]
    return block(params["block"], x, causal=False)[:, 0] @ params["head"]


def depthwise(params: Any, x: Any) -> Any:
    """Inverted residuals, as in MobileNet: a product, a depthwise convolution, a product, and a sum."""
    x = jnp.clip(conv(x, params["stem"], 2), 0, 6)
    wide = jnp.clip(conv(x, params["up"]), 0, 6)
    each = jnp.clip(conv(wide, params["each"], feature_group_count=wide.shape[-1]), 0, 6)
    x = x + conv(each, params["down"])
    sums = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return (sums / 4).mean((1, 2)) @ params["head"]


def depthwise_loss(params: Any, x: Any) -> Any:
    return jnp.sum(jnp.square(depthwise(params, x)))


def recurrent(params: Any, sequence: Any) -> Any:
    """An Elman network over [step, image, feature], by `lax.scan`."""

    def step(state: Any, x: Any) -> tuple[Any, Any]:
        state = jnp.tanh(x @ params["in"] + state @ params["back"] + params["bias"])
        return state, state @ params["out"]

    start = jnp.zeros((sequence.shape[1], params["back"].shape[0]), sequence.dtype)
    return lax.scan(step, start, sequence)


def recurrent_loss(params: Any, sequence: Any) -> Any:
    return jnp.sum(recurrent(params, sequence)[1] ** 2)


def dilated(x: Any, one: Any, other: Any) -> Any:
    """Convolutions with gaps: between the taps of the first, between the pixels of the second's map."""
    x = jnp.tanh(conv(x, one, rhs_dilation=(2, 3)))
    return lax.conv_general_dilated(x, other, (1, 1), ((1, 2), (2, 1)), (2, 2), (1, 1), NHWC)


def embedded(table: Any, places: Any, words: Any) -> Any:
    return jax.nn.silu(table[words] * 2 + places) @ table.T


def embedded_loss(table: Any, places: Any, words: Any) -> Any:
    return jnp.mean(embedded(table, places, words) ** 2)


def step_of_sgd(params: Any, x: Any, labels: Any) -> Any:
    loss, slopes = jax.value_and_grad(cnn_loss)(params, x, labels)
    return loss, jax.tree.map(lambda old, slope: old - 0.1 * slope, params, slopes)


def _block_params(width: int) -> dict[str, Any]:
    part = width**-0.5
    return {
        "norm1": (reals(width), reals(width)), "norm2": (reals(width), reals(width)),
        "qkv": reals(width, 3 * width, size=part), "out": reals(width, width, size=part),
        "up": reals(width, 4 * width, size=part), "down": reals(4 * width, width, size=part),
    }  # fmt: skip


LABELS = np.array([1, 0, 3, 2])
MLP = [(reals(20, 16, size=0.3), reals(16)), (reals(16, 12, size=0.3), reals(12)), (reals(12, 5), reals(5))]
CNN = {
    "conv1": reals(3, 3, 3, 8, size=0.3),
    "bias1": reals(8),
    "conv2": reals(3, 3, 8, 12, size=0.2),
    "dense": reals(12, 5),
}
DEPTHWISE = {
    "stem": reals(3, 3, 3, 8, size=0.3), "up": reals(1, 1, 8, 16), "each": reals(3, 3, 1, 16),
    "down": reals(1, 1, 16, 8), "head": reals(8, 5),
}  # fmt: skip
VISION = {
    "patch": reals(4, 4, 3, 16, size=0.2), "token": reals(1, 1, 16), "places": reals(1, 10, 16), "head": reals(16, 5),
    "block": _block_params(16),
}  # fmt: skip
RECURRENT = {"in": reals(6, 10, size=0.4), "back": reals(10, 10, size=0.3), "bias": reals(10), "out": reals(10, 3)}
IMAGES = reals(4, 12, 12, 3)
WORDS = np.array([[1, 2, 8], [0, 4, 3]])

Case = tuple[Callable[..., Any], Sequence[Any]]
FUNCTIONS: dict[str, Case] = {
    "mlp": (mlp, (MLP, reals(4, 20))),
    "cnn": (cnn, (CNN, IMAGES)),
    "transformer": (block, (_block_params(16), reals(2, 6, 16))),
    "vision": (vision, (VISION, IMAGES)),
    "depthwise": (depthwise, (DEPTHWISE, IMAGES)),
    "scan": (recurrent, (RECURRENT, reals(5, 4, 6))),
    "dilated": (dilated, (reals(2, 7, 9, 4), reals(3, 3, 4, 6, size=0.3), reals(3, 2, 6, 4, size=0.3))),
    "embedded": (embedded, (reals(9, 8), reals(3, 8), WORDS)),
    "mlp by its weights": (jax.grad(mlp_loss), (MLP, reals(4, 20), LABELS)),
    "cnn by its weights": (jax.grad(cnn_loss), (CNN, IMAGES, LABELS)),
    "cnn by its images": (jax.grad(cnn_loss, 1), (CNN, IMAGES, LABELS)),
    "transformer by its weights": (jax.grad(block_loss), (_block_params(16), reals(2, 6, 16))),
    "depthwise by its weights": (jax.grad(depthwise_loss), (DEPTHWISE, IMAGES)),
    "scan by its weights": (jax.grad(recurrent_loss), (RECURRENT, reals(5, 4, 6))),
    "embedded by its table": (jax.grad(embedded_loss), (reals(9, 8), reals(3, 8), WORDS)),
    "patches by their filters": (
        jax.grad(lambda weights: jnp.sum(conv(IMAGES, weights, 4, "VALID") ** 2)),
        (reals(4, 4, 3, 16),),
    ),
    "vision by its weights": (jax.grad(lambda params, x: jnp.sum(vision(params, x) ** 2)), (VISION, IMAGES)),
    "a step of sgd": (step_of_sgd, (CNN, IMAGES, LABELS)),
    "many at once": (jax.vmap(partial(mlp, MLP)), (reals(3, 4, 20),)),
}
"""By name a function and its arguments."""


# ---- ResNet-50


def resnet50(params: Any, x: Any) -> Any:
    """ResNet-50 of version 1.5 with its normalizations folded, padded as PyTorch pads."""

    def padded(x: Any, weights: Any, stride: int = 1) -> Any:
        return conv(x, weights, stride, [(side // 2, side // 2) for side in weights.shape[:2]])

    x = jax.nn.relu(padded(x, params["stem"], 2))
    ends = ((0, 0), (1, 1), (1, 1), (0, 0))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ends)
    for stride, first, middle, last, *across in params["blocks"]:
        made = padded(jax.nn.relu(padded(jax.nn.relu(padded(x, first)), middle, stride)), last)
        x = jax.nn.relu(made + (padded(x, across[0], stride) if across else x))
    return jnp.mean(x, (1, 2)) @ params["dense"]


def resnet50_params() -> dict[str, Any]:
    """Shapes of its weights; of each block its stride, too."""
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    blocks, channels = [], 64
    for number, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for at in range(count):
            weights = [shape((1, 1, channels, width)), shape((3, 3, width, width)), shape((1, 1, width, 4 * width))]
            across = [] if at else [shape((1, 1, channels, 4 * width))]
            blocks.append((1 if at or not number else 2, *weights, *across))
            channels = 4 * width
    return {"stem": shape((7, 7, 3, 64)), "blocks": blocks, "dense": shape((2048, 1000))}
