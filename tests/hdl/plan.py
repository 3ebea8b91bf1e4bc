"""One machine and one layer's steps, as the hardware witness knows them: all that is fixed before the first cycle.

The rules are those of docs/timing.md; nothing here is taken from `tpusim`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod
from typing import Literal


@dataclass(frozen=True)
class Weights:
    """A preload: `rows` x `cols` weights from word `base` on, `delay` cycles after the steps `after` are done."""

    step: int
    after: tuple[int, ...]
    base: int
    rows: int
    cols: int
    delay: int


@dataclass(frozen=True)
class Pass:
    """A stream: nested counters (row, col, group), and per lane where they begin (None: the lane is not fed)."""

    step: int
    fills: tuple[int, ...]
    spills: tuple[int, ...]
    weights: int
    starts: tuple[tuple[int, int, int] | None, ...]
    counts: tuple[int, int, int]
    stride: tuple[int, int]
    extent: tuple[int, int]
    result_base: int
    cols: int
    accumulate: bool

    @property
    def words(self) -> int:
        """Words a lane streams, padding included."""
        return prod(self.counts)


@dataclass(frozen=True)
class Transfer:
    """A fill or a spill of `words` words at lane 0's port, `hbm_bytes` on the bus."""

    step: int
    after: tuple[int, ...]
    kind: Literal["ifmap", "filter", "spill"]
    words: int
    hbm_bytes: int

    @property
    def spill(self) -> bool:
        """Whether the words go to HBM."""
        return self.kind == "spill"


@dataclass(frozen=True)
class Plan:
    """The machine, and the steps of each unit in their order."""

    rows: int
    cols: int
    arrays: int
    word: int
    word_bytes: int
    elements: int
    alus: int
    unpack_cycles: Fraction
    pack_cycles: Fraction
    word_cycles: int
    buffers: int
    depth: int
    bytes_per_cycle: Fraction
    latency: int
    launch: int
    weights: tuple[Weights, ...]
    passes: tuple[Pass, ...]
    transfers: tuple[Transfer, ...]

    @property
    def lanes(self) -> int:
        """One for every row and every column."""
        return max(self.rows, self.cols)

    @property
    def steps(self) -> int:
        """Steps of all kinds."""
        return len(self.weights) + len(self.passes) + len(self.transfers)

    @property
    def accumulates(self) -> bool:
        """Whether partial-sum slots are owned."""
        return any(each.accumulate for each in self.passes)

    @property
    def adds(self) -> int:
        """Cycles that the vector unit takes for a word of every array in every lane."""
        return ceil(Fraction(self.arrays * self.elements * self.lanes, self.alus)) if self.accumulates else 0

    @property
    def slots(self) -> int:
        """Slots of a frame that are owned."""
        return self.arrays * (2 + self.accumulates)

    @property
    def frame(self) -> int:
        """F."""
        return max(self.elements, self.slots, self.adds, self.arrays * self.word_cycles)

    @property
    def psum_delay(self) -> int:
        """D_p: array 0's partial-sum slot at or after L - 1."""
        return self._at_slot(self.arrays, self.elements + self.rows)

    @property
    def result_delay(self) -> int:
        """D_w, with and without accumulation."""
        if not self.accumulates:
            return self._at_slot(self.arrays, 1 + self.elements + self.rows)
        slot = (self.arrays + self.adds) % self.frame
        while not 2 * self.arrays <= slot <= self.frame - self.arrays:
            slot = (slot + 1) % self.frame
        return self._at_slot(slot, self.psum_delay + self.adds)

    def stream_cycles(self, each: Pass) -> int:
        """Frames, in which every array takes a word."""
        return ceil(Fraction(each.words, self.arrays)) * self.frame

    def byte_cycles(self, transfer: Transfer) -> int:
        """Cycles that the bytes alone would take."""
        return max(1, ceil(transfer.hbm_bytes / self.bytes_per_cycle))

    def bus_cycles(self, transfer: Transfer) -> int:
        """D: the bytes, or the conversion of the words where that takes longer."""
        pace = {"ifmap": self.unpack_cycles, "filter": 0, "spill": self.pack_cycles}[transfer.kind]
        stored = ceil(Fraction(transfer.hbm_bytes, self.lanes * self.word_bytes))
        words = min(transfer.words, stored) if transfer.kind == "ifmap" else transfer.words
        return max(self.byte_cycles(transfer), ceil(pace * words))

    def last_word(self, transfer: Transfer, cycles: int) -> int:
        """From the start of a transfer of so many cycles to the first in which its last word may cross the port."""
        if transfer.spill:
            return (transfer.words - 1) * cycles // transfer.words
        return self.latency + cycles

    def _at_slot(self, slot: int, earliest: int) -> int:
        return next(at for at in range(earliest, earliest + self.frame) if at % self.frame == slot)
