"""How the ifmap is cut for the transformation of explicit im2col: rows roll through a window in the vector memories.

The window is a ring of grid rows. A *unit* of work brings the rows that are new to it, and writes the lowered rows of
some outputs. Rows that outputs share are brought once, as long as the window holds whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.cuts import halves
from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.maps import portions
from tpusim.machines.tpu.lowering.reduction import Tap
from tpusim.machines.tpu.lowering.tiling import word_groups
from tpusim.memory.layout import whole_bursts

SLACK = 1.02
"""Among windows that cost so much more than the best, the smallest is taken: the product has use for the memory."""


@dataclass(frozen=True, slots=True)
class RollingWindow:
    """The extents of a unit: outputs by rows and columns, word groups, taps, and portions of the channels.

    Attributes:
        depth: grid rows that the ring holds.
        pitch: words of one of them, in each lane.
        ahead: units whose rows it has room for.
    """

    rows: int
    cols: int
    groups: int
    taps: int
    portions: int
    depth: int
    pitch: int
    ahead: int

    @property
    def words(self) -> int:
        """Words that a lane needs: a ring for each portion of the channels."""
        return self.portions * self.depth * self.pitch


@dataclass(frozen=True, slots=True)
class WindowUnit:
    """Outputs whose lowered rows are written together, for some taps and portions of the channels.

    Rows of the ring are numbered on and on; grid row 0 would be number `origin`. Those in `live` are read, and those
    in `new` of them have to be filled first.
    """

    groups: range
    taps: tuple[Tap, ...]
    portions: range
    cols: range
    rows: range
    origin: int
    live: range
    new: range

    @property
    def grid(self) -> range:
        """The grid rows that are filled."""
        return range(self.new.start - self.origin, self.new.stop - self.origin)


def taps_of(shape: ConvShape) -> tuple[Tap, ...]:
    """In the order of the filter."""
    return tuple(product(range(shape.row.kernel), range(shape.col.kernel)))


def channel_portions(shape: ConvShape, hardware: Hardware) -> list[range]:
    """The channels of all groups, as many at a time as there are lanes."""
    return portions(shape.groups * shape.channels, hardware.lanes)


def tap_chunks(shape: ConvShape, taps: int) -> list[tuple[Tap, ...]]:
    """So many at a time."""
    every = taps_of(shape)
    return [every[part.start : part.stop] for part in portions(len(every), taps)]


def span(taps: tuple[Tap, ...], axis: int) -> range:
    """From the first to the last of the taps, by rows (0) or columns (1)."""
    places = [tap[axis] for tap in taps]
    return range(min(places), max(places) + 1)


def units(shape: ConvShape, hardware: Hardware, window: RollingWindow) -> Iterator[WindowUnit]:
    """Word groups outside; then taps, portions of the channels and columns; rows roll inside."""
    groups, _ = word_groups(shape.word_images, hardware.vector_memory.word_elements)
    number, at = len(channel_portions(shape, hardware)), 0
    downwards = portions(shape.row.extent, window.rows)
    for images, taps, held, cols in product(
        portions(groups, window.groups),
        tap_chunks(shape, window.taps),
        portions(number, window.portions),
        portions(shape.col.extent, window.cols),
    ):
        if not shape.col.stored(cols, span(taps, 1)):
            # All padding.
            none = range(at, at)
            yield from (WindowUnit(images, taps, held, cols, rows, at, none, none) for rows in downwards)
            continue
        for rows, live, new, origin in _rolling(shape.row, downwards, span(taps, 0), at):
            yield WindowUnit(images, taps, held, cols, rows, origin, live, new)
            at = live.stop


def _rolling(
    axis: MapAxis, downwards: list[range], taps: range, first: int
) -> Iterator[tuple[range, range, range, int]]:
    """(rows, live, new, origin) of the units of one roll, whose first stored row is number `first`."""
    origin = first - axis.stored(range(axis.extent), taps).start
    filled = first
    for rows in downwards:
        stored = axis.stored(rows, taps)
        live = range(origin + stored.start, origin + stored.stop)
        live = live if live else range(filled, filled)
        new = range(max(filled, live.start), max(filled, live.stop))
        yield rows, live, new, origin
        filled = max(filled, live.stop)


# ---- which window

LEAST_WORDS = 1
"""A lane can do with one word: that of one output, one tap and one portion of the channels."""


@lru_cache(maxsize=1 << 14)
def window_of(shape: ConvShape, hardware: Hardware, words: int) -> RollingWindow | None:
    """The smallest window of those that cost little more than the cheapest in so many words; None where none fits."""
    for windows in _ways(shape, hardware):
        costs = [(_cost(shape, hardware, each), each) for each in windows if each.words <= words]
        if costs:
            most = SLACK * min(cost for cost, _ in costs)
            return min((each for cost, each in costs if cost <= most), key=lambda each: each.words)
    return None


def _ways(shape: ConvShape, hardware: Hardware) -> Iterator[list[RollingWindow]]:
    """Better ones first: all taps together and all channels, then fewer; whole rows, then narrower parts of them."""
    groups, _ = word_groups(shape.word_images, hardware.vector_memory.word_elements)
    every, number = len(taps_of(shape)), len(channel_portions(shape, hardware))
    for taps, held in product(sorted({every, shape.col.kernel, 1}, reverse=True), sorted({number, 1}, reverse=True)):
        for cols in halves(shape.col.extent):
            extents = product(halves(shape.row.extent), halves(groups), (2, 1))
            yield [_window(shape, rows, cols, images, taps, held, ahead) for rows, images, ahead in extents]


def _window(shape: ConvShape, rows: int, cols: int, groups: int, taps: int, held: int, ahead: int) -> RollingWindow:
    """With a ring for so many units at once."""
    chunks, row, col = tap_chunks(shape, taps), shape.row, shape.col
    widths = (len(col.stored(each, span(some, 1))) for some in chunks for each in portions(col.extent, cols))
    depth = max(_depth(row, rows * ahead, span(some, 0)) for some in chunks)
    return RollingWindow(rows, cols, groups, taps, held, max(1, depth), groups * max(1, *widths), ahead)


def _depth(axis: MapAxis, outputs: int, taps: range) -> int:
    """Grid rows that so many neighbouring outputs need."""
    reach = (min(outputs, axis.extent) - 1) * axis.step + (len(taps) - 1) * axis.tap_step + 1
    return min(reach, len(axis.stored(range(axis.extent), taps)))


def again_of(shape: ConvShape, window: RollingWindow) -> float:
    """The part of the columns that is brought again, as parts that are unfolded one after another share it."""
    wide = once = 0
    for taps in tap_chunks(shape, window.taps):
        wide += _wide(shape.col, taps, window.cols)
        once += _wide(shape.col, taps, shape.col.extent)
    return wide / once - 1 if once else 0


def _wide(axis: MapAxis, taps: tuple[Tap, ...], cols: int) -> int:
    """Grid columns that are stored for all outputs, so many of them at a time."""
    return sum(len(axis.stored(each, span(taps, 1))) for each in portions(axis.extent, cols))


def _cost(shape: ConvShape, hardware: Hardware, window: RollingWindow) -> float:
    """Cycles of the bus, roughly: what is brought and written, and for each unit a turn, or two where it must wait."""
    row, col, memory = shape.row, shape.col, hardware.vector_memory
    groups, fill = word_groups(shape.word_images, memory.word_elements)
    words = len(taps_of(shape)) * row.extent * col.extent
    for taps in tap_chunks(shape, window.taps):
        words += len(row.stored(range(row.extent), span(taps, 0))) * _wide(col, taps, window.cols)
    elements = words * groups * fill * shape.groups * shape.channels
    # A run of images that is not all of them is rounded up to whole bursts.
    run = window.groups * fill * memory.element_bytes
    waste = 1 if window.groups == groups else whole_bursts(run, hardware.hbm.burst_bytes) / run
    moved = elements * memory.element_bytes * waste / float(hardware.hbm_bytes_per_cycle)
    return moved + sum(1 for _ in units(shape, hardware, window)) * hardware.latency_cycles * (3 - window.ahead)
