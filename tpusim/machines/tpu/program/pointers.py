"""Pointers: where the words of a pass stand, read from the vector memory instead of being counted (seed: the indirect
convolution algorithm; Dukhan 2019, arXiv 1907.02129).

A pointer is a number: twice the words from a base to the word it points at, plus 1 where the word is padding. All lanes
want the same one, a cycle apart, so pointer words stand in lane 0 alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware

MOST_WORDS = 2**23
"""Words of a lane that pointers tell apart: the simulated memories hold numbers below 2^24 exactly."""

Numbers = NDArray[Any]


class PointerTable(NamedTuple):
    """The pointers of a pass, in words of lane 0 from `base` on.

    For each of `pixels` there are `together` pointers side by side, one a pattern that reads through them; `per_word`
    fill a word, the last word perhaps not. A pixel is `repeat` words, one after another, that share its pointers.
    """

    base: int
    pixels: int
    together: int
    per_word: int
    repeat: int

    @property
    def pointers(self) -> int:
        """All of them."""
        return self.pixels * self.together

    @property
    def words(self) -> int:
        """Words of lane 0."""
        return -(-self.pointers // self.per_word)

    def a_frame(self, arrays: int) -> int:
        """Pointer words that a frame needs at most beyond those of the one before; each array takes a word in it."""
        return -(-(-(-arrays // self.repeat) * self.together) // self.per_word)

    @property
    def extent(self) -> range:
        """The pointer words."""
        return range(self.base, self.base + self.words)

    def reads(self, arrays: int) -> tuple[Numbers, Numbers]:
        """The frame of the pass that first needs each pointer word, and the words before it in that frame."""
        return _reads(self._replace(base=0), arrays)


@lru_cache(maxsize=4096)
def _reads(table: PointerTable, arrays: int) -> tuple[Numbers, Numbers]:
    """Many passes read alike."""
    words = np.arange(table.words)
    frames = words * table.per_word // table.together * table.repeat // arrays
    return frames, words - frames.searchsorted(frames)


class Pointers(NamedTuple):
    """The words that pointers name: those at place `which` of each pixel of `table`, from `base` on.

    `stored` pixels are not padding.
    """

    table: PointerTable
    which: int
    base: int
    stored: int

    @property
    def words(self) -> int:
        """The words walked over, padding included."""
        return self.table.pixels * self.table.repeat

    @property
    def accesses(self) -> int:
        """The words really read."""
        return self.stored * self.table.repeat

    @property
    def extent(self) -> range:
        """Where they may lead: nobody knows how far."""
        return range(self.base, self.base + MOST_WORDS)


class ElementTable(NamedTuple):
    """The pointers of a step that picks single elements, in words of lane 0 from `base` on: result by result.

    Each of these `words` begins a new pointer word. It has `operands` that are picked, of `elements` each, and for each
    of these `together` pointers side by side, one a pattern that reads through them; `per_word` fill a word.
    """

    base: int
    words: int
    operands: int
    elements: int
    together: int
    per_word: int

    @property
    def pointers(self) -> int:
        """Those of a result word."""
        return self.operands * self.elements * self.together

    @property
    def word_words(self) -> int:
        """Pointer words of a result word."""
        return -(-self.pointers // self.per_word)

    @property
    def extent(self) -> range:
        """The pointer words."""
        return range(self.base, self.base + self.words * self.word_words)

    def first(self, operand: int, element: int) -> int:
        """Which of a result word's pointers is the first of those side by side."""
        return (operand * self.elements + element) * self.together


class Picked(NamedTuple):
    """Words put together of an element each of others: of the word that the pointer at place `which` of `operand` and
    element names, from `base` on, element and place being the same.

    `stored` elements are not padding.
    """

    table: ElementTable
    operand: int
    which: int
    base: int
    stored: int

    @property
    def words(self) -> int:
        """The words that are put together."""
        return self.table.words

    @property
    def accesses(self) -> int:
        """The words really read: one an element."""
        return self.stored

    @property
    def extent(self) -> range:
        """Where they may lead: nobody knows how far."""
        return range(self.base, self.base + MOST_WORDS)


def encoded(offsets: Numbers, padding: Numbers) -> Numbers:
    """The pointers to words at `offsets`; where there is `padding`, no word."""
    return np.where(padding, 1, 2 * offsets)


def pointer_bytes(hardware: Hardware) -> int:
    """Whole bytes that name every word of a lane and hold the flag.

    Raises:
        CapacityError: when a lane has more words than can be told apart.
    """
    words = hardware.capacity_words
    if words > MOST_WORDS:
        raise CapacityError(
            f"pointers tell {MOST_WORDS:,} words of a lane apart, and the vector memory has {words:,}; set "
            f"vector_memory.capacity to at most {MOST_WORDS * hardware.word_bytes} B, or take another lowering"
        )
    return -(-((words - 1).bit_length() + 1) // 8)


def pointers_a_word(hardware: Hardware) -> int:
    """Pointers that fill a word. Raises CapacityError when it holds none, or as `pointer_bytes` does."""
    size = pointer_bytes(hardware)
    if size > hardware.word_bytes:
        raise CapacityError(
            f"a pointer takes {size} B, and a word has {hardware.word_bytes} B; set vector_memory.word_elements or "
            "vector_memory.element_bytes to more, or take another lowering"
        )
    return hardware.word_bytes // size
