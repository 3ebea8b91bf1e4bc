"""What a layer would cost by each lowering: what running it by that one costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.agreement import test_second_lowering as second
from tests.strategies import conv, machine
from tests.written import by_hand
from tpusim import simulate
from tpusim.base.errors import CapacityError
from tpusim.cli import app as cli
from tpusim.flow.lowerings import AUTO
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.program.program import ExplainedProgram
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.study.explain.bottleneck import alternatives
from tpusim.study.explain.relaxation import Setup

FIRST, OTHER = "channel_first", second.NAME
MACHINE, LAYER = machine(8, 4, capacity_words=400), conv(5, 6, 7, 3, stride=2, padding=1)


def with_more(layer: Op, batch: int, hardware: Hardware) -> ExplainedProgram:
    """A lowering with tensors of its own in HBM."""
    program, explanation = second.lower(layer, batch, hardware)
    more = Tensor("lowered", (5, 9, 4)), Tensor("pointers", (20,), number_bytes=2)
    return replace(program, tensors=(*program.tensors, *more)), explanation


def too_large(layer: Op, batch: int, hardware: Hardware) -> ExplainedProgram:
    raise CapacityError("its copies need 5 MiB a lane; set vector_memory.capacity to more")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The first lowering, one that needs tensors of its own, and one that does not fit."""
    # All at once: what is taken out one by one comes back in another order.
    made = {OTHER: by_hand(OTHER, with_more), "copies": by_hand("copies", too_large)}
    every, LOWERINGS.data = LOWERINGS.data, {FIRST: LOWERINGS[FIRST], **made}
    yield
    LOWERINGS.data = every


def test_every_figure_is_that_of_a_run() -> None:
    told: list[tuple[int, str]] = []
    fit, unfit = alternatives(Setup(LAYER, 3, MACHINE), lambda done, name: told.append((done, name)))
    assert [each.lowering for each in fit] == sorted((FIRST, OTHER), key=lambda name: run(name).cycles)
    for each in fit:
        assert each.layer == run(each.lowering)
        assert each.hbm_bytes == each.layer.hbm_read_bytes + each.layer.hbm_write_bytes
        assert each.accesses == each.layer.vector_memory.reads + each.layer.vector_memory.writes
        assert each.workspace_bytes == (0 if each.lowering == FIRST else 4 * 5 * 9 * 4 + 2 * 20)
    assert [(each.name, each.reason) for each in unfit] == [
        ("copies", "its copies need 5 MiB a lane; set vector_memory.capacity to more")
    ]
    assert told == [(0, f"by {FIRST}"), (1, f"by {OTHER}"), (2, "by copies")]


def run(lowering: str) -> object:
    return simulate(Workload("net", 3, (LAYER,)), MACHINE, lowering=lowering, check=False).layers[0]


NET = """\
name: net
layers:
  - {name: a, op: conv2d, in_channels: 3, in_height: 6, in_width: 6, out_channels: 5, kernel: 3}
  - {name: b, op: conv2d, in_channels: 3, in_height: 6, in_width: 6, out_channels: 5, kernel: 3, lowering: OTHER}
""".replace("OTHER", OTHER)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NET)


def explained(*options: str) -> str:
    # Blocks that simulation chooses take most of the time, and are not what these tables are about.
    words = [
        "explain",
        "net.yaml",
        "--hardware",
        "tiny_4x4",
        "--batch",
        "2",
        "--set",
        "mapping.search=estimate",
        *options,
    ]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    return done.output


def test_explain_shows_them(desk: None) -> None:
    shown = explained("--layer", "a", "--out", "a.svg", "--json", "a.json")
    assert "How it is lowered, by channel_first" in shown
    table = shown[shown.index("What it costs by each lowering") :]
    assert [line.split()[0] for line in table.splitlines() if line.startswith("*")] == ["*"]
    assert f"* {FIRST}" in table
    assert "1.00" in table
    flat = " ".join(table.split())
    assert "By copies it cannot run here: its copies need 5 MiB a lane" in flat
    assert f"times as long: as by {FIRST} (*), its lowering now" in flat
    picture = Path("a.svg").read_text()
    assert f"{FIRST} (now)" in picture
    assert "cycles by each lowering" in picture
    found = json.loads(Path("a.json").read_text())["lowerings"]
    assert {each["lowering"] for each in found} == {FIRST, OTHER, "copies"}
    assert found[-1] == {
        "lowering": "copies",
        "unfit": "its copies need 5 MiB a lane; set vector_memory.capacity to more",
    }
    assert found[0]["cycles"] <= found[1]["cycles"]
    assert sum(found[0]["units"]["systolic_array"].values()) == found[0]["cycles"]


def test_what_cannot_run_for_one_reason_is_told_together(desk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, "more_copies", by_hand("more_copies", too_large))
    flat = " ".join(explained("--layer", "a").split())
    assert "By copies or more_copies it cannot run here: its copies need 5 MiB a lane; set" in flat
    assert flat.count("it cannot run here") == 1


def test_a_layers_own_lowering_is_explained(desk: None) -> None:
    shown = explained("--layer", "b")
    assert f"How it is lowered, by {OTHER}" in shown
    assert f"* {OTHER}" in shown


def test_auto_says_what_it_took(desk: None) -> None:
    shown = explained("--layer", "a", "--lowering", AUTO, "--json", "a.json")
    found = json.loads(Path("a.json").read_text())
    taken = found["lowerings"][0]["lowering"]
    assert (found["lowering"], found["layer"]["lowering"]) == (AUTO, taken)
    assert f"How it is lowered, by {taken}, the fastest (auto)" in shown


def test_of_one_lowering_there_is_nothing_to_compare(desk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("net.yaml").write_text(NET.replace(f", lowering: {OTHER}", ""))
    for name in (OTHER, "copies"):
        monkeypatch.delitem(LOWERINGS, name)
    assert "by each lowering" not in explained("--layer", "a")
