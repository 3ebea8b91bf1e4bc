"""A run as a whole, and the lowerings of its layers, in words."""

from __future__ import annotations

from collections.abc import Iterable

from tpusim.base.words import counted
from tpusim.result.chips import shared_by
from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.figures import Figure


def size_of(result: Result) -> str:
    """Say how large a run is: its batch, the sizes that its workload names, and that it is a share."""
    batch = f"batch {result.batch}{' a chip' if result.step else ''}"
    sizes = [f"{name} {size}" for name, size in result.sizes.items()]
    chips = result.step.chips if result.step else result.chips
    return ", ".join([batch, *sizes, *filter(None, [shared_by(chips)])])


def numbers_asked(result: Result) -> str:
    """Name the type of its numbers; empty where they are small whole ones, the default."""
    return "" if result.dtype == Result.dtype else result.dtype


def with_extent(text: str, result: Result) -> str:
    """Return `text` about a run, followed by the number of layers done where that is not all."""
    done = len(result.layers)
    return f"{text} (incomplete, {done} of {done + result.layers_left} layers)" if result.layers_left else text


_IN_PLACE = frozenset({
    "Cast", "CastLike", "Concat", "Constant", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Shape", "Size",
    "Slice", "Split", "Squeeze", "Unsqueeze",
})  # fmt: skip
"""Ops of ONNX whose results are read where their operands lie, in any type of reals."""


def left_out(not_timed: Iterable[tuple[str, int]], not_known: Iterable[tuple[str, int]]) -> str:
    """Say which ops of the network take no time in its figures, by name and count; empty where all do."""
    ops, known = dict(not_timed), dict(not_known)
    timed = {op: count for op, count in ops.items() if op not in _IN_PLACE}
    moved = {op: count for op, count in ops.items() if op in _IN_PLACE}
    said = f"{counted(sum(timed.values()), 'op')} of the network not timed: {_listed(timed)}." if timed else ""
    if moved:
        free = "no time, as layers read their results where the operands lie"
        said += f"{' ' * bool(said)}{counted(sum(moved.values()), 'op')} of {free}: {_listed(moved)}."
    if known:
        more = "whose work is missing, even if they are convolutions or products"
        said += f"{' ' * bool(said)}{counted(sum(known.values()), 'op')} not known, {more}: {_listed(known)}."
    return said


def by_reference(result: Result) -> str:
    """Name the ops whose values the reference worked out, where values went from layer to layer; else empty."""
    ops = dict(result.reference_only)
    if not ops:
        return ""
    # Where biases may ride on layers, another line names the layers without them.
    biases = "" if result.hardware.get("sequencer", {}).get("fusion") == "results" else ", and biases"
    what = f"values of {counted(sum(ops.values()), 'op')}{biases}"
    return f"The reference alone computes {what}: {_listed(ops)}."


def _listed(ops: dict[str, int]) -> str:
    """List ops by name and count, the most frequent first."""
    return ", ".join(f"{op} {count:,}" for op, count in sorted(ops.items(), key=lambda each: -each[1]))


# ---- the lowerings of layers: their column, and when it is shown

COLUMN = "lowered_by"
"""The column in flat files, where `lowering` is the one that a run or a point asked for."""

LOWERING = Figure("lowering", "lowered by", str, head="lowered\nby", meaning="the lowering that made it passes")


def worth_telling(layers: Iterable[LayerResult], asked: str | None = None) -> bool:
    """Return whether the layers differ in their lowering, or have another than `asked` for, as by "auto"."""
    names = {layer.lowering for layer in layers}
    return len(names) > 1 or asked not in (None, *names)


def in_heading(result: Result) -> str:
    """Return the lowering for a heading: the one asked for, unless no layer took it."""
    if any(layer.lowering == result.lowering for layer in result.layers):
        return f"{result.lowering} lowering"
    return f"each layer by a lowering of its own (asked: {result.lowering})"


def lowered_by(result: Result) -> str:
    """Say how many layers took which lowering, and their share of the cycles; empty where one took all."""
    if not worth_telling(result.layers, result.lowering):
        return ""
    names = dict.fromkeys(layer.lowering for layer in result.layers)
    if len(names) == 1:
        return f"Lowered by {result.layers[0].lowering}: all layers."
    taken = {name: [layer.cycles for layer in result.layers if layer.lowering == name] for name in names}
    shares = (
        f"{name} {len(cycles):,} layer{'s' * (len(cycles) != 1)}, {100 * sum(cycles) / result.total.cycles:.1f} %"
        for name, cycles in taken.items()
    )
    return f"Lowered by {'; '.join(shares)} of the cycles."
