"""What every unit does when: slices of cycles, lane 0's view, from the very facts that the accounts are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Cycles = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Slices of one name, as columns of equal length or one number for all.

    Each lasts `cycles` from `starts` on and belongs to a step of the Program, -1 to none.
    """

    name: str
    starts: Cycles | int
    cycles: Cycles | int
    steps: Cycles | int = -1


@dataclass(frozen=True, slots=True)
class Slice:
    """Cycles [start, end) in which a unit does one thing; `step` of the Program, or -1 for none in particular."""

    start: int
    end: int
    name: str
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """Slices in order of time, none of which overlaps another, as columns of equal length.

    Slice k takes cycles [starts[k], ends[k]), is called names[kinds[k]] and belongs to step steps[k], or to none (-1).
    """

    names: tuple[str, ...]
    starts: Cycles
    ends: Cycles
    kinds: Cycles
    steps: Cycles

    @classmethod
    def of(cls, pieces: Iterable[Pieces]) -> Track:
        """Put pieces in order; those that touch, of one name and step, become one slice. Empty ones are left out."""
        parts = list(pieces)
        names = tuple(dict.fromkeys(piece.name for piece in parts))
        columns = [
            np.broadcast_arrays(np.atleast_1d(piece.starts), piece.cycles, names.index(piece.name), piece.steps)
            for piece in parts
        ]
        none = np.empty((4, 0), np.int64)
        starts, cycles, kinds, steps = np.concatenate([none, *map(np.stack, columns)], axis=1)
        order = np.argsort(starts, kind="stable")
        order = order[cycles[order] > 0]
        return cls(names, starts[order], (starts + cycles)[order], kinds[order], steps[order])._merged()

    def _merged(self) -> Track:
        first = np.ones(len(self), bool)
        first[1:] = (
            (self.starts[1:] != self.ends[:-1])
            | (self.kinds[1:] != self.kinds[:-1])
            | (self.steps[1:] != self.steps[:-1])
        )
        last = np.roll(first, -1)
        return Track(self.names, self.starts[first], self.ends[last], self.kinds[first], self.steps[first])

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Slice]:
        columns = (column.tolist() for column in (self.starts, self.ends, self.kinds, self.steps))
        return (Slice(start, end, self.names[kind], step) for start, end, kind, step in zip(*columns, strict=True))

    def sums(self) -> dict[str, int]:
        """Cycles by name."""
        cycles = self.ends - self.starts
        return {name: int(cycles[self.kinds == kind].sum()) for kind, name in enumerate(self.names)}

    def clipped(self, first: int, stop: int) -> Track:
        """What lies in cycles [first, stop); slices across the edges are cut."""
        starts, ends = np.maximum(self.starts, first), np.minimum(self.ends, stop)
        seen = starts < ends
        return Track(self.names, starts[seen], ends[seen], self.kinds[seen], self.steps[seen])


@dataclass(frozen=True, slots=True)
class Timeline:
    """A layer of `cycles` cycles; by unit, as in Timing.units and beyond, what it does when. What is left is idle."""

    cycles: int
    tracks: Mapping[str, Track]

    def clipped(self, first: int, stop: int) -> Timeline:
        """What lies in cycles [first, stop), at its own time."""
        return Timeline(self.cycles, {name: track.clipped(first, stop) for name, track in self.tracks.items()})

    @property
    def slices(self) -> int:
        """On all tracks."""
        return sum(len(track) for track in self.tracks.values())
