"""tpusim collective: a question in, time, bandwidth and links out."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from typer.testing import CliRunner

from tpusim.cli import names
from tpusim.cli.actions.collective import BYTES_OF
from tpusim.cli.app import app
from tpusim.machines.tpu.slices.collective import OPS

KIB = "64KiB"


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["collective", *map(str, words)])


def told(*words: str | Path) -> dict[str, Any]:
    done = run(*words, "--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_names_that_help_has() -> None:
    assert [*BYTES_OF] == [*names.REALS]
    assert [each.replace("-", "_") for each in names.COLLECTIVES] == [*OPS]


@pytest.mark.parametrize("op", names.COLLECTIVES)
def test_every_op_is_timed_and_checked(op: str) -> None:
    found = told(op, "--bytes", "2KiB", "--slice", "v5e_2x2", "--engine", "both")
    assert found["checked"]["wrong"] == 0
    assert found["checked"]["engines"] == ["event", "simpy", "register"]
    assert sum(found["account"].values()) == found["cycles"]
    assert all(0 <= each["least"] <= each["most"] <= 1 for each in found["links"].values())
    assert found["closed_form_s"] < found["time_s"]
    moved = found["bandwidth_bytes_per_s"] * found["time_s"]
    assert moved == pytest.approx({"all-reduce": 2 * 1536, "permute": 2048}.get(op, 1536))


def test_the_words_say_all_of_it() -> None:
    done = run("all-reduce", "--bytes", "64MiB", "--slice", "v6e_16x16")
    assert done.exit_code == 0
    for says in ("256 chips", "as a benchmark prints it", "Closed form", "Bound by links", "RotatedPincerEmitter",
                 "StrategyND", "colours 2, phases 2", "waits for a neighbour", "x+"):  # fmt: skip
        assert says in " ".join(done.output.split()), says


def test_a_curve_doubles_from_size_to_size() -> None:
    rows = told("all-gather", "--slice", "v5e_4x4", "--axes", "y", "--sizes", "64KiB..1MiB")["sizes"]
    assert [each["bytes"] for each in rows] == [2**16 << turn for turn in range(5)]
    times = [each["time_s"] for each in rows]
    assert times == sorted(times)
    # A line of four without wrap: its last hop runs back, so that every link carries both ways round.
    assert [*rows[0]["links"]] == ["y+", "y-"]
    assert rows[-1]["chips"] == 4


def test_large_tori_cost_as_much_as_small_ones() -> None:
    """One chip of each kind is simulated, however many there are; too many to compute the values of all."""
    found = told("all-reduce", "--slice", "v5p_16x16x24", "--bytes", "64MiB")
    assert found["chips"] == 6144
    assert found["checked"] is None


def test_what_helps_is_told_the_best_first() -> None:
    found = told("all-reduce", "--slice", "v6e_16x16", "--explain")
    times = [each["time_s"] for each in found["easier"]]
    assert times == sorted(times)
    assert times[0] < found["time_s"]
    assert [each["what"] for each in found["other_axes"]] == ["x", "y"]
    assert any("short_pincer" in each["what"] for each in found["other_algorithms"])


def test_what_helps_is_what_the_change_gives() -> None:
    asked = ("all-reduce", "--slice", "v6e_16x16", "--bytes", "1MiB")
    rows = {each["what"]: each["cycles"] for each in told(*asked, "--explain")["easier"]}
    for what, change in (
        ("links of 186.7 GB/s", "link.bandwidth=186.7 GB/s"), ("hops that take no time", "link.hop=1 ps"),
        ("no launch", "collectives.launch=1 ps"),
    ):  # fmt: skip
        assert rows[what] == told(*asked, "--set", f"interconnect.{change}")["cycles"], what
    assert rows["twice the bandwidth of HBM"] < told(*asked)["cycles"]


def test_links_that_nobody_uses_are_told() -> None:
    links = told("permute", "--slice", "v5e_2x4", "--bytes", KIB)["links"]
    assert min(each["least"] for each in links.values()) == 0


def test_axes_of_a_mesh() -> None:
    found = told("all-reduce", "--slice", "v5e_4x4", "--bytes", KIB, "--mesh", "data=2,tensor=8", "--axes", "tensor")
    assert found["chips"] == 8
    assert found["mesh"] == {"data": [[1, 2, 2]], "tensor": [[0, 1, 4], [1, 1, 2]]}
    assert found["checked"]["wrong"] == 0


def test_slices_that_are_joined() -> None:
    one, two = (
        told("all-reduce", "--slice", "v5e_4x4", "--bytes", "1MiB", "--set", f"slices={many}") for many in (1, 2)
    )
    assert (one["chips"], two["chips"]) == (16, 32)
    assert two["time_s"] > one["time_s"]
    assert "dcn+" in two["links"]


def test_of_slices_that_are_joined_no_code_of_the_compiler_is_named() -> None:
    asked = ("all-gather", "--slice", "v5e_4x4", "--bytes", "16MiB", "--set", "slices=2")
    usual, other = (run(*asked, *more).output for more in ([], ["--algorithm", "short_pincer"]))
    between = "".join(run(op, *asked[1:], "--axes", "dcn").output for op in names.COLLECTIVES[::2])
    across = "".join(run(op, *asked[1:]).output for op in names.COLLECTIVES[1::2])
    assert "compiler" not in usual + other + between + across
    assert "the usual is rotated_pincer" in " ".join(other.split())
    assert "Its values are not checked" in usual


def test_a_faster_link_is_faster() -> None:
    asked = ("all-reduce", "--slice", "v5e_4x4", "--bytes", "1MiB")
    slow, fast = told(*asked), told(*asked, "--set", "interconnect.link.bandwidth=93.3 GB/s")
    assert fast["time_s"] < slow["time_s"]


def test_another_algorithm() -> None:
    found = told("all-reduce", "--slice", "v5e_4x4", "--bytes", KIB, "--algorithm", "rotated_pincer")
    assert (found["algorithm"], found["compiler"]["algorithm"]) == ("rotated_pincer", "short_pincer")


def test_the_sides_can_be_set() -> None:
    assert told("permute", "--bytes", KIB, "--set", "torus=4x4") == {
        **told("permute", "--bytes", KIB, "--slice", "v6e_4x4"), "slice": ANY,
    }  # fmt: skip


def test_a_file_in_place_of_a_folder_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("permute", "--bytes", KIB, "--out", tmp_path / "file")
    assert (done.exit_code, done.stdout) == (2, "")


def test_the_torus_is_drawn_and_links_have_lanes(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    done = run("all-reduce", "--bytes", "1MiB", "--slice", "v5e_2x4", "--out", tmp_path / "d", "--trace", trace)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "d" / "torus.png").stat().st_size > 5000
    events = json.loads(trace.read_text())["traceEvents"]
    lanes = {each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert {"chip", "memory", "adder", "link x+"} <= lanes
    # A lane is of one thing, which does one thing at a time.
    for lane in {each["tid"] for each in events if each["ph"] == "X"}:
        spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in events
                       if each["ph"] == "X" and each["tid"] == lane)  # fmt: skip
        assert all(before[1] <= behind[0] for before, behind in pairwise(spans))
    # What the chip does covers all of the time.
    doing = [each for each in events if each["ph"] == "X" and each["tid"] == 2]
    assert "waits for a neighbour" in {each["name"] for each in doing}
    ends = [each["ts"] + each["dur"] for each in doing]
    assert [each["ts"] for each in doing] == [0, *ends[:-1]]
    assert ends[-1] == told("all-reduce", "--bytes", "1MiB", "--slice", "v5e_2x4")["cycles"]


def test_a_timeline_in_perfettos_form(tmp_path: Path) -> None:
    file = tmp_path / "t.perfetto-trace"
    assert run("permute", "--bytes", KIB, "--slice", "v5e_2x2", "--trace", file).exit_code == 0
    assert file.stat().st_size > 500


@pytest.mark.parametrize(("words", "says"), [
    (["all-redcue"], "did you mean all-reduce"), (["all-reduce", "--bytes", "64"], "unit"),
    (["all-reduce", "--bytes", "2B"], "too few"), (["all-reduce", "--bytes", "2TiB"], "unknown unit"),
    (["all-reduce", "--bytes", "2048GiB"], "too many"), (["all-reduce", "--slice", "v6e_3x3"], "such as"),
    (["all-reduce", "--slice", "v7e_4x4"], "generations"), (["all-reduce", "--axes", "z"], "there is x, y"),
    (["all-reduce", "--axes", "x,x"], "twice"), (["all-reduce", "--mesh", "data=3"], "product is 8"),
    (["all-reduce", "--mesh", "data=16"], "product is 8"), (["all-reduce", "--dtype", "bf17"], "bf16"),
    (["all-reduce", "--engine", "fast"], "register"), (["all-reduce", "--algorithm", "direct"], "rotated_pincer"),
    (["all-reduce", "--algorithm", "fast"], "all-reduce has rotated_pincer, short_pincer"),
    (["all-reduce", "--sizes", "1KiB"], "FIRST..LAST"),
    (["all-reduce", "--sizes", "2KiB..1KiB"], "smaller first"),
    (["all-reduce", "--sizes", "1KiB..2KiB", "--explain"], "one size"),
    (["all-reduce", "--slice", "v6e_16x16", "--engine", "both"], "16 chips"),
    (["all-reduce", "--bytes", "4KiB", "--engine", "both", "--set", "interconnect.link.bandwidth=1 B/s"], "too many"),
    (["all-reduce", "--slice", "v5p_2x2x1", "--axes", "z"], "one chip"),
    (["all-reduce", "--set", "hop=1 us"], "no field"),
    (["all-reduce", "--trace", "t.png"], "timeline"), (["all-reduce", "--slice", "tpu_v6e"], "tpu_v6e is hardware"),
    (["all-reduce", "--slice", "v3_4x4", "--set", "slices=2"], "no network"),
    (["all-reduce", "--sizes", "1KiB.."], "FIRST..LAST"), (["all-reduce", "--sizes", "1KiB..2KiB"], "--out"),
    (["all-reduce", "--axes", "x,"], "leaves a name out"), (["all-reduce", "--axes", ""], "leaves a name out"),
    (["all-reduce", "--mesh", ""], "leaves a name out"), (["all-reduce", "--algorithm", ""], "leaves a name out"),
    (["all-reduce", "--slice", "v6e_1x1"], "--slice: v6e_1x1 is one chip"),
    (["all-reduce", "--slice", "v6e_\u0661x\u0664"], "no shipped slice"),
    (["all-reduce", "--bytes", "17B"], "16 B or 18 B"),
    (["all-reduce", "--slice", "v6e_" + "9" * 5000 + "x4"], "no shipped slice"),
    (["all-reduce", "--set", "interconnect.link.hop=1"], "--set interconnect.link.hop=1: 1 has no unit"),
    (["all-reduce", "--set", "interconnect.chip=1"], 'no field "interconnect.chip"'),
    (["all-reduce", "--set", "torus=3x4"], "3x4 is none"), (["all-reduce", "--set", "torus=2 by 4"], "write e.g."),
    (["all-reduce", "--set", "interconnect.sides.longest=1"], "--set interconnect.sides.longest=1: 2x4 is none"),
    (["all-reduce", "--set", "interconnect.machine=v100"], "no TPU chip"),
    (["all-reduce", "--slice", "v6e"], "v6e_2x4"),
    (["all-gather", "--set", "slices=2", "--algorithm", "gather_ring"], "write rotated_pincer or short_pincer"),
    (["all-reduce", "--json", "t.json", "--trace", "./t.json"], "both would write"),
    (["all-reduce", "--json", "drawn/torus.png"], "both would write"),
])  # fmt: skip
def test_bad_input_is_told(words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words, "--out", "drawn")
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.split()), done.output
    assert "Traceback" not in done.output
    assert not [*tmp_path.rglob("*.png")]
