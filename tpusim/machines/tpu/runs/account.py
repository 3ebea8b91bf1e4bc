"""What a run has counted of a layer, put together for its record: passes, memories, the DRAM, energy; its phases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpusim.machines.lowered import Account, Phases
from tpusim.machines.tpu.cost import EnergyCounts, energies
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.board import Log
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload
from tpusim.machines.tpu.program.transfers import HBM, Inbound, Spill, Transfer
from tpusim.memory.timing import Clocks
from tpusim.network.ops.op import Op
from tpusim.result.records import STALL_CAUSES, DramUse, EnergyUse, VectorMemoryUse, energy_use

if TYPE_CHECKING:
    from tpusim.machines.tpu.runs.prepared import Prepared


def account_of(ready: Prepared, layer: Op, batch: int, timing: Timing) -> Account:
    """All that is told of a layer that took this time."""
    program, explanation, hardware = ready.program, ready.explanation, ready.hardware
    element_bytes = hardware.vector_memory.element_bytes
    occupied = sum(stream.rows * stream.cols for stream in program.streams) * hardware.array.count
    lane_ports = len(program.ports(hardware)) - hardware.banked
    ports = hardware.lanes * lane_ports + hardware.banks * (hardware.vector_memory.bank_ports + 1)
    # What crosses the bus of the scratch memory, or is brought there.
    scratch = {name: getattr(program.use, name) for name in ("scratch_read_bytes", "scratch_write_bytes")}
    return Account(
        lowering=ready.lowering,
        passes=len(program.streams),
        multi_tile=explanation.multi_tile,
        mapping_efficiency=occupied / (hardware.pes * max(1, len(program.streams))),
        stall_cycles={cause: timing.units["systolic_array"].get(cause, 0) for cause in STALL_CAUSES},
        hbm_read_bytes=program.use.hbm_read_bytes,
        hbm_write_bytes=program.use.hbm_write_bytes,
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
            if each.scratch is None
        ),
        transformation_cycles=transformation_cycles(program, timing),
        dram=dram_use(ready.wanted_bytes, timing, hardware),
        energy_use=energy_of(layer.macs(batch), program, timing, hardware),
        own={name: moved for name, moved in scratch.items() if moved},
    )


def transformation_cycles(program: Program, timing: Timing) -> int:
    """Cycles of the bus that go to what writes intermediates: their spills, and the fills that these wait for."""
    checked = program.intermediates & program.checked
    spills = [step for step in program.steps if isinstance(step, Spill) and step.tensor.name in checked]
    sources = (program.steps[each] for spill in spills for each in spill.after)
    steps = (*spills, *(step for step in sources if isinstance(step, Inbound)))
    return sum(timing.bus.get(label, 0) for label in {step.label for step in steps})


def phases_of(log: Log, array: Mapping[str, int], lanes: int) -> Phases:
    """Cut up `array`, the split of the array's cycles, by what the log says of the first pass and the last spill."""
    if not log.passes or (log.works and log.works[0].ended < log.passes[0].ended):
        first_fill = log.works[0].filled - log.works[0].ended
    else:
        first = log.passes[0]
        on_the_grid = first.start - 1 - first.cleared if first.cause == "starved" else 0
        first_fill = first.filled - first.ended + on_the_grid
    skew = lanes - 1
    ended = log.cycles - array["idle"]
    drain = min(max(log.moves[-1].start - ended, 0), array["idle"] - skew)
    ends = {"first_fill": first_fill, "drain": drain, "spill": array["idle"] - drain - skew, "skew": skew}
    rest = {state: cycles for state, cycles in array.items() if state != "idle"}
    return Phases(**rest | ends | {"starved": array["starved"] - first_fill})


# ---- what the DRAM did


def wanted_bytes(program: Program, hardware: Hardware) -> int:
    """Bytes of the elements that all transfers move; 0 where no banks are modelled."""
    if hardware.hbm.dram is None:
        return 0
    moves = TransferRuns(program, hardware)
    return sum(moves.wanted(step) for step in program.steps if isinstance(step, Transfer) and step.bus == HBM)


def dram_use(wanted: int, timing: Timing, hardware: Hardware) -> DramUse | None:
    """None where no banks are modelled; `wanted` are `wanted_bytes` of the Program."""
    use, device = timing.hbm, hardware.hbm.dram
    if use is None or device is None:
        return None
    bursts, hits = sum((*use.reads, *use.writes)), sum(use.row_hits)
    moved = bursts * device.organisation.burst_bytes
    seconds, conflicts = use.cycles / device.clock_hz, sum(use.conflicts)
    # Those due in all channels before the layer's cycles have passed.
    memory_cycles = Clocks.of(hardware.clock_hz, device.clock_hz).to_memory(timing.cycles)
    banks = {"none": 0, "all_banks": 1, "per_bank": device.banks}[device.refresh]
    due = max(0, memory_cycles - 1) // max(1, device.cycles("tREFI") // banks) if banks else 0
    return DramUse(
        hbm_moved_bytes=moved,
        hbm_wanted_bytes=wanted,
        hbm_overfetch=moved / max(1, wanted),
        hbm_reached_bytes_per_s=moved / seconds if seconds else 0.0,
        row_hits=hits,
        row_misses=bursts - hits - conflicts,
        row_conflicts=conflicts,
        refreshes=device.channels * due,
        channel_imbalance=use.busiest * device.channels / max(1, use.requested),
    )


# ---- what a layer took in joules


def energy_of(macs: int, program: Program, timing: Timing, hardware: Hardware) -> EnergyUse:
    """All that is counted of a layer of so many `macs`."""
    use, dram = timing.hbm, hardware.hbm.dram
    if use and dram:
        moved = sum((*use.reads, *use.writes)) * dram.organisation.burst_bytes
    else:
        moved = program.use.hbm_read_bytes + program.use.hbm_write_bytes
    # Elements added to partial sums, and what steps of the unit's own do with each element of a result.
    products = sum(step.words * step.cols * step.finishing[0] for step in program.streams if step.finish)
    sums = sum(step.words * step.cols * (step.accumulate + step.finishing[1]) for step in program.streams)
    for step in program.vectors:
        multiplied, others = step.operations(hardware)
        products += multiplied * step.writes.accesses
        sums += others * step.writes.accesses
    preloads = [step for step in program.steps if isinstance(step, Preload)]
    loaded = sum(step.rows * step.cols for step in preloads)
    # The first row's weight moves once, the last row's through all.
    moves = sum(step.cols * step.rows * (step.rows + 1) // 2 for step in preloads)
    counts = EnergyCounts(
        pe_operations=program.use.pe_words * program.word_fill,
        weight_moves=moves * hardware.array.together,
        vector_products=products * program.word_fill,
        vector_sums=sums * program.word_fill,
        reads=timing.reads,
        writes=timing.writes,
        hbm_bytes=moved,
        activates=sum(use.activates) if use else None,
        seconds=timing.cycles / hardware.clock_hz,
    )
    done = {"pe_operations": counts.pe_operations, "weights_loaded": loaded * hardware.array.together,
            "vector_products": counts.vector_products, "vector_sums": counts.vector_sums}  # fmt: skip
    return energy_use(hardware.silicon.name, energies(counts, hardware), done, macs, counts.seconds)
