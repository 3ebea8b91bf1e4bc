"""The issue units of the event engine: preloads and streams of each array, and vector steps, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from tpusim.machines.tpu.definition import (
    BIAS_CYCLES,
    DMA,
    IFMAP,
    POINTER,
    PSUM,
    RESULT,
    VECTOR,
    WEIGHT,
    Frame,
    last_weight,
)
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.board import Board, Loads, Passes, Process, StandBy
from tpusim.machines.tpu.event.calendar import Ports
from tpusim.machines.tpu.event.conflicts import ConflictCounter, Conflicts
from tpusim.machines.tpu.program.addresses import PointerTable
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Finish, Preload, Step, Stream, Vector

_LONGEST = 4
"""Most passes between two equal states that are recognized as a repetition."""

PassKind: TypeAlias = tuple[int, bool, tuple[Finish, ...], bool, PointerTable | None, int]
"""What the time of a pass depends on, beside when it begins: words, whether it adds to sums, how it finishes them,
whether it loads no bias, its table of pointers, and the number of its pace.
"""


class IssueUnit:
    """Issues the passes of an array, or of all arrays that share weights; owns their weight path and frame slots."""

    def __init__(self, program: Program, hardware: Hardware, board: Board, port: Ports, array: int = 0) -> None:
        self.loads: list[Loads] = []
        self.passes: list[Passes] = []
        self.works: list[StandBy] = []
        self._hardware, self._board, self._port = hardware, board, port
        self._preload_words, self._buffers = hardware.preload_words, hardware.array.weight_buffers
        self._array, self._frames, self._number_of_pace = array, program.frames(hardware), program.number_of_pace
        self._states: deque[tuple[int, tuple[object, ...]]] = deque(maxlen=_LONGEST)
        self._take(self._frames[0])
        self._anew = False
        self._steps = program.steps
        whose = program.arrays
        self._order = [i for i, s in enumerate(program.steps) if whose[i] == array or isinstance(s, Vector)]
        # Where several arrays take passes, the next pass of one depends on the others, too, and repetition proves
        # nothing.
        self._alone = not {*whose} - {array, -1}
        self._filled: dict[int, int] = {}
        # Until when the last stream or vector step writes results, and until when the last vector step works.
        self.drained = self._worked = 0
        self.ended = self.free = self._issued = 0
        self._written = -1
        self._told = 0
        self._cause = "starved"

    def _take(self, frame: Frame) -> None:
        """Go on by another frame; all passes of the one before are done."""
        self.frame = frame
        own = self._hardware.array.queues > 1
        self._left = frame.weight_waits(self._array) if frame.pointer_slots or own else None
        self._conflicts = ConflictCounter(self._hardware, frame.period)
        self._psum_delay, self._result_delay = frame.psum_delay, frame.result_delay
        self._states.clear()
        self._anew = True

    def process(self) -> Process:
        """Issue every step as soon as what it waits for is known."""
        place = 0
        while place < len(self._order):
            index = self._order[place]
            step = self._steps[index]
            yield from self._board.wait(step.after)
            if not isinstance(step, Vector) and (frame := self._frame_of(index)) is not self.frame:
                self._take(frame)
            if isinstance(step, Preload):
                # Weight words are read once the delay is over, in whatever slots are free, at most one every W cycles;
                # then the word of the biases.
                ready = max(self._issued if self._buffers > 1 else self.ended, self.free)
                filled, drained = self._board.known(step.after)
                self._filled[index] = filled
                start, spacing = max(ready, filled, drained) + step.delay, self._hardware.weight_word_cycles
                last_read = self._port[WEIGHT].claim(WEIGHT, start, self._preload_words, spacing, self._left)
                last = last_weight(last_read, self._hardware)
                if step.bias is not None:
                    last = self._port[WEIGHT].claim(WEIGHT, last, 1, 1, self._left) + BIAS_CYCLES
                self.loads.append(Loads((index,), 0, self.free, ready, filled, start, last))
                self._board.finish(index, last)
                self.free = last
            elif isinstance(step, Stream):
                issued = self._issued
                self._stream(index, step)
                if self._board.limited:
                    self._board.expect(self._issued + self._to_come[place])
                place += self._repeat(place, issued) if self._alone else 0
            else:
                yield from self._board.wait((index,))
            place += 1
        # With many arrays, a frame in progress may outlast the few words in it.
        self._board.end = max(self._board.end, self.ended)

    @cached_property
    def _to_come(self) -> list[int]:
        """Cycles from the issue of each stream, by place, to the end of the last stream, at least."""
        streams = ((self._frame_of(at), self._steps[at]) for at in reversed(self._order))
        lasting = (
            frame.frames(step.words) * frame.period if isinstance(step, Stream) else 0 for frame, step in streams
        )
        return [*accumulate(lasting)][::-1]

    def _frame_of(self, index: int) -> Frame:
        return self._frames[self._number_of_pace(index)]

    def _stream(self, index: int, step: Stream) -> None:
        """Issue a pass: find its first ifmap read on the frame grid, and reserve all its slots of the port."""
        conflicts = self._conflicts.of(step)
        start = self._issue(index, step, conflicts)
        frame, port = self.frame, self._port
        frames, first = frame.frames(step.words), start
        if conflicts:
            # Banks are owned while they are read; partial sums and results follow delivered words after a fixed delay.
            frames, first = frames + conflicts.frames, start + int(conflicts.delivered[0])
            delivered = start + conflicts.delivered
            port[IFMAP].reserve_at(IFMAP, start + conflicts.reads)
            if step.accumulate:
                port[PSUM].reserve_at(PSUM, delivered + self._psum_delay)
            port[RESULT].reserve_at(RESULT, delivered + self._result_delay)
        else:
            # Partial sums and results follow ifmap reads after a fixed delay; pointers are read a frame ahead, the
            # first as soon as the pass is known.
            if table := step.reads.table:
                at, places = table.reads(frame.together)
                before = np.where(at == 0, self._told, start + (at - 1) * frame.period)
                port[POINTER].reserve_at(POINTER, before + frame.pointer_slots.start + places)
            for array in range(min(frame.together, step.words)):
                read, words = start + array, frame.frames(step.words - array)
                port[IFMAP].reserve(IFMAP, read, words, frame.period)
                if step.accumulate:
                    port[PSUM].reserve(PSUM, read + self._psum_delay, words, frame.period)
                port[RESULT].reserve(RESULT, read + self._result_delay, words, frame.period)
        last_array = (step.words - 1) % frame.together
        done = start + self._result_delay + (frames - 1) * frame.period + last_array + 1
        self._board.finish(index, done)
        self._issued = start - 1
        self.ended = self._issued + frames * frame.period
        self._written = first + self._result_delay
        self.drained = done

    def stand_by(self, work: StandBy) -> None:
        """Wait for the vector unit, and stand by while it works."""
        filled = max(self.ended, work.filled)
        self.works.append(
            work._replace(array=self._array, ended=self.ended, filled=filled, loaded=max(filled, work.loaded))
        )
        self._issued, self._cause = work.issued, Vector.cause
        self.ended = self.drained = self._worked = work.done

    def _issue(self, index: int, step: Stream, conflicts: Conflicts | None) -> int:
        """The cycle of the first ifmap slot. The wait for it is booked to its causes in turn."""
        fills, spilled = self._board.known(step.after)
        spilled = max(spilled, self._worked)
        summed = self._written - self._psum_delay if step.accumulate else 0
        filled = max(self.ended, fills, self._filled.get(step.preload, 0))
        loaded = max(filled, self._board.time(step.preload))
        cleared = max(loaded, spilled, summed)
        pointed = 0
        if step.reads.table:
            # Pointers are read only when everything else that the pass waits for is in memory.
            there = max(fills, self._filled.get(step.preload, 0), spilled, self.ended + 1 - self.frame.period)
            # Another frame begins when its first weights are there.
            there = max(there, loaded) if self._anew else there
            self._told = self._next_frame(there)
            pointed = self._told + self.frame.period - 1
        if filled > self.ended:
            self._cause = self._board.held_last(filled)
        for name, since, until in (
            ("waiting_weights", filled, loaded), ("blocked", loaded, cleared), ("port_stall", cleared, pointed),
        ):  # fmt: skip
            if until > since:
                self._cause = name
        # Reads stay on the frame's grid: slots are fixed by cycle modulo the period (docs/timing.md).
        start = self._next_frame(max(cleared, pointed) + 1)
        self._anew = False
        self.passes.append(Passes((index,), 0, self.ended, filled, loaded, cleared, start, self._cause, conflicts))
        return start

    def _next_frame(self, cycle: int) -> int:
        """The first slot, in `cycle` or later, for an ifmap word of the array, or of the first array that shares
        weights."""
        return cycle + (self._array - cycle) % self.frame.period

    # ---- passes that only repeat those before

    @cached_property
    def _kinds(self) -> list[PassKind | None]:
        """Kinds of passes, at the places of their preloads; equal kinds are one object. None elsewhere, and where a
        preload begins late or its stream does not follow it.
        """
        known: dict[PassKind, PassKind] = {}
        kinds: list[PassKind | None] = [None] * len(self._order)
        for place, (index, behind) in enumerate(pairwise(self._order)):
            preload = self._steps[index]
            if not isinstance(preload, Preload) or preload.delay:
                continue
            stream = self._steps[behind]
            if isinstance(stream, Stream) and stream.preload == index:
                # The base address of pointers does not affect time.
                table = stream.reads.table._replace(base=0) if stream.reads.table else None
                pace = self._number_of_pace(index)
                kind = stream.words, stream.accumulate, stream.finish, preload.bias is None, table, pace
                kinds[place] = known.setdefault(kind, kind)
        return kinds

    def _repeat(self, place: int, issued: int) -> int:
        """Take at once all passes after `place` that must repeat the last few; return the number of places taken.

        The next pass depends on nothing but the state after the last one. If that state equals the state some passes
        ago, then passes of the same kind that wait for nothing repeat for ever.
        """
        if not self._alike(place - 1, place - 1, issued):
            self._states.clear()
        end = self._issued
        # The DMA has settled these cycles already, so the port's state there can no longer be compared.
        if end < self._port[DMA].settled or not self._alike(place + 1, place - 1, end):
            self._states.clear()
            return 0
        # All that the next pass depends on, relative to the issue of the last.
        since = self.ended - end, self.free - end, self._written - end
        state = *since, self._cause, self._port.ahead(end)
        for passes, (before, then) in enumerate(reversed(self._states), 1):
            if then == state:
                return 2 * self._repeated(place, passes, end - before)
        self._states.append((end, state))
        return 0

    def _alike(self, place: int, other: int, issued: int, most: int = 1, passes: int = 1, every: int = 0) -> int:
        """The number of passes in a row, at most `most`, that are like another one and wait for nothing.

        The preload of the first of them has `place` in the order, and the preload of the other pass has `other`. The
        first `passes` of them find all that they need done in cycle `issued`, each next `passes` `every` cycles later.
        """
        # The last place of all is of no kind, so that nothing is like the pass ahead of the first.
        kinds, order, steps, done_by = self._kinds, self._order, self._steps, self._board.all_done_by
        kind, banked, found = kinds[other], self._hardware.banks > 0, 0
        for at in range(max(place, 0), min(place + 2 * most, len(kinds)), 2):
            if kind is None or kinds[at] is not kind:
                break
            until = issued + found // passes * every
            if not done_by(steps[order[at]].after, until) or not done_by(steps[order[at + 1]].after, until):
                break
            if banked and self._lost(at) is not self._lost(other):
                break
            found += 1
        return found

    def _lost(self, place: int) -> Conflicts | None:
        """Conflicts of the stream behind a preload."""
        stream = self._steps[self._order[place + 1]]
        assert isinstance(stream, Stream)
        return self._conflicts.of(stream)

    def _repeated(self, place: int, passes: int, every: int) -> int:
        """Repeat the last `passes`, which took `every` cycles, as often as alike passes follow; return the number
        repeated."""
        times = self._alike(place + 1, place - 1, self._issued, len(self._order), passes, every) // passes
        if times:
            self._port.repeat(self._issued - every, self._issued, times)
            for first in range(place + 1, place + 1 + 2 * passes, 2):
                # The record `passes` places back becomes a new record, for as many repetitions as follow.
                load, stream = self.loads[-passes], self.passes[-passes]
                until = first + 2 * passes * times
                preloads, streams = (self._order[at : until : 2 * passes] for at in (first, first + 1))
                for steps, before in ((preloads, load.steps[0]), (streams, stream.steps[0])):
                    self._board.finish_each(steps, self._board.time(before) + every, every)
                self.loads.append(Loads(preloads, every, *(cycle + every for cycle in load[2:])))
                ended, filled, loaded, cleared, start = (cycle + every for cycle in stream[2:7])
                its = ended, filled, loaded, cleared, start, stream.cause, stream.conflicts
                self.passes.append(Passes(streams, every, *its))
            later = times * every
            self._issued, self.ended, self.free = self._issued + later, self.ended + later, self.free + later
            self._written, self.drained = self._written + later, self.drained + later
        self._states.clear()
        return times * passes


def vector_steps(
    program: Program, hardware: Hardware, board: Board, port: Ports, arrays: Sequence[IssueUnit]
) -> Process:
    """Issue vector steps in order, each when the completion of every step ahead of it is known.

    By then no result is on its way from an array, and no weight on its way to one. A step owns its slots of the port.
    """
    if not program.vectors:
        return
    ahead: dict[tuple[int, type[Step]], int] = {}
    for index, step in enumerate(program.steps):
        if isinstance(step, Preload | Stream):
            ahead[program.arrays[index], type(step)] = index
        if not isinstance(step, Vector):
            continue
        yield from board.wait((*step.after, *ahead.values()))
        filled, others = board.known(step.after)
        loaded = max(array.free for array in arrays)
        issued = max(filled, loaded, others, *(max(array.ended, array.drained) for array in arrays))
        beat, before = step.beat(program.fill_of(index), hardware), issued + 1 + step.delay
        start = before + step.scalars.words
        last = start + beat.last(step.words)
        port[VECTOR].reserve(VECTOR, before, step.scalars.words, 1)
        full, rest = divmod(step.words, beat.together)
        # Turns that read in each cycle of their period; the last one may have fewer words than the others.
        reading = [full + (place < beat.reads(rest)) for place in range(beat.reads(beat.together))]
        for place, turns in enumerate(reading):
            port[VECTOR].reserve(VECTOR, start + place, turns, beat.period)
        for place in range(beat.writes(beat.together)):
            later, beside = divmod(beat.result_delay + place, beat.period)
            # What a later turn reads in the same cycle has reserved it.
            shared = max(0, reading[beside] - later) if beside < len(reading) else 0
            turns = full + (place < beat.writes(rest)) - shared
            if turns > 0:
                first = start + beat.result_delay + place + shared * beat.period
                port[VECTOR].reserve(VECTOR, first, turns, beat.period)
        for array in arrays:
            array.stand_by(StandBy(index, 0, filled, loaded, issued, start, last + 1))
        board.finish(index, last + 1)
