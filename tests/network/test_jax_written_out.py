"""Functions that models write out: which are known by what they compute, however they are written, and which only look
like them. What comes out is what JAX computes, in each case.
"""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax", reason="a function of JAX needs the extra jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from tests.network.test_jax import agrees  # noqa: E402
from tpusim import from_jax  # noqa: E402

SMALL = {"machine": "tiny_4x4", "changes": ["mapping.search=estimate"]}


def reals(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def ops_of(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """The ops of a function whose values are those of JAX."""
    return agrees(function, *arguments, **SMALL)


# ---- activations

_C = np.sqrt(2 / np.pi)
ACTIVATIONS: dict[str, list[Callable[[Any], Any]]] = {
    "silu": [
        lambda x: x * jax.nn.sigmoid(x), lambda x: x / (1 + jnp.exp(-x)), lambda x: x * (1 / (1 + jnp.exp(-x))),
        lambda x: x * 0.5 * (1 + jnp.tanh(x / 2)), lambda x: lax.logistic(1.0 * x) * x,
        lambda x: x - x * jax.nn.sigmoid(-x), jax.nn.silu,
    ],
    "gelu": [
        lambda x: 0.5 * x * (1 + lax.erf(x / np.sqrt(2))), lambda x: x * (1 + lax.erf(x * np.sqrt(0.5))) / 2,
        lambda x: 0.5 * x * lax.erfc(-x / np.sqrt(2)), lambda x: jax.nn.gelu(x, approximate=False),
    ],
    "gelu tanh": [
        lambda x: 0.5 * x * (1 + jnp.tanh(_C * (x + 0.044715 * x**3))),
        lambda x: x * jax.nn.sigmoid(2 * _C * (x + 0.044715 * x * x * x)),
        lambda x: 0.5 * x * (1 + jnp.tanh(0.7978845608 * x * (1 + 0.044715 * x * x))), jax.nn.gelu,
    ],
    "sigmoid": [lambda x: 1 / (1 + jnp.exp(-x)), lambda x: 0.5 * (1 + jnp.tanh(0.5 * x))],
    "softplus": [lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))), jax.nn.softplus],
}  # fmt: skip
ALMOST: list[Callable[[Any], Any]] = [
    lambda x: x * jax.nn.sigmoid(1.702 * x), lambda x: x * jax.nn.sigmoid(-x), lambda x: 2 * x * jax.nn.sigmoid(x),
    lambda x: 0.5 * x * (1 + jnp.tanh(_C * (x + 0.04 * x**3))), lambda x: 0.5 * x * (1 + lax.erf(x)),
    lambda x: x * jnp.tanh(x), lambda x: 1 / (1 + jnp.exp(x)), lambda x: x / (1 + jnp.abs(x)),
    lambda x: x * jax.nn.sigmoid(x + 0.01), lambda x: jnp.log(1 + jnp.exp(x)),
    lambda x: x * jax.nn.sigmoid(x[::-1]), lambda x: x * jax.nn.sigmoid(x[:, :1]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "at"), [(op, at) for op, each in ACTIVATIONS.items() for at in range(len(each))])
def test_an_activation_is_one_layer_however_it_is_written(op: str, at: int) -> None:
    function = ACTIVATIONS[op][at]
    known = ops_of(lambda x, w: function(x @ w), reals(4, 6), reals(6, 8))
    assert known == ["gemm", op.split()[0]] or at == len(ACTIVATIONS[op])
    layer = from_jax(lambda x: function(x) + 1, reals(4, 6)).layers[0]
    if op.startswith("gelu"):
        assert layer.approximate == ("tanh" if "tanh" in op else "none")  # type: ignore[attr-defined]


@pytest.mark.parametrize("at", range(len(ALMOST)))
def test_what_only_looks_like_an_activation_is_none(at: int) -> None:
    # A sigmoid or an error function is one as it stands.
    names = Counter(ops_of(lambda x: ALMOST[at](x) * 3, reals(4, 6)))
    assert not {"silu", "gelu", "softplus"} & {*names}
    assert sum(names.values()) > 1


@settings(deadline=None, max_examples=12)
@given(factor=st.sampled_from([1.0, 0.5, 1.5, 1.702, 2.0]), shift=st.sampled_from([0.0, 0.0, 0.1]))
def test_of_all_swishes_one_is_silu(factor: float, shift: float) -> None:
    work = from_jax(lambda x: x * jax.nn.sigmoid(factor * x + shift), reals(4, 6))
    assert ([layer.op for layer in work.layers] == ["silu"]) == (factor == 1.0 and shift == 0.0)


def test_values_inside_that_others_read_stay() -> None:
    def two(x: Any) -> Any:
        share = jax.nn.sigmoid(x)
        return x * share, share

    assert ops_of(two, reals(4, 6)) == ["sigmoid", "mul"]
    slopes = ops_of(jax.grad(lambda x: jnp.sum(x / (1 + jnp.exp(-x)))), reals(4, 6))
    assert "silu" not in slopes


def test_constants_of_bfloat16_are_those_of_the_function() -> None:
    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + jnp.tanh(_C.astype(jnp.bfloat16) * (x + jnp.bfloat16(0.044715) * x * x * x)))

    for function, known in ((gelu, ["gelu"]), (lambda x: x * jax.nn.sigmoid(1.702 * x), ["mul", "sigmoid", "mul"])):
        assert [each.op for each in from_jax(function, jnp.ones((4, 8), jnp.bfloat16)).layers] == known


# ---- norms


def norm(x: Any, w: Any, how: str, epsilon: float) -> Any:
    squares = {"power": lambda: x**2, "square": lambda: jnp.square(x), "product": lambda: x * x}[how.split()[0]]()
    mean = jnp.mean(squares, -1, keepdims=True)
    if "sum" in how:
        mean = jnp.sum(squares, axis=-1, keepdims=True) * (1 / x.shape[-1])
    if "late axis" in how:
        mean = (jnp.sum(squares, axis=-1) / x.shape[-1])[..., None]
    if "first" in how:
        return x * (lax.rsqrt(mean + epsilon) * w) if "root" not in how else (w * x) / jnp.sqrt(mean + epsilon)
    if "root" in how:
        made = x / jnp.sqrt(mean + epsilon)
    elif "inverse" in how:
        made = x * (1 / jnp.sqrt(epsilon + mean))
    else:
        made = (x * (mean + epsilon) ** -0.5) if "exponent" in how else x * lax.rsqrt(mean + epsilon)
    if "plain" in how:
        return made
    return w * made if "ahead" in how else made * (1 + w) if "one more" in how else made * w


HOW = [
    "power", "square root", "product inverse", "power sum ahead", "square late axis", "product exponent", "power plain",
    "square one more", "product one more root", "power plain inverse", "square first", "product first root",
]  # fmt: skip


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-5, 0.3])
def test_a_norm_is_one_layer_however_it_is_written(how: str, epsilon: float) -> None:
    x, w = reals(2, 3, 12), reals(12)
    ops = ops_of(lambda x, w: norm(x, w, how, epsilon) + 1, x, w)
    assert ops == [*(["add"] if "one more" in how else []), "rms_norm", "add"]
    work = from_jax(lambda x, w: norm(x, w, how, epsilon), x, w)
    assert work.layers[-1].epsilon == epsilon  # type: ignore[attr-defined]


ALMOST_NORMS: list[Callable[[Any, Any], Any]] = [
    lambda x, w: x * lax.rsqrt(jnp.mean(x * x, 0, keepdims=True) + 1e-5) * w,
    lambda x, w: x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-5) * w,
    lambda x, w: x * lax.rsqrt(jnp.mean(jnp.abs(x), -1, keepdims=True) + 1e-5) * w,
    lambda x, w: x / (jnp.sqrt(jnp.mean(x * x, -1, keepdims=True)) + 1e-5) * w,
    lambda x, w: x * lax.rsqrt(jnp.mean((x - 1) ** 2, -1, keepdims=True) + 1e-5) * w,
    lambda x, w: w * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * jnp.ones_like(x),
    lambda x, w: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w,
    lambda x, w: x * x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w,
    lambda x, w: (x - 1) * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * w,
    lambda x, w: x * lax.rsqrt(jnp.mean(x**3, -1, keepdims=True) ** 2 + 1e-5) * w,
    lambda x, w: x * lax.rsqrt(jnp.mean((x * x)[..., :4], -1, keepdims=True) + 1e-5) * w,
]


@pytest.mark.parametrize("at", range(len(ALMOST_NORMS)))
def test_what_only_looks_like_a_norm_is_none(at: int) -> None:
    assert "rms_norm" not in ops_of(ALMOST_NORMS[at], reals(6, 8), reals(8))


def centre(x: Any) -> Any:
    return x - jnp.mean(x, -1, keepdims=True)


LAYER_NORMS: list[Callable[[Any, Any, Any], Any]] = [
    lambda x, g, b: centre(x) * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * g + b,
    lambda x, g, b: g * centre(x) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) + b,
    lambda x, g, b: b + centre(x) * (lax.rsqrt(jnp.mean(centre(x) ** 2, -1, keepdims=True) + 1e-5) * g),
    lambda x, g, b: centre(x) / jnp.sqrt(jnp.mean(jnp.square(centre(x)), -1, keepdims=True) + 1e-5) * (1 + g),
    lambda x, g, b: centre(x) / (x.var(-1, keepdims=True) + 1e-5) ** 0.5,
    lambda x, g, b: jax.nn.standardize(x, epsilon=1e-5) * g + b,
    lambda x, g, b: centre(x) * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) - x.mean(-1, keepdims=True) ** 2 + 1e-5),
]
ALMOST_LAYER_NORMS: list[Callable[[Any, Any, Any], Any]] = [
    lambda x, g, b: centre(x) * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) - x.mean() ** 2 + 9.0) * g + b,
    lambda x, g, b: centre(x) * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) - g.mean() ** 2 + 9.0) * g + b,
    lambda x, g, b: x * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * g + b,
    lambda x, g, b: centre(x) * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g + b,
    lambda x, g, b: centre(x) * lax.rsqrt(jnp.var(x, -1, ddof=1, keepdims=True) + 1e-5) * g + b,
    lambda x, g, b: centre(x) / (jnp.std(x, -1, keepdims=True) + 1e-5) * g + b,
    lambda x, g, b: (x - jnp.mean(x, 0, keepdims=True)) * lax.rsqrt(jnp.var(x, 0, keepdims=True) + 1e-5) * g + b,
]


@pytest.mark.parametrize("at", range(len(LAYER_NORMS)))
def test_a_layer_normalization_is_one_layer(at: int) -> None:
    ops = ops_of(lambda *given: LAYER_NORMS[at](*given) * 2, reals(2, 3, 8), reals(8), reals(8))
    assert [each for each in ops if each != "add"] == ["layer_norm", "mul"]


@pytest.mark.parametrize("at", range(len(ALMOST_LAYER_NORMS)))
def test_what_only_looks_like_a_layer_normalization_is_none(at: int) -> None:
    assert "layer_norm" not in ops_of(ALMOST_LAYER_NORMS[at], reals(6, 8), reals(8), reals(8))


def test_a_norm_of_one_row() -> None:
    assert ops_of(lambda x, w: norm(x, w, "square", 1e-5), reals(8), reals(8)) == ["rms_norm"]


def test_a_norm_of_bfloat16_is_worked_out_in_float32() -> None:
    def usual(x: Any, w: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype) * w

    shapes = jnp.ones((4, 8), jnp.bfloat16), jnp.ones(8, jnp.bfloat16)
    assert [each.op for each in from_jax(usual, *shapes).layers] == ["rms_norm"]


# ---- turns


def angles(tokens: int, half: int, start: int = 0, base: float = 1e4) -> Any:
    return (start + jnp.arange(tokens))[:, None] * base ** (-jnp.arange(half) / half)


def halves(x: Any, cos: Any, sin: Any) -> Any:
    one, other = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


def slices(x: Any, cos: Any, sin: Any) -> Any:
    one, other = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return jnp.concatenate([cos * one + -(sin * other), one * sin + cos * other], axis=-1)


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    one, other = jnp.split(x, 2, axis=-1)
    both = (jnp.concatenate([each, each], axis=-1) for each in (cos, sin))
    cos, sin = both
    return x * cos + jnp.concatenate([-other, one], axis=-1) * sin


def in_pairs(x: Any, cos: Any, sin: Any) -> Any:
    apart = x.reshape(*x.shape[:-1], -1, 2)
    one, other = apart[..., 0], apart[..., 1]
    return jnp.stack([one * cos - other * sin, other * cos + one * sin], axis=-1).reshape(x.shape)


def by_steps(x: Any, cos: Any, sin: Any) -> Any:
    one, other = x[..., ::2], x[..., 1::2]
    return jnp.stack([one * cos - other * sin, one * sin + other * cos], axis=-1).reshape(x.shape)


def pairs_rotated(x: Any, cos: Any, sin: Any) -> Any:
    turned = jnp.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    return x * jnp.repeat(cos, 2, axis=-1) + turned * jnp.repeat(sin, 2, axis=-1)


TURNS = [halves, slices, rotated, in_pairs, by_steps, pairs_rotated]


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("order", ["head first", "token first"])
def test_a_turn_is_one_layer_however_it_is_written(turn: Callable[..., Any], start: int, order: str) -> None:
    tokens, half = 5, 3
    shape = (2, 4, tokens, 2 * half) if order == "head first" else (2, tokens, 4, 2 * half)

    def model(x: Any) -> Any:
        found = angles(tokens, half, start)
        found = found if order == "head first" else found[:, None, :]
        return turn(x, jnp.cos(found), jnp.sin(found)) + 1

    assert ops_of(model, reals(*shape)) == ["rotary", "add"]


@pytest.mark.parametrize("turn", TURNS)
def test_tables_may_be_arguments_or_turn_back_or_each_have_its_own(turn: Callable[..., Any]) -> None:
    x, cos, sin = reals(2, 4, 5, 6), reals(5, 3), reals(5, 3) + 1
    assert ops_of(turn, x, cos, sin) == ["rotary"]
    assert ops_of(lambda x, cos, sin: turn(x, cos, -sin), x, cos, sin)[-1] == "rotary"
    # Each sequence at a position of its own.
    assert ops_of(turn, x, reals(2, 1, 5, 3), reals(2, 1, 5, 3) + 1) == ["rotary"]


def test_a_turn_of_a_part_of_the_channels() -> None:
    def part(x: Any) -> Any:
        found = angles(5, 2)
        return jnp.concatenate([halves(x[..., :4], jnp.cos(found), jnp.sin(found)), x[..., 4:]], axis=-1)

    assert ops_of(part, reals(2, 5, 6)) == ["rotary"]


def wrong_order(x: Any, cos: Any, sin: Any) -> Any:
    one, other = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([other * cos + one * sin, one * cos - other * sin], axis=-1)


def mixed(x: Any, cos: Any, sin: Any) -> Any:
    one, other = x[..., ::2], x[..., 1::2]
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


def other_value(x: Any, cos: Any, sin: Any) -> Any:
    one, other = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin, one * cos + one * sin], axis=-1)


def of_two(x: Any, cos: Any, sin: Any) -> Any:
    one, other = jnp.split(x, 2, axis=-1)
    another, _ = jnp.split(x + 1, 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin, other * cos + another * sin], axis=-1)


def and_more(x: Any, cos: Any, sin: Any) -> Any:
    one, other = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin + one, other * cos + one * sin], axis=-1)


def same_rotated(x: Any, cos: Any, sin: Any) -> Any:
    cos, sin = (jnp.concatenate([each, each], axis=-1) for each in (cos, sin))
    return x * cos + jnp.concatenate([x[..., :3], x[..., 3:]], axis=-1) * sin


@pytest.mark.parametrize("turn", [mixed, other_value, of_two, and_more, same_rotated])
def test_what_only_looks_like_a_turn_is_none(turn: Callable[..., Any]) -> None:
    tables = jnp.cos(angles(5, 3)), jnp.sin(angles(5, 3))
    assert "rotary" not in ops_of(lambda x: turn(x, *tables), reals(2, 4, 5, 6))


def test_halves_that_change_places_are_turned_by_other_angles() -> None:
    """A quarter turn more: the values are those of JAX, whichever op has them."""
    ops_of(lambda x: wrong_order(x, jnp.cos(angles(5, 3)), jnp.sin(angles(5, 3))), reals(2, 5, 6))


# ---- attention


def attention(
    q: Any, k: Any, v: Any, mask: str = "", scale: str = "", shares: str = "jax", window: int = 0,
) -> Any:  # fmt: skip
    """Of queries, keys and values [batch, head, token, channel], written out."""
    queries, keys, root = q.shape[-2], k.shape[-2], np.float32(np.sqrt(q.shape[-1]))
    if scale == "of queries":
        q = q / root
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    scores = {"by": lambda: scores / root, "times": lambda: 0.25 * scores}.get(scale, lambda: scores)()
    own = jnp.arange(queries)[:, None] + keys - queries
    seen = jnp.arange(keys)[None] <= own
    if window:
        seen = seen & (jnp.arange(keys)[None] > own - window)
    if mask == "strict":
        seen = jnp.arange(keys)[None] < own + 2
    if mask in ("where", "strict"):
        scores = jnp.where(seen, scores, -1e30)
    elif mask == "endless":
        scores = jnp.where(seen[None, None], scores, -jnp.inf)
    elif mask == "left out":
        scores = jnp.where(~seen, jnp.finfo(jnp.float32).min, scores)
    elif mask == "added":
        scores = scores + jnp.where(seen, 0.0, -1e9)
    elif mask == "weak":
        scores = jnp.where(seen, scores, -3.0)
    if shares == "jax":
        made = jax.nn.softmax(scores, axis=-1)
    else:
        raised = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
        made = raised / jnp.sum(raised, axis=-1, keepdims=True)
    return jnp.einsum("bhqk,bhkd->bhqd", made, v)


def layers_of(function: Callable[..., Any], *arguments: Any) -> list[tuple[str, str]]:
    ops_of(function, *arguments)
    return [(layer.name.partition("@")[0], layer.text) for layer in from_jax(function, *arguments).layers]


Q, K, V = reals(2, 3, 5, 4), reals(2, 3, 7, 4), reals(2, 3, 7, 6)


@pytest.mark.parametrize("shares", ["jax", "written"])
@pytest.mark.parametrize("mask", ["", "where", "endless", "left out", "added"])
def test_an_attention_is_two_products_and_a_softmax_with_its_mask(mask: str, shares: str) -> None:
    found = layers_of(lambda q, k, v: attention(q, k, v, mask, "by", shares), Q, K, V)
    assert [name for name, _ in found] == [
        "attention.scale",
        "attention.scores",
        "attention.softmax",
        "attention.values",
    ]
    assert found[2][1] == ("30x7 q5" if mask else "30x7")


@pytest.mark.parametrize("scale", ["", "by", "times", "of queries"])
def test_the_scale_of_scores_goes_to_the_queries(scale: str) -> None:
    found = dict(layers_of(lambda q, k, v: attention(q, k, v, "where", scale), Q, K, V))
    texts = {name: text for name, text in found.items() if "scale" in name or name == "div"}
    assert len(texts) == (scale != "")
    # Of fewer elements than the scores.
    assert all(text.startswith("1x1x4") for text in texts.values())
    assert found["attention.softmax"] == "30x7 q5"


def test_windows_are_those_of_the_mask_and_others_stay() -> None:
    def softmax_of(**how: Any) -> str:
        return dict(layers_of(lambda q, k, v: attention(q, k, v, **how), Q, K, V))["attention.softmax"]

    assert softmax_of(mask="where", window=3) == "30x7 q5 w3"
    # A query that sees a key of the future, and a mask that lets some through.
    assert softmax_of(mask="strict") == "30x7"
    assert softmax_of(mask="weak") == "30x7"


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_share_keys_and_the_attention_of_jax(groups: int, causal: bool) -> None:
    q, k, v = reals(2, 5, 4, 4), reals(2, 5, groups, 4), reals(2, 5, groups, 4)
    found = layers_of(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal), q, k, v)
    assert [name for name, _ in found] == [
        "attention.scale",
        "attention.scores",
        "attention.softmax",
        "attention.values",
    ]
    assert found[2][1] == ("40x5 q5" if causal else "40x5")

    def shared(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (
            jnp.swapaxes(each, 1, 2) for each in (q, *(jnp.repeat(each, 4 // groups, axis=2) for each in (k, v)))
        )
        return attention(q, k, v, "where" if causal else "")

    assert dict(layers_of(shared, q, k, v))["attention.softmax"] == ("40x5 q5" if causal else "40x5")


def test_a_mask_that_is_given_is_no_causal_one() -> None:
    def masked(q: Any, k: Any, v: Any, seen: Any) -> Any:
        scores = jnp.where(seen, jnp.einsum("bhqd,bhkd->bhqk", q, k), -1e30)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)

    found = dict(layers_of(masked, Q, K, V, np.tril(np.ones((5, 7), np.bool_), 2)))
    assert found["attention.softmax"] == "30x7"


@pytest.mark.parametrize("turn", [halves, in_pairs])
def test_all_engines_agree_on_layers_with_tables_and_masks_of_the_graph(turn: Callable[..., Any]) -> None:
    def model(q: Any, k: Any, w: Any, cos: Any, sin: Any) -> Any:
        q, k = (turn(norm(each, w, "square", 1e-5), cos, sin) for each in (q, k))
        return attention(q, k, k, "where", "by")

    given = reals(1, 2, 3, 4), reals(1, 2, 3, 4), reals(4), reals(3, 2), reals(3, 2) + 1
    ops = agrees(model, *given, machine="tiny_4x4", changes=["mapping.search=estimate"], engine="both")
    assert Counter(ops) == {"rms_norm": 2, "rotary": 2, "div": 1, "gemm": 2, "softmax": 1}


def test_masks_of_long_prompts_are_read_in_little_memory() -> None:
    """A mask of all heads and sequences would be 8 GB."""

    def usual(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        shares = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(scores.dtype).min))
        return jnp.einsum("bhqk,bkhd->bqhd", shares, v)

    shape = jax.ShapeDtypeStruct((8, 2048, 64, 128), jnp.float32)
    tracemalloc.start()
    found = {layer.name.partition("@")[0]: layer.text for layer in from_jax(usual, shape, shape, shape).layers}
    assert tracemalloc.get_traced_memory()[1] < 10**9
    tracemalloc.stop()
    assert found["attention.softmax"] == f"{8 * 64 * 2048}x2048 q2048"


def test_a_decoder_block_is_the_layers_of_its_parts() -> None:
    def block(x: Any, w: Any, q: Any, k: Any, v: Any, o: Any, gate: Any, up: Any, down: Any) -> Any:
        tokens = x.shape[1]
        found = angles(tokens, 2)[:, None, :]
        y = norm(x, w, "power", 1e-5)
        heads = [(y @ each).reshape(2, tokens, -1, 4) for each in (q, k, v)]
        one, other = (halves(each, jnp.cos(found), jnp.sin(found)) for each in heads[:2])
        y = jax.nn.dot_product_attention(one, other, heads[2], is_causal=True).reshape(2, tokens, -1)
        x = x + y @ o
        y = norm(x, w, "power", 1e-5)
        return x + ((y @ gate) * jax.nn.sigmoid(y @ gate) * (y @ up)) @ down

    sizes: Sequence[tuple[int, ...]] = ((2, 5, 8), (8,), (8, 16), (8, 8), (8, 8), (16, 8), (8, 12), (8, 12), (12, 8))
    ops = Counter(ops_of(block, *(reals(*each) for each in sizes)))
    assert ops == {"rms_norm": 2, "gemm": 9 + 1, "rotary": 2, "softmax": 1, "mul": 2 + 1, "sigmoid": 1, "add": 2}


# ---- names


@jax.jit
def helper(x: Any, w: Any) -> Any:
    return x @ w  # of the helper


def named(x: Any, w: Any) -> Any:
    with jax.named_scope("mlp"):
        y = jax.nn.silu(helper(x, w))  # first
    z = jax.nn.silu(helper(y, w))  # second
    parts = jnp.unstack(jnp.stack([y, z]), axis=0)
    return parts[0] * jnp.tile(parts[1], (1, 1))  # of both


def line(words: str) -> int:
    text = __import__("pathlib").Path(__file__).read_text().splitlines()
    (found,) = (at for at, each in enumerate(text, 1) if each.endswith(f"# {words}"))
    return found


def test_layers_are_named_by_the_lines_that_ask_for_them() -> None:
    """Those of calls of JAX by the line of the call, though JAX traces its functions once."""
    file = "test_jax_written_out.py"
    names = [layer.name for layer in from_jax(named, reals(4, 8), reals(8, 8)).layers]
    assert names == [
        f"mlp.dot@{file}:{line('of the helper')}", f"mlp.silu@{file}:{line('first')}",
        f"dot@{file}:{line('of the helper')}", f"silu@{file}:{line('second')}", f"mul@{file}:{line('of both')}",
    ]  # fmt: skip
    ops_of(named, reals(4, 8), reals(8, 8))
    back = [each.name for each in from_jax(jax.grad(lambda x, w: named(x, w).sum()), reals(4, 8), reals(8, 8)).layers]
    assert f"grad.dot@{file}:{line('of the helper')}" in back


def test_code_that_is_typed_has_no_lines() -> None:
    held: dict[str, Any] = {}
    exec("def typed(x): return x * x + 1", held)
    assert [layer.name for layer in from_jax(held["typed"], reals(4, 8)).layers] == ["mul", "add"]
