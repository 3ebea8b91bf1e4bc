"""The gallery shows what the tool draws today: figures behind a picture are held, not its pixels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.thumbnails import DIGESTS, FOLDER, PAGE, Section, sections
from tests import ROOT

SECTIONS = [*sections()]
KEPT = json.loads(DIGESTS.read_text(encoding="utf-8"))
QUICK = ("Lowerings",)
MOST_BYTES = 40_000


@pytest.mark.parametrize(
    "section",
    [pytest.param(each, marks=[] if each.title in QUICK else [pytest.mark.long]) for each in SECTIONS],
    ids=lambda section: section.title,
)
def test_the_figures_behind_the_pictures_are_those_that_were_drawn(section: Section, tmp_path: Path) -> None:
    """Otherwise scripts/gallery draws them anew."""
    assert section.digest(tmp_path) == KEPT[section.title]


def test_each_section_has_a_digest() -> None:
    assert [*KEPT] == [section.title for section in SECTIONS]


def test_thumbnails_are_there_and_small() -> None:
    shown = [name for section in SECTIONS for name in section.pictures]
    assert sorted(file.stem for file in FOLDER.glob("*.png")) == sorted(shown)
    assert len(shown) == len(set(shown)) >= 20
    assert [file.name for file in FOLDER.glob("*.png") if file.stat().st_size > MOST_BYTES] == []


def test_each_picture_says_what_it_shows_and_leads_to_its_guide() -> None:
    cards = PAGE.read_text(encoding="utf-8").split(":::{grid-item-card}")[1:]
    told = [dict(re.findall(r"^:([a-z-]+): (.+)$", card, re.M)) for card in cards]
    assert len(told) == sum(len(section.pictures) for section in SECTIONS)
    assert [each for each in told if len(each.get("img-alt", "").split()) < 4] == []
    assert len({each["img-alt"] for each in told}) == len(told)
    assert {each["link-type"] for each in told} == {"doc"}
    assert [each["link"] for each in told if not (PAGE.parent / f"{each['link']}.md").exists()] == []


def test_each_kind_of_picture_that_the_package_draws_is_shown() -> None:
    """Pictures of a workload have its name at their end."""
    sources = (ROOT / "tpusim" / "report" / "plots" / name for name in ("run.py", "layer.py", "sweep.py"))
    drawn = {
        name
        for source in sources
        for name in re.findall(r'Picture\(\s*f?"([a-z_]+)', source.read_text(encoding="utf-8"))
    }
    renamed = {"trace": "lanes", "winners_": "winners", "machines": "generations", "axes_": ""}
    page = PAGE.read_text(encoding="utf-8")
    assert {"pe_utilization", "network", "memory", "pareto_", "lowerings"} <= drawn
    assert [name for name in drawn if renamed.get(name, name) not in page] == []
