"""How much memory a run needs, estimated before it begins: what this computer does not have is refused at once."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tpusim.base.errors import CapacityError, InputError, Problem
from tpusim.base.memory import free_bytes
from tpusim.flow.choice import fitting
from tpusim.flow.lowerings import asked_of, at_its_place, tried
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import planned_of
from tpusim.machines.tpu.program.program import Planned
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload

PASS_BYTES, TRANSFER_BYTES = 1600, 2400
"""A preload and a stream, a fill or a spill, and what the event engine notes of them; tests/flow/test_need.py measures
them."""

PROCESS_BYTES = 60_000_000
"""What is left to Python and NumPy themselves, which a run that takes all the rest would lack."""

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
    numbers: Numbers = SMALL

    @property
    def kind(self) -> Hashable:
        """Equal for layers that share a Program."""
        return self.layer.shape_key, self.lowering


class Need(NamedTuple):
    """Bytes that a layer takes at most, about: its Program and its time, its values."""

    program: int
    values: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.program + self.values


@dataclass(frozen=True)
class Room:
    """What each shape of a workload needs, by `Asked.kind`, and the bytes that are free besides the neediest."""

    needs: Mapping[Hashable, Need]
    spare: int

    @property
    def kept(self) -> int:
        """Bytes for Programs that wait for the next layer of their shape."""
        return self.spare // 2

    @property
    def ahead(self) -> int:
        """Bytes for layers whose values are checked while the next is lowered; 0 where there are none to lower it."""
        left = self.spare // 2 - max(need.program for need in self.needs.values())
        return max(need.total for need in self.needs.values()) + left if left >= 0 else 0


def need_of(asked: Asked, free: int = sys.maxsize) -> Need:
    """What simulating a layer takes. What is more than `free` for certain is not planned to be counted.

    Where the fastest of several lowerings is looked for, a Program is held beside the one that is tried: what the
    event engine notes of a Program, about as much again, is gone by then.
    """
    plans = _plans(asked, free) * (2 if asked.hardware.mapping.search == "simulate" else 1)
    neediest, *others = sorted(map(_program_bytes, plans), reverse=True)
    return Need(neediest + sum(others[:1]) // 2, max(_values(asked, planned) for planned in plans))


def _program_bytes(planned: Planned) -> int:
    return planned.passes * PASS_BYTES + planned.transfers * TRANSFER_BYTES


def room_for(
    workload: Workload, hardware: Hardware, lowering: str, engine: str, check: bool, numbers: Numbers = SMALL
) -> Room:
    """Look at every layer before the first is simulated.

    Raises:
        InputError: when one needs more memory than there is, names the neediest and says what would fit all layers;
            when a lowering is unknown, says where; or when a layer cannot fit the vector memories (CapacityError).
    """
    free = free_bytes() - PROCESS_BYTES
    shapes: dict[Hashable, Asked] = {}
    for layer, name in asked_of(workload, lowering):
        asked = Asked(layer, workload.batch, hardware, name, engine, check, numbers)
        shapes.setdefault(asked.kind, asked)
    needs = {}
    for shape, asked in shapes.items():
        with at_its_place(workload, asked.layer):
            needs[shape] = need_of(asked, free)
    # The neediest first, which is what advice mostly fails by.
    neediest = sorted(shapes, key=lambda shape: -needs[shape].total)
    spare = free - needs[neediest[0]].total
    if spare < 0:
        raise _refusal([shapes[shape] for shape in neediest], free)
    return Room(needs, spare)


def _refusal(layers: Sequence[Asked], free: int) -> InputError:
    """The message about the first of `layers`, the neediest."""
    asked = layers[0]
    need = need_of(asked, free).total + PROCESS_BYTES
    passes = max(planned.passes for planned in _plans(asked, free))
    problem = f"{passes:,} passes{' and the values to check' if asked.check else ''}"
    problem += f" need about {_giga(need)} GB of memory, and {_giga(free + PROCESS_BYTES)} GB are free"
    return InputError(Problem(f"{problem}; {_advice(layers, free)}", f"layer {asked.layer.name}"))


def _plans(asked: Asked, free: int) -> list[Planned]:
    """How many steps each lowering takes that may be taken and fits."""
    names = tried(asked.lowering, asked.layer, asked.batch)
    return [*fitting(names, lambda name: _planned(asked._replace(lowering=name), free))]


def _planned(asked: Asked, free: int) -> Planned:
    """What the lowering tells where it can, else as many passes as load every weight and store the sums."""
    layer, batch, hardware = asked.layer, asked.batch, asked.hardware
    weights = -(-layer.weights(batch) // hardware.pes)
    words = hardware.capacity_words * hardware.vector_memory.word_elements
    least = Planned(max(weights, -(-layer.macs(batch) // (hardware.pes * words))), 0)
    if least.passes * PASS_BYTES > free:
        return least
    return planned_of(layer, batch, hardware, asked.lowering)


def _values(asked: Asked, planned: Planned) -> int:
    """What is known of outputs are bytes, so are small operands; in the register engine there are numbers besides. What
    is written to be read again is numbers, and what is known of them.
    """
    if not asked.check and asked.engine == "event":
        return 0
    layer, hardware = asked.layer, asked.hardware
    operands, outputs, each = (
        layer.operands(asked.batch),
        layer.outputs(asked.batch),
        asked.numbers.of(layer).operand_bytes,
    )
    elements = operands + outputs
    memories = hardware.lanes * hardware.capacity_words * hardware.vector_memory.word_elements
    # Of the ifmap there may be a second one, with a margin.
    held = (
        outputs + (operands + prod(layer.sources(asked.batch)["ifmap"])) * each + FLOAT_BYTES * min(memories, elements)
    )
    held += (1 + FLOAT_BYTES) * planned.intermediates
    # The register engine has every word that moves besides.
    moved = elements + 2 * planned.intermediates
    return held if asked.engine == "event" else held + 3 * FLOAT_BYTES * moved


def _advice(layers: Sequence[Asked], free: int) -> str:
    """What all layers would fit with, as people write it."""
    fits = [text for text, others in _smaller(layers) if _fit(others, free)][:1]
    if layers[0].check and _fit([each._replace(check=False) for each in layers], free):
        fits.append("--no-check")
    fits = fits or [text for text, others in _on_larger(layers) if _fit(others, free)][:1]
    return f"{' or '.join(fits)} would fit" if fits else "nothing like it would fit"


def _fit(layers: Sequence[Asked], free: int) -> bool:
    return all(_fits(asked, free) for asked in layers)


def _fits(asked: Asked, free: int) -> bool:
    try:
        return need_of(asked, free).total <= free
    except CapacityError:
        return False


def _smaller(layers: Sequence[Asked]) -> Iterator[tuple[str, Sequence[Asked]]]:
    """The first with ever less input, and the others with the batch that it has then."""
    first, *others = layers
    layer, batch = first.layer, first.batch
    while (less := layer.with_less_input(batch)) is not None:
        layer, batch, text = less
        yield text, [first._replace(layer=layer, batch=batch), *(each._replace(batch=batch) for each in others)]


def _on_larger(layers: Sequence[Asked]) -> Iterator[tuple[str, Sequence[Asked]]]:
    """On ever larger arrays."""
    hardware = layers[0].hardware
    while (side := 2 * max(hardware.array.rows, hardware.array.cols)) <= LARGEST_ARRAY:
        array = hardware.array.model_copy(update={"rows": side, "cols": side})
        hardware = hardware.model_copy(update={"array": array})
        yield f"--set array.size={side}", [each._replace(hardware=hardware) for each in layers]


def _giga(size: int) -> str:
    return f"{size / 1e9:,.1f}"
