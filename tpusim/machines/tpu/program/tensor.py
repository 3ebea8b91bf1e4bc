"""Tensors behind the lanes, and which of their elements stand in which words of which lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import Feed

Coordinates: TypeAlias = range | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """What lies in HBM, or in the scratch memory.

    Attributes:
        name: what it is called in traces and messages.
        shape: elements along each axis; the ifmap and ofmap are [channel, row, col, image], the filter is
            [out_channel, k] with k = (tap_row * kernel width + tap_col) * channels of a group + channel.
        converted: whether its numbers are wider on chip than in HBM, so that the vector unit unpacks or packs them.
        number_bytes: of one of its numbers in a word; None for those of the machine's elements.
        padded: the shape as which it lies in HBM, where more than its elements; they come first along each axis.
        scale: how many times larger its numbers are on chip than in HBM: spills divide. It keeps fractions out of the
            values that are checked, and costs nothing.
        on_the_way: whether its numbers are of no interest but for what is made of them, so that no oracle has them.
        lost: how far they may lie from whole ones on chip, which they would be but for what floating point loses.
        layer: whose it is, in a Program of several layers; there its name begins with that.
        scratch: its first byte in the scratch memory, where it lies as it would in HBM; None: it lies in HBM.
    """

    name: str
    shape: tuple[int, ...]
    converted: bool = False
    number_bytes: int | None = None
    padded: tuple[int, ...] | None = None
    scale: int = 1
    lost: float = 0.0
    on_the_way: bool = False
    layer: str = ""
    scratch: int | None = None

    @property
    def role(self) -> str:
        """What it is to its layer: the name that it has in a Program of that layer alone."""
        return self.name[len(self.layer) + 1 :] if self.layer else self.name

    def of_layer(self, layer: str) -> Tensor:
        """The tensor in a Program of several layers."""
        return replace(self, name=f"{layer}.{self.name}", layer=layer)

    def in_hbm(self, values: NDArray[Any]) -> NDArray[Any]:
        """What a spill makes of numbers on chip. One further from a whole number than it may be stays as it is."""
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
        """The bytes that it takes, on a machine whose elements have `element_bytes` each."""
        return self.size * (self.number_bytes or element_bytes)

    def scratch_bytes(self, element_bytes: int) -> range:
        """The bytes of the scratch memory that it takes, if it lies there."""
        first = self.scratch or 0
        return range(first, first + prod(self.padded or self.shape) * (self.number_bytes or element_bytes))


class Along(NamedTuple):
    """A counter that moves along one axis of a tensor, through evenly spaced coordinates or those of a table."""

    axis: int
    coordinates: Coordinates

    def of(self, count: int) -> Along:
        """The counter of one of its counts alone."""
        return self._replace(coordinates=self.coordinates[count : count + 1])


class Part(NamedTuple):
    """Elements of a tensor, and where they stand in the vector memories.

    Each lane holds one count of `lane`, all counts of `items`, the last of them moving fastest. An element's coordinate
    along an axis is the sum over the counters of that axis; where it lies outside the tensor, the element is zero and
    is never stored.

    Attributes:
        base: the first word; the items follow in order, `per_word` to a word, the last word perhaps short.
        first_lanes: where each copy begins; copy by copy, count i of `lane` belongs to lane `first_lane + i`.
        lane: what differs from lane to lane, along one axis or several at once: as many coordinates of each, the i-th
            for lane i.
        items: what one lane holds.
        per_word: elements of a word in use.
        feed: where each lane of a spill finds the words of its items, which then need not follow one another from
            `base` on; padding is zero, and no access.
    """

    base: int
    first_lanes: tuple[int, ...]
    lane: tuple[Along, ...]
    items: tuple[Along, ...]
    per_word: int
    feed: Feed | None = None

    @property
    def words(self) -> int:
        """Words of each lane."""
        items = 1
        for each in self.items:
            items *= len(each.coordinates)
        return -(-items // self.per_word)

    @property
    def lanes(self) -> int:
        """Lanes of one copy."""
        return len(self.lane[0].coordinates)

    @property
    def accesses(self) -> int:
        """Words that all lanes move through their ports."""
        return self.words * self.lanes * len(self.first_lanes) if self.feed is None else self.feed.accesses

    @property
    def extents(self) -> Iterator[range]:
        """The words among which it stands."""
        return iter([range(self.base, self.base + self.words)]) if self.feed is None else self.feed.extents


class BankPart(NamedTuple):
    """Elements of a tensor, and where they stand in banks; elements count as those of a Part do.

    Attributes:
        base: an address, to which each counter of words adds one of its `offsets`: first `lane`, then the first of
            `items`. The counters that are left make up a word.
        per_word: elements of a word in use.
    """

    base: int
    offsets: tuple[Coordinates, ...]
    lane: tuple[Along, ...]
    items: tuple[Along, ...]
    per_word: int

    @property
    def words(self) -> int:
        """Words of each count of `lane`."""
        return prod(map(len, self.offsets[1:]))

    @property
    def lanes(self) -> int:
        """Counts of `lane`."""
        return len(self.lane[0].coordinates)

    @property
    def addresses(self) -> NDArray[np.int64]:
        """Where each word stands, [count of lane, word]."""
        addresses = np.full(1, self.base)
        for each in self.offsets:
            addresses = np.add.outer(addresses, np.array(each, np.int64)).ravel()
        return addresses.reshape(len(self.offsets[0]), self.words)


Elements: TypeAlias = Part | BankPart
"""What says which elements of a tensor are moved, by `lane` and `items`."""
