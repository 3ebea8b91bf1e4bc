"""The paper's claims: that verdicts follow from rules, and that what comes out is what the documents say."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from html import escape
from itertools import islice
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from tests import ROOT
from tpusim import load_hardware, load_workload
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.cli import names
from tpusim.flow.jobs import resolve
from tpusim.flow.recordings import trace
from tpusim.report.plots.paper import draw, pictures
from tpusim.report.tables import paper as tables
from tpusim.study.paper import cells, strides
from tpusim.study.paper.claims import CONDITION, FAILS, HOLDS, OPEN, Claim, Finding, words
from tpusim.study.paper.exhibit import CellGrid, Curves, Exhibit, shown
from tpusim.study.paper.networks import _of_elements, lowered_sizes
from tpusim.study.paper.run import FILE, MAKERS, PointPlan, chosen
from tpusim.study.sweep.parcels import simulated
from tpusim.study.sweep.store import Store
from tpusim.study.worker_processes import Processes

pytestmark = pytest.mark.xdist_group("paper")
"""What is simulated for all of them is simulated once."""


def claim(bounds: tuple[float, float] | None, *values: float) -> Claim:
    """A claim with these figures."""
    findings = tuple(Finding(f"{each}", each) for each in values)
    least, most = bounds or (None, None)
    words = {"key": "key", "short": "short", "sentence": "sentence", "stated": "1", "note": ""}
    return Claim(**words, least=least, most=most, findings=findings)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((1.0, 2.0), HOLDS), ((0.9, 1.0), CONDITION), ((2.1, 0.9), FAILS), ((), OPEN)],
    ids=["all", "some", "none", "nothing"],
)
def test_a_verdict_follows_from_the_figures(values: tuple[float, ...], verdict: str) -> None:
    assert claim((1, 2), *values).verdict == verdict


def test_without_a_rule_nothing_is_judged() -> None:
    assert claim(None, 1.0).verdict == OPEN


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"about": 20, "unit": "%"}, "from 15 to 25 %"),
        ({"about": 5, "within": 0.1, "unit": "x"}, "from 4.5 to 5.5x"),
        ({"least": 2}, "at least 2"),
        ({"most": 1234, "unit": "%"}, "at most 1,234 %"),
    ],
)
def test_rules_are_made_of_words(given: dict[str, float | str], text: str) -> None:
    made = Claim.model_validate({"key": "k", "short": "", "sentence": "", "stated": "", "note": "", **given}).rule
    assert made == text


def test_a_number_is_told_or_bounded() -> None:
    with pytest.raises(ValueError, match="not both"):
        Claim(key="k", short="", sentence="", stated="", note="", about=1, most=2)


def test_every_exhibit_is_known_everywhere() -> None:
    assert [*words()] == [*MAKERS] == [*names.EXHIBITS]
    keys = [each.key for exhibit in words().values() for each in exhibit.claims]
    assert len({*keys}) == len(keys)


def test_exhibits_are_chosen_by_name() -> None:
    assert chosen(["16b", "14a"]) == ["14a", "16b"]
    assert chosen([]) == [*words()]
    with pytest.raises(InputError, match=r"14c.*14a"):
        chosen(["14c"])


# ---- what comes out

DOCUMENT = (ROOT / "docs" / "paper.md").read_text()
FAST = (
    "table2",
    "1",
    "4a",
    "5",
    "6",
    "10",
    "11",
    "14a",
    "chip",
)
"""Exhibits that take less than a second."""
DRAWN = "10", "13b", "14a"
"""One of each kind of picture or nearly."""


def quiet(*_: object) -> None:
    """No progress."""


def made_in(folder: Path, figures: Sequence[str]) -> list[Exhibit]:
    with closing(Store(folder / FILE)) as store, Processes(simulated, 1) as processes:
        plan = PointPlan.of(figures)
        plan.run(store, processes, quiet)
        return plan.made(store)


@pytest.fixture(scope="module")
def exhibits(tmp_path_factory: pytest.TempPathFactory) -> list[Exhibit]:
    return made_in(tmp_path_factory.mktemp("paper"), FAST)


def printed(made: Sequence[Exhibit]) -> list[str]:
    """The rows of the table as the command shows them, one blank between words."""
    text = io.StringIO()
    Console(file=text, width=1000).print(tables.claim_table(made).drawn())
    return [" ".join(line.split()) for line in text.getvalue().splitlines()][2:]


def documented() -> list[str]:
    """The rows of the document's table, and the sentence under it."""
    (block,) = re.findall(r"```\n(where.*?)```", DOCUMENT, re.DOTALL)
    return [" ".join(line.split()) for line in block.splitlines() if line][2:]


def test_the_document_says_what_comes_out(exhibits: list[Exhibit]) -> None:
    names = {each.words.name for each in exhibits}
    told = [line for line in documented() if any(line.startswith(f"{name} ") for name in names)]
    assert printed(exhibits) == told


@pytest.mark.long
def test_the_document_says_what_takes_longer(tmp_path: Path) -> None:
    lines = printed(made_in(tmp_path, ["table1", "2a", "4b", "13b", "17", "18a", "18b"]))
    assert lines
    assert {*lines} <= {*documented()}


def test_table_1_is_of_one_image() -> None:
    """As the paper has it: what is lowered grows with the images, and shares of it hide that."""
    asked = next(lowered_sizes())
    assert {(point.jobs.work.batch, point.jobs.lowering) for point in asked.values()} == {(1, "explicit")}


def test_table_1_counts_ifmaps_in_bytes() -> None:
    """As somebody else would count VGG16's: 4 bytes an element, whatever their matrices take."""
    making = lowered_sizes()
    nothing = {key: [{"lowered_bytes": 0}] * len(point.jobs.work.layers) for key, point in next(making).items()}
    with pytest.raises(StopIteration) as ended:
        making.send({key: SimpleNamespace(layers=rows) for key, rows in nothing.items()})
    (row,) = (row for row in ended.value.value.views[0].rows if row[0] == "VGG16")
    layers = [each for each in load_workload("vgg16", batch=1).layers if each.op == "conv2d"]
    count = sum(each.in_channels * each.in_height * each.in_width for each in layers)
    assert row[3] == row[5] == f"{4 * count / 2**20:.2f}"


def test_a_machine_of_wider_elements_holds_as_many() -> None:
    held = {size: _of_elements(size).vector_memory.capacity_bytes / size for size in (1, 2, 4)}
    assert {*held.values()} == {load_hardware("tpu_v2").capacity_words * 8}


def test_every_verdict_follows_from_its_numbers(exhibits: list[Exhibit]) -> None:
    """Worked out once more from the JSON, as somebody else would."""
    judged = 0
    for exhibit, told in zip(exhibits, json.loads(tables.to_json(exhibits))["exhibits"], strict=True):
        for rule, each in zip(exhibit.words.claims, told["claims"], strict=True):
            low, high = bounds(rule)
            agree = [low <= found["value"] <= high for found in each["findings"]]
            assert agree == [found["agrees"] for found in each["findings"]]
            expected = OPEN if not agree else HOLDS if all(agree) else CONDITION if any(agree) else FAILS
            assert each["verdict"] == expected, each["key"]
            assert each["note"]
            judged += bool(agree)
    assert judged > 12


def test_claims_are_counted_by_their_verdicts(exhibits: list[Exhibit]) -> None:
    found = Counter(
        each["verdict"] for made in json.loads(tables.to_json(exhibits))["exhibits"] for each in made["claims"]
    )
    said = f"{found.total()} claims: holds {found[HOLDS]}, holds with a condition {found[CONDITION]}."
    assert said in tables.summary(exhibits)


def bounds(rule: Claim) -> tuple[float, float]:
    if rule.about is not None:
        return rule.about - rule.about * rule.within, rule.about + rule.about * rule.within
    return -inf if rule.least is None else rule.least, inf if rule.most is None else rule.most


def test_every_exhibit_can_be_judged() -> None:
    assert all(claim.rule for each in words().values() for claim in each.claims)


def test_no_figure_is_left_without_a_claim_or_a_claim_without_figures(exhibits: list[Exhibit]) -> None:
    for exhibit in exhibits:
        assert {*exhibit.shown.findings} == {each.key for each in exhibit.words.claims if each.rule}


@pytest.mark.long
def test_pictures_name_what_they_show(tmp_path: Path) -> None:
    chosen_ones = made_in(tmp_path, DRAWN)
    for picture, exhibit in zip(pictures(chosen_ones), chosen_ones, strict=True):
        # Pictures are drawn in other processes.
        svg = pickle.loads(pickle.dumps(picture)).contents("svg").decode()
        for view in exhibit.drawn:
            assert escape(view.title, quote=False) in svg


def test_what_doubles_stands_as_far_apart() -> None:
    figure = draw([Curves("t", [2, 4, 8], "x", {"y": [1, 2, 3]}, "y", doubling=True)])
    places = figure.axes[0].transData.transform([(at, 1) for at in (2, 4, 8)])[:, 0]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1])
    assert figure.axes[0].xaxis.get_transform().base == 2


def test_ports_are_as_the_register_engine_has_them() -> None:
    """The picture of Fig. 10 comes from lane 0 of the event engine alone."""
    work = load_workload("tiny", batch=2)
    work = replace(work, layers=tuple(layer for layer in work.layers if layer.name == "fig10"))
    _, cycles = trace(resolve(work, load_hardware("tiny_4x4")))
    every = {cycle.number: cycle.ports for cycle in cycles(0, quiet)}
    made = shown(MAKERS["10"], {})
    ports = made.views[1]
    assert isinstance(ports, CellGrid)
    for column, number in enumerate(ports.columns):
        letters = "".join(row[column].text or "." for row in ports.cells)
        assert letters == re.sub("[^RW]", ".", every[int(number)])


def test_finished_points_outlive_an_interruption(tmp_path: Path) -> None:
    class Interrupted(Processes[Any, Any]):
        def outcomes(self, inputs: Sequence[Any]) -> Any:
            yield from islice(super().outcomes(inputs), len(inputs) // 2)
            raise KeyboardInterrupt

    plan = PointPlan.of(["14a"])
    with closing(Store(tmp_path / FILE)) as store:
        everything = plan.left(store)
        with pytest.raises(KeyboardInterrupt):
            plan.run(store, Interrupted(simulated, 1), quiet)
        assert 0 < plan.left(store) < everything
    made_in(tmp_path, ["14a"])
    with closing(Store(tmp_path / FILE)) as store:
        assert plan.left(store) == 0


def paper(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["paper", *arguments, "--workers", "1"])


def test_the_command_leaves_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    command = ["--figure", "6", "--out", str(tmp_path), "--json", str(tmp_path / "claims.json")]
    done = paper(*command)
    assert done.exit_code == 0, done.output
    assert "1 claim: holds 1." in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {
        FILE, "claims.json", "fig_6.png", "fig_6.svg", "captions.txt", "figures.html",
    }  # fmt: skip
    page = (tmp_path / "figures.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "<script" not in page
    assert "http" not in re.sub(r"http-equiv", "", page)
    assert "not verified" in page
    written = (tmp_path / "fig_6.png").stat().st_mtime_ns
    assert paper(*command).exit_code == 0
    assert (tmp_path / "fig_6.png").stat().st_mtime_ns == written


def test_a_file_is_no_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    done = paper("--figure", "6", "--out", str(tmp_path / "mine"))
    assert (done.exit_code, (tmp_path / "mine").read_text()) == (2, "kept")
    assert done.stderr.strip().endswith("mine: it is a file; name a folder")


def test_an_unknown_figure_leaves_nothing(tmp_path: Path) -> None:
    done = paper("--figure", "16c", "--out", str(tmp_path / "none"))
    assert done.exit_code == 2
    assert "did you mean" in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.long
def test_the_whole_document_is_what_comes_out(tmp_path: Path) -> None:
    made = made_in(tmp_path, chosen([]))
    told = documented()
    assert [*printed(made), *tables.summary(made).splitlines()] == told
    assert len([*pictures(made)]) == len([each for each in made if each.drawn])


def test_what_a_layout_costs_at_stride_one_is_told_apart_from_larger_strides() -> None:
    """Figures that are made up: a cycle for each column, twice as many where channels lie outside."""
    making = strides.in_hbm()
    asked = next(making)

    def point(layout: str, fetch: str, at: tuple[int, int]) -> Any:
        return SimpleNamespace(cycles=at[0] * (2 if layout == "CHW" else 1), figure=lambda name: 1.0)

    with pytest.raises(StopIteration) as ended:
        making.send({key: point(*key) for key in asked})
    found = ended.value.value.findings
    assert {each.value for findings in found.values() for each in findings} == {2}
    assert len(found["layout_stride_1"]) == 2 * 3
    assert all(", stride 1, " in each.when for each in found["layout_stride_1"])
    assert not any(", stride 1, " in each.when for each in found["layout_strides"])


def test_what_taps_two_apart_read_of_stride_two() -> None:
    """49 columns of 99 each, from 0 to 96 and from 2 to 98: 48 of them the same."""
    making = cells.order_of_subtiles()
    next(making)
    with pytest.raises(StopIteration) as ended:
        making.send({})
    found = ended.value.value.findings
    assert [each.value for each in found["tap_overlap"]] == pytest.approx([100 * 48 / 50, 100 * 48 / 49])
    # Reuse may save a part of what is read.
    assert all(0 <= each.value < 100 for each in found["tap_bytes"])
