"""Accounts and timelines of the units, drawn from the log and from the calendars of the ports.

When several layers run as one Program, the accounts are cut where one layer ends and the next begins.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import BIAS_CYCLES, CLIENTS, FREE, WEIGHT, Frame, last_weight
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.board import DmaTransfer, Loads, Log, Passes, StandBy
from tpusim.machines.tpu.event.calendar import Owners, Ports
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
from tpusim.machines.tpu.program.steps import Stream, Vector, bias_words_of


def timing_of(log: Log, port: Ports, program: Program, hardware: Hardware) -> Timing:
    """Close the accounts of a run."""
    uses: dict[str, Mapping[str, int]] = {}
    held = Track.of(holding(log.queue))
    for array, mine in log.of_arrays(program, hardware):
        uses[unit_name("systolic_array", array)] = array_use(mine, program, held)
        late = [(each.steps[0], each.ready, each.filled) for each in mine.loads if each.filled > each.ready]
        use = _booked(waiting(held, late))
        for each in mine.loads:
            times, biases = len(each.steps), bias_words_of(program.steps[each.steps[0]])
            cycles = hardware.preload_cycles + BIAS_CYCLES * biases
            use["busy"] += times * cycles
            use["blocked"] += times * (each.ready - each.free + each.start - max(each.ready, each.filled))
            use["port_stall"] += times * (each.last - each.start - cycles)
        uses[unit_name("preload", array)] = use
        uses[unit_name("vector_unit", array)] = vector_unit_use(mine, program, hardware)
    uses |= {name: _booked(bus(moves)) for name, moves in log.buses.items()}
    found = accounts(uses, port.owned, log.cycles, program.ports(hardware))
    reads, writes = program.use.port_reads, program.use.port_writes
    return Timing(log.cycles, found, bus_use(log.moves, program), reads, writes, log.hbm)


def array_use(log: Log, program: Program, held: Track) -> Counter[str]:
    """Cycles of the array by what it does or waits for, over all steps in `log`; `held` tells what holds transfers
    when."""
    # Only the first of repeated passes can wait for a fill: the others were repeated because nothing they need is late.
    late = [(each.steps[0], each.ended, each.filled) for each in log.passes if each.filled > each.ended]
    use = _booked(chain(waiting(held, late), _standing_by(log.works, held)))
    for each in log.passes:
        times = len(each.steps)
        use["waiting_weights"] += times * (each.loaded - each.filled)
        use["blocked"] += times * (each.cleared - each.loaded)
        use[each.cause] += times * (each.start - 1 - each.cleared)
    return use + streaming_use(log, program)


def streaming_use(log: Log, program: Program) -> Counter[str]:
    """Cycles of the array in the frames of the passes in `log`."""
    use: Counter[str] = Counter()
    for frame, mine in log.by_frame(program):
        frames = 0
        for each in mine.passes:
            frames += len(each.steps) * frame.frames(_stream(each, program).words)
            use["bank_conflict"] += len(each.steps) * each.lost * frame.period
        use["busy"] += frames * frame.issue_cycles
        use["port_stall"] += frames * frame.port_stall
        use["blocked"] += frames * frame.blocked
    return use


def first_fill(log: Log, program: Program) -> Counter[str]:
    """Cycles that the array waits, by cause, until the fills of its first pass or vector step are done.

    The wait for the next frame is included if the last fill caused it.
    """
    passes = [(each.ended, each.filled, each) for each in log.passes[:1]]
    works = [(each.ended, each.filled, None) for each in log.works[:1]]
    ended, filled, first = min((*passes, *works), key=lambda each: each[0])
    use = _booked(waiting(Track.of(holding(log.queue)), [(-1, ended, filled)]))
    if first and first.cleared == filled and not _stream(first, program).reads.table:
        use[first.cause] += first.start - 1 - filled
    return use


def vector_unit_use(log: Log, program: Program, hardware: Hardware) -> Counter[str]:
    """Busy cycles of the vector unit, with partial sums and in steps of its own, over all steps in `log`."""
    busy = 0
    for frame, mine in log.by_frame(program):
        streams = ((len(each.steps), _stream(each, program)) for each in mine.passes if each.steps)
        busy += sum(times * frame.frames(stream.words) * frame.work(stream.accumulate, bool(stream.finish))
                    for times, stream in streams)  # fmt: skip
    for each in log.works:
        step = program.steps[each.step]
        assert isinstance(step, Vector)
        beat = step.beat(program.fill_of(each.step), hardware)
        busy += beat.turns(step.words) * beat.work
    return Counter(busy=busy)


def _booked(pieces: Iterable[Pieces]) -> Counter[str]:
    """Cycles by name, summed over the pieces."""
    use: Counter[str] = Counter()
    for each in pieces:
        use[each.name] += int(np.sum(each.cycles))
    return use


def _stream(each: Passes, program: Program) -> Stream:
    """The first stream of a record of passes; the others in it are like the first."""
    step = program.steps[each.steps[0]]
    assert isinstance(step, Stream)
    return step


def bus_use(moves: Iterable[DmaTransfer], program: Program) -> dict[str, int]:
    """Cycles of the HBM bus by the label of the transfer that has them."""
    held: Counter[str] = Counter()
    for each in moves:
        held[program.steps[each.step].label] += each.ended - each.free
    return dict(held)


@dataclass(frozen=True, eq=False)
class Recording:
    """A run of `program` from which timelines can be drawn; `ports` are the owners of lane 0's ports, by account."""

    log: Log
    ports: Mapping[str, Owners]
    program: Program
    hardware: Hardware

    @property
    def cycles(self) -> int:
        """The cycles of the layer."""
        return self.log.cycles

    @cached_property
    def held(self) -> Track:
        """A track that names what holds the oldest transfer under way."""
        return Track.of(holding(self.log.queue))

    def timeline(self, first: int = 0, stop: int | None = None) -> Timeline:
        """Every track, complete at least in cycles [first, stop), to the end without a `stop`.

        Pieces of a frame or a cycle are made for these cycles only, so that a part of a long run needs little memory.
        """
        span = range(first, self.cycles if stop is None else stop)
        log, program, hardware = self.log, self.program, self.hardware
        tracks: dict[str, Iterable[Pieces]] = {
            **{name: bus(moves) for name, moves in log.buses.items()},
            "dma_0": _transfers(log.queue[::2], program),
            "dma_1": _transfers(log.queue[1::2], program),
            "queue": holding(log.queue),
        }
        for array, mine in log.of_arrays(program, hardware):
            tracks |= {unit_name(unit, array): pieces for unit, pieces in self._of_array(array, mine, span)}
            # From the first operand of each step to its last result.
            works = [Pieces("vector", each.start, each.done - each.start, each.step) for each in mine.works]
            tracks |= {"vector": works} if works else {}
        tracks |= dict(_channels(log, program))
        drawn = {name: Track.of(pieces) for name, pieces in tracks.items()}
        ports = {name: _port(owners[span.start : span.stop], span.start) for name, owners in self.ports.items()}
        return Timeline(self.cycles, drawn | ports)

    def drawn(self, first: int, stop: int) -> TimelineDrawing:
        """The drawing that a trace shows, complete in cycles [first, stop)."""
        return TimelineDrawing(self.cycles, self.program, self.timeline(first, stop), self.hardware)

    def _of_array(self, array: int, log: Log, span: range) -> Iterator[tuple[str, Iterable[Pieces]]]:
        """The tracks of an array, or of all arrays that share weights."""
        every = [_Streams(mine.passes, self.program, frame, span) for frame, mine in log.by_frame(self.program)]
        yield "preload", self.preloads(log, array)
        yield "stream", chain(*(each.words("stream", 0) for each in every))
        busy = chain(*(chain(each.waits(self.held), each.busy()) for each in every))
        yield "systolic_array", chain(busy, _standing_by(log.works, self.held))
        yield "drain", chain(*(each.words("drain", each.frame.result_delay) for each in every))
        working: list[Pieces] = []
        for each in every:
            frame = each.frame
            working += each.work(each.accumulate, frame.psum_delay, frame.add_cycles)
            working += each.work(each.finish, frame.finish_delay, frame.finish_cycles)
        for work in log.works:
            # The work on every word, once its operands are read.
            if work.start < span.stop and work.done > span.start:
                step = self.program.steps[work.step]
                assert isinstance(step, Vector)
                beat = step.beat(self.program.fill_of(work.step), self.hardware)
                turns = np.arange(beat.turns(step.words))
                begins = work.start + beat.work_delay + turns * beat.period
                working.append(Pieces("busy", begins, beat.work, work.step))
        yield "vector_unit", working

    def waits(self, log: Log) -> Iterator[Pieces]:
        """Pieces of an array that waits, or stands by while the vector unit works."""
        yield from _standing_by(log.works, self.held)
        for frame, mine in log.by_frame(self.program):
            yield from _Streams(mine.passes, self.program, frame, range(0)).waits(self.held)

    def preloads(self, log: Log, array: int) -> Iterator[Pieces]:
        """Pieces of the weight path: a word keeps it busy from its read until its weights or its bias have entered."""
        for frame, mine in log.by_frame(self.program):
            if mine.loads or len(log.frames) == 1:
                yield from self._preloads(frame, mine, array)

    def _preloads(self, frame: Frame, log: Log, array: int) -> Iterator[Pieces]:
        """Pieces of preloads of one frame."""
        step, free, ready, filled, start, last = unrolled(log.loads).T
        filled = np.maximum(ready, filled)
        yield Pieces("blocked", free, ready - free, step)
        yield from waiting(self.held, np.stack([step, ready, filled], axis=1))
        yield Pieces("blocked", filled, start - filled, step)
        waits, hardware = np.array(frame.weight_waits(array)), self.hardware
        owners = self.ports["port"] if "port" in self.ports else self.ports["port_weight"]
        reads = np.flatnonzero(owners == WEIGHT)
        # Arrays with weights of their own share the port: an array's reads are the ones at which it waits for no turn.
        reads = reads[waits[reads % len(waits)] == 0]
        if len(self.log.frames) > 1:
            # Reads of other frames lie between those preloads of this one that follow one another.
            behind = start.searchsorted(reads, "right") - 1
            reads = reads[(behind >= 0) & (reads <= last[behind])]
        biased = np.array([bias_words_of(self.program.steps[number]) for number in step.tolist()], np.int64)
        words = hardware.preload_words + biased
        ends = np.cumsum(words)
        entered = reads + hardware.weight_word_cycles
        # The last word of weights may be short.
        short = (ends - 1 - biased)[biased > 0]
        entered[short] = last_weight(reads[short], hardware)
        entered[ends - 1] = last
        before = np.roll(entered, 1)
        before[ends - words] = start
        steps = np.repeat(step, words)
        yield Pieces("port_stall", before, reads - before, steps)
        yield Pieces("busy", reads, entered - reads, steps)


def holding(queue: Sequence[DmaTransfer]) -> Iterator[Pieces]:
    """Pieces that name, at any time, what holds the oldest transfer to or from lanes or banks."""
    if not queue:
        return
    step, *held, done = np.array(queue, np.int64).T[[0, *range(-len(HOLDERS), 0)]]
    since = np.append(0, done[:-1])
    for name, until in zip(HOLDERS, (*held, done), strict=True):
        until = np.maximum(since, until)
        yield Pieces(name, since, until - since, step)
        since = until


def waiting(held: Track, waits: Sequence[tuple[int, int, int]] | Cycles) -> Iterator[Pieces]:
    """Waits for fills (step, first cycle, cycle after the last), cut up by what holds the transfers meanwhile."""
    step, since, until = np.array(waits, np.int64).reshape(-1, 3).T
    # Only pieces of `held` that overlap a wait are visited; two binary searches find the first and the last of them.
    first = held.ends.searchsorted(since, "right")
    counts = np.maximum(held.starts.searchsorted(until, "left") - first, 0)
    each = np.repeat(np.arange(len(step)), counts)
    at = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    starts, ends = np.maximum(held.starts[at], since[each]), np.minimum(held.ends[at], until[each])
    for kind, name in enumerate(held.names):
        yield Pieces(name, starts, np.where(held.kinds[at] == kind, ends - starts, 0), step[each])


def _standing_by(works: Sequence[StandBy], held: Track) -> Iterator[Pieces]:
    """Waits of the array for the operands of vector steps, and then for the vector unit."""
    if not works:
        return
    step, ended, filled, loaded, issued, _, done, _ = np.array(works, np.int64).T
    yield from waiting(held, np.stack([step, ended, filled], axis=1))
    yield Pieces("waiting_weights", filled, loaded - filled, step)
    yield Pieces("blocked", loaded, issued - loaded, step)
    yield Pieces("vector_work", issued, done - issued, step)


def _port(owners: Owners, first: int) -> Track:
    """The track of a port whose cycles from `first` on belong to `owners`."""
    bounds = np.flatnonzero(np.diff(owners, prepend=FREE, append=FREE))
    starts, ends = bounds[:-1], bounds[1:]
    owned = owners[starts] != FREE
    starts, ends = starts[owned], ends[owned]
    kinds, none = owners[starts].astype(np.int64) - 1, np.full(len(starts), -1)
    return Track(PORT_CLIENTS, starts + first, ends + first, kinds, none)


def bus(moves: Sequence[DmaTransfer]) -> Iterator[Pieces]:
    """Pieces of a bus, transfer by transfer."""
    if not moves:
        return
    step, free, ready, start, busy, stalled, ended, *_ = np.array(moves, np.int64).T
    waits = ended - start - busy
    yield Pieces("blocked", free, ready - free, step)
    yield Pieces("port_stall", ready, start - ready, step)
    yield Pieces("busy", start, stalled - start, step)
    yield Pieces("port_stall", stalled, waits, step)
    yield Pieces("busy", stalled + waits, ended - stalled - waits, step)


def _transfers(moves: Sequence[DmaTransfer], program: Program) -> Iterator[Pieces]:
    """Pieces of transfers. Every other transfer has a track, because two may be under way at once, but not three."""
    for move in moves:
        yield Pieces(program.steps[move.step].label, move.start, move.done - move.start, move.step)


def _channels(log: Log, program: Program) -> Iterator[tuple[str, Iterable[Pieces]]]:
    """A track for each channel of the DRAM, up to MOST_CHANNELS; its slices are transfers and never overlap."""
    if not log.spans:
        return
    steps = np.repeat([move.step for move in log.moves], [len(span.channels) for span in log.spans])
    channels, first, last = (np.concatenate(columns) for columns in zip(*log.spans, strict=True))
    labels = np.array([program.steps[step].label for step in steps.tolist()], np.str_)
    for channel in range(min(int(channels.max(initial=-1)) + 1, MOST_CHANNELS)):
        here = channels == channel
        ends = np.maximum.accumulate(last[here])
        starts = np.minimum(np.maximum(first[here], np.append(0, ends[:-1])), ends)
        yield (
            f"hbm_channel_{channel}",
            [
                Pieces(str(name), starts, np.where(labels[here] == name, ends - starts, 0), steps[here])
                for name in np.unique(labels[here])
            ],
        )


_CYCLES = 5
"""Times that the log has of each preload or pass."""


class _Streams:
    """All passes in order, a column for each time in the log, and their frames as far as they lie in `span`."""

    def __init__(self, passes: Sequence[Passes], program: Program, frame: Frame, span: range) -> None:
        self.frame, self.span = frame, span
        self.step, self.ended, self.filled, self.loaded, self.cleared, self.start = unrolled(passes).T
        records = {step: each for each in passes for step in each.steps}
        mine = [each for number in self.step.tolist() if isinstance(each := program.steps[number], Stream)]
        words = np.array([stream.words for stream in mine], np.int64)
        self.frames = -(-words // frame.together)
        self.last = (self.frames - 1) * frame.period + (words - 1) % frame.together + 1
        self.accumulate = np.array([stream.accumulate for stream in mine], np.bool_)
        self.finish = np.array([bool(stream.finish) for stream in mine], np.bool_)
        self.cause = np.array([records[number].cause for number in self.step.tolist()])
        self.conflicts = [records[number].conflicts for number in self.step.tolist()]

    def words(self, name: str, delay: int) -> Iterator[Pieces]:
        """From the first word of each pass to its last, `delay` cycles after the ifmap read."""
        late = [(each.lost[[0, -1]] * each.period if each else (0, 0)) for each in self.conflicts]
        first, last = np.array(late, np.int64).reshape(-1, 2).T
        yield Pieces(name, self.start + first + delay, self.last + last - first, self.step)

    def waits(self, held: Track) -> Iterator[Pieces]:
        """Waits ahead of passes."""
        yield from waiting(held, np.stack([self.step, self.ended, self.filled], axis=1))
        yield Pieces("waiting_weights", self.filled, self.loaded - self.filled, self.step)
        yield Pieces("blocked", self.loaded, self.cleared - self.loaded, self.step)
        for name in np.unique(self.cause).tolist():
            waits = np.where(self.cause == name, self.start - 1 - self.cleared, 0)
            yield Pieces(name, self.cleared, waits, self.step)

    def busy(self) -> Iterator[Pieces]:
        """A frame for every word (of each array)."""
        frame = self.frame
        begins, steps, lost = self._frames(-1, self.frames)
        yield Pieces("bank_conflict", begins - lost * frame.period, lost * frame.period, steps)
        yield Pieces("busy", begins, frame.issue_cycles, steps)
        yield Pieces("port_stall", begins + frame.issue_cycles, frame.port_stall, steps)
        yield Pieces("blocked", begins + frame.issue_cycles + frame.port_stall, frame.blocked, steps)

    def work(self, chosen: NDArray[np.bool_], delay: int, cycles: int) -> Iterator[Pieces]:
        """The `cycles` of work on each frame of the `chosen` passes, `delay` cycles after its ifmap read."""
        begins, steps, _ = self._frames(delay, np.where(chosen, self.frames, 0))
        yield Pieces("busy", begins, cycles, steps)

    def _frames(self, delay: int, counts: Cycles) -> tuple[Cycles, Cycles, Cycles]:
        """(cycle, step, frames lost before it) of each of the `counts` first frames of every pass in the span, `delay`
        after its ifmap slot.
        """
        begins, period = self.start + delay, self.frame.period
        lost_frames = np.array([each.frames if each else 0 for each in self.conflicts], np.int64)
        inside = (begins < self.span.stop) & (begins + (counts + lost_frames) * period > self.span.start)
        counts = np.where(inside, counts, 0)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        none = np.zeros(counts.max(initial=0), np.int64)
        each_pass = zip(self.conflicts, counts.tolist(), strict=True)
        late: Cycles = np.concatenate([none[:0], *((each.lost if each else none)[:count] for each, count in each_pass)])
        lost = np.where(number > 0, np.diff(late, prepend=0), late)
        return np.repeat(begins, counts) + (number + late) * period, np.repeat(self.step, counts), lost


def unrolled(records: Sequence[Loads | Passes]) -> Cycles:
    """The table [step, column] of preloads or passes: the step's number, then the times that the log has of it."""
    rows = [np.empty((0, _CYCLES + 1), np.int64)]
    for each in records:
        later = np.arange(len(each.steps))[:, None] * each.every + np.array(each[2 : 2 + _CYCLES])
        rows.append(np.append(np.array(each.steps)[:, None], later, axis=1))
    table = np.concatenate(rows)
    return table[np.argsort(table[:, 0])]


def shares(run: Recording, whole: Timing) -> tuple[Timing, ...]:
    """Timing of each layer in a run of several; `whole` is the timing of all.

    Cycles in which passes stream and the vector unit works go to the layer whose steps took them. All others are cut in
    time, where one layer ends and the next begins.
    """
    log, program, hardware = run.log, run.program, run.hardware
    cuts = cuts_of(log, program)
    arrays = [*log.of_arrays(program, hardware)]
    waits = [_counts(run.waits(mine), cuts) for _, mine in arrays]
    shared = {
        **{unit_name("preload", array): _counts(run.preloads(mine, array), cuts) for array, mine in arrays},
        **{name: _counts(bus(moves), cuts) for name, moves in log.buses.items()},
        **{port: _owned(owners, cuts) for port, owners in run.ports.items()},
    }
    layers, passes = program.layers, defaultdict[int, list[Passes]](list)
    for each in log.passes:
        steps: defaultdict[int, list[int]] = defaultdict(list)
        for step in each.steps:
            steps[layers[step]].append(step)
        for layer, its in steps.items():
            passes[layer].append(each._replace(steps=its))
    found = []
    for number, use in enumerate(program.uses):
        works = tuple(each for each in log.works if layers[each.step] == number)
        moves = [each for each in log.moves if layers[each.step] == number]
        mine = replace(log, loads=(), passes=tuple(passes[number]), works=works)
        cycles, counts = cuts[number + 1] - cuts[number], {unit: each[number] for unit, each in shared.items()}
        for array, own in mine.of_arrays(program, hardware):
            counts[unit_name("systolic_array", array)] = waits[array][number] + streaming_use(own, program)
            counts[unit_name("vector_unit", array)] = vector_unit_use(own, program, hardware)
        units = {unit: split(counts[unit], cycles, tuple(account)[:-1]) for unit, account in whole.units.items()}
        found.append(Timing(cycles, units, bus_use(moves, program), use.port_reads, use.port_writes))
    return tuple(found)


def cuts_of(log: Log, program: Program) -> list[int]:
    """First cycle of each layer, and the cycle after the last layer: a layer ends when all arrays have ended its
    steps."""
    layers = np.array(program.layers)
    ends = np.zeros(layers.max() + 1, np.int64)
    for work in log.works:
        ends[layers[work.step]] = max(ends[layers[work.step]], work.done)
    for frame, mine in log.by_frame(program):
        streams = _Streams(mine.passes, program, frame, range(0))
        lost = np.array([each.frames if each else 0 for each in streams.conflicts], np.int64)
        np.maximum.at(ends, layers[streams.step], streams.start - 1 + (streams.frames + lost) * frame.period)
    return [0, *np.maximum.accumulate(ends)[:-1].tolist(), log.cycles]


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
