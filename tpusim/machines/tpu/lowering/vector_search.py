"""Choose the blocks of what the vector unit does by itself: the cheapest that fit, by their estimate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import ClassVar

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import InStrips
from tpusim.machines.tpu.lowering.schedule import halves
from tpusim.machines.tpu.lowering.tiling import Tiling, given_outputs, too_small, word_groups
from tpusim.memory.layout import whole_bursts


@dataclass(frozen=True)
class VectorCosts(ABC):
    """What blocks take of memory, and about how long."""

    hardware: Hardware

    close: ClassVar[float] = 0.0

    @property
    @abstractmethod
    def outputs(self) -> InStrips:
        """The outputs of the layer, as blocks cut them."""

    @property
    @abstractmethod
    def portions(self) -> int:
        """Portions of the channels."""

    @abstractmethod
    def map_words(self, rows: int, cols: int, groups: int) -> int:
        """Words that a block of so many rows, columns and word groups reads of all maps, at most."""

    @property
    @abstractmethod
    def scalar_words(self) -> int:
        """Words that a lane keeps of its own factors."""

    @abstractmethod
    def worked(self, tiling: Tiling[int]) -> tuple[float, int]:
        """Cycles of the vector unit for a block and portion, and those of the port that are its own."""

    @abstractmethod
    def moved(self, tiling: Tiling[int]) -> tuple[float, float]:
        """Cycles of the bus for a block and portion: into the chip, and out."""

    @cached_property
    def word_groups(self) -> tuple[int, int]:
        """Words of a pixel, and elements used of each."""
        return word_groups(self.outputs.word_images, self.hardware.vector_memory.word_elements)

    @property
    def chunks(self) -> tuple[int, int]:
        """The chunks of taps, and of folds, that a Plan of a convolution asks for; there are no passes."""
        return 1, 1

    def tiling(self, rows: int, cols: int, groups: int) -> Tiling[int]:
        """With two buffers of each kind, where there is a second use of them."""
        blocks, (taps, folds) = self.blocks(rows, cols, groups), self.chunks
        buffers = min(2, blocks * self.portions)
        return Tiling(
            rows=rows,
            cols=cols,
            groups=groups,
            span=0,
            blocks=blocks,
            loop_order="filter_major",
            kept_folds=1,
            chunk_taps=taps,
            chunk_folds=folds,
            section_passes=taps * folds,
            ifmap_buffers=buffers,
            filter_buffers=min(2, self.portions),
            psum_buffers=buffers,
            ifmap_words=self.map_words(rows, cols, groups),
            section_words=self.scalar_words,
            psum_words=rows * cols * groups,
            lag=1,
        )

    def chosen(self) -> Tiling[int]:
        """The cheapest that fits; of those `close` to it, the one with the largest block.

        Raises:
            CapacityError: when not even a block of one output word fits; says how much memory would do.
        """
        every = [self.tiling(*sizes) for sizes in self._sizes()]
        fitting = [each for each in every if each.words <= self.hardware.capacity_words]
        if not fitting:
            raise too_small(min(each.words for each in every), self.hardware)
        costs = [*map(self.cycles, fitting)]
        near = (each for each, cost in zip(fitting, costs, strict=True) if cost <= min(costs) * (1 + self.close))
        return max(near, key=lambda each: each.psum_words)

    def cycles(self, tiling: Tiling[int]) -> float:
        """Block after block the longest of vector unit, bus and port; what comes first and goes last, nothing hides."""
        (worked, read), moved = self.worked(tiling), sum(self.moved(tiling))
        port = read + tiling.ifmap_words + tiling.psum_words
        units = tiling.blocks * self.portions
        return units * max(worked, moved, port) + moved + 2 * self.hardware.latency_cycles

    def blocks(self, rows: int, cols: int, groups: int) -> int:
        """How many there are of that size."""
        extents = zip(self._extents, (rows, cols, groups), strict=True)
        return prod(-(-extent // size) for extent, size in extents)

    def map_cycles(self, words: int, groups: int, channels: int, conversion: float) -> float:
        """Cycles of the bus for so many words of as many lanes as there are `channels`, `groups` to a pixel."""
        (every, fill), memory = self.word_groups, self.hardware.vector_memory
        # Images of a channel lie side by side; where a block has all of them, so do its channels.
        run, runs = groups * fill * memory.element_bytes, words // groups * channels
        if groups == every:
            run, runs = run * channels, words // groups
        size = runs * whole_bursts(run, self.hardware.hbm.burst_bytes)
        return max(size / float(self.hardware.hbm_bytes_per_cycle), words * conversion)

    @property
    def _extents(self) -> tuple[int, int, int]:
        return self.outputs.row.extent, self.outputs.col.extent, self.word_groups[0]

    def _sizes(self) -> Iterator[tuple[int, int, int]]:
        """Extents of blocks to try: rows, columns, word groups."""
        given = given_outputs(self.outputs, self.hardware)
        wanted = zip(given, self._extents, strict=True)
        yield from product(*([size] if size else halves(extent) for size, extent in wanted))
