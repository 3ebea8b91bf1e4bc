"""tpusim dram: traces in, figures out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpusim.cli.app import app
from tpusim.cli.names import MODELS
from tpusim.memory.dram.replay import ENGINES


def run(*words: str | Path) -> object:
    return CliRunner().invoke(app, ["dram", *map(str, words)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("time,address,bytes,rw\n0,0,64,r\n,64,64,r\n,0x20,64,r\n100,4096,32,w\n")
    return path


def test_the_engines_that_help_names() -> None:
    assert MODELS == ENGINES


@pytest.mark.parametrize("engine", MODELS)
def test_figures(trace: Path, tmp_path: Path, engine: str) -> None:
    out = tmp_path / "out.json"
    done = run(trace, "--device", "hbm2_1ch", "--engine", engine, "--json", out)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    # The third row touches both bursts that are pending already: two reads, and a write by cycle 100 + 21.
    assert (found["first_ns"], found["last_ns"]) == (31, 121)
    assert (found["bytes_requested"], found["bytes_moved"]) == (224, 192)
    assert found["bandwidth_bytes_per_s"] == pytest.approx(192 / 121e-9)
    assert (found["row_hits"], found["activates"], found["refreshes"]) == (1, 2, 0)
    (channel,) = found["channels"]
    assert {key: found[key] for key in channel} == channel


def test_a_mapping_and_changes(trace: Path) -> None:
    done = run(trace, "--mapping", "row:bank:column:channel", "--set", "timing.tRP=20", "--json", "-")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["channels"]) == 16


def test_addresses_that_the_device_has_not(tmp_path: Path) -> None:
    path = tmp_path / "far.csv"
    path.write_text(f"time,address,bytes,rw\n,0,64,r\n,{2**30},128,r\n")
    told = "2 bursts of the trace lie beyond the 1 GiB of hbm2_1ch, where addresses begin again at 0."
    assert told in run(path, "--device", "hbm2_1ch").output
    assert "beyond" not in run(path, "--device", "hbm2_16ch").output


def test_a_trace_from_standard_input(trace: Path) -> None:
    piped = CliRunner().invoke(app, ["dram", "-", "--device", "hbm2_1ch"], input=trace.read_text())
    assert piped.output == run(trace, "--device", "hbm2_1ch").output
    wrong = CliRunner().invoke(app, ["dram", "-"], input="time\n")
    assert wrong.exit_code == 2
    assert '<stdin>:1: the first line is "time"' in wrong.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ":1: the first line is nothing; write time,address,bytes,rw"),
        ("address\n0\n", ":1: the first line is"),
        ("time,address,bytes,rw\n", ":2: no requests"),
        ("time,address,bytes,rw\n0,0,64\n", ":2: 3 values; write four"),
        ("time,address,bytes,rw\n0,0,64,r\n0,x,64,r\n", ':3: address is "x"; write a whole number'),
        ("time,address,bytes,rw\n0,-4,64,r\n", ":2: address is"),
        ("time,address,bytes,rw\n-1,0,64,r\n", ':2: time is "-1"; write a whole number, 0 to'),
        ("time,address,bytes,rw\n99999999999999,0,64,r\n", ':2: time is "99999999999999"; write a whole number'),
        ("time,address,bytes,rw\n0,0,0,r\n", ":2: bytes is"),
        ("time,address,bytes,rw\n0,0,64,x\n", ':2: rw is "x"; write r or w'),
        ("time,address,bytes,rw\n9,0,64,r\n3,0,64,r\n", ":3: time 3 is before 9"),
        ("time,address,bytes,rw\n0,99999999999999999999,64,r\n", ":2: address is"),
    ],
)
def test_bad_traces(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    done = run(path)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "hbm3"], "no shipped dram"),
        (["--device", "hbm2_1ch", "--mapping", "roch"], "does not name every bit once"),
        (["--engine", "slow"], "--engine"),
        (["--set", "timing.tPR=3"], "did you mean"),
    ],
)
def test_bad_words(trace: Path, words: list[str], says: str) -> None:
    done = run(trace, *words)
    assert done.exit_code == 2
    assert says.lower() in " ".join(done.output.lower().split())
