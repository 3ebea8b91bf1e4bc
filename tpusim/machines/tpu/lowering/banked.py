"""Convolutions whose ifmap stands in banks, for any cut of the reduction; and bank maps.

A block's part of the ifmap stands in the banks once, as their map lays it out, and every row walks to its own words.
Passes, blocks, weights and partial sums are those of any other plan. A word's address is the sum of one offset for each
of its coordinates; it stands in bank address % banks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError, Problem
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import Block, Patch, padded
from tpusim.machines.tpu.cut.geometry import MapAxis, shape_of
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import Chunk, Cut, LanePlace, ReductionPass, Tap, TapRun, numbered
from tpusim.machines.tpu.cut.tiling import Counts, Demand, Tiling, wanted_by
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import Cutting, draft_of
from tpusim.machines.tpu.lowering.drafts import Draft, explanation_of
from tpusim.machines.tpu.program.addresses import BankFeed, Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.transfers import BankFill, BankPart
from tpusim.machines.tpu.search.estimates import Candidates, Extents
from tpusim.machines.tpu.search.search import tilings_of
from tpusim.memory.hbm_layout import Box, shifted
from tpusim.network.ops.array_op import ArrayOp


class Spacing(NamedTuple):
    """Positions along an axis, `stride` words apart; after every `wrap` positions addresses skip `jump` words."""

    stride: int
    wrap: int = 1
    jump: int = 0

    def offsets(self, positions: range) -> tuple[int, ...]:
        """Words from position 0 to each position."""
        return tuple(at * self.stride + at // self.wrap * self.jump for at in positions)


class PatchExtents(NamedTuple):
    """A patch to be laid out in banks, and how it is read.

    Attributes:
        channels, rows, cols, groups: of the patch: channels, grid points of either axis, word groups of each.
        together: neighbouring channels that a word of a pass is made of.
        row, col: the axes, whose taps are read at once.
    """

    channels: int
    rows: int
    cols: int
    groups: int
    together: int
    row: MapAxis
    col: MapAxis


class BankMap(NamedTuple):
    """A layout of words in banks: a word's address is the sum of the offsets of its channel, row, column and group.

    `words` are the addresses in use, gaps among them included.
    """

    channel: Spacing
    row: Spacing
    col: Spacing
    group: Spacing
    words: int


def chw(wanted: PatchExtents, banks: int) -> BankMap:
    """A map that goes channel by channel, and row by row in each channel."""
    channels, rows, cols, groups = wanted[:4]
    channel, row = rows * cols * groups, cols * groups
    return BankMap(Spacing(channel), Spacing(row), Spacing(groups), Spacing(1), channels * channel)


def hwc(wanted: PatchExtents, banks: int) -> BankMap:
    """A map that goes pixel by pixel, with all channels of each pixel together."""
    channels, rows, cols, groups = wanted[:4]
    row, col = cols * groups * channels, groups * channels
    return BankMap(Spacing(1), Spacing(row), Spacing(col), Spacing(channels), rows * row)


def window(wanted: PatchExtents, banks: int) -> BankMap:
    """A map that puts words read at once into different banks, wherever the window stands.

    The patch is cut into cells, in which each channel's points are neighbours and channels follow one another: bank
    (height width c + width (h mod height) + (w mod width)) mod banks. A cell takes whole lines of all banks, and no two
    taps of a window have the same place in theirs. Of such cells the one that wastes the fewest words is taken.
    """
    most = max(1, banks // wanted.together)
    height, width = np.array(_apart(wanted.row, most))[:, None], np.array(_apart(wanted.col, most))
    cells = -(-wanted.rows // height) * -(-wanted.cols // width)
    words = cells * padded(height * width * wanted.channels * wanted.groups, banks)
    # If no cell is small enough, the smallest is taken.
    fits = height * width <= max(most, int(height[0, 0] * width[0]))
    row, col = divmod(int(np.where(fits, words, words.max() + 1).argmin()), len(width))
    high, wide = int(height[row, 0]), int(width[col])
    channel, group = high * wide, high * wide * wanted.channels
    down, across, cell = -(-wanted.rows // high), -(-wanted.cols // wide), padded(group * wanted.groups, banks)
    row_spacing, col_spacing = Spacing(wide, high, across * cell - channel), Spacing(1, wide, cell - wide)
    return BankMap(Spacing(channel), row_spacing, col_spacing, Spacing(group), down * across * cell)


@lru_cache(maxsize=1024)
def _apart(axis: MapAxis, most: int) -> list[int]:
    """Lengths of a cell, ascending, in which no two taps have the same place: the least, and others up to `most`."""

    def tells_apart(length: int) -> bool:
        return len({tap * axis.tap_step % length for tap in range(axis.kernel)}) == axis.kernel

    # Taps that span fewer points than a cell is long always have different places in it.
    least = next(filter(tells_apart, count(axis.kernel)))
    return [least, *filter(tells_apart, range(least + 1, most + 1))]


MAPS: dict[str, Callable[[PatchExtents, int], BankMap]] = {"window": window, "chw": chw, "hwc": hwc}


@dataclass(frozen=True)
class BankCut(Cut):
    """A cut of another kind for rows that read any word from any bank: no copies, and one place with all channels.

    Nothing of a block is filled twice: all passes share its ifmap.
    """

    cut: Cut

    @property
    def groups(self) -> int:
        """Number of passes."""
        return len(self.cut.whole.passes)

    @cached_property
    def at_once(self) -> int:
        """The most channels that a pass reads."""
        return max(len(_channels(each)) for each in self.cut.whole.passes)

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """A single chunk with all passes."""
        return self._chunks

    @cached_property
    def _chunks(self) -> tuple[Chunk, ...]:
        """Chunks with a run for each row, because each row finds its words by itself."""
        place_of: dict[int, int] = {}
        places: list[LanePlace] = []
        passes: list[ReductionPass] = []
        for each in self.cut.whole.passes:
            new = sorted(_channels(each) - place_of.keys())
            place_of.update(dict.fromkeys(new, len(places)))
            # A channel is filled by the first pass that reads it, and found there by all others.
            places += [LanePlace((0,), range(new[0], new[-1] + 1))] if new else []
            rows = ((run.tap, channel) for run in each.runs for channel in run.channels)
            runs = [TapRun(row, tap, range(at, at + 1), place_of[at]) for row, (tap, at) in enumerate(rows)]
            passes.append(ReductionPass.of(runs))
        return numbered([(passes, places)])


def _channels(each: ReductionPass) -> set[int]:
    return {channel for run in each.runs for channel in run.channels}


@lru_cache(maxsize=1 << 14)
def bank_map(cut: BankCut, rows: int, cols: int, groups: int) -> BankMap:
    """The map by which a patch of some grid points and word groups lies in the banks."""
    shape, hardware = cut.shape, cut.hardware
    wanted = PatchExtents(shape.channels, rows, cols, groups, cut.at_once, shape.row, shape.col)
    return MAPS[hardware.vector_memory.bank_map](wanted, hardware.banks)


@dataclass(frozen=True)
class BankedPlan(Plan):
    """A plan whose ifmap buffers are addresses of the banks; the lanes hold nothing of the ifmap."""

    cut: BankCut
    ifmap_memory = "banks"
    ifmap_lanes = 1

    @property
    def fill(self) -> Callable[..., BankFill]:  # type: ignore[override]
        """A transfer to the banks."""
        return partial(BankFill, banks=self.hardware.banks)

    def filled(
        self, group: int, chunk: Chunk, patch: Patch, places: range, filled: Patch, base: int
    ) -> tuple[tuple[BankPart, ...], list[Box]]:
        """Parts for some places of a patch, with all channels from the first to the last."""
        first, last = chunk.places[places.start].channels, chunk.places[places.stop - 1].channels
        channels = range(first[0], last[-1] + 1)
        laid = bank_map(self.cut, len(patch.rows), len(patch.cols), len(patch.groups))
        every = zip((patch.rows, patch.cols, patch.groups), (filled.rows, filled.cols, filled.groups), strict=True)
        held = channels, *(range(part.start - whole.start, part.stop - whole.start) for whole, part in every)
        offsets = [spacing.offsets(each) for spacing, each in zip(laid[:4], held, strict=True)]
        part, box = self.read(shifted(channels, group * self.shape.channels), filled, base)
        return (BankPart(base, tuple(offsets), part.lane, part.items, self.word_fill),), [box]

    def reads(self, chunk: Chunk, block: Block, base: int) -> list[Feed]:
        """Feeds of the rows of each pass, for a patch at address `base`."""
        patch = self.patch(block, chunk)
        laid = bank_map(self.cut, len(patch.rows), len(patch.cols), len(patch.groups))
        spacings = laid.row, laid.col, laid.group
        walks: dict[Tap, Counters] = {}
        for tap in sorted(chunk.taps):
            walk = self.walk(tap, block, patch, by_tap=False)
            pairs = zip(walk.counters, spacings, strict=True)
            walks[tap] = walk._replace(counters=tuple(Counter(*counter[:4], *spacing) for counter, spacing in pairs))
        key = base, laid.channel, *walks.values()
        if key not in self._known:
            starts = [base + offset for offset in laid.channel.offsets(range(self.shape.channels))]
            self._known[key] = [
                BankFeed(tuple([
                    LaneGroup(run.first_lane, 1, walks[run.tap]._replace(base=starts[run.channels.start]))
                    for run in each.runs
                ]))
                for each in chunk.passes
            ]  # fmt: skip
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[object, ...], list[Feed]]:
        """Feeds by form of block: all blocks but those at the edges read alike."""
        return {}


def convolved_from_banks(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """Drafts of a convolution with this cut on a machine with banks. Raises as `convolved`."""
    shape = shape_of(layer, batch, hardware)
    if hardware.mapping.fetch == "per_tap" and shape.taps > 1:
        raise CapacityError(Problem("banks hold what all taps of a block need; write resident", "mapping.fetch"))
    every = {"taps": shape.taps, "in_channels": shape.channels}
    if parts := [name for name, given in hardware.mapping.block.given.items() if given < every.get(name, 0)]:
        problem = "banks hold what all taps and channels of a block need; write auto"
        raise CapacityError([Problem(problem, f"mapping.block.{name}") for name in parts])
    from_lanes = cutting(shape, hardware)
    cut = BankCut(from_lanes.shape, hardware, from_lanes)

    # Conflicts are left out of the choice: they take long to count, and differ little between blocks.
    ranks = tilings_of(cut, hardware, BankedCandidates)
    return [draft_of(BankedPlan(cut.shape, hardware, rank.tiling, cut), layer, rank, _explained) for rank in ranks]


class BankedCandidates(Candidates):
    """Blocks whose ifmap, of all channels, fits the banks."""

    cut: BankCut

    def chunked(self) -> Iterator[Tiling[Counts]]:
        """No tilings: the reduction of a block is never cut."""
        return iter(())

    def lane_words(self, tilings: Tiling[Counts]) -> Counts:
        """Words that a lane needs."""
        return tilings.words - self.bank_words(tilings)

    def bank_words(self, tilings: Tiling[Counts]) -> Counts:
        """Addresses that the banks need."""
        return tilings.ifmap_buffers * tilings.ifmap_words

    def fits(self, tilings: Tiling[Counts]) -> NDArray[np.bool_]:
        """A mask of the tilings that fit in the lanes and in the banks."""
        lanes = self.lane_words(tilings) <= self.hardware.capacity_words
        return np.asarray(lanes & (self.bank_words(tilings) <= self.hardware.bank_words))

    def too_small(self) -> CapacityError:
        """An error that names the memory that is too small, for the tilings that need the least of it."""
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
        """Demand of the ifmap of a block: one load of all channels into all banks."""
        a_bank, a_lane = (-(-tilings.ifmap_words // each) for each in (self.hardware.banks, self.hardware.lanes))
        return Demand(
            bus=tilings.ifmap_words * self.word_fill * self.element_cycles
            * self.waste(tilings.groups, self.stored_channels),
            converted=a_lane * float(self.hardware.vector_unit.unpack_cycles),
            port=a_bank,
        )  # fmt: skip

    def _held(self, chunk: Chunk, blocks: Extents) -> Counts:
        """Addresses of the largest patch of each block."""
        extents = zip(*(each.tolist() for each in (*self.patches(chunk, blocks), blocks.groups)), strict=True)
        return np.array([bank_map(self.cut, *each).words for each in extents], np.int64)


def _explained(plan: BankedPlan, layer: ArrayOp) -> Explanation:
    """The explanation of the same cut in lanes, with the banks in place of the lanes' ifmap."""
    tiling, hardware, cut = plan.tiling, plan.hardware, plan.cut.cut
    in_lanes = replace(tiling, chunk_taps=cut.groups, chunk_folds=cut.folds, ifmap_words=0)
    told = explanation_of(Plan(plan.shape, hardware, in_lanes, cut), layer)
    memory, words = hardware.vector_memory, -(-tiling.ifmap_words // hardware.banks)
    held = f"; {tiling.ifmap_buffers} x {SIZE.format(words * hardware.word_bytes)} of ifmap in each" if words else ""
    banks = (
        f"{counted(hardware.banks, 'bank')} of {SIZE.format(memory.bank_capacity_bytes)}, "
        f"{counted(memory.bank_ports, 'port')} each to read, map {memory.bank_map}{held}"
    )
    return replace(told, aspects={**told.aspects, "banks": banks}, choices=dict(vars(tiling)))
