"""How much of this computer's memory a layer of a TPU takes, estimated before it is lowered."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tpusim.machines.family import Checking, Planned
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import planned_of
from tpusim.network.ops.op import Op

PASS_BYTES, TRANSFER_BYTES = 1600, 2400
"""A preload and a stream, a fill or a spill, and what the event engine notes of them; tests/flow/test_need.py measures
them."""

LARGEST_ARRAY = 1024
"""What is tried, by doubling, where a larger array is what would help."""

_FLOAT_BYTES = 4


def planned(layer: Op, batch: int, hardware: Hardware, lowering: str, most: int) -> Planned:
    """What the lowering tells where it can, else as many passes as load every weight and store the sums.

    Where simulation looks for the fastest block, a Program is held beside the one that is tried: what the event engine
    notes of a Program, about as much again, is gone by then.
    """
    at_once = 2 if hardware.mapping.search == "simulate" else 1
    weights = -(-layer.weights(batch) // hardware.pes)
    words = hardware.capacity_words * hardware.vector_memory.word_elements
    least = max(weights, -(-layer.macs(batch) // (hardware.pes * words)))
    if least * PASS_BYTES > most:
        return Planned(least * PASS_BYTES, least, 0, at_once)
    passes, transfers, intermediates = planned_of(layer, batch, hardware, lowering)
    return Planned(passes * PASS_BYTES + transfers * TRANSFER_BYTES, passes, intermediates, at_once)


def value_bytes(layer: Op, batch: int, hardware: Hardware, planned: Planned, how: Checking) -> int:
    """What is known of outputs are bytes, so are small operands; in the register engine there are numbers besides. What
    is written to be read again is numbers, and what is known of them.
    """
    if not how.check and how.engine == "event":
        return 0
    operands, outputs, each = layer.operands(batch), layer.outputs(batch), how.operand_bytes
    elements = operands + outputs
    memories = hardware.lanes * hardware.capacity_words * hardware.vector_memory.word_elements
    # Of the ifmap there may be a second one, with a margin.
    held = outputs + (operands + prod(layer.sources(batch)["ifmap"])) * each + _FLOAT_BYTES * min(memories, elements)
    held += (1 + _FLOAT_BYTES) * planned.intermediates
    # The register engine has every word that moves besides.
    moved = elements + 2 * planned.intermediates
    return held if how.engine == "event" else held + 3 * _FLOAT_BYTES * moved


def larger(hardware: Hardware) -> Iterator[tuple[str, Hardware]]:
    """Ever larger arrays, by the option that asks for them."""
    while (side := 2 * max(hardware.array.rows, hardware.array.cols)) <= LARGEST_ARRAY:
        array = hardware.array.model_copy(update={"rows": side, "cols": side})
        hardware = hardware.model_copy(update={"array": array})
        yield f"--set array.size={side}", hardware
