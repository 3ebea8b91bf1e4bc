"""How the sum over taps and channels is cut: what a pass takes of it, and what a chunk of passes holds on chip.

A `Cut` is one way to do that; whoever plans, searches and estimates asks it and no other. `TapGroups` is the one of
channel-first (paper sections III-IV, VII): a pass has a few taps over one portion of the channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, groupby, pairwise
from typing import ClassVar, NamedTuple

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import neighbours, portions
from tpusim.machines.tpu.cut.geometry import ConvShape, taps_on_chip
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.transfers import Coordinates

Tap = tuple[int, int]


class TapRun(NamedTuple):
    """Array rows [first_lane, first_lane + channels) of a pass: `channels`, one a row, under one tap.

    Their words are those of place number `place` of the chunk.
    """

    first_lane: int
    tap: Tap
    channels: range
    place: int


class ReductionPass(NamedTuple):
    """A pass of the reduction: its `runs`, which fill array rows [0, rows) in order.

    Where a block has several `outcome`s, each adds up passes of its own; a pass names its one by number.
    """

    runs: tuple[TapRun, ...]
    rows: int
    outcome: int = 0

    @classmethod
    def of(cls, runs: Sequence[TapRun], outcome: int = 0) -> ReductionPass:
        """The pass of some runs."""
        return cls(tuple(runs), runs[-1].first_lane + len(runs[-1].channels), outcome)

    @property
    def places(self) -> list[int]:
        """What it reads of the chunk."""
        return sorted({run.place for run in self.runs})


class LanePlace(NamedTuple):
    """A patch of the ifmap in every lane: which channel stands in which.

    Attributes:
        first_lanes: where each copy begins.
        channels: of the lanes of a copy.
        taps: none where a lane holds the points of all taps of the chunk; else the one, lane by lane, whose points it
            holds.
    """

    first_lanes: tuple[int, ...]
    channels: Coordinates
    taps: tuple[Tap, ...] = ()

    @property
    def brought(self) -> int:
        """Channels that HBM hands out for it."""
        return sum(len(channels) for _, channels in brought_by((self,)))


@lru_cache(maxsize=4096)
def brought_by(places: tuple[LanePlace, ...]) -> list[tuple[Tap, range]]:
    """What HBM hands out for places that are filled together: ranges of channels, tap by tap where lanes tell them
    apart; to all lanes of a place at once, to each place anew.
    """
    pieces: list[tuple[Tap, range]] = []
    for place in places:
        if isinstance(place.channels, range) and not place.taps:
            pieces.append(((0, 0), place.channels))
        else:
            taps = place.taps or ((0, 0),) * len(place.channels)
            pieces += [(tap, range(at, at + 1)) for tap, at in {*zip(taps, place.channels, strict=True)}]
    found: list[tuple[Tap, range]] = []
    for tap, channels in sorted(pieces, key=lambda piece: (piece[0], piece[1].start)):
        # What another place ends with, this one goes on with: one run of bytes.
        at = next((at for at, (other, held) in enumerate(found) if (other, held.stop) == (tap, channels.start)), None)
        if at is None:
            found.append((tap, channels))
        else:
            found[at] = tap, range(found[at][1].start, channels.stop)
    return found


@dataclass(frozen=True)
class Chunk:
    """Passes whose part of the ifmap, in `places`, is filled, used and replaced together; their `numbers`. Those of an
    outcome follow one another, and every chunk has some of each outcome.

    HBM hands out each place by itself, or where it is `scattered` every element once, which goes to all places.
    """

    passes: tuple[ReductionPass, ...]
    places: tuple[LanePlace, ...]
    numbers: range
    scattered: bool = False

    @cached_property
    def taps(self) -> frozenset[Tap]:
        """Every tap in it."""
        return frozenset(run.tap for each in self.passes for run in each.runs)

    @cached_property
    def sums(self) -> tuple[range, ...]:
        """The numbers of the passes of each outcome."""
        ends = accumulate((len([*each]) for _, each in groupby(self.passes, lambda each: each.outcome)), initial=0)
        return tuple(self.numbers[first:end] for first, end in pairwise(ends))

    @cached_property
    def tap_rows(self) -> range:
        """The filter rows from the first to the last of its taps."""
        rows, _ = zip(*self.taps, strict=True)
        return range(min(rows), max(rows) + 1)

    @cached_property
    def tap_cols(self) -> range:
        """The filter columns from the first to the last of its taps."""
        _, cols = zip(*self.taps, strict=True)
        return range(min(cols), max(cols) + 1)

    @cached_property
    def channels(self) -> list[int]:
        """Every channel in it, ascending."""
        return sorted({channel for place in self.places for channel in place.channels})

    @property
    def shares_points(self) -> bool:
        """Whether HBM hands out a point once for several taps that hold it in words of their own."""
        return self.scattered and self.by_tap

    @property
    def one_by_one(self) -> bool:
        """Whether HBM hands out place after place."""
        return len(self.places) > 1 and not self.scattered

    def brought(self, places: range) -> list[tuple[Tap, range]]:
        """What HBM hands out for some places: channels, tap by tap where places are alone with theirs."""
        if self.scattered:
            return [((0, 0), channels) for channels in neighbours(self.channels)]
        return brought_by(self.places[places.start : places.stop])

    @cached_property
    def rotations(self) -> int:
        """Copies beyond the second, of all places: how often words are rotated into another lane group, once filled."""
        return sum(max(0, len(place.first_lanes) - 2) for place in self.places)

    @property
    def by_tap(self) -> bool:
        """Whether a lane holds the points of one tap only."""
        return bool(self.places[0].taps)


def numbered(parts: Sequence[tuple[Sequence[ReductionPass], Sequence[LanePlace]]]) -> tuple[Chunk, ...]:
    """Chunks of these passes and places, one after another."""
    ends = [0, *accumulate(len(passes) for passes, _ in parts)]
    return tuple(
        Chunk(tuple(passes), tuple(places), range(first, end))
        for (passes, places), (first, end) in zip(parts, pairwise(ends), strict=True)
    )


def most_together(passes: Sequence[ReductionPass], taps: int | None, channels: int | None) -> int:
    """The most passes at a time of which none together need more taps and channels than given; at least one."""
    needs = [({run.tap for run in each.runs}, {c for run in each.runs for c in run.channels}) for each in passes]

    def fit(part: Sequence[tuple[set[Tap], set[int]]]) -> bool:
        needed = (len(set().union(*every)) for every in zip(*part, strict=True))
        return all(most is None or need <= most for need, most in zip(needed, (taps, channels), strict=True))

    # Where a number of the first passes do not fit, more do not.
    first = bisect_left(range(1, len(needs) + 1), True, key=lambda size: not fit(needs[:size]))
    sizes = range(first, 1, -1)
    return next((size for size in sizes if all(fit(needs[at : at + size]) for at in range(0, len(needs), size))), 1)


def stacked(taps: Sequence[Tap], channels: range, place: int, outcome: int = 0) -> ReductionPass:
    """A pass in which each of some taps has the channels of a place, one tap behind the other."""
    runs = [TapRun(number * len(channels), tap, channels, place) for number, tap in enumerate(taps)]
    return ReductionPass.of(runs, outcome)


@dataclass(frozen=True)
class Cut(ABC):
    """A way to cut the reduction, as a grid of passes: `folds` row folds of `groups` groups each.

    Attributes:
        shape: what is cut: the convolution, or the same with channel groups in bundles.
        hardware: the machine whose policy says how.
        copies: whether lanes hold copies of the ifmap, so that their ports may bound its fill.
    """

    shape: ConvShape
    hardware: Hardware
    copies: ClassVar[bool] = False

    @property
    @abstractmethod
    def groups(self) -> int:
        """Groups of each row fold."""

    @abstractmethod
    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """The passes, some `groups` and `folds` at a time."""

    @property
    def folds(self) -> int:
        """Places that the whole reduction takes, where that can be told by counting; else 1."""
        return 1

    @property
    def together(self) -> int:
        """Groups that may be filled together: all, or one where each tap is fetched for itself."""
        return 1 if self.by_tap else self.groups

    @property
    def by_tap(self) -> bool:
        """Whether each tap is fetched for itself, so that a lane holds the points of one only."""
        return self.hardware.mapping.fetch == "per_tap" and self.shape.taps > 1

    @property
    def transposed(self) -> bool:
        """Whether the vector unit transposes the words of a pixel for each pass, so that no lane needs a copy."""
        return False

    @property
    def per_fold(self) -> float:
        """Channels that HBM hands out for all folds of a group together, roughly."""
        return self.shape.channels

    @property
    def ruled(self) -> Cut | None:
        """The cut that the rule would make, where another is forced."""
        return None

    @cached_property
    def whole(self) -> Chunk:
        """The whole reduction as one chunk."""
        (chunk,) = self.chunks(self.groups, self.folds)
        return chunk

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """The groups and folds on chip together, where at most `taps` and `channels` are to be; None: any."""
        return taps and self.groups, channels and self.folds

    # ---- what people are told

    @property
    def row_folds(self) -> int:
        """Portions of K or of the channels."""
        return self.folds

    @cached_property
    def multi_tile(self) -> int:
        """Taps in a pass, at most."""
        return max(len({run.tap for run in each.runs}) for each in self.whole.passes)

    @property
    def stacked(self) -> str:
        """What is told of the taps of a pass."""
        return f"{self.multi_tile} stacked in a pass (multi-tile)" if self.multi_tile > 1 else ""

    def folded(self, into: str) -> str:
        """The portions that what goes `into` the layer is cut into, in words."""
        return f"{counted(self.folds, 'row fold')} for {into}"

    def size_of(self, groups: int) -> str:
        """A number of groups, in words."""
        return f"{counted(groups, 'group')} of taps"


@dataclass(frozen=True)
class TapGroups(Cut):
    """Taps stacked in groups (multi-tile), times row folds; a fold is a place, in a copy for each tap stacked."""

    @cached_property
    def multi_tile(self) -> int:
        """Taps stacked in a pass: min(R // C_I, W_F) (paper section VII), or the forced number where it fits.

        Under `rows`, whole filter rows where several fit.
        """
        shape = self.shape
        room = max(1, self.hardware.array.rows // shape.channels)
        wanted = self.hardware.mapping.multi_tile
        if isinstance(wanted, int):
            return min(room, wanted, shape.row.kernel * shape.col.kernel)
        if wanted == "rows" and room >= shape.col.kernel:
            return shape.col.kernel * min(shape.row.kernel, room // shape.col.kernel)
        return min(room, shape.col.kernel)

    @property
    def ruled(self) -> TapGroups | None:
        """What the paper's rule would stack, where another number is forced."""
        if not isinstance(self.hardware.mapping.multi_tile, int):
            return None
        mapping = self.hardware.mapping.model_copy(update={"multi_tile": "auto"})
        return replace(self, hardware=self.hardware.model_copy(update={"mapping": mapping}))

    @property
    def folds(self) -> int:
        """Row folds."""
        return len(self._portions)

    @property
    def groups(self) -> int:
        """Groups of taps."""
        return len(self._stacks)

    @property
    def per_fold(self) -> float:
        """The channels, or what a group has of them for each of its taps."""
        return self.shape.channels * (self.multi_tile if self.by_tap else 1)

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """`groups` tap groups and `folds` row folds at a time: row folds outside, tap groups inside."""
        return numbered([
            self._chunk(self._stacks[first : first + groups], range(at, min(at + folds, self.folds)))
            for at in range(0, self.folds, folds)
            for first in range(0, self.groups, groups)
        ])  # fmt: skip

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """As many groups as have these `taps`, and the folds of the first `channels`."""
        folds = channels and sum(fold.start < channels for fold in self._portions)
        return taps and most_together(self._chunk(self._stacks, range(1))[0], taps, None), folds

    def _chunk(self, stacks: Sequence[Sequence[Tap]], folds: range) -> tuple[list[ReductionPass], list[LanePlace]]:
        held = [self._portions[fold] for fold in folds]
        passes = [stacked(taps, channels, place) for taps in stacks for place, channels in enumerate(held)]
        return passes, [self._place(stacks[0], channels) for channels in held]

    def _place(self, taps: Sequence[Tap], channels: range) -> LanePlace:
        if not self.by_tap:
            return LanePlace(tuple(copy * len(channels) for copy in range(self.multi_tile)), channels)
        lanes = channels if len(taps) == 1 else (*channels,) * len(taps)
        return LanePlace((0,), lanes, tuple(tap for tap in taps for _ in channels))

    @cached_property
    def _stacks(self) -> tuple[tuple[Tap, ...], ...]:
        """Taps in row-major order, a few at a time; groups stay within a filter row unless wider than one, and within
        those that a block is to hold.
        """
        tile, height, width = self.multi_tile, self.shape.row.kernel, self.shape.col.kernel
        rows = [[(i, j) for j in range(width)] for i in range(height)]
        if tile > width:
            rows = [[tap for row in rows for tap in row]]
        held = taps_on_chip(self.shape, self.hardware)
        return tuple(tuple(row[at.start : at.stop]) for row in rows for at in portions(len(row), tile, held))

    @cached_property
    def _portions(self) -> list[range]:
        """The channels of a group in portions of at most R, and of those that a block is to hold."""
        held = self.hardware.mapping.block.given.get("in_channels")
        return portions(self.shape.channels, self.hardware.array.rows, held)
