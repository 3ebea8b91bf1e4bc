"""The words of the paper, and ours on them, read from words.yaml."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from math import inf

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator

from tpusim.study.paper.claim import Rule


class _Words(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClaimWords(_Words):
    """A claim without what we find: see words.yaml."""

    key: str
    short: str
    sentence: str
    stated: str
    note: str
    section: str | None = None
    about: float | None = None
    within: float = 0.25
    least: float | None = None
    most: float | None = None
    unit: str = ""

    @property
    def rule(self) -> Rule | None:
        """The rule that a figure of ours has to meet."""
        if self.about is not None:
            return Rule(self.about * (1 - self.within), self.about * (1 + self.within), self.unit)
        if self.least is None and self.most is None:
            return None
        return Rule(-inf if self.least is None else self.least, inf if self.most is None else self.most, self.unit)

    @model_validator(mode="after")
    def _one_rule(self) -> ClaimWords:
        if self.about is not None and (self.least, self.most) != (None, None):
            raise ValueError(f"{self.key}: about, or least and most, not both")
        return self


class ExhibitWords(_Words):
    """A table or figure: `figure` as on the command line, `name` as in the paper."""

    figure: str
    name: str
    title: str
    section: str
    states: str
    how: str
    claims: tuple[ClaimWords, ...] = ()

    @property
    def stem(self) -> str:
        """The name of its picture's file, without an ending."""
        return self.name.lower().replace(". ", "_").replace(" ", "_")


@cache
def words() -> dict[str, ExhibitWords]:
    """All of them by their figure, in the order of the paper."""
    text = (files("tpusim.study.paper") / "words.yaml").read_text(encoding="utf-8")
    found = TypeAdapter(tuple[ExhibitWords, ...]).validate_python(yaml.safe_load(text))
    return {each.figure: each for each in found}
