"""What the others know of GPUs: `machines.family.Family`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE
from tpusim.input.document import Document
from tpusim.input.form import Overrides
from tpusim.machines.family import Family, Machine, Planned
from tpusim.machines.gpu import datapath, description, event, stepping
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.lowering import GLOSSES, LOWERINGS, layer_of
from tpusim.machines.gpu.program import GpuProgram
from tpusim.machines.lowered import Account, Lowered, Slot, Timing, Told
from tpusim.network.ops.op import Op
from tpusim.reference import Operands, Tensor

_STEP_BYTES = 400
"""Of this computer's memory, about, for each k-step: itself, what it moves, and what is to be timed of it."""


@dataclass(frozen=True)
class GpuLowered(Lowered):
    """A layer's Program on a GPU, ready to run."""

    program: GpuProgram
    gpu: Gpu
    lowering: str

    def account(self, layer: Op, batch: int, timing: Timing) -> Account:
        """With the tile of a block, the parts of a sum, the blocks that share an SM."""
        products = self.program.products
        return timing.account({"tile": products.tile.text, "split_k": products.split, "resident": products.resident})

    def timed(self) -> Timing:
        """From event to event."""
        return event.run(self.program, self.gpu)

    @property
    def to_step(self) -> int:
        """Cycles of every kind of resident set, once."""
        return event.to_step(self.program, self.gpu)

    def stepped(self, operands: Callable[[], Operands], number: np.dtype[Any], told: Told) -> tuple[Timing, None]:
        """Cycle by cycle, without values."""
        return stepping.run(self.program, self.gpu, told), None

    def slots(self) -> Mapping[str, Sequence[Slot]]:
        """Kernels, waves, and an SM."""
        return event.timeline(self.program, self.gpu)

    def values(self, operands: Operands, number: np.dtype[Any], told: Told) -> Mapping[str, Tensor]:
        """Through tiles in shared memory."""
        return datapath.run(self.program, operands, number, told)


class Gpus(Family):
    """The family."""

    name = "gpu"
    title = "a GPU"
    engines = ("event", "register", "both")
    lowerings = GLOSSES
    partial: frozenset[str] = frozenset()

    def paths(self) -> tuple[str, ...]:
        """Fields of a file's sections."""
        return description.FORM.paths

    def model(self) -> type[Gpu]:
        """The description."""
        return Gpu

    def read(self, document: Document, overrides: Overrides) -> Gpu:
        """Raises InputError."""
        return description.read(document, overrides)

    def meant(self, layer: Op, lowering: str) -> str:
        """The name itself: all lowerings are for the same ops."""
        return lowering

    def unasked(self, layer: Op, batch: int, machine: Machine) -> str:
        """The first, of all layers."""
        return next(iter(GLOSSES))

    def facts(self, machine: Machine) -> Mapping[str, str]:
        """What tells one GPU from another."""
        gpu = cast(Gpu, machine)
        return {
            "SMs": f"{gpu.sm.count}",
            "clock": FREQUENCY.format(gpu.clock_hz),
            "peak": f"{2 * gpu.pes * gpu.clock_hz / 1e12:.0f} TFLOP/s",
            "shared memory": f"{SIZE.format(gpu.sm.shared_bytes)} an SM",
            "L2": SIZE.format(gpu.l2.size_bytes),
            "DRAM": BANDWIDTH.format(gpu.dram.bandwidth_bytes_per_s),
        }

    def easier(self, machine: Machine) -> Mapping[str, Mapping[str, object]]:
        """Each resource twice as fast, or as large; what stands beside the work, gone."""
        gpu = cast(Gpu, machine)
        sm, l2, launch = gpu.sm, gpu.l2, ("launch.kernel", "launch.offsets", "launch.reduction", "launch.strided")
        twice_shared = {"sm.shared": SIZE.format(2 * sm.shared_bytes), "sm.unified": SIZE.format(2 * sm.unified_bytes)}
        return {
            "tensor cores twice as fast": {"sm.fma_per_cycle": 2 * sm.fma_per_cycle},
            "twice the SMs": {"sm.count": 2 * sm.count},
            "twice the rate of L2": {"l2.bytes_per_cycle": float(2 * l2.bytes_per_cycle)},
            "half the latency of L2": {"l2.latency_cycles": -(-l2.latency_cycles // 2)},
            "twice the DRAM bandwidth": {"dram.bandwidth": BANDWIDTH.format(2 * gpu.dram.bandwidth_bytes_per_s)},
            "twice the bytes that an SM loads": {"sm.load_bytes_per_cycle": 2 * sm.load_bytes_per_cycle},
            "twice the rate of shared memory": {"sm.shared_bytes_per_cycle": 2 * sm.shared_bytes_per_cycle},
            "twice the shared memory": twice_shared,
            "another k-step loaded ahead": {"sm.loads_under_way": sm.loads_under_way + 1},
            "k-steps without addresses and barriers": {"sm.step_cycles": 0},
            "taps without offsets": {"sm.tap_cycles": 0},
            "results written twice as fast": {"sm.epilogue_bytes_per_cycle": float(2 * sm.epilogue_bytes_per_cycle)},
            "no time for launches, offsets and strides": dict.fromkeys(launch, "1 ps"),
        }

    def planned(self, layer: Op, batch: int, machine: Machine, lowering: str, most: int) -> Planned:
        """By the k-steps of a block. Raises CapacityError and UnsuitableError."""
        gpu = cast(Gpu, machine)
        asked = layer_of(layer, batch, gpu)
        return Planned(_STEP_BYTES * asked.taps * -(-asked.channels // gpu.mapping.k_step))

    def lowered(self, layer: Op, batch: int, machine: Machine, lowering: str) -> GpuLowered:
        """Raises CapacityError and UnsuitableError."""
        gpu = cast(Gpu, machine)
        return GpuLowered(LOWERINGS[lowering](layer_of(layer, batch, gpu)), gpu, lowering)


FAMILY = Gpus()
