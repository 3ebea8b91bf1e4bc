"""scripts/against_others: what is left of SCALE-Sim's cycles where no pass waits for the one before to drain; what
SCALE-Sim is given, and what is said where it cannot be.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT
from tpusim import load_hardware, load_workload
from tpusim.flow.jobs import resolve
from tpusim.study.closed_form import ComparedForms, compare_with_forms

DOCUMENT = " ".join((ROOT / "docs" / "timing.md").read_text().split())
GUIDE = (ROOT / "docs" / "other_simulators.md").read_text()
SCRIPT = ROOT / "scripts" / "against_others"


def called(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def cells(line: str) -> list[str]:
    return [cell.strip().replace(",", "") for cell in line.split("│")[1:-1]]


@cache
def resnet18() -> ComparedForms:
    """By the closed form, and here."""
    script = runpy.run_path(str(SCRIPT))
    work, machine = load_workload("resnet18", 1, ops="array"), load_hardware("tpu_v2", script["MACHINE"])
    return compare_with_forms(resolve(work, machine, "implicit_gemm"))


def test_every_layer_of_resnet18_takes_what_docs_timing_says() -> None:
    """Folds x M + passes x R, and at most 10 % more."""
    found = resnet18()
    assert len(found.layers) == 21
    for each in found.layers:
        assert each.no_drain_cycles <= each.array_cycles < 1.1 * each.no_drain_cycles, each.name
        assert each.array_cycles < each.cycles
    _, _, _, scale_sim, expected, array, cycles = found.together
    assert f"the closed form adds up to {scale_sim:,} cycles" in DOCUMENT
    assert f"ours to {cycles:,}, of which the array is at work for {array:,};" in DOCUMENT
    assert f"passes x R are {expected:,} of these" in DOCUMENT


def test_the_table_of_networks_adds_up_and_is_that_of_its_layers() -> None:
    """SCALE-Sim reports its closed form; this and the differences make the cycles of tpusim."""
    shown = re.search(r"Cycles, simulated.*?└", GUIDE, re.S)
    assert shown
    rows = [cells(line) for line in shown[0].splitlines() if line.startswith("│")]
    assert rows
    for _, _, ran, closed, *parts, cycles, ratio in rows:
        assert ran == closed
        assert int(closed) + sum(map(int, parts)) == int(cycles)
        assert ratio == f"{int(cycles) / int(closed):.3f}"
    _, _, _, scale_sim, expected, array, cycles = resnet18().together
    name, layers, _, closed, _, _, between, ends, ours, _ = rows[0]
    assert (name, int(layers)) == ("resnet18", 21)
    assert [int(each) for each in (closed, between, ends, ours)] == [
        scale_sim, array - expected, cycles - array, cycles,
    ]  # fmt: skip


def test_scale_sim_is_given_every_multiplication() -> None:
    """By its own rule for the number of outputs: positions of the kernel are rounded up."""
    script = runpy.run_path(str(SCRIPT))
    for name in script["NETWORKS"]:
        work = load_workload(name, 1, ops="array")
        header, *lines = script["topology"](work).splitlines()
        assert header.count(",") == 8
        assert len(lines) == len(work.layers)
        for layer, line in zip(work.layers, lines, strict=True):
            height, width, rows, cols, channels, filters, step = map(int, line.split(",")[1:-1])
            outputs = -(-(height - rows + step) // step) * -(-(width - cols + step) // step)
            assert outputs * rows * cols * channels * filters == layer.macs(1), layer.name


def test_what_scale_sim_does_not_take_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "mobilenet_v2", "--environment", str(tmp_path / "there")])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert left.value.code == 2
    says = "mobilenet_v2: SCALE-Sim does not take 17 layers, the first features.1.conv.0.0 (112x"
    assert says in capsys.readouterr().err
    assert not (tmp_path / "there").exists()


@pytest.mark.long
@pytest.mark.parametrize("place", ["file/there", pytest.param("there", marks=pytest.mark.long)])
def test_a_failed_installation_is_told_and_not_taken_for_one(place: str, tmp_path: Path) -> None:
    """Where no environment can be made, or no package found: nothing is written, and the next call begins anew."""
    (tmp_path / "file").touch()
    words = "resnet18", "--environment", str(tmp_path / place), "--out", str(tmp_path / "tables.txt")
    done = called(*words, PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS="")
    assert done.returncode == 1
    assert "SCALE-Sim cannot be installed into" in done.stderr
    assert "tpusim compare --closed-form does without it" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / place / "installed").exists()
    assert not (tmp_path / "tables.txt").exists()
