"""Slices of cycles in which units do one thing, and how much of the memories is in use when.

All is lane 0's view, from the very facts that the accounts are made of; beside it, what can be seen of all lanes in one
cycle.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.lowered import TimeSlice
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import Fill, Keep, Spill

Cycles = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Slices of one name, as columns of equal length or one number for all.

    Each lasts `cycles` from `starts` on and belongs to a step of the Program, -1 to none.
    """

    name: str
    starts: Cycles | int
    cycles: Cycles | int
    steps: Cycles | int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """Slices in order of time, none of which overlaps another, as columns of equal length.

    Slice k takes cycles [starts[k], ends[k]), is called names[kinds[k]] and belongs to step steps[k], or to none (-1).
    """

    names: tuple[str, ...]
    starts: Cycles
    ends: Cycles
    kinds: Cycles
    steps: Cycles

    @classmethod
    def of(cls, pieces: Iterable[Pieces]) -> Track:
        """Put pieces in order; those that touch, of one name and step, become one slice. Empty ones are left out."""
        parts = list(pieces)
        names = tuple(dict.fromkeys(piece.name for piece in parts))
        columns = [
            np.broadcast_arrays(np.atleast_1d(piece.starts), piece.cycles, names.index(piece.name), piece.steps)
            for piece in parts
        ]
        none = np.empty((4, 0), np.int64)
        starts, cycles, kinds, steps = np.concatenate([none, *map(np.stack, columns)], axis=1)
        order = np.argsort(starts, kind="stable")
        order = order[cycles[order] > 0]
        starts, ends, kinds, steps = starts[order], (starts + cycles)[order], kinds[order], steps[order]
        first = np.ones(len(starts), bool)
        first[1:] = (starts[1:] != ends[:-1]) | (kinds[1:] != kinds[:-1]) | (steps[1:] != steps[:-1])
        return cls(names, starts[first], ends[np.roll(first, -1)], kinds[first], steps[first])

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[TimeSlice]:
        columns = (column.tolist() for column in (self.starts, self.ends, self.kinds, self.steps))
        return (TimeSlice(start, end, self.names[kind], step) for start, end, kind, step in zip(*columns, strict=True))

    def sums(self) -> dict[str, int]:
        """Cycles by name."""
        cycles = self.ends - self.starts
        return {name: int(cycles[self.kinds == kind].sum()) for kind, name in enumerate(self.names)}

    def clipped(self, first: int, stop: int) -> Track:
        """What lies in cycles [first, stop); slices across the edges are cut."""
        starts, ends = np.maximum(self.starts, first), np.minimum(self.ends, stop)
        seen = starts < ends
        return Track(self.names, starts[seen], ends[seen], self.kinds[seen], self.steps[seen])


@dataclass(frozen=True, slots=True)
class Timeline:
    """A layer of `cycles` cycles; by unit, as in Timing.units and beyond, what it does when. What is left is idle."""

    cycles: int
    tracks: Mapping[str, Track]

    def clipped(self, first: int, stop: int) -> Timeline:
        """What lies in cycles [first, stop), at its own time."""
        return Timeline(self.cycles, {name: track.clipped(first, stop) for name, track in self.tracks.items()})

    @property
    def slices(self) -> int:
        """On all tracks."""
        return sum(len(track) for track in self.tracks.values())


LOOK_EVERY = 1024
"""Cycles between two looks at a clock that runs."""

Watch = Callable[[int], None]
"""Told now and then how many cycles have passed."""


def unwatched(_: int) -> None:
    """Look at no clock."""


def words_in_use(program: Program, timeline: Timeline) -> tuple[Cycles, Cycles]:
    """(cycles, words): from each cycle on until the next, how many words of a lane hold data that is still needed.

    The first cycle is 0. A fill's words count from its start until the last step that reads them has read them;
    results from the first that is written until they are spilled, or, where they stay on chip, until their last reader
    has read them. Of results that take the place of others that stay, each word counts once.
    """
    changes: defaultdict[int, int] = defaultdict(int, {0: 0})
    use = _Use(program, timeline)
    for start, end, words in chain(use.held(), _staying(use.kept())):
        changes[start] += words
        changes[end] -= words
    cycles = sorted(changes)
    return np.array(cycles, np.int64), np.cumsum([changes[cycle] for cycle in cycles])


class _Use:
    """Who writes and who reads the words of a Program, and when."""

    def __init__(self, program: Program, timeline: Timeline) -> None:
        self._program, self._readers, steps = program, _readers(program), program.steps
        # Of transfers, of what is written, and of weights that are read.
        tracks = ("dma",), ("drain", "vector"), ("preload",)
        self._dma, self._drains, self._loads = (_by_step(timeline, *names) for names in tracks)
        self._written = {**self._dma, **self._drains}
        filled = [(at, step) for at, step in enumerate(steps) if isinstance(step, Fill) and self._readers[at]]
        first = ((at, fill, steps[self._readers[at][0]]) for at, fill in filled)
        added = ((at, fill, reader.result_base) for at, fill, reader in first if isinstance(reader, Stream))
        # Fills to whose words passes add their results.
        self._added_to = {
            at for at, fill, base in added if any(part.base <= base < part.base + part.words for part in fill.parts)
        }
        # By address, the step that has written anew what stands there.
        self._first: dict[int, int] = {}

    def _steps(self) -> Iterator[tuple[int, Step]]:
        """Every step, once it is noted what it writes anew."""
        layers = self._program.layers or (0,) * len(self._program.steps)
        for index, step in enumerate(self._program.steps):
            if index == 0 or layers[index] != layers[index - 1]:
                self._first = {}
            match step:
                case Stream() | Vector() if not step.adds_on:
                    self._first[step.result_base] = index
                case Fill() if index in self._added_to:
                    self._first |= {part.base: index for part in step.parts}
            yield index, step

    def _since(self, base: int, taken: Step) -> int:
        """The first cycle of what stands at `base`; where passes add to what another layer has left, that of the last
        that `taken` waits for.
        """
        makers = [self._first[base]] if base in self._first else taken.after
        return min(self._written[each].start for each in makers if each in self._written)

    def held(self) -> Iterator[tuple[int, int, int]]:
        """(first cycle, cycle after the last, words) of every fill and of every block of results that is spilled and
        does not stay; what is spilled from where it was filled counts once, and so does what passes add to.
        """
        kept = {step.tensor.name for step in self._program.steps if isinstance(step, Keep)}
        tracks = self._drains, self._loads, self._dma
        for index, step in self._steps():
            match step:
                case Fill() if index not in self._added_to and self._readers[index]:
                    ends = (next(track[each].end for track in tracks if each in track) for each in self._readers[index])
                    yield self._dma[index].start, max(ends), step.words
                case Spill() if step.tensor.name not in kept:
                    for part in step.parts:
                        if part.feed is None:
                            yield self._since(part.base, step), self._dma[index].end, part.words

    def kept(self) -> Iterator[tuple[int, int, range]]:
        """(cycle, 1 or -1, words): when words that stay are taken, and when they are let go."""
        read, readers = {**self._dma, **self._loads, **self._drains}, _readers_of_kept(self._program)
        for index, step in self._steps():
            if isinstance(step, Keep):
                makers = [self._program.steps[each] for each in step.after]
                since = min(self._since(each.result_base, step) for each in makers if isinstance(each, Stream | Vector))
                until = max(read[each].end for each in (*step.after, *readers[index]))
                for words in step.words_read:
                    yield since, 1, words
                    yield until, -1, words


def _staying(kept: Iterable[tuple[int, int, range]]) -> Iterator[tuple[int, int, int]]:
    """(cycle, cycle after the last, words) of stretches of time in which as many words stay on chip."""
    changes = sorted(kept, key=lambda each: each[0])
    held = np.zeros(max((words.stop for _, _, words in changes), default=0), np.int64)
    count = 0
    ends = [*(cycle for cycle, _, _ in changes[1:]), 0]
    for (cycle, by, words), end in zip(changes, ends, strict=False):
        mine = held[words.start : words.stop]
        before = np.count_nonzero(mine)
        mine += by
        count += int(np.count_nonzero(mine) - before)
        if end > cycle and count:
            yield cycle, end, count


def _readers_of_kept(program: Program) -> dict[int, list[int]]:
    """The steps that read any of the words of each keep, before others are written there."""
    ends = [words.stop for step in program.steps if isinstance(step, Keep) for words in step.words_read]
    whose = np.full(max(ends, default=0), -1)
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for index, step in enumerate(program.steps if ends else ()):
        if isinstance(step, Keep):
            for words in step.words_read:
                whose[words.start : words.stop] = index
            continue
        for words in step.words_read:
            for keep in np.unique(whose[words.start : words.stop]).tolist():
                readers[keep].append(index)
        for words in step.words_written:
            whose[words.start : words.stop] = -1
    return readers


def _by_step(timeline: Timeline, *tracks: str) -> Mapping[int, TimeSlice]:
    """The last slice of each step on some tracks, numbered ones among them."""
    named = re.compile(rf"({'|'.join(tracks)})(_\d+)?")
    return {each.step: each for name, track in timeline.tracks.items() if named.fullmatch(name) for each in track}


def _readers(program: Program) -> dict[int, list[int]]:
    """The preloads, streams, vector steps or spills that read each fill.

    Where a tensor's block comes in several pieces, a stream names the last one, which comes after all others.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for index, step in enumerate(program.steps):
        if isinstance(step, Preload | Stream | Vector | Spill):
            for fill in step.after:
                readers[fill].append(index)
    later: dict[str, list[int]] = {}
    for index, step in reversed([*enumerate(program.steps)]):
        if isinstance(step, Fill):
            later[step.tensor.name] = readers[index] = readers[index] or later.get(step.tensor.name, [])
    return readers
