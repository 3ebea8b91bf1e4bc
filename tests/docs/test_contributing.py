"""The recipes of CONTRIBUTING.md work as written: a copy of the tree takes their blocks, and types their commands.

A block of Python or Markdown goes where the paragraph above it says: into the table of a file, below a row of it, or
into a file of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = {
    heading: text
    for heading, text in re.findall(r"^## (Add .*?)\n(.*?)(?=^## )", TEXT, re.M | re.S)
}  # fmt: skip
OP, LOWERING, MACHINE = RECIPES
QUICK = "tpusim "
"""How commands begin that take seconds; others are tests of many layers."""


def blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """The paragraph above each block of code, its language, and what it holds; also those in lists."""
    for found in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.M | re.S):
        yield text[: found.start()].rstrip().rpartition("\n\n")[2], found[2], dedent(found[3])


def commands(text: str) -> list[str]:
    """What is to be typed."""
    return [line.split(" #")[0].strip() for _, kind, held in blocks(text) if not kind for line in held.splitlines()]


def follow(text: str, tree: Path) -> list[str]:
    """Write each block where the text says; the files that were written, but for pages."""
    written = []
    for above, kind, held in blocks(text):
        if kind == "yaml":
            (name,) = re.findall(r"`(my_\w+\.yaml)`", above)
            (tree / name).write_text(held)
        elif kind in ("python", "markdown"):
            path = re.findall(r"`([\w./]+/[\w.]+)`", above)[-1]
            put(tree / path, above.rpartition(f"`{path}`")[2], held)
            written += [path] if kind == "python" else []
    for page, name in re.findall(r"in `(docs/\w+\.md)`, behind `(\w+)`", text):
        (op,) = re.findall(r"op: (\w+)", text)
        put_beside(tree / page, f"`{name}`, ", f"`{op}`, ")
    return written


def put(file: Path, where: str, held: str) -> None:
    """Behind the line that opens a table, or behind a row; a file of its own if neither is named."""
    table, row = re.search(r"`([A-Z_]+)`", where), re.search(r"below that of `(\w+)`", where)
    if not table and not row:
        assert not file.exists()
        file.write_text(held)
        return
    place = rf"^(?:\| `{row[1]}` \||    \"{row[1]}\": ).*$" if row else rf"^{table[1]}\b.*[{{(]$"  # type: ignore[index]
    whole = file.read_text()
    lines = re.findall(place, whole, re.M)
    assert len(lines) == 1, f"{file}: {place}"
    indent = "    " if table else ""
    file.write_text(whole.replace(lines[0], f"{lines[0]}\n{indent}{held.rstrip()}", 1))


def put_beside(file: Path, name: str, new: str) -> None:
    """Behind a name, in a list of names."""
    whole = file.read_text()
    assert name in whole
    file.write_text(whole.replace(name, name + new, 1))


def typed(command: str, tree: Path) -> str:
    """What a command prints in the tree, with the Python of these tests; it succeeds."""
    words = shlex.split(re.sub(r"^(tpusim|ruff|mypy|pytest)\b", rf"{shlex.quote(sys.executable)} -m \1", command))
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    shell = " ".join(word if word == ">" else shlex.quote(word) for word in words)
    done = subprocess.run(shell, shell=True, cwd=tree, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The checkout again, without what is built in it, and without these tests: there a recipe is followed already."""
    names = ".*", "results", "site", "golden", "truth", "*.ipynb", Path(__file__).name
    # Modules that are compiled come along: commands would compile the package anew. Loops of Numba do not.
    for name in ("tpusim", "configs", "workloads", "docs", "tests", "scripts"):
        compiled = ("*.nb[ic]",) if name == "tpusim" else ("__pycache__",)
        # Scripts are named like folders that are built.
        ignored = shutil.ignore_patterns(*compiled, *(() if name == "scripts" else names))
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_can_be_followed(heading: str, tree: Path) -> None:
    """What it adds is formatted and linted, and what it tells to try succeeds, here without the slow engine."""
    files = follow(RECIPES[heading], tree)
    if files:
        ruff = Path(sys.executable).with_name("ruff")
        typed(f"{ruff} format --check {' '.join(files)}", tree)
        typed(f"{ruff} check {' '.join(files)}", tree)
    tried = [each for each in commands(RECIPES[heading]) if not each.startswith(("scripts/", ".venv", "git "))]
    assert tried
    for command in tried:
        shown = typed(command.replace(" --engine both", ""), tree)
        assert not command.startswith(QUICK) or " 0 wrong" in shown


@pytest.mark.long
def test_a_machine_of_the_recipe_stands_in_the_table(tree: Path) -> None:
    """The test of shipped names finds its row."""
    follow(RECIPES[MACHINE], tree)
    typed(commands(RECIPES[MACHINE])[0], tree)
    typed("pytest -q -n 0 tests/machines/tpu/test_description.py -k shipped_names", tree)


@pytest.mark.long
@pytest.mark.parametrize("heading", RECIPES)
def test_types_and_tests_that_a_recipe_names_pass(heading: str, tree: Path) -> None:
    """Everything as it is written, with the environment that is there in the place of `.venv-test`."""
    shutil.copytree(ROOT / "tests" / "golden", tree / "tests" / "golden")
    for path in (ROOT / "tpusim" / "study").rglob("truth"):
        shutil.copytree(path, tree / path.relative_to(ROOT))
    follow(RECIPES[heading], tree)
    for command in commands(RECIPES[heading]):
        if not command.startswith("git "):
            typed(re.sub(r"^(scripts/test|\.venv-test/bin/python -m pytest)", "pytest -q -n 2", command), tree)
    typed("mypy --strict tpusim", tree)
    typed(
        "pytest -q tests/test_structure.py tests/docs/test_architecture.py tests/docs/test_pages.py -k 'not steps'",
        tree,
    )
    typed("ruff format --check tpusim tests", tree)
