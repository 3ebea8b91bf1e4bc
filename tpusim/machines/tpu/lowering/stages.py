"""The stages that a plan goes through, and what each of them works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Columns:
    """What passes bring out of the columns of the array: a portion of the output channels, of one outcome."""

    channels: range
    outcome: int


@dataclass(frozen=True, slots=True)
class Section:
    """Passes of a chunk and an outcome, by number, whose weights share a filter buffer."""

    chunk: int
    numbers: range
    outcome: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The passes of one section for one channel group, block and column fold (of an outcome)."""

    group: int
    block: int
    fold: int
    section: int


def by_outcome(sections: Sequence[Section]) -> list[list[list[int]]]:
    """The numbers of the sections of each chunk, outcome by outcome."""
    chunks = [[*each] for _, each in groupby(range(len(sections)), lambda at: sections[at].chunk)]
    return [[[*each] for _, each in groupby(chunk, lambda at: sections[at].outcome)] for chunk in chunks]
