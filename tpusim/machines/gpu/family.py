"""GPUs as a machine family: its names, and layers made ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE
from tpusim.input.document import Document
from tpusim.input.form import Overrides
from tpusim.machines.family import PEAK, CheckPlan, Family, Need, peak_fact
from tpusim.machines.gpu import datapath, description, event, stepping
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.lowering import GLOSSES, LOWERINGS, layer_of
from tpusim.machines.gpu.program import GpuProgram
from tpusim.machines.lowered import Account, PlainTiming, ReadyLayer, SlotDrawing, Told
from tpusim.network.ops.op import Op
from tpusim.reference import Operands, Tensor

_STEP_BYTES = 400
"""Bytes of this computer's memory for each k-step: for itself, its traffic and its timing."""


@dataclass(frozen=True)
class GpuLowered(ReadyLayer):
    """A layer's Program on a GPU, ready to run."""

    program: GpuProgram
    gpu: Gpu
    lowering: str

    def account(self, layer: Op, batch: int, timing: PlainTiming) -> Account:
        """Counts of the layer, with the tile of a block, the parts of a sum and the blocks that share an SM."""
        products = self.program.products
        return timing.account(
            self.lowering, {"tile": products.tile.text, "split_k": products.split, "resident": products.resident}
        )

    @cached_property
    def timing(self) -> PlainTiming:
        """Time by the event engine."""
        return event.run(self.program, self.gpu)

    @property
    def to_step(self) -> int:
        """Cycles that the stepping engine will do: those of every kind of resident set, once."""
        return event.to_step(self.program, self.gpu)

    def stepped(self, operands: Callable[[], Operands], number: np.dtype[Any], told: Told) -> tuple[PlainTiming, None]:
        """Time cycle by cycle, without values."""
        return stepping.run(self.program, self.gpu, told), None

    def recorded(self) -> SlotDrawing:
        """A drawing of kernels, waves and an SM."""
        return SlotDrawing(self.timing.cycles, event.timeline(self.program, self.gpu))

    def values(self, operands: Operands, number: np.dtype[Any], told: Told) -> Mapping[str, Tensor]:
        """Values that pass through tiles in shared memory."""
        return datapath.run(self.program, operands, number, told)


class Gpus(Family):
    """Streaming multiprocessors behind an L2; a `machines.family.Family`."""

    name = "gpu"
    title = "a GPU"
    engines = ("event", "register", "both")
    lowerings = GLOSSES

    def glosses(self) -> Mapping[str, str]:
        """Description of each lowering, in a line."""
        return GLOSSES

    def paths(self) -> tuple[str, ...]:
        """Every field of a machine file."""
        return description.FORM.paths

    def model(self) -> type[Gpu]:
        """The class that describes a machine."""
        return Gpu

    def read(self, document: Document, overrides: Overrides) -> Gpu:
        """The machine that a file describes. Raises InputError."""
        return description.read(document, overrides)

    def facts(self, machine: Gpu) -> Mapping[str, str]:
        """Facts that tell one GPU from another."""
        return {
            "SMs": f"{machine.sm.count}",
            "clock": FREQUENCY.format(machine.clock_hz),
            PEAK: peak_fact(machine),
            "shared memory": f"{SIZE.format(machine.sm.shared_bytes)} an SM",
            "L2": SIZE.format(machine.l2.size_bytes),
            "DRAM": SIZE.format(machine.dram.capacity_bytes) if machine.dram.capacity_bytes else "",
            "bandwidth": BANDWIDTH.format(machine.dram.bandwidth_bytes_per_s),
        }

    def generation(self, machine: Gpu) -> str | None:
        """Return what the machine's file says."""
        return machine.generation

    def capacity(self, machine: Gpu) -> int | None:
        """Return what the machine's file says."""
        return machine.dram.capacity_bytes

    def easier(self, machine: Gpu) -> Mapping[str, Mapping[str, object]]:
        """Changes that make each resource twice as fast or as large, or remove time spent beside the work."""
        sm, l2, launch = (
            machine.sm,
            machine.l2,
            ("launch.kernel", "launch.offsets", "launch.reduction", "launch.strided"),
        )
        twice_shared = {"sm.shared": SIZE.format(2 * sm.shared_bytes), "sm.unified": SIZE.format(2 * sm.unified_bytes)}
        return {
            "tensor cores twice as fast": {"sm.fma_per_cycle": 2 * sm.fma_per_cycle},
            "twice the SMs": {"sm.count": 2 * sm.count},
            "twice the rate of L2": {"l2.bytes_per_cycle": float(2 * l2.bytes_per_cycle)},
            "half the latency of L2": {"l2.latency_cycles": -(-l2.latency_cycles // 2)},
            "twice the DRAM bandwidth": {"dram.bandwidth": BANDWIDTH.format(2 * machine.dram.bandwidth_bytes_per_s)},
            "twice the bytes that an SM loads": {"sm.load_bytes_per_cycle": 2 * sm.load_bytes_per_cycle},
            "twice the rate of shared memory": {"sm.shared_bytes_per_cycle": 2 * sm.shared_bytes_per_cycle},
            "twice the shared memory": twice_shared,
            "another k-step loaded ahead": {"sm.loads_under_way": sm.loads_under_way + 1},
            "k-steps without addresses and barriers": {"sm.step_cycles": 0},
            "taps without offsets": {"sm.tap_cycles": 0},
            "results written twice as fast": {"sm.epilogue_bytes_per_cycle": float(2 * sm.epilogue_bytes_per_cycle)},
            "no time for launches, offsets and strides": dict.fromkeys(launch, "1 ps"),
        }

    def planned(self, layer: Op, batch: int, machine: Gpu, lowering: str, how: CheckPlan, most: int) -> Need:
        """Memory needs by the k-steps of a block. Raises CapacityError and UnsuitableError."""
        asked = layer_of(layer, batch, machine)
        steps = asked.taps * -(-asked.channels // machine.mapping.k_step)
        return Need(_STEP_BYTES * steps, how.whole(layer, batch))

    def lowered(self, layer: Op, batch: int, machine: Gpu, lowering: str) -> GpuLowered:
        """The Program of a layer. Raises CapacityError and UnsuitableError."""
        return GpuLowered(LOWERINGS[lowering](layer_of(layer, batch, machine)), machine, lowering)


FAMILY = Gpus()
