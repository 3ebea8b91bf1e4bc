"""Everything the README tells a reader to type is typed here, in order, in an empty directory."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
FILES = dict(zip(re.findall(r"`(my_\w+\.yaml)`[:;]", README), [b for kind, b in BLOCKS if kind == "yaml"], strict=True))
COMMANDS = [
    line.split("#")[0].strip()
    for kind, block in BLOCKS
    if not kind
    for line in block.splitlines()
    if line.startswith("tpusim ")
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the README shows."""
    path = tmp_path_factory.mktemp("desk")
    for name, text in FILES.items():
        (path / name).write_text(text)
    return path


def typed(words: list[str], desk: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=desk, env=environment, capture_output=True, text=True, timeout=300)


def test_the_readme_has_what_is_tested_here() -> None:
    assert set(FILES) == {"my_net.yaml", "my_machine.yaml"}
    assert len(COMMANDS) >= 8


def test_commands(desk: Path) -> None:
    """In order: some read what those before them wrote; then the Python, which does too."""
    for command in COMMANDS:
        done = typed([sys.executable, "-m", "tpusim", *shlex.split(command)[1:]], desk)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        if command.startswith("tpusim run") and "--no-check" not in command:
            assert "0 wrong" in done.stdout, command
    suffixes = sorted(path.suffix for path in (desk / "results" / "resnet50").iterdir())
    assert suffixes == [".json", ".pdf", ".pdf", ".pdf", ".txt"]
    for name in ("conv5.png", "report.html", "sweep.html", "conv2.perfetto-trace", "fig10.vcd"):
        assert (desk / name).stat().st_size > 1000
    shown = [typed([sys.executable, "-c", code], desk) for kind, code in BLOCKS if kind == "python"]
    assert not any(done.returncode for done in shown), [done.stderr for done in shown]
    assert "512 is fastest" in shown[0].stdout
    assert "True" in shown[1].stdout


@pytest.mark.parametrize("link", re.findall(r"\]\(([^):]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    """Also to the heading, if one is named."""
    file, _, heading = link.partition("#")
    titles = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.MULTILINE) if heading else [""]
    assert (ROOT / file).exists()
    assert heading in [title.lower().replace(" ", "-") for title in titles]


def test_the_two_scripts_exist_and_can_be_run() -> None:
    for name in ("quickstart", "test", "bench"):
        assert f"scripts/{name}" in README
        assert os.access(ROOT / "scripts" / name, os.X_OK)
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()
