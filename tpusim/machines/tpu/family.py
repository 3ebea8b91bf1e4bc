"""The TPU as a machine family: its names and its answers. Help pages import it, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import UnsuitableError
from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE, TIME
from tpusim.machines.family import PEAK, CheckPlan, ChipArea, Family, FusionLimits, LaneMemories, Need, peak_fact
from tpusim.machines.tpu.lowering.registry import LOWERINGS, least_of, meant, planned_of, usual_for
from tpusim.memory.tile import Tile

if TYPE_CHECKING:
    from tpusim.input.document import Document
    from tpusim.input.form import Overrides
    from tpusim.machines.exchanged import Exchanges
    from tpusim.machines.tpu.description import Hardware
    from tpusim.machines.tpu.lowering.drafts import Lowering
    from tpusim.machines.tpu.runs.chains import ProgramChain
    from tpusim.machines.tpu.runs.prepared import PreparedLayer
    from tpusim.machines.tpu.slices.slice import ChipSlice
    from tpusim.network.ops.op import Op
    from tpusim.network.workload import Workload


PASS_BYTES, TRANSFER_BYTES = 1500, 2000
"""Bytes of memory for a pass, and for a transfer, with their records in the event engine's log; measured by
tests/flow/test_need.py.
"""

LARGEST_ARRAY = 1024
"""Largest side that is tried, by doubling, when a larger array would help."""

_FLOAT_BYTES = 4


class Tpu(Family):
    """Systolic arrays beside vector memories: `machines.family.Family`."""

    name = "tpu"
    title = "a TPU"
    engines = "event", "simpy", "register", "both"
    unbounded = frozenset({"winograd_2", "winograd_4", "fft"})
    array_order = True

    @property
    def lowerings(self) -> Collection[str]:
        """Names of the registered lowerings, which tests add to; asking for them imports none."""
        return LOWERINGS

    @property
    def partial(self) -> frozenset[str]:
        """Names of the lowerings that refuse some layers."""
        return frozenset(name for name, each in LOWERINGS.items() if each.partial)

    def glosses(self) -> Mapping[str, str]:
        """Description of each lowering, in a line; asking for them imports the modules."""
        return {name: each.gloss for name, each in LOWERINGS.items()}

    def paths(self) -> tuple[str, ...]:
        """Every field of a machine file, and "array.size"."""
        from tpusim.machines.tpu.description import FORM

        return FORM.paths

    def model(self) -> type[Hardware]:
        """The class that describes a machine."""
        from tpusim.machines.tpu.description import Hardware

        return Hardware

    def read(self, document: Document, overrides: Overrides) -> Hardware:
        """The machine that a file describes. Raises InputError."""
        from tpusim.machines.tpu.description import read_hardware

        return read_hardware(document, overrides)

    def meant(self, layer: Op, lowering: str) -> str:
        """The lowering that is meant for a layer: ops that only one lowering can do always take that one."""
        return meant(layer, lowering)

    def usual_for(self, layer: Op, batch: int, machine: Hardware) -> str:
        """The lowering of a layer when none is asked for: the first, or, for several groups, the one with the best
        estimate.
        """
        return usual_for(layer, batch, machine)

    def generation(self, machine: Hardware) -> str | None:
        """Return what the machine's file says."""
        return machine.generation

    def chip_cores(self, machine: Hardware) -> int:
        """Return what the machine's file says."""
        return machine.chip_cores

    def capacity(self, machine: Hardware) -> int | None:
        """Return what the machine's file says."""
        return machine.hbm.capacity_bytes

    def tile(self, machine: Hardware) -> Tile:
        """Return what the machine's file says; a tile is as wide as `channel_multiple`."""
        hbm = machine.hbm
        return Tile(hbm.tile_rows, hbm.channel_multiple, hbm.smallest_tile_bytes)

    def lanes(self, machine: Hardware) -> LaneMemories:
        """Vector memories: one lane for each row or column of the arrays."""
        return LaneMemories(machine.lanes, machine.capacity_words, machine.word_bytes)

    def area(self, machine: Hardware) -> ChipArea:
        """Area of the machine, part by part."""
        from tpusim.machines.tpu.cost import area_of

        return area_of(machine)

    def facts(self, machine: Hardware) -> Mapping[str, str]:
        """Facts that tell one TPU from another; banks are empty where there are none."""
        memory = machine.vector_memory
        return {
            "arrays": f"{machine.array.count} x {machine.array.rows} x {machine.array.cols}",
            "clock": FREQUENCY.format(machine.clock_hz),
            PEAK: peak_fact(machine),
            "vector memory": f"{machine.lanes} x {SIZE.format(memory.capacity_bytes)}",
            "banks": f"{machine.banks} x {SIZE.format(memory.bank_capacity_bytes)}" if machine.banked else "",
            "word": f"{memory.word_elements} x {memory.element_bytes} B",
            "HBM": SIZE.format(machine.hbm.capacity_bytes) if machine.hbm.capacity_bytes else "",
            "bandwidth": BANDWIDTH.format(machine.hbm.bandwidth_bytes_per_s),
        }

    def blocks(self, machine: Hardware) -> Mapping[str, Sequence[str]]:
        """Captions for the machine's diagram; "word" is the unit that ports and their registers move."""
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
        """Constants of the technology in full: a shipped file is named only, and its content may change."""
        return {"technology": machine.silicon.to_dict()}

    def left_out(self) -> Mapping[str, Any]:
        """Defaults of the fields that a file may leave out, by section and key."""
        from tpusim.machines.tpu.description import optional_fields

        return optional_fields()

    def tried(self, layer: Op, batch: int) -> tuple[str, ...]:
        """Lowerings to try for a layer: all that do not leave it to another lowering."""

        def leaves(lowering: Lowering) -> bool:
            # The lowering that it would be left to takes convolutions alone.
            try:
                return lowering.leaves(layer, batch)
            except UnsuitableError:
                return False

        return tuple(name for name, each in LOWERINGS.items() if not leaves(each))

    def least(self, layer: Op, batch: int, machine: Hardware, lowering: str) -> float:
        """The least cycles by the lowering's own bound."""
        return least_of(layer, batch, machine, lowering)

    def planned(self, layer: Op, batch: int, machine: Hardware, lowering: str, how: CheckPlan, most: int) -> Need:
        """Memory needs of a layer: from the numbers of steps if the lowering can tell them cheaply, else from the
        fewest passes that load every weight and store the sums.

        If simulation looks for the fastest of several blocks, two Programs are held at once.
        """
        weights = -(-layer.weights(batch) // machine.pes)
        words = machine.capacity_words * machine.vector_memory.word_elements
        least = max(weights, -(-layer.macs(batch) // (machine.macs_per_cycle * words)))
        passes, transfers, intermediates, ways = least, 0, 0, 1
        if least * PASS_BYTES <= most:
            (passes, transfers, intermediates), ways = planned_of(layer, batch, machine, lowering)
        values = _value_bytes(layer, batch, machine, how, intermediates)
        return Need(passes * PASS_BYTES + transfers * TRANSFER_BYTES, values, passes, min(ways, 2))

    def larger(self, machine: Hardware) -> Iterator[tuple[str, Hardware]]:
        """Ever larger arrays, as `--set` texts and machines."""
        while (side := 2 * max(machine.array.rows, machine.array.cols)) <= LARGEST_ARRAY:
            machine = machine.having("array", rows=side, cols=side)
            yield f"array.size={side}", machine

    def fusing(self, machine: Hardware) -> FusionLimits | None:
        """Limits of fusion: as many operations as a lane has ALUs; None if the machine does not fuse."""
        if machine.sequencer.fusion == "none":
            return None
        from tpusim.machines.tpu.program.steps import Finish

        return FusionLimits(
            most=machine.vector_unit.alus // (machine.lanes * machine.array.count),
            carries=lambda lowering: LOWERINGS[lowering].carries,
            operations=lambda operation, coefficients: sum(Finish(operation, coefficients).operations),
        )

    def lowered(self, layer: Op, batch: int, machine: Hardware, lowering: str) -> PreparedLayer:
        """The Program of the fastest draft."""
        from tpusim.machines.tpu.runs.fastest_draft import prepared

        return prepared(layer, batch, machine, lowering)

    def overlaps(self, machine: Hardware) -> bool:
        """Whether layers overlap, by the machine's sequencer."""
        return machine.sequencer.between_layers != "drain"

    def chains(
        self, members: Iterable[tuple[Op, PreparedLayer]], workload: Workload, machine: Hardware, kept: int
    ) -> Iterator[ProgramChain]:
        """Chains of layers; the event engine's log of a Program needs about as much memory as the Program."""
        from tpusim.machines.tpu.runs.chains import chains_of

        return chains_of(members, workload, machine, kept // (2 * TRANSFER_BYTES))

    def exchanges(self, work: Workload, place: ChipSlice | str | None, machine: Hardware) -> Exchanges:
        """Time the collectives of a share of a network on a slice of such machines, as the compiler's code has them."""
        from tpusim.machines.tpu.slices.sharing import exchanges

        return exchanges(work, place, machine)


def _value_bytes(layer: Op, batch: int, hardware: Hardware, how: CheckPlan, intermediates: int) -> int:
    """Bytes of the values that a check or the register engine holds.

    A known output takes a byte, and so does a small operand; real ones take more, and the register engine holds numbers
    besides. Each of the `intermediates`, which are written and read again, takes a number and a byte.
    """
    if not how.check and not how.steps:
        return 0
    operands, outputs, each = layer.operands(batch), layer.outputs(batch), how.operand_bytes
    elements = operands + outputs
    memories = hardware.lanes * hardware.capacity_words * hardware.vector_memory.word_elements
    # The ifmap may be held twice, the second time with a margin.
    held = (
        outputs * how.output_bytes
        + (operands + prod(layer.sources(batch)["ifmap"])) * each
        + _FLOAT_BYTES * min(memories, elements)
    )
    held += (1 + _FLOAT_BYTES) * intermediates
    # The register engine also holds every word that moves.
    moved = elements + 2 * intermediates
    return held if not how.steps else held + 3 * _FLOAT_BYTES * moved


FAMILY = Tpu()
