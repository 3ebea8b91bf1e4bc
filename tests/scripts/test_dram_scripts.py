"""scripts/dram_layouts and scripts/dram_networks print the figures that docs/experiments.md quotes."""

from __future__ import annotations

import runpy

import pytest

from tests import ROOT

TOLD = (ROOT / "docs" / "experiments.md").read_text()


@pytest.mark.parametrize("stride", [*(pytest.param(each, marks=pytest.mark.long) for each in (1, 2)), 4])
def test_the_quoted_layouts(stride: int) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "dram_layouts"))
    assert stride in script["STRIDES"]
    cells = (str(script["figures"](14, stride, layout, "per_tap")) for layout in script["LAYOUTS"])
    assert f"| 14 | {stride} | per_tap | {' | '.join(cells)} |" in TOLD


@pytest.mark.long
@pytest.mark.parametrize("at", [0, -1])
def test_a_quoted_network(at: int) -> None:
    """On the first machine, and on the last."""
    script = runpy.run_path(str(ROOT / "scripts" / "dram_networks"))
    pipe, banks = script["MACHINES"][at]
    assert len(script["MACHINES"]) == 2
    assert f"| zfnet | {' | '.join(script['row']('zfnet', pipe, banks))} |" in TOLD
