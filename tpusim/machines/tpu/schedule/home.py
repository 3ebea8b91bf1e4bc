"""A tensor's home on chip, and a layer as units that read operands at home or leave their outcome there.

Words of a home are in the order that they would have in HBM: channels that share a word of all lanes outermost, then
rows, columns and images. Words at home are neither filled nor spilled. Units and acts are those of the layer, in the
same order, with addresses that lead home. If a step could not reach its words there in one go, nothing stays
(ScatteredError).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import (
    PADDING,
    AddressPattern,
    AddressTable,
    Counter,
    Counters,
    Feed,
    PickedWords,
    Pointers,
    in_slot,
    walked,
)
from tpusim.machines.tpu.program.moves import ends_of, regions_of
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.rows import Rows
from tpusim.machines.tpu.program.steps import Step, Stream, Vector
from tpusim.machines.tpu.program.tensors import LANES
from tpusim.machines.tpu.program.transfers import Keep, Part, Spill
from tpusim.machines.tpu.schedule.scheduler import APART, Bases, Schedule, buffers, link
from tpusim.machines.tpu.schedule.units import Act, Area, Key, Moves, Pass, Piece, SlotNeed, Unit, Units
from tpusim.network.ops.op import OFMAP

_Words = NDArray[np.int64]


class WordForm(NamedTuple):
    """The common form of all words of a tensor: the elements that a word holds, relative to its first."""

    per_word: int
    inner: tuple[tuple[int, tuple[int, ...]], ...]


def held_by(part: Part, shape: Sequence[int]) -> tuple[WordForm, _Words] | None:
    """The form of a part's words, and, in order, (flat index of the first element, first lane, lanes) of each word.

    Each of these lanes holds a channel. None where words are cut in another way, reach beyond the tensor or have
    copies.
    """
    counts = [len(each.coordinates) for each in part.items]
    # The first of the counters that make up a word.
    cut = next((at for at in range(len(counts) + 1) if prod(counts[at:]) == part.per_word), None)
    if cut is None or len(part.first_lanes) != 1 or len(part.lane) != 1:
        return None
    (axis, channels), outer, inner = part.lane[0], part.items[:cut], part.items[cut:]
    if axis != 0 or not isinstance(channels, range) or channels.step != 1:
        return None
    ends = ends_of(part.lane, part.items, len(shape))
    if any(first < 0 or last >= size for (first, last), size in zip(ends, shape, strict=True)):
        return None
    strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
    elements = np.full(1, channels[0] * strides[0] + sum(each.coordinates[0] * strides[each.axis] for each in inner))
    for each in outer:
        elements = np.add.outer(elements, np.array(each.coordinates) * strides[each.axis]).ravel()
    steps = ((axis, coordinates) for axis, coordinates in inner if len(coordinates) > 1)
    form = WordForm(part.per_word, tuple((axis, tuple(each - at[0] for each in at)) for axis, at in steps))
    return form, np.stack(
        [elements, np.full_like(elements, part.first_lanes[0]), np.full_like(elements, part.lanes)], 1
    )


def words_of(part: Part) -> _Words | None:
    """Addresses of a part's words, in order; None where they differ between lanes."""
    if part.feed is None:
        return np.arange(part.base, part.base + part.words)
    if len(part.feed.groups) != 1 or part.feed.table or part.feed.picks:
        return None
    stored, addresses = walked(part.feed.groups[0].pattern)
    return addresses if stored.all() else None


@dataclass(frozen=True, eq=False)
class Home:
    """Words of a tensor on chip, in the order of their elements; `held` is a table as made by `held_by`."""

    shape: tuple[int, ...]
    form: WordForm
    held: _Words

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same elements in the same words."""
        return isinstance(other, Home) and (
            (self.shape, self.form) == (other.shape, other.form) and np.array_equal(self.held, other.held)
        )

    __hash__ = object.__hash__

    @property
    def words(self) -> int:
        """Words of each lane."""
        return len(self.held)

    @cached_property
    def widest(self) -> int:
        """Number of lanes, from lane 0 on, that hold part of the tensor."""
        _, first, lanes = self.held.T
        return int((first + lanes).max())

    def find(self, part: Part) -> _Words | None:
        """Places at home of the words that hold a part's elements, in the part's order; None where one is missing."""
        found = held_by(part, self.shape)
        if found is None or found[0] != self.form:
            return None
        _, held = found
        at = np.searchsorted(self.held[:, 0], held[:, 0])
        return at if (at < self.words).all() and np.array_equal(self.held[at], held) else None


def home_of(units: Units) -> Home | None:
    """A home for the outcome of units that spill all of it, once; None where its words are cut in another way."""
    tensor = next(each for each in units.tensors if each.name == OFMAP)
    if tensor.scale != 1 or tensor.lost or tensor.number_bytes or tensor.exchanged:
        return None
    left = (units.spill(each, 0) for each in units.units() if each.leaves >= 0)
    found = [held_by(part, tensor.shape) for moves in left if moves.tensor.name == OFMAP for part in moves.parts]
    whole = [each for each in found if each is not None]
    if not whole or len(whole) < len(found) or len({form for form, _ in whole}) != 1:
        return None
    form, held = whole[0][0], np.concatenate([words for _, words in whole])
    held = held[np.argsort(held[:, 0])]
    # Channels that share a word of all lanes must be in the same lanes throughout: a home has one place for each word.
    of_channel = prod(tensor.shape[1:])
    folds = np.unique(np.stack([held[:, 0] // of_channel, *held.T[1:]], 1), axis=0)
    if (np.diff(folds[:, 0]) == 0).any() or folds[:, 2].sum() != tensor.shape[0]:
        return None
    # Each word must be there once, with all that the first lane of each fold holds: a reader finds the whole outcome.
    if (np.diff(held[:, 0]) == 0).any() or len(held) * form.per_word != len(folds) * of_channel:
        return None
    return Home(tensor.shape, form, held)


class ScatteredError(Exception):
    """Raised when words that a step reaches in one go would be scattered at home."""


def reached(pattern: AddressPattern, at: Callable[[_Words], _Words]) -> AddressPattern:
    """The pattern that walks the same words at their places by `at`. Raises ScatteredError if no pattern does."""
    if isinstance(pattern, Pointers | PickedWords):
        raise ScatteredError
    stored, addresses = walked(pattern)
    if not stored.any():
        return pattern
    here = addresses[stored]
    there = at(here)
    # The common case, a move by a constant, keeps the pattern short.
    if (there - here == there[0] - here[0]).all():
        return pattern.moved(int(there[0] - here[0]))
    if isinstance(pattern, AddressTable):
        addresses = np.full(len(addresses), PADDING)
        addresses[stored] = there
        return AddressTable(tuple(addresses.tolist()))
    # Padding leaves gaps, so that only the strides of the former counters can be fitted.
    moved = _nested(there) if stored.all() else _with_strides(pattern, stored, there)
    inside, addresses = walked(moved)
    if len(addresses) != len(stored) or not np.array_equal(addresses[inside], there):
        raise ScatteredError
    return moved


def _nested(there: _Words) -> Counters:
    """Counters that would walk `there`; the caller checks that they do."""
    counters: list[Counter] = []
    # The longest even run becomes the fastest counter; its starts are walked by the next one.
    left = there
    while len(left) > 1:
        apart = np.diff(left)
        length = int(np.append(np.flatnonzero(apart != apart[0]), len(apart))[0]) + 1
        counters.append(Counter(length, 0, 1, length, int(apart[0])))
        left = left[::length]
    return Counters(int(there[0]), tuple(reversed(counters)))


def _with_strides(pattern: AddressPattern, stored: NDArray[np.bool_], there: _Words) -> Counters:
    """Counters of a pattern with strides that would walk `there`; the caller checks that they do."""
    if not isinstance(pattern, Counters) or pattern.window is not None:
        raise ScatteredError
    at = np.full(len(stored), PADDING)
    at[stored] = there
    walk = at.reshape([each.length for each in pattern.counters])
    first = tuple(each.inside.start for each in pattern.counters)
    found = [
        _strided(each, np.moveaxis(walk, axis, -1)[(*first[:axis], *first[axis + 1 :])])
        for axis, each in enumerate(pattern.counters)
    ]
    base = int(walk[first]) - sum(each.offset(count) for each, count in zip(found, first, strict=True))
    return Counters(base, tuple(found))


def _strided(counter: Counter, at: _Words) -> Counter:
    """The counter with the stride between its first two counts, which stand `at`."""
    counts = counter.inside
    if len(counts) < 2:
        return counter._replace(stride=0, wrap=1, jump=0)
    apart = int(at[counts[1]] - at[counts[0]])
    return counter._replace(stride=apart // counter.step, wrap=1, jump=0)


# ---- layers that have some of their words at home


@dataclass(frozen=True)
class ResidentTensors:
    """The tensors that stay on chip for a layer.

    Attributes:
        read: homes of the operands that the layer reads on chip, by tensor.
        home: home of the outcome, if that stays.
        over: the tensor of `read` whose words the outcome overwrites, each once it has been read.
    """

    read: Mapping[str, Home]
    home: Home | None = None
    over: str = ""

    @property
    def homes(self) -> dict[str, Home]:
        """All homes, by the layer's tensors."""
        return {**self.read, **({OFMAP: self.home} if self.home else {})}


@dataclass(frozen=True)
class HomedLayer:
    """A layer with tensors at home; areas in `empty` then hold nothing, and a lane needs `words` more words.

    `rows` are its steps, where the outcome does not go to HBM. Their addresses are relative to areas, in the order of
    `link`, and then to homes, so the steps are the same wherever these are.
    """

    units: Units
    stays: ResidentTensors
    rows: Rows
    empty: frozenset[str]
    words: int

    @cached_property
    def _spilled(self) -> Rows:
        """The steps, where the outcome goes to HBM, too."""
        rows, *_ = _rows(self.units, self.stays, spilled=True)
        return rows

    def at(self, own: int, homes: Mapping[str, int], spilled: bool = False) -> Program:
        """The Program with its own words from `own` on, and homes that begin at `homes`; `spilled` sends the outcome to
        HBM, too.
        """
        units, bases = self.units, link(self.units, own, self.empty)
        slots = [*(bases[name] for name in link(units)), *(homes[name] for name in self.stays.homes)]
        rows = (self._spilled if spilled else self.rows).placed(slots)
        # Keyed by address: an outcome may take the words of an operand, and both are then one buffer.
        kept = {homes[name]: Buffer(name, homes[name], home.words, home.widest)
                for name, home in self.stays.homes.items()}  # fmt: skip
        held = *buffers(units, bases), *kept.values()
        program = Program(units.tensors, held, rows, units.word_fill, buffers(units, bases, "banks"), **units.more)
        return program.lying(self.stays.read, LANES)


def settled(units: Units, stays: ResidentTensors) -> HomedLayer:
    """A layer whose tensors stay. Raises ScatteredError where they cannot."""
    rows, at_home, places = _rows(units, stays, spilled=False)
    if stays.over:
        home = range(places[stays.over], places[stays.over] + APART)
        for step in rows.recipes:
            # A step may overwrite words of that home before another step has read them, so only steps that read in
            # place may use it.
            mine = (each for each in step.operands if _meets(each, home)) if isinstance(step, Vector) else ()
            walks = isinstance(step, Vector) and all(each == step.writes for each in mine)
            adds = isinstance(step, Stream) and step.accumulate and not _meets(step.reads, home)
            reads = any(each and each.start in home for each in step.words_read)
            if reads and not (walks or adds or isinstance(step, Keep | Spill)):
                raise ScatteredError
    empty = frozenset(at_home.empty)
    left = buffers(units, link(units, empty=empty))
    words = max((each.base + each.words for each in left), default=0)
    return HomedLayer(units, stays, rows, empty, words)


def _rows(units: Units, stays: ResidentTensors, spilled: bool) -> tuple[Rows, _HomeUnits, dict[str, int]]:
    """The steps of a layer at home, its units, and the first words of its homes, as addresses relative to slots."""
    areas = link(units)
    bases = {name: in_slot(number) for number, name in enumerate(areas)}
    places = {name: in_slot(number) for number, name in enumerate(stays.homes, len(areas))}
    if stays.over:
        places[OFMAP] = places[stays.over]
    at_home = _HomeUnits(units, stays, places, bases, spilled)
    return Schedule(at_home, bases).run(), at_home, places


def _meets(feed: Feed, home: range) -> bool:
    return any(each and each.start in home for each in feed.extents)


class _HomePlaces:
    """Places where the words of an area stand.

    Attributes:
        home: whether any word has ever been at home.
        used: whether any word has been used at its own place.
    """

    def __init__(self, area: Area, base: int) -> None:
        self.name, self.base, self.slot = area.name, base, area.words
        self.places = base + np.arange(area.words * area.count)
        self.home = self.used = False

    def stand(self, words: _Words, places: _Words) -> None:
        """Move some of the words to other places."""
        self.home = True
        self.places[words - self.base] = places

    def first(self, words: range) -> int:
        """The place of the first of consecutive words; they must be consecutive there, too."""
        if not self.home:
            self.used = True
            return words.start
        there = self._at(np.arange(words.start, words.stop))
        if not np.array_equal(there, np.arange(there[0], there[0] + len(there))):
            raise ScatteredError
        return int(there[0])

    def pattern(self, pattern: AddressPattern) -> AddressPattern:
        """The pattern that walks the words at their places."""
        if not self.home:
            self.used = True
            return pattern
        return reached(pattern, self._at)

    def _at(self, words: _Words) -> _Words:
        there = self.places[words - self.base]
        self.used = self.used or bool((there == words).any())
        return there


class _HomeUnits(Units):
    """Units whose areas have words at home.

    `places` has the first words of homes, by tensor. With `spilled`, the outcome goes to HBM, too. Slots are asked for
    in the order of steps, so that each word stands where it was last left.
    """

    moves_words = True

    def __init__(
        self, of: Units, stays: ResidentTensors, places: Mapping[str, int], bases: Bases, spilled: bool
    ) -> None:
        self.of, self.stays, self.places, self.spilled = of, stays, places, spilled
        self.word_fill, self.before = of.word_fill, of.before
        self.tensors, self.policy = of.tensors, of.policy
        read = replace(stays, home=None)
        self.strands: Mapping[str, _HomeUnits] = {
            name: _HomeUnits(each, read, places, bases, spilled) for name, each in of.strands.items()
        }
        self._units = [*of.units()]
        self._rings = sorted((_HomePlaces(each, bases[each.name]) for each in of.areas), key=lambda ring: ring.base)
        self._bases = [each.base for each in self._rings]
        self._leaving = {unit.needs[unit.leaves]: unit for unit in self._units if unit.leaves >= 0}
        self._kept: dict[int, tuple[SlotNeed | None, Moves | None]] = {}
        """By the first word of a slot: the need whose outcome it will hold, and the moves that keep the outcome."""
        self._added, self._others = set[int](), set[int]()
        """First words of slots at home that sums begin with, and of slots at home that hold other tensors."""

    @property
    def empty(self) -> Iterator[str]:
        """Areas none of whose words has been used."""
        yield from (each.name for each in self._rings if each.home and not each.used)
        for strand in self.strands.values():
            yield from strand.empty

    @property
    def more(self) -> Mapping[str, Any]:
        return self.of.more

    @property
    def areas(self) -> tuple[Area, ...]:
        return tuple(replace(each, cut=partial(self._cut, each)) if each.cut else each for each in self.of.areas)

    def units(self) -> Sequence[Unit]:
        return self._units

    # ---- what is brought

    def _cut(self, area: Area, key: Key, gaps: int, grows: bool) -> list[Piece]:
        assert area.cut is not None
        need = SlotNeed(area.name, key)
        return [
            each._replace(brings=partial(self._brought, each, need), alike=None) for each in area.cut(key, gaps, grows)
        ]

    def _brought(self, piece: Piece, need: SlotNeed, base: int, *others: int) -> Iterator[Moves | Vector]:
        """Parts of a piece that are not at home and must be brought."""
        results = self._results(need, base)
        for each in piece.brings(base, *others):
            # What is worked on as it comes or goes must come and go.
            if isinstance(each, Moves) and each.work:
                raise ScatteredError
            if isinstance(each, Vector):
                yield self._compute(each)
            elif home := self.stays.read.get(each.tensor.name):
                (self._added if results else self._others).add(base)
                for part in each.parts:
                    self._found(part, home, self.places[each.tensor.name], results)
            else:
                yield each._replace(parts=tuple(self._filled(part, results) for part in each.parts))

    def _found(self, part: Part, home: Home, place: int, results: bool) -> None:
        """Let words that a fill would bring stand at home; words that sums begin with must be at the very place of the
        sums.
        """
        found = home.find(part)
        if found is None:
            raise ScatteredError
        ring, words = self._ring(part.base), np.arange(part.base, part.base + part.words)
        if results and not np.array_equal(ring.places[words - ring.base], place + found):
            raise ScatteredError
        ring.stand(words, place + found)

    def _filled(self, part: Part, results: bool) -> Part:
        ring, words = self._ring(part.base), np.arange(part.base, part.base + part.words)
        if ring.home and not results:
            ring.stand(words, words)
        return part._replace(base=self._first(part.base, part.words))

    # ---- what is done

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Act]:
        for need, base in zip(unit.needs, bases, strict=True):
            self._results(need, base)
        for act in self.of.acts(unit, bases):
            written = act.sums if isinstance(act, Pass) else act.writes
            if written >= 0 and bases[written] in self._others:
                raise ScatteredError
            if isinstance(act, Pass):
                yield act._replace(
                    # An operand that the sums begin with is not brought if it is at home, so the pass adds to it.
                    begins=act.begins and bases[act.sums] not in self._added,
                    base=self._first(act.base, act.weight_words),
                    reads=self._feed(act.reads),
                    result=self._first(act.result, act.words),
                )
            else:
                yield act._replace(steps=[self._compute(each) for each in act.steps])

    def _compute(self, step: Vector) -> Vector:
        scalars = step.scalars._replace(base=self._first(step.scalars.base, step.scalars.words))
        operands = tuple(self._feed(each) for each in step.operands)
        return replace(step, operands=operands, writes=self._feed(step.writes), scalars=scalars)

    # ---- what is left

    def spill(self, unit: Unit, base: int) -> Moves:
        _, kept = self._kept.get(base, (None, None))
        if kept is not None:
            return kept
        moves = self.of.spill(unit, base)
        parts = (
            part._replace(base=self._first(part.base, part.words))
            if part.feed is None
            else part._replace(feed=self._feed(part.feed))
            for part in moves.parts
        )
        return moves._replace(parts=tuple(parts))

    def worked(self, unit: Unit, bases: Sequence[int], moves: Moves) -> Moves:
        """The moves as they are. Raises ScatteredError for what is worked on as it goes, and so must go."""
        if self.of.worked(unit, bases, moves).work:
            raise ScatteredError
        return moves

    def leaving(self, moves: Moves) -> Iterator[Step]:
        keeps = self.stays.home is not None and moves.tensor.name == OFMAP
        if keeps:
            yield Keep((), moves.tensor, moves.parts)
        if not keeps or self.spilled:
            yield moves.by(Spill)

    def _results(self, need: SlotNeed, base: int) -> bool:
        """Whether the slot is to hold part of the outcome; from then on its words are at home."""
        if not self.stays.home or need not in self._leaving:
            return False
        last, kept = self._kept.get(base, (None, None))
        if last != need:
            moves = self.of.spill(self._leaving[need], base)
            kept = self._at_home(moves, base, self.stays.home) if moves.tensor.name == OFMAP else None
            self._kept[base] = need, kept
        return kept is not None

    def _at_home(self, moves: Moves, base: int, home: Home) -> Moves:
        """The moves of the outcome, with parts at its home."""
        ring, parts, slot = self._ring(base), list[Part](), base + np.arange(self._ring(base).slot)
        ring.stand(slot, slot)
        for part in moves.parts:
            words, found = words_of(part), home.find(part)
            if words is None or found is None:
                raise ScatteredError
            there = self.places[OFMAP] + found
            ring.stand(words, there)
            parts += _runs(part._replace(feed=None), there)
        # HBM takes the same rectangles, however many parts the words now come in.
        regions = regions_of(moves.by(Spill)) if self.spilled else None
        return moves._replace(parts=tuple(parts), regions=regions)

    # ---- where words stand

    def _ring(self, word: int) -> _HomePlaces:
        return self._rings[bisect_right(self._bases, word) - 1]

    def _first(self, first: int, words: int) -> int:
        return self._ring(first).first(range(first, first + words)) if words else first

    def _feed(self, feed: Feed) -> Feed:
        groups = (
            group._replace(pattern=self._ring(extent.start).pattern(group.pattern)) if extent else group
            for group in feed.groups
            for extent in (group.pattern.extent,)
        )
        return Feed(tuple(groups))


def _runs(part: Part, at: _Words) -> Iterator[Part]:
    """Pieces of a part, each of words that follow one another at their new place."""
    if np.array_equal(at, np.arange(at[0], at[0] + len(at))):
        yield part._replace(base=int(at[0]))
        return
    axis = next(axis for axis, each in enumerate(part.items) if len(each.coordinates) > 1)
    count = len(part.items[axis].coordinates)
    for each, there in enumerate(at.reshape(count, -1)):
        items = (*part.items[:axis], part.items[axis].of(each), *part.items[axis + 1 :])
        yield from _runs(part._replace(items=items), there)
