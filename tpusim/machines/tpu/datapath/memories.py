"""Memories of the data path: elements in words of lanes, tensors in HBM and the scratch memory.

Transfers move parts of tensors, seen as views, into words and back; passes gather words from their addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import (
    PADDING,
    AddressPattern,
    Counter,
    Counters,
    LaneGroup,
    PickedWords,
    Pointers,
    walked,
)
from tpusim.machines.tpu.program.moves import ends_of
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Elements, Fill, Part, Transfer
from tpusim.memory.hbm_layout import Addresses

Values = NDArray[np.floating[Any]]
Numbers = NDArray[Any]
Ends = Sequence[tuple[int, int]]
"""The least and the largest coordinate along each axis of a tensor."""


class Reads(NamedTuple):
    """Words that a lane group reads one after another, by `addresses` in [first, stop) or PADDING."""

    first: int
    stop: int
    addresses: Addresses
    consecutive: bool

    def gather(self, memory: Values, first_lane: int, into: Values) -> None:
        """Fetch words of `memory`, whose last word is zero, into `into` [lanes, elements]; padding becomes zero."""
        words, width = memory[first_lane : first_lane + len(into)], into.shape[1] // max(1, len(self.addresses))
        # Wrapped around, padding is the last word.
        if self.consecutive:
            into.reshape(len(into), -1, width, copy=False)[...] = words[:, self.first : self.stop, :width]
        elif width == words.shape[2]:
            words.take(self.addresses, 1, into.reshape(len(into), -1, width, copy=False), "wrap")
        else:
            elements = np.add.outer(self.addresses * words.shape[2], np.arange(width)).ravel()
            words.reshape(len(into), -1).take(elements, 1, into, "wrap")

    def scatter(self, values: Values, words: Values) -> None:
        """Store `values` [lanes, words, E] into `words` [first, stop); padding stores nothing."""
        if self.consecutive:
            words[...] = values
        else:
            stored = self.addresses != PADDING
            words[:, self.addresses[stored] - self.first] = values[:, stored]


def pack(values: Values, words: Values, part: Part) -> None:
    """Put `values` [lane, *items] into `words` [lanes, words, W]; the rest of each word becomes zero."""
    if part.per_word < words.shape[2]:
        words[..., part.per_word :] = 0
    if (place := _by_item(words, part)) is not None:
        place[...] = values
        return
    flat = values.reshape(len(words), -1)
    full, rest = divmod(flat.shape[1], part.per_word)
    whole = flat[:, : full * part.per_word].reshape(len(words), full, part.per_word)
    words[:, :full, : part.per_word] = whole
    if rest:
        words[:, full] = 0
        words[:, full, :rest] = flat[:, full * part.per_word :]


def inside(part: Part, shape: tuple[int, ...], width: int) -> NDArray[np.bool_] | None:
    """Whether elements [lane, word, W] of a part lie in its tensor; what is beside its elements does not. None: all
    elements do.
    """
    ends, items = ends_of(part.lane, part.items, len(shape)), prod(len(each.coordinates) for each in part.items)
    within = all(first >= 0 and last < size for (first, last), size in zip(ends, shape, strict=True))
    if within and items == part.words * part.per_word:
        return None
    counts = [part.lanes, *(len(each.coordinates) for each in part.items)]
    there = np.ones(counts, np.bool_)
    for axis, size in enumerate(shape):
        at = np.zeros([1] * len(counts), np.int64)
        counters = [(0, each) for each in part.lane] + [*enumerate(part.items, 1)]
        for place, each in counters:
            if each.axis == axis:
                at = at + np.array(each.coordinates).reshape([-1 if one == place else 1 for one in range(len(counts))])
        there &= (at >= 0) & (at < size)
    words = np.zeros((part.lanes, part.words * part.per_word), np.bool_)
    words[:, : there[0].size] = there.reshape(part.lanes, -1)
    padded = np.zeros((part.lanes, part.words, width), np.bool_)
    padded[..., : part.per_word] = words.reshape(part.lanes, part.words, part.per_word)
    return padded


def unpacked(words: Values, part: Part) -> Values:
    """Values of a part in `words` [lanes, words, W], as [lane, *items]."""
    if (place := _by_item(words, part)) is not None:
        return place
    counts = [len(each.coordinates) for each in part.items]
    flat = words[..., : part.per_word].reshape(len(words), -1)
    return flat[:, : prod(counts)].reshape(len(words), *counts)


def collected(reads: Iterable[tuple[LaneGroup, Reads]], part: Part, memory: Values) -> Values:
    """Values of a part with addresses of its own, as [lane, *items]."""
    counts = [len(each.coordinates) for each in part.items]
    flat: Values = np.zeros((part.lanes, part.words * part.per_word), memory.dtype)
    for group, walk in reads:
        at = slice(group.first_lane, group.first_lane + group.lanes)
        walk.gather(memory, group.first_lane, flat[at])
    return flat[:, : prod(counts)].reshape(part.lanes, *counts)


def _by_item(words: Values, part: Part) -> Values | None:
    """A view of `words` by the counters of a part, if the last of these make up a word; else None."""
    counts = [len(each.coordinates) for each in part.items]
    if not any(prod(counts[at:]) == part.per_word for at in range(len(counts))):
        return None
    return words[..., : part.per_word].reshape(len(words), *counts, copy=False)


@lru_cache(maxsize=256)
def walk_of(pattern: AddressPattern) -> Reads:
    """The reads of a pattern, cached, as passes of few recipes walk in few slots. Pointers are refused: their values
    are in memory.
    """
    if not isinstance(pattern, Counters):
        return _reads(*walked(pattern))
    # Cached from base 0, as many passes walk the same way from another base.
    stored, reads = _counted(pattern.counters, pattern.window)
    # The base of a walk that is all padding may lie anywhere.
    base = pattern.base if reads.stop > reads.first else 0
    return Reads(base + reads.first, base + reads.stop, reads.addresses + base * stored, reads.consecutive)


@lru_cache(maxsize=256)
def _counted(counters: tuple[Counter, ...], window: range | None) -> tuple[NDArray[np.bool_], Reads]:
    """A mask of the words that are not padding, and the reads of a walk from base 0."""
    stored, offsets = walked(Counters(0, counters, window))
    return stored, _reads(stored, offsets)


def _reads(stored: NDArray[np.bool_], addresses: Addresses) -> Reads:
    """The reads of words at `addresses`, of which those that are not `stored` are padding."""
    if not (read := addresses[stored]).size:
        return Reads(0, 0, np.full(len(addresses), PADDING), False)
    consecutive = bool(stored.all() and (np.diff(addresses) == 1).all())
    return Reads(int(read.min()), int(read.max()) + 1, np.where(stored, addresses, PADDING), consecutive)


def followed(words: Values, pattern: Pointers) -> Reads:
    """The reads that pointers in `words` [words, numbers] lead to."""
    table = pattern.table
    numbers = words[:, : table.per_word].reshape(-1)[: table.pointers].astype(np.int64)
    offsets, padding = np.divmod(numbers[pattern.which :: table.together], 2)
    each = np.add.outer(pattern.base + offsets, np.arange(table.repeat))
    stored = np.repeat(padding == 0, table.repeat)
    return _reads(stored, each.reshape(-1))


def picked_by(words: Values, pattern: PickedWords) -> Addresses:
    """Addresses [word, element] that pointers in `words` [words, numbers] pick."""
    table = pattern.table
    numbers = words[:, : table.per_word].reshape(table.words, -1)[:, : table.pointers].astype(np.int64)
    mine = numbers.reshape(table.words, table.operands, table.elements, table.together)
    offsets, padding = np.divmod(mine[:, pattern.operand, :, pattern.which], 2)
    return np.where(padding, PADDING, pattern.base + offsets)


class HbmTensor:
    """A tensor with a margin of zeros where a Program reaches beyond it, so that every part is a view.

    What is written into the margin is lost.
    """

    def __init__(self, tensor: Tensor, content: ArrayLike, ends: Iterable[Ends]) -> None:
        """`content` is an array with the tensor's elements, which is used itself if there is no margin, or one value
        for all; `ends` are those of parts.
        """
        given, reach = np.asarray(content), [(0, size) for size in tensor.shape]
        # Along each axis: the lowest coordinate of the tensor and its parts, and the coordinate after the highest.
        for part in ends:
            reach = [(min(low, at), max(high, to + 1)) for (low, high), (at, to) in zip(reach, part, strict=True)]
        self._low, self._shape = [low for low, _ in reach], tensor.shape
        extent = tuple(high - low for low, high in reach)
        if given.ndim and extent == tensor.shape:
            self._stored = np.ascontiguousarray(given.reshape(extent))
            return
        self._stored = np.zeros(extent, given.dtype)
        self.values[...] = given.reshape(tensor.shape) if given.ndim else given

    @property
    def values(self) -> Numbers:
        """The tensor without its margin."""
        inside = (slice(-low, size - low) for low, size in zip(self._low, self._shape, strict=True))
        return self._stored[tuple(inside)]

    def read(self, part: Elements) -> Numbers:
        """The elements of a part, [lane, *items]."""
        if _even((*part.lane, *part.items)):
            return self._view(part)
        if not _even(part.items):
            return self._stored[self._index(part)]
        views = [self._view(part._replace(lane=lane)) for lane in _stretches(part.lane)]
        return views[0] if len(views) == 1 else np.concatenate(views)

    def write(self, part: Elements, values: Numbers) -> None:
        """Store `values` [lane, *items] at the place of a part."""
        if _even((*part.lane, *part.items)):
            self._view(part)[...] = values
        else:
            self._stored[self._index(part)] = values
        for axis, (low, size) in enumerate(zip(self._low, self._shape, strict=True)):
            before = (slice(None),) * axis
            self._stored[(*before, slice(0, -low))] = 0
            self._stored[(*before, slice(size - low, None))] = 0

    # The margin must read as zero again: it stands for padding.
    def _view(self, part: Elements) -> Numbers:
        """A view with an axis for every counter; counters of the lanes move together and share one axis."""
        start, strides, apart = [-low for low in self._low], self._stored.strides, list[int]()
        for axis, coordinates in (*part.lane, *part.items):
            start[axis] += coordinates[0]
            apart.append(strides[axis] * (coordinates[1] - coordinates[0] if len(coordinates) > 1 else 1))
        among = len(part.lane)
        counts = [part.lanes, *(len(each.coordinates) for each in part.items)]
        # `_low` is the least coordinate stored, padding included, so that `start` is never negative.
        first = sum(at * stride for at, stride in zip(start, strides, strict=True))
        return np.ndarray(counts, self._stored.dtype, self._stored, first, [sum(apart[:among]), *apart[among:]])

    def _index(self, part: Elements) -> tuple[NDArray[np.int64], ...]:
        """Coordinates along each axis, broadcast over [lane, *items]."""
        index = [np.full(1, -low) for low in self._low]
        together = [part.lane, *((each,) for each in part.items)]
        for at, alongs in enumerate(together):
            for axis, coordinates in alongs:
                index[axis] = index[axis] + np.array(coordinates).reshape(-1, *[1] * (len(together) - 1 - at))
        return tuple(index)


def hbm_tensors(program: Program, given: Mapping[str, Numbers], apart: Iterable[str]) -> dict[str, HbmTensor]:
    """Every tensor of a Program except those `apart`; tensors that are not given hold NaN until they are written."""

    tensors = {}
    for name, each in ((each.name, each) for each in program.tensors if each.name not in apart):
        content = given.get(name, np.array(np.nan))
        # Written tensors need the width of results, and the caller's array must not change.
        own = content.astype(program.number) if name in program.written or name not in given else content
        tensors[name] = HbmTensor(each, own, ends_in(program, name))
    return tensors


def ends_of_part(part: Elements, axes: int) -> Ends:
    """The least and the largest coordinate of a part along each axis of its tensor."""
    return ends_of(part.lane, part.items, axes)


def ends_in(program: Program, name: str) -> Iterator[Ends]:
    """Ends of all parts of a tensor that steps move, or that another layer hands on to it, recipe by recipe."""
    names = {name, *(each.sources[0] for each in program.handed if each.tensor == name and each.same)}
    rows = program.rows
    for number, recipe in enumerate(rows.recipes):
        if not isinstance(recipe, Transfer) or not rows.counts[number]:
            continue
        if any(each and each.name in names for each in (recipe.tensor, recipe.written)):
            origins = rows.origins_of(np.flatnonzero(rows.table["recipe"] == number), len(recipe.tensor.shape))
            among = [*zip(origins.min(axis=0).tolist(), origins.max(axis=0).tolist(), strict=True)]
            for part in recipe.parts:
                ends = zip(ends_of_part(part, len(among)), among, strict=True)
                yield [(low + first, high + last) for (low, high), (first, last) in ends]


def _even(counters: Iterable[Along]) -> bool:
    """Whether every counter walks evenly spaced coordinates."""
    return all(isinstance(each.coordinates, range) for each in counters)


@lru_cache(maxsize=1024)
def _stretches(lane: tuple[Along, ...]) -> list[tuple[Along, ...]]:
    """Stretches of lanes within which coordinates differ evenly along every axis."""
    coordinates = np.array([each.coordinates for each in lane])
    turns = (np.flatnonzero(np.diff(coordinates, 2).any(axis=0)) + 2).tolist()
    # A stretch ends where the next lane breaks its step; the next stretch has a step of its own.
    ends = [0]
    for turn in turns:
        ends += [turn] if turn - ends[-1] > 1 else []
    cuts = pairwise([*ends, coordinates.shape[1]])
    return [tuple(Along(a.axis, a.coordinates[first:stop]) for a in lane) for first, stop in cuts]


def filled(
    program: Program, hardware: Hardware, tensor: str, operands: Mapping[str, NDArray[Any]], empty: float
) -> Values:
    """Contents of the lanes, [lane, word, element], after all fills of a tensor; `empty` elsewhere."""
    source = hbm_tensors(program, program.given(operands), ())[tensor]
    memory = np.full((hardware.lanes, program.words, hardware.vector_memory.word_elements), empty, np.float32)
    for part in (part for _, step in program.rows.steps(Fill) if step.tensor.name == tensor for part in step.parts):
        values = source.read(part)
        for first in part.first_lanes:
            pack(values, memory[first : first + part.lanes, part.base : part.base + part.words], part)
    return memory
