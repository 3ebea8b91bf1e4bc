"""Two sweeps against each other."""

from __future__ import annotations

import json
import re
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Done

from tests.pages import point, points_file
from tpusim.cli import app as cli
from tpusim.report.tables.compare import MOST_ROWS

AXES = ("array.size", "hbm.bandwidth")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swept(name: str, *points: dict[str, Any], axes: tuple[str, ...] = AXES) -> str:
    points_file(Path(name), list(points), axes)
    return name


def at(size: int, bandwidth: str, time_us: float, error: str = "", **more: Any) -> dict[str, Any]:
    return {**point(time_us, error), "array.size": size, "hbm.bandwidth": bandwidth, **more}


def tpusim(*arguments: str) -> Done:
    return CliRunner().invoke(cli.app, ["compare", *arguments])


def both() -> tuple[str, str]:
    a = swept("a", at(64, "700 GB/s", 10), at(128, "700 GB/s", 5), at(256, "700 GB/s", 3), at(512, "700 GB/s", 1))
    # The axes in another order, a value in another unit, a point that failed and one of its own.
    b = swept(
        "b", at(256, "0.7 TB/s", 1, "no room"), at(128, "0.7 TB/s", 5), at(64, "0.7 TB/s", 20), at(32, "0.7 TB/s", 9),
        axes=AXES[::-1],
    )  # fmt: skip
    return a, b


def test_points_are_joined_by_what_their_axes_measure() -> None:
    done = tpusim(*both())
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines() if "GB/s" in line or "TB/s" in line]
    assert [(row[0], *row[3:6]) for row in rows] == [
        ("64", "7,000", "14,000", "2.000"),
        ("256", "2,100", "-", "only"),
        ("512", "700", "-", "only"),
        ("32", "-", "6,300", "only"),
    ]
    text = " ".join(done.stdout.split())
    assert "A: a: sweep a, 4 points of net, batch 8" in text
    assert "B: b: sweep b, 4 points of net, batch 8, 1 failed" in text
    assert "2 points in both: 10,500 -> 17,500 cycles (x 1.667)" in text
    assert f"Geometric mean over points, each weighing the same: x {sqrt(2):.3f}" in text
    assert "2 points only in A" in text
    assert "1 point only in B" in text
    assert "Not shown: 1 of 5 points with the same cycles." in text


def test_orders() -> None:
    a = swept("a", at(1, "1 GB/s", 10), at(2, "1 GB/s", 10), at(3, "1 GB/s", 100))
    b = swept("b", at(1, "1 GB/s", 10), at(2, "1 GB/s", 5), at(3, "1 GB/s", 200))
    shown = {}
    for order in ("change", "ratio", "network"):
        lines = tpusim(a, b, "--sort", order).stdout.splitlines()
        shown[order] = [line.split()[0] for line in lines if "GB/s" in line]
    assert shown == {"change": ["3", "2"], "ratio": ["2", "3"], "network": ["1", "2", "3"]}


def test_the_json_has_every_point() -> None:
    done = tpusim(*both(), "--json", "-")
    data = json.loads(done.stdout)
    assert data["axes"] == list(AXES)
    assert [each["ratio"] for each in data["points"]] == [2, 1, None, None, None]
    assert data["points"][0]["settings"] == {"workload": "net", "array.size": "64", "hbm.bandwidth": "700 GB/s"}
    assert data["points"][0]["cycles"] == [7000, 14000]
    assert data["points"][-1]["cycles"] == [None, 6300]
    assert "only in A" in done.stderr


def test_a_large_sweep_shows_some_and_says_so() -> None:
    a = swept("a", *(at(size, "1 GB/s", 10) for size in range(1, 200)))
    b = swept("b", *(at(size, "1 GB/s", 10 + size) for size in range(1, 200)))
    lines = tpusim(a, b).stdout.splitlines()
    assert sum("GB/s" in line for line in lines) == MOST_ROWS
    assert f"Not shown: {199 - MOST_ROWS} more (--json has all)." in lines


def test_sweeps_are_shown_although_the_json_cannot_be_written() -> None:
    a, b = both()
    done = tpusim(a, b, "--json", "/dev/full")
    assert (done.exit_code, done.stdout) == (2, tpusim(a, b).stdout)
    assert done.stderr == "Error: /dev/full: cannot be written (No space left on device)\n"


def test_equal_sweeps_and_another_batch() -> None:
    a, _ = both()
    assert "Every point takes the same cycles." in tpusim(a, "a/points.csv").stdout
    c = swept("c", at(64, "700 GB/s", 20, batch=16, macs=2e9))
    text = " ".join(tpusim(a, c).stdout.split())
    assert "B: c: sweep c, 1 point of net, batch 16" in text
    assert "by the MAC: x 1.000" in text


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ("axis", "points are joined by their axes, and these differ: a has array.size, hbm.bandwidth; axis has batch"),
        ("twice", "twice: two points at net, array.size=64, hbm.bandwidth=0.7 TB/s"),
        ("old", "old: no column macs, pe_utilization; run the sweep again with this version"),
        ("a/sweep.sqlite", "a/sweep.sqlite: is what a sweep works with; give its directory, or its points.csv"),
        ("nothing.json", "a is a sweep, nothing.json is a run; compare two of a kind"),
    ],
)
def test_what_cannot_be_compared_is_one_line(other: str, says: str) -> None:
    a, _ = both()
    swept("axis", {**point(5), "batch": 8}, axes=("batch",))
    swept("twice", at(64, "700 GB/s", 5), at(64, "0.7 TB/s", 5))
    swept("old", at(64, "700 GB/s", 5))
    old = Path("old/points.csv")
    old.write_text(old.read_text().replace("macs", "work").replace("pe_utilization", "use"))
    done = tpusim(a, other, "--json", "c.json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("c.json").exists()


def test_it_fits_a_terminal_of_80_and_explains_what_it_shows() -> None:
    terminal = {"COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "xterm"}
    raw = CliRunner().invoke(cli.app, ["compare", *both()], env=terminal, color=True).stdout
    lines = re.sub(r"\x1b\[[0-9;]*m", "", raw).splitlines()
    assert raw != "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    legend = " ".join(" ".join(lines).split())
    assert "B/A: cycles of B over those of A" in legend
    # Clock and work are the same, so that nothing is told of other ratios.
    assert "time:" not in legend
    assert "MAC:" not in legend
