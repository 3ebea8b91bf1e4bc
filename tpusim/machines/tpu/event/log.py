"""What the event engine writes down: for every step, the cycles in which it went on to its next state.

All cycles are lane 0's. Steps that repeat `every` so many cycles with nothing else changed share a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tpusim.machines.tpu.definition import Frame
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.conflicts import Conflicts
from tpusim.machines.tpu.event.hbm import Span
from tpusim.machines.tpu.observation.timing import HbmUse
from tpusim.machines.tpu.program.program import Program


class Loads(NamedTuple):
    """Preloads `every` cycles apart. The weight path, `free` since the one before, may take on the first when it is
    `ready`, its weights are in the vector memory when it is `filled`; the port is asked from `start` on, and the
    last weight is in the array at `last`.
    """

    steps: Sequence[int]
    every: int
    free: int
    ready: int
    filled: int
    start: int
    last: int

    def again(self, steps: Sequence[int], every: int) -> Loads:
        """The preloads that follow one, each `every` cycles after the one before."""
        free, ready, filled, start, last = (cycle + every for cycle in self[2:])
        return Loads(steps, every, free, ready, filled, start, last)


class Passes(NamedTuple):
    """Streams `every` cycles apart. The array, with nothing to do since it `ended` the one before, is starved until
    `filled`, waits for weights until `loaded`, is blocked until `cleared`, and for the last of these causes, `cause`,
    until the cycle before `start`, that of the first ifmap slot. From there on `conflicts` of banks cost frames.
    """

    steps: Sequence[int]
    every: int
    ended: int
    filled: int
    loaded: int
    cleared: int
    start: int
    cause: str
    conflicts: Conflicts | None = None

    @property
    def lost(self) -> int:
        """Frames that each of them loses to conflicts."""
        return self.conflicts.frames if self.conflicts else 0

    def again(self, steps: Sequence[int], every: int) -> Passes:
        """The streams that follow one, each `every` cycles after the one before."""
        ended, filled, loaded, cleared, start = (cycle + every for cycle in self[2:7])
        return Passes(steps, every, ended, filled, loaded, cleared, start, self.cause, self.conflicts)


class VectorWork(NamedTuple):
    """What the vector unit does by itself. An `array`, with nothing to do since it `ended` the step before, is starved
    until `filled`, waits for weights until `loaded`, is blocked until `issued`, and stands by until `done`. From cycle
    `start` on, the words of operands are read.
    """

    step: int
    ended: int
    filled: int
    loaded: int
    issued: int
    start: int
    done: int
    array: int = 0


class Move(NamedTuple):
    """A transfer. The bus, `free` since the one before, is blocked until it is `ready`, and held up by the port until
    `start`; it moves for `busy` cycles, held up by the port for the others, from `stalled` on, and is free again at
    `ended`. The last word is in place at `done`.
    """

    step: int
    free: int
    ready: int
    start: int
    busy: int
    stalled: int
    ended: int
    done: int


@dataclass(frozen=True)
class Log:
    """A whole run: the layer's `cycles`, the port's `frame`, and what each unit did, in order, the bus of HBM (`moves`)
    and that of the scratch memory among them; what the DRAM did, and perhaps of each transfer in which channels.
    """

    cycles: int
    frame: Frame
    loads: tuple[Loads, ...]
    passes: tuple[Passes, ...]
    works: tuple[VectorWork, ...]
    moves: tuple[Move, ...]
    scratch: tuple[Move, ...] = ()
    hbm: HbmUse | None = None
    spans: tuple[Span, ...] = ()

    def of_arrays(self, program: Program, hardware: Hardware) -> Iterator[tuple[int, Log]]:
        """Each array that has weights of its own, or the first of all that share theirs, and what is told of it."""
        if hardware.array.queues == 1:
            yield 0, self
            return
        for array in range(hardware.array.queues):
            loads = tuple(each for each in self.loads if program.array_of(program.steps[each.steps[0]]) == array)
            passes = tuple(each for each in self.passes if program.array_of(program.steps[each.steps[0]]) == array)
            works = tuple(each for each in self.works if each.array == array)
            yield array, replace(self, loads=loads, passes=passes, works=works)
