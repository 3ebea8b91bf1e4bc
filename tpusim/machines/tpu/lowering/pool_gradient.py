"""The gradient of a pooling by the vector unit: each element of the map sums up its share of the windows above it.

A lane has a channel. Elements that are one stride apart have the same windows, shifted by one, and neighbours may lie
under the very same windows. So the elements of a block are of few kinds, and one step computes all elements of a kind.
Elements at edges have fewer windows and steps of their own. Elements that no window sees are zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import product
from math import ceil, prod
from typing import NamedTuple

from tpusim.machines.tpu.cut.blocks import ROW, Block, alike, portions
from tpusim.machines.tpu.cut.geometry import MapAxis
from tpusim.machines.tpu.cut.tiling import Tiling
from tpusim.machines.tpu.cut.traffic import Turn
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.vector import (
    IMAGES_IN_LANES,
    ChannelBlock,
    Maps,
    MapSource,
    VectorUnits,
    draft_of,
    feed,
    least_padded,
    nested,
    tiled,
)
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed
from tpusim.machines.tpu.program.operations import Arity, pace_of
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import Vector
from tpusim.machines.tpu.schedule.units import Moves
from tpusim.machines.tpu.search.search import TOLERANCE
from tpusim.network.ops.op import OFMAP
from tpusim.network.ops.pool2d import Cover, Pool2dGradient


def ways(layer: Pool2dGradient, batch: int, hardware: Hardware) -> list[Draft]:
    """The drafts of an op.

    Raises:
        CapacityError: when nothing fits the vector memories.
    """
    units = partial(_units_of, layer, batch, hardware)
    return [draft_of(units, rank, _explained) for rank in units().ranked]


class Run(NamedTuple):
    """Elements along an axis whose windows are alike: those above the first, moved on by `apart` for each next one."""

    elements: range
    covers: tuple[Cover, ...]
    apart: int


@dataclass(frozen=True)
class CoveredAxis(MapAxis):
    """An axis of a map under windows. Its outputs are the elements of the map, and the grid has a point for each
    window.

    Attributes:
        covers: the windows above each element.
        by_tap: whether windows are alike if their taps are, in place of how many of these count.
    """

    covers: tuple[tuple[Cover, ...], ...] = ()
    by_tap: bool = True

    @cached_property
    def outputs(self) -> int:
        return len(self.covers)

    def stored(self, outputs: range, taps: range) -> range:
        """Windows above some elements, which may be none."""
        above = [each for element in outputs for each in self.covers[element]]
        return range(min(each.output for each in above), max(each.output for each in above) + 1) if above else range(0)

    def most_stored(self, outputs: int) -> int:
        reach = (self.kernel - 1) * self.dilation
        return max(1, min(self.size, (outputs - 1 + reach) // self.stride + 1))

    def coordinates(self, grid: range) -> range:
        return grid

    def read(self, taps: range) -> int:
        return self.size

    def runs(self, elements: range) -> list[Run]:
        """Elements alike: neighbours under the same windows, or elements one stride apart, if these are fewer runs."""
        still = [Run(each, covers, 0) for each, covers in alike(elements, self._seen)]
        apart = list[Run]()
        for phase in range(min(self.stride, len(elements))):
            own = elements[phase :: self.stride]
            for some, _ in alike(range(len(own)), partial(self._moved_back, own)):
                apart.append(Run(own[some.start : some.stop], self.covers[own[some.start]], 1))
        return min(apart, still, key=len)

    def _seen(self, element: int) -> tuple[Cover, ...]:
        """The windows above an element, without the figure that makes no difference: counts, or else taps."""
        nothing = {"counted": 1} if self.by_tap else {"tap": 0}
        return tuple([each._replace(**nothing) for each in self.covers[element]])

    def _moved_back(self, own: range, at: int) -> tuple[Cover, ...]:
        """The windows above element number `at` of some elements a stride apart, moved back to those of the first."""
        return tuple([each._replace(output=each.output - at) for each in self._seen(own[at])])


class _PoolGradient(VectorUnits):
    """The gradient of a pooling, a step for each kind of elements in a block, or a few, where many windows see one.

    Attributes:
        most, above: most windows that a step takes, and that an element has above it.
    """

    kind = "fused"

    close = TOLERANCE
    scalar_words = numbers = 0
    fewest = ()
    """No steps are certain, as elements that no window sees take none."""
    outputs: Maps

    def __init__(
        self, layer: Pool2dGradient, batch: int, hardware: Hardware, tiling: Tiling[int] | None = None
    ) -> None:
        self.layer, self.of_max = layer, layer.kind == "max"
        wide, shapes = hardware.hbm.channel_multiple, layer.shapes(batch)
        # As of the pooling itself, images are in lanes where tiles are less padded so.
        turn = least_padded([Turn(), IMAGES_IN_LANES], shapes[OFMAP], hardware)
        self.turn, self.joins = turn, turn == Turn()

        tensors = [tiled(name, each, wide, turn.lanes) for name, each in shapes.items()]
        *sources, self.ofmap = self.tensors = tuple(tensors)
        self.maps = tuple(map(MapSource, sources))
        axes = [
            CoveredAxis(windows, axis.kernel, axis.stride, axis.ends, axis.dilation, covers=covers, by_tap=self.of_max)
            for windows, axis, covers in zip(shapes["ifmap"][ROW:], layer.axes, layer.covers, strict=False)
        ]
        # Many blocks have the same rows, or the same columns.
        self._down, self._across = (cache(axis.runs) for axis in axes)
        self.above = prod(max(map(len, axis.covers)) for axis in axes)
        room = hardware.vector_unit.scalar_words * hardware.vector_memory.word_elements
        self.most, unit = max(1, room // len(self.maps)), hardware.vector_unit
        # What an element has above it on average.
        mean = ceil(prod(sum(map(len, axis.covers)) / len(axis.covers) for axis in axes))
        name, each = ("chosen_sum", 2) if self.of_max else ("mean", 1)
        counts = [each * len(some) + (some.start > 0) for some in portions(max(1, mean), self.most)]
        self.chain = tuple((count, pace_of(name, Arity(count, 0, 0), (), unit)) for count in counts)
        in_lanes, _, _, in_words = turn.of(shapes[OFMAP])
        super().__init__(Maps(in_words, *axes), in_lanes, hardware, tiling)

    def scalars(self, number: int, base: int) -> Iterator[Moves]:
        """No scalars: a gradient keeps no numbers in lanes."""
        yield from ()

    def steps(self, block: Block) -> int:
        return sum(
            max(1, -(-len(down.covers) * len(across.covers) // self.most)) for down, across in self._kinds(block)
        )

    def _kinds(self, block: Block) -> Iterator[tuple[Run, Run]]:
        return product(self._down(block.rows), self._across(block.cols))

    def work(self, of: ChannelBlock, bases: Sequence[int]) -> Iterator[Vector]:
        """Steps for each kind of elements: the sum of the windows above, or of those whose maximum the element is."""
        block, lanes, groups = of.block, len(of.channels), len(of.block.groups)
        patches, wide = [*self.patches(block, bases[0])], len(block.cols)
        for down, across in self._kinds(block):
            sizes = len(down.elements), len(across.elements), groups
            first = (down.elements.start - block.rows.start) * wide + across.elements.start - block.cols.start
            steps = down.elements.step * wide * groups, across.elements.step * groups, 1
            writes = feed(lanes, nested(bases[2] + first * groups, *zip(sizes, steps, strict=True)))
            covers, body = [*product(down.covers, across.covers)], ceil(prod(sizes) * self.body)
            if not covers:
                # Padding, which is no access: zeros.
                nothing = Counters(bases[2], tuple([Counter(size, 0, 1, 0, 0) for size in sizes]))
                yield Vector((), "copy", (feed(lanes, nothing),), writes, prod(sizes), packed=self.groups, body=body)
            walks = list[Feed]()
            for (row, col), (_, patch, base) in product(covers, patches):
                at = (row.output - patch.rows.start) * len(patch.cols) + col.output - patch.cols.start
                apart = down.apart * len(patch.cols) * groups, across.apart * groups, 1
                walks.append(feed(lanes, nested(base + at * groups, *zip(sizes, apart, strict=True))))
            for some in portions(len(covers), self.most):
                mine = walks[some.start * len(patches) : some.stop * len(patches)]
                operands, last = (*([writes] if some.start else []), *mine), some.stop == len(covers)
                operation, coefficients = self._of(covers, some)
                yield Vector(
                    (), operation, operands, writes, prod(sizes), coefficients=coefficients, packed=self.groups,
                    body=body if last else 0,
                )  # fmt: skip

    def _of(self, covers: Sequence[tuple[Cover, Cover]], some: range) -> tuple[str, tuple[float, ...]]:
        """The operation on some of the windows, and its coefficients: numbers of taps, or shares."""
        own, added = covers[some.start : some.stop], some.stop < len(covers)
        if self.of_max:
            return "chosen_sum", tuple([float(row.tap * self.layer.kernel[1] + col.tap) for row, col in own])
        shares = {1 / (row.counted * col.counted) for row, col in covers}
        if len(shares) == 1:
            return ("add", ()) if added or shares == {1} else ("mean", (*shares,))
        # What comes before is added as it is.
        before = (1.0,) if some.start else ()
        return "combine", (*before, *(1 / (row.counted * col.counted) for row, col in own))


_units_of = lru_cache(maxsize=1 << 10)(_PoolGradient)


def _explained(work: _PoolGradient) -> Explanation:
    sources = " and ".join(each.tensor.name for each in work.maps)
    made = f"the vector unit makes each element of the {sources} of the windows above it"
    beside = ", in which tiles are less padded" if work.turn == IMAGES_IN_LANES else ""
    return work.explained(
        work.layer, made, f"of at most {work.above} windows above an element", ("maps", "scalars"), beside
    )
