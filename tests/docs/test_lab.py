"""The lab sheet takes its 90 minutes, its commands run, and its answers hold every figure that they tell."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from tests import ROOT
from tpusim.cli.app import app

SHEET = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
ANSWERS = (ROOT / "docs" / "lab_answers.md").read_text(encoding="utf-8")


def blocks(page: str, kind: str) -> list[str]:
    """The fenced blocks of a kind, also those of a list."""
    return [dedent(text) for _, text in re.findall(rf"^( *)(?:\d\. )?```{kind}\n(.*?)^ *```", page, re.M | re.S)]


STEPS = {
    command: [" ".join(line.split()) for line in shown.splitlines()]
    for block in blocks(ANSWERS, "console")
    for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.M)
}
(LAB,) = blocks(SHEET, "yaml")
ASKED = [line for block in blocks(SHEET, "") for line in block.splitlines() if re.match(r"tpusim (run|trace)", line)]
LIGHT = "tiny_4x4"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(command: str) -> str:
    """What a command shows, each line with single spaces."""
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    return "\n".join(" ".join(line.split()) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=[] if LIGHT in each else [pytest.mark.long]) for each in STEPS]
)
def test_a_command_prints_what_the_answers_say(command: str, desk: Path) -> None:
    (desk / "lab.yaml").write_text(LAB)
    shown = typed(command).splitlines()
    assert shown
    assert [line for line in STEPS[command] if line not in shown] == []


def test_every_command_of_the_sheet_is_answered() -> None:
    assert len(ASKED) >= 15
    assert [command for command in ASKED if command not in STEPS] == []


@pytest.mark.long
@pytest.mark.parametrize("stride", [1, 2])
def test_the_other_strides(stride: int, desk: Path) -> None:
    (desk / "lab.yaml").write_text(LAB.replace("stride: 4", f"stride: {stride}"))
    for lowering in ("channel_first", "explicit"):
        shown = typed(f"tpusim run lab.yaml --no-check --lowering {lowering}")
        (cycles,) = re.findall(r"^conv \S+ \S+ \d+ \d+ (\S+)", shown, re.M)
        assert re.search(rf"\b{cycles}\b", ANSWERS)


def test_sums_by_hand_are_right() -> None:
    found = doctest.DocTestParser().get_doctest("\n".join(blocks(ANSWERS, "python")), {}, "answers", None, None)
    assert len(found.examples) >= 8
    assert doctest.DocTestRunner().run(found).failed == 0


def test_minutes_add_up() -> None:
    minutes = [int(each) for each in re.findall(r"^## .*\((\d+) minutes\)", SHEET, re.M)]
    assert 7 <= len(minutes) <= 9
    assert sum(minutes) == 90
