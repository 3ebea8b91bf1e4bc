"""Turns of a long loop that are like the last: they are copied from it, and not scheduled one by one.

Only the first turns and the last of each loop are scheduled. Where those two ahead of the gap and those two behind it
are written alike, so are all between them: each row does what the row of two turns before does, in the same slots, on
elements as much further on, behind steps as much later. Nothing is copied unless the comparison holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.rows import Lengths, Numbers, Rows

TOGETHER = 2
"""Turns that are compared with as many: buffers of most loops come in pairs."""
AHEAD, BEHIND = 3 * TOGETHER, 2 * TOGETHER
"""Turns that are scheduled ahead of those that are copied, and at least behind them: some until a loop runs evenly, and
some in which the next begins.
"""


class Loop(NamedTuple):
    """Places of a loop: where each of two pairs of turns ahead of the gap begins, the gap, and the end of the pair
    behind it.
    """

    before: Lengths
    last: Lengths
    gap: Lengths
    after: Lengths


def kept(turns: int) -> tuple[list[int], int]:
    """The turns that are scheduled, and how many pairs are left out between them."""
    pairs = (turns - AHEAD - BEHIND) // TOGETHER
    return [*range(AHEAD), *range(AHEAD + pairs * TOGETHER, turns)], pairs


def with_turns(rows: Rows, loops: Sequence[Loop], pairs: int) -> Rows | None:
    """The rows with as many more `pairs` of turns in the gap of each loop, which come in their order; None where turns
    are not alike.
    """
    written = _GapRows(rows, loops)
    return written.with_copies(pairs) if all([written.alike(loop, pairs) for loop in loops]) else None


_PLACES = {"preload": "rows", "slots": "slots", "origin": "origins", "waits": "waits"}
"""Fields of a row that are places among what has been written, and among which of that."""


class _GapRows:
    """Rows whose loops have gaps, as arrays."""

    def __init__(self, rows: Rows, loops: Sequence[Loop]) -> None:
        self.rows, self.loops, self.table = rows, loops, rows.table
        self.arrays = {kind: np.array(getattr(rows, kind), np.int64) for kind in ("slots", "origins", "waits")}
        self.waiting: Numbers = np.repeat(np.arange(len(rows)), rows.ends - rows.table["waits"])

    def alike(self, loop: Loop, pairs: int) -> bool:
        """Whether the pairs of a loop are alike, and nothing behind the gap waits for the first of them."""
        by = loop.last.since(loop.before)
        if any(each != by for each in (loop.gap.since(loop.last), loop.after.since(loop.gap))):
            return False
        one, two, three = _pairs(loop, self.table, "rows")
        for name in self.table.dtype.names or ():
            moved = np.where(two[name] >= 0, getattr(by, _PLACES[name]), 0) if name in _PLACES else 0
            if not ((two[name] - one[name] == moved).all() and (three[name] - two[name] == moved).all()):
                return False
        steps = {kind: np.diff(np.stack(_pairs(loop, array, kind)), axis=0) for kind, array in self.arrays.items()}
        if steps["slots"].any() or not _in_line(_pairs(loop, self.arrays["origins"], "origins"), pairs + 1):
            return False
        ahead, behind = steps["waits"]
        if not ((ahead == behind).all() and np.isin(ahead, (0, by.rows)).all()):
            return False
        later = self.arrays["waits"][self.waiting >= loop.gap.rows]
        return not ((later >= loop.before.rows) & (later < loop.last.rows)).any()

    def with_copies(self, pairs: int) -> Rows:
        """The rows, with copies in all gaps."""
        more = [[pairs * each for each in loop.gap.since(loop.last)] for loop in self.loops]
        # How much later a row, a slot, an origin or a wait stands, by the number of gaps ahead of it.
        later = dict(zip(Lengths._fields, np.cumsum([[0] * len(Lengths._fields), *more], axis=0).T, strict=True))
        behind = np.searchsorted([loop.gap.rows for loop in self.loops], np.arange(len(self.table)), side="right")
        table, arrays = self.table.copy(), dict(self.arrays)
        for name, kind in _PLACES.items():
            table[name] += np.where(table[name] >= 0, later[kind][behind], 0).astype(np.int32)
        # A row behind a gap that waits for the pair ahead of the gap waits for the last copy of that pair.
        passed = np.searchsorted([loop.last.rows for loop in self.loops], arrays["waits"], side="right")
        arrays["waits"] = arrays["waits"] + later["rows"][np.minimum(passed, behind[self.waiting])]
        times = np.arange(1, pairs + 1)[:, np.newaxis]

        def copies(loop: Loop) -> NDArray[Any]:
            found = np.tile(table[loop.last.rows : loop.gap.rows], (pairs, 1))
            for name, kind in _PLACES.items():
                step = getattr(loop.gap.since(loop.last), kind)
                found[name] += np.where(found[name] >= 0, times * step, 0).astype(np.int32)
            return found.reshape(-1)

        def further(loop: Loop, kind: str) -> NDArray[Any]:
            """Numbers that are as much further on as those of the last pair ahead of the gap; slots are the same."""
            before, last, _ = _pairs(loop, arrays[kind], kind)
            found: Numbers = last + times * (last - before)
            return found.astype(getattr(self.rows, kind).dtype).reshape(-1)

        slots, origins, waits = (
            self._filled(
                array.astype(getattr(self.rows, kind).dtype), kind, [further(loop, kind) for loop in self.loops]
            )
            for kind, array in arrays.items()
        )
        rows = self._filled(table, "rows", [copies(loop) for loop in self.loops])
        return Rows(rows, self.rows.recipes, slots, waits, origins)

    def _filled(self, array: NDArray[Any], kind: str, copies: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """An array with copies in the gaps."""
        parts = np.split(array, [getattr(loop.gap, kind) for loop in self.loops])
        return np.concatenate([parts[0], *chain.from_iterable(zip(copies, parts[1:], strict=True))])


def _pairs(loop: Loop, array: NDArray[Any], kind: str) -> list[NDArray[Any]]:
    """What the three pairs of a loop have in an array."""
    return [array[first:last] for first, last in pairwise(getattr(each, kind) for each in loop)]


def _in_line(pairs: Sequence[Numbers], times: int) -> bool:
    """Whether each element moves by one step from the first pair to the second, and by `times` steps to the third.

    A spill behind the gap may leave a result of the turn ahead of it, and a load ahead of the gap may bring data for
    the turn behind it. Their elements are set to where they lie once the gap is filled.
    """
    first, second, third = pairs
    step, beyond = second - first, third - second
    behind, early = (beyond == step) & (step != 0), (step == beyond * times) & (step != 0)
    half = len(step) // 2
    if behind[half:].any() or early[:half].any() or not ((step * times == beyond) | behind | early).all():
        return False
    third[behind] = second[behind] + step[behind] * times
    second[early] = first[early] + beyond[early]
    return True
