"""By which lowering each layer of a run became passes: its column, and when that is worth one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.figures import Figure

COLUMN = "lowered_by"
"""In flat files, where `lowering` is what a run or a point was asked for."""

LOWERING = Figure("lowering", "lowered by", str, head="lowered\nby", meaning="the lowering that made it passes")


def worth_telling(layers: Iterable[LayerResult], asked: str | None = None) -> bool:
    """Whether the layers differ in it, or were lowered by another than they were `asked` for, as by "auto"."""
    names = {layer.lowering for layer in layers}
    return len(names) > 1 or asked not in (None, *names)


def in_heading(result: Result) -> str:
    """What made its layers passes: what it was asked for, unless no layer took that."""
    if any(layer.lowering == result.lowering for layer in result.layers):
        return f"{result.lowering} lowering"
    return f"each layer by a lowering of its own (asked: {result.lowering})"


def lowered_by(result: Result) -> str:
    """How many layers took which, and their share of the cycles; empty where that is not worth telling."""
    if not worth_telling(result.layers, result.lowering):
        return ""
    groups = _groups(result.layers)
    if len(groups) == 1:
        return f"Lowered by {result.layers[0].lowering}: all layers."
    shares = (
        f"{name} {len(cycles):,} layer{'s' * (len(cycles) != 1)}, {100 * sum(cycles) / result.total.cycles:.1f} %"
        for name, cycles in groups
    )
    return f"Lowered by {'; '.join(shares)} of the cycles."


def _groups(layers: Sequence[LayerResult]) -> list[tuple[str, list[int]]]:
    names = dict.fromkeys(layer.lowering for layer in layers)
    return [(name, [layer.cycles for layer in layers if layer.lowering == name]) for name in names]
