"""Accounts and timelines of the units, drawn from the tables of a log.

When several layers run as one Program, the accounts are cut where one layer ends and the next begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import BIAS_CYCLES, CLIENTS, FREE, last_weight
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.columns import Records
from tpusim.machines.tpu.event.log import (
    BLOCKED,
    CAUSES,
    PORT_STALL,
    UNKNOWN,
    VECTOR_WORK,
    WAITING_WEIGHTS,
    Log,
    Owners,
)
from tpusim.machines.tpu.observation.drawing import MOST_CHANNELS, TimelineDrawing
from tpusim.machines.tpu.observation.timeline import (
    HOLDERS,
    PORT_CLIENTS,
    Cycles,
    Timeline,
    Timing,
    Track,
    accounts,
    unit_name,
)
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Vector
from tpusim.machines.tpu.program.tensors import HBM

STATES = *CAUSES, "busy", "bank_conflict"
"""States of units, by their number in slices."""
BUSY, BANK_CONFLICT = range(len(CAUSES), len(STATES))

_AT_ONCE = 1 << 18
"""Transfers that are looked at together."""

Slices: TypeAlias = NDArray[np.int64]
"""Slices of a unit's time, which never overlap: int64[4, slices], their states, first cycles, cycles and steps."""


def timing_of(log: Log, program: Program, hardware: Hardware) -> Timing:
    """Close the accounts of a run, and those of each layer in a run of several.

    A layer has what units do in its time, whichever layer they serve.
    """
    cuts = np.array(cuts_of(log, program, hardware) if program.layers else (0, log.cycles))
    moves, ports = log.on_bus(HBM.bus), program.ports(hardware)
    of_buses = {name: _cut(bus(log.on_bus(name)), cuts) for name in log.buses}
    held, uses = holding(log.queue), dict[str, list[Counter[str]]]()
    for array in arrays_of(log, hardware):
        uses[array.name("systolic_array")] = array.systolic_array_use(held, cuts)
        uses[array.name("preload")] = array.preload_use(held, cuts)
        uses[array.name("vector_unit")] = array.vector_unit_use(cuts)
    uses |= of_buses
    units = accounts({unit: _sum(each) for unit, each in uses.items()}, log.owned, log.cycles, ports)
    use = program.use
    whole = Timing(log.cycles, units, bus_use(log, moves, program), use.port_reads, use.port_writes, log.hbm)
    if not program.layers:
        return whole
    layers, found = np.array(program.layers)[moves["step"]], list[Timing]()
    owned = _sums(*(_owned(owners, cuts) for owners in log.owners.values()))
    for number, (use, cycles) in enumerate(zip(program.uses, np.diff(cuts).tolist(), strict=True)):
        units = accounts({unit: each[number] for unit, each in uses.items()}, owned[number], cycles, ports)
        moved = bus_use(log, moves[layers == number], program)
        found.append(Timing(cycles, units, moved, use.port_reads, use.port_writes))
    return replace(whole, layers=tuple(found))


def first_fill(log: Log) -> Counter[str]:
    """Cycles that the first array with passes waits, by cause, until the fills of its first pass or vector step are
    done.

    The wait for the next frame is included if the last fill caused it.
    """
    held, works, columns = holding(log.queue), log.works[:1], log.columns
    passes = log.passes[np.argsort(columns.rows["array"][log.passes["step"]], kind="stable")[:1]]
    if not len(passes) or (len(works) and works["ended"][0] < passes["ended"][0]):
        return _use(waiting(held, works, "ended"))
    use, first = _use(waiting(held, passes, "ended")), passes[0]
    table = columns.passes["table"][columns.rows["recipe"][first["step"]]]
    if first["cleared"] == first["filled"] and table < 0:
        use[CAUSES[first["cause"]]] += int(first["start"] - 1 - first["filled"])
    return use


def cuts_of(log: Log, program: Program, hardware: Hardware) -> list[int]:
    """First cycle of each layer, and the cycle after the last layer: a layer ends when all arrays have ended its
    steps.
    """
    layers = np.array(program.layers)
    ends = np.zeros(layers.max() + 1, np.int64)
    np.maximum.at(ends, layers[log.works["step"]], log.works["done"])
    for array in arrays_of(log, hardware):
        over = array.passes["start"] - 1 + array.frames * array.frame("period") + array.lost
        np.maximum.at(ends, layers[array.passes["step"]], over)
    return [0, *np.maximum.accumulate(ends)[:-1].tolist(), log.cycles]


# ---- slices


def holding(queue: Records) -> Track:
    """A track that names, at any time, what holds the oldest transfer to or from lanes or banks."""
    # Of millions of transfers most have few holders.
    parts = [_holders(queue, range(len(queue))[first : first + _AT_ONCE]) for first in range(0, len(queue), _AT_ONCE)]
    starts, ends, kinds, steps = map(np.concatenate, zip(*parts or [_holders(queue, range(0))], strict=True))
    return Track(HOLDERS, starts, ends, kinds, steps)


def _holders(queue: Records, which: range) -> tuple[NDArray[Any], ...]:
    """First cycles, ends, kinds and transfers of the slices of some transfers, in order."""
    ends = "freed", "come", "converted", "done"
    some, cycles = queue[which.start : which.stop], np.zeros((len(which), 1 + len(ends)), np.int64)
    # Transfers end in order, so each of them is the oldest from the end of the one before.
    before = max(which.start - 1, 0)
    cycles[which.start == 0 :, 0] = queue["done"][before : max(which.stop - 1, before)]
    for number, each in enumerate(ends, 1):
        cycles[:, number] = np.maximum(cycles[:, number - 1], some[each])
    at, kinds = np.nonzero(cycles[:, :-1] < cycles[:, 1:])
    starts, stops, steps = cycles[at, kinds], cycles[at, kinds + 1], some["step"][at]
    return starts, stops, kinds.astype(np.int32), steps.astype(np.int32)


def waiting(held: Track, rows: Records, since: str) -> Slices:
    """Waits of steps for fills, from the cycle in a column of their log on until they are `filled`, cut up by what
    holds the transfers meanwhile.
    """
    rows = rows[rows["filled"] > rows[since]]
    begun, filled = rows[since], rows["filled"]
    # Only slices of `held` that overlap a wait are visited; two binary searches find the first and the last of them.
    first = held.ends.searchsorted(begun, "right")
    counts = np.maximum(held.starts.searchsorted(filled, "left") - first, 0)
    each = np.repeat(np.arange(len(rows)), counts)
    at = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    starts, ends = np.maximum(held.starts[at], begun[each]), np.minimum(held.ends[at], filled[each])
    return _slices(held.kinds[at], starts, ends - starts, rows["step"][each])


def bus(moves: Records) -> Iterator[Slices]:
    """Slices of a bus, transfer by transfer, kind by kind: of millions of transfers not all at once."""
    waits = moves["ended"] - moves["start"] - moves["busy"]
    moving, step = moves["stalled"] + waits, moves["step"]
    yield _between(BLOCKED, moves, "free", "ready")
    yield _between(PORT_STALL, moves, "ready", "start")
    yield _between(BUSY, moves, "start", "stalled")
    yield _slices(PORT_STALL, moves["stalled"], waits, step)
    yield _slices(BUSY, moving, moves["ended"] - moving, step)


def _slices(state: int | Cycles, starts: Cycles, cycles: Cycles, steps: Cycles) -> Slices:
    found = np.empty((4, len(starts)), np.int64)
    found[0], found[1], found[2], found[3] = state, starts, cycles, steps
    return found


def _between(state: int, rows: Records, since: str, until: str) -> Slices:
    """Slices from the cycle in one column of a log to that in another."""
    return _slices(state, rows[since], rows[until] - rows[since], rows["step"])


def _named(name: str, starts: Cycles, cycles: Cycles, steps: Cycles) -> Track:
    """A track of slices with one name."""
    return Track.in_order((name,), np.zeros(len(starts), np.int64), starts, cycles, steps)


def _joined(*slices: Slices) -> Slices:
    joined: Slices = np.concatenate(slices, axis=1)
    return joined


def _use(slices: Slices) -> Counter[str]:
    """Cycles by state."""
    sums = np.bincount(slices[0], slices[2], minlength=len(STATES)).tolist()
    return Counter({name: int(each) for name, each in zip(STATES, sums, strict=True)})


def _cut(parts: Iterable[Slices], cuts: Cycles) -> list[Counter[str]]:
    """Cycles between each cut and the next, by state, of slices in parts."""
    if len(cuts) == 2:
        return [_sum(map(_use, parts))]
    found: list[Counter[str]] = [Counter() for _ in cuts[1:]]
    slices = _joined(*parts)
    slices = slices[:, slices[2] > 0]
    slices = slices[:, np.argsort(slices[1])]
    for state, name in enumerate(STATES):
        _, starts, cycles, _ = slices[:, slices[0] == state]
        begun = starts.searchsorted(cuts)
        # Prefix sums over all slices; what the last begun slice has beyond a cut is taken off again.
        sums, ends = np.append(0, cycles.cumsum()), np.append(0, starts + cycles)
        until = sums[begun] - np.maximum(ends[begun] - cuts, 0)
        for count, more in zip(found, np.diff(until).tolist(), strict=True):
            count[name] = more
    return found


def _between_cuts(uses: Mapping[str, Cycles], cut: Cycles, cuts: Cycles) -> list[Counter[str]]:
    """Cycles by state of whatever is between two cuts, given the number of the latter."""
    counts = {state: np.zeros(len(cuts) + 1, np.int64) for state in uses}
    for state, cycles in uses.items():
        np.add.at(counts[state], cut, cycles)
    return [Counter({state: int(count[at]) for state, count in counts.items()}) for at in range(1, len(cuts))]


def _sums(*shares: Iterable[Counter[str]]) -> list[Counter[str]]:
    """Sums of counts, layer by layer."""
    return [_sum(each) for each in zip(*shares, strict=True)]


def _sum(counts: Iterable[Counter[str]]) -> Counter[str]:
    found = Counter[str]()
    for each in counts:
        found.update(each)
    return found


def _owned(owners: Owners, cuts: Cycles) -> list[Counter[str]]:
    """Cycles that each client owns between each cut and the next."""
    counts = (
        np.bincount(owners[first:stop], minlength=len(CLIENTS)).tolist() for first, stop in pairwise(cuts.tolist())
    )
    return [Counter(dict(zip(CLIENTS[1:], each[1:], strict=True))) for each in counts]


# ---- arrays


def arrays_of(log: Log, hardware: Hardware) -> Iterator[ArrayLog]:
    """The log of each array with weights of its own, or of all arrays that share weights."""
    if log.columns.arrays == 1:
        yield ArrayLog(log, hardware, 0, log.loads, log.passes, log.works, log.reads)
        return
    rows = log.columns.rows["array"]
    for array in range(log.columns.arrays):
        mine = rows[log.loads["step"]] == array
        passes, works = log.passes[rows[log.passes["step"]] == array], log.works[array :: log.columns.arrays]
        yield ArrayLog(log, hardware, array, log.loads[mine], passes, works, log.reads[mine[: len(log.reads)]])


_IN_FRAMES = {BUSY: "issue_cycles", PORT_STALL: "port_stall", BLOCKED: "blocked"}
"""States of an array in a frame, in order, and the attribute of a frame with the cycles of each."""
_ADDING = {"accumulate": ("psum_delay", "add_cycles"), "finish": ("finish_delay", "finish_cycles")}
"""What the vector unit does with words of a pass, when after the read of an ifmap word, and for how long."""
_FRAME = *_IN_FRAMES.values(), *sum(_ADDING.values(), ()), "period", "result_delay", "together"


@dataclass(frozen=True, eq=False)
class ArrayLog:
    """The part of the log that tells of an array, or of all arrays that share weights."""

    log: Log
    hardware: Hardware
    array: int
    loads: Records
    passes: Records
    works: Records
    reads: Cycles

    def name(self, unit: str) -> str:
        """Name of the account, or the track, of the array's unit."""
        return unit_name(unit, self.array)

    @cached_property
    def _kinds(self) -> tuple[Records, NDArray[np.int32], Records, NDArray[np.int32]]:
        """The recipes of passes, and the number of each pass's; the frames, and the number of each pass's."""
        columns, steps = self.log.columns, self.passes["step"]
        frames = [tuple(getattr(frame, name) for name in _FRAME) for frame in self.log.frames]
        table = np.array(frames, [(name, np.int64) for name in _FRAME])
        return columns.passes, columns.rows["recipe"][steps], table, columns.rows["pace"][steps]

    def recipe(self, name: str) -> Cycles:
        """What the recipe of each pass says."""
        recipes, mine, _, _ = self._kinds
        said: Cycles = recipes[name][mine]
        return said

    def frame(self, name: str) -> Cycles:
        """What the frame of each pass says."""
        _, _, frames, mine = self._kinds
        said: Cycles = frames[name][mine]
        return said

    @cached_property
    def frames(self) -> Cycles:
        """The number of frames of each pass, without those that it loses to conflicts of banks."""
        frames: Cycles = -(-self.recipe("words") // self.frame("together"))
        return frames

    @property
    def lost(self) -> Cycles:
        """The cycles that each pass loses to conflicts of banks."""
        frames = np.append(self.log.columns.conflicts["frames"], 0)[self.recipe("conflicts")]
        lost: Cycles = frames * self.frame("period")
        return lost

    # ---- accounts

    def waits(self, held: Track) -> Iterator[Slices]:
        """Slices of an array that waits, or stands by while the vector unit works; `held` tells what holds transfers
        when.
        """
        passes, works, cleared = self.passes, self.works, self.passes["cleared"]
        yield waiting(held, passes, "ended")
        yield _between(WAITING_WEIGHTS, passes, "filled", "loaded")
        yield _between(BLOCKED, passes, "loaded", "cleared")
        yield _slices(passes["cause"], cleared, passes["start"] - 1 - cleared, passes["step"])
        yield waiting(held, works, "ended")
        yield _between(WAITING_WEIGHTS, works, "filled", "loaded")
        yield _between(BLOCKED, works, "loaded", "issued")
        yield _between(VECTOR_WORK, works, "issued", "done")

    def systolic_array_use(self, held: Track, cuts: Cycles) -> list[Counter[str]]:
        """Cycles of the array between each cut and the next: it waits, or frames of its passes go on."""
        uses = {STATES[state]: self.frames * self.frame(of) for state, of in _IN_FRAMES.items()}
        uses |= {STATES[BANK_CONFLICT]: self.lost}
        return _sums(_cut(self.waits(held), cuts), self._in_frames(cuts, -1, self.frames, uses, self._busy))

    def vector_unit_use(self, cuts: Cycles) -> list[Counter[str]]:
        """Busy cycles of the vector unit between each cut and the next, with words of passes and in steps of its own.

        No layer ends within a vector step.
        """
        columns = self.log.columns
        alone = {STATES[BUSY]: columns.works["busy"][columns.rows["recipe"][self.works["step"]]]}
        found = [_between_cuts(alone, cuts.searchsorted(self.works["start"], "right"), cuts)]
        for does, (delay, of) in _ADDING.items():
            counts = self._added(does)
            busy = {STATES[BUSY]: counts * self.frame(of)}
            found.append(self._in_frames(cuts, self.frame(delay), counts, busy, partial(self._adding, does)))
        return _sums(*found)

    def _added(self, does: str) -> Cycles:
        """The frames of each pass in which the vector unit does that."""
        added: Cycles = self.frames * self.recipe(does)
        return added

    def _in_frames(
        self, cuts: Cycles, delay: Cycles | int, counts: Cycles, uses: Mapping[str, Cycles],
        slices: Callable[[NDArray[np.bool_]], Slices],
    ) -> list[Counter[str]]:  # fmt: skip
        """Cycles between each cut and the next: what each pass `uses` in `counts` frames, the first of which begins
        `delay` cycles after its ifmap slot. Of passes over which there is a cut, `slices` are made.
        """
        if len(cuts) == 2:
            return [Counter({state: int(cycles.sum()) for state, cycles in uses.items()})]
        begins = self.passes["start"] + delay
        first = cuts.searchsorted(begins, "right")
        over = cuts.searchsorted(begins + counts * self.frame("period") + self.lost) > first
        whole = {state: np.where(over, 0, cycles) for state, cycles in uses.items()}
        return _sums(_cut([slices(over)], cuts), _between_cuts(whole, first, cuts))

    def preload_use(self, held: Track, cuts: Cycles) -> list[Counter[str]]:
        """Cycles of the weight path between each cut and the next."""
        if len(cuts) > 2:
            return _cut([self.preloading(held)], cuts)
        columns, loads, use = self.log.columns, self.loads, _sum(map(_use, self._ahead_of_preloads(held)))
        biases = columns.loads["bias"][columns.rows["recipe"][loads["step"]]]
        busy = len(loads) * self.hardware.preload_cycles + BIAS_CYCLES * int(biases.sum())
        use["busy"] += busy
        use["port_stall"] += int((loads["last"] - loads["start"]).sum()) - busy
        return [use]

    def _ahead_of_preloads(self, held: Track) -> Iterator[Slices]:
        """Slices of the weight path until the port is asked for weights."""
        loads, filled = self.loads, np.maximum(self.loads["ready"], self.loads["filled"])
        yield _between(BLOCKED, loads, "free", "ready")
        yield waiting(held, loads, "ready")
        yield _slices(BLOCKED, filled, loads["start"] - filled, loads["step"])

    # ---- tracks

    def preloading(self, held: Track) -> Slices:
        """Slices of the weight path: a word keeps it busy from its read until its weights or its bias have entered."""
        entered = self.reads + self.hardware.weight_word_cycles
        # The last word of weights may be short; behind it comes that of the biases, if there is one.
        entered[:, -2] = last_weight(0, self.hardware) + self.reads[:, -2]
        entered[:, -1] = self.loads["last"]
        before, there = np.column_stack((self.loads["start"], entered[:, :-1])), self.reads != UNKNOWN
        step = np.broadcast_to(self.loads["step"][:, None], there.shape)[there]
        before, read, entered = before[there], self.reads[there], entered[there]
        return _joined(
            *self._ahead_of_preloads(held),
            _slices(PORT_STALL, before, read - before, step),
            _slices(BUSY, read, entered - read, step),
        )

    def tracks(self, program: Program, held: Track, span: range) -> Iterator[tuple[str, Track]]:
        """The tracks of the array; slices of a frame or a cycle are made in `span` only."""
        yield "preload", Track.in_order(STATES, *self.preloading(held))
        yield "stream", self._words("stream", 0)
        yield (
            "systolic_array",
            Track.in_order(STATES, *_joined(*self.waits(held), self._busy(self._within(span, -1, self.frames)))),
        )
        yield "drain", self._words("drain", self.frame("result_delay"))
        adding = (
            self._adding(does, self._within(span, self.frame(delay), self._added(does)))
            for does, (delay, _) in _ADDING.items()
        )
        yield "vector_unit", Track.in_order(STATES, *_joined(*adding, *self._working(program, span)))

    def _words(self, name: str, delay: Cycles | int) -> Track:
        """From the first word of each pass to its last, `delay` cycles after the ifmap read."""
        together, first = self.frame("together"), self._late(np.arange(len(self.passes)), np.zeros_like(self.frames))
        last = (self.frames - 1) * self.frame("period") + (self.recipe("words") - 1) % together + 1
        return _named(name, self.passes["start"] + first + delay, last + self.lost - first, self.passes["step"])

    def _within(self, span: range, delay: Cycles | int, counts: Cycles) -> NDArray[np.bool_]:
        """Whether frames of each pass, `counts` of them from `delay` cycles after its ifmap slot on, reach into the
        span.
        """
        begins = self.passes["start"] + delay
        ends = begins + counts * self.frame("period") + self.lost
        within: NDArray[np.bool_] = (begins < span.stop) & (ends > span.start)
        return within

    def _busy(self, which: NDArray[np.bool_]) -> Slices:
        """A frame for every word (of each array), of some passes."""
        at, begins, lost = self._frames(-1, np.where(which, self.frames, 0))
        steps = self.passes["step"][at]
        found = [_slices(BANK_CONFLICT, begins - lost, lost, steps)]
        for state, of in _IN_FRAMES.items():
            cycles = self.frame(of)[at]
            found.append(_slices(state, begins, cycles, steps))
            begins = begins + cycles
        return _joined(*found)

    def _adding(self, does: str, which: NDArray[np.bool_]) -> Slices:
        """Work of the vector unit on each frame of some passes, that add to sums or finish results."""
        delay, cycles = _ADDING[does]
        at, begins, _ = self._frames(self.frame(delay), np.where(which, self._added(does), 0))
        return _slices(BUSY, begins, self.frame(cycles)[at], self.passes["step"][at])

    def _working(self, program: Program, span: range) -> Iterator[Slices]:
        """Work of vector steps on every word, once its operands are read."""
        works = self.works[(self.works["start"] < span.stop) & (self.works["done"] > span.start)]
        for number, start in zip(works["step"].tolist(), works["start"].tolist(), strict=True):
            step = program.rows[number]
            assert isinstance(step, Vector)
            beat = step.beat(program.fill_of(number), self.hardware)
            begins = start + beat.work_delay + np.arange(beat.turns(step.words)) * beat.period
            yield _slices(BUSY, begins, np.full(len(begins), beat.work), np.full(len(begins), number))

    def _frames(self, delay: Cycles | int, counts: Cycles) -> tuple[Cycles, Cycles, Cycles]:
        """(number of the pass, cycle, cycles lost before it) of each of the `counts` first frames of every pass,
        `delay` after its ifmap slot.
        """
        begins, period = self.passes["start"] + delay, self.frame("period")
        at = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        late = self._late(at, number)
        lost = np.where(number > 0, np.diff(late, prepend=0), late)
        return at, begins[at] + number * period[at] + late, lost

    def _late(self, at: Cycles, number: Cycles) -> Cycles:
        """The cycles by which conflicts make words late, given the places of passes, and numbers of words in them."""
        columns, conflicts = self.log.columns, self.recipe("conflicts")[at]
        first = np.append(columns.conflicts["words"], len(columns.delivered))[conflicts]
        delivered = np.append(columns.delivered, 0)[np.where(conflicts < 0, -1, first + number)]
        late: Cycles = np.where(conflicts < 0, 0, delivered - number * self.frame("period")[at])
        return late


# ---- transfers, and timelines


def labels_of(log: Log, moves: Records, program: Program) -> tuple[list[str], Cycles]:
    """Different labels of transfers, in order, and the number of each transfer's; those of a recipe have one label."""
    recipes, first, at = np.unique(log.columns.rows["recipe"][moves["step"]], return_index=True, return_inverse=True)
    numbers, known = np.zeros(len(recipes), np.int64), dict[str, int]()
    order = np.argsort(first)
    for recipe, step in zip(order.tolist(), moves["step"][first[order]].tolist(), strict=True):
        numbers[recipe] = known.setdefault(program.rows.recipe(step).label, len(known))
    return [*known], numbers[at]


def bus_use(log: Log, moves: Records, program: Program) -> dict[str, int]:
    """Cycles of the HBM bus by the label of the transfer that has them."""
    labels, numbers = labels_of(log, moves, program)
    sums = np.bincount(numbers, moves["ended"] - moves["free"], minlength=len(labels))
    return {label: int(each) for label, each in zip(labels, sums.tolist(), strict=True)}


@dataclass(frozen=True, eq=False)
class Recording:
    """A run of `program`, with the owners of all cycles of ports, from which timelines can be drawn."""

    log: Log
    program: Program
    hardware: Hardware

    @property
    def cycles(self) -> int:
        """The cycles of the layer."""
        return self.log.cycles

    def timeline(self, first: int = 0, stop: int | None = None) -> Timeline:
        """Every track, complete at least in cycles [first, stop), to the end without a `stop`.

        Slices of a frame or a cycle are made for these cycles only, so that a part of a long run needs little memory.
        """
        span = range(first, self.cycles if stop is None else stop)
        log, held = self.log, holding(self.log.queue)
        tracks = {
            **{name: Track.in_order(STATES, *_joined(*bus(log.on_bus(name)))) for name in log.buses},
            # Two transfers may be under way at once, but not three.
            **{f"dma_{turn}": _transfers(log, log.queue[turn::2], self.program) for turn in (0, 1)},
            "queue": held,
        }
        for array in arrays_of(log, self.hardware):
            tracks |= {array.name(unit): track for unit, track in array.tracks(self.program, held, span)}
            if len(works := array.works):
                # From the first operand of each step to its last result.
                lasting = works["done"] - works["start"]
                tracks["vector"] = _named("vector", works["start"], lasting, works["step"])
        ports = {name: _port(owners[span.start : span.stop], span.start) for name, owners in log.owners.items()}
        return Timeline(self.cycles, tracks | dict(_channels(log, self.program)) | ports)

    def drawn(self, first: int, stop: int) -> TimelineDrawing:
        """The drawing that a trace shows, complete in cycles [first, stop)."""
        return TimelineDrawing(self.cycles, self.program, self.timeline(first, stop), self.hardware)


def _transfers(log: Log, moves: Records, program: Program) -> Track:
    """The track of transfers by their labels."""
    labels, numbers = labels_of(log, moves, program)
    return Track.in_order((*labels,), numbers, moves["start"], moves["done"] - moves["start"], moves["step"])


def _channels(log: Log, program: Program) -> Iterator[tuple[str, Track]]:
    """A track for each channel of the DRAM, up to MOST_CHANNELS; its slices are transfers and never overlap."""
    if not log.spans:
        return
    moves = log.on_bus(HBM.bus)
    labels, numbers = labels_of(log, moves, program)
    at = np.repeat(np.arange(len(moves)), [len(span.channels) for span in log.spans])
    channels, first, last = (np.concatenate(columns) for columns in zip(*log.spans, strict=True))
    for channel in range(min(int(channels.max(initial=-1)) + 1, MOST_CHANNELS)):
        here = channels == channel
        ends, its = np.maximum.accumulate(last[here]), at[here]
        starts = np.minimum(np.maximum(first[here], np.append(0, ends[:-1])), ends)
        track = Track.in_order((*labels,), numbers[its], starts, ends - starts, moves["step"][its])
        yield f"hbm_channel_{channel}", track


def _port(owners: Owners, first: int) -> Track:
    """The track of a port whose cycles from `first` on belong to `owners`."""
    bounds = np.flatnonzero(np.diff(owners, prepend=FREE, append=FREE))
    starts, ends = bounds[:-1], bounds[1:]
    owned = owners[starts] != FREE
    starts, ends = starts[owned], ends[owned]
    kinds, none = owners[starts].astype(np.int64) - 1, np.full(len(starts), -1)
    return Track(PORT_CLIENTS, starts + first, ends + first, kinds, none)
