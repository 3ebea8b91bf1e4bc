"""Dense cuts: passes of many rows, without regard to where a tap or a channel ends.

That of implicit GEMM, of Google's compiler, of first layers, and of the lowered matrix on chip.

Implicit GEMM in blocks cuts M, K and N without regard to taps, channels and rows of the map. The shape of its loops is
that of Wave's convolution template; on a systolic array `block_k` is at most its rows, and a block and column fold
takes ceil(H_F W_F C_I / block_k) passes. Nothing but the ifmap is there more than once.

Channel-last implicit im2col (Lym et al., as paper section II-C tells it) has K in the order C_I, H_F, W_F. Without a
crossbar, a lane can only feed its own array row: neighbouring rows have neighbouring taps of one channel, so a channel
stands in as many lanes as it has taps, and the ifmap comes in copies. From banks, through a crossbar, every row gets
its words where they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import as_coordinates, padded, portions
from tpusim.machines.tpu.cut.geometry import channels_in_lanes, images_in_lanes, taps_on_chip
from tpusim.machines.tpu.cut.reduction import Chunk, Cut, LanePlace, ReductionPass, Tap, TapRun, most_together, numbered

TapRow = tuple[Tap, int]
"""What an array row of a pass has: a tap and a channel."""


@dataclass(frozen=True)
class Dense(Cut):
    """Row r of pass p has element p * block_k + r of K, in the order `k_order`.

    A lane has other channels from pass to pass: it holds as many places as it has different ones in a chunk.
    """

    k_order: str = "channels_fastest"
    copies = True

    @cached_property
    def block_k(self) -> int:
        """Rows a pass; the rows of the array, or of the numbers that need no more passes the one with fewest copies.

        Of several with as few, the smallest: the fewest lanes.
        """
        rows, wanted = self.hardware.array.rows, self.hardware.mapping.block_k
        if isinstance(wanted, int):
            return min(wanted, rows, self._size)
        # From banks a row finds any word where it stands: there are no copies.
        if self.hardware.banked:
            return min(rows, self._size)
        passes = -(-self._size // rows)
        least = range(-(-self._size // passes), min(rows, self._size) + 1)

        def copies(size: int) -> int:
            return len({self._pair(number * size)[1] for number in range(passes)})

        return min(least, key=lambda size: (copies(size), size))

    @property
    def groups(self) -> int:
        """Passes."""
        return len(self._rows)

    row_folds = groups

    @cached_property
    def per_fold(self) -> float:
        """Channels that a place has, the mean of all."""
        places = [place for chunk in self.chunks(self.together, 1) for place in chunk.places]
        return sum(place.brought for place in places) / len(places)

    @property
    def stacked(self) -> str:
        """What is told of the taps of a pass."""
        order = "channel by channel" if self.k_order == "taps_fastest" else "tap by tap"
        return f"K = {self._size:,}, {order}, is cut into passes of {self.block_k} rows wherever a tap ends"

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """`groups` passes at a time."""
        return numbered([self._chunk(self._rows[at : at + groups]) for at in range(0, self.groups, groups)])

    def held(self, taps: int | None, channels: int | None) -> tuple[int | None, int | None]:
        """As many passes as need no more of either."""
        if taps is None and channels is None:
            return None, None
        return most_together(self.whole.passes, taps, channels), 1

    def folded(self, into: str) -> str:
        """Portions of K, in words."""
        return f"{counted(self.groups, 'portion')} of K for {into}"

    def size_of(self, groups: int) -> str:
        """A number of passes, in words."""
        return "1 pass" if groups == 1 else f"{groups} passes"

    def _chunk(self, passes: Sequence[Sequence[TapRow]]) -> tuple[list[ReductionPass], list[LanePlace]]:
        held: list[dict[TapRow, int]] = [{} for _ in range(max(map(len, passes)))]
        made = []
        for rows in passes:
            # A lane that has a row's points nowhere gets a place more.
            keys = rows if self.by_tap else [((0, 0), channel) for _, channel in rows]
            places = [lane.setdefault(key, len(lane)) for key, lane in zip(keys, held, strict=False)]
            made.append(ReductionPass.of([*_runs(rows, places)]))
        return made, [self._place(held, number) for number in range(max(map(len, held)))]

    def _place(self, held: Sequence[dict[TapRow, int]], number: int) -> LanePlace:
        """What the lanes hold as their place of that number; a lane between others that needs none has a copy."""
        lanes: list[TapRow] = []
        last = max(at for at, lane in enumerate(held) if len(lane) > number)
        for lane in held[: last + 1]:
            keys = [*lane]
            lanes.append(keys[number] if number < len(keys) else lanes[-1] if lanes else keys[-1])
        channels = [channel for _, channel in lanes]
        if self.by_tap:
            return LanePlace((0,), as_coordinates(channels), tuple(tap for tap, _ in lanes))
        period = next((at for at in range(1, len(channels)) if channels[at] == channels[0]), len(channels))
        copies, rest = divmod(len(channels), period)
        if rest or channels != channels[:period] * copies:
            copies, period = 1, len(channels)
        return LanePlace(tuple(range(0, copies * period, period)), as_coordinates(channels[:period]))

    @cached_property
    def _rows(self) -> list[list[TapRow]]:
        """The rows of every pass."""
        width, size = self.shape.col.kernel, self.block_k
        pairs = (self._pair(at) for at in range(self._size))
        rows = [(divmod(tap, width), channel) for tap, channel in pairs]
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    def _pair(self, at: int) -> tuple[int, int]:
        """The tap, counted row by row, and the channel of element `at` of K."""
        if self.k_order == "taps_fastest":
            channel, tap = divmod(at, self.shape.taps)
            return tap, channel
        return divmod(at, self.shape.channels)

    @property
    def _size(self) -> int:
        return self.shape.taps * self.shape.channels


def _runs(rows: Sequence[TapRow], places: Sequence[int]) -> Iterator[TapRun]:
    """Neighbouring rows together that have a tap and a place in common, and channels that follow one another."""
    placed, first = [*zip(rows, places, strict=True)], 0
    for end in range(1, len(placed) + 1):
        (tap, channel), place = placed[first]
        if end == len(placed) or placed[end] != ((tap, channel + end - first), place):
            yield TapRun(first, tap, range(channel, channel + end - first), place)
            first = end


DENSE = "dense", "dense_taps", "dense_rows"
"""Ways of `mapping.multi_tile` that fill passes so."""


@dataclass(frozen=True)
class DenseTaps(Dense):
    """The cut that Google's compiler makes: passes are filled with taps of what is resident, across filter rows.

    Read off the instruction counts of 86 convolutions that it compiled for one core of a TPU v2 (docs/validation.md).

    T resident taps of c channels take ceil(T c / R) passes; ceil(T / floor(R / c)) where c is at most R / 2.

    c is C_I rounded up to whole words of weights. Up to R / 2 no tap is split; above, passes of R channels of a tap
    come first, and what is left of the channels is packed tap after tap, wherever one ends. Where weights lie with
    their input channels in lanes, none of at least R / 2 shares a pass.

    So the code; what the compiler expects before it writes it (`dense_rows`) is less and more: taps are split wherever
    a pass is full, but from R / 2 channels on none shares a pass with one of another filter row, unless images lie in
    lanes, and where weights lie with their input channels in lanes, none with any other.

    Code for TPU v3 and v4 (`dense_taps`) splits no tap of up to R channels. Of more, what is left of the channels
    shares passes within a filter row.

    What passes have in common comes from HBM once, and is written to every lane that has a use for it.
    """

    @property
    def transposed(self) -> bool:
        """Where images lie in lanes."""
        return images_in_lanes(self.shape, self.hardware) and not self.hardware.banked

    @cached_property
    def per_fold(self) -> float:
        """Channels for each place, if all came at once."""
        return self.shape.channels / len(self.whole.places)

    @property
    def stacked(self) -> str:
        """What is told of the taps of a pass."""
        split = any(len(run.channels) < self.shape.channels for each in self.whole.passes for run in each.runs)
        words = f"up to {self.multi_tile} stacked in a pass{', split where it is full' if split else ''} (dense)"
        told = [words] if self.multi_tile > 1 else []
        told += ["weights lie with their input channels in lanes: no two taps share a pass"] if self._alone else []
        return "; ".join([*told, *(["images lie in lanes, and are transposed"] if self.transposed else [])])

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """`groups` passes at a time; what comes for one place is there for all."""
        chunks = super().chunks(groups, folds)
        return chunks if self.by_tap else tuple(replace(chunk, scattered=len(chunk.places) > 1) for chunk in chunks)

    @cached_property
    def _rows(self) -> list[list[TapRow]]:
        """The rows of every pass: portions of the channels outside, windows of taps inside."""
        shape, given = self.shape, self.hardware.mapping.block.given
        taps = [divmod(at, shape.col.kernel) for at in range(shape.taps)]
        stacked, array = shape.taps, self.hardware.array.rows
        wide = (self._expected and 2 * shape.channels >= array) or (self._unsplit and shape.channels > array)
        if wide and not self.transposed:
            # Among the taps of a filter row; one column counts as a row.
            stacked = shape.col.kernel if shape.col.kernel > 1 else shape.taps
        windows = portions(shape.taps, stacked, taps_on_chip(shape, self.hardware))
        parts = portions(shape.channels, given.get("in_channels", shape.channels))
        return [
            rows
            for channels, window in product(parts, windows)
            for rows in self._passes(taps[window.start : window.stop], channels)
        ]

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
        """Whether no tap shares a pass, as weights lie with their input channels in lanes."""
        few = 2 * self.shape.channels < self.hardware.array.rows and not self._expected
        return channels_in_lanes(self.shape, self.hardware) and not few

    def _passes(self, taps: list[Tap], channels: range) -> Iterator[list[TapRow]]:
        """The passes of some taps over some channels."""
        array = self.hardware.array.rows
        parts = [channels[part.start : part.stop] for part in portions(len(channels), array)]
        rest = parts.pop() if len(parts[-1]) < array else range(0)
        for tap, part in product(taps, parts):
            yield [(tap, channel) for channel in part]
        rows = [(tap, channel) for tap in taps for channel in rest]
        size = self._pass_rows(len(taps), len(rest), whole=not parts) if rest else 1
        yield from (rows[at : at + size] for at in range(0, len(rows), size))

    def _pass_rows(self, taps: int, channels: int, whole: bool) -> int:
        """Rows a pass, where `taps` of `channels` each are stacked, `whole` ones if several fit.

        Of the numbers that need no more passes than they must, the one with the fewest places.
        """
        array = self.hardware.array.rows
        held = min(padded(channels, self.hardware.vector_memory.word_elements), array)
        if self._alone:
            return channels
        if whole and held <= array / 2 and not self._expected:
            return array // held * channels
        if whole and self._unsplit:
            return channels
        passes, every = -(-taps * held // array), taps * channels
        sizes = range(-(-every // passes), min(array, every) + 1)
        return min(sizes, key=lambda size: len({number * size % channels for number in range(passes)}))


@dataclass(frozen=True)
class Transposed(Dense):
    """The cut of first layers: passes as full as K allows, whatever a word of weights holds.

    There are ceil(H_F W_F C_I / R) of them. The lanes hold the ifmap as the transposition hands it on, ahead of the
    array; that takes its time for each word of a stream.
    """

    transposed = True

    @property
    def stacked(self) -> str:
        """What is told of the taps of a pass."""
        free = "" if self.hardware.vector_unit.transpose_cycles else " that takes no time (transpose_cycles)"
        return f"{super().stacked}, fed through a transposition{free}"


class OnChip(Dense):
    """The lowered matrix in the lanes, R rows of K a pass: written while the ifmap comes, and never in HBM.

    An element of the ifmap comes from HBM once for all rows of a chunk that have it, and is written to each.
    """

    by_tap = True
    together = Dense.groups

    @property
    def per_fold(self) -> float:
        """Channels a pass of what comes once: outputs are as many points of it as their steps are long."""
        axes = self.shape.row, self.shape.col
        return self.shape.channels * prod(min(axis.step, axis.kernel * axis.tap_step) for axis in axes) / self.groups

    @property
    def stacked(self) -> str:
        """How the rows come about."""
        rows = f"{self.shape.taps * self.shape.channels:,} rows of the lowered matrix, {self.block_k} a pass"
        return f"{rows}, are written in the lanes while the ifmap comes"

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """`groups` passes at a time."""
        return tuple(replace(chunk, scattered=True) for chunk in super().chunks(groups, folds))
