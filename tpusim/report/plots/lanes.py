"""Where the edges of a network run when its layers stand below one another: a line for each output, in lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Output(NamedTuple):
    """What the layer of a row makes: a line down a lane, as far as the row of the last layer that reads it."""

    row: int
    lane: int
    last: int


def outputs(names: Sequence[str], inputs: Mapping[str, Sequence[str]]) -> list[Output]:
    """The output of each row. Lines in one lane stand behind one another; the leftmost free lane is taken."""
    rows = {name: row for row, name in enumerate(names)}
    last = {row: row for row in rows.values()}
    for name, read in inputs.items():
        for each in read:
            last[rows[each]] = max(last[rows[each]], rows[name])
    found: list[Output] = []
    until: list[int] = []
    """By lane the row where its line ends."""
    for row in range(len(names)):
        lane = next((lane for lane, end in enumerate(until) if end <= row), len(until))
        until[lane : lane + 1] = [last[row]]
        found.append(Output(row, lane, last[row]))
    return found
