"""Accounts and timelines of the units, drawn from the tables of a log.

When several layers run as one Program, the accounts are cut where one layer ends and the next begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import BIAS_CYCLES, CLIENTS, FREE, last_weight
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.columns import Columns, Records
from tpusim.machines.tpu.event.log import CAUSES, UNKNOWN, Log, Owners
from tpusim.machines.tpu.observation.drawing import MOST_CHANNELS, TimelineDrawing
from tpusim.machines.tpu.observation.timeline import (
    HOLDERS,
    PORT_CLIENTS,
    Cycles,
    Pieces,
    Timeline,
    Timing,
    Track,
    accounts,
    split,
    unit_name,
)
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Vector
from tpusim.machines.tpu.program.transfers import HBM


def timing_of(log: Log, program: Program, hardware: Hardware) -> Timing:
    """Close the accounts of a run, and those of each layer in a run of several."""
    uses: dict[str, Mapping[str, int]] = {}
    held = Track.of(holding(log.queue))
    for array in arrays_of(log, hardware, held):
        uses[array.name("systolic_array")] = _booked(array.waits()) + array.streaming_use()
        uses[array.name("preload")] = array.preload_use()
        uses[array.name("vector_unit")] = array.vector_unit_use()
    uses |= {name: _booked(bus(log.on_bus(name))) for name in log.buses}
    units = accounts(uses, log.owned, log.cycles, program.ports(hardware))
    held_bus, use = bus_use(log.columns, log.on_bus(HBM.bus), program), program.use
    whole = Timing(log.cycles, units, held_bus, use.port_reads, use.port_writes, log.hbm)
    return replace(whole, layers=shares(log, program, hardware, whole)) if program.layers else whole


def first_fill(log: Log) -> Counter[str]:
    """Cycles that the first array with passes waits, by cause, until the fills of its first pass or vector step are
    done.

    The wait for the next frame is included if the last fill caused it.
    """
    held, works, columns = Track.of(holding(log.queue)), log.works[:1], log.columns
    passes = log.passes[np.argsort(columns.rows["array"][log.passes["step"]], kind="stable")[:1]]
    if not len(passes) or (len(works) and works["ended"][0] < passes["ended"][0]):
        return _booked(waiting(held, works, "ended"))
    use, first = _booked(waiting(held, passes, "ended")), passes[0]
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
    for array in arrays_of(log, hardware, Track.of(())):
        np.maximum.at(ends, layers[array.passes["step"]], array.over)
    return [0, *np.maximum.accumulate(ends)[:-1].tolist(), log.cycles]


def shares(log: Log, program: Program, hardware: Hardware, whole: Timing) -> tuple[Timing, ...]:
    """Timing of each layer in a run of several; `whole` is the timing of all.

    Cycles in which passes stream and the vector unit works go to the layer whose steps took them. All others are cut in
    time, where one layer ends and the next begins.
    """
    cuts, layers = cuts_of(log, program, hardware), np.array(program.layers)
    arrays = [*arrays_of(log, hardware, Track.of(holding(log.queue)))]
    waits = [_counts(array.waits(), cuts) for array in arrays]
    shared = {
        **{array.name("preload"): _counts(array.preloading(), cuts) for array in arrays},
        **{name: _counts(bus(log.on_bus(name)), cuts) for name in log.buses},
        **{port: _owned(owners, cuts) for port, owners in log.owners.items()},
    }
    moves, found = log.on_bus(HBM.bus), []
    for number, use in enumerate(program.uses):
        cycles, counts = cuts[number + 1] - cuts[number], {unit: each[number] for unit, each in shared.items()}
        for array, waited in zip(arrays, waits, strict=True):
            mine = array.where(layers == number)
            counts[array.name("systolic_array")] = waited[number] + mine.streaming_use()
            counts[array.name("vector_unit")] = mine.vector_unit_use()
        units = {unit: split(counts[unit], cycles, tuple(account)[:-1]) for unit, account in whole.units.items()}
        held = bus_use(log.columns, moves[layers[moves["step"]] == number], program)
        found.append(Timing(cycles, units, held, use.port_reads, use.port_writes))
    return tuple(found)


# ---- arrays


def arrays_of(log: Log, hardware: Hardware, held: Track) -> Iterator[ArrayLog]:
    """The log of each array with weights of its own, or of all arrays that share weights; `held` tells what holds
    transfers when.
    """
    rows, arrays = log.columns.rows["array"], log.columns.arrays
    for array in range(arrays):
        loads = rows[log.loads["step"]] == array
        passes = log.passes[rows[log.passes["step"]] == array]
        reads = log.reads[loads] if len(log.reads) else log.reads
        yield ArrayLog(log, hardware, held, array, log.loads[loads], passes, log.works[array::arrays], reads)


_IN_FRAMES = {"busy": "issue_cycles", "port_stall": "port_stall", "blocked": "blocked"}
"""What an array does in a frame, in order, and the attribute of a frame with the cycles of it."""
_FRAME = (
    *_IN_FRAMES.values(), "period", "psum_delay", "finish_delay", "result_delay", "add_cycles", "finish_cycles",
    "together",
)  # fmt: skip
"""Attributes of frames that accounts need."""


@dataclass(frozen=True, eq=False)
class ArrayLog:
    """The part of the log that tells of an array, or of all arrays that share weights."""

    log: Log
    hardware: Hardware
    held: Track
    array: int
    loads: Records
    passes: Records
    works: Records
    reads: Cycles

    def name(self, unit: str) -> str:
        """Name of the account, or the track, of the array's unit."""
        return unit_name(unit, self.array)

    def where(self, steps: NDArray[np.bool_]) -> ArrayLog:
        """Of passes and vector steps only those for which `steps` has True, by their number."""
        passes, works = (each[steps[each["step"]]] for each in (self.passes, self.works))
        return replace(self, passes=passes, works=works)

    @cached_property
    def recipes(self) -> Records:
        """Return the recipe of each pass."""
        columns = self.log.columns
        recipes: Records = columns.passes[columns.rows["recipe"][self.passes["step"]]]
        return recipes

    @cached_property
    def frame(self) -> Records:
        """Return the frame of each pass."""
        each = [tuple(getattr(frame, name) for name in _FRAME) for frame in self.log.frames]
        table = np.array(each, [(name, np.int64) for name in _FRAME])
        frames: Records = table[self.log.columns.rows["pace"][self.passes["step"]]]
        return frames

    @cached_property
    def frames(self) -> Cycles:
        """The number of frames of each pass, without those that it loses to conflicts."""
        frames: Cycles = -(-self.recipes["words"] // self.frame["together"])
        return frames

    @cached_property
    def lost(self) -> Records:
        """Return the frames that each pass loses to conflicts of banks, and where its words are delivered."""
        conflicts = self.log.columns.conflicts
        lost: Records = np.append(conflicts, np.zeros(1, conflicts.dtype))[self.recipes["conflicts"]]
        return lost

    @property
    def over(self) -> Cycles:
        """The cycle after the last frame of each pass."""
        over: Cycles = self.passes["start"] - 1 + (self.frames + self.lost["frames"]) * self.frame["period"]
        return over

    # ---- accounts

    def waits(self) -> Iterator[Pieces]:
        """Pieces of an array that waits, or stands by while the vector unit works."""
        yield from waiting(self.held, self.passes, "ended")
        yield from _between(self.passes, ("waiting_weights", "filled", "loaded"), ("blocked", "loaded", "cleared"))
        step, cause, cleared = (self.passes[each] for each in ("step", "cause", "cleared"))
        for number, name in enumerate(CAUSES):
            yield Pieces(name, cleared, np.where(cause == number, self.passes["start"] - 1 - cleared, 0), step)
        yield from waiting(self.held, self.works, "ended")
        yield from _between(self.works, ("waiting_weights", "filled", "loaded"), ("blocked", "loaded", "issued"))
        yield from _between(self.works, ("vector_work", "issued", "done"))

    def streaming_use(self) -> Counter[str]:
        """Cycles of the array in the frames of its passes."""
        use = Counter({name: int(self.frames @ self.frame[of]) for name, of in _IN_FRAMES.items()})
        use["bank_conflict"] = int(self.lost["frames"] @ self.frame["period"])
        return use

    def vector_unit_use(self) -> Counter[str]:
        """Busy cycles of the vector unit, with partial sums and in steps of its own."""
        adding = self.recipes["accumulate"] * self.frame["add_cycles"]
        each = adding + self.recipes["finish"] * self.frame["finish_cycles"]
        columns = self.log.columns
        alone = columns.works["busy"][columns.rows["recipe"][self.works["step"]]]
        return Counter(busy=int(self.frames @ each + alone.sum()))

    def preload_use(self) -> Counter[str]:
        """Cycles of the weight path."""
        columns, loads = self.log.columns, self.loads
        biases = columns.loads["bias"][columns.rows["recipe"][loads["step"]]]
        busy = self.hardware.preload_cycles + BIAS_CYCLES * biases
        use = _booked(self._ahead_of_preloads())
        use["busy"] += int(busy.sum())
        use["port_stall"] += int((loads["last"] - loads["start"] - busy).sum())
        return use

    def _ahead_of_preloads(self) -> Iterator[Pieces]:
        """Pieces of the weight path until the port is asked for weights."""
        yield from _between(self.loads, ("blocked", "free", "ready"))
        yield from waiting(self.held, self.loads, "ready")
        filled = np.maximum(self.loads["ready"], self.loads["filled"])
        yield Pieces("blocked", filled, self.loads["start"] - filled, self.loads["step"])

    # ---- tracks

    def preloading(self) -> Iterator[Pieces]:
        """Pieces of the weight path: a word keeps it busy from its read until its weights or its bias have entered."""
        yield from self._ahead_of_preloads()
        entered = self.reads + self.hardware.weight_word_cycles
        # The last word of weights may be short; behind it comes that of the biases, if there is one.
        entered[:, -2] = last_weight(0, self.hardware) + self.reads[:, -2]
        entered[:, -1] = self.loads["last"]
        before = np.column_stack((self.loads["start"], entered[:, :-1]))
        read = self.reads != UNKNOWN
        steps = np.broadcast_to(self.loads["step"][:, None], read.shape)[read]
        before, reads, entered = before[read], self.reads[read], entered[read]
        yield Pieces("port_stall", before, reads - before, steps)
        yield Pieces("busy", reads, entered - reads, steps)

    def tracks(self, program: Program, span: range) -> Iterator[tuple[str, Iterable[Pieces]]]:
        """The tracks of the array; pieces of a frame or a cycle are made in `span` only."""
        yield "preload", self.preloading()
        yield "stream", [self._words("stream", 0)]
        yield "systolic_array", chain(self.waits(), self._busy(span))
        yield "drain", [self._words("drain", self.frame["result_delay"])]
        yield "vector_unit", [*self._adding(span), *self._working(program, span)]

    def _words(self, name: str, delay: Cycles | int) -> Pieces:
        """From the first word of each pass to its last, `delay` cycles after the ifmap read."""
        first = self._delivered(self.lost["words"])
        lost = self.lost["frames"] * self.frame["period"]
        together = self.frame["together"]
        last = (self.frames - 1) * self.frame["period"] + (self.recipes["words"] - 1) % together + 1
        return Pieces(name, self.passes["start"] + first + delay, last + lost - first, self.passes["step"])

    def _delivered(self, words: Cycles) -> Cycles:
        """When these words of `delivered` are; 0 for passes without conflicts."""
        delivered: Cycles = np.append(self.log.columns.delivered, 0)[np.where(self.recipes["conflicts"] < 0, -1, words)]
        return delivered

    def _busy(self, span: range) -> Iterator[Pieces]:
        """A frame for every word (of each array)."""
        at, begins, lost = self._frames(span, -1, self.frames)
        frame, steps = self.frame[at], self.passes["step"][at]
        yield Pieces("bank_conflict", begins - lost, lost, steps)
        for name, of in _IN_FRAMES.items():
            yield Pieces(name, begins, frame[of], steps)
            begins = begins + frame[of]

    def _adding(self, span: range) -> Iterator[Pieces]:
        """Work of the vector unit on each frame of passes that add to sums, and of those that finish results."""
        kinds = ("accumulate", "psum_delay", "add_cycles"), ("finish", "finish_delay", "finish_cycles")
        for does, delay, cycles in kinds:
            at, begins, _ = self._frames(span, self.frame[delay], self.frames * self.recipes[does])
            yield Pieces("busy", begins, self.frame[cycles][at], self.passes["step"][at])

    def _working(self, program: Program, span: range) -> Iterator[Pieces]:
        """Work of vector steps on every word, once its operands are read."""
        works = self.works[(self.works["start"] < span.stop) & (self.works["done"] > span.start)]
        for number, start in zip(works["step"].tolist(), works["start"].tolist(), strict=True):
            step = program.steps[number]
            assert isinstance(step, Vector)
            beat = step.beat(program.fill_of(number), self.hardware)
            begins = start + beat.work_delay + np.arange(beat.turns(step.words)) * beat.period
            yield Pieces("busy", begins, beat.work, number)

    def _frames(self, span: range, delay: Cycles | int, counts: Cycles) -> tuple[Cycles, Cycles, Cycles]:
        """(number of the pass, cycle, cycles lost before it) of each of the `counts` first frames of every pass in the
        span, `delay` after its ifmap slot.
        """
        begins, period = self.passes["start"] + delay, self.frame["period"]
        inside = (begins < span.stop) & (begins + (counts + self.lost["frames"]) * period > span.start)
        counts = np.where(inside, counts, 0)
        at = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        banked = self.recipes["conflicts"][at] >= 0
        delivered = np.append(self.log.columns.delivered, 0)[np.where(banked, self.lost["words"][at] + number, -1)]
        frames = number * period[at]
        late = np.where(banked, delivered - frames, 0)
        lost = np.where(number > 0, np.diff(late, prepend=0), late)
        return at, begins[at] + frames + late, lost


# ---- pieces


def holding(queue: Records) -> Iterator[Pieces]:
    """Pieces that name, at any time, what holds the oldest transfer to or from lanes or banks."""
    since = np.append(0, queue["done"])[: len(queue)]
    for name, held in zip(HOLDERS, ("freed", "come", "converted", "done"), strict=True):
        until = np.maximum(since, queue[held])
        yield Pieces(name, since, until - since, queue["step"])
        since = until


def waiting(held: Track, rows: Records, column: str) -> Iterator[Pieces]:
    """Waits for fills, from the cycle in a column on until `filled`, cut up by what holds the transfers meanwhile."""
    rows = rows[rows["filled"] > rows[column]]
    step, since, until = rows["step"], rows[column], rows["filled"]
    # Only pieces of `held` that overlap a wait are visited; two binary searches find the first and the last of them.
    first = held.ends.searchsorted(since, "right")
    counts = np.maximum(held.starts.searchsorted(until, "left") - first, 0)
    each = np.repeat(np.arange(len(step)), counts)
    at = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    starts, ends = np.maximum(held.starts[at], since[each]), np.minimum(held.ends[at], until[each])
    for kind, name in enumerate(held.names):
        yield Pieces(name, starts, np.where(held.kinds[at] == kind, ends - starts, 0), step[each])


def bus(moves: Records) -> Iterator[Pieces]:
    """Pieces of a bus, transfer by transfer."""
    step, stalled, ended = moves["step"], moves["stalled"], moves["ended"]
    waits = ended - moves["start"] - moves["busy"]
    yield from _between(moves, ("blocked", "free", "ready"), ("port_stall", "ready", "start"))
    yield from _between(moves, ("busy", "start", "stalled"))
    yield Pieces("port_stall", stalled, waits, step)
    yield Pieces("busy", stalled + waits, ended - stalled - waits, step)


def _between(rows: Records, *pieces: tuple[str, str, str]) -> Iterator[Pieces]:
    """Pieces of these names, each from the cycle in one column to that in another."""
    for name, since, until in pieces:
        yield Pieces(name, rows[since], rows[until] - rows[since], rows["step"])


def _booked(pieces: Iterable[Pieces]) -> Counter[str]:
    """Cycles by name, summed over the pieces."""
    use: Counter[str] = Counter()
    for each in pieces:
        use[each.name] += int(np.sum(each.cycles))
    return use


def labels_of(columns: Columns, moves: Records, program: Program) -> tuple[list[str], Cycles]:
    """Different labels of transfers, in order, and the number of each transfer's; those of a recipe have one label."""
    recipes, first, at = np.unique(columns.rows["recipe"][moves["step"]], return_index=True, return_inverse=True)
    numbers, known = np.zeros(len(recipes), np.int64), dict[str, int]()
    for recipe in np.argsort(first).tolist():
        numbers[recipe] = known.setdefault(program.steps[moves["step"][first[recipe]]].label, len(known))
    return [*known], numbers[at]


def bus_use(columns: Columns, moves: Records, program: Program) -> dict[str, int]:
    """Cycles of the HBM bus by the label of the transfer that has them."""
    labels, numbers = labels_of(columns, moves, program)
    sums = np.zeros(len(labels), np.int64)
    np.add.at(sums, numbers, moves["ended"] - moves["free"])
    return dict(zip(labels, sums.tolist(), strict=True))


def _counts(pieces: Iterable[Pieces], cuts: Sequence[int]) -> list[Counter[str]]:
    """Cycles of pieces between each cut and the next, by name. Pieces of one unit ascend and never overlap."""
    found: list[Counter[str]] = [Counter() for _ in cuts[1:]]
    for piece in pieces:
        starts, cycles = np.broadcast_arrays(np.atleast_1d(piece.starts), piece.cycles)
        begun = starts.searchsorted(cuts)
        # Prefix sums over all pieces; what the last begun piece has beyond a cut is taken off again.
        sums, ends = np.append(0, cycles.cumsum()), np.append(0, starts + cycles)
        until = sums[begun] - np.maximum(ends[begun] - cuts, 0)
        for count, more in zip(found, np.diff(until).tolist(), strict=True):
            count[piece.name] += more
    return found


def _owned(owners: Owners, cuts: Sequence[int]) -> list[Counter[str]]:
    """Cycles that each client owns between each cut and the next."""
    counts = (np.bincount(owners[first:stop], minlength=len(CLIENTS)).tolist() for first, stop in pairwise(cuts))
    return [Counter({name: n for name, n in zip(CLIENTS[1:], each[1:], strict=True) if n}) for each in counts]


# ---- timelines


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

        Pieces of a frame or a cycle are made for these cycles only, so that a part of a long run needs little memory.
        """
        span = range(first, self.cycles if stop is None else stop)
        log, program, hardware = self.log, self.program, self.hardware
        tracks: dict[str, Iterable[Pieces]] = {
            **{name: bus(log.on_bus(name)) for name in log.buses},
            # Two transfers may be under way at once, but not three.
            **{f"dma_{turn}": _transfers(log.columns, log.queue[turn::2], program) for turn in (0, 1)},
            "queue": holding(log.queue),
        }
        for array in arrays_of(log, hardware, Track.of(holding(log.queue))):
            tracks |= {array.name(unit): pieces for unit, pieces in array.tracks(program, span)}
            if len(log.works):
                # From the first operand of each step to its last result.
                tracks["vector"] = _between(array.works, ("vector", "start", "done"))
        tracks |= dict(_channels(log, program))
        drawn = {name: Track.of(pieces) for name, pieces in tracks.items()}
        ports = {name: _port(owners[span.start : span.stop], span.start) for name, owners in log.owners.items()}
        return Timeline(self.cycles, drawn | ports)

    def drawn(self, first: int, stop: int) -> TimelineDrawing:
        """The drawing that a trace shows, complete in cycles [first, stop)."""
        return TimelineDrawing(self.cycles, self.program, self.timeline(first, stop), self.hardware)


def _transfers(columns: Columns, moves: Records, program: Program) -> Iterator[Pieces]:
    """Pieces of transfers."""
    labels, numbers = labels_of(columns, moves, program)
    for number, label in enumerate(labels):
        yield from _between(moves[numbers == number], (label, "start", "done"))


def _channels(log: Log, program: Program) -> Iterator[tuple[str, Iterable[Pieces]]]:
    """A track for each channel of the DRAM, up to MOST_CHANNELS; its slices are transfers and never overlap."""
    if not log.spans:
        return
    moves = log.on_bus(HBM.bus)
    labels, numbers = labels_of(log.columns, moves, program)
    at = np.repeat(np.arange(len(moves)), [len(span.channels) for span in log.spans])
    channels, first, last = (np.concatenate(columns) for columns in zip(*log.spans, strict=True))
    for channel in range(min(int(channels.max(initial=-1)) + 1, MOST_CHANNELS)):
        here = channels == channel
        ends, its = np.maximum.accumulate(last[here]), at[here]
        starts = np.minimum(np.maximum(first[here], np.append(0, ends[:-1])), ends)
        lasting = ((name, np.where(numbers[its] == number, ends - starts, 0)) for number, name in enumerate(labels))
        yield f"hbm_channel_{channel}", [Pieces(name, starts, each, moves["step"][its]) for name, each in lasting]


def _port(owners: Owners, first: int) -> Track:
    """The track of a port whose cycles from `first` on belong to `owners`."""
    bounds = np.flatnonzero(np.diff(owners, prepend=FREE, append=FREE))
    starts, ends = bounds[:-1], bounds[1:]
    owned = owners[starts] != FREE
    starts, ends = starts[owned], ends[owned]
    kinds, none = owners[starts].astype(np.int64) - 1, np.full(len(starts), -1)
    return Track(PORT_CLIENTS, starts + first, ends + first, kinds, none)
