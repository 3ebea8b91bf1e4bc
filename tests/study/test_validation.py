"""Reference numbers: what they are, that errors are errors, and that we come as close as the documents say."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from statistics import mean

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests import ROOT
from tpusim import load_hardware
from tpusim.cli import app as cli
from tpusim.network.ops import Conv2d, Gemm
from tpusim.report.tables.validation_tables import summary_table
from tpusim.study.validation.cases import FITTED, number_sets
from tpusim.study.validation.compare import ComparedCase, Comparison, Spread, compare

DOCUMENT = (ROOT / "docs" / "validation.md").read_text()
CONFIGS = ROOT / "configs"
COUNTS = {"gemm": 111, "resnet50": 52, "vgg16": 12, "yolov2": 19, "micro": 45, "first_layers": 3, "v3": 7, "v3_odd": 1,
          "training": 39}  # fmt: skip
GOALS = {"gemm": 0.03, "resnet50": 0.05, "vgg16": 0.05, "yolov2": 0.05, "micro": 0.08, "v3": 0.06, "training": 0.03}
"""Mean absolute errors that must not grow beyond these."""

NETWORKS = ("resnet50", "vgg16", "yolov2")


def quiet(*_: object) -> None:
    """No progress."""


def test_every_set_has_its_cases() -> None:
    assert {name: len(each.cases) for name, each in number_sets().items()} == COUNTS


def test_measured_and_estimated_are_told_apart() -> None:
    statuses = {name: each.status for name, each in number_sets().items()}
    assert {name for name, status in statuses.items() if status == "measured"} == {"v3", "v3_odd", "training"}
    assert set(statuses.values()) == {"measured", "estimated"}


def test_a_case_is_what_its_row_says() -> None:
    """One row of each file, read by eye."""
    sets = number_sets()
    gemm = next(case for case in sets["gemm"].cases if case.name == "256x512x1024")
    assert (gemm.layers, gemm.theirs) == ((Gemm("256x512x1024", 256, 512, 1024),), 12_499)
    conv = next(case for case in sets["vgg16"].cases if case.name == "112x112x64>128 3x3/1")
    (layer,) = conv.layers
    assert isinstance(layer, Conv2d)
    assert (layer.in_channels, layer.out_channels, layer.padding, conv.batch, conv.theirs) == (
        64,
        128,
        (1, 1),
        8,
        618_816,
    )
    v3 = next(case for case in sets["v3"].cases if "28x28" in case.name)
    assert (v3.batch, v3.theirs, v3.layers[0].macs(64)) == (64, 241_935, 64 * 28 * 28 * 128 * 128 * 9)
    forward, inputs, weights = sets["training"].cases[0].layers
    assert forward.macs(1) == inputs.macs(1) == weights.macs(1)


def test_errors_and_their_spread() -> None:
    rows = [
        ComparedCase("a", 110, 100, 50, True),
        ComparedCase("b", 80, 100, 100, False),
        ComparedCase("c", 100, 100, 100, False),
    ]
    spread = Spread.of([(row.error, row.name) for row in rows])
    assert spread.mean == pytest.approx(0.1)
    assert spread.median == pytest.approx(0.1)
    assert (spread.worst, spread.where) == (pytest.approx(-0.2), "b")
    assert spread.p90 == pytest.approx(0.2)


def test_the_halves_are_halves() -> None:
    cases = [case for each in number_sets().values() if each.status == "estimated" for case in each.cases]
    fitted = sum(case.fitted for case in cases) / len(cases)
    assert 0.4 < fitted < 0.6


@pytest.mark.xdist_group("comparisons")
def test_no_further_off_than_the_goals(comparisons: dict[str, Comparison]) -> None:
    for name, goal in GOALS.items():
        comparison = comparisons[name]
        assert comparison.ours.mean < goal, name
        assert comparison.ours.mean < comparison.roofline.mean / 2, name
    assert all(abs(comparisons[name].total_error) < 0.03 for name in NETWORKS)


@pytest.mark.xdist_group("comparisons")
def test_the_other_half_is_hardly_worse(comparisons: dict[str, Comparison]) -> None:
    """Over all cases of the sets of which half served for fitting."""
    rows = [row for name in FITTED for row in comparisons[name].rows]
    fit, rest = (mean(abs(row.error) for row in rows if row.fitted is half) for half in (True, False))
    assert rest < fit + 0.01
    assert comparisons["v3"].half(True) is comparisons["training"].half(False) is None


@pytest.mark.xdist_group("comparisons")
def test_the_document_says_what_the_command_prints(comparisons: dict[str, Comparison]) -> None:
    """The whole table, to the digit."""
    text = io.StringIO()
    Console(file=text, width=200).print(summary_table(list(comparisons.values())))
    printed = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    written = {" ".join(line.split()) for line in DOCUMENT.splitlines()}
    assert [line for line in printed if line not in written] == []


def test_the_rule_of_the_paper_is_what_the_estimates_imply() -> None:
    """At 8 to 64 channels and stride 1, the rule's taps are closer than one or two."""
    errors = {}
    for taps in ("1", "2", "auto"):
        (comparison,) = compare([number_sets()["micro"]], [f"mapping.multi_tile={taps}"], quiet)
        thin = [row for row in comparison.rows if re.search(r"x(8|16|32|64)>.* 3x3/1", row.name)]
        errors[taps] = mean(abs(row.error) for row in thin)
    assert errors["auto"] < errors["2"] / 3 < errors["1"] / 3


def test_at_most_twelve_fitted_numbers_and_every_value_says_what_it_is() -> None:
    text = (CONFIGS / "tpu_v2_core.yaml").read_text()
    values = [line for line in text.splitlines() if re.match(r"(clock|  \w+):", line)]
    assert sum("# fitted" in line for line in values) <= 12
    assert all(re.search(r"# (published|read off|fitted|bfloat16|JEDEC|ours)", line) for line in values)


def test_only_the_core_of_the_chip_has_what_the_paper_does_not_describe() -> None:
    paper, core = load_hardware("tpu_v2"), load_hardware("tpu_v2_core")
    assert (paper.vector_unit.unpack_cycles, paper.vector_unit.pack_cycles, paper.hbm.channel_multiple) == (0, 0, 1)
    assert (paper.sequencer.launch_cycles, paper.sequencer.between_blocks) == (0, "overlap")
    assert core.sequencer.between_blocks == "drain"


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    words = ["validate", "--set-of-numbers", "v3"]
    shown = run(cli.app, [*words, "--json", str(tmp_path / "v.json"), "--out", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "gemm_256x256x256" in shown.stdout
    assert "measured" in shown.stdout
    (numbers,) = json.loads((tmp_path / "v.json").read_text())["sets"]
    assert len(numbers["rows"]) == 7
    assert numbers["ours"]["mean"] == pytest.approx(sum(abs(row["error"]) for row in numbers["rows"]) / 7)
    assert (tmp_path / "measured.png").stat().st_size > 1000
    slower = run(cli.app, [*words, "--set", "clock=470 MHz", "--json", "-"])
    assert json.loads(slower.stdout)["sets"][0]["rows"] != numbers["rows"]
    drawn = run(cli.app, [*words, "--json", "-", "--out", str(tmp_path / "pictures")])
    assert json.loads(drawn.stdout)["sets"][0]["rows"] == numbers["rows"]


@pytest.mark.xdist_group("comparisons")
def test_a_narrow_terminal_loses_columns_not_digits(comparisons: dict[str, Comparison]) -> None:
    text = io.StringIO()
    Console(file=text, width=80).print(summary_table(list(comparisons.values()), 80))
    assert "…" not in text.getvalue()
    assert "mean" in text.getvalue()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set-of-numbers", "gem"], "did you mean gemm"),
        (["--lowering", "channel_frist"], "unknown lowering 'channel_frist'; did you mean channel_first?"),
        (["--set", "array.rowz=1"], "did you mean array.rows"),
        (["--json", "nowhere/v.json"], "cannot be written"),
        (["--json", ""], "cannot be written"),
    ],
)
def test_mistakes(arguments: list[str], says: str) -> None:
    shown = CliRunner().invoke(cli.app, ["validate", *arguments])
    assert shown.exit_code == 2
    assert says in shown.stderr
    assert shown.stdout == ""
