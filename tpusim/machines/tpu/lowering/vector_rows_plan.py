"""The plan of an op of whole rows: which rows stand in which lanes, in how many pieces they come, and what is where."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from tpusim.machines.tpu.definition.beat import beat_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import CHANNEL, IMAGE, portions
from tpusim.machines.tpu.lowering.geometry import MapAxis, padded, shifted
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES, fitting, word_groups
from tpusim.machines.tpu.lowering.vector_ops_plan import Maps
from tpusim.machines.tpu.program.operations import Arity, work_of
from tpusim.machines.tpu.program.tensor import Along, Tensor
from tpusim.memory.layout import Box
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.row_op import RowOp, Stage

RESULT_BUFFERS = 2


class Spread(NamedTuple):
    """Where rows are.

    Attributes:
        fill: rows side by side in a lane.
        lanes: for a share of the rows, at most.
        shares: equal parts of the channels.
    """

    fill: int
    lanes: int
    shares: int


class Pieces(NamedTuple):
    """How rows come.

    Attributes:
        number: pieces of a row.
        slots: of the vector memory, each for a piece.
        kept: whether a row stays from one stage to the next.
        shared: slots for what all rows share; as many as pieces: it stays.
    """

    number: int
    slots: int
    kept: bool
    shared: int


class RowPlan:
    """A lane has some rows side by side, an element of each in a word, and the channels one after another.

    Attributes:
        shapes: of all tensors, by name; `rows`: how many there are.
        stages: of the op; `given`: how many of them have a number a row that is read, which come first.
        shared: sources of which all rows read the same.
        reduces: whether a number a row comes out.
        fill: elements of a word in use.
        shares: shares that the channels of a row are cut into, each in other lanes; `channels`: those of a share.
        lanes: in use at most.
        units: the rows that are in the lanes at a time, the last of them perhaps beyond those that there are.
        outputs: a map of one pixel.
    """

    def __init__(self, layer: RowOp, batch: int, hardware: Hardware) -> None:
        self.layer, self.hardware = layer, hardware
        self.shapes: dict[str, Shape] = dict(layer.shapes(batch))
        self.rows, self.stages = self.shapes["ifmap"][IMAGE], layer.stages
        self.given = sum(bool(each.given) for each in self.stages)
        self.shared = tuple(name for each in self.stages for name in each.shared)
        self.reduces = bool(self.stages[-1].joins)
        self.spread = self._spread()
        self.fill, lanes, self.shares = self.spread
        self.channels, self.lanes = layer.channels // self.shares, lanes * self.shares
        held = portions(self.rows, lanes * self.fill)
        self.units = [range(each.start, each.start + -(-len(each) // self.fill) * self.fill) for each in held]
        alone = MapAxis(1, 1, 1, (0, 0), 1)
        self.outputs = Maps(self.rows, alone, alone)

    def _spread(self) -> Spread:
        """One row after the other over the lanes; of few, long ones their channels as well, in equal shares.

        What shares have come to goes through HBM, and is joined in all lanes: there are as many as make that, and the
        work on a share, least.
        """
        lanes, elements = self.hardware.lanes, self.hardware.vector_memory.word_elements
        channels, fill = self.layer.channels, min(elements, self.rows)
        together = -(-self.rows // fill)
        if self.rows < lanes <= channels:
            # Cycles of all stages: for an element of `fill` rows, and for a number that a share has come to.
            joining = sum(self._period(each.joins, self.most(each), 0, fill) for each in self.stages if each.joins)
            work = 0.0
            for each in self.stages[self.given :]:
                others = len(each.known) + len(each.shared)
                work += self._period(each.operation, self.most(each) if each.joins else 1, others, fill)
            even = (each for each in range(1, lanes // together + 1) if channels % each == 0)
            shares = min(even, key=lambda each: channels / each * work + each * joining)
            if shares > 1:
                return Spread(fill, together, shares)
        groups, fill = word_groups(-(-self.rows // lanes), elements)
        return Spread(fill, -(-self.rows // (groups * fill)), 1)

    def _period(self, operation: str, elements: int, others: int, fill: int) -> float:
        """Cycles an element of steps that take some, and other operands."""
        work = sum(work_of(operation, Arity(elements + others, 0, 0), (), self.hardware.vector_unit))
        return beat_of(elements + others, work, fill, self.hardware).period / elements

    def tensor(self, name: str) -> Tensor:
        """One of the tensors, as it lies in HBM."""
        channels, *others = shape = self.shapes[name]
        alone = (name == OFMAP and self.reduces) or name in {each.given for each in self.stages}
        wide = 1 if alone else self.hardware.hbm.channel_multiple
        return Tensor(name, shape, converted=True, padded=(padded(channels, wide), *others))

    def most(self, stage: Stage) -> int:
        """Elements of a row that a step of a stage takes: as many operands as a lane has scalars, but at least two."""
        unit, memory = self.hardware.vector_unit, self.hardware.vector_memory
        return max(2, unit.scalar_words * memory.word_elements - len(stage.known))

    # ---- pieces, and what is where

    @cached_property
    def pieces(self) -> Pieces:
        """Rows that are kept, if they fit, with room for the next ones if that fits, too; as few pieces as it may be.

        Raises:
            CapacityError: when not even an element at a time fits; says how much memory would do.
        """
        return next(fitting(self._ways(), lambda pieces: self.areas(pieces)[-1], self.hardware))

    def _ways(self) -> Iterator[Pieces]:
        channels, kept = self.channels, self.hardware.mapping.rows == "kept"
        counts = [min(MOST_PIECES, channels)]
        while counts[-1] < channels:
            counts.append(min(2 * counts[-1], channels))
        for stays in (True, False) if self.shared else (True,):
            shared = [count if stays else min(2, count) for count in counts]
            both = [*zip(counts, shared, strict=True)]
            for units in (min(2, len(self.units)), 1) if kept else ():
                yield from (Pieces(count, count * units, True, each) for count, each in both)
            yield from (Pieces(count, 2, False, each) for count, each in both)

    @cached_property
    def parts(self) -> list[range]:
        """The channels of each piece, of the first share."""
        return self._parts(self.pieces.number)

    def _parts(self, count: int) -> list[range]:
        return portions(self.channels, -(-self.channels // count))

    def areas(self, pieces: Pieces) -> list[int]:
        """Where each area begins: slots of rows, what is shared, numbers on the way, the stages', those that lanes
        exchange, results; the end.
        """
        size = len(self._parts(pieces.number)[0])
        results = RESULT_BUFFERS * (1 if self.reduces else size)
        on_the_way = self.most_joined(pieces.number)
        # What is given of the next rows is there before these are done.
        numbers = len(self.stages) + self.given
        exchanged = sum(bool(each.joins) for each in self.stages) * self.shares if self.shares > 1 else 0
        sizes = (pieces.slots * size, len(self.shared) * pieces.shared * size, on_the_way, numbers, exchanged, results)
        return [0, *accumulate(sizes)]

    def levels(self, stage: Stage, count: int) -> list[int]:
        """How many numbers a row there are of a stage, the fewer the more have been joined; none where none are."""
        if not stage.joins:
            return [0]
        most = self.most(stage)
        return _levels(sum(-(-len(part) // most) for part in self._parts(count)), most)

    def most_joined(self, count: int) -> int:
        """Words of the numbers that are still to be joined of so many pieces, of shares or of what these have come to,
        at most.
        """
        exchanged = (sum(_levels(self.shares, self.most(each))[1:]) for each in self.stages)
        return max(*(sum(self.levels(each, count)) for each in self.stages), *exchanged)

    # ---- elements

    def first_channels(self, unit: range) -> Along:
        """The first channel of each lane: share by share."""
        every = [share * self.channels for share in range(self.shares) for _ in unit[:: self.fill]]
        return Along(CHANNEL, tuple(every))

    def first_rows(self, unit: range) -> Along:
        """The first row of each lane."""
        return Along(IMAGE, unit[:: self.fill] if self.shares == 1 else (*unit[:: self.fill],) * self.shares)

    def lane(self, unit: range) -> tuple[Along, ...]:
        """Both, where both differ."""
        rows = self.first_rows(unit)
        return (rows,) if self.shares == 1 else (self.first_channels(unit), rows)

    def items(self, channels: range) -> tuple[Along, ...]:
        """What a lane has of its rows, of the channels of its share."""
        return Along(CHANNEL, channels), Along(IMAGE, range(self.fill))

    def boxed(self, channels: range, rows: range) -> tuple[Box, ...]:
        """The same of all shares."""
        starts = range(0, self.layer.channels, self.channels)
        rows = range(rows.start, min(rows.stop, self.rows))
        return tuple(Box(shifted(channels, at), range(1), range(1), rows) for at in starts)


def _levels(count: int, most: int) -> list[int]:
    """A count of numbers, then of those that are left when `most` are joined at a time, while there are more."""
    found = [count]
    while found[-1] > most:
        found.append(-(-found[-1] // most))
    return found
