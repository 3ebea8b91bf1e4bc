"""Runs and sweeps made for the tests of the report page."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner
from typer.testing import Result as CommandAnswer

from tpusim.cli import app as cli
from tpusim.report.tables.sweep import point_columns
from tpusim.result.records import LayerResult, Mismatch, Result, total_of

EVIL = "</script><img src=x onerror=alert(1)>"
LONG = "features.denseblock1.denselayer2.and.a.name.that.never.seems.to.come.to.its.end.conv1"


def with_layers(result: Result, *layers: LayerResult) -> Result:
    return replace(result, layers=layers, total=total_of(layers, 0.5))


def wrong(layer: LayerResult) -> LayerResult:
    first = Mismatch((1, 2, 3, 0), ("channel", "row", "col", "image"), 7.0, 9.0)
    return replace(layer, outputs_checked=layer.outputs, outputs_mismatched=3, first_mismatch=first)


def report(*arguments: str) -> CommandAnswer:
    return CliRunner().invoke(cli.app, ["report", *arguments])


def page_of(result: Result, folder: Path) -> Path:
    """The page of a run, as the command writes it."""
    (folder / "run.json").write_text(result.to_json())
    shown = report(str(folder))
    assert shown.exit_code == 0, shown.output
    return folder / "report.html"


def points_file(folder: Path, rows: list[dict[str, Any]], axes: tuple[str, ...]) -> Path:
    """A points.csv as a sweep writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "points.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*axes, *(name for name in point_columns({}, front=False) if name not in axes)])
        writer.writeheader()
        writer.writerows(rows)
    return folder


def point(time_us: float, error: str = "", **settings: Any) -> dict[str, Any]:
    """A row of points.csv; a failed point has no figures."""
    figures = {
        "cycles": time_us * 700, "time_us": time_us, "tflops": 1e4 / time_us, "pe_utilization": 0.5,
        "mapping_efficiency": 0.75, "port_idle_ratio": 0.25, "macs": 1e9, "passes": 100.0, "ideal_cycles": 1e5,
        "hbm_read_bytes": 3e6 * time_us, "hbm_write_bytes": 1e6,
    }  # fmt: skip
    return {"workload": "net", "batch": 8, "error": error, **({} if error else figures), **settings}


AXES = ("array.size", "hbm.bandwidth", "mapping.multi_tile")


def grid(sizes: range) -> list[dict[str, Any]]:
    """Points over three axes and two workloads, some of them failed."""
    rates, taps = ("100 GB/s", "700 GB/s", "1 TB/s"), (1, "auto", "rows")
    combined = [(n, rate, tap, name) for n in sizes for rate in rates for tap in taps for name in ("a", "b")]
    return [
        point(
            1e5 / n + 37 * (i % 11) + (900 if rate == "100 GB/s" else 0),
            "layer conv1: too little memory" if i % 17 == 5 else "",
            **dict(zip((*AXES, "workload"), (n, rate, tap, name), strict=True)),
        )
        for i, (n, rate, tap, name) in enumerate(combined)
    ]
