"""A network of more layers than somebody reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpusim.cli import app as cli
from tpusim.flow.simulation import simulate
from tpusim.machines.tpu.description import load_hardware
from tpusim.network.workload_file import load_workload
from tpusim.report.tables import run
from tpusim.report.tables.run import alike, costliest, not_shown

MOST = 100
"""Layers that a table shows here; a thousand take seconds."""
SHORT = "".join(f"  - {{name: short_{at}, op: gemm, m: {1 + at % 2}, k: 3, n: 3}}\n" for at in range(1, MOST + 1))
LONG = "  - {name: long, op: gemm, m: 20, k: 30, n: 30, count: 3}\n"
QUICK = ("--hardware", "tiny_4x4", "--set", "mapping.search=estimate", "--no-check")
MANY = f"name: many\nlayers:\n{SHORT}{LONG}"


@pytest.fixture(autouse=True)
def shows_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_LAYERS", MOST)


@pytest.mark.parametrize("targets", [pytest.param((), marks=pytest.mark.long), ("--json", "a.json")])
def test_the_costliest_are_shown_and_the_rest_is_counted(
    targets: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("many.yaml").write_text(MANY)
    shown = CliRunner().invoke(cli.app, ["run", "many.yaml", *QUICK, *targets])
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    names = [line.split()[0] for line in lines if line.startswith(("short_", "long_"))]
    assert names == [*(f"short_{at}" for at in range(1, MOST - 2)), "long_1", "long_2", "long_3"]
    assert "Not shown: 3 more; above are the wrong layers and the costliest (--json and --out have all)." in lines
    for target in targets[1:]:
        assert len(json.loads(Path(target).read_text())["layers"]) == MOST + 3


def test_many_alike_share_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few are shown one by one."""
    monkeypatch.chdir(tmp_path)
    heads = "  - {name: head, op: gemm, m: 10, k: 30, n: 30, count: 1200}\n"
    Path("heads.yaml").write_text(f"name: heads\nlayers:\n{LONG}{heads}")
    arguments = ["run", "heads.yaml", *QUICK, "--json", "all.json"]
    shown = CliRunner().invoke(cli.app, arguments)
    assert shown.exit_code == 0
    rows = [line.split()[:2] for line in shown.stdout.splitlines() if line.startswith(("long_", "head_"))]
    assert rows == [["long_1", "1"], ["long_2", "1"], ["long_3", "1"], ["head_1", "1,200"]]
    assert "n: layers that are alike, in a row or in blocks of a row; figures are of one of them." in " ".join(
        shown.stdout.split()
    )
    assert len(json.loads(Path("all.json").read_text())["layers"]) == 1203


def test_a_wrong_layer_has_a_row_of_its_own() -> None:
    (layer, *_) = simulate(load_workload("tiny"), load_hardware("tiny_4x4"), check=False).layers
    layers = [replace(layer, name=f"{at}") for at in range(30)]
    layers[10] = replace(layers[10], outputs_mismatched=1)
    assert alike(layers) == {"0": 10, "10": 1, "11": 19}


def test_blocks_share_rows_only_where_all_of_their_layers_are_alike() -> None:
    (layer, *_) = simulate(load_workload("tiny"), load_hardware("tiny_4x4"), check=False).layers
    places = [(at, part) for at in range(4) for part in ("conv", "sum")]
    names, copies = (
        [f"block_{at}.{part}" for at, part in places],
        {f"block_{at}.{part}": (7, at) for at, part in places},
    )
    other = {name: 2 if name.endswith("sum") else 1 for name in names}
    layers = [replace(layer, name=name, cycles=other[name]) for name in names]
    assert alike(layers, copies) == {"block_0.conv": 4, "block_0.sum": 4}
    assert alike(layers) == dict.fromkeys(names, 1), "nobody says that they are blocks"
    assert alike(layers[2:-1], copies) == dict.fromkeys(names[2:-1], 1), "two blocks and a half"
    # Blocks ahead that differ, and layers between, keep others from nothing.
    first = replace(layers[0], cycles=9)
    assert alike([first, *layers[1:]], copies) == {**dict.fromkeys(names[:2], 1), **dict.fromkeys(names[2:4], 3)}
    # One layer of each block differs from that of the others.
    apart = [replace(each, cycles=9 + at) if at % 2 else each for at, each in enumerate(layers)]
    assert alike(apart, copies) == dict.fromkeys(names, 1)


def test_a_wrong_layer_is_always_shown() -> None:
    (layer, *_) = simulate(load_workload("tiny"), load_hardware("tiny_4x4"), check=False).layers
    layers = [replace(layer, name=f"{at}") for at in range(MOST + 2)]
    layers[-1] = replace(layers[-1], outputs_mismatched=1, cycles=1)
    assert [each.name for each in costliest(layers)] == [*map(str, range(MOST - 1)), f"{MOST + 1}"]
    assert costliest(layers[:MOST]) == layers[:MOST]
    assert not_shown(layers[:MOST]) == ""
