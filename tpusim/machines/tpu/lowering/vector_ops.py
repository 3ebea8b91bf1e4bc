"""Pooling, sums and products of maps, and activations, which the vector unit makes word by word, without the array.

A lane has a channel. Windows that reach into the padding have steps of their own, which read only elements inside the
map. So padding changes no result, whatever the op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import product
from math import ceil, prod
from typing import NamedTuple

from tpusim.base.errors import CapacityError, Problem
from tpusim.machines.tpu.cut.blocks import CHANNEL, COL, IMAGE, ROW, Block, Patch, alike, halves, portions
from tpusim.machines.tpu.cut.geometry import MapAxis, in_strips
from tpusim.machines.tpu.cut.tiling import Demand, Tiling, fitting, step
from tpusim.machines.tpu.cut.traffic import PixelsInLanes, Turn, TurnedMap, boxes_of, turn_of
from tpusim.machines.tpu.definition import Body, StepLoop
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import pool_gradient
from tpusim.machines.tpu.lowering.convolution import ranked_shapes
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering
from tpusim.machines.tpu.lowering.vector import (
    FEW_TIMED,
    IGNORED,
    IMAGES_IN_LANES,
    ChannelBlock,
    Maps,
    MapSource,
    VectorUnits,
    apart_of,
    draft_of,
    feed,
    in_turn,
    least_padded,
    nested,
    read_first,
    tiled,
)
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity, pace_of
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import NO_SCALARS, Scalars, Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Part
from tpusim.machines.tpu.schedule.units import Area, Moves, SlotNeed, Touch, Unit, VectorWork
from tpusim.machines.tpu.search.search import CLOSE, TOLERANCE, RankedTiling
from tpusim.network.ops.elementwise import Chosen
from tpusim.network.ops.moves import Move
from tpusim.network.ops.op import OFMAP, TapWindow, VectorOp
from tpusim.network.ops.pool2d import Pool2d, Pool2dChoice, Pool2dGradient

COLUMNS_IN_LANES = Turn(lanes=COL, cols=CHANNEL)
_LARGE = 1 << 12
"""Most elements of a window for which only blocks of whole windows are tried, unless none fits."""


def ways(layer: VectorOp, batch: int, hardware: Hardware) -> list[Draft]:
    """The drafts of an op.

    Raises:
        CapacityError: when nothing fits the vector memories, or lanes cannot keep the scalars.
    """
    if isinstance(layer, Pool2dGradient):
        return pool_gradient.ways(layer, batch, hardware)
    bands = partial(_banded_of, layer, batch, hardware, None)
    try:
        drafts = _of_whole_windows(layer, batch, hardware)
    except CapacityError:
        if not _may_be_cut(layer, hardware):
            raise
        return [draft_of(bands, rank, _explained) for rank in bands().ranked]
    if _may_be_cut(layer, hardware) and prod(axis.kernel for axis in layer.axes) > _LARGE:
        first = bands().ranked[0]
        return [draft_of(bands, first, _explained)] * (first.expected < drafts[0].estimate()) + drafts
    return drafts


def _of_whole_windows(layer: VectorOp, batch: int, hardware: Hardware) -> list[Draft]:
    units = partial(units_of, layer, batch, hardware)

    def ranks(outputs: Maps, on: Hardware) -> Sequence[RankedTiling]:
        return units_of(layer, batch, on, outputs).ranked

    # Layers that overlap find the outcomes of others on chip only in words of the same strips.
    if not (own := units()).any_strips or hardware.sequencer.between_layers != "drain":
        return [draft_of(partial(units, own.outputs), rank, _explained) for rank in own.ranked]
    # Compilers cut maps of one image alone for windows; without these any pixels may share a word.
    free = hardware if layer.spatial else hardware.having("mapping", strips="balanced")
    ranked = ranked_shapes(ranks, own.outputs, free)
    return [draft_of(partial(units, outputs), rank, _explained) for outputs, rank in ranked]


def _may_be_cut(layer: VectorOp, hardware: Hardware) -> bool:
    """Whether windows may be joined band by band: a choice needs the largest element so far beside its number, and a
    given block is left as it is.
    """
    pools = isinstance(layer, Pool2d) and not isinstance(layer, Pool2dChoice)
    return pools and not hardware.mapping.block.given


class _PointByPoint(VectorUnits):
    """Units of an op. Outputs of a block with the same window take one step, or a few if windows have many elements.

    Attributes:
        shapes: the shapes of all tensors, by name: what goes into lanes, rows, columns, images.
        moved: how the map is moved by an op that does nothing else.
        kept: sources of which a lane keeps one number.
    """

    close = TOLERANCE
    outputs: Maps

    def __init__(
        self, layer: VectorOp, batch: int, hardware: Hardware, outputs: Maps | None = None,
        tiling: Tiling[int] | None = None,
    ) -> None:  # fmt: skip
        self.layer, self.batch, self.hardware = layer, batch, hardware
        self.turn = turn = self._turned()
        self.moved = TurnedMap(layer.taken(batch), turn) if isinstance(layer, Move) and isinstance(turn, Turn) else None
        # Where channels are in lanes, a portion is a part of every pixel.
        self.joins = turn == Turn() and not self.moved
        self.shapes = {name: turn.of(shape) for name, shape in layer.shapes(batch).items()}
        others = [name for name in layer.sources(batch) if name != "ifmap"]
        unit, last = hardware.vector_unit, layer.coefficients(1)
        if unit.slots and unit.slots.body_cycles:
            # What bodies take is a share of words, so that estimates of blocks are nearer to one another.
            self.close = CLOSE
        scalars = [name for name in others if prod(self.shapes[name][1:]) == 1]
        # Numbers that a lane cannot keep may be operands, too, for some operations: words that stay where they are.
        as_operands = Arity(1 + (layer.partner > 0) + len(others), 0, len(last))
        if len(scalars) > unit.scalar_words and OPERATIONS[layer.operation].fits(as_operands):
            scalars = []
        maps = ["ifmap", *(name for name in others if name not in scalars)]
        first, *more = (self._source(self._map(name)) for name in maps)
        # Nothing passes from lane to lane, so an element of another channel is read once more.
        partner = [first._replace(turned=layer.partner)] if layer.partner else []
        self.maps = first, *partner, *more
        # Scalars lie as they come.
        self.kept = tuple(self._source(Tensor(name, layer.shapes(batch)[name])) for name in scalars)
        self.ofmap, self.scalar_words, self.numbers = self._map(OFMAP), len(scalars), len(scalars)
        self.tensors = *dict.fromkeys(each.tensor for each in (*self.maps, *self.kept)), self.ofmap
        if self.numbers > unit.scalar_words:
            says = f"a lane keeps {unit.scalar_words} words of scalars, and the op has {self.numbers}"
            raise CapacityError(Problem(f"{says}; give it more", "vector_unit.scalar_words"))
        # As many words as an output is made of at most.
        most = prod(axis.kernel for axis in layer.axes) + len(self.maps) - 1 + layer.along_channels
        arities = [(name, Arity(count, self.numbers, 0)) for name, count in self._joined(most)]
        outputs = outputs or self._outputs()
        groups, _ = outputs.word_groups(hardware.vector_memory.word_elements)
        of = self.widened, apart_of(groups, hardware)
        self.chain = tuple((each.operands, pace_of(name, each, last, unit, *of)) for name, each in arities)
        super().__init__(outputs, self.shapes[OFMAP][0], hardware, tiling)

    def _turned(self) -> Turn | PixelsInLanes:
        """The layout of its maps: which axes are in lanes, rows, columns and words.

        Moves fill lanes and words as well as they can, and windows along channels have pixels in lanes. All other ops
        have channels in lanes, unless another axis needs less padding there: images, or columns if all maps are alike.
        """
        shapes = self.layer.shapes(self.batch)
        if isinstance(self.layer, Move):
            return turn_of(self.layer.taken(self.batch), self.hardware)
        if self.layer.along_channels:
            return PixelsInLanes(shapes[OFMAP][COL])
        turns, (channels, *_) = [Turn()], shapes[OFMAP]
        if self.layer.spatial:
            turns += [IMAGES_IN_LANES]
        elif self.layer.partner == 0 and len({*shapes.values()}) == 1:
            turns += [COLUMNS_IN_LANES, IMAGES_IN_LANES]
        elif isinstance(self.layer, Chosen) and shapes["condition"][COL:] == shapes[OFMAP][COL:]:
            # A condition for all channels is a word that stays where it is.
            turns += [COLUMNS_IN_LANES]
        elif self.layer.partner == 0 and {*shapes.values()} == {shapes[OFMAP], (channels, 1, 1, 1)}:
            # Numbers of channels are words then, which not all operations take.
            takes = Arity(len(shapes) - 1, 0, len(self.layer.coefficients(1)))
            turns += [IMAGES_IN_LANES] * OPERATIONS[self.layer.operation].fits(takes)
        return least_padded(turns, shapes[OFMAP], self.hardware)

    @cached_property
    def any_strips(self) -> bool:
        """Whether strips may share words: nothing is moved, all maps are cut alike, and no window reaches beyond."""
        turned = self.turn not in (Turn(), IMAGES_IN_LANES, COLUMNS_IN_LANES) or self.moved
        apart = any(each.share[ROW] > 1 or each.share[COL] > 1 for each in self.maps)
        return not (turned or apart or any(axis.ends != (0, 0) for axis in self.layer.axes))

    def _outputs(self) -> Maps:
        """The outputs, cut into the strips that fill words best where any may."""
        _, high, wide, images = self.shapes[OFMAP]
        row, col = (MapAxis(each.size, each.kernel, each.stride, each.ends, each.dilation) for each in self.layer.axes)
        if self.turn not in (Turn(), IMAGES_IN_LANES) or self.moved:
            # Windows are along axes that lie as they come.
            one = MapAxis(high, 1, 1, (0, 0), 1)
            row, col = row if self.layer.along_channels else one, replace(one, size=wide)
        if not self.any_strips:
            return Maps(images, row, col)
        return Maps(images, *in_strips(row, col, images, self.hardware))

    @property
    def fewest(self) -> tuple[tuple[int, Fraction | int], ...]:
        """The steps of every word. None are certain if windows reach over an edge, as those have fewer taps."""
        return () if any(axis.padding != (0, 0) for axis in (self.outputs.row, self.outputs.col)) else self.chain

    def _source(self, tensor: Tensor) -> MapSource:
        sizes = zip(self.shapes[tensor.name], self.shapes["ifmap"], strict=True)
        channels, rows, cols, images = (whole if size == 1 else 1 for size, whole in sizes)
        return MapSource(tensor, (channels, rows, cols, images))

    def _map(self, name: str) -> Tensor:
        shape, multiple = self.layer.shapes(self.batch)[name], self.hardware.hbm.channel_multiple
        wide = self.turn.lanes if isinstance(self.turn, Turn) and not self.moved else CHANNEL
        return tiled(name, shape, multiple, wide)

    @cached_property
    def widened(self) -> Fraction:  # type: ignore[override]
        """The share of operands that are loaded and widened: a word that windows share is, for the first of them."""
        return read_first(*((each.outputs, each.stride, each.kernel) for each in self.layer.axes))

    @property
    def operation(self) -> str:
        """The operation that makes a result: the op's own, or that of transposing units, where the machine has such."""
        slots = self.hardware.vector_unit.slots
        turns = slots and slots.turn_cycles and isinstance(self.layer, Move) and self.layer.turns
        return "turn" if turns else self.layer.operation

    @property
    def kind(self) -> Body:  # type: ignore[override]
        does = OPERATIONS[self.operation]
        # Code for windows is never one instruction.
        return "turned" if does.turns else "bare" if does.bare and not self.layer.spatial else "fused"

    # ---- about how long

    def bytes_of(self, tiling: Tiling[int]) -> tuple[list[int], int]:
        """Bytes of a block and portion; where axes are turned, or elements moved, those of the first block, as its runs
        depend on both maps.
        """
        if self.turn == Turn() and not self.moved:
            return super().bytes_of(tiling)
        first = self._first(tiling)
        return [each.bytes for each in self.brought(first, 0)], self.left(first, 0).bytes

    def readied(self, tiling: Tiling[int]) -> int:
        return self._came(self._first(tiling)) if self.moved else super().readied(tiling)

    def _first(self, tiling: Tiling[int]) -> ChannelBlock:
        return ChannelBlock(self.portions[0], Block(range(tiling.rows), range(tiling.cols), range(tiling.groups)))

    # ---- as units

    def delay(self, of: ChannelBlock) -> int:
        return self.starts(self._came(of), of.begins) if self.moved else super().delay(of)

    def _came(self, of: ChannelBlock) -> int:
        """Words of a moved map that come: zeros between its elements, or around them, do not."""
        words = 0
        for moves in self.brought(of, 0):
            sizes = moves.tensor.shape
            for part in moves.parts:
                there = (sum(0 <= at < sizes[each.axis] for at in each.coordinates) for each in part.items)
                words += -(-prod(there) // part.per_word)
        return words

    def scalars(self, number: int, base: int) -> Iterator[Moves]:
        """Moves of the numbers that lanes keep, each to a word of its own."""
        for word, source in enumerate(self.kept, base):
            channels = source.channels(self.portions[number])
            part = Part(word, (0,), (Along(CHANNEL, channels),), (Along(IMAGE, range(1)),), 1)
            yield self.traffic.numbers(source.tensor, (self.turn.placed(part),), len(set(channels)))

    def bring(self, source: MapSource, channels: range, patch: Patch, base: int) -> Moves:
        if not self.moved:
            return super().bring(source, channels, patch, base)
        part = self.moved.read(self.moved.made(self.outputs, channels, patch, base, self.word_fill))
        return self.traffic.moves(source.tensor, (part,), boxes_of(part))

    def steps(self, block: Block) -> int:
        return len(self._rectangles(block)) * len(self.chain)

    def _rectangles(self, block: Block) -> list[tuple[Block, tuple[tuple[int, int], ...], int]]:
        """Rectangles of outputs whose windows are alike, each with its taps and the number of elements that count."""
        of_rows, of_cols = self._windows
        return [
            (Block(rows, cols, block.groups), (*product(high.taps, wide.taps),), high.counted * wide.counted)
            for rows, high in alike(block.rows, of_rows.__getitem__)
            for cols, wide in alike(block.cols, of_cols.__getitem__)
        ]

    @cached_property
    def _windows(self) -> tuple[Sequence[TapWindow], Sequence[TapWindow]]:
        """The window of each row and column of outputs.

        With several strips, or windows of one element, all windows are alike. Outputs beyond the end of the map have
        the last window.
        """
        shape, (rows, cols) = self.outputs, self.layer.windows
        if shape.strips == 1 and (self.layer.spatial or self.layer.along_channels):
            beyond = shape.row.extent - len(rows), shape.col.extent - len(cols)
            return rows + rows[-1:] * beyond[0], cols + cols[-1:] * beyond[1]
        return rows[:1] * shape.row.extent, cols[:1] * shape.col.extent

    @property
    def most(self) -> int:
        """New operands of a step at most: as many as a lane has scalars, or one of each map."""
        scalars = self.hardware.vector_unit.scalar_words * self.hardware.vector_memory.word_elements
        return max(scalars, len(self.maps))

    def _parts(self, operands: int) -> list[tuple[str, range]]:
        """The operation of each step, and its new operands; each step but the first also reads the result so far."""
        layer, last = self.layer, operands - self.layer.along_channels
        together = portions(last, self.most)
        if layer.along_channels:
            together.append(range(last, operands))
        # The last step has the op's own operation; those before it only join operands.
        names = [layer.joining, *[layer.joining_more] * (len(together) - 2), self.operation]
        return [*zip(names[-len(together) :], together, strict=True)]

    def _joined(self, operands: int) -> list[tuple[str, int]]:
        """The operation of each step, and the number of its operands, the result so far included."""
        return [(name, len(some) + (some.start > 0)) for name, some in self._parts(operands)]

    def _writes(self, at: Block, block: Block, lanes: int, base: int) -> Feed:
        """The words to which results of a part of a block go; those of the block begin at `base`."""
        rows, cols, groups = at.sizes
        down = Counter(rows, at.rows.start - block.rows.start, 1, len(block.rows), len(block.cols) * groups)
        across = Counter(cols, at.cols.start - block.cols.start, 1, len(block.cols), groups)
        return feed(lanes, Counters(base, (down, across, Counter(groups, 0, 1, groups, 1))))

    def work(self, of: ChannelBlock, bases: Sequence[int]) -> Iterator[Vector]:
        """Steps of a portion: some join the first operands to one; the last takes this one and the other operands."""
        (channels, block, _), kept, word = of, self.numbers, self.hardware.vector_memory.word_elements
        # A number in each word.
        scalars = Scalars(bases[1], kept, (kept - 1) * word + 1) if kept else NO_SCALARS
        for at, alike_taps, counted in self._rectangles(block):
            # The words under the taps of the ifmap, then those of the other maps.
            walks = list[Counters]()
            for number, (source, patch, base) in enumerate(self.patches(block, bases[0])):
                taps = ((0, 0),) if number else alike_taps
                walks += [self.walk(source, tap, at, patch, base) for tap in taps]
            if self.layer.along_channels:
                middle = self.layer.axes[0].ends[0], 0
                walks.append(self.walk(self.maps[0], middle, at, self.outputs.patch(block), bases[0]))
            writes = self._writes(at, block, len(channels), bases[2])
            last = scalars, self.layer.coefficients(counted)
            for operation, some in self._parts(len(walks)):
                # What is joined so far comes first: sums of floats are then in the order of the operands.
                operands = [writes] if some.start else []
                operands += [feed(len(channels), walk) for walk in walks[some.start : some.stop]]
                given = last if some.stop == len(walks) else (NO_SCALARS, ())
                body = ceil(at.words * self.body) if some.stop == len(walks) else 0
                yield Vector((), operation, tuple(operands), writes, at.words, *given, self.widened, self.groups, body)


class _Choices(_PointByPoint):
    """The choices of a pooling. Where windows have more elements than a step takes, the largest of those so far stand
    beside the maps, one for each choice.
    """

    def _joined(self, operands: int) -> list[tuple[str, int]]:
        parts = [some for _, some in self._parts(operands)]
        choices = [(self.layer.operation, len(some) + 2 * (some.start > 0)) for some in parts]
        return choices + [("maximum", len(some) + (some.start > 0)) for some in parts[:-1]]

    def _tiling(self, rows: int, cols: int, groups: int, joined: int = 1) -> Tiling[int]:
        tiling = super()._tiling(rows, cols, groups, joined)
        beside = tiling.psum_words if len(self.chain) > 1 else 0
        return replace(tiling, ifmap_words=tiling.ifmap_words + beside)

    def work(self, of: ChannelBlock, bases: Sequence[int]) -> Iterator[Vector]:
        """Steps that choose among some taps, and keep the largest element; then among this one and further taps."""
        block, lanes = of.block, len(of.channels)
        ((source, patch, base),) = self.patches(block, bases[0])
        made = partial(Vector, (), widened=self.widened, packed=self.groups)
        for at, taps, _ in self._rectangles(block):
            chosen = self._writes(at, block, lanes, bases[2])
            largest = self._writes(at, block, lanes, base + patch.words)
            for _, some in self._parts(len(taps)):
                stood = taps[some.start : some.stop]
                walks = [feed(lanes, self.walk(source, tap, at, patch, base)) for tap in stood]
                numbers = tuple([float(row * self.layer.axes[1].kernel + col) for row, col in stood])
                before = [chosen, largest] if some.start else []
                yield made(self.layer.operation, (*before, *walks), chosen, at.words, coefficients=numbers)
                if some.stop < len(taps):
                    yield made("maximum", (*before[1:], *walks), largest, at.words)


class Band(NamedTuple):
    """The unit of work where a window is larger than a lane: some of its taps, for one word of results in each lane.

    Attributes:
        channels, block: the channels, one in each lane, and the word.
        begins: whether it is the first of a body.
        rows, cols: those of the taps.
        high: rows of the first band of the window.
        first, last: whether it is that, and whether it is the last one.
    """

    channels: range
    block: Block
    begins: bool
    rows: range
    cols: range
    high: int
    first: bool
    last: bool


class _BandPooling(_PointByPoint):
    """Pooling by windows that no lane holds as a whole: band by band of a window.

    The elements of each row of a band are joined to a word, all rows at the same time, and to those of the bands
    before; at the end the words of the rows are joined. A tiling tells by `chunk_taps` and `chunk_folds` how many rows
    and columns of a window a band has.
    """

    @cached_property
    def ranked(self) -> tuple[RankedTiling, ...]:
        high, wide = (axis.kernel for axis in self.layer.axes)
        sizes = [(rows, wide) for rows in halves(high)] + [(1, cols) for cols in halves(wide)[1:]]
        every = [*fitting(map(self._banded, sizes), self._words, self.hardware)]
        costs = sorted((self.cycles(each), at) for at, each in enumerate(every))
        few = costs[: FEW_TIMED if self.hardware.mapping.search == "simulate" else 1]
        return tuple([RankedTiling(every[at], 0.0, partial(float, cost), expected=cost) for cost, at in few])

    def _banded(self, size: tuple[int, int]) -> Tiling[int]:
        """A tiling by bands of some rows and columns of a window, `size`; blocks are a word of results."""
        row, col = self.outputs.row, self.outputs.col
        words = len(row.places(range(size[0]))) * len(col.places(range(size[1])))
        made = replace(self._tiling(1, 1, 1), chunk_taps=size[0], chunk_folds=size[1])
        return replace(made, ifmap_words=words, ifmap_buffers=2, psum_buffers=2)

    @staticmethod
    def _words(tiling: Tiling[int]) -> int:
        """Words of a lane, with those that rows are joined to."""
        return tiling.words + tiling.chunk_taps

    def cycles(self, tiling: Tiling[int]) -> float:
        """Estimated cycles: a band comes as the one before is joined."""
        rows, cols = tiling.chunk_taps, tiling.chunk_folds
        bands = prod(-(-axis.kernel // size) for axis, size in zip(self.layer.axes, (rows, cols), strict=True))
        joined = sum(self._joining(rows, len(some) + 1) for some in portions(cols, self.most))
        unit, rate = self.hardware.vector_unit, float(self.hardware.hbm_bytes_per_cycle)
        (brought,), left = self.bytes_of(tiling)
        unpacked = tiling.ifmap_words * float(unit.unpack_cycles)
        filled, spilled = float(Demand(bus=brought / rate, converted=unpacked).busiest), left / rate
        begun = self.starts(0) / self.in_a_body(tiling)
        units = tiling.blocks * len(self.portions) * bands
        ready = self.starts(tiling.ifmap_words, False)
        ends = filled + spilled + ready + 2 * self.hardware.latency_cycles
        return float(units * (max(filled, joined) + begun) + ends)

    def _joining(self, words: int, operands: int) -> float:
        """Estimated cycles of a step that joins some operands to `words` words."""
        pace = pace_of(self.layer.joining, Arity(operands, 0, 0), (), self.hardware.vector_unit, self.widened)
        lanes = len(self.portions[0])
        loop = StepLoop(self.groups, self.widened)
        return float(step(words, operands, pace, self.word_fill, self.hardware, lanes, loop).busiest)

    def bytes_of(self, tiling: Tiling[int]) -> tuple[list[int], int]:
        lanes = len(self.portions[0])
        return [self._bytes(self.maps[0].tensor, tiling.ifmap_words, 1, lanes)], self._bytes(self.ofmap, 1, 1, lanes)

    @property
    def areas(self) -> tuple[Area, ...]:
        """Maps, scalars, results, and a word for each row of a band."""
        return (*super().areas, Area("joined", OFMAP, self.tiling.chunk_taps, 1, len(self.portions[0])))

    def units(self) -> Iterator[Unit]:
        body, at = self.in_a_body(self.tiling), 0
        for (number, channels), block in product(enumerate(self.portions), self.blocks):
            bands = self._bands(block)
            for which, (rows, cols) in enumerate(bands):
                last = which == len(bands) - 1
                of = Band(channels, block, at % body == 0, rows, cols, len(bands[0][0]), which == 0, last)
                wanted = ("maps", of), ("scalars", number), ("results", (number, block)), ("joined", 0)
                steps = len(portions(len(cols), self.most)) + last * len(portions(of.high, self.most))
                needs = tuple([SlotNeed(*each) for each in wanted])
                yield Unit(needs, None, of, steps=steps, leaves=2 if last else -1)
                at += 1

    def _bands(self, block: Block) -> list[tuple[range, range]]:
        """The bands of the window of a word of results: rows and columns of the taps that are on the map."""
        (of_rows, of_cols), tiling = self._windows, self.tiling
        rows, cols = of_rows[block.rows.start].taps, of_cols[block.cols.start].taps
        return [*product(_cut(rows, tiling.chunk_taps), _cut(cols, tiling.chunk_folds))]

    def _patch(self, of: Band) -> Patch:
        row, col = self.outputs.row, self.outputs.col
        return Patch(row.stored(of.block.rows, of.rows), col.stored(of.block.cols, of.cols), of.block.groups)

    def delay(self, of: Band) -> int:  # type: ignore[override]
        return self.starts(self._patch(of).words, of.begins)

    def brought(self, of: Band, base: int) -> Iterator[Moves]:  # type: ignore[override]
        yield self.bring(self.maps[0], of.channels, self._patch(of), base)

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[VectorWork]:
        yield VectorWork([*self.work(unit.about, bases)], (Touch(0), Touch(1)), 2, unit.about.first)

    def work(self, of: Band, bases: Sequence[int]) -> Iterator[Vector]:  # type: ignore[override]
        """Steps that join the taps of a band, row by row, to those of the bands before; then the rows, at the end."""
        maps, _, result, joined = bases
        lanes, patch, row = len(of.channels), self._patch(of), self.outputs.row
        made = partial(Vector, (), widened=self.widened, packed=self.groups)
        rows, apart = feed(lanes, in_turn(joined, len(of.rows))), row.tap_step * len(patch.cols)
        for some in portions(len(of.cols), self.most):
            firsts = (self._start(of, patch, of.cols[at]) for at in some)
            walks = (feed(lanes, nested(maps + first, (len(of.rows), apart))) for first in firsts)
            so_far = [rows] if some.start or not of.first else []
            yield made(self.layer.joining, (*so_far, *walks), rows, len(of.rows))
        writes, (of_rows, of_cols) = feed(lanes, in_turn(result, 1)), self._windows
        counted = of_rows[of.block.rows.start].counted * of_cols[of.block.cols.start].counted
        for some in portions(of.high, self.most) if of.last else ():
            words = (feed(lanes, in_turn(joined + at, 1)) for at in some)
            ends = some.stop == of.high
            operation = self.layer.operation if ends else self.layer.joining
            given = self.layer.coefficients(counted) if ends else ()
            body, so_far = ceil(self.body) if ends else 0, [writes] if some.start else []
            yield made(operation, (*so_far, *words), writes, 1, coefficients=given, body=body)

    def _start(self, of: Band, patch: Patch, col: int) -> int:
        """The word of a patch under the first row of a band, and a column."""
        walk = self.walk(self.maps[0], (of.rows.start, col), of.block, patch, 0)
        return walk.base + sum(each.start * each.stride for each in walk.counters)


def _cut(taps: range, most: int) -> list[range]:
    """Parts of some taps, each of `most` or fewer."""
    return [taps[part.start : part.stop] for part in portions(len(taps), most)]


def _units(
    layer: VectorOp, batch: int, hardware: Hardware, outputs: Maps | None = None, tiling: Tiling[int] | None = None
) -> _PointByPoint:
    kind = _Choices if isinstance(layer, Pool2dChoice) else _PointByPoint
    return kind(layer, batch, hardware, outputs, tiling)


_banded_of = lru_cache(maxsize=1 << 10)(_BandPooling)
units_of = lru_cache(maxsize=1 << 10)(_units)
"""Units of an op, kept because all layers are asked for their steps before one is lowered. Raises CapacityError."""


def _explained(work: _PointByPoint) -> Explanation:
    taps = f"{prod(axis.kernel for axis in work.layer.axes)}, fewer where a window reaches over an edge"
    if isinstance(work, _BandPooling):
        taps += f"; {work.tiling.chunk_taps} x {work.tiling.chunk_folds} of them at a time"
    sources = ", ".join(dict.fromkeys(each.tensor.name for each in (*work.maps, *work.kept)))
    turned = not work.moved and work.turn in (COLUMNS_IN_LANES, IMAGES_IN_LANES)
    beside = ", in which tiles are less padded" if turned else ""
    made = f"the vector unit makes each output of {sources}"
    return work.explained(work.layer, made, taps if work.layer.spatial else "", ("maps", "scalars"), beside)


VECTOR_OPS = Lowering(
    "vector_ops",
    "pooling, sums and products of maps, activations: each output word by word, by the vector unit",
    ways,
    unit="vector",
    partial=True,
    pipelined=True,
    multiplies=False,
    banks=True,
    ignores=IGNORED - {"layout", "loads", "search"} | {"block_n", "block.out_channels"},
)
