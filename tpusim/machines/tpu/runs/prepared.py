"""A layer made ready for a TPU: its Program and its counts; with `mapping.search: simulate`, the block that simulation
finds fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpusim.base.imports import need
from tpusim.base.memory import at_rest
from tpusim.base.words import counted
from tpusim.machines.lowered import (
    Account,
    LaneCycle,
    LayerInParts,
    Phases,
    ReadyLayer,
    Told,
    WrittenTensor,
)
from tpusim.machines.tpu import event
from tpusim.machines.tpu.cost import energy_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import Recording, first_fill
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.registry import drafts_of
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.program.program import Explanation, Program
from tpusim.machines.tpu.program.steps import Stream
from tpusim.machines.tpu.program.tensors import HBM, SCRATCH
from tpusim.machines.tpu.program.transfers import InboundTransfer, Spill, Transfer
from tpusim.machines.tpu.search.search import CLOSE, TRUSTED, Standing
from tpusim.memory.timing import Clocks
from tpusim.network.ops.op import OFMAP, Op
from tpusim.result.records import STALL_CAUSES, DramUse, VectorMemoryUse

if TYPE_CHECKING:
    from tpusim.machines.tpu.datapath.memories import Values
    from tpusim.machines.tpu.program.tensors import Tensor as HeldTensor
    from tpusim.machines.tpu.program.transfers import Part
    from tpusim.reference import Operands, Tensor

SHORT = 300
"""Most steps of a Program whose blocks are chosen by simulation, which then takes milliseconds.

An estimate leaves out, for example, the first fill and the last spill, which are a large part of few steps.
"""

MOST_DOUBTED = 50_000
"""Most steps of a longer Program that simulation chooses because an estimate has misled: two must fit in memory."""

PATIENCE, LONG_ENOUGH, MOST = 4, 500, 8
"""Limits of the search: it stops after `MOST` tilings in a row that are no faster, or after `PATIENCE` of them that
have `LONG_ENOUGH` steps together.
"""

MOST_KNOWN = 10_000
"""Choices that a process remembers."""


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


class _Winner(NamedTuple):
    """What the search for a layer's draft has found.

    Attributes:
        place: of the fastest draft.
        timed: number of drafts that were timed, the slower ones not to their ends.
        first, fastest: cycles of the first draft, and of the fastest.
        searched: whether the drafts were those that a simulation chooses from.
        least: cycles that no draft can beat, if these have spared the search; 0 if not.
    """

    place: int
    timed: int
    first: int
    fastest: int
    searched: bool = False
    least: float = 0.0


_known: dict[Hashable, _Winner] = {}
"""Choices by shape, batch, machine and lowering: who asks again does not wait for the losers to be timed again."""


@at_rest()
def prepared(layer: Op, batch: int, hardware: Hardware, lowering: str) -> PreparedLayer:
    """The Program of a layer by a lowering; of several drafts the first with the fewest cycles.

    If the Program is short, or if the estimate is off, drafts are those that a simulation chooses from.

    Raises:
        CapacityError: when nothing fits the machine; names the layer.
        CheckFailed, DeadlockError: when a draft fails in another way as it is timed.
    """
    searching = hardware.having("mapping", search="simulate")
    asked = layer.shape_key, batch, hardware, lowering
    if known := _known.get(asked):
        drafts = drafts_of(layer, batch, searching if known.searched else hardware, lowering)
        best = _ready(drafts[known.place], hardware, lowering)
        return _told(best, drafts, known)
    drafts = drafts_of(layer, batch, hardware, lowering)
    best, found = _fastest(drafts, hardware, lowering)
    if hardware.mapping.search == "auto" and _doubted(layer, drafts[0], best, found):
        if found.fastest <= (least := drafts[0].of_any()) * (1 + CLOSE):
            found = found._replace(least=least)
        elif len(others := drafts_of(layer, batch, searching, lowering)) > len(drafts):
            # The first of them mostly is the estimate's choice, which has been timed.
            plan = others[0].units.follows
            timed = found.place == 0 and plan is not None and plan == drafts[0].units.follows
            drafts = others
            best, found = _fastest(drafts, hardware, lowering, best if timed else None)
            found = found._replace(searched=True)
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    _known[asked] = found
    return _told(best, drafts, found)


def _doubted(layer: Op, draft: Draft, best: PreparedLayer, found: _Winner) -> bool:
    """Whether another block than the estimate's choice may well be the fastest: the Program is short, or the estimate
    is off.
    """
    # Estimates leave out the latency of the first word and the skew of the last.
    beyond = found.fastest - best.hardware.latency_cycles - best.hardware.lanes
    misled = abs(beyond - (estimate := draft.estimate())) > TRUSTED * estimate
    if misled and len(best.program.rows) <= MOST_DOUBTED:
        return True
    # Estimates of the vector unit's work include the first fill and the last spill.
    return layer.core.unit == "array" and draft.planned.passes + draft.planned.transfers <= SHORT


def _fastest(
    drafts: Sequence[Draft], hardware: Hardware, lowering: str, first: PreparedLayer | None = None
) -> tuple[PreparedLayer, _Winner]:
    """The fastest draft, and what the search has found; the layer by the `first` of them may be there already."""
    best = replace(first, draft=drafts[0], known=first.timing) if first else _ready(drafts[0], hardware, lowering)
    found = _Winner(0, 1, best.timing.cycles, best.timing.cycles)
    no_faster: list[int] = []
    for place, draft in enumerate(drafts[1:], 1):
        # Lowering and timing a draft is costly: it ends after several in a row that were no faster.
        if len(no_faster) >= PATIENCE and (sum(no_faster) >= LONG_ENOUGH or len(no_faster) >= MOST):
            break
        # The lower bound of a draft tells without lowering it that it cannot win by enough.
        if found.fastest <= draft.least * (1 + CLOSE):
            continue
        ready = _ready(draft, hardware, lowering)
        found = found._replace(timed=found.timed + 1)
        timing = ready.known or event.run_within(ready.program, ready.running, found.fastest)
        if timing and timing.cycles < found.fastest:
            best, no_faster = replace(ready, known=timing), []
            found = found._replace(place=place, fastest=timing.cycles)
        else:
            no_faster.append(len(ready.program.rows))
        # A Program may take gigabytes: the loser is gone before the next draft is lowered.
        del ready
    return best, found


def _ready(draft: Draft, hardware: Hardware, lowering: str) -> PreparedLayer:
    """The layer by one draft."""
    return _in_scratch(PreparedLayer(*draft.lower(), hardware, lowering, draft))


def _in_scratch(ready: PreparedLayer) -> PreparedLayer:
    """The layer with its intermediates, and operands that it reads again, in the scratch memory, if that takes fewer
    cycles.

    Layers that overlap are left alone: only the chain knows what there is room for.
    """
    hardware = ready.hardware
    if hardware.scratch_memory is None or hardware.sequencer.between_layers != "drain":
        return ready
    from tpusim.machines.tpu.schedule.joined import Joint
    from tpusim.machines.tpu.schedule.residence import in_scratch, prefetched

    (own,) = in_scratch([Joint("", ready.program, {})], hardware)
    found = ready.with_program(prefetched(own.program, hardware))
    names = [each.name.partition(" ")[0] for each in found.program.tensors if each.place.base is not None]
    if not names:
        return ready
    if found.timing.cycles >= ready.timing.cycles:
        return replace(ready, known=ready.timing)
    return found.with_told({"scratch": f"it holds {', '.join(names)}"}, {})


def _told(best: PreparedLayer, drafts: Sequence[Draft], found: _Winner) -> PreparedLayer:
    """The layer with sentences about the search; the first draft is the estimate's choice."""
    if len(drafts) == 1 and not found.least:
        return best
    first, fastest, estimate = found.first, found.fastest, drafts[0].estimate()
    least = found.least or min((each.least for each in drafts if each.least), default=0.0)
    by, which = ("a bound", "") if found.least else ("simulation", " that was ranked")
    own = "it is this one" if first == fastest else f"this one takes {fastest:,} ({fastest / first - 1:+.1%})"
    words = (
        f"by {by}, {counted(found.timed, 'block')} timed: the estimate's choice, expected to take "
        f"{round(estimate):,} cycles, takes {first:,} ({first / estimate - 1:+.1%}); {own}"
    )
    if least:
        words += f"; no other{which} can take fewer than {round(least):,} ({least / fastest - 1:+.1%})"
    numbers = {
        "timed": found.timed,
        "estimated_cycles": round(estimate),
        "first_cycles": first,
        "least_cycles": round(least),
    }
    return best.with_told({"search": words}, numbers)
