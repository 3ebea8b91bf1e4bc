"""The network's picture as the page of a run shows it."""

from __future__ import annotations

from base64 import b64encode

from tpusim.report.plots.run import network_of
from tpusim.result.records import Result


def network_picture(result: Result) -> dict[str, str] | None:
    """Its source, which a page holds itself, and what it shows; None where nobody knows what layers read."""
    if (picture := network_of(result)) is None:
        return None
    svg = b64encode(picture.contents("svg")).decode()
    return {"source": f"data:image/svg+xml;base64,{svg}", "caption": picture.caption}
