"""Softmax, layer normalization and means by the vector unit, which goes through the channels of rows stage by stage.

A lane has some rows, with an element of each row in a word: sums and comparisons never leave their lane.

A piece of a stage is a unit, and so is the end of a stage, which follows without a gap.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import ceil
from operator import attrgetter
from typing import Any, NamedTuple

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import CHANNEL, IMAGE, halves, padded, portions, word_groups
from tpusim.machines.tpu.cut.tiling import MOST_PIECES, op_delay, too_small
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.definition import Body, StepLoop, beat_of, body_share
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, memory_of
from tpusim.machines.tpu.lowering.vector import IGNORED, in_a_body, in_turn, joining_steps, lane_step, tiled
from tpusim.machines.tpu.program.addresses import Counters
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity, pace_of
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Part
from tpusim.machines.tpu.schedule.units import (
    Area,
    Moves,
    Piece,
    Policy,
    SlotNeed,
    Touch,
    Unit,
    Units,
    VectorWork,
    at_once,
    in_one,
    when_needed,
    with_the_one_ahead,
)
from tpusim.memory.hbm_layout import Box, shifted
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.rows import RowOp, Stage
from tpusim.result.records import Blocking

MOST_DRAFTS, NEAR = 2, 0.1
"""Most ways to deal out rows from which a simulation chooses, and the relative distance of their estimates."""

MOST_SHARES = 2
"""Most numbers of shares for which an estimate is made, for each number of rows side by side in a word."""


def ways(layer: RowOp, batch: int, hardware: Hardware) -> list[Draft]:
    """The drafts of an op of rows: the way to deal out rows that is expected to be fastest, and the next if it is near.

    Raises:
        CapacityError: when nothing fits the vector memories.
    """
    # Layers are lowered several times, with another search that means nothing here.
    return [_draft(each) for each in _near(layer, batch, hardware.having("mapping", search="estimate"))]


@lru_cache(maxsize=64)
def _near(layer: RowOp, batch: int, hardware: Hardware) -> tuple[RowUnits, ...]:
    """The ways that fit and are expected to be about as fast as the fastest, that one first. Raises as `ways`."""
    every = [RowUnits(layer, batch, hardware, alone(layer, batch, hardware))]
    if every[0].rows < hardware.lanes * hardware.vector_memory.word_elements or not every[0].pieces.kept:
        every += [RowUnits(layer, batch, hardware, each) for each in shared_out(layer, batch, hardware)]
    found = sorted((each for each in every if each.fits), key=attrgetter("cycles"))
    if not found:
        raise too_small(min(each.words for each in every), hardware)
    return tuple(each for each in found[:MOST_DRAFTS] if each.cycles <= found[0].cycles * (1 + NEAR))


def _draft(units: RowUnits) -> Draft:
    return Draft(
        lambda: units,
        lambda program: (program, _explained(units)),
        len(units.blocks),
        estimate=lambda: units.cycles,
    )


class RowPieces(NamedTuple):
    """Pieces in which rows are brought.

    Attributes:
        number: number of pieces of a row.
        slots: slots of the vector memory, one for each piece.
        kept: whether a row stays on chip from one stage to the next.
        shared: slots for operands that all rows share; these stay if there are as many slots as pieces.
    """

    number: int
    slots: int
    kept: bool
    shared: int


EXCHANGED = "exchanged"
"""Name of the tensors by which lanes exchange numbers through HBM, one for each stage."""


class RowStretch(NamedTuple):
    """A piece of some rows in a stage, or, without a piece, the end of the stage. If rows have shares, there are two
    ends: up to the exchange of the shares' numbers, and from there.
    """

    rows: int
    stage: int
    piece: int = -1


class PieceSizes(NamedTuple):
    """Channels that all shares have in each of a `number` of pieces: as many in all but the last."""

    number: int
    size: int
    last: int

    def of(self, piece: int) -> int:
        """Channels of a piece."""
        return self.last if piece == self.number - 1 else self.size


class Deal(NamedTuple):
    """A way to deal out rows to the lanes.

    Attributes:
        fill: rows side by side in a word.
        lanes: most lanes that have the same share of the channels, each of other rows.
        shares: shares of a row's channels, each in other lanes; the first ones may be a channel longer.
    """

    fill: int
    lanes: int
    shares: int


class RowSteps:
    """Steps of an op of rows on a machine: how many elements of a row each takes, and how long it is."""

    def __init__(self, layer: RowOp, hardware: Hardware) -> None:
        self.stages, self.hardware = layer.stages, hardware
        self.given = sum(bool(each.given) for each in self.stages)
        self.passed = self.stages[self.given :]
        self._times: dict[tuple[str, int, int, int, int, tuple[float, ...], Fraction], float] = {}

    def most(self, stage: Stage) -> int:
        """The most numbers of a row that a step of a stage takes: one for each scalar of a lane, but at least two."""
        unit, memory = self.hardware.vector_unit, self.hardware.vector_memory
        return max(2, unit.scalar_words * memory.word_elements - len(stage.known))

    def elements(self, stage: Stage) -> int:
        """The most elements that a step of a stage takes where each is several operands; at least one."""
        of_each = operands_of(stage)
        return max(1, self.most(stage) // of_each) if of_each > 1 else self.most(stage)

    def apart(self, stage: Stage, count: int) -> int:
        """The elements of a piece that a step takes: with slots, it joins as many shares of them as a word has
        elements, as code does that has them side by side in a register.
        """
        # Additions to one number wait for one another, those of several shares do not.
        most, word = self.elements(stage), self.hardware.vector_memory.word_elements
        return min(most, max(2, -(-count // word))) if self.hardware.vector_unit.slots else most

    def made(self, stage: Stage, size: int) -> int:
        """Numbers a row after a piece of a stage."""
        return -(-size // self.apart(stage, size))

    def made_of_all(self, stage: Stage, sizes: PieceSizes) -> int:
        """Numbers a row after all pieces of a stage."""
        return (sizes.number - 1) * self.made(stage, sizes.size) + self.made(stage, sizes.last)

    def levels(self, stage: Stage, count: int) -> list[int]:
        """Counts of numbers, step by step, while each step joins as many as it can."""
        found = [count]
        while found[-1] > self.most(stage):
            found.append(-(-found[-1] // self.most(stage)))
        return found

    # ---- about how long steps take

    def cycles(
        self, operation: str, words: int, operands: int, fill: int, lanes: int, coefficients: tuple[float, ...] = (),
        widened: Fraction = Fraction(1),
    ) -> float:  # fmt: skip
        """The time of a step that makes some words, each of `operands` operands, in some lanes."""
        key = operation, words, operands, fill, lanes, coefficients, widened
        if key not in self._times:
            counts, unit = Arity(operands, 0, len(coefficients)), self.hardware.vector_unit
            work = pace_of(operation, counts, coefficients, unit, widened)
            # The next step begins when its last word is written.
            beat = beat_of(operands, work, fill, self.hardware, words, lanes, loop=StepLoop(shared=widened))
            self._times[key] = beat.last(words) + 2
        return self._times[key]

    def joined(self, operation: str, count: int, most: int, of_each: int, known: int, fill: int, lanes: int) -> float:
        """Cycles of the steps that join `count` elements, at most `most` at a time."""
        whole, left = divmod(count, most)
        steps = ((whole, most), (left > 0, left))
        return sum(
            self.cycles(operation, words, most * of_each + known, fill, lanes, (), _share(most * of_each, known))
            for words, most in steps
            if words
        )

    def piece(self, stage: Stage, size: int, fill: int, lanes: int) -> float:
        """Cycles of the steps of a piece of `size` channels in a stage."""
        of_each, known = operands_of(stage), len(stage.known)
        if stage.joins:
            return self.joined(stage.operation, size, self.apart(stage, size), of_each, known, fill, lanes)
        return self.cycles(stage.operation, size, of_each + known, fill, lanes, stage.coefficients, self.own(stage))

    def own(self, stage: Stage) -> Fraction:
        """The share of operands that an element has of its own; others stay in registers, for all of a row or of a
        column.
        """
        return _share(len(stage.maps), len(stage.known) + len(stage.shared))

    def longer(self, stage: Stage, fill: int, lanes: int) -> float:
        """Cycles of the steps for a last channel that only the longer shares have."""
        own = self.piece(stage, 1, fill, lanes)
        return own + self.cycles(stage.joins, 1, 2, fill, lanes) if stage.joins else own

    def end(self, stage: Stage, count: int, fill: int, lanes: int, last: bool) -> float:
        """Cycles of the steps that make one number of `count`; the `last` ones of a stage, or those of a share."""
        levels, taken = self.levels(stage, count), 0.0
        for ahead in levels[:-1]:
            taken += self.joined(stage.joins, ahead, self.most(stage), 1, 0, fill, lanes)
        name, coefficients = (stage.ends, stage.coefficients) if last else (stage.joins, ())
        return taken + self.cycles(name, 1, levels[-1], fill, lanes, coefficients)


def _share(own: int, others: int) -> Fraction:
    return Fraction(own, own + others)


def operands_of(stage: Stage) -> int:
    """Operands of a stage for each element of a row."""
    return len(stage.maps) + len(stage.shared)


def alone(layer: RowOp, batch: int, hardware: Hardware) -> Deal:
    """The way to deal out rows where a lane has all channels of its rows: as few rows side by side as do."""
    rows, lanes = layer.rows(batch)[IMAGE], hardware.lanes
    groups, fill = word_groups(-(-rows // lanes), hardware.vector_memory.word_elements)
    return Deal(fill, -(-rows // (groups * fill)), 1)


def shared_out(layer: RowOp, batch: int, hardware: Hardware) -> list[Deal]:
    """The most promising ways to deal out rows in shares.

    Numbers of shares go through HBM and are joined in all lanes, which takes the longer the more shares there are; the
    work on a share takes the less.
    """
    lanes, word = hardware.lanes, hardware.vector_memory.word_elements
    rows, channels, does = layer.rows(batch)[IMAGE], layer.channels, RowSteps(layer, hardware)
    found = list[Deal]()
    for fill in {-(-rows // -(-rows // each)) for each in halves(word)}:
        # Cycles of all stages, for an element of `fill` rows and for the number of a share.
        joining = sum(_pace(does, each.joins, does.most(each), 1, 0, fill) for each in does.passed if each.joins)
        work = 0.0
        for each in does.passed:
            elements = does.elements(each) if each.joins else 1
            work += _pace(does, each.operation, elements, operands_of(each), len(each.known), fill)
        longer = sum(does.longer(each, fill, lanes) for each in does.passed)
        together = -(-rows // fill)
        costs = dict[Deal, float]()
        for shares in range(2, min(lanes, channels) + 1):
            blocks = -(-together // (lanes // shares))
            cost = blocks * (channels // shares * work + (channels % shares > 0) * longer + shares * joining)
            costs[Deal(fill, -(-together // blocks), shares)] = cost
        found += sorted(costs, key=costs.__getitem__)[:MOST_SHARES]
    return found


def _pace(does: RowSteps, operation: str, elements: int, of_each: int, others: int, fill: int) -> float:
    """Cycles an element takes in steps of some elements, each of `of_each` operands, with `others` beside these."""
    operands = elements * of_each + others
    work = pace_of(operation, Arity(operands, 0, 0), (), does.hardware.vector_unit)
    return beat_of(operands, work, fill, does.hardware).a_word / elements


class RowUnits(Units):
    """A lane has some rows side by side, an element of each in a word, and the channels one after another.

    Attributes:
        stages, given: stages of the op, and the number of first stages whose number a row is read.
        maps: sources of rows; `shared`: sources that all rows read alike.
        reduces: whether the result is one number a row.
        rows, blocks: number of rows, and the rows in the lanes at a time; the last block may reach beyond the end.
        shares, longer: shares of a row's channels, each in other lanes, and how many of them, the first ones, have a
            channel more than the others.
        common: channels that every share has.
        pieces: as few pieces as possible, with rows kept if they fit, and room for the next rows if that fits, too.
        sizes: sizes of these pieces; `words`: words of a lane that all takes, and whether that `fits`.
    """

    tensors: tuple[Tensor, ...] = ()
    areas: tuple[Area, ...] = ()
    # A piece is brought as soon as a slot is free, whether or not it is wanted soon: HBM sets the pace of these ops.
    policy = Policy(("given", "rows", "shared", "exchanged"), at_once, by_area=True)

    def __init__(self, layer: RowOp, batch: int, hardware: Hardware, dealt: Deal) -> None:
        self.layer, self.hardware, shapes = layer, hardware, layer.shapes(batch)
        self.traffic, self.does = Traffic(hardware), RowSteps(layer, hardware)
        self.stages, self.given = self.does.stages, self.does.given
        # In the order of the op's sources.
        self.maps = tuple(name for name in shapes if any(name in each.maps for each in self.does.passed))
        self.shared = tuple(name for name in shapes if any(name in each.shared for each in self.does.passed))
        self.reduces, self.rows = bool(self.stages[-1].joins), shapes["ifmap"][IMAGE]
        self.word_fill, lanes, self.shares = dealt
        self.common, self.longer = divmod(layer.channels, self.shares)
        self._firsts = tuple([at * self.common + min(at, self.longer) for at in range(self.shares)])
        fill, held = self.word_fill, portions(self.rows, lanes * self.word_fill)
        # Shares lie in the same lanes in all blocks, since data that all rows share stay there.
        least = lanes * fill if self.shares > 1 else fill
        self.blocks = [range(each.start, each.start + padded(len(each), least)) for each in held]
        # Rows side by side in a word.
        self._beside = Along(IMAGE, range(fill))
        self.named = {name: self._tensor(name, shape) for name, shape in shapes.items()}
        if self.shares > 1:
            joining = (f"{EXCHANGED}_{number}" for number, stage in enumerate(self.stages) if stage.joins)
            shape = self.shares, 1, 1, self.rows
            self.named |= {name: Tensor(name, shape, exchanged=True) for name in joining}
            self.intermediates = self.shares * self.rows * len(self.stages)
        self.tensors = (*self.named.values(),)
        self.pieces, self.words = self._fitting()
        self.fits = self.words <= hardware.capacity_words
        self.sizes, self.areas = self._cut(self.pieces.number), self._areas(self.pieces)

    def _tensor(self, name: str, shape: Shape) -> Tensor:
        """The tensor of a name, as it lies in HBM."""
        alone = (name == OFMAP and self.reduces) or name in {each.given for each in self.stages}
        wide = 1 if alone else self.hardware.hbm.channel_multiple
        return tiled(name, shape, wide)

    # ---- pieces, and their places

    def _ways(self) -> Iterator[RowPieces]:
        counts = [min(MOST_PIECES, self.common)]
        while counts[-1] < self.common:
            counts.append(min(2 * counts[-1], self.common))
        kept = (min(2, len(self.blocks)), 1) if self.hardware.mapping.rows == "kept" else ()
        # Whether shared operands stay, and how many blocks of rows are held; 0: rows are read again in each stage.
        for stays, blocks in product((True, False) if self.shared else (True,), (*kept, 0)):
            for count in (self._cut(each).number for each in counts):
                yield RowPieces(count, blocks * count or 2, blocks > 0, count if stays else min(2, count))

    def _fitting(self) -> tuple[RowPieces, int]:
        """The first pieces that fit and their words a lane, or, where none fit, those with the fewest words."""
        least: tuple[RowPieces, int] | None = None
        for pieces in self._ways():
            words = sum(each.count * each.words for each in self._areas(pieces))
            if words <= self.hardware.capacity_words:
                return pieces, words
            least = least if least and least[1] <= words else (pieces, words)
        assert least
        return least

    @cached_property
    def parts(self) -> list[range]:
        """Channels of each piece, in the first share; where shares are longer, the last one ends with a channel that
        the others lack.
        """
        *parts, last = portions(self.common, self.sizes.size)
        return [*parts, range(last.start, last.stop + (self.longer > 0))]

    def _cut(self, count: int) -> PieceSizes:
        """Sizes of `count` pieces at most."""
        size = -(-self.common // count)
        number = -(-self.common // size)
        return PieceSizes(number, size, self.common - (number - 1) * size)

    def _areas(self, pieces: RowPieces) -> tuple[Area, ...]:
        """Areas for rows, shared operands, numbers to be joined, given numbers, numbers of stages and of all shares,
        and results.
        """
        sizes, lanes, longer = self._cut(pieces.number), self._lanes(self.blocks[0], self.shares), self.longer > 0
        size, stages = max(sizes.size, sizes.last + longer), self.stages
        joining = sum(bool(stage.joins) for stage in stages) if self.shares > 1 else 0

        # Most numbers that still have to be joined: those of pieces, or those of shares.
        does = self.does
        of_pieces = (sum(does.levels(each, does.made_of_all(each, sizes))) for each in self.stages if each.joins)
        joined = max(0, *of_pieces, *(sum(does.levels(each, self.shares)[1:]) for each in self.stages))
        # The number of a last channel has a word until it is joined to the others.
        if longer:
            joined = max(joined, *(does.made_of_all(each, sizes) + 1 for each in self.stages if each.joins))

        turns = 1 if pieces.kept else len(stages)
        body = self._in_a_body(size)

        def ready(key: tuple[int, int, int]) -> int:
            u, stage, piece = key
            begins = ((u * turns + stage) * pieces.number + piece) % body == 0
            words = sizes.of(piece) + (longer and piece == sizes.number - 1)
            return op_delay(words * len(self._brought(key)), self.hardware, begins)

        shared, given = in_one(self._shared, len(self.shared)), in_one(self._given, self.given)
        return (
            Area(
                "rows", "ifmap", size * len(self.maps), pieces.slots, lanes, in_one(self._rows, len(self.maps)), ready
            ),
            Area("shared", "filter", size * len(self.shared), pieces.shared, lanes, shared),
            Area("joined", OFMAP, joined, 1, lanes),
            Area("given", OFMAP, self.given, 2, lanes, given, gaps=with_the_one_ahead),
            Area("numbers", OFMAP, len(self.stages) - self.given, 1, lanes),
            Area("exchanged", OFMAP, self.shares, joining, lanes, self._exchanged, gaps=when_needed),
            Area("results", OFMAP, 1 if self.reduces else size, 2, lanes),
        )

    def _in_a_body(self, size: int) -> int:
        """Pieces of at most `size` channels that a body works on: it costs its cycles once, ahead of the first."""
        moved, lanes = size * (len(self.maps) + (not self.reduces)), self._lanes(self.blocks[0], self.shares)
        return in_a_body(moved * lanes * self.word_fill * self.hardware.vector_memory.element_bytes, self.hardware)

    def units(self) -> Iterator[Unit]:
        kept, shares, stays, does = self.pieces.kept, self.shares, self.pieces.shared == self.sizes.number, self.does
        # A last channel that only some shares have is worked on for itself, and its number then joined to another.
        steps = 4 if self.longer else 2
        for u in range(len(self.blocks)):
            always = SlotNeed("joined", 0), SlotNeed("numbers", 0), *((SlotNeed("given", u),) if self.given else ())
            for n, stage in enumerate(self.stages[self.given :], self.given):
                for p in range(self.sizes.number):
                    needs = [*always, SlotNeed("rows", (u, 0 if kept else n, p))]
                    needs += [SlotNeed("shared", (0 if stays else u, p))] if stage.shared else []
                    needs += [] if stage.joins else [SlotNeed("results", (u, n, p))]
                    leaves = -1 if stage.joins else len(needs) - 1
                    yield Unit(tuple(needs), None, RowStretch(u, n, p), steps=steps, leaves=leaves)
                # A stage that joins nothing has written its outputs portion by portion, and has no number to end with.
                if not stage.joins:
                    continue
                last, end = n == len(self.stages) - 1, RowStretch(u, n)
                levels = len(does.levels(stage, does.made_of_all(stage, self.sizes)))
                if shares > 1:
                    yield Unit(always, None, end, steps=2 * levels, leaves=1, gap=False, makes=(u, n))
                needs = [*always, *((SlotNeed("exchanged", (u, n)),) if shares > 1 else ())]
                needs += [SlotNeed("results", (u, n, 0))] if last else []
                leaves = len(needs) - 1 if last else -1
                yield Unit(tuple(needs), None, end, steps=2 * (levels + shares), leaves=leaves, gap=False)

    # ---- loads

    def _moves(
        self, name: str, base: int, lane: tuple[Along, ...], items: tuple[Along, ...], boxes: tuple[Box, ...],
        copies: tuple[int, ...] = (0,),
    ) -> Moves:  # fmt: skip
        tensor, part = self.named[name], Part(base, copies, lane, items, self.word_fill)
        return self.traffic.moves(tensor, (part,), boxes)

    def _lanes(self, rows: range, shares: int) -> int:
        """Number of lanes that hold the first shares of some rows."""
        return shares * len(rows) // self.word_fill

    def _lane(self, rows: range, firsts: Sequence[int]) -> tuple[Along, Along]:
        """Counters of the first channel, one for each share, and of the first row of each lane: share by share."""
        begins = rows[:: self.word_fill]
        channels = tuple([first for first in firsts for _ in begins])
        return Along(CHANNEL, channels), Along(IMAGE, begins if len(firsts) == 1 else (*begins,) * len(firsts))

    def _runs(self, channels: range, shares: int) -> list[tuple[int, range]]:
        """Runs of the channels of a piece, each with the number of first shares that have it: all, then the longer."""
        every = range(channels.start, min(channels.stop, self.common))
        rest = range(every.stop, channels.stop)
        return [(shares, every), (min(shares, self.longer), rest)] if rest else [(shares, every)]

    def _boxes(self, channels: range, rows: range, shares: int) -> tuple[Box, ...]:
        """Boxes of channels in the first shares of some rows, as far as each has them."""
        rows, short = self._there(rows), range(channels.start, min(channels.stop, self.common))
        each = ((first, channels if at < self.longer else short) for at, first in enumerate(self._firsts[:shares]))
        return tuple(Box(shifted(own, first), range(1), range(1), rows) for first, own in each)

    def _there(self, rows: range) -> range:
        """The rows of a block, without those beyond the end."""
        return range(rows.start, min(rows.stop, self.rows))

    def _held(self, name: str, rows: range, channels: range, shares: int, base: int, alike: bool = False) -> Moves:
        """Moves of some channels of the first shares of some rows, from word `base` on; `alike`: in all rows."""
        parts, beside = [], Along(IMAGE, (0,) * self.word_fill) if alike else self._beside
        for having, run in self._runs(channels, shares):
            lane, row = self._lane(rows, self._firsts[:having])
            row = Along(IMAGE, (0,) * len(row.coordinates)) if alike else row
            lanes = (row,) if shares == 1 and not alike else (lane, row)
            at = base + run.start - channels.start
            parts.append(Part(at, (0,), lanes, (Along(CHANNEL, run), beside), self.word_fill))
        boxes = self._boxes(channels, range(1) if alike else rows, shares)
        return self.traffic.moves(self.named[name], tuple(parts), boxes)

    def _brought(self, key: tuple[int, int, int]) -> tuple[str, ...]:
        """Sources that come for a piece: all, where rows are kept, or those of its stage."""
        return self.maps if self.pieces.kept else self.stages[key[1]].maps

    def _rows(self, key: tuple[int, int, int], base: int) -> Iterator[Moves]:
        part = self.parts[key[2]]
        for at, name in enumerate(self._brought(key)):
            yield self._held(name, self.blocks[key[0]], part, self.shares, base + at * len(part))

    def _shared(self, key: tuple[int, int], base: int) -> Iterator[Moves]:
        """Moves of shared operands to every lane with these channels, and to every element of a word."""
        for at, name in enumerate(self.shared):
            yield self._held(name, self.blocks[0], self.parts[key[1]], self.shares, base + at * self._size, alike=True)

    @property
    def _size(self) -> int:
        """Most channels of a piece."""
        return max(self.sizes.size, self.sizes.last + (self.longer > 0))

    def _given(self, u: int, base: int) -> Iterator[Moves]:
        rows = self.blocks[u]
        boxes = (Box(range(1), range(1), range(1), self._there(rows)),)
        for word, stage in enumerate(self.stages[: self.given], base):
            lane = self._lane(rows, self._firsts)[1:]
            yield self._moves(stage.given, word, lane, (self._beside,), boxes)

    def _exchanged(self, key: tuple[int, int], gaps: int, grows: bool) -> list[Piece]:
        """Pieces with the number of each share, through HBM to all lanes with part of the row."""
        rows, shares = self.blocks[key[0]], range(self.shares)
        starts = rows[:: self.word_fill]
        lane, items = (Along(IMAGE, starts),), (Along(CHANNEL, shares), self._beside)
        copies, name = tuple(share * len(starts) for share in shares), f"{EXCHANGED}_{key[1]}"

        def moves(base: int) -> Iterator[Moves]:
            yield self._moves(name, base, lane, items, self._of_shares(rows), copies)

        return [Piece(0, (0,), moves, (SlotNeed("", key),))]

    def _of_shares(self, rows: range) -> tuple[Box, ...]:
        """Boxes of the numbers that all shares of some rows exchange."""
        return (Box(range(self.shares), range(1), range(1), self._there(rows)),)

    # ---- work and results

    def alike(self, unit: Unit) -> Hashable:
        of = unit.about
        return of._replace(rows=len(self.blocks[of.rows])), tuple([need.area for need in unit.needs])

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[VectorWork]:
        place = {need.area: at for at, need in enumerate(unit.needs)}
        base = {area: bases[at] for area, at in place.items()}
        act = self._end if unit.about.piece < 0 else self._piece
        return act(unit.about, self.stages[unit.about.stage], place, base)

    def _piece(self, of: RowStretch, stage: Stage, place: dict[str, int], base: dict[str, int]) -> Iterator[VectorWork]:
        given, first, part, sizes = self.given, of.stage == self.given, self.parts[of.piece], self.sizes
        words = sizes.of(of.piece)
        # Words of the numbers of earlier stages.
        known = [base["given"] + at if at < given else base["numbers"] + at - given for at in stage.known]
        reads = [Touch(place["rows"], None if first or not self.pieces.kept else ())]
        reads += [Touch(place["given"], None if first and not of.piece else ())] if given else []
        brought = self._brought((of.rows, of.stage, of.piece))
        rows = [base["rows"] + brought.index(name) * len(part) for name in stage.maps]
        shared = [base["shared"] + self.shared.index(name) * self._size for name in stage.shared]
        reads += [Touch(place["shared"])] if shared else []
        if stage.joins:
            to, most = base["joined"] + of.piece * self.does.made(stage, sizes.size), self.does.apart(stage, words)
            body = self._body(stage)
            firsts, lanes = [*rows, *shared], self._lanes(self.blocks[of.rows], self.shares)
            steps = [*joining_steps(lanes, stage.operation, firsts, words, most, to, known, body, shared=True)]
            if len(part) > words:
                last, free = [at + words for at in (*rows, *shared)], to + self.does.made(stage, words)
                steps += self._last(of, stage.operation, [*last, *known], free)
                steps += self._last(of, stage.joins, [free - 1, free], free - 1)
            yield from _one_by_one(steps, reads)
            return

        def outputs(at: int, words: int, shares: int) -> Vector:
            walks = [in_turn(each + at, words) for each in rows] + [in_turn(each, words, 0) for each in known]
            walks += [in_turn(each + at, words) for each in shared]
            body, own = ceil(words * self._body(stage)), self.does.own(stage)
            more = {"coefficients": stage.coefficients, "widened": own, "body": body}
            return self._step(of, stage.operation, walks, base["results"] + at, words, shares, **more)

        runs = ((shares, each.start - part.start, len(each)) for shares, each in self._runs(part, self.shares))
        steps = [outputs(at, words, shares) for shares, at, words in runs]
        yield VectorWork(steps, tuple(reads), place["results"], True)

    def _last(self, of: RowStretch, operation: str, operands: Sequence[int], to: int) -> Iterator[Vector]:
        """A step on single words of the lanes whose share is longer."""
        yield self._step(of, operation, [in_turn(each, 1) for each in operands], to, 1, shares=self.longer)

    def _end(self, of: RowStretch, stage: Stage, place: dict[str, int], base: dict[str, int]) -> Iterator[VectorWork]:
        """Vector steps that join numbers until one step takes all of them; this ends the stage, or the exchange of
        shares.
        """
        reads = [Touch(place["given"], ())] if self.given else []
        first, count = base["joined"], self.does.made_of_all(stage, self.sizes)
        room = first + count
        if exchanged := "exchanged" in place:
            reads.append(Touch(place["exchanged"]))
            first, count, room = base["exchanged"], self.shares, base["joined"]
        steps: list[Vector] = []
        levels = self.does.levels(stage, count)
        for count, left in pairwise(levels):
            lanes = self._lanes(self.blocks[of.rows], self.shares)
            steps += joining_steps(lanes, stage.joins, [first], count, self.does.most(stage), room)
            first, room = room, room + left
        yield from _one_by_one(steps, reads)
        walks = [in_turn(each, 1) for each in range(first, first + levels[-1])]
        number, final = base["numbers"] + of.stage - self.given, "results" in place
        # Each share leaves its own number here; after the exchange, a second turn ends the stage.
        if self.shares > 1 and not exchanged:
            yield VectorWork((self._step(of, stage.joins, walks, number, 1),), tuple(reads), place["numbers"])
            return
        to = base["results"] if final else number
        step = self._step(of, stage.ends, walks, to, 1, coefficients=stage.coefficients)
        yield VectorWork((step,), tuple(reads), place["results"] if final else -1, final)

    def _step(
        self, of: RowStretch, operation: str, walks: list[Counters], to: int, words: int, shares: int = 0, **more: Any
    ) -> Vector:
        """A step in the lanes with the first shares of some rows; 0: with all."""
        lanes = self._lanes(self.blocks[of.rows], shares or self.shares)
        return lane_step(lanes, operation, walks, in_turn(to, words), **more)

    def _body(self, stage: Stage) -> Fraction:
        """Cycles of each channel of a lane for what the loop bodies of a stage take beyond their slots."""
        memory, channels = self.hardware.vector_memory, padded(self.layer.channels, self.hardware.hbm.channel_multiple)
        words = -(-self.rows * channels // (memory.word_elements * self.hardware.lanes))
        # The sum of narrow numbers is one of widened ones, two instructions.
        operation, converts = OPERATIONS[stage.operation], self.hardware.vector_unit.widen > 0
        bare = operation.bare and (operation.selects or not converts)
        body: Body = "fused" if not stage.joins else "bare_summed" if bare else "summed"
        cycles = words * body_share(words, self.hardware.lanes, self.hardware, body)
        slots = self.hardware.vector_unit.slots
        if slots and stage.known:
            # Its numbers go to all lanes, once for the rows of a register.
            cycles += -(-self.rows // slots.rows) * slots.spread_cycles
        return cycles / (len(self.blocks) * self.common)

    def spill(self, unit: Unit, base: int) -> Moves:
        """Moves of a result: the rows; a number from the first share, if all shares have it; or the numbers of all
        shares.
        """
        of, rows = unit.about, self.blocks[unit.about.rows]
        if unit.makes is not None:
            word, lane = base + of.stage - self.given, self._lane(rows, range(self.shares))
            return self._moves(f"{EXCHANGED}_{of.stage}", word, lane, (self._beside,), self._of_shares(rows))
        channels = range(1) if of.piece < 0 else self.parts[of.piece]
        return self._held(OFMAP, rows, channels, 1 if self.reduces else self.shares, base)

    # ---- about how long it takes

    @cached_property
    def cycles(self) -> float:
        """Estimated cycles: those of the vector unit and of exchanges, or of the bus where blocks keep it busier; the
        first load and the last spill come on top.
        """
        hardware, channels, pieces, blocks = self.hardware, self.layer.channels, self.sizes.number, len(self.blocks)
        rows, kept, maps = len(self._there(self.blocks[0])), self.pieces.kept, len(self.maps)
        longest, unit, latency = self.common + (self.longer > 0), hardware.vector_unit, hardware.latency_cycles
        unpacked = rows * channels * hardware.element_bytes / (hardware.lanes * hardware.word_bytes)
        a_map = max(self._moved(rows * channels, longest, pieces), unpacked * float(unit.unpack_cycles))
        beside = len(self.shared) * self._moved(channels, longest, pieces)
        results = self._moved(rows, 1) if self.reduces else self._moved(rows * channels, longest, pieces)
        results = max(results, (1 if self.reduces else longest) * float(unit.pack_cycles))
        # Through HBM and back, with the number of each share for all lanes.
        met = 2 * latency + hardware.skew + self._moved(self.shares * rows, 1)
        met += self._moved(self.shares * rows, self.shares)
        work, of_stages, bodies = 0.0, list[float](), -(-pieces // self._in_a_body(self._size))
        for number, stage in enumerate(self.does.passed):
            own = self._worked(stage)
            if not number or not kept:
                brought = longest * (maps if kept else len(stage.maps))
                own += op_delay(brought, hardware, begins=False) + bodies * op_delay(0, hardware)
            of_stages.append(own)
            work += own if kept else max(own, len(stage.maps) * a_map)
            work += self._ended(stage, met) if stage.joins else 0
        bus = maps * a_map
        # What loads take beyond the work on what has come, and spills beyond the work that makes what goes.
        first = max(bus / pieces, bus - of_stages[0] * (1 - 1 / pieces))
        last = max(results / pieces, results - of_stages[-1])
        if self.shares > 1:
            # Numbers of shares go the way of all loads, behind those that were asked for before.
            first = max(first, bus + beside - of_stages[0])
            turn = work + (bus + results if kept else 0)
        else:
            turn = max(work, bus + results if kept else 0)
        ahead = hardware.sequencer.launch_cycles + hardware.skew + 2 * latency
        return ahead + first + work + (blocks - 1) * turn + last

    def _moved(self, numbers: int, words: int, transfers: int = 1) -> float:
        """The time of transfers of `numbers` numbers: that of the bus, or of a lane's port for its words."""
        hardware = self.hardware
        busy = max(numbers * hardware.element_bytes / float(hardware.hbm_bytes_per_cycle), words)
        # Two transfers are on their way at most.
        return max(busy, transfers * hardware.latency_cycles / 2)

    def _worked(self, stage: Stage) -> float:
        """Cycles of a stage's steps for all pieces of a block."""
        does, sizes, fill = self.does, self.sizes, self.word_fill
        lanes, few = (self._lanes(self.blocks[0], shares) for shares in (self.shares, self.longer))
        taken = (sizes.number - 1) * does.piece(stage, sizes.size, fill, lanes)
        taken += does.piece(stage, sizes.last, fill, lanes)
        if self.longer:
            taken += does.longer(stage, fill, few)
        return taken + float(self._body(stage) * self.common)

    def _ended(self, stage: Stage, met: float) -> float:
        """Cycles of the end of a stage of a block, where shares take `met` cycles to exchange their numbers."""
        does, fill, lanes = self.does, self.word_fill, self._lanes(self.blocks[0], self.shares)
        made = does.made_of_all(stage, self.sizes)
        if self.shares == 1:
            return does.end(stage, made, fill, lanes, last=True)
        own, joint = (does.end(stage, *each) for each in ((made, fill, lanes, False), (self.shares, fill, lanes, True)))
        return own + met + joint


def _one_by_one(steps: Iterable[Vector], reads: Sequence[Touch]) -> Iterator[VectorWork]:
    """Steps one after another, of which only the first waits, for the operands of all."""
    for step in steps:
        yield VectorWork((step,), tuple(reads))
        reads = [Touch(each.need, ()) for each in reads]


# ---- in words


def _explained(work: RowUnits) -> Explanation:
    blocking = Blocking(
        rows=1, cols=1, images=min(len(work.blocks[0]), work.rows), blocks=len(work.blocks),
        row_folds=1, col_folds=1, loop_order="block_major", word_fill=work.word_fill, strips=1,
    )  # fmt: skip
    passed = work.stages[work.given :]
    stages = ", ".join(each.operation for each in passed)
    folds = "none: a lane has all channels of its rows"
    if work.shares > 1:
        more = f" or {work.common + 1}" if work.longer else ""
        share = f"{work.common}{more} channels" if more else counted(work.common, "channel")
        folds = f"rows in {work.shares} shares of {share}, which meet by way of HBM"
    held, shared, *sums, results = (each.words * each.count for each in work.areas)
    areas = {"rows": (held, 0), "what rows share": (shared, 0), "sums": (sum(sums), 0), "results": (results, 0)}
    rows, pieces = counted(blocking.images, "row"), counted(work.sizes.number, "piece")
    again = "kept from stage to stage" if work.pieces.kept else "read from HBM for each stage"
    word = counted(work.hardware.vector_memory.word_elements, "element")
    aspects = {
        "folds": folds,
        "passes": f"none: the vector unit goes through rows in {counted(len(passed), 'stage')}: {stages}",
        "block": f"{rows}; {counted(blocking.blocks, 'block')} for all {work.rows:,}",
        "order": f"block by block, in each stage by stage; rows come in {pieces}, {again}",
        "words": f"{work.word_fill} of {word} used: rows side by side",
        "memory": memory_of(areas.items(), work.hardware),
    }
    return Explanation(1, blocking, {"loop_order": "block_major", **work.pieces._asdict()}, aspects)


VECTOR_ROWS = Lowering(
    "vector_rows",
    "softmax, layer normalization, means of rows: by the vector unit, whole rows in a lane",
    ways,
    unit="vector",
    whole_rows=True,
    partial=True,
    pipelined=True,
    multiplies=False,
    banks=True,
    ignores=IGNORED - {"loads"}
    | {"block.rows", "block.cols", "block.images", "block.out_channels", "block_n", "strips"},
)
