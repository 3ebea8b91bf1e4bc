"""Layers of the vector unit: the choice of a block, and the units of work, one portion of the channels after another.

Depthwise convolutions are lowered so: lanes multiply and add, and nothing goes through the array. A lane has a channel.
A step multiplies, word by word, the pixels under some taps by the lane's weights of these taps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import islice, product
from math import ceil, prod
from typing import Any, NamedTuple, TypeVar

from tpusim.base.errors import UnsuitableError
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import CHANNEL, COL, IMAGE, ROW, Block, Patch, halves, neighbours, padded, portions
from tpusim.machines.tpu.cut.geometry import ConvShape, MapAxis, StripMaps, padded_map, shape_of
from tpusim.machines.tpu.cut.plan import OUT_CHANNEL, K
from tpusim.machines.tpu.cut.reduction import TapGroups
from tpusim.machines.tpu.cut.tiling import Demand, Tiling, delay_of, fitting, given_outputs, op_delay, step
from tpusim.machines.tpu.cut.traffic import PixelsInLanes, Traffic, Turn
from tpusim.machines.tpu.definition import Body, StepLoop, beat_of, body_share, in_a_register
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import ranked_shapes
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, cut_up, memory_of, outputs_of, used_of
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.operations import Arity, pace_of
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import Scalars, Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Coordinates, Part
from tpusim.machines.tpu.schedule.units import (
    Area,
    Moves,
    Policy,
    SlotNeed,
    Touch,
    Unit,
    Units,
    VectorWork,
    in_one,
    one_ahead_if_free,
)
from tpusim.machines.tpu.search.search import FEW_PASSES, MOST_BLOCKS, RankedTiling
from tpusim.memory.hbm_layout import Box, Layouts, whole_bursts
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.op import OFMAP, Op, Shape

FEW_TIMED, TOO_HIGH = 4, 0.5
"""Most tilings from which a simulation chooses: networks have many ops of the vector unit, and most are cheap.

Beside them is the largest of those with an estimate of at most the share `TOO_HIGH` more than the lowest: estimates of
few blocks are now and then too high by half.
"""

CROWDED = 1.5
"""The least time of a portion of every pixel on a DRAM, by that of as many bytes side by side, at which a unit may have
all portions. Channels are a power of two: runs lie in all of them, or in half of them, which takes twice as long.
"""

IGNORED = frozenset({
    "transformation", "k_order", "patch", "search", "multi_tile", "loop_order", "chunks", "loads", "fetch", "layout",
    "row_windows", "transposed_channels", "column_folds", "entry", "block_m", "block_k", "block.in_channels",
    "block.taps",
    "block.tap_cols",
})  # fmt: skip
"""Fields below `mapping` that mean nothing to work of the vector unit."""


def in_turn(base: int, words: int, apart: int = 1) -> Counters:
    """Words of a lane, each `apart` from the one before."""
    return nested(base, (words, apart))


def nested(base: int, *axes: tuple[int, int]) -> Counters:
    """Words of a lane along several axes, the last of which moves fastest; an axis is a count and a distance."""
    return Counters(base, tuple([Counter(words, 0, 1, words, apart) for words, apart in axes]))


def feed(lanes: int, pattern: Counters) -> Feed:
    """A pattern for all of the first `lanes` lanes."""
    return Feed((LaneGroup(0, lanes, pattern),))


def tiled(name: str, shape: Shape, multiple: int, axis: int = CHANNEL) -> Tensor:
    """A tensor that lies in HBM in tiles as wide as `multiple` along an axis."""
    channels, rows, cols, images = (padded(size, multiple) if at == axis else size for at, size in enumerate(shape))
    return Tensor(name, shape, converted=True, padded=(channels, rows, cols, images))


def lane_step(lanes: int, operation: str, walks: Iterable[Counters], writes: Counters, **more: Any) -> Vector:
    """A step on words of the first lanes; `more` are further fields of it."""
    operands = tuple([feed(lanes, walk) for walk in walks])
    return Vector((), operation, operands, feed(lanes, writes), writes.words, **more)


def joining_steps(
    lanes: int, operation: str, firsts: Sequence[int], count: int, most: int, to: int, known: Sequence[int] = (),
    body: Fraction = Fraction(0), shared: bool = False, chain: int = 0,
) -> Iterator[Vector]:  # fmt: skip
    """Steps that join `count` words from each of `firsts` on, at most `most` at a time, into words from `to` on.

    Each takes the `known` words, too, which stay in registers if they are `shared`; `body` is what a joined word has of
    the cycles of loop bodies.
    """
    whole, left = divmod(count, most)
    for start, words, together in ((0, whole, most), (whole * most, 1, left)):
        if words and together:
            walks = [in_turn(each + start + at, words, most) for at in range(together) for each in firsts]
            widened = Fraction(len(walks), len(walks) + len(known) * shared)
            walks += [in_turn(each, words, 0) for each in known]
            beside = ceil(words * together * body)
            yield lane_step(lanes, operation, walks, in_turn(to, words), widened=widened, body=beside, chain=chain)
            to += words


def in_a_body(moved: int, hardware: Hardware) -> int:
    """Number of blocks that a body works on if each moves `moved` bytes: those that fill a window, where loops are
    pipelines of windows; elsewhere one.
    """
    if hardware.mapping.loads != "windows":
        return 1
    return max(1, hardware.mapping.window_bytes // max(1, moved))


IMAGES_IN_LANES = Turn(lanes=IMAGE, words=CHANNEL)


def least_padded(turns: Sequence[Turn], shape: Shape, hardware: Hardware) -> Turn:
    """The first of `turns` that pads lanes least, for a map of some shape. A machine that does not choose layouts by
    their padding (`mapping.layout`) takes the first of all.
    """
    if hardware.mapping.layout != "least_padding":
        return turns[0]
    wide, lanes = hardware.hbm.channel_multiple, [shape[turn.lanes] for turn in turns]
    return min(zip(turns, lanes, strict=True), key=lambda each: Fraction(padded(each[1], wide), each[1]))[0]


def read_first(*axes: tuple[int, int, int]) -> Fraction:
    """The share of the words under windows that no window ahead has read; of each axis windows, stride and kernel."""
    spans = ((windows - 1) * min(stride, kernel) + kernel for windows, stride, kernel in axes)
    return Fraction(prod(spans), prod(windows * kernel for windows, _, kernel in axes))


def apart_of(groups: int, hardware: Hardware) -> int:
    """Registers for words that could share one, if a pixel had more than `groups` of them."""
    unit, size = hardware.vector_unit, hardware.word_bytes
    return in_a_register(0, unit, size) // in_a_register(groups, unit, size)


class MapSource(NamedTuple):
    """A map that is read word by word. Along each of [channel, row, col, image], `share` outputs read the same. An
    output reads the channel that is `turned` channels on, and around.
    """

    tensor: Tensor
    share: tuple[int, int, int, int] = (1, 1, 1, 1)
    turned: int = 0

    def channels(self, portion: range) -> Coordinates:
        """The channel of each lane."""
        share, turned = self.share[CHANNEL], self.turned
        if turned:
            return tuple([(channel + turned) % self.tensor.shape[CHANNEL] for channel in portion])
        return portion if share == 1 else tuple([channel // share for channel in portion])

    def boxes(self, portion: range, box: Box) -> list[Box]:
        """Boxes of the lanes' channels, where `box` is one of ascending channels."""
        return [box._replace(channels=run) for run in neighbours(self.channels(portion))] if self.turned else [box]

    def patch(self, whole: Patch) -> Patch:
        """The part of a patch that the source has: one row or column where all outputs share it."""
        rows, cols = (range(1) if self.share[axis] > 1 else at for axis, at in ((ROW, whole.rows), (COL, whole.cols)))
        return Patch(rows, cols, whole.groups)


@dataclass(frozen=True, slots=True)
class Maps(StripMaps):
    """Rows and columns of outputs, and the images."""

    images: int
    row: MapAxis
    col: MapAxis


AnyUnits = TypeVar("AnyUnits", bound="VectorUnits")


_MAPS, _, _RESULTS = range(3)
"""Places of maps, scalars and results among the buffers of a tiling."""

_ORDERS = "portion by portion, in each all blocks", "block by block, all portions of each together"


class ChannelBlock(NamedTuple):
    """The unit of work: a block of some channels, one in each lane; of several portions of them, one behind another.
    `begins`: whether it is the first of a body.
    """

    channels: range
    block: Block
    begins: bool = True


class VectorUnits(Units):
    """Units of a layer of the vector unit, block by block: load maps and scalars, work on them, spill the results.

    A block is loaded while the vector unit works on the block before.

    Attributes:
        hardware: the machine; `outputs`: the outputs of the layer, as blocks cut them.
        maps: what is read word by word; `ofmap`: what is made.
        scalar_words: words that a lane keeps of its own factors, which `numbers` transfers bring for a portion.
        chain: operands and operations of each step that makes a word of results.
        turn: which axes of the tensors are in lanes, rows, columns and words.
        chunks: groups of taps, and folds, that a tiling tells of a convolution; there are no passes.
        portions: the channels, as many at a time as there are lanes.
        joins: whether a unit may have a block of all portions; a tiling says by `kept_folds` how many of them it has.
        tiling: the one that is given, or the choice of the estimate; ifmap buffers hold what comes of all maps, filter
            buffers scalars.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """

    tensors: tuple[Tensor, ...] = ()
    maps: tuple[MapSource, ...]
    ofmap: Tensor
    scalar_words: int
    numbers: int
    chain: tuple[tuple[int, Fraction | int], ...]
    turn: Turn | PixelsInLanes = Turn()
    chunks: tuple[int, int] = (1, 1)
    joins = False
    close: float = 0.0
    """How much dearer than the cheapest a larger block may be, as a share."""
    # Scalars come ahead of maps.
    policy = Policy(("scalars", "maps"), one_ahead_if_free)

    def __init__(self, outputs: StripMaps, channels: int, hardware: Hardware, tiling: Tiling[int] | None) -> None:
        along = (self.turn.rows, self.turn.cols) if isinstance(self.turn, Turn) else (ROW, COL)
        self.outputs, self.hardware, self.traffic = outputs, hardware, Traffic(hardware, outputs, along)
        self.groups, self.word_fill = outputs.word_groups(hardware.vector_memory.word_elements)
        self._extents = outputs.row.extent, outputs.col.extent, self.groups
        self.portions = portions(channels, hardware.lanes)
        self.tiling = tiling or self.ranked[0].tiling
        self.blocks = outputs.blocks(self.groups, (self.tiling.rows, self.tiling.cols, self.tiling.groups))

    # ---- what blocks take of memory, and about how long

    def map_words(self, rows: int, cols: int, groups: int) -> list[int]:
        """Words that a block reads of each map at most."""
        high, wide = self.outputs.row.most_stored(rows), self.outputs.col.most_stored(cols)
        return [each.patch(Patch(range(high), range(wide), range(groups))).words for each in self.maps]

    def readied(self, tiling: Tiling[int]) -> int:
        """Words of a block that are made ready."""
        return tiling.ifmap_words

    def _tiling(self, rows: int, cols: int, groups: int, joined: int = 1) -> Tiling[int]:
        """A tiling whose units have `joined` portions, with two buffers of each kind if a buffer is used more than
        once.
        """
        extents = zip(self._extents, (rows, cols, groups), strict=True)
        blocks, (taps, folds) = prod(-(-extent // size) for extent, size in extents), self.chunks
        # A second buffer lets transfers run beside the work; with a single unit there is nothing to run beside.
        times = -(-len(self.portions) // joined)
        buffers = min(2, blocks * times)
        return Tiling(
            rows, cols, groups, span=0, blocks=blocks, loop_order="filter_major", kept_folds=joined,
            chunk_taps=taps, chunk_folds=folds, section_passes=taps * folds,
            ifmap_buffers=buffers, filter_buffers=min(2, times), psum_buffers=buffers,
            ifmap_words=joined * sum(self.map_words(rows, cols, groups)), section_words=joined * self.scalar_words,
            psum_words=joined * rows * cols * groups, lag=1,
        )  # fmt: skip

    def _units(self, tiling: Tiling[int]) -> int:
        """Number of units of a tiling."""
        return tiling.blocks * -(-len(self.portions) // tiling.kept_folds)

    @cached_property
    def crowded(self) -> float:
        """How many times longer a DRAM takes for a portion of every pixel than for as many bytes side by side; 1 below
        `CROWDED`.

        Where pixels lie some power of two apart, the same portion of all pixels is in a few channels of the DRAM.
        """
        hbm = self.hardware.hbm
        if not self.joins or hbm.dram is None or hbm.layout != Layouts() or len(self.portions) == 1:
            return 1.0
        # Imported here, because machines without a DRAM need none of its compiled loops.
        from tpusim.memory.dram.least import crowding

        channels, rows, cols, images = self.ofmap.padded or self.ofmap.shape
        of_channel = images * self.hardware.element_bytes
        times = crowding(hbm.dram, len(self.portions[0]) * of_channel, channels * of_channel, rows * cols)
        return times if times >= CROWDED else 1.0

    @cached_property
    def ranked(self) -> tuple[RankedTiling, ...]:
        """The tilings from which a simulation should choose, by estimated cycles, or the estimate's choice alone.

        The estimate chooses the largest block of those that fit and are `close` to the cheapest.
        """
        wanted = zip(given_outputs(self.outputs, self.hardware), self._extents, strict=True)
        sizes = product(*([size] if size else halves(extent) for size, extent in wanted))
        joined = (1, len(self.portions)) if self.crowded > 1 else (1,)
        every = (self._tiling(rows, cols, groups, some) for (rows, cols, groups), some in product(sizes, joined))
        costs = {each: self.cycles(each) for each in fitting(every, lambda tiling: tiling.words, self.hardware)}
        lowest = min(costs.values())

        def largest(share: float) -> Tiling[int]:
            """The largest block of those with at most so much more than the lowest estimate."""
            near = (each for each, cost in costs.items() if cost <= lowest * (1 + share))
            return max(near, key=lambda each: each.psum_words)

        chosen, doubted = largest(self.close), largest(TOO_HIGH)
        if self.hardware.mapping.search != "simulate":
            return (RankedTiling(chosen, 0.0, partial(float, costs[chosen])),)
        # The estimate's choice stands first, whatever it costs: a run without simulation takes the first.
        by_cost = sorted(costs, key=lambda each: (each is not chosen, costs[each]))
        least, blocks = self.least, max(MOST_BLOCKS * chosen.blocks, FEW_PASSES // len(self.portions))
        few = [*islice((each for each in by_cost if each.blocks <= blocks), FEW_TIMED)]
        expected = {**costs, doubted: lowest}
        return tuple([
            RankedTiling(each, least, partial(float, costs[each]), expected=expected[each])
            for each in dict.fromkeys((*few, doubted))
        ])  # fmt: skip

    @property
    def least(self) -> float:
        """A lower bound of the cycles for any block.

        All results, and all elements of maps that taps touch, cross the bus once; the vector unit makes every word.
        """
        row, col, moved = self.outputs.row, self.outputs.col, self.ofmap.size
        for source in self.maps if self.turn == Turn() else ():
            channels, _, _, images = source.tensor.shape
            down, across = (
                1 if source.share[at] > 1 else axis.read(range(axis.kernel)) for at, axis in ((ROW, row), (COL, col))
            )
            moved += channels * down * across * images
        bus = moved * self.hardware.element_bytes / float(self.hardware.hbm_peak_bytes_per_cycle)
        # The last portion may have fewer channels than lanes, so a word of it takes the least.
        lanes = len(self.portions[-1])
        loop = StepLoop(self.groups, self.widened)
        beats = (beat_of(*each, self.word_fill, self.hardware, lanes=lanes, loop=loop) for each in self.fewest)
        a_word = sum(each.least_a_word for each in beats)
        ends = self.hardware.sequencer.launch_cycles + self.hardware.latency_cycles + self.hardware.skew
        return ends + max(bus, float(len(self.portions) * prod(self._extents) * a_word))

    @property
    def fewest(self) -> tuple[tuple[int, Fraction | int], ...]:
        """Operands and operations of the steps that every word of results takes at least."""
        return self.chain

    def cycles(self, tiling: Tiling[int]) -> float:
        """Estimated cycles: the larger of two bounds.

        One is that of the bus, which is idle at the ends only. The other is that of blocks one after another: a block
        takes as long as the vector unit works on it, as the next one is loaded, or half of all that happens to it,
        because one of two buffers is filled while the vector unit works on the other.
        """
        work, (filled, spilled) = self.demand(tiling), self.transfers(tiling)
        units, latency = self._units(tiling), self.hardware.latency_cycles
        # With two buffers, a buffer has the time of two blocks to be filled, worked on and spilled: hence the half.
        turn = max(work.busiest, filled + latency, (latency + work.cycles + filled + spilled) / 2)
        exposed = max(0.0, work.cycles + latency - spilled) if units > 1 else work.cycles
        bus = units * (filled + spilled) + exposed
        return float(max(bus, units * turn + filled + spilled) + 2 * latency)

    def demand(self, tiling: Tiling[int]) -> Demand:
        """A block and portion: what the vector unit does, and all words that go through the port."""
        moved = tiling.ifmap_words, tiling.psum_words
        # All blocks of a body share the cost of one turn of the loop.
        ready, begins = self.readied(tiling), self.starts(0) / self.in_a_body(tiling)
        # Ports of their own are busy beside one another.
        own = self.hardware.vector_memory.ports == "separate"
        begun = Demand(
            cycles=begins + self.starts(ready, False), port=0 if own else sum(moved), converted=max(moved) if own else 0
        )
        lanes = len(self.portions[0])
        words = tiling.psum_words
        bodies = *(0 for _ in self.chain[1:]), ceil(words * self.body)
        steps = (
            step(words, *each, self.word_fill, self.hardware, lanes, StepLoop(self.groups, self.widened, body=body))
            for each, body in zip(self.chain, bodies, strict=True)
        )
        return sum(steps, begun)

    kind: Body | None = None
    """Loop bodies whose cycles steps share; None: every body delays its first block."""
    widened: Fraction = Fraction(1)

    @cached_property
    def body(self) -> Fraction:
        """Cycles of a word of results for what loop bodies take beyond their slots."""
        words, lanes = len(self.portions) * prod(self._extents), len(self.portions[0])
        return body_share(words, lanes, self.hardware, self.kind, len(self.maps)) if self.kind else Fraction(0)

    def starts(self, words: int, begins: bool = True) -> int:
        """Cycles before a block of some words to make ready, which may begin a body."""
        return (op_delay if self.kind else delay_of)(words, self.hardware, begins)

    def in_a_body(self, tiling: Tiling[int]) -> int:
        """Blocks of portions that a body works on."""
        if self.hardware.mapping.loads != "windows":
            return 1
        brought, left = self.bytes_of(tiling)
        return in_a_body(sum(brought) + left, self.hardware)

    def transfers(self, tiling: Tiling[int]) -> tuple[float, float]:
        """Cycles of the bus for a block and portion: into the chip, and out."""
        unit, rate = self.hardware.vector_unit, float(self.hardware.hbm_bytes_per_cycle)
        brought, left = self.bytes_of(tiling)
        # Words count where they are converted.
        words = self._map_words(tiling) if unit.unpack_cycles else [0] * len(brought)
        slower = self.crowded if tiling.kept_folds == 1 else 1.0

        def cycles(size: int, words: int, conversion: float) -> float:
            return float(Demand(bus=slower * size / rate, converted=words * conversion).busiest)

        filled = sum(cycles(*each, float(unit.unpack_cycles)) for each in zip(brought, words, strict=True))
        return filled, cycles(left, tiling.psum_words, float(unit.pack_cycles))

    def bytes_of(self, tiling: Tiling[int]) -> tuple[list[int], int]:
        """Bytes of a unit: of each map, and of the results."""
        joined = tiling.kept_folds
        lanes = sum(map(len, self.portions[:joined]))
        words, made = self.map_words(tiling.rows, tiling.cols, tiling.groups), tiling.psum_words // joined
        shares = (-(-lanes // each.share[CHANNEL]) for each in self.maps)
        brought = [
            self._bytes(each.tensor, count, tiling.groups, some, joined)
            for each, count, some in zip(self.maps, words, shares, strict=True)
        ]
        return brought, self._bytes(self.ofmap, made, tiling.groups, lanes, joined)

    def _map_words(self, tiling: Tiling[int]) -> list[int]:
        """Words of a unit that are read of each map at most."""
        return [tiling.kept_folds * each for each in self.map_words(tiling.rows, tiling.cols, tiling.groups)]

    def _bytes(self, tensor: Tensor, words: int, groups: int, channels: int, joined: int = 1) -> int:
        """Bytes of `words` of each of some `joined` portions, `channels` in all, `groups` to a pixel, with padding
        behind the last channel.
        """
        all_channels, rows, cols, images = tensor.shape
        in_lanes = self.turn.of((all_channels, rows, cols, images))[CHANNEL]
        stored = in_lanes * prod(tensor.padded or tensor.shape) // tensor.size
        channels = max(channels, -(-stored * joined // len(self.portions)))
        # Images of a channel lie side by side, in each strip; where a block has all of them, so do its channels; and
        # where it has all of these, so do its pixels.
        strips, pixels = self.outputs.strips, words // groups
        run, runs = groups * (self.word_fill // strips) * self.hardware.vector_memory.element_bytes, pixels * strips
        if groups < self.groups:
            between = self.outputs.images * self.hardware.vector_memory.element_bytes
            return runs * channels * min(between, whole_bursts(run, self.hardware.hbm.burst_bytes))
        if len(self.portions) > joined:
            return runs * whole_bursts(run * channels, self.hardware.hbm.burst_bytes)
        return runs * run * channels

    # ---- as units

    @abstractmethod
    def scalars(self, number: int, base: int) -> Iterable[Moves]:
        """Numbers, of which each lane of a portion keeps its own, from word `base` on."""

    @abstractmethod
    def work(self, of: ChannelBlock, bases: Sequence[int]) -> Iterable[Vector]:
        """Steps of the vector unit on maps, scalars and results at `bases`."""

    def steps(self, block: Block) -> int:
        """Number of steps for a block and portion."""
        return len(self.chain)

    def delay(self, of: ChannelBlock) -> int:
        """Cycles before a block: for the turn of the loop, and for making its words ready."""
        words = sum(patch.words for _, patch, _ in self.patches(of.block, 0))
        return self.starts(words * len(self._parts_of(of)), of.begins)

    def patches(self, block: Block, base: int) -> Iterator[tuple[MapSource, Patch, int]]:
        """The patch of each map that a block needs, one behind another from word `base` on; it may be all padding."""
        whole = self.outputs.patch(block)
        for source in self.maps:
            patch = source.patch(whole)
            yield source, patch, base
            base += patch.words

    @property
    def areas(self) -> tuple[Area, ...]:
        """Maps, scalars, results."""
        (maps, scalars, results), lanes = self.tiling.buffers, len(self.portions[0])
        joined = self.tiling.kept_folds
        brought, kept = in_one(self.brought, len(self.maps)), in_one(self._numbers, self.numbers * joined)
        return (
            Area("maps", self.maps[0].tensor.name, *maps, lanes, brought, self.delay),
            Area("scalars", "filter", *scalars, lanes, kept),
            Area("results", "ofmap", *results, lanes),
        )

    def units(self) -> Iterator[Unit]:
        steps, body = [self.steps(block) for block in self.blocks], self.in_a_body(self.tiling)
        for number, together in enumerate(portions(len(self.portions), self.tiling.kept_folds)):
            channels = range(self.portions[together[0]].start, self.portions[together[-1]].stop)
            for at, (block, count) in enumerate(zip(self.blocks, steps, strict=True), number * len(self.blocks)):
                of = ChannelBlock(channels, block, at % body == 0)
                needs = SlotNeed("maps", of), SlotNeed("scalars", number), SlotNeed("results", of)
                yield Unit(needs, None, of, steps=count * len(together), leaves=2)

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[VectorWork]:
        parts = self._parts_of(unit.about)
        steps = (step for at, each in enumerate(parts) for step in self.work(each, self._bases(bases, at)))
        yield VectorWork([*steps], (Touch(0), Touch(1)), 2, True)

    def _parts_of(self, of: ChannelBlock) -> list[ChannelBlock]:
        """The block of each portion of a unit."""
        every = portions(len(of.channels), len(self.portions[0]))
        return [of._replace(channels=of.channels[each.start : each.stop]) for each in every]

    def _bases(self, bases: Sequence[int], at: int) -> tuple[int, ...]:
        """Where words of portion number `at` of a unit begin in its maps, scalars and results."""
        return tuple([base + at * self._apart(kind) for kind, base in enumerate(bases)])

    def _apart(self, kind: int) -> int:
        """Words from one portion of a unit to the next, of its maps, scalars or results."""
        words, _ = self.tiling.buffers[kind]
        return words // self.tiling.kept_folds

    def _numbers(self, number: int, base: int) -> Iterator[Moves]:
        """Numbers of all portions of a unit."""
        joined = self.tiling.kept_folds
        for at in range(joined):
            yield from self.scalars(number * joined + at, base + at * self.scalar_words)

    def channels(self, unit: Unit) -> tuple[int, ...]:
        return tuple(unit.about.channels) if self.tiling.kept_folds == 1 else ()

    def brought(self, of: ChannelBlock, base: int) -> Iterator[Moves]:
        """What comes of the maps for a block; nothing where all is padding."""
        for source, patch, at in self.patches(of.block, base):
            if patch.words:
                yield self.bring(source, of.channels, patch, at)

    def bring(self, source: MapSource, channels: range, patch: Patch, base: int) -> Moves:
        """The transfer of a patch of a map, to word `base` and on, portion by portion."""
        row, col = self.outputs.row, self.outputs.col
        points = Patch(row.coordinates(patch.rows), col.coordinates(patch.cols), patch.groups)
        apart = self.outputs.ifmap_apart
        part, box = self.outputs.part(self.word_fill, source.channels(channels), points, apart, base)
        if source.share[IMAGE] > 1:
            items = (Along(IMAGE, (0,) * len(at)) if axis == IMAGE else Along(axis, at) for axis, at in part.items)
            part, box = part._replace(items=tuple(items)), box._replace(images=range(1))
        return self._moves(source.tensor, part, source.boxes(channels, box), apart, _MAPS)

    def spill(self, unit: Unit, base: int) -> Moves:
        return self.left(unit.about, base)

    def left(self, of: ChannelBlock, base: int) -> Moves:
        """The transfer of what is made of a block, from word `base` on."""
        apart = self.outputs.ofmap_apart
        part, box = self.outputs.part(self.word_fill, of.channels, of.block, apart, base)
        return self._moves(self.ofmap, part, [box], apart, _RESULTS)

    def _moves(self, tensor: Tensor, part: Part, boxes: Sequence[Box], apart: tuple[int, int], kind: int) -> Moves:
        """The transfer of a part that is some boxes, to or from maps or results; portion by portion."""
        placed = self.turn.placed(part)
        turned = (each for box in boxes for each in self.turn.boxes(placed, box))
        ((axis, channels), *_) = placed.lane
        if len(channels) <= len(self.portions[0]):
            return self.traffic.moves(tensor, (placed,), turned, apart)
        every = enumerate(portions(len(channels), len(self.portions[0])))
        lanes = ((at, (Along(axis, channels[some.start : some.stop]),)) for at, some in every)
        parts = (placed._replace(base=placed.base + at * self._apart(kind), lane=lane) for at, lane in lanes)
        return self.traffic.moves(tensor, tuple(parts), turned, apart)

    def walk(self, source: MapSource, tap: tuple[int, int], outputs: Block, patch: Patch, base: int) -> Counters:
        """The words of a patch under a tap; where all share one row, or column, the walk stands still."""
        walk = self.outputs.walk(tap, outputs, patch, by_tap=False)
        counters = [
            Counter(each.length, 0, 1, each.length, 0) if share > 1 else each
            for each, share in zip(walk.counters, (*source.share[ROW:IMAGE], 1), strict=True)
        ]
        return walk._replace(base=base + walk.base, counters=tuple(counters))

    # ---- in words

    def explained(self, layer: Op, made: str, taps: str, names: tuple[str, str], beside: str = "") -> Explanation:
        """What is told of an op: how outputs are `made`, its taps, what maps and scalars are called, and why lanes."""
        hardware, (channels, rows, cols, images) = self.hardware, self.ofmap.shape
        ofmap = self.turn.of((channels, rows, cols, images))
        blocking = cut_up(self.tiling, self.outputs, ofmap, self.word_fill, 1, len(self.portions))
        lanes = f"{hardware.lanes} {self.turn.in_lanes}{beside}, one a lane"
        areas = zip((*names, "results"), self.tiling.buffers, strict=True)
        aspects = {
            **({"taps": taps} if taps else {}),
            "folds": f"{counted(len(self.portions), 'portion')} of at most {lanes}",
            "passes": f"none: {made}",
            "block": outputs_of(blocking, ofmap, self.outputs, hardware),
            "order": _ORDERS[self.tiling.kept_folds > 1],
            "words": used_of(self.word_fill, self.outputs, layer, hardware),
            "memory": memory_of(areas, hardware),
        }
        return Explanation(1, blocking, dict(vars(self.tiling)), aspects)


def draft_of(
    units: Callable[[Tiling[int]], AnyUnits], rank: RankedTiling, told: Callable[[AnyUnits], Explanation]
) -> Draft:
    """A draft of work by the vector unit: `units` makes the work for a tiling, `told` explains it."""
    make = partial(units, rank.tiling)
    return Draft(make, lambda program: (program, told(make())), rank.tiling.blocks, rank.least, rank.estimate)


# ---- depthwise convolutions


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """The drafts of a depthwise layer.

    Raises:
        UnsuitableError: when the layer is not depthwise.
        CapacityError: when nothing fits the vector memories.
    """
    conv, _ = layer.convolution(batch)
    if conv.groups == 1 or conv.groups != conv.in_channels:
        what = f"this one has {counted(conv.in_channels, 'channel')} in {counted(conv.groups, 'group')}"
        raise UnsuitableError(f"the vector unit takes several groups, of one input channel each; {what}")
    # What the vector unit works on may lie in any way.
    hardware = hardware.having("mapping", entry="ready")
    ranked = ranked_shapes(lambda shape, on: units_of(shape, on).ranked, shape_of(layer, batch, hardware), hardware)
    told = partial(_explained, layer)
    return [draft_of(partial(units_of, shape, hardware), rank, told) for shape, rank in ranked]


class _Depthwise(VectorUnits):
    """A depthwise convolution: lanes keep the weights of some taps, and add up the products of all.

    Attributes:
        tap_chunks: the taps, by number, as many at a time as a lane keeps the weights of.
    """

    numbers = 1

    def __init__(self, shape: ConvShape, hardware: Hardware, tiling: Tiling[int] | None = None) -> None:
        word = hardware.vector_memory.word_elements
        self.taps, self.scalar_words = shape.every_tap, -(-shape.taps // word)
        self.tap_chunks = portions(shape.taps, hardware.vector_unit.scalar_words * word)
        counts = [Arity(len(taps) + (taps.start > 0), len(taps), 0) for taps in self.tap_chunks]
        unit = hardware.vector_unit
        self.widened = read_first(*((each.extent, each.stride, each.kernel) for each in (shape.row, shape.col)))
        groups, _ = shape.word_groups(word)
        of = self.widened, apart_of(groups, hardware)
        self.chain = tuple((each.operands, pace_of("multiply_add", each, (), unit, *of)) for each in counts)
        # A tiling tells of chunks; there are no passes.
        cut = TapGroups(shape, hardware)
        self.chunks = cut.groups, cut.folds
        ifmap, self.ofmap = (
            Tensor(name, each, converted=True, padded=padded_map(each, hardware))
            for name, each in (("ifmap", shape.tensors.ifmap), (OFMAP, shape.tensors.ofmap))
        )
        # Lanes of several output channels have the same channel of the ifmap.
        self.maps = (MapSource(ifmap, (shape.out_channels, 1, 1, 1)),)
        self.tensors = ifmap, shape.filter, self.ofmap
        super().__init__(shape, shape.groups * shape.out_channels, hardware, tiling)

    def readied(self, tiling: Tiling[int]) -> int:
        """Words of a block that are made ready: padding, too."""
        return self.outputs.reached(tiling.rows, tiling.cols, tiling.groups)

    def delay(self, of: ChannelBlock) -> int:
        return self.starts(self.outputs.reached(*of.block.sizes), of.begins)

    def scalars(self, number: int, base: int) -> Iterator[Moves]:
        """The weights."""
        channels, taps, word = self.portions[number], range(len(self.taps)), self.hardware.vector_memory.word_elements
        part = Part(base, (0,), (Along(OUT_CHANNEL, channels),), (Along(K, taps),), word)
        yield self.traffic.numbers(self.tensors[1], (part,), len(channels) * len(taps))

    def work(self, of: ChannelBlock, bases: Sequence[int]) -> Iterator[Vector]:
        """The taps whose weights a lane keeps; then more of them, added to the sums so far."""
        (channels, block, _), (maps, filter_, results) = of, bases
        lanes, word = len(channels), self.hardware.vector_memory.word_elements
        patch, writes = self.outputs.patch(block), in_turn(results, block.words)
        for taps in self.tap_chunks:
            walks = [self.walk(self.maps[0], self.taps[tap], block, patch, maps) for tap in taps]
            walks += [writes] if taps.start else []
            weights = Scalars(filter_ + taps.start // word, -(-len(taps) // word), len(taps))
            more = {"scalars": weights, "widened": self.widened, "packed": self.groups}
            yield lane_step(lanes, "multiply_add", walks, writes, **more)


units_of = lru_cache(maxsize=1 << 10)(_Depthwise)
"""The units. Raises CapacityError. A layer is asked how many steps it takes before it is lowered."""


def _explained(layer: ArrayOp, work: _Depthwise) -> Explanation:
    row, col, steps = work.outputs.row, work.outputs.col, len(work.chain)
    kept = "" if steps == 1 else f", in {steps} steps, as a lane keeps {len(work.tap_chunks[0])} weights"
    taps = f"{row.kernel} x {col.kernel} = {len(work.taps)}, multiplied and added by the vector unit{kept}"
    return work.explained(layer, "nothing goes through the array", taps, ("ifmap", "filter"))


VECTOR = Lowering(
    "vector",
    "depthwise convolutions by the vector unit: it multiplies and adds, nothing goes through the array",
    ways,
    partial=True,
    pipelined=True,
    multiplies=False,
    carries=frozenset({"bias", "finish", "way"}),
    ignores=IGNORED - {"loads", "patch", "search"} | {"block_n", "block.out_channels"},
)
