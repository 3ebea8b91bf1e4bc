"""Elements in the words of the vector memories: packed by transfers, gathered by address patterns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import (
    PADDING,
    Addresses,
    AddressPattern,
    Counters,
    LaneGroup,
    Table,
    walked,
)
from tpusim.machines.tpu.program.tensor import Part

Values = NDArray[np.float32]


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


def collected(words: Mapping[LaneGroup, Values], part: Part) -> Values:
    """What a part with addresses of its own takes, [lane, *items], of the `words` of each group, as for `gather`."""
    counts = [len(each.coordinates) for each in part.items]
    flat = np.zeros((part.lanes, part.words * part.per_word), np.float32)
    for group, source in words.items():
        at = slice(group.first_lane, group.first_lane + group.lanes)
        gather(source[..., : part.per_word], group.pattern, flat[at])
    return flat[:, : prod(counts)].reshape(part.lanes, *counts)


def _by_item(words: Values, part: Part) -> Values | None:
    """A view of `words` by the counters of a part, where some of them, the last, make up a word; else None."""
    counts = [len(each.coordinates) for each in part.items]
    if not any(prod(counts[at:]) == part.per_word for at in range(len(counts))):
        return None
    return words[..., : part.per_word].reshape(len(words), *counts, copy=False)


def span(pattern: AddressPattern) -> tuple[int, int]:
    """The lowest address that is read, and the one after the highest; both 0 when none is."""
    if isinstance(pattern, Table):
        read = [address for address in pattern.addresses if address != PADDING]
        return (min(read), max(read) + 1) if read else (0, 0)
    if _jumps(pattern):
        stored, addresses = walked(pattern)
        read = addresses[stored].tolist()
        return (min(read), max(read) + 1) if read else (0, 0)
    if pattern.window is None:
        return _walked(pattern)[:2]
    ends = [(first, stop) for first, stop, _ in map(_walked, pattern.pieces) if first < stop]
    return (min(first for first, _ in ends), max(stop for _, stop in ends)) if ends else (0, 0)


def _jumps(pattern: Counters) -> bool:
    """Whether its addresses are not evenly spaced."""
    return any(each.jump for each in pattern.counters)


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


def gather(words: Values, pattern: AddressPattern, operands: Values) -> None:
    """What address generators fetch: `words` [lanes, words, E], which begin at the span, into `operands` [lanes,
    elements]; padding is zero.
    """
    if isinstance(pattern, Table) or _jumps(pattern):
        _by_table(words[: len(operands)], *walked(pattern), span(pattern)[0], operands)
        return
    first, at, elements = span(pattern)[0], 0, words.shape[2]
    for piece in pattern.pieces:
        end = at + piece.words * elements
        _by_counters(words[: len(operands)], piece, first, operands[:, at:end])
        at = end


def _by_table(source: Values, stored: NDArray[np.bool_], addresses: Addresses, first: int, operands: Values) -> None:
    operands[...] = 0
    place = operands.reshape(len(operands), len(addresses), -1)
    place[:, stored] = source[:, addresses[stored] - first]


def _by_counters(source: Values, pattern: Counters, first: int, operands: Values) -> None:
    """One strided view: every counter becomes an axis; `source` begins at word `first`."""
    _, _, insides = _walked(pattern)
    shape, counts = [len(inside) for inside in insides], [counter.length for counter in pattern.counters]
    if shape != counts:
        operands[...] = 0
    if not all(shape):
        return
    pairs = zip(pattern.counters, insides, strict=True)
    at = pattern.base + sum(counter.offset(inside.start) for counter, inside in pairs) - first
    lane, word, element = source.strides
    strides = [counter.step * counter.stride * word for counter in pattern.counters]
    view = as_strided(source[:, at:], [len(source), *shape, source.shape[2]], [lane, *strides, element])
    place = operands.reshape(len(operands), *counts, -1, copy=False)
    place[(slice(None), *(slice(inside.start, inside.stop) for inside in insides))] = view
