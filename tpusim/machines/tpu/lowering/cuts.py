"""Ways to cut an extent or a load into parts: even, growing, halves."""

from __future__ import annotations


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
