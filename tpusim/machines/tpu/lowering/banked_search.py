"""The tilings that a lowering from banks may choose from, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.lowering.banked_plan import FromBanks, bank_map
from tpusim.machines.tpu.lowering.candidates import Candidates
from tpusim.machines.tpu.lowering.pace import Pace
from tpusim.machines.tpu.lowering.ranking import Ranked, ranked
from tpusim.machines.tpu.lowering.reduction import Chunk
from tpusim.machines.tpu.lowering.search import best, wanted_by
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling


def banked_tilings(cut: FromBanks) -> tuple[Ranked, ...]:
    """The tiling with the lowest estimated cycles, conflicts left out, or what a simulation should choose from.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    candidates = BankedCandidates(cut.shape, cut.hardware, cut, None)
    tiling = best(candidates)
    if tiling is None:
        raise _too_small(candidates)
    return ranked(candidates, tiling) if cut.hardware.mapping.search == "simulate" else (Ranked(tiling),)


class BankedCandidates(Candidates):
    """Blocks whose ifmap, of all channels, fits the banks."""

    cut: FromBanks

    def chunked(self) -> Iterator[Tiling[Counts]]:
        """None: the reduction of a block is not cut."""
        return iter(())

    def lane_words(self, tilings: Tiling[Counts]) -> Counts:
        """Words that a lane needs."""
        return tilings.words - self.bank_words(tilings)

    def bank_words(self, tilings: Tiling[Counts]) -> Counts:
        """Addresses that the banks need."""
        return tilings.ifmap_buffers * tilings.ifmap_words

    def fits(self, tilings: Tiling[Counts]) -> NDArray[np.bool_]:
        """Which of them find room in the lanes and in the banks."""
        lanes = self.lane_words(tilings) <= self.hardware.capacity_words
        return np.asarray(lanes & (self.bank_words(tilings) <= self.hardware.bank_words))

    def load(self, tilings: Tiling[Counts]) -> Pace:
        """The ifmap of a block: one load of all channels into all banks."""
        a_bank, a_lane = (-(-tilings.ifmap_words // each) for each in (self.hardware.banks, self.hardware.lanes))
        return Pace(
            bus=tilings.ifmap_words * self.word_fill * self.element_cycles
            * self.waste(tilings.groups, self.stored_channels),
            converted=a_lane * float(self.hardware.vector_unit.unpack_cycles),
            port=a_bank,
        )  # fmt: skip

    def _held(self, chunk: Chunk, rows: Counts, cols: Counts, groups: Counts) -> Counts:
        """Addresses of the largest patch of each block."""
        extents = zip(*(each.tolist() for each in (*self._patches(chunk, rows, cols), groups)), strict=True)
        return np.array([bank_map(self.cut, *each).words for each in extents], np.int64)


def _too_small(candidates: BankedCandidates) -> CapacityError:
    """What is short, of the tilings that need the least of it."""
    hardware, tilings = candidates.hardware, [*candidates.whole()]
    word, memory = hardware.word_bytes, hardware.vector_memory
    lane = min(int(candidates.lane_words(each).min()) for each in tilings)
    if lane > hardware.capacity_words:
        where, has, words, of = "capacity", memory.capacity_bytes, lane, "a lane"
    else:
        banks = min(int(candidates.bank_words(each).min()) for each in tilings)
        where, has, words, of = "bank_capacity", memory.bank_capacity_bytes, -(-banks // hardware.banks), "a bank"
    what, instead = wanted_by(hardware)
    return CapacityError(
        f"{what} needs {words} words of {word} B {of}; set vector_memory.{where} to at least "
        f"{words * word} B (it is {has} B), or {instead}"
    )
