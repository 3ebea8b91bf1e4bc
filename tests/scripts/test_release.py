"""The wheel and the sdist: what is in them, and that both can be installed and used away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests import ROOT
from tpusim import __version__

IN_THE_PACKAGE = {"tpusim": "tpusim", "configs": "tpusim/configs", "workloads": "tpusim/workloads"}
"""Folders of the checkout, and where a wheel has them."""
MADE = {"__pycache__", "reference"}
"""Folders that commands make: what is compiled, and the pages of the reference."""


def kept(folder: str) -> Iterator[str]:
    for path in (ROOT / folder).rglob("*"):
        inside = path.relative_to(ROOT)
        made = {"__pycache__"} if folder != "docs" else MADE
        if path.is_file() and not made & {*inside.parts}:
            yield inside.as_posix()


def of_the_wheel() -> set[str]:
    return {
        path.replace(folder, place, 1) for folder, place in IN_THE_PACKAGE.items() for path in kept(folder)
    }  # fmt: skip


def of_the_sdist() -> set[str]:
    folders = (*IN_THE_PACKAGE, "tests", "docs", "scripts")
    tops = {"README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "pyproject.toml", ".ci/run", ".gitignore"}
    return {path for folder in folders for path in kept(folder)} | tops


def test_a_wheel_has_the_package_with_its_machines_and_networks() -> None:
    found = {each.distribution_path for each in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert found == of_the_wheel()
    assert {"tpusim/py.typed", "tpusim/configs/tpu_v2.yaml", "tpusim/workloads/tiny.yaml"} <= found


def test_an_sdist_has_all_that_tests_need() -> None:
    found = {each.distribution_path for each in SdistBuilder(str(ROOT)).recurse_included_files()}
    assert found | {"pyproject.toml", "README.md", ".gitignore"} == of_the_sdist()


@pytest.mark.long
def test_a_release_is_built_installed_and_used_elsewhere(tmp_path: Path) -> None:
    """`build` makes the wheel of the sdist, not of the checkout."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TPUSIM"))}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT)
    stem = f"tpusim-{__version__}"
    wheel, sdist = tmp_path / "dist" / f"{stem}-py3-none-any.whl", tmp_path / "dist" / f"{stem}.tar.gz"
    assert {*(tmp_path / "dist").iterdir()} == {wheel, sdist}
    with tarfile.open(sdist) as held:
        assert {each.name.removeprefix(f"{stem}/") for each in held if each.isfile()} == {*of_the_sdist(), "PKG-INFO"}
    with ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
        told = message_from_bytes(packed.read(f"{stem}.dist-info/METADATA"))
    assert names == of_the_wheel()
    assert (told["Version"], told["Requires-Python"]) == (__version__, ">=3.11")
    run(sys.executable, "-m", "venv", tmp_path / "fresh")
    home = tmp_path / "fresh" / "bin"
    run(home / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    assert run(home / "tpusim", "--version") == f"tpusim {__version__}\n"
    where = run(home / "python", "-c", "import tpusim; print(tpusim.__file__)")
    assert Path(where.strip()).is_relative_to(tmp_path / "fresh")
    listed = run(home / "tpusim", "list")
    assert {"tpu_v2", "resnet50", "hbm2_16ch_700", "array_size"} <= {*listed.split()}
    shown = run(home / "tpusim", "run", "tiny", "--hardware", "tiny_4x4", "--engine", "both", "--out", "tiny")
    assert "Every output checked: 640 of 640 elements equal the reference, 0 wrong." in shown
    run(home / "tpusim", "report", "tiny")
    assert (tmp_path / "tiny" / "report.html").stat().st_size > 20_000
