"""Claims of the paper, our findings, and a verdict that follows from both by a rule. The words are in words.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf, isfinite

import yaml
from pydantic import BaseModel, TypeAdapter, model_validator

HOLDS, CONDITION, FAILS, OPEN = "holds", "holds with a condition", "does not hold", "cannot be judged here"
VERDICTS = {
    HOLDS: "every figure of ours is within the rule",
    CONDITION: "some are, under the conditions that are named, and some are not",
    FAILS: "none is",
    OPEN: "there is nothing here to judge it by",
}
"""Verdicts and their meanings."""

SIMULATED, COUNTED, MODELLED, ESTIMATED = "simulated", "counted", "modelled", "estimated"
AGAINST = "simulated, against what is {word}"
"""Words for the origin of a finding; the last one is for errors against reference numbers of another word."""


@dataclass(frozen=True)
class Finding:
    """A figure of ours in the rule's unit, its condition, and a word for its origin."""

    when: str
    value: float
    word: str = SIMULATED


class Claim(BaseModel, frozen=True, extra="forbid"):
    """A claim: its `sentence` in the paper, a `short` form, its section, the number `stated`, the rule (written as
    words.yaml says), and our findings.

    `note` says how our figures are worked out, and why we disagree if we do. Without a rule or findings it cannot be
    judged.
    """

    key: str
    short: str
    sentence: str
    section: str = ""
    stated: str
    note: str
    about: float | None = None
    within: float = 0.25
    least: float | None = None
    most: float | None = None
    unit: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Range of agreement, both ends included; None without a rule."""
        if self.about is not None:
            return self.about * (1 - self.within), self.about * (1 + self.within)
        if self.least is None and self.most is None:
            return None
        return -inf if self.least is None else self.least, inf if self.most is None else self.most

    @property
    def rule(self) -> str:
        """The rule in words, such as "from 17.2 to 28.8 %"; empty without one."""
        if self.bounds is None:
            return ""
        least, most = self.bounds
        if not isfinite(least):
            return f"at most {self.written(most)}"
        return f"from {number(least)} to {self.written(most)}" if isfinite(most) else f"at least {self.written(least)}"

    @model_validator(mode="after")
    def _one_rule(self) -> Claim:
        if self.about is not None and (self.least, self.most) != (None, None):
            raise ValueError(f"{self.key}: about, or least and most, not both")
        return self

    @property
    def verdict(self) -> str:
        """The verdict that follows, one of VERDICTS."""
        if not (self.rule and self.findings):
            return OPEN
        kept = len(self.kept)
        return HOLDS if kept == len(self.findings) else CONDITION if kept else FAILS

    @property
    def kept(self) -> list[Finding]:
        """Findings that agree with the rule."""
        least, most = self.bounds or (inf, -inf)
        return [each for each in self.findings if least <= each.value <= most]

    @property
    def ours(self) -> str:
        """Our figures in short: the only one, or the least and the greatest."""
        values = sorted(each.value for each in self.findings)
        if not values:
            return "-"
        low, high = values[0], values[-1]
        return self.written(low) if number(low) == number(high) else f"{number(low)} to {self.written(high)}"

    def written(self, value: float) -> str:
        """A figure in the rule's unit, such as "23.1 %" or "3.43x"."""
        space = "" if self.unit in ("", "x") else " "
        return f"{number(value)}{space}{self.unit}"


class ExhibitWords(BaseModel, frozen=True, extra="forbid"):
    """A table or figure: `figure` as on the command line, `name` as in the paper."""

    figure: str
    name: str
    title: str
    section: str
    states: str
    how: str
    claims: tuple[Claim, ...] = ()

    @property
    def stem(self) -> str:
        """Name of its picture's file, without suffix."""
        return self.name.lower().replace(". ", "_").replace(" ", "_")


@cache
def words() -> dict[str, ExhibitWords]:
    """The words of every exhibit by its figure, in the order of the paper."""
    text = (files("tpusim.study.paper") / "words.yaml").read_text(encoding="utf-8")
    found = TypeAdapter(tuple[ExhibitWords, ...]).validate_python(yaml.safe_load(text))
    return {each.figure: each for each in found}


def number(value: float) -> str:
    """A number with three digits, or with all digits of a larger whole part."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
