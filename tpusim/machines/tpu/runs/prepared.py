"""A layer made ready for a TPU: its Program, its counts, and the answers of its engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.base.imports import need
from tpusim.machines.lowered import Account, LaneCycle, LayerInParts, Phases, ReadyLayer, Told, WrittenTensor
from tpusim.machines.tpu import event
from tpusim.machines.tpu.cost import energy_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import Recording, first_fill
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.program.program import Explanation, Program
from tpusim.machines.tpu.program.steps import Stream
from tpusim.machines.tpu.program.tensors import HBM, SCRATCH
from tpusim.machines.tpu.program.transfers import InboundTransfer, Spill, Transfer
from tpusim.machines.tpu.search.search import Standing
from tpusim.memory.timing import Clocks
from tpusim.network.ops.op import OFMAP, Op
from tpusim.result.records import STALL_CAUSES, DramUse, VectorMemoryUse

if TYPE_CHECKING:
    from tpusim.machines.tpu.datapath.memories import Values
    from tpusim.machines.tpu.program.tensors import Tensor as HeldTensor
    from tpusim.machines.tpu.program.transfers import Part
    from tpusim.reference import Operands, Tensor


@dataclass(frozen=True)
class PreparedLayer(ReadyLayer):
    """A Program for a machine, which all layers of a shape share, and its time by the event engine.

    `lowering` made it from a `draft`; a Program that was written by hand has none. The Program runs on the machine as
    its layer uses the arrays (`running`). `known` is its time, where that was found before.
    """

    program: Program
    explanation: Explanation
    hardware: Hardware
    lowering: str
    draft: Draft | None = None
    known: Timing | None = None

    def with_told(self, told: Mapping[str, str], choices: Mapping[str, int | str]) -> PreparedLayer:
        """A copy with more sentences and choices in its explanation."""
        old = self.explanation
        explanation = replace(old, aspects={**old.aspects, **told}, choices={**old.choices, **choices})
        return replace(self, explanation=explanation, known=self.timing)

    @cached_property
    def running(self) -> Hardware:
        """The machine with its arrays arranged for the Program."""
        arrangement = self.draft.arrangement if self.draft else None
        return self.hardware.arranged(arrangement) if arrangement else self.hardware

    @cached_property
    def timing(self) -> Timing:
        """Time by the event engine."""
        return self.known or event.run(self.program, self.running)

    @cached_property
    def by_simpy(self) -> Timing:
        """Time by processes of SimPy."""
        return event.by_simpy(self.program, self.running)

    @cached_property
    def _counted(self) -> list[Any]:
        """The timing of the last account, and the account."""
        return []

    @property
    def standing(self) -> Standing | None:
        """The standing of its tiling among all that fit, by their estimates; None where a lowering does not tell."""
        return self.draft.standing() if self.draft else None

    def with_program(self, program: Program) -> PreparedLayer:
        """Return the layer with another Program, whose time is not known yet."""
        return replace(self, program=program, known=None)

    def on(self, hardware: Hardware) -> PreparedLayer:
        """Return this Program on another machine that can carry out its steps, even if it would choose others."""
        return replace(self, hardware=hardware, known=None)

    @cached_property
    def wanted_bytes(self) -> int:
        """Bytes of the elements that all transfers move."""
        moves = TransferRuns(self.program, self.hardware)
        steps = self.program.rows.done(Transfer)
        return sum(moves.wanted(step) * count for step, count in steps if step.bus == HBM.bus)

    def program_for(self, number: np.dtype[Any]) -> Program:
        """The Program for values that are added in numbers of this type."""
        return replace(self.program, doubles=True) if number == np.float64 else self.program

    def stepped(
        self, operands: Callable[[], Operands], number: np.dtype[Any], told: Told
    ) -> tuple[Timing, Mapping[str, Tensor]]:
        """Time and values by the register engine."""
        need_numba()
        from tpusim.machines.tpu import register

        return register.run(self.program_for(number), self.running, as_floats(operands()), told)

    def passes_of_a_word(self, layer: Op, batch: int) -> tuple[float, float]:
        """Passes for a word of outputs: words of all streams over words of the outputs. A pass of a small array on the
        diagonal is a part of one.
        """
        array, word = self.hardware.array, self.hardware.vector_memory.word_elements
        channels, height, width, images = layer.shapes(batch)[OFMAP]
        words = height * width * ceil(images / word) * ceil(channels / array.cols)
        streamed = sum(stream.words * count for stream, count in self.program.rows.done(Stream))
        split = self.draft.arrangement.split if self.draft and self.draft.arrangement else 1
        return streamed / split / words, layer.macs(batch) / (array.rows * array.cols * word) / words

    def account(self, layer: Op, batch: int, timing: Timing) -> Account:
        """All counts of a run; layers of one shape that share the run share its counts."""
        if not self._counted or self._counted[0] is not timing:
            self._counted[:] = timing, self._account(layer, batch, timing)
        found: Account = self._counted[1]
        return found

    def _account(self, layer: Op, batch: int, timing: Timing) -> Account:
        program, explanation, hardware = self.program, self.explanation, self.running
        element_bytes = hardware.vector_memory.element_bytes
        streams = program.rows.done(Stream)
        occupied = sum(stream.rows * stream.cols * count for stream, count in streams) * hardware.array.count
        lane_ports = len(program.ports(hardware)) - hardware.banked
        ports = hardware.lanes * lane_ports + hardware.banks * (hardware.vector_memory.bank_ports + 1)
        # Bytes of the scratch memory's bus, and of prefetches.
        scratch = {name: getattr(program.use, name) for name in (SCRATCH.reads, SCRATCH.writes)}
        read, written = program.use.hbm_read_bytes, program.use.hbm_write_bytes
        if (hbm := timing.hbm) and (device := hardware.hbm.dram):
            # Counted by address: a run may touch one burst more than it fills, and neighbours may share a burst.
            burst = device.organisation.burst_bytes
            read, written = hbm.asked_reads * burst, hbm.asked_writes * burst
        return Account(
            lowering=self.lowering,
            passes=program.passes,
            multi_tile=explanation.multi_tile,
            mapping_efficiency=occupied / (self.hardware.pes * max(1, program.passes)),
            stall_cycles={cause: timing.units["systolic_array"].get(cause, 0) for cause in STALL_CAUSES},
            hbm_read_bytes=read,
            hbm_write_bytes=written,
            vector_memory=VectorMemoryUse(
                reads=timing.reads,
                writes=timing.writes,
                port_idle_ratio=max(0.0, 1 - (timing.reads + timing.writes) / (ports * timing.cycles)),
                peak_bytes=program.lane_words() * hardware.word_bytes,
                ifmap_bytes=program.lane_words("ifmap") * hardware.word_bytes,
            ),
            blocking=explanation.blocking,
            lowered_bytes=sum(
                each.bytes(element_bytes)
                for each in map(program.tensor, program.intermediates & program.checked)
                if each.place == HBM
            ),
            transformation_cycles=transformation_cycles(program, timing),
            launch_cycles=hardware.sequencer.launch_cycles,
            dram=dram_use(self, timing),
            energy_use=energy_of(layer.macs(batch), program, timing, hardware, self.hardware.pes),
            own={name: moved for name, moved in scratch.items() if moved},
        )

    def lane_contents(self, tensor: str, operands: Operands, empty: float) -> Values:
        """Contents of the lanes after all fills of a tensor; where two fills write a word, the later one stays."""
        from tpusim.machines.tpu.datapath.memories import filled

        return filled(self.program, self.running, tensor, operands, empty)

    def workspace_bytes(self, own: Collection[str]) -> int:
        """Bytes of tensors that are written and read again, and of tensors that the lowering brings."""
        element_bytes = self.hardware.vector_memory.element_bytes
        return sum(each.bytes(element_bytes) for each in self.program.tensors if each.name not in own)

    def phases(self, array: Mapping[str, int]) -> Phases:
        """By what the event engine notes of the first pass, or the first vector step, and the last spill."""
        log, skew = event.logged(self.program, self.running), self.running.skew
        filling = first_fill(log)
        ended = log.cycles - array["idle"]
        drain = min(max(int(log.on_bus(HBM.bus)["start"][-1]) - ended, 0), array["idle"] - skew)
        ends = {"first_fill": filling.total(), "drain": drain, "spill": array["idle"] - drain - skew, "skew": skew}
        rest = {state: cycles - filling[state] for state, cycles in array.items() if state != "idle"}
        return Phases(**rest | ends)

    def recorded(self) -> Recording:
        """A recording of all units."""
        return event.record(self.program, self.running)

    def lane_by_lane(self, operands: Operands) -> Callable[[int, Told], Iterator[LaneCycle]]:
        """Every lane in every cycle, by the register engine."""
        need_numba()
        from tpusim.machines.tpu import register

        return partial(register.trace, register.RegisterMachine(self.program, self.running, as_floats(operands)))

    @cached_property
    def _compared(self) -> dict[str, list[Part]]:
        """The parts of each tensor that is compared, as they are spilled, for all layers of the shape. Raises
        CheckFailed.
        """
        from tpusim.machines.tpu.program.check import check_program

        program = self.program
        check_program(program, self.running)
        spills = [step for _, step in program.rows.steps(Spill)]
        return {
            name: [part for step in spills if step.tensor.name == name for part in step.parts]
            for name in {OFMAP, *program.checked}
        }

    def in_parts(self, number: np.dtype[Any]) -> LayerInParts:
        """The tensors that the data path writes, spill by spill. Raises CheckFailed if the Program names what does not
        exist.
        """
        # Imported here, because a run without a check needs none of them.
        from tpusim.machines.tpu import datapath
        from tpusim.machines.tpu.datapath.memories import Ends, HbmTensor, ends_of_part

        def written(tensor: HeldTensor, parts: Sequence[Part]) -> WrittenTensor:
            def ends() -> Iterator[Ends]:
                return (ends_of_part(part, len(tensor.shape)) for part in parts)

            return WrittenTensor(tensor.shape, parts, lambda content: HbmTensor(tensor, content, ends()))

        program = self.program_for(number)
        tensors = {name: written(program.tensor(name), parts) for name, parts in self._compared.items()}
        return LayerInParts(program.number, tensors, partial(datapath.run, program, self.running))


def transformation_cycles(program: Program, timing: Timing) -> int:
    """Cycles of the bus for intermediates: their spills, and the fills that these wait for."""
    checked, rows, labels = program.intermediates & program.checked, program.rows, set[str]()
    for at, step in enumerate(rows.recipes if checked else ()):
        if isinstance(step, Spill) and step.tensor.name in checked:
            labels.add(step.label)
            sources = (rows.recipes[each] for each in rows.waited(at))
            labels |= {each.label for each in sources if isinstance(each, InboundTransfer)}
    return sum(timing.bus.get(label, 0) for label in labels)


def dram_use(ready: PreparedLayer, timing: Timing) -> DramUse | None:
    """Counts of the DRAM; None if no banks are modelled."""
    use, device = timing.hbm, ready.hardware.hbm.dram
    if use is None or device is None:
        return None
    wanted, burst = ready.wanted_bytes, device.organisation.burst_bytes
    bursts, hits = sum((*use.reads, *use.writes)), sum(use.row_hits)
    moved, asked = bursts * burst, use.asked_reads + use.asked_writes
    seconds, conflicts = use.cycles / device.clock_hz, sum(use.conflicts)
    # Refreshes that fall due in all channels during the layer's cycles.
    memory_cycles = Clocks.of(ready.hardware.clock_hz, device.clock_hz).to_memory(timing.cycles)
    banks = {"none": 0, "all_banks": 1, "per_bank": device.banks}[device.refresh]
    due = max(0, memory_cycles - 1) // max(1, device.cycles("tREFI") // banks) if banks else 0
    return DramUse(
        hbm_asked_bytes=asked * burst,
        hbm_moved_bytes=moved,
        hbm_wanted_bytes=wanted,
        hbm_overfetch=moved / max(1, wanted),
        hbm_reached_bytes_per_s=moved / seconds if seconds else 0.0,
        row_hits=hits,
        row_misses=bursts - hits - conflicts,
        row_conflicts=conflicts,
        refreshes=device.channels * due,
        channel_imbalance=use.busiest * device.channels / max(1, asked),
    )


def need_numba() -> None:
    """Check that the register engine can run: it needs Numba, which is not there for every Python.

    Raises:
        InputError: when Numba, or what it needs, cannot be imported; says how to install it for this Python.
    """
    need("the register engine", "Numba", "numba")


def as_floats(operands: Operands) -> dict[str, Tensor]:
    """Operands in float32, as the register engine takes them."""
    return {name: each.astype(np.float32) for name, each in operands.items()}
