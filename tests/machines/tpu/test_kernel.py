"""Compiled code on disk: never stale, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT
from tests.test_structure import PACKAGE, imports
from tpusim.machines.tpu.register.kernel import SOURCES

KERNEL = """\
from pathlib import Path

from tpusim.machines.tpu.register import kernel

kernel.SOURCES = (Path(__file__).parent,)
from constants import CONSTANT

@kernel.kernel
def add(number):
    return number + CONSTANT

print(add(1), sum(add.stats.cache_hits.values()))
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[[int], tuple[int, int]]:
    """Write a constant and call a kernel that uses it in a process of its own: its result, and hits in the cache."""
    (tmp_path / "script.py").write_text(KERNEL)

    def call(constant: int) -> tuple[int, int]:
        (tmp_path / "constants.py").write_text(f"CONSTANT = {constant}\n")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        words = [sys.executable, "-B", str(tmp_path / "script.py")]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        result, hits = done.stdout.split()
        return int(result), int(hits)

    return call


def kept(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache").rglob("*.nb?"))


def test_a_constant_that_changes_elsewhere_is_seen(run: Callable[[int], tuple[int, int]]) -> None:
    assert [run(10), run(10)] == [(11, 0), (11, 1)]
    assert [run(20), run(20)] == [(21, 0), (21, 1)]
    assert run(10) == (11, 1)


@pytest.mark.parametrize("damage", [b"", b"\x80\x05", b"nonsense\n" * 9], ids=["empty", "cut off", "overwritten"])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_damaged_file_is_made_anew(
    damage: bytes, suffix: str, run: Callable[[int], tuple[int, int]], tmp_path: Path
) -> None:
    run(10)
    for path in kept(tmp_path):
        if path.suffix == suffix:
            path.write_bytes(damage)
    assert [run(10), run(10)] == [(11, 0), (11, 1)]


def test_a_disk_that_takes_nothing_costs_only_time(run: Callable[[int], tuple[int, int]], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os\ndef full(*_): raise OSError(28, 'No space left on device')\nos.replace = full\n" + KERNEL
    )
    assert [run(10), run(10)] == [(11, 0), (11, 0)]
    assert kept(tmp_path) == []


@pytest.mark.parametrize("module", sorted(SOURCES[0].glob("*.py")), ids=lambda path: path.stem)
def test_kernels_take_constants_only_from_where_changes_are_seen(module: Path) -> None:
    if "@kernel" in module.read_text():
        known = [".".join(folder.relative_to(PACKAGE).parts) for folder in SOURCES]
        assert all(other.startswith((*known, "base")) for other in imports(module))


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
