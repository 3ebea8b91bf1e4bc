"""Wherever a machine is named, what was set of it is named: on the screen, in pages, pictures, captions and traces."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.api.test_functions import GROWING
from tests.conftest import in_this_process
from tests.strategies import cases
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.words import with_settings
from tpusim.cli import app as cli
from tpusim.report.plots.run import plots
from tpusim.result.load import parse_result
from tpusim.result.notebook import html_of
from tpusim.study.sweep.points import load_sweep

MACHINE, GPU = "tiny_4x4", "v100"
SET = ("--set", "hbm.bandwidth=3 GB/s", "--set", "mapping.search=estimate")
LABEL = f"{MACHINE} with hbm.bandwidth=3 GB/s, mapping.search=estimate"
NOTHING_SET = re.compile(rf"\b(?:{MACHINE}|{GPU})\b(?! with )")
"""A machine's name as people read it, without what was set."""


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    in_this_process(monkeypatch)


def shown(*words: str) -> str:
    done = CliRunner().invoke(cli.app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def told(text: str, label: str = LABEL) -> None:
    """The text has the label, and the name nowhere without it."""
    assert label in text
    assert not NOTHING_SET.search(text), text


def of_tiny(command: str, *more: str) -> tuple[str, ...]:
    return command, "tiny", "--hardware", MACHINE, "--batch", "2", *SET, *more


def test_a_run_its_page_its_pictures_and_their_captions() -> None:
    told(shown(*of_tiny("run", "--out", "made")))
    run = json.loads(Path("made/run.json").read_text())
    assert run["hardware"]["name"] == MACHINE
    assert run["changes"] == {"hbm.bandwidth": "3 GB/s", "mapping.search": "estimate"}
    shown("report", "made")
    page = Path("made/report.html").read_text()
    for part in re.findall(r"<title>(.*?)</title>", page) + re.findall(r'"(?:title|subtitle|caption)":"(.*?)"', page):
        assert not NOTHING_SET.search(html.unescape(part)), part
    assert html.unescape(page).count(LABEL) > 3
    shown("plot", "made", "--format", "svg")
    told(Path("made/captions.txt").read_text())
    for picture in Path("made").glob("*.svg"):
        assert not NOTHING_SET.search(picture.read_text()), picture
    shown(*of_tiny("run", "--no-check", "--json", "other.json"))
    told(shown("compare", "made", "other.json").replace(f"hardware {MACHINE}", ""))


def test_titles_of_pictures_as_matplotlib_has_them() -> None:
    machine = load_hardware(MACHINE, ["mapping.search=estimate"])
    result = simulate(load_workload("tiny", batch=2), machine)
    drawn = [axes for each in plots(result) for axes in each.draw().axes]
    titles = [" ".join((axes.get_title(loc="left") or axes.get_title()).split()) for axes in drawn]
    assert sum(f"{MACHINE} with mapping.search=estimate" in title for title in titles) >= 4
    assert not any(map(NOTHING_SET.search, titles))


def test_explain_trace_and_area() -> None:
    told(shown(*of_tiny("explain", "--layer", "fig10", "--out", "why.svg", "--json", "why.json")))
    assert json.loads(Path("why.json").read_text())["changes"]["hbm.bandwidth"] == "3 GB/s"
    assert not NOTHING_SET.search(Path("why.svg").read_text())
    shown(*of_tiny("trace", "--out", "all.json"))
    events = json.loads(Path("all.json").read_text())["traceEvents"]
    (process,) = (each["args"]["name"] for each in events if each["name"] == "process_name")
    told(process)
    shown(*of_tiny("trace", "--out", "all.pftrace"))
    told(Path("all.pftrace").read_bytes().decode(errors="replace"))
    told(shown("area", "--hardware", MACHINE, *SET))


def test_a_generation_its_page_and_its_picture() -> None:
    Path("net.yaml").write_text(GROWING)
    asked = ("run", "net.yaml", "--phase", "decode", "--tokens", "2", "--set", "clock=1 GHz")
    label = "tpu_v6e with clock=1 GHz"
    made = shown(*asked, "--hardware", "tpu_v6e", "--out", "made")
    for text in (made, Path("made/captions.txt").read_text(), Path("made/report.html").read_text()):
        assert label in text
        assert not re.search(r"tpu_v6e(?! with)", text)
    for picture in Path("made").glob("*.svg"):
        assert label in picture.read_text()
    kept = json.loads(Path("made/generation.json").read_text())
    assert (kept["hardware"], kept["changes"]) == ("tpu_v6e", {"clock": "1 GHz"})


@pytest.mark.usefixtures("undrawn")
def test_a_gpu() -> None:
    label = f"{GPU} with sm.count=40"
    asked = ("resnet18", "--hardware", GPU, "--batch", "1", "--set", "sm.count=40")
    told(shown("run", *asked, "--layers", "conv1", "--no-check", "--out", "made"), label)
    told(shown("explain", *asked, "--layer", "conv1"), label)
    shown("plot", "made", "--format", "svg")
    told(Path("made/captions.txt").read_text(), label)


def test_sets_of_reference_numbers_and_a_dram() -> None:
    asked = ("validate", "--set-of-numbers", "v3_odd", "--set", "mapping.search=estimate")
    assert "tpu_v3_core with mapping.search=estimate" in shown(*asked)
    Path("trace.csv").write_text("time,address,bytes,rw\n,0,64,r\n")
    played = shown("dram", "trace.csv", "--set", "timing.tRP=20", "--json", "played.json")
    assert "hbm2_16ch_700 with timing.tRP=20" in played
    assert json.loads(Path("played.json").read_text())["changes"] == {"timing.tRP": "20"}


def test_a_refusal() -> None:
    words = ("run", "gpt2_small", "--dim", "layers=1", "--hardware", "tpu_v6e", "--set", "hbm.capacity=1 MiB")
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 2
    assert "tpu_v6e with hbm.capacity=1 MiB" in done.output


@pytest.mark.usefixtures("undrawn")
def test_what_a_sweep_fixes_and_what_its_points_set() -> None:
    spec = "name: mine\nhardware: tiny_4x4\nworkloads: tiny\nbatch: 2\n"
    Path("mine.yaml").write_text(f"{spec}axes: {{hbm.bandwidth: [1 GB/s, 2 GB/s], mapping.search: [estimate]}}\n")
    sweep = load_sweep("mine.yaml")
    assert [each.jobs.hardware.label for each in sweep.points] == [
        f"{MACHINE} with hbm.bandwidth={rate} GB/s, mapping.search=estimate" for rate in (1, 2)
    ]
    shown("sweep", "mine.yaml", "--workers", "1", "--out", "made", "--format", "svg")
    told(Path("made/captions.txt").read_text(), f"{MACHINE} with mapping.search=estimate")
    shown("report", "made")
    assert "with mapping.search=estimate" in Path("made/report.html").read_text()


def test_python_tells_it_and_changes_add_up() -> None:
    base = load_hardware(MACHINE)
    assert base.label == MACHINE
    once = base.with_overrides({"hbm.bandwidth": "3 GB/s"})
    machine = once.with_overrides(["mapping.search=estimate", "name=mine"])
    assert machine.label == "mine with hbm.bandwidth=3 GB/s, mapping.search=estimate"
    # What follows of a change is no change: the ALUs of another array.
    assert base.with_overrides("array.size=8").label == f"{MACHINE} with array.size=8"
    result = simulate(load_workload("tiny", batch=2), once, check=False)
    for text in (repr(result), html_of(result), repr(parse_result(result.to_json()))):
        assert f"{MACHINE} with hbm.bandwidth=3 GB/s" in text
    untouched = simulate(load_workload("tiny", batch=2), base, check=False)
    assert untouched.machine == MACHINE
    assert "changes" not in untouched.to_dict()


@settings(max_examples=cases(1 / 2))
@given(st.dictionaries(st.text("ab.", min_size=1, max_size=80), st.text("01 G", max_size=80), max_size=6))
def test_many_settings_are_told_by_the_first_and_their_number(changes: dict[str, str]) -> None:
    told_as = with_settings("machine", changes)
    assert len(told_as) < 250
    first = [*changes][:3]
    assert all(path[:30] in told_as for path in first)
    more = len(changes) - len(first)
    assert (f" and {more} more set" in told_as) == (more > 0)
