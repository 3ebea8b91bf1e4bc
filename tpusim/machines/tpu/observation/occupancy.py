"""How much of the vector memories is in use when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from tpusim.machines.tpu.observation.timeline import Cycles, Timeline
from tpusim.machines.tpu.program.steps import FilterFill, IfmapFill, Preload, Program, Spill, Stream


def words_in_use(program: Program, timeline: Timeline) -> tuple[Cycles, Cycles]:
    """(cycles, words): from each cycle on until the next, how many words of a lane hold data that is still needed.

    The first cycle is 0. A fill's words count from its start until the last pass that reads them is over (an ifmap) or
    has its weights (a filter); results from the first that is written until they are spilled.
    """
    changes: defaultdict[int, int] = defaultdict(int, {0: 0})
    for start, end, words in _held(program, timeline):
        changes[start] += words
        changes[end] -= words
    cycles = sorted(changes)
    return np.array(cycles, np.int64), np.cumsum([changes[cycle] for cycle in cycles])


def _held(program: Program, timeline: Timeline) -> Iterator[tuple[int, int, int]]:
    """(first cycle, cycle after the last, words) of every fill and of every block of results."""
    dma = {each.step: each for name in ("dma_0", "dma_1") for each in timeline.tracks[name]}
    results = {each.step: each for each in timeline.tracks["drain"]}
    loaded = {each.step: each.end for each in timeline.tracks["preload"]}
    readers = _readers(program)
    first_pass: dict[int, int] = {}
    for index, step in enumerate(program.steps):
        match step:
            case Stream() if not step.accumulate:
                first_pass[step.result_base] = index
            case IfmapFill() if readers[index]:
                yield dma[index].start, max(results[each].end for each in readers[index]), step.words
            case FilterFill() if readers[index]:
                yield dma[index].start, max(loaded[each] for each in readers[index]), step.words
            case Spill():
                yield results[first_pass[step.base]].start, dma[index].end, step.words


def _readers(program: Program) -> dict[int, list[int]]:
    """By fill, the preloads or streams that read it.

    Of an ifmap block filled row by row a stream names the last piece, which comes after all others.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for index, step in enumerate(program.steps):
        if isinstance(step, Preload | Stream):
            for fill in step.after:
                readers[fill].append(index)
    later: list[int] = []
    for index in reversed(range(len(program.steps))):
        if isinstance(program.steps[index], IfmapFill):
            later = readers[index] = readers[index] or later
    return readers
