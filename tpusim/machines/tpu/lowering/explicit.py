"""Explicit im2col (paper section II-B): the lowered matrix is written to HBM, and then multiplied.

The product is channel-first's own of a 1x1 convolution, whose ifmap is the lowered matrix. Where the ifmap is that
already, as for a matrix product, nothing is transformed. The lowered matrix may also stay on chip, block by block.

The transformation rolls rows of the ifmap through a window, and leaves lowered rows in HBM. The window is a ring of
grid rows in the vector memories. A *unit* of work brings the rows that are new to it, and writes the lowered rows of
some outputs, a copy for each tap. Rows that outputs share are brought once, as long as the window holds whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, lru_cache, partial
from itertools import product
from typing import NamedTuple

from tpusim.base.errors import CapacityError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import CHANNEL, Block, Patch, alike, halves, neighbours, portions
from tpusim.machines.tpu.cut.dense import LaneMatrixCut
from tpusim.machines.tpu.cut.geometry import ConvShape, MapAxis, ifmap_of, padded_map, shape_of
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import Tap, TapGroups
from tpusim.machines.tpu.cut.tiling import too_small
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import PRODUCTS, Convolution, convolved, ranked_shapes
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, explanation_of
from tpusim.machines.tpu.program.addresses import Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.program import Explanation, Program
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Fill, Part, Spill
from tpusim.machines.tpu.schedule.units import Act, Area, Moves, Piece, Policy, SlotNeed, Unit, Units, one_ahead_if_free
from tpusim.machines.tpu.search.estimates import least_words
from tpusim.machines.tpu.search.search import CLOSE, RankedTiling, tilings_of
from tpusim.memory.hbm_layout import Box, shifted, whole_bursts
from tpusim.network.ops.array_op import ArrayOp

SLACK = 1.02
"""Windows that cost up to this factor more than the cheapest count as equal, and of these the smallest is taken: the
product has use for the memory.
"""


class RollingWindow(NamedTuple):
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


class WindowUnit(NamedTuple):
    """Outputs whose lowered rows are written together, for some taps and portions of the channels.

    Rows of the ring are numbered on and on; grid row 0 would be number `origin`. Those in `live` are read, and those
    in `new` of them have to be filled first.
    """

    groups: range
    taps: tuple[Tap, ...]
    portions: list[range]
    cols: range
    rows: range
    origin: int
    live: range
    new: range


def channel_portions(shape: ConvShape, hardware: Hardware) -> list[range]:
    """The channels of all groups, as many at a time as there are lanes."""
    return portions(shape.groups * shape.channels, hardware.lanes)


def tap_chunks(shape: ConvShape, taps: int) -> list[tuple[Tap, ...]]:
    """The taps, that number of them at a time."""
    every = shape.every_tap
    return [every[part.start : part.stop] for part in portions(len(every), taps)]


def span(taps: tuple[Tap, ...], axis: int) -> range:
    """From the first to the last of the taps, by rows (0) or columns (1)."""
    places = [tap[axis] for tap in taps]
    return range(min(places), max(places) + 1)


def window_units(shape: ConvShape, hardware: Hardware, window: RollingWindow) -> Iterator[WindowUnit]:
    """Word groups outside; then taps, portions of the channels and columns; rows roll inside."""
    groups, _ = shape.word_groups(hardware.vector_memory.word_elements)
    channels, at = channel_portions(shape, hardware), 0
    for images, taps, held, cols in product(
        portions(groups, window.groups),
        tap_chunks(shape, window.taps),
        portions(len(channels), window.portions),
        portions(shape.col.extent, window.cols),
    ):
        tap_rows, padding = span(taps, 0), not shape.col.stored(cols, span(taps, 1))
        # One roll, whose first stored row is number `at`.
        origin = at if padding else at - shape.row.stored(range(shape.row.extent), tap_rows).start
        for rows in portions(shape.row.extent, window.rows):
            stored = shape.row.stored(rows, tap_rows)
            live = range(at, at) if padding or not stored else shifted(stored, origin)
            new = range(max(at, live.start), max(at, live.stop))
            yield WindowUnit(images, taps, channels[held.start : held.stop], cols, rows, origin, live, new)
            at = new.stop


# ---- which window

LEAST_WORDS = 1
"""A lane can do with one word: that of one output, one tap and one portion of the channels."""


@lru_cache(maxsize=1 << 14)
def window_of(shape: ConvShape, hardware: Hardware, words: int) -> RollingWindow | None:
    """The smallest window of those that cost little more than the cheapest within `words`; None where none fits."""
    groups, _ = shape.word_groups(hardware.vector_memory.word_elements)
    every, number = len(shape.every_tap), len(channel_portions(shape, hardware))
    # Better ones first: all taps together and all channels, then fewer; whole rows, then narrower parts of them.
    together = sorted({every, shape.col.kernel, 1}, reverse=True), sorted({number, 1}, reverse=True)
    for taps, held, cols in product(*together, halves(shape.col.extent)):
        extents = product(halves(shape.row.extent), halves(groups), (2, 1))
        windows = (_window(shape, rows, cols, images, taps, held, ahead) for rows, images, ahead in extents)
        costs = [(sum(_cost(shape, hardware, each)), each) for each in windows if each.words <= words]
        if costs:
            most = SLACK * min(cost for cost, _ in costs)
            return min((each for cost, each in costs if cost <= most), key=lambda each: each.words)
    return None


def _window(shape: ConvShape, rows: int, cols: int, groups: int, taps: int, held: int, ahead: int) -> RollingWindow:
    """A window with a ring for the grid rows of `ahead` units at once."""
    chunks, row, col, depth = tap_chunks(shape, taps), shape.row, shape.col, 1
    widths = (len(col.stored(each, span(some, 1))) for some in chunks for each in portions(col.extent, cols))
    for some in chunks:
        tap_rows = span(some, 0)
        reach = (min(rows * ahead, row.extent) - 1) * row.step + (len(tap_rows) - 1) * row.tap_step + 1
        depth = max(depth, min(reach, len(row.stored(range(row.extent), tap_rows))))
    return RollingWindow(rows, cols, groups, taps, held, depth, groups * max(1, *widths), ahead)


def again_of(shape: ConvShape, window: RollingWindow) -> float:
    """The part of the columns that is brought again, as parts that are unfolded one after another share it."""
    chunks, every = tap_chunks(shape, window.taps), (window.cols, shape.col.extent)
    wide, once = (sum(_wide(shape.col, taps, cols) for taps in chunks) for cols in every)
    return wide / once - 1 if once else 0


def _wide(axis: MapAxis, taps: tuple[Tap, ...], cols: int) -> int:
    """Grid columns that are stored for all outputs, `cols` of them at a time."""
    return sum(len(axis.stored(each, span(taps, 1))) for each in portions(axis.extent, cols))


def _cost(shape: ConvShape, hardware: Hardware, window: RollingWindow) -> tuple[float, float]:
    """Cycles of the bus, roughly: what is brought and written, and for each unit a turn, or two where it must wait; and
    those of the first unit, if a product that might run beside it has to wait.
    """
    row, col, memory = shape.row, shape.col, hardware.vector_memory
    groups, fill = shape.word_groups(memory.word_elements)
    words = len(shape.every_tap) * row.extent * col.extent
    for taps in tap_chunks(shape, window.taps):
        words += len(row.stored(range(row.extent), span(taps, 0))) * _wide(col, taps, window.cols)
    elements = words * groups * fill * shape.groups * shape.channels
    # A run of images that is not all of them is rounded up to whole bursts, which may hold all of them.
    run, every = window.groups * (fill // shape.strips) * memory.element_bytes, shape.images * memory.element_bytes
    waste = 1 if window.groups == groups else min(every, whole_bursts(run, hardware.hbm.burst_bytes)) / run
    moved = elements * memory.element_bytes * waste / float(hardware.hbm_bytes_per_cycle)
    units = sum(1 for _ in window_units(shape, hardware, window))
    cycles = moved + units * hardware.latency_cycles * (3 - window.ahead)
    return cycles, 0 if hardware.mapping.transformation == "before" else cycles / units


# ---- as units


class Transformation(Units):
    """Units without acts: the rows of a map of that `shape` that are new to each come, and the lowered rows of its
    outputs go.

    Attributes:
        product: the shape of the product, which reads the lowered matrix: its words hold the same strips and images.
        lowered: the lowered matrix.
        portions: the channels, as many at a time as there are lanes.
        word_groups: words of a pixel.
        copies: lane groups that hold the same channels, to spill as many taps at once: as few as need no more turns.
        tensors: none, as the units of the product name them all.
        policy: the rows of a unit come before those of the unit ahead go, where the window has room for both.
    """

    tensors = ()
    policy = Policy(("window",), one_ahead_if_free)

    def __init__(self, shape: ConvShape, product: ConvShape, hardware: Hardware, window: RollingWindow) -> None:
        self.shape, self.product, self.hardware, self.window = shape, product, hardware, window
        ifmap = shape.tensors.ifmap
        self.ifmap = Tensor("ifmap", ifmap, converted=True, padded=padded_map(ifmap, hardware))
        self.lowered = ifmap_of(product, hardware, LOWERED)
        self.traffic, self.portions = Traffic(hardware, product), channel_portions(shape, hardware)
        self.word_groups, self.word_fill = product.word_groups(hardware.vector_memory.word_elements)
        room = max(1, hardware.lanes // len(self.portions[0]))
        # As many taps are written at once as lanes have room for, and shared out evenly among the parts of a unit.
        self.copies = -(-window.taps // -(-window.taps // room))
        # Units have these in common.
        self._lane = cache(partial(_lane_of, shape))
        self._left: dict[int, tuple[int, Moves]] = {}
        """The first word and the last spill of each unit: most drafts have the window in one place."""

    @cached_property
    def windows(self) -> list[WindowUnit]:
        """Units of the window, in their order."""
        return [*window_units(self.shape, self.hardware, self.window)]

    @property
    def areas(self) -> tuple[Area, ...]:
        """The window."""
        ring = self.window.words, 1, self.copies * len(self.portions[0])
        area = Area("window", self.ifmap.name, *ring, self._brought)
        return (replace(area, live=lambda at: self.windows[at].live, depth=self.window.depth),)

    def units(self) -> Iterator[Unit]:
        for place in range(len(self.windows)):
            yield Unit((SlotNeed("window", place),), None, place, leaves=0, makes=place)

    # ---- into the window

    def _brought(self, place: int, gaps: int, grows: bool) -> list[Piece]:
        unit = self.windows[place]
        return [Piece(0, (0,), partial(self._moved, unit))] if unit.new else []

    def _moved(self, unit: WindowUnit, base: int) -> Iterator[Moves]:
        """The transfer of the rows that are new to a unit."""
        channels = range(unit.portions[0].start, unit.portions[-1].stop)
        rows, cols = self._rows(unit, unit.new), self.shape.col.coordinates(self._cols(unit))
        box = Box(channels, rows, cols, self.product.images_of(self.word_fill, unit.groups))
        yield self.traffic.moves(self.ifmap, tuple(self._filled(unit, base)), [box], self.shape.ifmap_apart)

    def _filled(self, unit: WindowUnit, base: int) -> Iterator[Part]:
        """Parts of the rows that are new to a unit, in every copy."""
        first_lanes = tuple(copy * len(self.portions[0]) for copy in range(self.copies))
        cols, apart, pitch = self.shape.col.coordinates(self._cols(unit)), self.shape.ifmap_apart, self.window.pitch
        for number, channels in enumerate(unit.portions):
            lane = (Along(CHANNEL, channels),)
            for some in self._runs(unit):
                at = base + (number * self.window.depth + some.start % self.window.depth) * pitch
                items = self.product.items(self.word_fill, self._rows(unit, some), cols, unit.groups, apart)
                yield Part(at, first_lanes, lane, items, self.word_fill)

    def _runs(self, unit: WindowUnit) -> Iterator[range]:
        """The new rows, cut where the ring ends; one by one where they are shorter than its pitch."""
        depth, at = self.window.depth, unit.new.start
        alone = len(self._cols(unit)) * len(unit.groups) < self.window.pitch
        while at < unit.new.stop:
            # One part cannot skip words, so a row that is shorter than the pitch of the ring is a part of its own.
            stop = at + 1 if alone else min(unit.new.stop, (at // depth + 1) * depth)
            yield range(at, stop)
            at = stop

    def _rows(self, unit: WindowUnit, numbers: range) -> range:
        """Rows of the ifmap, by their numbers in the ring."""
        return self.shape.row.coordinates(shifted(numbers, -unit.origin))

    def _cols(self, unit: WindowUnit) -> range:
        """The grid columns that are stored."""
        return self.shape.col.stored(unit.cols, span(unit.taps, 1))

    # ---- and out

    def _parts(self, unit: WindowUnit, base: int) -> Iterator[Part]:
        """The lowered rows of a unit's outputs: for each portion of the channels some taps at a time."""
        cols = self._cols(unit)
        for number, channels in enumerate(unit.portions):
            ring = base + number * self.window.depth * self.window.pitch
            for at in range(0, len(unit.taps), self.copies):
                taps = unit.taps[at : at + self.copies]
                lane = (self._lane(taps, channels),)
                for rows in self._laps(unit, taps):
                    # A lane group a tap; each walks the grid points on which its tap stands.
                    patterns = (self._pattern(unit, cols, tap, rows, ring) for tap in taps)
                    lanes = len(channels)
                    feed = Feed(tuple(LaneGroup(n * lanes, lanes, pattern) for n, pattern in enumerate(patterns)))
                    items = self.product.items(self.word_fill, rows, unit.cols, unit.groups, self.shape.ofmap_apart)
                    yield Part(0, (0,), lane, items, self.word_fill, feed)

    def _laps(self, unit: WindowUnit, taps: tuple[Tap, ...]) -> list[range]:
        """A unit's rows of outputs, cut where one of the taps comes to the end of the ring."""
        return [rows for rows, _ in alike(unit.rows, lambda row: [self._lap(unit, tap, row) for tap in taps])]

    def _lap(self, unit: WindowUnit, tap: Tap, row: int) -> int:
        """Times that the ring was full before the row on which a tap stands for an output. A row of padding belongs to
        the lap of the stored row next to it.
        """
        axis = self.shape.row
        at = unit.origin + row * axis.step + axis.place(tap[0])
        return min(max(at, unit.live.start), max(unit.live.stop - 1, unit.live.start)) // self.window.depth

    def _pattern(self, unit: WindowUnit, cols: range, tap: Tap, rows: range, ring: int) -> Counters:
        """Rows, columns and word groups of outputs whose rows lie in one lap of the ring, which holds `cols`."""
        depth, pitch, lap = self.window.depth, self.window.pitch, self._lap(unit, tap, rows.start)
        held = range(max(lap * depth, unit.live.start), min((lap + 1) * depth, unit.live.stop))
        patch = Patch(shifted(held, -unit.origin), cols, unit.groups)
        walk = self.shape.walk(tap, Block(rows, unit.cols, unit.groups), patch, by_tap=False)
        down, *others = walk.counters
        return Counters(ring + held.start % depth * pitch, (down._replace(stride=pitch), *others))

    def acts(self, unit: Unit, bases: Sequence[int]) -> tuple[Act, ...]:
        return ()

    def spill(self, unit: Unit, base: int) -> Moves:
        if self._left.get(unit.about, (-1,))[0] != base:
            self._left[unit.about] = base, self._spilled(unit.about, base)
        return self._left[unit.about][1]

    def _spilled(self, place: int, base: int) -> Moves:
        """The transfer of a unit's lowered rows; neighbouring rows of the matrix are written as one run."""
        window = self.windows[place]
        parts = tuple(self._parts(window, base))
        images = self.product.images_of(self.word_fill, window.groups)
        lowered = neighbours(sorted({row for part in parts for row in part.lane[0].coordinates}))
        boxes = (Box(rows, window.rows, window.cols, images) for rows in lowered)
        return self.traffic.moves(self.lowered, parts, boxes, self.shape.ofmap_apart)

    def last_of(self, filled: Patch) -> int:
        """The place of the last unit that writes any of these outputs."""
        window, shape = self.window, self.shape
        down, across = -(-shape.row.extent // window.rows), -(-shape.col.extent // window.cols)
        of_images = len(self.windows) // down // across // -(-self.word_groups // window.groups)
        images, col, row = (
            (part.stop - 1) // size
            for part, size in ((filled.groups, window.groups), (filled.cols, window.cols), (filled.rows, window.rows))
        )
        return (((images + 1) * of_images - 1) * across + col) * down + row


def _lane_of(shape: ConvShape, taps: tuple[Tap, ...], channels: range) -> Along:
    """The row of the lowered matrix that each lane holds: those of a channel group stand together."""
    held = [k for tap in taps for k in shape.ks(tap, channels)]
    step = held[1] - held[0] if len(held) > 1 else 1
    even = range(held[0], held[0] + step * len(held), step)
    return Along(CHANNEL, even if held == [*even] else tuple(held))


# ---- the product behind it


LOWERED = "lowered"
"""The lowered matrix [k, row, col, image] among the tensors of a Program; k as in the filter, group after group."""

SHARE = 4
"""The transformation gets one word of that number beside the product, if it is enough: it needs few rows at once."""


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """Blocks of the product, beside which the ifmap is transformed, or before it in the same words; or blocks of the
    lowered matrix on chip.

    Raises:
        CapacityError: when window and product do not fit the vector memories.
    """
    if hardware.mapping.transformation == "on_chip":
        return convolved(LaneMatrixCut, layer, batch, hardware)

    # What is transformed may lie in any way, and the lowered matrix lies as it is read.
    hardware, (conv, images) = hardware.having("mapping", entry="ready"), layer.convolution(batch)
    product, whole = shape_of(conv.product, images, hardware), shape_of(conv, images, hardware)

    @cache
    def work(product: ConvShape) -> Transformation:
        # Drafts in the same strips share it, since they differ in nothing else but the tiling of the product.
        window, _ = windowed(whole, product, hardware)
        return Transformation(whole.in_strips_of(product), product, hardware, window)

    def draft(product: ConvShape, rank: RankedTiling) -> Draft:
        plan = Plan(product, hardware, rank.tiling, TapGroups(product, hardware), LOWERED)
        units, told = partial(_Explicit, plan, work(product)), partial(_explained, plan, work(product), layer)
        return Draft(units, lambda each: (each, told(each)), rank.tiling.blocks, rank.least, rank.estimate)

    ranked = ranked_shapes(lambda each, on: windowed(whole, each, on)[1], product, hardware)
    return [draft(*each) for each in ranked]


@lru_cache(maxsize=1 << 10)
def windowed(
    whole: ConvShape, product: ConvShape, hardware: Hardware
) -> tuple[RollingWindow, tuple[RankedTiling, ...]]:
    """The window for the map of a `whole` layer, and the tilings of its `product` with estimates of both together, in
    the strips of the product.

    Before the product the window may take all words; beside the product it takes its share of them, if the product
    fits into the rest, else the fewest possible.

    Raises:
        CapacityError: when window and product do not fit the vector memories.
    """
    shape, cut = whole.in_strips_of(product), TapGroups(product, hardware)
    before = hardware.mapping.transformation == "before"

    def both(window: RollingWindow, rank: RankedTiling) -> RankedTiling:
        """A tiling with the cycles of both: in turn, or side by side while the bus moves the data of both."""
        own, first = _cost(shape, hardware, window)
        moved = own + rank.floor(0)

        def cycles(product: float) -> float:
            # The product waits for the first unit, and has its share of the last one left to do behind it.
            return own + product if before else max(first + product, moved + first / own * product)

        return rank._replace(estimate=lambda: cycles(rank.estimate()), expected=cycles(rank.expected))

    for room in (hardware.capacity_words // (1 if before else SHARE), LEAST_WORDS):
        if window := window_of(shape, hardware, room):
            words = 0 if before else window.words
            left = hardware.vector_memory.capacity_bytes - words * hardware.word_bytes
            with suppress(CapacityError):
                found = tilings_of(cut, hardware.having("vector_memory", capacity_bytes=left))
                return window, tuple([both(window, rank) for rank in found])
    raise too_small((0 if before else LEAST_WORDS) + least_words(cut, hardware), hardware)


class _Explicit(Convolution):
    """The product, each of whose fills needs the units of the transformation that write what it reads."""

    def __init__(self, plan: Plan, work: Transformation) -> None:
        super().__init__(plan)
        self.work, self.strands, self.intermediates = work, {LOWERED: work}, plan.ifmap.size
        self.before = plan.hardware.mapping.transformation == "before"
        self.tensors = work.ifmap, *self.tensors

    def counted(self) -> None:
        """By the queue: units of the transformation are no part of the formula."""

    def needs(self, filled: Patch) -> tuple[SlotNeed, ...]:
        return (SlotNeed(LOWERED, self.work.last_of(filled)),)


# ---- in words


def _explained(plan: Plan, work: Transformation, layer: ArrayOp, program: Program) -> Explanation:
    """The product's explanation, and how its ifmap comes about."""
    rows = counted(plan.ifmap.shape[0] // work.shape.groups, "row") + " of the lowered matrix"
    told = explanation_of(plan, layer, rows)
    window = SIZE.format(work.window.words * plan.hardware.word_bytes)
    before = plan.hardware.mapping.transformation == "before"
    memory = f"{told.aspects['memory']}; {window} of window for the ifmap{' in the same words' if before else ''}"
    row, col, channels = work.shape.row, work.shape.col, work.shape.channels
    taps = f"{row.kernel} x {col.kernel} = {work.shape.taps} copies of {counted(channels, 'channel')}"
    groups = f" in each of {work.shape.groups} groups" if work.shape.groups > 1 else ""
    # What the window does, and when.
    held, when = work.window, f"transformed {'before' if before else 'beside'} the product"
    rolls = f"{held.rows} x {held.cols} of {row.extent} x {col.extent} outputs at a time"
    copies = f", {work.copies} copies at once" if work.copies > 1 else ""
    again = "" if held.taps == work.shape.taps else f"; the ifmap comes for {held.taps} taps"
    shared = again_of(work.shape, held)
    halos = f"; columns that parts share come again, {100 * shared:.1f} % more" if shared else ""
    own = {
        "taps": f"{taps}: {rows}{groups}",
        "window": f"{when}: {rolls}{copies}{again}{halos}",
        "lowered": _read(plan, program),
    }
    choices = {f"window_{name}": getattr(work.window, name) for name in ("rows", "cols", "groups", "taps", "depth")}
    aspects = {**own, **{name: text for name, text in told.aspects.items() if name not in own}, "memory": memory}
    return replace(told, choices={**told.choices, **choices}, aspects=aspects)


def _read(plan: Plan, program: Program) -> str:
    """Sentence about the size of the lowered matrix, and about how often it is read."""
    times = program.bytes_moved(LOWERED, Fill) / program.bytes_moved(LOWERED, Spill)
    size = f"{plan.ifmap.size * plan.hardware.vector_memory.element_bytes / 1e6:,.4g} MB"
    if times < 1.01:
        return f"{size} in HBM, written and read once"
    return f"{size} in HBM, written once and read {times:.3g} times: not all column folds are done while it is on chip"


_IGNORED = frozenset({
    "multi_tile", "fetch", "k_order", "row_windows", "transposed_channels", "entry", "block_k", "block.taps",
    "block.tap_cols",
})  # fmt: skip


_KNOWN = frozenset({"row_windows", "entry", "block_k", "block.taps"})
"""Fields of these that change what is done on chip."""
EXPLICIT = Lowering(
    "explicit",
    "im2col proper: the lowered matrix is written, to HBM unless told otherwise, and then multiplied",
    ways,
    # What the bus bounds is alike for all arrangements but for what the product has left to do behind it.
    close=CLOSE,
    carries=frozenset({"bias", "add", "finish"}),
    left=PRODUCTS,
    ignores=lambda hardware: _IGNORED - (_KNOWN if hardware.mapping.transformation == "on_chip" else frozenset()),
)
