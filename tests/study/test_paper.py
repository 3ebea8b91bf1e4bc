"""The paper's claims: that verdicts follow from rules, and that what comes out is what the documents say."""

from __future__ import annotations

import pytest

from tpusim.base.errors import InputError
from tpusim.cli import commands
from tpusim.study.paper.claim import CONDITION, FAILS, HOLDS, OPEN, Claim, Finding, Rule
from tpusim.study.paper.registry import MAKERS, chosen
from tpusim.study.paper.words import ClaimWords, words


def claim(rule: Rule | None, *values: float) -> Claim:
    """One with these figures."""
    return Claim("key", "short", "sentence", "I", "1", "", rule, [Finding(f"{each}", each) for each in values])


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((1.0, 2.0), HOLDS), ((0.9, 1.0), CONDITION), ((2.1, 0.9), FAILS), ((), OPEN)],
    ids=["all", "some", "none", "nothing"],
)
def test_a_verdict_follows_from_the_figures(values: tuple[float, ...], verdict: str) -> None:
    assert claim(Rule(1, 2), *values).verdict == verdict


def test_without_a_rule_nothing_is_judged() -> None:
    assert claim(None, 1.0).verdict == OPEN


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"about": 20, "unit": "%"}, "from 15 to 25 %"),
        ({"about": 5, "within": 0.1, "unit": "x"}, "from 4.5 to 5.5x"),
        ({"least": 2}, "at least 2"),
        ({"most": 1234, "unit": "%"}, "at most 1,234 %"),
    ],
)
def test_rules_are_made_of_words(given: dict[str, float | str], text: str) -> None:
    made = ClaimWords.model_validate({"key": "k", "short": "", "sentence": "", "stated": "", "note": "", **given}).rule
    assert made is not None
    assert made.text == text


def test_a_number_is_told_or_bounded() -> None:
    with pytest.raises(ValueError, match="not both"):
        ClaimWords(key="k", short="", sentence="", stated="", note="", about=1, most=2)


def test_every_exhibit_is_known_everywhere() -> None:
    assert [*words()] == [*MAKERS] == [*commands.EXHIBITS]
    keys = [each.key for exhibit in words().values() for each in exhibit.claims]
    assert len({*keys}) == len(keys)


def test_exhibits_are_chosen_by_name() -> None:
    assert chosen(["16b", "14a"]) == ["14a", "16b"]
    assert chosen([]) == [*words()]
    with pytest.raises(InputError, match=r"14c.*14a"):
        chosen(["14c"])
