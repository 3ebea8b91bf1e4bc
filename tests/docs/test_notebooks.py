"""Notebooks show what the tool says today. They are executed as `scripts/notebooks` does, without Jupyter."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs import cells
from docs.cells import FOLDER, executed, shown
from tests import ROOT, forked

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUICK = ("your_own_model",)
"""Those that take a second or two; `scripts/prove docs` executes all."""
MOST_BYTES = 300_000


def read(file: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return notebook


def by_name(file: Path) -> str:
    return file.stem


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=[] if file.stem in QUICK else [pytest.mark.long]) for file in NOTEBOOKS],
    ids=by_name,
)
def test_what_cells_print_is_what_is_stored(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "said", forked_command(cells.said))
    notebook = read(file)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, outputs in zip(code, executed(notebook), strict=True):
        assert shown(outputs) == shown(cell["outputs"]), "".join(cell["source"])


def forked_command(usual: Callable[[str], str]) -> Callable[[str], str]:
    """What a cell's command says, by a process that need not import tpusim; a shell has pipes and all else."""

    def said(line: str) -> str:
        command, _, file = line.partition(" > ")
        name, *words = shlex.split(command)
        if name != "tpusim" or re.search(r"\||2>", line):
            return usual(line)
        done = forked.tpusim(*words, more={"COLUMNS": "80"})
        assert done.returncode == 0, done.stderr
        if not file:
            return done.stdout
        Path(file).write_text(done.stdout, encoding="utf-8")
        return ""

    return said


@pytest.mark.parametrize("file", NOTEBOOKS, ids=by_name)
def test_a_notebook_is_small_and_tells_of_no_computer(file: Path) -> None:
    text, notebook = file.read_text(encoding="utf-8"), read(file)
    assert len(text.encode()) < MOST_BYTES
    assert not re.search(r"/(home|tmp|work|root|Users)/", text)
    assert not re.search(r"Traceback|\bin \d[\d.,]* s\b|simulated in", text)
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("file", NOTEBOOKS, ids=by_name)
def test_a_notebook_has_words_and_pictures(file: Path) -> None:
    cells = read(file)["cells"]
    words = [cell for cell in cells if cell["cell_type"] == "markdown"]
    kinds = [kind for cell in cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert "".join(words[0]["source"]).startswith("# ")
    assert len(words) >= 4
    assert "image/png" in kinds


def test_every_notebook_is_on_the_site() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 8
    assert [file.stem for file in NOTEBOOKS if f"notebooks/{file.stem}" not in index] == []
