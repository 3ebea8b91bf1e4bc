"""What a run has counted of a layer, put together for its record: passes, memories, the DRAM, energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpusim.machines.lowered import Account
from tpusim.machines.tpu.cost import EnergyCounts, energies
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload
from tpusim.machines.tpu.program.transfers import HBM, Inbound, Spill, Transfer
from tpusim.memory.dram.device import Device
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
    return Account(
        passes=len(program.streams),
        multi_tile=explanation.multi_tile,
        mapping_efficiency=occupied / (hardware.pes * max(1, len(program.streams))),
        stall_cycles={cause: timing.units["systolic_array"].get(cause, 0) for cause in STALL_CAUSES},
        hbm_read_bytes=program.use.hbm_read_bytes,
        hbm_write_bytes=program.use.hbm_write_bytes,
        vector_memory=_memory_use(program, timing, hardware),
        blocking=explanation.blocking,
        lowered_bytes=sum(
            each.bytes(element_bytes)
            for each in map(program.tensor, program.intermediates & program.checked)
            if each.scratch is None
        ),
        transformation_cycles=transformation_cycles(program, timing),
        dram=dram_use(ready.wanted_bytes, timing, hardware),
        energy_use=energy_of(layer.macs(batch), program, timing, hardware),
        own=_scratch_use(program),
    )


def transformation_cycles(program: Program, timing: Timing) -> int:
    """Cycles of the bus that go to what writes intermediates: their spills, and the fills that these wait for."""
    checked = program.intermediates & program.checked
    spills = [step for step in program.steps if isinstance(step, Spill) and step.tensor.name in checked]
    sources = (program.steps[each] for spill in spills for each in spill.after)
    steps = (*spills, *(step for step in sources if isinstance(step, Inbound)))
    return sum(timing.bus.get(label, 0) for label in {step.label for step in steps})


def _scratch_use(program: Program) -> dict[str, int]:
    """What crosses the bus of the scratch memory, or is brought there, if anything does."""
    names, use = ("scratch_read_bytes", "scratch_write_bytes"), program.use._asdict()
    return {name: use[name] for name in names if use[name]}


def _memory_use(program: Program, timing: Timing, hardware: Hardware) -> VectorMemoryUse:
    lane_ports = len(program.ports(hardware)) - hardware.banked
    ports = hardware.lanes * lane_ports + hardware.banks * (hardware.vector_memory.bank_ports + 1)
    return VectorMemoryUse(
        reads=timing.reads,
        writes=timing.writes,
        port_idle_ratio=max(0.0, 1 - (timing.reads + timing.writes) / (ports * timing.cycles)),
        peak_bytes=program.lane_words() * hardware.word_bytes,
        ifmap_bytes=program.lane_words("ifmap") * hardware.word_bytes,
    )


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
    return DramUse(
        hbm_moved_bytes=moved,
        hbm_wanted_bytes=wanted,
        hbm_overfetch=moved / max(1, wanted),
        hbm_reached_bytes_per_s=moved / seconds if seconds else 0.0,
        row_hits=hits,
        row_misses=bursts - hits - conflicts,
        row_conflicts=conflicts,
        refreshes=_refreshes(device, Clocks.of(hardware.clock_hz, device.clock_hz).to_memory(timing.cycles)),
        channel_imbalance=use.busiest * device.channels / max(1, use.requested),
    )


def _refreshes(device: Device, cycles: int) -> int:
    """Those due in all channels before so many cycles of the memory have passed."""
    banks = {"none": 0, "all_banks": 1, "per_bank": device.banks}[device.refresh]
    return device.channels * (max(0, cycles - 1) // max(1, device.cycles("tREFI") // banks)) if banks else 0


# ---- what a layer took in joules


def energy_of(macs: int, program: Program, timing: Timing, hardware: Hardware) -> EnergyUse:
    """All that is counted of a layer of so many `macs`."""
    seconds, vector = timing.cycles / hardware.clock_hz, _vector_work(program, hardware)
    preloads = [step for step in program.steps if isinstance(step, Preload)]
    loaded = sum(step.rows * step.cols for step in preloads)
    # The first row's weight moves once, the last row's through all.
    moves = sum(step.cols * step.rows * (step.rows + 1) // 2 for step in preloads)
    counts = EnergyCounts(
        pe_operations=program.use.pe_words * program.word_fill,
        weight_moves=moves * hardware.array.together,
        vector_products=vector.products,
        vector_sums=vector.sums,
        reads=timing.reads,
        writes=timing.writes,
        hbm_bytes=_hbm_moved(program, timing, hardware),
        activates=sum(timing.hbm.activates) if timing.hbm else None,
        seconds=seconds,
    )
    done = {"pe_operations": counts.pe_operations, "weights_loaded": loaded * hardware.array.together,
            "vector_products": vector.products, "vector_sums": vector.sums}  # fmt: skip
    return energy_use(hardware.silicon.name, energies(counts, hardware), done, macs, seconds)


class _Work(NamedTuple):
    """Multiplications, and all other operations, of the vector unit."""

    products: int
    sums: int


def _vector_work(program: Program, hardware: Hardware) -> _Work:
    """Elements added to partial sums, and what steps of the unit's own do with each element of a result."""
    products = sum(step.words * step.cols * step.finishing[0] for step in program.streams if step.finish)
    sums = sum(step.words * step.cols * (step.accumulate + step.finishing[1]) for step in program.streams)
    for step in program.vectors:
        multiplied, others = step.operations(hardware)
        products += multiplied * step.writes.accesses
        sums += others * step.writes.accesses
    return _Work(products * program.word_fill, sums * program.word_fill)


def _hbm_moved(program: Program, timing: Timing, hardware: Hardware) -> int:
    """Those that the DRAM moves where there is one, else those that transfers charge."""
    if timing.hbm and hardware.hbm.dram:
        return sum((*timing.hbm.reads, *timing.hbm.writes)) * hardware.hbm.dram.organisation.burst_bytes
    return program.use.hbm_read_bytes + program.use.hbm_write_bytes
