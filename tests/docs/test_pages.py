"""Everything that the README and the guides have a reader type is typed here, in order, in an empty directory."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer.main
from typer.testing import CliRunner

from tests import ROOT
from tests.flow.gpt2 import Size, exported, weights_of
from tests.typed import PAGES, Page, Step, shows
from tpusim.cli.app import app
from tpusim.network.ops import OPS
from tpusim.network.ops.elementwise import ROWS

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, with a model, a decoder, a tenth of the shipped search, small lowerings."""
    search = (ROOT / "configs" / "sweeps" / "search.yaml").read_text()
    assert "budget: 60" in search
    lowerings = re.sub(r"\[.*\]", "[tiny]", (ROOT / "configs" / "sweeps" / "lowerings.yaml").read_text())
    for name, text in {"search": search.replace("budget: 60", "budget: 6"), "lowerings": lowerings}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    shutil.copy(LIGHT / "light_squeezenet.onnx", tmp_path / "model.onnx")
    decoder = Size(blocks=1, width=16, heads=2, vocabulary=20, context=8)
    exported(decoder, weights_of(decoder, 0), tmp_path)
    np.savez(tmp_path / "step.npz", **decoder.first(np.array([[7, 11, 3]])))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def strands() -> Iterator[object]:
    """Commands of the README are quick; all others are long, and so is `list`, which tests of screens look through."""
    for page in PAGES:
        for strand in page.strands:
            quick = page.name == "README.md" and strand[0].is_command and strand != [Step("tpusim list")]
            marks = () if quick else (pytest.mark.long,)
            yield pytest.param(page, strand, id=f"{page.name}: {strand[0].text.splitlines()[0]}", marks=marks)


@pytest.mark.parametrize(("page", "strand"), [*strands()])
def test_steps_work_and_print_what_is_shown(page: Page, strand: list[Step], desk: Path) -> None:
    """In order: some read what those before them wrote. Every output is right, where it is checked."""
    for name, text in page.files.items():
        (desk / name).write_text(text)
    for step in strand:
        shorter = re.sub(r"^(tpusim sweep (?:search|lowerings))\b", r"\1.yaml", step.text)
        code, printed, messages = Step(shorter).typed()
        assert code == 0, f"{step.text}: {messages}"
        if step.text.startswith("tpusim run") and "--no-check" not in step.text:
            assert " 0 wrong" in printed + messages, step.text
        assert shows(step.shown, printed + messages), f"{step.text} prints:\n{printed}{messages}"
        assert step.is_command or printed, step.text
        for name in step.written:
            assert (desk / name).is_dir() or (desk / name).stat().st_size > 500, name


def test_python_of_the_readme_prints_what_is_shown() -> None:
    """For one of its three arrays, which takes a third of the time."""
    (step,) = (each for each in PAGES[0].steps if not each.is_command)
    assert "(64, 128, 256)" in step.text
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(step.text.replace("(64, 128, 256)", "(128,)"), {})
    assert printed.getvalue().strip() in step.shown.splitlines()


EVERY = [Page(str(path.relative_to(ROOT))) for path in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md")))]
"""Pages that are typed, and those whose commands other tests type, or none."""


@cache
def known_commands() -> dict[str, Any]:
    """Each command by its name; to build them takes longer than to look through a page."""
    return typer.main.get_command(app).commands  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.name)
def test_commands_and_options_are_known(page: Page) -> None:
    """Quickly, in blocks and in sentences; a script that is named is there."""
    commands = known_commands()
    lines = [line for _, language, held in page.blocks if language in ("", "console") for line in held.splitlines()]
    blocks = [line.removeprefix("$ ").split(" #")[0] for line in lines]
    for text in (*blocks, *re.findall(r"`([^`\n]+)`", page.text)):
        if re.match(rf"tpusim ({'|'.join(commands)})\b", text) and "..." not in text:
            name, *words = shlex.split(text)[1:]
            commands[name].make_context(name, words, resilient_parsing=True)
        elif text.startswith("scripts/"):
            assert (ROOT / text.split()[0]).exists(), text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_steps_are_commands_or_python(page: Page) -> None:
    assert all(each.is_command or "import " in each.text for each in page.steps)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_step_is_in_one_strand(page: Page) -> None:
    assert sorted(step.text for strand in page.strands for step in strand) == sorted(step.text for step in page.steps)


FIGURE = re.compile(r"(?<![\w.])(?:\d+(?:,\d{3})+|\d+\.\d+)(?!\w)")
_, ACCURACY, _ = re.split("<!-- /?accuracy -->", (ROOT / "docs" / "generations.md").read_text())
"""Errors of emitted code, which a test of its own works out."""
GIVEN = {
    "docs/start.md": {"3.11"},
    "docs/tables.md": {"9,216", "4,096"},
    "docs/your_model.md": {"0.75"},
    "docs/your_machine.md": {"46.2"},
    "docs/algorithms.md": {"0.65", "0.88", "2.25", "5.1", "16,384"},
    "docs/other_simulators.md": {"3,136", "12,544"},
    "docs/proofs.md": {"2,000", "20,000", "10,000", "1,000"},
    "docs/several_chips.md": {"4.55", "5.7", "13.5", "2,000", "8,192"},
}
"""Figures of a page that no output shows: sizes, and what other tests hold."""


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_figures_in_sentences_are_those_of_the_outputs(page: Page) -> None:
    shown = " ".join(held for _, language, held in page.blocks if language in ("text", "yaml"))
    sentences = re.sub(
        r"<!-- accuracy -->.*?<!-- /accuracy -->|^```.*?^```$|\]\(.*?\)", "", page.text, flags=re.M | re.S
    )
    told, seen = ({*FIGURE.findall(text)} for text in (sentences, shown))
    assert told - seen == GIVEN.get(page.name, set())


def test_the_guides_name_every_op() -> None:
    """Every op is in the table of ops, and every function of the vector unit in that of ALU operations."""
    ops, costs = ((ROOT / "docs" / f"{page}.md").read_text() for page in ("your_model", "timing"))
    assert {op for op in OPS if not re.search(rf"`{op}\b", ops)} == set()
    assert {op for op, row in ROWS.items() if not row.exact and f"`{op}`" not in costs} == set()


def test_outputs_are_compared() -> None:
    """A figure that a page has wrong is seen, and so are lines that do not follow one another."""
    assert shows("a 1\n...\nc ... 3\n", "head\na 1  \nb\nb\nc two 3\nend")
    assert not shows("a 1\nc two 3", "a 1\nb\nc two 3")
    assert not shows("a 2", "a 1")


def test_files_that_steps_share_join_them() -> None:
    one, two = Step("tpusim run tiny --out results/tiny"), Step("tpusim report results/tiny -o tiny.html")
    page = Page("README.md")
    vars(page)["steps"] = [one, Step("tpusim list"), two]
    assert page.strands == [[Step("tpusim list")], [one, two]]


def test_the_readme_names_every_command() -> None:
    _, _, told = (ROOT / "README.md").read_text().partition("## Commands\n")
    section = told.partition("\n## ")[0]
    named = {each.removeprefix("tpusim ").split()[0] for each in re.findall("`([^`]+)`", section)}
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert {*group.commands} <= named


@pytest.mark.long
def test_errors_of_every_generation_are_those_of_validate() -> None:
    done = CliRunner().invoke(app, ["validate", "--set-of-numbers", "generations", "--json", "-"])
    assert done.exit_code == 0, done.output
    sets = [each for each in json.loads(done.stdout)["generations"] if each["status"] == "scheduled"]
    means = {(each["generation"], each["part"]): f"{100 * each['mean']:.1f}" for each in sets}
    parts = ("products", "convolutions", "first layers", "int8 and fp8")
    for generation in dict.fromkeys(name for name, part in means if part in parts):
        row = ["7x" if generation == "v7x" else generation, *(means.get((generation, part), "") for part in parts)]
        assert f"| {' | '.join(row)} |".replace("  ", " ") in ACCURACY
    told = readme_generations()
    assert [*told] == ["v4", "v5e", "v5p", "v6e", "v7x"]
    counts = {(each["generation"], each["part"]): str(each["cases"]) for each in sets}
    for generation, (cases, errors) in told.items():
        keys = [(generation, part) for part in ("products", "convolutions", "vector ops")]
        assert (cases, errors) == ([counts[key] for key in keys], [f"{means[key]} %" for key in keys])


def readme_generations() -> dict[str, tuple[list[str], list[str]]]:
    """Cases and mean errors of each later TPU in the README's table: products, convolutions, vector ops."""
    pattern = r"^\| .* \| scheduled \| `code_(\w+)` \| ([\d, ]+) \| ([\d., %]+) \|$"
    rows = re.findall(pattern, PAGES[0].text, re.MULTILINE)
    return {name: (cases.split(", "), errors.split(", ")) for name, cases, errors in rows}


def test_the_readme_says_of_later_tpus_what_validation_says() -> None:
    """To the digit, as the long test holds the README itself."""
    page = (ROOT / "docs" / "validation.md").read_text()
    for generation, (_, (products, convolutions, vector)) in readme_generations().items():
        row = rf"^\| {generation} \| {products[:-2]} \| {convolutions[:-2]} \| .* \| {vector[:-2]} \|$"
        assert re.search(row, page, re.MULTILINE), generation
