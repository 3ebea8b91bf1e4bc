"""What tests of sweeps share."""

from __future__ import annotations

import pytest

from tpusim.report.plots.figure import Picture


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_nothing(monkeypatch)


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Files of pictures hold their captions: drawing takes longer than a small sweep, and is held in tests/report."""
    patch.setattr(Picture, "contents", lambda picture, kind: f"{kind}: {picture.caption}".encode())
