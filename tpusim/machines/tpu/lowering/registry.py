"""Every lowering by its name: what `--lowering` chooses between. A new one is a module and a line here."""

from __future__ import annotations

from tpusim.base.errors import CapacityError, InputError, Problem, did_you_mean
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import channel_first
from tpusim.machines.tpu.program.explanation import Lowered, Lowering
from tpusim.network.ops import Op

LOWERINGS: dict[str, Lowering] = {"channel_first": channel_first.lower}


def lowered(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Lowered:
    """Lower one layer by the lowering of that name.

    Raises:
        InputError: when there is no such lowering.
        CapacityError: when nothing fits the vector memories; names the layer.
    """
    if lowering not in LOWERINGS:
        hint = did_you_mean(lowering, LOWERINGS)
        raise InputError(f"unknown lowering {lowering!r}{hint}; there is {', '.join(LOWERINGS)}")
    try:
        return LOWERINGS[lowering](layer, batch, hardware)
    except CapacityError as error:
        problems = (Problem(each.message, f"layer {layer.name}") for each in error.problems)
        raise CapacityError(problems) from None
