"""What a run tells of tensors that stay on chip, and what layers are given that read them there."""

from __future__ import annotations

from collections.abc import Sequence

from tpusim.machines.tpu.schedule.residence import Reader, Residence
from tpusim.network.ops.elementwise import Div, Rdiv
from tpusim.network.ops.fused import OTHER
from tpusim.network.ops.op import Op
from tpusim.result.records import Residency, Words


def residency_of(found: Residence, layer: int) -> Residency | None:
    """Where a layer of a chain has its words, and its outcome, if that stays; None where nothing is to stay."""
    if not found.own:
        return None
    own, outcome = found.own[layer], found.outcome(layer)
    buffers = found.layers[layer].program.buffers
    mine = Words(*own, max((each.lanes for each in buffers), default=0))
    if outcome is None:
        return Residency(mine)
    readers = tuple(dict.fromkeys(found.layers[at].name for at, _ in outcome.readers))
    return Residency(mine, Words(outcome.base, outcome.words, outcome.lanes), readers, outcome.spilled)


def given_to(found: Residence, layers: Sequence[Op]) -> dict[Reader, Reader]:
    """By each that reads an outcome on chip, the reader whose random numbers all find there: one that wants them above
    zero, else one that divides by them, as these are nowhere zero, else one that rounds, as these are small, else the
    first.
    """
    return {
        reader: min(each.readers, key=lambda one: _needs(layers[one[0]], one[1]))
        for each in found.allocations
        for reader in each.readers
    }


def _needs(layer: Op, tensor: str) -> int:
    """How particular a layer is about its numbers, the least first."""
    if layer.positive:
        return 0
    divides = (isinstance(layer, Div) and tensor == OTHER) or (isinstance(layer, Rdiv) and tensor != OTHER)
    return 1 if divides else 3 if layer.exact else 2
