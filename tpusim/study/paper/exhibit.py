"""A table or figure of the paper: what is said there, what we make of it, and the claims it carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tpusim.study.paper.claim import Claim, Finding
from tpusim.study.paper.found import Simulated
from tpusim.study.paper.views import Table, View
from tpusim.study.paper.words import ExhibitWords
from tpusim.study.sweep.space import Point

Asked = Mapping[str, Point]
"""What is to be simulated, each under a name of the exhibit's own."""
Found = Mapping[str, Simulated]
"""What came of it, under the same names."""


@dataclass(frozen=True)
class Shown:
    """What we make of an exhibit: views, and figures by the key of their claim."""

    views: Sequence[View] = ()
    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)


def nothing() -> Asked:
    """No points: those of an exhibit that takes no simulation that is worth keeping."""
    return {}


def unseen(_: Found) -> Shown:
    """Nothing, for an exhibit that nothing here can say anything of."""
    return Shown()


@dataclass(frozen=True)
class Maker:
    """How an exhibit is made: of what it asks for."""

    make: Callable[[Found], Shown] = unseen
    asked: Callable[[], Asked] = nothing


@dataclass(frozen=True)
class Exhibit:
    """The words of an exhibit, and what we make of it."""

    words: ExhibitWords
    shown: Shown

    @property
    def drawn(self) -> list[View]:
        """What of it is a picture."""
        return [each for each in self.shown.views if not isinstance(each, Table)]

    @property
    def tables(self) -> list[Table]:
        """What of it is a table."""
        return [each for each in self.shown.views if isinstance(each, Table)]

    @property
    def claims(self) -> list[Claim]:
        """Each claim with our figures."""
        return [
            Claim(
                each.key,
                each.short,
                each.sentence,
                each.section or self.words.section,
                each.stated,
                each.note,
                each.rule,
                self.shown.findings.get(each.key, ()),
            )
            for each in self.words.claims
        ]
