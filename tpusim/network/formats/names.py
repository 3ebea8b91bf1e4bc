"""Names of layers, from files where they may be missing, odd, or the same."""

from __future__ import annotations

from itertools import chain, count

_LONGEST = 180
"""Characters; numbers may follow."""


def printable(text: str) -> str:
    """`text` in one line that a message, a comment or a name can hold."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:_LONGEST]


class Names:
    """Hands out names that differ, also from those that a layer's `count` makes of its own."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counted: set[str] = set()
        self.changed: list[str] = []
        """Those that could not be kept as they were."""

    def take(self, wanted: str, counted: bool = False) -> str:
        """`wanted`, or the same with a number, for a layer that comes once or, `counted`, as wanted_1, wanted_2, ..."""
        base = printable(wanted).strip() or "layer"
        name = next(each for each in chain([base], (f"{base}_{i}" for i in count(2))) if self._free(each, counted))
        if name != wanted:
            self.changed.append(name)
        (self._counted if counted else self._taken).add(name)
        return name

    def _free(self, name: str, counted: bool) -> bool:
        head, _, tail = name.rpartition("_")
        if name in self._taken | self._counted or (tail.isdigit() and head in self._counted):
            return False
        return not (counted and any(_numbered(each, name) for each in self._taken))


def _numbered(name: str, base: str) -> bool:
    head, _, tail = name.rpartition("_")
    return head == base and tail.isdigit()
