"""Gives out words of the vector memories to layers, and to what stays between them."""

from __future__ import annotations

from collections.abc import Sequence


class FullError(Exception):
    """There is no room while a layer runs."""

    def __init__(self, layer: int) -> None:
        super().__init__(layer)
        self.layer = layer


class Allocator:
    """Gives out words of the vector memories, layer by layer: homes from the end down, layers' own behind those of the
    layer ahead, so that it may begin before that has ended.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._homes: list[tuple[int, int, int]] = []
        self._first = self._stop = 0

    def home(self, layer: int, last: int, words: int, over: int | None = None) -> int:
        """The first of so many words that are free from a layer on until the `last`; `over`: of what ends there."""
        taken = self._taken(layer)
        starts = [self._capacity - words, *sorted((first - words for first, _ in taken), reverse=True)]
        first = self._fitting(layer, starts, words) if over is None else over
        self._homes.append((last, first, first + words))
        return first

    def own(self, layer: int, words: int) -> int:
        """The first of so many that are free while a layer runs."""
        other = 0 if self._first else self._capacity - words
        ends = sorted(stop for _, stop in self._taken(layer))
        self._first = self._fitting(layer, [self._stop, other, 0, *ends], words)
        self._stop = self._first + words
        return self._first

    def _taken(self, layer: int) -> list[tuple[int, int]]:
        return [(first, stop) for last, first, stop in self._homes if last >= layer]

    def _fitting(self, layer: int, starts: Sequence[int], words: int) -> int:
        """The first of these from which on so many are free."""
        for start in starts:
            stop = start + words
            if start >= 0 and stop <= self._capacity and not any(
                start < other and one < stop for one, other in self._taken(layer)
            ):  # fmt: skip
                return start
        raise FullError(layer)
