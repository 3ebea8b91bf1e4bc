"""Everything the README tells a reader to type is typed here, in order, in an empty directory."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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


def test_the_readme_has_what_is_tested_here() -> None:
    assert set(FILES) == {"my_net.yaml", "my_machine.yaml"}
    assert len(COMMANDS) >= 8


def test_commands(desk: Path) -> None:
    """In order: some read what those before them wrote."""
    for command in COMMANDS:
        arguments = [sys.executable, "-m", "tpusim", *shlex.split(command)[1:]]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(arguments, cwd=desk, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        if command.startswith("tpusim run") and "--no-check" not in command:
            assert "0 wrong" in done.stdout, command
    suffixes = sorted(path.suffix for path in (desk / "results" / "resnet50").iterdir())
    assert suffixes == [".json", ".png", ".png", ".svg", ".svg", ".txt"]
    assert (desk / "conv5.png").stat().st_size > 1000


def test_python(desk: Path) -> None:
    (code,) = (block for kind, block in BLOCKS if kind == "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=desk, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "True" in done.stdout


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_two_scripts_exist_and_can_be_run() -> None:
    for name in ("quickstart", "test", "bench"):
        assert f"scripts/{name}" in README
        assert os.access(ROOT / "scripts" / name, os.X_OK)
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()
