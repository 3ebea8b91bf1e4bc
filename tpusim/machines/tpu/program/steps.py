"""The waist of the hourglass: what a lowering produces and every engine runs.

A `Program` is a short list of steps (fill, preload, stream, spill) with vector-memory addresses and
dependencies. It says *what* happens in which order, never *when*: time belongs to the engines.

Vocabulary. A *word address* counts words within one lane's vector memory; every lane of a lane group uses
the same addresses, skewed in time by the machine. A word holds `word_fill` elements: the same pixel and
channel of neighbouring images (HWCN, paper section IV-A) and, when the batch is smaller than a word, of
several horizontal strips of the map. Tensors are indexed

* ifmap  `[in_channel, row, col, image]`
* filter `[out_channel, tap_row, tap_col, in_channel of the group]`
* ofmap  `[out_channel, row, col, image]`

The steps of a Program stand in an order that is valid when executed one at a time; engines that overlap
them may only rely on `after` (indices of steps that must be done) and on each unit taking its own steps in
list order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias

Shape: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """Nested counters (row, col, word group) that walk an ifmap block as stored in one lane.

    At counts `(h, w, g)` the generator stands on grid point `(i, j) = start + (h, w) * step` and reads word
    `base + (i * extent_cols + j) * groups + g`; outside `extent` the element is padding: zero, no access.
    """

    base: int
    counts: tuple[int, int, int]
    start: tuple[int, int]
    step: tuple[int, int]
    extent: tuple[int, int]

    @property
    def words(self) -> int:
        """Words walked over, padding included."""
        return prod(self.counts)

    def inside(self, axis: int) -> range:
        """The counts along `axis` (0 row, 1 col) whose grid point is stored."""
        start, step, count = self.start[axis], self.step[axis], self.counts[axis]
        first = min(count, max(0, -(start // step)))
        last = (self.extent[axis] - 1 - start) // step
        return range(first, max(first, min(last + 1, count)))

    @property
    def accesses(self) -> int:
        """Words really read from the port: those inside the stored extent."""
        return len(self.inside(0)) * len(self.inside(1)) * self.counts[2]


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """Neighbouring lanes `[first_lane, first_lane + lanes)` that read with one pattern: one tap of a pass."""

    first_lane: int
    lanes: int
    pattern: AddressPattern


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular part of a feature map: ranges of channels, rows, cols (perhaps strided) and images."""

    channels: range
    rows: range
    cols: range
    images: range


def inside(rows: range, shift: int, extent: int) -> range:
    """The part of `rows`, displaced by `shift`, that lies in `[0, extent)`."""
    first = max(0, -((rows.start + shift) // rows.step))
    count = max(0, min(len(rows), (extent - 1 - rows.start - shift) // rows.step + 1))
    moved = range(rows.start + shift, rows.stop + shift, rows.step)
    return moved[first:count] if first < count else range(0)


@dataclass(frozen=True, slots=True)
class IfmapFill:
    """HBM -> lanes. Channel `c` of fold `f` goes to lane `t * fold_channels + c % fold_channels`, copy `t`.

    Word of grid point `(i, j)`, group `g`: `base + f * fold_stride + (i * cols + j) * groups + g`.
    """

    after: tuple[int, ...]
    box: Box
    base: int
    fold_channels: int
    fold_stride: int
    copies: int
    words: int
    lane_words: int
    hbm_bytes: int


@dataclass(frozen=True, slots=True)
class FilterTile:
    """The weights of one pass: array row `t * len(channels) + c` holds tap `t`, channel `c`."""

    base: int
    taps: tuple[tuple[int, int], ...]
    channels: range
    out_channels: range

    @property
    def rows(self) -> int:
        """Array rows occupied."""
        return len(self.taps) * len(self.channels)


@dataclass(frozen=True, slots=True)
class FilterFill:
    """HBM -> lanes: the tiles of one or more passes; lane `c` takes the weights of array column `c`."""

    after: tuple[int, ...]
    tiles: tuple[FilterTile, ...]
    words: int
    lane_words: int
    hbm_bytes: int


@dataclass(frozen=True, slots=True)
class Preload:
    """Vector memory -> weight registers of the array: `rows` x `cols` weights from word `base` on."""

    after: tuple[int, ...]
    base: int
    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class Stream:
    """One pass: `words` words a lane go through the array; column `c` collects into lane `c`, contiguously.

    `preload` is the step that loads its weights. With `accumulate`, results are added to the words already
    at `result_base` by the vector unit.
    """

    after: tuple[int, ...]
    preload: int
    reads: tuple[LaneGroup, ...]
    result_base: int
    words: int
    rows: int
    cols: int
    accumulate: bool


@dataclass(frozen=True, slots=True)
class Spill:
    """Lanes -> HBM: the finished outputs of a block and column fold, from word `base` on."""

    after: tuple[int, ...]
    box: Box
    base: int
    words: int
    lane_words: int
    hbm_bytes: int


Transfer: TypeAlias = IfmapFill | FilterFill | Spill
Step: TypeAlias = IfmapFill | FilterFill | Preload | Stream | Spill


@dataclass(frozen=True)
class Program:
    """One layer, lowered for one machine.

    `word_fill` (E) is how many elements of a word are in use. With one strip, that is how many images share
    a word: `ceil(batch / ceil(batch / W))`. With more, element `strip * images + image` belongs to the row
    `strip * ifmap_strip` (of the ofmap: `strip * ofmap_strip`) further down; rows past the end hold nothing.
    """

    steps: tuple[Step, ...]
    images: int
    word_fill: int
    strips: int
    ifmap_strip: int
    ofmap_strip: int
    ifmap_shape: Shape
    filter_shape: Shape
    ofmap_shape: Shape
    multi_tile: int
    peak_words: int
    ifmap_words: int

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """The passes, in the order the array takes them."""
        return tuple(step for step in self.steps if isinstance(step, Stream))

    @cached_property
    def accumulates(self) -> bool:
        """Whether any pass adds to partial sums: such a layer owns a partial-sum slot throughout."""
        return any(step.accumulate for step in self.streams)
