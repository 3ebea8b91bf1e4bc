"""The TPU as a machine family: the names that it gives to what it does. Help pages import it: nothing heavy with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import UnsuitableError
from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE, TIME
from tpusim.machines.family import Checking, ChipArea, Family, Fusing, LaneMemories, Need
from tpusim.machines.tpu.lowering.registry import LOWERINGS, least_of, meant, planned_of, unasked

if TYPE_CHECKING:
    from tpusim.input.document import Document
    from tpusim.input.form import Overrides
    from tpusim.machines.tpu.description import Hardware
    from tpusim.machines.tpu.lowering.drafts import Lowering
    from tpusim.machines.tpu.runs.chains import ProgramChain
    from tpusim.machines.tpu.runs.prepared import Prepared
    from tpusim.network.ops.op import Op
    from tpusim.network.workload import Workload


PASS_BYTES, TRANSFER_BYTES = 1600, 2400
"""A preload and a stream, a fill or a spill, and what the event engine notes of them; tests/flow/test_need.py measures
them."""

LARGEST_ARRAY = 1024
"""What is tried, by doubling, where a larger array is what would help."""

_FLOAT_BYTES = 4


class Tpu(Family):
    """Systolic arrays beside vector memories: `machines.family.Family`."""

    name = "tpu"
    title = "a TPU"
    engines = "event", "register", "both"
    unbounded = frozenset({"winograd_2", "winograd_4", "fft"})
    array_order = True

    @property
    def lowerings(self) -> Collection[str]:
        """Names of the registry, which tests add to; they cost no import."""
        return LOWERINGS

    @property
    def partial(self) -> frozenset[str]:
        """Names of lowerings that refuse some layers."""
        return frozenset(name for name, each in LOWERINGS.items() if each.partial)

    def glosses(self) -> Mapping[str, str]:
        """The gloss of each lowering, for which its module is imported."""
        return {name: each.gloss for name, each in LOWERINGS.items()}

    def paths(self) -> tuple[str, ...]:
        """Every field of its description, and "array.size"."""
        from tpusim.machines.tpu.description import FORM

        return FORM.paths

    def model(self) -> type[Hardware]:
        """Its description."""
        from tpusim.machines.tpu.description import Hardware

        return Hardware

    def read(self, document: Document, overrides: Overrides) -> Hardware:
        """The machine that a file describes. Raises InputError."""
        from tpusim.machines.tpu.description import read_hardware

        return read_hardware(document, overrides)

    def meant(self, layer: Op, lowering: str) -> str:
        """Ops of a unit that has one way to do them are lowered in that way."""
        return meant(layer, lowering)

    def unasked(self, layer: Op, batch: int, machine: Hardware) -> str:
        """The first lowering; for layers of several groups the one that their estimate prefers."""
        return unasked(layer, batch, machine)

    def lanes(self, machine: Hardware) -> LaneMemories:
        """Each row or column of the arrays has a lane."""
        return LaneMemories(machine.lanes, machine.capacity_words, machine.word_bytes)

    def area(self, machine: Hardware) -> ChipArea:
        """Part by part."""
        from tpusim.machines.tpu.cost import area_of

        return area_of(machine)

    def facts(self, machine: Hardware) -> Mapping[str, str]:
        """What tells one TPU from another; nothing for banks where it has none."""
        memory = machine.vector_memory
        return {
            "array": f"{machine.array.rows} x {machine.array.cols}",
            "clock": FREQUENCY.format(machine.clock_hz),
            "vector memory": f"{machine.lanes} x {SIZE.format(memory.capacity_bytes)}",
            "banks": f"{machine.banks} x {SIZE.format(memory.bank_capacity_bytes)}" if machine.banked else "",
            "word": f"{memory.word_elements} x {memory.element_bytes} B",
            "HBM": BANDWIDTH.format(machine.hbm.bandwidth_bytes_per_s),
        }

    def blocks(self, machine: Hardware) -> Mapping[str, Sequence[str]]:
        """Its memories, buses, array and vector unit; "word" is what ports and registers beside them move."""
        array, memory, hbm, scratch = machine.array, machine.vector_memory, machine.hbm, machine.scratch_memory
        word = f"{memory.word_elements} x {memory.element_bytes} B"
        banks = [f"{machine.banks} banks x {SIZE.format(memory.bank_capacity_bytes)}"] if machine.banks else []
        arrays = f"{array.count} x " if array.count > 1 else ""
        return {
            "hbm": [
                BANDWIDTH.format(hbm.bandwidth_bytes_per_s),
                f"latency {TIME.format(hbm.latency_ps)}",
                f"bursts of {SIZE.format(hbm.burst_bytes)}",
            ],
            "dma": [
                "one queue, in order",
                *([f"scratch memory of {SIZE.format(scratch.capacity_bytes)}"] if scratch else []),
            ],
            "memory": [f"{machine.lanes} x {SIZE.format(memory.capacity_bytes)}", *banks],
            "preload": [f"{machine.preload_cycles} cycles a preload", f"{array.weight_buffers} weights a PE"],
            "serializer": [f"{machine.lanes} x one word", f"of {word}"],
            "array": [f"{arrays}{array.rows} x {array.cols} PEs", f"at {FREQUENCY.format(machine.clock_hz)}"],
            "deserializer": [f"{machine.lanes} x one word", f"of {word}"],
            "vector_unit": [f"{machine.vector_unit.alus} ALUs", "adds partial sums"],
            "word": [word],
        }

    def constants(self, machine: Hardware) -> Mapping[str, Any]:
        """A shipped technology goes by its name, and its constants may change."""
        return {"technology": machine.silicon.to_dict()}

    def left_out(self) -> Mapping[str, Any]:
        """By section and key."""
        from tpusim.machines.tpu.description import optional_fields

        return optional_fields()

    def tried(self, layer: Op, batch: int) -> tuple[str, ...]:
        """All but those that leave the layer to another."""

        def leaves(lowering: Lowering) -> bool:
            # The other one takes convolutions alone.
            try:
                return lowering.leaves(layer, batch)
            except UnsuitableError:
                return False

        return tuple(name for name, each in LOWERINGS.items() if not leaves(each))

    def least(self, layer: Op, batch: int, machine: Hardware, lowering: str) -> float:
        """What its lowering tells."""
        return least_of(layer, batch, machine, lowering)

    def planned(self, layer: Op, batch: int, machine: Hardware, lowering: str, how: Checking, most: int) -> Need:
        """By the steps that the lowering tells where it can, else by as many passes as load every weight and store the
        sums.

        Where simulation looks for the fastest of several, a Program is held beside the one that is tried.
        """
        weights = -(-layer.weights(batch) // machine.pes)
        words = machine.capacity_words * machine.vector_memory.word_elements
        least = max(weights, -(-layer.macs(batch) // (machine.pes * words)))
        passes, transfers, intermediates, ways = least, 0, 0, 1
        if least * PASS_BYTES <= most:
            (passes, transfers, intermediates), ways = planned_of(layer, batch, machine, lowering)
        values = _value_bytes(layer, batch, machine, how, intermediates)
        return Need(passes * PASS_BYTES + transfers * TRANSFER_BYTES, values, passes, min(ways, 2))

    def larger(self, machine: Hardware) -> Iterator[tuple[str, Hardware]]:
        """Ever larger arrays."""
        while (side := 2 * max(machine.array.rows, machine.array.cols)) <= LARGEST_ARRAY:
            array = machine.array.model_copy(update={"rows": side, "cols": side})
            machine = machine.model_copy(update={"array": array})
            yield f"array.size={side}", machine

    def fusing(self, machine: Hardware) -> Fusing | None:
        """What may ride: as many operations as a lane has ALUs, if the machine fuses."""
        if machine.sequencer.fusion == "none":
            return None
        from tpusim.machines.tpu.program.steps import Finish

        return Fusing(
            most=machine.vector_unit.alus // (machine.lanes * machine.array.count),
            carries=lambda lowering: LOWERINGS[lowering].carries,
            operations=lambda operation, coefficients: sum(Finish(operation, coefficients).operations),
        )

    def lowered(self, layer: Op, batch: int, machine: Hardware, lowering: str) -> Prepared:
        """The Program of the fastest draft."""
        from tpusim.machines.tpu.runs.prepared import prepared

        return prepared(layer, batch, machine, lowering)

    def overlaps(self, machine: Hardware) -> bool:
        """Whether layers overlap, by the machine's sequencer."""
        return machine.sequencer.between_layers != "drain"

    def chains(
        self, members: Iterable[tuple[Op, Prepared]], workload: Workload, machine: Hardware, kept: int
    ) -> Iterator[ProgramChain]:
        """Layers joined to Programs; what the event engine notes of one is about as much again."""
        from tpusim.machines.tpu.runs.chains import chains_of

        return chains_of(members, workload, machine, kept // (2 * TRANSFER_BYTES))


def _value_bytes(layer: Op, batch: int, hardware: Hardware, how: Checking, intermediates: int) -> int:
    """Bytes of values that are held part by part as they are written, or as the register engine has them.

    What is known of outputs are bytes, so are small operands; in the register engine there are numbers besides. What
    is written to be read again, `intermediates` in number, is numbers, and what is known of them.
    """
    if not how.check and how.engine == "event":
        return 0
    operands, outputs, each = layer.operands(batch), layer.outputs(batch), how.operand_bytes
    elements = operands + outputs
    memories = hardware.lanes * hardware.capacity_words * hardware.vector_memory.word_elements
    # Of the ifmap there may be a second one, with a margin.
    held = outputs + (operands + prod(layer.sources(batch)["ifmap"])) * each + _FLOAT_BYTES * min(memories, elements)
    held += (1 + _FLOAT_BYTES) * intermediates
    # The register engine has every word that moves besides.
    moved = elements + 2 * intermediates
    return held if how.engine == "event" else held + 3 * _FLOAT_BYTES * moved


FAMILY = Tpu()
