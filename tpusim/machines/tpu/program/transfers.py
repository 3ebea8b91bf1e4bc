"""Transfers between the lanes and what is behind them, HBM and the scratch memory, and what stays on chip instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Self

import numpy as np

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.steps import Step, Use
from tpusim.machines.tpu.program.tensor import BankPart, Elements, Part, Tensor
from tpusim.memory.layout import Region

HBM, SCRATCH = "hbm", "scratch_memory"
"""The memories behind the lanes, each with a bus of its own."""


@dataclass(frozen=True, slots=True)
class Transfer(Step):
    """Parts of a tensor on their way from or to the memory in which it lies, one after another. `hbm_bytes` cross the
    bus of that memory, be it HBM or not: a tensor lies in the scratch memory as it would in HBM.

    Attributes:
        regions: what HBM hands out or takes for them, each in runs of its own, in that order; what lies outside the
            tensor is nothing. None: just the elements of the parts.
    """

    queue = "dma"

    tensor: Tensor
    parts: tuple[Elements, ...]
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

    def shifted(self, layer: str, ahead: int) -> Self:
        return replace(Step.shifted(self, layer, ahead), tensor=self.tensor.of_layer(layer))

    def conversion_cycles(self, hardware: Hardware) -> int:
        """The cycles that the vector unit takes to convert its words, as many at once as there are lanes; none where no
        kind of transfer says more.
        """
        return 0


@dataclass(frozen=True, slots=True)
class LaneTransfer(Transfer):
    """From or to the lanes: lane 0, or any other that takes part throughout, moves the most words."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        self._moves(sum(part.words for part in self.parts), sum(part.accesses for part in self.parts))

    @property
    def lanes(self) -> int:
        """From lane 0 on, as many as may take part."""
        return max(max(part.first_lanes) + part.lanes for part in self.parts)

    @property
    def _extents(self) -> Iterator[range]:
        for part in self.parts:
            yield from part.extents


@dataclass(frozen=True, slots=True)
class Inbound(Transfer):
    """HBM or scratch memory -> lanes or banks."""

    cause = "starved"

    @property
    def label(self) -> str:
        return f"{self.tensor.role} fill"

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
        return ceil(brought * hardware.vector_unit.unpack_cycles) if self.tensor.converted else 0


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

    @property
    def label(self) -> str:
        return f"{self.tensor.role} spill"

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
        return ceil(self.words * hardware.vector_unit.pack_cycles) if self.tensor.converted else 0


@dataclass(frozen=True, slots=True)
class Prefetch(Transfer):
    """HBM -> scratch memory: elements of `tensor`, whose `parts` stand in no lane, to their places in tensor `to`."""

    cause = "starved"

    to: Tensor

    def __post_init__(self) -> None:
        self._moves(1, 0)

    @property
    def label(self) -> str:
        return f"{self.tensor.role} prefetch"

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"bytes": self.hbm_bytes}

    @property
    def use(self) -> Use:
        return Use(hbm_read_bytes=self.hbm_bytes, scratch_write_bytes=self.hbm_bytes)

    @property
    def written(self) -> Tensor:
        return self.to

    def shifted(self, layer: str, ahead: int) -> Self:
        return replace(Transfer.shifted(self, layer, ahead), to=self.to.of_layer(layer))


@dataclass(frozen=True, slots=True)
class Keep(Step):
    """Words stay where they are: from now on they are parts of a tensor. It takes no unit and no time.

    Layers behind read them there, and wait for this step as a fill waits for spills. Keeps are over in their order.

    Attributes:
        parts: which elements stand in which words; each of one copy, and without a feed.
    """

    cause = "blocked"
    queue = "keep"

    tensor: Tensor
    parts: tuple[Part, ...]

    @property
    def label(self) -> str:
        return f"{self.tensor.role} keep"

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"words": sum(part.words for part in self.parts)}

    @property
    def words_read(self) -> Iterator[range]:
        for part in self.parts:
            yield from part.extents

    @property
    def lanes(self) -> int:
        """From lane 0 on, as many as may take part."""
        return max(part.first_lanes[0] + part.lanes for part in self.parts)

    def shifted(self, layer: str, ahead: int) -> Self:
        return replace(Step.shifted(self, layer, ahead), tensor=self.tensor.of_layer(layer))
