"""The steps of a Program as a table: a row says what is done, by number, where, and behind which steps.

What is done is a *recipe*: a step without waits, whose addresses are relative to slots, said once however often it is
done. Where it is done is the slots of the row: the first word of each area that the recipe touches. A step with its
waits and addresses is made of its row only when somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, repeat
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tpusim.machines.tpu.program.addresses import SlotPlaces, places_of
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import KINDS, Transfer

ROW = np.dtype(
    [
        ("recipe", "i4"), ("array", "i4"), ("preload", "i4"), ("delay", "i4"), ("slots", "i4"), ("origin", "i4"),
        ("waits", "i4"),
    ]
)  # fmt: skip
"""A row:

* `recipe`: number of its recipe.
* `array`: array with weights of its own; -1 for steps of other units.
* `preload`: row of the preload of a pass; -1 for other steps.
* `delay`: cycles by which it begins late.
* `slots`: place in `Rows.slots` of its first slot; -1 where no address is relative to one.
* `origin`: place in `Rows.origins` of the element to which the elements of a transfer are relative; -1 for none.
* `waits`: place in `Rows.waits` of its first wait.
"""
Kind = TypeVar("Kind", bound=Step)
Numbers: TypeAlias = NDArray[np.int64]


class WordRanges(NamedTuple):
    """Ranges of words that rows use: of each the number of the row, its first word, and the word after its last."""

    rows: Numbers
    starts: Numbers
    stops: Numbers

    def once(self, words: int) -> tuple[Numbers, Numbers, Numbers]:
        """The different ranges in a memory of `words` words: their starts, their stops, and which one each is."""
        stops = np.minimum(self.stops, words)
        every, which = np.unique(self.starts << 32 | stops, return_inverse=True)
        return every >> 32, every & 0xFFFFFFFF, which


class Rows(Sequence[Step]):
    """Steps in order, each made when it is asked for.

    Attributes:
        table: a row of ROW for each step.
        recipes: what steps do, without waits, relative to their slots.
        slots: first words of areas, those of a row side by side.
        waits: rows that are waited for, those of a row side by side; `ends` has the end of each row's.
        origins: elements of tensors, a number for each axis.
    """

    def __init__(
        self,
        table: NDArray[Any],
        recipes: Sequence[Step],
        slots: ArrayLike,
        waits: NDArray[np.int32],
        origins: ArrayLike = (),
    ) -> None:
        self.table, self.recipes, self.waits = table, recipes, waits
        # There may be millions, and a list holds each as an object.
        self.slots, self.origins = np.asarray(slots, np.int64), np.asarray(origins, np.int32)
        self.ends = np.append(table["waits"][1:], len(waits)).astype(np.int32)

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Rows:
        """The rows of steps that were made one by one, each with a recipe of its own."""
        if isinstance(steps, Rows):
            return steps
        writer, arrays = RowWriter(), list[int]()
        for step in steps:
            array, preload, delay = -1, -1, 0
            match step:
                case Preload():
                    array, delay = step.array, step.delay
                case Stream():
                    # Weights stand in one array, and only there can a pass use them.
                    array, preload = arrays[step.preload], step.preload
                case Vector():
                    delay = step.delay
            arrays.append(array)
            writer.write(writer.alone(step), step.after, array=array, preload=preload, delay=delay)
        found = writer.rows()
        found._made[:] = steps
        return found

    @classmethod
    def together(cls, several: Sequence[Rows]) -> Rows:
        """Rows one part after another; a recipe that several parts share is one."""
        recipes: dict[int, tuple[int, Step]] = {}
        tables, slots, origins, waits = (list[NDArray[Any]]() for _ in range(4))
        first = waited = first_slot = first_origin = 0
        for each in several:
            table = each.table.copy()
            mine = [recipes.setdefault(id(recipe), (len(recipes), recipe))[0] for recipe in each.recipes]
            table["recipe"] = np.array(mine, np.int32)[table["recipe"]]
            for name, by in (("preload", first), ("slots", first_slot), ("origin", first_origin)):
                table[name][table[name] >= 0] += by
            table["waits"] += waited
            tables.append(table)
            waits.append(each.waits + np.int32(first))
            slots.append(each.slots)
            origins.append(each.origins)
            first, waited = first + len(table), waited + len(each.waits)
            first_slot, first_origin = first_slot + len(each.slots), first_origin + len(each.origins)
        found = [recipe for _, recipe in recipes.values()]
        return cls(np.concatenate(tables), found, np.concatenate(slots), np.concatenate(waits), np.concatenate(origins))

    @property
    def movable(self) -> bool:
        """Whether all addresses are relative to slots, which can be elsewhere."""
        return bool((self.table["slots"] >= 0).all())

    def moved(self, words: int) -> Rows:
        """The rows with each slot moved up by a number of `words`."""
        return self.placed(self.slots + words)

    def placed(self, slots: ArrayLike) -> Rows:
        """The rows with their slots elsewhere."""
        return Rows(self.table, self.recipes, slots, self.waits, self.origins)

    def having(self, recipes: Sequence[Step]) -> Rows:
        """The rows with other recipes in the place of theirs."""
        return Rows(self.table, recipes, self.slots, self.waits, self.origins)

    def exchanged(self, recipes: Mapping[int, Step]) -> Rows:
        """The rows with recipes of their own for some of them, by number; a recipe that several have is one."""
        known, more = dict[int, int](), [*self.recipes]
        table = self.table.copy()
        for at, recipe in recipes.items():
            number = table["recipe"][at] = known.setdefault(id(recipe), len(more))
            more += [recipe] if number == len(more) else []
        left, table["recipe"] = np.unique(table["recipe"], return_inverse=True)
        return Rows(table, [more[each] for each in left.tolist()], self.slots, self.waits, self.origins)

    def after(self, at: int) -> list[int]:
        """The rows that a row waits for."""
        found: list[int] = self.waits[self.table["waits"][at] : self.ends[at]].tolist()
        return found

    def arranged(self, order: Iterable[int], more: tuple[Numbers, Numbers] | None = None) -> Rows:
        """The rows in another order, of rows whose numbers are those from before. Each of the first numbers of `more`
        waits for the second beside it, too.
        """
        order = np.fromiter(order, np.int64, len(self))
        place = np.argsort(order).astype(np.int32)
        whose: Numbers = np.repeat(np.arange(len(self)), self.ends - self.table["waits"])
        waits: NDArray[Any] = self.waits
        if more:
            whose, waits = np.concatenate([whose, more[0]]), np.concatenate([waits, more[1]])
        whose = place[whose].astype(np.int64)
        waits = place[waits]
        table = self.table[order]
        table["waits"] = np.append(0, np.bincount(whose, minlength=len(order)).cumsum()[:-1])
        streams = table["preload"] >= 0
        table["preload"][streams] = place[table["preload"][streams]]
        return Rows(table, self.recipes, self.slots, waits[np.lexsort((waits, whose))], self.origins)

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, at: int | slice) -> Step | tuple[Step, ...]:
        if isinstance(at, slice):
            return tuple([self[each] for each in range(*at.indices(len(self)))])
        found = self._made[at]
        if found is None:
            found = self._made[at] = self._step(at % len(self))
        return found

    def __iter__(self) -> Iterator[Step]:
        for at, step in enumerate(self._made):
            yield step or self[at]

    def __str__(self) -> str:
        """A line a step: its number, its unit, what it does, and the steps that it waits for, counted unit by unit."""
        units = [each.queue for each in self.recipes]
        mine, counts, numbers = self.table["recipe"].tolist(), Counter[str](), list[str]()
        for each in mine:
            counts[units[each]] += 1
            numbers.append(f"{units[each]} {counts[units[each]]}")
        said = [
            ", ".join([each.label, *(f"{fact} {name}" for name, fact in each.facts.items())]) for each in self.recipes
        ]
        lines = []
        for at, recipe in enumerate(mine):
            waits = ", ".join(numbers[each] for each in sorted({*self.after(at)}))
            lines.append(f"{at:6} {numbers[at]:12} {said[recipe]:60} {f'behind {waits}' if waits else ''}".rstrip())
        return "\n".join(lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _step(self, at: int) -> Step:
        """The step of a row."""
        _, array, preload, delay, _, _, _ = self.table[at].tolist()
        return self.located(at).behind(tuple(self.after(at)), array, preload, delay)

    def located(self, at: int) -> Step:
        """What a row does, where its slots and its origin are; it has no waits, and takes weights of no preload."""
        number, _, _, _, slots, origin, _ = self.table[at].tolist()
        # Few slots take turns, so most rows do in the same words what rows before have done.
        words = tuple(self.slots[slots : self._ends[slots]].tolist()) if slots >= 0 else ()
        element: tuple[int, ...] = ()
        if origin >= 0 and isinstance(recipe := self.recipes[number], Transfer):
            element = tuple(self.origins[origin : origin + len(recipe.tensor.shape)].tolist())
        found = self._located.get(key := (number, words, element))
        if found is None:
            found = self._located[key] = self.recipes[number].at(SlotPlaces(words, 0, element))
        return found

    @cached_property
    def _ends(self) -> dict[int, int]:
        """Where the slots of rows end, by where they begin."""
        firsts = np.unique(self.table["slots"]).tolist()
        return dict(zip(firsts, [*firsts[1:], len(self.slots)], strict=True))

    @cached_property
    def _made(self) -> list[Step | None]:
        """The steps of rows, as far as somebody has asked."""
        return [None] * len(self)

    @cached_property
    def _located(self) -> dict[tuple[int, tuple[int, ...], tuple[int, ...]], Step]:
        """Recipes where their slots and origins are, by number and these."""
        return {}

    def waited(self, recipe: int) -> list[int]:
        """Recipes of the steps that steps of a recipe wait for."""
        found = set[int]()
        recipes = self.table["recipe"]
        for at in np.flatnonzero(recipes == recipe).tolist():
            found |= {*recipes[self.after(at)].tolist()}
        return sorted(found)

    def words(self, used: Callable[[Step], Iterable[range]]) -> WordRanges:
        """The ranges of words that a recipe tells, where its slots are."""
        of = [[(each.start, each.stop) for each in used(recipe) if each] for recipe in self.recipes]
        counts = np.array([*map(len, of), 0])
        ranges, firsts = np.array([*chain.from_iterable(of)], np.int64).reshape(-1, 2), counts.cumsum() - counts
        mine = self.table["recipe"]
        rows = np.repeat(np.arange(len(self)), counts[mine])
        # Ranges of a row lie side by side, those of its recipe as well.
        at = np.arange(len(rows)) + np.repeat(firsts[mine] - (counts[mine].cumsum() - counts[mine]), counts[mine])
        starts, stops = ranges[at].T
        moved = places_of(starts, self.slots, self.table["slots"][rows]) - starts
        return WordRanges(rows, starts + moved, stops + moved)

    def origins_of(self, rows: Numbers, axes: int) -> Numbers:
        """The origins of some rows, [row, axis]; zeros where a row has none."""
        first = self.table["origin"][rows]
        found = np.zeros((len(rows), axes), np.int64)
        if (first >= 0).any():
            found[first >= 0] = self.origins[first[first >= 0, None] + np.arange(axes)]
        return found

    @cached_property
    def kinds(self) -> Numbers:
        """The kind of each row, by its number among KINDS."""
        return self.told(lambda each: KINDS.index(type(each)), np.int64)

    def told(self, of: Callable[[Step], Any], number: type[np.generic] | None = None) -> NDArray[Any]:
        """What is told of the recipe of each row: each a `number`, if one is given, even where there are no rows."""
        every = np.array([of(each) for each in self.recipes], number)
        found: NDArray[Any] = every[self.table["recipe"].astype(np.int64)]
        return found

    def are(self, kind: type[Step] | UnionType) -> NDArray[np.bool_]:
        """A mask of the rows whose recipe is of a kind."""
        return self.told(lambda each: isinstance(each, kind), np.bool_)

    def steps(self, kind: type[Kind]) -> Iterator[tuple[int, Kind]]:
        """The steps of a kind, each behind the number of its row."""
        for at in np.flatnonzero(self.are(kind)).tolist():
            if isinstance(step := self[at], kind):
                yield at, step

    def recipe(self, at: int) -> Step:
        """The recipe of a row."""
        return self.recipes[int(self.table["recipe"][at])]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How often each recipe is done."""
        return np.bincount(self.table["recipe"], minlength=len(self.recipes))

    def done(self, kind: type[Kind]) -> Iterator[tuple[Kind, int]]:
        """Recipes of a kind, each with how often it is done."""
        for recipe, count in zip(self.recipes, self.counts.tolist(), strict=True):
            if isinstance(recipe, kind):
                yield recipe, count


class Lengths(NamedTuple):
    """What has been written so far: numbers of rows, slots, elements of origins, and waits."""

    rows: int
    slots: int
    origins: int
    waits: int

    def since(self, other: Lengths) -> Lengths:
        """What has been written in between."""
        return Lengths(*(mine - its for mine, its in zip(self, other, strict=True)))


class RowWriter:
    """Rows while a Program is written, row by row; recipes that are equal become one."""

    def __init__(self) -> None:
        self._rows, self._waits = list[tuple[int, ...]](), list[int]()
        self._slots, self._origins = list[int](), list[int]()
        self._recipes: list[Step] = []
        self._known: dict[Step, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def lengths(self) -> Lengths:
        """What has been written so far."""
        return Lengths(len(self._rows), len(self._slots), len(self._origins), len(self._waits))

    def slots(self, firsts: Iterable[int]) -> int:
        """The place of slots that begin at these words."""
        at = len(self._slots)
        self._slots += firsts
        return at

    def alone(self, step: Step) -> int:
        """The number of a recipe that is done once."""
        self._recipes.append(step)
        return len(self._recipes) - 1

    def recipe(self, step: Step) -> int:
        """The number of the recipe that is equal to a step without waits; a new one if there is none yet."""
        found = self._known.get(step)
        return self._known.setdefault(step, self.alone(step)) if found is None else found

    def origin(self, element: Iterable[int]) -> int:
        """The place of an element, a number for each axis of its tensor."""
        at = len(self._origins)
        self._origins += element
        return at

    def write(
        self,
        recipe: int,
        after: Sequence[int],
        slots: int = -1,
        array: int = -1,
        preload: int = -1,
        delay: int = 0,
        origin: int = -1,
    ) -> int:
        """Add a row, and return its number."""
        at = len(self._rows)
        self._rows.append((recipe, array, preload, delay, slots, origin, len(self._waits)))
        self._waits += after
        return at

    def write_passes(self, recipes: Sequence[int], after: Sequence[Sequence[int]], slots: int, array: int) -> int:
        """Add the rows of passes, of each its preload and its stream, and return the number of the last preload."""
        at, count = len(self._rows), len(recipes)
        preloads = [-1] * count
        preloads[1::2] = range(at, at + count, 2)
        places = accumulate(map(len, after), initial=len(self._waits))
        self._rows += zip(recipes, repeat(array), preloads, repeat(0), repeat(slots), repeat(-1), places)
        self._waits += chain.from_iterable(after)
        return at + count - 2

    def rows(self) -> Rows:
        """The rows as a table."""
        # Twice as fast as an array of the list of rows, of which there may be millions.
        numbers = np.fromiter(chain.from_iterable(self._rows), np.int32, len(ROW.names or ()) * len(self._rows))
        table = numbers.view(ROW)
        return Rows(table, tuple(self._recipes), self._slots, np.array(self._waits, np.int32), self._origins)
