"""What the vector unit does by itself: the cheapest blocks that fit; as units, portion by portion of the channels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from math import prod
from typing import ClassVar, NamedTuple

from tpusim.machines.tpu.cut import pace
from tpusim.machines.tpu.cut.geometry import InStrips
from tpusim.machines.tpu.cut.pace import Demand, step
from tpusim.machines.tpu.cut.plan import Block, halves
from tpusim.machines.tpu.cut.tiling import Tiling, fitting, given_outputs, word_groups
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.schedule.units import (
    Area,
    Compute,
    Moves,
    Need,
    Piece,
    Policy,
    Touch,
    Unit,
    Units,
    Work,
    one_ahead_if_free,
)
from tpusim.memory.layout import whole_bursts


@dataclass(frozen=True, kw_only=True)
class VectorCosts:
    """What blocks take of memory, and about how long.

    Attributes:
        outputs: the outputs of the layer, as blocks cut them.
        portions: portions of the channels; `channels`: lanes that a result takes, `into`: those of each map.
        scalar_words: words that a lane keeps of its own factors.
        steps: operands and operations of each step that makes a word of results.
        chunks: those of taps, and of folds, that a Plan of a convolution asks for; there are no passes.
    """

    hardware: Hardware
    outputs: InStrips
    portions: int
    channels: int
    into: tuple[int, ...]
    scalar_words: int
    steps: tuple[tuple[int, int], ...]
    chunks: tuple[int, int] = (1, 1)

    close: ClassVar[float] = 0.0

    def map_words(self, rows: int, cols: int, groups: int) -> list[int]:
        """Words that a block reads of each map at most."""
        return [self.outputs.row.most_stored(rows) * self.outputs.col.most_stored(cols) * groups]

    def readied(self, tiling: Tiling[int]) -> int:
        """Words of a block that are made ready."""
        return tiling.ifmap_words

    @cached_property
    def word_groups(self) -> tuple[int, int]:
        """Words of a pixel, and elements used of each."""
        return word_groups(self.outputs.word_images, self.hardware.vector_memory.word_elements)

    def tiling(self, rows: int, cols: int, groups: int) -> Tiling[int]:
        """With two buffers of each kind, where there is a second use of them."""
        extents = zip(self._extents, (rows, cols, groups), strict=True)
        blocks, (taps, folds) = prod(-(-extent // size) for extent, size in extents), self.chunks
        buffers = min(2, blocks * self.portions)
        return Tiling(
            rows, cols, groups, span=0, blocks=blocks, loop_order="filter_major", kept_folds=1,
            chunk_taps=taps, chunk_folds=folds, section_passes=taps * folds,
            ifmap_buffers=buffers, filter_buffers=min(2, self.portions), psum_buffers=buffers,
            ifmap_words=sum(self.map_words(rows, cols, groups)), section_words=self.scalar_words,
            psum_words=rows * cols * groups, lag=1,
        )  # fmt: skip

    def chosen(self) -> Tiling[int]:
        """The cheapest that fits; of those `close` to it, the one with the largest block.

        Raises:
            CapacityError: when not even a block of one output word fits; says how much memory would do.
        """
        wanted = zip(given_outputs(self.outputs, self.hardware), self._extents, strict=True)
        sizes = product(*([size] if size else halves(extent) for size, extent in wanted))
        every = (self.tiling(*each) for each in sizes)
        costs = [(self.cycles(each), each) for each in fitting(every, lambda tiling: tiling.words, self.hardware)]
        most = min(cost for cost, _ in costs) * (1 + self.close)
        return max((each for cost, each in costs if cost <= most), key=lambda each: each.psum_words)

    def cycles(self, tiling: Tiling[int]) -> float:
        """Block after block the longest of vector unit, bus and port; what comes first and goes last, nothing hides."""
        work, (filled, spilled) = self.work(tiling), self.moved(tiling)
        moved, units = filled + spilled, tiling.blocks * self.portions
        return float(units * (work + Demand(bus=moved)).busiest + moved + 2 * self.hardware.latency_cycles)

    def work(self, tiling: Tiling[int]) -> Demand:
        """A block and portion: what the vector unit does, and all words that go through the port."""
        port = tiling.ifmap_words + tiling.psum_words
        begun = Demand(cycles=pace.delay_of(self.readied(tiling), self.hardware), port=port)
        fill = self.word_groups[1]
        return sum((step(tiling.psum_words, *each, fill, self.hardware) for each in self.steps), begun)

    def moved(self, tiling: Tiling[int]) -> tuple[float, float]:
        """Cycles of the bus for a block and portion: into the chip, and out."""
        unit, maps = self.hardware.vector_unit, self.map_words(tiling.rows, tiling.cols, tiling.groups)
        filled = (
            self._transfer(words, tiling.groups, into, float(unit.unpack_cycles))
            for words, into in zip(maps, self.into, strict=True)
        )
        spilled = self._transfer(tiling.psum_words, tiling.groups, self.channels, float(unit.pack_cycles))
        return sum(each.busiest for each in filled), spilled.busiest

    def _transfer(self, words: int, groups: int, channels: int, conversion: float) -> Demand:
        """A transfer of `words` of as many lanes as there are `channels`, `groups` to a pixel."""
        (every, fill), memory = self.word_groups, self.hardware.vector_memory
        # Images of a channel lie side by side; where a block has all of them, so do its channels.
        run, runs = groups * fill * memory.element_bytes, words // groups * channels
        if groups == every:
            run, runs = run * channels, words // groups
        size = runs * whole_bursts(run, self.hardware.hbm.burst_bytes)
        return Demand(bus=size / float(self.hardware.hbm_bytes_per_cycle), converted=words * conversion)

    @property
    def _extents(self) -> tuple[int, int, int]:
        return self.outputs.row.extent, self.outputs.col.extent, self.word_groups[0]


# ---- as units


IGNORED = frozenset({
    "transformation", "k_order", "patch", "search", "multi_tile", "loop_order", "chunks", "loads", "fetch", "layout",
    "row_windows", "transposed_channels", "column_folds", "entry", "block_m", "block_k", "block.in_channels",
    "block.taps",
})  # fmt: skip
"""Fields below `mapping` that mean nothing to work of the vector unit."""


def in_turn(base: int, words: int, apart: int = 1) -> Counters:
    """Words of a lane, each `apart` from the one before."""
    return Counters(base, (Counter(words, 0, 1, words, apart),))


def feed(lanes: int, pattern: Counters) -> Feed:
    """A pattern for all of the first `lanes` lanes."""
    return Feed((LaneGroup(0, lanes, pattern),))


class Portion(NamedTuple):
    """What is worked on at a time: a block of some channels, one a lane."""

    channels: range
    block: Block


class VectorUnits(Units):
    """Maps and scalars come, the vector unit works on them, results go; a block comes while the one ahead is worked on.

    Attributes:
        tiling: ifmap buffers hold what comes of all maps, filter buffers scalars.
        portions: the channels, as many at a time as there are lanes.
        tensors: the first of them is the map.
        sources, numbers: transfers that bring a block's maps, and a portion's scalars.
    """

    hardware: Hardware
    tiling: Tiling[int]
    portions: list[range]
    blocks: list[Block]
    sources: int = 1
    numbers: int = 1

    @abstractmethod
    def scalars(self, channels: range, base: int) -> Iterable[Moves]:
        """Numbers, of which each lane keeps its own, from word `base` on."""

    @abstractmethod
    def maps(self, of: Portion, base: int) -> Iterable[Moves]:
        """What is needed of the maps, from word `base` on; nothing where all is padding."""

    @abstractmethod
    def delay(self, block: Block) -> int:
        """What comes before a block: its turn of the loop, and its words made ready."""

    @abstractmethod
    def work(self, of: Portion, bases: Sequence[int]) -> Sequence[Compute]:
        """What the vector unit does with maps, scalars and results at `bases`."""

    @abstractmethod
    def steps(self, block: Block) -> int:
        """How many steps that is."""

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """Maps, scalars, results."""
        (maps, scalars, results), lanes = self.tiling.buffers, len(self.portions[0])

        def brought(of: Portion, gaps: int, grows: bool) -> list[Piece]:
            return [Piece(0, (0,), partial(self.maps, of), steps=self.sources)]

        def kept(number: int, gaps: int, grows: bool) -> list[Piece]:
            return [Piece(0, (0,), partial(self.scalars, self.portions[number]), steps=self.numbers)]

        return (
            Area("maps", self.tensors[0].name, *maps, lanes, brought, lambda of: self.delay(of.block)),
            Area("scalars", "filter", *scalars, lanes, kept),
            Area("results", "ofmap", *results, lanes),
        )

    @cached_property
    def policy(self) -> Policy:
        """Scalars ahead of maps."""
        return Policy(("scalars", "maps"), one_ahead_if_free)

    def units(self) -> Iterator[Unit]:
        steps = [self.steps(block) for block in self.blocks]
        for number, channels in enumerate(self.portions):
            for block, count in zip(self.blocks, steps, strict=True):
                of = Portion(channels, block)
                needs = Need("maps", of), Need("scalars", number), Need("results", of)
                yield Unit(needs, None, of, steps=count, leaves=2)

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Work]:
        yield Work(self.work(unit.about, bases), (Touch(0), Touch(1)), 2, True)

    def channels(self, unit: Unit) -> tuple[int, ...]:
        return tuple(unit.about.channels)
