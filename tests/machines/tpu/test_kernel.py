"""Compiled code on disk: never stale, and never in the way."""

from __future__ import annotations

import io
import os
import re
import resource
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.test_structure import PACKAGE
from tests.test_structure import imports as imports_of
from tpusim.base import imports
from tpusim.machines.tpu.register import wires
from tpusim.machines.tpu.register.wires import SOURCES

KERNEL = """\
from pathlib import Path

from tpusim.machines.tpu.register import wires

wires.SOURCES = (Path(__file__).parent,)
from constants import CONSTANT

@wires.kernel
def add(number):
    return number + CONSTANT

print(add(1), sum(add.stats.cache_hits.values()))
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, int]]:
    """Write a constant and call a kernel that uses it in a process of its own: its result, and hits in the cache."""
    (tmp_path / "script.py").write_text(KERNEL)

    def call(constant: int, folder: str = "cache", **options: Any) -> tuple[int, int]:
        (tmp_path / "constants.py").write_text(f"CONSTANT = {constant}\n")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / folder)}
        words = [sys.executable, "-B", str(tmp_path / "script.py")]
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=60, check=False, **options
        )
        assert done.returncode == 0, done.stderr
        result, hits = done.stdout.split()
        return int(result), int(hits)

    return call


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], tuple[int, int]]]:
    """The same in this process, as if it had just begun."""
    (tmp_path / "script.py").write_text(KERNEL)
    monkeypatch.setattr(wires, "SOURCES", wires.SOURCES)
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    # A file that changes within a second, and keeps its length, is the same to those who read bytecode.
    monkeypatch.setattr("sys.dont_write_bytecode", True)

    def call(constant: int) -> tuple[int, int]:
        (tmp_path / "constants.py").write_text(f"CONSTANT = {constant}\n")
        imports._cache_folder.cache_clear()
        sys.modules.pop("constants", None)
        said = io.StringIO()
        with redirect_stdout(said):
            runpy.run_path(str(tmp_path / "script.py"))
        result, hits = said.getvalue().split()
        return int(result), int(hits)

    yield call
    imports._cache_folder.cache_clear()
    sys.modules.pop("constants", None)


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nb?"))


@pytest.mark.parametrize("started", ["run_here", pytest.param("run", marks=pytest.mark.long)])
def test_a_constant_that_changes_elsewhere_is_seen(
    started: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Compiled code lies where its sources are named."""
    run = request.getfixturevalue(started)
    assert [run(10), run(20), run(10)] == [(11, 0), (21, 0), (11, 1)]
    folders = [path.relative_to(tmp_path).parts[:2] for path in kept(tmp_path)]
    assert len(folders) == 2 * len(set(folders)) == 4
    assert all(cache == "cache" and re.fullmatch("tpusim-[0-9a-f]{16}", name) for cache, name in folders)


@pytest.mark.long
def test_where_nothing_can_be_kept_it_costs_only_time(run: Callable[..., tuple[int, int]], tmp_path: Path) -> None:
    """On a disk that is full, for which a limit on the size of files stands."""

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    assert run(10, preexec_fn=full) == (11, 0)
    assert kept(tmp_path) == []


@pytest.mark.long
def test_in_place_of_a_folder_there_may_be_a_file(run: Callable[..., tuple[int, int]], tmp_path: Path) -> None:
    assert run(10, "script.py") == (11, 0)
    assert kept(tmp_path) == []


@pytest.mark.parametrize("module", sorted(SOURCES[0].glob("*.py")), ids=lambda path: path.stem)
def test_kernels_take_constants_only_from_where_changes_are_seen(module: Path) -> None:
    if "@kernel" in (text := module.read_text()) or "@part" in text:
        known = [".".join(source.relative_to(PACKAGE).with_suffix("").parts) for source in SOURCES]
        assert all(other.startswith((*known, "base")) for other in imports_of(module))


@pytest.mark.long
def test_without_the_compiler() -> None:
    """NUMBA_DISABLE_JIT=1: the kernels are Python too, for a debugger."""
    words = [sys.executable, "-m", "tpusim", "run", "tiny", "--layers", "fig11", "--hardware", "tiny_4x4"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [*words, "--batch", "2", "--engine", "both"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ", 0 wrong." in done.stdout
