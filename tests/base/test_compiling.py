"""Whoever waits for the compiler is told so, at once and once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tpusim.base import imports
from tpusim.cli import app

event = pytest.importorskip("numba.core.event", reason="Numba is not installed")


def begun(module: str) -> Any:
    """What Numba tells as it begins to compile a function of a module."""
    return SimpleNamespace(
        data={"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__module__=module, __name__="loop"))}
    )


def listener(monkeypatch: pytest.MonkeyPatch) -> Any:
    found: dict[str, Any] = {}
    monkeypatch.setattr(event, "register", found.__setitem__)
    imports._follow_the_compiler()
    return found["numba:compile"]


@pytest.mark.parametrize("module", ["tpusim.memory.dram.channel", "tpusim.machines.tpu.register.machine"])
def test_the_first_loop_that_is_compiled_is_told_and_no_other(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Warning] = []
    monkeypatch.setattr(imports, "warn", lambda what, **_: told.append(what))
    heard = listener(monkeypatch)
    heard.on_start(begun("numba.np.arrayobj"))
    heard.on_start(begun("tpusimilar.loops"))
    assert told == []
    for _ in range(3):
        heard.on_start(begun(module))
        heard.on_end(begun(module))
    assert [str(each) for each in told] == [
        "loops are compiled for this computer, which may take half a minute, in the first run alone"
    ]


def test_a_process_that_works_for_another_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Warning] = []
    monkeypatch.setattr(imports, "warn", lambda what, **_: told.append(what))
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    heard = listener(monkeypatch)
    heard.on_start(begun("tpusim.memory.dram.channel"))
    heard.on_end(begun("tpusim.memory.dram.channel"))
    assert told == []


def test_it_is_a_note_on_the_screen_and_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    app._warned(imports.FirstCompilation("loops are compiled"))
    app._warned(UserWarning("something is wrong"))
    assert capsys.readouterr().err == "Note: loops are compiled\nWarning: something is wrong\n"


@pytest.mark.long
@pytest.mark.parametrize("asked", [("--hardware", "tpu_v2_hbm"), ("--hardware", "tiny_4x4", "--engine", "register")])
def test_the_first_run_says_so_and_the_second_does_not(asked: tuple[str, ...], tmp_path: Path) -> None:
    words = ("run", "tiny", "--batch", "1", "--layers", "fig10", "--no-check", *asked)
    # A process of its own: a fork of this one has loops that are compiled.
    command = [sys.executable, "-m", "tpusim", *words]
    own = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (subprocess.run(command, env=own, capture_output=True, text=True, check=False) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stderr.count("Note: loops are compiled") == 1
    assert "Note: loops" not in second.stderr
