"""What only one machine family tells of a layer: its figures and words, by their names in `LayerResult.own`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tpusim.result.records import LayerResult
from tpusim.result.vocabulary.figures import BYTES, PLAIN, Figure

OWN: Mapping[str, Figure] = {figure.key: figure for figure in (
    Figure("tile", "tile", str, head="tile", meaning="outputs x channels of a block"),
    Figure("split_k", "parts of a sum", head="split", meaning="blocks that share the sum of an output"),
    Figure("resident", "blocks an SM", head="per SM", meaning="blocks that share an SM"),
    Figure("blocks", "blocks", head="blocks", meaning="of threads, each with a tile of outputs"),
    Figure("waves", "waves", head="waves", meaning="blocks over those that all SMs hold at once, rounded up"),
    Figure("a_bytes", "A", float, 0, BYTES, "", "A", "bytes of the ifmap, or of the lowered matrix, that blocks fetch"),
    Figure("b_bytes", "B", float, 0, BYTES, "", "B", "bytes of filters that blocks fetch"),
    Figure("scratch_read_bytes", "scratch memory read", float, 0, BYTES, "", "scr read",
           "bytes from the scratch memory"),
    Figure("scratch_write_bytes", "scratch memory written", float, 0, BYTES, "", "scr write",
           "bytes to the scratch memory"),
    Figure("l2_bytes", "L2", float, 0, BYTES, "", "L2", "bytes from L2, in whole sectors"),
)}  # fmt: skip
"""Those whose names do not say enough."""


def own_keys(layers: Iterable[LayerResult]) -> list[str]:
    """Every name that some layer has, in their order."""
    return list(dict.fromkeys(key for layer in layers for key in layer.own))


def own_figure(key: str) -> Figure:
    """How it is called and counted; one that is not known here goes by its name, and bytes by theirs."""
    words = key.removesuffix("_bytes").replace("_", " ")
    units = BYTES if key.endswith("_bytes") else PLAIN
    return OWN.get(key) or Figure(key, words, float if units == BYTES else int, 0, units, "", words)
