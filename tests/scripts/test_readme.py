"""Everything the README tells a reader to type is typed here, in order, in an empty directory."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from tests import ROOT
from tpusim.cli.app import app

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
FILES = dict(zip(re.findall(r"`(my_\w+\.yaml)`[:;]", README), [b for kind, b in BLOCKS if kind == "yaml"], strict=True))
COMMANDS = [
    line.split("#")[0].strip()
    for kind, block in BLOCKS
    for line in (block.splitlines() if not kind else ())
    if line.startswith("tpusim ")
]
CODE = [block for kind, block in BLOCKS if kind == "python"]


def files(text: str) -> set[str]:
    """What a command or some Python reads or writes; a sweep writes results of its name."""
    swept = re.findall(r"^tpusim sweep (\w+)", text)
    return {*re.findall(r"results/\w+|\w+\.json|imported\.yaml", text), *(f"results/{name}" for name in swept)}


def strands() -> list[list[str]]:
    """What works on the same files, in order; whatever shares none stands alone, so that all can be tried at once."""
    found: list[list[str]] = []
    for text in (*COMMANDS, *CODE):
        joined = [each for each in found if any(files(text) & files(other) for other in each)]
        found = [each for each in found if each not in joined] + [[*(line for each in joined for line in each), text]]
    return found


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A directory with the files that the README shows, a model, a tenth of the shipped search, small lowerings."""
    search = (ROOT / "configs" / "sweeps" / "search.yaml").read_text()
    assert "budget: 60" in search
    lowerings = re.sub(r"\[.*\]", "[tiny]", (ROOT / "configs" / "sweeps" / "lowerings.yaml").read_text())
    shorter = {"search.yaml": search.replace("budget: 60", "budget: 6"), "lowerings.yaml": lowerings}
    for name, text in {**FILES, **shorter}.items():
        (tmp_path / name).write_text(text)
    shutil.copy(LIGHT / "light_squeezenet.onnx", tmp_path / "model.onnx")
    return tmp_path


def typed(words: list[str]) -> tuple[int, str, str]:
    """Exit code, output and messages of a command. That it runs in a process of its own is held in tests/cli."""
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.stdout, done.stderr


def executed(code: str) -> tuple[int, str, str]:
    """The same of Python, which gets a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_the_readme_has_what_is_tested_here() -> None:
    assert set(FILES) == {"my_net.yaml", "my_graph.yaml", "my_machine.yaml", "my_encoder.yaml", "my_block.yaml"}
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("strand", strands(), ids=lambda strand: strand[0])
def test_commands(strand: list[str], desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order: some read what those before them wrote; also the Python."""
    monkeypatch.chdir(desk)
    for text in strand:
        command = re.sub(r"^(tpusim sweep (?:search|lowerings))\b", r"\1.yaml", text)
        code, shown, messages = executed(text) if text in CODE else typed(shlex.split(command)[1:])
        assert code == 0, f"{text}: {messages}"
        if text.startswith("tpusim run") and "--no-check" not in text:
            assert "0 wrong" in shown, text
        for name in re.findall(r"(?:-o|--out|--json) (\S+\.\S+)", text):
            assert (desk / name).stat().st_size > 1000
        if text in CODE:
            assert ("512 is fastest" if "points.csv" in text else "True") in shown
        if "my_encoder" in text:
            assert re.search(r"^query_1 +12 64x768>768 ", shown, re.MULTILINE)
    if "tpusim plot results/resnet50 --format pdf" in strand:
        suffixes = sorted(path.suffix for path in (desk / "results" / "resnet50").iterdir())
        assert suffixes == [".json", *[".pdf"] * 5, ".txt"]


def test_the_strands_are_everything_once() -> None:
    """Of two of them, several commands long, one reads a run and the other a sweep."""
    assert sorted(text for strand in strands() for text in strand) == sorted((*COMMANDS, *CODE))
    assert sorted(len(strand) for strand in strands())[-2:] == [3, 5]


@pytest.mark.parametrize("link", re.findall(r"\]\(([^):]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    """Also to the heading, if one is named."""
    file, _, heading = link.partition("#")
    titles = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.MULTILINE) if heading else [""]
    assert (ROOT / file).exists()
    assert heading in [title.lower().replace(" ", "-") for title in titles]


EXTRAS = {
    "perfetto": ".perfetto-trace", "vcd": ".vcd", "search": "sweep search",
    "pandas": "to_frame()", "parquet": "--parquet", "cluster": "--cluster", "onnx": "model.onnx",
    "gpu": "scripts/gpu_bench",
}  # fmt: skip
"""What of the README needs each of them."""


def test_extras_are_named_before_the_commands_that_need_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*project["optional-dependencies"]} == {*EXTRAS, "dev", "docs"}
    told = README.index("pip install '.[perfetto]'")
    naming = README[told : README.index("\n\n", told)]
    for extra, sign in EXTRAS.items():
        assert f"[{extra}]" in naming or f"`{extra}`" in naming
        for block in (block for _, block in BLOCKS if sign in block):
            assert README.index(block) > told, f"{sign} comes before its extra"


def test_what_the_readme_and_quickstart_say_next_works_as_typed(tmp_path: Path) -> None:
    """With an environment that is there already, and a tpusim in it that answers at once."""
    answers = '#!/bin/sh\necho "tpusim $*" >>"$(dirname "$0")/../../asked"\n'
    for name, text in {
        "scripts/quickstart": (ROOT / "scripts" / "quickstart").read_text(),
        "pyproject.toml": "",
        ".venv/bin/tpusim": answers,
        ".venv/bin/python": "#!/bin/sh\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    stamp = subprocess.run('echo "$PWD  $(cksum <pyproject.toml)"', shell=True, cwd=tmp_path, capture_output=True)
    (tmp_path / ".venv" / "installed").write_bytes(stamp.stdout)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def typed_in_a_terminal(lines: str) -> list[str]:
        (tmp_path / "asked").unlink(missing_ok=True)
        words = ["bash", "-euc", lines]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
        return (tmp_path / "asked").read_text().splitlines()

    told: list[str] = []
    first, export, commands = (block for kind, block in BLOCKS[:3] if not kind)
    asked = typed_in_a_terminal("\n".join([first.splitlines()[0], export, commands.splitlines()[0]]))
    assert asked[0] == "tpusim run resnet50 --out results/resnet50"
    assert asked[-1] == "tpusim list"
    (said,) = re.findall(r"^Next: +(.*)$", told[0], re.MULTILINE)
    assert typed_in_a_terminal(f"cd /; {said}") == ["tpusim list"]


def test_the_two_scripts_exist_and_can_be_run() -> None:
    for name in ("quickstart", "test", "bench"):
        assert f"scripts/{name}" in README
        assert os.access(ROOT / "scripts" / name, os.X_OK)
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()
