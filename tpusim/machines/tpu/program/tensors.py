"""Tensors of a Program, the places where they lie, and how numbers are packed there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.description import Hardware
from tpusim.memory.hbm_layout import Bytes


class PackedNumbers(NamedTuple):
    """Numbers that are narrower in HBM than in words of the machine's elements.

    Attributes:
        bytes: bytes of a number in HBM, perhaps half a byte.
        operations: ALU operations that widen a number on its way to the lanes.
    """

    bytes: Fraction
    operations: Fraction

    def cycles(self, hardware: Hardware) -> Fraction:
        """Cycles of the vector unit to widen a word of every lane."""
        elements = hardware.vector_memory.word_elements * hardware.lanes
        return self.operations * elements / hardware.vector_unit.alus


class Place(NamedTuple):
    """Where a tensor lies: in a memory behind the lanes, or in the lanes themselves.

    Attributes:
        bus: the bus to that memory, by the name of its account and of its pipe (`Hardware.pipes`); the lanes have none,
            so no transfer leads there.
        reads, writes: figures of `Use` that count the bytes of its transfers.
        base: first byte, for a tensor that was given bytes of its memory; None where the layout of HBM says it.
    """

    bus: str = ""
    reads: str = ""
    writes: str = ""
    base: int | None = None

    def at(self, base: int) -> Place:
        """The place in the same memory from byte `base` on."""
        return self._replace(base=base)


HBM = Place("hbm", "hbm_read_bytes", "hbm_write_bytes")
SCRATCH = Place("scratch_memory", "scratch_read_bytes", "scratch_write_bytes")
LANES = Place()


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor at a place.

    Attributes:
        name: name in traces and messages.
        shape: elements along each axis; the ifmap and ofmap are [channel, row, col, image], the filter is
            [out_channel, k] with k = (tap_row * kernel width + tap_col) * channels of a group + channel.
        converted: whether numbers are wider on chip than in HBM, so that the vector unit unpacks or packs them.
        number_bytes: bytes of a number in a word; None for the machine's elements.
        hbm_bytes: bytes of a number in HBM, where they differ from those in a word.
        packed: how numbers lie in HBM that fills widen to the machine's elements.
        padded: shape in HBM with padding, if it has any; the elements come first along each axis.
        scale: factor by which numbers are larger on chip than in HBM; spills divide by it. It keeps fractions out of
            the values that are checked, and costs nothing.
        exchanged: whether its numbers only change places, lane to lane by way of HBM, so that no oracle knows them.
        lost: largest distance on chip from a whole number, for values that are whole except for rounding errors.
        layer: layer of the tensor, in a Program of several layers; its name begins with the layer's.
        place: where it lies; the layout is that of HBM wherever that is.
    """

    name: str
    shape: tuple[int, ...]
    converted: bool = False
    number_bytes: int | None = None
    hbm_bytes: int | None = None
    packed: PackedNumbers | None = None
    padded: tuple[int, ...] | None = None
    scale: int = 1
    lost: float = 0.0
    exchanged: bool = False
    layer: str = ""
    place: Place = HBM

    @property
    def role(self) -> str:
        """Name of the tensor in a Program of its layer alone, such as "ifmap"."""
        return self.name[len(self.layer) + 1 :] if self.layer else self.name

    def of_layer(self, layer: str) -> Tensor:
        """The tensor in a Program of several layers."""
        return replace(self, name=f"{layer}.{self.name}", layer=layer)

    def in_hbm(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values as a spill writes them. A value further than `lost` from a whole number stays as it is."""
        values = values / self.scale if self.scale > 1 else values
        if not self.lost:
            return values
        whole = np.rint(values)
        return np.where(np.abs(values - whole) <= self.lost, whole, values)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def bytes(self, element_bytes: int) -> int:
        """Bytes of the tensor, on a machine whose elements have `element_bytes` each."""
        return ceil(self.size * self.stored_bytes(element_bytes))

    def stored_bytes(self, element_bytes: int) -> Bytes:
        """Bytes of a number where the tensor is stored, on a machine whose elements have `element_bytes` each."""
        if self.packed:
            return self.packed.bytes
        return self.hbm_bytes or self.number_bytes or element_bytes

    def extent(self, element_bytes: int) -> range:
        """Bytes of its memory that the tensor takes, from byte 0 on where it was given none."""
        first = self.place.base or 0
        return range(first, first + ceil(prod(self.padded or self.shape) * self.stored_bytes(element_bytes)))
