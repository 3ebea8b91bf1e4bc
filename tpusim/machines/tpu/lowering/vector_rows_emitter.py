"""Write down what the vector unit does with rows: unit by unit, stage by stage, piece by piece of the channels."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tpusim.machines.tpu.lowering.maps import CHANNEL, IMAGE
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.lowering.vector_ops_search import delay_of
from tpusim.machines.tpu.lowering.vector_rows_plan import RESULT_BUFFERS, RowPlan
from tpusim.machines.tpu.lowering.vector_units import feed
from tpusim.machines.tpu.program.addresses import Counter, Counters
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.step import Step
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.machines.tpu.program.vector import Vector
from tpusim.memory.layout import Box
from tpusim.network.ops.op import OFMAP
from tpusim.network.ops.row_op import Stage

_Begins: TypeAlias = tuple[tuple[int, ...], int]
"""What a step waits for, and its delay."""
_AT_ONCE: _Begins = ((), 0)
ON_THE_WAY = "on_the_way"
"""What lanes exchange by way of HBM; a tensor for each stage."""


class _Load(NamedTuple):
    """A piece of the rows of a unit; of a stage, where it is not kept for all of them."""

    unit: int
    stage: int
    piece: int


class RowEmitter:
    """Pieces are filled as far ahead as there is room for them."""

    def __init__(self, plan: RowPlan) -> None:
        self.plan, self.hardware = plan, plan.hardware
        self.traffic = Traffic(plan.outputs, plan.hardware)
        self.rows, self.shared, self.on_the_way, self.numbers, self.exchanged, self.results, _ = plan.areas(plan.pieces)
        self.tensors = {name: plan.tensor(name) for name in plan.shapes}
        self.passes = len(plan.stages) - plan.given
        stages = range(1 if plan.pieces.kept else self.passes)
        units, pieces = range(len(plan.units)), range(len(plan.parts))
        self.loads = [_Load(*each) for each in ((u, s, p) for u in units for s in stages for p in pieces)]
        self.steps: list[Step] = []
        self.filled: list[int] = []
        self.read: dict[int, int] = {}
        """By number of a load, the last step that reads it."""
        self.spills: list[int] = []
        stays = plan.pieces.shared == len(plan.parts)
        self.shares = [*pieces] * (1 if stays else len(units)) if plan.shared else []
        """The pieces of what all rows share, in the order in which they are brought."""
        self.brought: list[tuple[int, ...]] = []
        self.used: dict[int, int] = {}
        self.given: list[tuple[int, ...]] = []
        """By unit the fills of what is given of its rows."""
        self.done: list[int] = []
        """By unit the last step that works on it."""

    def program(self) -> Program:
        """The whole layer."""
        for unit in range(len(self.plan.units)):
            self._give_ahead(unit)
            for number, stage in enumerate(self.plan.stages[self.plan.given :], self.plan.given):
                self._stage(unit, number, stage)
            self.done.append(max(at for at, step in enumerate(self.steps) if isinstance(step, Vector)))
        return Program(tuple(self.tensors.values()), self._buffers(), tuple(self.steps), self.plan.fill)

    def _buffers(self) -> tuple[Buffer, ...]:
        ends = {"ifmap": (self.rows, self.shared), "filter": (self.shared, self.on_the_way)}
        areas = {**ends, OFMAP: (self.on_the_way, self.plan.words(self.plan.pieces))}
        return tuple(Buffer(name, at, end - at, self.plan.lanes) for name, (at, end) in areas.items() if end > at)

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    # ---- transfers

    def _fill(self, tensor: Tensor, part: Part, boxes: tuple[Box, ...], after: tuple[int, ...]) -> int:
        moved = self.traffic.of(boxes, tensor, (1, 1))
        return self._add(Fill(after, tensor, (part,), moved.bytes, regions=moved.regions))

    def _part(self, unit: int, channels: range, base: int) -> tuple[Part, tuple[Box, ...]]:
        """Some channels of each share of the rows of a unit, from word `base` on."""
        plan, rows = self.plan, self.plan.units[unit]
        part = Part(base, (0,), plan.lane(rows), plan.items(channels), plan.fill)
        return part, plan.boxed(channels, rows)

    def _fill_ahead(self) -> None:
        """All pieces for which there is a slot that nobody is still to read."""
        slots = self.plan.pieces.slots
        while (number := len(self.filled)) < len(self.loads) and (number < slots or number - slots in self.read):
            load = self.loads[number]
            part, boxes = self._part(load.unit, self.plan.parts[load.piece], self._slot(number))
            freed = (self.read[number - slots],) if number >= slots else ()
            self.filled.append(self._fill(self.tensors["ifmap"], part, boxes, freed))

    def _share_ahead(self) -> None:
        """The same of what all rows share."""
        slots = self.plan.pieces.shared
        while (number := len(self.brought)) < len(self.shares) and (number < slots or number - slots in self.used):
            freed = (self.used[number - slots],) if number >= slots else ()
            self.brought.append(self._bring(self.plan.parts[self.shares[number]], number, freed))

    def _bring(self, channels: range, number: int, freed: tuple[int, ...]) -> tuple[int, ...]:
        """It stands in every lane that has such channels, and in every element of a word."""
        plan, found = self.plan, []
        lanes = plan.first_channels(plan.units[0]), Along(IMAGE, (0,) * plan.lanes)
        items = Along(CHANNEL, channels), Along(IMAGE, (0,) * plan.fill)
        boxes = tuple(each._replace(images=range(1)) for each in plan.boxed(channels, range(1)))
        for name in plan.shared:
            part = Part(self._shared(name, number), (0,), lanes, items, plan.fill)
            found.append(self._fill(self.tensors[name], part, boxes, freed))
        return tuple(found)

    def _give_ahead(self, unit: int) -> None:
        """What is given of the rows of a unit, and of the next, in the room of those two before."""
        for ahead in range(len(self.given), min(unit + 2, len(self.plan.units))):
            rows, freed = self.plan.units[ahead], self.done[ahead - 2 : ahead - 1]
            lanes, items = self.plan.lane(rows)[-1:], (Along(IMAGE, range(self.plan.fill)),)
            box = Box(range(1), range(1), range(1), range(rows.start, min(rows.stop, self.plan.rows)))
            stages = enumerate(self.plan.stages[: self.plan.given])
            parts = (
                (each, Part(self._number(number, ahead), (0,), lanes, items, self.plan.fill)) for number, each in stages
            )
            self.given.append(
                tuple(self._fill(self.tensors[each.given], part, (box,), tuple(freed)) for each, part in parts)
            )

    def _number(self, stage: int, unit: int) -> int:
        """Where the number of a stage is; of what is given there are two."""
        later = len(self.plan.stages) if stage < self.plan.given and unit % 2 else 0
        return self.numbers + later + stage

    def _shared(self, name: str, number: int) -> int:
        size, count = len(self.plan.parts[0]), len(self.plan.shared)
        return self.shared + (number % self.plan.pieces.shared * count + self.plan.shared.index(name)) * size

    def _slot(self, load: int) -> int:
        return self.rows + load % self.plan.pieces.slots * len(self.plan.parts[0])

    def _spill(self, unit: int, channels: range, made: int) -> None:
        """Store the rows; what all shares have come to alike, from the first."""
        part, boxes = self._part(unit, channels, self._result())
        if self.plan.reduces:
            part, boxes = part._replace(lane=(Along(IMAGE, self.plan.units[unit][:: self.plan.fill]),)), boxes[:1]
        self.spills.append(self._store(self.tensors[OFMAP], part, boxes, made))

    def _store(self, tensor: Tensor, part: Part, boxes: tuple[Box, ...], made: int) -> int:
        moved = self.traffic.of(boxes, tensor, (1, 1))
        return self._add(Spill((made,), tensor, (part,), moved.bytes, regions=moved.regions))

    def _exchange(self, number: int, made: int) -> int:
        """What each share has come to, by way of HBM to all lanes that have some of the row; returns the fill."""
        plan, rows = self.plan, self.plan.units[0]
        shares, starts = range(plan.shares), rows[:: plan.fill]
        name = f"{ON_THE_WAY}_{number}"
        tensor = Tensor(name, (plan.shares, 1, 1, plan.rows), on_the_way=True)
        self.tensors[name] = tensor
        boxes = (Box(shares, range(1), range(1), range(plan.rows)),)
        each = Along(CHANNEL, tuple(share for share in shares for _ in starts)), plan.first_rows(rows)
        items = Along(IMAGE, range(plan.fill))
        stored = self._store(tensor, Part(self.numbers + number, (0,), each, (items,), plan.fill), boxes, made)
        copies = tuple(share * len(starts) for share in shares)
        base = self.exchanged + number * plan.shares
        part = Part(base, copies, (Along(IMAGE, starts),), (Along(CHANNEL, shares), items), plan.fill)
        return self._fill(tensor, part, boxes, (stored,))

    def _result(self) -> int:
        """Where the next results go."""
        size = 1 if self.plan.reduces else len(self.plan.parts[0])
        return self.results + len(self.spills) % RESULT_BUFFERS * size

    def _freed(self) -> tuple[int, ...]:
        """The spill of what stood there before."""
        return tuple(self.spills[-RESULT_BUFFERS:][:1]) if len(self.spills) >= RESULT_BUFFERS else ()

    # ---- the vector unit

    def _stage(self, unit: int, number: int, stage: Stage) -> None:
        at = self.on_the_way
        kept, last = self.plan.pieces.kept, number == len(self.plan.stages) - 1
        first = number == self.plan.given
        for piece, channels in enumerate(self.plan.parts):
            passed = unit if kept else unit * self.passes + number - self.plan.given
            load = passed * len(self.plan.parts) + piece
            self._fill_ahead()
            self._share_ahead()
            new = first or not kept
            after = (*((self.filled[load],) if new else ()), *(self.given[unit] if first and not piece else ()))
            delay = delay_of(len(channels), self.hardware) if new else 0
            if stage.joins:
                at = self._joined_first(unit, stage, self._slot(load), channels, at, (after, delay))
            else:
                self._each(unit, stage, self._slot(load), piece, (after, delay))
            if last or not kept:
                self.read[load] = len(self.steps) - 1
            if not stage.joins:
                self._spill(unit, channels, len(self.steps) - 1)
        if stage.joins:
            self._end(unit, number, stage, at)

    def _joined_first(self, unit: int, stage: Stage, base: int, channels: range, to: int, begins: _Begins) -> int:
        """A number of as many channels as a step takes at a time; returns where the next are to stand."""
        return self._joined(unit, stage.operation, stage.known, base, len(channels), to, self.plan.most(stage), begins)

    def _joined(
        self, unit: int, operation: str, known: tuple[int, ...], base: int, count: int, to: int, most: int,
        begins: _Begins,
    ) -> int:  # fmt: skip
        """Make of `count` words a number of every `most`, and one of those that are left; where the next stand."""
        whole, left = divmod(count, most)
        for first, words, together in ((0, whole, most), (whole * most, 1, left)):
            if words and together:
                walks = [_every(base + first + each, words, most) for each in range(together)]
                self._work(unit, operation, [*walks, *self._known(unit, known, words)], to, words, begins)
                to, begins = to + words, _AT_ONCE
        return to

    def _end(self, unit: int, number: int, stage: Stage, at: int) -> None:
        """The numbers from `on_the_way` on are joined until one step takes all of them; that ends the stage, or what
        shares exchange does.
        """
        base, begins = self.on_the_way, _AT_ONCE
        if self.plan.shares > 1:
            self._to_one(unit, stage, stage.joins, base, at, (self.numbers + number, begins))
            base = self.exchanged + number * self.plan.shares
            at, begins = base + self.plan.shares, ((self._exchange(number, len(self.steps) - 1),), 0)
        final = number == len(self.plan.stages) - 1
        to = self._result() if final else self.numbers + number
        freed = self._freed() if final else ()
        self._to_one(unit, stage, stage.ends, base, at, (to, ((*begins[0], *freed), 0)), stage.coefficients)
        if final:
            self._spill(unit, range(1), len(self.steps) - 1)

    def _to_one(
        self, unit: int, stage: Stage, operation: str, base: int, at: int, goes: tuple[int, _Begins],
        coefficients: tuple[float, ...] = (),
    ) -> None:  # fmt: skip
        """Words [base, at) are joined, at last by an operation, to a word."""
        most, (to, begins) = self.plan.most(stage), goes
        room = at if base == self.on_the_way else self.on_the_way
        while at - base > most:
            base, at = room, self._joined(unit, stage.joins, (), base, at - base, room, most, begins)
            room, begins = at, _AT_ONCE
        walks = [_every(each, 1, 1) for each in range(base, at)]
        self._work(unit, operation, walks, to, 1, goes[1], coefficients)

    def _each(self, unit: int, stage: Stage, base: int, piece: int, begins: _Begins) -> None:
        words, (after, delay) = len(self.plan.parts[piece]), begins
        number = (unit * len(self.plan.parts) + piece) % max(1, len(self.shares))
        shared = [_every(self._shared(name, number), words, 1) for name in stage.shared]
        walks = [_every(base, words, 1), *self._known(unit, stage.known, words), *shared]
        waits = (*after, *(self.brought[number] if shared else ()), *self._freed())
        self._work(unit, stage.operation, walks, self._result(), words, (waits, delay))
        self.used[number] = len(self.steps) - 1

    def _known(self, unit: int, stages: tuple[int, ...], words: int) -> list[Counters]:
        return [_every(self._number(each, unit), words, 0) for each in stages]

    def _work(
        self, unit: int, operation: str, walks: list[Counters], to: int, words: int,
        begins: _Begins, coefficients: tuple[float, ...] = (),
    ) -> None:  # fmt: skip
        lanes = len(self.plan.first_rows(self.plan.units[unit]).coordinates)
        operands, writes = tuple(feed(lanes, walk) for walk in walks), feed(lanes, _every(to, words, 1))
        after, delay = begins
        self._add(Vector(after, operation, operands, writes, words, coefficients=coefficients, delay=delay))


def _every(base: int, words: int, apart: int) -> Counters:
    """So many words, each so far from the one before."""
    return Counters(base, (Counter(words, 0, 1, words, apart),))
