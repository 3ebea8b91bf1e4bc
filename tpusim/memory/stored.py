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
        base, size, levels = self.base, self.element_bytes, {}
        for axis, extent, padded, stride in self._inwards:
            part = _stored(region[axis], extent, padded)
            count, apart = len(part), part.step * stride
            if not count:
                return None
            base += part.start * stride
            if apart == size or (apart < self.burst and axis == self.order[-1]):
                size += (count - 1) * apart
            elif count > 1:
                levels[axis] = count, apart
        return Runs(base, tuple([levels[axis] for axis in self.needed if axis in levels]) if levels else (), size)

    @cached_property
    def _inwards(self) -> list[tuple[int, int, int, int]]:
        """Each axis, the innermost first: its elements, the same with padding, and the bytes from one to the next."""
        return [(axis, self.shape[axis], self.padded[axis], self.apart[axis]) for axis in reversed(self.order)]


def _stored(part: range, extent: int, padded: int) -> range:
    """What of it is inside, with the padding behind it where it has the last of the axis."""
    if part.start < 0 or part.stop > extent:
        part = inside(part, 0, extent)
    if part.stop == extent and part.step == 1:
        return range(part.start, padded) if part else part
    return range(extent - 1, padded) if part[-1:] == range(extent - 1, extent) and len(part) == 1 else part
