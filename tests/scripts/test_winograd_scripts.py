"""scripts/winograd_error prints the figures that docs/decisions.md quotes."""

from __future__ import annotations

import runpy

from tests import ROOT


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
