"""Attention and its gradients, straight from their definitions, in float64; and how far float32 may be off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.reference import Box, Operands, Tensor

if TYPE_CHECKING:
    from tpusim.network.ops.flash_attention import FlashAttention, FlashAttentionGradient

_Doubles: TypeAlias = NDArray[np.float64]


class _Head(NamedTuple):
    """A head of an image.

    Attributes:
        image: the image; `number`: the head, and `shared` that of its keys.
        queries, keys, values: [channel, token].
        shares: of each query [query, key].
        score: the largest sum of magnitudes of a score of each query.
    """

    image: int
    number: int
    shared: int
    queries: _Doubles
    keys: _Doubles
    values: _Doubles
    shares: _Doubles
    score: _Doubles


def _heads(
    layer: FlashAttention, read: Callable[[str], _Doubles], images: set[int], heads: set[int]
) -> Iterator[_Head]:
    """Yield some heads of some images, of queries, keys and values [channel, token]."""
    channels, queries, keys = layer.head, layer.queries, layer.of_keys
    asking, asked, values = map(read, ("queries", "keys", "values"))
    seen = np.arange(keys) <= (keys - queries + np.arange(queries))[:, None] if layer.causal else True
    for image in images:
        mine, theirs = (slice(image * each, (image + 1) * each) for each in (queries, keys))
        for head in heads:
            # Several heads may share keys and values (grouped queries).
            shared = head // (layer.heads // layer.of_kv_heads)
            own, kept = (slice(number * channels, (number + 1) * channels) for number in (head, shared))
            q, k = asking[own, mine], asked[kept, theirs]
            scores = np.where(seen, q.T @ k, -np.inf)
            sizes = np.where(seen, abs(q).T @ abs(k), 0)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            yield _Head(image, head, shared, q, k, values[kept, theirs], shares, sizes.max(axis=1))


def _doubles(operands: Operands, name: str) -> _Doubles:
    return operands[name][:, 0, 0].astype(np.float64)


def _in_box(made: _Doubles, box: Box) -> Tensor:
    return np.asarray(made[box[0].start : box[0].stop, None, None, box[3].start : box[3].stop])


# ---- the attention


def _outputs(layer: FlashAttention, operands: Operands, box: Box, of: Callable[[_Head], _Doubles]) -> Tensor:
    """Return what is wanted of the outputs in `box`, head by head and image by image."""

    def read(name: str) -> _Doubles:
        return _doubles(operands, "ifmap" if name == "queries" else name)

    channels, queries = layer.head, layer.queries
    made = np.empty((layer.heads * channels, read("queries").shape[1]))
    images, heads = {each // queries for each in box[3]}, {each // channels for each in box[0]}
    for head in _heads(layer, read, images, heads):
        made[head.number * channels :][:channels, head.image * queries :][:, :queries] = of(head)
    return _in_box(made, box)


def flash_attention(layer: FlashAttention, operands: Operands, box: Box) -> Tensor:
    """Compute the shares of all values that each query takes, straight from all of its scores at once."""
    return _outputs(layer, operands, box, lambda head: head.values @ head.shares.T)


def _wrong_shares(head: _Head, share: float) -> _Doubles:
    """How far the shares of each query are off, as a part of them, over the `share`.

    A score is off by the share g of its size, and so is the largest one, which changes a power by the factor e^d of
    both; what it changes of the sum is at most as much.
    """
    return np.asarray(2 + 2 * np.expm1(np.minimum(2 * share * head.score, 700)) / share)


def _of_attention(layer: FlashAttention, operands: Operands, box: Box, share: float) -> Tensor:
    """Return the error over the `share`: of all shares, and so of their products and the sums of these."""
    return _outputs(layer, operands, box, lambda head: abs(head.values) @ head.shares.T * _wrong_shares(head, share))


# ---- its gradients

_LEAST = 4 * 2.0**-149
"""How far a share is off that is less than float32 can tell: some of its least numbers."""


_Parts: TypeAlias = tuple[_Doubles, _Doubles, _Doubles]
"""What a head adds to the gradients by its queries, keys and values, each [channel, token]."""


def _gradients(
    layer: FlashAttentionGradient, operands: Operands, box: Box, of: Callable[[_Head, _Doubles], _Parts]
) -> Tensor:
    """Return what is wanted of the gradients in `box`: that of keys and values is the sum over the heads that share
    them.
    """
    channels, tokens, heads = layer.head, layer.queries, layer.heads
    shared = heads // layer.of_kv_heads
    back = _doubles(operands, "ifmap")
    made = np.zeros(((heads + 2 * layer.of_kv_heads) * channels, back.shape[1]))
    images, wanted = {each // tokens for each in box[3]}, set[int]()
    for place in {each // channels for each in box[0]}:
        first = (place - heads) % layer.of_kv_heads * shared
        wanted |= {place} if place < heads else {*range(first, first + shared)}
    for head in _heads(layer, lambda name: _doubles(operands, name), images, wanted):
        mine = slice(head.image * tokens, (head.image + 1) * tokens)
        parts = of(head, back[head.number * channels :][:channels, mine])
        places = head.number, heads + head.shared, heads + layer.of_kv_heads + head.shared
        for place, part in zip(places, parts, strict=True):
            made[place * channels :][:channels, mine] += part
    return _in_box(made, box)


def flash_attention_gradient(layer: FlashAttentionGradient, operands: Operands, box: Box) -> Tensor:
    """Compute the gradients through the derivative of each share by each score: s_i (1 if i = j else 0) - s_i s_j."""

    def parts(head: _Head, back: _Doubles) -> _Parts:
        by_shares = back.T @ head.values
        slopes = head.shares * by_shares - head.shares * np.einsum("qk,qk->q", head.shares, by_shares)[:, None]
        return head.keys @ slopes.T, head.queries @ slopes, back @ head.shares

    return _gradients(layer, operands, box, parts)


def _of_gradients(layer: FlashAttentionGradient, operands: Operands, box: Box, share: float) -> Tensor:
    """Return the error over the `share`, g.

    Shares s are off by the part r of themselves; gradients d by shares by g of their size b, the sum of the magnitudes
    of their summands. The mean m of d by shares has a size of at most e, the mean of b, and is off by at most
    e ((1 + r)(1 + g)^2 - 1). So a gradient by a score, s (d - m), is off by at most s (b + e) t, where
    t = (1 + r)^2 (1 + g)^5 - 1, which counts the roundings of the difference and of the product, too; and a sum of its
    products by the same and g once more. What is less than a number can be is off by the least one, whatever it is.
    """

    def parts(head: _Head, back: _Doubles) -> _Parts:
        wrong = share * _wrong_shares(head, share)[:, None]
        sizes = abs(back).T @ abs(head.values)
        means = np.einsum("qk,qk->q", head.shares, sizes)[:, None]
        with np.errstate(over="ignore"):
            of_slopes = head.shares * (sizes + means) * ((1 + wrong) ** 2 * (1 + share) ** 6 - 1) / share
            of_shares = head.shares * ((1 + wrong) * (1 + share) - 1) / share
        of_slopes, of_shares = of_slopes + _LEAST * (sizes + means + 1) / share, of_shares + _LEAST / share
        keys, queries = abs(head.keys), abs(head.queries)
        return keys @ of_slopes.T, queries @ of_slopes, abs(back) @ of_shares

    return _gradients(layer, operands, box, parts)


ATTENTIONS: dict[str, Callable[[Any, Operands, Box, float], Tensor]] = {
    "flash_attention": _of_attention,
    "flash_attention_gradient": _of_gradients,
}
"""By op how far its outputs may be off, over the share of all roundings."""
