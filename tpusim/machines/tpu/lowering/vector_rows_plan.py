"""The plan of an op of whole rows: which rows stand in which lanes, in how many pieces they come, and what is where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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

_ALONE = MapAxis(1, 1, 1, (0, 0), 1)
RESULT_BUFFERS = 2


class Spread(NamedTuple):
    """Where rows are.

    Attributes:
        groups: times that all lanes get rows.
        fill: rows side by side in a lane.
        lanes: for a share of the rows, at most.
        shares: equal parts of the channels.
    """

    groups: int
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


@dataclass(frozen=True)
class RowPlan:
    """A lane has some rows side by side, an element of each in a word, and the channels one after another."""

    layer: RowOp
    batch: int
    hardware: Hardware

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of all tensors, by name."""
        return dict(self.layer.shapes(self.batch))

    @cached_property
    def rows(self) -> int:
        """How many there are."""
        return self.shapes["ifmap"][IMAGE]

    @cached_property
    def spread(self) -> Spread:
        """One row after the other over the lanes; of few, long ones their channels as well, in equal shares.

        What shares have come to goes through HBM, and is joined in all lanes: there are as many as make that, and the
        work on a share, least.
        """
        lanes, elements = self.hardware.lanes, self.hardware.vector_memory.word_elements
        channels, fill = self.layer.channels, min(elements, self.rows)
        together = -(-self.rows // fill)
        if self.rows < lanes <= channels:
            even = (each for each in range(1, lanes // together + 1) if channels % each == 0)
            shares = min(even, key=lambda each: channels / each * self._work(fill) + each * self._joining(fill))
            if shares > 1:
                return Spread(1, fill, together, shares)
        groups, fill = word_groups(-(-self.rows // lanes), elements)
        return Spread(groups, fill, -(-self.rows // (groups * fill)), 1)

    def _work(self, fill: int) -> float:
        """Cycles of all stages for an element of `fill` rows."""
        counts = ((each, self.most(each) if each.joins else 1) for each in self.stages[self.given :])
        return sum(self._period(each.operation, count, each, fill) for each, count in counts)

    def _joining(self, fill: int) -> float:
        """Cycles of all stages for a number that a share has come to."""
        return sum(self._period(each.joins, self.most(each), None, fill) for each in self.stages if each.joins)

    def _period(self, operation: str, elements: int, stage: Stage | None, fill: int) -> float:
        operands = elements + (len(stage.known) + len(stage.shared) if stage else 0)
        work = sum(work_of(operation, Arity(operands, 0, 0), (), self.hardware.vector_unit))
        return beat_of(operands, work, fill, self.hardware).period / elements

    @property
    def fill(self) -> int:
        """Elements of a word in use."""
        return self.spread.fill

    @property
    def shares(self) -> int:
        """How many shares the channels of a row are cut into, each in other lanes."""
        return self.spread.shares

    @cached_property
    def channels(self) -> int:
        """Those of a share."""
        return self.layer.channels // self.shares

    @cached_property
    def lanes(self) -> int:
        """In use at most."""
        return self.spread.lanes * self.shares

    @cached_property
    def units(self) -> list[range]:
        """The rows that are in the lanes at a time, the last of them perhaps beyond those that there are."""
        held = portions(self.rows, self.spread.lanes * self.fill)
        return [range(each.start, each.start + -(-len(each) // self.fill) * self.fill) for each in held]

    @cached_property
    def outputs(self) -> Maps:
        """A map of one pixel."""
        return Maps(self.rows, _ALONE, _ALONE)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the op."""
        return self.layer.stages

    @cached_property
    def given(self) -> int:
        """How many of them have a number a row that is read; those come first."""
        return sum(bool(each.given) for each in self.stages)

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """Sources of which all rows read the same."""
        return tuple(name for each in self.stages for name in each.shared)

    @property
    def reduces(self) -> bool:
        """Whether a number a row comes out."""
        return bool(self.stages[-1].joins)

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
        return next(fitting(self._ways(), self.words, self.hardware))

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

    def words(self, pieces: Pieces) -> int:
        """Words that a lane needs."""
        return self.areas(pieces)[-1]

    def areas(self, pieces: Pieces) -> list[int]:
        """Where each area begins: slots of rows, what is shared, numbers on the way, the stages', those that lanes
        exchange, results; the end.
        """
        size = len(self._parts(pieces.number)[0])
        results = RESULT_BUFFERS * (1 if self.reduces else size)
        on_the_way = self._most_joined(pieces.number)
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
        return [*_levels(sum(-(-len(part) // most) for part in self._parts(count)), most)]

    @property
    def most_joined(self) -> int:
        """Words of the numbers that are still to be joined, at most."""
        return self._most_joined(self.pieces.number)

    def _most_joined(self, count: int) -> int:
        return max(self._on_the_way(each, count) for each in self.stages)

    def _on_the_way(self, stage: Stage, count: int) -> int:
        """Words that they take at most, of shares or of what these have come to."""
        exchanged = [*_levels(self.shares, self.most(stage))][1:] if self.shares > 1 else []
        return max(sum(self.levels(stage, count)), sum(exchanged))

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


def _levels(count: int, most: int) -> Iterator[int]:
    """So many numbers, then those that are left of them when `most` are joined at a time, while there are more."""
    yield count
    while count > most:
        count = -(-count // most)
        yield count
