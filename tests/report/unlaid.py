"""Pictures of which only words and marks are looked at: to lay one out takes longer than to draw it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from tpusim.report.plots.figure import Picture, styled


@contextmanager
def anywhere() -> Iterator[None]:
    """Within it plots and words stand wherever they began."""
    with styled(), patch.object(ConstrainedLayoutEngine, "execute"):
        yield


def figure(picture: Picture) -> Figure:
    with anywhere():
        return picture.draw()


def svg(picture: Picture) -> str:
    with anywhere():
        return picture.contents("svg").decode()
