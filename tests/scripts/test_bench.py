"""scripts/bench: its rows can be run, and what it says of them is what they cost."""

from __future__ import annotations

import inspect
import io
import os
import runpy
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from tests import ROOT
from tests.covering import few
from tpusim.cli.app import app
from tpusim.network.workload_file import load_workload
from tpusim.study.sweep.points import load_sweep

BENCH = ROOT / "scripts" / "bench"
SPENDS = """
import sys, time
if "fail" in sys.argv:
    sys.exit("no such thing")
while time.process_time() < {seconds}:
    pass
"""


def loaded(name: str) -> ModuleType:
    loader = SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return loaded("bench")


def told(*words: str) -> subprocess.CompletedProcess[str]:
    """What the script says and how it ends, in this process."""
    out, err = io.StringIO(), io.StringIO()
    code, before = 0, signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [str(BENCH), *words])
        try:
            runpy.run_path(str(BENCH), run_name="__main__")
        except SystemExit as left:
            code = int(left.code or 0)
        finally:
            signal.signal(signal.SIGTERM, before)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def tree(folder: Path, seconds: float) -> Path:
    """A checkout whose tpusim does nothing but spend time."""
    package = folder / "tpusim"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SPENDS.format(seconds=seconds))
    return folder


def test_rows_have_names_of_their_own(bench: ModuleType) -> None:
    names = [row.name for row in bench.ROWS]
    assert len({*names}) == len(names)
    assert {issue for row in bench.ROWS for issue in row.goals} == {*bench.ISSUES}


def test_what_rows_run_is_there(bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands parse, with the files that they name; functions take the arguments that they are given."""
    figures = loaded("bench_figures").FIGURES
    monkeypatch.chdir(tmp_path)
    for name, text in bench.FILES.items():
        Path(name).write_text(text)
    command: Any = get_command(app)
    for row in bench.ROWS:
        first, *words = shlex.split(row.runs)
        if first != "tpusim":
            inspect.signature(figures[first]).bind(*words)
        elif not words[0].startswith("--"):
            with command.make_context("tpusim", words) as context:
                name, found, rest = command.resolve_command(context, words)
                found.make_context(name, rest, parent=context).close()


def test_files_of_rows_can_be_read(bench: ModuleType, tmp_path: Path) -> None:
    for name, text in bench.FILES.items():
        (tmp_path / name).write_text(text)
    layers = {
        name: load_workload(str(tmp_path / name), batch=8).layers for name in bench.FILES if name != "points.yaml"
    }
    assert {name: len({replace(layer, name="x") for layer in layers[name]}) for name in layers} == {
        "product.yaml": 1, "giant.yaml": 1, "conv2.yaml": 1, "unlike.yaml": 1000,
    }  # fmt: skip
    (conv2,) = (layer for layer in load_workload("resnet50").layers if layer.name == "layer3.0.conv2")
    assert replace(layers["conv2.yaml"][0], name=conv2.name) == conv2
    assert len(load_sweep(str(tmp_path / "points.yaml")).points) == 100


def test_the_list_tells_of_every_row(bench: ModuleType) -> None:
    shown = told("--list")
    assert shown.returncode == 0
    assert [row.name for row in bench.ROWS if f"{row.name}: {row.unit}; {row.repeat} x" not in shown.stdout] == []
    assert "at most 0.75 (issue 60)" in shown.stdout
    assert told("--list", "--rows", "help").stdout.count("tpusim") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--against", "no_such_commit"), "no_such_commit"),
        (("--against", "tests"), "tests"),
        (("--rows", "help,nothing"), "'nothing'; there are version, help"),
        (("--repeat", "0"), "--repeat: 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(words: tuple[str, ...], says: str) -> None:
    shown = told(*words)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert says in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_ratios_are_of_cpu_seconds_and_goals_are_judged(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "ROOT", tree(tmp_path / "here", 0.06))
    row = bench.Row("spends", "tpusim spend", {60: 0.75, 61: 0.1}, repeat=2)
    fails = bench.Row("fails", "tpusim fail", {})
    there = tree(tmp_path / "there", 0.12)
    found = list(bench.measured({row: there, fails: there}, None, tmp_path))
    pairs = [figures for each, figures in found if each is row]
    assert len(pairs) == 2
    assert all(0.06 <= here < 0.12 <= other < 0.24 for here, other in pairs)
    assert [str(figures).endswith("no such thing") for each, figures in found if each is fails] == [True]
    assert "spends: 2 of 2" in capsys.readouterr().err
    (_, line) = bench.table({row: [(1, 2), (3, 4), (1, 4)]}, True).splitlines()
    assert line.split() == ["spends", "CPU-s", "1", "4", "0.50", "0.25", "0.75", "3", "0.75", "met", "0.1", "missed"]
    (_, line) = bench.table({row: [(1, 2)]}, False).splitlines()
    assert line.split() == ["spends", "CPU-s", "1", "2", "0.50", "0.50", "0.50", "1", "0.75", "0.1"]
    (_, line) = bench.table({row: [(1,)]}, False).splitlines()
    assert line.split() == ["spends", "CPU-s", "1", "1", "0.75", "0.1"]


@pytest.mark.parametrize("ending", few(1, [signal.SIGINT, signal.SIGTERM]))
def test_what_is_interrupted_leaves_nothing(ending: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [sys.executable, BENCH, "--rows", "help", "--repeat", "500"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert "1 of 500" in run.stderr.readline()
        time.sleep(0.05)
        run.send_signal(ending)
        shown, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert shown.splitlines()[1].startswith("help ")
    assert shown.splitlines()[-1] == "interrupted: rows above are what was measured"
    assert list(tmp_path.iterdir()) == []
