"""Cuts of the sum over taps and channels into passes, and into chunks of passes whose data is on chip together.

A `Cut` is one way to do so; plans, searches and estimates all ask the same one. `TapGroups` is the cut of
channel-first (paper sections III-IV, VII): a pass has a few taps over one portion of the channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
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

    Their words are in place number `place` of the chunk.
    """

    first_lane: int
    tap: Tap
    channels: range
    place: int


class ReductionPass(NamedTuple):
    """A pass of the reduction: its `runs`, which fill array rows [0, rows) in order.

    If a block has several outcomes, each adds up passes of its own; `outcome` is the number of this pass's.
    """

    runs: tuple[TapRun, ...]
    rows: int
    outcome: int = 0

    @classmethod
    def of(cls, runs: Sequence[TapRun], outcome: int = 0) -> ReductionPass:
        """The pass with these runs."""
        return cls(tuple(runs), runs[-1].first_lane + len(runs[-1].channels), outcome)

    @property
    def places(self) -> list[int]:
        """Numbers of the places that the pass reads."""
        return sorted({run.place for run in self.runs})


class LanePlace(NamedTuple):
    """A patch of the ifmap in every lane, with the channel of each lane.

    Attributes:
        first_lanes: first lane of each copy.
        channels: channel of each lane of a copy.
        taps: empty if a lane holds the points of all taps of the chunk; otherwise the tap, for each lane, whose points
            it holds.
    """

    first_lanes: tuple[int, ...]
    channels: Coordinates
    taps: tuple[Tap, ...] = ()

    @property
    def brought(self) -> int:
        """Channels that HBM delivers for the place."""
        return sum(len(channels) for _, channels in brought_by((self,)))


@lru_cache(maxsize=4096)
def brought_by(places: tuple[LanePlace, ...]) -> list[tuple[Tap, range]]:
    """Ranges of channels that HBM delivers for places filled together, tap by tap if lanes have different taps.

    An element goes to all lanes of a place at once, but to each place anew.
    """
    pieces: list[tuple[Tap, range]] = []
    for place in places:
        if isinstance(place.channels, range) and not place.taps:
            # A lane that holds the points of all taps gets them in one go, so the tap makes no difference.
            pieces.append(((0, 0), place.channels))
        else:
            taps = place.taps or ((0, 0),) * len(place.channels)
            pieces += [(tap, range(at, at + 1)) for tap, at in {*zip(taps, place.channels, strict=True)}]
    found: list[tuple[Tap, range]] = []
    for tap, channels in sorted(pieces, key=lambda piece: (piece[0], piece[1].start)):
        # Channels that continue another place's make one run of bytes with them.
        at = next((at for at, (other, held) in enumerate(found) if (other, held.stop) == (tap, channels.start)), None)
        if at is None:
            found.append((tap, channels))
        else:
            found[at] = tap, range(found[at][1].start, channels.stop)
    return found


@dataclass(frozen=True)
class Chunk:
    """Passes whose part of the ifmap, in `places`, is filled, used and replaced together, with their `numbers`.

    Passes of an outcome follow one another, and every chunk has some of each outcome. HBM delivers place by place; if
    the chunk is `scattered`, it delivers every element once, for all places.
    """

    passes: tuple[ReductionPass, ...]
    places: tuple[LanePlace, ...]
    numbers: range
    scattered: bool = False

    @cached_property
    def taps(self) -> frozenset[Tap]:
        """Taps of the chunk."""
        return frozenset(run.tap for each in self.passes for run in each.runs)

    @cached_property
    def sums(self) -> tuple[range, ...]:
        """Numbers of the passes of each outcome."""
        ends = accumulate((len([*each]) for _, each in groupby(self.passes, lambda each: each.outcome)), initial=0)
        return tuple(self.numbers[first:end] for first, end in pairwise(ends))

    @cached_property
    def tap_rows(self) -> range:
        """Filter rows from the first to the last of the chunk's taps."""
        rows, _ = zip(*self.taps, strict=True)
        return range(min(rows), max(rows) + 1)

    @cached_property
    def tap_cols(self) -> range:
        """Filter columns from the first to the last of the chunk's taps."""
        _, cols = zip(*self.taps, strict=True)
        return range(min(cols), max(cols) + 1)

    @cached_property
    def channels(self) -> list[int]:
        """Channels of the chunk, ascending."""
        return sorted({channel for place in self.places for channel in place.channels})

    @property
    def shares_points(self) -> bool:
        """Whether HBM delivers a point once for several taps, each of which stores it in words of its own."""
        return self.scattered and self.by_tap

    @property
    def one_by_one(self) -> bool:
        """Whether HBM delivers place after place."""
        return len(self.places) > 1 and not self.scattered

    def brought(self, places: range) -> list[tuple[Tap, range]]:
        """Ranges of channels that HBM delivers for some places, tap by tap if lanes have different taps."""
        if self.scattered:
            return [((0, 0), channels) for channels in neighbours(self.channels)]
        return brought_by(self.places[places.start : places.stop])

    def rotations(self, free: int, most: int | None) -> int:
        """How often a filled word is rotated into another lane group, over all places: for its copies beyond the `free`
        ones, `most` copies of a place at most.
        """
        # One copy comes from HBM; the others are rotated from it, some of them free of charge.
        copies = (len(place.first_lanes) for place in self.places)
        return sum(max(0, min(each, most or each) - free) for each in copies)

    @property
    def by_tap(self) -> bool:
        """Whether a lane holds the points of one tap only."""
        return bool(self.places[0].taps)


def numbered(parts: Sequence[tuple[Sequence[ReductionPass], Sequence[LanePlace]]]) -> tuple[Chunk, ...]:
    """Chunks of these passes and places, numbered one after another."""
    # Numbers go on from chunk to chunk, because sums of a block run through all of them.
    ends = [0, *accumulate(len(passes) for passes, _ in parts)]
    return tuple(
        Chunk(tuple(passes), tuple(places), range(first, end))
        for (passes, places), (first, end) in zip(parts, pairwise(ends), strict=True)
    )


def most_together(passes: Sequence[ReductionPass], taps: int | None, channels: int | None) -> int:
    """The largest number of passes such that no group of that many needs more taps or channels than given; at least
    1.
    """
    needs = [({run.tap for run in each.runs}, {c for run in each.runs for c in run.channels}) for each in passes]

    def fit(part: Sequence[tuple[set[Tap], set[int]]]) -> bool:
        needed = (len(set().union(*every)) for every in zip(*part, strict=True))
        return all(most is None or need <= most for need, most in zip(needed, (taps, channels), strict=True))

    # If some number of the first passes does not fit, no larger number does, so bisection finds an upper limit.
    first = bisect_left(range(1, len(needs) + 1), True, key=lambda size: not fit(needs[:size]))
    sizes = range(first, 1, -1)
    return next((size for size in sizes if all(fit(needs[at : at + size]) for at in range(0, len(needs), size))), 1)


def stacked(taps: Sequence[Tap], channels: range, place: int, outcome: int = 0) -> ReductionPass:
    """A pass in which each of `taps` has the channels of a place, tap after tap."""
    runs = [TapRun(number * len(channels), tap, channels, place) for number, tap in enumerate(taps)]
    return ReductionPass.of(runs, outcome)


@dataclass(frozen=True)
class Cut(ABC):
    """A way to cut the reduction, as a grid of passes: `folds` row folds of `groups` groups each.

    Attributes:
        shape: convolution that is cut, perhaps with channel groups in bundles.
        hardware: machine whose policy decides the cut.
        copies: whether lanes hold copies of the ifmap, so that their ports may bound its fill.
    """

    shape: ConvShape
    hardware: Hardware
    copies: ClassVar[bool] = False

    @property
    @abstractmethod
    def groups(self) -> int:
        """Number of groups in each row fold."""

    @abstractmethod
    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """The passes in chunks of `groups` groups and `folds` row folds."""

    @property
    def folds(self) -> int:
        """Number of places that the whole reduction takes, if it can be counted in advance; else 1."""
        return 1

    @property
    def together(self) -> int:
        """Groups that may be filled together: all, or one if each tap is fetched by itself."""
        return 1 if self.by_tap else self.groups

    @property
    def by_tap(self) -> bool:
        """Whether each tap is fetched by itself, so that a lane holds the points of a single tap."""
        return self.hardware.mapping.fetch == "per_tap" and self.shape.taps > 1

    @property
    def transposed(self) -> bool:
        """Whether the vector unit transposes the words of a pixel for each pass, so that no lane needs a copy."""
        return False

    @property
    def gathered(self) -> Fraction:
        """Taps whose channels are put side by side ahead of a transposition."""
        return Fraction(0)

    @property
    def per_fold(self) -> float:
        """Channels that HBM delivers for all folds of a group together, roughly."""
        return self.shape.channels

    @property
    def ruled(self) -> Cut | None:
        """The cut by the paper's rule, if another one is forced; else None."""
        return None

    @cached_property
    def whole(self) -> Chunk:
        """The whole reduction as one chunk."""
        (chunk,) = self.chunks(self.groups, self.folds)
        return chunk

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """Groups and folds on chip together, for at most `taps` and `channels`; None: any number."""
        return taps and self.groups, channels and self.folds

    # ---- what people are told

    @property
    def row_folds(self) -> int:
        """Number of portions of K or of the channels."""
        return self.folds

    @cached_property
    def multi_tile(self) -> int:
        """The most taps in a pass."""
        return max(len({run.tap for run in each.runs}) for each in self.whole.passes)

    @property
    def stacked(self) -> str:
        """Sentence about the taps of a pass; empty if there is nothing to tell."""
        return f"{self.multi_tile} stacked in a pass (multi-tile)" if self.multi_tile > 1 else ""

    def folded(self, into: str) -> str:
        """Words for the portions of the data that goes `into` the layer."""
        return f"{counted(self.folds, 'row fold')} for {into}"

    def size_of(self, groups: int) -> str:
        """Words for a number of groups."""
        return f"{counted(groups, 'group')} of taps"


@dataclass(frozen=True)
class TapGroups(Cut):
    """Taps stacked in groups (multi-tile), times row folds; a fold is a place, with a copy for each stacked tap."""

    @cached_property
    def multi_tile(self) -> int:
        """Taps stacked in a pass: min(R // C_I, W_F) (paper section VII), or the forced number if it fits.

        With `rows`, whole filter rows are stacked if several fit.
        """
        shape = self.shape
        # Channels beyond the rows of the array are cut into folds, so a pass has one tap at least.
        room = max(1, self.hardware.array.rows // shape.channels)
        wanted = self.hardware.mapping.multi_tile
        if isinstance(wanted, int):
            return min(room, wanted, shape.row.kernel * shape.col.kernel)
        if wanted == "rows" and room >= shape.col.kernel:
            return shape.col.kernel * min(shape.row.kernel, room // shape.col.kernel)
        return min(room, shape.col.kernel)

    @property
    def ruled(self) -> TapGroups | None:
        """The cut by the paper's rule, if another number is forced; else None."""
        if not isinstance(self.hardware.mapping.multi_tile, int):
            return None
        return replace(self, hardware=self.hardware.having("mapping", multi_tile="auto"))

    @property
    def folds(self) -> int:
        """Number of row folds."""
        return len(self._portions)

    @property
    def groups(self) -> int:
        """Number of groups of taps."""
        return len(self._stacks)

    @property
    def per_fold(self) -> float:
        """Channels of a place; if taps are fetched by themselves, for each tap of a group."""
        return self.shape.channels * (self.multi_tile if self.by_tap else 1)

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """Chunks of `groups` tap groups and `folds` row folds: row folds outside, tap groups inside."""
        return numbered([
            self._chunk(range(first, min(first + groups, self.groups)), range(at, min(at + folds, self.folds)))
            for at in range(0, self.folds, folds)
            for first in range(0, self.groups, groups)
        ])  # fmt: skip

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """Return the groups with at most `taps` taps, and the folds of the first `channels` channels."""
        folds = channels and sum(fold.start < channels for fold in self._portions)
        return taps and most_together(self._chunk(range(self.groups), range(1))[0], taps, None), folds

    def _chunk(self, stacks: range, folds: range) -> tuple[list[ReductionPass], list[LanePlace]]:
        passes = [self._stacked((number, fold, place)) for number in stacks for place, fold in enumerate(folds)]
        return passes, [self._place(self._stacks[stacks.start], self._portions[fold]) for fold in folds]

    @cached_property
    def _stacked(self) -> Callable[[tuple[int, int, int]], ReductionPass]:
        """The pass of a stack and a fold in a place; chunks of all sizes share them."""
        stacks, folds = self._stacks, self._portions

        @cache
        def made(of: tuple[int, int, int]) -> ReductionPass:
            number, fold, place = of
            return stacked(stacks[number], folds[fold], place)

        return made

    def _place(self, taps: Sequence[Tap], channels: range) -> LanePlace:
        if not self.by_tap:
            return LanePlace(tuple(copy * len(channels) for copy in range(self.multi_tile)), channels)
        # Taps that are fetched by themselves stand in lanes of their own, so nothing is copied.
        lanes = channels if len(taps) == 1 else (*channels,) * len(taps)
        return LanePlace((0,), lanes, tuple(tap for tap in taps for _ in channels))

    @cached_property
    def _stacks(self) -> tuple[tuple[Tap, ...], ...]:
        """Groups of taps in row-major order.

        A group stays within a filter row unless it is wider than one, and within the taps that a given block holds.
        """
        tile, height, width = self.multi_tile, self.shape.row.kernel, self.shape.col.kernel
        rows = [[(i, j) for j in range(width)] for i in range(height)]
        # A group wider than a filter row may run on into the next one.
        if tile > width:
            rows = [[tap for row in rows for tap in row]]
        held = taps_on_chip(self.shape, self.hardware)
        return tuple(tuple(row[at.start : at.stop]) for row in rows for at in portions(len(row), tile, held))

    @cached_property
    def _portions(self) -> list[range]:
        """Channels of a group in portions of at most R, and within the channels that a given block holds."""
        held = self.hardware.mapping.block.given.get("in_channels")
        return portions(self.shape.channels, self.hardware.array.rows, held)
