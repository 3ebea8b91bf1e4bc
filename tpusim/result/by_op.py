"""Where the time of a run goes by the kind of op: convolutions, products, pooling, activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpusim.result.records import LayerResult


@dataclass(frozen=True)
class OpUse:
    """The layers of one op together; `share` is of the cycles of all layers."""

    layers: int
    cycles: int
    time_us: float
    share: float


def by_op(layers: Sequence[LayerResult]) -> dict[str, OpUse]:
    """By op, the costliest first."""
    run = sum(layer.cycles for layer in layers)
    found: dict[str, list[LayerResult]] = {}
    for layer in layers:
        found.setdefault(layer.op, []).append(layer)
    uses = {op: _together(each, run) for op, each in found.items()}
    return dict(sorted(uses.items(), key=lambda each: -each[1].cycles))


def _together(layers: Sequence[LayerResult], run: int) -> OpUse:
    cycles = sum(layer.cycles for layer in layers)
    return OpUse(len(layers), cycles, sum(layer.time_us for layer in layers), cycles / run)
