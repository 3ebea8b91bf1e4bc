"""The figures of Winograd's tiles that the documents quote."""

from __future__ import annotations

import runpy

import pytest

from tests import ROOT
from tests.strategies import conv
from tpusim import load_hardware, simulate
from tpusim.network.workload import Workload
from tpusim.study.sweep.spec import load_sweep


def test_what_floating_point_rounds() -> None:
    script, told = (
        runpy.run_path(str(ROOT / "scripts" / "winograd_error")),
        (ROOT / "docs" / "decisions.md").read_text(),
    )
    quoted = " ".join(told.split())
    for formats in script["FORMATS"].values():
        small, large = (script["error"](script[name], *formats) for name in ("F2", "F4"))
        assert f"{small:.1e} and {large:.1e}" in quoted
        assert small < large / 4


@pytest.mark.parametrize(("channels", "size"), [(256, 14), (512, 7)])
def test_who_wins(channels: int, size: int) -> None:
    work = Workload("net", 8, (conv(channels, size, channels, 3, padding=1),))

    def cycles(alus: int, lowering: str) -> int:
        hardware = load_hardware("tpu_v2", {"vector_unit.alus": alus})
        return simulate(work, hardware, lowering=lowering, check=False).total.cycles

    sweep = load_sweep("winners")
    first, *tiles = sweep.axes["lowering"]
    gains = (cycles(alus, first) / cycles(alus, each) for alus in sweep.axes["vector_unit.alus"] for each in tiles)
    row = f"| {channels} | {size} | {' | '.join(f'{gain:.2f}' for gain in gains)} |"
    assert row in (ROOT / "docs" / "validation.md").read_text()
