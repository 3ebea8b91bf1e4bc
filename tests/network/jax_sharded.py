"""Functions of JAX that chips of a mesh share, as people write them; each with what it computes on one chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.network.jax_functions import reals

CHIPS, ROWS_COLS = (("x", 4),), (("x", 2), ("y", 4))
Axes = tuple[tuple[str, int], ...]


class Shared(NamedTuple):
    """A function of a mesh that makes the one that chips share, the same on one chip, and arguments."""

    build: Callable[[Any], Callable[..., Any]]
    plain: Callable[..., Any]
    arguments: Sequence[Any]
    axes: Axes
    exchanges: str
    """Those of the share, in order, by their first letters: r of all_reduce, g, s, t and p."""
    types: Sequence[Any] = ()
    """Explicit types of the arguments, if it has such."""

    def mesh(self) -> Any:
        names, sizes = [name for name, _ in self.axes], tuple(many for _, many in self.axes)
        kinds = (AxisType.Explicit if self.types else AxisType.Auto,) * len(names)
        return AbstractMesh(sizes, tuple(names), axis_types=kinds)


def sharded(mesh: Any, ins: Any, outs: Any, **more: Any) -> Any:
    return partial(jax.shard_map, mesh=mesh, in_specs=ins, out_specs=outs, **more)


def mlp(x: Any, one: Any, two: Any) -> Any:
    return jax.nn.relu(x @ one) @ two


def loss_of(x: Any, one: Any, two: Any) -> Any:
    return jnp.mean(mlp(x, one, two) ** 2)


# ---- a network with its gradient: the batch, the features, or the weights parted


def data_parallel(mesh: Any) -> Any:
    @sharded(mesh, (P("x"), P(), P()), (P(), P()), check_vma=False)
    def step(x: Any, one: Any, two: Any) -> Any:
        gradients = jax.grad(loss_of, (1, 2))(x, one, two)
        return tuple(lax.pmean(each, "x") for each in gradients)

    return step


def tensor_parallel(mesh: Any) -> Any:
    @sharded(mesh, (P(), P(None, "x"), P("x")), P())
    def network(x: Any, one: Any, two: Any) -> Any:
        return lax.psum(mlp(x, one, two), "x")

    return jax.grad(lambda *given: jnp.mean(network(*given) ** 2), (0, 1, 2))


def parted_weights(mesh: Any) -> Any:
    @sharded(mesh, (P("x"), P("x"), P(None, "x")), (P("x"), P(None, "x")))
    def step(x: Any, one: Any, two: Any) -> Any:
        def loss(one: Any, two: Any) -> Any:
            whole = lax.all_gather(one, "x", axis=0, tiled=True), lax.all_gather(two, "x", axis=1, tiled=True)
            return loss_of(x, *whole)

        return tuple(each / lax.axis_size("x") for each in jax.grad(loss, (0, 1))(one, two))

    return step


def sequence_parallel(mesh: Any) -> Any:
    @sharded(mesh, (P("x"), P(None, "x"), P("x")), P("x"))
    def block(x: Any, one: Any, two: Any) -> Any:
        rows = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        whole = lax.all_gather(rows, "x", axis=0, tiled=True)
        return x + lax.psum_scatter(mlp(whole, one, two), "x", scatter_dimension=0, tiled=True)

    return block


def _normed_block(x: Any, one: Any, two: Any) -> Any:
    return x + mlp(x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6), one, two)


# ---- attention: heads parted, or keys going round


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, axis=-1), v)


def _heads(x: Any, q: Any, k: Any, v: Any, out: Any) -> Any:
    heads = [(x @ each).reshape(len(x), -1, 4) for each in (q, k, v)]
    return _attention(*heads).reshape(len(x), -1) @ out


def heads_parted(mesh: Any) -> Any:
    @sharded(mesh, (P(), *[P(None, "x")] * 3, P("x")), P())
    def attention(x: Any, q: Any, k: Any, v: Any, out: Any) -> Any:
        return lax.psum(_heads(x, q, k, v, out), "x")

    return jax.value_and_grad(lambda *given: jnp.sum(attention(*given) ** 2), (0, 1, 4))


def ring_attention(mesh: Any) -> Any:
    @sharded(mesh, (P("x"),) * 3, P("x"), check_vma=False)
    def ring(q: Any, k: Any, v: Any) -> Any:
        chips, own, size = lax.axis_size("x"), lax.axis_index("x"), len(q)
        places = own * size + jnp.arange(size)
        total, weight = jnp.zeros(q.shape, q.dtype), jnp.zeros(q.shape[:2], q.dtype)
        for step in range(chips):
            others = (own - step) % chips * size + jnp.arange(size)
            scores = jnp.einsum("qhd,khd->qhk", q, k) / np.sqrt(q.shape[-1])
            raised = jnp.where(others[None, None] <= places[:, None, None], jnp.exp(scores), 0.0)
            total, weight = total + jnp.einsum("qhk,khd->qhd", raised, v), weight + raised.sum(axis=-1)
            if step < chips - 1:
                k, v = (lax.ppermute(each, "x", [(at, (at + 1) % chips) for at in range(chips)]) for each in (k, v))
        return total / weight[..., None]

    return ring


def _causal(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("qhd,khd->qhk", q, k) / np.sqrt(q.shape[-1])
    seen = jnp.arange(len(k))[None, None] <= jnp.arange(len(q))[:, None, None]
    raised = jnp.where(seen, jnp.exp(scores), 0.0)
    return jnp.einsum("qhk,khd->qhd", raised / raised.sum(axis=-1, keepdims=True), v)


# ---- experts, each on a chip of its own


def experts(mesh: Any) -> Any:
    @sharded(mesh, (P("x"), P("x"), P("x"), P("x")), P("x"))
    def mixture(x: Any, gates: Any, one: Any, two: Any) -> Any:
        # A chip has room for two of its tokens on each expert.
        sent = jnp.einsum("td,tec->ecd", x, (gates > 0).astype(x.dtype))
        here = lax.all_to_all(sent, "x", 0, 1, tiled=True)
        made = mlp(here[0], one[0], two[0])[None]
        back = lax.all_to_all(made, "x", 1, 0, tiled=True)
        return jnp.einsum("ecd,tec->td", back, gates)

    return mixture


def _mixture(x: Any, gates: Any, one: Any, two: Any) -> Any:
    made = jnp.stack([mlp(x, *each) for each in zip(one, two, strict=True)], axis=1)
    return jnp.einsum("ted,te->td", made, gates.sum(axis=-1))


def _gates() -> Any:
    """Of 16 tokens on four chips, which expert each takes, in which of two places, and how much of it counts."""
    made = np.zeros((16, 4, 2), np.float32)
    for token in range(16):
        made[token, (token * 3 + token // 4) % 4, token // 4 % 2] = 0.5 + token / 16
    return made


# ---- a product on a mesh of rows and columns, and a ring product


def rows_and_columns(mesh: Any) -> Any:
    @sharded(mesh, (P("x", "y"), P("x", "y")), P("x", "y"))
    def product(a: Any, b: Any) -> Any:
        return lax.all_gather(a, "y", axis=1, tiled=True) @ lax.all_gather(b, "x", axis=0, tiled=True)

    return product


def ring_product(mesh: Any) -> Any:
    @sharded(mesh, (P("x"), P(None, "x")), P(None, "x"), check_vma=False)
    def product(a: Any, b: Any) -> Any:
        chips, own, made = lax.axis_size("x"), lax.axis_index("x"), []
        for step in range(chips):
            made.append(a @ b)
            a = lax.ppermute(a, "x", [((at + 1) % chips, at) for at in range(chips)]) if step < chips - 1 else a
        parts = jnp.stack(made)
        return jnp.concatenate([parts[(row - own) % chips] for row in range(chips)])

    return product


# ---- a convolution whose images are parted, with the statistics of all of them


def _normalised(maps: Any, means: Callable[[Any], Any]) -> Any:
    mean = means(jnp.mean(maps, axis=(0, 1, 2)))
    apart = maps - mean
    return apart * lax.rsqrt(means(jnp.mean(apart * apart, axis=(0, 1, 2))) + 1e-5)


def _images(x: Any, weights: Any, means: Callable[[Any], Any] = lambda each: each) -> Any:
    maps = lax.conv_general_dilated(x, weights, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(_normalised(maps, means))


def images_parted(mesh: Any) -> Any:
    @sharded(mesh, (P("x"), P()), P("x"))
    def network(x: Any, weights: Any) -> Any:
        return _images(x, weights, lambda each: lax.pmean(each, "x"))

    return jax.grad(lambda x, weights: jnp.mean(network(x, weights) ** 2), 1)


# ---- a loss over words, of which each chip has some


def words_parted(mesh: Any) -> Any:
    @sharded(mesh, (P(), P(None, "x"), P()), P())
    def loss(x: Any, table: Any, words: Any) -> Any:
        scores = x @ table
        most = lax.pmax(lax.stop_gradient(scores).max(axis=-1), "x")
        total = lax.psum(jnp.exp(scores - most[:, None]).sum(axis=-1), "x")
        own = words - lax.axis_index("x") * scores.shape[-1]
        mine = (own >= 0) & (own < scores.shape[-1])
        taken = jnp.take_along_axis(scores, jnp.clip(own, 0, scores.shape[-1] - 1)[:, None], axis=-1)[:, 0]
        score = lax.psum(jnp.where(mine, taken, 0.0), "x")
        return jnp.mean(jnp.log(total) + most - score)

    return jax.value_and_grad(loss, 1)


def _word_loss(x: Any, table: Any, words: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x @ table), words[:, None], axis=-1))


# ---- explicit types


def explicit(mesh: Any) -> Any:
    def network(x: Any, one: Any, two: Any) -> Any:
        made = jnp.einsum("bf,fd->bd", jax.nn.gelu(x @ one), two, out_sharding=P("x", None))
        return jnp.mean(jax.nn.softmax(made, axis=-1) * made)

    return jax.value_and_grad(network, (0, 1, 2))


def scattered(mesh: Any) -> Any:
    def network(x: Any, one: Any, two: Any) -> Any:
        rows = jax.sharding.reshard(x, P(None, None))
        made = jnp.einsum("bf,fd->bd", jnp.tanh(rows @ one), two, out_sharding=P("y", None))
        return jax.sharding.reshard(made, P(None, "y")), made.T.reshape(4, -1, 16)

    return network


# ---- several parts, and steps around them


def training(mesh: Any) -> Any:
    first = sharded(mesh, (P("x"), P(None, "y")), P("x", "y"))(lambda x, one: jax.nn.relu(x @ one))
    second = sharded(mesh, (P("x", "y"), P("y")), P("x"))(lambda x, two: lax.psum(x @ two, "y"))

    @jax.jit
    def step(x: Any, one: Any, two: Any, moment: Any) -> Any:
        def loss(one: Any, two: Any) -> Any:
            return jnp.mean(jax.checkpoint(lambda x: second(first(x, one), two))(x) ** 2)

        value, (slope, other) = jax.value_and_grad(loss, (0, 1))(one, two)
        moment = 0.9 * moment + slope
        return value, one - 0.1 * moment, two - 0.1 * other, moment

    return step


def _training(x: Any, one: Any, two: Any, moment: Any) -> Any:
    value, (slope, other) = jax.value_and_grad(partial(loss_of, x), (0, 1))(one, two)
    moment = 0.9 * moment + slope
    return value, one - 0.1 * moment, two - 0.1 * other, moment


def _typed_loss(x: Any, one: Any, two: Any) -> Any:
    made = jax.nn.gelu(x @ one) @ two
    return jnp.mean(jax.nn.softmax(made, axis=-1) * made)


def _twice(x: Any, one: Any, two: Any) -> Any:
    made = jnp.tanh(x @ one) @ two
    return made, made.T.reshape(4, -1, 16)


_MLP = reals(16, 12), reals(12, 32, size=0.3), reals(32, 12, size=0.3)
_HEADS = [reals(8, 12), *(reals(12, 16, size=0.3) for _ in range(3)), reals(16, 12, size=0.3)]
_EXPERTS = [reals(16, 12), _gates(), reals(4, 12, 20, size=0.3), reals(4, 20, 12, size=0.3)]
_IMAGES = [reals(8, 6, 6, 3), reals(3, 3, 3, 8)]
_WORDS = [reals(8, 12), reals(12, 32), np.arange(8) * 4 % 32]
_TYPED = P("x", None), P(None, "y"), P("y", None)
SHARED = {
    "data_parallel": Shared(data_parallel, jax.grad(loss_of, (1, 2)), _MLP, CHIPS, "rr"),
    "tensor_parallel": Shared(tensor_parallel, jax.grad(loss_of, (0, 1, 2)), _MLP, CHIPS, "rr"),
    "parted_weights": Shared(parted_weights, jax.grad(loss_of, (1, 2)), _MLP, CHIPS, "ggss"),
    "sequence_parallel": Shared(sequence_parallel, _normed_block, _MLP, CHIPS, "gs"),
    "heads_parted": Shared(
        heads_parted, jax.value_and_grad(lambda *given: jnp.sum(_heads(*given) ** 2), (0, 1, 4)), _HEADS, CHIPS, "rrrr"
    ),
    "ring_attention": Shared(ring_attention, _causal, [reals(16, 2, 4) for _ in range(3)], CHIPS, "pppppp"),
    "experts": Shared(experts, _mixture, _EXPERTS, CHIPS, "tt"),
    "rows_and_columns": Shared(rows_and_columns, jnp.matmul, [reals(16, 24), reals(24, 32)], ROWS_COLS, "gg"),
    "ring_product": Shared(ring_product, jnp.matmul, [reals(16, 12), reals(12, 32)], CHIPS, "ppp"),
    "images_parted": Shared(
        images_parted, jax.grad(lambda *given: jnp.mean(_images(*given) ** 2), 1), _IMAGES, CHIPS, "rrrrr"
    ),
    "words_parted": Shared(words_parted, jax.value_and_grad(_word_loss, 1), _WORDS, CHIPS, "rrr"),
    "explicit": Shared(explicit, jax.value_and_grad(_typed_loss, (0, 1, 2)), _MLP, ROWS_COLS, "rrrrr", _TYPED),
    "scattered": Shared(scattered, _twice, _MLP, ROWS_COLS, "gst", _TYPED),
    "training": Shared(training, _training, [*_MLP, reals(12, 32)], ROWS_COLS, "rrrr"),
}
"""By name; ten of kinds that are unlike one another, and some more."""


def given_types(shared: Shared, mesh: Any) -> list[Any]:
    """Return the types of arguments, with explicit shardings where the function has some."""
    if not shared.types:
        return [*shared.arguments]
    return [
        jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=NamedSharding(mesh, spec))
        for each, spec in zip(shared.arguments, shared.types, strict=True)
    ]
