"""Configurations of SCALE-Sim as machines: each key by hand, what is told, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.input.source import open_document

KEYS = {
    "ArrayHeight": "32", "ArrayWidth": "16", "IfmapSramSzkB": "64", "FilterSramSzkB": "32", "OfmapSramSzkB": "32",
    "Dataflow": "ws", "Bandwidth": "10",
}  # fmt: skip


def written(tmp_path: Path, sign: str = ": ", **changes: str | None) -> Path:
    keys = {name: value for name, value in {**KEYS, **changes}.items() if value is not None}
    presets = {name: keys.pop(name) for name in ("InterfaceBandwidth",) if name in keys}
    lines = [f"{name}{sign}{value}" for name, value in keys.items()]
    more = [f"{name}{sign}{value}" for name, value in presets.items()]
    path = tmp_path / "scale.cfg"
    path.write_text("\n".join(["[general]", f"run_name{sign}mine", "[architecture_presets]", *lines,
                               "[run_presets]", *more]))  # fmt: skip
    return path


@pytest.mark.parametrize("sign", [": ", " = ", ":"])
def test_each_key_is_a_field(tmp_path: Path, sign: str) -> None:
    machine = load_hardware(str(written(tmp_path, sign)))
    assert (machine.name, machine.clock_hz, machine.pes) == ("mine", 10**9, 32 * 16)
    same = {
        "name": "mine", "clock": "1 GHz", "array": {"rows": 32, "cols": 16, "weight_buffers": 1},
        "vector_memory": {"capacity": "4 KiB", "word_elements": 8, "element_bytes": 1},
        "vector_unit": {"alus": 64}, "hbm": {"bandwidth": "10 GB/s", "latency": "1 ns"},
    }  # fmt: skip
    plain = tmp_path / "mine.yaml"
    plain.write_text(str(same).replace("'", ""))
    assert machine == load_hardware(str(plain))


def test_a_layer_runs_on_it_with_fields_changed(tmp_path: Path) -> None:
    machine = load_hardware(str(written(tmp_path)), "array.size=8")
    assert machine.pes == 64
    assert simulate(load_workload("tiny", batch=1), machine, engine="both").correct


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"Dataflow": "os"}, "Dataflow os: output-stationary arrays are not modelled; this one is weight-stationary"),
        ({"MemoryBanks": "2", "IfmapOffset": "0"}, "not read: MemoryBanks, IfmapOffset"),
        ({"InterfaceBandwidth": "CALC", "Bandwidth": None}, "InterfaceBandwidth CALC: never late"),
        ({"Bandwidth": "10,20,30"}, "Bandwidth 10 words a cycle"),
        ({}, "64 + 32 + 32 KiB in all"),
        ({"IfmapSramSzkB": None, "IfmapSramSz": "64"}, "64 + 32 + 32 KiB in all"),
    ],
)
def test_what_is_not_the_same_here_is_told(tmp_path: Path, changes: dict[str, str | None], note: str) -> None:
    path = written(tmp_path, **changes)
    assert any(note in each for each in open_document(str(path), "configs").notes)
    done = CliRunner().invoke(cli.app, ["run", "tiny", "--hardware", str(path), "--no-check", "--batch", "1"])
    assert done.exit_code == 0, done.stderr
    assert note in done.stderr


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ArrayHeight": "many"}, 'ArrayHeight: "many" is not a number; write a whole number, 1 to 65536'),
        ({"ArrayWidth": "0"}, ":5: ArrayWidth: 0 is out of range"),
        ({"Bandwidth": None}, "Bandwidth: missing"),
        ({"OfmapSramSzkB": "-3"}, "OfmapSramSzkB: -3 is out of range"),
        ({"Dataflow": "wss"}, 'Dataflow: "wss" is none; did you mean ws?'),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, changes: dict[str, str | None], says: str) -> None:
    path = written(tmp_path, **changes)
    done = CliRunner().invoke(cli.app, ["run", "tiny", "--hardware", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{path}:" in done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("text", ["", "ArrayHeight: 3\n", "[a]\nb\n", "[a]\nb: 1\nb: 2\n", "\x00\x01", "{a: 1}"])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "net.cfg"
    path.write_text(text)
    with pytest.raises(InputError, match=r"net\.cfg"):
        load_hardware(str(path))


def test_a_configuration_is_no_network(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(InputError, match="a configuration of SCALE-Sim is a machine; tpusim run WORKLOAD --hardware"):
        load_workload(str(path))
    done = CliRunner().invoke(cli.app, ["import", str(path)])
    assert done.exit_code == 2
    assert "a machine, not a network" in done.stderr
