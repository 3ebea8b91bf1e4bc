"""What the vector unit does by itself, as units: portion by portion of the channels, and block by block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import Block
from tpusim.machines.tpu.lowering.tiling import Tiling
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
    one_ahead,
)

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

    @abstractmethod
    def results(self, of: Portion, base: int) -> Moves:
        """What goes to HBM."""

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
        return Policy(("scalars", "maps"), one_ahead)

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

    def spill(self, unit: Unit, base: int) -> Moves:
        return self.results(unit.about, base)
