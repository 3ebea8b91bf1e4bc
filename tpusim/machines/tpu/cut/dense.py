"""Dense cuts: passes are filled with rows, wherever a tap or a channel ends.

Implicit GEMM, Google's compiler, first layers and the lowered matrix on chip have such cuts.

Implicit GEMM in blocks cuts M, K and N without regard to taps, channels and rows of the map. The shape of its loops is
that of Wave's convolution template; on a systolic array `block_k` is at most its rows, and a block and column fold
takes ceil(H_F W_F C_I / block_k) passes. Only the ifmap is stored more than once.

Channel-last implicit im2col (Lym et al., described in paper section II-C) has K in the order C_I, H_F, W_F. Without a
crossbar, a lane can only feed its own array row: neighbouring rows have neighbouring taps of one channel, so a channel
stands in as many lanes as it has taps, and the ifmap comes in copies. From banks, through a crossbar, every row gets
its words from where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import product
from math import prod

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import as_coordinates, padded, portions
from tpusim.machines.tpu.cut.geometry import alone, images_in_lanes, taps_on_chip
from tpusim.machines.tpu.cut.reduction import Chunk, Cut, LanePlace, ReductionPass, Tap, TapRun, most_together, numbered

TapRow = tuple[Tap, int]
"""Tap and channel of an array row of a pass."""


@dataclass(frozen=True)
class Dense(Cut):
    """Row r of pass p has element p * block_k + r of K, in the order `k_order`.

    A lane has a different channel in each pass, and holds a place for each one that differs within a chunk.
    """

    k_order: str = "channels_fastest"
    copies = True

    @cached_property
    def block_k(self) -> int:
        """Rows of a pass: the array's rows, or, among the numbers that need no more passes, the one with the fewest
        copies.

        If several have as few copies, the smallest is taken, for the fewest lanes.
        """
        rows, wanted = self.hardware.array.rows, self.hardware.mapping.block_k
        if isinstance(wanted, int):
            return min(wanted, rows, self._size)
        # Through the crossbar a row reads any word from any bank, so there are no copies to save.
        if self.hardware.banked:
            return min(rows, self._size)
        passes = -(-self._size // rows)
        least = range(-(-self._size // passes), min(rows, self._size) + 1)

        def copies(size: int) -> int:
            return len({self._reduced[number * size][1] for number in range(passes)})

        return min(least, key=lambda size: (copies(size), size))

    @property
    def groups(self) -> int:
        """Number of passes."""
        return len(self._rows)

    row_folds = groups

    @cached_property
    def per_fold(self) -> float:
        """Channels of a place, the mean over all places."""
        places = [place for chunk in self.chunks(self.together, 1) for place in chunk.places]
        return sum(place.brought for place in places) / len(places)

    @property
    def stacked(self) -> str:
        """Sentence about the taps of a pass."""
        order = "channel by channel" if self.k_order == "taps_fastest" else "tap by tap"
        return f"K = {self._size:,}, {order}, is cut into passes of {self.block_k} rows wherever a tap ends"

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """`groups` passes at a time."""
        every = range(self.groups)
        return numbered([self._chunk(every[at : at + groups]) for at in range(0, self.groups, groups)])

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """Return the most passes that need no more taps and channels than given."""
        if taps is None and channels is None:
            return None, None
        return most_together(self.whole.passes, taps, channels), 1

    def folded(self, into: str) -> str:
        """Portions of K, in words."""
        return f"{counted(self.groups, 'portion')} of K for {into}"

    def size_of(self, groups: int) -> str:
        """A number of passes, in words."""
        return "1 pass" if groups == 1 else f"{groups} passes"

    def _chunk(self, passes: range) -> tuple[list[ReductionPass], list[LanePlace]]:
        held: list[dict[TapRow, int]] = [{} for _ in range(max(len(self._rows[number]) for number in passes))]
        made, known = list[ReductionPass](), dict[tuple[TapRow, ...], tuple[int, ...]]()
        for number in passes:
            # A row whose points its lane does not hold yet gets a further place there; rows that did so have theirs.
            if (keys := self._keys[number]) not in known:
                places = (lane.setdefault(key, len(lane)) for key, lane in zip(keys, held, strict=False))
                known[keys] = tuple(places)
            made.append(self._placed(number, known[keys]))
        return made, [self._place(held, number) for number in range(max(map(len, held)))]

    @cached_property
    def _keys(self) -> list[tuple[TapRow, ...]]:
        """What lanes hold for the rows of every pass: a channel, under one tap if each tap has points of its own."""
        if self.by_tap:
            return [tuple(rows) for rows in self._rows]
        known = dict[tuple[TapRow, ...], tuple[TapRow, ...]]()
        every = (tuple([((0, 0), channel) for _, channel in rows]) for rows in self._rows)
        return [known.setdefault(keys, keys) for keys in every]

    @cached_property
    def _placed(self) -> Callable[[int, tuple[int, ...]], ReductionPass]:
        """A pass whose rows have such places; chunks of all sizes share them."""
        rows = self._rows

        @cache
        def made(number: int, places: tuple[int, ...]) -> ReductionPass:
            return ReductionPass.of([*_runs(rows[number], places)])

        return made

    def _place(self, held: Sequence[dict[TapRow, int]], number: int) -> LanePlace:
        """A place with the points that each lane holds under that number; a lane that needs none repeats its
        neighbour's.
        """
        lanes: list[TapRow] = []
        last = max(at for at, lane in enumerate(held) if len(lane) > number)
        for lane in held[: last + 1]:
            keys = [*lane]
            lanes.append(keys[number] if number < len(keys) else lanes[-1] if lanes else keys[-1])
        channels = [channel for _, channel in lanes]
        if self.by_tap:
            return LanePlace((0,), as_coordinates(channels), tuple(tap for tap, _ in lanes))
        # Stacked taps repeat the channels: one run of lanes and its copies say it shorter.
        period = next((at for at in range(1, len(channels)) if channels[at] == channels[0]), len(channels))
        copies, rest = divmod(len(channels), period)
        if rest or channels != channels[:period] * copies:
            copies, period = 1, len(channels)
        return LanePlace(tuple(range(0, copies * period, period)), as_coordinates(channels[:period]))

    @cached_property
    def _rows(self) -> list[list[TapRow]]:
        """Rows of every pass."""
        rows, size = self._reduced, self.block_k
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    @cached_property
    def _reduced(self) -> list[TapRow]:
        """Tap and channel of each element of K."""
        taps, channels = self.shape.every_tap, range(self.shape.channels)
        if self.k_order == "taps_fastest":
            return [(tap, channel) for channel in channels for tap in taps]
        return [(tap, channel) for tap in taps for channel in channels]

    @property
    def _size(self) -> int:
        return self.shape.taps * self.shape.channels


def _runs(rows: Sequence[TapRow], places: Sequence[int]) -> Iterator[TapRun]:
    """Runs of neighbouring rows with the same tap and place, and consecutive channels."""
    placed, first = [*zip(rows, places, strict=True)], 0
    for end in range(1, len(placed) + 1):
        (tap, channel), place = placed[first]
        if end == len(placed) or placed[end] != ((tap, channel + end - first), place):
            yield TapRun(first, tap, range(channel, channel + end - first), place)
            first = end


@dataclass(frozen=True)
class DenseTaps(Dense):
    """The cut that Google's compiler makes: passes are filled with taps of what is resident, across filter rows.

    Read off the instruction counts of 86 convolutions that it compiled for one core of a TPU v2 (docs/validation.md).

    T resident taps of c channels take ceil(T c / R) passes; ceil(T / floor(R / c)) where c is at most R / 2.

    c is C_I rounded up to whole words of weights. Up to R / 2 no tap is split; above, passes of R channels of a tap
    come first, and what is left of the channels is packed tap after tap, wherever one ends. Where weights lie with
    their input channels in lanes, none of at least R / 2 shares a pass.

    This is the compiler's code. Its estimate before that (`dense_rows`) differs: taps are split wherever
    a pass is full, but from R / 2 channels on no tap shares a pass with another filter row's, unless images lie in
    lanes; and where weights lie with their input channels in lanes, no tap shares a pass at all.

    Code for TPU v3 and v4 (`dense_taps`) splits no tap of up to R channels. Of more channels, the rest behind whole
    passes shares passes within a filter row.

    Elements that several passes need come from HBM once, and are written to every lane that uses them.
    """

    @property
    def transposed(self) -> bool:
        """Whether words are transposed, because images lie in lanes."""
        return images_in_lanes(self.shape, self.hardware) and not self.hardware.banked

    @cached_property
    def per_fold(self) -> float:
        """Channels of each place, if all places were filled at once."""
        return self.shape.channels / len(self.whole.places)

    @property
    def stacked(self) -> str:
        """Sentence about the taps of a pass."""
        split = any(len(run.channels) < self.shape.channels for each in self.whole.passes for run in each.runs)
        words = f"up to {self.multi_tile} stacked in a pass{', split where it is full' if split else ''} (dense)"
        told = [words] if self.multi_tile > 1 else []
        told += ["weights lie with their input channels in lanes: no two taps share a pass"] if self._alone else []
        return "; ".join([*told, *(["images lie in lanes, and are transposed"] if self.transposed else [])])

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """Chunks of `groups` passes; an element that is brought for one place is brought for all."""
        chunks = super().chunks(groups, folds)
        return chunks if self.by_tap else tuple(replace(chunk, scattered=len(chunk.places) > 1) for chunk in chunks)

    @cached_property
    def _rows(self) -> list[list[TapRow]]:
        """Rows of every pass: portions of the channels outside, windows of taps inside."""
        shape, given = self.shape, self.hardware.mapping.block.given
        taps = [divmod(at, shape.col.kernel) for at in range(shape.taps)]
        stacked, array = shape.taps, self.hardware.array.rows
        wide = (self._expected and 2 * shape.channels >= array) or (self._unsplit and shape.channels > array)
        if wide and not self.transposed:
            # Only taps of one filter row share a pass; a filter of one column counts as a row.
            stacked = shape.col.kernel if shape.col.kernel > 1 else shape.taps
        held, channels = taps_on_chip(shape, self.hardware), given.get("in_channels", shape.channels)
        parts, least = portions(shape.channels, channels), 0
        if "tap_cols" in given:
            # The last windows are whole, too: what they hold beyond the filter takes as long as what is within.
            rows, cols = self._window(held or shape.taps, given["tap_cols"])
            corners = product(range(0, shape.row.kernel, rows), range(0, shape.col.kernel, cols))
            held, least = rows * cols, min(channels, shape.channels)
            taps = [(i + down, j + across) for i, j in corners for down, across in product(range(rows), range(cols))]
            stacked = cols if stacked < shape.taps else held
        windows = portions(len(taps), stacked, held)
        return [
            rows
            for some, window in product(parts, windows)
            for rows in self._passes(taps[window.start : window.stop], some, least)
        ]

    def _window(self, taps: int, cols: int) -> tuple[int, int]:
        """Rows and columns of a window of taps."""
        wide = min(cols, self.shape.col.kernel)
        return max(1, min(taps // wide, self.shape.row.kernel)), wide

    @property
    def _expected(self) -> bool:
        """Whether passes are those of the compiler's estimate, not of its code."""
        return self.hardware.mapping.multi_tile == "dense_rows"

    @property
    def _unsplit(self) -> bool:
        """Whether no pass ends within a tap that fits the array."""
        return self.hardware.mapping.multi_tile == "dense_taps"

    @property
    def _alone(self) -> bool:
        return alone(self.shape, self.hardware)

    def _passes(self, taps: list[Tap], channels: range, least: int) -> Iterator[list[TapRow]]:
        """Passes of some taps over some channels, stacked as if there were `least` of these."""
        array = self.hardware.array.rows
        parts = [channels[part.start : part.stop] for part in portions(len(channels), array)]
        # Whole passes first: only the channels left over share passes among taps.
        rest = parts.pop() if len(parts[-1]) < array else range(0)
        for tap, part in product(taps, parts):
            yield [(tap, channel) for channel in part]
        rows = [(tap, channel) for tap in taps for channel in rest]
        size = 1
        if rest:
            width = len(rest) + max(0, least - len(channels))
            size = self._pass_rows(len(taps), width, whole=not parts)
            size = size if width == len(rest) else max(1, size // width) * len(rest)
        yield from (rows[at : at + size] for at in range(0, len(rows), size))

    def _pass_rows(self, taps: int, channels: int, whole: bool) -> int:
        """Rows of a pass that stacks `taps` of `channels` each, whole taps (`whole`) if several fit.

        Among the numbers that need no more passes than necessary, the one with the fewest places is taken.
        """
        array = self.hardware.array.rows
        held = min(padded(channels, self.hardware.vector_memory.word_elements), array)
        if self._alone:
            return channels
        if whole and held <= array / 2 and not self._expected:
            return array // held * channels
        if whole and self._unsplit:
            return channels
        every = taps * channels
        # Channels beyond the array are held in parts.
        passes = max(-(-taps * held // array), -(-every // array))
        sizes = range(-(-every // passes), min(array, every) + 1)
        return min(sizes, key=lambda size: len({number * size % channels for number in range(passes)}))


@dataclass(frozen=True)
class TransposedCut(Dense):
    """The cut of first layers: passes are as full as K allows, regardless of words of weights.

    There are ceil(H_F W_F C_I / R) passes. The lanes hold the ifmap as the transposition hands it on, ahead of the
    array; that takes its time for each word of a stream.
    """

    transposed = True

    @property
    def gathered(self) -> Fraction:
        """The taps that a pass has on the mean."""
        rows = self.shape.taps * self.shape.channels
        return Fraction(self.shape.taps, -(-rows // self.hardware.array.rows))

    @property
    def stacked(self) -> str:
        """Sentence about the taps of a pass."""
        free = "" if self.hardware.vector_unit.transpose_cycles else " that takes no time (transpose_cycles)"
        return f"{super().stacked}, fed through a transposition{free}"


class LaneMatrixCut(Dense):
    """The lowered matrix in the lanes, R rows of K a pass: written while the ifmap comes, and never in HBM.

    An element of the ifmap comes from HBM once for all rows of a chunk that have it, and is written to each.
    """

    by_tap = True
    together = Dense.groups

    @property
    def per_fold(self) -> float:
        """Channels of a pass that come from HBM: neighbouring outputs share the points between them."""
        axes = self.shape.row, self.shape.col
        return self.shape.channels * prod(min(axis.step, axis.kernel * axis.tap_step) for axis in axes) / self.groups

    @property
    def stacked(self) -> str:
        """Sentence about how the rows are made."""
        rows = f"{self.shape.taps * self.shape.channels:,} rows of the lowered matrix, {self.block_k} a pass"
        return f"{rows}, are written in the lanes while the ifmap comes"

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """Chunks of `groups` passes; an element that is brought for one place is brought for all."""
        return tuple(replace(chunk, scattered=True) for chunk in super().chunks(groups, folds))
