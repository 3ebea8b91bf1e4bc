"""Softmax, layer normalization, means: by the vector unit, which goes through the channels of rows stage by stage.

A lane has some rows, an element of each in a word: what is summed up, or compared, never leaves its lane.

As units, a piece of a stage is a unit, and so is the end of a stage, which goes on at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.geometry import MapAxis, padded, shifted
from tpusim.machines.tpu.cut.pace import delay_of
from tpusim.machines.tpu.cut.plan import CHANNEL, IMAGE, portions
from tpusim.machines.tpu.cut.tiling import MOST_PIECES, fitting, word_groups
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.definition import beat_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.vector_ops import Maps
from tpusim.machines.tpu.lowering.vector_units import IGNORED, feed, in_turn
from tpusim.machines.tpu.lowering.words import memory_of
from tpusim.machines.tpu.program.addresses import Counters
from tpusim.machines.tpu.program.operations import Arity, work_of
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.schedule.units import (
    Area,
    Compute,
    Moves,
    Need,
    Piece,
    Policy,
    Touch,
    Unit,
    Units,
    Work,
    at_once,
    when_free,
    when_needed,
)
from tpusim.memory.layout import Box
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.row_op import RowOp, Stage
from tpusim.result.records import Blocking


def ways(layer: RowOp, batch: int, hardware: Hardware) -> list[Draft]:
    """A draft, the only one.

    Raises:
        CapacityError: when nothing fits the vector memories.
    """
    plan = RowPlan(layer, batch, hardware)
    return one_draft(partial(RowUnits, plan), lambda _: _explained(plan))


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
        """Rows go over the lanes one after the other; of few, long ones their channels as well, in equal shares.

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
        """The tensor of a name, as it lies in HBM."""
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
        return next(fitting(self._ways(), lambda pieces: sum(self.areas(pieces)), self.hardware))

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

    def areas(self, pieces: Pieces) -> tuple[int, ...]:
        """Words of rows, what they share, numbers on the way, those of stages, those exchanged, and results."""
        size = len(self._parts(pieces.number)[0])
        results = RESULT_BUFFERS * (1 if self.reduces else size)
        on_the_way = self.most_joined(pieces.number)
        # What is given of the next rows is there before these are done.
        numbers = len(self.stages) + self.given
        exchanged = sum(bool(each.joins) for each in self.stages) * self.shares if self.shares > 1 else 0
        return (pieces.slots * size, len(self.shared) * pieces.shared * size, on_the_way, numbers, exchanged, results)

    def levels(self, stage: Stage, count: int) -> list[int]:
        """How many numbers a row there are of a stage, the fewer the more have been joined; none where none are."""
        if not stage.joins:
            return [0]
        most = self.most(stage)
        return _levels(sum(-(-len(part) // most) for part in self._parts(count)), most)

    def most_joined(self, count: int) -> int:
        """Words of numbers that are still to be joined, at most, where rows come in `count` pieces: those of shares, or
        what these have come to.
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
        """The first channel and the first row of each lane, where both differ; else the row."""
        rows = self.first_rows(unit)
        return (rows,) if self.shares == 1 else (self.first_channels(unit), rows)

    def boxed(self, channels: range, rows: range) -> tuple[Box, ...]:
        """The boxes of such channels in all shares of some rows."""
        starts = range(0, self.layer.channels, self.channels)
        rows = range(rows.start, min(rows.stop, self.rows))
        return tuple(Box(shifted(channels, at), range(1), range(1), rows) for at in starts)


def _levels(count: int, most: int) -> list[int]:
    """A count of numbers, then of those that are left when `most` are joined at a time, while there are more."""
    found = [count]
    while found[-1] > most:
        found.append(-(-found[-1] // most))
    return found


# ---- as units

ON_THE_WAY = "on_the_way"
"""What lanes exchange by way of HBM; a tensor for each stage."""


class Stretch(NamedTuple):
    """A piece of some rows in a stage; without a piece, the end of the stage. Where rows have shares, the end is two:
    until what the shares have come to is `exchanged`, and from there.
    """

    rows: int
    stage: int
    piece: int | None = None
    exchanged: bool = False


class RowUnits(Units):
    """Pieces come as far ahead as there is room for them."""

    def __init__(self, plan: RowPlan) -> None:
        self.plan, self.hardware, self.traffic = plan, plan.hardware, Traffic(plan.outputs, plan.hardware)
        self.named = {name: plan.tensor(name) for name in plan.shapes}
        if plan.shares > 1:
            joining = (f"{ON_THE_WAY}_{number}" for number, stage in enumerate(plan.stages) if stage.joins)
            shape = plan.shares, 1, 1, plan.rows
            self.named |= {name: Tensor(name, shape, on_the_way=True) for name in joining}
            self.intermediates = plan.shares * plan.rows * len(plan.stages)
        self.word_fill = plan.fill

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.named.values(),)

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """Rows, what they share, numbers to be joined, numbers given, those of stages, those of all shares, results."""
        plan, size, pieces, lanes = self.plan, len(self.plan.parts[0]), self.plan.pieces, self.plan.lanes
        joining = sum(bool(stage.joins) for stage in plan.stages) if plan.shares > 1 else 0

        def ready(key: tuple[int, int, int]) -> int:
            return delay_of(len(plan.parts[key[2]]), self.hardware)

        return (
            Area("rows", "ifmap", size, pieces.slots, lanes, self._rows, ready),
            Area("shared", "filter", size * len(plan.shared), pieces.shared, lanes, self._shared),
            Area("joined", OFMAP, plan.most_joined(pieces.number), 1, lanes),
            Area("given", OFMAP, plan.given, 2, lanes, self._given, gaps=when_free),
            Area("numbers", OFMAP, len(plan.stages) - plan.given, 1, lanes),
            Area("exchanged", OFMAP, plan.shares, joining, lanes, self._exchanged, gaps=when_needed),
            Area("results", OFMAP, 1 if plan.reduces else size, RESULT_BUFFERS, lanes),
        )

    @property
    def policy(self) -> Policy:
        """Pieces as soon as a slot is free, those that are wanted soon or not."""
        return Policy(("given", "rows", "shared", "exchanged"), at_once)

    def units(self) -> Iterator[Unit]:
        plan, kept, shares = self.plan, self.plan.pieces.kept, self.plan.shares
        stays = plan.pieces.shared == len(plan.parts)
        for u in range(len(plan.units)):
            always = Need("joined", 0), Need("numbers", 0), *((Need("given", u),) if plan.given else ())
            for n, stage in enumerate(plan.stages[plan.given :], plan.given):
                last, levels = n == len(plan.stages) - 1, len(plan.levels(stage, plan.pieces.number))
                for p in range(len(plan.parts)):
                    needs = [*always, Need("rows", (u, 0 if kept else n, p))]
                    needs += [Need("shared", (0 if stays else u, p))] if stage.shared else []
                    needs += [] if stage.joins else [Need("results", (u, n, p))]
                    leaves = -1 if stage.joins else len(needs) - 1
                    yield Unit(tuple(needs), None, Stretch(u, n, p), steps=2, leaves=leaves)
                if not stage.joins:
                    continue
                if shares > 1:
                    yield Unit(always, None, Stretch(u, n), steps=2 * levels, leaves=1, gap=False, makes=(u, n))
                needs = [*always, *((Need("exchanged", (u, n)),) if shares > 1 else ())]
                needs += [Need("results", (u, n, 0))] if last else []
                end, leaves = Stretch(u, n, exchanged=shares > 1), len(needs) - 1 if last else -1
                yield Unit(tuple(needs), None, end, steps=2 * (levels + shares), leaves=leaves, gap=False)

    # ---- what comes

    def _moves(self, name: str, part: Part, boxes: tuple[Box, ...]) -> Moves:
        return Moves(self.named[name], (part,), *self.traffic.of(boxes, self.named[name], (1, 1)))

    def _part(self, rows: range, channels: range, base: int) -> tuple[Part, tuple[Box, ...]]:
        """Some channels of each share of some rows, from word `base` on."""
        plan = self.plan
        items = Along(CHANNEL, channels), Along(IMAGE, range(plan.fill))
        return Part(base, (0,), plan.lane(rows), items, plan.fill), plan.boxed(channels, rows)

    def _rows(self, key: tuple[int, int, int], gaps: int, grows: bool) -> list[Piece]:
        def moves(base: int) -> Iterator[Moves]:
            yield self._moves("ifmap", *self._part(self.plan.units[key[0]], self.plan.parts[key[2]], base))

        return [Piece(0, (0,), moves)]

    def _shared(self, key: tuple[int, int], gaps: int, grows: bool) -> list[Piece]:
        """What all rows share stands in every lane that has such channels, and in every element of a word."""
        plan, channels = self.plan, self.plan.parts[key[1]]
        lanes = plan.first_channels(plan.units[0]), Along(IMAGE, (0,) * plan.lanes)
        items = Along(CHANNEL, channels), Along(IMAGE, (0,) * plan.fill)
        boxes = tuple(each._replace(images=range(1)) for each in plan.boxed(channels, range(1)))

        def moves(base: int) -> Iterator[Moves]:
            for at, name in enumerate(plan.shared):
                yield self._moves(name, Part(base + at * len(plan.parts[0]), (0,), lanes, items, plan.fill), boxes)

        return [Piece(0, (0,), moves, steps=len(plan.shared))]

    def _given(self, u: int, gaps: int, grows: bool) -> list[Piece]:
        plan, rows = self.plan, self.plan.units[u]
        lanes, items = plan.lane(rows)[-1:], (Along(IMAGE, range(plan.fill)),)
        box = Box(range(1), range(1), range(1), range(rows.start, min(rows.stop, plan.rows)))

        def moves(base: int) -> Iterator[Moves]:
            for number, stage in enumerate(plan.stages[: plan.given]):
                yield self._moves(stage.given, Part(base + number, (0,), lanes, items, plan.fill), (box,))

        return [Piece(0, (0,), moves, steps=plan.given)]

    def _exchanged(self, key: tuple[int, int], gaps: int, grows: bool) -> list[Piece]:
        """What each share has come to, by way of HBM to all lanes that have some of the row."""
        number = key[1]
        shares, starts, (_, items, boxes) = range(self.plan.shares), self.plan.units[0][:: self.plan.fill], self._shares

        def moves(base: int) -> Iterator[Moves]:
            copies = tuple(share * len(starts) for share in shares)
            part = Part(base, copies, (Along(IMAGE, starts),), (Along(CHANNEL, shares), items), self.plan.fill)
            yield self._moves(f"{ON_THE_WAY}_{number}", part, boxes)

        return [Piece(0, (0,), moves, (Need("", key),))]

    @cached_property
    def _shares(self) -> tuple[tuple[Along, ...], Along, tuple[Box, ...]]:
        """The lanes of all shares, the rows in a word, and the box of what the shares have come to."""
        plan, rows, shares = self.plan, self.plan.units[0], range(self.plan.shares)
        lane = Along(CHANNEL, tuple(share for share in shares for _ in rows[:: plan.fill])), plan.first_rows(rows)
        return lane, Along(IMAGE, range(plan.fill)), (Box(shares, range(1), range(1), range(plan.rows)),)

    # ---- what is done with it, and what goes

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Work]:
        place = {need.area: at for at, need in enumerate(unit.needs)}
        base = {area: bases[at] for area, at in place.items()}
        of: Stretch = unit.about
        stage = self.plan.stages[of.stage]
        return self._end(of, stage, place, base) if of.piece is None else self._piece(of, stage, place, base)

    def _piece(self, of: Stretch, stage: Stage, place: dict[str, int], base: dict[str, int]) -> Iterator[Work]:
        plan, first = self.plan, of.stage == self.plan.given
        assert of.piece is not None
        channels, given = plan.parts[of.piece], plan.given
        # Where the numbers of earlier stages stand.
        known = [base["given"] + at if at < given else base["numbers"] + at - given for at in stage.known]
        reads = [Touch(place["rows"], None if first or not plan.pieces.kept else ())]
        reads += [Touch(place["given"], None if first and not of.piece else ())] if given else []
        if stage.joins:
            most = plan.most(stage)
            to = base["joined"] + sum(-(-len(part) // most) for part in plan.parts[: of.piece])
            for step in self._joined(of, stage.operation, known, base["rows"], len(channels), to, most):
                yield Work((step,), tuple(reads))
                reads = [Touch(each.need, ()) for each in reads]
            return
        shared = [base["shared"] + plan.shared.index(name) * len(plan.parts[0]) for name in stage.shared]
        reads += [Touch(place["shared"])] if shared else []
        words = len(channels)
        walks = [in_turn(base["rows"], words, 1), *(in_turn(at, words, 0) for at in known)]
        walks += [in_turn(at, words, 1) for at in shared]
        yield Work(
            (self._step(of, stage.operation, walks, base["results"], words),), tuple(reads), place["results"], True
        )

    def _end(self, of: Stretch, stage: Stage, place: dict[str, int], base: dict[str, int]) -> Iterator[Work]:
        """Numbers are joined until one step takes all of them; that ends the stage, or what shares exchange does."""
        plan, most = self.plan, self.plan.most(stage)
        reads = [Touch(place["given"], ())] if plan.given else []
        if of.exchanged:
            first, count = base["exchanged"], plan.shares
            reads.append(Touch(place["exchanged"]))
        else:
            first, count = base["joined"], sum(-(-len(part) // most) for part in plan.parts)
        room = first + count if first == base["joined"] else base["joined"]
        waits = [*reads]
        while count > most:
            for step in self._joined(of, stage.joins, [], first, count, room, most):
                yield Work((step,), tuple(waits))
                waits = [Touch(each.need, ()) for each in reads]
            first, count = room, -(-count // most)
            room = first + count
        walks = [in_turn(each, 1, 1) for each in range(first, first + count)]
        number, final = base["numbers"] + of.stage - plan.given, "results" in place
        if plan.shares > 1 and not of.exchanged:
            yield Work((self._step(of, stage.joins, walks, number, 1),), tuple(reads), place["numbers"])
            return
        to = base["results"] if final else number
        step = self._step(of, stage.ends, walks, to, 1, stage.coefficients)
        yield Work((step,), tuple(reads), place["results"] if final else -1, final)

    def _joined(
        self, of: Stretch, operation: str, known: list[int], base: int, count: int, to: int, most: int
    ) -> Iterator[Compute]:
        """Make of `count` words a number of every `most`, and one of those that are left."""
        whole, left = divmod(count, most)
        for first, words, together in ((0, whole, most), (whole * most, 1, left)):
            if words and together:
                walks = [in_turn(base + first + each, words, most) for each in range(together)]
                yield self._step(of, operation, [*walks, *(in_turn(at, words, 0) for at in known)], to, words)
                to += words

    def _step(
        self, of: Stretch, operation: str, walks: list[Counters], to: int, words: int,
        coefficients: tuple[float, ...] = (),
    ) -> Compute:  # fmt: skip
        lanes = len(self.plan.first_rows(self.plan.units[of.rows]).coordinates)
        operands, writes = tuple(feed(lanes, walk) for walk in walks), feed(lanes, in_turn(to, words, 1))
        return Compute(operation, operands, writes, words, coefficients=coefficients)

    def spill(self, unit: Unit, base: int) -> Moves:
        """The rows; what all shares have come to alike, from the first; or what each has come to, to be exchanged."""
        plan, of = self.plan, unit.about
        rows = plan.units[of.rows]
        if unit.makes is not None:
            lane, items, exchanged = self._shares
            part = Part(base + of.stage - plan.given, (0,), lane, (items,), plan.fill)
            return self._moves(f"{ON_THE_WAY}_{of.stage}", part, exchanged)
        part, boxes = self._part(rows, range(1) if of.piece is None else plan.parts[of.piece], base)
        if plan.reduces:
            part, boxes = part._replace(lane=(Along(IMAGE, rows[:: plan.fill]),)), boxes[:1]
        return self._moves(OFMAP, part, boxes)


# ---- in words


def _explained(plan: RowPlan) -> Explanation:
    blocking = Blocking(
        rows=1, cols=1, images=min(plan.spread.lanes * plan.fill, plan.rows), blocks=len(plan.units),
        row_folds=1, col_folds=1, loop_order="block_major", word_fill=plan.fill, strips=1,
    )  # fmt: skip
    word = plan.hardware.vector_memory.word_elements
    passed = plan.stages[plan.given :]
    stages = ", ".join(each.operation for each in passed)
    folds = "none: a lane has all channels of its rows"
    if plan.shares > 1:
        folds = f"rows in {plan.shares} shares of {counted(plan.channels, 'channel')}, which meet by way of HBM"
    held, shared, *sums, results = plan.areas(plan.pieces)
    areas = {"rows": (held, 0), "what rows share": (shared, 0), "sums": (sum(sums), 0), "results": (results, 0)}
    rows, pieces = counted(blocking.images, "row"), counted(len(plan.parts), "piece")
    again = "kept from stage to stage" if plan.pieces.kept else "read from HBM for each stage"
    aspects = {
        "folds": folds,
        "passes": f"none: the vector unit goes through rows in {counted(len(passed), 'stage')}: {stages}",
        "block": f"{rows}; {counted(blocking.blocks, 'block')} for all {plan.rows:,}",
        "order": f"block by block, in each stage by stage; rows come in {pieces}, {again}",
        "words": f"{plan.fill} of {counted(word, 'element')} used: rows side by side",
        "memory": memory_of(areas.items(), plan.hardware),
    }
    return Explanation(1, blocking, {"loop_order": "block_major", **plan.pieces._asdict()}, aspects)


VECTOR_ROWS = Lowering(
    "vector_rows",
    "softmax, layer normalization, means of rows: by the vector unit, whole rows in a lane",
    ways,
    unit="vector",
    whole_rows=True,
    partial=True,
    banks=True,
    ignores=IGNORED | {"block.rows", "block.cols", "block.images", "block.out_channels", "block_n", "strips"},
)
