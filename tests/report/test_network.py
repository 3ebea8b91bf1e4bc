"""Time by op, and the picture of a network: what reads what, in lines that never run into one another."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pages import page_of
from tests.report import unlaid
from tests.strategies import cases
from tpusim import load_hardware, load_workload, simulate
from tpusim.report.page.run import run_data
from tpusim.report.plots.network import MOST_LAYERS, draw_network, looks, outputs
from tpusim.report.plots.run import plots
from tpusim.report.tables.compare import runs_compared, totals
from tpusim.report.tables.compared import compared_results
from tpusim.report.tables.run import use_table
from tpusim.report.tables.sentences import op_sentence
from tpusim.report.text import percent, scale, three_digits
from tpusim.result.records import Result, by_op
from tpusim.result.vocabulary.figures import TIMES

BLOCK = """name: block
layers:
  - {name: conv, op: conv2d, in_channels: 2, in_height: 6, in_width: 6, out_channels: 4, kernel: 3, padding: 1}
  - {name: relu, op: relu}
  - {name: conv2, op: conv2d, out_channels: 4, kernel: 1}
  - {name: sum, op: add, inputs: [conv2, relu]}
"""


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Result:
    path = tmp_path_factory.mktemp("block") / "block.yaml"
    path.write_text(BLOCK)
    return simulate(load_workload(path, 2), load_hardware("tiny_4x4"))


@pytest.fixture(scope="module")
def staying(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The same, whose first layer carries the activation, and whose outcomes stay on chip."""
    path = tmp_path_factory.mktemp("staying") / "block.yaml"
    path.write_text(BLOCK)
    both = ["sequencer.between_layers=stay", "sequencer.fusion=results", "vector_unit.alus=16"]
    return simulate(load_workload(path, 2), load_hardware("tiny_4x4", both), check=False)


def picture(result: Result, name: str) -> str:
    (found,) = (each for each in plots(result) if each.name == name)
    return unlaid.svg(found)


def test_columns_stand_beside_one_another(block: Result) -> None:
    """Names of all layers of a column begin at its left, a column's width to the right of the one before."""
    count = 150
    layers = [replace(block.layers[0], name=f"{at}th", inputs=(f"{at - 1}th",) * (at > 0)) for at in range(count)]
    (axes,) = draw_network(replace(block, layers=tuple(layers)), "").axes
    lefts = {each.get_position()[0] for each in axes.texts}
    across = axes.get_xlim()[1] / len(lefts)
    assert len(lefts) > 2
    assert sorted(lefts) == pytest.approx([min(lefts) + across * column for column in range(len(lefts))])


def test_ops_add_up_to_the_run(block: Result) -> None:
    uses = by_op(block.layers)
    assert {op: use.layers for op, use in uses.items()} == {"conv2d": 2, "add": 1, "relu": 1}
    assert sum(use.cycles for use in uses.values()) == block.total.cycles
    assert sum(use.share for use in uses.values()) == pytest.approx(1)
    assert sum(use.time_us for use in uses.values()) == pytest.approx(block.total.time_us)
    assert [use.cycles for use in uses.values()] == sorted((use.cycles for use in uses.values()), reverse=True)
    assert json.loads(block.to_json())["by_op"]["relu"] == {
        "layers": 1, "cycles": block.layers[1].cycles, "time_us": block.layers[1].time_us,
        "share": block.layers[1].cycles / block.total.cycles,
    }  # fmt: skip


def test_ops_are_told_where_there_are_several(block: Result) -> None:
    table = use_table("op", by_op(block.layers))
    assert table is not None
    assert [table.columns[0].cell(row) for row in table.rows] == [*by_op(block.layers)]
    unit, size = scale((use.time_us for use in by_op(block.layers).values()), TIMES)
    for name, value in (
        ("layers", lambda use: f"{use.layers}"), ("cycles", lambda use: f"{use.cycles:,}"),
        (f"time\n{unit}", lambda use: three_digits(use.time_us / size)), ("share\n%", lambda use: percent(use.share)),
    ):  # fmt: skip
        (column,) = (each for each in table.columns if each.header == name)
        assert [column.cell(row) for row in table.rows] == [value(use) for use in by_op(block.layers).values()]
    assert op_sentence(block).startswith("Time by op: conv2d ")
    assert "relu" in op_sentence(block)
    alone = replace(block, layers=block.layers[:1])
    assert (use_table("op", by_op(alone.layers)), op_sentence(alone)) == (None, "")
    assert "time_by_op" not in {each.name for each in plots(alone)}


def test_pictures_name_ops_layers_and_inputs(block: Result) -> None:
    for text in ("conv2d", "time (us)", "2 layers"):
        assert text in picture(block, "time_by_op")
    for text in ("input", "conv2", "sum", "bars: time of a layer", "add:"):
        assert text in picture(block, "network")


def test_a_list_of_layers_or_too_many_are_no_network(block: Result) -> None:
    blind = replace(block, layers=tuple(replace(each, inputs=()) for each in block.layers))
    many = replace(block, layers=block.layers[:1] * (MOST_LAYERS + 1))
    assert not [each for run in (blind, many) for each in plots(run) if each.name == "network"]


HEADS = """name: heads
layers:
  - {name: all, op: gemm, m: 4, k: 8, n: 40}
  - {name: head, op: gemm, inputs: [all, all], m: 4, k: 4, n: 4, count: COUNT}
  - {name: join, op: gemm, inputs: [head], m: 4, k: WIDTH, n: 8}
"""


@pytest.mark.parametrize(("count", "rows"), [(3, ["head_1", "head_3"]), (4, ["head (4 layers)"])])
def test_layers_of_an_entry_share_a_row_where_there_are_many(tmp_path: Path, count: int, rows: list[str]) -> None:
    path = tmp_path / "heads.yaml"
    path.write_text(HEADS.replace("COUNT", str(count)).replace("WIDTH", str(4 * count)))
    drawn = picture(simulate(load_workload(path, 1), load_hardware("tiny_4x4"), check=False), "network")
    assert [row for row in ("head_1", "head_3", "head (4 layers)") if f">{row}<" in drawn] == rows


def test_every_op_has_a_look() -> None:
    tones = looks([f"op{number}" for number in range(20)])
    assert len(tones) == 20
    assert len({*tones.values()}) == 8


@settings(max_examples=cases(usual=20))
@given(st.data())
def test_lines_in_a_lane_stand_behind_one_another(data: st.DataObject) -> None:
    names = [f"l{row}" for row in range(data.draw(st.integers(1, 12)))]
    earlier = [st.lists(st.sampled_from(names[:row]), max_size=3) if row else st.just([]) for row in range(len(names))]
    reads = dict(zip(names, (data.draw(each) for each in earlier), strict=True))
    made = outputs(names, reads)
    assert [each.row for each in made] == [*range(len(names))]
    for each in made:
        readers = [row for row, name in enumerate(names) if f"l{each.row}" in reads[name]]
        assert each.last == max([each.row, *readers])
        assert not any(other.lane == each.lane and each.row < other.row < each.last for other in made)
        # As far left as it goes.
        taken = {other.lane for other in made if other.row < each.row < other.last}
        assert each.lane == min({*range(len(names) + 1)} - taken)


def test_the_skips_of_a_residual_network_stand_beside_its_branches() -> None:
    work = load_workload("resnet18", ops="all")
    names = ["input", *(layer.name for layer in work.layers)]
    assert {each.lane for each in outputs(names, work.inputs())} == {0, 1}


def test_two_runs_are_compared_by_op(block: Result) -> None:
    alone = replace(block, layers=block.layers[:1])
    compared = compared_results(block, alone)
    used = by_op(block.layers)
    assert json.loads(runs_compared(compared, "AB", "change").to_json())["by_op"] == {
        "conv2d": [used["conv2d"].cycles, block.layers[0].cycles],
        "add": [used["add"].cycles, 0], "relu": [used["relu"].cycles, 0],
    }  # fmt: skip
    assert f"relu {used['relu'].cycles:,} -> 0" in " ".join(totals(compared).lines)
    assert "by op" not in " ".join(totals(compared_results(alone, alone)).lines)


def test_the_page_holds_pictures(staying: Result, tmp_path: Path) -> None:
    with unlaid.anywhere():
        text = page_of(staying, tmp_path).read_text()
    shown = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    begins = {"network": "The layers of block", "held": "What the vector memory of a lane holds in block"}
    for key, name in (("network", "network"), ("held", "memory")):
        kind, _, held = shown[key]["source"].partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert b64decode(held).decode() == picture(staying, name)
        assert shown[key]["caption"].startswith(f"{begins[key]} at batch 2 on tiny_4x4")
    assert "img-src data:" in text


def test_a_page_of_a_list_of_layers_has_no_picture(block: Result, tmp_path: Path) -> None:
    apart = replace(block, layers=tuple(replace(layer, inputs=()) for layer in block.layers))
    assert '"network":null,"held":null' in page_of(apart, tmp_path).read_text()


def test_the_page_says_what_rides_and_what_stays(staying: Result, block: Result) -> None:
    data = run_data(staying)
    told = {layer["name"]: (layer["riders"], layer["overlap"]) for layer in data["layers"]}
    assert {name: riders for name, (riders, _) in told.items()} == {"conv": "relu", "conv2": "sum"}
    assert re.search(r"^\d+ cycles (fewer|more) than alone; .*its output stays on chip for conv2", told["conv"][1])
    said = [sentence[0] for sentence in data["sentences"]]
    assert "2 layers ride on the results of 2." in said
    assert any(each.startswith("Outputs of 1 of 2 layers stay on chip: ") for each in said)
    assert {(layer["riders"], layer["overlap"]) for layer in run_data(block)["layers"]} == {("", "")}


def test_utilisation_is_that_of_layers_that_multiply(block: Result) -> None:
    assert "relu" not in picture(block, "pe_utilization")
    of = {each.name: each.caption for each in plots(block)}
    assert " of each layer that multiplies of block " in of["pe_utilization"]
    assert of["roofline"].endswith(" Layers that multiply or move nothing are left out.")


def test_the_page_says_what_layers_read(block: Result) -> None:
    data = run_data(block)
    assert [layer["reads"] for layer in data["layers"]] == ["input", "conv", "relu", "conv2, relu"]
    assert any(sentence[0].startswith("Time by op: conv2d") for sentence in data["sentences"])
