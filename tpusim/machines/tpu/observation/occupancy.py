"""How much of the vector memories is in use when."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from itertools import chain

import numpy as np

from tpusim.machines.tpu.observation.timeline import Cycles, Slice, Timeline
from tpusim.machines.tpu.program.keep import Keep
from tpusim.machines.tpu.program.passes import Preload, Stream
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.step import Step
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.machines.tpu.program.vector import Vector

_TRACKS = ("dma",), ("drain", "vector"), ("preload",)
"""Of transfers, of what is written, and of weights that are read."""


def words_in_use(program: Program, timeline: Timeline) -> tuple[Cycles, Cycles]:
    """(cycles, words): from each cycle on until the next, how many words of a lane hold data that is still needed.

    The first cycle is 0. A fill's words count from its start until the last step that reads them has read them;
    results from the first that is written until they are spilled, or, where they stay on chip, until their last reader
    has read them. Of results that take the place of others that stay, each word counts once.
    """
    changes: defaultdict[int, int] = defaultdict(int, {0: 0})
    for start, end, words in chain(_held(program, timeline), _staying(program, timeline)):
        changes[start] += words
        changes[end] -= words
    cycles = sorted(changes)
    return np.array(cycles, np.int64), np.cumsum([changes[cycle] for cycle in cycles])


def _held(program: Program, timeline: Timeline) -> Iterator[tuple[int, int, int]]:
    """(first cycle, cycle after the last, words) of every fill and of every block of results that is spilled and does
    not stay; what is spilled from where it was filled counts once, and so does what passes add to.
    """
    dma, drains, loads = (_by_step(timeline, *names) for names in _TRACKS)
    readers, added_to = _readers(program), _added_to(program)
    kept = {step.tensor.name for step in program.steps if isinstance(step, Keep)}
    written = _Written(program, {**dma, **drains})
    for index, step in enumerate(program.steps):
        written.see(index, step, added_to)
        match step:
            case Fill() if index not in added_to and readers[index]:
                ends = (
                    next(track[each].end for track in (drains, loads, dma) if each in track) for each in readers[index]
                )
                yield dma[index].start, max(ends), step.words
            case Spill() if step.tensor.name not in kept:
                for part in step.parts:
                    if part.feed is None:
                        yield written.since(part.base, step), dma[index].end, part.words


class _Written:
    """Since when results stand at an address, step by step."""

    def __init__(self, program: Program, slices: Mapping[int, Slice]) -> None:
        self._layers, self._slices = program.layers or (0,) * len(program.steps), slices
        self._layer, self._first = 0, dict[int, int]()

    def see(self, index: int, step: Step, added_to: Container[int]) -> None:
        """Note what a step writes anew."""
        if self._layers[index] != self._layer:
            self._layer, self._first = self._layers[index], {}
        match step:
            case Stream() | Vector() if not step.adds_on:
                self._first[step.result_base] = index
            case Fill() if index in added_to:
                self._first |= {part.base: index for part in step.parts}

    def since(self, base: int, taken: Step) -> int:
        """The first cycle of it; where passes add to what another layer has left, that of the last that `taken` waits
        for.
        """
        makers = [self._first[base]] if base in self._first else taken.after
        return min(self._slices[each].start for each in makers if each in self._slices)


def _staying(program: Program, timeline: Timeline) -> Iterator[tuple[int, int, int]]:
    """(cycle, cycle after the last, words) of stretches of time in which as many words stay on chip."""
    changes = sorted(_kept(program, timeline), key=lambda each: each[0])
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


def _kept(program: Program, timeline: Timeline) -> Iterator[tuple[int, int, range]]:
    """(cycle, 1 or -1, words): when words that stay are taken, and when they are let go."""
    dma, drains, loads = (_by_step(timeline, *names) for names in _TRACKS)
    read = {**dma, **loads, **drains}
    readers, added_to = _readers_of_kept(program), _added_to(program)
    written = _Written(program, {**dma, **drains})
    for index, step in enumerate(program.steps):
        written.see(index, step, added_to)
        if isinstance(step, Keep):
            makers = [program.steps[each] for each in step.after]
            since = min(written.since(each.result_base, step) for each in makers if isinstance(each, Stream | Vector))
            until = max(read[each].end for each in (*step.after, *readers[index]))
            for words in step.words_read:
                yield since, 1, words
                yield until, -1, words


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


def _added_to(program: Program) -> set[int]:
    """Fills to whose words passes add their results."""
    steps, readers = program.steps, _readers(program)
    fills = ((index, step) for index, step in enumerate(steps) if isinstance(step, Fill) and readers[index])
    return {index for index, fill in fills if _adds_to(steps[readers[index][0]], fill)}


def _adds_to(reader: Step, fill: Fill) -> bool:
    """Whether a pass adds its results to the words of a fill."""
    return isinstance(reader, Stream) and any(
        part.base <= reader.result_base < part.base + part.words for part in fill.parts
    )


def _by_step(timeline: Timeline, *tracks: str) -> Mapping[int, Slice]:
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
