"""How much of the vector memories is in use when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from tpusim.machines.tpu.observation.timeline import Cycles, Slice, Timeline
from tpusim.machines.tpu.program.passes import Preload, Stream
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.step import Step
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.machines.tpu.program.vector import Vector


def words_in_use(program: Program, timeline: Timeline) -> tuple[Cycles, Cycles]:
    """(cycles, words): from each cycle on until the next, how many words of a lane hold data that is still needed.

    The first cycle is 0. A fill's words count from its start until the last step that reads them has read them;
    results from the first that is written until they are spilled.
    """
    changes: defaultdict[int, int] = defaultdict(int, {0: 0})
    for start, end, words in _held(program, timeline):
        changes[start] += words
        changes[end] -= words
    cycles = sorted(changes)
    return np.array(cycles, np.int64), np.cumsum([changes[cycle] for cycle in cycles])


def _held(program: Program, timeline: Timeline) -> Iterator[tuple[int, int, int]]:
    """(first cycle, cycle after the last, words) of every fill and of every block of results; what is spilled from
    where it was filled counts once, and so does what passes add to.
    """
    tracks = ("dma_0", "dma_1"), ("drain", "vector"), ("preload",)
    dma, drains, loads = (_by_step(timeline, *names) for names in tracks)
    readers = _readers(program)
    written, first = {**dma, **drains}, dict[int, int]()
    for index, step in enumerate(program.steps):
        match step:
            case Stream() if not step.accumulate:
                first[step.result_base] = index
            case Vector() if not step.adds_on:
                first[step.result_base] = index
            case Fill() if readers[index] and _adds_to(program.steps[readers[index][0]], step):
                first |= {part.base: index for part in step.parts}
            case Fill() if readers[index]:
                ends = (
                    next(track[each].end for track in (drains, loads, dma) if each in track) for each in readers[index]
                )
                yield dma[index].start, max(ends), step.words
            case Spill():
                for part in step.parts:
                    if part.feed is None:
                        yield written[first[part.base]].start, dma[index].end, part.words


def _adds_to(reader: Step, fill: Fill) -> bool:
    """Whether a pass adds its results to the words of a fill."""
    return isinstance(reader, Stream) and any(
        part.base <= reader.result_base < part.base + part.words for part in fill.parts
    )


def _by_step(timeline: Timeline, *tracks: str) -> Mapping[int, Slice]:
    """The last slice of each step on some tracks."""
    return {each.step: each for name in tracks if name in timeline.tracks for each in timeline.tracks[name]}


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
