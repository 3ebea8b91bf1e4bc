"""From units to steps: places of areas, slots of keys, times of loads, and the waits of every step.

Areas stand one behind the other, in each memory by itself, before any step is written. A *tenancy* is the time that one
key spends in one slot. Every wait is read off a tenancy: a reader waits for the step that brought or wrote the key; the
first writer of a slot waits for the users of the key before. Nothing here knows what a convolution is.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain, takewhile
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from tpusim.machines.tpu.program.addresses import in_slot
from tpusim.machines.tpu.program.program import Buffer, Program, StepCounts
from tpusim.machines.tpu.program.rows import Lengths, Rows, RowWriter
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.machines.tpu.schedule.turns import TOGETHER, Loop, kept, with_turns
from tpusim.machines.tpu.schedule.units import Act, Area, Key, Moves, Pass, Piece, Unit, Units, VectorWork

Bases: TypeAlias = Mapping[str, int]
"""First word of the first slot of each area, by name."""
APART = 1 << 40
"""Words between areas that have no place yet: more than any memory has."""


def link(units: Units, first: int = 0, empty: Collection[str] = ()) -> Bases:
    """Places of all areas: those of each memory in order, from word `first` on, and behind them those of strands.

    Strands that end before the units begin share their words. Areas in `empty` get no words: they stand far from all
    others.
    """
    # Sorted, so that the same areas always get the same addresses.
    bases = {name: (at + 1) * APART for at, name in enumerate(sorted(empty))}
    ends: defaultdict[str, int] = defaultdict(lambda: first)
    for beside in (units, *units.strands.values()):
        if units.before:
            ends.clear()
        for area in beside.areas:
            if area.name not in bases:
                bases[area.name] = ends[area.memory]
                ends[area.memory] += area.count * area.words
    return bases


def buffers(units: Units, bases: Bases, memory: str = "lanes") -> tuple[Buffer, ...]:
    """Buffers of a memory, as a Program lists them: neighbouring areas of one tensor are one buffer."""
    found: list[Buffer] = []
    strands = (area for strand in units.strands.values() for area in strand.areas)
    for area in (*strands, *units.areas):
        if area.memory != memory or not area.count * area.words or bases[area.name] >= APART:
            continue
        own = Buffer(area.tensor, bases[area.name], area.count * area.words, area.lanes)
        # Strands and units may each have an area of one tensor, side by side.
        if found and found[-1].tensor == own.tensor:
            ahead = found.pop()
            own = Buffer(own.tensor, ahead.base, ahead.words + own.words, max(ahead.lanes, own.lanes))
        found.append(own)
    return tuple(found)


_first_wanted = itemgetter(0, 1)
LAST = 1 << 62
"""A unit number behind all units."""
_Recipes: TypeAlias = dict[bool, tuple[int, ...]]
"""Numbers of the recipes of an act, by whether it begins sums in place of adding to them."""


@dataclass(slots=True, eq=False)
class Tenancy:
    """The stay of a key in a slot, from the first unit that needs it to the last.

    Attributes:
        number: number of keys that the area had before.
        base: first word of the slot.
        unit: first unit that needs the key.
        first, last: gap of the first unit, and gap of the last unit so far.
        ahead: gap in which the load ahead of it is first needed.
        before: tenancy that had the slot before.
        there: step that brought each atom.
        written: last step that wrote the slot, except for fills.
        used: last step that read the slot, by queue and array.
        begun: for a key that is made ready first, the first step that waits for that, and its array.
    """

    area: Area
    key: Key
    number: int
    base: int
    unit: int
    first: int
    last: int
    ahead: int
    before: Tenancy | None
    there: dict[int, int] = field(default_factory=dict)
    written: int = -1
    used: dict[tuple[str, int], int] = field(default_factory=dict)
    begun: tuple[int, int] | None = None

    def freed(self) -> tuple[int, ...]:
        """Steps that the first writer of the slot waits for."""
        return tuple(self.before.used.values()) if self.before else ()

    def made(self, atoms: Sequence[int] | None) -> tuple[int, ...]:
        """Steps that a reader of some atoms waits for."""
        if self.written >= 0:
            # Only the last writer counts: each writer has waited for the one before it.
            return (self.written,)
        there = self.there
        if atoms is None:
            return tuple(sorted({*there.values()}))
        if len(atoms) == 1:
            return (there[atoms[0]],) if atoms[0] in there else ()
        return tuple(sorted({there[atom] for atom in atoms if atom in there}))


class Ring:
    """The tenancies of an area; once all slots are taken, the oldest tenancy gives way to the next."""

    def __init__(self, area: Area, base: int) -> None:
        self.area, self.base, self.all = area, base, list[Tenancy]()
        self._living: dict[Key, Tenancy] = {}

    def wanted(self, key: Key, unit: int, gap: int, ahead: int | None = None) -> Tenancy:
        """The tenancy of a key for a unit behind a gap, a new one if the key is in no slot; `ahead` replaces the gap of
        the load ahead.
        """
        found = self._living.get(key)
        if found is None:
            number, area = len(self.all), self.area
            before = self.all[number - area.count] if number >= area.count else None
            if before:
                del self._living[before.key]
            # Without `ahead`, the load ahead is the last one of this ring.
            ahead = (self.all[-1].first if self.all else 0) if ahead is None else ahead
            found = Tenancy(
                area, key, number, self.base + number % area.count * area.words, unit, gap, gap, ahead, before
            )
            self.all.append(found)
            self._living[key] = found
        found.last = gap
        return found


class _RollingRing(Ring):
    """Rows that roll through one slot. Every unit has a tenancy for the rows that it reads; the tenancy before it is
    the last one that reads a row which its new rows replace.
    """

    def __init__(self, area: Area, base: int) -> None:
        super().__init__(area, base)
        self._filled = self._read = 0

    def wanted(self, key: Key, unit: int, gap: int, ahead: int | None = None) -> Tenancy:
        area = self.area
        assert area.live is not None
        live = area.live(key)
        # A unit without new rows reads rows that were brought for the unit ahead.
        there = self.all[-1].there if self.all and live.stop <= self._filled else {}
        self._filled = max(self._filled, live.stop)
        while self._read < len(self.all) and area.live(self.all[self._read].key).start < self._filled - area.depth:
            self._read += 1
        before = self.all[self._read - 1] if self._read else None
        self.all.append(Tenancy(area, key, len(self.all), self.base, unit, gap, gap, 0, before, there=there))
        return self.all[-1]


class _Entry(NamedTuple):
    """A piece that is brought in a gap; entries compare in the order in which they are brought."""

    unit: int
    early: int
    tenancy: Tenancy
    piece: Piece
    held: Sequence[Tenancy]
    """Tenancies of the piece's needs that are in areas; these come first among its needs."""


def spread(pieces: int, gaps: range) -> list[int]:
    """The gap of each piece: pieces are spread evenly over `gaps`, the last piece into the last gap."""
    if pieces == 1:
        return [gaps[-1]]
    return [
        gaps[(piece + 1) * len(gaps) // pieces - 1 if pieces <= len(gaps) else piece * len(gaps) // pieces]
        for piece in range(pieces)
    ]


@cache
def _in_slots(count: int) -> tuple[int, ...]:
    """The first words of `count` slots, for acts that are relative to them."""
    return tuple(map(in_slot, range(count)))


class _SteadyPasses(NamedTuple):
    """Passes that end the acts of a unit, share their needs, and go on with the sums of a pass ahead of them.

    Attributes:
        needs: places of the needs with weights, data and sums.
        atoms: parts of the weights and of the data that each pass reads.
        data: the parts of the data, each once: many passes read the same.
        recipes: the preload and the stream of each pass, in turn.
    """

    needs: tuple[int, int, int]
    atoms: list[tuple[Sequence[int] | None, Sequence[int] | None]]
    data: set[Sequence[int] | None]
    recipes: list[int]

    @property
    def passes(self) -> int:
        """Number of the passes."""
        return len(self.atoms)


@dataclass(slots=True, eq=False)
class _Kind:
    """The acts of units that are alike, with their recipes; and the steady passes that end them, once they are
    `known`.
    """

    acts: list[tuple[Act, _Recipes]]
    steady: _SteadyPasses | None = None
    known: bool = False


def _steady(acts: Sequence[tuple[Act, _Recipes]]) -> _SteadyPasses | None:
    """The steady passes among acts whose recipes are known; None where there are none."""
    found, every = list[tuple[Pass, tuple[int, ...]]](), set[tuple[int, int, int]]()
    for act, recipes in reversed(acts):
        if not isinstance(act, Pass) or act.begins or act.bias or not act.data:
            break
        needs = act.weights.need, act.data.need, act.sums
        if act.sums in needs[:2] or every - {needs}:
            break
        every.add(needs)
        found.append((act, recipes[False]))
    # The first pass waits for what the unit waits for.
    if found and not any(isinstance(act, Pass) for act, _ in acts[: -len(found)]):
        found.pop()
    return _SteadyPasses(
        next(iter(every)),
        [(act.weights.atoms, act.data.atoms) for act, _ in reversed(found) if act.data],
        {act.data.atoms for act, _ in found if act.data},
        [recipe for _, both in reversed(found) for recipe in both],
    ) if found else None  # fmt: skip


class Schedule:
    """Writes the steps of units, unit by unit.

    Units are numbered by the gap ahead of them. All tenancies are known before the first step is written.
    """

    def __init__(self, units: Units, bases: Bases, rows: RowWriter | None = None) -> None:
        self.of, self.policy, self.rows = units, units.policy, RowWriter() if rows is None else rows
        self.units = [*units.units()]
        self.gaps = [*accumulate((unit.gap for unit in self.units), initial=-1)][1:]
        # All tenancies are known before the first step is written, since a load is issued ahead of its unit.
        self.rings = rings = {
            each.name: (_RollingRing if each.live else Ring)(each, bases[each.name]) for each in units.areas
        }
        self.tenancies = [
            [rings[area].wanted(key, at, gap) for area, key in unit.needs]
            for at, (gap, unit) in enumerate(zip(self.gaps, self.units, strict=True))
        ]
        self.queue = self._queue()
        self.strands = {name: Schedule(each, bases, self.rows) for name, each in units.strands.items()}
        self.left: dict[Key, int] = {}
        """The spill of what a unit made, by its key."""
        self._next = 0
        self._ended: deque[int] = deque()
        self._body: Key = None
        self._known: dict[Hashable, _Kind] = {}
        self._moves: dict[tuple[str, Hashable], list[int]] = {}
        """Recipes of the transfers that are equal but for their places, by area and key; results have no area."""
        self._computed: dict[int, int] = {}
        """The last step that computed, by array; vector steps count as the first array's."""
        self._fill = 0
        self._held: tuple[int, ...] = ()
        """Steps that the first preload of every array waits for: those ahead of a step of a pipeline, or of words with
        other elements in use.
        """
        self._started = set[int]()
        """Arrays that have had this preload."""
        self._begun: tuple[int, ...] = ()
        """Steps that must end before any slot is used."""

    @property
    def planned(self) -> StepCounts:
        """Numbers of the steps that `run` will write."""
        passes, steps = sum(unit.passes for unit in self.units), sum(unit.steps for unit in self.units)
        fills = sum(each.piece.steps for entries in self.queue.values() for each in entries)
        transfers = fills + sum(unit.leaves >= 0 for unit in self.units)
        strands = [each.planned for each in self.strands.values()]
        return StepCounts(passes, transfers + steps + sum(each.transfers for each in strands))

    def run(self) -> Rows:
        """Write all steps: in each gap loads, then a spill whose lag is over, then late loads; behind the gap the acts
        of its unit.
        """
        if self.of.before:
            for strand in self.strands.values():
                strand.until(len(strand.units))
                self._begun = (*self._begun, *[*strand.left.values()][-1:])
        self.until(len(self.units))
        while self._ended:
            self._spill(self._ended.popleft())
        return self.rows.rows()

    def until(self, number: int) -> None:
        """Write the units ahead of unit `number`."""
        policy, gaps = self.policy, self.gaps
        for at in range(self._next, number):
            unit, gap = self.units[at], gaps[at]
            entries = self.queue.pop(at, ())
            late = sum(each.unit == LAST for each in entries) if entries and entries[-1].unit == LAST else 0
            for entry in entries[: len(entries) - late]:
                # Loads come before the spill, so that a spill that waits for results does not keep the next unit
                # waiting.
                self._bring(entry)
            while unit.gap and policy.lag and self._ended and gaps[self._ended[0]] + policy.lag <= gap:
                self._spill(self._ended.popleft())
            for entry in entries[len(entries) - late :] if late else ():
                self._bring(entry)
            self._work(at, unit)
            if unit.leaves >= 0:
                self._ended.append(at)
            if not policy.lag and self._ended:
                self._spill(self._ended.popleft())
        self._next = max(self._next, number)

    def _queue(self) -> dict[int, list[_Entry]]:
        """Pieces by the unit behind the gap in which they are brought, sorted by their first user, their earliness and
        their area.
        """
        policy, queue = self.policy, defaultdict[int, list[_Entry]](list)
        rings, whole, grows = self.rings, policy.whole, policy.grows
        behind = {gap: at for at, gap in reversed([*enumerate(self.gaps)])}
        for name in policy.order:
            area = rings[name].area
            # Loads come again, for other column folds and other blocks.
            where, cut = area.gaps or policy.gaps, cache(area.cut) if area.cut else None
            for tenancy in rings[name].all if cut else ():
                assert cut
                before, first = tenancy.before, tenancy.first
                gaps = where(before.last if before else -1, first, tenancy.ahead)
                pieces = cut(tenancy.key, len(gaps), grows and not first)
                wanted = LAST if area.late else first
                for piece, gap in zip(pieces, spread(len(pieces), gaps), strict=True):
                    at = behind[gap] if whole or gap != first else tenancy.unit
                    held: Sequence[Tenancy] = ()
                    if piece.needs:
                        needs = [each for each in piece.needs if each.area in rings]
                        held = [rings[need].wanted(key, at, gap, tenancy.ahead) for need, key in needs]
                    queue[at].append(_Entry(wanted, piece.early, tenancy, piece, held))
        # Sorting is stable, so pieces that are wanted at the same time stay in the order of areas.
        for entries in () if policy.by_area else queue.values():
            if len(entries) > 1:
                entries.sort(key=_first_wanted)
        return queue

    def brings_across(self, loops: Sequence[Sequence[int]]) -> bool:
        """Whether a load may be brought in gaps on both sides of one of the given gaps, and beyond a turn of the loop
        around it: where it is brought then depends on how long the loop is. Each loop has three gaps: the middle one,
        and those ahead of it and behind it where a turn begins and another one ends.
        """
        first, last, policy = list[int](), list[int](), self.policy
        for ring in self.rings.values():
            where = ring.area.gaps or policy.gaps
            for each in ring.all if ring.area.cut else ():
                gaps = where(each.before.last if each.before else -1, each.first, each.ahead)
                first.append(gaps[0])
                last.append(gaps[-1])
        firsts, lasts = np.array(first), np.array(last)
        return any(
            bool(((firsts < gap) & (lasts >= gap) & ((firsts < ahead) | (lasts >= behind))).any())
            for ahead, gap, behind in loops
        )

    def _left(self, strand: str, key: Key) -> int:
        """The spill of a unit's result. Its strand is run that far and one unit further, so that the bus need not wait
        for it.
        """
        found = self.strands.get(strand, self)
        if found is not self:
            ahead = bool(found.left)
            while key not in found.left:
                found.until(found._next + 1)
            if ahead and next(reversed(found.left)) == key:
                found.until(min(found._next + 1, len(found.units)))
        return found.left[key]

    def _slots(self, firsts: Sequence[int]) -> tuple[int, Sequence[int]]:
        """The place of slots that begin at these words among those of all rows, and the addresses by which acts name
        them: equal acts in other slots are then equal.
        """
        if self.of.moves_words:
            return 0, firsts
        return self.rows.slots(firsts), _in_slots(len(firsts))

    def _bring(self, entry: _Entry) -> None:
        """Bring a piece, by transfers or by vector steps that compute it."""
        _, _, tenancy, piece, held = entry
        slots, names = self._slots([tenancy.base, *[each.base for each in held]] if held else [tenancy.base])
        brought, origin = self._brought(tenancy.area, piece, names)
        if not brought:
            return
        rows, there, delay = self.rows, tenancy.there, 0
        waits = tenancy.freed() if tenancy.before else self._begun
        for other in held:
            waits = (*other.made(None), *waits)
            delay += other.area.ready(other.key) if other.area.ready and not other.used else 0
        for area, key in piece.needs[len(held) :]:
            waits = (*waits, self._left(area, key))
        for number, each in enumerate(brought):
            if isinstance(each, int):
                at = rows.write(each, waits, slots, origin=origin)
            else:
                at, delay = rows.write(rows.recipe(each), waits, slots, delay=delay), 0
            # Transfers of one piece count as an atom each, so that a reader of the whole piece waits for every one.
            # Of a chain the last one counts: words cross the port transfer by transfer, so it need not wait for others.
            for atom in piece.atoms if not number or piece.chained else (-number,):
                there[atom] = at
        for other in held:
            other.used["dma" if isinstance(brought[-1], int) else "vector", 0] = at

    def _brought(self, area: Area, piece: Piece, names: Sequence[int]) -> tuple[Sequence[int | Vector], int]:
        """What brings a piece: recipes of its transfers, or vector work; and the origin of the elements."""
        alike, rows = piece.alike, self.rows
        if alike is None or self.of.moves_words:
            return [
                rows.alone(each.by(area.fill)) if isinstance(each, Moves) else each for each in piece.brings(*names)
            ], -1
        found = self._moves.get(key := (area.name, alike.key))
        if found is None:
            away = [-each for each in alike.origin]
            found = self._moves[key] = [
                rows.alone(each.by(area.fill).elements_from(away))
                for each in piece.brings(*names)
                if isinstance(each, Moves)
            ]
        return found, rows.origin(alike.origin) if found else -1

    def _spill(self, at: int) -> None:
        unit, rows = self.units[at], self.rows
        tenancy = self.tenancies[at][unit.leaves]
        made = (*tenancy.made(None), *(self._computed.values() if self.policy.pipelined else ()))
        mine = self.tenancies[at]
        slots, names = self._slots([each.base for each in mine])
        for place in unit.beside:
            made = (*made, *mine[place].made(None))
            mine[place].used["dma", 0] = len(rows)
        if unit.tallies >= 0:
            mine[unit.tallies].written = len(rows)
        tenancy.used["dma", 0] = self.left[unit.makes] = len(rows)
        alike = None if self.of.moves_words else self.of.left_alike(unit)
        found, origin = self._moves.get(("", alike.key)) if alike else None, -1
        if found is None:
            steps = self.of.leaving(self.of.worked(unit, names, self.of.spill(unit, names[unit.leaves])))
            if alike:
                away = [-each for each in alike.origin]
                steps = [each.elements_from(away) for each in steps if isinstance(each, Transfer)]
            found = [*map(rows.alone, steps)]
        if alike:
            self._moves["", alike.key], origin = found, rows.origin(alike.origin)
        for each in found:
            rows.write(each, made, slots, origin=origin)

    def _work(self, at: int, unit: Unit) -> None:
        """Write the acts of a unit; waits of its body and its new tenancies go to the first act."""
        mine = self.tenancies[at]
        slots, names = self._slots([each.base for each in mine])
        kind = self._kind(unit, names)
        array = self._array_of(unit, kind, mine)
        # A new body is a new turn of the loop, which costs cycles and may have to wait for the end of the one before.
        begins = unit.body is not None and unit.body != self._body
        if begins:
            self._body = unit.body
        delay, drained = self._readied(at, unit, array, begins)
        drained, whole = self._barriers(at, unit, array, begins, drained)
        serial = tuple(self._computed.values()) if self.policy.serial else ()
        steady = None if serial else kind.steady
        for act, recipes in kind.acts[: len(kind.acts) - steady.passes] if steady else kind.acts:
            if isinstance(act, Pass):
                self._pass(act, recipes, mine, slots, array, unit.fill, delay, drained, (*whole, *serial))
                drained = whole = ()
            else:
                self._vector(act, recipes, mine, slots, delay)
            delay = 0
        if steady:
            self._go_on(steady, mine, slots, array)

    def _array_of(self, unit: Unit, kind: _Kind, mine: list[Tenancy]) -> int:
        """The array of a unit: its own, or that whose turn it is to take the sums of its first pass."""
        if unit.array >= 0 or self.policy.arrays == 1:
            return max(unit.array, 0)
        return next((mine[act.sums].number for act, _ in kind.acts if isinstance(act, Pass)), 0) % self.policy.arrays

    def _readied(self, at: int, unit: Unit, array: int, begins: bool) -> tuple[int, tuple[int, ...]]:
        """Cycles ahead of a unit: of a turn of the loop, and to make words ready that it is the first to use; and the
        steps of other arrays that have had its words made ready.
        """
        policy, gap, ahead = self.policy, self.gaps[at], unit.ahead if begins else 0
        delay, steps = policy.turn + unit.idle + ahead if begins else 0, tuple[int, ...]()
        for each in self.tenancies[at]:
            if each.area.ready and (begins if policy.pipelined else each.first == gap):
                wait = each.area.ready(each.key)
                delay += wait
                each.begun = (len(self.rows), array) if wait or ahead else None
            elif each.begun and each.begun[1] != array:
                steps = *steps, each.begun[0]
        return delay, steps

    def _barriers(
        self, at: int, unit: Unit, array: int, begins: bool, readied: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Steps that the first preload of a unit waits for, beside those that made its words ready; and all loads that
        its first stream waits for where a body waits for the `whole`.
        """
        policy, last, whole = self.policy, tuple(self._computed.values()), tuple[int, ...]()
        drained = (*last, *readied) if begins and policy.drains else readied
        if begins and policy.whole:
            # Units without a gap of their own begin with the first of them.
            gap = self.gaps[at]
            behind = takewhile(lambda other: self.gaps[other] == gap, range(at, len(self.units)))
            held = (each for other in behind for each in self.tenancies[other] if not each.area.late)
            whole = tuple(sorted({step for each in held for step in each.there.values()}))
        # All arrays are through with words of one kind before any of them begins with others.
        changes = unit.passes > 0 and unit.fill != self._fill
        if changes:
            self._fill = unit.fill
        if changes or (begins and policy.pipelined):
            self._held = (*(last if changes else drained), *(whole if policy.pipelined else ()))
            self._started.clear()
        if unit.passes and array not in self._started:
            drained = (*drained, *self._held)
            self._started.add(array)
        return drained, whole

    def _kind(self, unit: Unit, names: Sequence[int]) -> _Kind:
        """The acts of a unit, with the numbers of their recipes: those of the first unit that is like it."""
        key = self.of.alike(unit)
        found = self._known.get(key) if key is not None else None
        if found is None:
            found = _Kind([(act, {}) for act in self.of.acts(unit, names)])
            if key is not None:
                self._known[key] = found
        elif not found.known:
            # The acts of the first unit have been written, and their recipes are there.
            found.steady, found.known = _steady(found.acts), True
        return found

    def _pass(
        self, act: Pass, recipes: _Recipes, mine: list[Tenancy], slots: int, array: int, fill: int, delay: int,
        drained: tuple[int, ...], others: tuple[int, ...],
    ) -> None:  # fmt: skip
        weights, data, sums, begins, *_, bias = act
        rows, loaded, into = self.rows, mine[weights[0]], mine[sums]
        to_load, waits = loaded.made(weights[1]), others
        if drained:
            to_load += drained
        if bias:
            to_load += mine[bias.read.need].made(bias.read.atoms)
        if begins:
            waits = into.freed() + others
        if data:
            read = mine[data[0]]
            waits = read.made(data[1]) + waits
            read.used["array", array] = len(rows) + 1
        if begins and into.there:
            # Sums begin with the values that were brought to their place, so the pass adds to them.
            waits, begins = (*waits, *into.there.values()), False
        if begins not in recipes:
            size, words = (act.rows, act.cols), (act.result, act.words)
            recipes[begins] = (
                rows.recipe(Preload((), act.base, act.weight_words, *size, 0, bias.word if bias else None)),
                rows.recipe(Stream((), -1, act.reads, *words, *size, not begins, act.finish, fill)),
            )
        load, stream = recipes[begins]
        at = rows.write(load, to_load, slots, array, delay=delay)
        rows.write(stream, waits, slots, array, at)
        loaded.used["weights", array] = at
        into.written = self._computed[array] = at + 1

    def _go_on(self, steady: _SteadyPasses, mine: list[Tenancy], slots: int, array: int) -> None:
        """Write passes that go on with the sums of a pass ahead, each waiting for its own words alone."""
        loaded, read, into = (mine[need] for need in steady.needs)
        made = {atoms: read.made(atoms) for atoms in steady.data}
        waits = [each for own, atoms in steady.atoms for each in (loaded.made(own), made[atoms])]
        last = self.rows.write_passes(steady.recipes, waits, slots, array)
        loaded.used["weights", array] = last
        into.written = self._computed[array] = read.used["array", array] = last + 1

    def _vector(self, act: VectorWork, recipes: _Recipes, mine: list[Tenancy], slots: int, delay: int) -> None:
        waits = tuple(step for need, atoms in act.reads for step in mine[need].made(atoms))
        if act.begins:
            waits = (*waits, *mine[act.writes].freed())
        # A serial machine has no overlap between computing steps.
        if self.policy.serial:
            waits = (*waits, *self._computed.values())
        rows = self.rows
        if not recipes:
            recipes[act.begins] = tuple(map(rows.recipe, act.steps))
        for recipe in recipes[act.begins]:
            rows.write(recipe, waits, slots, delay=delay)
            delay = 0
        last = self._computed[0] = len(rows) - 1
        for need, _ in act.reads:
            mine[need].used["vector", 0] = last
        if act.writes >= 0:
            mine[act.writes].written = last


def planned(units: Units) -> StepCounts:
    """Numbers of the steps of a layer's Program, with the elements that it writes and reads again."""
    steps = units.counted() or Schedule(units, link(units)).planned
    return steps._replace(intermediates=units.intermediates)


def program_of(units: Units, first: int = 0) -> Program:
    """The Program of a layer by itself, with its words from `first` on."""
    bases = link(units, first)
    held, banked = buffers(units, bases), buffers(units, bases, "banks")
    rows = _by_turns(units, bases) or Schedule(units, bases).run()
    return Program(units.tensors, held, rows, units.word_fill, banked, **units.more)


def _by_turns(units: Units, bases: Bases) -> Rows | None:
    """The steps of units with long loops, of which most turns are copied; None where turns are not alike."""
    turns, pairs = kept(units.turns)
    if pairs < 1:
        return None
    schedule = Schedule(units.of_turns(turns), bases)
    every = [units.turn_of(unit) for unit in schedule.units]
    starts = [at for at, turn in enumerate(every) if not at or turn != every[at - 1]]
    loops = [starts[at + TOGETHER : at + 5 * TOGETHER : TOGETHER] for at in range(0, len(starts), len(turns))]
    if schedule.brings_across([[schedule.gaps[at] for at in loop[1:]] for loop in loops]):
        return None
    places = dict[int, Lengths]()
    for at in chain.from_iterable(loops):
        schedule.until(at)
        places[at] = schedule.rows.lengths
    return with_turns(schedule.run(), [Loop(*map(places.__getitem__, loop)) for loop in loops], pairs)
