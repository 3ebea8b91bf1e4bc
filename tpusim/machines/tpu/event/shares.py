"""What each of several layers takes of a run: the accounts, cut where one layer ends and the next one begins."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tpusim.machines.tpu.definition import CLIENTS
from tpusim.machines.tpu.event.accounts import array_use, bus_use, vector_unit_use
from tpusim.machines.tpu.event.calendar import Owners
from tpusim.machines.tpu.event.log import Log, Passes
from tpusim.machines.tpu.event.tracks import Recording, bus, preloads, unrolled
from tpusim.machines.tpu.observation.timeline import Pieces
from tpusim.machines.tpu.observation.timing import Timing, split
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import HBM, SCRATCH


def shares(run: Recording, whole: Timing) -> tuple[Timing, ...]:
    """Each layer's, of a run of several that took `whole`.

    What is the array's and the vector unit's belongs to a layer's steps; of all else it has what there is in its time.
    """
    log, program, hardware = run.log, run.program, run.hardware
    cuts = cuts_of(log, program)
    shared = {
        "preload": _counts(preloads(log.loads, run.ports, program, hardware, log.frame.weight_waits(0)), cuts),
        HBM: _counts(bus(log.moves), cuts),
        SCRATCH: _counts(bus(log.scratch), cuts),
        **{port: _owned(owners, cuts) for port, owners in run.ports.items()},
    }
    found = []
    for number, (mine, use) in enumerate(zip(_of_layers(log, program), program.uses, strict=True)):
        cycles, counts = cuts[number + 1] - cuts[number], {unit: each[number] for unit, each in shared.items()}
        counts |= {"systolic_array": array_use(mine, program), "vector_unit": vector_unit_use(mine, program, hardware)}
        units = {unit: split(counts[unit], cycles, tuple(account)[:-1]) for unit, account in whole.units.items()}
        found.append(Timing(cycles, units, bus_use(mine.moves, program), use.port_reads, use.port_writes))
    return tuple(found)


def cuts_of(log: Log, program: Program) -> list[int]:
    """The first cycle of each layer, and the one after the last: the array ended the step ahead of each in time."""
    ended = {work.step: work.ended for work in log.works}
    for step, cycle, *_ in unrolled([(each.steps, each.every, each[2:7]) for each in log.passes]).tolist():
        ended[step] = cycle
    behind = dict(pairwise(sorted(ended)))
    return [0, *(ended[behind[last]] for last in program.last_passes[:-1]), log.cycles]


def _counts(pieces: Iterable[Pieces], cuts: Sequence[int]) -> list[Counter[str]]:
    """By name the cycles of pieces between each cut and the next; none of those together overlap, and they ascend."""
    found: list[Counter[str]] = [Counter() for _ in cuts[1:]]
    for piece in pieces:
        starts, cycles = np.broadcast_arrays(np.atleast_1d(piece.starts), piece.cycles)
        begun = starts.searchsorted(cuts)
        sums, ends = np.append(0, cycles.cumsum()), np.append(0, starts + cycles)
        until = sums[begun] - np.maximum(ends[begun] - cuts, 0)
        for count, more in zip(found, np.diff(until).tolist(), strict=True):
            count[piece.name] += more
    return found


def _owned(owners: Owners, cuts: Sequence[int]) -> list[Counter[str]]:
    """By client the cycles that it owns between each cut and the next."""
    counts = (np.bincount(owners[first:stop], minlength=len(CLIENTS)).tolist() for first, stop in pairwise(cuts))
    return [Counter({name: n for name, n in zip(CLIENTS[1:], each[1:], strict=True) if n}) for each in counts]


def _of_layers(log: Log, program: Program) -> list[Log]:
    """What a log tells of the steps of each layer."""
    layers, count = program.layers, len(program.last_passes)
    passes: list[list[Passes]] = [[] for _ in range(count)]
    for each in log.passes:
        steps: defaultdict[int, list[int]] = defaultdict(list)
        for step in each.steps:
            steps[layers[step]].append(step)
        for layer, mine in steps.items():
            passes[layer].append(each._replace(steps=mine))
    works = [tuple(each for each in log.works if layers[each.step] == number) for number in range(count)]
    moves = [tuple(each for each in log.moves if layers[each.step] == number) for number in range(count)]
    each_layer = zip(passes, works, moves, strict=True)
    return [replace(log, passes=tuple(one), works=other, moves=moved) for one, other, moved in each_layer]
