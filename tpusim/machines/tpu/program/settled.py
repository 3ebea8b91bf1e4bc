"""A layer's Program where some of what it reads, or what it makes, stays on chip in words of its own.

What is read there is filled no more, and what is made there is kept. Nothing else changes: the same passes and steps,
in the same order, with other addresses. Where a step could not reach its words at their new places, or would overwrite
what stays, it is for HBM as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import PADDING, Feed, walked
from tpusim.machines.tpu.program.home import Home, words_of
from tpusim.machines.tpu.program.keep import Keep
from tpusim.machines.tpu.program.passes import Stream
from tpusim.machines.tpu.program.places import Placed, ScatteredError, Words, rooms_of
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.step import Step
from tpusim.machines.tpu.program.tensor import Part
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.machines.tpu.program.vector import Vector

APART = 1 << 40
"""Between the addresses of the words of one home and the next, until it is known where they go."""


@dataclass(frozen=True)
class Stays:
    """Where a layer finds what it reads, by its tensors, and leaves `outcome`; `spilled`: that goes to HBM, too.

    `over` is the tensor, of those it reads there, whose words the outcome takes: word by word, once it is read.
    """

    read: Mapping[str, Home]
    outcome: str = ""
    home: Home | None = None
    spilled: bool = False
    over: str = ""

    @property
    def homes(self) -> dict[str, Home]:
        """All, by the layer's tensors."""
        return {**self.read, **({self.outcome: self.home} if self.home else {})}

    @property
    def bases(self) -> dict[str, int]:
        """By tensor, the first address of its home until it is known where that goes."""
        found = {name: (place + 1) * APART for place, name in enumerate(self.homes)}
        return {**found, self.outcome: found[self.over]} if self.over else found


@dataclass(frozen=True)
class Settled:
    """A layer's steps, where homes are far from its own words, and the stretches of these that it still needs."""

    program: Program
    stays: Stays
    own: tuple[range, ...]

    @property
    def words(self) -> int:
        """Words of a lane that are its own."""
        return sum(map(len, self.own))

    def at(self, own: int, homes: Mapping[str, int]) -> Program:
        """The Program where its own words begin at `own`, and each home where its tensor has it."""
        ends = accumulate(map(len, self.own), initial=own)
        moved = {each.start: at - each.start for each, at in zip(self.own, ends, strict=False)}
        own_rooms = {each.start: each.start + moved.get(each.start, 0) for each in _stretches(self.program)}
        rooms = rooms_of(own_rooms | {base: homes[name] for name, base in self.stays.bases.items()})
        # By where they begin: an outcome may have the words of what it is made of.
        kept = {homes[name]: Buffer(name, homes[name], home.words, home.widest)
                for name, home in self.stays.homes.items()}  # fmt: skip
        buffers = [
            replace(each, base=each.base + moved[stretch.start])
            for stretch in self.own
            for each in self.program.buffers
            if each.base in stretch
        ]
        steps = tuple(each.placed(rooms, rooms) for each in self.program.steps)
        return replace(self.program, buffers=(*buffers, *kept.values()), steps=steps)


def settled(program: Program, stays: Stays) -> Settled:
    """The Program where that stays. Raises ScatteredError where it cannot."""
    if not stays.homes:
        return Settled(program, stays, tuple(_stretches(program)))
    steps = _Settling(program, stays).steps()
    if stays.over:
        _check_over(steps, stays)
    stretches = _stretches(program)
    rooms = rooms_of({each.start: each.start for each in stretches})
    used = {rooms.room(words) for step in steps for words in step.words_used if words and words.start < APART}
    own = tuple(each for place, each in enumerate(stretches) if place in used)
    return Settled(replace(program, steps=steps), stays, own)


def _stretches(program: Program) -> list[range]:
    """The words of its buffers; those that share some, as buffers of stages do, are one. The first begins at 0."""
    found = [range(0)]
    for each in sorted(program.buffers, key=lambda buffer: buffer.base):
        words = range(each.base, each.base + each.words)
        if words.start < found[-1].stop or not found[-1]:
            found[-1] = range(found[-1].start, max(found[-1].stop, words.stop))
        else:
            found.append(words)
    return found


def _check_over(steps: Iterable[Step], stays: Stays) -> None:
    """Raise ScatteredError where a step reads words that another one may have overwritten."""
    home = range(stays.bases[stays.over], stays.bases[stays.over] + APART)
    for step in steps:
        reads = [each for each in step.words_read if each and each.start in home]
        if not reads or isinstance(step, Keep | Spill):
            continue
        feeds = [each for each in step.operands if _meets(each, home)] if isinstance(step, Vector) else []
        alike = isinstance(step, Vector) and all(_walks_alike(each, step.writes) for each in feeds)
        if not alike and not (isinstance(step, Stream) and step.accumulate and not _meets(step.reads, home)):
            raise ScatteredError


def _meets(feed: Feed, home: range) -> bool:
    return any(each and each.start in home for each in feed.extents)


def _walks_alike(one: Feed, other: Feed) -> bool:
    """Whether two feeds reach for the same words in the same order."""
    return len(one.groups) == len(other.groups) and all(
        a[:2] == b[:2] and np.array_equal(np.where(*walked(a.pattern), PADDING), np.where(*walked(b.pattern), PADDING))
        for a, b in zip(one.groups, other.groups, strict=True)
    )


@dataclass(frozen=True)
class _Undo:
    """What words were before a step: where they stood, and whether that was a home."""

    words: Words
    at: Words
    home: NDArray[np.bool_]


class _Settling:
    """Forwards, notes which words hold what is read at home; backwards, which are to hold what is kept."""

    def __init__(self, program: Program, stays: Stays) -> None:
        self._program, self._stays = program, stays
        self._bases = stays.bases
        self._local = np.arange(program.words)
        self._read, self._at_home = self._local.copy(), np.zeros(program.words, np.bool_)
        self._made = self._local.copy()

    def steps(self) -> tuple[Step, ...]:
        """All that are left."""
        undo = self._forwards()
        found: list[tuple[Step, ...]] = []
        for step, before in zip(reversed(self._program.steps), reversed(undo), strict=True):
            found.append(self._backwards(step, before))
        return _numbered(self._program.steps, found[::-1])

    # ---- what is read

    def _forwards(self) -> list[list[_Undo]]:
        """By step, what its words were before it."""
        spilled = np.zeros(self._program.words, np.bool_)
        found = []
        for step in self._program.steps:
            self._untouched(step, spilled)
            changes = [] if step.adds_on else [*self._changes(step)]
            found.append([_Undo(words, self._read[words], self._at_home[words]) for words, _ in changes])
            for words, at in changes:
                self._read[words], self._at_home[words] = (words, False) if at is None else (at, True)
                spilled[words] = False
            if self._keeps(step):
                for words, _ in self._kept(step):
                    spilled[words] = True
        return found

    def _changes(self, step: Step) -> Iterator[tuple[Words, Words | None]]:
        """The words that a step writes, and where at home they stand if it need not."""
        if not self._fills(step):
            yield from ((words, None) for words in _written(step))
            return
        for part in step.parts:
            at = self._stays.read[step.tensor.name].find(part)
            if at is None:
                raise ScatteredError
            yield np.arange(part.base, part.base + part.words), at + self._bases[step.tensor.name]

    def _untouched(self, step: Step, spilled: NDArray[np.bool_]) -> None:
        """Raise ScatteredError where a step reads what has been spilled before: only what is spilled last is kept."""
        if any(spilled[words.start : words.stop].any() for words in step.words_read):
            raise ScatteredError

    # ---- what is kept

    def _backwards(self, step: Step, before: list[_Undo]) -> tuple[Step, ...]:
        """What becomes of a step."""
        if self._keeps(step):
            return self._keep(step)
        after, fills = self._made.copy(), self._fills(step)
        if step.adds_on:
            for words in _written(step):
                self._check_home(words)
        else:
            for words in _written(step):
                self._made[words] = words
        for each in reversed(before):
            self._read[each.words], self._at_home[each.words] = each.at, each.home
        if fills:
            return ()
        reads = Placed(np.where(self._at_home, self._read, self._made))
        return (step.placed(reads, Placed(after)),)

    def _check_home(self, words: Words) -> None:
        """What is read at home is not to be added to but by what takes its very place. Raises ScatteredError."""
        there = words[self._at_home[words]]
        if (self._read[there] != self._made[there]).any():
            raise ScatteredError

    def _keep(self, step: Spill) -> tuple[Step, ...]:
        parts: list[Part] = []
        for part, (words, at) in zip(step.parts, self._kept(step), strict=True):
            self._made[words] = at
            self._check_home(words)
            parts += _runs(part._replace(feed=None), at)
        keep = Keep(step.after, step.tensor, tuple(parts))
        return (keep, replace(step, parts=keep.parts)) if self._stays.spilled else (keep,)

    def _kept(self, step: Spill) -> Iterator[tuple[Words, Words]]:
        """The words that a spill reads, and where these stay."""
        assert self._stays.home
        for part in step.parts:
            words, at = words_of(part), self._stays.home.find(part)
            if words is None or at is None:
                raise ScatteredError
            yield words, at + self._bases[self._stays.outcome]

    def _fills(self, step: Step) -> TypeGuard[Fill]:
        return isinstance(step, Fill) and step.tensor.name in self._stays.read

    def _keeps(self, step: Step) -> TypeGuard[Spill]:
        return isinstance(step, Spill) and self._stays.home is not None and step.tensor.name == self._stays.outcome


def _written(step: Step) -> Iterator[Words]:
    """Exactly the words that a step writes."""
    match step:
        case Vector():
            for group in step.writes.groups:
                stored, addresses = walked(group.pattern)
                yield addresses[stored]
        case Fill() | Stream():
            yield from (np.arange(each.start, each.stop) for each in step.words_written)


def _runs(part: Part, at: Words) -> Iterator[Part]:
    """The part in pieces whose words follow one another where they stand now."""
    if np.array_equal(at, np.arange(at[0], at[0] + len(at))):
        yield part._replace(base=int(at[0]))
        return
    axis = next(axis for axis, each in enumerate(part.items) if len(each.coordinates) > 1)
    count = len(part.items[axis].coordinates)
    for each, there in enumerate(at.reshape(count, -1)):
        items = (*part.items[:axis], part.items[axis].of(each), *part.items[axis + 1 :])
        yield from _runs(part._replace(items=items), there)


# ---- numbers


def _numbered(steps: tuple[Step, ...], found: list[tuple[Step, ...]]) -> tuple[Step, ...]:
    """All steps in order; who waited for one that is left out waits for what that waited for, and for the fill ahead
    of it.
    """
    places: dict[int, int] = {}
    number, stand_ins = 0, dict[int, frozenset[int]]()
    fill: frozenset[int] = frozenset()
    for at, (step, mine) in enumerate(zip(steps, found, strict=True)):
        if mine:
            places[at] = number
            fill = frozenset({at}) if isinstance(step, Fill) else fill
        else:
            stand_ins[at] = fill.union(*(stand_ins.get(each, {each}) for each in step.after))
        number += len(mine)
    return tuple(_waiting(each, stand_ins).renumbered(places) for mine in found for each in mine)


def _waiting(step: Step, stand_ins: Mapping[int, frozenset[int]]) -> Step:
    if not any(each in stand_ins for each in step.after):
        return step
    return replace(step, after=tuple({}.fromkeys(two for one in step.after for two in stand_ins.get(one, {one}))))
