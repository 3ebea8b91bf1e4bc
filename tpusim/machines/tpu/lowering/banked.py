"""Convolutions whose ifmap stands in banks, whichever way their reduction is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError, Problem
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.banked_plan import BankedPlan, FromBanks, bank_map
from tpusim.machines.tpu.lowering.candidates import Candidates
from tpusim.machines.tpu.lowering.convolution import Cutting, draft_of
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.geometry import shape_of
from tpusim.machines.tpu.lowering.pace import Demand
from tpusim.machines.tpu.lowering.reduction import Chunk
from tpusim.machines.tpu.lowering.search import Ranked, tilings_of
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling, wanted_by
from tpusim.machines.tpu.lowering.words import explanation_of
from tpusim.machines.tpu.program.program import Explanation
from tpusim.network.ops import ArrayOp


def convolved_from_banks(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """The drafts of a convolution that is cut in such a way, on a machine with banks. Raises as `convolved`."""

    def draft(plan: BankedPlan, rank: Ranked) -> Draft:
        return replace(draft_of(plan, layer, rank), finish=lambda program: (program, _explained(plan, layer)))

    return [draft(plan, rank) for plan, rank in _plans(cutting, layer, batch, hardware)]


def _plans(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> list[tuple[BankedPlan, Ranked]]:
    shape = shape_of(layer, batch, hardware)
    if hardware.mapping.fetch == "per_tap" and shape.taps > 1:
        raise CapacityError(Problem("banks hold what all taps of a block need; write resident", "mapping.fetch"))
    every = {"taps": shape.taps, "in_channels": shape.channels}
    if parts := [name for name, given in hardware.mapping.block.given.items() if given < every.get(name, 0)]:
        problem = "banks hold what all taps and channels of a block need; write auto"
        raise CapacityError([Problem(problem, f"mapping.block.{name}") for name in parts])
    from_lanes = cutting(shape, hardware)
    cut = FromBanks(from_lanes.shape, hardware, from_lanes)
    return [(BankedPlan(cut.shape, hardware, rank.tiling, cut), rank) for rank in found(cut)]


@lru_cache(maxsize=1 << 12)
def found(cut: FromBanks) -> tuple[Ranked, ...]:
    """The tilings to choose from, conflicts left out. A layer is asked how many steps it takes before it is lowered."""
    return tilings_of(cut.shape, cut.hardware, cut, BankedCandidates)


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

    def too_small(self) -> CapacityError:
        """What is short, of the tilings that need the least of it."""
        hardware, tilings = self.hardware, [*self.whole()]
        word, memory = hardware.word_bytes, hardware.vector_memory
        lane = min(int(self.lane_words(each).min()) for each in tilings)
        if lane > hardware.capacity_words:
            where, has, words, of = "capacity", memory.capacity_bytes, lane, "a lane"
        else:
            banks = min(int(self.bank_words(each).min()) for each in tilings)
            where, has, words, of = "bank_capacity", memory.bank_capacity_bytes, -(-banks // hardware.banks), "a bank"
        what, instead = wanted_by(hardware)
        return CapacityError(
            f"{what} needs {words} words of {word} B {of}; set vector_memory.{where} to at least "
            f"{words * word} B (it is {has} B), or {instead}"
        )

    def load(self, tilings: Tiling[Counts]) -> Demand:
        """The ifmap of a block: one load of all channels into all banks."""
        a_bank, a_lane = (-(-tilings.ifmap_words // each) for each in (self.hardware.banks, self.hardware.lanes))
        return Demand(
            bus=tilings.ifmap_words * self.word_fill * self.element_cycles
            * self.waste(tilings.groups, self.stored_channels),
            converted=a_lane * float(self.hardware.vector_unit.unpack_cycles),
            port=a_bank,
        )  # fmt: skip

    def _held(self, chunk: Chunk, rows: Counts, cols: Counts, groups: Counts) -> Counts:
        """Addresses of the largest patch of each block."""
        extents = zip(*(each.tolist() for each in (*self._patches(chunk, rows, cols), groups)), strict=True)
        return np.array([bank_map(self.cut, *each).words for each in extents], np.int64)


def _explained(plan: BankedPlan, layer: ArrayOp) -> Explanation:
    """What any plan tells of its lanes, which have no ifmap here, and of the banks."""
    told = explanation_of(replace(plan, tiling=replace(plan.tiling, ifmap_words=0)), layer)
    return replace(told, aspects={**told.aspects, "banks": _banks(plan)}, choices=dict(vars(plan.tiling)))


def _banks(plan: BankedPlan) -> str:
    tiling, hardware = plan.tiling, plan.hardware
    memory, words = hardware.vector_memory, -(-tiling.ifmap_words // hardware.banks)
    held = f"; {tiling.ifmap_buffers} x {SIZE.format(words * hardware.word_bytes)} of ifmap in each" if words else ""
    return (
        f"{counted(hardware.banks, 'bank')} of {SIZE.format(memory.bank_capacity_bytes)}, "
        f"{counted(memory.bank_ports, 'port')} each to read, map {memory.bank_map}{held}"
    )
