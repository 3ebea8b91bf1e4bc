"""How much memory a run needs, estimated before it begins: what this computer does not have is refused at once."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from math import prod
from typing import NamedTuple

from tpusim.base.errors import InputError, Problem
from tpusim.base.memory import free_bytes
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import passes_of
from tpusim.network.ops import Op
from tpusim.network.workload import Workload

PASS_BYTES = 1100
"""A preload, a stream and what the event engine notes of them; `tests/flow/test_need.py` measures it."""

LARGEST_ARRAY = 1024
"""What is tried, by doubling, where a larger array is what would help."""

FLOAT_BYTES = 4


class Asked(NamedTuple):
    """A layer as it is asked for."""

    layer: Op
    batch: int
    hardware: Hardware
    lowering: str
    engine: str
    check: bool


def need_of(asked: Asked, free: int = sys.maxsize) -> int:
    """Bytes that simulating a layer takes at most, about: its Program, its time, its values.

    What is more than `free` for certain is not planned to be counted.
    """
    return _passes(asked, free) * PASS_BYTES + _values(asked)


def refuse_what_does_not_fit(workload: Workload, hardware: Hardware, lowering: str, engine: str, check: bool) -> None:
    """Look at every layer before the first is simulated.

    Raises:
        InputError: when one needs more memory than there is, names it and says what would fit; or when it cannot fit
            the vector memories (CapacityError).
    """
    free = free_bytes()
    first: dict[Hashable, Op] = {}
    for layer in workload.layers:
        first.setdefault(layer.shape_key, layer)
    for layer in first.values():
        asked = Asked(layer, workload.batch, hardware, lowering, engine, check)
        if (need := need_of(asked, free)) > free:
            problem = f"{_passes(asked, free):,} passes{' and the values to check' if check else ''}"
            problem += f" need about {_giga(need)} GB of memory, and {_giga(free)} GB are free; {_advice(asked, free)}"
            raise InputError(Problem(problem, f"layer {layer.name}"))


def _passes(asked: Asked, free: int) -> int:
    """Those of the lowering where it can tell, else as many as it takes to load every weight and to store the sums."""
    layer, batch, hardware = asked.layer, asked.batch, asked.hardware
    weights = -(-prod(layer.tensors(batch).filter) // hardware.pes)
    words = hardware.capacity_words * hardware.vector_memory.word_elements
    least = max(weights, -(-layer.macs(batch) // (hardware.pes * words)))
    return least if least * PASS_BYTES > free else max(least, passes_of(layer, batch, hardware, asked.lowering))


def _values(asked: Asked) -> int:
    """Operands and what is known of outputs are bytes, in the register engine numbers besides."""
    if not asked.check and asked.engine == "event":
        return 0
    layer, hardware = asked.layer, asked.hardware
    elements = layer.operands(asked.batch) + layer.outputs(asked.batch)
    memories = hardware.lanes * hardware.capacity_words * hardware.vector_memory.word_elements
    # Of the ifmap there may be a second one, with a margin.
    held = elements + prod(layer.tensors(asked.batch).ifmap) + FLOAT_BYTES * min(memories, elements)
    return held if asked.engine == "event" else held + 3 * FLOAT_BYTES * elements


def _advice(asked: Asked, free: int) -> str:
    """What would fit, as people write it."""
    fits = [text for text, other in _smaller(asked) if need_of(other, free) <= free][:1]
    if asked.check and need_of(asked._replace(check=False), free) <= free:
        fits.append("--no-check")
    fits = fits or [text for text, other in _on_larger(asked) if need_of(other, free) <= free][:1]
    return f"{' or '.join(fits)} would fit" if fits else "nothing like it would fit"


def _smaller(asked: Asked) -> Iterator[tuple[str, Asked]]:
    """With ever less input."""
    layer, batch = asked.layer, asked.batch
    while (less := layer.with_less_input(batch)) is not None:
        layer, batch, text = less
        yield text, asked._replace(layer=layer, batch=batch)


def _on_larger(asked: Asked) -> Iterator[tuple[str, Asked]]:
    """On ever larger arrays."""
    hardware = asked.hardware
    while (side := 2 * max(hardware.array.rows, hardware.array.cols)) <= LARGEST_ARRAY:
        array = hardware.array.model_copy(update={"rows": side, "cols": side})
        hardware = hardware.model_copy(update={"array": array})
        yield f"--set array.size={side}", asked._replace(hardware=hardware)


def _giga(size: int) -> str:
    return f"{size / 1e9:,.1f}"
