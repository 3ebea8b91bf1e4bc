"""Write down what the vector unit does by itself: portion by portion of the channels, and block by block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import NamedTuple

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import Block
from tpusim.machines.tpu.lowering.tiling import Tiling
from tpusim.machines.tpu.lowering.traffic import Moved
from tpusim.machines.tpu.program.addresses import Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.step import Step
from tpusim.machines.tpu.program.tensor import Part, Tensor
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.machines.tpu.program.vector import Vector
from tpusim.memory.layout import Region


def feed(lanes: int, pattern: Counters) -> Feed:
    """One pattern for so many lanes."""
    return Feed((LaneGroup(0, lanes, pattern),))


class Load(NamedTuple):
    """What a transfer moves; `regions` None: just the elements of the part."""

    tensor: Tensor
    part: Part
    hbm_bytes: int
    regions: tuple[Region, ...] | None = None

    @classmethod
    def of(cls, tensor: Tensor, part: Part, moved: Moved) -> Load:
        """The load of a part of a map."""
        return cls(tensor, part, moved.bytes, moved.regions)


class Unit(NamedTuple):
    """What is worked on at a time: a block of a portion of the channels, one a lane."""

    portion: range
    block: Block


class VectorWork(ABC):
    """A layer as the emitter wants it; the vector memory has buffers of maps, of scalars and of results, in this order.

    Attributes:
        tiling: its blocks and buffers: ifmap buffers hold what comes of all maps, filter buffers scalars.
        portions: the channels, as many at a time as there are lanes.
        word_fill: elements of a word in use.
    """

    hardware: Hardware
    tiling: Tiling[int]

    @property
    @abstractmethod
    def portions(self) -> list[range]: ...

    @property
    @abstractmethod
    def blocks(self) -> list[Block]: ...

    @property
    @abstractmethod
    def word_fill(self) -> int: ...

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """All that lie in HBM."""

    @abstractmethod
    def scalars(self, portion: range, base: int) -> list[Load]:
        """What each lane of a portion keeps a number of, from word `base` on."""

    @abstractmethod
    def maps(self, unit: Unit, base: int) -> list[Load]:
        """What a unit needs of the maps, from word `base` on; nothing where all is padding."""

    @abstractmethod
    def work(self, unit: Unit, bases: tuple[int, int, int]) -> list[Vector]:
        """What the vector unit does with maps, scalars and results at `bases`; when it may, the emitter knows."""

    @abstractmethod
    def results(self, unit: Unit, base: int) -> Load:
        """What goes to HBM."""


class VectorEmitter:
    """The block behind is filled while the vector unit works on one."""

    def __init__(self, work: VectorWork) -> None:
        self.by, self.tiling = work, work.tiling
        self.steps: list[Step] = []
        self.units = [Unit(portion, block) for portion in work.portions for block in work.blocks]
        self.filled: list[tuple[int, ...]] = []
        self.scalars: dict[int, tuple[int, ...]] = {}
        self.worked: list[int] = []
        self.spills: list[int] = []

    def program(self) -> Program:
        """The whole layer."""
        for number in range(len(self.units)):
            for ahead in range(len(self.filled), min(number + 2, len(self.units))):
                self._fill(ahead)
            self._work(number)
            self._spill(number)
        return Program(self.by.tensors, self._buffers(), tuple(self.steps), self.by.word_fill)

    def _buffers(self) -> tuple[Buffer, ...]:
        tiling, lanes = self.tiling, len(self.by.portions[0])
        sizes = {
            self.by.tensors[0].name: (0, tiling.ifmap_buffers * tiling.ifmap_words),
            "filter": (self._scalars(0), tiling.filter_buffers * tiling.section_words),
            "ofmap": (self._results(0), tiling.psum_buffers * tiling.psum_words),
        }
        return tuple(Buffer(name, base, words, lanes) for name, (base, words) in sizes.items() if words)

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def _freed(self, number: int, steps: list[int]) -> tuple[int, ...]:
        """What last used the buffers of a unit."""
        before = number - self.tiling.ifmap_buffers
        return (steps[before],) if before >= 0 else ()

    def _portion(self, number: int) -> int:
        return number // len(self.by.blocks)

    def _fill(self, number: int) -> None:
        """The scalars of a portion before its first block; what a block needs of the maps."""
        portion = self._portion(number)
        if portion not in self.scalars:
            # The last block that used the buffer.
            last = (portion - self.tiling.filter_buffers + 1) * len(self.by.blocks) - 1
            freed = (self.worked[last],) if last >= 0 else ()
            loads = self.by.scalars(self.units[number].portion, self._scalars(portion))
            self.scalars[portion] = self._filled(loads, freed)
        loads = self.by.maps(self.units[number], self._maps(number))
        self.filled.append(self._filled(loads, self._freed(number, self.worked)))

    def _filled(self, loads: list[Load], after: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            self._add(Fill(after, each.tensor, (each.part,), each.hbm_bytes, regions=each.regions)) for each in loads
        )

    def _work(self, number: int) -> None:
        after = (*self.filled[number], *self.scalars[self._portion(number)], *self._freed(number, self.spills))
        bases = self._maps(number), self._scalars(self._portion(number)), self._results(number)
        last = [self._add(replace(each, after=after)) for each in self.by.work(self.units[number], bases)][-1]
        self.worked.append(last)

    def _spill(self, number: int) -> None:
        tensor, part, moved, regions = self.by.results(self.units[number], self._results(number))
        self.spills.append(self._add(Spill((self.worked[number],), tensor, (part,), moved, regions=regions)))

    # ---- where buffers are

    def _maps(self, number: int) -> int:
        return number % self.tiling.ifmap_buffers * self.tiling.ifmap_words

    def _scalars(self, portion: int) -> int:
        before = self.tiling.ifmap_buffers * self.tiling.ifmap_words
        return before + portion % self.tiling.filter_buffers * self.tiling.section_words

    def _results(self, number: int) -> int:
        tiling = self.tiling
        before = tiling.ifmap_buffers * tiling.ifmap_words + tiling.filter_buffers * tiling.section_words
        return before + number % tiling.psum_buffers * tiling.psum_words
