"""The dense cut of implicit GEMM: K in passes of `block_k` rows, without regard to where a tap or a channel ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape
from tpusim.machines.tpu.lowering.reduction import (
    Chunk,
    Place,
    ReductionPass,
    Run,
    Tap,
    as_coordinates,
    most_together,
    numbered,
)
from tpusim.machines.tpu.program.tensor import Coordinates

IGNORED = frozenset({"transformation", "multi_tile", "transposed_channels"})
"""Fields below `mapping` that mean nothing to a dense cut of a reduction in lanes."""

Row = tuple[Tap, int]
"""What an array row of a pass has: a tap and a channel."""
_Key = tuple[Tap, int] | int
"""What a lane holds for a row: a channel's points under every tap, or under one."""


@dataclass(frozen=True)
class Dense:
    """Row r of pass p has element p * block_k + r of K, in the order `k_order`.

    A lane has other channels from pass to pass: it holds as many places as it has different ones in a chunk.
    """

    shape: ConvShape
    hardware: Hardware
    k_order: str = "channels_fastest"
    folds = 1
    copies = True
    ruled = None

    @cached_property
    def block_k(self) -> int:
        """Rows a pass; the rows of the array, or of the numbers that need no more passes the one with fewest copies.

        Of several with as few, the smallest: the fewest lanes.
        """
        rows, wanted = self.hardware.array.rows, self.hardware.mapping.block_k
        if isinstance(wanted, int):
            return min(wanted, rows, self._size)
        passes = -(-self._size // rows)
        least = range(-(-self._size // passes), min(rows, self._size) + 1)
        return min(least, key=lambda size: (self._copies(size, passes), size))

    @property
    def transposed(self) -> bool:
        """No: lanes have copies."""
        return False

    @property
    def groups(self) -> int:
        """Passes."""
        return -(-self._size // self.block_k)

    row_folds = groups

    @property
    def together(self) -> int:
        """All passes, or one where each has the points of its own taps."""
        return 1 if self.by_tap else self.groups

    @cached_property
    def per_fold(self) -> float:
        """Channels that a place has, the mean of all."""
        places = [place for chunk in self.chunks(self.together, 1) for place in chunk.places]
        return sum(place.brought for place in places) / len(places)

    @cached_property
    def multi_tile(self) -> int:
        """Taps in a pass, at most."""
        return max(len({run.tap for run in each.runs}) for each in self.chunks(self.groups, 1)[0].passes)

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
        passes = self.chunks(self.groups, 1)[0].passes
        return most_together(passes, taps, channels), 1

    def folded(self, into: str) -> str:
        """Portions of K, in words."""
        return f"{counted(self.groups, 'portion')} of K for {into}"

    def size_of(self, groups: int) -> str:
        """So many groups, in words."""
        return "1 pass" if groups == 1 else f"{groups} passes"

    def _chunk(self, passes: Sequence[Sequence[Row]]) -> tuple[list[ReductionPass], list[Place]]:
        held: list[dict[_Key, int]] = [{} for _ in range(max(map(len, passes)))]
        each = [ReductionPass.of([*_runs(rows, self._placed(rows, held))]) for rows in passes]
        return each, [self._place(held, number) for number in range(max(map(len, held)))]

    def _placed(self, rows: Sequence[Row], held: Sequence[dict[_Key, int]]) -> Iterator[int]:
        """The place in which each row of a pass finds its points; a lane that has them nowhere gets one more."""
        for row, lane in zip(rows, held, strict=False):
            yield lane.setdefault(row if self.by_tap else row[1], len(lane))

    def _place(self, held: Sequence[dict[_Key, int]], number: int) -> Place:
        """What the lanes hold as their place of that number; a lane between others that needs none has a copy."""
        lanes: list[_Key] = []
        last = max(at for at, lane in enumerate(held) if len(lane) > number)
        for lane in held[: last + 1]:
            keys = [*lane]
            lanes.append(keys[number] if number < len(keys) else lanes[-1] if lanes else keys[-1])
        rows = [key if isinstance(key, tuple) else ((0, 0), key) for key in lanes]
        if self.by_tap:
            return Place((0,), as_coordinates([channel for _, channel in rows]), tuple(tap for tap, _ in rows))
        return Place(*_copies([channel for _, channel in rows]))

    @cached_property
    def _rows(self) -> list[list[Row]]:
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

    def _copies(self, size: int, passes: int) -> int:
        """Places that lane 0 needs with passes of `size` rows."""
        return len({self._pair(number * size)[1] for number in range(passes)})

    @property
    def by_tap(self) -> bool:
        """Whether a lane holds points of one tap only."""
        return self.hardware.mapping.fetch == "per_tap" and self.shape.taps > 1

    @property
    def _size(self) -> int:
        return self.shape.taps * self.shape.channels


class DenseFromBanks(Dense):
    """The dense cut for rows that find any word where it stands: no copies, so that a pass may have all rows."""

    @cached_property
    def block_k(self) -> int:
        """Rows a pass: those wanted, or all of the array."""
        wanted, rows = self.hardware.mapping.block_k, self.hardware.array.rows
        return min(wanted if isinstance(wanted, int) else rows, rows, self._size)


def dense(shape: ConvShape, hardware: Hardware, k_order: str) -> Dense:
    """The dense cut for lanes, or for banks."""
    return (DenseFromBanks if hardware.banked else Dense)(shape, hardware, k_order)


def _runs(rows: Sequence[Row], places: Iterable[int]) -> Iterator[Run]:
    """Neighbouring rows together that have a tap and a place in common, and channels that follow one another."""
    placed, first = [*zip(rows, places, strict=True)], 0
    for end in range(1, len(placed) + 1):
        (tap, channel), place = placed[first]
        if end == len(placed) or placed[end] != ((tap, channel + end - first), place):
            yield Run(first, tap, range(channel, channel + end - first), place)
            first = end


def _copies(channels: list[int]) -> tuple[tuple[int, ...], Coordinates]:
    """Where each copy of the lanes' channels begins, and the channels of one."""
    period = next((at for at in range(1, len(channels)) if channels[at] == channels[0]), len(channels))
    copies, rest = divmod(len(channels), period)
    if rest or channels != channels[:period] * copies:
        copies, period = 1, len(channels)
    return tuple(range(0, copies * period, period)), as_coordinates(channels[:period])
