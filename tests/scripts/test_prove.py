"""scripts/prove fails when anything it runs fails; its commands are stubs here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

PROVE = ROOT / "scripts" / "prove"


def proved(folder: Path, *arguments: str, failing: str = "") -> subprocess.CompletedProcess[str]:
    """Run a copy of the script; the command that has `failing` among its words fails."""
    stub = f'#!/bin/sh\necho "$0 $*" >> {folder}/log\ncase " $* " in *" {failing or "none"} "*) exit 1;; esac\n'
    for name in ("scripts/quickstart", ".venv-test/bin/tpusim", ".venv-test/bin/python", ".venv-jax/bin/python"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stub)
        path.chmod(0o755)
    shutil.copy(PROVE, folder / "scripts" / "prove")
    return subprocess.run([folder / "scripts" / "prove", *arguments], capture_output=True, text=True, check=False)


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        ((), 18),
        (("networks",), 5),
        (("engines",), 3),
        (("engines", "-k", "chains"), 2),
        (("random",), 3),
        (("slices",), 2),
        (("jax",), 3),
        (("shares",), 2),
        (("long",), 4),
        (("docs",), 2),
        (("release",), 2),
        (("lowerings",), 2),
        (("blocks",), 2),
    ],
)
def test_each_part_runs(arguments: tuple[str, ...], commands: int, tmp_path: Path) -> None:
    assert proved(tmp_path, *arguments).returncode == 0
    assert len(log(tmp_path)) == commands


@pytest.mark.parametrize("failing", ["--install", "alexnet", "resnet18", "vgg16", "pytest"])
def test_the_first_failure_ends_it(failing: str, tmp_path: Path) -> None:
    assert proved(tmp_path, failing=failing).returncode != 0
    assert failing in log(tmp_path)[-1]


def test_an_unknown_part_installs_nothing(tmp_path: Path) -> None:
    done = proved(tmp_path, "network")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage:")
    assert log(tmp_path) == []
