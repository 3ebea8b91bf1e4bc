"""Reports of interpreters: accounts of a Program's cycles, which have the same form from every engine, deadlocks in
words, slices of a unit's cycles, and the use of memory over time.

Slices are lane 0's view, drawn from the same facts as the accounts; besides, there is a view of all lanes in one cycle.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.lowered import TimeSlice, by_unit
from tpusim.machines.tpu.definition import CLIENTS, Ports, port_name
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import Fill, Keep, Spill
from tpusim.result.records import STALL_CAUSES

if TYPE_CHECKING:
    from tpusim.memory.dram.rules import Counts, RequestedBursts

Cycles = NDArray[np.int64]

STARVED = STALL_CAUSES[0]
"""State of a unit that waits for data."""

CAUSES = ("busy", *STALL_CAUSES)
"""Ways in which a unit spends its cycles; the rest is idle."""

HOLDERS = ("blocked", STARVED, "conversion", "port_stall")
"""Causes that may hold a transfer, in order: steps that it waits for, the memory, the vector unit, the port."""


def held_by(freed: int, come: int, converted: int, now: int) -> str:
    """The cause that holds a transfer in cycle `now`: the first of HOLDERS that still applies. Each but the port does
    until its cycle; from then on the port does.

    While a unit waits for a fill, its cycles are booked to the cause that holds the oldest transfer under way:
    transfers end in order, so the fill waits for that one, or is that one.
    """
    ends = zip(HOLDERS, (freed, come, converted), strict=False)
    return next((cause for cause, until in ends if now < until), HOLDERS[-1])


PORT_CLIENTS = CLIENTS[1:]
"""Owners of the cycles of lane 0's port; the rest is idle."""


def split(use: Mapping[str, int], cycles: int, names: tuple[str, ...] = CAUSES) -> dict[str, int]:
    """An account of `cycles`: every name in a fixed order, then the rest as idle."""
    return {**{name: use.get(name, 0) for name in names}, "idle": cycles - sum(use.values())}


def unit_name(unit: str, array: int) -> str:
    """Name of the account, or track, of a unit that each array has; array 0's has no number."""
    return f"{unit}_{array}" if array else unit


def accounts(
    uses: Mapping[str, Mapping[str, int]], owned: Mapping[str, int], cycles: int, ports: Ports
) -> dict[str, dict[str, int]]:
    """The account of every unit in the order of `uses`, then of each of lane 0's `ports`, whose cycles clients
    `owned`.
    """
    found = {name: split(use, cycles) for name, use in uses.items()}
    for clients in ports:
        names = tuple(CLIENTS[client] for client in clients)
        found[port_name(clients)] = split({name: owned.get(name, 0) for name in names}, cycles, names)
    return found


class HbmUse(NamedTuple):
    """Events in each channel of the DRAM: accesses to an open row, rows opened, rows closed for others, bursts read and
    written.

    `cycles` counts the memory's cycles in which some transfer was under way, from its first burst accepted to its last
    one done. `asked_reads` and `asked_writes` count the bursts that transfers asked for, also those served by a pending
    burst; `busiest` adds up, over transfers, the bursts of the busiest channel.
    """

    row_hits: tuple[int, ...]
    activates: tuple[int, ...]
    conflicts: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    cycles: int
    asked_reads: int
    asked_writes: int
    busiest: int

    @classmethod
    def of(cls, counts: Counts, requested: RequestedBursts, cycles: int) -> HbmUse:
        """The use that a model of the DRAM has counted."""
        hits, activates, reads, writes, _, conflicts = (tuple(each.tolist()) for each in counts)
        return cls(hits, activates, conflicts, reads, writes, cycles, *requested)

    @property
    def figures(self) -> dict[str, int]:
        """All figures by name, channel by channel."""
        by_channel = {name: of for name, of in self._asdict().items() if isinstance(of, tuple)}
        named = {f"{name} of channel {at}": n for name, of in by_channel.items() for at, n in enumerate(of)}
        asked = {"bursts asked to be read": self.asked_reads, "bursts asked to be written": self.asked_writes}
        return {**named, **asked, "bursts of busiest channels": self.busiest, "cycles of the DRAM": self.cycles}


@dataclass(frozen=True)
class Timing:
    """Cycles of a layer, the account of every unit, which adds up to `cycles`, and port accesses.

    `bus` has the cycles of HBM that are not idle by the label of the transfer, moved or waited for.
    `reads` and `writes` are words over all lanes. A slot left unused, by padding or by a lane without a part in the
    step, is no access. `hbm` is None where no banks are modelled.

    `layers` has the share of each layer in a Program of several. A layer ends when the array has ended its last pass or
    vector step, the last layer with the Program. Cycles of units are cut at these times, except for the
    vector unit, `bus`, `reads` and `writes`, which count for the layer of the step; no share has `hbm`.
    """

    cycles: int
    units: Mapping[str, Mapping[str, int]]
    bus: Mapping[str, int]
    reads: int
    writes: int
    hbm: HbmUse | None = None
    layers: tuple[Timing, ...] = ()

    @property
    def compared(self) -> dict[str, int | float]:
        """Every figure by name; shares of layers come behind the figures of the whole."""
        held = {f"bus for {label}": cycles for label, cycles in self.bus.items()}
        dram = self.hbm.figures if self.hbm else {}
        shares = {
            f"{name} of layer {number}": figure
            for number, share in enumerate(self.layers)
            for name, figure in share.compared.items()
        }
        whole = {"cycles": self.cycles, **by_unit(self.units), **held, "reads": self.reads, "writes": self.writes}
        return {**whole, **dram, **shares}


def who_waits(program: Program, stuck: Sequence[int]) -> str:
    """Sentence with the number of steps that never finish, and what the first of them wait for; `stuck` has their
    numbers.
    """

    def name(step: int) -> str:
        return f"step {step} ({program.rows[step].label})"

    def blockers(step: int) -> str:
        return ", ".join(name(other) for other in program.rows[step].after if other in stuck) or "its unit's turn"

    rows = (f"{name(step)} waits for {blockers(step)}" for step in stuck[:4])
    return f"{len(stuck)} steps never finish: " + "; ".join(rows)


# ---- slices of cycles


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """Slices in order of time, without overlap, as columns of equal length.

    Slice k takes cycles [starts[k], ends[k]), is called names[kinds[k]] and belongs to step steps[k], or to none (-1).
    """

    names: tuple[str, ...]
    starts: Cycles
    ends: Cycles
    kinds: NDArray[np.integer[Any]]
    steps: NDArray[np.integer[Any]]

    @classmethod
    def in_order(cls, names: tuple[str, ...], kinds: Cycles, starts: Cycles, cycles: Cycles, steps: Cycles) -> Track:
        """Put slices in order; touching ones with the same name and step become one, and empty ones are left out."""
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
        """The track cut to cycles [first, stop)."""
        starts, ends = np.maximum(self.starts, first), np.minimum(self.ends, stop)
        seen = starts < ends
        return Track(self.names, starts[seen], ends[seen], self.kinds[seen], self.steps[seen])


@dataclass(frozen=True, slots=True)
class Timeline:
    """Timelines of all units of a layer of `cycles` cycles, by the names of Timing.units and more; gaps are idle."""

    cycles: int
    tracks: Mapping[str, Track]


LOOK_EVERY = 1024
"""Cycles between two reports of progress."""


def unwatched(_: int) -> None:
    """Report no progress."""


def words_in_use(program: Program, timeline: Timeline) -> tuple[Cycles, Cycles]:
    """(cycles, words): number of words of a lane with data that is still needed, from each cycle until the next.

    The first cycle is 0. Words of a fill count from its start until the last step that reads them has done so;
    results from their first write until they are spilled, or, if they stay on chip, until their last reader
    has read them. Words of results that overwrite others that stay count once.
    """
    changes: defaultdict[int, int] = defaultdict(int, {0: 0})
    use = _Use(program, timeline)
    for start, end, words in chain(use.held(), _staying(use.kept())):
        changes[start] += words
        changes[end] -= words
    cycles = sorted(changes)
    return np.array(cycles, np.int64), np.cumsum([changes[cycle] for cycle in cycles])


class _Use:
    """Writers and readers of the words of a Program, with their times."""

    def __init__(self, program: Program, timeline: Timeline) -> None:
        self._program, self._readers, steps = program, _readers(program), program.rows
        # Times of transfers, of writes, and of weights that are read.
        tracks = ("dma",), ("drain", "vector"), ("preload",)
        self._dma, self._drains, self._loads = (_by_step(timeline, *names) for names in tracks)
        self._written = {**self._dma, **self._drains}
        filled = [(at, step) for at, step in enumerate(steps) if isinstance(step, Fill) and self._readers[at]]
        first = ((at, fill, steps[self._readers[at][0]]) for at, fill in filled)
        added = ((at, fill, reader.result_base) for at, fill, reader in first if isinstance(reader, Stream))
        # Fills of values that passes add to: their words are those of the results.
        self._added_to = {
            at for at, fill, base in added if any(part.base <= base < part.base + part.words for part in fill.parts)
        }
        # By address, the step that has written the words anew.
        self._first: dict[int, int] = {}

    def _steps(self) -> Iterator[tuple[int, Step]]:
        """Steps with their numbers, after noting the words that each writes anew."""
        layers = self._program.layers or (0,) * len(self._program.rows)
        for index, step in enumerate(self._program.rows):
            # Layers of one Program reuse addresses, so notes of one layer must not be found by the next.
            if index == 0 or layers[index] != layers[index - 1]:
                self._first = {}
            match step:
                case Stream() | Vector() if not step.adds_on:
                    self._first[step.result_base] = index
                case Fill() if index in self._added_to:
                    self._first |= {part.base: index for part in step.parts}
            yield index, step

    def _since(self, base: int, taken: Step) -> int:
        """First cycle of the data at `base`.

        If passes add to what another layer has left, it is the first write among the steps that `taken` waits for.
        """
        makers = [self._first[base]] if base in self._first else taken.after
        return min(self._written[each].start for each in makers if each in self._written)

    def held(self) -> Iterator[tuple[int, int, int]]:
        """(first cycle, cycle after the last, words) of every fill, and of every block of results that is spilled and
        does not stay.

        A word that is spilled from where it was filled counts once, and so does one that passes add to.
        """
        kept = {step.tensor.name for _, step in self._program.rows.steps(Keep)}
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
        """(cycle, 1 or -1, words) for every range that stays: when it is taken, and when it is let go."""
        read, readers = {**self._dma, **self._loads, **self._drains}, _readers_of_kept(self._program)
        for index, step in self._steps():
            if isinstance(step, Keep):
                makers = [self._program.rows[each] for each in step.after]
                since = min(self._since(each.result_base, step) for each in makers if isinstance(each, Stream | Vector))
                until = max(read[each].end for each in (*step.after, *readers[index]))
                for words in step.words_read:
                    yield since, 1, words
                    yield until, -1, words


def _staying(kept: Iterable[tuple[int, int, range]]) -> Iterator[tuple[int, int, int]]:
    """(cycle, cycle after the last, words) of stretches of time with a constant number of words that stay."""
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
    """Steps that read words of each Keep before these are overwritten."""
    # Words beyond the last Keep cannot be read as kept ones, so the table of owners ends there.
    ends = [words.stop for _, step in program.rows.steps(Keep) for words in step.words_read]
    whose = np.full(max(ends, default=0), -1)
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for index, step in enumerate(program.rows if ends else ()):
        if isinstance(step, Keep):
            for words in step.words_read:
                whose[words.start : words.stop] = index
            continue
        for words in step.words_read:
            for keep in np.unique(whose[words.start : words.stop]).tolist():
                readers[keep].append(index)
        for words in step.words_written:
            # A write ends the residence: later reads of these words belong to its own data.
            whose[words.start : words.stop] = -1
    return readers


def _by_step(timeline: Timeline, *tracks: str) -> Mapping[int, TimeSlice]:
    """The last slice of each step on tracks of these names, numbered tracks included."""
    named = re.compile(rf"({'|'.join(tracks)})(_\d+)?")
    return {each.step: each for name, track in timeline.tracks.items() if named.fullmatch(name) for each in track}


def _readers(program: Program) -> dict[int, list[int]]:
    """Preloads, streams, vector steps and spills that read each fill.

    If a block comes in several pieces, a stream waits for the last piece only, so earlier pieces have its readers.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for index, step in enumerate(program.rows):
        if isinstance(step, Preload | Stream | Vector | Spill):
            for fill in step.after:
                readers[fill].append(index)
    later: dict[str, list[int]] = {}
    for index, step in reversed([*enumerate(program.rows)]):
        if isinstance(step, Fill):
            later[step.tensor.name] = readers[index] = readers[index] or later.get(step.tensor.name, [])
    return readers
