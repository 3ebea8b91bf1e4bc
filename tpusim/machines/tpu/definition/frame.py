"""The ports of a lane's vector memory: who shares them, and the frame of slots.

All times are those of lane 0; lane `i` runs the same schedule `i` cycles later (skewed addresses).
"""

from __future__ import annotations

from dataclasses import dataclass

from tpusim.machines.tpu.definition.latencies import add_cycles
from tpusim.machines.tpu.description import Hardware

FREE, IFMAP, PSUM, RESULT, WEIGHT, DMA = range(6)
"""Who owns a cycle of the port."""

CLIENTS = ("idle", "ifmap", "psum", "result", "weight", "dma")

PORTS = {"shared": ((IFMAP, PSUM, RESULT, WEIGHT, DMA),), "separate": ((IFMAP,), (PSUM,), (RESULT,), (WEIGHT,), (DMA,))}
"""The ports of a lane's vector memory, each with the clients that share it; of the last two the first goes first."""

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Frame:
    """The port's period while a layer runs: for each array a word of ifmap read, partial-sum read, result write.

    Slots of a kind lie side by side, one an array: `IFMAP_SLOT`, `psum_slot` and `result_slot` are the first array's.
    Slots are fixed by kind of activity, never by data, so what is left over for preload and DMA is periodic.
    A frame lasts as long as the W' elements of a word need in the array, the slots need on the port, or the
    adds need in the vector unit, whichever is longest; the excess stalls the array.
    """

    period: int
    elements: int
    add_cycles: int
    accumulates: bool
    arrays: int = 1

    IFMAP_SLOT = 0

    @classmethod
    def of(cls, elements: int, add_cycles: int, accumulates: bool, arrays: int = 1) -> Frame:
        """The shortest frame for words of `elements` elements; `add_cycles` for the words of all arrays."""
        adds = add_cycles if accumulates else 0
        return cls(max(elements, cls.owned(accumulates, arrays), adds), elements, adds, accumulates, arrays)

    @staticmethod
    def owned(accumulates: bool, arrays: int) -> int:
        """Slots of the busiest port that a frame's clients own: here all of them, as they share it."""
        return (3 if accumulates else 2) * arrays

    @property
    def slots(self) -> int:
        """Port slots a frame's clients own."""
        return self.owned(self.accumulates, self.arrays)

    @property
    def psum_slot(self) -> int:
        """The slot after the ifmap reads."""
        return self.arrays

    @property
    def result_slot(self) -> int:
        """First slots after the adds are done that no other client owns."""
        if not self.accumulates:
            return self.arrays
        slot, first = (self.psum_slot + self.add_cycles) % self.period, 2 * self.arrays
        return slot if first <= slot <= self.period - self.arrays else first

    def psums_at(self, now: int) -> range:
        """The arrays whose partial sums may be read in cycle `now`."""
        return self._turn(now, self.psum_slot)

    def results_at(self, now: int) -> range:
        """The arrays whose results may be written in cycle `now`."""
        return self._turn(now, self.result_slot)

    def _turn(self, now: int, slot: int) -> range:
        array = now % self.period - slot
        return range(array, array + 1) if 0 <= array < self.arrays else range(0)

    def frames(self, words: int) -> int:
        """Frames that a stream of `words` takes."""
        return -(-words // self.arrays)

    @property
    def port_stall(self) -> int:
        """Cycles a frame the array stands still because the port is full."""
        return max(0, self.slots - self.elements)

    @property
    def blocked(self) -> int:
        """Cycles a frame the array stands still because the vector unit is still adding."""
        return self.period - self.elements - self.port_stall

    def psum_delay(self, latency: int) -> int:
        """Cycles from a word's ifmap read to its partial-sum read; `latency` until its last element is out."""
        return _next_slot(latency - 1, self.psum_slot, self.period)

    def result_delay(self, latency: int) -> int:
        """Cycles from a word's ifmap read to its result write."""
        if not self.accumulates:
            return _next_slot(latency, self.result_slot, self.period)
        return _next_slot(self.psum_delay(latency) + self.add_cycles, self.result_slot, self.period)


class SeparateFrame(Frame):
    """The frame where each client has a port of its own: nothing is late for want of a slot."""

    @staticmethod
    def owned(accumulates: bool, arrays: int) -> int:
        """A slot an array."""
        return arrays

    def _turn(self, now: int, slot: int) -> range:
        """Every array's, in every cycle: nobody else wants the port."""
        return range(self.arrays)

    def psum_delay(self, latency: int) -> int:
        """The sums are read as soon as they are there."""
        return latency - 1

    def result_delay(self, latency: int) -> int:
        """Results are written as soon as the sums are there, or added."""
        return self.psum_delay(latency) + self.add_cycles if self.accumulates else latency


FRAMES = {"shared": Frame, "separate": SeparateFrame}
"""The frame of each kind of ports."""


def frame_of(hardware: Hardware, elements: int, accumulates: bool) -> Frame:
    """The frame of a layer whose words have `elements` elements in use."""
    adds = add_cycles(elements, hardware)
    return FRAMES[hardware.vector_memory.ports].of(elements, adds, accumulates, hardware.array.count)


def _next_slot(earliest: int, slot: int, period: int) -> int:
    """The first cycle at or after `earliest` that is `slot` modulo `period`."""
    return earliest + (slot - earliest) % period
