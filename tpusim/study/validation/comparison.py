"""How close tpusim comes to a set of numbers: errors case by case, and what they amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean, median

from tpusim.study.validation.cases import WORDS, NumberSet

AGREEING = 0.05
"""Estimate and schedule agree where they differ by at most this share of the schedule."""


@dataclass(frozen=True)
class ComparedCase:
    """One case: what tpusim, the reference and the roofline say; the rest as in Case.

    `with_their_block` is what tpusim says with the compiler's block; None where none is known or it does not fit.
    """

    name: str
    ours: float
    theirs: float
    roofline: float
    fitted: bool
    with_their_block: float | None = None
    estimated: float | None = None
    scheduled: float | None = None
    quirk: bool = False

    @property
    def error(self) -> float:
        """The error of tpusim, relative to the reference."""
        return self.ours / self.theirs - 1

    @property
    def error_with_their_block(self) -> float | None:
        """The same with the compiler's block."""
        return None if self.with_their_block is None else self.with_their_block / self.theirs - 1

    @property
    def roofline_error(self) -> float:
        """The error of the roofline, relative to the reference."""
        return self.roofline / self.theirs - 1

    @property
    def words_agree(self) -> bool | None:
        """Whether estimate and schedule agree; None unless both are known."""
        if self.estimated is None or self.scheduled is None:
            return None
        return abs(self.estimated - self.scheduled) <= AGREEING * self.scheduled


@dataclass(frozen=True)
class Spread:
    """Absolute errors of several cases: mean, median, 90th percentile, the worst and where it is."""

    mean: float
    median: float
    p90: float
    worst: float
    where: str

    @classmethod
    def of(cls, errors: Sequence[tuple[float, str]]) -> Spread:
        """Return the spread of (error, name) pairs; the worst keeps its sign."""
        sizes = sorted(abs(error) for error, _ in errors)
        worst, where = max(errors, key=lambda pair: abs(pair[0]))
        return cls(fmean(sizes), median(sizes), sizes[ceil(0.9 * len(sizes)) - 1], worst, where)


@dataclass(frozen=True)
class Comparison:
    """A set of numbers and how close tpusim comes."""

    numbers: NumberSet
    rows: tuple[ComparedCase, ...]

    @property
    def ours(self) -> Spread:
        """Errors of tpusim."""
        return Spread.of([(row.error, row.name) for row in self.rows])

    @property
    def with_their_blocks(self) -> Spread | None:
        """Errors of tpusim with the compiler's blocks, over the cases that have one; None where there is none."""
        found = [(row.error_with_their_block, row.name) for row in self.rows]
        errors = [(error, name) for error, name in found if error is not None]
        return Spread.of(errors) if errors else None

    @property
    def roofline(self) -> Spread:
        """Errors of the roofline."""
        return Spread.of([(row.roofline_error, row.name) for row in self.rows])

    @property
    def total_error(self) -> float:
        """The error of the sum over all rows."""
        ours, theirs = self.totals
        return ours / theirs - 1

    @property
    def totals(self) -> tuple[float, float]:
        """What all rows take together: by tpusim, and by the reference."""
        return sum(row.ours for row in self.rows), sum(row.theirs for row in self.rows)

    @property
    def quirks(self) -> int:
        """Rows of which the estimator does not charge all taps."""
        return sum(row.quirk for row in self.rows)

    @property
    def without_quirks(self) -> float | None:
        """The mean absolute error over the other rows; None where all are of one sort."""
        return self._mean(lambda row: not row.quirk) if self.quirks else None

    @property
    def agreement(self) -> tuple[int, int] | None:
        """In how many rows estimate and schedule agree, and of how many; None where they are nowhere both known."""
        known = [row.words_agree for row in self.rows if row.words_agree is not None]
        return (sum(known), len(known)) if known else None

    def half(self, fitted: bool) -> float | None:
        """Return the mean absolute error over the half used for fitting or the other; None where nothing was fitted."""
        return self._mean(lambda row: row.fitted is fitted) if self.numbers.fitted else None

    def _mean(self, chosen: Callable[[ComparedCase], bool]) -> float | None:
        errors = [abs(row.error) for row in self.rows if chosen(row)]
        return fmean(errors) if errors else None


def by_word(comparisons: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    """The comparisons of each word; after those of a kind, if they are several, one of all their rows."""
    kinds: dict[tuple[str, str], list[Comparison]] = {}
    for each in comparisons:
        kinds.setdefault((each.numbers.status, each.numbers.kind), []).append(each)
    words: dict[str, list[Comparison]] = {word: [] for word in WORDS}
    for (word, _), parts in kinds.items():
        words[word] += [*parts, *([together(parts)] if len(parts) > 1 else [])]
    return {word: found for word, found in words.items() if found}


def together(parts: Sequence[Comparison]) -> Comparison:
    """The rows of sets of one word and kind as those of one set."""
    first, fitted = parts[0].numbers, all(part.numbers.fitted for part in parts)
    machines = ", ".join(dict.fromkeys(part.numbers.hardware for part in parts))
    name, about = f"all {first.kind}", ", ".join(part.numbers.name for part in parts)
    numbers = replace(first, name=name, about=about, hardware=machines, fitted=fitted,
                      cases=tuple(case for part in parts for case in part.numbers.cases),
                      left_out=tuple(each for part in parts for each in part.numbers.left_out))  # fmt: skip
    return Comparison(numbers, tuple(row for part in parts for row in part.rows))
