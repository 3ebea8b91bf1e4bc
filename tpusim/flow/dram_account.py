"""What the DRAM did for a layer, put together for its record."""

from __future__ import annotations

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import HBM, Transfer
from tpusim.memory.dram.device import Device
from tpusim.memory.timing import Clocks
from tpusim.result.records import DramUse


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
