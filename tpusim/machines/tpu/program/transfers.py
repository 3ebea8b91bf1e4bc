"""Tensors behind the lanes, which of their elements stand in which words of which lanes, and their transfers between
the lanes and what is behind them, HBM and the scratch memory; and what stays on chip instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import Feed
from tpusim.machines.tpu.program.steps import Step, Use
from tpusim.memory.layout import Region

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


# ---- transfers


HBM, SCRATCH = "hbm", "scratch_memory"
"""The memories behind the lanes, each with a bus of its own."""


@dataclass(frozen=True, slots=True)
class TensorStep(Step):
    """What is done with parts of a tensor, told by a `verb`."""

    verb: ClassVar[str]

    tensor: Tensor
    parts: tuple[Elements, ...]

    @property
    def label(self) -> str:
        return f"{self.tensor.role} {self.verb}"

    def of_layer(self, layer: str) -> Self:
        return replace(self, tensor=self.tensor.of_layer(layer))


@dataclass(frozen=True, slots=True)
class InLanes(TensorStep):
    """What is done with words of lanes: lane 0, or any other that takes part throughout, has the most."""

    parts: tuple[Part, ...]

    @property
    def lanes(self) -> int:
        """From lane 0 on, as many as may take part."""
        return max(max(part.first_lanes) + part.lanes for part in self.parts)

    @property
    def _extents(self) -> Iterator[range]:
        for part in self.parts:
            yield from part.extents


@dataclass(frozen=True, slots=True)
class Transfer(TensorStep):
    """Parts of a tensor on their way from or to the memory in which it lies, one after another. `hbm_bytes` cross the
    bus of that memory, be it HBM or not: a tensor lies in the scratch memory as it would in HBM.

    Attributes:
        regions: what HBM hands out or takes for them, each in runs of its own, in that order; what lies outside the
            tensor is nothing. None: just the elements of the parts.
    """

    queue = "dma"

    hbm_bytes: int
    regions: tuple[Region, ...] | None = field(default=None, kw_only=True)
    words: int = field(init=False)
    """Words that the memory with the most of them moves: one a cycle."""
    lane_words: int = field(init=False)
    """Words that all memories move together."""

    def _moves(self, words: int, lane_words: int) -> None:
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "lane_words", lane_words)

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"words": self.words, "bytes": self.hbm_bytes}

    @property
    def bus(self) -> str:
        """Whose bus it takes: of HBM or of the scratch memory."""
        return HBM if self.tensor.scratch is None else SCRATCH

    @property
    def written(self) -> Tensor | None:
        """The tensor behind the lanes that it puts elements into."""
        return None

    def conversion_cycles(self, hardware: Hardware) -> int:
        """The cycles that the vector unit takes to convert its words, as many at once as there are lanes; none where no
        kind of transfer says more.
        """
        return 0


@dataclass(frozen=True, slots=True)
class LaneTransfer(InLanes, Transfer):
    """From or to the lanes."""

    def __post_init__(self) -> None:
        self._moves(sum(part.words for part in self.parts), sum(part.accesses for part in self.parts))


@dataclass(frozen=True, slots=True)
class Inbound(Transfer):
    """HBM or scratch memory -> lanes or banks."""

    cause = "starved"
    verb = "fill"

    @property
    def use(self) -> Use:
        if self.bus == SCRATCH:
            return Use(scratch_read_bytes=self.hbm_bytes, port_writes=self.lane_words)
        return Use(hbm_read_bytes=self.hbm_bytes, port_writes=self.lane_words)


@dataclass(frozen=True, slots=True)
class Fill(LaneTransfer, Inbound):
    """To the lanes."""

    @property
    def words_written(self) -> Iterator[range]:
        return self._extents

    def conversion_cycles(self, hardware: Hardware) -> int:
        """Words are unpacked as they lie in HBM, once for all lanes and places that they go to."""
        brought = min(self.words, -(-self.hbm_bytes // (hardware.lanes * hardware.word_bytes)))
        rate = hardware.vector_unit.unpack_cycles
        return -(-brought * rate.numerator // rate.denominator) if self.tensor.converted else 0


@dataclass(frozen=True, slots=True)
class BankFill(Inbound):
    """To `banks`, through a write port each."""

    parts: tuple[BankPart, ...]
    banks: int

    def __post_init__(self) -> None:
        filled = np.zeros(self.banks, np.int64)
        for part in self.parts:
            filled += np.bincount(part.addresses.ravel() % self.banks, minlength=self.banks)
        self._moves(int(filled.max()), int(filled.sum()))

    def conversion_cycles(self, hardware: Hardware) -> int:
        words = -(-self.lane_words // hardware.lanes)
        return ceil(words * hardware.vector_unit.unpack_cycles) if self.tensor.converted else 0


@dataclass(frozen=True, slots=True)
class Spill(LaneTransfer):
    """Lanes -> HBM or scratch memory."""

    cause = "blocked"
    verb = "spill"

    @property
    def use(self) -> Use:
        if self.bus == SCRATCH:
            return Use(scratch_write_bytes=self.hbm_bytes, port_reads=self.lane_words)
        return Use(hbm_write_bytes=self.hbm_bytes, port_reads=self.lane_words)

    @property
    def written(self) -> Tensor:
        return self.tensor

    @property
    def words_read(self) -> Iterator[range]:
        return self._extents

    def conversion_cycles(self, hardware: Hardware) -> int:
        rate = hardware.vector_unit.pack_cycles
        return -(-self.words * rate.numerator // rate.denominator) if self.tensor.converted else 0


@dataclass(frozen=True, slots=True)
class Prefetch(Transfer):
    """HBM -> scratch memory: elements of `tensor`, whose `parts` stand in no lane, to their places in tensor `to`."""

    cause = "starved"
    verb = "prefetch"

    to: Tensor

    def __post_init__(self) -> None:
        self._moves(1, 0)

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"bytes": self.hbm_bytes}

    @property
    def use(self) -> Use:
        return Use(hbm_read_bytes=self.hbm_bytes, scratch_write_bytes=self.hbm_bytes)

    @property
    def written(self) -> Tensor:
        return self.to

    def of_layer(self, layer: str) -> Self:
        return replace(self, tensor=self.tensor.of_layer(layer), to=self.to.of_layer(layer))


@dataclass(frozen=True, slots=True)
class Keep(InLanes):
    """Words stay where they are: from now on they are parts of a tensor, each of one copy, and without a feed.

    It takes no unit and no time. Layers behind read the words there, and wait for this step as a fill waits for spills.
    Keeps are over in their order.
    """

    cause = "blocked"
    queue = "keep"
    verb = "keep"

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"words": sum(part.words for part in self.parts)}

    @property
    def words_read(self) -> Iterator[range]:
        return self._extents
