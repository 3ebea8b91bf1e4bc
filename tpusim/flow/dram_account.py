"""What the DRAM did for a layer, put together for its record."""

from __future__ import annotations

from typing import NamedTuple

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.moves import Moves
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Transfer
from tpusim.memory.clocks import Clocks
from tpusim.memory.dram.device import Device
from tpusim.result.records import DramUse


class DramTraffic(NamedTuple):
    """What a Program asks of a DRAM: bytes of elements, and `DramUse.channel_imbalance`."""

    wanted_bytes: int
    imbalance: float

    @classmethod
    def of(cls, program: Program, hardware: Hardware) -> DramTraffic:
        """All transfers together. Of each the bursts of its busiest channel, over what a channel would have of all."""
        device, moves = hardware.hbm.dram, Moves(program, hardware)
        if device is None:
            return cls(0, 0.0)
        # Its loops are compiled, and importing the compiler takes longer than many a layer.
        from tpusim.memory.dram.places import by_channel

        mapping, wanted, busiest, bursts = device.addresses(), 0, 0, 0
        for step in (step for step in program.steps if isinstance(step, Transfer)):
            channels = by_channel(mapping, moves.bursts(step))
            busiest, bursts = busiest + int(channels.max()), bursts + int(channels.sum())
            wanted += moves.wanted(step)
        return cls(wanted, busiest * device.channels / max(1, bursts))


def dram_use(traffic: DramTraffic, timing: Timing, hardware: Hardware) -> DramUse | None:
    """None where no banks are modelled."""
    use, device = timing.hbm, hardware.hbm.dram
    if use is None or device is None:
        return None
    bursts, hits, wanted = sum((*use.reads, *use.writes)), sum(use.row_hits), traffic.wanted_bytes
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
        channel_imbalance=traffic.imbalance,
    )


def _refreshes(device: Device, cycles: int) -> int:
    """Those due in all channels before so many cycles of the memory have passed."""
    banks = {"none": 0, "all_banks": 1, "per_bank": device.banks}[device.refresh]
    return device.channels * (max(0, cycles - 1) // max(1, device.cycles("tREFI") // banks)) if banks else 0
