"""Networks parted among chips: every element of every chip is that of the whole network on one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.journeys import ENGINE, REFERENCE, by_reference
from tests.flow.share_graph import graph_of_share
from tests.strategies import cases
from tpusim import Conv2d, Gemm, Workload, load_hardware, simulate
from tpusim.flow.jobs import resolve
from tpusim.flow.numbers import numbers_of
from tpusim.flow.shard_values import Shards
from tpusim.flow.values import Journey, checked
from tpusim.network.graph import Placement, ValueExchange, after
from tpusim.network.ops import OPS
from tpusim.network.ops.op import Op
from tpusim.network.workload import CollectiveLayer, Source
from tpusim.result.records import Result

MESHES = (
    (("x", 2),), (("x", 3),), (("x", 4),), (("x", 8),), (("x", 2), ("y", 2)), (("x", 2), ("y", 4)),
    (("y", 3), ("x", 2)), (("x", 1), ("y", 2)),
)  # fmt: skip
MOST_LAYERS = 6
CHANNELS, ROWS, COLS, IMAGES = range(4)
MOST_EXACT = 1 << 22
Values = np.ndarray[Any, Any]


def values_of(
    share: Share, engine: str = "event", changes: Sequence[str] = (), machine: str = "tiny_4x4"
) -> tuple[Journey, Result]:
    hardware = load_hardware(machine, list(changes))
    work = resolve(share.work(), hardware, dtype="f32").work
    journey = journey_of(share, work)
    return journey, simulate(work, hardware, dtype="f32", engine=engine, journey=journey)


def journey_of(share: Share, work: Workload) -> Journey:
    graph = graph_of_share(share.work(), share.exchanges, share.places)
    return Journey(graph, work, checked(graph, share.inputs, work.batch), numbers_of("f32", "any"))


class Share:
    """A network on whole arrays, and the share of it that each chip has, step by step: of the value `now` the whole,
    and how it lies.
    """

    def __init__(self, mesh: tuple[tuple[str, int], ...], random: Random) -> None:
        self.mesh, self.shards, self.random = mesh, Shards(mesh), random
        self.layers: list[Op] = []
        self.collectives: list[CollectiveLayer] = []
        self.exchanges: dict[str, ValueExchange] = {}
        self.places: dict[str, Placement] = {}
        self.inputs: dict[str, Values] = {}
        self.edges: dict[str, tuple[Source, ...]] = {}
        self.name = "input"
        self.images = self.axes(most=1)
        n = self.shards.chips * random.choice((1, 2))
        shape = (self.shards.chips * random.choice((1, 2)), 1, 1, n)
        if random.random() < 0.3:
            shape = (shape[0], random.choice((2, 3)), 3, n)
        self.whole = self.given("input", shape, ((), (), (), self.images))
        self.place: list[tuple[str, ...]] = [(), (), (), self.images]
        self.batch = self.local()[IMAGES]

    def axes(self, most: int = 2) -> tuple[str, ...]:
        names = [name for name, _ in self.mesh]
        return tuple(self.random.sample(names, self.random.randint(0, min(most, len(names)))))

    def free(self) -> tuple[str, ...]:
        """Draw axes along which all chips have the same."""
        used = {name for axes in self.place for name in axes}
        return tuple(each for each in self.axes() if each not in used)

    def given(self, name: str, shape: Sequence[int], place: Placement) -> Values:
        made = np.array([self.random.choice((-2, -1, 0, 1, 2)) for _ in range(prod(shape))], np.float32).reshape(shape)
        self.inputs[name], self.places[name] = made, place
        return made

    def local(self, place: Sequence[tuple[str, ...]] = ()) -> tuple[int, ...]:
        return tuple(size // self.shards.along(axes)
                     for size, axes in zip(self.whole.shape, place or self.place, strict=True))  # fmt: skip

    def work(self) -> Workload:
        return Workload("share", self.batch, self.layers, edges=tuple(self.edges.items()), mesh=self.mesh,
                        collectives=tuple(self.collectives), chips=self.shards.chips)  # fmt: skip

    # ---- steps

    def layer(self, op: Op, whole: Values, *others: str) -> None:
        self.layers.append(op)
        self.edges[op.name] = tuple(Source((each,) if each else ()) for each in (self.name, *others))
        self.name, self.whole = op.name, whole

    def exchange(self, exchange: ValueExchange, whole: Values) -> None:
        name, local = f"{exchange.op}{len(self.collectives)}", self.local()
        elements = prod(
            local if exchange.op != "all_gather" else after(exchange, local, self.shards.along(exchange.over))
        )
        self.collectives.append(CollectiveLayer(name, exchange.op, elements, exchange.over, (self.name,), ()))
        self.exchanges[name], self.name, self.whole = exchange, name, whole

    def product(self) -> None:
        """Multiply by a matrix, or go over a map by a window; weights lie whole, by outputs, or by what is summed."""
        number, summed = len(self.layers), self.place[CHANNELS]
        maps = prod(self.whole.shape[1:3]) > 1
        if maps and self.local()[IMAGES] != self.batch:
            # Convolutions go over the images of the batch.
            return
        used = {name for axes in self.place for name in axes}
        split = () if summed else tuple(each for each in self.axes() if each not in used)
        outputs = self.shards.chips * self.random.choice((1, 2))
        k = self.random.choice((1, 3)) if maps else 1
        weights = (outputs, k, k, self.whole.shape[0])
        own, other = (f"p{number}.filter", "")
        gathered = self.free() if self.random.random() < 0.4 else ()
        gathered = tuple(each for each in gathered if each not in (*split, *summed))
        if gathered and self.whole.shape[0] // self.shards.along(summed) % self.shards.along(gathered) == 0:
            # Weights lie in parts, and are gathered.
            other = f"weights{number}"
            own = f"{other}.operand"
            place: Placement = (split, (), (), (*summed, *gathered))
            local = (outputs // self.shards.along(split), k, k, self.whole.shape[0] // self.shards.along(summed))
            self.collectives.append(CollectiveLayer(other, "all_gather", prod(local), gathered, (), (), True))
            self.exchanges[other] = ValueExchange("all_gather", gathered, axis=3)
        else:
            place = (split, (), (), summed)
        w = self.given(own, weights, place)
        if not gathered or not other:
            self.places[own] = place
        channels, images = self.local()[CHANNELS], self.local()[IMAGES]
        made = outputs // self.shards.along(split)
        if maps:
            rows, cols = self.whole.shape[1:3]
            op: Op = Conv2d(f"p{number}", in_channels=channels, in_height=rows, in_width=cols, out_channels=made,
                            kernel=k, padding=k // 2)  # fmt: skip
        else:
            op = Gemm(f"p{number}", m=images, n=made, k=channels)
        self.layer(op, convolved(self.whole, w, k // 2), other)
        self.place[CHANNELS] = split
        if not summed:
            return
        # Each chip has a part of the sum.
        axis = self.random.choice((None, CHANNELS, IMAGES))
        if axis is not None and self.local()[axis] % self.shards.along(summed) == 0:
            self.exchange(ValueExchange("reduce_scatter", summed, axis), self.whole)
            self.place[axis] = (*self.place[axis], *summed)
        else:
            self.exchange(ValueExchange("all_reduce", summed), self.whole)

    def pointwise(self) -> None:
        channels, rows, cols, images = self.local()
        sizes = {"channels": channels, "height": rows, "width": cols, "images": images}
        number = len(self.layers)
        if self.random.random() < 0.5:
            self.layer(OPS["relu"](f"r{number}", **sizes), np.maximum(self.whole, 0))
        else:
            other = self.given(f"a{number}.other", self.whole.shape, tuple(self.place))
            self.layer(OPS["add"](f"a{number}", **sizes), self.whole + other, "")

    def moved(self) -> None:
        """Gather an axis, exchange two, or send parts round."""
        parted = [axis for axis in (CHANNELS, IMAGES) if self.place[axis]]
        if not parted:
            return
        axis = self.random.choice(parted)
        *left, last = self.place[axis]
        to = CHANNELS + IMAGES - axis
        kind = self.random.choice(("all_gather", "all_to_all", "permute"))
        if kind == "all_gather":
            self.exchange(ValueExchange(kind, (last,), axis), self.whole)
            self.place[axis] = tuple(left)
        elif kind == "all_to_all" and self.local()[to] % self.shards.along((last,)) == 0:
            self.exchange(ValueExchange(kind, (last,), to, axis), self.whole)
            self.place[axis], self.place[to] = tuple(left), (*self.place[to], last)
        elif kind == "permute" and not left:
            parts = np.split(self.whole, self.shards.along((last,)), axis)
            if self.random.random() < 0.5:
                self.exchange(ValueExchange(kind, (last,)), np.concatenate([parts[-1], *parts[:-1]], axis))
            else:
                pairs = tuple((rank + 1, rank) for rank in range(len(parts) - 1))
                ends = np.concatenate([*parts[1:], np.zeros_like(parts[0])], axis)
                self.exchange(ValueExchange(kind, (last,), pairs=pairs), ends)


def convolved(maps: Values, weights: Values, pad: int) -> Values:
    """A convolution of whole numbers, tap by tap."""
    rows, cols = maps.shape[1:3]
    wide = np.pad(maps.astype(np.int64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    k = weights.shape[1]
    taps = ((i, j, wide[:, i : i + rows, j : j + cols]) for i in range(k) for j in range(k))
    return sum(np.einsum("oc,chwn->ohwn", weights[:, i, j].astype(np.int64), part) for i, j, part in taps).astype(
        np.float32
    )


def random_share(seed: int) -> Share:
    random = Random(seed)
    share = Share(random.choice(MESHES), random)
    share.product()
    for _ in range(random.randint(1, MOST_LAYERS)):
        if np.abs(share.whole).max() * 4 * share.whole.shape[0] * 9 > MOST_EXACT:
            break
        random.choice((share.product, share.product, share.pointwise, share.moved, share.moved))()
    share.places[share.name] = tuple(share.place)
    return share


def agrees(seed: int, engine: str) -> None:
    share = random_share(seed)
    random = Random(seed + 1)
    changes = [f"array.rows={random.choice((2, 4, 7))}", f"array.cols={random.choice((3, 4, 8))}"]
    if engine == REFERENCE:
        journey = journey_of(share, share.work())
        by_reference(journey, share.work())
    else:
        journey, result = values_of(share, engine, changes)
        assert result.correct
        assert result.total.outputs_checked == result.total.outputs
    assert np.array_equal(journey.outputs()[share.name], share.whole)
    parts = share.shards.cut(share.whole, tuple(share.place))
    for own, part in zip(journey.shards(), parts, strict=True):
        assert np.array_equal(own[share.name], part)


@settings(max_examples=cases(0.5), deadline=None)
@given(st.integers(0, 2**32))
def test_random_shares(seed: int) -> None:
    agrees(seed, ENGINE)


@settings(max_examples=cases(0.1), deadline=None)
@given(st.integers(0, 2**32))
def test_random_shares_in_all_engines(seed: int) -> None:
    agrees(seed, "both")
