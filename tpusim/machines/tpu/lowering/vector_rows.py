"""Softmax, layer normalization and means by the vector unit, which goes through the channels of rows stage by stage.

A lane has some rows, with an element of each row in a word: sums and comparisons never leave their lane.

A piece of a stage is a unit, and so is the end of a stage, which follows without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import CHANNEL, IMAGE, padded, portions, shifted, word_groups
from tpusim.machines.tpu.cut.tiling import MOST_PIECES, delay_of, fitting
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.definition import beat_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, memory_of, one_draft
from tpusim.machines.tpu.lowering.vector import IGNORED, feed, in_a_body, in_turn
from tpusim.machines.tpu.program.addresses import Counters
from tpusim.machines.tpu.program.operations import Arity, pace_of
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.transfers import Along, Part, Tensor
from tpusim.machines.tpu.schedule.units import (
    Area,
    Compute,
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
from tpusim.memory.layout import Box
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.rows import RowOp, Stage
from tpusim.result.records import Blocking


def ways(layer: RowOp, batch: int, hardware: Hardware) -> list[Draft]:
    """The only draft of an op of rows.

    Raises:
        CapacityError: when nothing fits the vector memories.
    """
    work = RowUnits(layer, batch, hardware)
    return one_draft(work, lambda _: _explained(work))


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


ON_THE_WAY = "on_the_way"
"""Name of the tensors by which lanes exchange numbers through HBM, one for each stage."""


class RowStretch(NamedTuple):
    """A piece of some rows in a stage, or, without a piece, the end of the stage. If rows have shares, there are two
    ends: up to the exchange of the shares' numbers, and from there.
    """

    rows: int
    stage: int
    piece: int = -1


class RowUnits(Units):
    """A lane has some rows side by side, an element of each in a word, and the channels one after another.

    Attributes:
        stages, given: stages of the op, and the number of first stages whose number a row is read.
        maps: sources of rows; `shared`: sources that all rows read alike.
        reduces: whether the result is one number a row.
        rows, blocks: number of rows, and the rows in the lanes at a time; the last block may reach beyond the end.
        shares, share: number of shares of a row's channels, each in other lanes, and the channels of one share.
        pieces: as few pieces as possible, with rows kept if they fit, and room for the next rows if that fits, too.
        parts: channels of each piece, in the first share.

    Raises:
        CapacityError: when not even an element at a time fits; says how much memory would do.
    """

    tensors: tuple[Tensor, ...] = ()
    areas: tuple[Area, ...] = ()
    # A piece is brought as soon as a slot is free, whether or not it is wanted soon: HBM sets the pace of these ops.
    policy = Policy(("given", "rows", "shared", "exchanged"), at_once, by_area=True)

    def __init__(self, layer: RowOp, batch: int, hardware: Hardware) -> None:
        self.layer, self.hardware, self.stages, shapes = layer, hardware, layer.stages, layer.shapes(batch)
        self.traffic = Traffic(hardware)
        self.given = sum(bool(each.given) for each in self.stages)
        passed = self.stages[self.given :]
        # In the order of the op's sources.
        self.maps = tuple(name for name in shapes if any(name in each.maps for each in passed))
        self.shared = tuple(name for name in shapes if any(name in each.shared for each in passed))
        self.reduces, self.rows = bool(self.stages[-1].joins), shapes["ifmap"][IMAGE]
        self.word_fill, lanes, self.shares = self._spread()
        self.share, fill = layer.channels // self.shares, self.word_fill
        held = portions(self.rows, lanes * fill)
        self.blocks = [range(each.start, each.start + -(-len(each) // fill) * fill) for each in held]
        # Rows side by side in a word, and the box of the numbers that all shares of them exchange.
        self._beside = Along(IMAGE, range(fill))
        self._of_shares = (Box(range(self.shares), range(1), range(1), range(self.rows)),)
        self.named = {name: self._tensor(name, shape) for name, shape in shapes.items()}
        if self.shares > 1:
            joining = (f"{ON_THE_WAY}_{number}" for number, stage in enumerate(self.stages) if stage.joins)
            shape = self.shares, 1, 1, self.rows
            self.named |= {name: Tensor(name, shape, on_the_way=True) for name in joining}
            self.intermediates = self.shares * self.rows * len(self.stages)
        self.tensors = (*self.named.values(),)
        self.pieces = next(fitting(self._ways(), self._words, hardware))
        self.parts, self.areas = self._parts(self.pieces.number), self._areas(self.pieces)

    def _spread(self) -> tuple[int, int, int]:
        """(rows side by side in a lane, most lanes for a share of the rows, equal shares of the channels).

        Rows are dealt out to the lanes; the channels of a few long rows, too, in equal shares. Numbers of
        shares go through HBM and are joined in all lanes: the number of shares is the one for which that, and the work
        on a share, least.
        """
        lanes, elements = self.hardware.lanes, self.hardware.vector_memory.word_elements
        channels, fill = self.layer.channels, min(elements, self.rows)
        together = -(-self.rows // fill)
        if self.rows < lanes <= channels:
            # Cycles of all stages, for an element of `fill` rows and for the number of a share.
            joining = sum(self._period(each.joins, self._most(each), 1, 0, fill) for each in self.stages if each.joins)
            work = 0.0
            for each in self.stages[self.given :]:
                elements, of_each = self._elements(each) if each.joins else 1, len(each.maps) + len(each.shared)
                work += self._period(each.operation, elements, of_each, len(each.known), fill)
            even = (each for each in range(1, lanes // together + 1) if channels % each == 0)
            shares = min(even, key=lambda each: channels / each * work + each * joining)
            if shares > 1:
                return fill, together, shares
        groups, fill = word_groups(-(-self.rows // lanes), elements)
        return fill, -(-self.rows // (groups * fill)), 1

    def _period(self, operation: str, elements: int, of_each: int, others: int, fill: int) -> float:
        """Cycles an element takes in steps of some elements, each of `of_each` operands, with `others` beside these."""
        operands = elements * of_each + others
        work = pace_of(operation, Arity(operands, 0, 0), (), self.hardware.vector_unit)
        return beat_of(operands, work, fill, self.hardware).a_word / elements

    def _tensor(self, name: str, shape: Shape) -> Tensor:
        """The tensor of a name, as it lies in HBM."""
        alone = (name == OFMAP and self.reduces) or name in {each.given for each in self.stages}
        wide = 1 if alone else self.hardware.hbm.channel_multiple
        return Tensor(name, shape, converted=True, padded=(padded(shape[0], wide), *shape[1:]))

    # ---- pieces, and their places

    def _ways(self) -> Iterator[RowPieces]:
        counts = [min(MOST_PIECES, self.share)]
        while counts[-1] < self.share:
            counts.append(min(2 * counts[-1], self.share))
        kept = (min(2, len(self.blocks)), 1) if self.hardware.mapping.rows == "kept" else ()
        # Whether shared operands stay, and how many blocks of rows are held; 0: rows are read again in each stage.
        for stays, blocks in product((True, False) if self.shared else (True,), (*kept, 0)):
            for count in counts:
                yield RowPieces(count, blocks * count or 2, blocks > 0, count if stays else min(2, count))

    def _words(self, pieces: RowPieces) -> int:
        return sum(each.count * each.words for each in self._areas(pieces))

    def _parts(self, count: int) -> list[range]:
        return portions(self.share, -(-self.share // count))

    def _areas(self, pieces: RowPieces) -> tuple[Area, ...]:
        """Areas for rows, shared operands, numbers to be joined, given numbers, numbers of stages and of all shares,
        and results.
        """
        parts, lanes = self._parts(pieces.number), self._lanes(self.blocks[0])
        size, joining = len(parts[0]), sum(bool(stage.joins) for stage in self.stages) if self.shares > 1 else 0

        # Most numbers that still have to be joined: those of pieces, or those of shares.
        of_pieces = (sum(self._levels(each, self._made(each, parts))) for each in self.stages if each.joins)
        joined = max(0, *of_pieces, *(sum(self._levels(each, self.shares)[1:]) for each in self.stages))

        stages = 1 if pieces.kept else len(self.stages)
        left = 0 if self.reduces else size
        # A body has as many pieces as fill a window, and costs its cycles once, ahead of the first.
        brought = size * len(self.maps) + left
        element = self.hardware.vector_memory.element_bytes
        body = in_a_body(brought * lanes * self.word_fill * element, self.hardware)

        def ready(key: tuple[int, int, int]) -> int:
            u, stage, piece = key
            begins = ((u * stages + stage) * pieces.number + piece) % body == 0
            return delay_of(len(parts[piece]) * len(self._brought(key)), self.hardware, begins)

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

    def _most(self, stage: Stage) -> int:
        """The most elements of a row that a step of a stage takes: one for each scalar of a lane, but at least two."""
        unit, memory = self.hardware.vector_unit, self.hardware.vector_memory
        return max(2, unit.scalar_words * memory.word_elements - len(stage.known))

    def _elements(self, stage: Stage) -> int:
        """The most elements that a step of a stage takes where each is several operands; at least one."""
        of_each = len(stage.maps) + len(stage.shared)
        return max(1, self._most(stage) // of_each) if of_each > 1 else self._most(stage)

    def _apart(self, stage: Stage, count: int) -> int:
        """The elements of a piece that a step takes: with slots, it joins as many shares of them as a word has
        elements, as code does that has them side by side in a register.
        """
        # Additions to one number wait for one another, those of several shares do not.
        most, word = self._elements(stage), self.hardware.vector_memory.word_elements
        return min(most, max(2, -(-count // word))) if self.hardware.vector_unit.slots else most

    def _made(self, stage: Stage, parts: Sequence[range]) -> int:
        """Numbers a row after some pieces of a stage."""
        return sum(-(-len(part) // self._apart(stage, len(part))) for part in parts)

    def _levels(self, stage: Stage, count: int) -> list[int]:
        """Counts of numbers, step by step, while each step joins as many as it can."""
        found = [count]
        while found[-1] > self._most(stage):
            found.append(-(-found[-1] // self._most(stage)))
        return found

    def units(self) -> Iterator[Unit]:
        kept, shares, stays = self.pieces.kept, self.shares, self.pieces.shared == len(self.parts)
        for u in range(len(self.blocks)):
            always = SlotNeed("joined", 0), SlotNeed("numbers", 0), *((SlotNeed("given", u),) if self.given else ())
            for n, stage in enumerate(self.stages[self.given :], self.given):
                for p in range(len(self.parts)):
                    needs = [*always, SlotNeed("rows", (u, 0 if kept else n, p))]
                    needs += [SlotNeed("shared", (0 if stays else u, p))] if stage.shared else []
                    needs += [] if stage.joins else [SlotNeed("results", (u, n, p))]
                    leaves = -1 if stage.joins else len(needs) - 1
                    yield Unit(tuple(needs), None, RowStretch(u, n, p), steps=2, leaves=leaves)
                # A stage that joins nothing has written its outputs portion by portion, and has no number to end with.
                if not stage.joins:
                    continue
                last, end = n == len(self.stages) - 1, RowStretch(u, n)
                levels = len(self._levels(stage, self._made(stage, self.parts)))
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

    def _lanes(self, rows: range) -> int:
        """Number of lanes that hold some rows, with all of their shares."""
        return self.shares * len(rows) // self.word_fill

    def _lane(self, rows: range, shares: int, apart: int) -> tuple[Along, Along]:
        """Counters of the first channel, for shares that lie `apart`, and of the first row of each lane: share by
        share.
        """
        firsts = rows[:: self.word_fill]
        channels = tuple([share * apart for share in range(shares) for _ in firsts])
        return Along(CHANNEL, channels), Along(IMAGE, firsts if shares == 1 else (*firsts,) * shares)

    def _boxes(self, channels: range, rows: range, shares: int) -> tuple[Box, ...]:
        """Boxes of channels in the first shares of some rows."""
        rows = range(rows.start, min(rows.stop, self.rows))
        return tuple(Box(shifted(channels, at * self.share), range(1), range(1), rows) for at in range(shares))

    def _held(self, name: str, rows: range, channels: range, shares: int, base: int) -> Moves:
        """Moves of some channels of the first shares of some rows, from word `base` on."""
        lane, items = self._lane(rows, shares, self.share)[shares == 1 :], (Along(CHANNEL, channels), self._beside)
        return self._moves(name, base, lane, items, self._boxes(channels, rows, shares))

    def _brought(self, key: tuple[int, int, int]) -> tuple[str, ...]:
        """Sources that come for a piece: all, where rows are kept, or those of its stage."""
        return self.maps if self.pieces.kept else self.stages[key[1]].maps

    def _rows(self, key: tuple[int, int, int], base: int) -> Iterator[Moves]:
        part = self.parts[key[2]]
        for at, name in enumerate(self._brought(key)):
            yield self._held(name, self.blocks[key[0]], part, self.shares, base + at * len(part))

    def _shared(self, key: tuple[int, int], base: int) -> Iterator[Moves]:
        """Moves of shared operands to every lane with these channels, and to every element of a word."""
        channels, (lane, rows) = self.parts[key[1]], self._lane(self.blocks[0], self.shares, self.share)
        lanes = lane, Along(IMAGE, (0,) * len(rows.coordinates))
        items = Along(CHANNEL, channels), Along(IMAGE, (0,) * self.word_fill)
        for at, name in enumerate(self.shared):
            boxes = self._boxes(channels, range(1), self.shares)
            yield self._moves(name, base + at * len(self.parts[0]), lanes, items, boxes)

    def _given(self, u: int, base: int) -> Iterator[Moves]:
        rows = self.blocks[u]
        for word, stage in enumerate(self.stages[: self.given], base):
            lane = self._lane(rows, self.shares, 0)[1:]
            yield self._moves(stage.given, word, lane, (self._beside,), self._boxes(range(1), rows, 1))

    def _exchanged(self, key: tuple[int, int], gaps: int, grows: bool) -> list[Piece]:
        """Pieces with the number of each share, through HBM to all lanes with part of the row."""
        starts, shares = self.blocks[0][:: self.word_fill], range(self.shares)
        lane, items = (Along(IMAGE, starts),), (Along(CHANNEL, shares), self._beside)
        copies, name = tuple(share * len(starts) for share in shares), f"{ON_THE_WAY}_{key[1]}"

        def moves(base: int) -> Iterator[Moves]:
            yield self._moves(name, base, lane, items, self._of_shares, copies)

        return [Piece(0, (0,), moves, (SlotNeed("", key),))]

    # ---- work and results

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[VectorWork]:
        place = {need.area: at for at, need in enumerate(unit.needs)}
        base = {area: bases[at] for area, at in place.items()}
        act = self._end if unit.about.piece < 0 else self._piece
        return act(unit.about, self.stages[unit.about.stage], place, base)

    def _piece(self, of: RowStretch, stage: Stage, place: dict[str, int], base: dict[str, int]) -> Iterator[VectorWork]:
        given, first, words = self.given, of.stage == self.given, len(self.parts[of.piece])
        # Words of the numbers of earlier stages.
        known = [base["given"] + at if at < given else base["numbers"] + at - given for at in stage.known]
        reads = [Touch(place["rows"], None if first or not self.pieces.kept else ())]
        reads += [Touch(place["given"], None if first and not of.piece else ())] if given else []
        brought = self.maps if self.pieces.kept else stage.maps
        rows = [base["rows"] + brought.index(name) * words for name in stage.maps]
        shared = [base["shared"] + self.shared.index(name) * len(self.parts[0]) for name in stage.shared]
        reads += [Touch(place["shared"])] if shared else []
        if stage.joins:
            to, most = base["joined"] + self._made(stage, self.parts[: of.piece]), self._apart(stage, words)
            yield from _one_by_one(self._joined(of, stage.operation, known, [*rows, *shared], words, to, most), reads)
            return
        walks = [in_turn(at, words) for at in rows] + [in_turn(at, words, 0) for at in known]
        walks += [in_turn(at, words) for at in shared]
        step = self._step(of, stage.operation, walks, base["results"], words, stage.coefficients)
        yield VectorWork((step,), tuple(reads), place["results"], True)

    def _end(self, of: RowStretch, stage: Stage, place: dict[str, int], base: dict[str, int]) -> Iterator[VectorWork]:
        """Vector steps that join numbers until one step takes all of them; this ends the stage, or the exchange of
        shares.
        """
        reads = [Touch(place["given"], ())] if self.given else []
        first, count = base["joined"], self._made(stage, self.parts)
        room = first + count
        if exchanged := "exchanged" in place:
            reads.append(Touch(place["exchanged"]))
            first, count, room = base["exchanged"], self.shares, base["joined"]
        steps: list[Compute] = []
        levels = self._levels(stage, count)
        for count, left in pairwise(levels):
            steps += self._joined(of, stage.joins, [], [first], count, room, self._most(stage))
            first, room = room, room + left
        yield from _one_by_one(steps, reads)
        walks = [in_turn(each, 1) for each in range(first, first + levels[-1])]
        number, final = base["numbers"] + of.stage - self.given, "results" in place
        # Each share leaves its own number here; after the exchange, a second turn ends the stage.
        if self.shares > 1 and not exchanged:
            yield VectorWork((self._step(of, stage.joins, walks, number, 1),), tuple(reads), place["numbers"])
            return
        step = self._step(of, stage.ends, walks, base["results"] if final else number, 1, stage.coefficients)
        yield VectorWork((step,), tuple(reads), place["results"] if final else -1, final)

    def _joined(
        self, of: RowStretch, operation: str, known: list[int], bases: list[int], count: int, to: int, most: int
    ) -> Iterator[Compute]:
        """Vector steps that join `count` words from each base on, at most `most` at a time."""
        whole, left = divmod(count, most)
        for first, words, together in ((0, whole, most), (whole * most, 1, left)):
            if words and together:
                walks = [in_turn(base + first + each, words, most) for each in range(together) for base in bases]
                yield self._step(of, operation, [*walks, *(in_turn(at, words, 0) for at in known)], to, words)
                to += words

    def _step(
        self, of: RowStretch, operation: str, walks: list[Counters], to: int, words: int,
        coefficients: tuple[float, ...] = (),
    ) -> Compute:  # fmt: skip
        lanes = self._lanes(self.blocks[of.rows])
        operands, writes = tuple(feed(lanes, walk) for walk in walks), feed(lanes, in_turn(to, words))
        return Compute(operation, operands, writes, words, coefficients=coefficients)

    def spill(self, unit: Unit, base: int) -> Moves:
        """Moves of a result: the rows; a number from the first share, if all shares have it; or the numbers of all
        shares.
        """
        of, rows = unit.about, self.blocks[unit.about.rows]
        if unit.makes is not None:
            word, lane = base + of.stage - self.given, self._lane(rows, self.shares, 1)
            return self._moves(f"{ON_THE_WAY}_{of.stage}", word, lane, (self._beside,), self._of_shares)
        channels = range(1) if of.piece < 0 else self.parts[of.piece]
        return self._held(OFMAP, rows, channels, 1 if self.reduces else self.shares, base)


def _one_by_one(steps: Iterable[Compute], reads: Sequence[Touch]) -> Iterator[VectorWork]:
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
        folds = f"rows in {work.shares} shares of {counted(work.share, 'channel')}, which meet by way of HBM"
    held, shared, *sums, results = (each.words * each.count for each in work.areas)
    areas = {"rows": (held, 0), "what rows share": (shared, 0), "sums": (sum(sums), 0), "results": (results, 0)}
    rows, pieces = counted(blocking.images, "row"), counted(len(work.parts), "piece")
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
