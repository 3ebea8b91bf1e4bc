"""scripts/hbm_layouts prints the figures that docs/experiments.md quotes."""

from __future__ import annotations

import runpy

import pytest

from tests import ROOT


@pytest.mark.parametrize("some", [slice(1), pytest.param(slice(None), marks=pytest.mark.long)], ids=["one", "all"])
def test_the_quoted_figures(some: slice) -> None:
    """The rows of all layers, or the first of one; the other way to fetch is in test_fetch_policies.py, too."""
    script = runpy.run_path(str(ROOT / "scripts" / "hbm_layouts"))
    told = (ROOT / "docs" / "experiments.md").read_text()
    for layer in [*script["QUOTED"]][some]:
        for fetch in script["FETCHES"][some]:
            cells = []
            for layout in script["LAYOUTS"]:
                found = [script["figures"](layer, stride, layout, fetch) for stride in script["STRIDES"]]
                cells.append(" / ".join(f"{each.touched:.2f}" for each in found))
            assert f"| {', '.join(map(str, layer))} | {fetch} | {' | '.join(cells)} |" in told
