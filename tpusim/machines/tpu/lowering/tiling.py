"""How a layer is cut: the block of outputs held on chip, the loop order, the buffers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.reduction import ReductionPass

Counts = NDArray[np.int64]

MOST_PIECES = 4
"""Pieces that one load is cut into, so that the first passes need not wait for all of it."""

Extent = TypeVar("Extent", int, Counts)


@dataclass(frozen=True)
class Tiling(Generic[Extent]):
    """Block extent in outputs and word groups, loop order, passes per filter chunk, buffers per region.

    The search fills it with arrays, one entry a candidate block; the lowering gets one with plain integers.
    """

    rows: Extent
    cols: Extent
    groups: Extent
    loop_order: str
    chunk_passes: int
    ifmap_buffers: Extent
    filter_buffers: int
    psum_buffers: Extent
    ifmap_words: Extent
    chunk_words: int
    psum_words: Extent

    @property
    def words(self) -> Extent:
        """Words of vector memory a lane needs for all buffers together."""
        return (
            self.ifmap_buffers * self.ifmap_words
            + self.filter_buffers * self.chunk_words
            + self.psum_buffers * self.psum_words
        )

    def at(self: Tiling[Counts], index: int) -> Tiling[int]:
        """One candidate."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        plain: dict[str, Any] = {name: int(v[index]) if isinstance(v, np.ndarray) else v for name, v in values.items()}
        return Tiling(**plain)


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """One way to hold the filter on chip: chunks of some passes, in two or more buffers."""

    loop_order: str
    chunk_passes: int
    chunk_words: int
    buffers: int
    resident: bool

    @property
    def last_passes(self) -> int:
        """Passes whose weights come with the last piece of a chunk: what is left to do when it is there."""
        return -(-self.chunk_passes // MOST_PIECES)


def word_groups(images: int, word_elements: int) -> tuple[int, int]:
    """(words per pixel, elements used of a word): images spread evenly over as few words as hold them."""
    groups = -(-images // word_elements)
    return groups, -(-images // groups)


def weight_words(passes: tuple[ReductionPass, ...], hardware: Hardware) -> list[int]:
    """Words a lane needs for the weights of each pass: W weights of its column to a word."""
    return [-(-each.rows // hardware.vector_memory.word_elements) for each in passes]
