"""scripts/dram_layouts and scripts/dram_networks print the figures that docs/validation.md quotes."""

from __future__ import annotations

import runpy

from tests import ROOT

TOLD = (ROOT / "docs" / "validation.md").read_text()


def test_the_quoted_layouts() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "dram_layouts"))
    for stride in script["STRIDES"]:
        cells = (str(script["figures"](14, stride, layout, "per_tap")) for layout in script["LAYOUTS"])
        assert f"| 14 | {stride} | per_tap | {' | '.join(cells)} |" in TOLD


def test_a_quoted_network() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "dram_networks"))
    for pipe, banks in script["MACHINES"]:
        assert f"| zfnet | {' | '.join(script['row']('zfnet', pipe, banks))} |" in TOLD
