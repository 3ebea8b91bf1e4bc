"""When each buffer is loaded: the order of compute stages, and the DMA queue that feeds them.

A *stage* is what runs between two loads: some passes of one output block and column fold. A *load* brings
one ifmap block or filter section into one buffer. Loads are cut into pieces and spread over the stages before
they are needed, so that a long load of one kind does not hold up a short one of the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Load(Generic[Key]):
    """`key` goes into `buffer` for `stage` and after; what was there was last used in stage `freed` (or -1)."""

    key: Key
    buffer: int
    stage: int
    freed: int


def assign_buffers(wanted: Sequence[Key], buffers: int) -> tuple[list[Load[Key]], list[int]]:
    """Walk over the key each stage wants; reuse a buffer that holds it, else replace the oldest.

    Returns the loads in order, and for each stage the index of the load it uses.
    """
    holds: list[int] = []
    last_used: dict[int, int] = {}
    loads: list[Load[Key]] = []
    uses: list[int] = []
    where: dict[Key, int] = {}
    for stage, key in enumerate(wanted):
        if key not in where:
            freed = -1
            if len(holds) == buffers:
                oldest = holds.pop(0)
                freed = last_used[oldest]
                del where[loads[oldest].key]
                buffer = loads[oldest].buffer
            else:
                buffer = len(holds)
            where[key] = len(loads)
            holds.append(len(loads))
            loads.append(Load(key, buffer, stage, freed))
        uses.append(where[key])
        last_used[where[key]] = stage
    return loads, uses


def slots_for(load: Load[Key]) -> range:
    """Slots of the DMA queue in which a load may be prefetched without waiting for the stage before.

    Slot `j` runs beside stage `j - 1`; a buffer freed by stage `s` is free from slot `s + 2` on.
    """
    return range(min(load.freed + 2, load.stage), load.stage + 1)


def spread(pieces: int, slots: range) -> list[int]:
    """The slot of each piece: evenly over `slots`, the last piece in the last slot."""
    return [
        slots[(piece + 1) * len(slots) // pieces - 1 if pieces <= len(slots) else piece * len(slots) // pieces]
        for piece in range(pieces)
    ]


def growing(count: int, largest: int) -> list[range]:
    """Cut `range(count)` into pieces of 1, 1, 2, 4, ... up to `largest`: a short wait for the first pass."""
    cuts, at, size = [], 0, 1
    while at < count:
        cuts.append(range(at, min(at + size, count)))
        at = cuts[-1].stop
        size = min(largest, max(1, at))
    return cuts


def even(count: int, pieces: int) -> list[range]:
    """Cut `range(count)` into at most `pieces` nearly equal pieces."""
    pieces = max(1, min(pieces, count))
    return [range(i * count // pieces, (i + 1) * count // pieces) for i in range(pieces)]


def halves(count: int) -> list[int]:
    """`count`, and ever smaller numbers that cut it into even parts, down to 1."""
    return sorted({-(-count // (1 << n)) for n in range(count.bit_length() + 1)}, reverse=True)


def even_extents(extent: int) -> list[int]:
    """All distinct ceil(extent / n), ascending: extents that cut an axis into nearly equal parts."""
    parts, n = [extent], 1
    while parts[-1] > 1:
        n = -(-extent // (parts[-1] - 1))
        parts.append(-(-extent // n))
    return parts[::-1]
