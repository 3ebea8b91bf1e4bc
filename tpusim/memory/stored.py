"""A tensor as it lies in HBM, and the runs that a part of it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from tpusim.memory.layout import Region, inside
from tpusim.memory.runs import Runs


@dataclass(frozen=True)
class Stored:
    """A tensor in HBM, from the byte at `base` on.

    Attributes:
        shape: its elements along each axis.
        padded: the same as they lie there: padding comes after the last element of an axis.
        order: its axes from the outermost to the innermost.
        needed: its axes in the order in which a transfer needs them, the last moving fastest. A run is never cut, but
            runs come in this order.
        element_bytes: of one element.
        burst: steps along the innermost axis that are shorter than a burst of so many bytes are read through.
    """

    base: int
    shape: tuple[int, ...]
    padded: tuple[int, ...]
    order: tuple[int, ...]
    needed: tuple[int, ...]
    element_bytes: int
    burst: int

    @cached_property
    def apart(self) -> tuple[int, ...]:
        """Bytes from one coordinate of each axis to the next."""
        inner = [self.order[self.order.index(axis) + 1 :] for axis in range(len(self.order))]
        return tuple(self.element_bytes * prod(self.padded[each] for each in axes) for axes in inner)

    @property
    def bytes(self) -> int:
        """What it takes, padding included."""
        return prod(self.padded) * self.element_bytes

    def runs(self, region: Region) -> Runs | None:
        """The runs of a part, and of the padding that it ends with; None where nothing of it is inside the tensor.

        Coordinates ascend.
        """
        parts = [self._whole(axis, inside(part, 0, self.shape[axis])) for axis, part in enumerate(region)]
        if not all(parts):
            return None
        base, size, levels = self.base, self.element_bytes, {}
        for axis in reversed(self.order):
            part = parts[axis]
            count, apart = len(part), part.step * self.apart[axis]
            base += part.start * self.apart[axis]
            if count == 1:
                continue
            if apart == size or (axis == self.order[-1] and apart < self.burst):
                size += (count - 1) * apart
            else:
                levels[axis] = count, apart
        return Runs(base, tuple(levels[axis] for axis in self.needed if axis in levels), size)

    def _whole(self, axis: int, part: range) -> range:
        """With the padding behind it, where it has the last of an axis."""
        last, even = part[-1:] == range(self.shape[axis] - 1, self.shape[axis]), part.step == 1 or len(part) == 1
        return range(part.start, self.padded[axis]) if last and even else part
