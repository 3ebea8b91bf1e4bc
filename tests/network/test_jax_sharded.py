"""Functions of JAX that chips of a mesh share: every element that any chip has is that of the function on one chip."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not os.environ.get("TPUSIM_GRAPHS"):
    # A proof by hand fails without JAX.
    pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from tests import ROOT
from tests.network.jax_functions import reals
from tests.network.jax_sharded import SHARED, Shared, given_types, sharded
from tpusim import from_jax, load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.flow.jobs import resolve
from tpusim.flow.numbers import numbers_of
from tpusim.flow.shard_values import Shards
from tpusim.flow.values import Journey, checked
from tpusim.network.formats.jax_function import JaxWorkload
from tpusim.network.workload_file import yaml_of
from tpusim.result.records import Result

LETTERS = {"all_reduce": "r", "all_gather": "g", "reduce_scatter": "s", "all_to_all": "t", "permute": "p"}
MESH = AbstractMesh((4,), ("x",))


def share_of(function: Callable[..., Any], *arguments: Any) -> JaxWorkload:
    return from_jax(function, *arguments)


def values_of(
    work: JaxWorkload, arguments: Sequence[Any], engine: str = "event", machine: str = "tiny_4x4"
) -> tuple[Journey, Result]:
    hardware = load_hardware(machine)
    run = resolve(work, hardware, dtype="f32").work
    assert work.graph is not None
    given = dict(zip(work.graph.inputs, map(np.asarray, arguments), strict=True))
    journey = Journey(work.graph, run, checked(work.graph, given, run.batch), numbers_of("f32", "any"))
    return journey, simulate(run, hardware, dtype="f32", engine=engine, journey=journey)


def agrees(
    function: Callable[..., Any], plain: Callable[..., Any], arguments: Sequence[Any], types: Sequence[Any] = (),
    engine: str = "event", machine: str = "tiny_4x4",
) -> JaxWorkload:  # fmt: skip
    """Hold every chip's part of every output against its part of what JAX makes of the whole on one chip."""
    work = share_of(function, *(types or arguments))
    journey, result = values_of(work, arguments, engine, machine)
    assert result.correct
    assert work.graph is not None
    shards, chips = Shards(work.mesh), journey.shards()
    wanted = [np.asarray(each) for each in jax.tree_util.tree_leaves(plain(*arguments))]
    for (name, whole), want in zip(journey.outputs().items(), wanted, strict=True):
        near = {"rtol": 1e-4, "atol": 1e-5 * max(1.0, float(np.abs(want).max()))}
        np.testing.assert_allclose(whole, want, **near)
        for own, part in zip(chips, shards.cut(want, work.graph.places[name]), strict=True):
            np.testing.assert_allclose(own[name], part, **near)
    return work


@pytest.mark.parametrize("name", SHARED)
def test_every_chip_has_its_part_of_the_whole(name: str) -> None:
    shared = SHARED[name]
    mesh = shared.mesh()
    work = agrees(shared.build(mesh), shared.plain, shared.arguments, given_types(shared, mesh))
    assert "".join(LETTERS[each.op] for each in work.collectives) == shared.exchanges
    assert (work.mesh, work.chips) == (shared.axes, Shards(shared.axes).chips)


@pytest.mark.parametrize("name", ["tensor_parallel", "experts", "ring_product", "scattered"])
def test_in_all_engines(name: str) -> None:
    shared = SHARED[name]
    mesh = shared.mesh()
    agrees(shared.build(mesh), shared.plain, shared.arguments, given_types(shared, mesh), engine="both")


def test_on_a_machine_that_fuses() -> None:
    shared = SHARED["sequence_parallel"]
    work = agrees(shared.build(shared.mesh()), shared.plain, shared.arguments, machine="tpu_v5e")
    assert resolve(work, load_hardware("tpu_v5e"), dtype="f32").work.riders


# ---- layers, edges, collectives


def test_readers_name_the_collective() -> None:
    shared = SHARED["parted_weights"]
    work = share_of(shared.build(shared.mesh()), *shared.arguments)
    edges, collectives = work.sources(), {each.name: each for each in work.collectives}
    first, *_, last = work.collectives
    assert (first.op, first.over, first.reads, first.weights) == ("all_gather", ("x",), (), True)
    # Elements after a gather, and before a scatter.
    assert first.elements == 12 * 32
    assert edges[first.read_by[0]][1].names == (first.name,)
    assert (last.op, last.elements) == ("reduce_scatter", 12 * 32)
    assert last.read_by[0].startswith("div@jax_sharded.py:")
    layers = {layer.name for layer in work.layers}
    for each in work.collectives:
        assert {*each.reads, *each.read_by} <= {*layers, *collectives}
    assert all(
        name in {*layers, *collectives, "x", "one", "two"} for each in edges.values() for s in each for name in s.names
    )


def test_layers_have_the_sizes_of_a_share() -> None:
    shared = SHARED["tensor_parallel"]
    work = share_of(shared.build(shared.mesh()), *shared.arguments)
    products = [(layer.m, layer.n, layer.k) for layer in work.layers if layer.op == "gemm"]  # type: ignore[attr-defined]
    # 16 rows of 12, eight of 32 features a chip, forward and back.
    assert products == [(16, 8, 12), (16, 12, 8), (8, 12, 16), (16, 8, 12), (12, 8, 16), (16, 12, 8)]


def test_a_file_of_the_share_reads_as_the_share(tmp_path: Path) -> None:
    for name in ("heads_parted", "parted_weights", "scattered"):
        shared = SHARED[name]
        mesh = shared.mesh()
        work = share_of(shared.build(mesh), *given_types(shared, mesh))
        assert work.document is not None
        (tmp_path / "share.yaml").write_text(yaml_of(work.document))
        again = load_workload(tmp_path / "share.yaml", work.batch)
        for field in ("layers", "edges", "collectives", "mesh", "chips"):
            assert getattr(again, field) == getattr(work, field), field


def test_ops_of_the_array_alone() -> None:
    """A collective reads what the layers that are left out have read."""
    shared = SHARED["heads_parted"]
    work, some = (from_jax(shared.build(shared.mesh()), *shared.arguments, ops=ops) for ops in (None, "array"))
    left = {layer.name for layer in some.layers} | {each.name for each in some.collectives}
    assert len(some.layers) < len(work.layers)
    assert [each[:4] for each in some.collectives] == [each[:4] for each in work.collectives]
    for each in some.collectives:
        assert {*each.reads, *each.read_by} <= left
        assert each.reads


@pytest.mark.parametrize(
    ("exchange", "plain", "ops"),
    [
        (lambda x: lax.pmin(x, ("x", "y")), lambda x: jnp.tile(x.reshape(2, 4, -1, 6).min((0, 1)), (8, 1)), "r"),
        (lambda x: lax.psum(x, "y"), lambda x: jnp.repeat(x.reshape(2, 4, -1, 6).sum(1), 4, 0).reshape(-1, 6), "r"),
        (lambda x: lax.all_gather(x, ("x", "y")).sum(0), lambda x: jnp.tile(x.reshape(8, -1, 6).sum(0), (8, 1)), "g"),
        (lambda x: lax.psum_scatter(x[:2], "x") + x[:1],
         lambda x: x.reshape(8, -1, 6)[:, :1].reshape(8, 6) + x.reshape(2, 4, -1, 6)[:, :, :2].sum(0).transpose(1, 0, 2)
         .reshape(8, 6), "s"),
        (lambda x: lax.all_to_all(x[:4], "y", 0, 1), lambda x: x.reshape(2, 4, -1, 6)[:, :, :4].transpose(0, 2, 3, 1)
         .reshape(-1, 4), "t"),
        (lambda x: lax.ppermute(x, "y", [(0, 1), (1, 2)]),
         lambda x: jnp.pad(x.reshape(2, 4, -1, 6)[:, :2], ((0, 0), (1, 1), (0, 0), (0, 0))).reshape(-1, 6), "p"),
        (lambda x: lax.ppermute(x, "y", [(at, (at + 2) % 4) for at in range(4)]),
         lambda x: jnp.roll(x.reshape(2, 4, -1, 6), 2, 1).reshape(-1, 6), "pp"),
        (lambda x: x * lax.psum(1, "x") * lax.psum(jnp.ones(()), "y"), lambda x: x * 8, ""),
        (lambda x: lax.pmax(lax.psum(x, "one"), "one") + lax.axis_index("one"), lambda x: x, ""),
    ],
)  # fmt: skip
def test_exchanges_of_every_kind(exchange: Callable[..., Any], plain: Callable[..., Any], ops: str) -> None:
    mesh = AbstractMesh((2, 4, 1), ("x", "y", "one"))
    x, eye = reals(32, 6), np.eye(6, dtype=np.float32)

    def function(x: Any, eye: Any) -> Any:
        return sharded(mesh, (P(("x", "y")), P()), P(("x", "y")), check_vma=False)(lambda x, eye: exchange(x @ eye))(
            x, eye
        )

    def whole(x: Any, eye: Any) -> Any:
        made = plain(x @ eye)
        return made

    work = agrees(function, whole, (x, eye))
    assert "".join(LETTERS[each.op] for each in work.collectives) == ops


_RING = [(at, (at + 1) % 4) for at in range(4)]


@pytest.mark.parametrize(
    ("body", "ins", "outs", "plain", "ops"),
    [
        (lambda x, w: lax.ppermute(x @ w, "y", _RING), (P(("y", "x")), P()), P(("y", "x")),
         lambda x, w: jnp.roll(x @ w, 4, 0), "ppr"),
        (lambda x, w: lax.all_to_all(x @ w, "y", 1, 0, tiled=True), (P("y"), P()), P(None, "y"), jnp.matmul, "ttr"),
        (lambda x, w: lax.psum_scatter(x @ w, "y", scatter_dimension=0, tiled=True), (P(None, "y"), P("y")), P("y"),
         jnp.matmul, "sg"),
        (lambda x, w: x @ lax.all_gather(w, "x", axis=1, tiled=True), (P("x"), P(None, "x")), P("x"), jnp.matmul, "gs"),
        (lambda x, w: lax.psum(x @ w, ("x", "y")), (P(None, ("x", "y")), P(("x", "y"))), P(), jnp.matmul, "r"),
        (lambda x, w: (x @ w) * (lax.axis_index("x") + 1.5), (P("x"), P()), P("x"),
         lambda x, w: (x @ w) * jnp.repeat(jnp.array([1.5, 2.5]), 8)[:, None], "r"),
    ],
)  # fmt: skip
def test_gradients_of_exchanges(
    body: Callable[..., Any], ins: Any, outs: Any, plain: Callable[..., Any], ops: str
) -> None:
    mesh = AbstractMesh((2, 4), ("x", "y"))
    x, w = reals(16, 8), reals(8, 8)
    shared = sharded(mesh, ins, outs)(body)
    slopes = [jax.grad(lambda x, w, each=each: jnp.sum(jnp.sin(each(x, w))), (0, 1)) for each in (shared, plain)]
    work = agrees(*slopes, (x, w))
    assert "".join(LETTERS[each.op] for each in work.collectives) == ops


def _losses(taken: bool) -> tuple[Callable[..., Any], Callable[..., Any], Sequence[Any]]:
    mesh = AbstractMesh((2, 4), ("x", "y"))
    shared = sharded(mesh, (P("x"), P(None, "y"), P("y")), P("x"))(
        lambda x, one, two: lax.psum(jax.nn.relu(x @ one) @ two, "y")
    )

    def loss(network: Callable[..., Any]) -> Callable[..., Any]:
        def computed(table: Any, one: Any, two: Any, words: Any, labels: Any) -> Any:
            shares = jax.nn.log_softmax(network(table[words], one, two))
            if taken:
                return -jnp.mean(jnp.take_along_axis(shares, labels[:, None], axis=1))
            return -jnp.mean(jnp.sum(shares * jax.nn.one_hot(labels, 10), -1))

        return jax.value_and_grad(computed, (0, 1, 2))

    given = reals(12, 6), reals(6, 8), reals(8, 10), np.arange(8) * 5 % 12, np.arange(8) % 10
    return loss(shared), loss(lambda x, one, two: jax.nn.relu(x @ one) @ two), given


@pytest.mark.parametrize("taken", [True, False])
def test_losses_and_tables_around(taken: bool) -> None:
    """Rows of a table, scores of labels, and their gradients."""
    agrees(*_losses(taken))


EXPLICIT = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def typed(*each: tuple[Any, Any]) -> list[Any]:
    return [
        jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=jax.sharding.NamedSharding(EXPLICIT, spec))
        for value, spec in each
    ]


def test_explicit_types_of_attention() -> None:
    def attention(**placed: Any) -> Callable[..., Any]:
        def computed(x: Any, q: Any, k: Any, v: Any, out: Any) -> Any:
            q, k, v = (jnp.einsum("bsd,dhe->bhse", x, each) for each in (q, k, v))
            scores = jnp.where(jnp.tril(jnp.ones((5, 5), bool)), jnp.einsum("bhqe,bhke->bhqk", q, k) / 2, -1e9)
            return jnp.einsum(
                "bqhe,hed->bqd", jnp.einsum("bhqk,bhke->bqhe", jax.nn.softmax(scores, -1), v), out, **placed
            )

        return computed

    given = reals(4, 5, 6), *(reals(6, 4, 3) for _ in range(3)), reals(4, 3, 6)
    specs = P("x"), *[P(None, "y")] * 3, P("y")
    work = agrees(
        attention(out_sharding=P("x", None, None)), attention(), given, typed(*zip(given, specs, strict=True))
    )
    assert [(each.op, each.over, each.elements) for each in work.collectives] == [("all_reduce", ("y",), 2 * 5 * 6)]


def test_explicit_types_of_rows_and_of_a_scan() -> None:
    table, words, weights = reals(12, 6), np.arange(8) * 5 % 12, reals(6, 8)
    types = typed((table, P()), (words, P("x")), (weights, P(None, "y")))
    placed = lambda table, words, w: table.at[words].get(out_sharding=P("x", None)) @ w  # noqa: E731
    agrees(placed, lambda table, words, w: table[words] @ w, (table, words, weights), types)
    x, layers = reals(4, 8), reals(3, 8, 8, size=0.4)

    def chain(x: Any, layers: Any) -> Any:
        step = lambda x, w: (jnp.tanh(jnp.einsum("bd,df->bf", x, w, out_sharding=P("x", None))), None)  # noqa: E731
        return lax.scan(step, x, layers)[0]

    def plain(x: Any, layers: Any) -> Any:
        for w in layers:
            x = jnp.tanh(x @ w)
        return x

    agrees(chain, plain, (x, layers), typed((x, P("x", None)), (layers, P(None, None, "y"))))


def test_gradients_of_gathered_weights_are_scattered() -> None:
    """A reshard of weights is a gather; that of their gradient, which is a sum of all chips, a reduce-scatter."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ jax.sharding.reshard(w, P(None, None))) ** 2)

    w, x = reals(16, 8), reals(8, 16)
    work = agrees(
        jax.value_and_grad(loss),
        jax.value_and_grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)),
        (w, x),
        typed((w, P("x", None)), (x, P("x", None))),
    )
    assert [(each.op, each.elements, each.weights) for each in work.collectives] == [
        ("all_gather", 128, True), ("all_reduce", 1, False), ("reduce_scatter", 128, False)
    ]  # fmt: skip


def test_types_within_a_function() -> None:
    def inside(x: Any, w: Any) -> Any:
        with jax.sharding.use_abstract_mesh(EXPLICIT):
            x, w = jax.sharding.reshard(x, P("x", None)), jax.sharding.reshard(w, P(None, "y"))
            return jax.sharding.reshard(jnp.tanh(x @ w), P(None, None))

    work = agrees(inside, lambda x, w: jnp.tanh(x @ w), (reals(8, 6), reals(6, 8)))
    assert {each.op for each in work.collectives} == {"all_gather"}


def test_a_scan_and_a_branch_inside_and_around() -> None:
    @sharded(MESH, (P("x"), P(None, None, "x")), P("x"))
    def inside(x: Any, weights: Any) -> Any:
        def step(x: Any, each: Any) -> Any:
            return jnp.tanh(x @ lax.all_gather(each, "x", axis=1, tiled=True)), None

        return lax.cond(True, lambda x: lax.scan(step, x, weights)[0], lambda x: x, x)

    def around(x: Any, weights: Any) -> Any:
        product = sharded(MESH, (P("x"), P(None, "x")), P("x"))(
            lambda x, w: x @ lax.all_gather(w, "x", axis=1, tiled=True)
        )
        return lax.scan(lambda x, each: (jnp.tanh(product(x, each)), x.sum()), x, weights)

    def plain(x: Any, weights: Any) -> Any:
        for each in weights:
            x = jnp.tanh(x @ each)
        return x

    given = reals(8, 16), reals(3, 16, 16, size=0.3)
    agrees(inside, plain, given)
    agrees(lambda *given: around(*given)[0], plain, given)


def test_a_jit_with_shardings() -> None:
    mesh = AbstractMesh((2, 2), ("x", "y"))
    here = jax.sharding.NamedSharding(mesh, P("x", None))
    there = jax.sharding.NamedSharding(mesh, P(None, "y"))
    around = jax.jit(lambda x, w: jax.nn.relu(x @ w).T, in_shardings=(here, there))
    work = agrees(lambda x, w: around(x, w) * 2, lambda x, w: jax.nn.relu(x @ w).T * 2, (reals(8, 6), reals(6, 4)))
    assert not work.collectives
    assert work.graph is not None
    assert work.graph.places["output"] == (("y",), ("x",))


# ---- random chains, placed anyhow

_SEEDS = range(int(os.environ.get("TPUSIM_GRAPHS", "8")))


class _Dice:
    """Draws functions of a matrix of whole numbers, whose axes are parted anyhow on a mesh of rows and columns."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.mesh = AbstractMesh((2, 4), ("x", "y"))

    def among(self, *choices: Any) -> Any:
        return choices[int(self._random.integers(len(choices)))]

    def whole(self, *shape: int) -> Any:
        return self._random.integers(-2, 3, shape).astype(np.float32)

    def placed(self, rank: int = 2) -> Any:
        """Draw the sharding of a value: no axis of the mesh parts two of its axes."""
        left, spec = ["x", "y"], list[Any]()
        self._random.shuffle(left)
        for _ in range(rank):
            many = self.among(0, 0, 1, 1, 2)
            spec.append(tuple(left[:many]) or None)
            left = left[many:]
        return jax.sharding.NamedSharding(self.mesh, P(*spec))

    def step(self, width: int) -> tuple[Callable[[Any, Any, Callable[..., Any]], Any], Any, int]:
        """Draw a step, what it reads beside the matrix, and the width of what it makes; it places by what it is given,
        which does nothing on one chip.
        """
        here, there = self.placed(), self.placed()
        kind = self.among("product", "product", "add", "place", "turn", "reshape", "normal", "rows")
        if kind == "product":
            wide = self.among(8, 16)
            return (lambda x, w, at: at(x, here) @ at(w, there)), self.whole(width, wide), wide
        if kind == "add":
            return (lambda x, b, at: jax.nn.relu(at(x, here) + b)), self.whole(width), width
        if kind == "place":
            return (lambda x, _, at: at(at(x, here), there)), None, width
        if kind == "turn":
            return (lambda x, w, at: at((w.T @ at(x, here).T).T, there)), self.whole(width, width), width
        if kind == "reshape":
            return (lambda x, _, at: at(x, here).reshape(-1, 2, width // 2).sum(1).repeat(2, 1)), None, width
        if kind == "normal":
            return (lambda x, _, at: at(x, here) - at(x, here).max(axis=-1, keepdims=True)), None, width
        return (lambda x, b, at: at(x, here) + at(b, there).sum(0)), self.whole(16, width), width


@pytest.mark.parametrize("seed", _SEEDS)
def test_random_chains_and_their_gradients(seed: int) -> None:
    dice = _Dice(seed)
    width, steps, given = 8, list[Any](), [dice.whole(16, 8)]
    for _ in range(dice.among(2, 3, 4)):
        step, beside, width = dice.step(width)
        steps.append(step)
        given.append(np.zeros(1, np.float32) if beside is None else beside)
    first = dice.placed()

    def chain(at: Callable[..., Any], x: Any, *others: Any) -> Any:
        x = at(x, first) @ np.eye(8, dtype=np.float32)
        for step, beside in zip(steps, others, strict=True):
            x = step(x, beside, at)
        return x

    def function(at: Callable[..., Any]) -> Callable[..., Any]:
        loss = lambda *given: jnp.mean(chain(at, *given) ** 2)  # noqa: E731
        return lambda *given: (chain(at, *given), jax.grad(loss, 0)(*given))

    try:
        share_of(function(lax.with_sharding_constraint), *given)
    except InputError as error:
        refused = str(error)
    else:
        agrees(function(lax.with_sharding_constraint), function(lambda x, _: x), given)
        return
    # A reshape is the one step whose parts may not lie together, and parts may be uneven.
    assert "lie together" in refused or "evenly" in refused


# ---- what is not known


def _refused(function: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        from_jax(function, *arguments)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def _in_chips(body: Callable[..., Any], *given: Any, mesh: Any = MESH) -> str:
    return _refused(sharded(mesh, P("x"), P("x"), check_vma=False)(body), *(given or (reals(8, 8),)))


def test_groups_of_chips_are_refused() -> None:
    told = _in_chips(lambda x: lax.psum(x @ x.T, "x", axis_index_groups=[[0, 1], [2, 3]]))
    assert "lax.psum" in told
    assert "test_jax_sharded.py:" in told
    assert "axis_index_groups" in told


def test_permutes_beyond_neighbours_are_refused() -> None:
    told = _in_chips(lambda x: lax.ppermute(x @ x.T, "x", [(0, 1), (1, 3)]))
    assert "lax.ppermute" in told
    assert "as far on" in told


def test_what_xla_decides_is_refused() -> None:
    part = sharded(MESH, P("x"), P("x"))(lambda x: x * 2)
    told = _refused(lambda x: jnp.cumsum(part(x), axis=0) @ x, reals(8, 8))
    assert told.startswith("<lambda>: lax.cumsum of float32[8@x, 8] at test_jax_sharded.py:")
    told = _refused(lambda x: lax.linalg.cholesky(part(x)), reals(8, 8))
    assert "lax.cholesky of float32[8@x, 8]" in told
    told = _refused(lambda x: part(x).reshape(2, 4, 8)[:, 0] @ x, reals(8, 8))
    assert "lax.reshape" in told


def test_an_uneven_part_is_refused() -> None:
    part = sharded(MESH, P("x"), P("x"))(lambda x: x * 2)
    moved = jax.sharding.NamedSharding(MESH, P(None, "x"))
    told = _refused(lambda x: lax.with_sharding_constraint(part(x), moved) @ x.T, reals(8, 6))
    assert "6 elements" in told


def test_two_meshes_are_refused() -> None:
    one = sharded(MESH, P("x"), P("x"))(lambda x: x @ x.T)
    other = sharded(AbstractMesh((2,), ("x",)), P("x"), P("x"))(lambda x: x * 2)
    assert "several meshes" in _refused(lambda x: other(one(x)), reals(8, 8))


def test_some_axes_of_a_mesh() -> None:
    """Along others all chips do the same, unless a value is parted there."""
    mesh = AbstractMesh((2, 2), ("x", "y"))
    some = sharded(mesh, (P("x"), P()), P("x"), axis_names={"x"})(lambda x, w: lax.psum(x @ w, "x") + x)
    agrees(some, lambda x, w: x + jnp.tile((x @ w).reshape(2, 4, 8).sum(0), (2, 1)), (reals(8, 8), reals(8, 8)))
    parted = jax.sharding.NamedSharding(mesh, P(None, "y"))
    told = _refused(lambda x, w: some(lax.with_sharding_constraint(x, parted), w), reals(8, 8), reals(8, 8))
    assert "lax.shard_map" in told
    assert "along y XLA decides" in told


def test_explicit_types_of_which_one_product_is_not_known() -> None:
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Explicit,))
    given = [jax.ShapeDtypeStruct((8, 8), np.float32, sharding=jax.sharding.NamedSharding(mesh, P("x", None)))]
    told = _refused(lambda x: jnp.sort(x @ x.T, axis=-1).cumsum(0), *given)
    assert "JAX cannot trace it" in told or "lax." in told


# ---- the command, and JAX on eight devices

FILE = """
import jax
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec as P

MESH = AbstractMesh((2, 4), ("data", "tensor"))


@jax.shard_map(mesh=MESH, in_specs=(P("data"), P(None, "tensor"), P("tensor")), out_specs=P("data"))
def block(x, up, down):
    return lax.psum(jax.nn.relu(x @ up) @ down, "tensor")
"""


def test_the_command_runs_the_share_of_a_chip(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    (tmp_path / "block.py").write_text(FILE)
    random = np.random.default_rng(0)
    x, up, down = (random.standard_normal(shape, np.float32) for shape in ((8, 12), (12, 16), (16, 12)))
    np.savez(tmp_path / "given.npz", x=x, up=up, down=down)
    asked = ["run", f"{tmp_path / 'block.py'}:block", "--slice", "v5e_2x4"]
    ends = ["--input", str(tmp_path / "given.npz"), "--save-outputs", str(tmp_path / "made.npz")]
    result = CliRunner().invoke(cli.app, [*asked, *ends])
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(np.load(tmp_path / "made.npz")["output"], np.maximum(x @ up, 0) @ down, 1e-4, 1e-5)
    result = CliRunner().invoke(cli.app, [*asked, "--shapes", "8x12,12x16,16x12", "--no-check"])
    assert result.exit_code == 0, result.output
    assert "What chips exchange takes" in result.output
    result = CliRunner().invoke(cli.app, [*asked, "--shapes", "8x12,12x16,16x12", "--mesh", "data=8"])
    assert result.exit_code == 2
    assert "says by shard_map what its chips share" in " ".join(result.output.split())


_ON_DEVICES = """
import sys, numpy as np, jax
from tests.network.jax_sharded import SHARED
made = {}
for name, shared in SHARED.items():
    if shared.types:
        continue
    sizes = tuple(many for _, many in shared.axes)
    mesh = jax.make_mesh(sizes, tuple(n for n, _ in shared.axes), axis_types=(jax.sharding.AxisType.Auto,) * len(sizes),
                         devices=jax.devices()[: int(np.prod(sizes))])
    found = jax.jit(shared.build(mesh))(*shared.arguments)
    for at, each in enumerate(jax.tree_util.tree_leaves(found)):
        made[f"{name}.{at}"] = np.asarray(each)
np.savez(sys.argv[1], **made)
"""


@pytest.mark.long
def test_jax_on_eight_devices_has_the_same(tmp_path: Path) -> None:
    """JAX runs the very functions on a mesh of devices of its own."""
    where = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu",
             "PYTHONPATH": str(ROOT)}  # fmt: skip
    file = tmp_path / "made.npz"
    subprocess.run([sys.executable, "-c", _ON_DEVICES, str(file)], env=where, check=True, timeout=600)
    made = np.load(file)
    for name, shared in SHARED.items():
        if shared.types:
            continue
        journey, _ = values_of(share_of(shared.build(shared.mesh()), *shared.arguments), shared.arguments)
        for at, each in enumerate(journey.outputs().values()):
            want = made[f"{name}.{at}"]
            np.testing.assert_allclose(each, want, 1e-4, 1e-5 * max(1.0, float(np.abs(want).max())), err_msg=name)


def test_shares_are_told_apart() -> None:
    """A function without a mesh is no share."""
    work = share_of(lambda x, w: x @ w, reals(4, 4), reals(4, 4))
    assert (work.mesh, work.collectives, work.chips) == ((), (), 1)
    assert isinstance(SHARED["experts"], Shared)
