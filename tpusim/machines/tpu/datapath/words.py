"""Elements in the words of the vector memories: packed by transfers, gathered from the addresses of passes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import PADDING, Addresses, AddressPattern, Counters, LaneGroup, walked
from tpusim.machines.tpu.program.pointers import Picked, Pointers
from tpusim.machines.tpu.program.tensor import Part

Values = NDArray[np.floating[Any]]
Walk: TypeAlias = Counters | Addresses
"""How a lane group goes: by counters whose words are evenly spaced, or to every address of its own, or PADDING."""


class Read(NamedTuple):
    """A lane group, how it goes, and the words [lanes, words, W] among which it reads, which begin at the span."""

    group: LaneGroup
    walk: Walk
    words: Values


def pack(values: Values, words: Values, part: Part) -> None:
    """Put `values` [lane, *items] into `words` [lanes, words, W]; what is left of a word gets zeros."""
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


def unpacked(words: Values, part: Part) -> Values:
    """What `words` [lanes, words, W] hold of a part, as [lane, *items]."""
    if (place := _by_item(words, part)) is not None:
        return place
    counts = [len(each.coordinates) for each in part.items]
    flat = words[..., : part.per_word].reshape(len(words), -1)
    return flat[:, : prod(counts)].reshape(len(words), *counts)


def collected(reads: Iterable[Read], part: Part, number: type[Any]) -> Values:
    """What a part with addresses of its own takes, [lane, *items]."""
    counts = [len(each.coordinates) for each in part.items]
    flat: Values = np.zeros((part.lanes, part.words * part.per_word), number)
    for group, walk, words in reads:
        at = slice(group.first_lane, group.first_lane + group.lanes)
        gather(words[..., : part.per_word], walk, flat[at])
    return flat[:, : prod(counts)].reshape(part.lanes, *counts)


def _by_item(words: Values, part: Part) -> Values | None:
    """A view of `words` by the counters of a part, where some of them, the last, make up a word; else None."""
    counts = [len(each.coordinates) for each in part.items]
    if not any(prod(counts[at:]) == part.per_word for at in range(len(counts))):
        return None
    return words[..., : part.per_word].reshape(len(words), *counts, copy=False)


def walk_of(pattern: AddressPattern) -> Walk:
    """Counters as they are, unless they jump; pointers are refused, as they stand in the vector memory."""
    if isinstance(pattern, Counters) and not any(each.jump for each in pattern.counters):
        return pattern
    stored, addresses = walked(pattern)
    return np.where(stored, addresses, PADDING)


def followed(words: Values, pattern: Pointers) -> Addresses:
    """The addresses to which pointers lead that stand in `words` [words, numbers]."""
    table = pattern.table
    numbers = words[:, : table.per_word].reshape(-1)[: table.pointers].astype(np.int64)
    offsets, padding = np.divmod(numbers[pattern.which :: table.together], 2)
    each = np.add.outer(pattern.base + offsets, np.arange(table.repeat))
    return np.where(padding[:, None], PADDING, each).reshape(-1)


def picked_by(words: Values, pattern: Picked) -> Addresses:
    """The addresses [word, element] from which elements are picked by the pointers in `words` [words, numbers]."""
    table = pattern.table
    numbers = words[:, : table.per_word].reshape(table.words, -1)[:, : table.pointers].astype(np.int64)
    mine = numbers.reshape(table.words, table.operands, table.elements, table.together)
    offsets, padding = np.divmod(mine[:, pattern.operand, :, pattern.which], 2)
    return np.where(padding, PADDING, pattern.base + offsets)


def span(walk: Walk) -> tuple[int, int]:
    """The lowest address that is read, and the one after the highest; both 0 when none is."""
    if not isinstance(walk, Counters):
        read = walk[walk != PADDING]
        return (int(read.min()), int(read.max()) + 1) if read.size else (0, 0)
    if walk.window is None:
        return _walked(walk)[:2]
    ends = [(first, stop) for first, stop, _ in map(_walked, walk.pieces) if first < stop]
    return (min(first for first, _ in ends), max(stop for _, stop in ends)) if ends else (0, 0)


@lru_cache(maxsize=4096)
def _walked(pattern: Counters) -> tuple[int, int, tuple[range, ...]]:
    """The span of nested counters, and which of each one's counts are stored; many passes walk alike."""
    insides = tuple(counter.inside for counter in pattern.counters)
    if not all(insides):
        return 0, 0, insides
    first = stop = pattern.base
    for counter, inside in zip(pattern.counters, insides, strict=True):
        ends = counter.offset(inside.start), counter.offset(inside.stop - 1)
        first, stop = first + min(ends), stop + max(ends)
    return first, stop + 1, insides


def gather(words: Values, walk: Walk, operands: Values) -> None:
    """What address generators fetch: `words` [lanes, words, E], which begin at the span, into `operands` [lanes,
    elements]; padding is zero.
    """
    first, at, elements = span(walk)[0], 0, words.shape[2]
    if not isinstance(walk, Counters):
        _by_address(words[: len(operands)], walk, first, operands)
        return
    for piece in walk.pieces:
        end = at + piece.words * elements
        _by_counters(words[: len(operands)], piece, first, operands[:, at:end])
        at = end


def seen(words: Values, walk: Walk) -> Values | None:
    """What `gather` would fetch, [lanes, words, E], as it stands in `words`; None where some of it is padding."""
    if not isinstance(walk, Counters) or walk.window is not None or walk.accesses != walk.words:
        return None
    return _stored(words, walk, span(walk)[0]).reshape(len(words), walk.words, -1)


def scatter(values: Values, walk: Walk, words: Values) -> None:
    """The way back: `values` [lanes, words, E] into `words`, which begin at the span; padding keeps nothing."""
    first, at = span(walk)[0], 0
    if not isinstance(walk, Counters):
        stored = walk != PADDING
        words[:, walk[stored] - first] = values[:, stored]
        return
    for piece in walk.pieces:
        counts, inside = _counted(piece)
        each = values[:, at : at + piece.words].reshape(len(values), *counts, -1)
        _stored(words, piece, first)[...] = each[inside]
        at += piece.words


def _by_address(source: Values, addresses: Addresses, first: int, operands: Values) -> None:
    operands[...] = 0
    place = operands.reshape(len(operands), len(addresses), -1)
    stored = addresses != PADDING
    place[:, stored] = source[:, addresses[stored] - first]


def _by_counters(source: Values, pattern: Counters, first: int, operands: Values) -> None:
    if pattern.accesses != pattern.words:
        operands[...] = 0
    counts, inside = _counted(pattern)
    operands.reshape(len(operands), *counts, -1, copy=False)[inside] = _stored(source, pattern, first)


def _counted(pattern: Counters) -> tuple[list[int], tuple[slice, ...]]:
    """How many counts each counter has, and which of [lane, *counts] are stored."""
    inside = (slice(each.start, each.stop) for each in _walked(pattern)[2])
    return [counter.length for counter in pattern.counters], (slice(None), *inside)


def _stored(source: Values, pattern: Counters, first: int) -> Values:
    """A view [lane, *stored counts, E]: every counter becomes an axis; `source` begins at word `first`."""
    _, _, insides = _walked(pattern)
    shape = [len(inside) for inside in insides]
    if not all(shape):
        return source[:, :0].reshape(len(source), *shape, source.shape[2])
    pairs = zip(pattern.counters, insides, strict=True)
    at = pattern.base + sum(counter.offset(inside.start) for counter, inside in pairs) - first
    lane, word, element = source.strides
    strides = [counter.step * counter.stride * word for counter in pattern.counters]
    return as_strided(source[:, at:], [len(source), *shape, source.shape[2]], [lane, *strides, element])
