"""`tpusim run --csv`: a row a layer, written whole or not at all."""

from __future__ import annotations

import csv
import json
import os
from io import StringIO
from pathlib import Path

import pytest

from tests.invoked import tpusim
from tpusim.base import files
from tpusim.report.csv_rows import LAYER_COLUMNS

TINY = "run", "tiny", "--hardware", "tiny_4x4", "--batch", "2", "--set", "mapping.search=estimate"


def rows_of(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(StringIO(text, newline=""))]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_layer_is_a_row_with_the_figures_of_the_json() -> None:
    done = tpusim(*TINY, "--csv", "layers.csv", "--json", "run.json")
    assert done.exit_code == 0, done.output
    assert "Total: " in done.stdout
    rows, layers = rows_of(Path("layers.csv").read_text()), json.loads(Path("run.json").read_text())["layers"]
    assert [row["name"] for row in rows] == [layer["name"] for layer in layers]
    for number, (row, layer) in enumerate(zip(rows, layers, strict=True)):
        assert (row["workload"], row["batch"], row["position"]) == ("tiny", "2", str(number))
        for key in ("cycles", "macs", "passes", "hbm_read_bytes", "hbm_write_bytes"):
            assert int(row[key]) == layer[key]
        assert float(row["time_us"]) == layer["time_us"]
        assert float(row["energy_pj"]) == pytest.approx(layer["energy_use"]["energy"])
        assert int(row["starved_cycles"]) == layer["stall_cycles"]["starved"]
        assert row["lowered_by"] == layer["lowering"]


def test_columns_are_those_of_the_layers_of_a_sweep_and_tell_their_units() -> None:
    (head, *_) = tpusim(*TINY, "--csv", "-").stdout.splitlines()
    wanted = {"energy": "energy_pj", "energy_delay": "energy_delay_pj_s"}
    assert head.split(",") == ["workload", "batch", *(wanted.get(each, each) for each in LAYER_COLUMNS)]


def test_standard_output_has_the_table_alone() -> None:
    done = tpusim(*TINY, "--csv", "-", "--no-check")
    assert len(rows_of(done.stdout)) == 3
    assert done.stdout.endswith("\n")
    assert "Total: " in done.stderr


def test_another_machine_lacks_some_figures() -> None:
    done = tpusim("run", "tiny", "--hardware", "v100", "--no-check", "--csv", "-")
    assert done.exit_code == 0, done.output
    (row, *_) = rows_of(done.stdout)
    assert row["passes"] == ""
    assert int(row["cycles"]) > 0


def test_names_that_a_spreadsheet_would_compute_are_guarded() -> None:
    Path("net.yaml").write_text(
        'name: net\nlayers: [{name: "=1+1", op: gemm, m: 2, k: 3, n: "4"}]\n'.replace('"4"', "4")
    )
    done = tpusim("run", "net.yaml", *TINY[2:4], "--no-check", "--csv", "-")
    assert done.exit_code == 0, done.output
    assert rows_of(done.stdout)[0]["name"] == "'=1+1"


def test_what_cannot_be_written_is_told_before_the_work(here: Path) -> None:
    Path("net.csv").write_text("Layer, M, N, K,\nfc, 3, 4, 5,\n")
    held = Path("net.csv").read_text()
    for asked, says in {
        (*TINY, "--csv", "-", "--json", "-"): "standard output takes one of them",
        (*TINY, "--csv", "out.yaml"): "such files are read, not written; name one that ends with .csv",
        (*TINY, "--json", "out.csv"): "such files are read, not written; name one that ends with .json",
        (*TINY, "--csv", "none/out.csv"): "none/out.csv",
        (*TINY, "--csv", str(here)): "it is a directory",
        ("run", "net.csv", "--csv", "net.csv"): "is read by this command, and would be replaced",
        ("run", "gpt2_small", "--phase", "decode", "--tokens", "2", "--csv", "out.csv"): "--csv: not beside --tokens",
    }.items():
        done = tpusim(*asked)
        assert done.exit_code == 2, done.output
        assert says in " ".join(done.stderr.split())
        assert os.listdir() == ["net.csv"]
    assert Path("net.csv").read_text() == held


def test_a_table_that_cannot_be_finished_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("layers.csv").write_text("before")

    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", failing)
    done = tpusim(*TINY, "--csv", "layers.csv")
    assert done.exit_code == 2
    assert "layers.csv" in done.stderr
    assert os.listdir() == ["layers.csv"]
    assert Path("layers.csv").read_text() == "before"
