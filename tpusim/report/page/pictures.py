"""The pictures that the page of a run shows as they are: of its network, and of what stays on chip."""

from __future__ import annotations

from base64 import b64encode

from tpusim.report.plots.figure import Picture
from tpusim.report.plots.run import memory_of, network_of
from tpusim.result.records import Result


def pictures(result: Result) -> dict[str, dict[str, str] | None]:
    """Each picture's source, which a page holds itself, and what it shows; None where there is nothing to see: nobody
    knows what layers read, nothing stays on chip.
    """
    return {"network": _held(network_of(result)), "held": _held(memory_of(result))}


def _held(picture: Picture | None) -> dict[str, str] | None:
    if picture is None:
        return None
    svg = b64encode(picture.contents("svg")).decode()
    return {"source": f"data:image/svg+xml;base64,{svg}", "caption": picture.caption}
