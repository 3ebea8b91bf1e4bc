"""scripts/transposed_convolutions prints the figures that docs/experiments.md quotes."""

from __future__ import annotations

import runpy

from tests import ROOT


def test_the_quoted_figures() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "transposed_convolutions"))
    told = (ROOT / "docs" / "experiments.md").read_text()
    for rows in (script["beside_convolutions"], script["beside_estimates"]):
        for layer, cells in rows():
            assert f"| {layer.text.removesuffix('*2')} | {' | '.join(cells[:3])} |" in told
