"""The plan and the steps of a lowering whose ifmap stands in banks.

A block's part of the ifmap stands in the banks once, as their map lays it out, and every row walks to its own words.
Passes, blocks, weights and partial sums are those of any other plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.bank_maps import MAPS, BankMap, PatchExtents
from tpusim.machines.tpu.lowering.block import Block, Patch
from tpusim.machines.tpu.lowering.geometry import ConvShape, shifted
from tpusim.machines.tpu.lowering.maps import CHANNEL
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import Chunk, Cut, Place, ReductionPass, Run, Tap, numbered
from tpusim.machines.tpu.program.addresses import BankFeed, Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.tensor import Along, BankPart
from tpusim.machines.tpu.program.transfers import BankFill
from tpusim.memory.layout import Box


@dataclass(frozen=True)
class FromBanks:
    """Another cut, for rows that find any word where it stands: no copies, and a place for what a pass needs first.

    Of a block nothing is filled twice: all passes have its ifmap together.
    """

    shape: ConvShape
    hardware: Hardware
    cut: Cut
    folds = 1
    copies = False
    transposed = False
    ruled = None

    @property
    def groups(self) -> int:
        """Passes."""
        return len(self._passes)

    together = groups

    @property
    def row_folds(self) -> int:
        """As without banks."""
        return self.cut.row_folds

    @property
    def per_fold(self) -> float:
        """Channels that HBM hands out."""
        return self.shape.channels

    @property
    def multi_tile(self) -> int:
        """As without banks."""
        return self.cut.multi_tile

    @property
    def stacked(self) -> str:
        """As without banks."""
        return self.cut.stacked

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """All passes."""
        return taps and self.groups, channels and self.folds

    def folded(self, into: str) -> str:
        """As without banks."""
        return self.cut.folded(into)

    def size_of(self, groups: int) -> str:
        """As without banks."""
        return self.cut.size_of(groups)

    @cached_property
    def at_once(self) -> int:
        """Most channels that a pass reads."""
        return max(len(_channels(each)) for each in self._passes)

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """One, of all passes."""
        return self._whole

    @cached_property
    def _passes(self) -> tuple[ReductionPass, ...]:
        (chunk,) = self.cut.chunks(self.cut.groups, self.cut.folds)
        return chunk.passes

    @cached_property
    def _whole(self) -> tuple[Chunk, ...]:
        place_of: dict[int, int] = {}
        places: list[Place] = []
        for each in self._passes:
            new = sorted(_channels(each) - {*place_of})
            place_of.update(dict.fromkeys(new, len(places)))
            places += [Place((0,), range(new[0], new[-1] + 1))] if new else []
        passes = [ReductionPass.of([*_rows(each, place_of)]) for each in self._passes]
        return numbered([(passes, places)])


def _channels(each: ReductionPass) -> set[int]:
    return {channel for run in each.runs for channel in run.channels}


def _rows(each: ReductionPass, place_of: Mapping[int, int]) -> Iterator[Run]:
    """A run a row: each finds its words for itself."""
    for run in each.runs:
        for row, channel in enumerate(run.channels, run.first_lane):
            yield Run(row, run.tap, range(channel, channel + 1), place_of[channel])


@lru_cache(maxsize=1 << 14)
def bank_map(cut: FromBanks, rows: int, cols: int, groups: int) -> BankMap:
    """How a patch of so many grid points and word groups lies in the banks."""
    shape, hardware = cut.shape, cut.hardware
    wanted = PatchExtents(shape.channels, rows, cols, groups, cut.at_once, shape.row, shape.col)
    return MAPS[hardware.vector_memory.bank_map](wanted, hardware.banks)


@dataclass(frozen=True)
class BankedPlan(Plan):
    """As any plan, but for the ifmap: its buffers are addresses of the banks, and the lanes have none of it."""

    cut: FromBanks
    ifmap_memory = "banks"
    ifmap_lanes = 1

    @property
    def fill(self) -> Callable[..., BankFill]:  # type: ignore[override]
        """A transfer to so many banks."""
        return partial(BankFill, banks=self.hardware.banks)

    def filled(
        self, group: int, chunk: Chunk, patch: Patch, places: range, filled: Patch, base: int
    ) -> tuple[tuple[BankPart, ...], list[Box]]:
        """Some places of a patch, with all channels from the first of them to the last."""
        shape, first, last = self.shape, chunk.places[places.start].channels, chunk.places[places.stop - 1].channels
        channels = range(first[0], last[-1] + 1)
        rows, cols = shape.row.coordinates(filled.rows), shape.col.coordinates(filled.cols)
        items, offsets = (
            self.map_items(rows, cols, filled.groups, self.ifmap_apart),
            self._offsets(patch, filled, channels),
        )
        channels = shifted(channels, group * shape.channels)
        part = BankPart(base, offsets, (Along(CHANNEL, channels),), items, self.word_fill)
        return (part,), [Box(channels, rows, cols, self.images(filled.groups))]

    def _offsets(self, patch: Patch, filled: Patch, channels: range) -> tuple[tuple[int, ...], ...]:
        """Where channels, rows, columns and word groups of a part of the patch stand."""
        laid = self.map_of(patch)
        places = (
            range(part.start - whole.start, part.stop - whole.start)
            for whole, part in ((patch.rows, filled.rows), (patch.cols, filled.cols), (patch.groups, filled.groups))
        )
        spacings = laid.row, laid.col, laid.group
        map_offsets = (spacing.offsets(place) for spacing, place in zip(spacings, places, strict=True))
        return (laid.channel.offsets(channels), *map_offsets)

    def map_of(self, patch: Patch) -> BankMap:
        """How a patch lies in the banks."""
        return bank_map(self.cut, len(patch.rows), len(patch.cols), len(patch.groups))

    def reads(self, chunk: Chunk, block: Block, base: int) -> list[Feed]:
        """What the rows of each pass read of the patch at address `base`."""
        patch = self.patch(block, chunk)
        laid = self.map_of(patch)
        walks = {tap: _spaced(self.walk(tap, block, patch, by_tap=False), laid) for tap in sorted(chunk.taps)}
        key = base, laid.channel, *walks.values()
        if key not in self._known:
            starts = [base + offset for offset in laid.channel.offsets(range(self.shape.channels))]
            self._known[key] = [_feed(each, starts, walks) for each in chunk.passes]
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[object, ...], list[Feed]]:
        """What blocks have in common: all but those at the edges read alike."""
        return {}


def _spaced(walk: Counters, laid: BankMap) -> Counters:
    """The same walk over words that lie as the map says: rows, columns, word groups."""
    spacings = laid.row, laid.col, laid.group
    pairs = zip(walk.counters, spacings, strict=True)
    return walk._replace(counters=tuple(Counter(*counter[:4], *spacing) for counter, spacing in pairs))


def _feed(each: ReductionPass, channels: Sequence[int], walks: Mapping[Tap, Counters]) -> Feed:
    """What the rows of a pass read, each from where its channel begins."""
    rows = ((run.first_lane, walks[run.tap], channels[run.channels.start]) for run in each.runs)
    return BankFeed(tuple(LaneGroup(row, 1, walk._replace(base=base)) for row, walk, base in rows))
