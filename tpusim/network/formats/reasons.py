"""What of a network becomes no layer, and the reasons why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tpusim.base.words import few

IN_PLACE = "its result is read where its operand lies"
ROUNDED = "it rounds, and no unit here rounds"
NO_LAYER = "no layer here computes it"
SORTED = "elements are sorted, and no unit here sorts"
TRUTH = "it makes truth values, and layers make numbers"
BY_VALUES = "which elements it takes follows from values"
TO_PLACES = "where elements go follows from values"
PLACES = "it makes places of elements, and no unit here counts them"
IN_TURN = "each result follows on the one before"
MOST_TOLD = 8
"""Most reasons that a message tells."""


@dataclass
class LeftOut:
    """The ops of a network that become no layer.

    Attributes:
        not_timed: how often each op comes that takes no time.
        not_known: how often each op comes that nobody here knows.
        reasons: why ops are not known, or cannot be layers.
        untimed: by op that takes no time how often each reason holds.
    """

    not_timed: Counter[str] = field(default_factory=Counter)
    not_known: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    untimed: dict[str, Counter[str]] = field(default_factory=dict)

    def take_no_time(self, op: str, why: str) -> None:
        """Count an op that takes no time, and the reason."""
        self.not_timed[op] += 1
        self.untimed.setdefault(op, Counter())[why] += 1

    def counts(self) -> dict[str, dict[str, int]]:
        """Return both counts as a file has them, the most frequent first."""
        return {"not_timed": dict(self.not_timed.most_common()), "not_known": dict(self.not_known.most_common())}

    def why_untimed(self, but: str = "") -> str:
        """Name ops that take no time, with how often each reason holds; those of one reason may be left out."""
        every = ((op, *each) for op, counts in self.untimed.items() for each in counts.items())
        return ", ".join(f"{op} {count:,} ({why})" for op, why, count in every if why != but)

    def notes(self) -> Iterator[str]:
        """Yield what people are told of a network that is run all the same."""
        if told := self.why_untimed(but=IN_PLACE):
            yield f"not timed: {told}"
        if self.reasons:
            yield f"left out: {few(self.reasons, MOST_TOLD, '; ', '; and {} more')}"
