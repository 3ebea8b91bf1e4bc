"""What a run tells of tensors that stay on chip, and what layers are given that read them there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from tpusim.machines.tpu.program.residence import Residence
from tpusim.result.records import Residency, Words

Values = TypeVar("Values")


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


def agreed(
    found: Residence, given: Mapping[str, Mapping[str, Values]], divisors: Collection[tuple[str, str]]
) -> dict[str, dict[str, Values]]:
    """By layer and tensor what is given: of an outcome that stays, all its readers find what one of them is given, who
    divides by it if any does, as that is nowhere zero.
    """
    agreed = {layer: dict(mine) for layer, mine in given.items()}
    for each in found.allocations:
        readers = [(found.layers[at].name, tensor) for at, tensor in each.readers]
        layer, tensor = next((one for one in readers if one in divisors), readers[0])
        for other, name in readers:
            agreed[other][name] = agreed[layer][tensor]
    return agreed
