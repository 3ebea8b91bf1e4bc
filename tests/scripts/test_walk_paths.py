"""`scripts/walk_paths` reads the page of paths as a newcomer does; its commands are known, and the cheap ones run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests import ROOT
from tests.typed import Page, Step
from tpusim.cli.app import app
from tpusim.study.sweep.points import load_sweep

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "walk_paths"))
PAGE = Page("docs/paths.md")
SET_UP, *PATHS = SCRIPT["walks"](PAGE.text)
CHEAP = "--layers fig10", "area "
"""Parts of commands that take a moment."""


def test_there_are_four_paths_of_six_to_ten_commands_each() -> None:
    assert [each.heading for each in PATHS] == ["An architect", "A JAX engineer", "A student", "A maintainer"]
    assert all(6 <= len(each.typed) <= 10 for each in PATHS)
    assert {name for each in PATHS for name in each.files} == {*PAGE.files}
    typed = [text for each in (SET_UP, *PATHS) for text in each.typed]
    assert {step.text for step in PAGE.steps} <= {*typed}


def test_files_that_commands_read_are_those_of_the_page() -> None:
    """Or what an earlier command of the path wrote."""
    for path in PATHS:
        there = {*path.files}
        for text in path.typed:
            read = {word.partition(":")[0] for word in text.split() if word.startswith("my_") and "." in word}
            assert read - Step(text).written <= there
            there |= Step(text).written


@pytest.mark.parametrize("text", [text for each in (SET_UP, *PATHS) for text in each.typed if any(
    part in text for part in CHEAP)])  # fmt: skip
def test_cheap_commands_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, held in PAGE.files.items():
        (tmp_path / name).write_text(held)
    done = CliRunner().invoke(app, text.split()[1:])
    assert done.exit_code == 0, done.output


def test_the_sweep_of_the_page_has_the_machines_that_it_tells_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine, of three sizes and three words, and goals that a sweep knows."""
    monkeypatch.chdir(tmp_path)
    for name, held in PAGE.files.items():
        (tmp_path / name).write_text(held)
    assert len(load_sweep("my_sweep.yaml").points) == 9


def test_a_command_that_fails_is_told_and_ends_the_walk_with_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "# Set up\n```\nexport NAME=here  # a word\n```\n## One\nThis is `my_word.yaml`:\n```yaml\nlast: there\n```\n"
    )
    text += "```\necho $NAME    # prints it\ncat my_word.yaml\nls nowhere_at_all\n```\n"
    assert SCRIPT["walked"](SCRIPT["walks"](text), tmp_path) == 1
    shown = capsys.readouterr().out
    assert "$ echo $NAME\n  exit 0" in shown
    assert "  | here\n" in shown
    assert "  | last: there\n" in shown
    assert "nowhere_at_all" in shown.rpartition("exit 2")[2]


def test_a_path_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["walk_paths", "pilot"])
    with pytest.raises(SystemExit) as left:
        SCRIPT["main"]()
    assert left.value.code == 2
    assert "no path of docs/paths.md is called pilot; there are: An architect" in capsys.readouterr().err
