"""Networks of which a mesh's chips have their shares: every element is that of the whole network on one chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.covering import covering
from tests.flow.journeys import ENGINE, go
from tests.flow.share_graph import graph_of_share
from tests.strategies import cases
from tpusim import Conv2d, Gemm, Training, Workload, training_step
from tpusim.flow.numbers import numbers_of
from tpusim.flow.shard_values import Shards
from tpusim.flow.values import Journey, checked
from tpusim.network.graph import Placement
from tpusim.network.mesh import Mesh
from tpusim.network.ops import OPS
from tpusim.network.ops.op import Op
from tpusim.network.sharding import placed_share
from tpusim.network.workload import Source
from tpusim.network.workload_file import open_workload, workload_of

MESHES: tuple[dict[str, int], ...] = (
    {"data": 2}, {"fsdp": 2}, {"fsdp": 4}, {"tensor": 2}, {"tensor": 4}, {"data": 2, "tensor": 2},
    {"fsdp": 2, "tensor": 2}, {"data": 2, "fsdp": 2}, {"data": 2, "fsdp": 2, "tensor": 2}, {"tensor": 2, "data": 4},
)  # fmt: skip
MOST_EXACT = 1 << 20
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A seed does not shrink to a smaller network."""
Values = np.ndarray[Any, Any]
Of = Callable[[Mesh], Workload]


@dataclass(frozen=True)
class Entry:
    """A layer of a random network: what it is, and which of its sizes `tensor` parts."""

    op: str
    name: str
    reads: tuple[str, ...]
    sizes: Mapping[str, int]
    parted: tuple[str, ...] = ()

    def layer(self, batch: int, tensor: int) -> Op:
        sizes = {key: size // (tensor if key in self.parted else 1) for key, size in self.sizes.items()}
        if self.op == "gemm":
            return Gemm(self.name, m=batch, **sizes)
        if self.op == "conv2d":
            return Conv2d(self.name, **sizes, padding=sizes["kernel"] // 2)
        made: Op = OPS[self.op](self.name, **sizes)
        return made


def network(seed: int, maps: bool, kernels: tuple[int, ...] = (1, 3)) -> tuple[Of, dict[str, int]]:
    """A random network of products or convolutions, as a mesh's chips have it, and a mesh."""
    random = Random(seed)
    mesh = random.choice(MESHES)
    batch = 8 * random.choice((1, 2)) if not maps else 8
    side = random.choice((2, 3)) if maps else 1
    entries: list[Entry] = []
    channels = {"input": random.choice((4, 8))}
    parted = {"input": False}
    now = "input"

    def add(
        op: str, reads: tuple[str, ...], many: int, is_parted: bool, sizes: dict[str, int], by: tuple[str, ...]
    ) -> None:
        nonlocal now
        name = f"{op}{len(entries)}"
        entries.append(Entry(op, name, reads, sizes, by))
        now, channels[name], parted[name] = name, many, is_parted

    def multiply() -> None:
        many, ins = random.choice((4, 8, 12)), channels[now]
        over = not parted[now] and random.random() < 0.6
        by = ("in",) if parted[now] else ("out",) if over else ()
        if maps:
            sizes = {"in_channels": ins, "in_height": side, "in_width": side, "out_channels": many,
                     "kernel": random.choice(kernels)}  # fmt: skip
            add("conv2d", (now,), many, over, sizes, tuple(f"{each}_channels" for each in by))
        else:
            add("gemm", (now,), many, over, {"k": ins, "n": many}, tuple({"in": "k", "out": "n"}[each] for each in by))

    multiply()
    for _ in range(random.randint(1, 5)):
        sizes = {"channels": channels[now], "height": side, "width": side}
        by = ("channels",) if parted[now] else ()
        kind = random.choice(("multiply", "multiply", "relu", "add"))
        alike = [each for each in channels if each not in (now, "input") and channels[each] == channels[now]]
        if kind == "multiply":
            multiply()
        elif kind == "relu":
            # A map that all chips have may be parted from here on.
            parts = not by and random.random() < 0.3
            add("relu", (now,), channels[now], bool(by) or parts, sizes, by or (("channels",) if parts else ()))
        elif alike:
            other = random.choice(alike)
            # Of what all chips have, or have parts of sums of, each may add up a part.
            both = (parted[now] and parted[other]) or random.random() < 0.3
            add("add", (now, other), channels[now], both, sizes, ("channels",) if both else ())

    # What chips have in the end is read by nobody else.
    multiply()

    def of(mesh: Mesh) -> Workload:
        own = batch // prod(mesh.get(axis, 1) for axis in ("data", "fsdp"))
        layers = [each.layer(own, mesh.get("tensor", 1)) for each in entries]
        edges = {each.name: tuple(Source((read,)) for read in each.reads) for each in entries}
        return Workload("random", own, layers, edges=tuple(edges.items()), mesh=tuple(mesh.items()))

    return of, mesh


def trained(of: Of) -> Of:
    """The training step of a network, whose numbers stay whole."""
    return lambda mesh: training_step(of(mesh), Training(rate=1.0, momentum=0.0))


def run(
    work: Workload,
    places: Mapping[str, Placement],
    inputs: Callable[[str, tuple[int, ...]], Values],
    engine: str = ENGINE,
) -> dict[str, Values]:
    graph = graph_of_share(work, places=places)
    whole = Shards(graph.mesh).whole
    given = {name: inputs(name, whole(each.shape, graph.places.get(name, ()))) for name, each in graph.inputs.items()}
    journey = Journey(graph, work, checked(graph, given, work.batch), numbers_of("f32", "any"))
    go(journey, work, engine)
    return journey.outputs()


def drawn(seed: int, name: str, shape: tuple[int, ...]) -> Values:
    """Whole numbers that follow from the name of the value: weights that are gathered have the name of the layer's."""
    if name.endswith(".all_gather.operand"):
        reader, tensor = name.removesuffix(".all_gather.operand").rsplit(".", 1)
        name = f"{reader.split('.')[0]}.{tensor}"
        if reader.endswith(".dx"):
            # Gradients by the input read weights with inputs and outputs exchanged.
            turned: Values = drawn(seed, name, (shape[3], *shape[1:3], shape[0])).swapaxes(0, 3)
            return turned
    random = np.random.default_rng([seed, *name.encode()])
    return random.integers(-1, 2, shape).astype(np.float32)


def agrees(seed: int, maps: bool, engine: str = ENGINE, training: bool = False) -> None:
    # Gradients of convolutions of one tap read rows of pixels, of which a chip has no even part.
    plain, mesh = network(seed, maps, (3,) if training else (1, 3))
    of = trained(plain) if training else plain
    values = partial(drawn, seed)
    whole = run(of({}), {}, values)
    if max((np.abs(each).max(initial=0) for each in whole.values()), default=0) > MOST_EXACT:
        return
    work, places = placed_share(of, mesh)
    parts = run(work, places, values, engine)
    ends = {name.removesuffix(".all_reduce"): each for name, each in parts.items()}
    for name, each in whole.items():
        assert np.array_equal(ends[name], each), name


@settings(max_examples=cases(0.12), deadline=None, phases=PHASES)
@given(st.integers(0, 2**32), st.booleans())
def test_values_of_a_share_are_those_of_the_whole(seed: int, maps: bool) -> None:
    agrees(seed, maps)


@settings(max_examples=cases(0.03), deadline=None, phases=PHASES)
@given(st.integers(0, 2**32), st.booleans())
def test_values_of_a_share_are_those_of_the_whole_in_all_engines(seed: int, maps: bool) -> None:
    agrees(seed, maps, "both")


@settings(max_examples=cases(0.06), deadline=None, phases=PHASES)
@given(st.integers(0, 2**32))
@example(48).via("two chips, and two readers that take the same half of a map")
def test_weights_after_a_step_are_those_of_the_whole(seed: int) -> None:
    agrees(seed, True, training=True)


# ---- other ops, between products or convolutions of which a chip has a part

_ROWS = "{name: first, inputs: [input], op: gemm, m: batch, k: 8, n: 8, shard: {n: tensor}}"
_MAPS = """{name: first, inputs: [input], op: conv2d, in_channels: 8, in_height: 4, in_width: 4, out_channels: 8,
            kernel: 3, padding: 1, shard: {out_channels: tensor}}"""
_BETWEEN = {
    _ROWS: ["softmax", "rms_norm", "layer_norm", "swiglu", "sigmoid", "copy", "scale_shift"],
    _MAPS: ["pool2d, kind: max, kernel: 3, stride: 2, padding: 1", "pool2d, kind: average, kernel: 2, stride: 2",
            "upsample", "pad, padding: 1", "conv_transpose2d, out_channels: 8, kernel: 2, stride: 2", "prelu"],
}  # fmt: skip


WITH_TENSOR: list[dict[str, int]] = [{"tensor": 2}, {"fsdp": 2, "tensor": 2}]


@pytest.mark.parametrize(
    ("op", "mesh"),
    covering(1, [(first, each) for first, several in _BETWEEN.items() for each in several], WITH_TENSOR),
)
def test_values_behind_ops_between(tmp_path: Path, op: tuple[str, str], mesh: dict[str, int]) -> None:
    first, between = op
    last = "gemm, n: 4" if first is _ROWS else "conv2d, out_channels: 4, kernel: 1"
    path = tmp_path / "net.yaml"
    path.write_text(f"name: net\nlayers:\n  - {first}\n  - {{name: other, op: {between}}}\n"
                    f"  - {{name: last, op: {last}}}\n")  # fmt: skip
    document = open_workload(path)

    def of(mesh: Mesh) -> Workload:
        return workload_of(document.override("mesh", dict(mesh), ("mesh", 0)), 8)

    values = partial(drawn, 1)
    whole = run(of({}), {}, values)
    parts = run(*placed_share(of, mesh), values)
    (made,), (wanted,) = parts.values(), whole.values()
    assert np.allclose(made, wanted, rtol=1e-3, atol=1e-3)
