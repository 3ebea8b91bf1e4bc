"""Files that commands write: none takes the place of another, or of one that the command reads."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpusim.cli.app import app

CONFIG = {
    "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 8,
    "num_hidden_layers": 1,
}  # fmt: skip
TINY = ("--hardware", "tiny_4x4", "--set", "mapping.search=estimate", "--no-check")


@cache
def result() -> str:
    return CliRunner().invoke(app, ["run", "tiny", *TINY, "--json", "-"]).stdout


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("run.json", "config.json"):
        Path(name).write_text(json.dumps(CONFIG))
    Path("slice.json").write_text('{"name": "own", "interconnect": "v5e", "torus": [2, 2]}')
    Path("made").mkdir()
    Path("made/run.json").write_text(result())
    return tmp_path


@pytest.mark.parametrize("words", [
    ("run", "config.json", *TINY, "--json", "config.json"), ("run", "config.json", *TINY, "--csv", "./config.json"),
    ("run", "config.json", *TINY, "--tokens", "2", "--json", "config.json"), ("run", "run.json", *TINY, "--out", "."),
    ("explain", "config.json", "--layer", "logits", "--json", "config.json"),
    ("compare", "config.json", "--closed-form", "--json", "config.json"),
    ("collective", "permute", "--slice", "slice.json", "--json", "slice.json"),
    ("compare", "made", "made/run.json", "--json", "made/run.json"),
    ("compare", "made", "made", "--json", "made/run.json"),
])  # fmt: skip
def test_what_a_command_reads_is_not_replaced(words: tuple[str, ...], here: Path) -> None:
    held = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 2, done.output
    assert "is read by this command, and would be replaced; name another file" in done.output
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == held


@pytest.mark.parametrize("words", [
    ("run", "tiny", *TINY, "--json", "both", "--csv", "./both"),
    ("run", "tiny", *TINY, "--csv", "new/run.json", "--out", "new"),
    ("explain", "tiny", "--layer", "fig10", "--json", "a.png", "--out", "./a.png"),
    ("collective", "permute", "--bytes", "1KiB", "--json", "t.json", "--trace", "./t.json"),
    ("collective", "permute", "--bytes", "1KiB", "--json", "new/torus.png", "--out", "new"),
])  # fmt: skip
def test_no_two_outputs_are_one_file(words: tuple[str, ...], here: Path) -> None:
    held = sorted(here.rglob("*"))
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 2, done.output
    assert "both would write" in done.output
    assert sorted(here.rglob("*")) == held


def test_the_same_text_may_be_asked_for_twice() -> None:
    assert CliRunner().invoke(app, ["run", "tiny", *TINY, "--json", "new/run.json", "--out", "new"]).exit_code == 0
    assert json.loads(Path("new/run.json").read_text())["workload"] == "tiny"
