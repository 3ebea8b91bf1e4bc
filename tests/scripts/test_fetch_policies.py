"""scripts/fetch_policies prints the figures that docs/experiments.md quotes."""

from __future__ import annotations

import runpy

import pytest

from tests import ROOT


@pytest.mark.parametrize("bandwidth", [pytest.param(700, marks=pytest.mark.long), 175])
def test_the_quoted_figures(bandwidth: int) -> None:
    script, told = (
        runpy.run_path(str(ROOT / "scripts" / "fetch_policies")),
        (ROOT / "docs" / "experiments.md").read_text(),
    )
    cells = []
    for order, fetch in script["WAYS"]:
        found = [
            script["figures"]((56, 128, 128, 3), stride, order, fetch, [f"hbm.bandwidth={bandwidth} GB/s"])
            for stride in script["STRIDES"]
        ]
        cells.append(" / ".join(f"{each.utilization * 100:.0f}" for each in found) + " %")
    assert f"| {bandwidth} GB/s | {' | '.join(cells)} |" in told
