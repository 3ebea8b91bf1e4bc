"""Ops of language models in the reference, against sums by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tpusim import reference
from tpusim.base.errors import InputError
from tpusim.flow.verify import operands_of
from tpusim.network.ops.elementwise import Geglu, Rotary, SoftCap, Swiglu
from tpusim.network.ops.moves import Embedding
from tpusim.network.ops.rows import RmsNorm, Softmax, TopK


def drawn(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(0, 2, shape)


def test_rows_are_divided_by_the_root_of_their_mean_square() -> None:
    x, scale = drawn(5, 1, 1, 3), drawn(5, 1, 1, 1)
    made = reference.compute(RmsNorm("r", 5, epsilon=0.5), {"ifmap": x, "scale": scale})
    for row in range(3):
        whole = sum(each**2 for each in x[:, 0, 0, row]) / 5 + 0.5
        np.testing.assert_allclose(made[:, 0, 0, row], x[:, 0, 0, row] / whole**0.5 * scale[:, 0, 0, 0], rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "gate"),
    [
        (Swiglu, lambda x: x / (1 + math.exp(-x))),
        (Geglu, lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_a_gate_lets_the_other_operand_through(kind: Any, gate: Any) -> None:
    x, other = drawn(3, 4, 5, 2), drawn(2, 5, 4, 3).transpose(3, 2, 1, 0)
    made = reference.compute(kind("g", 3, 4, 5), {"ifmap": x, "other": other})
    np.testing.assert_allclose(made, np.vectorize(gate)(x) * other, rtol=1e-9)


def test_a_cap_bounds_what_is_large_and_leaves_what_is_small() -> None:
    x = np.array([1e6, -1e6, 1e-3, 25.0]).reshape(4, 1, 1, 1)
    made = reference.compute(SoftCap("c", 4, cap=50.0), {"ifmap": x})
    np.testing.assert_allclose(made.ravel(), [50, -50, 1e-3, 50 * math.tanh(0.5)], rtol=1e-9)


@pytest.mark.parametrize(("queries", "window"), [(3, 0), (5, 0), (5, 2), (1, 3)])
def test_a_query_sees_the_keys_up_to_its_own(queries: int, window: int) -> None:
    layer, x = Softmax("s", 5, 7, queries=queries, window=window), drawn(5, 1, 1, 7)
    made = reference.compute(layer, {"ifmap": x})
    for row in range(7):
        last = 5 - queries + row % queries
        seen = range(max(0, last - window + 1) if window else 0, last + 1)
        powers = [math.exp(x[key, 0, 0, row]) if key in seen else 0 for key in range(5)]
        np.testing.assert_allclose(made[:, 0, 0, row], np.array(powers) / sum(powers), rtol=1e-12)


def test_what_an_op_determines_itself_is_neither_read_nor_drawn() -> None:
    """Seven rows are queries 0 to 2 of a mask of five keys, in turn."""
    layer = Softmax("s", 5, queries=3, window=2)
    assert [*layer.sources(7)] == ["ifmap", "keys", "last_key", "first_key"]
    assert [*layer.reads(7)] == ["ifmap"]
    for given in (reference.operands(layer, 7, seed=1), operands_of(layer, 7, seed=1)):
        assert {name: each.shape for name, each in given.items()} == layer.sources(7)
        assert given["keys"].ravel().tolist() == [0, 1, 2, 3, 4]
        assert given["last_key"].ravel().tolist() == [2, 3, 4, 2, 3, 4, 2]
        assert given["first_key"].ravel().tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_a_pair_of_channels_turns_by_its_position() -> None:
    """As a complex number, of which each half of the channels has a part."""
    layer = Rotary("r", 6, 2, 5, 3, base=50.0, start=4)
    given = operands_of(layer, 1, seed=1)
    x = given["ifmap"].astype(np.float64)
    made = reference.compute(layer, given)
    for c, t in np.ndindex(3, 5):
        turned = (x[c, :, t] + 1j * x[c + 3, :, t]) * np.exp(1j * (4 + t) * 50 ** (-2 * c / 6))
        np.testing.assert_allclose(made[c, :, t] + 1j * made[c + 3, :, t], turned, rtol=1e-6)


def test_turning_back_is_the_gradient_of_turning() -> None:
    """Its adjoint: products of both sides with anything agree; and it undoes the turn."""
    layer, random = Rotary("r", 6, 2, 5, 3, base=50.0, start=4), np.random.default_rng(5)
    x, dy = random.normal(size=(2, 6, 2, 5, 3))
    ahead, back = ({name: made(1) for name, made in each.fixed.items()} for each in (layer, replace(layer, back=True)))
    turned = reference.compute(layer, {"ifmap": x, **ahead})
    dx = reference.compute(replace(layer, back=True), {"ifmap": dy, **back})
    np.testing.assert_allclose((turned * dy).sum(), (x * dx).sum(), rtol=1e-6)
    np.testing.assert_allclose(reference.compute(replace(layer, back=True), {"ifmap": turned, **back}), x, atol=1e-6)


def test_scores_depend_on_how_far_tokens_are_apart() -> None:
    """What the embedding is for: products of queries and keys that lie two apart are alike, wherever they stand."""
    layer = Rotary("r", 8, 1, 9, 1)
    query, key = np.broadcast_to(drawn(2, 8, 1, 1, 1), (2, 8, 1, 9, 1))
    tables = {name: made(1) for name, made in layer.fixed.items()}
    q, k = (reference.compute(layer, {"ifmap": each, **tables})[:, 0, :, 0] for each in (query, key))
    products = q.T @ k
    np.testing.assert_allclose(products.diagonal(2), products[0, 2], rtol=1e-4)
    assert abs(products.diagonal(1)[0] - products[0, 2]) > 1e-3


def test_an_embedding_takes_rows_of_a_table_as_often_as_any() -> None:
    layer, table = Embedding("e", 3, 7, 70_000, seed=5), drawn(3, 7, 1, 1)
    made = reference.compute(layer, {"ifmap": table})
    np.testing.assert_array_equal(made[:, 0, 0, :], table[:, layer.words, 0, 0])
    assert min(np.bincount(layer.words, minlength=7)) > 9_500
    assert layer.words != Embedding("e", 3, 7, 70_000, seed=6).words
    assert Embedding("e", 3, 50_257, 4).words == (42438, 38092, 21136, 13012)


def test_twice_the_input_of_an_embedding_is_twice_the_rows() -> None:
    layer = Embedding("e", 3, 7, 10)
    assert layer.with_more_input(4) == (Embedding("e", 3, 7, 20), 4, "rows=20")
    assert layer.with_less_input(4) == (Embedding("e", 3, 7, 5), 4, "rows=5")


@pytest.mark.parametrize(
    ("k", "kept"), [(1, [0, 5, 0, 5, 0]), (2, [3, 5, 0, 5, 0]), (3, [3, 5, 2, 5, 0]), (5, [3, 5, 2, 5, 1])]
)
def test_equal_elements_count_as_one(k: int, kept: list[int]) -> None:
    """All that there are, where a row has fewer numbers than are asked for."""
    x = np.array([3.0, 5, 2, 5, 1]).reshape(5, 1, 1, 1)
    made = reference.compute(TopK("k", 5, 1, k, renormalize=False), {"ifmap": x})
    np.testing.assert_array_equal(made.ravel(), kept)
    shares = reference.compute(TopK("k", 5, 1, k), {"ifmap": x})
    np.testing.assert_allclose(shares.ravel(), np.divide(kept, sum(kept)), rtol=1e-15)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (RmsNorm, {"epsilon": 0.0}, "epsilon: 0.0 is not above zero"),
        (Softmax, {"queries": 5}, "queries: the first of 5 queries would see none of 4 keys; write channels 4 at most"),
        (Softmax, {"window": 2}, "window: a window is one of a mask; write queries as well"),
        (Rotary, {"base": 0.0}, "base: 0.0 is not above zero; write one such as 10000.0"),
        (Rotary, {"channels": 5}, "channels: 5 channels have no halves; write an even number"),
        (TopK, {"k": 5}, "k: 5 are more than the 4 elements of a row; write 4 at most"),
        (SoftCap, {"cap": -1.0}, "cap: -1.0 is not above zero; write one such as 50.0"),
    ],
)
def test_what_is_wrong_with_one(kind: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        kind(**{"name": "x", "channels": 4, **fields})
